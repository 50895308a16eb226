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

#include "common/base/clock.h"
#include "common/rpc/rpc.h"
#include "generate.pb-c.h"
#include "tests/cmocka.h"
#include "tests/integration/await.h"

// --- a server on a thread of its own ---

struct test_server {
    pthread_t thread;
    struct rpc_loop *loop;
    struct rpc_server *server;
    char address[256];
    atomic_bool ready, stop;
    atomic_int cancelled, questions;
    uint64_t fingerprint;
    uint32_t window, silence_ms;
};

static void on_cancel(void *user)
{
    struct test_server *server = user;
    atomic_fetch_add(&server->cancelled, 1);
}

// max_tokens: how many messages to stream; 0 with the request id "hang": never answers.
static void generate(struct rpc_call *call, void *user)
{
    Fastdecode__GenerateRequest *request = rpc_call_unpack(call, &fastdecode__generate_request__descriptor);
    if (!request)
        return;
    if (!strcmp(rpc_call_request_id(call), "hang")) {
        rpc_call_on_cancel(call, on_cancel, user);
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
    (void)user;
    struct rpc_buffer *buffer = rpc_reply_buffer(call, length, &out);
    assert_true((uintptr_t)in % 4 == 0 || length == 0);
    memcpy(out, in, length);
    rpc_call_reply_buffer(call, buffer);
}

static void watch(struct rpc_call *call, void *user)
{
    (void)user;
    rpc_call_fail(call, STATUS_PERMISSION_DENIED, "not for %s", rpc_call_peer(call)->service);
}

static bool is_ready(void *user, char *reason, size_t reason_bytes)
{
    struct test_server *server = user;
    (void)reason, (void)reason_bytes;
    atomic_fetch_add(&server->questions, 1);
    return false; // alive all the same
}

static void *serve(void *arg)
{
    struct test_server *server = arg;
    const struct rpc_method methods[] = {
        {&fastdecode__generator__descriptor, "Generate", generate, server},
        {&fastdecode__generator__descriptor, "Metrics", metrics, server},
        {&fastdecode__generator__descriptor, "Watch", watch, server},
    };
    const char *address = server->address;
    const struct rpc_server_config config = {
        .addresses = &address,
        .address_count = 1,
        .methods = methods,
        .method_count = 3,
        .window = server->window,
        .silence_ms = server->silence_ms,
        .ready = is_ready,
        .user = server,
        .hello = {.service = "test", .incarnation = 7, .fingerprint = server->fingerprint},
    };
    struct error error;
    char own[256];

    snprintf(own, sizeof own, "%s", server->address);
    address = own;
    assert_always(rpc_loop_open(&server->loop) == STATUS_OK);
    if (rpc_server_open(server->loop, &config, &server->server, &error)) {
        fprintf(stderr, "%s\n", error.text);
        abort();
    }
    snprintf(server->address, sizeof server->address, "%s", rpc_server_address(server->server, 0));
    atomic_store(&server->ready, true);
    while (!atomic_load(&server->stop))
        rpc_loop_run(server->loop, 10000, 0);
    rpc_server_close(server->server);
    rpc_loop_close(server->loop);
    return NULL;
}

static void start_server(struct test_server *server, const char *address)
{
    snprintf(server->address, sizeof server->address, "%s", address);
    pthread_create(&server->thread, NULL, serve, server);
    while (!atomic_load(&server->ready))
        usleep(1000);
}

static void stop_server(struct test_server *server)
{
    atomic_store(&server->stop, true);
    pthread_join(server->thread, NULL);
}

// --- a client ---

struct client {
    struct rpc_loop *loop;
    struct rpc_channel *channel;
    int ups, downs;
    char why[256];
};

static void on_up(void *user, const struct rpc_peer *peer)
{
    struct client *client = user;
    assert_string_equal(peer->service, "test");
    assert_int_equal(peer->incarnation, 7);
    client->ups++;
}

static void on_down(void *user, const char *why)
{
    struct client *client = user;
    snprintf(client->why, sizeof client->why, "%s", why);
    client->downs++;
}

static void open_client_with(struct client *client, const char *address, uint32_t window, uint32_t silence_ms)
{
    struct error error;
    const struct rpc_channel_config config = {
        .address = address,
        .hello = {.service = "client"},
        .window = window,
        .silence_ms = silence_ms,
        .lent = true, // where memory was lent
        .on_up = on_up,
        .on_down = on_down,
        .user = client,
    };
    memset(client, 0, sizeof *client);
    assert_int_equal(rpc_loop_open(&client->loop), STATUS_OK);
    assert_int_equal(rpc_channel_open(client->loop, &config, &client->channel, &error), STATUS_OK);
}

static void open_client(struct client *client, const char *address, uint32_t window)
{
    open_client_with(client, address, window, 0);
}

#define RUN_UNTIL(client, condition) AWAIT(rpc_loop_run((client)->loop, 10000, 0), condition)

static void close_client(struct client *client)
{
    rpc_channel_close(client->channel);
    rpc_loop_close(client->loop);
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

static enum status start_generate(struct client *client, uint32_t count, const char *request_id, uint32_t timeout_ms,
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
    struct test_server server = {0};
    struct client client;
    struct result result = {0};
    unsigned char *payload;
    const struct rpc_callbacks bytes = {.on_message = on_bytes, .on_end = on_end};

    start_server(&server, address);
    open_client(&client, server.address, 0);
    RUN_UNTIL(&client, client.ups == 1);
    // many more messages than nng would queue: all arrive, in order
    assert_int_equal(start_generate(&client, 5000, "r1", 0, &result, NULL), STATUS_OK);
    RUN_UNTIL(&client, result.ended);
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
        RUN_UNTIL(&client, result.ended);
        assert_int_equal(result.status, STATUS_OK);
        assert_int_equal(result.bytes, size);
        size_t length;
        const unsigned char *back = rpc_message_payload(result.kept, &length);
        for (size_t i = 0; i < size; i++)
            assert_int_equal(back[i], (unsigned char)(i * 7));
        rpc_message_free(result.kept);
    }
    close_client(&client);
    stop_server(&server);
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
    struct test_server server = {0};
    struct client client;
    struct result result = {0};
    Fastdecode__WatchRequest request = FASTDECODE__WATCH_REQUEST__INIT;
    const struct rpc_callbacks callbacks = {.on_message = on_event, .on_end = on_end};
    struct error error;
    start_server(&server, "inproc://test-status");
    open_client(&client, server.address, 0);
    RUN_UNTIL(&client, client.ups == 1);
    assert_int_equal(rpc_call_start(client.channel, &fastdecode__generator__descriptor, "Watch", &request.base, NULL, &callbacks,
                                    &result, NULL, &error),
                     STATUS_OK);
    RUN_UNTIL(&client, result.ended);
    assert_int_equal(result.status, STATUS_PERMISSION_DENIED);
    assert_string_equal(result.error, "not for client");
    close_client(&client);
    stop_server(&server);
}

static void cancelling_reaches_the_server(void **state)
{
    struct test_server server = {0};
    struct client client;
    struct result result;
    struct rpc_handle handle;
    start_server(&server, "inproc://test-cancel");
    open_client(&client, server.address, 0);
    RUN_UNTIL(&client, client.ups == 1);
    assert_int_equal(start_generate(&client, 0, "hang", 0, &result, &handle), STATUS_OK);
    rpc_cancel(client.channel, handle);
    assert_true(result.ended);
    assert_int_equal(result.status, STATUS_CANCELLED);
    RUN_UNTIL(&client, atomic_load(&server.cancelled) == 1);
    rpc_cancel(client.channel, handle); // ended: ignored
    // a client that goes away cancels what it had
    assert_int_equal(start_generate(&client, 0, "hang", 0, &result, &handle), STATUS_OK);
    struct result other;
    assert_int_equal(start_generate(&client, 3, "r", 0, &other, NULL), STATUS_OK);
    RUN_UNTIL(&client, other.ended);
    rpc_channel_close(client.channel);
    assert_int_equal(result.status, STATUS_CANCELLED);
    client.channel = NULL;
    RUN_UNTIL(&client, atomic_load(&server.cancelled) == 2);
    rpc_loop_close(client.loop);
    stop_server(&server);
}

static void a_deadline_ends_a_call(void **state)
{
    struct test_server server = {0};
    struct client client;
    struct result result;
    start_server(&server, "inproc://test-deadline");
    open_client(&client, server.address, 0);
    RUN_UNTIL(&client, client.ups == 1);
    uint64_t began_us = clock_now_us();
    assert_int_equal(start_generate(&client, 0, "hang", 50, &result, NULL), STATUS_OK);
    RUN_UNTIL(&client, result.ended);
    assert_int_equal(result.status, STATUS_DEADLINE_EXCEEDED);
    assert_true(clock_now_us() - began_us >= 50000);
    RUN_UNTIL(&client, atomic_load(&server.cancelled) == 1);
    close_client(&client);
    stop_server(&server);
}

static void windows_are_kept(void **state)
{
    struct test_server server = {.window = 8};
    struct client client;
    struct result results[16];
    start_server(&server, "inproc://test-window");
    open_client(&client, server.address, 4); // our own limit: refused here
    RUN_UNTIL(&client, client.ups == 1);
    for (int i = 0; i < 4; i++)
        assert_int_equal(start_generate(&client, 0, "hang", 0, &results[i], NULL), STATUS_OK);
    assert_int_equal(start_generate(&client, 0, "hang", 0, &results[4], NULL), STATUS_RESOURCE_EXHAUSTED);
    close_client(&client);
    open_client(&client, server.address, 16); // beyond the server's: it closes the connection, calls end
    RUN_UNTIL(&client, client.ups == 1);
    for (int i = 0; i < 12; i++)
        assert_int_equal(start_generate(&client, 0, "hang", 0, &results[i], NULL), STATUS_OK);
    RUN_UNTIL(&client, client.downs == 1);
    for (int i = 0; i < 12; i++)
        assert_int_equal(results[i].status, STATUS_UNAVAILABLE);
    RUN_UNTIL(&client, client.ups == 2); // and connects again by itself
    close_client(&client);
    stop_server(&server);
}

static void peers_that_disagree_are_refused(void **state)
{
    struct test_server server = {.fingerprint = 1234};
    struct client client = {0};
    struct error error;
    const struct rpc_channel_config config = {
        .address = "inproc://test-refuse",
        .hello = {.service = "client", .fingerprint = 99},
        .on_up = on_up,
        .on_down = on_down,
        .user = &client,
    };
    start_server(&server, "inproc://test-refuse");
    assert_int_equal(rpc_loop_open(&client.loop), STATUS_OK);
    assert_int_equal(rpc_channel_open(client.loop, &config, &client.channel, &error), STATUS_OK);
    RUN_UNTIL(&client, client.downs >= 1);
    assert_int_equal(client.ups, 0);
    assert_non_null(strstr(client.why, "do not agree"));
    close_client(&client);
    stop_server(&server);
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
    struct client client;
    struct result result;
    char address[128];
    snprintf(address, sizeof address, "ipc:///tmp/fd-test-rpc-kill-%d.sock", (int)getpid());
    pid_t pid = fork_server(address);
    open_client(&client, address, 0);
    RUN_UNTIL(&client, client.ups == 1);
    assert_int_equal(start_generate(&client, 0, "hang", 0, &result, NULL), STATUS_OK);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    RUN_UNTIL(&client, result.ended);
    assert_int_equal(result.status, STATUS_UNAVAILABLE);
    assert_int_equal(start_generate(&client, 1, "r", 0, &result, NULL), STATUS_UNAVAILABLE);
    pid = fork_server(address);
    RUN_UNTIL(&client, client.ups == 2);
    assert_int_equal(start_generate(&client, 3, "r", 0, &result, NULL), STATUS_OK);
    RUN_UNTIL(&client, result.ended);
    assert_int_equal(result.messages, 3);
    close_client(&client);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void a_stopped_server_loses_nothing(void **state)
{
    struct client client;
    struct result result[64];
    char address[128];
    uint32_t ended = 0;
    snprintf(address, sizeof address, "ipc:///tmp/fd-test-rpc-stop-%d.sock", (int)getpid());
    pid_t pid = fork_server(address);
    open_client(&client, address, 64);
    RUN_UNTIL(&client, client.ups == 1);
    kill(pid, SIGSTOP);
    for (int i = 0; i < 64; i++)
        assert_int_equal(start_generate(&client, 200, "r", 0, &result[i], NULL), STATUS_OK);
    rpc_loop_run(client.loop, 100000, 0);
    kill(pid, SIGCONT);
    RUN_UNTIL(&client, (ended = 0, ({
                            for (int i = 0; i < 64; i++)
                                ended += result[i].ended;
                        }),
                        ended == 64));
    for (int i = 0; i < 64; i++) {
        assert_int_equal(result[i].status, STATUS_OK);
        assert_int_equal(result[i].messages, 200);
        assert_true(result[i].in_order);
    }
    close_client(&client);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

// Nobody ends the connection of a host that is gone. One whose peer has not said that it is alive is given up, and dialed until somebody answers.
static void a_silent_server_is_left(void **state)
{
    struct client client;
    struct result result;
    char address[128];
    snprintf(address, sizeof address, "ipc:///tmp/fd-test-rpc-silent-%d.sock", (int)getpid());
    pid_t pid = fork_server(address);
    open_client_with(&client, address, 4, 400);
    RUN_UNTIL(&client, client.ups == 1);
    kill(pid, SIGSTOP);
    assert_int_equal(start_generate(&client, 1, "r", 0, &result, NULL), STATUS_OK);
    RUN_UNTIL(&client, result.ended);
    assert_int_equal(result.status, STATUS_UNAVAILABLE);
    assert_non_null(strstr(client.why, "alive"));
    const int ups = client.ups; // a slow machine may have left it before
    kill(pid, SIGCONT);
    RUN_UNTIL(&client, client.ups > ups);
    close_client(&client);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

// A server that has nothing to say is asked, and its word is enough.
static void a_server_that_is_alive_is_kept(void **state)
{
    enum { SILENCE_MS = 2000, WINDOW = 2 };
    struct test_server server = {.window = WINDOW};
    struct client client;
    struct result results[WINDOW];
    start_server(&server, "tcp://127.0.0.1:0");
    open_client_with(&client, server.address, WINDOW, SILENCE_MS);
    RUN_UNTIL(&client, client.ups == 1);
    for (int i = 0; i + 1 < WINDOW; i++)
        assert_int_equal(start_generate(&client, 0, "hang", 0, &results[i], NULL), STATUS_OK);
    const uint64_t began_us = clock_now_us();
    RUN_UNTIL(&client, atomic_load(&server.questions) >= 3 && clock_now_us() - began_us > SILENCE_MS * 1500ull);
    assert_int_equal(client.downs, 0);
    assert_false(results[0].ended);
    close_client(&client);
    stop_server(&server);
}

// A client that stops reading: the server keeps what it sends, nothing is dropped, and others are served.
static void a_stopped_client_loses_nothing(void **state)
{
    struct test_server server = {0};
    struct client lazy, busy;
    struct result lazy_result, busy_result;
    start_server(&server, "tcp://127.0.0.1:0");
    open_client(&lazy, server.address, 0);
    open_client(&busy, server.address, 0);
    RUN_UNTIL(&lazy, lazy.ups == 1);
    RUN_UNTIL(&busy, busy.ups == 1);
    assert_int_equal(start_generate(&lazy, 20000, "r", 0, &lazy_result, NULL), STATUS_OK);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(start_generate(&busy, 500, "r", 0, &busy_result, NULL), STATUS_OK);
        RUN_UNTIL(&busy, busy_result.ended);
        assert_int_equal(busy_result.messages, 500);
    }
    RUN_UNTIL(&lazy, lazy_result.ended);
    assert_int_equal(lazy_result.messages, 20000);
    assert_true(lazy_result.in_order);
    close_client(&lazy);
    close_client(&busy);
    stop_server(&server);
}

// As one whose host is gone: what runs for it is cancelled.
static void a_silent_client_is_left(void **state)
{
    struct test_server server = {.silence_ms = 400};
    struct client client;
    struct result hanging, streaming;
    start_server(&server, "tcp://127.0.0.1:0");
    open_client(&client, server.address, 0);
    RUN_UNTIL(&client, client.ups == 1);
    assert_int_equal(start_generate(&client, 0, "hang", 0, &hanging, NULL), STATUS_OK);
    assert_int_equal(start_generate(&client, 2 * RPC_UNACKED_MAX, "r", 0, &streaming, NULL), STATUS_OK);
    rpc_loop_run(client.loop, 0, 0); // sends them, and takes no answer
    AWAIT(usleep(1000), atomic_load(&server.cancelled) == 1);
    RUN_UNTIL(&client, client.downs == 1);
    assert_int_equal(hanging.status, STATUS_UNAVAILABLE);
    RUN_UNTIL(&client, client.ups == 2);
    close_client(&client);
    stop_server(&server);
}

static int *timer_at;
static int timer_log[8];

static void note_1(void *arg)
{
    (void)arg;
    *timer_at++ = 1;
}
static void note_2(void *arg)
{
    (void)arg;
    *timer_at++ = 2;
}
static void note_3(void *arg)
{
    (void)arg;
    *timer_at++ = 3;
}

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
        struct test_server server = {0};
        snprintf(server.address, sizeof server.address, "%s", argv[2]);
        serve(&server);
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
    return cmocka_run_group_tests_name("rpc calls", tests, NULL, NULL);
}
