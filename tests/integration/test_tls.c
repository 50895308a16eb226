// test_tls.c: over TLS only those talk whose certificates are of the mesh's CA, good, and for the right service, in either direction; whoever is
// refused gives one line of the log, with its address and the reason.
#include "attend.pb-c.h"
#include "cluster.pb-c.h"
#include "common/base/checked.h"
#include "common/base/log.h"
#include "generate.pb-c.h"
#include "tests/cmocka.h"
#include "tests/integration/rpc_harness.h"
#include "tests/integration/tls_strangers.h"

static struct rig_ca ca, other_ca;
static struct rpc_security securities[RPC_ROLES]; // of a good certificate each
static char bad_folder[RIG_PATH_BYTES];

static const struct rpc_method methods[] = {
    {&fastdecode__generator__descriptor, "Generate", harness_reach, NULL},
    {&fastdecode__cluster__descriptor, "RegisterMember", harness_reach, NULL},
    {&fastdecode__kv_control__descriptor, "Free", harness_reach, NULL},
};

// A scheduler that has a worker's method, too.
static void start(struct harness_server *server)
{
    *server =
        (struct harness_server){.config = {.methods = methods, .method_count = ARRAY_COUNT(methods), .hello.service = "scheduler"},
                                .security = &securities[RPC_ROLE_SCHEDULER]};
    atomic_store(&harness_reached, 0);
    kept_log_forget();
    harness_start(server, "tls+tcp://127.0.0.1:0");
}

static void open_client(struct harness_client *client, enum rpc_role role, const char *says, const char *address, uint32_t expects)
{
    *client = (struct harness_client){.security = &securities[role], .config = {.hello.service = says, .peer_roles = expects}};
    harness_open(client, address);
}

// Each role calls each method: who may and who may not.
static void a_certificate_says_what_its_owner_may_call(void **state)
{
    static const struct {
        enum rpc_role role;
        bool may[ARRAY_COUNT(methods)];
    } cases[] = {
        {RPC_ROLE_GATEWAY, {true, false, false}},
        {RPC_ROLE_SCHEDULER, {false, false, true}},
        {RPC_ROLE_S_PART, {false, true, false}},
        {RPC_ROLE_KV_WORKER, {false, true, false}},
    };
    struct harness_server server;
    uint32_t expected = 0;
    char listening[300];
    start(&server);
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct harness_client client;
        open_client(&client, cases[i].role, rpc_role_name(cases[i].role), server.address, RPC_IS_SCHEDULER);
        HARNESS_UNTIL(&client, client.ups == 1);
        for (size_t m = 0; m < ARRAY_COUNT(methods); m++) {
            struct harness_result result = harness_call(&client, methods[m].service, methods[m].method);
            assert_int_equal(result.status, cases[i].may[m] ? STATUS_ABORTED : STATUS_PERMISSION_DENIED);
            expected += cases[i].may[m];
            if (!cases[i].may[m])
                assert_non_null(strstr(result.error, rpc_role_name(cases[i].role)));
        }
        assert_int_equal(client.downs, 0);
        harness_close(&client);
    }
    snprintf(listening, sizeof listening, "at=\"%s\"", server.address);
    harness_stop(&server);
    assert_int_equal(atomic_load(&harness_reached), expected);
    assert_int_equal(kept_log_count("TLS-REFUSED", "KvControl/Free is for a scheduler", "for a kv-worker"), 1);
    assert_int_equal(kept_log_count("TLS-REFUSED", "Generator/Generate is for a gateway", "peer=\"127.0.0.1:"), 3);
    assert_int_equal(kept_log_count("TLS-REFUSED", " is for a ", listening), ARRAY_COUNT(cases) * ARRAY_COUNT(methods) - expected);
}

// A kv-worker's certificate does not make an s-part.
static void a_peer_says_hello_as_what_its_certificate_is_for(void **state)
{
    struct harness_server server;
    struct harness_client client;
    char listening[300];
    start(&server);
    open_client(&client, RPC_ROLE_KV_WORKER, "s-part", server.address, RPC_IS_SCHEDULER);
    HARNESS_UNTIL(&client, client.downs >= 2); // it tries again
    assert_int_equal(client.ups, 0);
    assert_non_null(strstr(client.why, "the certificate of this peer is for a kv-worker, and it says hello as s-part"));
    harness_close(&client);
    open_client(&client, RPC_ROLE_KV_WORKER, RPC_PROBE_NAME, server.address, RPC_IS_ANY); // a probe may have anyone's
    HARNESS_UNTIL(&client, client.ups == 1);
    harness_close(&client);
    snprintf(listening, sizeof listening, "at=\"%s\"", server.address);
    harness_stop(&server);
    assert_int_equal(kept_log_count("TLS-REFUSED", "peer=\"127.0.0.1:", "for a kv-worker, and it says hello as s-part"), 1);
    assert_int_equal(kept_log_count("TLS-REFUSED", listening, "it says hello as s-part"), 1);
}

// --- clients ---

// Writes a certificate that is signed by `signer` into the folder for bad ones, and returns it.
static const char *bad_certificate(const struct rig_ca *signer, double days)
{
    const struct certificate_request request = {.role = RPC_ROLE_GATEWAY, .days = days};
    rig_write(bad_folder, signer, signer, &request);
    return bad_folder;
}

static void clients_without_a_good_certificate_are_refused(void **state)
{
    static const struct {
        const char *name, *why;
        bool has_certificate, of_other_ca, is_ca;
        double days;
    } cases[] = {
        {.name = "none", .why = "it has no certificate"},
        {"another CA's", "its certificate is of a CA that is not in ca.pem", true, true, false, 10},
        {"expired", "its certificate has expired", true, false, false, -1},
        {"another CA's own", "its certificate is self-signed, and not in ca.pem", true, true, true, 10},
    };
    struct harness_server server;
    start(&server);
    for (int version = TLS1_2_VERSION; version <= TLS1_3_VERSION; version++)
        for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
            const struct rig_ca *signer = cases[i].of_other_ca ? &other_ca : &ca;
            if (cases[i].is_ca)
                rig_write_ca(bad_folder, signer);
            else if (cases[i].has_certificate)
                bad_certificate(signer, cases[i].days);
            struct stranger stranger = stranger_connect(server.address, cases[i].has_certificate ? bad_folder : NULL, version);
            if (!stranger_is_refused(&stranger))
                fail_msg("%s: not refused", cases[i].name);
            if (version == TLS1_2_VERSION)
                AWAIT(usleep(1000), kept_log_count("TLS-REFUSED", cases[i].why, stranger.name) == 1);
            stranger_close(&stranger);
        }
    assert_int_equal(kept_log_count("TLS-REFUSED", NULL, NULL), ARRAY_COUNT(cases)); // the same host for the same reason: once
    assert_int_equal(kept_log_count("TLS-REFUSED", "peer=\"127.0.0.1:", "at=\"tls+tcp://127.0.0.1:"), ARRAY_COUNT(cases));
    harness_stop(&server);
    assert_int_equal(atomic_load(&harness_reached), 0);
}

// A good chain, and no role or two of them.
static void a_certificate_without_one_role_is_none_of_ours(void **state)
{
    struct harness_server server;
    const struct certificate_request request = {.days = 10}; // role NONE: it is a CA, signed by ours
    start(&server);
    rig_write(bad_folder, &ca, &ca, &request);
    struct stranger stranger = stranger_connect(server.address, bad_folder, 0);
    assert_true(stranger_is_refused(&stranger));
    AWAIT(usleep(1000), kept_log_count("TLS-REFUSED", stranger.name, "none of a service") == 1);
    stranger_close(&stranger);
    harness_stop(&server);
}

static void only_tls_1_2_and_later_is_spoken(void **state)
{
    static const struct {
        int version;
        const char *line;
    } cases[] = {{TLS1_VERSION, NULL},
                 {TLS1_1_VERSION, NULL},
                 {TLS1_2_VERSION, "cipher=\"TLSv1.2 ECDHE-ECDSA-AES128-GCM"},
                 {TLS1_3_VERSION, "cipher=\"TLSv1.3 "}};
    struct harness_server server;
    start(&server);
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct stranger peer = stranger_connect(server.address, rig_folder(&ca, RPC_ROLE_GATEWAY), cases[i].version);
        if (cases[i].line) {
            assert_int_equal(SSL_connect(peer.ssl), 1);
            AWAIT(usleep(1000), kept_log_count("TLS-LINK", peer.name, cases[i].line) == 1);
        } else {
            assert_int_not_equal(SSL_connect(peer.ssl), 1);
        }
        stranger_close(&peer);
    }
    AWAIT(usleep(1000), kept_log_count("TLS-REFUSED", "it speaks no TLS of version 1.2 or later", NULL) == 1);
    harness_stop(&server);
}

static void plain_text_is_refused(void **state)
{
    struct harness_server server;
    struct harness_client client = {0};
    char plain[128];
    start(&server);
    snprintf(plain, sizeof plain, "%s", server.address + strlen("tls+"));
    harness_open(&client, plain);
    HARNESS_UNTIL(&client, client.downs >= 1);
    assert_int_equal(client.ups, 0);
    assert_non_null(strstr(client.why, "the peer speaks TLS: want its address with tls+tcp://"));
    harness_close(&client);
    struct frame_socket web = frame_connect(server.address);
    assert_true(frame_write(&web, "GET / HTTP/1.1\r\n\r\n", 18));
    char answer[64] = "";
    assert_false(frame_read(&web, answer, sizeof answer)); // an alert at most
    close(web.fd);
    AWAIT(usleep(1000), kept_log_count("TLS-REFUSED", "it does not speak TLS", NULL) == 1);
    harness_stop(&server);
}

// --- servers ---

static void a_client_trusts_no_server_without_a_good_certificate(void **state)
{
    const struct certificate_request elsewhere = {
        .role = RPC_ROLE_SCHEDULER, .days = 10, .hosts = (const char *const[]){"10.1.2.3", "scheduler.example"}, .host_count = 2};
    static const char *const whys[] = {"its certificate is of a CA that is not in ca.pem", "its certificate has expired",
                                       "its certificate is for a gateway, and a scheduler was expected",
                                       "its certificate does not name the host 127.0.0.1"};
    for (size_t i = 0; i < ARRAY_COUNT(whys); i++) {
        struct false_server server;
        struct harness_client client;
        kept_log_forget();
        if (i == 3)
            rig_write(bad_folder, &ca, &ca, &elsewhere);
        else
            bad_certificate(i == 0 ? &other_ca : &ca, i == 1 ? -1 : 10);
        false_server_start(&server, bad_folder);
        open_client(&client, RPC_ROLE_GATEWAY, "gateway", server.address, RPC_IS_SCHEDULER);
        HARNESS_UNTIL(&client, atomic_load(&server.accepted) >= 4 && kept_log_count("TLS-REFUSED", server.address, whys[i]));
        assert_int_equal(kept_log_count("TLS-REFUSED", NULL, NULL), 1); // it has tried more often
        assert_int_equal(client.ups, 0);
        harness_close(&client);
        false_server_stop(&server);
    }
}

// A channel opens only if it is told which service to expect at the other end, and has a certificate.
static void a_channel_needs_to_know_who_it_talks_to(void **state)
{
    struct rpc_channel_config config = {.address = "tls+tcp://127.0.0.1:1", .hello.service = "gateway"};
    struct rpc_channel *channel;
    struct rpc_loop *loop;
    struct error error;
    assert_int_equal(rpc_loop_open(&loop), STATUS_OK);
    assert_int_equal(rpc_channel_open(loop, &config, &channel, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "--tls"));
    rpc_loop_set_security(loop, &securities[RPC_ROLE_GATEWAY]);
    assert_int_equal(rpc_channel_open(loop, &config, &channel, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "nothing says which service"));
    config.peer_roles = RPC_IS_SCHEDULER;
    static const char *const open[] = {"tcp://10.0.0.1:7400", "tcp4://10.0.0.1:7400", "tcp://host:7400"};
    for (size_t i = 0; i < ARRAY_COUNT(open); i++) {
        config.address = open[i];
        assert_int_equal(rpc_channel_open(loop, &config, &channel, &error), STATUS_INVALID_ARGUMENT);
        assert_non_null(strstr(error.text, "--insecure"));
    }
    static const char *const unknown[] = {"ws://10.0.0.1:80", "tls+tcp4://10.0.0.1:7400", "abstract://x"};
    for (size_t i = 0; i < ARRAY_COUNT(unknown); i++) {
        config.address = unknown[i];
        assert_int_equal(rpc_channel_open(loop, &config, &channel, &error), STATUS_INVALID_ARGUMENT);
        assert_non_null(strstr(error.text, "want tls+tcp://HOST:PORT"));
    }
    rpc_loop_close(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_certificate_says_what_its_owner_may_call),
        cmocka_unit_test(a_peer_says_hello_as_what_its_certificate_is_for),
        cmocka_unit_test(clients_without_a_good_certificate_are_refused),
        cmocka_unit_test(a_certificate_without_one_role_is_none_of_ours),
        cmocka_unit_test(only_tls_1_2_and_later_is_spoken),
        cmocka_unit_test(plain_text_is_refused),
        cmocka_unit_test(a_client_trusts_no_server_without_a_good_certificate),
        cmocka_unit_test(a_channel_needs_to_know_who_it_talks_to),
    };
    kept_log_open();
    log_init("test", LOG_DEBUG, false);
    rig_ca_open(&ca);
    rig_ca_open(&other_ca);
    snprintf(bad_folder, sizeof bad_folder, "%.200s/bad", ca.folder);
    for (enum rpc_role role = RPC_ROLE_NONE + 1; role < RPC_ROLES; role++)
        securities[role] = rig_security(rig_folder(&ca, role));
    int failed = cmocka_run_group_tests_name("tls", tests, NULL, NULL);
    for (enum rpc_role role = RPC_ROLE_NONE + 1; role < RPC_ROLES; role++)
        rpc_security_close(&securities[role]);
    rig_ca_close(&ca);
    rig_ca_close(&other_ca);
    return kept_log_show(failed);
}
