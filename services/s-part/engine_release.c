// engine_release.c: sequences that are over, or whose KV is elsewhere now: their samplers and their pages of the local pool.
//
// What a step under way uses is deferred, one entry a sequence, until no step uses it: so there are never more entries than runs in the
// steps under way, which the map has room for. The scheduler's call is answered when all of its sequences are gone.
#include "services/s-part/engine_state.h"

#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/mesh/member.h"
#include "services/s-part/engine_spans.h"

enum status engine_release_open(struct engine *engine)
{
    uint32_t capacity = engine->batch_count * engine->max_rows;

    engine->deferred = calloc(capacity, sizeof *engine->deferred);
    return engine->deferred ? id_map_open(capacity, &engine->deferred_ids) : STATUS_RESOURCE_EXHAUSTED;
}

void engine_release_close(struct engine *engine)
{
    id_map_close(&engine->deferred_ids);
    free(engine->deferred);
}

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

static void release(struct engine *engine, uint64_t sequence, struct released what)
{
    if (what.sampler) {
        engine_spans_end(engine, sequence);
        sequence_table_remove(engine->sequences, sequence);
    }
    if (what.pages) {
        handover_drop(&engine->handover, sequence);
        engine->ops->pool_release(engine->backend, sequence);
    }
}

static void release_or_defer(struct engine *engine, uint64_t sequence, struct released what)
{
    if (!engine_in_use(engine, sequence, NULL)) {
        release(engine, sequence, what);
        return;
    }
    uint32_t slot = id_map_find(&engine->deferred_ids, sequence);
    if (slot == ID_MAP_NONE) {
        slot = id_map_add(&engine->deferred_ids, sequence);
        assert_always(slot != ID_MAP_NONE);
        engine->deferred[slot] = (struct released){0};
    }
    engine->deferred[slot].pages |= what.pages;
    engine->deferred[slot].sampler |= what.sampler;
}

void engine_release_pages(struct engine *engine, uint64_t sequence)
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

    for (uint32_t i = 0; i < engine->release_call_count; i++) {
        struct release_call *waiting = &engine->release_calls[i];
        const Fastdecode__ReleaseRequest *request = waiting->request;
        while (waiting->gone < request->n_sequence &&
               id_map_find(&engine->deferred_ids, request->sequence[waiting->gone]) == ID_MAP_NONE)
            waiting->gone++;
        if (waiting->gone == request->n_sequence)
            rpc_call_reply(waiting->call, &reply.base);
        else
            engine->release_calls[kept++] = *waiting;
    }
    engine->release_call_count = kept;
}

void engine_release_deferred(struct engine *engine)
{
    uint32_t cursor = 0, slot;

    if (!engine->deferred_ids.count)
        return;
    while ((slot = id_map_next(&engine->deferred_ids, &cursor)) != ID_MAP_NONE) {
        uint64_t sequence = engine->deferred_ids.ids[slot];
        if (engine_in_use(engine, sequence, NULL))
            continue;
        id_map_remove(&engine->deferred_ids, sequence);
        release(engine, sequence, engine->deferred[slot]);
    }
    answer_calls(engine);
}

// Of all sequences; no step is under way.
void engine_forget_all(struct engine *engine)
{
    struct backend_held held[64];
    const struct sequence *sequence;
    uint32_t cursor = 0, listed;

    engine_release_deferred(engine);
    engine_spans_end_all(engine);
    while ((sequence = sequence_table_next(engine->sequences, &cursor)))
        sequence_table_remove(engine->sequences, sequence->id);
    for (uint32_t left = engine->ops->pool_held ? engine->ops->pool_held(engine->backend, NULL, 0) : 0; left; left -= listed) {
        listed = MIN(MIN(left, (uint32_t)ARRAY_COUNT(held)), engine->ops->pool_held(engine->backend, held, ARRAY_COUNT(held)));
        for (uint32_t i = 0; i < listed; i++) {
            handover_drop(&engine->handover, held[i].sequence);
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
    if (engine->release_call_count == ENGINE_RELEASE_CALLS_MAX) {
        rpc_call_fail(call, STATUS_RESOURCE_EXHAUSTED, "%d Release calls wait for steps to end", ENGINE_RELEASE_CALLS_MAX);
        return;
    }
    const struct released what = {.pages = !request->keep_pages, .sampler = !request->keep_sampler};
    for (size_t i = 0; i < request->n_sequence; i++)
        release_or_defer(engine, request->sequence[i], what);
    engine->release_calls[engine->release_call_count++] = (struct release_call){.call = call, .request = request};
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
