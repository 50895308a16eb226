// test_rpc_memory.c: what is sized by peers fails without memory and costs no more than a connection; what is the program's own goes on.
// Large calloc() and realloc() calls fail here when a test says so (not under sanitizers, which have their own).
#include <stdlib.h>

#include "common/base/log.h"
#include "tests/cmocka.h"
#include "tests/integration/rpc_bad_frames.h"
#include "tests/integration/rpc_harness.h"

static atomic_size_t calloc_max = SIZE_MAX, realloc_max = SIZE_MAX; // bytes that an allocation may have, or grow to
static atomic_uint refusals;

static bool is_refused(size_t bytes, size_t most)
{
    atomic_fetch_add(&refusals, bytes > most);
    return bytes > most;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SKIP_UNDER_SANITIZERS() (is_refused(0, 0) ? (void)0 : skip())
#else
#define SKIP_UNDER_SANITIZERS() (void)0

void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);

void *calloc(size_t count, size_t size)
{
    return is_refused(count * size, atomic_load(&calloc_max)) ? NULL : __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
    return old && is_refused(size, atomic_load(&realloc_max)) ? NULL : __libc_realloc(old, size);
}
#endif

static void allow(size_t of_calloc, size_t of_realloc)
{
    atomic_store(&refusals, 0);
    atomic_store(&calloc_max, of_calloc);
    atomic_store(&realloc_max, of_realloc);
}

static atomic_bool hold, held;

static void hold_loop(void *arg)
{
    atomic_store(&held, true);
    while (atomic_load(&hold))
        usleep(500);
}

static void note(void *arg) { atomic_fetch_add((atomic_uint *)arg, 1); }

// A client sends more than the queue of a loop that does not turn can take: it loses its connection, and others do not.
static void a_flood_costs_its_sender_the_connection(void **state)
{
    enum { REQUESTS = 6000, RING_ENTRY_BYTES = 64 };
    static const unsigned char cancel[] = "\x08\x03\x11\x63\0\0\0\0\0\0"; // of no call
    struct harness_server server = {0};
    atomic_uint posted = 0;
    SKIP_UNDER_SANITIZERS();
    harness_start(&server, "tcp://127.0.0.1:0");
    struct frame_socket peer = frame_connect(server.address), flood = frame_connect(server.address);
    assert_true(bad_frame_hello(&peer));
    assert_true(bad_frame_hello(&flood));
    atomic_store(&hold, true);
    atomic_store(&held, false);
    rpc_loop_post(server.loop, hold_loop, NULL);
    AWAIT(usleep(500), atomic_load(&held));
    allow(1024 * RING_ENTRY_BYTES, SIZE_MAX); // the ring has this from the start
    for (uint32_t i = 0; i < REQUESTS && frame_send(&flood, cancel, sizeof cancel); i++) {}
    AWAIT(usleep(500), atomic_load(&refusals) > 0);
    rpc_loop_post(server.loop, note, &posted); // the program's own finds room
    atomic_store(&hold, false);
    unsigned char byte;
    struct pollfd ready = {.fd = flood.fd, .events = POLLIN};
    assert_true(pace_poll(&ready, 1));
    assert_true(recv(flood.fd, &byte, 1, 0) <= 0);
    AWAIT(usleep(500), atomic_load(&posted) == 1);
    allow(SIZE_MAX, SIZE_MAX);
    assert_true(bad_frame_healthy(&peer, 1));
    close(peer.fd);
    close(flood.fd);
    harness_stop(&server);
}

static void timers_fail_with_a_status(void **state)
{
    enum { TIMERS = 5000 };
    struct rpc_channel *channel, *none;
    struct rpc_loop *loop;
    struct error error;
    atomic_uint fired = 0;
    uint32_t refused = 0;
    SKIP_UNDER_SANITIZERS();
    assert_int_equal(rpc_loop_open(&loop), STATUS_OK);
    const struct rpc_channel_config small = {.address = "inproc://nobody", .hello.service = "test", .window = 16},
                                    large = {.address = "inproc://nobody", .hello.service = "test", .window = RPC_WINDOW_MAX};
    assert_int_equal(rpc_channel_open(loop, &small, &channel, &error), STATUS_OK); // and it has its timers from here on
    allow(SIZE_MAX, 16 << 10);
    assert_int_equal(rpc_channel_open(loop, &large, &none, &error), STATUS_RESOURCE_EXHAUSTED);
    for (uint32_t i = 0; i < TIMERS; i++)
        refused += !rpc_loop_timer(loop, 0, note, &fired);
    assert_true(refused > 0 && refused < TIMERS);
    for (uint32_t turn = 0; turn < 20; turn++) // the channel dials, fails, and sets its timer again
        rpc_loop_run(loop, 10000, 0);
    AWAIT(rpc_loop_run(loop, 1000, 0), atomic_load(&fired) == TIMERS - refused);
    allow(SIZE_MAX, SIZE_MAX);
    rpc_channel_close(channel);
    while (rpc_loop_run(loop, 0, 0)) {}
    rpc_loop_close(loop);
}

// The server's loop can watch no more descriptors: clients have their connections, some without a local socket beside.
static void clients_are_served_without_a_local_socket(void **state)
{
    enum { CLIENTS = 40, WATCHED_BYTES = 16 * sizeof(struct pollfd) };
    static struct harness_client clients[CLIENTS];
    struct harness_server server = {0};
    char address[64];
    SKIP_UNDER_SANITIZERS();
    snprintf(address, sizeof address, "ipc:///tmp/fd-test-memory-%d", (int)getpid());
    harness_start(&server, address);
    allow(SIZE_MAX, WATCHED_BYTES);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        struct harness_result result = {0};
        Fastdecode__HealthRequest request = FASTDECODE__HEALTH_REQUEST__INIT;
        struct error error;
        clients[i].config.window = 16; // its timers are there from the start
        harness_open(&clients[i], server.address);
        HARNESS_UNTIL(&clients[i], clients[i].ups == 1);
        assert_int_equal(rpc_call_start(clients[i].channel, &fastdecode__health__descriptor, "Check", &request.base, NULL,
                                        &harness_callbacks, &result, NULL, &error),
                         STATUS_OK);
        HARNESS_UNTIL(&clients[i], result.ends == 1);
        assert_int_equal(result.status, STATUS_OK);
    }
    assert_true(atomic_load(&refusals) > 0);
    allow(SIZE_MAX, SIZE_MAX);
    for (uint32_t i = 0; i < CLIENTS; i++)
        harness_close(&clients[i]);
    harness_stop(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flood_costs_its_sender_the_connection),
        cmocka_unit_test(timers_fail_with_a_status),
        cmocka_unit_test(clients_are_served_without_a_local_socket),
    };
    log_init("test", LOG_ERROR, false);
    return cmocka_run_group_tests_name("rpc memory", tests, NULL, NULL);
}
