// test_tls_rotation.c: certificates change while services run: new connections use what was read last, those that exist go on unless their
// peer's certificate is not good any more, and files that are broken change nothing.
#include "common/base/checked.h"
#include "common/base/log.h"
#include "generate.pb-c.h"
#include "tests/cmocka.h"
#include "tests/integration/rpc_harness.h"
#include "tests/integration/tls_strangers.h"

static struct rig_ca ca, next_ca;

static const struct rpc_method methods[] = {{&fastdecode__generator__descriptor, "Generate", harness_reach, NULL}};

// A scheduler and a gateway, each with a folder of its own that a test changes.
struct pair {
    char server_folder[RIG_PATH_BYTES], client_folder[RIG_PATH_BYTES];
    struct rpc_security server_security, client_security;
    struct harness_server server;
    struct harness_client client;
};

static void write_for(const char *folder, const struct rig_ca *signer, const struct rig_ca *trusted, enum rpc_role role,
                      double days)
{
    const struct certificate_request request = {.role = role, .days = days};
    rig_write(folder, signer, trusted, &request);
}

static void open_client(struct pair *pair, struct harness_client *client)
{
    *client = (struct harness_client){.security = &pair->client_security,
                                      .config = {.hello.service = "gateway", .peer = "the server", .peer_roles = RPC_IS_SCHEDULER}};
    harness_open(client, pair->server.address);
}

// client_days: how long the gateway's certificate is good.
static void pair_open(struct pair *pair, const char *name, double client_days)
{
    kept_log_forget();
    *pair =
        (struct pair){.server.config = {.methods = methods, .method_count = ARRAY_COUNT(methods), .hello.service = "scheduler"}};
    snprintf(pair->server_folder, RIG_PATH_BYTES, "%.100s/%s-server", ca.folder, name);
    snprintf(pair->client_folder, RIG_PATH_BYTES, "%.100s/%s-client", ca.folder, name);
    write_for(pair->server_folder, &ca, &ca, RPC_ROLE_SCHEDULER, 10);
    write_for(pair->client_folder, &ca, &ca, RPC_ROLE_GATEWAY, client_days);
    pair->server_security = rig_security(pair->server_folder);
    pair->client_security = rig_security(pair->client_folder);
    pair->server.security = &pair->server_security;
    harness_start(&pair->server, "tls+tcp://127.0.0.1:0");
    open_client(pair, &pair->client);
    HARNESS_UNTIL(&pair->client, pair->client.ups == 1);
}

static void pair_close(struct pair *pair)
{
    harness_close(&pair->client);
    harness_stop(&pair->server);
    rpc_security_close(&pair->client_security);
    rpc_security_close(&pair->server_security);
}

static void assert_answers(struct harness_client *client)
{
    assert_int_equal(harness_call(client, &fastdecode__generator__descriptor, "Generate").status, STATUS_ABORTED);
}

// Waits for the reading that follows a change. asked: as by SIGHUP.
static void await_reload(struct pair *pair, const char *folder, struct rpc_security *security, bool asked)
{
    const uint32_t before = kept_log_count("TLS-RELOADED", folder, NULL);
    if (asked)
        rpc_tls_reload(security->tls);
    HARNESS_UNTIL(&pair->client, kept_log_count("TLS-RELOADED", folder, NULL) > before);
}

static void new_files_are_read_and_old_connections_go_on(void **state)
{
    struct pair pair;
    struct harness_client second;
    for (int asked = 0; asked <= 1; asked++) {
        pair_open(&pair, asked ? "asked" : "seen", 10);
        const uint32_t reloads = kept_log_count("TLS-RELOADED", pair.server_folder, NULL);
        write_for(pair.server_folder, &ca, &ca, RPC_ROLE_SCHEDULER, 20);
        if (asked)
            rpc_tls_reload(pair.server_security.tls);
        HARNESS_UNTIL(&pair.client, kept_log_count("TLS-RELOADED", pair.server_folder, NULL) > reloads);
        assert_answers(&pair.client);
        open_client(&pair, &second);
        HARNESS_UNTIL(&second, second.ups == 1);
        assert_answers(&second);
        assert_int_equal(pair.client.downs, 0);
        harness_close(&second);
        pair_close(&pair);
    }
}

// The way of docs/operations.md: trust both, give new certificates, trust the new one alone. No connection is lost until the last step, in which
// only that ends whose certificate is an old one.
static void a_ca_is_replaced(void **state)
{
    struct pair pair;
    struct harness_client renewed, late;
    pair_open(&pair, "replaced", 10);
    rig_trust_too(pair.server_folder, &next_ca);
    await_reload(&pair, pair.server_folder, &pair.server_security, true);
    write_for(pair.client_folder, &next_ca, &ca, RPC_ROLE_GATEWAY,
              10); // a new certificate; it trusts the old CA, which is the server's
    rig_trust_too(pair.client_folder, &next_ca);
    await_reload(&pair, pair.client_folder, &pair.client_security, true);
    open_client(&pair, &renewed);
    HARNESS_UNTIL(&renewed, renewed.ups == 1);
    assert_answers(&pair.client);
    assert_int_equal(pair.client.downs, 0);

    write_for(pair.server_folder, &next_ca, &next_ca, RPC_ROLE_SCHEDULER, 10);
    await_reload(&pair, pair.server_folder, &pair.server_security, true);
    AWAIT((rpc_loop_run(renewed.loop, 1000, 0), rpc_loop_run(pair.client.loop, 1000, 0)), pair.client.downs == 1);
    assert_int_equal(kept_log_count("TLS-ENDED", "peer=\"127.0.0.1:", "of a CA that is not in ca.pem"), 1);
    HARNESS_UNTIL(&pair.client, pair.client.ups == 2); // with the certificate that has been read since
    assert_answers(&renewed);
    assert_int_equal(renewed.downs, 0);
    harness_close(&renewed);

    struct rpc_security old = pair.client_security;
    char folder[RIG_PATH_BYTES];
    snprintf(folder, sizeof folder, "%.100s/left-behind", ca.folder);
    write_for(folder, &ca, &ca, RPC_ROLE_GATEWAY, 10);
    rig_trust_too(folder, &next_ca);
    pair.client_security = rig_security(folder);
    open_client(&pair, &late);
    HARNESS_UNTIL(&late, kept_log_count("TLS-REFUSED", "at=\"tls+tcp://127.0.0.1:", "of a CA that is not in ca.pem") == 1);
    assert_int_equal(late.ups, 0);
    harness_close(&late);
    rpc_security_close(&pair.client_security);
    pair.client_security = old;
    pair_close(&pair);
}

// A client that refuses the server's certificate goes on to say so, and not that nobody is there.
static void a_refused_server_is_not_away(void **state)
{
    struct pair pair;
    struct harness_client late;
    char folder[RIG_PATH_BYTES];
    pair_open(&pair, "refused", 10);
    struct rpc_security old = pair.client_security;
    snprintf(folder, sizeof folder, "%.100s/of-another-ca", ca.folder);
    write_for(folder, &next_ca, &next_ca, RPC_ROLE_GATEWAY, 10);
    pair.client_security = rig_security(folder);
    open_client(&pair, &late);
    HARNESS_UNTIL(&late, kept_log_count("PEER-UNREACHABLE", "peer=\"the server\"", "see TLS-REFUSED") == 1);
    assert_int_equal(kept_log_count("TLS-REFUSED", "of a CA that is not in ca.pem", NULL), 1);
    harness_close(&late);
    rpc_security_close(&pair.client_security);
    pair.client_security = old;
    pair_close(&pair);
}

static void write_text(const char *folder, const char *name, const char *text)
{
    char path[RIG_PATH_BYTES + 16];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_always(file && fputs(text, file) >= 0 && !fclose(file));
}

static void broken_files_change_nothing(void **state)
{
    struct pair pair;
    struct harness_client second;
    char good[RIG_PATH_BYTES], command[3 * RIG_PATH_BYTES];
    pair_open(&pair, "broken", 10);
    snprintf(good, sizeof good, "%.100s/broken-kept", ca.folder);
    snprintf(command, sizeof command, "cp -r %s %s", pair.server_folder, good);
    assert_int_equal(system(command), 0);
    for (int way = 0; way < 6; way++) {
        static const char *const whys[] = {"no certificate",
                                           "not the private key",
                                           "no CA's certificate",
                                           "key values mismatch",
                                           "peers would refuse it: its certificate has expired",
                                           "cert.pem: No such file"};
        const uint32_t before = kept_log_count("TLS-NOT-RELOADED", whys[way], NULL);
        snprintf(command, sizeof command, "cp %s/* %s", good, pair.server_folder);
        assert_int_equal(system(command), 0);
        snprintf(command, sizeof command, "true");
        if (way < 3)
            write_text(pair.server_folder, ((const char *const[]){"cert.pem", "key.pem", "ca.pem"})[way], "half a file");
        else if (way == 3)
            snprintf(command, sizeof command, "cp %s/key.pem %s", pair.client_folder, pair.server_folder);
        else if (way == 4)
            write_for(pair.server_folder, &ca, &ca, RPC_ROLE_SCHEDULER, -1);
        else
            snprintf(command, sizeof command, "rm %s/cert.pem", pair.server_folder);
        assert_int_equal(system(command), 0);
        rpc_tls_reload(pair.server_security.tls);
        HARNESS_UNTIL(&pair.client, kept_log_count("TLS-NOT-RELOADED", whys[way], NULL) > before);
        open_client(&pair, &second);
        HARNESS_UNTIL(&second, second.ups == 1);
        harness_close(&second);
    }
    assert_answers(&pair.client);
    assert_int_equal(pair.client.downs, 0);
    pair_close(&pair);
}

static void a_connection_ends_with_its_certificate(void **state)
{
    struct pair pair;
    pair_open(&pair, "ends", 2.0 / 86400);
    assert_answers(&pair.client);
    HARNESS_UNTIL(&pair.client, pair.client.downs >= 1);
    assert_true(kept_log_count("TLS-ENDED", "role=gateway", "its certificate has expired") >= 1);
    assert_true(kept_log_count("TLS-EXPIRES", "role=gateway", NULL) >= 1);
    pair_close(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new_files_are_read_and_old_connections_go_on),
        cmocka_unit_test(a_ca_is_replaced),
        cmocka_unit_test(a_refused_server_is_not_away),
        cmocka_unit_test(broken_files_change_nothing),
        cmocka_unit_test(a_connection_ends_with_its_certificate),
    };
    kept_log_open();
    log_init("test", LOG_DEBUG, false);
    rig_ca_open(&ca);
    rig_ca_open(&next_ca);
    int failed = cmocka_run_group_tests_name("tls rotation", tests, NULL, NULL);
    rig_ca_close(&ca);
    rig_ca_close(&next_ca);
    return kept_log_show(failed);
}
