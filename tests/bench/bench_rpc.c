/* bench_rpc.c: what a call costs: round trip and CPU time of both sides, unary with a tensor each way, and streams.
 *
 * The ceiling beside it is a ping-pong of as many bytes over a socket pair between two threads that do nothing else.
 * Usage: bench_rpc [seconds a line]
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

static double seconds = 0.5;

static double cpu_us(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return 1e6 * (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* --- the ceiling --------------------------------------------------------------------------------------------------- */

static void move(int fd, bool in, unsigned char *bytes, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t count = in ? read(fd, bytes + done, length - done) : write(fd, bytes + done, length - done);
        assert_always(count > 0);
        done += (size_t)count;
    }
}

struct echo {
    int fd;
    size_t bytes;
    uint64_t rounds;
};

static void *echo_all(void *arg)
{
    struct echo *echo = arg;
    unsigned char *buffer = malloc(echo->bytes);
    for (uint64_t i = 0; i < echo->rounds; i++) {
        move(echo->fd, true, buffer, echo->bytes);
        move(echo->fd, false, buffer, echo->bytes);
    }
    free(buffer);
    return NULL;
}

static void bench_ceiling(size_t bytes)
{
    int fds[2];
    struct echo echo = {.bytes = bytes, .rounds = 5000};
    unsigned char *buffer = calloc(1, bytes);
    pthread_t thread;

    assert_always(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    echo.fd = fds[1];
    double cpu = cpu_us();
    uint64_t began_us = clock_now_us();
    pthread_create(&thread, NULL, echo_all, &echo);
    for (uint64_t i = 0; i < echo.rounds; i++) {
        move(fds[0], false, buffer, bytes);
        move(fds[0], true, buffer, bytes);
    }
    pthread_join(thread, NULL);
    printf("%-28s %8zu bytes  %8.1f us a call  %8.1f us CPU\n", "ceiling: socket pair", bytes,
           (double)(clock_now_us() - began_us) / (double)echo.rounds, (cpu_us() - cpu) / (double)echo.rounds);
    free(buffer);
    close(fds[0]);
    close(fds[1]);
}

/* --- calls --------------------------------------------------------------------------------------------------------- */

struct server {
    pthread_t thread;
    const char *listen;
    char address[256];
    uint64_t spin_us;
    atomic_bool ready, stop;
};

static void echo_tensor(struct rpc_call *call, void *user)
{
    size_t length;
    unsigned char *out;
    const unsigned char *in = rpc_message_payload(rpc_call_message(call), &length);
    struct rpc_buffer *buffer = rpc_reply_buffer(call, length, &out);
    (void)user;
    memcpy(out, in, length);
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
                                             .hello = {.service = "bench"},
                                             .methods = methods,
                                             .method_count = ARRAY_COUNT(methods)};
    struct rpc_server *rpc;
    struct rpc_loop *loop;
    struct error error;

    assert_always(rpc_loop_open(&loop) == STATUS_OK && rpc_server_open(loop, &config, &rpc, &error) == STATUS_OK);
    snprintf(server->address, sizeof server->address, "%s", rpc_server_address(rpc, 0));
    atomic_store(&server->ready, true);
    while (!atomic_load(&server->stop))
        rpc_loop_run(loop, 10000, server->spin_us);
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

static const struct rpc_callbacks callbacks = {on_message, on_end};

static void call_tensor(struct rpc_loop *loop, struct rpc_channel *channel, uint32_t method, size_t bytes, uint64_t spin_us)
{
    unsigned char *payload;
    struct rpc_buffer *buffer = rpc_request_buffer(channel, method, 0, bytes, &payload);
    uint32_t before = ends;

    memset(payload, 1, bytes);
    assert_always(rpc_call_start_buffer(channel, buffer, &callbacks, NULL, NULL) == STATUS_OK);
    while (ends == before)
        rpc_loop_run(loop, 1000000, spin_us);
}

static void bench_address(const char *listen, size_t bytes, uint64_t spin_us)
{
    struct server server = {.listen = listen, .spin_us = spin_us};
    const uint32_t method = rpc_method_id(&fastdecode__generator__descriptor, "Metrics");
    struct rpc_channel *channel;
    struct rpc_loop *loop;
    struct error error;
    uint64_t calls = 0, began_us;
    char name[64];

    pthread_create(&server.thread, NULL, serve, &server);
    while (!atomic_load(&server.ready))
        usleep(1000);
    const struct rpc_channel_config config = {.address = server.address, .hello = {.service = "bench"}};
    assert_always(rpc_loop_open(&loop) == STATUS_OK && rpc_channel_open(loop, &config, &channel, &error) == STATUS_OK);
    while (!rpc_channel_is_up(channel))
        rpc_loop_run(loop, 10000, 0);
    for (int i = 0; i < 100; i++)
        call_tensor(loop, channel, method, bytes, spin_us);
    double cpu = cpu_us();
    began_us = clock_now_us();
    for (; clock_now_us() - began_us < (uint64_t)(seconds * 1e6); calls++)
        call_tensor(loop, channel, method, bytes, spin_us);
    snprintf(name, sizeof name, "%.*s%s", (int)strcspn(listen, ":"), listen, spin_us ? ", spinning" : "");
    printf("%-28s %8zu bytes  %8.1f us a call  %8.1f us CPU\n", name, bytes, (double)(clock_now_us() - began_us) / (double)calls,
           (cpu_us() - cpu) / (double)calls);
    Fastdecode__GenerateRequest request = FASTDECODE__GENERATE_REQUEST__INIT;
    request.max_tokens = RPC_QUEUE_MAX / 2; /* more than that would have to wait for acknowledgements */
    messages = 0;
    uint32_t before = ends;
    cpu = cpu_us();
    began_us = clock_now_us();
    assert_always(bytes > 64 || rpc_call_start(channel, &fastdecode__generator__descriptor, "Generate", &request.base, NULL,
                                               &callbacks, NULL, NULL, &error) == STATUS_OK);
    while (bytes <= 64 && ends == before)
        rpc_loop_run(loop, 1000000, spin_us);
    if (bytes <= 64)
        printf("%-28s %8s        %8.1f us a message %5.1f us CPU\n", name, "stream", (double)(clock_now_us() - began_us) / messages,
               (cpu_us() - cpu) / messages);
    rpc_channel_close(channel);
    rpc_loop_close(loop);
    atomic_store(&server.stop, true);
    pthread_join(server.thread, NULL);
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {64, 20 << 10, 1 << 20};
    char ipc[64];

    log_init("bench", LOG_ERROR, false);
    if (argc > 1)
        seconds = atof(argv[1]);
    snprintf(ipc, sizeof ipc, "ipc:///tmp/fd-bench-rpc-%d.sock", (int)getpid());
    for (size_t i = 0; i < ARRAY_COUNT(sizes); i++) {
        bench_ceiling(sizes[i]);
        bench_address("inproc://bench", sizes[i], 0);
        bench_address(ipc, sizes[i], 0);
        bench_address("tcp://127.0.0.1:0", sizes[i], 0);
        bench_address(ipc, sizes[i], 100);
    }
    return 0;
}
