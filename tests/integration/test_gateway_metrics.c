// test_gateway_metrics.c: /metrics, which needs no key: what it costs the scheduler, and what it makes of the scheduler's text. The mesh
// is gateway_rig.h's.
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/cmocka.h"
#include "tests/integration/gateway_rig.h"

// There is no memory for a question to the scheduler (four pointers), where a test says so (not under sanitizers, which have their own calloc).
static atomic_bool lacks_memory;
static atomic_uint lacked;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { CAN_LACK = false };
#else
enum { CAN_LACK = true };
void *__libc_calloc(size_t count, size_t size);

void *calloc(size_t count, size_t size)
{
    if (!atomic_load(&lacks_memory) || count != 1 || size != 4 * sizeof(void *))
        return __libc_calloc(count, size);
    atomic_fetch_add(&lacked, 1);
    return NULL;
}
#endif

// A gateway of its own, so that the scheduler's text is not the one kept from another test.
static struct gateway *open_named(const char *model_name)
{
    struct gateway_config config = make_config();
    struct gateway *opened;
    struct error error;

    config.served_model_name = model_name;
    if (gateway_open(&config, &opened, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    wait_ready(gateway_port(opened));
    return opened;
}

// Many clients cost the scheduler one call a second.
static void test_scheduler_is_asked_once_a_second(void **state)
{
    enum { CLIENTS = 32, ROUNDS = 4 };
    struct http_reply replies[CLIENTS];
    uint64_t began_us = clock_now_us(), seconds;
    uint32_t i, round, before = fake_look(&fake).metrics_calls;

    for (round = 0; round < ROUNDS; round++) {
        for (i = 0; i < CLIENTS; i++)
            replies[i] = http_send(port, "GET", "/metrics", "", "");
        for (i = 0; i < CLIENTS; i++) {
            http_read_all(&replies[i]);
            assert_int_equal(http_status(&replies[i]), 200);
            assert_non_null(strstr(replies[i].data, "\nfastdecode_requests_running 5\n"));
            http_free(&replies[i]);
        }
    }
    seconds = (clock_now_us() - began_us) / 1000000;
    assert_in_range(fake_look(&fake).metrics_calls - before, 0, seconds + 1);
}

// Whether lines of the audit log were not written. The family is there before.
static bool audit_is_counted(uint32_t at)
{
    struct http_reply reply = http_call(at, "GET", "/metrics", "", "");
    bool counted;

    assert_non_null(strstr(reply.data, "fastdecode_gateway_not_written_total{what=\"audit\"} "));
    assert_non_null(strstr(reply.data, "fastdecode_gateway_not_written_total{what=\"log\"} "));
    counted = !strstr(reply.data, "fastdecode_gateway_not_written_total{what=\"audit\"} 0\n");
    http_free(&reply);
    return counted;
}

// A disk that takes no line of the audit log is counted: /dev/full is one.
static void test_audit_is_not_written(void **state)
{
    struct gateway_config config = make_config();
    struct gateway *opened;
    struct http_reply reply;
    struct error error;

    config.audit_file = "/dev/full";
    if (gateway_open(&config, &opened, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    reply = http_call(gateway_port(opened), "GET", "/health", "", "");
    assert_int_equal(http_status(&reply), 200);
    http_free(&reply);
    AWAIT(usleep(2000), audit_is_counted(gateway_port(opened))); // the line comes once the answer was sent
    gateway_close(opened);
}

// A disk that takes a part of a line loses that line alone: here a file may not grow beyond a few bytes.
static void test_a_torn_line_spoils_no_other(void **state)
{
    char path[] = "/tmp/fastdecode-audit-XXXXXX", text[4096] = "";
    struct gateway_config config = make_config();
    struct rlimit usual, small = {20, RLIM_INFINITY};
    struct gateway *opened;
    struct error error;

    FILE *file = fdopen(mkstemp(path), "w");
    fputs("torn", file); // before this start
    fclose(file);
    signal(SIGXFSZ, SIG_IGN);
    config.audit_file = path;
    assert_int_equal(gateway_open(&config, &opened, &error), STATUS_OK);
    getrlimit(RLIMIT_FSIZE, &usual);
    small.rlim_max = usual.rlim_max;
    setrlimit(RLIMIT_FSIZE, &small);
    for (int i = 0; i < 2; i++) {
        struct http_reply reply = http_call(gateway_port(opened), "GET", "/health", "", "");
        http_free(&reply);
        if (i == 0)
            AWAIT(usleep(2000), audit_is_counted(gateway_port(opened)));
        setrlimit(RLIMIT_FSIZE, &usual);
    }
    gateway_close(opened);
    file = fopen(path, "r");
    assert_int_equal(fread(text, 1, 20, file), 20);
    assert_memory_equal(text, "torn\n{", 6);
    while (fgets(text, sizeof text, file) && text[0] == '\n') {}
    assert_int_equal(text[0], '{');
    assert_non_null(strstr(text, "}\n"));
    fclose(file);
    unlink(path);
}

// Then the page is the gateway's own part.
static void test_no_memory_for_a_question(void **state)
{
    struct gateway *named;
    struct http_reply reply;

    if (!CAN_LACK)
        skip();
    named = open_named("tiny");
    atomic_store(&lacks_memory, true);
    reply = http_call(gateway_port(named), "GET", "/metrics", "", "");
    atomic_store(&lacks_memory, false);
    assert_int_equal(http_status(&reply), 200);
    assert_true(atomic_load(&lacked) > 0);
    assert_non_null(strstr(reply.data, "vllm:num_requests_running"));
    assert_null(strstr(reply.data, "\nfastdecode_requests_running 5\n"));
    http_free(&reply);
    gateway_close(named);
}

// Lines that are none would make the page unreadable for who scrapes it.
static void test_malformed_lines(void **state)
{
    static const char good[] = "# HELP fastdecode_x a \"text\" {\n# TYPE fastdecode_x gauge\nfastdecode_x{place=\"a.b-c_1\"} 1\n"
                               "fastdecode_x{place=\"q\\\"\\\\\\n\",kind=\"\"} 2.5e-3\nfastdecode_x +Inf\nfastdecode_x NaN\n";
    static const char bad[] =
        "fastdecode_y{place=\"a\"b\"} 1\nfastdecode_y{place=\"a\n\"} 1\nfastdecode_y{place=\"\\q\"} 1\n"
        "fastdecode_y{place=\"a\",} 1\nfastdecode_y{1=\"a\"} 1\nfastdecode_y\nfastdecode_y \nfastdecode_y 1x\n"
        "fastdecode_y  1\n1fastdecode_y 1\n# fastdecode_y\n# HELP fastdecode_y\n\nfastdecode_y{} 1\n"
        "fastdecode_y{place=\"a\"}1\nfastdecode_y 1 2 3\n";
    char text[sizeof good + sizeof bad + 32];
    struct gateway *named;
    struct http_reply reply;

    snprintf(text, sizeof text, "%s%sfastdecode_y 12", bad, good); // and the last line is cut off
    fake_set_metrics(&fake, text);
    named = open_named("a \"b\"\\\n\x01");
    reply = http_call(gateway_port(named), "GET", "/metrics", "", "");
    fake_set_metrics(&fake, NULL);
    assert_non_null(strstr(reply.data, good));
    assert_null(strstr(reply.data, "fastdecode_y"));
    assert_non_null(strstr(reply.data, "vllm:num_requests_running{model_name=\"a \\\"b\\\"\\\\\\n\x01\"} 0\n"));
    http_free(&reply);
    gateway_close(named);
}

// The metrics of a mesh with 256 places.
static void test_long_text(void **state)
{
    enum { LINES = 20000 };
    char *text = malloc(LINES * 64), *at = text;
    struct gateway *named;
    struct http_reply reply;
    uint32_t i;

    for (i = 0; i < LINES; i++)
        at += sprintf(at, "fastdecode_place_load_tokens{place=\"worker-%u\"} %u\n", i, i);
    fake_set_metrics(&fake, text);
    named = open_named("tiny");
    reply = http_call(gateway_port(named), "GET", "/metrics", "", "");
    fake_set_metrics(&fake, NULL);
    assert_int_equal(http_count(&reply, "\nfastdecode_place_load_tokens{"), LINES);
    http_free(&reply);
    gateway_close(named);
    free(text);
}

int main(int argc, char **argv)
{
#define CASE(fn) cmocka_unit_test_setup(fn, reset)
    const struct CMUnitTest tests[] = {
        CASE(test_scheduler_is_asked_once_a_second), CASE(test_audit_is_not_written), CASE(test_a_torn_line_spoils_no_other),
        CASE(test_no_memory_for_a_question),         CASE(test_malformed_lines),      CASE(test_long_text),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
