// engine.c: the engine's memory, and whose turn it is. See engine.h.
#include "services/s-part/engine/engine.h"
#include "common/kv/kv_shape.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"

// Returns the ready mini-batch whose turn it is by the weights that are in memory, then by ready_order.
// NULL: none is ready, or their weights are still being read (*awaits_weights).
static struct mini_batch *choose(struct engine *engine, bool *awaits_weights)
{
    struct mini_batch *best = NULL;
    uint32_t best_turn = 0;

    *awaits_weights = false;
    for (uint32_t i = 0; i < engine->batches.count; i++) {
        struct mini_batch *batch = &engine->batches.of[i];
        if (batch->state != BATCH_READY || engine_aside_waits(engine, batch))
            continue;
        const uint32_t turn = engine->ops->turn ? engine->ops->turn(batch->backend, batch->segment) : 0;
        if (turn == BACKEND_NOT_YET) {
            *awaits_weights = true;
            continue;
        }
        if (!best || turn < best_turn || (turn == best_turn && batch->ready_order < best->ready_order)) {
            best = batch;
            best_turn = turn;
        }
    }
    return best;
}

// Makes the watchdog see a disk that hangs: a read reports nothing, and the engine's loop turns without it.
static void watch_weights(struct engine *engine, bool awaited)
{
    struct backend_info info;

    if (awaited != atomic_load_explicit(&engine->watch.awaits_weights, memory_order_relaxed)) {
        (awaited ? watchdog_begun : watchdog_done)(&engine->watch.watchdog, clock_now_us());
        atomic_store_explicit(&engine->watch.awaits_weights, awaited, memory_order_relaxed);
    }
    if (!awaited)
        return;
    engine->ops->info(engine->backend, &info);
    if (info.stream_pieces != engine->watch.stream_pieces)
        watchdog_goes_on(&engine->watch.watchdog, clock_now_us());
    engine->watch.stream_pieces = info.stream_pieces;
}

static void compute(struct mini_batch *batch)
{
    struct engine *engine = batch->engine;
    const bool aside = batch->step.aside; // of the step; the next one of the mini-batch may begin below

    if (aside)
        engine_aside_turn_begins(engine);
    engine_compute_start(batch);
    if (aside)
        engine_aside_turn_ends(engine);
}

bool engine_advance(struct engine *engine)
{
    bool computing = handover_advance(&engine->pool.handover), awaits_weights;

    engine_stage_advance(engine);
    computing |= engine->ops->advance && engine->ops->advance(engine->backend);
    for (uint32_t i = 0; i < engine->batches.count; i++)
        computing |= engine_compute_poll(&engine->batches.of[i]);
    for (uint32_t i = 0; i < engine->batches.count; i++)
        computing |= engine_begin_poll(&engine->batches.of[i]); // it may have dropped a link that another one waits for
    struct mini_batch *next = choose(engine, &awaits_weights);
    watch_weights(engine, awaits_weights && !next && !computing);
    if (next)
        compute(next);
    return computing || next;
}

static enum status open_batch(struct engine *engine, uint32_t index, struct error *error)
{
    struct mini_batch *batch = &engine->batches.of[index];
    uint32_t rows = engine->batches.max_rows;
    char track[32];

    batch->engine = engine;
    batch->index = index;
    snprintf(track, sizeof track, "mini-batch %u", index);
    batch->tracks.step = trace_track_open(track);
    batch->attend.o = calloc(rows, sizeof *batch->attend.o);
    batch->attend.q = calloc(rows, sizeof *batch->attend.q);
    batch->attend.k = calloc(rows, sizeof *batch->attend.k);
    batch->attend.v = calloc(rows, sizeof *batch->attend.v);
    for (uint32_t i = 0; engine->traces.device_spans && i < BACKEND_TRACKS; i++) {
        static const char *const names[BACKEND_TRACKS] = {"S-part", "R-part, local pool", "transfer"};
        snprintf(track, sizeof track, "device %u, %s", index, names[i]);
        batch->tracks.device[i] = trace_track_open(track);
    }
    if (!engine->model.range.is_first)
        batch->step.x_kept = calloc((size_t)rows * engine->model.shape.hidden, sizeof *batch->step.x_kept);
    batch->head.kept_rows = calloc(rows, sizeof *batch->head.kept_rows);
    batch->head.kept_outputs = calloc(rows, sizeof *batch->head.kept_outputs);
    if ((!engine->model.range.is_first && !batch->step.x_kept) || !batch->attend.o || !batch->attend.q || !batch->attend.k ||
        !batch->attend.v || !batch->head.kept_rows || !batch->head.kept_outputs || step_plan_open(rows, &batch->plan) ||
        reply_open(batch) || engine_hidden_open(batch))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for a mini-batch");
    batch->attend.links =
        (struct backend_links){.o = batch->attend.o, .q = batch->attend.q, .k = batch->attend.k, .v = batch->attend.v};
    return engine->ops->batch_open(engine->backend, &batch->backend, error);
}

// On the masker's thread.
static void wake(void *loop) { rpc_loop_wake(loop); }

enum status engine_open(struct engine *engine, struct error *error)
{
    enum status status = STATUS_OK;

    engine->model.q_width = engine->model.shape.heads * engine->model.shape.head_dim;
    engine->model.kv_width = engine->model.shape.kv_heads * engine->model.shape.head_dim;
    engine->model.partial_floats = (uint32_t)kv_partial_floats(engine->model.shape.heads, engine->model.shape.head_dim);
    if (!engine->model.range.count)
        engine->model.range = (struct layer_range){.count = engine->model.shape.layers, .is_first = true, .is_last = true};
    engine->stage.forward_method = rpc_method_id(&fastdecode__spart__descriptor, "Forward");
    engine->links.attend_method = rpc_method_id(&fastdecode__kv_worker__descriptor, "Attend");
    engine->links.zeros = calloc(engine->model.q_width, sizeof *engine->links.zeros);
    if (!engine->links.zeros ||
        sequence_table_open(ENGINE_SEQUENCES_MAX, engine->model.shape.vocab, engine->model.context_tokens, &engine->sequences) ||
        engine_release_open(engine))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for the engine");
    const struct masker_config masker = {
        .model = engine->model.vocabulary, .vocab = engine->model.shape.vocab, .on_done = wake, .user = engine->loop};
    if (engine->model.vocabulary && engine->model.range.is_last && masker_open(&masker, &engine->head.masker))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for the engine");
    engine_pages_open(engine);
    engine->traces.s_part = trace_track_open("S-part");
    engine->traces.local = trace_track_open("R-part, local pool");
    engine->traces.idle = engine_is_stage(engine) ? trace_track_open("bubbles") : NULL;
    if (engine->traces.s_part && engine->ops->spans) { // a segment, attention and two copies a layer, the last segment, the head
        engine->traces.device_spans_max = 4 * engine->model.range.count + 2;
        engine->traces.device_spans = calloc(engine->traces.device_spans_max, sizeof *engine->traces.device_spans);
    }
    for (uint32_t i = 0; !status && i < engine->batches.count; i++)
        status = open_batch(engine, i, error);
    return status;
}

void engine_close(struct engine *engine)
{
    link_close_all(engine);
    engine_stage_close(engine);
    for (uint32_t i = 0; i < engine->batches.count; i++) {
        struct mini_batch *batch = &engine->batches.of[i];
        engine->ops->batch_close(batch->backend); // waits until the device writes to nothing of the batch
        for (uint32_t p = 0; p < batch->plan.place_count; p++)
            rpc_buffer_free(batch->attend.uses[p].request);
        if (batch->engine)
            engine_free_replies(batch);
        rpc_buffer_free(batch->handing_on.buffer);
        mask_job_wait(&batch->head.masks);
        mask_job_free(&batch->head.masks);
        step_plan_close(&batch->plan);
        reply_close(batch);
        engine_hidden_close(batch);
        free(batch->attend.o);
        free(batch->attend.q);
        free(batch->attend.k);
        free(batch->attend.v);
        free(batch->step.x_kept);
        free(batch->head.kept_rows);
        free(batch->head.kept_outputs);
    }
    if (engine->sequences)
        engine_spans_end_all(engine);
    engine_release_close(engine);
    sequence_table_close(engine->sequences);
    masker_close(engine->head.masker);
    free(engine->traces.device_spans);
    free(engine->links.zeros);
}
