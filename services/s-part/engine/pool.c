// pool.c: the local pool beside steps: sequences that are over, or whose KV is elsewhere now, and pages that are handed over to workers or
// come from them.
//
// The release of a sequence that a step under way uses is deferred until no step uses it, one entry a sequence. There are never more entries
// than runs in the steps under way, and the map has room for those. The scheduler's call is answered when all of its sequences are gone.
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/mesh/member.h"
#include "services/s-part/engine/engine.h"

// --- sequences that are over: their samplers and pages

enum status engine_release_open(struct engine *engine)
{
    uint32_t capacity = engine->batches.count * engine->batches.max_rows;

    engine->pool.deferred = calloc(capacity, sizeof *engine->pool.deferred);
    return engine->pool.deferred ? id_map_open(capacity, &engine->pool.deferred_ids) : STATUS_RESOURCE_EXHAUSTED;
}

void engine_release_close(struct engine *engine)
{
    id_map_close(&engine->pool.deferred_ids);
    free(engine->pool.deferred);
}

bool engine_in_use(const struct engine *engine, uint64_t sequence, const struct mini_batch *except)
{
    for (uint32_t b = 0; b < engine->batches.count; b++) {
        const struct mini_batch *batch = &engine->batches.of[b];
        for (uint32_t i = 0; batch->state != BATCH_IDLE && batch != except && i < batch->plan.run_count; i++)
            if (batch->plan.runs[i].run->sequence == sequence)
                return true;
    }
    return false;
}

static void release(struct engine *engine, uint64_t sequence, struct released what)
{
    if (what.sampler) {
        engine_spans_end(engine, sequence);
        sequence_table_remove(engine->sequences, sequence);
    }
    if (what.pages) {
        handover_drop(&engine->pool.handover, sequence);
        engine->ops->pool_release(engine->backend, sequence);
    }
}

static void release_or_defer(struct engine *engine, uint64_t sequence, struct released what)
{
    if (!engine_in_use(engine, sequence, NULL)) {
        release(engine, sequence, what);
        return;
    }
    uint32_t slot = id_map_find(&engine->pool.deferred_ids, sequence);
    if (slot == ID_MAP_NONE) {
        slot = id_map_add(&engine->pool.deferred_ids, sequence);
        assert_always(slot != ID_MAP_NONE);
        engine->pool.deferred[slot] = (struct released){0};
    }
    engine->pool.deferred[slot].pages |= what.pages;
    engine->pool.deferred[slot].sampler |= what.sampler;
}

static void release_pages(struct engine *engine, uint64_t sequence)
{
    if (engine_in_use(engine, sequence, NULL))
        release_or_defer(engine, sequence, (struct released){.pages = true});
    else
        engine->ops->pool_release(engine->backend, sequence); // the handover, which asks, knows
}

// Answers the calls whose sequences are all gone.
static void answer_calls(struct engine *engine)
{
    Fastdecode__ReleaseReply reply = FASTDECODE__RELEASE_REPLY__INIT;
    uint32_t kept = 0;

    for (uint32_t i = 0; i < engine->pool.call_count; i++) {
        struct release_call *waiting = &engine->pool.calls[i];
        const Fastdecode__ReleaseRequest *request = waiting->request;
        while (waiting->gone < request->n_sequence &&
               id_map_find(&engine->pool.deferred_ids, request->sequence[waiting->gone]) == ID_MAP_NONE)
            waiting->gone++;
        if (waiting->gone == request->n_sequence)
            rpc_call_reply(waiting->call, &reply.base);
        else
            engine->pool.calls[kept++] = *waiting;
    }
    engine->pool.call_count = kept;
}

void engine_release_deferred(struct engine *engine)
{
    uint32_t cursor = 0, slot;

    if (!engine->pool.deferred_ids.count)
        return;
    while ((slot = id_map_next(&engine->pool.deferred_ids, &cursor)) != ID_MAP_NONE) {
        uint64_t sequence = engine->pool.deferred_ids.ids[slot];
        if (engine_in_use(engine, sequence, NULL))
            continue;
        id_map_remove(&engine->pool.deferred_ids, sequence);
        release(engine, sequence, engine->pool.deferred[slot]);
    }
    answer_calls(engine);
}

void engine_forget_all(struct engine *engine)
{
    struct kv_held held[64];
    const struct sequence *sequence;
    uint32_t cursor = 0, listed;

    engine_release_deferred(engine);
    engine_spans_end_all(engine);
    while ((sequence = sequence_table_next(engine->sequences, &cursor)))
        sequence_table_remove(engine->sequences, sequence->id);
    for (uint32_t left = engine->ops->pool_held ? engine->ops->pool_held(engine->backend, NULL, 0) : 0; left; left -= listed) {
        listed = MIN(MIN(left, (uint32_t)ARRAY_COUNT(held)), engine->ops->pool_held(engine->backend, held, ARRAY_COUNT(held)));
        for (uint32_t i = 0; i < listed; i++) {
            handover_drop(&engine->pool.handover, held[i].sequence);
            engine->ops->pool_release(engine->backend, held[i].sequence);
        }
        if (!listed)
            return;
    }
}

void engine_release_handler(struct rpc_call *call, void *user)
{
    struct engine *engine = user;
    Fastdecode__ReleaseRequest *request = rpc_call_unpack(call, &fastdecode__release_request__descriptor);

    if (!request || !member_caller_is(call, "scheduler", rpc_call_peer(call)->incarnation, engine_newest_scheduler(engine)))
        return;
    if (engine->pool.call_count == ENGINE_RELEASE_CALLS_MAX) {
        rpc_call_fail(call, STATUS_RESOURCE_EXHAUSTED, "%d Release calls wait for steps to end", ENGINE_RELEASE_CALLS_MAX);
        return;
    }
    const struct released what = {.pages = !request->keep_pages, .sampler = !request->keep_sampler};
    for (size_t i = 0; i < request->n_sequence; i++)
        release_or_defer(engine, request->sequence[i], what);
    engine->pool.calls[engine->pool.call_count++] = (struct release_call){.call = call, .request = request};
    answer_calls(engine);
}

void engine_forget_older(void *arg)
{
    struct engine *engine = arg;
    const uint64_t newest = engine_newest_scheduler(engine);
    const struct sequence *sequence;
    uint32_t cursor = 0, count = 0;

    while ((sequence = sequence_table_next(engine->sequences, &cursor)))
        if (sequence->opened_by != newest) { // not <: its successor's clock may have been set back
            release_or_defer(engine, sequence->id, (struct released){.sampler = true});
            count++;
        }
    if (count)
        log_info("SEQUENCES-FORGOTTEN", "count=%u why=\"their scheduler was replaced\"", count);
}

// --- pages that are handed over (common/mesh/handover.h)

static uint64_t page_bytes(void *user)
{
    const struct engine *engine = user;
    return engine_page_bytes(engine);
}

static const struct kv_shape *shape_of(void *user)
{
    const struct engine *engine = user;
    return &engine->model.kv;
}

static enum status export_page(void *user, uint64_t sequence, uint32_t page_index, void *page, uint32_t *positions,
                               struct error *error)
{
    const struct engine *engine = user;
    return engine->ops->pool_export(engine->backend, sequence, page_index, page, positions, error);
}

static enum status import_page(void *user, uint64_t sequence, uint32_t page_index, const void *page, uint32_t positions,
                               struct error *error)
{
    const struct engine *engine = user;
    return engine->ops->pool_import(engine->backend, sequence, page_index, page, positions, error);
}

static bool copied(void *user)
{
    const struct engine *engine = user;
    return engine->ops->pool_copied(engine->backend);
}

static void stop_copy(void *user)
{
    const struct engine *engine = user;
    engine->ops->pool_stop_copy(engine->backend);
}

static void free_pages(void *user, uint64_t sequence) { release_pages(user, sequence); }

// A device may still write to pages of a sequence that a step has. For one that no step has, no release is deferred.
static enum status make_way(void *user, uint64_t sequence, struct error *error)
{
    struct engine *engine = user;

    if (engine_in_use(engine, sequence, NULL))
        return error_set(error, STATUS_UNAVAILABLE, "a step uses sequence %llx", (unsigned long long)sequence);
    engine->ops->pool_release(engine->backend, sequence);
    return STATUS_OK;
}

uint64_t engine_page_bytes(const struct engine *engine)
{
    return engine->ops->pool_page_bytes ? engine->ops->pool_page_bytes(engine->backend) : 0;
}

void engine_pages_open(struct engine *engine)
{
    static const struct handover_pages pages = {
        .page_bytes = page_bytes,
        .shape = shape_of,
        .export_page = export_page,
        .import_page = import_page,
        .copied = copied,
        .stop_copy = stop_copy,
        .make_way = make_way,
        .free_pages = free_pages,
    };
    engine->pool.handover = (struct handover){.pages = &pages,
                                              .user = engine,
                                              .control_loop = engine->loop,
                                              .tensor_loop = engine->loop,
                                              .hello = {.service = "s-part", .incarnation = engine->incarnation}};
}
