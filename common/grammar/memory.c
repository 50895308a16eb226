// memory.c: the stacks and configurations of a tracker: interning, and tidying up when memory is full.
//
//     words: │ object │ object │ object │ ...            │ free ...
//              size, hash, ..., pairs (state, stack)          each stack lies before whatever refers to it
//
// Tidying up keeps what cursors need, the configurations where they are and those configurations' stacks, and forgets everything else:
// transitions too, which refer to what is gone. It slides objects down without changing their order, so references still point downwards, and
// pairs that were sorted still are.
//
// Limits keep this from failing: a configuration with all its stacks has at most GRAMMAR_MAX_CONFIGURATION words, a step makes at most
// GRAMMAR_MAX_STEP, and memory is never smaller than all cursors' configurations and a step. What would be larger does not exist: the text
// may not go on there. That depends on the text alone, not on what is remembered at the time.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/grammar/tracker_state.h"

enum {
    WORDS_A_SLOT = 4,
    TABLE_MIN = 1024,
    MAX_WORDS = 1 << 30,
    TIDY_WORDS = 8, // that are tidied up in the time of one unit of work
};

// --- the table ----------------------------------------------------------------------------------------------------------

static uint32_t memory_hash_of(const struct grammar_pair *pairs, uint32_t count, uint32_t seed)
{
    uint64_t hash = 0x9e3779b97f4a7c15u * (seed + 1);

    for (uint32_t i = 0; i < count; i++) {
        hash ^= (uint64_t)pairs[i].state << 32 | pairs[i].stack;
        hash *= 0xff51afd7ed558ccdu;
        hash ^= hash >> 29;
    }
    return (uint32_t)(hash ^ hash >> 32);
}

// Returns the slot of an object that is such a set, or the empty slot for it.
static uint32_t memory_find_slot(const struct grammar_tracker *tracker, const struct grammar_pair *pairs, uint32_t count,
                                 uint32_t hash, uint32_t kind, uint32_t flags)
{
    uint32_t slot = hash & tracker->table_mask;

    for (; tracker->table[slot]; slot = (slot + 1) & tracker->table_mask) {
        const uint32_t object = tracker->table[slot], *words = tracker->words + object;
        const struct grammar_pair *its;
        uint32_t its_count;
        if (words[OBJECT_HASH] != hash || (words[OBJECT_SIZE] & OBJECT_IS_CONFIGURATION) != kind ||
            (kind && words[CONFIGURATION_FLAGS] != flags))
            continue;
        its = grammar_pairs_of(tracker, object, &its_count);
        if (its_count == count && memcmp(its, pairs, count * sizeof *pairs) == 0)
            break;
    }
    return slot;
}

static void memory_fill_table(struct grammar_tracker *tracker)
{
    memset(tracker->table, 0, ((size_t)tracker->table_mask + 1) * sizeof *tracker->table);
    tracker->object_count = 0;
    for (uint32_t at = 1; at < tracker->word_count; at += tracker->words[at + OBJECT_SIZE] >> 2) {
        uint32_t slot = tracker->words[at + OBJECT_HASH] & tracker->table_mask;
        while (tracker->table[slot])
            slot = (slot + 1) & tracker->table_mask;
        tracker->table[slot] = at;
        tracker->object_count++;
    }
}

// --- objects ------------------------------------------------------------------------------------------------------------

// Counts words that a step asks for, whether they are there already or not. Returns false, and the closure is full, beyond the limit.
static bool memory_charge(struct grammar_tracker *tracker, uint32_t words)
{
    tracker->closure->words += words;
    if (tracker->closure->words > GRAMMAR_MAX_STEP)
        tracker->closure->is_full = true;
    return !tracker->closure->is_full;
}

static uint32_t *add_object(struct grammar_tracker *tracker, uint32_t slot, uint32_t size, uint32_t kind, uint32_t hash)
{
    uint32_t *words = tracker->words + tracker->word_count;

    assert_always(size <= tracker->word_capacity - tracker->word_count && tracker->object_count < tracker->table_mask);
    words[OBJECT_SIZE] = size << 2 | kind;
    words[OBJECT_HASH] = hash;
    words[OBJECT_FORWARD] = 0;
    tracker->table[slot] = tracker->word_count;
    tracker->word_count += size;
    tracker->object_count++;
    return words;
}

uint32_t grammar_stack_of(struct grammar_tracker *tracker, const struct grammar_pair *pairs, uint32_t count)
{
    const uint32_t size = STACK_PAIRS + 2 * count, hash = memory_hash_of(pairs, count, 0);
    uint32_t slot, *words, weight = size;

    if (!memory_charge(tracker, size))
        return GRAMMAR_NO_STACK;
    slot = memory_find_slot(tracker, pairs, count, hash, 0, 0);
    if (tracker->table[slot])
        return tracker->table[slot];
    for (uint32_t i = 0; i < count; i++)
        if (pairs[i].stack)
            weight = MIN(weight + tracker->words[pairs[i].stack + STACK_WEIGHT], (uint32_t)MAX_WORDS);
    words = add_object(tracker, slot, size, 0, hash);
    words[STACK_WEIGHT] = weight;
    memcpy(words + STACK_PAIRS, pairs, count * sizeof *pairs);
    return (uint32_t)(words - tracker->words);
}

// Adds up the words of the stacks that some pairs lead to and that this walk has not met. Stops beyond the limit.
static uint32_t memory_weigh(struct grammar_tracker *tracker, const struct grammar_pair *pairs, uint32_t count)
{
    uint32_t *open = tracker->closure->open, open_count = 0, sum = 0;

    tracker->stamp++;
    for (uint32_t i = 0;;) {
        for (; i < count && sum <= GRAMMAR_MAX_CONFIGURATION; i++) {
            uint32_t *words = tracker->words + pairs[i].stack;
            if (pairs[i].stack && words[OBJECT_FORWARD] != tracker->stamp) {
                words[OBJECT_FORWARD] = tracker->stamp;
                sum += words[OBJECT_SIZE] >> 2;
                open[open_count++] = pairs[i].stack;
            }
        }
        if (!open_count || sum > GRAMMAR_MAX_CONFIGURATION)
            return sum;
        pairs = grammar_pairs_of(tracker, open[--open_count], &count);
        i = 0;
    }
}

uint32_t grammar_configuration_of(struct grammar_tracker *tracker, const struct grammar_pair *pairs, uint32_t count, bool may_end)
{
    const uint32_t classes = tracker->grammar->class_count, size = CONFIGURATION_NEXT + classes + 2 * count;
    const uint32_t flags = may_end ? CONFIGURATION_MAY_END : 0, hash = memory_hash_of(pairs, count, 1 + flags);
    uint32_t slot, *words, weight = size;

    if (!memory_charge(tracker, size))
        return GRAMMAR_DEAD;
    slot = memory_find_slot(tracker, pairs, count, hash, OBJECT_IS_CONFIGURATION, flags);
    if (tracker->table[slot])
        return tracker->table[slot];
    for (uint32_t i = 0; i < count; i++)
        weight = MIN(weight + tracker->words[pairs[i].stack + STACK_WEIGHT], (uint32_t)MAX_WORDS);
    if (weight > GRAMMAR_MAX_CONFIGURATION && size + memory_weigh(tracker, pairs, count) > GRAMMAR_MAX_CONFIGURATION) {
        tracker->closure->is_full = true;
        return GRAMMAR_DEAD;
    }
    words = add_object(tracker, slot, size, OBJECT_IS_CONFIGURATION, hash);
    words[CONFIGURATION_FLAGS] = flags;
    words[CONFIGURATION_MASK] = 0;
    words[CONFIGURATION_PLAIN] = GRAMMAR_UNKNOWN;
    words[CONFIGURATION_LOOPS] = words[CONFIGURATION_LOOPS + 1] = 0;
    memset(words + CONFIGURATION_NEXT, 0xff, classes * sizeof *words);
    memcpy(words + CONFIGURATION_NEXT + classes, pairs, count * sizeof *pairs);
    return (uint32_t)(words - tracker->words);
}

// --- tidying up ---------------------------------------------------------------------------------------------------------

// Marks a configuration and its stacks, and returns how many words that adds.
static uint32_t memory_mark(struct grammar_tracker *tracker, uint32_t root)
{
    uint32_t *open = tracker->closure->open, open_count = 0, words;

    if (!root || (tracker->words[root + OBJECT_SIZE] & OBJECT_IS_MARKED))
        return 0;
    words = tracker->words[root + OBJECT_SIZE] >> 2;
    tracker->words[root + OBJECT_SIZE] |= OBJECT_IS_MARKED;
    open[open_count++] = root;
    while (open_count) {
        uint32_t count;
        const struct grammar_pair *pairs = grammar_pairs_of(tracker, open[--open_count], &count);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t *size = tracker->words + pairs[i].stack + OBJECT_SIZE;
            if (pairs[i].stack && !(*size & OBJECT_IS_MARKED)) {
                words += *size >> 2;
                *size |= OBJECT_IS_MARKED;
                open[open_count++] = pairs[i].stack;
            }
        }
    }
    return words;
}

// Marks the configurations that have masks, as long as half of memory stays free, and lets go of the masks of others.
static void mark_masks(struct grammar_tracker *tracker, uint32_t marked)
{
    for (uint32_t slot = 0; slot < tracker->mask_count; slot++) {
        uint32_t *owner = &tracker->mask_owners[slot];
        if (marked + GRAMMAR_MAX_CONFIGURATION <= tracker->word_capacity / 2)
            marked += memory_mark(tracker, *owner);
        else if (*owner && !(tracker->words[*owner + OBJECT_SIZE] & OBJECT_IS_MARKED))
            *owner = 0;
    }
}

// Says where each marked object will lie.
static void memory_assign(struct grammar_tracker *tracker)
{
    uint32_t to = 1;

    for (uint32_t at = 1; at < tracker->word_count; at += tracker->words[at + OBJECT_SIZE] >> 2)
        if (tracker->words[at + OBJECT_SIZE] & OBJECT_IS_MARKED) {
            tracker->words[at + OBJECT_FORWARD] = to;
            to += tracker->words[at + OBJECT_SIZE] >> 2;
        }
}

// Renames what a marked object refers to.
static void rename_pairs(struct grammar_tracker *tracker, uint32_t object)
{
    uint32_t count, *words = tracker->words + object;
    struct grammar_pair *pairs = (struct grammar_pair *)grammar_pairs_of(tracker, object, &count);

    for (uint32_t i = 0; i < count; i++)
        if (pairs[i].stack)
            pairs[i].stack = tracker->words[pairs[i].stack + OBJECT_FORWARD];
    if (words[OBJECT_SIZE] & OBJECT_IS_CONFIGURATION) {
        words[OBJECT_HASH] = memory_hash_of(pairs, count, 1 + words[CONFIGURATION_FLAGS]);
        words[CONFIGURATION_PLAIN] = GRAMMAR_UNKNOWN;
        words[CONFIGURATION_LOOPS] = words[CONFIGURATION_LOOPS + 1] = 0;
        memset(words + CONFIGURATION_NEXT, 0xff, tracker->grammar->class_count * sizeof *words);
    } else
        words[OBJECT_HASH] = memory_hash_of(pairs, count, 0);
}

static void rename_root(const struct grammar_tracker *tracker, uint32_t *configuration)
{
    if (*configuration)
        *configuration = tracker->words[*configuration + OBJECT_FORWARD];
}

static void memory_slide(struct grammar_tracker *tracker)
{
    uint32_t end = 1;

    for (uint32_t at = 1, size; at < tracker->word_count; at += size) {
        const uint32_t head = tracker->words[at + OBJECT_SIZE];
        size = head >> 2;
        if (!(head & OBJECT_IS_MARKED))
            continue;
        memmove(tracker->words + end, tracker->words + at, size * sizeof *tracker->words);
        tracker->words[end + OBJECT_SIZE] = head & ~(uint32_t)OBJECT_IS_MARKED;
        tracker->words[end + OBJECT_FORWARD] = 0;
        end += size;
    }
    tracker->word_count = end;
}

static void memory_tidy(struct grammar_tracker *tracker, uint32_t *configuration)
{
    uint32_t marked = memory_mark(tracker, *configuration);

    tracker->work += tracker->word_count / TIDY_WORDS;
    for (uint32_t i = 0; i < GRAMMAR_HELD; i++)
        marked += memory_mark(tracker, tracker->held[i]);
    for (struct grammar_cursor *cursor = tracker->cursors; cursor; cursor = cursor->next)
        marked += memory_mark(tracker, cursor->configuration);
    mark_masks(tracker, marked);
    memory_assign(tracker);
    for (uint32_t at = 1; at < tracker->word_count; at += tracker->words[at + OBJECT_SIZE] >> 2)
        if (tracker->words[at + OBJECT_SIZE] & OBJECT_IS_MARKED)
            rename_pairs(tracker, at);
    rename_root(tracker, configuration);
    for (uint32_t i = 0; i < GRAMMAR_HELD; i++)
        rename_root(tracker, &tracker->held[i]);
    for (struct grammar_cursor *cursor = tracker->cursors; cursor; cursor = cursor->next)
        rename_root(tracker, &cursor->configuration);
    for (uint32_t slot = 0; slot < tracker->mask_count; slot++)
        rename_root(tracker, &tracker->mask_owners[slot]);
    memory_slide(tracker);
    memory_fill_table(tracker);
    tracker->tidied++;
}

void grammar_memory_prepare(struct grammar_tracker *tracker, uint32_t *configuration)
{
    const uint32_t slots = tracker->table_mask + 1, new_objects = GRAMMAR_MAX_STEP / STACK_PAIRS;

    if (tracker->word_capacity - tracker->word_count < GRAMMAR_MAX_STEP || tracker->object_count + new_objects > slots - slots / 8)
        memory_tidy(tracker, configuration);
}

// --- sizes --------------------------------------------------------------------------------------------------------------

static bool memory_resize(struct grammar_tracker *tracker, size_t words)
{
    uint32_t slots = TABLE_MIN, *grown, *table;

    if (words > MAX_WORDS)
        return false;
    while (slots < words / WORDS_A_SLOT)
        slots *= 2;
    table = calloc(slots, sizeof *table);
    grown = table ? realloc(tracker->words, words * sizeof *grown) : NULL;
    if (!grown) {
        free(table);
        return false;
    }
    free(tracker->table);
    tracker->words = grown;
    tracker->word_capacity = (uint32_t)words;
    tracker->table = table;
    tracker->table_mask = slots - 1;
    memory_fill_table(tracker);
    return true;
}

// Returns the least memory for so many cursors: beside them there are what is held, the configuration that a step is made from, and the step.
static size_t words_for(uint32_t cursors)
{
    return 1 + ((size_t)cursors + GRAMMAR_HELD + 1) * GRAMMAR_MAX_CONFIGURATION + GRAMMAR_MAX_STEP;
}

bool grammar_memory_open(struct grammar_tracker *tracker, size_t words)
{
    const uint32_t rules = tracker->grammar->rule_count;

    tracker->word_count = 1;
    tracker->closure = calloc(1, sizeof *tracker->closure);
    tracker->pending = calloc((rules + 63) / 64, sizeof *tracker->pending);
    tracker->rule_calls = calloc(rules, sizeof *tracker->rule_calls);
    return tracker->closure && tracker->pending && tracker->rule_calls && memory_resize(tracker, MAX(words, words_for(0)));
}

bool grammar_memory_grow(struct grammar_tracker *tracker, uint32_t cursors)
{
    const size_t words = words_for(cursors);

    return words <= tracker->word_capacity || memory_resize(tracker, MAX(words, (size_t)tracker->word_capacity / 2 * 3));
}

void grammar_memory_close(struct grammar_tracker *tracker)
{
    free(tracker->words);
    free(tracker->table);
    free(tracker->closure);
    free(tracker->pending);
    free(tracker->rule_calls);
}
