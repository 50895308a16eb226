// test_gateway_text.c: JSON strings, UTF-8, stop strings across token boundaries, and the answers rendered from them.
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "services/gateway/api/dialects/dialect.h"
#include "services/gateway/api/schema/stop_match.h"
#include "services/gateway/http/json_write.h"
#include "services/gateway/mesh/metrics.h"
#include "tests/cmocka.h"

static void expect_text(struct text *text, const char *wanted)
{
    assert_false(text->failed);
    text_append(text, "", 1);
    assert_string_equal(text->data, wanted);
    text_free(text);
}

static void test_json_strings(void **state)
{
    struct text text = {0};

    text_json_string(&text, "a\"b\\c\n\x01 \xC3\xA9 \xF0\x9F\x98\x80");
    expect_text(&text, "\"a\\\"b\\\\c\\n\\u0001 \xC3\xA9 \xF0\x9F\x98\x80\"");
    text_json(&text, "x\xFFy\xE2\x82", 5); // a byte that is none, a character cut off
    expect_text(&text, "\"x\xEF\xBF\xBDy\xEF\xBF\xBD\xEF\xBF\xBD\"");
    text_json(&text, "\xED\xA0\x80", 3); // a surrogate
    expect_text(&text, "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
    text_json_float(&text, -INFINITY);
    expect_text(&text, "-9999.0");
}

static void test_utf8_length(void **state)
{
    assert_int_equal(text_utf8_length("\xC3\xA9\xF0\x9F\x98\x80", 6), 2);
    assert_int_equal(text_utf8_length("\xC0\x80", 2), 0);         // overlong
    assert_int_equal(text_utf8_length("\xF4\x90\x80\x80", 4), 0); // beyond the last character
}

// Pushes the pieces; returns what is shown, and whether and what matched.
static int32_t run_stop(const char *const *stops, uint32_t stop_count, const char *const *pieces, struct text *shown)
{
    struct stop_string strings[4];
    struct stop_match match;
    int32_t matched;
    uint32_t i;

    for (i = 0; i < stop_count; i++)
        strings[i] = (struct stop_string){stops[i], strlen(stops[i])};
    stop_match_init(&match, strings, stop_count);
    for (i = 0; pieces[i]; i++)
        if (stop_match_push(&match, pieces[i], strlen(pieces[i]), shown))
            break;
    if (match.matched < 0)
        stop_match_finish(&match, shown);
    matched = match.matched;
    stop_match_fini(&match);
    return matched;
}

static void test_stop_strings(void **state)
{
    static const struct {
        const char *stops[4];
        const char *pieces[8];
        const char *shown;
        int32_t matched;
    } cases[] = {
        {{"END"}, {"the E", "N", "D of", NULL}, "the ", 0},
        {{"END"}, {"the E", "N", "X", NULL}, "the ENX", -1},
        {{"END"}, {"the E", "N", NULL}, "the EN", -1}, // held back, and text after all
        {{"\n\n"}, {"a\n", "b\n", "\nc", NULL}, "a\nb", 0},
        {{"aab"}, {"a", "a", "a", "b", NULL}, "a", 0}, // begins again inside itself
        {{"abcX", "bc"}, {"abc", NULL}, "a", 1},       // one whole, an earlier one only begun
        {{"b", "bcd"}, {"abcd", NULL}, "a", 1},        // the longest of those that begin there
        {{"x"}, {"x", NULL}, "", 0},
        {{"\xC3\xA9"}, {"caf", "\xC3\xA9", NULL}, "caf", 0},
    };
    size_t i;

    for (i = 0; i < ARRAY_COUNT(cases); i++) {
        uint32_t count = 0;
        struct text shown = {0};
        while (count < 4 && cases[i].stops[count])
            count++;
        assert_int_equal(run_stop(cases[i].stops, count, cases[i].pieces, &shown), cases[i].matched);
        expect_text(&shown, cases[i].shown);
    }
}

// A held-back tail must not be shown before it is decided.
static void test_stop_holds_back(void **state)
{
    struct stop_string string = {"STOP", 4};
    struct stop_match match;
    struct text shown = {0};

    stop_match_init(&match, &string, 1);
    assert_false(stop_match_push(&match, "go ST", 5, &shown));
    assert_int_equal(shown.bytes, 3);
    assert_false(stop_match_push(&match, "AY", 2, &shown));
    assert_int_equal(shown.bytes, 7);
    stop_match_fini(&match);
    expect_text(&shown, "go STAY");
}

static json_t *load(const struct text *text, size_t skip)
{
    json_error_t error;
    json_t *root = json_loadb(text->data + skip, text->bytes - skip, JSON_DISABLE_EOF_CHECK, &error);
    if (!root)
        print_error("%s in %.*s\n", error.text, (int)text->bytes, text->data);
    assert_non_null(root);
    return root;
}

static void test_chunks(void **state)
{
    struct dialect_ask ask = {.kind = API_CHAT, .id = "chatcmpl-1"};
    struct dialect_run *run = dialect_run_open(&dialect_openai, &ask);
    struct shown_tokens tokens = {0};
    struct text text = {0}, visible = {0};
    struct dialect_news news = {.index = 2, .text = &visible, .tokens = &tokens};
    json_t *root, *first;

    assert_non_null(run);
    run->model = "m\"";
    run->include_usage = true;
    text_append(&visible, "h\xC3\xA9", 3);
    dialect_show(run, &news, &text);
    assert_memory_equal(text.data, "data: ", 6);
    assert_memory_equal(text.data + text.bytes - 2, "\n\n", 2);
    root = load(&text, 6);
    assert_string_equal(json_string_value(json_object_get(root, "object")), "chat.completion.chunk");
    assert_string_equal(json_string_value(json_object_get(root, "model")), "m\"");
    assert_true(json_is_null(json_object_get(root, "usage")));
    first = json_array_get(json_object_get(root, "choices"), 0);
    assert_int_equal(json_integer_value(json_object_get(first, "index")), 2);
    assert_string_equal(json_string_value(json_object_get(json_object_get(first, "delta"), "content")), "h\xC3\xA9");
    assert_true(json_is_null(json_object_get(first, "finish_reason")));
    json_decref(root);
    text_free(&text);
    text_free(&visible);
    dialect_run_close(run);
}

static void test_completion_logprobs(void **state)
{
    struct dialect_ask ask = {.kind = API_COMPLETION, .id = "cmpl-1"};
    struct dialect_run *run = dialect_run_open(&dialect_openai, &ask);
    struct shown_tokens tokens = {0};
    struct text text = {0}, visible = {0};
    const struct dialect_news news = {.text = &visible, .tokens = &tokens, .scored = true, .finish_reason = "length"};
    const struct dialect_end end = {.usage = {.prompt_tokens = 3, .completion_tokens = 2, .cached_tokens = 1}};
    float logprob = -0.5f;
    json_t *root, *logprobs;

    shown_tokens_add(&tokens, "a", 1, NULL, 0);
    shown_tokens_add(&tokens, "\xE2\x82", 2, &logprob, 1);
    shown_tokens_add_top(&tokens, "x", 1, -0.25f);
    shown_tokens_add_top(&tokens, "\xE2\x82", 2, -0.5f);
    shown_tokens_add_top(&tokens, "x", 1, -3); // another token of the same text: the better one's value stays
    assert_non_null(run);
    run->model = "m";
    text_string(&visible, "ab");
    dialect_show(run, &news, NULL);
    dialect_end_whole(run, &end, &text);
    root = load(&text, 0);
    logprobs = json_object_get(json_array_get(json_object_get(root, "choices"), 0), "logprobs");
    assert_true(json_is_null(json_array_get(json_object_get(logprobs, "token_logprobs"), 0)));
    assert_true(json_is_null(json_array_get(json_object_get(logprobs, "top_logprobs"), 0)));
    assert_string_equal(json_string_value(json_array_get(json_object_get(logprobs, "tokens"), 1)), "bytes:\\xe2\\x82");
    assert_int_equal(json_integer_value(json_array_get(json_object_get(logprobs, "text_offset"), 1)), 1);
    assert_float_equal(json_number_value(json_object_get(json_array_get(json_object_get(logprobs, "top_logprobs"), 1), "x")), -0.25,
                       1e-9);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(root, "usage"), "total_tokens")), 5);
    json_decref(root);
    text_free(&text);
    text_free(&visible);
    shown_tokens_free(&tokens);
    dialect_run_close(run);
}

// The scheduler's text is appended without the families that the gateway has itself.
static void test_metrics(void **state)
{
    struct metrics_page page = {0};
    struct text *text = &page.text;
    struct metrics *metrics;

    assert_int_equal(metrics_open(&metrics), STATUS_OK);
    metrics_observe(metrics, METRICS_FIRST_TOKEN, 0.003);
    metrics_observe(metrics, METRICS_FIRST_TOKEN, 1000);
    metrics_answer(metrics, 429, NULL);
    for (uint32_t i = 0; i < 3; i++)
        metrics_answer(metrics, 429, i == 1 ? "key_open" : "queue_full");
    metrics_answer(metrics, 200, NULL);
    metrics_page_number(&page, "fastdecode_gateway_mesh_up", "gauge", "Up.", 1);
    metrics_page_model(&page, "vllm:num_requests_running", "Run.", "m\n\"", 0.25);
    metrics_page_counts(&page, metrics);
    metrics_page_mesh(&page, "# TYPE fastdecode_kv_pages_used gauge\nfastdecode_kv_pages_used{place=\"local\"} 5\n"
                             "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 99\n"
                             "fastdecode_request_seconds_bucket{le=\"1\"} 77\n");
    text_append(text, "", 1);
    assert_non_null(strstr(text->data, "fastdecode_time_to_first_token_seconds_bucket{le=\"0.0025\"} 0\n"));
    assert_non_null(strstr(text->data, "fastdecode_time_to_first_token_seconds_bucket{le=\"0.005\"} 1\n"));
    assert_non_null(strstr(text->data, "fastdecode_time_to_first_token_seconds_bucket{le=\"+Inf\"} 2\n"));
    assert_non_null(strstr(text->data, "fastdecode_http_responses_total{code=\"429\"} 1\n"));
    assert_non_null(strstr(text->data, "fastdecode_http_responses_total{code=\"429\",reason=\"queue_full\"} 2\n"));
    assert_non_null(strstr(text->data, "fastdecode_http_responses_total{code=\"429\",reason=\"key_open\"} 1\n"));
    assert_non_null(strstr(text->data, "fastdecode_http_responses_total{code=\"200\"} 1\n"));
    assert_non_null(
        strstr(text->data,
               "# HELP fastdecode_gateway_mesh_up Up.\n# TYPE fastdecode_gateway_mesh_up gauge\nfastdecode_gateway_mesh_up 1\n"));
    assert_non_null(strstr(text->data, "vllm:num_requests_running{model_name=\"m\\n\\\"\"} 0.25\n"));
    assert_non_null(strstr(text->data, "fastdecode_kv_pages_used{place=\"local\"} 5\n"));
    assert_null(strstr(text->data, " 99\n"));
    assert_null(strstr(text->data, " 77\n"));
    text_free(text);
    metrics_close(metrics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_strings),    cmocka_unit_test(test_utf8_length), cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_stop_holds_back), cmocka_unit_test(test_chunks),      cmocka_unit_test(test_completion_logprobs),
        cmocka_unit_test(test_metrics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
