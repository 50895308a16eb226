// stage.c: a stage of a pipeline: what it hands on to the next one, and what comes back.
//
//     scheduler ──Join──▶ each stage: a new term: all that was of the one before is given up and forgotten
//     scheduler ──Step──▶ stage 0 ──Forward──▶ stage 1 ──Forward──▶ … the last samples
//               ◀─reply──         ◀───reply───         ◀──reply───
//
// A mini-batch whose step is with a later stage keeps the step until the reply is here, since the next one may need the tokens that are
// sampled there; other mini-batches are computed meanwhile. There is therefore one step of a mini-batch in the pipeline, and a KV worker, which
// plans the rows of a mini-batch with the first layer, hears of the later layers of the same step from the later stages.
//
// A call that the stage before has cancelled is given up as soon as the backend has done with it, and so is the call to the next stage.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/mesh/member.h"
#include "common/rpc/wire.h"
#include "services/s-part/engine/engine.h"

// --- handing on

static void put_runs(const struct step_plan *plan, bool absent, unsigned char *out)
{
    for (uint32_t i = 0; i < plan->run_count; i++)
        if (absent ? !plan->runs[i].row_count : plan->runs[i].row_count && plan->runs[i].lost) {
            wire_store_u32(out, plan->runs[i].result_index);
            out += 4;
        }
}

// Returns what is left of the time that the caller gives; 0: it sets no limit.
static uint32_t timeout_ms(const struct mini_batch *batch)
{
    const uint64_t limit_ms = rpc_call_timeout_ms(batch->step.call), gone_ms = (clock_now_us() - batch->time.began_us) / 1000;
    return limit_ms == 0 ? 0 : (uint32_t)(limit_ms > gone_ms ? limit_ms - gone_ms : 1);
}

float *engine_stage_prepare(struct mini_batch *batch)
{
    const struct engine *engine = batch->engine;
    const struct step_plan *plan = &batch->plan;
    struct forward_request_parts parts;
    struct forward_request_form form = {
        .incarnation = engine->incarnation,
        .term = batch->step.term,
        .pipeline_us = clock_now_us() - batch->step.entered_us,
        .row_count = plan->row_count,
        .hidden = engine->model.shape.hidden,
        .step_bytes = fastdecode__step_request__get_packed_size(batch->step.request),
    };
    unsigned char *payload;

    if (!engine->stage.next)
        return NULL;
    for (uint32_t i = 0; i < plan->run_count; i++) {
        form.absent_count += !plan->runs[i].row_count;
        form.lost_count += plan->runs[i].row_count && plan->runs[i].lost;
    }
    const size_t size = forward_request_size(&form);
    batch->handing_on.buffer =
        rpc_request_buffer(engine->stage.next, engine->stage.forward_method, timeout_ms(batch), size, &payload);
    if (!batch->handing_on.buffer)
        return NULL;
    forward_request_begin(payload, size, &form, &parts);
    put_runs(plan, true, parts.absent_run);
    put_runs(plan, false, parts.lost_run);
    fastdecode__step_request__pack(batch->step.request, parts.step);
    return parts.x;
}

static void on_reply(void *user, struct rpc_message *message)
{
    struct mini_batch *batch = user;
    Fastdecode__StepReply *reply = rpc_message_unpack(message, &fastdecode__step_reply__descriptor);

    if (!batch->step.call)
        return;
    if (reply && reply_pass_on(batch, reply))
        batch->engine->stage.failures = (struct repeat){0};
    else if (repeat_is_due(&batch->engine->stage.failures, clock_now_us(), "a bad reply")) // on_end() fails the call
        log_warn("FORWARD-BAD-REPLY", "step=%llu times=%u", (unsigned long long)batch->step.request->step,
                 batch->engine->stage.failures.count);
}

static void on_end(void *user, enum status status, const char *text)
{
    struct mini_batch *batch = user;
    struct engine *engine = batch->engine;

    engine->stage.left_us = clock_now_us();
    if (status && status != STATUS_CANCELLED && repeat_is_due(&engine->stage.failures, clock_now_us(), text))
        log_warn("FORWARD-FAILED", "step=%llu status=%s why=\"%s\" times=%u", (unsigned long long)batch->step.request->step,
                 status_name(status), text, engine->stage.failures.count);
    if (batch->step.call) // else it was answered
        rpc_call_fail(batch->step.call, status && status != STATUS_CANCELLED ? status : STATUS_UNAVAILABLE,
                      "the stage after layer %u: %s", engine->model.range.first + engine->model.range.count - 1,
                      status ? text : "a reply that is not of this step");
    if (batch->step.call)
        engine_refuse_queued(batch);
    batch->step.call = NULL;
    batch->state = BATCH_IDLE;
    engine_release_deferred(engine);
    engine_start_next(batch);
}

void engine_stage_hand_on(struct mini_batch *batch)
{
    static const struct rpc_callbacks callbacks = {.on_message = on_reply, .on_end = on_end};
    struct engine_stage *stage = &batch->engine->stage;
    struct rpc_buffer *buffer = batch->handing_on.buffer;

    if (!stage->next || stage->next_is_other) {
        engine_give_up(batch);
        return;
    }
    batch->state = BATCH_HANDING_ON;
    if (!rpc_channel_is_up(stage->next))
        return; // on_up() sends it
    batch->handing_on.buffer = NULL;
    reply_time_stage(batch);
    batch->state = BATCH_FORWARDED;
    if (rpc_call_start_buffer(stage->next, buffer, &callbacks, batch, &batch->handing_on.call))
        engine_give_up(batch);
}

// --- the connection to the next stage

static void on_up(void *user, const struct rpc_peer *peer)
{
    struct engine *engine = user;
    struct engine_stage *stage = &engine->stage;

    stage->next_is_other = peer->incarnation != stage->next_incarnation;
    log_info("STAGE-UP", "next=%s%s", stage->next_address, stage->next_is_other ? " what=\"another process answers there\"" : "");
    for (uint32_t b = 0; b < engine->batches.count; b++)
        if (engine->batches.of[b].state == BATCH_HANDING_ON)
            engine_stage_hand_on(&engine->batches.of[b]);
}

static void on_down(void *user, const char *why)
{
    const struct engine *engine = user;
    log_warn("STAGE-DOWN", "next=%s why=\"%s\"", engine->stage.next_address, why);
}

static void close_next(struct engine_stage *stage)
{
    struct rpc_channel *channel = stage->next;
    stage->next = NULL; // before the close: it ends calls
    rpc_channel_close(channel);
}

static enum status connect_next(struct engine *engine, const Fastdecode__JoinRequest *join, struct error *error)
{
    struct engine_stage *stage = &engine->stage;

    if (stage->next && !strcmp(stage->next_address, join->next_address) && stage->next_incarnation == join->next_incarnation)
        return STATUS_OK;
    close_next(stage);
    snprintf(stage->next_address, sizeof stage->next_address, "%s", join->next_address);
    stage->next_incarnation = join->next_incarnation;
    stage->next_is_other = false;
    if (engine->model.range.is_last)
        return STATUS_OK;
    const struct rpc_channel_config config = {.address = stage->next_address,
                                              .peer = "the next stage (its --advertise-tensors or --advertise)",
                                              .hello = {.service = "s-part", .incarnation = engine->incarnation},
                                              .peer_roles = RPC_IS_S_PART,
                                              .on_up = on_up,
                                              .on_down = on_down,
                                              .user = engine};
    return rpc_channel_open(engine->loop, &config, &stage->next, error);
}

void engine_stage_close(struct engine *engine)
{
    engine->stage.term = 0; // what is queued is refused
    close_next(&engine->stage);
}

// --- a new term

void engine_join_handler(struct rpc_call *call, void *user)
{
    struct engine *engine = user;
    struct engine_stage *stage = &engine->stage;
    const Fastdecode__JoinRequest *join = rpc_call_unpack(call, &fastdecode__join_request__descriptor);

    if (!join || !member_caller_is(call, "scheduler", join->scheduler_incarnation, engine_newest_scheduler(engine)))
        return;
    if (!engine_is_stage(engine) || !join->term || (join->stage == 0) != engine->model.range.is_first ||
        (join->next_address[0] == '\0') != engine->model.range.is_last ||
        strlen(join->next_address) >= sizeof stage->next_address) {
        rpc_call_fail(call, STATUS_INVALID_ARGUMENT, "Join: stage %u, next '%.64s': this s-part has layers %u:%u", join->stage,
                      join->next_address, engine->model.range.first, engine->model.range.first + engine->model.range.count);
        return;
    }
    if (join->scheduler_incarnation == stage->newest_term_of && join->term <= stage->newest_term) {
        rpc_call_fail(call, STATUS_FAILED_PRECONDITION, "Join: term %llu, this s-part knows term %llu of that scheduler",
                      (unsigned long long)join->term, (unsigned long long)stage->newest_term);
        return;
    }
    stage->newest_term_of = join->scheduler_incarnation;
    stage->newest_term = join->term;
    if (stage->joining)
        rpc_call_fail(stage->joining, STATUS_UNAVAILABLE, "a later Join came");
    if (stage->next_is_other) // the process that is meant may be there now
        close_next(stage);
    stage->joining = call;
    stage->join = join;
    stage->term = 0; // steps that are queued, or come, are refused
}

// The steps of the term before are over: all else of it is forgotten. The call is answered once the next stage is reached.
static void go_on_joining(struct engine *engine)
{
    struct engine_stage *stage = &engine->stage;
    const Fastdecode__JoinRequest *join = stage->join;
    Fastdecode__JoinReply reply = FASTDECODE__JOIN_REPLY__INIT;
    struct rpc_call *call = stage->joining;
    struct error error;

    for (uint32_t b = 0; b < engine->batches.count; b++) {
        engine_start_next(&engine->batches.of[b]); // refuses what is queued
        if (engine->batches.of[b].state != BATCH_IDLE)
            return;
    }
    if (rpc_call_is_cancelled(call) || connect_next(engine, join, &error)) {
        stage->joining = NULL;
        rpc_call_fail(call, STATUS_UNAVAILABLE, "cannot connect to '%s'", join->next_address);
        return;
    }
    if (stage->next_is_other) { // the scheduler asks again, a while later
        stage->joining = NULL;
        rpc_call_fail(call, STATUS_UNAVAILABLE, "another process answers at '%s'", join->next_address);
        return;
    }
    if (!engine->model.range.is_last && !rpc_channel_is_up(stage->next))
        return;
    engine_forget_all(engine);
    stage->term = join->term;
    stage->previous_incarnation = join->previous_incarnation;
    stage->idle_from_us = stage->left_us = 0;
    stage->joining = NULL;
    log_info("STAGE-JOINED", "stage=%u term=%llu layers=%u:%u", join->stage, (unsigned long long)join->term,
             engine->model.range.first, engine->model.range.first + engine->model.range.count);
    rpc_call_reply(call, &reply.base);
}

// Gives up a step that nobody waits for any more, if it can be given up now.
static void stop_unwanted(struct mini_batch *batch)
{
    struct engine *engine = batch->engine;

    if (batch->state == BATCH_IDLE ||
        (batch->step.term == engine->stage.term && batch->step.call && !rpc_call_is_cancelled(batch->step.call)))
        return;
    if (batch->state == BATCH_FORWARDED && engine->stage.next)
        rpc_cancel(engine->stage.next, batch->handing_on.call);
    else if (batch->state == BATCH_CONNECTING || batch->state == BATCH_HANDING_ON ||
             (batch->state == BATCH_READY && engine->ops->done(batch->backend)))
        engine_give_up(batch);
}

void engine_stage_advance(struct engine *engine)
{
    if (!engine_is_stage(engine))
        return;
    for (uint32_t b = 0; b < engine->batches.count; b++)
        stop_unwanted(&engine->batches.of[b]);
    if (engine->stage.joining)
        go_on_joining(engine);
}
