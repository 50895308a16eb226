// calls.c: handlers of what the scheduler asks: steps, which are queued; pages that move; places that are dead or to be reached. What it asks of
// sequences that are over is in pool.c, what it asks of pipelines in stage.c.
#include "common/base/log.h"
#include "common/mesh/member.h"
#include "services/s-part/engine/engine.h"

// Queues a step behind those of its mini-batch, and begins it if there are none.
static void queue_step(struct engine *engine, const struct queued_step *step)
{
    const uint32_t index = step->request->mini_batch, count = engine->batches.count - engine->aside.taken;

    if (step->request->aside ? !engine->aside.taken || index != count : index >= count) {
        rpc_call_fail(step->call, STATUS_INVALID_ARGUMENT, "mini-batch %u%s, the s-part was started with %u%s", index,
                      step->request->aside ? " aside" : "", count, engine->aside.taken ? " and one aside" : "");
        return;
    }
    struct mini_batch *batch = &engine->batches.of[index];
    if (batch->queue.count == ENGINE_QUEUE_MAX) {
        rpc_call_fail(step->call, STATUS_RESOURCE_EXHAUSTED, "mini-batch %u has %d steps queued", index, ENGINE_QUEUE_MAX);
        return;
    }
    batch->queue.of[(batch->queue.head + batch->queue.count++) % ENGINE_QUEUE_MAX] = *step;
    engine_start_next(batch);
}

void engine_step_handler(struct rpc_call *call, void *user)
{
    struct engine *engine = user;
    Fastdecode__StepRequest *request = rpc_call_unpack(call, &fastdecode__step_request__descriptor);

    if (!request || !member_caller_is(call, "scheduler", request->scheduler_incarnation, engine_newest_scheduler(engine)))
        return;
    if (engine_is_stage(engine) && (!engine->model.range.is_first || !engine->stage.term)) {
        rpc_call_fail(call, STATUS_FAILED_PRECONDITION, "this s-part has layers %u:%u: %s", engine->model.range.first,
                      engine->model.range.first + engine->model.range.count,
                      engine->model.range.is_first ? "it waits for Join" : "steps go to the one with layer 0");
        return;
    }
    const struct queued_step step = {.call = call, .request = request};
    queue_step(engine, &step);
}

void engine_forward_handler(struct rpc_call *call, void *user)
{
    struct engine *engine = user;
    const struct engine_stage *stage = &engine->stage;
    struct queued_step step = {.call = call};
    struct error error;
    size_t length;
    const unsigned char *payload = rpc_message_payload(rpc_call_message(call), &length);

    rpc_call_set_strict(call); // only a stage of this pipeline sends this
    if (forward_request_parse(payload, length, engine->batches.max_rows, engine->model.shape.hidden, &step.forward, &error)) {
        rpc_call_fail(call, error.status, "%s", error.text);
        return;
    }
    if (!member_caller_is(call, "s-part", step.forward.incarnation, stage->previous_incarnation))
        return;
    if (engine->model.range.is_first || !stage->term || step.forward.term != stage->term ||
        step.forward.incarnation != stage->previous_incarnation) {
        rpc_call_fail(call, STATUS_FAILED_PRECONDITION, "ForwardRequest: of another term, or not of the stage before layer %u",
                      engine->model.range.first);
        return;
    }
    step.request = rpc_message_unpack_part(rpc_call_message(call), step.forward.step, step.forward.step_bytes,
                                           &fastdecode__step_request__descriptor);
    if (!step.request)
        rpc_call_fail(call, STATUS_INVALID_ARGUMENT, "ForwardRequest: malformed step");
    else
        queue_step(engine, &step);
}

void engine_fetch_handler(struct rpc_call *call, void *user)
{
    struct engine *engine = user;
    const Fastdecode__FetchRequest *request = rpc_call_unpack(call, &fastdecode__fetch_request__descriptor);

    if (request && member_caller_is(call, "scheduler", request->scheduler_incarnation, engine_newest_scheduler(engine)))
        handover_fetch(&engine->pool.handover, call, request);
}

// Steps that were planned before the worker was given up still name it: they must not open its connection anew and wait.
static void forget_dead_place(struct engine *engine, const Fastdecode__ExcludeRequest *gone)
{
    for (uint32_t b = 0; b < engine->batches.count; b++) {
        struct mini_batch *batch = &engine->batches.of[b];
        for (uint32_t i = 0; i < batch->queue.count; i++) {
            Fastdecode__StepRequest *request = batch->queue.of[(batch->queue.head + i) % ENGINE_QUEUE_MAX].request;
            for (size_t p = 0; p < request->n_places; p++) {
                Fastdecode__Place *place = request->places[p];
                if (place->worker == gone->worker && place->incarnation == gone->incarnation && place->tensor_address[0] != '\0')
                    place->tensor_address[0] = '\0';
            }
        }
    }
}

void engine_expect_handler(struct rpc_call *call, void *user)
{
    struct engine *engine = user;
    const Fastdecode__ExpectReply reply = FASTDECODE__EXPECT_REPLY__INIT;

    if (engine->ops->expect)
        engine->ops->expect(engine->backend);
    rpc_call_reply(call, &reply.base);
}

void engine_exclude_handler(struct rpc_call *call, void *user)
{
    struct engine *engine = user;
    Fastdecode__ExcludeReply reply = FASTDECODE__EXCLUDE_REPLY__INIT;
    Fastdecode__ExcludeRequest *request = rpc_call_unpack(call, &fastdecode__exclude_request__descriptor);

    if (!request || !member_caller_is(call, "scheduler", rpc_call_peer(call)->incarnation, engine_newest_scheduler(engine)))
        return;
    forget_dead_place(engine, request);
    for (uint32_t i = 0; i < ENGINE_LINKS_MAX; i++) {
        struct link *link = &engine->links.of[i];
        if (!link->channel || link->worker != request->worker || link->incarnation != request->incarnation)
            continue;
        log_warn("LINK-EXCLUDED", "worker=%u", link->worker);
        link_drop(link);
    }
    rpc_call_reply(call, &reply.base);
}

void engine_reach_handler(struct rpc_call *call, void *user)
{
    struct engine *engine = user;
    const Fastdecode__ReachReply reply = FASTDECODE__REACH_REPLY__INIT;
    const Fastdecode__ReachRequest *request = rpc_call_unpack(call, &fastdecode__reach_request__descriptor);

    if (!request || !member_caller_is(call, "scheduler", rpc_call_peer(call)->incarnation, engine_newest_scheduler(engine)))
        return;
    if (!request->place || step_place_is_local(request->place) || !request->place->tensor_address[0]) {
        rpc_call_fail(call, STATUS_INVALID_ARGUMENT, "ReachRequest: it names no KV worker with an address for tensors");
        return;
    }
    const struct link *link = link_get(engine, request->place);
    if (!link || link->down)
        rpc_call_fail(call, STATUS_NOT_FOUND, "no connection to %s", request->place->tensor_address);
    else if (!rpc_channel_is_up(link->channel))
        rpc_call_fail(call, STATUS_UNAVAILABLE, "still connecting to %s", request->place->tensor_address);
    else
        rpc_call_reply(call, &reply.base);
}
