// test_gateway_parts.c: the gateway's small parts: keys, addresses of clients, the work pool.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "services/gateway/http/addresses.h"
#include "services/gateway/http/keys.h"
#include "services/gateway/http/work_pool.h"
#include "tests/cmocka.h"

// --- keys ------------------------------------------------------------------------------------------------------------
static struct keys *keys_of(const char *text)
{
    char path[] = "/tmp/fd-keys-XXXXXX";
    struct error error;
    struct keys *keys;
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    if (keys_open(path, &keys, &error) != STATUS_OK)
        keys = NULL;
    unlink(path);
    return keys;
}

static void test_keys(void **state)
{
    struct keys *keys = keys_of("# a comment\n\n  first-key \nsecond\r\nsecond\n");
    char longest[600] = "Bearer ";

    assert_non_null(keys);
    assert_int_equal(keys_count(keys), 2);
    assert_non_null(keys_find(keys, "Bearer first-key"));
    assert_non_null(keys_find(keys, "bearer   second"));
    assert_ptr_not_equal(keys_find(keys, "Bearer first-key"), keys_find(keys, "Bearer second"));
    assert_null(keys_find(keys, ""));
    assert_null(keys_find(keys, "Bearer "));
    assert_null(keys_find(keys, "Bearer secon"));
    assert_null(keys_find(keys, "Bearer second "));
    assert_null(keys_find(keys, "Bearer # a comment"));
    assert_null(keys_find(keys, "Basic second"));
    memset(longest + 7, 'x', sizeof longest - 8);
    assert_null(keys_find(keys, longest));
    keys_close(keys);
    assert_null(keys_of("# none\n"));
}

// Every gateway names a key's owner alike. The name was computed by Python: hashlib.blake2b(b"alpha", digest_size=16,
// person=b"fastdecode owner").
static void test_tenants(void **state)
{
    struct keys *one = keys_of("alpha\nbeta\n"), *other = keys_of("gamma\nbeta\nalpha\n");
    const char *alpha = keys_find(one, "Bearer alpha")->tenant, *beta = keys_find(one, "Bearer beta")->tenant;

    assert_string_equal(alpha, "key-1bd734ce24b408475b82d536c61c7dcb");
    assert_string_equal(alpha, keys_find(other, "Bearer alpha")->tenant);
    assert_string_equal(beta, keys_find(other, "Bearer beta")->tenant);
    assert_string_not_equal(alpha, beta);
    keys_close(one);
    keys_close(other);
}

static void test_many_keys(void **state)
{
    enum { MANY = 4096 };
    char *text = malloc(MANY * 16), *at = text, given[32];
    struct keys *keys;
    uint32_t i;

    for (i = 0; i < MANY; i++)
        at += sprintf(at, "key-%u\n", i);
    keys = keys_of(text);
    assert_non_null(keys);
    assert_int_equal(keys_count(keys), MANY);
    for (i = 0; i < MANY + 100; i++) {
        snprintf(given, sizeof given, "Bearer key-%u", i);
        assert_int_equal(keys_find(keys, given) != NULL, i < MANY);
    }
    keys_close(keys);
    free(text);
}

// --- addresses -------------------------------------------------------------------------------------------------------
static const struct sockaddr *parse(const char *text)
{
    static struct sockaddr_in v4;
    static struct sockaddr_in6 v6;

    v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = (in_port_t)rand()};
    v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = (in_port_t)rand()};
    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1)
        return (const struct sockaddr *)&v4;
    assert_int_equal(inet_pton(AF_INET6, text, &v6.sin6_addr), 1);
    return (const struct sockaddr *)&v6;
}

static void test_addresses(void **state)
{
    struct addresses *addresses = addresses_open(4);

    addresses_add(addresses, parse("10.0.0.1"));
    addresses_add(addresses, parse("10.0.0.1"));
    addresses_add(addresses, parse("::ffff:10.0.0.1")); // the same host
    addresses_add(addresses, parse("10.0.0.2"));
    addresses_add(addresses, parse("2001:db8:1:2::3"));
    addresses_add(addresses, parse("2001:db8:1:2:ffff::4")); // the same network
    addresses_add(addresses, parse("2001:db8:1:3::3"));
    addresses_add(addresses, parse("10.0.0.3")); // beyond the capacity
    assert_int_equal(addresses_count(addresses, parse("10.0.0.1")), 3);
    assert_int_equal(addresses_count(addresses, parse("10.0.0.2")), 1);
    assert_int_equal(addresses_count(addresses, parse("10.0.0.3")), 0);
    assert_int_equal(addresses_count(addresses, parse("2001:db8:1:2::")), 2);
    assert_int_equal(addresses_count(addresses, parse("2001:db8:1:3::")), 1);
    addresses_remove(addresses, parse("10.0.0.3"));
    addresses_remove(addresses, parse("10.0.0.2"));
    addresses_add(addresses, parse("10.0.0.3"));
    assert_int_equal(addresses_count(addresses, parse("10.0.0.2")), 0);
    assert_int_equal(addresses_count(addresses, parse("10.0.0.3")), 1);
    addresses_close(addresses);
}

static void test_many_addresses(void **state)
{
    enum { MANY = 1000 };
    struct addresses *addresses = addresses_open(MANY);
    char text[32];
    uint32_t round, i;

    for (round = 0; round < 3; round++) {
        for (i = 0; i < MANY; i++) {
            snprintf(text, sizeof text, "10.1.%u.%u", i / 256, i % 256);
            addresses_add(addresses, parse(text));
        }
        for (i = 0; i < MANY; i++) {
            snprintf(text, sizeof text, "10.1.%u.%u", i / 256, i % 256);
            assert_int_equal(addresses_count(addresses, parse(text)), 1);
            addresses_remove(addresses, parse(text));
            assert_int_equal(addresses_count(addresses, parse(text)), 0);
        }
    }
    addresses_close(addresses);
}

static void test_loopback(void **state)
{
    assert_true(addresses_is_loopback(parse("127.0.0.1")));
    assert_true(addresses_is_loopback(parse("127.8.9.10")));
    assert_true(addresses_is_loopback(parse("::1")));
    assert_true(addresses_is_loopback(parse("::ffff:127.0.0.1")));
    assert_false(addresses_is_loopback(parse("128.0.0.1")));
    assert_false(addresses_is_loopback(parse("::2")));
    assert_false(addresses_is_loopback(parse("2001:db8::7f00:1")));
}

// --- the work pool ---------------------------------------------------------------------------------------------------
struct seen {
    int policy, priority;
};

static void look(void *arg, void *item)
{
    struct seen *seen = item;

    seen->policy = sched_getscheduler(0);
    seen->priority = getpriority(PRIO_PROCESS, 0);
}

// Threads for long work share locks with the polling thread, so they yield and yet are never without a core for long.
static void test_pool_priority(void **state)
{
    struct seen seen[2] = {{0}};
    uint32_t yields;

    for (yields = 0; yields < 2; yields++) {
        struct work_pool *pool;
        assert_int_equal(work_pool_start(1, 4, yields, look, NULL, &pool), STATUS_OK);
        assert_int_equal(work_pool_push(pool, &seen[yields]), STATUS_OK);
        work_pool_stop(pool);
        assert_int_equal(seen[yields].policy, SCHED_OTHER);
    }
    assert_int_equal(seen[0].priority, getpriority(PRIO_PROCESS, 0));
    assert_int_equal(seen[1].priority, 19);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),          cmocka_unit_test(test_tenants),  cmocka_unit_test(test_many_keys),
        cmocka_unit_test(test_addresses),     cmocka_unit_test(test_loopback), cmocka_unit_test(test_many_addresses),
        cmocka_unit_test(test_pool_priority),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
