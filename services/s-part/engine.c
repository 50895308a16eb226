/* engine.c: see engine.h. */
#include "services/s-part/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/wire/sampling.h"

/* A span of a step on the S-part's track. Gives the time. */
#define SPAN(batch, name, began_ns, ...)                                                                                        \
    trace_span((batch)->engine->track_s_part, name, began_ns, {"step", (batch)->request->step}, {"mini_batch", (batch)->index}, \
               ##__VA_ARGS__)

/* --- a segment --------------------------------------------------------------------------------------------------------- */

/* The messages that it writes q, k and v into. True: there is one. */
static bool prepare(struct mini_batch *batch)
{
    bool remote = false;

    for (uint32_t p = 0; p < batch->plan.place_count; p++) {
        struct link_use *use = &batch->uses[p];
        if (!use->link)
            continue;
        if (!use->dead && !(use->request = engine_prepare(batch, use, batch->segment)))
            engine_lose_place(batch, use);
        if (use->dead)
            engine_point_nowhere(batch, use->place);
        remote = true;
    }
    return remote;
}

/* A segment or a head. */
static void part_ended(struct mini_batch *batch)
{
    uint64_t now_us = clock_now_us();
    batch->s_part_us += now_us - batch->started_us;
    watchdog_done(&batch->engine->watchdog, now_us);
}

/* Of all that was queued before, too; but where q, k and v alone are waited for, attention of the local rows may go on. False: not yet. */
static bool computed(struct mini_batch *batch)
{
    const struct backend_ops *ops = batch->engine->ops;

    if (!(batch->state == BATCH_COMPUTING && ops->handed_out ? ops->handed_out : ops->done)(batch->backend))
        return false;
    engine_free_replies(batch);
    part_ended(batch);
    return true;
}

/* All is under way but what is waited for. */
static void go_on(struct mini_batch *batch)
{
    if (--batch->waiting == 0)
        engine_make_ready(batch);
    else
        batch->wait_from_ns = trace_clock(batch->track);
}

/* q, k and v are where they should be. */
static void send_rows(struct mini_batch *batch)
{
    uint64_t at_ns = SPAN(batch, "segment", batch->started_ns, {"layer", batch->segment - 1}, {"rows", batch->plan.row_count});

    engine_send(batch);
    SPAN(batch, "send", at_ns, {"layer", batch->segment - 1});
    if (!batch->engine->ops->handed_out)
        engine_attend_local(batch, batch->segment - 1);
    go_on(batch);
}

static void start_head(struct mini_batch *batch);

static void start_segment(struct mini_batch *batch)
{
    struct engine *engine = batch->engine;
    bool last = batch->segment == engine->shape.layers, remote;

    batch->started_us = clock_now_us();
    batch->started_ns = trace_clock(engine->track_s_part);
    trace_span(batch->track, "queued", batch->ready_ns, {"step", batch->request->step}, {"layer", batch->segment});
    engine_point_to_replies(batch);
    remote = !last && prepare(batch);
    if (remote)
        batch->started_ns = SPAN(batch, "prepare", batch->started_ns, {"layer", batch->segment});
    watchdog_begun(&engine->watchdog, batch->started_us);
    engine->ops->segment(batch->backend, batch->segment, &batch->links);
    batch->segment++;
    batch->state = BATCH_COMPUTING;
    if (remote && engine->ops->handed_out)
        engine_attend_local(batch, batch->segment - 1); /* queued: it goes on while q, k and v travel */
    if (remote) {
        if (computed(batch))
            send_rows(batch);
        return;
    }
    part_ended(batch); /* or it is queued, and the head will wait for it */
    SPAN(batch, "segment", batch->started_ns, {"layer", batch->segment - 1}, {"rows", batch->plan.row_count});
    if (last) {
        start_head(batch);
    } else {
        engine_send(batch); /* nothing */
        engine_attend_local(batch, batch->segment - 1);
        go_on(batch);
    }
}

/* --- the end of a step --------------------------------------------------------------------------------------------------- */

/* What a device says of its own time, which the clock here does not see. */
static void take_times(struct mini_batch *batch)
{
    const struct backend_ops *ops = batch->engine->ops;
    struct backend_step_times times;
    bool remote = false;

    if (!ops->times)
        return;
    ops->times(batch->backend, &times);
    batch->s_part_us = times.segments_us;
    for (uint32_t p = 0; p < batch->plan.place_count; p++) {
        if (batch->uses[p].link)
            batch->uses[p].r_part_us += times.copies_us; /* of its link's time: sent is when the message was complete */
        else
            batch->uses[p].r_part_us = batch->uses[p].attend_us = times.attend_us;
        remote |= batch->uses[p].link != NULL;
    }
    batch->r_part_us = remote ? batch->r_part_us + times.copies_us : times.attend_us;
}

/* What a device has done in the step. */
static void trace_device(struct mini_batch *batch, uint64_t step)
{
    struct engine *engine = batch->engine;

    if (!engine->device_spans)
        return;
    uint32_t count = engine->ops->spans(batch->backend, engine->device_spans, engine->device_spans_max);
    for (uint32_t i = 0; i < count; i++) {
        const struct backend_span *span = &engine->device_spans[i];
        trace_past(batch->device_tracks[span->track], span->name, span->began_ns, span->ended_ns, {"step", step},
                   {"layer", span->layer});
    }
}

static void finish(struct mini_batch *batch)
{
    struct engine *engine = batch->engine;
    const struct step_plan *plan = &batch->plan;
    uint64_t at_ns = SPAN(batch, "head", batch->started_ns, {"outputs", batch->kept_count}), step = batch->request->step;

    for (uint32_t i = 0; i < plan->run_count; i++)
        if (plan->runs[i].sequence && !plan->runs[i].lost)
            step_plan_take(&batch->plan, i);
    take_times(batch);
    atomic_fetch_add_explicit(&engine->busy_us, batch->s_part_us, memory_order_relaxed);
    atomic_fetch_add_explicit(&engine->rows_done, plan->row_count, memory_order_relaxed);
    reply_send(batch); /* the request goes with it */
    trace_span(engine->track_s_part, "reply", at_ns, {"step", step}, {"mini_batch", batch->index});
    trace_device(batch, step);
    trace_span(batch->track, "step", batch->began_ns, {"step", step}, {"rows", plan->row_count}, {"outputs", batch->kept_count},
               {"places", plan->place_count});
    batch->state = BATCH_IDLE;
    engine_release_deferred(engine);
    engine_start_next(batch);
}

/* Sampling and scoring for the runs that are not lost, then the reply. */
static void start_head(struct mini_batch *batch)
{
    const struct step_plan *plan = &batch->plan;

    batch->started_us = clock_now_us();
    batch->started_ns = trace_clock(batch->engine->track_s_part);
    batch->kept_count = 0;
    for (uint32_t i = 0; i < plan->output_count; i++)
        if (!plan->runs[plan->row_run[plan->output_row[i]]].lost) {
            batch->kept_rows[batch->kept_count] = plan->output_row[i];
            batch->kept_outputs[batch->kept_count++] = plan->outputs[i];
        }
    watchdog_begun(&batch->engine->watchdog, batch->started_us);
    if (batch->kept_count)
        batch->engine->ops->head(batch->backend, batch->kept_rows, batch->kept_outputs, batch->kept_count);
    batch->state = BATCH_SAMPLING;
    if (computed(batch))
        finish(batch);
}

/* --- one thing at a time --------------------------------------------------------------------------------------------------- */

bool engine_advance(struct engine *engine)
{
    struct mini_batch *oldest = NULL;
    bool computing = handover_advance(&engine->handover);

    for (uint32_t i = 0; i < engine->batch_count; i++) {
        struct mini_batch *batch = &engine->batches[i];
        bool sampling = batch->state == BATCH_SAMPLING;
        if (sampling || batch->state == BATCH_COMPUTING) {
            computing = true;
            if (computed(batch))
                (sampling ? finish : send_rows)(batch);
        }
        if (batch->state == BATCH_READY && (!oldest || batch->ready_order < oldest->ready_order))
            oldest = batch;
    }
    if (oldest)
        start_segment(oldest);
    return computing || oldest;
}

/* --- the start of a step ------------------------------------------------------------------------------------------------ */

bool engine_in_use(const struct engine *engine, uint64_t sequence, const struct mini_batch *except)
{
    for (uint32_t b = 0; b < engine->batch_count; b++) {
        const struct mini_batch *batch = &engine->batches[b];
        for (uint32_t i = 0; batch->state != BATCH_IDLE && batch != except && i < batch->plan.run_count; i++)
            if (batch->plan.runs[i].run->sequence == sequence)
                return true;
    }
    return false;
}

static enum status open_sequences(struct mini_batch *batch, struct error *error)
{
    struct sampler_bias bias[SAMPLER_BIAS_MAX];
    struct sampler_params params;

    for (size_t i = 0; i < batch->request->n_open; i++) {
        const Fastdecode__SequenceOpen *open = batch->request->open[i];
        if (engine_in_use(batch->engine, open->sequence, batch))
            return error_set(error, STATUS_INVALID_ARGUMENT, "sequence %llx is opened, and in a step of another mini-batch",
                             (unsigned long long)open->sequence);
        enum status status = sampling_parse(open->sampling, batch->engine->shape.vocab, bias, &params, error);
        if (!status)
            status = sequence_table_put(batch->engine->sequences, open->sequence, &params, open->sampling->prompt_logprobs,
                                        open->tokens, (uint32_t)open->n_tokens, open->prompt_tokens, error);
        if (status)
            return status;
    }
    return STATUS_OK;
}

/* Finds the links of the step's places. True: one of them is still connecting. */
static bool find_links(struct mini_batch *batch)
{
    bool connecting = false;
    for (uint32_t p = 0; p < batch->plan.place_count; p++) {
        struct step_place *place = &batch->plan.places[p];
        const Fastdecode__Place *wanted = batch->request->places[place->index];
        struct link_use *use = &batch->uses[p];
        *use = (struct link_use){.batch = batch, .place = place};
        if (wanted->worker == 0 || wanted->tensor_address[0] == '\0')
            continue;
        use->link = link_get(batch->engine, wanted);
        if (use->link && !use->link->down && !rpc_channel_is_up(use->link->channel))
            connecting = true;
    }
    return connecting;
}

/* Runs of the local pool that begin with another sequence's positions; workers are told with layer 0. */
static void share_local(struct mini_batch *batch)
{
    const struct engine *engine = batch->engine;
    struct error error;

    for (uint32_t i = 0; i < batch->plan.run_count; i++) {
        struct step_run *run = &batch->plan.runs[i];
        if (!run->run->share_from || !run->sequence || batch->request->places[run->place]->worker != 0 ||
            !engine->ops->pool_share(engine->backend, run->run->share_from, run->run->share_positions, run->run->sequence, &error))
            continue;
        log_warn("NOT-SHARED", "%s", error.text);
        run->lost = true;
    }
}

/* Drops what cannot run: places without a link, and local sequences that are not held. */
static void begin_step(struct mini_batch *batch)
{
    struct engine *engine = batch->engine;
    struct step_plan *plan = &batch->plan;
    uint64_t began_ns = trace_clock(engine->track_s_part);
    uint32_t bad_row;
    struct error error;

    batch->state = BATCH_BEGINNING; /* a link that is replaced below calls back: it must not begin once more */
    for (uint32_t p = 0; p < plan->place_count; p++) {
        const Fastdecode__Place *wanted = batch->request->places[plan->places[p].index];
        struct link *link = wanted->worker && wanted->tensor_address[0] ? link_get(engine, wanted) : NULL;
        if (wanted->worker == 0 || (link && !link->down && rpc_channel_is_up(link->channel)))
            continue;
        log_warn("PLACE-UNREACHABLE", "worker=%u step=%llu", wanted->worker, (unsigned long long)batch->request->step);
        for (uint32_t i = 0; i < plan->run_count; i++)
            if (plan->runs[i].place == plan->places[p].index && plan->runs[i].sequence)
                plan->runs[i].lost = true;
    }
    share_local(batch);
    if (plan->run_count)
        step_plan_rebuild(plan);
    while (plan->row_count && engine->ops->begin(batch->backend, plan->rows, plan->row_count, &bad_row, &error)) {
        log_warn("ROW-NOT-BEGUN", "sequence=%llx why=\"%s\"", (unsigned long long)plan->rows[bad_row].sequence, error.text);
        step_plan_drop(plan, plan->row_run[bad_row]);
    }
    find_links(batch);
    batch->segment = 0;
    SPAN(batch, "begin", began_ns, {"rows", plan->row_count});
    if (plan->row_count == 0) {
        reply_send(batch);
        batch->state = BATCH_IDLE;
        engine_release_deferred(engine);
        engine_start_next(batch);
        return;
    }
    batch->sent_us = clock_now_us();
    engine_make_ready(batch);
}

static void refuse(struct mini_batch *batch, const struct error *error)
{
    log_warn("STEP-REFUSED", "mini_batch=%u why=\"%s\"", batch->index, error->text);
    rpc_call_fail(batch->call, error->status, "%s", error->text);
    batch->call = NULL;
}

void engine_start_next(struct mini_batch *batch)
{
    struct engine *engine = batch->engine;
    struct error error;

    while (batch->state == BATCH_IDLE && batch->queue_count) {
        batch->call = batch->queue[batch->queue_head].call;
        batch->request = batch->queue[batch->queue_head].request;
        batch->queue_head = (batch->queue_head + 1) % ENGINE_QUEUE_MAX;
        batch->queue_count--;
        batch->plan.run_count = 0;
        batch->began_us = clock_now_us();
        batch->began_ns = trace_clock(batch->track);
        batch->s_part_us = batch->r_part_us = 0;
        if (batch->request->scheduler_incarnation < engine_newest_scheduler(engine)) { /* it was not when the step was queued */
            error_set(&error, STATUS_FAILED_PRECONDITION, "a scheduler that started later is known here");
            refuse(batch, &error);
            continue;
        }
        if (step_plan_check(&batch->plan, batch->request, engine->shape.vocab, engine->context_tokens, &error) ||
            open_sequences(batch, &error) || step_plan_fill(&batch->plan, batch->request, engine->sequences, &error)) {
            batch->plan.run_count = 0;
            refuse(batch, &error);
            continue;
        }
        bool connecting = find_links(batch);
        SPAN(batch, "plan", batch->began_ns);
        if (connecting)
            batch->state = BATCH_CONNECTING; /* engine_link_changed() goes on */
        else
            begin_step(batch);
    }
}

void engine_link_changed(struct engine *engine, struct link *link)
{
    for (uint32_t b = 0; b < engine->batch_count; b++) {
        struct mini_batch *batch = &engine->batches[b];
        bool connecting = false;
        for (uint32_t p = 0; batch->state != BATCH_IDLE && p < batch->plan.place_count; p++) {
            struct link_use *use = &batch->uses[p];
            if (use->link == link && link->down && batch->state >= BATCH_COMPUTING)
                engine_lose_place(batch, use);
            connecting |= use->link && !use->link->down && !rpc_channel_is_up(use->link->channel);
        }
        if (batch->state == BATCH_CONNECTING && !connecting)
            begin_step(batch);
    }
}

/* --- open and close ------------------------------------------------------------------------------------------------------ */

static enum status open_batch(struct engine *engine, uint32_t index, struct error *error)
{
    struct mini_batch *batch = &engine->batches[index];
    uint32_t rows = engine->max_rows;
    char track[32];

    batch->engine = engine;
    batch->index = index;
    snprintf(track, sizeof track, "mini-batch %u", index);
    batch->track = trace_track_open(track);
    batch->o = calloc(rows, sizeof *batch->o);
    batch->q = calloc(rows, sizeof *batch->q);
    batch->k = calloc(rows, sizeof *batch->k);
    batch->v = calloc(rows, sizeof *batch->v);
    for (uint32_t i = 0; engine->device_spans && i < BACKEND_TRACKS; i++) {
        static const char *const names[BACKEND_TRACKS] = {"S-part", "R-part, local pool", "transfer"};
        snprintf(track, sizeof track, "device %u, %s", index, names[i]);
        batch->device_tracks[i] = trace_track_open(track);
    }
    batch->kept_rows = calloc(rows, sizeof *batch->kept_rows);
    batch->kept_outputs = calloc(rows, sizeof *batch->kept_outputs);
    if (!batch->o || !batch->q || !batch->k || !batch->v || !batch->kept_rows || !batch->kept_outputs ||
        step_plan_open(rows, &batch->plan) || reply_open(batch))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for a mini-batch");
    batch->links = (struct backend_links){.o = batch->o, .q = batch->q, .k = batch->k, .v = batch->v};
    return engine->ops->batch_open(engine->backend, &batch->backend, error);
}

enum status engine_open(struct engine *engine, struct error *error)
{
    enum status status = STATUS_OK;

    engine->q_width = engine->shape.heads * engine->shape.head_dim;
    engine->kv_width = engine->shape.kv_heads * engine->shape.head_dim;
    engine->attend_method = rpc_method_id(&fastdecode__kv_worker__descriptor, "Attend");
    engine->zeros = calloc(engine->q_width, sizeof *engine->zeros);
    if (!engine->zeros)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for the engine");
    engine_pages_open(engine);
    engine->watchdog.armed = engine->ops->times; /* who has none computes at once, as a CPU does */
    engine->track_s_part = trace_track_open("S-part");
    engine->track_local = trace_track_open("R-part, local pool");
    if (engine->track_s_part && engine->ops->spans) { /* a segment, attention and two copies a layer, the last segment, the head */
        engine->device_spans_max = 4 * engine->shape.layers + 2;
        engine->device_spans = calloc(engine->device_spans_max, sizeof *engine->device_spans);
    }
    for (uint32_t i = 0; !status && i < engine->batch_count; i++)
        status = open_batch(engine, i, error);
    return status;
}

void engine_close(struct engine *engine)
{
    link_close_all(engine);
    for (uint32_t i = 0; i < engine->batch_count; i++) {
        struct mini_batch *batch = &engine->batches[i];
        engine->ops->batch_close(batch->backend); /* waits for what it writes to */
        for (uint32_t p = 0; p < batch->plan.place_count; p++)
            rpc_buffer_free(batch->uses[p].request);
        if (batch->engine)
            engine_free_replies(batch);
        step_plan_close(&batch->plan);
        reply_close(batch);
        free(batch->o);
        free(batch->q);
        free(batch->k);
        free(batch->v);
        free(batch->kept_rows);
        free(batch->kept_outputs);
    }
    free(engine->device_spans);
    free(engine->zeros);
}
