// test_tls_floods.c: whatever hostile peers do to a TLS port before they have shown a certificate, good peers connect and are answered, and the
// memory, the descriptors and the lines of the log that it costs are bounded.
#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "generate.pb-c.h"
#include "tests/cmocka.h"
#include "tests/integration/rpc_harness.h"
#include "tests/integration/tls_strangers.h"

enum { IN_HANDSHAKE_MAX = 128 }; // of tls_connect.c

static struct rig_ca ca, other_ca;
static struct rpc_security server_security, client_security;
static char bad_folder[RIG_PATH_BYTES];

static const struct rpc_method methods[] = {{&fastdecode__generator__descriptor, "Generate", harness_reach, NULL}};

static void start(struct harness_server *server)
{
    *server =
        (struct harness_server){.config = {.methods = methods, .method_count = ARRAY_COUNT(methods), .hello.service = "scheduler"},
                                .security = &server_security};
    kept_log_forget();
    harness_start(server, "tls+tcp://127.0.0.1:0");
}

static void open_client(struct harness_client *client, const char *address)
{
    *client = (struct harness_client){.security = &client_security,
                                      .config = {.hello.service = "gateway", .peer_roles = RPC_IS_SCHEDULER}};
    harness_open(client, address);
    HARNESS_UNTIL(client, client->ups == 1);
}

static void assert_answers(struct harness_client *client)
{
    assert_int_equal(harness_call(client, &fastdecode__generator__descriptor, "Generate").status, STATUS_ABORTED);
}

// A new peer gets in, and it and an old one are answered.
static void assert_serves(struct harness_client *old, const char *address)
{
    struct harness_client fresh;
    open_client(&fresh, address);
    assert_answers(&fresh);
    assert_answers(old);
    assert_int_equal(old->downs, 0);
    harness_close(&fresh);
}

static bool is_closed(int fd)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    return poll(&ready, 1, 0) == 1;
}

// --- before the handshake ---

// Half of them say nothing, half begin a record and do not go on.
static void the_oldest_of_too_many_silent_peers_go(void **state)
{
    enum { CROWD = 400 };
    struct harness_server server;
    struct harness_client peer;
    static struct frame_socket crowd[CROWD];
    uint32_t closed = 0;
    start(&server);
    open_client(&peer, server.address);
    for (int i = 0; i < CROWD; i++) {
        crowd[i] = frame_connect(server.address);
        if (i % 2)
            assert_true(frame_write(&crowd[i], "\x16\x03\x01\x02\0\x01", 6));
        if (i % 50 == 49)
            assert_serves(&peer, server.address);
    }
    for (int i = 0; i < CROWD - IN_HANDSHAKE_MAX; i++)
        AWAIT(usleep(1000), is_closed(crowd[i].fd));
    assert_serves(&peer, server.address);
    for (int i = 0; i < CROWD; i++)
        closed += is_closed(crowd[i].fd);
    assert_true(closed >= CROWD - IN_HANDSHAKE_MAX);
    assert_in_range(kept_log_count("TLS-REFUSED", "the oldest of too many handshakes", NULL), 1, 5); // not 272
    for (int i = 0; i < CROWD; i++)
        close(crowd[i].fd);
    harness_close(&peer);
    harness_stop(&server);
}

// Connects from 127.0.0.`from`, without a word. -1: it cannot now.
static int connect_from(const char *address, uint32_t from)
{
    struct sockaddr_in own = {.sin_family = AF_INET}, to = {.sin_family = AF_INET};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + from);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    if (fd >= 0 && !bind(fd, (struct sockaddr *)&own, sizeof own) && !connect(fd, (struct sockaddr *)&to, sizeof to))
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

// A member that has connected and needs its time stays, however many come after it from elsewhere, and gets in.
static void a_flood_from_elsewhere_drives_out_its_own(void **state)
{
    enum { CROWD = 400, ADDRESSES = 4 };
    static int crowd[CROWD];
    struct harness_server server;
    struct harness_client peer;
    start(&server);
    open_client(&peer, server.address);
    struct stranger member = stranger_connect(server.address, rig_folder(&ca, RPC_ROLE_GATEWAY), 0);
    for (uint32_t i = 0; i < CROWD; i++) {
        crowd[i] = connect_from(server.address, 2 + i % ADDRESSES);
        assert_true(crowd[i] >= 0);
    }
    for (uint32_t i = 0; i <= CROWD - IN_HANDSHAKE_MAX; i++)
        AWAIT(usleep(1000), is_closed(crowd[i]));
    assert_false(is_closed(member.socket.fd));
    assert_int_equal(SSL_connect(member.ssl), 1);
    assert_serves(&peer, server.address);
    for (uint32_t i = 0; i < CROWD; i++)
        close(crowd[i]);
    stranger_close(&member);
    harness_close(&peer);
    harness_stop(&server);
}

struct flood {
    const char *address;
    atomic_bool stop;
    atomic_uint connected;
};

// About 1,000 a second, as far as the machine can. The latest ones are held: the server has ended those before them.
static void *flood_main(void *arg)
{
    enum { HELD = 400, EVERY_US = 10000, AT_A_TIME = 10, ADDRESSES = 4 };
    struct flood *flood = arg;
    int held[HELD];
    uint32_t count = 0;

    memset(held, -1, sizeof held);
    for (; !atomic_load(&flood->stop); usleep(EVERY_US))
        for (uint32_t i = 0; i < AT_A_TIME; i++, count++) {
            int *slot = &held[count % HELD];
            if (*slot >= 0)
                close(*slot);
            *slot = connect_from(flood->address, 2 + count % ADDRESSES);
            atomic_fetch_add(&flood->connected, *slot >= 0);
        }
    for (uint32_t i = 0; i < HELD; i++)
        if (held[i] >= 0)
            close(held[i]);
    return NULL;
}

// Twenty seconds long with FD_ALL; otherwise until a few members have come in.
static void members_get_in_during_a_flood(void **state)
{
    enum { MEMBERS_AT_LEAST = 4, LONG_S = 20, FLOODED_AT_LEAST = 3 * IN_HANDSHAKE_MAX };
    const uint64_t until_us = clock_now_us() + (getenv("FD_ALL") ? LONG_S * 1000000ull : 0);
    struct harness_server server;
    struct harness_client peer;
    pthread_t thread;
    start(&server);
    open_client(&peer, server.address);
    struct flood flood = {.address = server.address};
    assert_int_equal(pthread_create(&thread, NULL, flood_main, &flood), 0);
    AWAIT(usleep(1000), atomic_load(&flood.connected) >= FLOODED_AT_LEAST);
    for (uint32_t members = 0; members < MEMBERS_AT_LEAST || clock_now_us() < until_us; members++)
        assert_serves(&peer, server.address);
    atomic_store(&flood.stop, true);
    pthread_join(thread, NULL);
    assert_int_equal(peer.downs, 0);
    harness_close(&peer);
    harness_stop(&server);
}

// A ClientHello, byte by byte: the time for a handshake does not begin anew with each byte.
static void a_handshake_has_a_deadline_however_it_trickles(void **state)
{
    static const unsigned char hello[] = {0x16, 0x03, 0x01, 0x40, 0, 0x01, 0, 0x3f, 0xfc, 0x03, 0x03};
    struct harness_server server;
    struct harness_client peer;
    uint32_t sent = 0;
    start(&server);
    open_client(&peer, server.address);
    struct frame_socket slow = frame_connect(server.address);
    struct stranger silent = stranger_connect(server.address, NULL, 0);
    AWAIT((usleep(20000), frame_write(&slow, hello + (sent < sizeof hello ? sent : 0), 1), sent++),
          is_closed(slow.fd) && is_closed(silent.socket.fd));
    assert_true(sent > sizeof hello);
    AWAIT(usleep(1000), kept_log_count("TLS-REFUSED", silent.name, "no handshake in time") +
                                kept_log_count("TLS-REFUSED", "no handshake in time", "suppressed") >=
                            1);
    assert_answers(&peer);
    close(slow.fd);
    stranger_close(&silent);
    harness_close(&peer);
    harness_stop(&server);
}

static void records_and_messages_that_are_too_long_are_refused(void **state)
{
    static const unsigned char records[][12] = {
        {0x16, 0x03, 0x03, 0xff, 0xff, 0x01},                               // a record of 64 KiB
        {0x16, 0x03, 0x03, 0x00, 0x04, 0x01, 0xff, 0xff, 0xff},             // a ClientHello of 16 MiB
        {0x17, 0x03, 0x03, 0x00, 0x05, 'h', 'e', 'l', 'l', 'o'},            // data before the handshake
        {0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x28},                         // an alert
        {0x80, 0x2e, 0x01, 0x00, 0x02, 0x00, 0x15, 0x00, 0x00, 0x00, 0x10}, // SSL 2
    };
    static unsigned char rest[1 << 16];
    struct harness_server server;
    struct harness_client peer;
    start(&server);
    open_client(&peer, server.address);
    for (size_t i = 0; i < ARRAY_COUNT(records); i++) {
        struct frame_socket stranger = frame_connect(server.address);
        assert_true(frame_write(&stranger, records[i], sizeof records[i]));
        (void)!send(stranger.fd, rest, sizeof rest, MSG_NOSIGNAL | MSG_DONTWAIT);
        AWAIT((usleep(1000), recv(stranger.fd, rest, sizeof rest, MSG_DONTWAIT)),
              !recv(stranger.fd, rest, 1, MSG_DONTWAIT) || errno == ECONNRESET);
        close(stranger.fd);
        assert_answers(&peer);
    }
    harness_close(&peer);
    harness_stop(&server);
}

// --- in and after it ---

static void a_flood_of_handshakes_fills_neither_the_log_nor_the_port(void **state)
{
    enum { FLOOD = 300 };
    const struct certificate_request request = {.role = RPC_ROLE_GATEWAY, .days = 10};
    struct harness_server server;
    struct harness_client peer;
    start(&server);
    open_client(&peer, server.address);
    rig_write(bad_folder, &other_ca, &other_ca, &request);
    for (int i = 0; i < FLOOD; i++) {
        struct stranger stranger = stranger_connect(server.address, i % 2 ? bad_folder : NULL, 0);
        assert_true(stranger_is_refused(&stranger));
        stranger_close(&stranger);
        if (i % 50 == 49)
            assert_serves(&peer, server.address);
    }
    assert_in_range(kept_log_count("TLS-REFUSED", NULL, NULL), 2, 20); // not 300
    harness_close(&peer);
    harness_stop(&server);
}

// It has a good certificate, and announces more than a hello may have. It goes before the time for a hello is over, which a silent one has.
static void a_peer_says_hello_before_it_says_much(void **state)
{
    static const unsigned char head[] = "FDR1\x01\0\x01\0\x08\x01";
    struct harness_server server;
    struct harness_client peer;
    char byte;
    start(&server);
    open_client(&peer, server.address);
    struct stranger silent = stranger_connect(server.address, rig_folder(&ca, RPC_ROLE_GATEWAY), 0);
    assert_int_equal(SSL_connect(silent.ssl), 1);
    struct stranger stranger = stranger_connect(server.address, rig_folder(&ca, RPC_ROLE_GATEWAY), 0);
    assert_int_equal(SSL_connect(stranger.ssl), 1);
    assert_int_equal(SSL_write(stranger.ssl, head, sizeof head - 1), sizeof head - 1);
    assert_true(SSL_read(stranger.ssl, &byte, 1) <= 0);
    assert_false(is_closed(silent.socket.fd));
    stranger_close(&stranger);
    stranger_close(&silent);
    assert_serves(&peer, server.address);
    harness_close(&peer);
    harness_stop(&server);
}

// Changed on the way: the connection ends, and nothing of it is handed on.
static void a_record_that_was_changed_ends_the_connection(void **state)
{
    struct harness_server server;
    struct harness_client peer;
    start(&server);
    open_client(&peer, server.address);
    struct stranger stranger = stranger_connect(server.address, rig_folder(&ca, RPC_ROLE_GATEWAY), 0);
    assert_int_equal(SSL_connect(stranger.ssl), 1);
    static const unsigned char record[] = {0x17, 0x03, 0x03, 0,   32,  'n', 'o', 't', ' ', 'o', 'f', ' ', 'i',
                                           't',  's',  ' ',  'k', 'e', 'y', 0,   0,   0,   0,   0,   0,   0,
                                           0,    0,    0,    0,   0,   0,   0,   0,   0,   0,   0};
    assert_true(frame_write(&stranger.socket, record, sizeof record));
    AWAIT(usleep(1000), kept_log_count("TLS-REFUSED", stranger.name, server.address) == 1);
    stranger_close(&stranger);
    assert_serves(&peer, server.address);
    harness_close(&peer);
    harness_stop(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_oldest_of_too_many_silent_peers_go),
        cmocka_unit_test(a_flood_from_elsewhere_drives_out_its_own),
        cmocka_unit_test(members_get_in_during_a_flood),
        cmocka_unit_test(a_handshake_has_a_deadline_however_it_trickles),
        cmocka_unit_test(records_and_messages_that_are_too_long_are_refused),
        cmocka_unit_test(a_flood_of_handshakes_fills_neither_the_log_nor_the_port),
        cmocka_unit_test(a_peer_says_hello_before_it_says_much),
        cmocka_unit_test(a_record_that_was_changed_ends_the_connection),
    };
    kept_log_open();
    log_init("test", LOG_DEBUG, false);
    rig_ca_open(&ca);
    rig_ca_open(&other_ca);
    snprintf(bad_folder, sizeof bad_folder, "%.200s/bad", ca.folder);
    server_security = rig_security(rig_folder(&ca, RPC_ROLE_SCHEDULER));
    client_security = rig_security(rig_folder(&ca, RPC_ROLE_GATEWAY));
    int failed = cmocka_run_group_tests_name("tls floods", tests, NULL, NULL);
    rpc_security_close(&server_security);
    rpc_security_close(&client_security);
    rig_ca_close(&ca);
    rig_ca_close(&other_ca);
    return kept_log_show(failed);
}
