// test_rpc_calls.c: the RPC runtime over inproc, ipc and tcp: calls, streams, cancelling, deadlines, dying peers.
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "generate.pb-c.h"
#include "tests/cmocka.h"
#include "tests/integration/kept_log.h"
#include "tests/integration/rpc_harness.h"

// --- the server ---

static atomic_int calls_cancelled, questions; // of the server that was started last

static void on_cancel(void *user) { atomic_fetch_add(&calls_cancelled, 1); }

// max_tokens: how many messages to stream; 0 with the request id "hang": never answers.
static void generate(struct rpc_call *call, void *user)
{
    Fastdecode__GenerateRequest *request = rpc_call_unpack(call, &fastdecode__generate_request__descriptor);
    if (!request)
        return;
    if (!strcmp(rpc_call_request_id(call), "hang")) {
        rpc_call_on_cancel(call, on_cancel, NULL);
        return;
    }
    for (uint32_t i = 0; i < request->max_tokens; i++) {
        Fastdecode__GenerateEvent event = FASTDECODE__GENERATE_EVENT__INIT;
        event.index = i;
        if (rpc_call_send(call, &event.base))
            break;
    }
    rpc_call_end(call);
}

// The reply is as long as the payload, written in place.
static void metrics(struct rpc_call *call, void *user)
{
    size_t length;
    unsigned char *out;
    const unsigned char *in = rpc_message_payload(rpc_call_message(call), &length);
    struct rpc_buffer *buffer = rpc_reply_buffer(call, length, &out);
    assert_true((uintptr_t)in % 4 == 0 || length == 0);
    memcpy(out, in, length);
    rpc_call_reply_buffer(call, buffer);
}

static void watch(struct rpc_call *call, void *user)
{
    rpc_call_fail(call, STATUS_PERMISSION_DENIED, "not for %s", rpc_call_peer(call)->service);
}

static bool is_ready(void *user, char *reason, size_t reason_bytes)
{
    atomic_fetch_add(&questions, 1);
    return false; // alive all the same
}

static void fill_server(struct harness_server *server)
{
    static const struct rpc_method methods[] = {
        {&fastdecode__generator__descriptor, "Generate", generate, NULL},
        {&fastdecode__generator__descriptor, "Metrics", metrics, NULL},
        {&fastdecode__generator__descriptor, "Watch", watch, NULL},
    };
    atomic_store(&calls_cancelled, 0);
    atomic_store(&questions, 0);
    server->config.methods = methods;
    server->config.method_count = ARRAY_COUNT(methods);
    server->config.ready = is_ready;
    server->config.hello.service = "test";
    server->config.hello.incarnation = 7;
}

static void start_server(struct harness_server *server, const char *address)
{
    fill_server(server);
    harness_start(server, address);
}

// --- a client ---

static void on_up(void *user, const struct rpc_peer *peer)
{
    assert_string_equal(peer->service, "test");
    assert_int_equal(peer->incarnation, 7);
    harness_up(user, peer);
}

static void open_client_with(struct harness_client *client, const char *address, uint32_t window, uint32_t silence_ms)
{
    *client = (struct harness_client){
        .config = {.window = window, .silence_ms = silence_ms, .lent = true /* where memory was lent */, .on_up = on_up}};
    harness_open(client, address);
}

static void open_client(struct harness_client *client, const char *address, uint32_t window)
{
    open_client_with(client, address, window, 0);
}

struct result {
    uint32_t messages, next_index;
    size_t bytes;
    bool ended, in_order;
    enum status status;
    char error[256];
    struct rpc_message *kept;
};

static void on_event(void *user, struct rpc_message *message)
{
    struct result *result = user;
    Fastdecode__GenerateEvent *event = rpc_message_unpack(message, &fastdecode__generate_event__descriptor);
    assert_non_null(event);
    result->in_order = result->messages == 0 ? event->index == 0 : result->in_order && event->index == result->next_index;
    result->next_index = event->index + 1;
    result->messages++;
}

static void on_bytes(void *user, struct rpc_message *message)
{
    struct result *result = user;
    rpc_message_payload(message, &result->bytes);
    result->kept = rpc_message_keep(message);
    result->messages++;
}

static void on_end(void *user, enum status status, const char *error)
{
    struct result *result = user;
    assert_false(result->ended);
    result->ended = true;
    result->status = status;
    snprintf(result->error, sizeof result->error, "%s", error);
}

static enum status start_generate(struct harness_client *client, uint32_t count, const char *request_id, uint32_t timeout_ms,
                                  struct result *result, struct rpc_handle *handle)
{
    Fastdecode__GenerateRequest request = FASTDECODE__GENERATE_REQUEST__INIT;
    const struct rpc_options options = {.timeout_ms = timeout_ms, .request_id = request_id};
    const struct rpc_callbacks callbacks = {.on_message = on_event, .on_end = on_end, .streams = true};
    struct error error;
    request.max_tokens = count;
    memset(result, 0, sizeof *result);
    return rpc_call_start(client->channel, &fastdecode__generator__descriptor, "Generate", &request.base, &options, &callbacks,
                          result, handle, &error);
}

// --- tests ---

static void calls_over(const char *address)
{
    struct harness_server server = {0};
    struct harness_client client;
    struct result result = {0};
    unsigned char *payload;
    const struct rpc_callbacks bytes = {.on_message = on_bytes, .on_end = on_end};

    start_server(&server, address);
    open_client(&client, server.address, 0);
    HARNESS_UNTIL(&client, client.ups == 1);
    // many more messages than nng would queue: all arrive, in order
    assert_int_equal(start_generate(&client, 5000, "r1", 0, &result, NULL), STATUS_OK);
    HARNESS_UNTIL(&client, result.ended);
    assert_int_equal(result.status, STATUS_OK);
    assert_int_equal(result.messages, 5000);
    assert_true(result.in_order);
    for (size_t size = 0; size <= 300000; size = size * 3 + 1) { // in place, any size
        memset(&result, 0, sizeof result);
        uint32_t method = rpc_method_id(&fastdecode__generator__descriptor, "Metrics");
        struct rpc_buffer *buffer = rpc_request_buffer(client.channel, method, 0, size, &payload);
        for (size_t i = 0; i < size; i++)
            payload[i] = (unsigned char)(i * 7);
        assert_int_equal(rpc_call_start_buffer(client.channel, buffer, &bytes, &result, NULL), STATUS_OK);
        HARNESS_UNTIL(&client, result.ended);
        assert_int_equal(result.status, STATUS_OK);
        assert_int_equal(result.bytes, size);
        size_t length;
        const unsigned char *back = rpc_message_payload(result.kept, &length);
        for (size_t i = 0; i < size; i++)
            assert_int_equal(back[i], (unsigned char)(i * 7));
        rpc_message_free(result.kept);
    }
    harness_close(&client);
    harness_stop(&server);
}

static void calls_over_inproc(void **state) { calls_over("inproc://test-rpc"); }
static void calls_over_tcp(void **state) { calls_over("tcp://127.0.0.1:0"); }

static void calls_over_ipc(void **state)
{
    char address[128];
    snprintf(address, sizeof address, "ipc:///tmp/fd-test-rpc-%d.sock", (int)getpid());
    calls_over(address);
}

// As much as some messages need, and not all: the others lie where they did. All of it is given back.
static void calls_in_memory_that_was_lent(void **state)
{
    enum { BYTES = 192 << 10 };
    void *memory = aligned_alloc(4096, BYTES);

    assert_int_equal(rpc_lend_memory(memory, BYTES), STATUS_OK);
    calls_over_ipc(state);
    calls_over_tcp(state);
    assert_true(rpc_take_memory_back());
    free(memory);
}

static void a_status_comes_back_with_its_text(void **state)
{
    struct harness_server server = {0};
    struct harness_client client;
    struct result result = {0};
    Fastdecode__WatchRequest request = FASTDECODE__WATCH_REQUEST__INIT;
    const struct rpc_callbacks callbacks = {.on_message = on_event, .on_end = on_end};
    struct error error;
    start_server(&server, "inproc://test-status");
    open_client(&client, server.address, 0);
    HARNESS_UNTIL(&client, client.ups == 1);
    assert_int_equal(rpc_call_start(client.channel, &fastdecode__generator__descriptor, "Watch", &request.base, NULL, &callbacks,
                                    &result, NULL, &error),
                     STATUS_OK);
    HARNESS_UNTIL(&client, result.ended);
    assert_int_equal(result.status, STATUS_PERMISSION_DENIED);
    assert_string_equal(result.error, "not for client");
    harness_close(&client);
    harness_stop(&server);
}

static void cancelling_reaches_the_server(void **state)
{
    struct harness_server server = {0};
    struct harness_client client;
    struct result result;
    struct rpc_handle handle;
    start_server(&server, "inproc://test-cancel");
    open_client(&client, server.address, 0);
    HARNESS_UNTIL(&client, client.ups == 1);
    assert_int_equal(start_generate(&client, 0, "hang", 0, &result, &handle), STATUS_OK);
    rpc_cancel(client.channel, handle);
    assert_true(result.ended);
    assert_int_equal(result.status, STATUS_CANCELLED);
    HARNESS_UNTIL(&client, atomic_load(&calls_cancelled) == 1);
    rpc_cancel(client.channel, handle); // ended: ignored
    // a client that goes away cancels what it had
    assert_int_equal(start_generate(&client, 0, "hang", 0, &result, &handle), STATUS_OK);
    struct result other;
    assert_int_equal(start_generate(&client, 3, "r", 0, &other, NULL), STATUS_OK);
    HARNESS_UNTIL(&client, other.ended);
    rpc_channel_close(client.channel);
    assert_int_equal(result.status, STATUS_CANCELLED);
    client.channel = NULL;
    HARNESS_UNTIL(&client, atomic_load(&calls_cancelled) == 2);
    rpc_loop_close(client.loop);
    harness_stop(&server);
}

static void a_deadline_ends_a_call(void **state)
{
    struct harness_server server = {0};
    struct harness_client client;
    struct result result;
    start_server(&server, "inproc://test-deadline");
    open_client(&client, server.address, 0);
    HARNESS_UNTIL(&client, client.ups == 1);
    uint64_t began_us = clock_now_us();
    assert_int_equal(start_generate(&client, 0, "hang", 50, &result, NULL), STATUS_OK);
    HARNESS_UNTIL(&client, result.ended);
    assert_int_equal(result.status, STATUS_DEADLINE_EXCEEDED);
    assert_true(clock_now_us() - began_us >= 50000);
    HARNESS_UNTIL(&client, atomic_load(&calls_cancelled) == 1);
    harness_close(&client);
    harness_stop(&server);
}

static void windows_are_kept(void **state)
{
    struct harness_server server = {.config.window = 8};
    struct harness_client client;
    struct result results[16];
    start_server(&server, "inproc://test-window");
    open_client(&client, server.address, 4); // our own limit: refused here
    HARNESS_UNTIL(&client, client.ups == 1);
    for (int i = 0; i < 4; i++)
        assert_int_equal(start_generate(&client, 0, "hang", 0, &results[i], NULL), STATUS_OK);
    assert_int_equal(start_generate(&client, 0, "hang", 0, &results[4], NULL), STATUS_RESOURCE_EXHAUSTED);
    harness_close(&client);
    open_client(&client, server.address, 16); // beyond the server's: it closes the connection, calls end
    HARNESS_UNTIL(&client, client.ups == 1);
    for (int i = 0; i < 12; i++)
        assert_int_equal(start_generate(&client, 0, "hang", 0, &results[i], NULL), STATUS_OK);
    HARNESS_UNTIL(&client, client.downs == 1);
    for (int i = 0; i < 12; i++)
        assert_int_equal(results[i].status, STATUS_UNAVAILABLE);
    HARNESS_UNTIL(&client, client.ups == 2); // and connects again by itself
    harness_close(&client);
    harness_stop(&server);
}

static void peers_that_disagree_are_refused(void **state)
{
    static const char *const addresses[] = {"inproc://test-refuse", "tcp://127.0.0.1:0"};
    char said[300], from[80];

    for (uint32_t i = 0; i < ARRAY_COUNT(addresses); i++) {
        struct harness_server server = {.config.hello.fingerprint = 1234};
        struct harness_client client = {.config.hello.fingerprint = 99};
        start_server(&server, addresses[i]);
        harness_open(&client, server.address);
        kept_log_forget();
        HARNESS_UNTIL(&client, client.downs >= 4);
        assert_int_equal(client.ups, 0);
        assert_non_null(strstr(client.why, "do not agree"));
        snprintf(from, sizeof from, i ? " from=\"127.0.0.1:" : " from=\"process %d\" ", (int)getpid());
        snprintf(said, sizeof said, "at=%s", server.address);
        assert_int_equal(kept_log_count("RPC-REFUSED", said, from), 1); // however often it asks
        snprintf(said, sizeof said, "address=%s", server.address);
        assert_int_equal(kept_log_count("RPC-REFUSED", said, "do not agree"), 1);
        harness_close(&client);
        harness_stop(&server);
    }
}

// A server in a process of its own, that can be killed and stopped.
static pid_t fork_server(const char *address)
{
    pid_t pid = fork();
    if (pid == 0) { // nng does not survive a fork: start over
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl("/proc/self/exe", "test_rpc_calls", "serve", address, (char *)NULL);
        _exit(1);
    }
    return pid;
}

static void a_killed_server_ends_calls_and_comes_back(void **state)
{
    struct harness_client client;
    struct result result;
    char address[128];
    snprintf(address, sizeof address, "ipc:///tmp/fd-test-rpc-kill-%d.sock", (int)getpid());
    pid_t pid = fork_server(address);
    open_client(&client, address, 0);
    HARNESS_UNTIL(&client, client.ups == 1);
    assert_int_equal(start_generate(&client, 0, "hang", 0, &result, NULL), STATUS_OK);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    HARNESS_UNTIL(&client, result.ended);
    assert_int_equal(result.status, STATUS_UNAVAILABLE);
    assert_int_equal(start_generate(&client, 1, "r", 0, &result, NULL), STATUS_UNAVAILABLE);
    pid = fork_server(address);
    HARNESS_UNTIL(&client, client.ups == 2);
    assert_int_equal(start_generate(&client, 3, "r", 0, &result, NULL), STATUS_OK);
    HARNESS_UNTIL(&client, result.ended);
    assert_int_equal(result.messages, 3);
    harness_close(&client);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void a_stopped_server_loses_nothing(void **state)
{
    struct harness_client client;
    struct result result[64];
    char address[128];
    uint32_t ended = 0;
    snprintf(address, sizeof address, "ipc:///tmp/fd-test-rpc-stop-%d.sock", (int)getpid());
    pid_t pid = fork_server(address);
    open_client(&client, address, 64);
    HARNESS_UNTIL(&client, client.ups == 1);
    kill(pid, SIGSTOP);
    for (int i = 0; i < 64; i++)
        assert_int_equal(start_generate(&client, 200, "r", 0, &result[i], NULL), STATUS_OK);
    rpc_loop_run(client.loop, 100000, 0);
    kill(pid, SIGCONT);
    HARNESS_UNTIL(&client, (ended = 0, ({
                                for (int i = 0; i < 64; i++)
                                    ended += result[i].ended;
                            }),
                            ended == 64));
    for (int i = 0; i < 64; i++) {
        assert_int_equal(result[i].status, STATUS_OK);
        assert_int_equal(result[i].messages, 200);
        assert_true(result[i].in_order);
    }
    harness_close(&client);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

// Nobody ends the connection of a host that is gone. One whose peer has not said that it is alive is given up, and dialed until somebody answers.
static void a_silent_server_is_left(void **state)
{
    struct harness_client client;
    struct result result;
    char address[128];
    snprintf(address, sizeof address, "ipc:///tmp/fd-test-rpc-silent-%d.sock", (int)getpid());
    pid_t pid = fork_server(address);
    open_client_with(&client, address, 4, 400);
    HARNESS_UNTIL(&client, client.ups == 1);
    kill(pid, SIGSTOP);
    assert_int_equal(start_generate(&client, 1, "r", 0, &result, NULL), STATUS_OK);
    HARNESS_UNTIL(&client, result.ended);
    assert_int_equal(result.status, STATUS_UNAVAILABLE);
    assert_non_null(strstr(client.why, "alive"));
    const uint32_t ups = client.ups; // a slow machine may have left it before
    kill(pid, SIGCONT);
    HARNESS_UNTIL(&client, client.ups > ups);
    harness_close(&client);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

// A server that has nothing to say is asked, and its word is enough.
static void a_server_that_is_alive_is_kept(void **state)
{
    enum { SILENCE_MS = 2000, WINDOW = 2 };
    struct harness_server server = {.config.window = WINDOW};
    struct harness_client client;
    struct result results[WINDOW];
    start_server(&server, "tcp://127.0.0.1:0");
    open_client_with(&client, server.address, WINDOW, SILENCE_MS);
    HARNESS_UNTIL(&client, client.ups == 1);
    for (int i = 0; i + 1 < WINDOW; i++)
        assert_int_equal(start_generate(&client, 0, "hang", 0, &results[i], NULL), STATUS_OK);
    const uint64_t began_us = clock_now_us();
    HARNESS_UNTIL(&client, atomic_load(&questions) >= 3 && clock_now_us() - began_us > SILENCE_MS * 1500ull);
    assert_int_equal(client.downs, 0);
    assert_false(results[0].ended);
    harness_close(&client);
    harness_stop(&server);
}

// A client that stops reading: the server keeps what it sends, nothing is dropped, and others are served.
static void a_stopped_client_loses_nothing(void **state)
{
    struct harness_server server = {0};
    struct harness_client lazy, busy;
    struct result lazy_result, busy_result;
    start_server(&server, "tcp://127.0.0.1:0");
    open_client(&lazy, server.address, 0);
    open_client(&busy, server.address, 0);
    HARNESS_UNTIL(&lazy, lazy.ups == 1);
    HARNESS_UNTIL(&busy, busy.ups == 1);
    assert_int_equal(start_generate(&lazy, 20000, "r", 0, &lazy_result, NULL), STATUS_OK);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(start_generate(&busy, 500, "r", 0, &busy_result, NULL), STATUS_OK);
        HARNESS_UNTIL(&busy, busy_result.ended);
        assert_int_equal(busy_result.messages, 500);
    }
    HARNESS_UNTIL(&lazy, lazy_result.ended);
    assert_int_equal(lazy_result.messages, 20000);
    assert_true(lazy_result.in_order);
    harness_close(&lazy);
    harness_close(&busy);
    harness_stop(&server);
}

// As one whose host is gone: what runs for it is cancelled.
static void a_silent_client_is_left(void **state)
{
    struct harness_server server = {.config.silence_ms = 400};
    struct harness_client client;
    struct result hanging, streaming;
    start_server(&server, "tcp://127.0.0.1:0");
    open_client(&client, server.address, 0);
    HARNESS_UNTIL(&client, client.ups == 1);
    assert_int_equal(start_generate(&client, 0, "hang", 0, &hanging, NULL), STATUS_OK);
    assert_int_equal(start_generate(&client, 2 * RPC_UNACKED_MAX, "r", 0, &streaming, NULL), STATUS_OK);
    rpc_loop_run(client.loop, 0, 0); // sends them, and takes no answer
    AWAIT(usleep(1000), atomic_load(&calls_cancelled) == 1);
    HARNESS_UNTIL(&client, client.downs == 1);
    assert_int_equal(hanging.status, STATUS_UNAVAILABLE);
    HARNESS_UNTIL(&client, client.ups == 2);
    harness_close(&client);
    harness_stop(&server);
}

static int *timer_at;
static int timer_log[8];

static void note_1(void *arg) { *timer_at++ = 1; }
static void note_2(void *arg) { *timer_at++ = 2; }
static void note_3(void *arg) { *timer_at++ = 3; }

static void timers_run_in_order_unless_cancelled(void **state)
{
    struct rpc_loop *loop;
    timer_at = timer_log;
    assert_int_equal(rpc_loop_open(&loop), STATUS_OK);
    rpc_loop_timer(loop, 30000, note_3, NULL);
    rpc_loop_timer(loop, 10000, note_1, NULL);
    uint64_t cancelled = rpc_loop_timer(loop, 15000, note_1, NULL);
    rpc_loop_timer(loop, 20000, note_2, NULL);
    rpc_loop_cancel_timer(loop, cancelled);
    AWAIT(rpc_loop_run(loop, 100000, 0), timer_at == timer_log + 3);
    assert_int_equal(timer_log[0], 1);
    assert_int_equal(timer_log[1], 2);
    assert_int_equal(timer_log[2], 3);
    rpc_loop_close(loop);
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "serve")) {
        struct harness_server server = {0};
        fill_server(&server);
        server.config.addresses = (const char *const *)&argv[2];
        server.config.address_count = 1;
        harness_serve(&server); // on this thread: who stops the process stops it before it answers
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_server_ends_calls_and_comes_back),
        cmocka_unit_test(a_stopped_server_loses_nothing),
        cmocka_unit_test(a_silent_server_is_left),
        cmocka_unit_test(a_server_that_is_alive_is_kept),
        cmocka_unit_test(calls_over_inproc),
        cmocka_unit_test(calls_over_ipc),
        cmocka_unit_test(calls_in_memory_that_was_lent),
        cmocka_unit_test(calls_over_tcp),
        cmocka_unit_test(a_status_comes_back_with_its_text),
        cmocka_unit_test(cancelling_reaches_the_server),
        cmocka_unit_test(a_deadline_ends_a_call),
        cmocka_unit_test(windows_are_kept),
        cmocka_unit_test(peers_that_disagree_are_refused),
        cmocka_unit_test(a_stopped_client_loses_nothing),
        cmocka_unit_test(a_silent_client_is_left),
        cmocka_unit_test(timers_run_in_order_unless_cancelled),
    };
    kept_log_open();
    log_init("test", LOG_WARN, false);
    return kept_log_show(cmocka_run_group_tests_name("rpc calls", tests, NULL, NULL));
}
