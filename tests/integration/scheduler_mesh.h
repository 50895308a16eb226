// scheduler_mesh.h: the scheduler with fake gateways, a fake s-part and a fake KV worker, all on one thread, so that a test chooses the
// order in which answers are late, lost or refused. mesh_open_usual(), gateway_open(), generate(), and mesh_close(), which closes all that is
// open; UNTIL(condition) turns the scheduler's loop. One a program.
#ifndef FD_TESTS_SCHEDULER_MESH_H
#define FD_TESTS_SCHEDULER_MESH_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "attend.pb-c.h"
#include "tests/integration/await.h"
#include "tests/integration/fake_s_part.h"

enum { CALLS_MAX = 8192 };

static struct scheduler *scheduler;

static inline struct member *worker(uint32_t place) { return scheduler->places.of[place].member; }

// Does what a turn of the scheduler's main loop does.
static inline void turn(void)
{
    rpc_loop_run(scheduler->host.loop, 2000, 0);
    if (scheduler->claims.settling_count || scheduler->claims.copy_count)
        claims_settle(scheduler);
    scheduler_tick(scheduler);
    if (s_part.waiting_count && ++s_part.waited >= s_part.pace)
        answer_steps();
}

#define UNTIL(condition) AWAIT(turn(), condition)

struct outcome {
    bool ended;
    enum status status;
    char text[256];
    uint64_t newest; // of a registration that was refused for its incarnation
};

static inline void on_end(void *user, enum status status, const char *text)
{
    struct outcome *outcome = user;
    outcome->ended = true;
    outcome->status = status;
    snprintf(outcome->text, sizeof outcome->text, "%s", text);
}

static inline void on_register_reply(void *user, struct rpc_message *message)
{
    const Fastdecode__RegisterReply *reply = rpc_message_unpack(message, &fastdecode__register_reply__descriptor);
    assert_non_null(reply);
    ((struct outcome *)user)->newest = reply->newest_incarnation;
}

// Calls a method of the scheduler's and waits for its end; on_message gets the outcome.
static inline struct outcome ask(struct rpc_channel *channel, const ProtobufCServiceDescriptor *service, const char *method,
                                 const ProtobufCMessage *request, void (*on_message)(void *user, struct rpc_message *message))
{
    struct outcome outcome = {0};

    peer_call(channel, service, method, request, (struct rpc_callbacks){.on_message = on_message, .on_end = on_end}, &outcome);
    UNTIL(outcome.ended);
    return outcome;
}

// The parts of a registration that tests vary.
struct registration {
    uint32_t context, max_rows, mini_batches;
    bool on_device, no_pool;
    Fastdecode__SamplingFeature feature; // the only one that it has; 0: none
};

static inline struct outcome register_s_part(struct registration what)
{
    Fastdecode__RegisterRequest request = FASTDECODE__REGISTER_REQUEST__INIT;
    Fastdecode__ModelInfo model = FASTDECODE__MODEL_INFO__INIT;
    Fastdecode__KvShape kv = FASTDECODE__KV_SHAPE__INIT;

    UNTIL(rpc_channel_is_up(s_part.channel));
    kv.layers = 2;
    kv.heads = 4;
    kv.kv_heads = 2;
    kv.head_dim = 16;
    kv.page_tokens = 16;
    kv.type = FASTDECODE__KV_TYPE__KV_TYPE_F16;
    kv.context_tokens = what.context;
    model.name = (char *)"test";
    model.vocab = 100;
    model.context_tokens = what.context;
    model.kv = &kv;
    request.kind = FASTDECODE__SERVICE_KIND__SERVICE_KIND_S_PART;
    request.name = (char *)"s-part";
    request.incarnation = s_part.incarnation;
    request.control_address = (char *)"inproc://test-s-part";
    request.model = &model;
    request.pages_total = what.no_pool ? 0 : 100000;
    request.max_rows = what.max_rows;
    request.mini_batches = what.mini_batches;
    request.on_device = what.on_device;
    request.rows_alike = !s_part.rows_differ;
    request.n_sampling_feature = what.feature != 0;
    request.sampling_feature = &what.feature;
    return ask(s_part.channel, &fastdecode__cluster__descriptor, "RegisterMember", &request.base, NULL);
}

static const struct registration usual = {.context = 100000, .max_rows = 640, .mini_batches = 1};

static inline void mesh_open(uint32_t max_queue, uint32_t max_batch, uint32_t mini_batches)
{
    scheduler = calloc(1, sizeof *scheduler);
    assert_non_null(scheduler);
    scheduler->settings = (struct scheduler_settings){.max_queue = max_queue,
                                                      .batch_queue = max_queue,
                                                      .max_batch = max_batch,
                                                      .mini_batches = mini_batches,
                                                      .chunk = 512,
                                                      .worker_timeout_ms = 60000};
    scheduler->host.incarnation = member_incarnation();
    scheduler->sequences.next_id = scheduler->host.incarnation + 1;
    scheduler->claims.from_us = clock_now_us() - CLAIM_US; // nobody is waited for
    scheduler_init(scheduler);
    scheduler->claims.settling_capacity = 16;
    scheduler->claims.settling = calloc(scheduler->claims.settling_capacity, sizeof *scheduler->claims.settling);
    assert_int_equal(rpc_loop_open(&scheduler->host.loop), STATUS_OK);
    assert_int_equal(token_logs_open(2 * (max_queue + max_batch) + 1024, 0, &scheduler->sequences.logs), STATUS_OK);
    const struct rpc_method methods[] = {
        {&fastdecode__generator__descriptor, "Generate", generate_handler, scheduler},
        {&fastdecode__generator__descriptor, "Expect", expect_handler, scheduler},
        {&fastdecode__generator__descriptor, "Metrics", metrics_handler, scheduler},
        {&fastdecode__generator__descriptor, "Watch", watch_handler, scheduler},
        {&fastdecode__viewer__descriptor, "View", view_handler, scheduler},
        {&fastdecode__cluster__descriptor, "RegisterMember", registration_handler, scheduler},
        {&fastdecode__cluster__descriptor, "Heartbeat", members_heartbeat_handler, scheduler},
    };
    scheduler->host.server = peer_serve(scheduler->host.loop, "inproc://test-scheduler", methods, ARRAY_COUNT(methods), "scheduler",
                                        scheduler->host.incarnation);
    s_part_open(scheduler->host.loop);
}

static inline void mesh_open_usual(void)
{
    mesh_open(16, 16, 1);
    assert_int_equal(register_s_part(usual).status, STATUS_OK);
}

// Another s-part comes, once the scheduler knows that this one is gone. It is not registered yet.
static inline void s_part_change(void)
{
    s_part_close();
    UNTIL(!scheduler->s_part.member.up);
    s_part_open(scheduler->host.loop);
}

// --- a KV worker ------------------------------------------------------------------------------------------------------

static struct {
    const char *name;                      // NULL: "kv-worker"
    struct rpc_server *server;             // NULL: it is closed
    struct rpc_channel *channel;           // to the scheduler
    struct rpc_call *held[HELD_CALLS_MAX]; // Free calls that are not answered yet
    uint32_t held_count;
    uint64_t incarnation;
    uint64_t freed;          // ids in Free calls
    uint32_t first_position; // of each sequence that it registers with
} kv_worker;

static inline void take_free(struct rpc_call *call, void *user)
{
    const Fastdecode__FreeRequest *request = rpc_call_unpack(call, &fastdecode__free_request__descriptor);
    assert_non_null(request);
    assert_true(kv_worker.held_count < HELD_CALLS_MAX);
    kv_worker.freed += request->n_sequence;
    if (request->n_sequence == 0) { // before it comes up
        const Fastdecode__FreeReply reply = FASTDECODE__FREE_REPLY__INIT;
        rpc_call_reply(call, &reply.base);
        return;
    }
    assert_in_range(request->over_before_step, request->n_sequence > 0, scheduler->flights.last_step + 1);
    for (uint32_t i = 0; i < STEPS_MAX; i++) // none that may still write is said to be over
        assert_true(!scheduler->flights.of[i].used || scheduler->flights.of[i].reply ||
                    scheduler->flights.of[i].step >= request->over_before_step);
    kv_worker.held[kv_worker.held_count++] = call;
}

static inline void answer_frees(void)
{
    const Fastdecode__FreeReply reply = FASTDECODE__FREE_REPLY__INIT;
    while (kv_worker.held_count)
        rpc_call_reply(kv_worker.held[--kv_worker.held_count], &reply.base);
}

// Registers a worker that holds sequences first, first + 1, … with `positions` each, of which the first `certain` were not guessed.
static inline struct outcome kv_worker_register(uint64_t first, uint32_t count, uint32_t positions, uint32_t certain)
{
    static Fastdecode__HeldSequence items[HELD_CALLS_MAX], *pointers[HELD_CALLS_MAX];
    const struct rpc_method methods[] = {{&fastdecode__kv_control__descriptor, "Free", take_free, NULL}};
    kv_worker.incarnation = MAX(member_incarnation(), kv_worker.incarnation + 1);
    Fastdecode__RegisterRequest request = FASTDECODE__REGISTER_REQUEST__INIT;

    kv_worker.held_count = 0;
    kv_worker.freed = 0;
    kv_worker.server = peer_serve(scheduler->host.loop, "inproc://test-kv-worker", methods, 1, "kv-worker", kv_worker.incarnation);
    kv_worker.channel = peer_dial(scheduler->host.loop, "inproc://test-scheduler", "kv-worker", kv_worker.incarnation);
    UNTIL(rpc_channel_is_up(kv_worker.channel));
    for (uint32_t i = 0; i < count; i++) {
        fastdecode__held_sequence__init(pointers[i] = &items[i]);
        items[i].sequence = first + i;
        items[i].first_position = kv_worker.first_position;
        items[i].positions = positions;
        items[i].certain = certain;
    }
    request.kind = FASTDECODE__SERVICE_KIND__SERVICE_KIND_KV_WORKER;
    request.name = (char *)(kv_worker.name ? kv_worker.name : "kv-worker");
    request.incarnation = kv_worker.incarnation;
    request.control_address = (char *)"inproc://test-kv-worker";
    request.tensor_address = (char *)"inproc://test-kv-worker-t";
    request.kv = scheduler->model.known ? &scheduler->model.kv : NULL;
    request.pages_total = 100000;
    request.kv_bytes_per_second = 1e9;
    request.shares_cores = true;
    request.n_held = count;
    request.held = pointers;
    return ask(kv_worker.channel, &fastdecode__cluster__descriptor, "RegisterMember", &request.base, on_register_reply);
}

static inline void kv_worker_open(uint64_t first, uint32_t count, uint32_t positions, uint32_t certain)
{
    assert_int_equal(kv_worker_register(first, count, positions, certain).status, STATUS_OK);
    UNTIL(worker(1)->up);
}

// Sends its heartbeat and returns the scheduler's answer.
static inline enum status kv_worker_beat(uint64_t compute_turns)
{
    Fastdecode__HeartbeatRequest request = FASTDECODE__HEARTBEAT_REQUEST__INIT;

    request.name = (char *)(kv_worker.name ? kv_worker.name : "kv-worker");
    request.incarnation = kv_worker.incarnation;
    request.compute_turns = compute_turns;
    request.kv_bytes_read = 4711;
    request.log_lines_lost = 17;
    return ask(kv_worker.channel, &fastdecode__cluster__descriptor, "Heartbeat", &request.base, NULL).status;
}

static inline void kv_worker_close(void)
{
    rpc_channel_close(kv_worker.channel);
    rpc_server_close(kv_worker.server);
    kv_worker.server = NULL;
}

// --- gateways --------------------------------------------------------------------------------------------------------

struct stream {
    uint64_t sequence;
    uint32_t prompt, tokens;
    struct outcome outcome;
    struct rpc_handle handle;
};

__attribute__((unused)) static struct stream streams[CALLS_MAX];

static inline void on_event(void *user, struct rpc_message *message)
{
    struct stream *stream = user;
    const Fastdecode__GenerateEvent *event = rpc_message_unpack(message, &fastdecode__generate_event__descriptor);
    assert_non_null(event);
    stream->sequence = event->sequence;
    if (event->n_tokens)
        assert_int_equal(event->index, stream->tokens);
    for (size_t i = 0; i < event->n_tokens; i++)
        assert_int_equal(event->tokens[i]->token, s_part.tens && (stream->prompt + stream->tokens + i) % 10 == 0 ? 7 : 5);
    assert_int_equal(event->n_prompt, 0);
    stream->tokens += (uint32_t)event->n_tokens;
}

static inline void on_stream_end(void *user, enum status status, const char *text)
{
    on_end(&((struct stream *)user)->outcome, status, text);
}

static struct rpc_channel *gateways[4]; // that are open

static inline struct rpc_channel *gateway_open(void)
{
    const struct rpc_channel_config config = {
        .address = "inproc://test-scheduler", .hello = {.service = "gateway", .incarnation = 1}, .window = CALLS_MAX};
    uint32_t i = 0;
    struct error error;

    while (gateways[i] != NULL)
        assert_true(++i < ARRAY_COUNT(gateways));
    assert_int_equal(rpc_channel_open(scheduler->host.loop, &config, &gateways[i], &error), STATUS_OK);
    UNTIL(rpc_channel_is_up(gateways[i]));
    return gateways[i];
}

static inline void gateway_close(struct rpc_channel *gateway)
{
    for (uint32_t i = 0; i < ARRAY_COUNT(gateways); i++)
        gateways[i] = gateways[i] == gateway ? NULL : gateways[i];
    rpc_channel_close(gateway);
}

static inline void mesh_close(void)
{
    for (uint32_t i = 0; i < ARRAY_COUNT(gateways); i++)
        if (gateways[i] != NULL)
            gateway_close(gateways[i]);
    if (kv_worker.server != NULL)
        kv_worker_close();
    kv_worker.name = NULL;
    members_close(scheduler);
    s_part_close();
    rpc_server_close(scheduler->host.server);
    while (rpc_loop_run(scheduler->host.loop, 0, 0)) {}
    rpc_loop_close(scheduler->host.loop);
    token_logs_close(scheduler->sequences.logs);
    scheduler_close_core(scheduler);
    free(scheduler->claims.settling);
    free(scheduler->claims.held);
    free(scheduler);
}

static uint32_t resubmitted; // tokens that requests say were generated before
static struct {
    float repetition, presence, frequency;
} penalties;                                   // of requests
static uint32_t min_tokens;                    // likewise
static Fastdecode__LatencyClass latency_class; // likewise
static ProtobufCBinaryData grammar;            // likewise

static inline void generate(struct rpc_channel *channel, struct stream *stream, uint64_t sequence, uint32_t prompt_tokens,
                            uint32_t max_tokens)
{
    static uint32_t prompt[4096], generated[4096];
    Fastdecode__GenerateRequest request = FASTDECODE__GENERATE_REQUEST__INIT;
    Fastdecode__Sampling sampling = FASTDECODE__SAMPLING__INIT;

    *stream = (struct stream){.prompt = prompt_tokens, .tokens = resubmitted};
    request.n_generated = resubmitted;
    request.generated = generated;
    for (uint32_t i = 0; i < prompt_tokens; i++)
        prompt[i] = !s_part.tens ? 0 : i % 10 == 0 ? 7 : 5;
    request.n_end_token = s_part.end_token != 0;
    request.end_token = &s_part.end_token;
    request.n_prompt = prompt_tokens;
    request.prompt = prompt;
    request.sampling = &sampling;
    sampling.repetition_penalty = penalties.repetition;
    sampling.presence_penalty = penalties.presence;
    sampling.frequency_penalty = penalties.frequency;
    sampling.min_tokens = min_tokens;
    sampling.grammar = grammar;
    request.max_tokens = max_tokens;
    request.latency_class = latency_class;
    request.sequence = sequence;
    stream->handle = peer_call(channel, &fastdecode__generator__descriptor, "Generate", &request.base,
                               (struct rpc_callbacks){.on_message = on_event, .on_end = on_stream_end, .streams = true}, stream);
}

static inline struct sched_stats stats_now(void)
{
    struct sched_stats stats;
    sched_get_stats(scheduler->core.sched, &stats);
    return stats;
}

// Opens a mesh without a local pool: all sequences are at the worker.
static inline struct rpc_channel *open_on_worker(void)
{
    mesh_open(16, 16, 1);
    assert_int_equal(
        register_s_part((struct registration){.context = 100000, .max_rows = 640, .mini_batches = 1, .no_pool = true}).status,
        STATUS_OK);
    kv_worker_open(0, 0, 0, 0);
    return gateway_open();
}

#endif
