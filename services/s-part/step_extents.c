// step_extents.c: runs of sequences that lie at several places: where their rows read, and which partials each place gives.
#include "services/s-part/step_extents.h"

#include "common/base/checked.h"
#include "common/kv/kv_ledger.h"
#include "common/kv/kv_partials.h"
#include "common/mesh/tensors.h"

uint32_t step_extents_first(const Fastdecode__Run *run)
{
    return run->n_extents ? run->extents[run->n_extents - 1]->first_position : 0;
}

uint32_t step_extents_at(const Fastdecode__Run *run, uint32_t place)
{
    uint32_t extent = 0;
    while (extent + 1 < run->n_extents && run->extents[extent]->place != place)
        extent++;
    return extent;
}

// Extent number e: at a place of its own, and where the one before ends.
static bool fits(const Fastdecode__StepRequest *request, const Fastdecode__Run *run, size_t e, bool pool_takes_extents)
{
    const Fastdecode__Extent *extent = run->extents[e];

    if (extent->place >= request->n_places || extent->first_position % KV_EXTENT_TOKENS ||
        (e == 0 ? extent->first_position != 0 : extent->first_position <= run->extents[e - 1]->first_position) ||
        (run->n_extents > 1 && !pool_takes_extents && step_place_is_local(request->places[extent->place])))
        return false;
    for (size_t other = 0; other < e; other++)
        if (run->extents[other]->place == extent->place || // the local pool is one place, whatever its number
            (step_place_is_local(request->places[run->extents[other]->place]) &&
             step_place_is_local(request->places[extent->place])))
            return false;
    return e + 1 < run->n_extents || (extent->place == run->place && extent->first_position <= run->position);
}

enum status step_extents_check(const Fastdecode__StepRequest *request, const Fastdecode__Run *run, uint32_t row_count,
                               const struct step_limits *limits, uint64_t *partial_bytes, struct error *error)
{
    unsigned long long id = run->sequence;
    uint64_t partials = 0;

    if (run->n_extents == 0)
        return STATUS_OK;
    if (run->n_extents > SCHED_EXTENTS_MAX + 1 || run->share_from || (run->n_extents > 1 && limits->has_sparse))
        return error_set(error, STATUS_INVALID_ARGUMENT, "run of sequence %llx: %zu extents, at most %d, not with pages shared%s",
                         id, run->n_extents, SCHED_EXTENTS_MAX + 1, limits->has_sparse ? " or sparse rows" : "");
    for (size_t e = 0; e < run->n_extents; e++)
        if (!fits(request, run, e, limits->pool_takes_extents))
            return error_set(error, STATUS_INVALID_ARGUMENT,
                             "run of sequence %llx at position %u, place %u: extent %zu at place %u begins at position %u", id,
                             run->position, run->place, e, run->extents[e]->place, run->extents[e]->first_position);
    for (size_t e = 0; run->n_extents > 1 && e < run->n_extents; e++) {
        bool tail = e + 1 == run->n_extents;
        partials += kv_partial_count(run->extents[e]->first_position,
                                     tail ? run->position + row_count : run->extents[e + 1]->first_position);
    }
    *partial_bytes += partials * row_count * limits->partial_floats * sizeof(float);
    if (*partial_bytes > ATTEND_PARTIAL_BYTES_MAX)
        return error_set(error, STATUS_INVALID_ARGUMENT, "run of sequence %llx: partials of the step take more than %u MiB", id,
                         ATTEND_PARTIAL_BYTES_MAX >> 20);
    return STATUS_OK;
}

// The runs with rows whose sequences lie at several places, by sequence. There are few: each is put where it belongs.
static void find_splits(struct step_plan *plan)
{
    plan->split_count = 0;
    for (uint32_t i = 0; i < plan->run_count; i++) {
        const struct step_run *run = &plan->runs[i];
        uint32_t at = plan->split_count;
        if (!run->row_count || run->run->n_extents < 2)
            continue;
        for (; at && plan->runs[plan->splits[at - 1].run].run->sequence > run->run->sequence; at--)
            plan->splits[at] = plan->splits[at - 1];
        plan->splits[at] = (struct step_split){.run = i, .frozen_count = (uint32_t)run->run->n_extents - 1};
        plan->split_count++;
    }
}

// The place of the plan that is the request's place `index`; one without rows is added.
static uint32_t place_of(struct step_plan *plan, uint32_t index)
{
    for (uint32_t p = 0; p < plan->place_count; p++)
        if (plan->places[p].index == index)
            return p;
    plan->places[plan->place_count] = (struct step_place){.index = index, .first_row = plan->row_count};
    return plan->place_count++;
}

// Which rows of a place get o, and where the partials of the others begin.
static void count_results(struct step_plan *plan, struct step_place *place)
{
    place->o_count = place->row_count;
    place->partial_count = 0;
    for (uint32_t row = place->first_row; plan->split_count && row < place->first_row + place->row_count; row++) {
        const uint32_t first = plan->rows[row].first;
        if (!first)
            continue;
        place->o_count--;
        plan->row_partial[row] = place->partial_count;
        place->partial_count += kv_partial_count(first, plan->rows[row].position + 1);
    }
}

static void add_read(struct step_plan *plan, struct step_place *place, const struct step_read *read)
{
    struct step_read *to = &plan->reads[plan->read_count++];

    *to = *read;
    to->partial = place->partial_count;
    place->partial_count += kv_partial_count(read->first, read->end);
    place->read_count++;
    if (step_place_is_local(plan->request->places[place->index]))
        plan->local_reads[plan->local_read_count++] = (struct backend_read){read->row, read->first, read->end};
}

// The reads of one place.
static void read_at(struct step_plan *plan, uint32_t p)
{
    struct step_place *place = &plan->places[p];

    place->first_read = plan->read_count;
    for (uint32_t s = 0; s < plan->split_count; s++) {
        struct step_split *split = &plan->splits[s];
        const struct step_run *run = &plan->runs[split->run];
        Fastdecode__Extent *const *extents = run->run->extents;
        uint32_t e = step_extents_at(run->run, place->index);
        if (split->place[e] != p || e == split->frozen_count)
            continue;
        split->read[e] = plan->read_count;
        for (uint32_t row = run->first_row; row < run->first_row + run->row_count; row++)
            add_read(plan, place,
                     &(struct step_read){.row = row,
                                         .split = s,
                                         .extent = e,
                                         .first = extents[e]->first_position,
                                         .end = extents[e + 1]->first_position});
    }
}

void step_extents_read(struct step_plan *plan)
{
    plan->read_count = plan->local_read_count = 0;
    find_splits(plan);
    for (uint32_t s = 0; s < plan->split_count; s++) {
        struct step_split *split = &plan->splits[s];
        const Fastdecode__Run *run = plan->runs[split->run].run;
        for (uint32_t e = 0; e <= split->frozen_count; e++)
            split->place[e] = place_of(plan, run->extents[e]->place);
    }
    for (uint32_t p = 0; p < plan->place_count; p++)
        count_results(plan, &plan->places[p]);
    for (uint32_t p = 0; plan->split_count && p < plan->place_count; p++)
        read_at(plan, p);
}
