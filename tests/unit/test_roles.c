// test_roles.c: which service a certificate is for, which may call what, and which addresses need one.
#include <stdio.h>
#include <string.h>

#include "attend.pb-c.h"
#include "cluster.pb-c.h"
#include "common/base/checked.h"
#include "common/rpc/address.h"
#include "common/rpc/roles.h"
#include "common/rpc/security.h"
#include "envelope.pb-c.h"
#include "generate.pb-c.h"
#include "step.pb-c.h"
#include "tests/cmocka.h"
#include "view.pb-c.h"

static const ProtobufCServiceDescriptor *const services[] = {
    &fastdecode__health__descriptor,      &fastdecode__generator__descriptor, &fastdecode__cluster__descriptor,
    &fastdecode__spart__descriptor,       &fastdecode__kv_worker__descriptor, &fastdecode__kv_control__descriptor,
    &fastdecode__kv_handover__descriptor, &fastdecode__viewer__descriptor,
};

// A method that proto/ gains and the table of roles.c lacks could be called by nobody over TLS.
static void every_method_has_its_callers(void **state)
{
    for (size_t s = 0; s < ARRAY_COUNT(services); s++)
        for (unsigned m = 0; m < services[s]->n_methods; m++) {
            const char *method = services[s]->methods[m].name;
            const uint32_t callers = rpc_roles_that_may_call(services[s], method);
            if (!callers || callers & ~(uint32_t)RPC_IS_ANY)
                fail_msg("%s/%s: callers %x", services[s]->name, method, callers);
        }
    assert_int_equal(rpc_roles_that_may_call(services[0], "Nothing"), 0);
    // a method is that of its service
    assert_int_equal(rpc_roles_that_may_call(&fastdecode__generator__descriptor, "Check"), 0);
}

static void a_role_is_named_exactly(void **state)
{
    static const char *const wrong[] = {"",
                                        "fastdecode://role/",
                                        "fastdecode://role/kv-worker/",
                                        "fastdecode://role/kv-worke",
                                        "fastdecode://role/KV-WORKER",
                                        "fastdecode://role/kv-worker?x",
                                        "Fastdecode://role/kv-worker",
                                        "fastdecode://role/no role",
                                        "fastdecode://roles/gateway",
                                        "kv-worker"};
    char text[64];
    for (enum rpc_role role = RPC_ROLE_NONE + 1; role < RPC_ROLES; role++) {
        snprintf(text, sizeof text, RPC_ROLE_URI "%s", rpc_role_name(role));
        assert_int_equal(rpc_role_of_uri(text, strlen(text)), role);
        assert_int_equal(rpc_role_of_uri(text, strlen(text) + 1), RPC_ROLE_NONE); // a zero byte and more
        assert_int_equal(rpc_role_named(rpc_role_name(role), strlen(rpc_role_name(role))), role);
    }
    for (size_t i = 0; i < ARRAY_COUNT(wrong); i++)
        if (rpc_role_of_uri(wrong[i], strlen(wrong[i])) != RPC_ROLE_NONE)
            fail_msg("'%s' names a role", wrong[i]);
}

static void roles_are_said_in_words(void **state)
{
    char text[80];
    assert_string_equal(rpc_roles_text(RPC_IS_S_PART | RPC_IS_KV_WORKER, text, sizeof text), "an s-part or a kv-worker");
    assert_string_equal(rpc_roles_text(0, text, sizeof text), "");
    assert_string_equal(rpc_roles_text(RPC_IS_ANY, text, 8), "a gatew"); // cut
}

static void addresses_are_taken_apart(void **state)
{
    static const struct {
        const char *address, *host, *port;
    } good[] = {{"tls+tcp://10.0.0.1:7400", "10.0.0.1", "7400"},
                {"tls+tcp://[::1]:0", "::1", "0"},
                {"tls+tcp://*:1", "", "1"},
                {"tls+tcp://:65535", "", "65535"},
                {"tcp://a.example:1", "a.example", "1"}};
    static const char *const bad[] = {
        "",         "tls+tcp://", "tls+tcp://host", "tls+tcp://host:", "tls+tcp://host:123456", "tls+tcp://[::1]", "tls+tcp://h:1x",
        "ipc://h:1"};
    char host[ADDRESS_HOST_BYTES], port[ADDRESS_PORT_BYTES], text[400];
    for (size_t i = 0; i < ARRAY_COUNT(good); i++) {
        assert_true(address_split(good[i].address, host, port));
        assert_string_equal(host, good[i].host);
        assert_string_equal(port, good[i].port);
    }
    for (size_t i = 0; i < ARRAY_COUNT(bad); i++)
        if (address_split(bad[i], host, port))
            fail_msg("%s has host '%s' and port '%s'", bad[i], host, port);
    for (int length = ADDRESS_HOST_BYTES - 1; length <= ADDRESS_HOST_BYTES; length++) {
        snprintf(text, sizeof text, "tls+tcp://%0*d:1", length, 1);
        assert_int_equal(address_split(text, host, port), length < ADDRESS_HOST_BYTES);
    }
}

// Checks what each kind of address requires before it may be listened on and connected to.
static void an_address_beyond_this_machine_wants_protection(void **state)
{
    static struct rpc_tls *const some_tls = (struct rpc_tls *)&some_tls; // never looked into
    static const struct {
        const char *address;
        bool plain, secret, insecure, insecure_secret, tls; // may be listened on with these
        bool dialed_plain, dialed_insecure, dialed_tls;     // may be connected to
    } cases[] = {
        {"ipc:///x", true, true, true, true, true, true, true, true},
        {"inproc://x", true, true, true, true, true, true, true, true},
        {"tcp://127.0.0.1:1", true, true, true, true, true, true, true, true},
        {"tcp://[::1]:1", true, true, true, true, true, true, true, true},
        {"tcp://localhost:1", true, true, true, true, true, true, true, true},
        {"tcp://0.0.0.0:1", false, false, false, true, false, false, true, false},
        {"tcp://:1", false, false, false, true, false, false, true, false},
        {"tcp4://10.0.0.1:1", false, false, false, true, false, false, true, false},
        {"tcp6://[fe80::1]:1", false, false, false, true, false, false, true, false},
        {"tls+tcp://0.0.0.0:1", false, false, false, false, true, false, false, true},
        {"tls+tcp://127.0.0.1:1", false, false, false, false, true, false, false, true},
        {"ws://127.0.0.1:1", false, false, false, false, false, false, false, false},
        {"tls+tcp4://127.0.0.1:1", false, false, false, false, false, false, false, false},
        {"nonsense", false, false, false, false, false, false, false, false},
    };
    const struct rpc_security plain = {0}, secret = {.secret.is_set = true}, insecure = {.is_insecure = true},
                              insecure_secret = {.secret.is_set = true, .is_insecure = true}, tls = {.tls = some_tls};
    struct error error;
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        const char *address = cases[i].address;
        const struct {
            const struct rpc_security *security;
            bool listens, dials;
        } with[] = {{&plain, cases[i].plain, cases[i].dialed_plain},
                    {&secret, cases[i].secret, cases[i].dialed_plain},
                    {&insecure, cases[i].insecure, cases[i].dialed_insecure},
                    {&insecure_secret, cases[i].insecure_secret, cases[i].dialed_insecure},
                    {&tls, cases[i].tls, cases[i].dialed_tls}};
        for (size_t w = 0; w < ARRAY_COUNT(with); w++) {
            if (with[w].listens != !rpc_security_allows_listening(with[w].security, "x", address, &error))
                fail_msg("%s, case %zu: listening", address, w);
            if (with[w].dials != !rpc_security_allows_dialing(with[w].security, address, &error))
                fail_msg("%s, case %zu: connecting", address, w);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_method_has_its_callers),
        cmocka_unit_test(a_role_is_named_exactly),
        cmocka_unit_test(roles_are_said_in_words),
        cmocka_unit_test(addresses_are_taken_apart),
        cmocka_unit_test(an_address_beyond_this_machine_wants_protection),
    };
    return cmocka_run_group_tests_name("roles", tests, NULL, NULL);
}
