// begin.c: the start of a step: what the request asks is checked and planned, the places' links are found, waited for where they
// are still connecting, and the backend takes the rows that can run.
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/mesh/messages.h"
#include "services/s-part/engine/engine.h"
#include "services/s-part/step/step_plan.h"

static enum status open_sequences(struct mini_batch *batch, struct error *error)
{
    struct sampler_bias bias[SAMPLER_BIAS_MAX];
    struct sampler_params params;

    for (size_t i = 0; i < batch->step.request->n_open; i++) {
        const Fastdecode__SequenceOpen *open = batch->step.request->open[i];
        if (engine_in_use(batch->engine, open->sequence, batch))
            return error_set(error, STATUS_INVALID_ARGUMENT, "sequence %llx is opened, and in a step of another mini-batch",
                             (unsigned long long)open->sequence);
        enum status status = sampling_parse(open->sampling, batch->engine->model.shape.vocab, bias, &params, error);
        if (!status)
            status = sequence_table_put(batch->engine->sequences, open->sequence, &params, open->sampling->prompt_logprobs,
                                        open->tokens, (uint32_t)open->n_tokens, open->prompt_tokens, error);
        if (status)
            return status;
        sequence_table_find(batch->engine->sequences, open->sequence)->opened_by = batch->step.request->scheduler_incarnation;
        if ((status = engine_masks_open(batch, open, error)))
            return status;
        if ((status = engine_hidden_open_sequence(batch, open, error)))
            return status;
        engine_spans_open(batch->engine, open);
    }
    return STATUS_OK;
}

// Finds the links of the step's places. True: one of them is still connecting.
static bool find_links(struct mini_batch *batch)
{
    bool connecting = false;
    for (uint32_t p = 0; p < batch->plan.place_count; p++) {
        struct step_place *place = &batch->plan.places[p];
        const Fastdecode__Place *wanted = batch->step.request->places[place->index];
        struct link_use *use = &batch->attend.uses[p];
        *use = (struct link_use){.batch = batch, .place = place, .local = step_place_is_local(wanted)};
        if (use->local || wanted->tensor_address[0] == '\0')
            continue;
        use->link = link_get(batch->engine, wanted);
        if (use->link && !use->link->down && !rpc_channel_is_up(use->link->channel))
            connecting = true;
    }
    return connecting;
}

// Takes a run out of the step before the backend has begun it: its x too, if an earlier stage has sent that.
static void drop_run(struct mini_batch *batch, uint32_t run_index)
{
    const struct step_run *run = &batch->plan.runs[run_index];
    const size_t width = batch->engine->model.shape.hidden, first = run->first_row * width, end = first + run->row_count * width,
                 all = batch->plan.row_count * width;

    if (batch->step.x && batch->step.x != batch->step.x_kept)
        memcpy(batch->step.x_kept, batch->step.x, all * sizeof *batch->step.x);
    if (batch->step.x) {
        memmove(batch->step.x_kept + first, batch->step.x_kept + end, (all - end) * sizeof *batch->step.x);
        batch->step.x = batch->step.x_kept;
    }
    step_plan_drop(&batch->plan, run_index);
}

// Shares pages for local runs that begin with another sequence's positions. Workers are told of theirs with layer 0.
static void share_local(struct mini_batch *batch)
{
    const struct engine *engine = batch->engine;
    struct error error;

    for (uint32_t i = 0; i < batch->plan.run_count; i++) {
        struct step_run *run = &batch->plan.runs[i];
        if (!run->run->share_from || !run->sequence || run->absent ||
            !step_place_is_local(batch->step.request->places[run->place]) ||
            !engine->ops->pool_share(engine->backend, run->run->share_from, run->run->share_positions, run->run->sequence, &error))
            continue;
        if (repeat_is_due(&batch->engine->failures.not_shared, clock_now_us(), ""))
            log_warn("NOT-SHARED", "why=\"%s\" times=%u", error.text, batch->engine->failures.not_shared.count);
        drop_run(batch, i);
    }
}

// Whether all rows of a place came lost. Then the worker gets none of them: x is of an attention that failed, and with rows of the last
// layer the worker would hold positions that no stage before has computed.
static bool all_came_lost(const struct mini_batch *batch, const struct step_place *place)
{
    bool lost = place->read_count == 0;

    for (uint32_t row = place->first_row; lost && row < place->first_row + place->row_count; row++)
        lost = batch->plan.runs[batch->plan.row_run[row]].lost;
    return lost;
}

// A later stage has x of the rows of a place that it does not reach: they stay in the step, which a worker counts on, and are lost.
static void lose_unreachable(struct mini_batch *batch)
{
    for (uint32_t p = 0; p < batch->plan.place_count; p++) {
        struct link_use *use = &batch->attend.uses[p];
        if (!use->local && (!use->link || use->link->down || !rpc_channel_is_up(use->link->channel) ||
                            all_came_lost(batch, &batch->plan.places[p])))
            engine_lose_place(use);
    }
}

// Takes a run out of the step if its rows, or an extent of its sequence, are at the place.
static void leave_run(struct step_run *run, uint32_t place)
{
    const uint32_t extent = step_extents_at(run->run, place);
    const bool has_extent = run->run->n_extents && run->run->extents[extent]->place == place;

    if (!run->sequence || (!has_extent && run->place != place))
        return;
    step_plan_lose(run, extent);
    run->absent = true;
}

// Takes the runs of places without a link out of the step.
static void leave_unreachable(struct mini_batch *batch)
{
    struct engine *engine = batch->engine;
    struct step_plan *plan = &batch->plan;

    for (uint32_t p = 0; p < plan->place_count; p++) {
        const Fastdecode__Place *wanted = batch->step.request->places[plan->places[p].index];
        const bool local = step_place_is_local(wanted);
        struct link *link = !local && wanted->tensor_address[0] ? link_get(engine, wanted) : NULL;
        if (local || (link && !link->down && rpc_channel_is_up(link->channel)))
            continue;
        // Without an address the scheduler knows, and has said, that the worker is down.
        if (wanted->tensor_address[0] && repeat_is_due(&engine->links.unreachable, clock_now_us(), wanted->tensor_address))
            log_warn("PLACE-UNREACHABLE", "worker=%u address=%s step=%llu times=%u", wanted->worker, wanted->tensor_address,
                     (unsigned long long)batch->step.request->step, engine->links.unreachable.count);
        for (uint32_t i = 0; i < plan->run_count; i++)
            leave_run(&plan->runs[i], plan->places[p].index);
    }
    if (plan->run_count)
        step_plan_rebuild(plan);
}

static enum status begin_backend(struct mini_batch *batch, uint32_t *bad_row, struct error *error)
{
    const struct backend_ops *ops = batch->engine->ops;
    const struct step_plan *plan = &batch->plan;

    if (plan->local_read_count)
        ops->pool_reads(batch->backend, plan->local_reads, plan->local_read_count);
    return ops->begin(batch->backend, plan->rows, plan->row_count, bad_row, error);
}

// Loses what the local pool has of the run's sequence.
static void lose_local(const struct mini_batch *batch, struct step_run *run)
{
    for (uint32_t e = 0; e < run->run->n_extents; e++)
        if (step_place_is_local(batch->step.request->places[run->run->extents[e]->place]))
            step_plan_lose(run, e);
}

// Begins the step without what cannot run: places without a link, and local sequences that are not held.
static void begin_step(struct mini_batch *batch)
{
    struct engine *engine = batch->engine;
    struct step_plan *plan = &batch->plan;
    uint64_t began_ns = trace_clock(engine->traces.s_part);
    uint32_t bad_row;
    struct error error;

    batch->state = BATCH_BEGINNING; // a link that is replaced below loses no rows of it
    if (!batch->step.x)
        leave_unreachable(batch);
    share_local(batch);
    while (plan->row_count && begin_backend(batch, &bad_row, &error)) {
        if (repeat_is_due(&engine->failures.not_begun, clock_now_us(), ""))
            log_warn("ROW-NOT-BEGUN", "sequence=%llx why=\"%s\" times=%u", (unsigned long long)plan->rows[bad_row].sequence,
                     error.text, engine->failures.not_begun.count);
        lose_local(batch, &plan->runs[plan->row_run[bad_row]]);
        drop_run(batch, plan->row_run[bad_row]);
    }
    find_links(batch);
    engine_expect(batch);
    if (batch->step.x) {
        lose_unreachable(batch);
        if (plan->row_count)
            engine->ops->put_x(batch->backend, batch->step.x);
    }
    batch->segment = 0;
    ENGINE_SPAN(batch, "begin", began_ns, {"rows", plan->row_count});
    if (plan->row_count == 0) {
        reply_send(batch);
        batch->state = BATCH_IDLE;
        engine_release_deferred(engine);
        engine_start_next(batch);
        return;
    }
    engine_masks_begin(batch);
    batch->time.sent_us = clock_now_us();
    engine_make_ready(batch);
}

void engine_give_up(struct mini_batch *batch)
{
    struct engine *engine = batch->engine;

    engine_masks_wait(batch);
    engine_free_replies(batch);
    for (uint32_t p = 0; p < batch->plan.place_count; p++) {
        rpc_buffer_free(batch->attend.uses[p].request);
        batch->attend.uses[p].request = NULL;
    }
    rpc_buffer_free(batch->handing_on.buffer);
    batch->handing_on.buffer = NULL;
    if (engine->ops->end)
        engine->ops->end(batch->backend);
    if (batch->step.call)
        rpc_call_fail(batch->step.call, STATUS_UNAVAILABLE, "the step was given up");
    batch->step.call = NULL;
    batch->state = BATCH_IDLE;
    engine_release_deferred(engine);
    engine_start_next(batch);
}

static void refuse(struct mini_batch *batch, const struct error *error)
{
    if (repeat_is_due(&batch->engine->failures.refused, clock_now_us(), error->text))
        log_warn("STEP-REFUSED", "mini_batch=%u why=\"%s\" times=%u", batch->index, error->text,
                 batch->engine->failures.refused.count);
    rpc_call_fail(batch->step.call, error->status, "%s", error->text);
    batch->step.call = NULL;
}

static void take_from_queue(struct mini_batch *batch)
{
    const struct queued_step *step = &batch->queue.of[batch->queue.head];

    batch->step.call = step->call;
    batch->step.request = step->request;
    batch->step.forward = step->forward;
    batch->step.x = step->forward.x;
    batch->queue.head = (batch->queue.head + 1) % ENGINE_QUEUE_MAX;
    batch->queue.count--;
    batch->plan.run_count = batch->plan.place_count = 0;
    batch->time.began_us = clock_now_us();
    batch->step.entered_us = batch->time.began_us - MIN(batch->time.began_us, step->forward.pipeline_us);
    batch->step.term = batch->engine->stage.term;
    batch->time.began_ns = trace_clock(batch->tracks.step);
    batch->time.s_part_us = batch->time.r_part_us = 0;
    engine_aside_began(batch);
    memset(batch->time.idle_us, 0, sizeof batch->time.idle_us);
}

// Checks and plans the step that was taken from the queue.
static enum status plan_step(struct mini_batch *batch, struct error *error)
{
    struct engine *engine = batch->engine;
    struct step_plan *plan = &batch->plan;
    const struct step_limits limits = {.vocab = engine->model.shape.vocab,
                                       .context_tokens = engine->model.context_tokens,
                                       .partial_floats = engine->model.partial_floats,
                                       .has_sparse = engine->model.has_sparse,
                                       .pool_takes_extents = engine->ops->pool_reads != NULL};
    enum status status = step_plan_check(plan, batch->step.request, &limits, error);

    if (!status)
        status = open_sequences(batch, error);
    if (status)
        return status;
    return batch->step.x ? step_plan_fill_forwarded(plan, batch->step.request, engine->sequences, &batch->step.forward, error)
                         : step_plan_fill(plan, batch->step.request, engine->sequences, error);
}

static void refuse_first(struct mini_batch *batch)
{
    rpc_call_fail(batch->queue.of[batch->queue.head].call, STATUS_UNAVAILABLE, "the step before has failed");
    batch->queue.head = (batch->queue.head + 1) % ENGINE_QUEUE_MAX;
    batch->queue.count--;
}

void engine_refuse_queued(struct mini_batch *batch)
{
    while (batch->queue.count)
        refuse_first(batch);
}

void engine_start_next(struct mini_batch *batch)
{
    struct engine *engine = batch->engine;
    struct error error;

    while (batch->state == BATCH_IDLE && batch->queue.count) {
        take_from_queue(batch);
        if (rpc_call_is_cancelled(batch->step.call)) { // who sent it has given it up, and what it would write may have been freed
            const uint64_t scheduler = batch->step.request->scheduler_incarnation;
            log_info("STEP-CANCELLED", "step=%llu mini_batch=%u", (unsigned long long)batch->step.request->step, batch->index);
            rpc_call_fail(batch->step.call, STATUS_CANCELLED, "cancelled");
            batch->step.call = NULL;
            while (batch->queue.count && batch->queue.of[batch->queue.head].request->scheduler_incarnation == scheduler)
                refuse_first(batch);
            continue;
        }
        if (engine_is_stage(engine) && !engine->stage.term) {
            rpc_call_fail(batch->step.call, STATUS_UNAVAILABLE, "the pipeline is being put together anew");
            batch->step.call = NULL;
            continue;
        }
        if (batch->step.request->scheduler_incarnation < engine_newest_scheduler(engine)) { // it was not when the step was queued
            error_set(&error, STATUS_FAILED_PRECONDITION, "a scheduler that started later is known here");
            refuse(batch, &error);
            continue;
        }
        if (plan_step(batch, &error)) {
            batch->plan.run_count = 0;
            refuse(batch, &error);
            continue;
        }
        bool connecting = find_links(batch);
        ENGINE_SPAN(batch, "plan", batch->time.began_ns);
        if (connecting)
            batch->state = BATCH_CONNECTING; // engine_begin_poll() goes on
        else
            begin_step(batch);
    }
}

bool engine_begin_poll(struct mini_batch *batch)
{
    bool connecting = false;

    if (batch->state != BATCH_CONNECTING)
        return false;
    for (uint32_t p = 0; p < batch->plan.place_count; p++) {
        const struct link_use *use = &batch->attend.uses[p];
        connecting |= use->link && !use->link->down && !rpc_channel_is_up(use->link->channel);
    }
    if (!connecting)
        begin_step(batch);
    return !connecting;
}
