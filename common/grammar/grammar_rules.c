// grammar_rules.c: see grammar_rules.h. Each is a search from what is known, along lists of who waits for it.
#include "common/grammar/grammar_rules.h"

#include <stdlib.h>

// Returns the rule that an arc calls, or GRAMMAR_NO_STATE.
static uint32_t called(const struct grammar_arc *arc)
{
    return arc->first < GRAMMAR_CALL || arc->first == GRAMMAR_JUMP ? GRAMMAR_NO_STATE : arc->first - GRAMMAR_CALL;
}

static uint32_t rule_of_state(const struct grammar_rule_set *set, uint32_t state)
{
    uint32_t low = 0, high = set->count;

    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (set->starts[middle] <= state)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// Lists of arcs, by the state that they lead to or by the rule that they call.
struct arc_lists {
    uint32_t *heads, *links;
};

static bool lists_open(struct arc_lists *lists, uint32_t heads, uint32_t arcs)
{
    lists->heads = malloc(((size_t)heads + 1) * sizeof *lists->heads);
    lists->links = malloc(((size_t)arcs + 1) * sizeof *lists->links);
    for (uint32_t i = 0; lists->heads && i < heads; i++)
        lists->heads[i] = GRAMMAR_NO_STATE;
    return lists->heads && lists->links;
}

static void lists_close(struct arc_lists *lists)
{
    free(lists->heads);
    free(lists->links);
}

static void lists_add(struct arc_lists *lists, uint32_t head, uint32_t arc)
{
    lists->links[arc] = lists->heads[head];
    lists->heads[head] = arc;
}

static bool calls_open(struct arc_lists *calls, const struct grammar_rule_set *set)
{
    if (!lists_open(calls, set->count, set->fsa->arc_count))
        return false;
    for (uint32_t a = 0; a < set->fsa->arc_count; a++)
        if (called(&set->fsa->arcs[a]) != GRAMMAR_NO_STATE)
            lists_add(calls, called(&set->fsa->arcs[a]), a);
    return true;
}

// States that were marked and are still to be looked at.
struct marker {
    bool *marks;
    uint32_t *queue, count;
};

static void mark(struct marker *marker, uint32_t state)
{
    if (!marker->marks[state]) {
        marker->marks[state] = true;
        marker->queue[marker->count++] = state;
    }
}

/* --- productive --------------------------------------------------------------------------------------------------------- */

static void search_productive(const struct grammar_rule_set *set, struct marker *marker, const struct arc_lists *into,
                              const struct arc_lists *calls)
{
    const struct grammar_fsa *fsa = set->fsa;

    for (uint32_t s = 0; s < fsa->state_count; s++)
        if (fsa->accepts[s])
            mark(marker, s);
    for (uint32_t i = 0; i < marker->count; i++) {
        uint32_t state = marker->queue[i], rule = rule_of_state(set, state);
        for (uint32_t a = into->heads[state]; a != GRAMMAR_NO_STATE; a = into->links[a]) {
            uint32_t callee = called(&fsa->arcs[a]);
            if (callee == GRAMMAR_NO_STATE || marker->marks[set->starts[callee]])
                mark(marker, fsa->arcs[a].from);
        }
        if (state == set->starts[rule]) // calls of the rule can be gone through now
            for (uint32_t a = calls->heads[rule]; a != GRAMMAR_NO_STATE; a = calls->links[a])
                if (marker->marks[fsa->arcs[a].to])
                    mark(marker, fsa->arcs[a].from);
    }
}

bool grammar_rules_productive(const struct grammar_rule_set *set, bool *productive)
{
    const struct grammar_fsa *fsa = set->fsa;
    struct marker marker = {.marks = productive, .queue = malloc(((size_t)fsa->state_count + 1) * sizeof *marker.queue)};
    struct arc_lists into = {0}, calls = {0};
    bool opened = lists_open(&into, fsa->state_count, fsa->arc_count) && calls_open(&calls, set) && marker.queue;

    for (uint32_t s = 0; s < fsa->state_count; s++)
        productive[s] = false;
    if (opened) {
        for (uint32_t a = 0; a < fsa->arc_count; a++)
            lists_add(&into, fsa->arcs[a].to, a);
        search_productive(set, &marker, &into, &calls);
    }
    lists_close(&into);
    lists_close(&calls);
    free(marker.queue);
    return opened;
}

/* --- nullable ------------------------------------------------------------------------------------------------------------ */

bool grammar_rules_nullable(const struct grammar_rule_set *set, bool *nullable, bool *early)
{
    const struct grammar_fsa *fsa = set->fsa;
    struct marker marker = {.marks = early, .queue = malloc(((size_t)fsa->state_count + 1) * sizeof *marker.queue)};
    struct arc_lists calls = {0};
    bool opened = calls_open(&calls, set) && marker.queue;
    uint32_t rule;

    for (uint32_t s = 0; s < fsa->state_count; s++)
        early[s] = false;
    for (uint32_t r = 0; r < set->count; r++)
        nullable[r] = false;
    for (uint32_t r = 0; opened && r < set->count; r++)
        mark(&marker, set->starts[r]);
    for (uint32_t i = 0; opened && i < marker.count; i++) {
        uint32_t state = marker.queue[i];
        for (uint32_t a = fsa->index[state]; a < fsa->index[state + 1]; a++) {
            uint32_t callee = called(&fsa->arcs[a]);
            if (fsa->arcs[a].first == GRAMMAR_JUMP || (callee != GRAMMAR_NO_STATE && nullable[callee]))
                mark(&marker, fsa->arcs[a].to);
        }
        if (!fsa->accepts[state])
            continue;
        rule = rule_of_state(set, state);
        if (nullable[rule])
            continue;
        nullable[rule] = true;
        for (uint32_t a = calls.heads[rule]; a != GRAMMAR_NO_STATE; a = calls.links[a])
            if (early[fsa->arcs[a].from])
                mark(&marker, fsa->arcs[a].to);
    }
    lists_close(&calls);
    free(marker.queue);
    return opened;
}

/* --- ranks --------------------------------------------------------------------------------------------------------------- */

struct rank_visit {
    uint32_t rule, arc; // arc: the next to be looked at
};

enum { RANK_NEW, RANK_ON_PATH, RANK_DONE };

// Goes depth first from a rule; those that are done are put before `*place`, which goes down. Returns a rule that is met on its own path.
static uint32_t rank_from(const struct grammar_rule_set *set, const bool *early, uint32_t root, uint8_t *seen,
                          struct rank_visit *path, uint32_t *ranked, uint32_t *place)
{
    const struct grammar_fsa *fsa = set->fsa;
    uint32_t count = 0;

    seen[root] = RANK_ON_PATH;
    path[count++] = (struct rank_visit){root, fsa->index[set->starts[root]]};
    while (count) {
        struct rank_visit *visit = &path[count - 1];
        const struct grammar_arc *arc = &fsa->arcs[visit->arc];
        uint32_t callee;

        if (visit->arc == fsa->index[set->starts[visit->rule + 1]]) {
            seen[visit->rule] = RANK_DONE;
            ranked[--*place] = visit->rule;
            count--;
            continue;
        }
        visit->arc++;
        callee = early[arc->from] ? called(arc) : GRAMMAR_NO_STATE;
        if (callee == GRAMMAR_NO_STATE || seen[callee] == RANK_DONE)
            continue;
        if (seen[callee] == RANK_ON_PATH)
            return callee;
        seen[callee] = RANK_ON_PATH;
        path[count++] = (struct rank_visit){callee, fsa->index[set->starts[callee]]};
    }
    return GRAMMAR_NO_STATE;
}

bool grammar_rules_rank(const struct grammar_rule_set *set, const bool *early, uint32_t *ranked, uint32_t *looping)
{
    uint8_t *seen = calloc((size_t)set->count + 1, 1);
    struct rank_visit *path = malloc(((size_t)set->count + 1) * sizeof *path);
    bool opened = seen && path;
    uint32_t place = set->count;

    *looping = GRAMMAR_NO_STATE;
    for (uint32_t r = 0; opened && r < set->count && *looping == GRAMMAR_NO_STATE; r++)
        if (seen[r] == RANK_NEW)
            *looping = rank_from(set, early, r, seen, path, ranked, &place);
    free(seen);
    free(path);
    return opened;
}
