/* bench_rpc.c: what a call costs: processor time of both sides and the round trip, of the tensors of 1, 32 and 128 rows of the
 * default model (q, k and v out, o back), over ipc, tcp and TLS; and what a message of a stream costs.
 *
 * The ceiling beside it, in the same pass, is as many bytes each way over a socket pair between two threads that do nothing
 * else and block in read(2). Usage: bench_rpc [seconds a measurement]
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/rpc/rpc.h"
#include "generate.pb-c.h"
#include "tests/bench/report.h"
#include "tests/integration/tls_rig.h"

enum { WAYS = 3, PASSES = 5, OUT_BYTES = (576 + 192 + 192) * 4, BACK_BYTES = 576 * 4 }; /* a row of SmolLM2-135M */

static double seconds = 0.1;

struct cost {
    double cpu_us, round_us;
};

static double cpu_us(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return 1e6 * (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* --- the ceiling --------------------------------------------------------------------------------------------------- */

/* False: the other side has closed. */
static bool move(int fd, bool in, unsigned char *bytes, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t count = in ? read(fd, bytes + done, length - done) : write(fd, bytes + done, length - done);
        assert_always(count >= 0);
        if (count == 0)
            return false;
        done += (size_t)count;
    }
    return true;
}

struct echo {
    int fd;
    size_t out_bytes, back_bytes;
};

static void *echo_all(void *arg)
{
    struct echo *echo = arg;
    unsigned char *buffer = calloc(1, echo->out_bytes);
    while (move(echo->fd, true, buffer, echo->out_bytes))
        move(echo->fd, false, buffer, echo->back_bytes);
    free(buffer);
    return NULL;
}

static struct cost measure_ceiling(size_t out_bytes, size_t back_bytes)
{
    int fds[2];
    struct echo echo = {.out_bytes = out_bytes, .back_bytes = back_bytes};
    unsigned char *buffer = calloc(1, out_bytes);
    uint64_t began_us, rounds = 0, until_us;
    pthread_t thread;

    assert_always(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    echo.fd = fds[1];
    pthread_create(&thread, NULL, echo_all, &echo);
    double cpu = cpu_us();
    began_us = clock_now_us();
    until_us = began_us + (uint64_t)(seconds * 1e6);
    for (; clock_now_us() < until_us; rounds++) {
        move(fds[0], false, buffer, out_bytes);
        move(fds[0], true, buffer, back_bytes);
    }
    struct cost cost = {(cpu_us() - cpu) / (double)rounds, (double)(clock_now_us() - began_us) / (double)rounds};
    shutdown(fds[0], SHUT_RDWR);
    pthread_join(thread, NULL);
    free(buffer);
    close(fds[0]);
    close(fds[1]);
    return cost;
}

/* --- calls --------------------------------------------------------------------------------------------------------- */

struct server {
    pthread_t thread;
    const char *listen;
    char address[256];
    struct rpc_security security; /* of either end */
    atomic_bool ready, stop;
};

/* As a KV worker, but for the attention: the tensors lie where they came, and where they go from. */
static void echo_tensor(struct rpc_call *call, void *user)
{
    size_t length;
    unsigned char *out;
    const unsigned char *in = rpc_message_payload(rpc_call_message(call), &length);
    size_t back_bytes = length / OUT_BYTES * BACK_BYTES;
    struct rpc_buffer *buffer = rpc_reply_buffer(call, back_bytes, &out);
    (void)user;
    out[0] = in[0];
    rpc_call_reply_buffer(call, buffer);
}

static void stream(struct rpc_call *call, void *user)
{
    const Fastdecode__GenerateRequest *request = rpc_call_unpack(call, &fastdecode__generate_request__descriptor);
    Fastdecode__GenerateEvent event = FASTDECODE__GENERATE_EVENT__INIT;
    (void)user;
    for (; request && event.index < request->max_tokens; event.index++)
        if (rpc_call_send(call, &event.base))
            break;
    rpc_call_end(call);
}

static void *serve(void *arg)
{
    struct server *server = arg;
    const struct rpc_method methods[] = {{&fastdecode__generator__descriptor, "Metrics", echo_tensor, NULL},
                                         {&fastdecode__generator__descriptor, "Generate", stream, NULL}};
    const struct rpc_server_config config = {.addresses = &server->listen,
                                             .address_count = 1,
                                             .hello = {.service = "scheduler"},
                                             .methods = methods,
                                             .method_count = ARRAY_COUNT(methods)};
    struct rpc_server *rpc;
    struct rpc_loop *loop;
    struct error error;

    assert_always(rpc_loop_open(&loop) == STATUS_OK);
    rpc_loop_set_security(loop, &server->security);
    assert_always(rpc_server_open(loop, &config, &rpc, &error) == STATUS_OK);
    snprintf(server->address, sizeof server->address, "%s", rpc_server_address(rpc, 0));
    atomic_store(&server->ready, true);
    while (!atomic_load(&server->stop))
        rpc_loop_run(loop, 10000, 0);
    rpc_server_close(rpc);
    rpc_loop_close(loop);
    return NULL;
}

static uint32_t messages, ends;

static void on_message(void *user, struct rpc_message *message)
{
    (void)user, (void)message;
    messages++;
}

static void on_end(void *user, enum status status, const char *error)
{
    (void)user, (void)error;
    assert_always(status == STATUS_OK);
    ends++;
}

static const struct rpc_callbacks callbacks = {.on_message = on_message, .on_end = on_end, .streams = true};

static void call_tensor(struct rpc_loop *loop, struct rpc_channel *channel, size_t bytes)
{
    unsigned char *payload;
    const uint32_t method = rpc_method_id(&fastdecode__generator__descriptor, "Metrics");
    struct rpc_buffer *buffer = rpc_request_buffer(channel, method, 0, bytes, &payload);
    uint32_t before = ends;

    payload[0] = 1;
    assert_always(rpc_call_start_buffer(channel, buffer, &callbacks, NULL, NULL) == STATUS_OK);
    while (ends == before)
        rpc_loop_run(loop, 1000000, 0);
}

struct client {
    struct server server;
    struct rpc_security security;
    struct rpc_loop *loop;
    struct rpc_channel *channel;
};

/* ca: of TLS; NULL: none */
static void client_open(struct client *client, const char *listen, const struct rig_ca *ca)
{
    struct error error;

    *client = (struct client){.server.listen = listen};
    if (ca) {
        client->server.security = rig_security(rig_folder(ca, RPC_ROLE_SCHEDULER));
        client->security = rig_security(rig_folder(ca, RPC_ROLE_GATEWAY));
    }
    pthread_create(&client->server.thread, NULL, serve, &client->server);
    while (!atomic_load(&client->server.ready))
        usleep(1000);
    const struct rpc_channel_config config = {
        .address = client->server.address, .hello = {.service = "gateway"}, .peer_roles = RPC_IS_SCHEDULER};
    assert_always(rpc_loop_open(&client->loop) == STATUS_OK);
    rpc_loop_set_security(client->loop, &client->security);
    assert_always(rpc_channel_open(client->loop, &config, &client->channel, &error) == STATUS_OK);
    while (!rpc_channel_is_up(client->channel))
        rpc_loop_run(client->loop, 10000, 0);
}

static void client_close(struct client *client)
{
    rpc_channel_close(client->channel);
    rpc_loop_close(client->loop);
    atomic_store(&client->server.stop, true);
    pthread_join(client->server.thread, NULL);
    rpc_security_close(&client->security);
    rpc_security_close(&client->server.security);
}

static struct cost measure_calls(struct client *client, size_t bytes)
{
    uint64_t calls = 0, began_us, until_us;

    for (int i = 0; i < 20; i++)
        call_tensor(client->loop, client->channel, bytes);
    double cpu = cpu_us();
    began_us = clock_now_us();
    until_us = began_us + (uint64_t)(seconds * 1e6);
    for (; clock_now_us() < until_us; calls++)
        call_tensor(client->loop, client->channel, bytes);
    return (struct cost){(cpu_us() - cpu) / (double)calls, (double)(clock_now_us() - began_us) / (double)calls};
}

static double measure_stream(struct client *client)
{
    Fastdecode__GenerateRequest request = FASTDECODE__GENERATE_REQUEST__INIT;
    uint32_t before = ends;
    struct error error;
    double cpu = cpu_us();

    request.max_tokens = RPC_QUEUE_MAX / 4; /* many more would have to wait for acknowledgements */
    messages = 0;
    assert_always(rpc_call_start(client->channel, &fastdecode__generator__descriptor, "Generate", &request.base, NULL, &callbacks,
                                 NULL, NULL, &error) == STATUS_OK);
    while (ends == before)
        rpc_loop_run(client->loop, 1000000, 0);
    return (cpu_us() - cpu) / messages;
}

int main(int argc, char **argv)
{
    static const uint32_t rows[] = {1, 32, 128};
    static struct report_passes cpu[WAYS][ARRAY_COUNT(rows)], round[WAYS][ARRAY_COUNT(rows)];
    static const char *const names[] = {"ipc", "tcp", "tls"};
    double stream_us[WAYS][PASSES];
    struct client clients[WAYS];
    struct rig_ca ca;
    char ipc[64], name[80];

    log_init("bench", LOG_ERROR, false);
    if (argc > 1)
        seconds = atof(argv[1]);
    snprintf(ipc, sizeof ipc, "ipc:///tmp/fd-bench-rpc-%d.sock", (int)getpid());
    rig_ca_open(&ca);
    client_open(&clients[0], ipc, NULL);
    client_open(&clients[1], "tcp://127.0.0.1:0", NULL);
    client_open(&clients[2], "tls+tcp://127.0.0.1:0", &ca);
    for (uint32_t pass = 0; pass < PASSES; pass++)
        for (uint32_t c = 0; c < WAYS; c++) {
            for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
                struct cost least = measure_ceiling(rows[i] * (size_t)OUT_BYTES, rows[i] * (size_t)BACK_BYTES);
                struct cost cost = measure_calls(&clients[c], rows[i] * (size_t)OUT_BYTES);
                report_pass(&cpu[c][i], cost.cpu_us, least.cpu_us);
                report_pass(&round[c][i], cost.round_us, least.round_us);
            }
            stream_us[c][pass] = measure_stream(&clients[c]);
        }
    for (uint32_t c = 0; c < WAYS; c++) {
        for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
            snprintf(name, sizeof name, "processor time of a call over %s, %u rows", names[c], rows[i]);
            report_figure_below(name, "us", &cpu[c][i], 0);
            snprintf(name, sizeof name, "round trip of a call over %s, %u rows", names[c], rows[i]);
            report_figure_below(name, "us", &round[c][i], 0);
        }
        snprintf(name, sizeof name, "processor time of a stream's message over %s", names[c]);
        report_value(name, "us", report_median(stream_us[c], PASSES));
        client_close(&clients[c]);
    }
    rig_ca_close(&ca);
    return 0;
}
