// test_batch_line.c: lines of batch files: what is taken, what is refused with which code, and what results look like.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/api/batch.h"
#include "common/base/checked.h"
#include "tests/cmocka.h"

#define GOOD(body) "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":" body "}"

static void test_good_line(void **state)
{
    static const char text[] =
        "{\"body\":{\"prompt\":\"x\\ny\",\"seed\":9007199254740993,\"p\":0.25},\"url\":\"/v1/chat/completions\","
        "\"method\":\"POST\",\"custom_id\":\"\\u00e4 \\\"q\\\"\",\"more\":[1]}\r";
    struct batch_line line;
    struct batch_error error;

    assert_true(batch_line_parse(text, sizeof text - 1, false, &line, &error));
    assert_string_equal(line.custom_id, "\xC3\xA4 \"q\"");
    assert_int_equal(line.endpoint, BATCH_ENDPOINT_CHAT);
    assert_string_equal(line.body, "{\"prompt\":\"x\\ny\",\"seed\":9007199254740993,\"p\":0.25}");
    assert_int_equal(line.body_bytes, strlen(line.body));
    batch_line_free(&line);
}

static void test_endpoints(void **state)
{
    struct batch_line line;
    struct batch_error error;
    char text[200];

    for (enum batch_endpoint i = BATCH_ENDPOINT_NONE + 1; i < BATCH_ENDPOINT_COUNT; i++) {
        snprintf(text, sizeof text, "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"%s\",\"body\":{}}", batch_endpoint_path(i));
        assert_true(batch_line_parse(text, strlen(text), true, &line, &error));
        assert_int_equal(line.endpoint, i);
        batch_line_free(&line);
    }
    assert_int_equal(batch_endpoint_named("/v1/embeddings"), BATCH_ENDPOINT_EMBEDDINGS);
    assert_int_equal(batch_endpoint_named(""), BATCH_ENDPOINT_NONE);
}

static void test_flex(void **state)
{
    static const struct {
        const char *line, *body;
    } cases[] = {
        {GOOD("{}"), "{\"service_tier\":\"flex\"}"},
        {GOOD("{\"service_tier\":null,\"n\":1}"), "{\"service_tier\":\"flex\",\"n\":1}"},
        {GOOD("{\"service_tier\":\"auto\"}"), "{\"service_tier\":\"auto\"}"}, // what a body asks for stays
    };
    struct batch_line line;
    struct batch_error error;
    size_t i;

    for (i = 0; i < ARRAY_COUNT(cases); i++) {
        assert_true(batch_line_parse(cases[i].line, strlen(cases[i].line), true, &line, &error));
        assert_string_equal(line.body, cases[i].body);
        batch_line_free(&line);
    }
}

static void test_bad_lines(void **state)
{
#define REST ",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{}}"
    static const struct {
        const char *line, *code, *custom_id;
    } cases[] = {
        {"x", "invalid_json_line", NULL},
        {"{", "invalid_json_line", NULL},
        {"[]", "invalid_json_line", NULL},
        {"null", "invalid_json_line", NULL},
        {"\"a\"", "invalid_json_line", NULL},
        {"{} {}", "invalid_json_line", NULL},
        {"{\"custom_id\":\"a\"", "invalid_json_line", NULL},
        {"{\"custom_id\":\"a\",\"custom_id\":\"b\"" REST, "invalid_json_line", NULL},
        {"{\"custom_id\":\"\xFF\"" REST, "invalid_json_line", NULL},
        {"{\"custom_id\":\"a\"" REST "}", "invalid_json_line", NULL},
        {"{\"custom_id\":'a'" REST, "invalid_json_line", NULL},
        {"{\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{}}", "missing_required_parameter", NULL},
        {"{\"custom_id\":null" REST, "invalid_custom_id", NULL},
        {"{\"custom_id\":\"\"" REST, "invalid_custom_id", NULL},
        {"{\"custom_id\":7" REST, "invalid_custom_id", NULL},
        {"{\"custom_id\":[\"a\"]" REST, "invalid_custom_id", NULL},
        {"{\"custom_id\":\"a\\u0000b\"" REST, "invalid_custom_id", NULL},
        {"{\"custom_id\":\"a\",\"url\":\"/v1/completions\",\"body\":{}}", "missing_required_parameter", "a"},
        {"{\"custom_id\":\"a\",\"method\":\"GET\",\"url\":\"/v1/completions\",\"body\":{}}", "invalid_method", "a"},
        {"{\"custom_id\":\"a\",\"method\":\"post\",\"url\":\"/v1/completions\",\"body\":{}}", "invalid_method", "a"},
        {"{\"custom_id\":\"a\",\"method\":\"POST\\u0000x\",\"url\":\"/v1/completions\",\"body\":{}}", "invalid_method", "a"},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\\u0000x\",\"body\":{}}", "invalid_url", "a"},
        {"{\"custom_id\":\"a\",\"method\":1,\"url\":\"/v1/completions\",\"body\":{}}", "invalid_method", "a"},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"body\":{}}", "missing_required_parameter", "a"},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":5,\"body\":{}}", "missing_required_parameter", "a"},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"\",\"body\":{}}", "invalid_url", "a"},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/responses\",\"body\":{}}", "invalid_url", "a"},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions/\",\"body\":{}}", "invalid_url", "a"},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"http://other/v1/completions\",\"body\":{}}", "invalid_url", "a"},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\"}", "missing_required_parameter", "a"},
        {GOOD("null"), "invalid_body", "a"},
        {GOOD("[]"), "invalid_body", "a"},
        {GOOD("\"{}\""), "invalid_body", "a"},
        {GOOD("{\"stream\":true}"), "invalid_body", "a"},
        {GOOD("{\"a\":1,\"a\":2}"), "invalid_json_line", NULL},
        {GOOD("{\"a\":1e}"), "invalid_json_line", NULL},
    };
    struct batch_line line;
    struct batch_error error;
    size_t i;

    for (i = 0; i < ARRAY_COUNT(cases); i++) {
        if (batch_line_parse(cases[i].line, strlen(cases[i].line), true, &line, &error))
            fail_msg("taken: %s", cases[i].line);
        assert_string_equal(error.code, cases[i].code);
        assert_true(error.message[0]);
        if (cases[i].custom_id)
            assert_string_equal(line.custom_id, cases[i].custom_id);
        else
            assert_null(line.custom_id);
        batch_line_free(&line);
    }
}

// Lines are refused that would take far more memory parsed than written, or a stack as deep as the line is long.
static void test_large_lines(void **state)
{
    size_t bytes = 4 << 20;
    char *text = malloc(bytes);
    struct batch_line line;
    struct batch_error error;

    memset(text, '[', bytes);
    assert_false(batch_line_parse(text, bytes, true, &line, &error));
    memset(text, ',', bytes);
    assert_false(batch_line_parse(text, bytes, true, &line, &error));
    assert_string_equal(error.code, "invalid_json_line");
    memset(text, 'i', bytes); // a custom_id over the limit
    memcpy(text, "{\"custom_id\":\"", 14);
    memcpy(text + 1000, "\"}", 2);
    assert_false(batch_line_parse(text, 1002, true, &line, &error));
    assert_string_equal(error.code, "invalid_custom_id");
    free(text);
}

static char *render(const struct batch_result *result)
{
    struct text text = {0};

    batch_result_write(&text, result);
    text_append(&text, "", 1);
    assert_false(text.failed);
    return text.data;
}

static void check(const struct batch_result *result, const char *wanted, bool failed)
{
    struct batch_result_about about;
    char *text = render(result);

    assert_string_equal(text, wanted);
    assert_true(batch_result_read(text, strlen(text) - 1, &about));
    assert_string_equal(about.id, result->id);
    assert_int_equal(about.failed, failed);
    if (result->custom_id)
        assert_string_equal(about.custom_id, result->custom_id);
    else
        assert_null(about.custom_id);
    batch_result_about_free(&about);
    free(text);
}

static void test_results(void **state)
{
    static const struct batch_error error = {"invalid_url", "no \"such\" url"};
    static const char body[] = "{\"a\":\r\n 0.10,\"b\":\"\\n\"}\n";
    struct batch_result result = {"batch_req_1", "x\"y", 200, "r-1", body, sizeof body - 1, NULL};

    // the body keeps its bytes, but for line ends
    check(&result,
          "{\"id\":\"batch_req_1\",\"custom_id\":\"x\\\"y\",\"response\":{\"status_code\":200,\"request_id\":\"r-1\",\"body\":"
          "{\"a\":   0.10,\"b\":\"\\n\"}},\"error\":null}\n",
          false);
    result = (struct batch_result){"b", "x", 502, "", "<html>\xFF\n", 8, NULL};
    check(&result,
          "{\"id\":\"b\",\"custom_id\":\"x\",\"response\":{\"status_code\":502,\"request_id\":\"\",\"body\":\"<html>?\"},"
          "\"error\":null}\n",
          true);
    result = (struct batch_result){.id = "b", .error = &error};
    check(&result,
          "{\"id\":\"b\",\"custom_id\":null,\"response\":null,\"error\":{\"code\":\"invalid_url\",\"message\":\"no \\\"such\\\" "
          "url\"}}\n",
          true);
}

// No beginning of a result is one.
static void test_torn_results(void **state)
{
    struct batch_result result = {"b", "x", 200, "r", "{}", 2, NULL};
    struct batch_result_about about;
    char *text = render(&result);
    size_t i;

    for (i = 0; i + 1 < strlen(text); i++) {
        assert_false(batch_result_read(text, i, &about));
        batch_result_about_free(&about);
    }
    free(text);
}

static void test_reader(void **state)
{
    static const char rest[] = "ab\n\n\r\nexactly twenty bytes\nlonger than twenty bytes\nend";
    size_t begin = 70000, bytes; // longer than a read
    int fd = memfd_create("lines", MFD_CLOEXEC);
    char *text = malloc(begin + 1);
    struct line_reader reader;
    const char *line;

    memset(text, 'x', begin);
    text[begin] = '\n';
    assert_int_equal(write(fd, text, begin + 1), begin + 1);
    assert_int_equal(write(fd, rest, sizeof rest - 1), sizeof rest - 1);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    line_reader_open(fd, 20, &reader);
    assert_int_equal(line_reader_next(&reader, &line, &bytes), LINE_TOO_LONG);
    assert_int_equal(line_reader_next(&reader, &line, &bytes), LINE_WHOLE);
    assert_int_equal(reader.number, 2);
    assert_int_equal(reader.position, begin + 4);
    assert_int_equal(bytes, 2);
    assert_memory_equal(line, "ab", 2);
    assert_int_equal(line_reader_next(&reader, &line, &bytes), LINE_WHOLE);
    assert_int_equal(bytes, 0);
    assert_int_equal(line_reader_next(&reader, &line, &bytes), LINE_WHOLE);
    assert_true(batch_line_is_blank(line, bytes));
    assert_int_equal(line_reader_next(&reader, &line, &bytes), LINE_WHOLE);
    assert_int_equal(bytes, 20);
    assert_int_equal(line_reader_next(&reader, &line, &bytes), LINE_TOO_LONG);
    assert_int_equal(line_reader_next(&reader, &line, &bytes), LINE_UNENDED);
    assert_memory_equal(line, "end", 3);
    assert_int_equal(reader.number, 7);
    assert_int_equal(line_reader_next(&reader, &line, &bytes), LINE_NONE);
    assert_int_equal(line_reader_next(&reader, &line, &bytes), LINE_NONE);
    line_reader_close(&reader);
    lseek(fd, 0, SEEK_SET);
    line_reader_open(fd, 100000, &reader);
    assert_int_equal(line_reader_next(&reader, &line, &bytes), LINE_WHOLE);
    assert_int_equal(bytes, begin);
    assert_memory_equal(line, text, begin);
    line_reader_close(&reader);
    free(text);
    close(fd);
}

static void test_set(void **state)
{
    enum { COUNT = 20000 };
    struct text_set set;
    char text[32];
    uint32_t i;

    text_set_open(&set);
    assert_false(text_set_has(&set, "0"));
    for (i = 0; i < COUNT; i++) {
        snprintf(text, sizeof text, "request-%u", i);
        assert_int_equal(text_set_add(&set, text), STATUS_OK);
        assert_int_equal(text_set_add(&set, text), STATUS_ALREADY_EXISTS);
    }
    for (i = 0; i < 2 * COUNT; i++) {
        snprintf(text, sizeof text, "request-%u", i);
        assert_int_equal(text_set_has(&set, text), i < COUNT);
    }
    assert_int_equal(text_set_add(&set, ""), STATUS_OK);
    assert_true(text_set_has(&set, ""));
    assert_int_equal(set.count, COUNT + 1);
    text_set_close(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_line),    cmocka_unit_test(test_endpoints),   cmocka_unit_test(test_flex),
        cmocka_unit_test(test_bad_lines),    cmocka_unit_test(test_large_lines), cmocka_unit_test(test_results),
        cmocka_unit_test(test_torn_results), cmocka_unit_test(test_reader),      cmocka_unit_test(test_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
