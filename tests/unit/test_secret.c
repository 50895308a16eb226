// test_secret.c: the file of the mesh secret, and which addresses need none.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/rpc/address.h"
#include "common/rpc/security.h"
#include "tests/cmocka.h"

static char path[64];

static void write_secret(const char *text, size_t length)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, length), length);
    close(fd);
}

static enum status read_text(const char *text, struct rpc_secret *out, struct error *error)
{
    write_secret(text, strlen(text));
    return rpc_secret_read(path, out, error);
}

static void a_secret_is_what_the_file_says(void **state)
{
    struct rpc_secret first, second;
    struct error error;
    assert_int_equal(read_text("correct horse battery", &first, &error), STATUS_OK);
    assert_true(first.is_set);
    assert_int_equal(read_text("correct horse battery \r\n\n", &second, &error), STATUS_OK);
    assert_memory_equal(first.key, second.key, sizeof first.key);
    assert_int_equal(read_text("correct horse batterY", &second, &error), STATUS_OK);
    assert_memory_not_equal(first.key, second.key, sizeof first.key);
}

static void no_file_is_no_secret(void **state)
{
    struct rpc_secret secret = {.is_set = true};
    struct error error;
    assert_int_equal(rpc_secret_read(NULL, &secret, &error), STATUS_OK);
    assert_false(secret.is_set);
    secret.is_set = true;
    assert_int_equal(rpc_secret_read("none", &secret, &error), STATUS_OK);
    assert_false(secret.is_set);
    assert_int_equal(rpc_secret_read("/nowhere/secret", &secret, &error), STATUS_NOT_FOUND);
    assert_non_null(strstr(error.text, "/nowhere/secret"));
}

static void a_weak_or_endless_one_is_an_error(void **state)
{
    struct rpc_secret secret;
    struct error error;
    assert_int_equal(read_text("", &secret, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(read_text("fifteen letters\n\n\n", &secret, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, path));
    assert_false(secret.is_set);
    assert_int_equal(rpc_secret_read("/dev/zero", &secret, &error), STATUS_INVALID_ARGUMENT);
    static char longest[RPC_SECRET_BYTES_MAX + 1];
    memset(longest, 'x', sizeof longest);
    write_secret(longest, RPC_SECRET_BYTES_MAX);
    assert_int_equal(rpc_secret_read(path, &secret, &error), STATUS_OK);
    write_secret(longest, sizeof longest);
    assert_int_equal(rpc_secret_read(path, &secret, &error), STATUS_INVALID_ARGUMENT);
}

static void one_that_others_can_read_is_an_error(void **state)
{
    const struct rpc_security_settings insecure = {.mesh_secret_file = path, .is_insecure = true}, none = {.is_insecure = true};
    const struct rpc_security_addresses nowhere = {.dials = NULL};
    struct rpc_security security;
    struct rpc_secret secret;
    struct error error;
    assert_int_equal(read_text("correct horse battery", &secret, &error), STATUS_OK);
    assert_int_equal(rpc_security_open(&insecure, "scheduler", &security, &error), STATUS_OK);
    rpc_security_close(&security);
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(rpc_secret_read(path, &secret, &error), STATUS_FAILED_PRECONDITION);
    assert_non_null(strstr(error.text, "--mesh-secret-file: "));
    assert_non_null(strstr(error.text, "chmod 600 "));
    assert_false(secret.is_set);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(rpc_security_check(&none, "scheduler", &nowhere, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "--insecure wants --mesh-secret-file"));
    assert_int_equal(rpc_security_open(&none, "scheduler", &security, &error), STATUS_INVALID_ARGUMENT);
}

static void a_created_one_is_new_and_private(void **state)
{
    struct rpc_secret first, second;
    struct error error;
    struct stat info;
    write_secret("x", 1);
    chmod(path, 0666);
    assert_int_equal(rpc_secret_create(path, &error), STATUS_OK);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(rpc_secret_read(path, &first, &error), STATUS_OK);
    assert_int_equal(rpc_secret_create(path, &error), STATUS_OK);
    assert_int_equal(rpc_secret_read(path, &second, &error), STATUS_OK);
    assert_memory_not_equal(first.key, second.key, sizeof first.key);
    assert_int_not_equal(rpc_secret_create("/nowhere/secret", &error), STATUS_OK);
}

static void only_this_machine_reaches_local_addresses(void **state)
{
    static const char *const local[] = {"ipc:///tmp/x.sock", "inproc://x",           "tcp://127.0.0.1:7400", "tcp://127.8.9.10:0",
                                        "tcp://[::1]:7400",  "tcp://localhost:7400", "tls+tcp://127.0.0.1:1"};
    static const char *const others[] = {"tcp://0.0.0.0:7400",
                                         "tcp://[::]:7400",
                                         "tcp://*:7400",
                                         "tcp://:7400",
                                         "tcp://10.0.0.1:7400",
                                         "tcp://host:7400",
                                         "tcp://127.evil:7400",
                                         "tcp://127.0.0.1.evil.org:1",
                                         "tcp://localhost.org:1",
                                         "tls+tcp://[::]:1",
                                         "abstract://x",
                                         "ws://127.0.0.1:80",
                                         "tcp://[::ffff:0:0]:1",
                                         "tcp://127.0.0:7400",
                                         "nonsense",
                                         ""};
    for (size_t i = 0; i < sizeof local / sizeof *local; i++)
        if (!rpc_address_is_local(local[i]))
            fail_msg("%s is local", local[i]);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (rpc_address_is_local(others[i]))
            fail_msg("%s is not local", others[i]);
}

static void a_tcp_address_ends_with_a_port(void **state)
{
    static const char *const good[] = {"tcp://127.0.0.1:7400", "tcp://[::1]:0", "tcp://:7400",
                                       "tls+tcp://host:1",     "ipc:///tmp/x",  "inproc://x"};
    static const char *const bad[] = {
        "tcp://localhost", "tcp://[::1]", "tcp://host:", "tcp://host:http", "tls+tcp://127.0.0.1", "tcp://"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (rpc_address_lacks_port(good[i]))
            fail_msg("%s is good", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (!rpc_address_lacks_port(bad[i]))
            fail_msg("%s lacks a port", bad[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_secret_is_what_the_file_says),
        cmocka_unit_test(no_file_is_no_secret),
        cmocka_unit_test(a_weak_or_endless_one_is_an_error),
        cmocka_unit_test(one_that_others_can_read_is_an_error),
        cmocka_unit_test(a_created_one_is_new_and_private),
        cmocka_unit_test(a_tcp_address_ends_with_a_port),
        cmocka_unit_test(only_this_machine_reaches_local_addresses),
    };
    snprintf(path, sizeof path, "/tmp/fd-test-secret-XXXXXX");
    int fd = mkstemp(path);
    if (fd < 0)
        return 1;
    close(fd);
    int failed = cmocka_run_group_tests_name("secret", tests, NULL, NULL);
    unlink(path);
    return failed;
}
