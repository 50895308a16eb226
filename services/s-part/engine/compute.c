// compute.c: segments and the head of a step on the backend, and what follows when they are done: rows are sent, tokens replied.
#include "common/base/checked.h"
#include "common/base/clock.h"
#include "services/s-part/engine/engine.h"

// --- bubbles of a pipeline's stage: when it computes nothing while a step is in the pipeline, and why (common/sched/stage.h)
//
//     segment of step A │ gap: what ends it is step B, which comes from the stage before, or back from KV workers │ segment of step B
//
// The time counts for step B, whose reply takes it to the scheduler. An s-part that has all layers measures nothing.

// Whether a step that was here is with a later stage now.
static bool has_forwarded(const struct engine *engine)
{
    bool found = false;
    for (uint32_t b = 0; b < engine->batches.count; b++)
        found |= engine->batches.of[b].state == BATCH_FORWARDED;
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
        found |= !batch->attend.uses[p].local;
    return found;
}

// A segment, the head, or the attention of the local rows is done.
static void idle_ended(struct mini_batch *batch)
{
    struct engine_stage *stage = &batch->engine->stage;

    if (!engine_is_stage(batch->engine))
        return;
    stage->idle_from_us = clock_now_us();
    stage->had_prefill = batch->step.has_prefill;
}

// One begins: counts the time between for its step.
static void idle_begins(struct mini_batch *batch)
{
    const struct engine *engine = batch->engine;
    const struct engine_stage *stage = &engine->stage;
    uint64_t us;

    if (!engine_is_stage(engine))
        return;
    if (batch->segment == 0)
        batch->step.has_prefill = has_prefill(&batch->plan);
    const bool waited = batch->segment > 0;
    if (!stage->idle_from_us || (waited && !has_remote(batch))) // the first; or only local attention lies between
        return;
    const struct sched_gap gap = {
        .begin_us = stage->idle_from_us,
        .end_us = clock_now_us(),
        .entered_us = batch->step.entered_us,
        .left_us = has_forwarded(engine) ? UINT64_MAX : stage->left_us,
        .prefill_before = stage->had_prefill,
        .prefill_after = batch->step.has_prefill,
        .waited = waited,
    };
    const enum sched_bubble kind = sched_bubble_of(&gap, &us);
    if (us)
        trace_past(engine->traces.idle, sched_bubble_name(kind), gap.begin_us * 1000, gap.end_us * 1000,
                   {"step", batch->step.request->step});
    batch->time.idle_us[kind] += (uint32_t)MIN(us, (uint64_t)UINT32_MAX / 2);
}

// --- segments

// Prepares the messages that the segment writes q, k and v into. True: some rows are at workers.
static bool prepare(struct mini_batch *batch)
{
    bool remote = false;

    for (uint32_t p = 0; p < batch->plan.place_count; p++) {
        struct link_use *use = &batch->attend.uses[p];
        if (use->local)
            continue;
        if (!use->dead && !(use->request = engine_prepare(batch, use, batch->segment)))
            engine_lose_place(use);
        if (use->dead)
            engine_point_nowhere(batch, use->place);
        remote = true;
    }
    return remote;
}

// Books the time of the segment or head that has ended. Attention that a segment has done itself is not the S-part's.
static void part_ended(struct mini_batch *batch)
{
    uint64_t now_us = clock_now_us();
    batch->time.s_part_us += now_us - batch->time.started_us - batch->time.attended_us;
    idle_ended(batch);
    watchdog_done(&batch->engine->watch.watchdog, now_us);
}

// Polls. True once everything queued is done or, mid-segment on a device, once q, k and v have arrived.
static bool computed(struct mini_batch *batch)
{
    const struct backend_ops *ops = batch->engine->ops;

    if (!(batch->state == BATCH_COMPUTING && ops->qkv_ready ? ops->qkv_ready : ops->done)(batch->backend))
        return false;
    engine_free_replies(batch);
    part_ended(batch);
    return true;
}

// The messages are out and the local rows done: the mini-batch is ready when the last answer is in.
static void go_on(struct mini_batch *batch)
{
    idle_ended(batch); // the attention of local rows is work, too
    if (--batch->attend.waiting == 0)
        engine_make_ready(batch);
    else
        batch->time.wait_from_ns = trace_clock(batch->tracks.step);
}

// Sends q, k and v, which have arrived, and attends to the local rows.
static void send_rows(struct mini_batch *batch)
{
    uint64_t at_ns =
        ENGINE_SPAN(batch, "segment", batch->time.started_ns, {"layer", batch->segment - 1}, {"rows", batch->plan.row_count});

    engine_send(batch);
    ENGINE_SPAN(batch, "send", at_ns, {"layer", batch->segment - 1});
    if (!batch->engine->ops->qkv_ready)
        engine_attend_local(batch, batch->segment - 1);
    go_on(batch);
}

static void start_head(struct mini_batch *batch);
static void start_copy(struct mini_batch *batch);

void engine_compute_start(struct mini_batch *batch)
{
    struct engine *engine = batch->engine;
    bool last = batch->segment == engine->model.range.count, remote;

    idle_begins(batch);
    batch->time.started_us = clock_now_us();
    batch->time.started_ns = trace_clock(engine->traces.s_part);
    trace_span(batch->tracks.step, "queued", batch->time.ready_ns, {"step", batch->step.request->step}, {"layer", batch->segment});
    engine_point_to_replies(batch);
    remote = !last && prepare(batch);
    if (remote)
        batch->time.started_ns = ENGINE_SPAN(batch, "prepare", batch->time.started_ns, {"layer", batch->segment});
    watchdog_begun(&engine->watch.watchdog, batch->time.started_us);
    engine->ops->segment(batch->backend, batch->segment, &batch->attend.links);
    batch->time.attended_us = !last && engine->ops->attended_ns ? (uint32_t)(engine->ops->attended_ns(batch->backend) / 1000) : 0;
    batch->segment++;
    batch->state = BATCH_COMPUTING;
    if (remote && engine->ops->qkv_ready)
        engine_attend_local(batch, batch->segment - 1); // queued: it goes on while q, k and v travel
    if (remote) {
        if (computed(batch))
            send_rows(batch);
        return;
    }
    part_ended(batch); // or it is queued, and the head will wait for it
    trace_past(engine->traces.s_part, "segment", batch->time.started_ns, clock_now_ns() - batch->time.attended_us * 1000ull,
               {"step", batch->step.request->step}, {"mini_batch", batch->index}, {"layer", batch->segment - 1},
               {"rows", batch->plan.row_count});
    if (last) {
        (engine->model.range.is_last ? start_head : start_copy)(batch);
    } else {
        engine_send(batch); // no message: it sets the state and the time
        engine_attend_local(batch, batch->segment - 1);
        go_on(batch);
    }
}

// --- the end of a step ---

// Takes over what a device says of its own time, which the clock here does not see.
static void take_times(struct mini_batch *batch)
{
    const struct backend_ops *ops = batch->engine->ops;
    struct backend_step_times times;
    bool remote = false;

    if (!ops->times)
        return;
    ops->times(batch->backend, &times);
    batch->time.s_part_us = times.segments_us;
    for (uint32_t p = 0; p < batch->plan.place_count; p++) {
        if (!batch->attend.uses[p].local)
            batch->attend.uses[p].r_part_us +=
                times.copies_us; // part of its link's time: a message counts as sent when it is complete
        else
            batch->attend.uses[p].r_part_us = batch->attend.uses[p].attend_us = times.attend_us;
        remote |= !batch->attend.uses[p].local;
    }
    batch->time.r_part_us = remote ? batch->time.r_part_us + times.copies_us : times.attend_us;
}

// Takes over how much of the weights was read, and how long a step's take.
static void look_at_stream(struct engine *engine)
{
    struct backend_info info;

    if (!engine->ops->turn)
        return;
    engine->ops->info(engine->backend, &info);
    engine->watch.stream_us = info.stream_step_us;
    atomic_store_explicit(&engine->counters.streamed_bytes, info.streamed_bytes, memory_order_relaxed);
    atomic_store_explicit(&engine->counters.streamed_segments, info.streamed_segments, memory_order_relaxed);
}

// Puts on record what the device has done in the step.
static void trace_device(struct mini_batch *batch, uint64_t step)
{
    struct engine *engine = batch->engine;

    if (!engine->traces.device_spans)
        return;
    uint32_t count = engine->ops->spans(batch->backend, engine->traces.device_spans, engine->traces.device_spans_max);
    for (uint32_t i = 0; i < count; i++) {
        const struct backend_span *span = &engine->traces.device_spans[i];
        trace_past(batch->tracks.device[span->track], span->name, span->began_ns, span->ended_ns, {"step", step},
                   {"layer", span->layer});
    }
}

// The backend has done its part of the step.
static void end_compute(struct mini_batch *batch)
{
    struct engine *engine = batch->engine;

    take_times(batch);
    if (engine->ops->end)
        engine->ops->end(batch->backend);
    look_at_stream(engine);
    atomic_fetch_add_explicit(&engine->counters.busy_us, batch->time.s_part_us, memory_order_relaxed);
    atomic_fetch_add_explicit(&engine->counters.rows_done, batch->plan.row_count, memory_order_relaxed);
}

// x of the rows has been copied: the next stage goes on.
static void hand_on(struct mini_batch *batch)
{
    const uint64_t step = batch->step.request->step;

    ENGINE_SPAN(batch, "copy", batch->time.started_ns, {"rows", batch->plan.row_count});
    end_compute(batch);
    engine_spans_step(batch);
    trace_device(batch, step);
    trace_span(batch->tracks.step, "step", batch->time.began_ns, {"step", step}, {"rows", batch->plan.row_count});
    engine_stage_hand_on(batch);
}

// Whether a run's outputs count: its sequence is known, its rows are all there, and something can be drawn for it.
static bool has_outputs(const struct step_run *run) { return run->sequence && !run->lost && !run->fault; }

static void finish(struct mini_batch *batch)
{
    struct engine *engine = batch->engine;
    const struct step_plan *plan = &batch->plan;
    uint64_t at_ns = ENGINE_SPAN(batch, "head", batch->time.started_ns, {"outputs", batch->head.kept_count}),
             step = batch->step.request->step;

    for (uint32_t i = 0; i < plan->run_count; i++)
        if (has_outputs(&plan->runs[i]))
            step_plan_take(&batch->plan, i);
    engine_hidden_finish(batch);
    end_compute(batch);
    engine_spans_step(batch);
    reply_send(batch); // the request is freed with it
    trace_span(engine->traces.s_part, "reply", at_ns, {"step", step}, {"mini_batch", batch->index});
    trace_device(batch, step);
    trace_span(batch->tracks.step, "step", batch->time.began_ns, {"step", step}, {"rows", plan->row_count},
               {"outputs", batch->head.kept_count}, {"places", plan->place_count});
    batch->state = BATCH_IDLE;
    engine_release_deferred(engine);
    engine_start_next(batch);
}

// Starts sampling and scoring for the runs that are not lost.
static void start_head(struct mini_batch *batch)
{
    const struct step_plan *plan = &batch->plan;

    if (!engine_masks_done(batch)) {
        batch->state = BATCH_MASKING;
        return;
    }
    engine_masks_faults(batch);
    batch->time.started_us = clock_now_us();
    batch->time.started_ns = trace_clock(batch->engine->traces.s_part);
    batch->head.kept_count = 0;
    for (uint32_t i = 0; i < plan->output_count; i++)
        if (has_outputs(&plan->runs[plan->row_run[plan->output_row[i]]])) {
            batch->head.kept_rows[batch->head.kept_count] = plan->output_row[i];
            batch->head.kept_outputs[batch->head.kept_count++] = plan->outputs[i];
        }
    watchdog_begun(&batch->engine->watch.watchdog, batch->time.started_us);
    engine_hidden_start(batch);
    if (batch->head.kept_count)
        batch->engine->ops->head(batch->backend, batch->head.kept_rows, batch->head.kept_outputs, batch->head.kept_count);
    batch->state = BATCH_SAMPLING;
    if (computed(batch))
        finish(batch);
}

// Starts copying x of the rows into the message for the next stage.
static void start_copy(struct mini_batch *batch)
{
    float *x = engine_stage_prepare(batch);

    if (!x) {
        engine_give_up(batch);
        return;
    }
    batch->time.started_us = clock_now_us();
    batch->time.started_ns = trace_clock(batch->engine->traces.s_part);
    watchdog_begun(&batch->engine->watch.watchdog, batch->time.started_us);
    batch->engine->ops->get_x(batch->backend, x);
    batch->state = BATCH_SAMPLING;
    if (computed(batch))
        hand_on(batch);
}

bool engine_compute_poll(struct mini_batch *batch)
{
    bool sampling = batch->state == BATCH_SAMPLING;

    if (batch->state == BATCH_MASKING) { // the masker wakes the loop
        start_head(batch);
        return batch->state != BATCH_MASKING;
    }
    if (!sampling && batch->state != BATCH_COMPUTING)
        return false;
    if (computed(batch))
        (!sampling ? send_rows : batch->engine->model.range.is_last ? finish : hand_on)(batch);
    return true;
}
