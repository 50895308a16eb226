// test_rpc_frames.c: malformed messages, to a server from a hostile client and to a channel from a hostile server.
//
// With arguments, SECRET-FILE ADDRESS..., it is the hostile client alone: the malformed messages go to the servers at these addresses,
// whose mesh has that secret ("none": it has none). The end-to-end tests send them to the services. The exit status is 0 if all
// of them came to what they must.
#include <pthread.h>
#include <stdatomic.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "tests/cmocka.h"
#include "tests/integration/rpc_bad_frames.h"
#include "tests/integration/rpc_harness.h"

static struct harness_server servers[2];
static struct frame_socket silent[2]; // one each: it connects and says not one word more

// Both at once, so that the time that they leave a silent client passes once.
static int start_servers(void **state)
{
    static char ipc[128];
    snprintf(ipc, sizeof ipc, "ipc:///tmp/fd-test-frames-%d.sock", (int)getpid());
    const char *const addresses[] = {"tcp://127.0.0.1:0", ipc};
    for (uint32_t i = 0; i < ARRAY_COUNT(servers); i++) {
        servers[i].config.max_message_bytes = 1 << 20;
        harness_start(&servers[i], addresses[i]);
        silent[i] = frame_connect(servers[i].address);
    }
    return 0;
}

static int stop_servers(void **state)
{
    for (uint32_t i = 0; i < ARRAY_COUNT(servers); i++) {
        close(silent[i].fd);
        harness_stop(&servers[i]);
    }
    return 0;
}

static void run_frames(uint32_t which)
{
    const char *address = servers[which].address;
    struct pollfd closed = {.fd = silent[which].fd, .events = POLLIN};
    unsigned char hello[8];

    assert_true(ARRAY_COUNT(bad_frames) >= 30);
    assert_int_equal(bad_frames_run(address), 0);
    // a client that takes messages of one byte, it says: its errors are sent all the same
    struct frame_socket small = frame_connect(address);
    unsigned char body[FRAME_BODY_MAX];
    assert_true(frame_send(&small, "\x08\x01\x7a\x04\x08\x02\x30\x01", 8));
    assert_true(frame_receive(&small, body) > 0);
    assert_true(frame_send(&small, "\x08\x02\x11\x01\0\0\0\0\0\0\0", 11));
    assert_true(frame_receive(&small, body) > 0);
    close(small.fd);
    assert_true(pace_poll(&closed, 1));
    assert_int_equal(recv(closed.fd, hello, sizeof hello, 0), 0);
}

static void a_server_survives_bad_frames_over_tcp(void **state) { run_frames(0); }

static void a_server_survives_bad_frames_over_ipc(void **state) { run_frames(1); }

// --- a hostile server ---

#define B(text) (text), sizeof(text) - 1

// Bad answers, in place of a hello or to the first request. Each of them must cost the peer its connection.
static const struct answer {
    const char *name;
    bool greeted;
    const char *bytes;
    size_t length;
} answers[] = {
    {"an empty body for a hello", false, "", 0},
    {"text for a hello", false, B("SSH-2.0-OpenSSH_9.2")},
    {"a hello of another protocol", false, B("\x08\x01\x7a\x02\x08\x63")},
    {"a hello that is no PeerHello", false, B("\x08\x01\x7a\x02\xff\xff")},
    {"a reply for a hello", false, B("\x08\x05\x11\0\0\0\0\1\0\0\0")},
    {"a request for a hello", false, B("\x08\x02")},
    {"a refusal", false, B("\x08\x07\x2a\x02no")},
    {"a refusal without a reason", false, B("\x08\x07")},
    {"text", true, B("what?")},
    {"a cut reply", true, B("\x08\x05\x11\0\0")},
    {"a payload beyond the end", true, B("\x08\x05\x11\0\0\0\0\1\0\0\0\x7a\x20x")},
    {"a second hello", true, B("\x08\x01\x7a\x02\x08\x02")},
    {"a request", true, B("\x08\x02\x11\0\0\0\0\1\0\0\0")},
    {"an acknowledgement", true, B("\x08\x06\x20\x01")},
    {"kind 99", true, B("\x08\x63")},
    {"a stream's message for a unary call", true, B("\x08\x04\x11\0\0\0\0\1\0\0\0\x1d\1\0\0\0")},
    {"a stream's end for a unary call", true, B("\x08\x05\x11\0\0\0\0\1\0\0\0")},
    {"a refusal after the hello", true, B("\x08\x07\x2a\x04late")},
};

struct hostile {
    pthread_t thread;
    int listener;
    atomic_uint answer; // which
    atomic_bool stop;
};

static void answer_one(struct hostile *hostile, struct frame_socket *client)
{
    unsigned char body[FRAME_BODY_MAX];
    uint32_t which = atomic_load(&hostile->answer);

    if (frame_receive(client, body) < 0)
        return;
    if (answers[which].greeted) {
        frame_send(client, B("\x08\x01\x7a\x02\x08\x02"));
        if (frame_receive(client, body) < 0) // the request
            return;
    }
    frame_send(client, answers[which].bytes, answers[which].length);
    frame_receive(client, body); // until it is closed
}

static void *be_hostile(void *arg)
{
    struct hostile *hostile = arg;
    while (!atomic_load(&hostile->stop)) {
        struct pollfd ready = {.fd = hostile->listener, .events = POLLIN};
        if (poll(&ready, 1, 20) != 1)
            continue;
        struct frame_socket client = {.fd = accept(hostile->listener, NULL, NULL)};
        answer_one(hostile, &client);
        close(client.fd);
    }
    return NULL;
}

// One answer: the channel goes down with a reason; a call that was out ends with UNAVAILABLE.
static void meet(const char *address, const struct answer *answer)
{
    const struct rpc_callbacks callbacks = {.on_end = harness_on_end};
    Fastdecode__HealthRequest request = FASTDECODE__HEALTH_REQUEST__INIT;
    struct harness_client client = {0};
    struct harness_result result = {0};
    struct error error;
    struct pace_deadline deadline = pace_deadline(PACE_WAIT_US);
    bool called = false;

    harness_open(&client, address);
    while (!client.downs) {
        rpc_loop_run(client.loop, 10000, 0);
        if (client.ups && !called && rpc_channel_is_up(client.channel)) {
            assert_int_equal(rpc_call_start(client.channel, &fastdecode__health__descriptor, "Check", &request.base, NULL,
                                            &callbacks, &result, NULL, &error),
                             STATUS_OK);
            called = true;
        }
        if (pace_passed(&deadline))
            fail_msg("%s: the channel stayed", answer->name);
    }
    assert_int_equal(client.ups, answer->greeted);
    assert_int_equal(result.ends, answer->greeted);
    if (answer->greeted)
        assert_int_equal(result.status, STATUS_UNAVAILABLE);
    assert_true(strlen(client.why) > strlen(address) + 2);
    harness_close(&client);
}

static void a_channel_survives_bad_answers(void **state)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    struct hostile hostile = {.listener = socket(AF_INET, SOCK_STREAM, 0)};
    socklen_t length = sizeof at;
    char address[64];

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(hostile.listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(hostile.listener, 8), 0);
    getsockname(hostile.listener, (struct sockaddr *)&at, &length);
    snprintf(address, sizeof address, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
    pthread_create(&hostile.thread, NULL, be_hostile, &hostile);
    for (uint32_t i = 0; i < ARRAY_COUNT(answers); i++) {
        atomic_store(&hostile.answer, i);
        meet(address, &answers[i]);
    }
    atomic_store(&hostile.stop, true);
    pthread_join(hostile.thread, NULL);
    close(hostile.listener);
}

int main(int argc, char **argv)
{
    struct rpc_secret secret;
    struct error error;
    uint32_t failed = 0;

    log_init("test", LOG_ERROR, false);
    if (argc > 1) {
        if (rpc_secret_read(argv[1], &secret, &error)) {
            fprintf(stderr, "%s\n", error.text);
            return 1;
        }
        bad_frame_secret = secret.is_set ? &secret : NULL;
    }
    for (int i = 2; i < argc; i++) {
        failed += bad_frames_run(argv[i]);
        printf("%s: %zu malformed messages\n", argv[i], ARRAY_COUNT(bad_frames));
    }
    if (argc > 1)
        return failed != 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_server_survives_bad_frames_over_tcp),
        cmocka_unit_test(a_server_survives_bad_frames_over_ipc),
        cmocka_unit_test(a_channel_survives_bad_answers),
    };
    return cmocka_run_group_tests_name("rpc frames", tests, start_servers, stop_servers);
}
