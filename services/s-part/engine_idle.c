// engine_idle.c: bubbles of a pipeline stage: when it computes nothing while a step is in the pipeline, and why (common/sched/stage.h).
//
//     segment of step A │ gap: what ends it is step B, which comes from the stage before, or back from KV workers │ segment of step B
//
// The time counts for step B, whose reply takes it to the scheduler. An s-part that has all layers measures nothing.
#include "common/base/checked.h"
#include "common/base/clock.h"
#include "services/s-part/engine_state.h"

// Whether a step that was here is with a later stage now.
static bool has_forwarded(const struct engine *engine)
{
    bool found = false;
    for (uint32_t b = 0; b < engine->batch_count; b++)
        found |= engine->batches[b].state == BATCH_FORWARDED;
    return found;
}

static bool has_prefill(const struct step_plan *plan)
{
    bool found = false;
    for (uint32_t i = 0; i < plan->run_count; i++)
        found |= plan->runs[i].row_count > 1 + plan->runs[i].run->drafts;
    return found;
}

static bool has_remote(const struct mini_batch *batch)
{
    bool found = false;
    for (uint32_t p = 0; p < batch->plan.place_count; p++)
        found |= !batch->uses[p].local;
    return found;
}

void engine_idle_ended(struct mini_batch *batch)
{
    struct engine_stage *stage = &batch->engine->stage;

    if (!engine_is_stage(batch->engine))
        return;
    stage->idle_from_us = clock_now_us();
    stage->had_prefill = batch->has_prefill;
}

void engine_idle_begins(struct mini_batch *batch)
{
    const struct engine *engine = batch->engine;
    const struct engine_stage *stage = &engine->stage;
    uint64_t us;

    if (!engine_is_stage(engine))
        return;
    if (batch->segment == 0)
        batch->has_prefill = has_prefill(&batch->plan);
    const bool waited = batch->segment > 0;
    if (!stage->idle_from_us || (waited && !has_remote(batch))) // the first; or only local attention lies between
        return;
    const struct sched_gap gap = {
        .begin_us = stage->idle_from_us,
        .end_us = clock_now_us(),
        .entered_us = batch->entered_us,
        .left_us = has_forwarded(engine) ? UINT64_MAX : stage->left_us,
        .prefill_before = stage->had_prefill,
        .prefill_after = batch->has_prefill,
        .waited = waited,
    };
    const enum sched_bubble kind = sched_bubble_of(&gap, &us);
    if (us)
        trace_past(engine->track_idle, sched_bubble_name(kind), gap.begin_us * 1000, gap.end_us * 1000,
                   {"step", batch->request->step});
    batch->idle_us[kind] += (uint32_t)MIN(us, (uint64_t)UINT32_MAX / 2);
}
