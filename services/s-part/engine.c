// engine.c: the engine's memory, and whose turn it is. See engine_state.h.
#include "services/s-part/engine_spans.h"
#include "services/s-part/engine_state.h"
#include "common/kv/kv_partials.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"

// Of the mini-batches that are ready: the one whose turn it is by the weights that are in memory, then by ready_order.
// NULL: none is ready, or their weights are still being read (*awaits_weights).
static struct mini_batch *choose(struct engine *engine, bool *awaits_weights)
{
    struct mini_batch *best = NULL;
    uint32_t best_turn = 0;

    *awaits_weights = false;
    for (uint32_t i = 0; i < engine->batch_count; i++) {
        struct mini_batch *batch = &engine->batches[i];
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

    if (awaited != atomic_load_explicit(&engine->awaits_weights, memory_order_relaxed)) {
        (awaited ? watchdog_begun : watchdog_done)(&engine->watchdog, clock_now_us());
        atomic_store_explicit(&engine->awaits_weights, awaited, memory_order_relaxed);
    }
    if (!awaited)
        return;
    engine->ops->info(engine->backend, &info);
    if (info.stream_pieces != engine->stream_pieces)
        watchdog_goes_on(&engine->watchdog, clock_now_us());
    engine->stream_pieces = info.stream_pieces;
}

static void compute(struct mini_batch *batch)
{
    struct engine *engine = batch->engine;
    const bool aside = batch->aside; // of the step; the next one of the mini-batch may begin below

    if (aside)
        engine_aside_turn_begins(engine);
    engine_compute_start(batch);
    if (aside)
        engine_aside_turn_ends(engine);
}

bool engine_advance(struct engine *engine)
{
    bool computing = handover_advance(&engine->handover), awaits_weights;

    engine_stage_advance(engine);
    computing |= engine->ops->advance && engine->ops->advance(engine->backend);
    for (uint32_t i = 0; i < engine->batch_count; i++)
        computing |= engine_compute_poll(&engine->batches[i]);
    struct mini_batch *next = choose(engine, &awaits_weights);
    watch_weights(engine, awaits_weights && !next && !computing);
    if (next)
        compute(next);
    return computing || next;
}

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
    if (!engine->range.is_first)
        batch->x_kept = calloc((size_t)rows * engine->shape.hidden, sizeof *batch->x_kept);
    batch->kept_rows = calloc(rows, sizeof *batch->kept_rows);
    batch->kept_outputs = calloc(rows, sizeof *batch->kept_outputs);
    if ((!engine->range.is_first && !batch->x_kept) || !batch->o || !batch->q || !batch->k || !batch->v || !batch->kept_rows ||
        !batch->kept_outputs || step_plan_open(rows, &batch->plan) || reply_open(batch) || engine_pool_open(batch))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for a mini-batch");
    batch->links = (struct backend_links){.o = batch->o, .q = batch->q, .k = batch->k, .v = batch->v};
    return engine->ops->batch_open(engine->backend, &batch->backend, error);
}

// On the masker's thread.
static void wake(void *loop) { rpc_loop_wake(loop); }

enum status engine_open(struct engine *engine, struct error *error)
{
    enum status status = STATUS_OK;

    engine->q_width = engine->shape.heads * engine->shape.head_dim;
    engine->kv_width = engine->shape.kv_heads * engine->shape.head_dim;
    engine->partial_floats = (uint32_t)kv_partial_floats(engine->shape.heads, engine->shape.head_dim);
    if (!engine->range.count)
        engine->range = (struct layer_range){.count = engine->shape.layers, .is_first = true, .is_last = true};
    engine->stage.forward_method = rpc_method_id(&fastdecode__spart__descriptor, "Forward");
    engine->attend_method = rpc_method_id(&fastdecode__kv_worker__descriptor, "Attend");
    engine->zeros = calloc(engine->q_width, sizeof *engine->zeros);
    if (!engine->zeros ||
        sequence_table_open(ENGINE_SEQUENCES_MAX, engine->shape.vocab, engine->context_tokens, &engine->sequences) ||
        engine_release_open(engine))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for the engine");
    const struct masker_config masker = {
        .model = engine->model, .vocab = engine->shape.vocab, .on_done = wake, .user = engine->loop};
    if (engine->model && engine->range.is_last && masker_open(&masker, &engine->masker))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for the engine");
    engine_pages_open(engine);
    engine->on_link_changed = engine_link_changed;
    engine->track_s_part = trace_track_open("S-part");
    engine->track_local = trace_track_open("R-part, local pool");
    engine->track_idle = engine_is_stage(engine) ? trace_track_open("bubbles") : NULL;
    if (engine->track_s_part && engine->ops->spans) { // a segment, attention and two copies a layer, the last segment, the head
        engine->device_spans_max = 4 * engine->range.count + 2;
        engine->device_spans = calloc(engine->device_spans_max, sizeof *engine->device_spans);
    }
    for (uint32_t i = 0; !status && i < engine->batch_count; i++)
        status = open_batch(engine, i, error);
    return status;
}

void engine_close(struct engine *engine)
{
    link_close_all(engine);
    engine_stage_close(engine);
    for (uint32_t i = 0; i < engine->batch_count; i++) {
        struct mini_batch *batch = &engine->batches[i];
        engine->ops->batch_close(batch->backend); // waits until the device writes to nothing of the batch
        for (uint32_t p = 0; p < batch->plan.place_count; p++)
            rpc_buffer_free(batch->uses[p].request);
        if (batch->engine)
            engine_free_replies(batch);
        rpc_buffer_free(batch->handing_on);
        mask_job_wait(&batch->masks);
        mask_job_free(&batch->masks);
        step_plan_close(&batch->plan);
        reply_close(batch);
        engine_pool_close(batch);
        free(batch->o);
        free(batch->q);
        free(batch->k);
        free(batch->v);
        free(batch->x_kept);
        free(batch->kept_rows);
        free(batch->kept_outputs);
    }
    if (engine->sequences)
        engine_spans_end_all(engine);
    engine_release_close(engine);
    sequence_table_close(engine->sequences);
    masker_close(engine->masker);
    free(engine->device_spans);
    free(engine->zeros);
}
