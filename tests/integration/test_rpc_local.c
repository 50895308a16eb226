// test_rpc_local.c: the local socket beside a connection: which client may have one, what comes over it, and what happens without one.
#include <stdlib.h>
#include <sys/resource.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "envelope.pb-c.h"
#include "tests/cmocka.h"
#include "tests/integration/frame_socket.h"
#include "tests/integration/rpc_harness.h"

// --- a client and a server by hand ---

static void send_envelope(const struct frame_socket *to, const Fastdecode__Envelope *envelope)
{
    unsigned char bytes[512];
    assert_true(fastdecode__envelope__get_packed_size(envelope) <= sizeof bytes);
    assert_true(frame_send(to, bytes, fastdecode__envelope__pack(envelope, bytes)));
}

struct offer {
    char name[64];
    uint64_t token, answer;
};

static void send_hello(const struct frame_socket *to, const struct offer *offer)
{
    Fastdecode__Envelope envelope = FASTDECODE__ENVELOPE__INIT;
    Fastdecode__PeerHello hello = FASTDECODE__PEER_HELLO__INIT;
    unsigned char bytes[256];

    hello.protocol = RPC_PROTOCOL;
    hello.local_socket = (char *)offer->name;
    hello.local_token = offer->token;
    hello.local_answer = offer->answer;
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

// Its kind; 0: closed.
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

// Says hello; what the server offers.
static struct frame_socket greet(const char *address, struct offer *offer)
{
    static const struct offer none;
    struct frame_socket client = frame_connect(address);
    unsigned char bytes[FRAME_BODY_MAX];
    long length;

    send_hello(&client, &none);
    assert_true((length = frame_receive(&client, bytes)) > 0);
    Fastdecode__Envelope *envelope = fastdecode__envelope__unpack(NULL, (size_t)length, bytes);
    assert_non_null(envelope);
    Fastdecode__PeerHello *hello = fastdecode__peer_hello__unpack(NULL, envelope->payload.len, envelope->payload.data);
    assert_non_null(hello);
    snprintf(offer->name, sizeof offer->name, "%s", hello->local_socket);
    offer->token = hello->local_token;
    offer->answer = hello->local_answer;
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

static struct frame_socket connect_nowhere(const char *name)
{
    struct frame_socket local = {socket(AF_UNIX, SOCK_STREAM, 0)};
    struct sockaddr_un at;
    socklen_t length = abstract(&at, name);

    assert_int_equal(connect(local.fd, (struct sockaddr *)&at, length), 0);
    return local;
}

static void say(const struct frame_socket *local, const char *word, uint64_t number)
{
    unsigned char greeting[16] = {0};
    memcpy(greeting, word, 4);
    memcpy(greeting + 8, &number, sizeof number);
    assert_true(frame_write(local, greeting, 7)); // in pieces: it is a stream
    assert_true(frame_write(local, greeting + 7, sizeof greeting - 7));
}

static uint64_t hear(const struct frame_socket *local)
{
    unsigned char greeting[16];
    uint64_t number;
    assert_true(frame_read(local, greeting, sizeof greeting));
    assert_memory_equal(greeting, "FDL1\0\0\0\0", 8);
    memcpy(&number, greeting + 8, sizeof number);
    return number;
}

static struct frame_socket connect_local(const char *name, const char *word, uint64_t token)
{
    struct frame_socket local = connect_nowhere(name);
    say(&local, word, token);
    return local;
}

// One that is answered.
static struct frame_socket take_local(const struct offer *offer)
{
    struct frame_socket local = connect_local(offer->name, "FDL1", offer->token);
    assert_int_equal(hear(&local), offer->answer);
    return local;
}

static bool is_closed(const struct frame_socket *socket)
{
    struct pollfd ready = {.fd = socket->fd, .events = POLLIN};
    char byte;
    return pace_poll(&ready, 1) && recv(socket->fd, &byte, 1, 0) <= 0;
}

// --- tests ---

static void start(struct harness_server *server)
{
    char address[128];
    snprintf(address, sizeof address, "ipc:///tmp/fd-test-local-%d.sock", (int)getpid());
    harness_start(server, address);
}

static void only_the_token_opens_a_local_socket(void **state)
{
    struct harness_server server = {0};
    struct offer offer;
    uint64_t id = 0;
    start(&server);
    struct frame_socket client = greet(server.address, &offer);
    assert_true(offer.name[0] && offer.token && offer.answer && offer.answer != offer.token);
    struct frame_socket stranger = connect_local(offer.name, "FDL1", offer.token + 1),
                        other = connect_local(offer.name, "XXXX", offer.token), nothing = connect_local(offer.name, "FDL1", 0);
    assert_true(is_closed(&stranger));
    assert_true(is_closed(&other));
    assert_true(is_closed(&nothing));
    struct frame_socket local = take_local(&offer);
    send_check(&local, 7);
    assert_int_equal(receive_kind(&local, &id), FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_REPLY);
    assert_int_equal(id, 7);
    struct frame_socket again = connect_local(offer.name, "FDL1", offer.token); // it is good once
    assert_true(is_closed(&again));
    assert_true(frame_write(&local, "GET / HTTP/1.1", 14)); // a bad frame costs the connection, wherever it comes
    assert_true(is_closed(&local));
    assert_true(is_closed(&client));
    int all[] = {client.fd, stranger.fd, other.fd, nothing.fd, local.fd, again.fd};
    for (size_t i = 0; i < ARRAY_COUNT(all); i++)
        close(all[i]);
    harness_stop(&server);
}

static void the_last_words_on_a_local_socket_are_heard(void **state)
{
    struct harness_server server = {0};
    struct offer offer;
    uint64_t id = 0;
    start(&server);
    for (int round = 0; round < 50; round++) {
        struct frame_socket client = greet(server.address, &offer);
        struct frame_socket local = take_local(&offer);
        send_check(&local, 1);
        assert_int_equal(receive_kind(&local, &id), FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_REPLY);
        for (uint64_t call = 2; call < 10; call++)
            send_check(&local, call);
        close(round % 2 ? local.fd : client.fd); // one of both goes first; neither order harms the server
        close(round % 2 ? client.fd : local.fd);
    }
    struct frame_socket client = greet(server.address, &offer); // without a local socket, as before
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

static bool is_up_with(struct harness_client *client, uint32_t ups)
{
    return client->ups == ups && rpc_channel_is_up(client->channel);
}

// An offer that leads nowhere, or to somebody else, leaves the connection as it is, and the next offer is tried again.
static void a_channel_lives_without_a_local_socket(void **state)
{
    enum { NOBODY, CLOSED, WRONG, SILENT, TAKEN, TAKEN_AGAIN, CASES };
    struct harness_client client = {0};
    struct sockaddr_un at = {.sun_family = AF_UNIX}, port_at;
    struct offer offer = {.token = 5, .answer = 6};
    char address[128];
    uint64_t id = 0;
    snprintf(offer.name, sizeof offer.name, "fd-local-%d", (int)getpid());
    snprintf(address, sizeof address, "ipc:///tmp/fd-test-no-local-%d.sock", (int)getpid());
    snprintf(at.sun_path, sizeof at.sun_path, "%s", address + 6);
    unlink(at.sun_path);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0), port = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listener, 4), 0);
    harness_open(&client, address);
    for (uint32_t which = 0; which < CASES; which++) {
        struct harness_result result = {0};
        struct frame_socket local = {-1};
        Fastdecode__HealthRequest request = FASTDECODE__HEALTH_REQUEST__INIT;
        struct error error;
        HARNESS_UNTIL(&client, readable(listener));
        struct frame_socket server = {accept(listener, NULL, NULL)};
        HARNESS_UNTIL(&client, readable(server.fd));
        assert_int_equal(receive_kind(&server, &id), FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_HELLO);
        send_hello(&server, &offer);
        if (which != NOBODY) {
            HARNESS_UNTIL(&client, readable(port));
            local.fd = accept(port, NULL, NULL);
            assert_int_equal(hear(&local), offer.token);
            assert_int_equal(client.ups, which); // not before it has settled
        }
        if (which == CLOSED)
            close(local.fd);
        else if (which >= WRONG && which != SILENT)
            say(&local, "FDL1", which == WRONG ? offer.token : offer.answer);
        HARNESS_UNTIL(&client, is_up_with(&client, which + 1));
        assert_int_equal(rpc_call_start(client.channel, &fastdecode__health__descriptor, "Check", &request.base, NULL,
                                        &harness_callbacks, &result, NULL, &error),
                         STATUS_OK);
        const struct frame_socket *used = which >= TAKEN ? &local : &server;
        HARNESS_UNTIL(&client, readable(used->fd));
        assert_int_equal(receive_kind(used, &id), FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_REQUEST);
        assert_int_equal(client.downs, which);
        close(used->fd); // either end of it is the end
        HARNESS_UNTIL(&client, client.downs == which + 1);
        assert_int_equal(result.ends, 1);
        assert_int_equal(result.status, STATUS_UNAVAILABLE);
        if (which >= TAKEN)
            close(server.fd);
        else if (which > CLOSED)
            close(local.fd);
        if (which == NOBODY) {
            socklen_t length = abstract(&port_at, offer.name);
            assert_int_equal(bind(port, (struct sockaddr *)&port_at, length), 0);
            assert_int_equal(listen(port, 4), 0);
        }
    }
    harness_close(&client);
    close(listener);
    close(port);
    unlink(at.sun_path);
}

// Strangers who connect and say nothing keep nobody from one.
static void silent_strangers_take_no_place(void **state)
{
    enum { STRANGERS = 100 };
    struct harness_server server = {0};
    struct frame_socket strangers[STRANGERS];
    struct offer offer;
    uint64_t id = 0;
    start(&server);
    struct frame_socket client = greet(server.address, &offer);
    for (int i = 0; i < STRANGERS; i++)
        strangers[i] = connect_nowhere(offer.name);
    struct frame_socket local = take_local(&offer);
    send_check(&local, 7);
    assert_int_equal(receive_kind(&local, &id), FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_REPLY);
    for (int i = 0; i < STRANGERS; i++)
        close(strangers[i].fd);
    close(local.fd);
    close(client.fd);
    harness_stop(&server);
}

// Out of descriptors: a client that waits for a local socket is told, and has its connection; once there are descriptors again there are local sockets again.
static void local_sockets_come_back_when_descriptors_do(void **state)
{
    struct harness_server server = {0};
    struct rlimit limit, none;
    struct offer offer, later;
    struct sockaddr_un at;
    uint64_t id = 0;
    start(&server);
    struct frame_socket client = greet(server.address, &offer), local = {socket(AF_UNIX, SOCK_STREAM, 0)};
    int next = dup(0);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = (struct rlimit){(rlim_t)next, limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    socklen_t length = abstract(&at, offer.name);
    assert_int_equal(connect(local.fd, (struct sockaddr *)&at, length), 0);
    assert_true(is_closed(&local));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    send_check(&client, 1);
    assert_int_equal(receive_kind(&client, &id), FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_REPLY);
    struct frame_socket other = greet(server.address, &later);
    assert_true(later.name[0]);
    struct frame_socket second = take_local(&later);
    send_check(&second, 2);
    assert_int_equal(receive_kind(&second, &id), FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_REPLY);
    int all[] = {client.fd, local.fd, other.fd, second.fd};
    for (size_t i = 0; i < ARRAY_COUNT(all); i++)
        close(all[i]);
    harness_stop(&server);
}

// A client that says the token and does not wait for the answer goes on as if it had not.
static void a_local_socket_that_is_given_up_costs_nothing(void **state)
{
    struct harness_server server = {0};
    struct offer offer;
    uint64_t id = 0;
    start(&server);
    struct frame_socket client = greet(server.address, &offer), local = take_local(&offer);
    send_check(&client, 1);
    assert_int_equal(receive_kind(&client, &id), FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_REPLY);
    close(local.fd);
    for (uint64_t call = 2; call < 20; call++) {
        send_check(&client, call);
        assert_int_equal(receive_kind(&client, &id), FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_REPLY);
        assert_int_equal(id, call);
    }
    close(client.fd);
    harness_stop(&server);
}

// Half a frame on a local socket, or one that comes byte by byte, and then its end: the connection's end, and no harm to others.
static void a_local_socket_may_end_anywhere(void **state)
{
    static const unsigned char half[] = "FDR1\x0b\0\0\0\x08\x02\x11\x01\0\0";
    struct harness_server server = {0};
    struct offer offer;
    start(&server);
    for (size_t length = 1; length < sizeof half; length++) {
        struct frame_socket client = greet(server.address, &offer), local = take_local(&offer);
        for (size_t i = 0; i < length; i++)
            assert_true(frame_write(&local, half + i, 1));
        close(local.fd);
        assert_true(is_closed(&client));
        close(client.fd);
    }
    harness_stop(&server);
}

// A descriptor that is sent along is not kept: the other end of a pipe sees its end.
static void descriptors_are_not_taken(void **state)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct harness_server server = {0};
    struct offer offer;
    uint64_t id = 0;
    int ends[2];
    char byte = 'F';
    start(&server);
    struct frame_socket client = greet(server.address, &offer), local = take_local(&offer);
    assert_int_equal(pipe(ends), 0);
    struct iovec first = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &first, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    control.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.head), &ends[1], sizeof(int));
    assert_int_equal(sendmsg(local.fd, &message, MSG_NOSIGNAL), 1);
    close(ends[1]);
    struct pollfd ended = {.fd = ends[0], .events = POLLIN};
    assert_true(pace_poll(&ended, 1));
    assert_int_equal(ended.revents, POLLHUP);
    assert_true(frame_write(&local, "DR1\2\0\0\0\x08\x02", 9)); // the rest of a request of no method
    assert_int_equal(receive_kind(&local, &id), FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_REPLY);
    close(ends[0]);
    close(local.fd);
    close(client.fd);
    harness_stop(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_token_opens_a_local_socket),
        cmocka_unit_test(the_last_words_on_a_local_socket_are_heard),
        cmocka_unit_test(a_channel_lives_without_a_local_socket),
        cmocka_unit_test(silent_strangers_take_no_place),
        cmocka_unit_test(local_sockets_come_back_when_descriptors_do),
        cmocka_unit_test(a_local_socket_that_is_given_up_costs_nothing),
        cmocka_unit_test(a_local_socket_may_end_anywhere),
        cmocka_unit_test(descriptors_are_not_taken),
    };
    log_init("test", LOG_ERROR, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
