/* test_scheduler.c: the scheduler's files between a gateway and an s-part that are played here, all on one thread, so that
 * what is late, lost or refused is so in a chosen order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attend.pb-c.h"
#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/member/member.h"
#include "services/scheduler/scheduler.h"

enum { LIMIT_US = 10 * 1000 * 1000, HANGS_S = 15, CALLS_MAX = 8192, HELD_MAX = 16384 };

static struct scheduler *scheduler;

/* --- the s-part ------------------------------------------------------------------------------------------------------ */

/* What is wrong with a reply. */
enum spoiled {
    NOT_SPOILED,
    TOKEN_OF_NO_WORD,
    TOP_OF_NO_WORD,
    TOKEN_NOT_ASKED,
    SCORE_NOT_ASKED,
    OTHER_SEQUENCE,
    OTHER_STEP,
    FEWER_RUNS,
    SPOILS
};

static struct {
    struct rpc_server *server;
    struct rpc_channel *channel; /* to the scheduler */
    enum spoiled spoil;          /* the next reply that can be */
    uint64_t incarnation;
    bool hold_releases;
    uint32_t pace; /* turns between a step's coming and its answer: gateways must keep up with what many tokens say */
    struct rpc_call *waiting[STEPS_MAX];
    uint32_t waiting_count, waited;
    struct rpc_call *held[HELD_MAX]; /* Release calls that are not answered yet */
    uint32_t held_count, steps, rows_most;
    uint64_t released; /* ids in Release calls */
} s_part;

static void spoil(Fastdecode__StepReply *reply, const Fastdecode__StepRequest *request)
{
    static Fastdecode__TopToken top = FASTDECODE__TOP_TOKEN__INIT, *tops = &top;
    static Fastdecode__Token bad = FASTDECODE__TOKEN__INIT, *bads = &bad;
    Fastdecode__RunResult *result = reply->results[0];

    top.token = UINT32_MAX;
    bad.token = s_part.spoil == TOKEN_OF_NO_WORD ? 100 : 6;
    bad.n_top = s_part.spoil == TOP_OF_NO_WORD;
    bad.top = &tops;
    switch (s_part.spoil) {
    case TOKEN_OF_NO_WORD:
    case TOP_OF_NO_WORD:
        if (!request->runs[0]->sample)
            return;
        result->sampled = &bad;
        break;
    case TOKEN_NOT_ASKED:
        if (request->runs[0]->sample)
            return;
        result->sampled = &bad;
        break;
    case SCORE_NOT_ASKED:
        result->n_scores = 1;
        result->scores = &bads;
        break;
    case OTHER_SEQUENCE: result->sequence++; break;
    case OTHER_STEP: reply->step++; break;
    case FEWER_RUNS: reply->n_results--; break;
    default: return;
    }
    s_part.spoil = NOT_SPOILED;
}

static void answer_step(struct rpc_call *call)
{
    static Fastdecode__RunResult results[8192], *pointers[8192];
    static Fastdecode__Token token = FASTDECODE__TOKEN__INIT;
    Fastdecode__StepReply reply = FASTDECODE__STEP_REPLY__INIT;
    const Fastdecode__StepRequest *request = rpc_call_unpack(call, &fastdecode__step_request__descriptor);
    uint32_t rows = 0;

    assert_non_null(request);
    token.token = 5;
    for (size_t i = 0; i < request->n_runs; i++) {
        fastdecode__run_result__init(pointers[i] = &results[i]);
        results[i].sequence = request->runs[i]->sequence;
        results[i].outcome = FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_DONE;
        results[i].sampled = request->runs[i]->sample ? &token : NULL;
        rows += request->runs[i]->n_tokens ? (uint32_t)request->runs[i]->n_tokens : 1;
    }
    s_part.steps++;
    s_part.rows_most = MAX(s_part.rows_most, rows);
    reply.step = request->step;
    reply.n_results = request->n_runs;
    reply.results = pointers;
    if (request->n_runs)
        spoil(&reply, request);
    rpc_call_reply(call, &reply.base);
}

static void answer_steps(void)
{
    for (uint32_t i = 0; i < s_part.waiting_count; i++)
        answer_step(s_part.waiting[i]);
    s_part.waiting_count = s_part.waited = 0;
}

static void step(struct rpc_call *call, void *user)
{
    (void)user;
    assert_true(s_part.waiting_count < STEPS_MAX);
    s_part.waiting[s_part.waiting_count++] = call;
    if (!s_part.pace)
        answer_steps();
}

static void answer_releases(void)
{
    const Fastdecode__ReleaseReply reply = FASTDECODE__RELEASE_REPLY__INIT;
    s_part.hold_releases = false;
    for (uint32_t i = 0; i < s_part.held_count; i++)
        rpc_call_reply(s_part.held[i], &reply.base);
    s_part.held_count = 0;
}

static void release(struct rpc_call *call, void *user)
{
    const Fastdecode__ReleaseRequest *request = rpc_call_unpack(call, &fastdecode__release_request__descriptor);

    (void)user;
    assert_non_null(request);
    s_part.released += request->n_sequence;
    assert_true(s_part.held_count < HELD_MAX);
    s_part.held[s_part.held_count++] = call;
    if (!s_part.hold_releases)
        answer_releases();
}

static void s_part_open(void)
{
    static const char *const addresses[] = {"inproc://test-s-part"};
    const struct rpc_method methods[] = {{&fastdecode__spart__descriptor, "Step", step, NULL},
                                         {&fastdecode__spart__descriptor, "Release", release, NULL}};
    struct error error;

    s_part.incarnation = MAX(member_incarnation(), s_part.incarnation + 1);
    const struct rpc_hello hello = {.service = "s-part", .incarnation = s_part.incarnation};
    const struct rpc_server_config config = {
        .addresses = addresses, .address_count = 1, .methods = methods, .method_count = 2, .hello = hello};
    const struct rpc_channel_config channel = {.address = "inproc://test-scheduler", .hello = hello};
    assert_int_equal(rpc_server_open(scheduler->loop, &config, &s_part.server, &error), STATUS_OK);
    assert_int_equal(rpc_channel_open(scheduler->loop, &channel, &s_part.channel, &error), STATUS_OK);
    s_part.held_count = s_part.steps = s_part.rows_most = 0;
    s_part.released = 0;
    s_part.pace = s_part.waiting_count = s_part.waited = 0;
    s_part.hold_releases = false;
}

static void s_part_close(void)
{
    rpc_channel_close(s_part.channel);
    rpc_server_close(s_part.server);
}

/* --- the mesh -------------------------------------------------------------------------------------------------------- */

/* As the scheduler's main loop does. */
static void turn(void)
{
    rpc_loop_run(scheduler->loop, 2000, 0);
    if (scheduler->settling_count)
        generate_settle(scheduler);
    scheduler_tick(scheduler);
    if (s_part.waiting_count && ++s_part.waited >= s_part.pace)
        answer_steps();
}

#define UNTIL(condition)                                                            \
    do {                                                                            \
        uint64_t limit_us_ = clock_now_us() + LIMIT_US;                             \
        while (!(condition)) {                                                      \
            turn();                                                                 \
            if (clock_now_us() > limit_us_)                                         \
                fail_msg("%s:%d: not in time: %s", __FILE__, __LINE__, #condition); \
        }                                                                           \
    } while (0)

struct outcome {
    bool ended;
    enum status status;
    char text[256];
};

static void on_end(void *user, enum status status, const char *text)
{
    struct outcome *outcome = user;
    outcome->ended = true;
    outcome->status = status;
    snprintf(outcome->text, sizeof outcome->text, "%s", text);
}

/* What differs from registration to registration. */
struct registration {
    uint32_t context, max_rows, mini_batches;
};

static struct outcome register_s_part(struct registration what)
{
    Fastdecode__RegisterRequest request = FASTDECODE__REGISTER_REQUEST__INIT;
    Fastdecode__ModelInfo model = FASTDECODE__MODEL_INFO__INIT;
    Fastdecode__KvShape kv = FASTDECODE__KV_SHAPE__INIT;
    const struct rpc_callbacks callbacks = {.on_end = on_end};
    struct outcome outcome = {0};
    struct error error;

    UNTIL(rpc_channel_is_up(s_part.channel));
    kv = (Fastdecode__KvShape){kv.base, 2, 4, 2, 16, 16, FASTDECODE__KV_TYPE__KV_TYPE_F16, what.context};
    model.name = (char *)"test";
    model.vocab = 100;
    model.context_tokens = what.context;
    model.kv = &kv;
    request.kind = FASTDECODE__SERVICE_KIND__SERVICE_KIND_S_PART;
    request.name = (char *)"s-part";
    request.incarnation = s_part.incarnation;
    request.control_address = (char *)"inproc://test-s-part";
    request.model = &model;
    request.pages_total = 100000;
    request.max_rows = what.max_rows;
    request.mini_batches = what.mini_batches;
    assert_int_equal(rpc_call_start(s_part.channel, &fastdecode__cluster__descriptor, "RegisterMember", &request.base, NULL,
                                    &callbacks, &outcome, NULL, &error),
                     STATUS_OK);
    UNTIL(outcome.ended);
    return outcome;
}

static void mesh_open(uint32_t max_queue, uint32_t max_batch, uint32_t mini_batches)
{
    static const char *const addresses[] = {"inproc://test-scheduler"};
    struct error error;

    alarm(HANGS_S); /* a loop that never returns has no other end */
    scheduler = calloc(1, sizeof *scheduler);
    assert_non_null(scheduler);
    scheduler->settings = (struct scheduler_settings){
        .max_queue = max_queue, .max_batch = max_batch, .mini_batches = mini_batches, .chunk = 512, .worker_timeout_ms = 60000};
    scheduler->incarnation = member_incarnation();
    scheduler->next_sequence = scheduler->incarnation + 1;
    scheduler->started_us = clock_now_us() - CLAIM_US; /* nobody is waited for */
    scheduler->member_count = 1;
    scheduler->members[0].scheduler = scheduler;
    scheduler->settling_capacity = 16;
    scheduler->settling = calloc(scheduler->settling_capacity, sizeof *scheduler->settling);
    assert_int_equal(rpc_loop_open(&scheduler->loop), STATUS_OK);
    assert_int_equal(token_logs_open(max_queue + max_batch + 1024, &scheduler->logs), STATUS_OK);
    const struct rpc_method methods[] = {
        {&fastdecode__generator__descriptor, "Generate", generate_handler, scheduler},
        {&fastdecode__cluster__descriptor, "RegisterMember", register_handler, scheduler},
    };
    const struct rpc_server_config config = {.addresses = addresses,
                                             .address_count = 1,
                                             .methods = methods,
                                             .method_count = ARRAY_COUNT(methods),
                                             .hello = {.service = "scheduler", .incarnation = scheduler->incarnation}};
    assert_int_equal(rpc_server_open(scheduler->loop, &config, &scheduler->server, &error), STATUS_OK);
    s_part_open();
}

static void mesh_close(void)
{
    members_close(scheduler);
    s_part_close();
    rpc_server_close(scheduler->server);
    while (rpc_loop_run(scheduler->loop, 0, 0)) {}
    rpc_loop_close(scheduler->loop);
    token_logs_close(scheduler->logs);
    scheduler_close_core(scheduler);
    free(scheduler->settling);
    free(scheduler->held);
    free(scheduler);
    alarm(0);
}

/* --- a KV worker ------------------------------------------------------------------------------------------------------ */

static struct {
    struct rpc_server *server;
    struct rpc_channel *channel;     /* to the scheduler */
    struct rpc_call *held[HELD_MAX]; /* Free calls that are not answered yet */
    uint32_t held_count;
    uint64_t freed; /* ids in Free calls */
} kv_worker;

static void take_free(struct rpc_call *call, void *user)
{
    const Fastdecode__FreeRequest *request = rpc_call_unpack(call, &fastdecode__free_request__descriptor);
    (void)user;
    assert_non_null(request);
    assert_true(kv_worker.held_count < HELD_MAX);
    kv_worker.freed += request->n_sequence;
    kv_worker.held[kv_worker.held_count++] = call;
}

static void answer_frees(void)
{
    const Fastdecode__FreeReply reply = FASTDECODE__FREE_REPLY__INIT;
    while (kv_worker.held_count)
        rpc_call_reply(kv_worker.held[--kv_worker.held_count], &reply.base);
}

/* It holds sequences first, first + 1, ... with so many positions each. */
static void kv_worker_open(uint64_t first, uint32_t count, uint32_t positions)
{
    static const char *const addresses[] = {"inproc://test-kv-worker"};
    static Fastdecode__HeldSequence items[HELD_MAX], *pointers[HELD_MAX];
    const struct rpc_method methods[] = {{&fastdecode__kv_control__descriptor, "Free", take_free, NULL}};
    const struct rpc_hello hello = {.service = "kv-worker", .incarnation = member_incarnation()};
    const struct rpc_server_config config = {
        .addresses = addresses, .address_count = 1, .methods = methods, .method_count = 1, .hello = hello};
    const struct rpc_channel_config channel = {.address = "inproc://test-scheduler", .hello = hello};
    const struct rpc_callbacks callbacks = {.on_end = on_end};
    Fastdecode__RegisterRequest request = FASTDECODE__REGISTER_REQUEST__INIT;
    struct outcome outcome = {0};
    struct error error;

    kv_worker.held_count = 0;
    kv_worker.freed = 0;
    assert_int_equal(rpc_server_open(scheduler->loop, &config, &kv_worker.server, &error), STATUS_OK);
    assert_int_equal(rpc_channel_open(scheduler->loop, &channel, &kv_worker.channel, &error), STATUS_OK);
    UNTIL(rpc_channel_is_up(kv_worker.channel));
    for (uint32_t i = 0; i < count; i++) {
        fastdecode__held_sequence__init(pointers[i] = &items[i]);
        items[i].sequence = first + i;
        items[i].positions = positions;
    }
    request.kind = FASTDECODE__SERVICE_KIND__SERVICE_KIND_KV_WORKER;
    request.name = (char *)"kv-worker";
    request.incarnation = hello.incarnation;
    request.control_address = (char *)addresses[0];
    request.tensor_address = (char *)"inproc://test-kv-worker-t";
    request.kv = &scheduler->kv;
    request.pages_total = 100000;
    request.kv_bytes_per_second = 1e9;
    request.n_held = count;
    request.held = pointers;
    assert_int_equal(rpc_call_start(kv_worker.channel, &fastdecode__cluster__descriptor, "RegisterMember", &request.base, NULL,
                                    &callbacks, &outcome, NULL, &error),
                     STATUS_OK);
    UNTIL(outcome.ended);
    assert_int_equal(outcome.status, STATUS_OK);
    UNTIL(scheduler->members[1].up);
}

static void kv_worker_close(void)
{
    rpc_channel_close(kv_worker.channel);
    rpc_server_close(kv_worker.server);
}

/* --- gateways -------------------------------------------------------------------------------------------------------- */

struct stream {
    uint64_t sequence;
    uint32_t tokens;
    struct outcome outcome;
    struct rpc_handle handle;
};

static struct stream streams[CALLS_MAX];

static void on_event(void *user, struct rpc_message *message)
{
    struct stream *stream = user;
    const Fastdecode__GenerateEvent *event = rpc_message_unpack(message, &fastdecode__generate_event__descriptor);
    assert_non_null(event);
    stream->sequence = event->sequence;
    if (event->n_tokens)
        assert_int_equal(event->index, stream->tokens);
    for (size_t i = 0; i < event->n_tokens; i++)
        assert_int_equal(event->tokens[i]->token, 5);
    assert_int_equal(event->n_prompt, 0);
    stream->tokens += (uint32_t)event->n_tokens;
}

static void on_stream_end(void *user, enum status status, const char *text)
{
    on_end(&((struct stream *)user)->outcome, status, text);
}

static struct rpc_channel *gateway_open(void)
{
    const struct rpc_channel_config config = {
        .address = "inproc://test-scheduler", .hello = {.service = "gateway", .incarnation = 1}, .window = CALLS_MAX};
    struct rpc_channel *channel;
    struct error error;

    assert_int_equal(rpc_channel_open(scheduler->loop, &config, &channel, &error), STATUS_OK);
    UNTIL(rpc_channel_is_up(channel));
    return channel;
}

static void generate(struct rpc_channel *channel, struct stream *stream, uint64_t sequence, uint32_t prompt_tokens,
                     uint32_t max_tokens)
{
    static uint32_t prompt[4096];
    Fastdecode__GenerateRequest request = FASTDECODE__GENERATE_REQUEST__INIT;
    Fastdecode__Sampling sampling = FASTDECODE__SAMPLING__INIT;
    const struct rpc_callbacks callbacks = {.on_message = on_event, .on_end = on_stream_end, .streams = true};
    struct error error;

    *stream = (struct stream){0};
    request.n_prompt = prompt_tokens;
    request.prompt = prompt;
    request.sampling = &sampling;
    request.max_tokens = max_tokens;
    request.sequence = sequence;
    assert_int_equal(rpc_call_start(channel, &fastdecode__generator__descriptor, "Generate", &request.base, NULL, &callbacks,
                                    stream, &stream->handle, &error),
                     STATUS_OK);
}

static struct sched_stats stats_now(void)
{
    struct sched_stats stats;
    sched_get_stats(scheduler->core, &stats);
    return stats;
}

static const struct registration usual = {.context = 100000, .max_rows = 640, .mini_batches = 1};

/* --- tests ----------------------------------------------------------------------------------------------------------- */

/* A gateway submits again under the id that it knows, while the pages of the cancelled one are still being freed. */
static void a_resubmission_runs_while_its_old_pages_are_freed(void **state)
{
    (void)state;
    mesh_open(16, 16, 1);
    assert_int_equal(register_s_part(usual).status, STATUS_OK);
    struct rpc_channel *gateway = gateway_open();
    generate(gateway, &streams[0], 0, 20, 90000);
    UNTIL(streams[0].tokens > 3);
    s_part.hold_releases = true;
    rpc_cancel(gateway, streams[0].handle);
    UNTIL(s_part.held_count > 0);
    generate(gateway, &streams[1], streams[0].sequence, 20, 90000);
    UNTIL(streams[1].tokens > 3);
    answer_releases();
    rpc_channel_close(gateway);
    mesh_close();
}

/* More sequences end at once than calls fit the window to the s-part: a step that cannot be sent waits, it does not keep the
 * scheduler from hearing the answers; and every page is freed. */
static void more_end_at_once_than_the_window_takes(void **state)
{
    enum { MANY = 5000 };
    (void)state;
    mesh_open(MANY, MANY, 1);
    assert_int_equal(register_s_part((struct registration){100000, 8192, 1}).status, STATUS_OK);
    struct rpc_channel *gateway = gateway_open(), *other = gateway_open();
    s_part.pace = 30;
    for (uint32_t i = 0; i < MANY; i++)
        generate(gateway, &streams[i], 0, 1, 100);
    UNTIL(stats_now().running == MANY);
    s_part.hold_releases = true;
    rpc_channel_close(gateway);
    UNTIL(stats_now().running == 0 && s_part.held_count > 4000);
    generate(other, &streams[MANY], 0, 1, 90000);
    UNTIL(scheduler->stuck);
    assert_int_equal(streams[MANY].tokens, 0);
    s_part.pace = 0;
    answer_releases();
    UNTIL(streams[MANY].tokens > 10);
    UNTIL(stats_now().retiring == 0);
    assert_int_equal(s_part.released, MANY);
    rpc_channel_close(other);
    mesh_close();
}

/* What waits and is cancelled holds nothing: it costs the s-part no call of its own. */
static void many_that_wait_are_cancelled_in_few_calls(void **state)
{
    enum { MANY = 5000 };
    (void)state;
    mesh_open(MANY, 1, 1);
    assert_int_equal(register_s_part(usual).status, STATUS_OK);
    struct rpc_channel *gateway = gateway_open(), *other = gateway_open();
    generate(other, &streams[MANY], 0, 1, 90000);
    UNTIL(streams[MANY].tokens > 0);
    for (uint32_t i = 0; i < MANY - 1; i++)
        generate(gateway, &streams[i], 0, 1, 100);
    UNTIL(stats_now().waiting == MANY - 1);
    s_part.hold_releases = true;
    rpc_channel_close(gateway);
    UNTIL(stats_now().waiting == 0 && stats_now().retiring == 0);
    uint32_t before = streams[MANY].tokens;
    UNTIL(streams[MANY].tokens > before + 10);
    assert_in_range(s_part.held_count, 0, 100);
    answer_releases();
    rpc_channel_close(other);
    mesh_close();
}

/* An s-part that is started again with other settings: no step is larger than it says. */
static void a_smaller_s_part_gets_smaller_steps(void **state)
{
    (void)state;
    mesh_open(16, 16, 1);
    assert_int_equal(register_s_part(usual).status, STATUS_OK);
    UNTIL(scheduler->members[0].up);
    s_part_close();
    UNTIL(!scheduler->members[0].up);
    s_part_open();
    assert_int_equal(register_s_part((struct registration){100000, 64, 1}).status, STATUS_OK);
    struct rpc_channel *gateway = gateway_open();
    generate(gateway, &streams[0], 0, 1000, 90000);
    UNTIL(streams[0].tokens > 0);
    assert_in_range(s_part.rows_most, 1, 64);
    rpc_channel_close(gateway);
    mesh_close();
}

/* Its steps of mini-batch 1 would be refused for ever, and with them half of the sequences. */
static void an_s_part_with_fewer_mini_batches_is_refused(void **state)
{
    (void)state;
    mesh_open(16, 16, 2);
    struct outcome outcome = register_s_part(usual);
    assert_int_equal(outcome.status, STATUS_FAILED_PRECONDITION);
    assert_non_null(strstr(outcome.text, "--mini-batches"));
    assert_int_equal(register_s_part((struct registration){100000, 640, 2}).status, STATUS_OK);
    mesh_close();
}

/* Nothing of it comes to a gateway, or into a log: the step is done again. */
static void a_bad_reply_does_not_count(void **state)
{
    (void)state;
    mesh_open(16, 16, 1);
    assert_int_equal(register_s_part(usual).status, STATUS_OK);
    struct rpc_channel *gateway = gateway_open();
    for (enum spoiled kind = NOT_SPOILED; kind < SPOILS; kind++) {
        s_part.spoil = kind;
        generate(gateway, &streams[kind], 0, 1500, 20);
        UNTIL(streams[kind].outcome.ended);
        assert_int_equal(streams[kind].outcome.status, STATUS_OK);
        assert_int_equal(streams[kind].tokens, 20);
        assert_int_equal(s_part.spoil, NOT_SPOILED);
        assert_int_equal(stats_now().steps_failed, kind);
    }
    rpc_channel_close(gateway);
    mesh_close();
}

/* Held by a worker since before the scheduler started, and claimed by nobody: more than calls fit the window. */
static void all_that_nobody_claims_is_freed(void **state)
{
    enum { MANY = 6000 };
    (void)state;
    mesh_open(16, 16, 1);
    assert_int_equal(register_s_part(usual).status, STATUS_OK);
    scheduler->started_us = clock_now_us();
    kv_worker_open(1000, MANY, 5);
    assert_int_equal(kv_worker.freed, 0); /* it may be claimed */
    scheduler->started_us -= 2 * CLAIM_US;
    members_check(scheduler, clock_now_us());
    UNTIL(kv_worker.freed > 4000);
    answer_frees();
    UNTIL(kv_worker.freed == MANY);
    answer_frees();
    kv_worker_close();
    mesh_close();
}

static void a_model_that_is_refused_once_is_refused_again(void **state)
{
    (void)state;
    mesh_open(16, 16, 1);
    for (int i = 0; i < 2; i++) {
        struct outcome outcome = register_s_part((struct registration){1, 640, 1});
        assert_int_not_equal(outcome.status, STATUS_OK);
        assert_non_null(strstr(outcome.text, "context_tokens"));
    }
    assert_int_equal(register_s_part(usual).status, STATUS_OK);
    UNTIL(scheduler->members[0].up);
    mesh_close();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_resubmission_runs_while_its_old_pages_are_freed),
        cmocka_unit_test(more_end_at_once_than_the_window_takes),
        cmocka_unit_test(many_that_wait_are_cancelled_in_few_calls),
        cmocka_unit_test(a_smaller_s_part_gets_smaller_steps),
        cmocka_unit_test(an_s_part_with_fewer_mini_batches_is_refused),
        cmocka_unit_test(a_bad_reply_does_not_count),
        cmocka_unit_test(all_that_nobody_claims_is_freed),
        cmocka_unit_test(a_model_that_is_refused_once_is_refused_again),
    };
    log_init("test", LOG_ERROR, false);
    if (argc > 1) /* a pattern: one test alone */
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
