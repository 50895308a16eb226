// fsa.c: see fsa.h.
#include "common/grammar/fsa.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"

enum { FIRST_CAPACITY = 64 };

void grammar_fsa_free(struct grammar_fsa *fsa)
{
    free(fsa->accepts);
    free(fsa->arcs);
    free(fsa->index);
    *fsa = (struct grammar_fsa){.max_states = fsa->max_states, .max_arcs = fsa->max_arcs};
}

// Makes room for one more of `count`. Returns false, with the failure set, if there is none.
static bool grow(struct grammar_fsa *fsa, void **array, size_t size, uint32_t count, uint32_t *capacity, uint32_t max)
{
    uint32_t wanted = *capacity ? *capacity * 2 : FIRST_CAPACITY;
    void *grown;

    if (fsa->failure)
        return false;
    if (count >= max) {
        fsa->failure = GRAMMAR_FSA_TOO_LARGE;
        return false;
    }
    if (count < *capacity)
        return true;
    grown = realloc(*array, wanted * size);
    if (!grown) {
        fsa->failure = GRAMMAR_FSA_NO_MEMORY;
        return false;
    }
    *array = grown;
    *capacity = wanted;
    return true;
}

uint32_t grammar_fsa_add_state(struct grammar_fsa *fsa, bool accepts)
{
    void *array = fsa->accepts;
    bool fits = grow(fsa, &array, sizeof *fsa->accepts, fsa->state_count, &fsa->state_capacity, fsa->max_states);

    fsa->accepts = array;
    if (!fits)
        return 0;
    fsa->accepts[fsa->state_count] = accepts;
    return fsa->state_count++;
}

void grammar_fsa_add_arc(struct grammar_fsa *fsa, uint32_t from, uint32_t first, uint32_t last, uint32_t to)
{
    void *array = fsa->arcs;
    bool fits = grow(fsa, &array, sizeof *fsa->arcs, fsa->arc_count, &fsa->arc_capacity, fsa->max_arcs);

    fsa->arcs = array;
    if (fits)
        fsa->arcs[fsa->arc_count++] = (struct grammar_arc){.from = from, .first = first, .last = last, .to = to};
}

uint32_t grammar_fsa_append(struct grammar_fsa *fsa, const struct grammar_fsa *part)
{
    uint32_t base = fsa->state_count;

    for (uint32_t s = 0; s < part->state_count && !fsa->failure; s++)
        grammar_fsa_add_state(fsa, part->accepts[s]);
    for (uint32_t a = 0; a < part->arc_count && !fsa->failure; a++) {
        const struct grammar_arc *arc = &part->arcs[a];
        grammar_fsa_add_arc(fsa, base + arc->from, arc->first, arc->last, base + arc->to);
    }
    return base;
}

static int compare_arcs(const void *left, const void *right)
{
    const struct grammar_arc *a = left, *b = right;

    if (a->first != b->first)
        return a->first < b->first ? -1 : 1;
    if (a->last != b->last)
        return a->last < b->last ? -1 : 1;
    return (a->to > b->to) - (a->to < b->to);
}

void grammar_sort_arcs(struct grammar_arc *arcs, uint32_t count, int (*compare)(const void *left, const void *right))
{
    if (count > GRAMMAR_LARGE_SORT)
        qsort(arcs, count, sizeof *arcs, compare);
    else
        for (uint32_t i = 1; i < count; i++) {
            struct grammar_arc arc = arcs[i];
            uint32_t at = i;
            for (; at && compare(&arc, &arcs[at - 1]) < 0; at--)
                arcs[at] = arcs[at - 1];
            arcs[at] = arc;
        }
}

// Sorts the arcs of one state, drops what is there twice, and returns how many are left.
static uint32_t sort_arcs(struct grammar_arc *arcs, uint32_t count)
{
    uint32_t kept = 0;

    grammar_sort_arcs(arcs, count, compare_arcs);
    for (uint32_t i = 0; i < count; i++)
        if (!i || compare_arcs(&arcs[i], &arcs[kept - 1]) != 0)
            arcs[kept++] = arcs[i];
    return kept;
}

bool grammar_fsa_seal(struct grammar_fsa *fsa)
{
    uint32_t *index = fsa->failure ? NULL : calloc((size_t)fsa->state_count + 2, sizeof *index), kept = 0;
    struct grammar_arc *sorted = fsa->failure ? NULL : malloc(((size_t)fsa->arc_count + 1) * sizeof *sorted);

    if (!index || !sorted) {
        free(index);
        free(sorted);
        if (!fsa->failure)
            fsa->failure = GRAMMAR_FSA_NO_MEMORY;
        return false;
    }
    for (uint32_t a = 0; a < fsa->arc_count; a++)
        index[fsa->arcs[a].from + 2]++;
    for (uint32_t s = 0; s < fsa->state_count; s++)
        index[s + 2] += index[s + 1];
    for (uint32_t a = 0; a < fsa->arc_count; a++)
        sorted[index[fsa->arcs[a].from + 1]++] = fsa->arcs[a];
    for (uint32_t s = 0; s < fsa->state_count; s++) {
        uint32_t first = index[s], count = sort_arcs(sorted + first, index[s + 1] - first);
        memmove(sorted + kept, sorted + first, count * sizeof *sorted);
        index[s] = kept;
        kept += count;
    }
    index[fsa->state_count] = kept;
    free(fsa->arcs);
    free(fsa->index);
    fsa->arcs = sorted;
    fsa->arc_capacity = fsa->arc_count + 1;
    fsa->arc_count = kept;
    fsa->index = index;
    return true;
}

void grammar_fsa_keep(struct grammar_fsa *fsa, const bool *keep)
{
    uint32_t *renamed = calloc((size_t)fsa->state_count + 1, sizeof *renamed), states = 0, arcs = 0;

    if (!renamed) {
        fsa->failure = GRAMMAR_FSA_NO_MEMORY;
        return;
    }
    for (uint32_t s = 0; s < fsa->state_count; s++)
        if (keep[s]) {
            fsa->accepts[states] = fsa->accepts[s];
            renamed[s] = states++;
        }
    for (uint32_t a = 0; a < fsa->arc_count; a++) {
        struct grammar_arc arc = fsa->arcs[a];
        if (keep[arc.from] && keep[arc.to])
            fsa->arcs[arcs++] =
                (struct grammar_arc){.from = renamed[arc.from], .first = arc.first, .last = arc.last, .to = renamed[arc.to]};
    }
    fsa->start = renamed[fsa->start];
    fsa->state_count = states;
    fsa->arc_count = arcs;
    free(renamed);
    if (!grammar_fsa_seal(fsa))
        return;
}

// Marks what the start reaches, in `order`, and returns how many that is.
static uint32_t reach(const struct grammar_fsa *fsa, bool *reached, uint32_t *order)
{
    uint32_t count = 1;

    reached[fsa->start] = true;
    order[0] = fsa->start;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t a = fsa->index[order[i]]; a < fsa->index[order[i] + 1]; a++) {
            uint32_t to = fsa->arcs[a].to;
            if (!reached[to]) {
                reached[to] = true;
                order[count++] = to;
            }
        }
    return count;
}

// Marks the states that reach an accepting one. heads and links: a list of the arcs into each state.
static void reach_back(const struct grammar_fsa *fsa, bool *useful, uint32_t *order, uint32_t *heads, uint32_t *links)
{
    uint32_t count = 0;

    for (uint32_t s = 0; s < fsa->state_count; s++)
        heads[s] = GRAMMAR_NO_STATE;
    for (uint32_t a = 0; a < fsa->arc_count; a++) {
        links[a] = heads[fsa->arcs[a].to];
        heads[fsa->arcs[a].to] = a;
    }
    for (uint32_t s = 0; s < fsa->state_count; s++)
        if (fsa->accepts[s]) {
            useful[s] = true;
            order[count++] = s;
        }
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t a = heads[order[i]]; a != GRAMMAR_NO_STATE; a = links[a]) {
            uint32_t from = fsa->arcs[a].from;
            if (!useful[from]) {
                useful[from] = true;
                order[count++] = from;
            }
        }
}

void grammar_fsa_trim(struct grammar_fsa *fsa)
{
    size_t states = fsa->state_count;
    bool *marks = fsa->failure ? NULL : calloc(2 * states + 1, sizeof *marks);
    uint32_t *scratch = fsa->failure ? NULL : malloc((2 * states + fsa->arc_count + 1) * sizeof *scratch);

    if (marks && scratch) {
        reach_back(fsa, marks, scratch, scratch + states, scratch + 2 * states);
        reach(fsa, marks + states, scratch);
        for (size_t s = 0; s < states; s++)
            marks[s] &= marks[states + s];
        marks[fsa->start] = true;
        grammar_fsa_keep(fsa, marks);
    } else if (!fsa->failure)
        fsa->failure = GRAMMAR_FSA_NO_MEMORY;
    free(marks);
    free(scratch);
}

enum status grammar_fsa_status(const struct grammar_fsa *fsa, const char *what, struct error *error)
{
    if (!fsa->failure)
        return STATUS_OK;
    if (fsa->failure == GRAMMAR_FSA_NO_MEMORY)
        return error_set(error, STATUS_UNAVAILABLE, "out of memory");
    return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s needs more than %u states or %u edges", what, fsa->max_states,
                     fsa->max_arcs);
}
