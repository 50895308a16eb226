// test_multipart.c: bodies of multipart/form-data, cut into pieces anywhere.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "services/gateway/batch/multipart.h"
#include "tests/cmocka.h"

#define TYPE "multipart/form-data; boundary=abc"
#define PART(name) "Content-Disposition: form-data; name=\"" name "\"\r\n\r\n"

struct log {
    char text[4096];
    size_t bytes;
    uint32_t stop_at; // calls; 0: never
};

static bool add(struct log *log, const char *text, size_t bytes)
{
    assert_true(log->bytes + bytes < sizeof log->text);
    memcpy(log->text + log->bytes, text, bytes);
    log->bytes += bytes;
    log->text[log->bytes] = '\0';
    return log->stop_at == 0 || --log->stop_at > 0;
}

static bool on_begin(void *arg, const char *name, const char *filename)
{
    char line[600];
    int length = snprintf(line, sizeof line, "<%s|%s>", name, filename ? filename : "-");
    return add(arg, line, (size_t)length);
}

static bool on_data(void *arg, const char *data, size_t bytes) { return add(arg, data, bytes); }
static bool on_end(void *arg) { return add(arg, "$", 1); }

// Feeds the body in pieces of so many bytes.
static enum multipart_state feed(const char *type, const char *body, size_t bytes, size_t piece, struct log *log)
{
    struct multipart_calls calls = {on_begin, on_data, on_end, log};
    struct multipart multipart;
    size_t at;

    log->bytes = 0;
    log->text[0] = '\0';
    assert_true(multipart_open(type, &calls, &multipart));
    for (at = 0; at < bytes; at += piece)
        if (!multipart_feed(&multipart, body + at, MIN(piece, bytes - at)))
            break;
    if (multipart.state == MULTIPART_BAD)
        assert_non_null(multipart.why);
    return multipart.state;
}

static void test_bodies(void **state)
{
    static const struct {
        const char *body, *wanted;
    } cases[] = {
        {"--abc\r\n" PART("a") "1\r\n--abc--\r\n", "<a|->1$"},
        {"--abc\r\n" PART("a") "1\r\n--abc--", "<a|->1$"}, // no line end need follow
        {"before\r\n--abc \t\r\n" PART("a") "\r\n--abc--\r\nafter\r\n--abc\r\n", "<a|->$"},
        {"--abc--\r\n", ""},
        {"--abc\r\ncontent-disposition:form-data;filename=\"x\\\"y;z.jsonl\";name=file\r\nContent-Type: text/plain\r\n\r\n"
         "{}\r\n\r\n--ab\r\r\n-\r\n--abd\r\n--abc\r\n" PART("purpose") "batch\r\n--abc--\r\n",
         "<file|x\"y;z.jsonl>{}\r\n\r\n--ab\r\r\n-\r\n--abd$<purpose|->batch$"},
    };
    struct log log = {.stop_at = 0};
    size_t i, piece;

    for (i = 0; i < ARRAY_COUNT(cases); i++) {
        size_t bytes = strlen(cases[i].body);
        for (piece = 1; piece <= bytes; piece++) {
            assert_int_equal(feed(TYPE, cases[i].body, bytes, piece, &log), MULTIPART_DONE);
            assert_string_equal(log.text, cases[i].wanted);
        }
    }
}

static void test_bad(void **state)
{
    static const char *const bodies[] = {
        "--abcd\r\n\r\n--abc x\r\n",             // a boundary and more
        "--abc\n" PART("a") "1\r\n--abc--",      // LF alone
        "--abc\r\n\r\n1\r\n--abc--",             // no headers
        "--abc\r\nContent-Type: a\r\n\r\n1\r\n", // no name
        "--abc\r\nContent-Disposition: form-data; name=\"a\r\n\r\n1\r\n",
    };
    struct log log = {.stop_at = 0};
    char *large = malloc(2 * MULTIPART_HEADER_BYTES);
    size_t i;

    for (i = 0; i < ARRAY_COUNT(bodies); i++)
        assert_int_equal(feed(TYPE, bodies[i], strlen(bodies[i]), 3, &log), MULTIPART_BAD);
    memset(large, 'x', 2 * MULTIPART_HEADER_BYTES);
    memcpy(large, "--abc\r\n", 7);
    assert_int_equal(feed(TYPE, large, 2 * MULTIPART_HEADER_BYTES, 100, &log), MULTIPART_BAD);
    memset(large + 7, '\0', 100);
    memcpy(large + 107, "\r\n\r\n", 4);
    assert_int_equal(feed(TYPE, large, 200, 100, &log), MULTIPART_BAD);
    free(large);
}

static void test_many_parts(void **state)
{
    static const char part[] = "--abc\r\n" PART("a") "\r\n";
    size_t bytes = (sizeof part - 1) * (MULTIPART_PARTS_MAX + 1), at;
    char *body = malloc(bytes);
    struct log log = {.stop_at = 0};

    for (at = 0; at < bytes; at += sizeof part - 1)
        memcpy(body + at, part, sizeof part - 1);
    assert_int_equal(feed(TYPE, body, bytes, 1000, &log), MULTIPART_BAD);
    assert_int_equal(feed(TYPE, body, bytes - (sizeof part - 1), 1000, &log), MULTIPART_DATA);
    free(body);
}

// Every callback can end the parse.
static void test_stopped(void **state)
{
    static const char body[] = "--abc\r\n" PART("a") "1\r\n--abc\r\n" PART("b") "2\r\n--abc--\r\n";
    struct log log;
    uint32_t i;

    for (i = 1; i <= 6; i++) {
        log.stop_at = i;
        assert_int_equal(feed(TYPE, body, sizeof body - 1, 7, &log), MULTIPART_STOPPED);
        assert_int_equal(log.stop_at, 0);
    }
}

static void test_types(void **state)
{
    static const char *const good[] = {"multipart/form-data; boundary=abc", "Multipart/Form-Data ;charset=x; BOUNDARY=\"a b'c\"",
                                       "multipart/form-data;boundary=----WebKitFormBoundary7MA4YWxkTrZu0gW"};
    static const char *const bad[] = {"",
                                      "application/json",
                                      "multipart/form-data",
                                      "multipart/form-data; boundary=",
                                      "multipart/form-data; boundary=\"abc",
                                      "multipart/form-data; boundary=\"abc \"",
                                      "multipart/form-data; boundary=\"a\tc\"",
                                      "multipart/form-data; xboundary=abc",
                                      "multipart/form-database; boundary=abc",
                                      "multipart/mixed; boundary=abc",
                                      "multipart/form-data; "
                                      "boundary=01234567890123456789012345678901234567890123456789012345678901234567890"};
    struct multipart_calls calls = {on_begin, on_data, on_end, NULL};
    struct multipart multipart;
    size_t i;

    for (i = 0; i < ARRAY_COUNT(good); i++)
        assert_true(multipart_open(good[i], &calls, &multipart));
    for (i = 0; i < ARRAY_COUNT(bad); i++)
        if (multipart_open(bad[i], &calls, &multipart))
            fail_msg("taken: %s", bad[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bodies),  cmocka_unit_test(test_bad),   cmocka_unit_test(test_many_parts),
        cmocka_unit_test(test_stopped), cmocka_unit_test(test_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
