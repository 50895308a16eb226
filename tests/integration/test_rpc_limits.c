// test_rpc_limits.c: what bounds the RPC runtime: unread streams, sizes, windows, deadlines, stopped and vanishing peers.
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "common/base/log.h"
#include "generate.pb-c.h"
#include "tests/cmocka.h"
#include "tests/integration/rpc_bad_frames.h"
#include "tests/integration/rpc_harness.h"

static const ProtobufCServiceDescriptor *const generator = &fastdecode__generator__descriptor;

// --- handlers ---

static atomic_uint stream_sent, stream_status; // of the last stream; status + 1, 0: under way
static atomic_uint hanging, cancelled;
static struct rpc_call *held[8];
static uint32_t held_count;

// Streams max_tokens messages, or fewer if the client stops reading.
static void stream(struct rpc_call *call, void *user)
{
    const Fastdecode__GenerateRequest *request = rpc_call_unpack(call, &fastdecode__generate_request__descriptor);
    enum status status = STATUS_OK;
    uint32_t sent = 0;

    for (; request && sent < request->max_tokens && status == STATUS_OK; sent++) {
        Fastdecode__GenerateEvent event = FASTDECODE__GENERATE_EVENT__INIT;
        event.index = sent;
        status = rpc_call_send(call, &event.base);
    }
    if (request)
        rpc_call_end(call);
    atomic_store(&stream_sent, sent);
    atomic_store(&stream_status, (unsigned)status + 1);
}

// Replies with timeout_ms of the call times 1,000 bytes, and streams a message of that size before.
static void large(struct rpc_call *call, void *user)
{
    size_t bytes = rpc_call_timeout_ms(call) * (size_t)1000;
    char *text = calloc(1, bytes + 1);
    Fastdecode__MetricsReply reply = FASTDECODE__METRICS_REPLY__INIT;

    memset(text, 'x', bytes);
    reply.text = text;
    atomic_store(&stream_status, (unsigned)rpc_call_send(call, &reply.base) + 1);
    rpc_call_reply(call, &reply.base);
    free(text);
}

// When one call is cancelled, ends all others, including those of the same connection that would be cancelled next.
static void end_others(void *user)
{
    uint32_t mine = (uint32_t)(uintptr_t)user;
    atomic_fetch_add(&cancelled, 1);
    held[mine] = NULL;
    for (uint32_t i = 0; i < held_count; i++)
        if (held[i]) {
            struct rpc_call *call = held[i];
            held[i] = NULL;
            rpc_call_fail(call, STATUS_ABORTED, "another was cancelled");
        }
}

static void hold(struct rpc_call *call, void *user)
{
    rpc_call_on_cancel(call, end_others, (void *)(uintptr_t)held_count);
    held[held_count++] = call;
    atomic_fetch_add(&hanging, 1);
}

static const struct rpc_method methods[] = {
    {&fastdecode__generator__descriptor, "Generate", stream, NULL},
    {&fastdecode__generator__descriptor, "Metrics", large, NULL},
    {&fastdecode__generator__descriptor, "Watch", hold, NULL},
};

static void start_server(struct harness_server *server, const char *address)
{
    server->config.methods = methods;
    server->config.method_count = ARRAY_COUNT(methods);
    held_count = 0;
    atomic_store(&hanging, 0);
    atomic_store(&cancelled, 0);
    atomic_store(&stream_status, 0);
    harness_start(server, address);
}

// --- tests ---

// If a client stops reading, the stream ends with a status at the limit and the connection is closed. What the client reads from its socket
// afterwards has no gap.
static void an_unread_stream_ends_with_a_status(void **state)
{
    struct harness_server server = {0};
    Fastdecode__GenerateRequest request = FASTDECODE__GENERATE_REQUEST__INIT;
    Fastdecode__Envelope envelope = FASTDECODE__ENVELOPE__INIT, *answer;
    unsigned char payload[64], body[256];
    uint32_t received = 0;

    start_server(&server, "tcp://127.0.0.1:0");
    struct frame_socket raw = frame_connect(server.address);
    assert_true(bad_frame_hello(&raw));
    request.max_tokens = RPC_QUEUE_MAX * 2;
    envelope.kind = FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_REQUEST;
    envelope.call_id = 5;
    envelope.method = rpc_method_id(generator, "Generate");
    envelope.payload = (ProtobufCBinaryData){fastdecode__generate_request__pack(&request, payload), payload};
    assert_true(frame_send(&raw, body, fastdecode__envelope__pack(&envelope, body)));
    AWAIT(usleep(1000), atomic_load(&stream_status));
    assert_int_equal(atomic_load(&stream_status), STATUS_RESOURCE_EXHAUSTED + 1);
    assert_in_range(atomic_load(&stream_sent), RPC_QUEUE_MAX, RPC_QUEUE_MAX + RPC_UNACKED_MAX + 1);
    for (; (answer = bad_frame_answer(&raw)); received++) {
        Fastdecode__GenerateEvent *event = fastdecode__generate_event__unpack(NULL, answer->payload.len, answer->payload.data);
        assert_non_null(event);
        assert_int_equal(answer->kind, FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_STREAM);
        assert_int_equal(event->index, received);
        fastdecode__generate_event__free_unpacked(event, NULL);
        fastdecode__envelope__free_unpacked(answer, NULL);
    }
    assert_true(received <= RPC_UNACKED_MAX);
    close(raw.fd);
    harness_stop(&server);
}

// A client process that is stopped in the middle of a stream and continued receives everything, once and in order.
static int stopped_client(const char *address)
{
    struct harness_client client = {0};
    Fastdecode__GenerateRequest request = FASTDECODE__GENERATE_REQUEST__INIT;
    struct harness_result result = {0};
    struct error error;

    harness_open(&client, address);
    while (!client.ups)
        rpc_loop_run(client.loop, 10000, 0);
    request.max_tokens = 30000;
    if (rpc_call_start(client.channel, generator, "Generate", &request.base, NULL, &harness_callbacks, &result, NULL, &error))
        return 2;
    while (!result.messages)
        rpc_loop_run(client.loop, 10000, 0);
    raise(SIGSTOP);
    while (!result.ends)
        rpc_loop_run(client.loop, 10000, 0);
    harness_close(&client);
    if (result.status == STATUS_OK && result.messages == request.max_tokens)
        return 0;
    fprintf(stderr, "the stopped client got %u messages, then %s: %s\n", result.messages, status_name(result.status), result.error);
    return 3;
}

static void a_stopped_client_gets_everything(void **state)
{
    struct harness_server server = {0};
    struct harness_client other = {0};
    Fastdecode__GenerateRequest request = FASTDECODE__GENERATE_REQUEST__INIT;
    char address[128];
    int status;

    snprintf(address, sizeof address, "ipc:///tmp/fd-test-limits-%d.sock", (int)getpid());
    start_server(&server, address);
    pid_t pid = fork();
    if (pid == 0) { // nng does not survive a fork: start over
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl("/proc/self/exe", "test_rpc_limits", "client", address, (char *)NULL);
        _exit(1);
    }
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
    harness_open(&other, address); // others are served meanwhile
    HARNESS_UNTIL(&other, other.ups == 1);
    for (int i = 0; i < 20; i++) {
        struct harness_result result = {0};
        struct error error;
        request.max_tokens = 200;
        assert_int_equal(
            rpc_call_start(other.channel, generator, "Generate", &request.base, NULL, &harness_callbacks, &result, NULL, &error),
            STATUS_OK);
        HARNESS_UNTIL(&other, result.ends == 1);
        assert_int_equal(result.messages, 200);
    }
    harness_close(&other);
    kill(pid, SIGCONT);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    harness_stop(&server);
}

static void sizes_are_refused_without_losing_the_connection(void **state)
{
    static const char *const addresses[] = {"inproc://test-sizes", "tcp://127.0.0.1:0"};
    for (size_t i = 0; i < ARRAY_COUNT(addresses); i++) {
        struct harness_server server = {.config = {.max_message_bytes = 200000}};
        struct harness_client client = {.config = {.max_message_bytes = 50000}};
        Fastdecode__MetricsRequest request = FASTDECODE__METRICS_REQUEST__INIT;
        Fastdecode__GenerateRequest big = FASTDECODE__GENERATE_REQUEST__INIT;
        struct harness_result result = {0}, other = {0};
        struct rpc_options options = {.timeout_ms = 60}; // 60,000 bytes: too large for us
        struct error error;

        start_server(&server, addresses[i]);
        harness_open(&client, server.address);
        HARNESS_UNTIL(&client, client.ups == 1);
        assert_int_equal(rpc_call_start(client.channel, generator, "Metrics", &request.base, &options, &harness_callbacks, &result,
                                        NULL, &error),
                         STATUS_OK);
        HARNESS_UNTIL(&client, result.ends == 1);
        if (result.status != STATUS_DEADLINE_EXCEEDED) { // a slow machine
            assert_int_equal(result.status, STATUS_RESOURCE_EXHAUSTED);
            assert_non_null(strstr(result.error, "at most 50000"));
        }
        assert_int_equal(result.messages, 0);
        HARNESS_UNTIL(&client, atomic_load(&stream_status) == STATUS_OUT_OF_RANGE + 1);
        big.request_id = calloc(1, 200001);
        memset(big.request_id, 'x', 200000);
        assert_int_equal(
            rpc_call_start(client.channel, generator, "Generate", &big.base, NULL, &harness_callbacks, &other, NULL, &error),
            STATUS_RESOURCE_EXHAUSTED);
        assert_non_null(strstr(error.text, "at most 200000"));
        free(big.request_id);
        assert_int_equal(client.downs, 0);
        assert_true(rpc_channel_is_up(client.channel));
        harness_close(&client);
        harness_stop(&server);
    }
}

static void a_buffer_has_a_deadline_too(void **state)
{
    struct harness_server server = {0};
    struct harness_client client = {0};
    struct harness_result result = {0};
    unsigned char *payload;

    start_server(&server, "inproc://test-buffer-deadline");
    harness_open(&client, server.address);
    HARNESS_UNTIL(&client, client.ups == 1);
    struct rpc_buffer *buffer = rpc_request_buffer(client.channel, rpc_method_id(generator, "Watch"), 40, 0, &payload);
    assert_int_equal(rpc_call_start_buffer(client.channel, buffer, &harness_callbacks, &result, NULL), STATUS_OK);
    HARNESS_UNTIL(&client, result.ends == 1);
    assert_int_equal(result.status, STATUS_DEADLINE_EXCEEDED);
    HARNESS_UNTIL(&client, atomic_load(&cancelled) == 1);
    harness_close(&client);
    harness_stop(&server);
}

// A cancelled call's owner ends calls that would be cancelled next.
static void cancelling_may_end_other_calls(void **state)
{
    struct harness_server server = {0};
    struct harness_client client = {0};
    Fastdecode__WatchRequest request = FASTDECODE__WATCH_REQUEST__INIT;
    struct harness_result result[6] = {{0}};
    struct rpc_handle handle[6];
    struct error error;

    start_server(&server, "inproc://test-cancel-others");
    harness_open(&client, server.address);
    HARNESS_UNTIL(&client, client.ups == 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(rpc_call_start(client.channel, generator, "Watch", &request.base, NULL, &harness_callbacks, &result[i],
                                        &handle[i], &error),
                         STATUS_OK);
    HARNESS_UNTIL(&client, atomic_load(&hanging) == 3);
    rpc_cancel(client.channel, handle[1]); // ends the two others
    HARNESS_UNTIL(&client, result[0].ends && result[2].ends);
    assert_int_equal(result[0].status, STATUS_ABORTED);
    assert_int_equal(result[1].status, STATUS_CANCELLED);
    assert_int_equal(result[2].status, STATUS_ABORTED);
    assert_int_equal(atomic_load(&cancelled), 1);
    for (int i = 3; i < 6; i++)
        assert_int_equal(rpc_call_start(client.channel, generator, "Watch", &request.base, NULL, &harness_callbacks, &result[i],
                                        &handle[i], &error),
                         STATUS_OK);
    HARNESS_UNTIL(&client, atomic_load(&hanging) == 6);
    rpc_channel_close(client.channel); // the same at the connection's end
    client.channel = NULL;
    HARNESS_UNTIL(&client, atomic_load(&cancelled) == 2);
    harness_close(&client);
    harness_stop(&server);
}

static bool not_ready(void *user, char *reason, size_t reason_bytes)
{
    snprintf(reason, reason_bytes, "no model yet");
    return false;
}

static void health_says_why_not(void **state)
{
    struct harness_server server = {.config = {.ready = not_ready}};
    start_server(&server, "tcp://127.0.0.1:0");
    struct frame_socket raw = frame_connect(server.address);
    Fastdecode__Envelope request = FASTDECODE__ENVELOPE__INIT, *answer;
    unsigned char body[64];
    assert_true(bad_frame_hello(&raw));
    request.kind = FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_REQUEST;
    request.method = rpc_method_id(&fastdecode__health__descriptor, "Check");
    assert_true(frame_send(&raw, body, fastdecode__envelope__pack(&request, body)));
    assert_non_null(answer = bad_frame_answer(&raw));
    Fastdecode__HealthReply *reply = fastdecode__health_reply__unpack(NULL, answer->payload.len, answer->payload.data);
    assert_non_null(reply);
    assert_false(reply->ready);
    assert_string_equal(reply->reason, "no model yet");
    assert_string_equal(reply->service, "test");
    fastdecode__health_reply__free_unpacked(reply, NULL);
    fastdecode__envelope__free_unpacked(answer, NULL);
    close(raw.fd);
    harness_stop(&server);
}

// Opens and closes channels at any moment of their life, while the server they call comes and goes.
static void channels_come_and_go(void **state)
{
    char address[128], dead[] = "tcp://127.0.0.1:1", name[] = "tcp://localhost:1";
    uint32_t seed = 12345, ends = 0;
    struct rpc_loop *loop;
    struct error error;

    snprintf(address, sizeof address, "ipc:///tmp/fd-test-churn-%d.sock", (int)getpid());
    assert_int_equal(rpc_loop_open(&loop), STATUS_OK);
    for (int round = 0; round < 12; round++) {
        struct harness_server server = {0};
        start_server(&server, round % 2 ? address : "tcp://127.0.0.1:0");
        for (int i = 0; i < 20; i++) {
            struct harness_client client = {.loop = loop};
            struct harness_result result = {0};
            const char *to = i % 7 == 6 ? dead : i % 7 == 5 ? name : server.address;
            const struct rpc_channel_config config = {
                .address = to, .hello = {.service = "client"}, .on_up = harness_up, .on_down = harness_down, .user = &client};
            Fastdecode__GenerateRequest request = FASTDECODE__GENERATE_REQUEST__INIT;
            request.max_tokens = 300;
            assert_int_equal(rpc_channel_open(loop, &config, &client.channel, &error), STATUS_OK);
            seed = seed * 1664525u + 1013904223u;
            uint64_t until_us = clock_now_us() + (seed >> 8) % 4000; // closed in any state: that is the test
            bool started = false;
            do {
                rpc_loop_run(loop, 100, 0);
                if (!started && rpc_channel_is_up(client.channel))
                    started = rpc_call_start(client.channel, generator, "Generate", &request.base, NULL, &harness_callbacks,
                                             &result, NULL, &error) == STATUS_OK;
            } while (clock_now_us() < until_us);
            if (i == 19) { // the server goes first
                harness_stop(&server);
                rpc_loop_run(loop, (seed >> 4) % 2000, 0);
            }
            rpc_channel_close(client.channel);
            assert_int_equal(result.ends, started);
            ends += result.ends;
        }
    }
    assert_true(ends > 0);
    rpc_loop_close(loop);
}

int main(int argc, char **argv)
{
    log_init("test", LOG_ERROR, false);
    if (argc == 3 && !strcmp(argv[1], "client"))
        return stopped_client(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stopped_client_gets_everything),
        cmocka_unit_test(an_unread_stream_ends_with_a_status),
        cmocka_unit_test(sizes_are_refused_without_losing_the_connection),
        cmocka_unit_test(a_buffer_has_a_deadline_too),
        cmocka_unit_test(cancelling_may_end_other_calls),
        cmocka_unit_test(health_says_why_not),
        cmocka_unit_test(channels_come_and_go),
    };
    return cmocka_run_group_tests_name("rpc limits", tests, NULL, NULL);
}
