/* test_rpc_lanes.c: lanes: who may have one, what comes over it, and what happens where there is none; and taking frames out of
 * a stream, however it is cut.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/rpc/frame.h"
#include "envelope.pb-c.h"
#include "tests/integration/frame_socket.h"
#include "tests/integration/rpc_harness.h"

/* --- a client and a server by hand ------------------------------------------------------------------------------------- */

static void send_envelope(const struct frame_socket *to, const Fastdecode__Envelope *envelope)
{
    unsigned char bytes[512];
    assert_true(fastdecode__envelope__get_packed_size(envelope) <= sizeof bytes);
    assert_true(frame_send(to, bytes, fastdecode__envelope__pack(envelope, bytes)));
}

static void send_hello(const struct frame_socket *to, const char *lane, uint64_t token)
{
    Fastdecode__Envelope envelope = FASTDECODE__ENVELOPE__INIT;
    Fastdecode__PeerHello hello = FASTDECODE__PEER_HELLO__INIT;
    unsigned char bytes[256];

    hello.protocol = RPC_PROTOCOL;
    hello.lane = (char *)lane;
    hello.lane_token = token;
    envelope.kind = FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_HELLO;
    envelope.payload.data = bytes;
    envelope.payload.len = fastdecode__peer_hello__pack(&hello, bytes);
    send_envelope(to, &envelope);
}

static void send_check(const struct frame_socket *to, uint64_t id)
{
    Fastdecode__Envelope envelope = FASTDECODE__ENVELOPE__INIT;
    envelope.kind = FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_REQUEST;
    envelope.call_id = id;
    envelope.method = rpc_method_id(&fastdecode__health__descriptor, "Check");
    send_envelope(to, &envelope);
}

/* Its kind; 0: closed. */
static uint32_t receive_kind(const struct frame_socket *from, uint64_t *call_id)
{
    static unsigned char bytes[FRAME_BODY_MAX];
    long length = frame_receive(from, bytes);
    Fastdecode__Envelope *envelope = length > 0 ? fastdecode__envelope__unpack(NULL, (size_t)length, bytes) : NULL;
    uint32_t kind = envelope ? envelope->kind : 0;

    if (envelope)
        *call_id = envelope->call_id;
    if (envelope)
        fastdecode__envelope__free_unpacked(envelope, NULL);
    return kind;
}

/* Says hello; what the server offers. */
static struct frame_socket greet(const char *address, char *lane, size_t lane_bytes, uint64_t *token)
{
    struct frame_socket client = frame_connect(address);
    unsigned char bytes[FRAME_BODY_MAX];
    long length;

    send_hello(&client, "", 0);
    assert_true((length = frame_receive(&client, bytes)) > 0);
    Fastdecode__Envelope *envelope = fastdecode__envelope__unpack(NULL, (size_t)length, bytes);
    assert_non_null(envelope);
    Fastdecode__PeerHello *hello = fastdecode__peer_hello__unpack(NULL, envelope->payload.len, envelope->payload.data);
    assert_non_null(hello);
    snprintf(lane, lane_bytes, "%s", hello->lane);
    *token = hello->lane_token;
    fastdecode__peer_hello__free_unpacked(hello, NULL);
    fastdecode__envelope__free_unpacked(envelope, NULL);
    return client;
}

static socklen_t abstract(struct sockaddr_un *at, const char *name)
{
    *at = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(at->sun_path + 1, name, strlen(name));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
}

static struct frame_socket connect_lane(const char *name, const char *word, uint64_t token)
{
    struct frame_socket lane = {socket(AF_UNIX, SOCK_STREAM, 0)};
    struct sockaddr_un at;
    unsigned char greeting[16] = {0};
    socklen_t length = abstract(&at, name);

    assert_int_equal(connect(lane.fd, (struct sockaddr *)&at, length), 0);
    memcpy(greeting, word, 4);
    memcpy(greeting + 8, &token, sizeof token);
    assert_true(frame_write(&lane, greeting, 7)); /* in pieces: it is a stream */
    assert_true(frame_write(&lane, greeting + 7, sizeof greeting - 7));
    return lane;
}

static bool is_closed(const struct frame_socket *socket)
{
    struct pollfd ready = {.fd = socket->fd, .events = POLLIN};
    char byte;
    return poll(&ready, 1, FRAME_WAIT_MS) == 1 && recv(socket->fd, &byte, 1, 0) <= 0;
}

/* --- tests ------------------------------------------------------------------------------------------------------------- */

static void start(struct harness_server *server)
{
    char address[128];
    snprintf(address, sizeof address, "ipc:///tmp/fd-test-lanes-%d.sock", (int)getpid());
    harness_start(server, address);
}

static void only_the_token_opens_a_lane(void **state)
{
    struct harness_server server = {0};
    char name[64];
    uint64_t token, id = 0;
    (void)state;
    start(&server);
    struct frame_socket client = greet(server.address, name, sizeof name, &token);
    assert_true(name[0] && token);
    struct frame_socket stranger = connect_lane(name, "FDL1", token + 1), other = connect_lane(name, "XXXX", token),
                        nothing = connect_lane(name, "FDL1", 0);
    assert_true(is_closed(&stranger));
    assert_true(is_closed(&other));
    assert_true(is_closed(&nothing));
    struct frame_socket lane = connect_lane(name, "FDL1", token);
    send_check(&lane, 7);
    assert_int_equal(receive_kind(&lane, &id), FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_REPLY);
    assert_int_equal(id, 7);
    struct frame_socket again = connect_lane(name, "FDL1", token); /* it is good once */
    assert_true(is_closed(&again));
    assert_true(frame_write(&lane, "GET / HTTP/1.1", 14)); /* a bad frame costs the connection, wherever it comes */
    assert_true(is_closed(&lane));
    assert_true(is_closed(&client));
    int all[] = {client.fd, stranger.fd, other.fd, nothing.fd, lane.fd, again.fd};
    for (size_t i = 0; i < ARRAY_COUNT(all); i++)
        close(all[i]);
    harness_stop(&server);
}

static void the_last_words_on_a_lane_are_heard(void **state)
{
    struct harness_server server = {0};
    char name[64];
    uint64_t token, id = 0;
    (void)state;
    start(&server);
    for (int round = 0; round < 50; round++) {
        struct frame_socket client = greet(server.address, name, sizeof name, &token);
        struct frame_socket lane = connect_lane(name, "FDL1", token);
        send_check(&lane, 1);
        assert_int_equal(receive_kind(&lane, &id), FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_REPLY);
        for (uint64_t call = 2; call < 10; call++)
            send_check(&lane, call);
        close(round % 2 ? lane.fd : client.fd); /* one of both goes first; neither order harms the server */
        close(round % 2 ? client.fd : lane.fd);
    }
    struct frame_socket client = greet(server.address, name, sizeof name, &token); /* without a lane, as before */
    send_check(&client, 3);
    assert_int_equal(receive_kind(&client, &id), FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_REPLY);
    close(client.fd);
    harness_stop(&server);
}

static bool readable(int fd)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    return poll(&ready, 1, 0) == 1;
}

/* An offer that leads nowhere leaves the connection as it is; a lane that ends unheard costs it, and is not taken again. */
static void a_channel_lives_without_a_lane(void **state)
{
    struct harness_client client = {0};
    struct harness_result result = {0};
    struct sockaddr_un at = {.sun_family = AF_UNIX}, port_at;
    Fastdecode__HealthRequest request = FASTDECODE__HEALTH_REQUEST__INIT;
    char address[128], name[24];
    struct error error;
    uint64_t id = 0;
    (void)state;
    snprintf(name, sizeof name, "fd-lane-%d", (int)getpid());
    snprintf(address, sizeof address, "ipc:///tmp/fd-test-no-lane-%d.sock", (int)getpid());
    snprintf(at.sun_path, sizeof at.sun_path, "%s", address + 6);
    unlink(at.sun_path);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0), port = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listener, 4), 0);
    harness_open(&client, address);
    for (uint32_t round = 1; round <= 3; round++) {
        bool taken = round == 2;
        HARNESS_UNTIL(&client, readable(listener));
        struct frame_socket server = {accept(listener, NULL, NULL)};
        HARNESS_UNTIL(&client, readable(server.fd));
        assert_int_equal(receive_kind(&server, &id), FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_HELLO);
        send_hello(&server, round == 1 ? "nobody is here" : name, 5);
        HARNESS_UNTIL(&client, client.ups == round);
        assert_int_equal(rpc_call_start(client.channel, &fastdecode__health__descriptor, "Check", &request.base, NULL,
                                        &harness_callbacks, &result, NULL, &error),
                         STATUS_OK);
        if (taken) {
            struct frame_socket lane = {accept(port, NULL, NULL)};
            unsigned char greeting[16];
            assert_true(frame_read(&lane, greeting, sizeof greeting));
            assert_memory_equal(greeting, "FDL1\0\0\0\0\5\0\0\0\0\0\0\0", 16);
            HARNESS_UNTIL(&client, readable(lane.fd));
            assert_int_equal(receive_kind(&lane, &id), FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_REQUEST);
            close(lane.fd);
        } else {
            HARNESS_UNTIL(&client, readable(server.fd));
            assert_int_equal(receive_kind(&server, &id), FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_REQUEST);
            close(server.fd);
        }
        HARNESS_UNTIL(&client, client.downs == round);
        assert_int_equal(result.ends, round);
        assert_int_equal(result.status, STATUS_UNAVAILABLE);
        if (taken)
            close(server.fd);
        if (round == 1) {
            socklen_t length = abstract(&port_at, name);
            assert_int_equal(bind(port, (struct sockaddr *)&port_at, length), 0);
            assert_int_equal(listen(port, 4), 0);
        }
    }
    harness_close(&client);
    close(listener);
    close(port);
    unlink(at.sun_path);
}

/* --- frames ------------------------------------------------------------------------------------------------------------ */

struct taken {
    uint32_t count;
    size_t lengths[400];
};

static unsigned char byte_of(uint32_t message, size_t at) { return (unsigned char)(message * 31 + at * 7 + at / 251); }

static void on_frame(void *arg, struct frame *frame)
{
    struct taken *taken = arg;
    assert_true(taken->count < ARRAY_COUNT(taken->lengths));
    assert_int_equal(frame->length, taken->lengths[taken->count]);
    assert_int_equal((uintptr_t)frame_bytes(frame) % 8, 0);
    for (size_t i = 0; i < frame->length; i++)
        if (frame_bytes(frame)[i] != byte_of(taken->count, i))
            fail_msg("message %u differs at byte %zu", taken->count, i);
    taken->count++;
    frame_free(frame);
}

static void frames_come_out_however_the_stream_is_cut(void **state)
{
    static struct taken taken;
    uint32_t random = 1;
    size_t total = 0, at = 0;
    (void)state;
    for (uint32_t i = 0; i < ARRAY_COUNT(taken.lengths); i++) {
        random = random * 1664525 + 1013904223;
        uint32_t kind = random >> 29;
        taken.lengths[i] = kind < 4 ? random >> 8 & 127 : kind < 6 ? random >> 8 & 4095 : i % 40 ? 61530 : 200000;
        total += FRAME_HEAD + taken.lengths[i];
    }
    unsigned char *stream = malloc(total);
    for (uint32_t i = 0; i < ARRAY_COUNT(taken.lengths); i++) {
        struct frame *frame = frame_open(taken.lengths[i]);
        for (size_t k = 0; k < frame->length; k++)
            frame_bytes(frame)[k] = byte_of(i, k);
        memcpy(stream + at, frame->wire, FRAME_HEAD + frame->length);
        at += FRAME_HEAD + frame->length;
        frame_free(frame);
    }
    for (uint32_t cut = 0; cut < 5; cut++) { /* all that fits; then at most so many bytes at once */
        static const size_t most[] = {SIZE_MAX, 1 << 17, 5000, 33, 7};
        struct frame_reader reader = {.max_message_bytes = 200000};
        size_t end = cut < 3 ? total : total / 20;
        taken.count = 0;
        for (at = 0; at < end;) {
            void *space;
            size_t room = MIN(MIN(frame_reader_space(&reader, &space), most[cut]), total - at);
            assert_true(room > 0);
            memcpy(space, stream + at, room);
            assert_true(frame_reader_take(&reader, room, on_frame, &taken));
            at += room;
        }
        assert_true(cut >= 3 || taken.count == ARRAY_COUNT(taken.lengths));
        assert_true(taken.count > 10);
        frame_reader_close(&reader);
    }
    free(stream);
}

struct weighed {
    uint32_t count;
    size_t bytes; /* of memory */
};

static void on_weighed(void *arg, struct frame *frame)
{
    struct weighed *weighed = arg;
    weighed->count++;
    weighed->bytes += frame->capacity;
    frame_free(frame);
}

/* One large message, then many of 1 KiB that come at once: each takes the memory that it is worth, not that of all behind it. */
static void small_messages_behind_a_large_one_stay_small(void **state)
{
    enum { LARGEST = 4 << 20, SMALL = 1024, SMALLS = 3000 };
    struct frame_reader reader = {.max_message_bytes = LARGEST};
    struct weighed weighed = {0};
    struct frame *large = frame_open(LARGEST), *small = frame_open(SMALL);
    size_t at = 0, total = FRAME_HEAD + LARGEST;
    (void)state;
    memset(frame_bytes(large), 0, LARGEST);
    memset(frame_bytes(small), 0, SMALL);
    while (at < total) {
        void *space;
        size_t room = MIN(frame_reader_space(&reader, &space), total - at);
        memcpy(space, large->wire + at, room);
        assert_true(frame_reader_take(&reader, room, on_weighed, &weighed));
        at += room;
    }
    assert_int_equal(weighed.count, 1);
    weighed = (struct weighed){0};
    while (weighed.count < SMALLS) {
        unsigned char *space;
        size_t room = frame_reader_space(&reader, (void **)&space), count = MIN(room / (FRAME_HEAD + SMALL), (size_t)SMALLS);
        assert_true(count > 0);
        for (size_t i = 0; i < count; i++)
            memcpy(space + i * (FRAME_HEAD + SMALL), small->wire, FRAME_HEAD + SMALL);
        assert_true(frame_reader_take(&reader, count * (FRAME_HEAD + SMALL), on_weighed, &weighed));
    }
    assert_in_range(weighed.bytes / weighed.count, SMALL, 8 * SMALL);
    frame_reader_close(&reader);
    frame_free(large);
    frame_free(small);
}

static void strangers_and_giants_are_no_frames(void **state)
{
    static const unsigned char stranger[] = "FDR2", giant[] = "FDR1\x01\x04\0\0", largest[] = "FDR1\0\x04\0\0";
    static const struct {
        const unsigned char *bytes;
        size_t length;
        bool good;
    } cases[] = {{stranger, 3, true}, {stranger, 4, false}, {giant, 7, true}, {giant, 8, false}, {largest, 8, true}};
    (void)state;
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct frame_reader reader = {.max_message_bytes = 1024};
        void *space;
        assert_true(frame_reader_space(&reader, &space) > cases[i].length);
        memcpy(space, cases[i].bytes, cases[i].length);
        assert_int_equal(frame_reader_take(&reader, cases[i].length, on_frame, NULL), cases[i].good);
        frame_reader_close(&reader);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_token_opens_a_lane),        cmocka_unit_test(the_last_words_on_a_lane_are_heard),
        cmocka_unit_test(a_channel_lives_without_a_lane),     cmocka_unit_test(frames_come_out_however_the_stream_is_cut),
        cmocka_unit_test(strangers_and_giants_are_no_frames), cmocka_unit_test(small_messages_behind_a_large_one_stay_small),
    };
    log_init("test", LOG_ERROR, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
