// test_gateway_schema.c: bodies of requests: what is taken with which value, and what is refused with which words.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "services/gateway/schema.h"

enum { VOCAB = 1000 };
static const struct api_model model = {.vocab = VOCAB, .temperature = 1, .top_p = 1, .repetition_penalty = 1};

static struct api_request take(enum api_kind kind, const char *body)
{
    struct api_request request;
    struct api_error error;

    if (!api_request_parse(kind, body, strlen(body), &model, &request, &error))
        fail_msg("refused: %s (%s)", error.message, error.param);
    return request;
}

// Where a request does not say how to sample, the model does.
static void test_defaults_of_a_model(void **state)
{
    const struct api_model careful = {
        .vocab = VOCAB, .temperature = 0.6f, .top_p = 0.95f, .min_p = 0.01f, .top_k = 20, .repetition_penalty = 1.05f};
    const char *bodies[] = {
        "{\"prompt\": \"hi\"}",
        "{\"prompt\": \"hi\", \"temperature\": 0, \"top_p\": 1, \"top_k\": 0, \"min_p\": 0, \"repetition_penalty\": 1}"};
    (void)state;

    for (size_t i = 0; i < ARRAY_COUNT(bodies); i++) {
        struct api_request request;
        struct api_error error;
        assert_true(api_request_parse(API_COMPLETION, bodies[i], strlen(bodies[i]), &careful, &request, &error));
        assert_true(request.sampling.temperature == (i ? 0 : 0.6f) && request.sampling.top_p == (i ? 1 : 0.95f));
        assert_true(request.sampling.min_p == (i ? 0 : 0.01f) && request.sampling.repetition_penalty == (i ? 1 : 1.05f));
        assert_int_equal(request.sampling.top_k, i ? 0 : 20);
        api_request_free(&request);
    }
}

static void test_defaults(void **state)
{
    struct api_request request = take(API_COMPLETION, "{\"prompt\": \"hi\", \"unknown_field\": {\"a\": [1]}, \"user\": \"me\"}");
    (void)state;

    assert_int_equal(request.prompt_count, 1);
    assert_int_equal(request.prompts[0].bytes, 2);
    assert_int_equal(request.max_tokens, -1);
    assert_int_equal(request.n, 1);
    assert_true(request.sampling.temperature == 1 && request.sampling.top_p == 1 && request.sampling.repetition_penalty == 1);
    assert_false(request.stream || request.has_seed || request.logprobs || request.echo);
    api_request_free(&request);
}

static void test_all_fields(void **state)
{
    struct api_request request = take(
        API_COMPLETION,
        "{\"model\":\"m\",\"prompt\":[[1,2],[3]],\"max_tokens\":0,\"temperature\":0.5,\"top_p\":0.9,\"top_k\":-1,\"min_p\":0.1,"
        "\"n\":2,\"stop\":[\"a\",\"b\\u0000c\"],\"seed\":-5,\"stream\":true,\"stream_options\":{\"include_usage\":true},"
        "\"logprobs\":3,\"echo\":true,\"presence_penalty\":-2,\"frequency_penalty\":2,\"repetition_penalty\":1.2,"
        "\"logit_bias\":{\"7\":-100,\"8\":5.5},\"ignore_eos\":true,\"best_of\":1,\"suffix\":null,\"tools\":[],"
        "\"response_format\":{\"type\":\"text\"},\"tool_choice\":\"none\"}");
    (void)state;

    assert_string_equal(request.model, "m");
    assert_int_equal(request.prompt_count, 2);
    assert_int_equal(request.prompts[0].id_count, 2);
    assert_int_equal(request.prompts[1].ids[0], 3);
    assert_int_equal(request.max_tokens, 0);
    assert_int_equal(request.sampling.top_k, 0);
    assert_true(request.sampling.temperature == 0.5f && request.sampling.top_p == 0.9f && request.sampling.min_p == 0.1f);
    assert_true(request.sampling.presence_penalty == -2 && request.sampling.frequency_penalty == 2);
    assert_int_equal(request.stop_count, 2);
    assert_int_equal(request.stops[1].bytes, 3); // a NUL in a string is a character
    assert_true(request.has_seed && request.seed == -5);
    assert_true(request.stream && request.include_usage && request.echo && request.ignore_eos && request.logprobs);
    assert_int_equal(request.top_logprobs, 3);
    assert_int_equal(request.bias_count, 2);
    assert_int_equal(request.bias[0].token, 7);
    assert_true(request.bias[0].bias == -100);
    api_request_free(&request);
}

// A number above 0 is none of the values that mean "off", however small it is.
static void test_small_numbers(void **state)
{
    struct api_request request = take(API_COMPLETION, "{\"prompt\":\"a\",\"top_p\":1e-60,\"repetition_penalty\":1e-300}");
    (void)state;

    assert_true(request.sampling.top_p > 0 && request.sampling.repetition_penalty > 0);
    api_request_free(&request);
}

static void test_prompts(void **state)
{
    struct api_request request;
    (void)state;

    request = take(API_COMPLETION, "{\"prompt\":[1,2,3]}");
    assert_int_equal(request.prompt_count, 1);
    assert_int_equal(request.prompts[0].id_count, 3);
    api_request_free(&request);
    request = take(API_COMPLETION, "{\"prompt\":[\"a\",\"\"]}");
    assert_int_equal(request.prompt_count, 2);
    assert_int_equal(request.prompts[1].bytes, 0);
    assert_non_null(request.prompts[1].text);
    api_request_free(&request);
    request = take(API_DETOKENIZE, "{\"tokens\":[]}");
    assert_int_equal(request.prompts[0].id_count, 0);
    api_request_free(&request);
    request = take(API_COMPLETION, "{\"prompt\":\"x\",\"max_completion_tokens\":7,\"max_tokens\":5}"); // in either order
    assert_int_equal(request.max_tokens, 7);
    api_request_free(&request);
    request = take(API_COMPLETION, "{\"prompt\":\"x\",\"max_completion_tokens\":null,\"max_tokens\":5}");
    assert_int_equal(request.max_tokens, 5);
    api_request_free(&request);
    request = take(API_TOKENIZE, "{\"prompt\":\"x\",\"add_special_tokens\":false,\"parse_special\":false}");
    assert_false(request.add_special_tokens || request.parse_special);
    api_request_free(&request);
}

static void test_messages(void **state)
{
    struct api_request request =
        take(API_CHAT,
             "{\"messages\":[{\"role\":\"developer\",\"content\":\"be brief\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\","
             "\"text\":\"one \"},{\"type\":\"text\",\"text\":\"two\"}]},{\"role\":\"assistant\",\"content\":null},"
             "{\"role\":\"tool\",\"content\":\"42\",\"tool_call_id\":\"x\"}],\"max_completion_tokens\":9,\"logprobs\":true,"
             "\"top_logprobs\":4}");
    (void)state;

    assert_int_equal(request.message_count, 4);
    assert_string_equal(request.messages[0].role, "system");
    assert_int_equal(request.messages[1].bytes, 7);
    assert_memory_equal(request.messages[1].content, "one two", 7);
    assert_null(request.messages[2].content);
    assert_int_equal(request.max_tokens, 9);
    assert_true(request.logprobs);
    assert_int_equal(request.top_logprobs, 4);
    api_request_free(&request);
}

#define PROMPT "{\"prompt\":\"x\","
#define SALT_130 \
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
#define SALT_1040 SALT_130 SALT_130 SALT_130 SALT_130 SALT_130 SALT_130 SALT_130 SALT_130
#define CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"

static const struct {
    enum api_kind kind;
    const char *body, *param, *message;
} refused[] = {
    {API_COMPLETION, "", "", "the body is empty"},
    {API_COMPLETION, "{", "", "not valid JSON"},
    {API_COMPLETION, "[1]", "", "must be a JSON object, not an array"},
    {API_COMPLETION, "{\"prompt\":\"\xFF\"}", "", "not valid JSON"},
    {API_COMPLETION, "{\"prompt\":\"\\ud800\"}", "", "not valid JSON"},
    {API_COMPLETION, "{\"prompt\":\"a\",\"prompt\":\"b\"}", "", "duplicate"},
    {API_COMPLETION, "{\"prompt\":\"a\"} x", "", "not valid JSON"},
    {API_COMPLETION, "{}", "prompt", "'prompt' is required"},
    {API_COMPLETION, "{\"prompt\":null}", "prompt", "'prompt' is required"},
    {API_COMPLETION, "{\"prompt\":5}", "prompt", "not an integer"},
    {API_COMPLETION, "{\"prompt\":[]}", "prompt", "must not be empty"},
    {API_COMPLETION, "{\"prompt\":[1,\"a\"]}", "prompt[1]", "a token id, not a string"},
    {API_COMPLETION, "{\"prompt\":[\"a\",1]}", "prompt[1]", "must be a string, not an integer"},
    {API_COMPLETION, "{\"prompt\":[[1],[1000]]}", "prompt[1][0]", "1000, which is no token"},
    {API_COMPLETION, "{\"prompt\":[-1]}", "prompt[0]", "-1, which is no token"},
    {API_COMPLETION, PROMPT "\"max_tokens\":-1}", "max_tokens", "from 0 to"},
    {API_COMPLETION, PROMPT "\"max_tokens\":1.5}", "max_tokens", "an integer, not a number"},
    {API_COMPLETION, PROMPT "\"max_tokens\":\"5\"}", "max_tokens", "an integer, not a string"},
    {API_COMPLETION, PROMPT "\"max_tokens\":0}", "max_tokens", "unless 'echo'"},
    {API_COMPLETION, PROMPT "\"temperature\":2.1}", "temperature", "at most 2"},
    {API_COMPLETION, PROMPT "\"temperature\":true}", "temperature", "a number, not a boolean"},
    {API_COMPLETION, PROMPT "\"top_p\":0}", "top_p", "above 0"},
    {API_COMPLETION, PROMPT "\"top_k\":-2}", "top_k", "from -1"},
    {API_COMPLETION, PROMPT "\"min_p\":1.5}", "min_p", "at most 1"},
    {API_COMPLETION, PROMPT "\"n\":0}", "n", "from 1"},
    {API_COMPLETION, "{\"prompt\":[\"a\",\"b\"],\"n\":128}", "n", "at most 128"},
    {API_COMPLETION, PROMPT "\"seed\":1.0}", "seed", "an integer"},
    {API_COMPLETION, PROMPT "\"stop\":\"\"}", "stop", "1 to"},
    {API_COMPLETION, PROMPT "\"stop\":[1]}", "stop", "array of strings"},
    {API_COMPLETION, PROMPT "\"stream\":1}", "stream", "a boolean, not an integer"},
    {API_COMPLETION, PROMPT "\"stream_options\":{\"include_usage\":true}}", "stream_options", "only allowed with 'stream'"},
    {API_COMPLETION, PROMPT "\"logprobs\":21}", "logprobs", "from 0 to 20"},
    {API_COMPLETION, PROMPT "\"presence_penalty\":2.5}", "presence_penalty", "at most 2"},
    {API_COMPLETION, PROMPT "\"repetition_penalty\":0}", "repetition_penalty", "above 0"},
    {API_COMPLETION, PROMPT "\"cache_salt\":\"" SALT_1040 "\"}", "cache_salt", "has 1040 bytes, the most is 1024"},
    {API_COMPLETION, PROMPT "\"cache_salt\":\"a\\u0000b\"}", "cache_salt", "zero byte"},
    {API_COMPLETION, PROMPT "\"logit_bias\":{\"x\":1}}", "logit_bias", "no token id"},
    {API_COMPLETION, PROMPT "\"logit_bias\":{\"1000\":1}}", "logit_bias", "no token of this model"},
    {API_COMPLETION, PROMPT "\"logit_bias\":{\"1\":101}}", "logit_bias", "-100 to 100"},
    {API_COMPLETION, PROMPT "\"best_of\":2,\"n\":3}", "best_of", "less than 'n'"},
    {API_COMPLETION, PROMPT "\"best_of\":2,\"stream\":true}", "best_of", "known at the end"},
    {API_COMPLETION, PROMPT "\"suffix\":\"x\",\"echo\":true}", "suffix", "not possible with 'echo'"},
    {API_COMPLETION, PROMPT "\"prompt_logprobs\":1,\"stream\":true}", "prompt_logprobs", "not possible with 'stream'"},
    {API_COMPLETION, PROMPT "\"truncate_prompt_tokens\":-2}", "truncate_prompt_tokens", "from -1"},
    {API_COMPLETION, PROMPT "\"model\":1}", "model", "a string"},
    {API_COMPLETION, PROMPT "\"model\":\"tiny\\u0000x\"}", "model", "zero byte"},
    {API_COMPLETION, PROMPT "\"service_tier\":\"flex\\u0000x\"}", "service_tier", "zero byte"},
    {API_COMPLETION, PROMPT "\"function_call\":\"none\\u0000x\"}", "function_call", "not supported"},
    {API_CHAT, "{\"messages\":[{\"role\":\"user\\u0000x\",\"content\":\"x\"}]}", "messages[0].role", "must be 'system'"},
    {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\\u0000x\",\"text\":\"x\"}]}]}",
     "messages[0].content[0]", "type 'text'"},
    {API_CHAT, CHAT "\"response_format\":{\"type\":\"text\\u0000x\"}}", "response_format", "not supported"},
    {API_CHAT, CHAT "\"modalities\":[\"text\\u0000x\"]}", "modalities", "not supported"},
    {API_CHAT, CHAT "\"tool_choice\":\"auto\\u0000x\"}", "tool_choice", "not supported"},
    {API_CHAT, "{}", "messages", "'messages' is required"},
    {API_CHAT, "{\"messages\":[]}", "messages", "must not be empty"},
    {API_CHAT, "{\"messages\":\"x\"}", "messages", "an array"},
    {API_CHAT, "{\"messages\":[5]}", "messages[0]", "an object"},
    {API_CHAT, "{\"messages\":[{\"content\":\"x\"}]}", "messages[0].role", "required"},
    {API_CHAT, "{\"messages\":[{\"role\":\"robot\",\"content\":\"x\"}]}", "messages[0].role", "must be 'system'"},
    {API_CHAT, "{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content", "required"},
    {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":7}]}", "messages[0].content", "not an integer"},
    {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", "messages[0].content[0]",
     "type 'text'"},
    {API_CHAT, CHAT "\"tools\":[{\"type\":\"function\"}]}", "tools", "not supported"},
    {API_CHAT, CHAT "\"response_format\":{\"type\":\"json_object\"}}", "response_format", "not supported"},
    {API_CHAT, CHAT "\"modalities\":[\"text\",\"audio\"]}", "modalities", "not supported"},
    {API_CHAT, CHAT "\"logprobs\":3}", "logprobs", "a boolean"},
    {API_CHAT, CHAT "\"top_logprobs\":3}", "top_logprobs", "needs 'logprobs'"},
    {API_CHAT, CHAT "\"max_tokens\":0}", "max_tokens", "at least 1"},
    {API_TOKENIZE, "{}", "prompt", "exactly one"},
    {API_TOKENIZE, "{\"prompt\":[1]}", "prompt", "must be a string"},
    {API_DETOKENIZE, "{}", "tokens", "required"},
    {API_DETOKENIZE, "{\"tokens\":\"x\"}", "tokens", "an array"},
};

static void test_refused(void **state)
{
    size_t i;
    (void)state;

    for (i = 0; i < ARRAY_COUNT(refused); i++) {
        struct api_request request;
        struct api_error error;
        bool taken = api_request_parse(refused[i].kind, refused[i].body, strlen(refused[i].body), &model, &request, &error);

        if (taken || error.status != 400 || strcmp(error.param, refused[i].param) != 0 ||
            !strstr(error.message, refused[i].message))
            fail_msg("%s: taken %d, status %d, param %s, message %s", refused[i].body, taken, error.status, error.param,
                     error.message);
        assert_null(request.root); // nothing is left behind
    }
}

static void test_limits(void **state)
{
    struct api_request request;
    struct api_error error;
    char *deep = malloc(3000000);
    size_t i;
    (void)state;

    memset(deep, '[', 100000);
    assert_false(api_request_parse(API_COMPLETION, deep, 100000, &model, &request, &error));
    assert_non_null(strstr(error.message, "nested deeper"));
    memcpy(deep, "{\"prompt\":[", 11);
    for (i = 11; i + 2 < 3000000; i += 2)
        memcpy(deep + i, "1,", 2);
    assert_false(api_request_parse(API_COMPLETION, deep, i, &model, &request, &error));
    assert_non_null(strstr(error.message, "more than"));
    // brackets in a string are text
    memset(deep, '[', 1000);
    memcpy(deep, "{\"prompt\":\"", 11);
    memcpy(deep + 998, "\"}", 2);
    assert_true(api_request_parse(API_COMPLETION, deep, 1000, &model, &request, &error));
    api_request_free(&request);
    free(deep);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),   cmocka_unit_test(test_defaults_of_a_model),
        cmocka_unit_test(test_all_fields), cmocka_unit_test(test_small_numbers),
        cmocka_unit_test(test_prompts),    cmocka_unit_test(test_messages),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
