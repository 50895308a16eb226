// grammar_determinize.c: see grammar_reduce.h.
//
// A subset holds the states of its members' closure over jumps that do something: accept, or have an arc that is no jump. Subsets lie one behind the
// other in `members` and are found by a hash table.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/grammar/grammar_reduce.h"

enum { LARGE_SORT = 32, SORT_WORK = 8 }; // what sorting so many arcs, or more, counts as for each

struct subsets {
    const struct grammar_fsa *fsa;
    struct grammar_fsa *out; // state i is subset i
    uint32_t *members, member_count, member_capacity;
    uint32_t *starts;            // [max_states + 1]
    uint32_t *table, table_mask; // subset + 1
    uint32_t *stamps, stamp;     // [states of fsa] in which closure a state was met last
    uint32_t *open;              // [states of fsa]
    struct grammar_arc *arcs;    // of one subset
    uint32_t arc_count, arc_capacity;
    const struct grammar_arc **active; // those that read the symbol at hand
    uint32_t *targets;
    uint64_t *work;
};

static void fail(struct subsets *subsets, enum grammar_fsa_failure failure)
{
    if (!subsets->out->failure)
        subsets->out->failure = failure;
}

static bool does_something(const struct grammar_fsa *fsa, uint32_t state)
{
    return fsa->accepts[state] || (fsa->index[state] < fsa->index[state + 1] && fsa->arcs[fsa->index[state]].first != GRAMMAR_JUMP);
}

static bool reserve_members(struct subsets *subsets, uint32_t count)
{
    uint32_t capacity = subsets->member_capacity;
    uint32_t *grown;

    if (count <= capacity - subsets->member_count)
        return true;
    while (capacity - subsets->member_count < count)
        capacity *= 2;
    grown = realloc(subsets->members, capacity * sizeof *grown);
    if (!grown) {
        fail(subsets, GRAMMAR_FSA_NO_MEMORY);
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
static uint32_t close_over(struct subsets *subsets, const uint32_t *states, uint32_t count)
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
        if (does_something(fsa, state) && reserve_members(subsets, 1))
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
    if (count > LARGE_SORT)
        *subsets->work -= MIN(*subsets->work, (uint64_t)count * SORT_WORK);
    subsets->member_count = first; // unless it turns out to be new
    sort_numbers(subsets->members + first, count);
    return count;
}

// Returns the subset that is the closure of some states.
static uint32_t subset_of(struct subsets *subsets, const uint32_t *states, uint32_t state_count)
{
    uint32_t count = close_over(subsets, states, state_count), subset, slot;
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

static void sort_arcs(struct grammar_arc *arcs, uint32_t count)
{
    if (count > LARGE_SORT)
        qsort(arcs, count, sizeof *arcs, compare_firsts);
    else
        for (uint32_t i = 1; i < count; i++) {
            struct grammar_arc arc = arcs[i];
            uint32_t at = i;
            for (; at && compare_firsts(&arc, &arcs[at - 1]) < 0; at--)
                arcs[at] = arcs[at - 1];
            arcs[at] = arc;
        }
}

// Collects the arcs of a subset's states, sorted by their first symbols.
static void collect(struct subsets *subsets, uint32_t subset)
{
    const struct grammar_fsa *fsa = subsets->fsa;
    const uint32_t first = subsets->starts[subset], end = subsets->starts[subset + 1];

    subsets->arc_count = 0;
    for (uint32_t i = first; i < end; i++) {
        uint32_t state = subsets->members[i];
        for (uint32_t a = fsa->index[state]; a < fsa->index[state + 1] && fsa->arcs[a].first != GRAMMAR_JUMP; a++)
            subsets->arcs[subsets->arc_count++] = fsa->arcs[a];
    }
    if (subsets->arc_count > LARGE_SORT)
        *subsets->work -= MIN(*subsets->work, (uint64_t)subsets->arc_count * SORT_WORK);
    if (end - first > 1)
        sort_arcs(subsets->arcs, subsets->arc_count);
}

// Adds an arc, or widens the last one.
static void add_arc(struct grammar_fsa *out, uint32_t from, uint32_t first, uint32_t last, uint32_t to)
{
    struct grammar_arc *before = out->arc_count ? &out->arcs[out->arc_count - 1] : NULL;

    if (before && before->from == from && before->to == to && before->last + 1 == first && first < GRAMMAR_CALL)
        before->last = last;
    else
        grammar_fsa_add_arc(out, from, first, last, to);
}

// Goes through the symbols that a subset reads, from one change of the arcs that read them to the next.
static void expand(struct subsets *subsets, uint32_t subset)
{
    uint32_t active_count = 0, next = 0, symbol = 0;

    collect(subsets, subset);
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
            fail(subsets, GRAMMAR_FSA_TOO_LARGE);
        else
            *subsets->work -= active_count;
        add_arc(subsets->out, subset, symbol, last, subset_of(subsets, subsets->targets, active_count));
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
            expand(&subsets, subset);
    } else
        fail(&subsets, GRAMMAR_FSA_NO_MEMORY);
    subsets_close(&subsets);
    if (!grammar_fsa_seal(out))
        return;
}
