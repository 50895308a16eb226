// test_own_address.c: where others reach a socket that listens on all interfaces.
#include <stdio.h>
#include <string.h>

#include "common/mesh/member.h"
#include "common/rpc/address.h"
#include "tests/cmocka.h"

static void which_addresses_are_everywhere(void **state)
{
    static const char *const yes[] = {"tcp://0.0.0.0:7402", "tls+tcp://0.0.0.0:1", "tcp://[::]:7402", "tls+tcp://*:7402",
                                      "tcp://:7402"};
    static const char *const no[] = {"tcp://10.0.0.0:7402", "tcp://127.0.0.1:7402",    "tls+tcp://[::1]:7", "ipc:///0.0.0.0:1",
                                     "tcp://0.0.0.0",       "tcp://0.0.0.0.example:1", "udp://0.0.0.0:1",   "",
                                     "inproc://*:1"};
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
        assert_true(rpc_address_is_everywhere(yes[i]));
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        assert_false(rpc_address_is_everywhere(no[i]));
}

// Towards an address the kernel says the interface; scheme and port stay.
static void the_way_to_the_scheduler(void **state)
{
    char out[128];
    assert_true(rpc_own_address("tls+tcp://0.0.0.0:7402", "tls+tcp://127.0.0.1:7400", out, sizeof out));
    assert_string_equal(out, "tls+tcp://127.0.0.1:7402");
    assert_true(rpc_own_address("tcp://[::]:9", "tcp://127.0.0.1:7400", out, sizeof out));
    assert_string_equal(out, "tcp://127.0.0.1:9");
    assert_false(rpc_own_address("tcp://[::]:9", "tcp://127.0.0.1:7400", out, 10));
    assert_false(rpc_own_address("tcp://[::]", "tcp://127.0.0.1:7400", out, sizeof out));
}

static void what_is_advertised(void **state)
{
    struct member_address address = {NULL, "tcp://10.1.2.3:7402", "tcp://127.0.0.1:7400", "advertise"};
    struct error error;
    char out[128];
    assert_int_equal(member_advertise(&address, out, sizeof out, &error), STATUS_OK);
    assert_string_equal(out, "tcp://10.1.2.3:7402"); // one interface only: that
    address.listening = "tcp://0.0.0.0:7402";
    assert_int_equal(member_advertise(&address, out, sizeof out, &error), STATUS_OK);
    assert_string_equal(out, "tcp://127.0.0.1:7402");
    address.given = "tcp://host:1";
    assert_int_equal(member_advertise(&address, out, sizeof out, &error), STATUS_OK);
    assert_string_equal(out, "tcp://host:1");
    address.given = "tcp://0.0.0.0:1";
    assert_int_equal(member_advertise(&address, out, sizeof out, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "--advertise"));
}

static void which_hosts_are_loopback(void **state)
{
    static const char *const yes[] = {"localhost", "::1", "127.0.0.1", "127.255.0.9"};
    static const char *const no[] = {"127.example.org", "127.0.0.1.example.org", "0.0.0.0", "::", "", "128.0.0.1", "127.0.0"};
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
        assert_true(rpc_host_is_loopback(yes[i]));
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        assert_false(rpc_host_is_loopback(no[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(which_hosts_are_loopback),
        cmocka_unit_test(which_addresses_are_everywhere),
        cmocka_unit_test(the_way_to_the_scheduler),
        cmocka_unit_test(what_is_advertised),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
