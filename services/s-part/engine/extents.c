// extents.c: attention of rows whose sequences lie at several places. q of such a row goes to every place that holds an extent, and
// o is folded from the partials that come back, in the order of positions: the bits of one place that holds all of it.
//
//     segment ─▶ q in the message to the tail's place ─copy─▶ messages to the places of frozen extents
//     replies and the local pool: partials ─fold, where they lie─▶ o ─▶ next segment
#include <string.h>

#include "common/mesh/tensors.h"
#include "common/rpc/wire.h"
#include "kernels/kv/kv_store.h"
#include "services/s-part/engine/engine.h"

void engine_put_reads(struct mini_batch *batch, struct link_use *use, const struct attend_request_parts *parts)
{
    const struct step_plan *plan = &batch->plan;

    use->read_q = parts->read_q;
    for (uint32_t i = 0; i < use->place->read_count; i++) {
        const struct step_read *read = &plan->reads[use->place->first_read + i];
        if (plan->rows[read->row].local) // the segment writes q of a row of the local pool here; the last of these messages
            batch->attend.q[read->row] = parts->read_q + (size_t)i * batch->engine->model.q_width;
        if (!parts->read_sequence)
            continue;
        wire_store_u64(parts->read_sequence + i * 8ull, plan->rows[read->row].sequence);
        wire_store_u32(parts->read_first + i * 4ull, read->first);
        wire_store_u32(parts->read_end + i * 4ull, read->end);
    }
}

void engine_copy_reads(struct mini_batch *batch)
{
    const size_t width = batch->engine->model.q_width;

    for (uint32_t p = 0; batch->plan.read_count && p < batch->plan.place_count; p++) {
        struct link_use *use = &batch->attend.uses[p];
        for (uint32_t i = 0; use->request && i < use->place->read_count; i++) {
            const float *q = batch->attend.q[batch->plan.reads[use->place->first_read + i].row];
            float *to = use->read_q + i * width;
            if (!q) // the row is lost, and the message goes all the same for the others
                memset(to, 0, width * sizeof *to);
            else if (q != to)
                memcpy(to, q, width * sizeof *to);
        }
    }
}

// o of a row, or zeros if a part of it is missing.
static const float *fold_row(const struct mini_batch *batch, const struct step_split *split, uint32_t row)
{
    const struct engine *engine = batch->engine;
    const struct step_plan *plan = &batch->plan;
    const struct step_run *run = &plan->runs[split->run];
    struct kv_part parts[SCHED_EXTENTS_MAX + 1];

    for (uint32_t e = 0; e <= split->frozen_count; e++) {
        const struct link_use *use = &batch->attend.uses[split->place[e]];
        const bool tail = e == split->frozen_count;
        const struct step_read *read = tail ? NULL : &plan->reads[split->read[e] + row - run->first_row];
        if (use->dead || !use->partials)
            return engine->links.zeros;
        parts[e].first = tail ? run->first : read->first;
        parts[e].end = tail ? plan->rows[row].position + 1 : read->end;
        parts[e].partials = use->partials + (size_t)(tail ? plan->row_partial[row] : read->partial) * engine->model.partial_floats;
    }
    return kv_partials_fold(engine->model.shape.heads, engine->model.shape.head_dim, parts, split->frozen_count + 1);
}

// q of rows of the local pool is written to a message that is prepared next, if any is.
static void forget_local_q(struct mini_batch *batch)
{
    for (uint32_t i = 0; i < batch->plan.read_count; i++)
        if (batch->plan.rows[batch->plan.reads[i].row].local)
            batch->attend.q[batch->plan.reads[i].row] = NULL;
}

void engine_fold_extents(struct mini_batch *batch)
{
    const struct step_plan *plan = &batch->plan;
    const struct engine *engine = batch->engine;
    const bool last = engine->model.range.is_last && batch->segment == engine->model.range.count;

    if (!plan->split_count)
        return;
    forget_local_q(batch);
    if (batch->segment == 0)
        return;
    for (uint32_t p = 0; p < plan->place_count; p++)
        if (batch->attend.uses[p].local && plan->places[p].partial_count)
            batch->attend.uses[p].partials = engine->ops->pool_partials(batch->backend);
    for (uint32_t s = 0; s < plan->split_count; s++) {
        const struct step_run *run = &plan->runs[plan->splits[s].run];
        for (uint32_t row = run->first_row; row < run->first_row + run->row_count; row++) {
            const bool wanted = !run->lost &&
                                (!last || plan->rows[row].needs_output); // in the last layer the others end with K and V
            batch->attend.o[row] = wanted ? fold_row(batch, &plan->splits[s], row) : engine->links.zeros;
        }
    }
}
