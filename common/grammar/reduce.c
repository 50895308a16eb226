// reduce.c: automata made deterministic, by the subset construction, and as small as they can be.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/grammar/fsa.h"

// --- deterministic automata ---------------------------------------------------------------------------------------------

// A subset holds the states of its members' closure over jumps that do something: accept, or have an arc that is no jump. Subsets lie one
// behind the other in `members` and are found by a hash table.

enum { SORT_WORK = 8 }; // sorting more than GRAMMAR_LARGE_SORT arcs counts as so much for each

struct subsets {
    const struct grammar_fsa *fsa;
    struct grammar_fsa *out; // state i is subset i
    uint32_t *members, member_count, member_capacity;
    uint32_t *starts;            // [max_states + 1]
    uint32_t *table, table_mask; // subset + 1
    uint32_t *stamps, stamp;     // [states of fsa] in which closure a state was met last
    uint32_t *open;              // [states of fsa]
    struct grammar_arc *arcs;    // a subset's
    uint32_t arc_count, arc_capacity;
    const struct grammar_arc **active; // those that read the symbol at hand
    uint32_t *targets;
    uint64_t *work;
};

static void subsets_fail(struct subsets *subsets, enum grammar_fsa_failure failure)
{
    if (!subsets->out->failure)
        subsets->out->failure = failure;
}

static bool does_something(const struct grammar_fsa *fsa, uint32_t state)
{
    return fsa->accepts[state] || (fsa->index[state] < fsa->index[state + 1] && fsa->arcs[fsa->index[state]].first != GRAMMAR_JUMP);
}

static bool subsets_reserve(struct subsets *subsets, uint32_t count)
{
    uint32_t capacity = subsets->member_capacity;
    uint32_t *grown;

    if (count <= capacity - subsets->member_count)
        return true;
    while (capacity - subsets->member_count < count)
        capacity *= 2;
    grown = realloc(subsets->members, capacity * sizeof *grown);
    if (!grown) {
        subsets_fail(subsets, GRAMMAR_FSA_NO_MEMORY);
        return false;
    }
    subsets->members = grown;
    subsets->member_capacity = capacity;
    return true;
}

static int compare_numbers(const void *left, const void *right)
{
    const uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;

    return (a > b) - (a < b);
}

static void sort_numbers(uint32_t *numbers, uint32_t count)
{
    if (count > 16)
        qsort(numbers, count, sizeof *numbers, compare_numbers);
    else
        for (uint32_t i = 1; i < count; i++) {
            uint32_t number = numbers[i], at = i;
            for (; at && numbers[at - 1] > number; at--)
                numbers[at] = numbers[at - 1];
            numbers[at] = number;
        }
}

// Puts the closure of some states behind the known subsets and returns how many states it has.
static uint32_t subsets_close_over(struct subsets *subsets, const uint32_t *states, uint32_t count)
{
    const struct grammar_fsa *fsa = subsets->fsa;
    uint32_t open_count = 0, first = subsets->member_count;

    subsets->stamp++;
    for (uint32_t i = 0; i < count; i++)
        if (subsets->stamps[states[i]] != subsets->stamp) {
            subsets->stamps[states[i]] = subsets->stamp;
            subsets->open[open_count++] = states[i];
        }
    while (open_count && !subsets->out->failure) {
        uint32_t state = subsets->open[--open_count];
        if (does_something(fsa, state) && subsets_reserve(subsets, 1))
            subsets->members[subsets->member_count++] = state;
        for (uint32_t a = fsa->index[state + 1]; a-- > fsa->index[state] && fsa->arcs[a].first == GRAMMAR_JUMP;) {
            uint32_t to = fsa->arcs[a].to;
            *subsets->work -= *subsets->work > 0;
            if (subsets->stamps[to] != subsets->stamp) {
                subsets->stamps[to] = subsets->stamp;
                subsets->open[open_count++] = to;
            }
        }
    }
    count = subsets->member_count - first;
    if (count > GRAMMAR_LARGE_SORT)
        *subsets->work -= MIN(*subsets->work, (uint64_t)count * SORT_WORK);
    subsets->member_count = first; // unless it turns out to be new
    sort_numbers(subsets->members + first, count);
    return count;
}

// Returns the subset that is the closure of some states.
static uint32_t subset_of(struct subsets *subsets, const uint32_t *states, uint32_t state_count)
{
    uint32_t count = subsets_close_over(subsets, states, state_count), subset, slot;
    const uint32_t *members = subsets->members + subsets->member_count;
    uint64_t hash = count;
    bool accepts = false;

    for (uint32_t i = 0; i < count; i++) {
        hash = (hash ^ members[i]) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 31;
    }
    for (slot = (uint32_t)hash & subsets->table_mask; subsets->table[slot]; slot = (slot + 1) & subsets->table_mask) {
        subset = subsets->table[slot] - 1;
        if (subsets->starts[subset + 1] - subsets->starts[subset] == count &&
            memcmp(subsets->members + subsets->starts[subset], members, count * sizeof *members) == 0)
            return subset;
    }
    for (uint32_t i = 0; i < count; i++)
        accepts |= subsets->fsa->accepts[members[i]];
    subset = grammar_fsa_add_state(subsets->out, accepts);
    if (subsets->out->failure)
        return 0;
    subsets->table[slot] = subset + 1;
    subsets->member_count += count;
    subsets->starts[subset + 1] = subsets->member_count;
    return subset;
}

static int compare_firsts(const void *left, const void *right)
{
    const struct grammar_arc *a = left, *b = right;

    return a->first != b->first ? (a->first < b->first ? -1 : 1) : (a->to > b->to) - (a->to < b->to);
}

// Collects the arcs of a subset's states, sorted by their first symbols.
static void subsets_collect(struct subsets *subsets, uint32_t subset)
{
    const struct grammar_fsa *fsa = subsets->fsa;
    const uint32_t first = subsets->starts[subset], end = subsets->starts[subset + 1];

    subsets->arc_count = 0;
    for (uint32_t i = first; i < end; i++) {
        uint32_t state = subsets->members[i];
        for (uint32_t a = fsa->index[state]; a < fsa->index[state + 1] && fsa->arcs[a].first != GRAMMAR_JUMP; a++)
            subsets->arcs[subsets->arc_count++] = fsa->arcs[a];
    }
    if (subsets->arc_count > GRAMMAR_LARGE_SORT)
        *subsets->work -= MIN(*subsets->work, (uint64_t)subsets->arc_count * SORT_WORK);
    if (end - first > 1)
        grammar_sort_arcs(subsets->arcs, subsets->arc_count, compare_firsts);
}

// Adds an arc, or widens the last one.
static void subsets_add_arc(struct grammar_fsa *out, uint32_t from, uint32_t first, uint32_t last, uint32_t to)
{
    struct grammar_arc *before = out->arc_count ? &out->arcs[out->arc_count - 1] : NULL;

    if (before && before->from == from && before->to == to && before->last + 1 == first && first < GRAMMAR_CALL)
        before->last = last;
    else
        grammar_fsa_add_arc(out, from, first, last, to);
}

// Goes through the symbols that a subset reads, from one change of the arcs that read them to the next.
static void subsets_expand(struct subsets *subsets, uint32_t subset)
{
    uint32_t active_count = 0, next = 0, symbol = 0;

    subsets_collect(subsets, subset);
    while ((next < subsets->arc_count || active_count) && !subsets->out->failure) {
        uint32_t last = GRAMMAR_JUMP, kept = 0;
        if (!active_count)
            symbol = subsets->arcs[next].first;
        while (next < subsets->arc_count && subsets->arcs[next].first == symbol)
            subsets->active[active_count++] = &subsets->arcs[next++];
        if (next < subsets->arc_count)
            last = subsets->arcs[next].first - 1;
        for (uint32_t i = 0; i < active_count; i++) {
            last = MIN(last, subsets->active[i]->last);
            subsets->targets[i] = subsets->active[i]->to;
        }
        if (*subsets->work < active_count)
            subsets_fail(subsets, GRAMMAR_FSA_TOO_LARGE);
        else
            *subsets->work -= active_count;
        subsets_add_arc(subsets->out, subset, symbol, last, subset_of(subsets, subsets->targets, active_count));
        for (uint32_t i = 0; i < active_count; i++)
            if (subsets->active[i]->last > last)
                subsets->active[kept++] = subsets->active[i];
        active_count = kept;
        symbol = last + 1;
    }
}

static bool subsets_open(struct subsets *subsets, uint32_t max_states)
{
    const struct grammar_fsa *fsa = subsets->fsa;
    uint32_t slots = 64;

    while (slots < 2 * max_states)
        slots *= 2;
    subsets->table_mask = slots - 1;
    subsets->member_capacity = 256;
    subsets->members = malloc(subsets->member_capacity * sizeof *subsets->members);
    subsets->starts = calloc((size_t)max_states + 2, sizeof *subsets->starts);
    subsets->table = calloc(slots, sizeof *subsets->table);
    subsets->stamps = calloc((size_t)fsa->state_count + 1, sizeof *subsets->stamps);
    subsets->open = malloc(((size_t)fsa->state_count + 1) * sizeof *subsets->open);
    subsets->arcs = malloc(((size_t)fsa->arc_count + 1) * sizeof *subsets->arcs);
    subsets->active = malloc(((size_t)fsa->arc_count + 1) * sizeof *subsets->active);
    subsets->targets = malloc(((size_t)fsa->arc_count + 1) * sizeof *subsets->targets);
    return subsets->members && subsets->starts && subsets->table && subsets->stamps && subsets->open && subsets->arcs &&
           subsets->active && subsets->targets;
}

static void subsets_close(struct subsets *subsets)
{
    free(subsets->members);
    free(subsets->starts);
    free(subsets->table);
    free(subsets->stamps);
    free(subsets->open);
    free(subsets->arcs);
    free(subsets->active);
    free(subsets->targets);
}

void grammar_determinize(const struct grammar_fsa *fsa, uint32_t max_states, uint64_t *work, struct grammar_fsa *out)
{
    struct subsets subsets = {.fsa = fsa, .out = out, .work = work};

    *out = (struct grammar_fsa){.max_states = max_states, .max_arcs = fsa->max_arcs, .failure = fsa->failure};
    if (!out->failure && subsets_open(&subsets, max_states)) {
        subset_of(&subsets, &fsa->start, 1);
        for (uint32_t subset = 0; subset < out->state_count && !out->failure; subset++)
            subsets_expand(&subsets, subset);
    } else
        subsets_fail(&subsets, GRAMMAR_FSA_NO_MEMORY);
    subsets_close(&subsets);
    if (!grammar_fsa_seal(out))
        return;
}

// --- minimal automata ---------------------------------------------------------------------------------------------------

// States are in blocks of those that have not been told apart yet. A state's signature is which symbols lead it to which block. A block
// whose states have several signatures is split: the largest part keeps the block's number, the others get new ones, and whoever leads to a
// renamed state is looked at again. Since renamed parts are at most half of their block, a state is renamed at most log n times, so its arcs
// are looked at some log n times for each state that they lead to. Where a state has very many arcs, which no deterministic one has, that
// may be too long: then nothing is merged.

enum {
    WORK_AN_ARC = 24, // arcs that may be looked at
    WORK_MIN = 1 << 16,
    SMALL_SORT = 24, // up to which insertion is faster
};

struct partition_mark_range {
    uint32_t block, first, last;
};

struct dirty_key { // a dirty state's block and the hash of its signature
    uint64_t key;
    uint32_t state;
};

struct partition {
    struct grammar_fsa *fsa;
    uint32_t *block_of;        // [states]
    uint32_t *states, *places; // states by block, and where each is among them
    uint32_t *firsts, *counts; // [blocks] of `states`
    uint32_t block_count;
    uint32_t *into_index, *into;        // the states that lead to each state
    uint32_t *dirty, dirty_count;       // those whose signature may have changed
    uint32_t *later, later_count;       // those of the next round
    bool *is_later;                     // [states]
    struct partition_mark_range *marks; // [arcs] signatures of the dirty states
    uint32_t *mark_starts;              // [states] where a dirty state's signature begins
    uint32_t *mark_counts;              // [states]
    uint32_t *mark_hashes;              // [states] so that few signatures are compared in full
    struct dirty_key *keys;             // [2 * states]
};

static int compare_marks(const void *left, const void *right)
{
    const struct partition_mark_range *a = left, *b = right;

    if (a->block != b->block)
        return a->block < b->block ? -1 : 1;
    return a->first != b->first ? (a->first < b->first ? -1 : 1) : (a->last > b->last) - (a->last < b->last);
}

// Writes a state's signature: for each block, in order, the ranges of symbols that lead there, joined where they touch. Returns their number.
static uint32_t partition_sign(const struct partition *partition, uint32_t state, struct partition_mark_range *out)
{
    const struct grammar_fsa *fsa = partition->fsa;
    uint32_t count = 0, kept = 0;

    for (uint32_t a = fsa->index[state]; a < fsa->index[state + 1]; a++)
        out[count++] = (struct partition_mark_range){
            .block = partition->block_of[fsa->arcs[a].to], .first = fsa->arcs[a].first, .last = fsa->arcs[a].last};
    if (count > SMALL_SORT)
        qsort(out, count, sizeof *out, compare_marks);
    for (uint32_t i = 1; i < count && count <= SMALL_SORT; i++) {
        struct partition_mark_range range = out[i];
        uint32_t at = i;
        for (; at && compare_marks(&range, &out[at - 1]) < 0; at--)
            out[at] = out[at - 1];
        out[at] = range;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct partition_mark_range *before = kept ? &out[kept - 1] : NULL;
        bool is_byte = out[i].first < GRAMMAR_CALL;
        if (before && before->block == out[i].block && (is_byte ? out[i].first <= before->last + 1 : out[i].first == before->first))
            before->last = MAX(before->last, out[i].last);
        else
            out[kept++] = out[i];
    }
    return kept;
}

static uint32_t hash_marks(const struct partition_mark_range *marks, uint32_t count)
{
    uint64_t hash = count;

    for (uint32_t i = 0; i < count; i++) {
        hash = (hash ^ ((uint64_t)marks[i].block << 32 | marks[i].first << 9 | marks[i].last)) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
    }
    return (uint32_t)hash;
}

static int compare_signatures(const struct partition *partition, uint32_t a, uint32_t b)
{
    uint32_t count = partition->mark_counts[a];

    if (partition->mark_hashes[a] != partition->mark_hashes[b])
        return partition->mark_hashes[a] < partition->mark_hashes[b] ? -1 : 1;
    if (count != partition->mark_counts[b])
        return count < partition->mark_counts[b] ? -1 : 1;
    return count ? memcmp(partition->marks + partition->mark_starts[a], partition->marks + partition->mark_starts[b],
                          count * sizeof *partition->marks)
                 : 0;
}

// Sorts dirty states by block and signature.
static int compare_dirty(const void *left, const void *right, void *arg)
{
    const struct partition *partition = arg;
    const uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    int order;

    if (partition->block_of[a] != partition->block_of[b])
        return partition->block_of[a] < partition->block_of[b] ? -1 : 1;
    order = compare_signatures(partition, a, b);
    return order ? order : (a > b) - (a < b);
}

// Sorts keys by merging, stably. Returns where they are then: `keys` or `spare`.
static struct dirty_key *sort_keys(struct dirty_key *keys, struct dirty_key *spare, uint32_t count)
{
    for (uint32_t width = 1; width < count; width *= 2) {
        struct dirty_key *swap = keys;
        for (uint32_t from = 0; from < count; from += 2 * width) {
            const uint32_t middle = MIN(from + width, count), end = MIN(from + 2 * width, count);
            uint32_t a = from, b = middle;
            for (uint32_t to = from; to < end; to++)
                spare[to] = a < middle && (b == end || keys[a].key <= keys[b].key) ? keys[a++] : keys[b++];
        }
        keys = spare;
        spare = swap;
    }
    return keys;
}

// Sorts the dirty states by block and signature. Signatures are compared in full only where their hashes are the same.
static void sort_dirty(struct partition *partition)
{
    const uint32_t count = partition->dirty_count;
    uint32_t *dirty = partition->dirty;
    const struct dirty_key *sorted;

    for (uint32_t i = 0; i < count; i++)
        partition->keys[i] =
            (struct dirty_key){(uint64_t)partition->block_of[dirty[i]] << 32 | partition->mark_hashes[dirty[i]], dirty[i]};
    sorted = sort_keys(partition->keys, partition->keys + partition->fsa->state_count, count);
    for (uint32_t i = 0; i < count; i++)
        dirty[i] = sorted[i].state;
    for (uint32_t i = 0, end; i < count; i = end) {
        bool is_alike = true;
        for (end = i + 1; end < count && sorted[end].key == sorted[i].key; end++)
            is_alike &= compare_signatures(partition, dirty[i], dirty[end]) == 0;
        if (!is_alike)
            qsort_r(dirty + i, end - i, sizeof *dirty, compare_dirty, partition);
    }
}

// Moves the state to the end of its block, before the `done` that are there already.
static void partition_move_back(struct partition *partition, uint32_t state, uint32_t done)
{
    uint32_t block = partition->block_of[state], to = partition->firsts[block] + partition->counts[block] - 1 - done;
    uint32_t from = partition->places[state], other = partition->states[to];

    partition->states[to] = state;
    partition->states[from] = other;
    partition->places[state] = to;
    partition->places[other] = from;
}

// Makes the last `count` states of a block one of their own.
static void partition_cut_off(struct partition *partition, uint32_t block, uint32_t count)
{
    uint32_t fresh = partition->block_count++;

    partition->counts[block] -= count;
    partition->firsts[fresh] = partition->firsts[block] + partition->counts[block];
    partition->counts[fresh] = count;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t state = partition->states[partition->firsts[fresh] + i];
        partition->block_of[state] = fresh;
        for (uint32_t a = partition->into_index[state]; a < partition->into_index[state + 1]; a++) {
            uint32_t from = partition->into[a];
            if (!partition->is_later[from]) {
                partition->is_later[from] = true;
                partition->later[partition->later_count++] = from;
            }
        }
    }
}

// Splits a block, of which the dirty states are sorted by signature; the others of it all have one signature, which none of these has.
static void partition_split(struct partition *partition, uint32_t block, const uint32_t *dirty, uint32_t count)
{
    uint32_t rest = partition->counts[block] - count, largest = rest, largest_at = count;

    for (uint32_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && compare_signatures(partition, dirty[i], dirty[end]) == 0;)
            end++;
        if (end - i > largest) {
            largest = end - i;
            largest_at = i;
        }
    }
    if (rest == 0 && largest == count) // all alike
        return;
    for (uint32_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && compare_signatures(partition, dirty[i], dirty[end]) == 0;)
            end++;
        if (i == largest_at)
            continue;
        for (uint32_t d = i; d < end; d++)
            partition_move_back(partition, dirty[d], d - i);
        partition_cut_off(partition, block, end - i);
    }
    if (largest_at == count || rest == 0)
        return;
    // The largest part is dirty and keeps the number: the rest, which is in front of it or mixed with it, goes.
    for (uint32_t d = 0; d < largest; d++) { // to the front
        uint32_t state = dirty[largest_at + d], to = partition->firsts[block] + d, other = partition->states[to];
        partition->states[partition->places[state]] = other;
        partition->places[other] = partition->places[state];
        partition->states[to] = state;
        partition->places[state] = to;
    }
    partition_cut_off(partition, block, rest);
}

// Returns false if that takes too long.
static bool partition_refine(struct partition *partition)
{
    const uint32_t states = partition->fsa->state_count;
    uint64_t work = WORK_MIN + (uint64_t)partition->fsa->arc_count * WORK_AN_ARC;

    for (uint32_t s = 0; s < states; s++)
        partition->dirty[partition->dirty_count++] = s;
    while (partition->dirty_count) {
        uint32_t marks = 0, *swap;
        for (uint32_t i = 0; i < partition->dirty_count; i++) {
            uint32_t state = partition->dirty[i], arcs = partition->fsa->index[state + 1] - partition->fsa->index[state];
            if (work < arcs)
                return false;
            work -= arcs;
            partition->mark_starts[state] = marks;
            partition->mark_counts[state] = partition_sign(partition, state, partition->marks + marks);
            partition->mark_hashes[state] = hash_marks(partition->marks + marks, partition->mark_counts[state]);
            marks += partition->mark_counts[state];
        }
        if (partition->dirty_count > 1)
            sort_dirty(partition);
        for (uint32_t i = 0, end; i < partition->dirty_count; i = end) {
            uint32_t block = partition->block_of[partition->dirty[i]];
            for (end = i + 1; end < partition->dirty_count && partition->block_of[partition->dirty[end]] == block;)
                end++;
            partition_split(partition, block, partition->dirty + i, end - i);
        }
        swap = partition->dirty;
        partition->dirty = partition->later;
        partition->later = swap;
        partition->dirty_count = partition->later_count;
        partition->later_count = 0;
        for (uint32_t i = 0; i < partition->dirty_count; i++)
            partition->is_later[partition->dirty[i]] = false;
    }
    return true;
}

// Puts the states that do not accept into one block and the others into another.
static void partition_begin(struct partition *partition)
{
    const struct grammar_fsa *fsa = partition->fsa;
    uint32_t place = 0;

    for (uint32_t accepts = 0; accepts < 2; accepts++) {
        uint32_t first = place;
        for (uint32_t s = 0; s < fsa->state_count; s++)
            if (fsa->accepts[s] == accepts) {
                partition->block_of[s] = partition->block_count;
                partition->places[s] = place;
                partition->states[place++] = s;
            }
        if (place == first)
            continue;
        partition->firsts[partition->block_count] = first;
        partition->counts[partition->block_count++] = place - first;
    }
    for (uint32_t a = 0; a < fsa->arc_count; a++)
        partition->into_index[fsa->arcs[a].to + 2]++;
    for (uint32_t s = 0; s < fsa->state_count; s++)
        partition->into_index[s + 2] += partition->into_index[s + 1];
    for (uint32_t a = 0; a < fsa->arc_count; a++)
        partition->into[partition->into_index[fsa->arcs[a].to + 1]++] = fsa->arcs[a].from;
}

// Makes a state of each block, numbered by its first one.
static void partition_rebuild(struct partition *partition, struct grammar_fsa *out)
{
    const struct grammar_fsa *fsa = partition->fsa;
    uint32_t *names = partition->counts, count;

    for (uint32_t b = 0; b < partition->block_count; b++)
        names[b] = GRAMMAR_NO_STATE;
    for (uint32_t s = 0; s < fsa->state_count; s++)
        if (names[partition->block_of[s]] == GRAMMAR_NO_STATE)
            names[partition->block_of[s]] = grammar_fsa_add_state(out, fsa->accepts[s]);
    for (uint32_t s = 0, next = 0; s < fsa->state_count; s++) {
        uint32_t name = names[partition->block_of[s]];
        if (name != next)
            continue;
        next++;
        count = partition_sign(partition, s, partition->marks);
        for (uint32_t i = 0; i < count; i++)
            grammar_fsa_add_arc(out, name, partition->marks[i].first, partition->marks[i].last, names[partition->marks[i].block]);
    }
    out->start = names[partition->block_of[fsa->start]];
}

void grammar_minimize(struct grammar_fsa *fsa)
{
    const size_t states = (size_t)fsa->state_count + 2;
    struct partition partition = {.fsa = fsa};
    struct grammar_fsa out = {.max_states = fsa->max_states, .max_arcs = fsa->max_arcs};
    uint32_t *numbers, *dirty;

    if (fsa->failure)
        return;
    numbers = calloc(11 * states + fsa->arc_count, sizeof *numbers);
    partition.is_later = calloc(states, 1);
    partition.marks = malloc(((size_t)fsa->arc_count + 1) * sizeof *partition.marks);
    partition.keys = malloc(2 * states * sizeof *partition.keys);
    if (numbers && partition.is_later && partition.marks && partition.keys) {
        uint32_t **arrays[] = {&partition.block_of,    &partition.states,      &partition.places,     &partition.firsts,
                               &partition.counts,      &partition.dirty,       &partition.later,      &partition.mark_starts,
                               &partition.mark_counts, &partition.mark_hashes, &partition.into_index, &partition.into};
        dirty = numbers;
        for (size_t i = 0; i < ARRAY_COUNT(arrays); i++, dirty += states)
            *arrays[i] = dirty;
        partition_begin(&partition);
        if (partition_refine(&partition)) {
            partition_rebuild(&partition, &out);
            if (grammar_fsa_seal(&out)) {
                grammar_fsa_free(fsa);
                *fsa = out;
                out = (struct grammar_fsa){0};
            }
        }
    } else
        out.failure = GRAMMAR_FSA_NO_MEMORY;
    if (out.failure)
        fsa->failure = out.failure;
    grammar_fsa_free(&out);
    free(numbers);
    free(partition.is_later);
    free(partition.marks);
    free(partition.keys);
}
