/* engine_calls.c: what the scheduler asks of the engine: steps, which are queued; sequences and places that are over, or move. */
#include "common/base/log.h"
#include "common/member/member.h"
#include "services/s-part/engine.h"

uint64_t engine_newest_scheduler(const struct engine *engine)
{
    return atomic_load_explicit(&engine->scheduler_incarnation, memory_order_relaxed);
}

void engine_step_handler(struct rpc_call *call, void *user)
{
    struct engine *engine = user;
    Fastdecode__StepRequest *request = rpc_call_unpack(call, &fastdecode__step_request__descriptor);

    if (!request || !member_caller_is(call, "scheduler", request->scheduler_incarnation, engine_newest_scheduler(engine)))
        return;
    if (request->mini_batch >= engine->batch_count) {
        rpc_call_fail(call, STATUS_INVALID_ARGUMENT, "mini-batch %u, the s-part was started with %u", request->mini_batch,
                      engine->batch_count);
        return;
    }
    struct mini_batch *batch = &engine->batches[request->mini_batch];
    if (batch->queue_count == ENGINE_QUEUE_MAX) {
        rpc_call_fail(call, STATUS_RESOURCE_EXHAUSTED, "mini-batch %u has %d steps queued", batch->index, ENGINE_QUEUE_MAX);
        return;
    }
    batch->queue[(batch->queue_head + batch->queue_count++) % ENGINE_QUEUE_MAX] = (struct queued_step){call, request};
    engine_start_next(batch);
}

static void release(struct engine *engine, const struct released *released)
{
    if (!released->keep_sampler)
        sequence_table_remove(engine->sequences, released->sequence);
    if (released->keep_pages)
        return;
    handover_drop(&engine->handover, released->sequence);
    engine->ops->pool_release(engine->backend, released->sequence);
}

/* Those that a step still uses are let go when it has ended. */
static void defer(struct engine *engine, const struct released *released)
{
    if (engine->deferred_count < DEFERRED_MAX)
        engine->deferred[engine->deferred_count++] = *released;
    else
        log_warn("RELEASE-LOST", "sequence=%llx", (unsigned long long)released->sequence);
}

static void release_or_defer(struct engine *engine, const struct released *released)
{
    (engine_in_use(engine, released->sequence, NULL) ? defer : release)(engine, released);
}

void engine_release_pages(struct engine *engine, uint64_t sequence)
{
    if (engine_in_use(engine, sequence, NULL))
        defer(engine, &(struct released){.sequence = sequence, .keep_sampler = true});
    else
        engine->ops->pool_release(engine->backend, sequence);
}

void engine_release_deferred(struct engine *engine)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < engine->deferred_count; i++)
        if (engine_in_use(engine, engine->deferred[i].sequence, NULL))
            engine->deferred[kept++] = engine->deferred[i];
        else
            release(engine, &engine->deferred[i]);
    engine->deferred_count = kept;
}

void engine_release_handler(struct rpc_call *call, void *user)
{
    struct engine *engine = user;
    Fastdecode__ReleaseReply reply = FASTDECODE__RELEASE_REPLY__INIT;
    Fastdecode__ReleaseRequest *request = rpc_call_unpack(call, &fastdecode__release_request__descriptor);

    if (!request || !member_caller_is(call, "scheduler", rpc_call_peer(call)->incarnation, engine_newest_scheduler(engine)))
        return;
    for (size_t i = 0; i < request->n_sequence; i++)
        release_or_defer(engine, &(struct released){request->sequence[i], request->keep_pages, request->keep_sampler});
    rpc_call_reply(call, &reply.base);
}

void engine_fetch_handler(struct rpc_call *call, void *user)
{
    struct engine *engine = user;
    const Fastdecode__FetchRequest *request = rpc_call_unpack(call, &fastdecode__fetch_request__descriptor);

    if (request && member_caller_is(call, "scheduler", request->scheduler_incarnation, engine_newest_scheduler(engine)))
        handover_fetch(&engine->handover, call, request);
}

/* Steps that were planned before the worker was given up still name it: they must not open its connection anew and wait. */
static void strike_place(struct engine *engine, const Fastdecode__ExcludeRequest *gone)
{
    for (uint32_t b = 0; b < engine->batch_count; b++) {
        struct mini_batch *batch = &engine->batches[b];
        for (uint32_t i = 0; i < batch->queue_count; i++) {
            Fastdecode__StepRequest *request = batch->queue[(batch->queue_head + i) % ENGINE_QUEUE_MAX].request;
            for (size_t p = 0; p < request->n_places; p++) {
                Fastdecode__Place *place = request->places[p];
                if (place->worker == gone->worker && place->incarnation == gone->incarnation && place->tensor_address[0] != '\0')
                    place->tensor_address[0] = '\0';
            }
        }
    }
}

void engine_exclude_handler(struct rpc_call *call, void *user)
{
    struct engine *engine = user;
    Fastdecode__ExcludeReply reply = FASTDECODE__EXCLUDE_REPLY__INIT;
    Fastdecode__ExcludeRequest *request = rpc_call_unpack(call, &fastdecode__exclude_request__descriptor);

    if (!request || !member_caller_is(call, "scheduler", rpc_call_peer(call)->incarnation, engine_newest_scheduler(engine)))
        return;
    strike_place(engine, request);
    for (uint32_t i = 0; i < ENGINE_LINKS_MAX; i++) {
        struct link *link = &engine->links[i];
        if (!link->channel || link->worker != request->worker || link->incarnation != request->incarnation)
            continue;
        log_warn("LINK-EXCLUDED", "worker=%u", link->worker);
        engine_drop_link(link);
    }
    rpc_call_reply(call, &reply.base);
}
