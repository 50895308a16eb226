// cursor.c: which tokens may come next, and the trackers and cursors that are asked.
//
// In general the vocabulary's trie is walked with the configuration that each node's bytes lead to: a node without any takes its subtree with it.
//
// If all plain characters (vocab_state.h) lead to one configuration, as inside a JSON string, plain tokens are not looked at one by one: with
//
//     chain[0] ─any plain character▶ chain[1] ─▶ chain[2] ...
//
// as long as it goes on, or for ever if an element leads to itself, tokens of at most so many plain characters are allowed, by a bitset that
// is there already. Any other token is n plain characters and an end; the trie of those ends, which is small, is walked from chain[n].
//
//     {"a": "b│   49,152 tokens: 43,000 are plain; the others have some 2,000 different ends, nearly all of which stop at their first byte
//
// Elsewhere, as in a word of letters or in text before a marker, a node whose subtree has only characters that lead its configuration to
// itself is taken as a whole.
//
// The chain is found by trying a byte of each class through the states of UTF-8. Whether it is used changes no mask; it is given up if memory is
// tidied up on the way, which renames what has been found.
//
// An expression that is ambiguous on purpose may lead each token to a configuration of its own, of thousands of pairs: a mask would take
// minutes. So what a mask may cost has a limit, and beyond it there is none.
//
// Masks lie in slots. The hand goes round and takes the first slot that has not been asked for since it last came by.
#include "common/grammar/cursor.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/grammar/tracker_state.h"
#include "common/grammar/vocab_state.h"

// --- masks --------------------------------------------------------------------------------------------------------------

enum { MAX_MASKS = 1 << 16, PLAIN_STEPS_MAX = 8192, LARGE_SUBTREE = 16, DIFFERENT = UINT32_MAX - 1 };

// Allocates room for masks out of so many bytes; at least GRAMMAR_MIN_MASKS. Return false without memory.
static bool masks_open(struct grammar_tracker *tracker, size_t bytes)
{
    const struct grammar_vocab *vocab = tracker->vocab;

    tracker->mask_stride = MAX((vocab->token_count + 31) / 32, 1u);
    tracker->mask_count = (uint32_t)MIN(bytes / tracker->mask_stride / sizeof(uint32_t), (size_t)MAX_MASKS);
    tracker->mask_count = MAX(tracker->mask_count, (uint32_t)GRAMMAR_MIN_MASKS);
    tracker->mask_words = malloc((size_t)tracker->mask_count * tracker->mask_stride * sizeof *tracker->mask_words);
    tracker->mask_owners = calloc(tracker->mask_count, sizeof *tracker->mask_owners);
    tracker->mask_used = calloc(tracker->mask_count, sizeof *tracker->mask_used);
    tracker->levels = malloc((GRAMMAR_TOKEN_BYTES + 1) * sizeof *tracker->levels);
    tracker->chain = malloc(((size_t)vocab->most_chars + 2) * sizeof *tracker->chain);
    return tracker->mask_words && tracker->mask_owners && tracker->mask_used && tracker->levels && tracker->chain;
}

static void masks_close(struct grammar_tracker *tracker)
{
    free(tracker->mask_words);
    free(tracker->mask_owners);
    free(tracker->mask_used);
    free(tracker->levels);
    free(tracker->chain);
}

static bool mask_costs_too_much(const struct grammar_tracker *tracker) { return tracker->work > tracker->work_end; }

static void mask_allow(uint32_t *words, uint32_t token) { words[token / 32] |= 1u << token % 32; }

// --- plain characters ---------------------------------------------------------------------------------------------------

// The states of UTF-8, and of what is plain in it.
enum utf8_state {
    CHAR_DONE,
    ONE_LEFT,
    TWO_LEFT,
    THREE_LEFT,
    AFTER_E0,
    AFTER_E2,
    AFTER_E2_80,
    AFTER_ED,
    AFTER_F0,
    AFTER_F4,
    CHAR_START
};

static const struct utf8_range {
    uint8_t state, first, last, next; // enum utf8_state
} utf8_ranges[] = {
    {CHAR_START, 0x20, 0x21, CHAR_DONE}, {CHAR_START, 0x23, 0x5b, CHAR_DONE},  {CHAR_START, 0x5d, 0x7e, CHAR_DONE},
    {CHAR_START, 0xc2, 0xdf, ONE_LEFT},  {CHAR_START, 0xe0, 0xe0, AFTER_E0},   {CHAR_START, 0xe1, 0xe1, TWO_LEFT},
    {CHAR_START, 0xe2, 0xe2, AFTER_E2},  {CHAR_START, 0xe3, 0xec, TWO_LEFT},   {CHAR_START, 0xed, 0xed, AFTER_ED},
    {CHAR_START, 0xee, 0xef, TWO_LEFT},  {CHAR_START, 0xf0, 0xf0, AFTER_F0},   {CHAR_START, 0xf1, 0xf3, THREE_LEFT},
    {CHAR_START, 0xf4, 0xf4, AFTER_F4},  {ONE_LEFT, 0x80, 0xbf, CHAR_DONE},    {TWO_LEFT, 0x80, 0xbf, ONE_LEFT},
    {THREE_LEFT, 0x80, 0xbf, TWO_LEFT},  {AFTER_E0, 0xa0, 0xbf, ONE_LEFT},     {AFTER_E2, 0x80, 0x80, AFTER_E2_80},
    {AFTER_E2, 0x81, 0xbf, ONE_LEFT},    {AFTER_E2_80, 0x80, 0xa7, CHAR_DONE}, {AFTER_E2_80, 0xaa, 0xbf, CHAR_DONE},
    {AFTER_ED, 0x80, 0x9f, ONE_LEFT},    {AFTER_F0, 0x90, 0xbf, TWO_LEFT},     {AFTER_F4, 0x80, 0x8f, TWO_LEFT},
};

struct plain_search {
    struct grammar_tracker *tracker;
    uint32_t found;  // a character leads here; GRAMMAR_DEAD: none is allowed; GRAMMAR_UNKNOWN so far
    uint32_t steps;  // made so far
    uint32_t tidied; // before it began
    bool is_long;    // only characters of several bytes
};

// Follows all plain characters from a state in the middle of one. Returns whether they lead to one configuration, `found`.
static bool follow_plain(struct plain_search *search, uint32_t configuration, uint32_t state)
{
    const uint8_t *class_of = search->tracker->grammar->class_of;

    if (state == CHAR_DONE || configuration == GRAMMAR_DEAD) {
        if (search->found == GRAMMAR_UNKNOWN)
            search->found = configuration;
        return search->found == configuration;
    }
    for (size_t r = 0; r < ARRAY_COUNT(utf8_ranges); r++) {
        const struct utf8_range *range = &utf8_ranges[r];
        if (range->state != state || (search->is_long && range->first < 0x80))
            continue;
        for (uint32_t byte = range->first; byte <= range->last; byte++) {
            uint32_t next;
            if (byte > range->first && class_of[byte] == class_of[byte - 1]) // leads where the one before did
                continue;
            next = grammar_step(search->tracker, &configuration, (uint8_t)byte);
            if (++search->steps > PLAIN_STEPS_MAX || search->tracker->tidied != search->tidied ||
                mask_costs_too_much(search->tracker) || !follow_plain(search, next, range->next))
                return false;
        }
    }
    return true;
}

// Returns the groups of characters that lead a configuration to itself.
static uint64_t loops_of(struct grammar_tracker *tracker, uint32_t configuration)
{
    struct plain_search search = {.tracker = tracker, .found = configuration, .tidied = tracker->tidied, .is_long = true};
    uint32_t *words = tracker->words + configuration + CONFIGURATION_LOOPS;
    uint64_t loops = (uint64_t)words[1] << 32 | words[0], others = (uint64_t)1 << GRAMMAR_GROUP_BROKEN;

    if (loops)
        return loops;
    for (uint32_t byte = 0; byte < 0x80; byte++) {
        uint32_t next = grammar_step(tracker, &configuration, (uint8_t)byte);
        if (next != configuration)
            others |= (uint64_t)1 << grammar_group_of((uint8_t)byte);
    }
    if (!follow_plain(&search, configuration, CHAR_START))
        others |= (uint64_t)1 << GRAMMAR_GROUP_LONG;
    if (tracker->tidied != search.tidied || mask_costs_too_much(tracker))
        return 0;
    loops = ~others | (uint64_t)1 << GRAMMAR_GROUPS_KNOWN;
    words[0] = (uint32_t)loops;
    words[1] = (uint32_t)(loops >> 32);
    return loops;
}

// --- walks --------------------------------------------------------------------------------------------------------------

// Returns the configuration at a depth of the walk. If it has been renamed, it is found again from the walk's root, which is held.
static uint32_t mask_level_at(struct grammar_tracker *tracker, uint32_t depth)
{
    struct grammar_level *levels = tracker->levels;
    uint32_t here = tracker->held[1];

    if (levels[depth].tidied == tracker->tidied)
        return levels[depth].configuration;
    for (uint32_t d = 1; d <= depth; d++) {
        here = grammar_step(tracker, &here, levels[d].byte);
        levels[d].configuration = here;
        levels[d].tidied = tracker->tidied;
    }
    return depth ? here : tracker->held[1];
}

// Allows the tokens of a trie that may follow the configuration that is held, if their numbers are from `low` to `high`. groups: of its
// nodes, or NULL.
static void mask_walk(struct grammar_tracker *tracker, const struct grammar_trie *trie, const uint64_t *groups, uint32_t low,
                      uint32_t high, uint32_t *words)
{
    struct grammar_level *levels = tracker->levels;

    levels[0] = (struct grammar_level){.configuration = tracker->held[1], .tidied = tracker->tidied};
    for (uint32_t n = 0; n < trie->node_count && !mask_costs_too_much(tracker);) {
        const struct grammar_trie_node *node = &trie->nodes[n];
        uint32_t from = mask_level_at(tracker, node->depth - 1u), next = grammar_step(tracker, &from, node->byte), behind;
        if (next == GRAMMAR_DEAD) {
            n = node->end;
            continue;
        }
        levels[node->depth] = (struct grammar_level){.configuration = next, .tidied = tracker->tidied, .byte = node->byte};
        behind = node->end - n >= LARGE_SUBTREE && groups && !(groups[n] & ~loops_of(tracker, next)) ? node->end : n + 1;
        for (uint32_t t = node->token; t < trie->nodes[behind].token; t++)
            if (trie->numbers[t] >= low && trie->numbers[t] <= high)
                mask_allow(words, trie->tokens[t]);
        n = behind;
    }
}

// --- chains of plain characters -----------------------------------------------------------------------------------------

// Returns the configuration to which all plain characters lead, GRAMMAR_DEAD if none is allowed, or DIFFERENT.
static uint32_t plain_next(struct grammar_tracker *tracker, uint32_t configuration)
{
    struct plain_search search = {.tracker = tracker, .found = GRAMMAR_UNKNOWN, .tidied = tracker->tidied};
    uint32_t known = tracker->words[configuration + CONFIGURATION_PLAIN];
    bool is_one;

    if (known != GRAMMAR_UNKNOWN)
        return known;
    is_one = follow_plain(&search, configuration, CHAR_START);
    if (tracker->tidied != search.tidied || mask_costs_too_much(tracker))
        return DIFFERENT;
    known = is_one ? search.found : (uint32_t)DIFFERENT;
    tracker->words[configuration + CONFIGURATION_PLAIN] = known;
    return known;
}

// Finds the chain of a configuration and its last index. *loops: that one leads to itself. Returns false if there is none.
static bool mask_find_chain(struct grammar_tracker *tracker, uint32_t configuration, uint32_t *last, bool *loops)
{
    const uint32_t tidied = tracker->tidied;

    *loops = false;
    *last = 0;
    tracker->chain[0] = configuration;
    while (*last < tracker->vocab->most_chars) {
        uint32_t next = plain_next(tracker, tracker->chain[*last]);
        if (next == DIFFERENT || tracker->tidied != tidied)
            return false;
        *loops = next == tracker->chain[*last];
        if (next == GRAMMAR_DEAD || *loops)
            break;
        tracker->chain[++*last] = next;
    }
    return *last > 0 || *loops;
}

// Allows the plain tokens of at most so many characters, up to most_chars.
static void mask_allow_plain(const struct grammar_vocab *vocab, uint32_t chars, uint32_t *words)
{
    const uint32_t *starts = vocab->plain_starts, end = starts[vocab->most_chars + 1], middle = starts[chars + 1];

    if (middle <= end / 2) {
        for (uint32_t i = 0; i < middle; i++)
            mask_allow(words, vocab->plain_tokens[i]);
        return;
    }
    memcpy(words, vocab->plain_words, ((size_t)vocab->token_count + 31) / 32 * sizeof *words);
    for (uint32_t i = middle; i < end; i++)
        words[vocab->plain_tokens[i] / 32] &= ~(1u << vocab->plain_tokens[i] % 32);
}

// Makes the mask of the configuration that is held by its chain. Returns false if there is none; the words may be anything then.
static bool mask_by_chain(struct grammar_tracker *tracker, uint32_t *words)
{
    const struct grammar_vocab *vocab = tracker->vocab;
    const uint32_t tidied = tracker->tidied;
    uint32_t last;
    bool loops;

    if (!mask_find_chain(tracker, tracker->held[0], &last, &loops))
        return false;
    mask_allow_plain(vocab, loops ? vocab->most_chars : last, words);
    for (uint32_t n = 0; n <= last && tracker->tidied == tidied; n++) {
        if (!vocab->has_ends[n] && !(loops && n == last))
            continue;
        tracker->held[1] = tracker->chain[n];
        mask_walk(tracker, &vocab->ends, NULL, n, loops && n == last ? UINT32_MAX : n, words);
    }
    return tracker->tidied == tidied;
}

// --- slots --------------------------------------------------------------------------------------------------------------

// Returns a slot that nobody has, or takes one.
static uint32_t mask_take_slot(struct grammar_tracker *tracker)
{
    for (;;) {
        uint32_t slot = tracker->mask_hand, owner = tracker->mask_owners[slot];
        tracker->mask_hand = (slot + 1) % tracker->mask_count;
        if (owner && tracker->mask_used[slot]) {
            tracker->mask_used[slot] = false;
            continue;
        }
        if (owner)
            tracker->words[owner + CONFIGURATION_MASK] = 0;
        tracker->mask_owners[slot] = 0;
        return slot;
    }
}

// Returns the mask of a configuration that is not dead, which may be renamed. Valid until the next call. NULL: it would cost too much.
static const uint32_t *mask_of(struct grammar_tracker *tracker, uint32_t configuration)
{
    uint32_t slot = tracker->words[configuration + CONFIGURATION_MASK], *words;

    if (slot) {
        tracker->mask_used[slot - 1] = true;
        return tracker->mask_words + (size_t)(slot - 1) * tracker->mask_stride;
    }
    slot = mask_take_slot(tracker);
    words = tracker->mask_words + (size_t)slot * tracker->mask_stride;
    memset(words, 0, tracker->mask_stride * sizeof *words);
    tracker->held[0] = configuration;
    tracker->work_end = tracker->work + tracker->mask_work;
    if (!mask_by_chain(tracker, words)) {
        memset(words, 0, tracker->mask_stride * sizeof *words);
        tracker->held[1] = tracker->held[0];
        mask_walk(tracker, &tracker->vocab->all, tracker->vocab->groups, 0, UINT32_MAX, words);
    }
    const bool is_whole = !mask_costs_too_much(tracker);
    if (is_whole) {
        tracker->mask_owners[slot] = tracker->held[0];
        tracker->words[tracker->held[0] + CONFIGURATION_MASK] = slot + 1;
        tracker->mask_used[slot] = true;
    }
    tracker->held[0] = tracker->held[1] = GRAMMAR_DEAD;
    return is_whole ? words : NULL;
}

// --- trackers and cursors -----------------------------------------------------------------------------------------------

// Half of a tracker's memory is for masks. Words have two thirds of the other half, and their table the rest.
static bool tracker_open_memory(struct grammar_tracker *tracker, size_t bytes)
{
    return grammar_memory_open(tracker, bytes / 3 / sizeof *tracker->words) && masks_open(tracker, bytes / 2);
}

enum status grammar_tracker_open(struct grammar *grammar, const struct grammar_vocab *vocab, size_t bytes,
                                 struct grammar_tracker **out, struct error *error)
{
    struct grammar_tracker *tracker = calloc(1, sizeof *tracker);

    *out = NULL;
    if (tracker) {
        tracker->grammar = grammar;
        tracker->vocab = vocab;
        tracker->mask_work = GRAMMAR_MAX_MASK_WORK;
    }
    if (!tracker || !tracker_open_memory(tracker, bytes)) {
        if (tracker)
            tracker->grammar = NULL; // remains the caller's
        grammar_tracker_close(tracker);
        return error_set(error, STATUS_UNAVAILABLE, "out of memory");
    }
    *out = tracker;
    return STATUS_OK;
}

void grammar_tracker_close(struct grammar_tracker *tracker)
{
    if (!tracker)
        return;
    assert_always(!tracker->cursors);
    grammar_memory_close(tracker);
    masks_close(tracker);
    grammar_free(tracker->grammar);
    free(tracker);
}

const struct grammar *grammar_tracker_grammar(const struct grammar_tracker *tracker) { return tracker->grammar; }

uint64_t grammar_tracker_work(const struct grammar_tracker *tracker) { return tracker->work; }

struct grammar_cursor *grammar_cursor_open(struct grammar_tracker *tracker)
{
    struct grammar_cursor *cursor = grammar_memory_grow(tracker, tracker->cursor_count + 1) ? calloc(1, sizeof *cursor) : NULL;

    if (!cursor)
        return NULL;
    cursor->tracker = tracker;
    cursor->configuration = grammar_first_configuration(tracker);
    cursor->next = tracker->cursors;
    if (cursor->next)
        cursor->next->previous = cursor;
    tracker->cursors = cursor;
    tracker->cursor_count++;
    return cursor;
}

void grammar_cursor_close(struct grammar_cursor *cursor)
{
    if (!cursor)
        return;
    if (cursor->next)
        cursor->next->previous = cursor->previous;
    if (cursor->previous)
        cursor->previous->next = cursor->next;
    else
        cursor->tracker->cursors = cursor->next;
    cursor->tracker->cursor_count--;
    free(cursor);
}

void grammar_cursor_copy(struct grammar_cursor *to, const struct grammar_cursor *from)
{
    assert_always(to->tracker == from->tracker);
    to->configuration = from->configuration;
}

bool grammar_cursor_take_bytes(struct grammar_cursor *cursor, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count && cursor->configuration; i++) {
        uint32_t from = cursor->configuration; // a step may rename it and the cursor's
        cursor->configuration = grammar_step(cursor->tracker, &from, (uint8_t)bytes[i]);
    }
    return cursor->configuration != GRAMMAR_DEAD;
}

bool grammar_cursor_take(struct grammar_cursor *cursor, uint32_t token)
{
    const struct grammar_vocab *vocab = cursor->tracker->vocab;
    uint32_t first = token < vocab->token_count ? vocab->starts[token] : 0;
    uint32_t length = token < vocab->token_count ? vocab->starts[token + 1] - first : 0;

    if (!length)
        cursor->configuration = GRAMMAR_DEAD;
    return length && grammar_cursor_take_bytes(cursor, vocab->bytes + first, length);
}

bool grammar_cursor_is_dead(const struct grammar_cursor *cursor) { return cursor->configuration == GRAMMAR_DEAD; }

bool grammar_cursor_may_end(struct grammar_cursor *cursor)
{
    return cursor->configuration && (cursor->tracker->words[cursor->configuration + CONFIGURATION_FLAGS] & CONFIGURATION_MAY_END);
}

bool grammar_cursor_must_end(struct grammar_cursor *cursor)
{
    uint32_t count = 1;

    if (cursor->configuration)
        grammar_pairs_of(cursor->tracker, cursor->configuration, &count);
    return count == 0;
}

bool grammar_cursor_mask(struct grammar_cursor *cursor, uint32_t *words)
{
    const struct grammar_tracker *tracker = cursor->tracker;
    const size_t bytes = ((size_t)tracker->vocab->token_count + 31) / 32 * sizeof *words;
    const uint32_t *mask = cursor->configuration ? mask_of(cursor->tracker, cursor->configuration) : NULL;

    if (mask)
        memcpy(words, mask, bytes);
    else
        memset(words, 0, bytes);
    return mask || !cursor->configuration;
}

bool grammar_cursor_mask_is_ready(const struct grammar_cursor *cursor)
{
    return !cursor->configuration || cursor->tracker->words[cursor->configuration + CONFIGURATION_MASK] != 0;
}
