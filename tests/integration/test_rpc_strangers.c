// test_rpc_strangers.c: what a client can do before or with a wrong hello, and what a greeted peer can do that breaks the rules of a call.
// It costs them the connection, and does not affect others.
#include "common/base/log.h"
#include "tests/cmocka.h"
#include "tests/integration/rpc_bad_frames.h"
#include "tests/integration/rpc_harness.h"

// --- servers by hand ---

static int listen_here(char *address, size_t address_bytes)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    socklen_t length = sizeof at;

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listener, 8), 0);
    getsockname(listener, (struct sockaddr *)&at, &length);
    snprintf(address, address_bytes, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
    return listener;
}

static bool readable(int fd)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    return poll(&ready, 1, 0) == 1;
}

// --- strangers ---

// The head announces more than a hello may have: no memory is allocated for it.
static const unsigned char long_head[] = "FDR1\x01\0\x01\0\x08\x01";

static void a_stranger_cannot_say_much_to_a_server(void **state)
{
    struct harness_server server = {0};
    struct pollfd both[2] = {{.events = POLLIN}, {.events = POLLIN}};
    static unsigned char large[1 << 20];
    harness_start(&server, "tcp://127.0.0.1:0");
    struct frame_socket silent = frame_connect(server.address), stranger = frame_connect(server.address);
    assert_true(frame_write(&stranger, long_head, sizeof long_head - 1));
    both[0].fd = silent.fd;
    both[1].fd = stranger.fd;
    assert_true(pace_poll(both, 2)); // before the time for a hello is over, of who came first
    assert_int_equal(both[0].revents, 0);
    assert_true(recv(stranger.fd, large, 1, 0) <= 0);
    // a peer may say as much as it likes
    struct frame_socket peer = frame_connect(server.address);
    assert_true(bad_frame_hello(&peer));
    memcpy(large, "\x08\x02\x11\x01\0\0\0\0\0\0\0\x7a\xf0\xff\x3f", 15); // a request, and a payload to the end
    assert_true(frame_send(&peer, large, 15 + 0xffff0));
    Fastdecode__Envelope *answer = bad_frame_answer(&peer);
    assert_non_null(answer);
    assert_int_equal(answer->status, STATUS_UNIMPLEMENTED);
    fastdecode__envelope__free_unpacked(answer, NULL);
    close(silent.fd);
    close(stranger.fd);
    close(peer.fd);
    harness_stop(&server);
}

static void a_stranger_cannot_say_much_to_a_client(void **state)
{
    struct harness_client client = {0};
    char address[64];
    int listener = listen_here(address, sizeof address);
    harness_open(&client, address);
    HARNESS_UNTIL(&client, readable(listener));
    struct frame_socket stranger = {accept(listener, NULL, NULL)};
    assert_true(frame_write(&stranger, long_head, sizeof long_head - 1));
    HARNESS_UNTIL(&client, client.downs == 1);
    assert_non_null(strstr(client.why, "connection closed")); // and not: no answer in time
    harness_close(&client);
    close(stranger.fd);
    close(listener);
}

// A connection is refused, and logged, once. A second hello closes it, whatever it contains.
static void a_refused_client_is_not_answered_again(void **state)
{
    struct harness_server server = {0};
    harness_start(&server, "tcp://127.0.0.1:0");
    for (int protocol = RPC_PROTOCOL - 1; protocol <= RPC_PROTOCOL + 1; protocol += 2) {
        const unsigned char hello[] = {0x08, 0x01, 0x7a, 0x02, 0x08, (unsigned char)protocol};
        struct frame_socket stranger = frame_connect(server.address);
        assert_true(frame_send(&stranger, hello, sizeof hello));
        Fastdecode__Envelope *answer = bad_frame_answer(&stranger);
        assert_non_null(answer);
        assert_int_equal(answer->kind, FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_REFUSED);
        fastdecode__envelope__free_unpacked(answer, NULL);
        assert_true(frame_send(&stranger, hello, sizeof hello));
        assert_null(bad_frame_answer(&stranger));
        close(stranger.fd);
    }
    harness_stop(&server);
}

// Only the latest 256 silent connections are kept; greeted peers are not affected.
static void strangers_are_not_kept_in_any_number(void **state)
{
    enum { CROWD = 400, KEPT = 256, HELLO_S = 5 };
    struct harness_server server = {0};
    struct frame_socket crowd[CROWD];
    struct pollfd first = {.events = POLLIN};
    uint32_t closed = 0;
    harness_start(&server, "tcp://127.0.0.1:0");
    struct frame_socket peer = frame_connect(server.address);
    assert_true(bad_frame_hello(&peer));
    uint64_t began_us = clock_now_us();
    for (int i = 0; i < CROWD; i++) {
        crowd[i] = frame_connect(server.address);
        if (i % 50 == 0) // the kernel's queue is short
            assert_true(bad_frame_healthy(&peer, (uint64_t)i + 1));
    }
    first.fd = crowd[CROWD - KEPT - 1].fd;
    assert_true(pace_poll(&first, 1));
    for (int i = 0; i < CROWD; i++)
        closed += readable(crowd[i].fd);
    if (clock_now_us() - began_us < HELLO_S * 1000000ull) // later, others have been silent for too long
        assert_int_equal(closed, CROWD - KEPT);
    assert_true(closed >= CROWD - KEPT);
    struct frame_socket late = frame_connect(server.address); // who comes last is heard
    assert_true(bad_frame_hello(&late));
    assert_true(bad_frame_healthy(&late, 1));
    assert_true(bad_frame_healthy(&peer, CROWD + 1));
    for (int i = 0; i < CROWD; i++)
        close(crowd[i].fd);
    close(peer.fd);
    close(late.fd);
    harness_stop(&server);
}

// --- peers ---

// A server says hello and then stops reading: calls end at their deadlines, and what is queued for it is bounded.
static void what_is_not_read_is_not_kept_for_ever(void **state)
{
    enum { REQUEST_BYTES = 16 << 20 };
    struct harness_client client = {0};
    struct harness_result result = {0};
    char address[64];
    int listener = listen_here(address, sizeof address);
    unsigned char body[FRAME_BODY_MAX];
    uint64_t sent = 0;
    harness_open(&client, address);
    HARNESS_UNTIL(&client, readable(listener));
    struct frame_socket server = {accept(listener, NULL, NULL)};
    HARNESS_UNTIL(&client, readable(server.fd));
    assert_true(frame_receive(&server, body) > 0);
    assert_true(frame_send(&server, "\x08\x01\x7a\x02\x08\x02", 6));
    HARNESS_UNTIL(&client, client.ups == 1);
    while (!client.downs && sent < 2ull * RPC_UNSENT_BYTES) {
        unsigned char *payload;
        struct rpc_buffer *buffer = rpc_request_buffer(client.channel, 1, 1, REQUEST_BYTES, &payload);
        assert_non_null(buffer);
        uint32_t ends = result.ends;
        if (rpc_call_start_buffer(client.channel, buffer, &harness_callbacks, &result, NULL) == STATUS_OK) {
            sent += REQUEST_BYTES;
            HARNESS_UNTIL(&client, result.ends > ends);
        }
    }
    assert_int_equal(client.downs, 1);
    assert_int_equal(result.status, STATUS_UNAVAILABLE);
    assert_true(sent > RPC_UNSENT_BYTES);
    harness_close(&client);
    close(server.fd);
    close(listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stranger_cannot_say_much_to_a_server), cmocka_unit_test(a_stranger_cannot_say_much_to_a_client),
        cmocka_unit_test(a_refused_client_is_not_answered_again), cmocka_unit_test(strangers_are_not_kept_in_any_number),
        cmocka_unit_test(what_is_not_read_is_not_kept_for_ever),
    };
    log_init("test", LOG_ERROR, false);
    return cmocka_run_group_tests_name("rpc strangers", tests, NULL, NULL);
}
