/* test_rpc_strangers.c: what somebody can do who has said no hello, or a wrong one, and what a peer can do who was greeted and
 * breaks the rules of a call: it costs them the connection, and others nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/base/log.h"
#include "tests/integration/rpc_bad_frames.h"
#include "tests/integration/rpc_harness.h"

/* --- servers by hand ----------------------------------------------------------------------------------------------------- */

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

/* --- strangers ----------------------------------------------------------------------------------------------------------- */

/* Longer than a hello can be, by the head alone: no memory is kept for it. */
static const unsigned char long_head[] = "FDR1\x01\0\x01\0\x08\x01";

static void a_stranger_cannot_say_much_to_a_server(void **state)
{
    struct harness_server server = {0};
    struct pollfd both[2] = {{.events = POLLIN}, {.events = POLLIN}};
    static unsigned char large[1 << 20];
    (void)state;
    harness_start(&server, "tcp://127.0.0.1:0");
    struct frame_socket silent = frame_connect(server.address), stranger = frame_connect(server.address);
    assert_true(frame_write(&stranger, long_head, sizeof long_head - 1));
    both[0].fd = silent.fd;
    both[1].fd = stranger.fd;
    assert_true(poll(both, 2, FRAME_WAIT_MS) > 0); /* before the time for a hello is over, of who came first */
    assert_int_equal(both[0].revents, 0);
    assert_true(recv(stranger.fd, large, 1, 0) <= 0);
    /* a peer may say as much as it likes */
    struct frame_socket peer = frame_connect(server.address);
    assert_true(bad_frame_hello(&peer));
    memcpy(large, "\x08\x02\x11\x01\0\0\0\0\0\0\0\x7a\xf0\xff\x3f", 15); /* a request, and a payload to the end */
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
    (void)state;
    harness_open(&client, address);
    HARNESS_UNTIL(&client, readable(listener));
    struct frame_socket stranger = {accept(listener, NULL, NULL)};
    assert_true(frame_write(&stranger, long_head, sizeof long_head - 1));
    HARNESS_UNTIL(&client, client.downs == 1);
    assert_non_null(strstr(client.why, "connection closed")); /* and not: no answer in time */
    harness_close(&client);
    close(stranger.fd);
    close(listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stranger_cannot_say_much_to_a_server),
        cmocka_unit_test(a_stranger_cannot_say_much_to_a_client),
    };
    log_init("test", LOG_ERROR, false);
    return cmocka_run_group_tests_name("rpc strangers", tests, NULL, NULL);
}
