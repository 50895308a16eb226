// test_gateway_schema.c: bodies of requests: what is taken with which value, and what is refused with which words.
#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/text.h"
#include "services/gateway/api/schema/schema.h"
#include "tests/cmocka.h"
#include "tests/unit/request_parse.h"

enum { VOCAB = 1000 };
static struct api_model model;

static struct api_request take(enum api_kind kind, const char *body)
{
    struct api_request request;
    struct api_error error;

    if (!api_request_parse(kind, body, strlen(body), &model, &request, &error))
        fail_msg("refused: %s (%s)", error.message, error.param);
    return request;
}

// The model's settings hold for sampling parameters that a request does not name.
static void test_defaults_of_a_model(void **state)
{
    struct api_model careful = api_model_of(VOCAB);
    struct error set;
    const char *bodies[] = {
        "{\"prompt\": \"hi\"}",
        "{\"prompt\": \"hi\", \"temperature\": 0, \"top_p\": 1, \"top_k\": 0, \"min_p\": 0, \"repetition_penalty\": 1}"};

    assert_int_equal(api_model_set_all(&careful,
                                       "temperature=0.6,top_p=0.95,min_p=0.01,top_k=20,repetition_penalty=1.05,dry_multiplier=0.8",
                                       &set),
                     STATUS_OK);
    for (size_t i = 0; i < ARRAY_COUNT(bodies); i++) {
        struct api_request request;
        struct api_error error;
        assert_true(api_request_parse(API_COMPLETION, bodies[i], strlen(bodies[i]), &careful, &request, &error));
        assert_true(request.sampling.temperature == (i ? 0 : 0.6f) && request.sampling.top_p == (i ? 1 : 0.95f));
        assert_true(request.sampling.min_p == (i ? 0 : 0.01f) && request.sampling.repetition_penalty == (i ? 1 : 1.05f));
        assert_int_equal(request.sampling.top_k, i ? 0 : 20);
        assert_true(request.sampling.dry_multiplier == 0.8f && request.sampling.dry_base == 1.75f &&
                    request.draw.dry_breakers.count == 4);
        api_request_free(&request);
    }
}

static void test_what_is_set(void **state)
{
    static const struct {
        const char *text;
        enum status status;
    } cases[] = {{"", STATUS_OK},
                 {"top_k=-1,temperature=2,top_p=1e-3", STATUS_OK},
                 {"temperature=2.01", STATUS_INVALID_ARGUMENT},
                 {"temperature=-0", STATUS_OK},
                 {"temperature=0.2 ", STATUS_INVALID_ARGUMENT},
                 {" temperature=0.2", STATUS_INVALID_ARGUMENT},
                 {"temperature= 0.2", STATUS_INVALID_ARGUMENT},
                 {"top_k=1e30", STATUS_INVALID_ARGUMENT},
                 {"n=1", STATUS_INVALID_ARGUMENT},
                 {"dry_allowed_length=1", STATUS_INVALID_ARGUMENT}, // no number of the message
                 {",", STATUS_INVALID_ARGUMENT}};
    char longest[300];
    struct api_model got;
    struct error error;
    const char *name;
    double value;
    size_t at = 0;

    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        got = api_model_of(VOCAB);
        if (api_model_set_all(&got, cases[i].text, &error) != cases[i].status)
            fail_msg("'%s'", cases[i].text);
    }
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_int_equal(api_model_set_all(&got, longest, &error), STATUS_INVALID_ARGUMENT);
    got = api_model_of(VOCAB);
    assert_false(api_model_next(&got, &at, &name, &value));
    assert_int_equal(api_model_set_all(&got, "top_k=7,temperature=0", &error), STATUS_OK);
    at = 0;
    assert_true(api_model_next(&got, &at, &name, &value) && !strcmp(name, "temperature") && value == 0);
    assert_true(api_model_next(&got, &at, &name, &value) && !strcmp(name, "top_k") && value == 7);
    assert_false(api_model_next(&got, &at, &name, &value));
}

static void test_defaults(void **state)
{
    struct api_request request = take(API_COMPLETION, "{\"prompt\": \"hi\", \"unknown_field\": {\"a\": [1]}, \"user\": \"me\"}");

    assert_int_equal(request.prompt_count, 1);
    assert_int_equal(request.prompts[0].bytes, 2);
    assert_int_equal(request.limits.max_tokens, -1);
    assert_int_equal(request.limits.n, 1);
    assert_true(request.sampling.temperature == 1 && request.sampling.top_p == 1 && request.sampling.repetition_penalty == 1);
    assert_false(request.shown.stream || request.draw.has_seed || request.shown.logprobs || request.shown.echo);
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

    assert_string_equal(request.model, "m");
    assert_int_equal(request.prompt_count, 2);
    assert_int_equal(request.prompts[0].id_count, 2);
    assert_int_equal(request.prompts[1].ids[0], 3);
    assert_int_equal(request.limits.max_tokens, 0);
    assert_int_equal(request.sampling.top_k, 0);
    assert_true(request.sampling.temperature == 0.5f && request.sampling.top_p == 0.9f && request.sampling.min_p == 0.1f);
    assert_true(request.sampling.presence_penalty == -2 && request.sampling.frequency_penalty == 2);
    assert_int_equal(request.draw.stop_count, 2);
    assert_int_equal(request.draw.stops[1].bytes, 3); // a NUL in a string is a character
    assert_true(request.draw.has_seed && request.draw.seed == -5);
    assert_true(request.shown.stream && request.shown.include_usage && request.shown.echo && request.draw.ignore_eos &&
                request.shown.logprobs);
    assert_int_equal(request.shown.top_logprobs, 3);
    assert_int_equal(request.draw.bias_count, 2);
    assert_int_equal(request.draw.bias[0].token, 7);
    assert_true(request.draw.bias[0].bias == -100);
    api_request_free(&request);
}

static void test_sampling_fields(void **state)
{
    struct api_request request = take(
        API_CHAT,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"min_tokens\":3,\"stop_token_ids\":[7,8],\"bad_words\":[\"a\",\"b c\"],"
        "\"allowed_token_ids\":[1],\"typical_p\":0.5,\"xtc_probability\":0.25,\"dry_multiplier\":0.75,\"dry_penalty_last_n\":64}");

    assert_int_equal(request.sampling.min_tokens, 3);
    assert_true(request.draw.stop_tokens.count == 2 && request.draw.stop_tokens.ids[1] == 8);
    assert_true(request.draw.allowed_tokens.count == 1 && request.draw.allowed_tokens.ids[0] == 1);
    assert_true(request.draw.bad_words.count == 2 && request.draw.bad_words.strings[1].bytes == 3);
    assert_true(request.sampling.typical_p == 0.5f && request.sampling.xtc_probability == 0.25f &&
                request.sampling.xtc_threshold == 0.1f);
    assert_true(request.sampling.dry_multiplier == 0.75f && request.sampling.dry_base == 1.75f);
    assert_true(request.sampling.dry_allowed_length == 2 && request.sampling.dry_last_tokens == 64);
    assert_true(request.draw.dry_breakers.count == 4 && request.draw.dry_breakers.strings[2].data[0] == '"');
    api_request_free(&request);
    request = take(API_COMPLETION,
                   "{\"prompt\":\"x\",\"typical_p\":1,\"dry_multiplier\":1,\"dry_penalty_last_n\":0,\"bad_words\":[],"
                   "\"stop_token_ids\":null,\"min_tokens\":0,\"xtc_probability\":0,\"dry_sequence_breakers\":[]}");
    assert_true(request.sampling.typical_p == 0 && request.sampling.dry_multiplier == 0 && request.sampling.min_tokens == 0);
    assert_true(request.draw.bad_words.count == 0 && request.draw.stop_tokens.count == 0 && request.draw.dry_breakers.count == 0);
    api_request_free(&request);
}

static void test_forms(void **state)
{
    static const struct {
        const char *field;
        enum api_form_kind kind;
        enum api_space space;
        bool is_strict, open_objects, in_any_order;
        const char *text;
    } forms[] = {
        {"\"response_format\":{\"type\":\"text\"},\"grammar\":\"\",\"guided_choice\":[],\"structured_outputs\":{\"json\":null}",
         API_FORM_NONE, API_SPACE_ONE, false, false, false, NULL},
        {"\"response_format\":{\"type\":\"json_object\"}", API_FORM_OBJECT, API_SPACE_ONE, false, false, false, NULL},
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"strict\":true,\"schema\":{}}}",
         API_FORM_SCHEMA, API_SPACE_ONE, true, false, false, NULL},
        {"\"json_schema\":{\"type\":\"null\"}", API_FORM_SCHEMA, API_SPACE_ONE, false, false, false, NULL},
        {"\"guided_json\":\"{\\\"type\\\":\\\"null\\\"}\",\"guided_whitespace_pattern\":\"\"", API_FORM_SCHEMA, API_SPACE_NONE,
         false, false, false, NULL},
        {"\"structured_outputs\":{\"json_object\":true,\"whitespace_pattern\":\"[\\n\\t ]*\"}", API_FORM_OBJECT, API_SPACE_LINES,
         false, false, false, NULL},
        {"\"structured_outputs\":{\"disable_any_whitespace\":true,\"json\":true}", API_FORM_SCHEMA, API_SPACE_NONE, false, false,
         false, NULL},
        {"\"structured_outputs\":{\"disable_additional_properties\":false,\"json\":true}", API_FORM_SCHEMA, API_SPACE_ONE, false,
         true, false, NULL},
        {"\"structured_outputs\":{\"disable_additional_properties\":true}", API_FORM_NONE, API_SPACE_ONE, false, false, false,
         NULL},
        {"\"structured_outputs\":{\"keys_in_any_order\":true,\"json\":true}", API_FORM_SCHEMA, API_SPACE_ONE, false, false, true,
         NULL},
        {"\"structured_outputs\":{\"regex\":\"a+\"}", API_FORM_REGEX, API_SPACE_ONE, false, false, false, "a+"},
        {"\"grammar\":\"root ::= \\\"a\\\"\"", API_FORM_GBNF, API_SPACE_ONE, false, false, false, "root ::= \"a\""},
        {"\"guided_choice\":[\"a\",\"b\"]", API_FORM_CHOICE, API_SPACE_ONE, false, false, false, NULL},
    };

    for (size_t i = 0; i < ARRAY_COUNT(forms); i++) {
        char body[512];
        snprintf(body, sizeof body, "{\"prompt\":\"x\",%s}", forms[i].field);
        struct api_request request = take(API_COMPLETION, body);
        assert_int_equal(request.form.kind, forms[i].kind);
        assert_int_equal(request.form.space, forms[i].space);
        assert_int_equal(request.form.is_strict, forms[i].is_strict);
        assert_int_equal(request.form.open_objects, forms[i].open_objects);
        assert_int_equal(request.form.in_any_order, forms[i].in_any_order);
        assert_true(!forms[i].text == !request.form.text && (!forms[i].text || strcmp(forms[i].text, request.form.text) == 0));
        api_request_free(&request);
    }
}

// A number above 0 is none of the values that mean "off", however small it is.
static void test_small_numbers(void **state)
{
    struct api_request request = take(API_COMPLETION, "{\"prompt\":\"a\",\"top_p\":1e-60,\"repetition_penalty\":1e-300}");

    assert_true(request.sampling.top_p > 0 && request.sampling.repetition_penalty > 0);
    api_request_free(&request);
}

static void test_prompts(void **state)
{
    struct api_request request;

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
    assert_int_equal(request.limits.max_tokens, 7);
    api_request_free(&request);
    request = take(API_COMPLETION, "{\"prompt\":\"x\",\"max_completion_tokens\":null,\"max_tokens\":5}");
    assert_int_equal(request.limits.max_tokens, 5);
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

    assert_int_equal(request.message_count, 4);
    assert_string_equal(request.messages[0].role, "system");
    assert_int_equal(request.messages[1].bytes, 7);
    assert_memory_equal(request.messages[1].content, "one two", 7);
    assert_null(request.messages[2].content);
    assert_int_equal(request.limits.max_tokens, 9);
    assert_true(request.shown.logprobs);
    assert_int_equal(request.shown.top_logprobs, 4);
    api_request_free(&request);
}

// A refusal of another server's model is what its assistant said.
static void test_said_refusals(void **state)
{
    static const char *const said[] = {"{\"role\":\"assistant\",\"content\":null,\"refusal\":\"no\"}",
                                       "{\"role\":\"assistant\",\"content\":\"\",\"refusal\":\"no\"}",
                                       "{\"role\":\"assistant\",\"refusal\":\"no\"}",
                                       "{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"refusal\":\"no\"}]}",
                                       "{\"role\":\"assistant\",\"content\":\"no\",\"refusal\":\"\"}",
                                       "{\"role\":\"assistant\",\"content\":\"no\",\"refusal\":[]}"};
    char body[256];

    for (size_t i = 0; i < ARRAY_COUNT(said); i++) {
        snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},%s]}", said[i]);
        struct api_request request = take(API_CHAT, body);
        assert_string_equal(json_string_value(json_object_get(json_array_get(request.chat.conversation, 1), "content")), "no");
        assert_string_equal(request.messages[1].content, "no");
        api_request_free(&request);
    }
}

// Templates are given calls with their arguments as objects, results with the name of their function, and variables.
static void test_tools(void **state)
{
    struct api_request request = take(
        API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"mood\":\"good\"},{\"role\":\"assistant\",\"content\":null,"
                  "\"reasoning\":\"hm\",\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
                  "\"arguments\":\"{\\\"b\\\":1,\\\"a\\\":[null]}\"}},{\"function\":{\"name\":\"g\",\"arguments\":\"\"}}]},"
                  "{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"42\"}],\"tools\":[{\"type\":\"function\",\"function\":"
                  "{\"name\":\"f\",\"strict\":true}}],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}},"
                  "\"parallel_tool_calls\":false,\"reasoning_effort\":\"low\",\"chat_template_kwargs\":{\"thinking\":true}}");
    char *conversation = json_dumps(request.chat.conversation, JSON_COMPACT);

    assert_string_equal(
        conversation,
        "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"hm\","
        "\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"
        "{\"b\":1,\"a\":[null]}}},{\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":{}}}]},"
        "{\"role\":\"tool\",\"content\":\"42\",\"tool_call_id\":\"c1\",\"name\":\"f\"}]");
    free(conversation);
    assert_int_equal(json_array_size(request.chat.tools), 1);
    assert_int_equal(request.chat.tool_choice, API_TOOLS_NAMED);
    assert_string_equal(request.chat.tool_name, "f");
    assert_false(request.chat.parallel_tool_calls);
    assert_string_equal(json_string_value(json_object_get(request.chat.variables, "reasoning_effort")), "low");
    assert_true(json_is_true(json_object_get(request.chat.variables, "thinking")));
    api_request_free(&request);
    request = take(API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"reasoning_effort\":\"none\","
                             "\"chat_template_kwargs\":{\"thinking\":true},\"functions\":[],\"function_call\":\"none\"}");
    assert_true(json_is_false(json_object_get(request.chat.variables, "enable_thinking")));
    assert_true(json_is_true(json_object_get(request.chat.variables, "thinking"))); // the client's own word counts
    assert_null(json_object_get(request.chat.variables, "reasoning_effort"));
    assert_true(request.chat.parallel_tool_calls && request.chat.include_reasoning && !request.chat.tools);
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
    {API_COMPLETION, PROMPT "\"temperature\":2.1}", "temperature", "at most 2"},
    {API_COMPLETION, PROMPT "\"temperature\":true}", "temperature", "a number, not a boolean"},
    {API_COMPLETION, PROMPT "\"top_p\":-1}", "top_p", "at least 0"},
    {API_COMPLETION, PROMPT "\"top_k\":-2}", "top_k", "from -1"},
    {API_COMPLETION, PROMPT "\"min_p\":1.5}", "min_p", "at most 1"},
    {API_COMPLETION, PROMPT "\"n\":0}", "n", "from 1"},
    {API_COMPLETION, "{\"prompt\":[\"a\",\"b\"],\"n\":128}", "n", "at most 128"},
    {API_COMPLETION, PROMPT "\"seed\":1.5}", "seed", "an integer"},
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
    {API_COMPLETION, PROMPT "\"mirostat\":2}", "mirostat", "not supported"},
    {API_COMPLETION, PROMPT "\"min_tokens\":-1}", "min_tokens", "from 0"},
    {API_COMPLETION, PROMPT "\"min_tokens\":9,\"max_tokens\":8}", "min_tokens", "'max_tokens' 8"},
    {API_COMPLETION, PROMPT "\"stop_token_ids\":5}", "stop_token_ids", "an array of token ids, not an integer"},
    {API_COMPLETION, PROMPT "\"stop_token_ids\":[1,\"2\"]}", "stop_token_ids[1]", "a token id, not a string"},
    {API_COMPLETION, PROMPT "\"allowed_token_ids\":[3,1000]}", "allowed_token_ids[1]", "no token of this model"},
    {API_COMPLETION, PROMPT "\"allowed_token_ids\":[-1]}", "allowed_token_ids[0]", "no token of this model"},
    {API_COMPLETION, PROMPT "\"bad_words\":\"no\"}", "bad_words", "an array of strings, not a string"},
    {API_COMPLETION, PROMPT "\"bad_words\":[\"no\",1]}", "bad_words", "an array of strings, not an integer"},
    {API_COMPLETION, PROMPT "\"bad_words\":[\"\"]}", "bad_words", "1 to 1024 bytes"},
    {API_COMPLETION, PROMPT "\"typical_p\":1.5}", "typical_p", "at most 1"},
    {API_COMPLETION, PROMPT "\"xtc_probability\":2}", "xtc_probability", "at most 1"},
    {API_COMPLETION, PROMPT "\"xtc_threshold\":-0.1}", "xtc_threshold", "at least 0"},
    {API_COMPLETION, PROMPT "\"dry_multiplier\":-1}", "dry_multiplier", "at least 0"},
    {API_COMPLETION, PROMPT "\"dry_base\":0.5}", "dry_base", "at least 1"},
    {API_COMPLETION, PROMPT "\"dry_allowed_length\":-1}", "dry_allowed_length", "from 0"},
    {API_COMPLETION, PROMPT "\"dry_penalty_last_n\":-2}", "dry_penalty_last_n", "from -1"},
    {API_COMPLETION, PROMPT "\"dry_sequence_breakers\":{}}", "dry_sequence_breakers", "an array of strings, not an object"},
    {API_COMPLETION, PROMPT "\"model\":1}", "model", "a string"},
    {API_COMPLETION, PROMPT "\"model\":\"tiny\\u0000x\"}", "model", "zero byte"},
    {API_COMPLETION, PROMPT "\"service_tier\":\"flex\\u0000x\"}", "service_tier", "zero byte"},
    {API_COMPLETION, PROMPT "\"function_call\":\"none\\u0000x\"}", "function_call", "not supported"},
    {API_CHAT, "{\"messages\":[{\"role\":\"user\\u0000x\",\"content\":\"x\"}]}", "messages[0].role", "must be 'system'"},
    {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\\u0000x\",\"text\":\"x\"}]}]}",
     "messages[0].content[0]", "type 'text'"},
    {API_CHAT, CHAT "\"response_format\":{\"type\":\"text\\u0000x\"}}", "response_format.type", "must be 'text'"},
    {API_CHAT, CHAT "\"response_format\":{}}", "response_format", "an object with a 'type'"},
    {API_CHAT, CHAT "\"response_format\":{\"type\":\"json_schema\"}}", "response_format.json_schema", "is required"},
    {API_CHAT, CHAT "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\"}}}",
     "response_format.json_schema.schema", "is required"},
    {API_CHAT, CHAT "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":[]}}}",
     "response_format.json_schema.schema", "a JSON Schema, not an array"},
    {API_CHAT, CHAT "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{},\"strict\":1}}}",
     "response_format.json_schema.strict", "a boolean, not an integer"},
    {API_CHAT, CHAT "\"guided_regex\":5}", "guided_regex", "a string, not an integer"},
    {API_CHAT, CHAT "\"guided_choice\":[\"a\",2]}", "guided_choice", "an array of strings, not an integer"},
    {API_CHAT, CHAT "\"guided_json\":\"{\"}", "guided_json", "not valid JSON"},
    {API_CHAT, CHAT "\"grammar\":{}}", "grammar", "a string, not an object"},
    {API_CHAT, CHAT "\"structured_outputs\":[]}", "structured_outputs", "an object, not an array"},
    {API_CHAT, CHAT "\"structured_outputs\":{\"regx\":\"a\"}}", "structured_outputs.regx", "not supported"},
    {API_CHAT, CHAT "\"structured_outputs\":{\"regex\":\"a\",\"choice\":[\"b\"]}}", "structured_outputs.choice", "at most one"},
    {API_CHAT, CHAT "\"structured_outputs\":{\"json\":{},\"whitespace_pattern\":\"x*\"}}", "structured_outputs.whitespace_pattern",
     "not supported"},
    {API_CHAT, CHAT "\"response_format\":{\"type\":\"json_object\"},\"json_schema\":{}}", "json_schema", "at most one"},
    {API_CHAT, CHAT "\"guided_json\":\"{}\",\"json_schema\":\"{}\"}", "json_schema",
     "at most one"}, // both are texts: neither leaks
    {API_CHAT, CHAT "\"modalities\":[\"text\\u0000x\"]}", "modalities", "not supported"},
    {API_CHAT, CHAT "\"tool_choice\":\"auto\\u0000x\"}", "tool_choice", "must be 'auto'"},
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
    {API_CHAT, CHAT "\"tools\":[{\"type\":\"function\"}]}", "tools[0].function", "is required"},
    {API_COMPLETION, PROMPT "\"tools\":[{\"type\":\"function\"}]}", "tools", "not supported"},
    {API_CHAT, CHAT "\"response_format\":{\"type\":\"grammar\"}}", "response_format.type", "must be 'text'"},
    {API_CHAT, CHAT "\"modalities\":[\"text\",\"audio\"]}", "modalities", "not supported"},
    {API_CHAT, CHAT "\"logprobs\":3}", "logprobs", "a boolean"},
    {API_CHAT, CHAT "\"top_logprobs\":3}", "top_logprobs", "needs 'logprobs'"},
    {API_CHAT, CHAT "\"max_tokens\":0}", "max_tokens", "at least 1"},
    {API_EMBED, "{}", "input", "'input' is required"},
    {API_EMBED, "{\"input\":[]}", "input", "must not be empty"},
    {API_EMBED, "{\"input\":[\"a\",1]}", "input[1]", "must be a string, not an integer"},
    {API_EMBED, "{\"input\":[1000]}", "input[0]", "no token of this model"},
    {API_EMBED, "{\"input\":\"a\",\"dimensions\":0}", "dimensions", "from 1"},
    {API_EMBED, "{\"input\":\"a\",\"dimensions\":1.5}", "dimensions", "an integer"},
    {API_EMBED, "{\"input\":\"a\",\"encoding_format\":\"hex\"}", "encoding_format", "'float' or 'base64'"},
    {API_EMBED, "{\"input\":\"a\",\"encoding_format\":\"base64\\u0000\"}", "encoding_format", "'float' or 'base64'"},
    {API_EMBED, "{\"input\":\"a\",\"task\":\"x\"}", "task", "not supported"},
    {API_RERANK, "{\"documents\":[\"a\"]}", "query", "required"},
    {API_RERANK, "{\"query\":\"a\"}", "documents", "required"},
    {API_RERANK, "{\"query\":[\"a\"],\"documents\":[\"a\"]}", "query", "a string, not an array"},
    {API_RERANK, "{\"query\":\"a\",\"documents\":\"a\"}", "documents", "an array"},
    {API_RERANK, "{\"query\":\"a\",\"documents\":[]}", "documents", "must not be empty"},
    {API_RERANK, "{\"query\":\"a\",\"documents\":[{\"text\":5}]}", "documents[0]", "a string 'text'"},
    {API_RERANK, "{\"query\":\"a\",\"documents\":[\"a\"],\"top_n\":0}", "top_n", "from 1"},
    {API_RERANK, "{\"query\":\"a\",\"documents\":[\"a\"],\"return_documents\":1}", "return_documents", "a boolean"},
    {API_TOKENIZE, "{}", "prompt", "exactly one"},
    {API_TOKENIZE, "{\"prompt\":[1]}", "prompt", "must be a string"},
    {API_DETOKENIZE, "{}", "tokens", "required"},
    {API_DETOKENIZE, "{\"tokens\":\"x\"}", "tokens", "an array"},
};

// A number of more digits than a double tells apart is kept as its text, and is no integer for that.
static void test_long_fraction(void **state)
{
    struct text body = {0};
    struct api_request request;
    struct api_error error;

    text_string(&body, "{\"prompt\":\"x\",\"top_k\":2.5");
    for (int i = 0; i < 900; i++)
        text_string(&body, "0");
    text_string(&body, "1}");
    assert_false(api_request_parse(API_COMPLETION, body.data, body.bytes, &model, &request, &error));
    assert_string_equal(error.param, "top_k");
    assert_non_null(strstr(error.message, "an integer, not a number"));
    text_free(&body);
}

static const json_t *arguments_of(const struct api_request *request, size_t call)
{
    const json_t *calls = json_object_get(json_array_get(request->chat.conversation, 0), "tool_calls");

    return json_object_get(json_object_get(json_array_get(calls, call), "function"), "arguments");
}

// Arguments that are no JSON object stay in a history as they were written: a client sends back what a model made.
static void test_arguments_as_text(void **state)
{
    static const char *const texts[] = {
        "{", "{\"a\": 1, \"b\": \"cut", "{\"a\":1,\"a\":2}", "[1]", "5", "nul", "null", "{'a': 1}", "{} {}", "\"{}\""};
    struct text body = {0};

    for (size_t i = 0; i < ARRAY_COUNT(texts); i++) {
        struct api_request request;
        text_string(&body, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":");
        text_json_string(&body, texts[i]);
        text_string(&body, "}}]}]}");
        text_append(&body, "", 1);
        request = take(API_CHAT, body.data);
        assert_string_equal(json_string_value(arguments_of(&request, 0)), texts[i]);
        api_request_free(&request);
        text_clear(&body);
    }
    text_free(&body);
}

// The arguments of calls are JSON in strings: their values count as those of the body do, all together. What is too much stays text.
static void test_values_of_arguments(void **state)
{
    static const char call[] = "{\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":[0";
    struct text body = {0};
    struct api_request request;
    struct api_error error;

    text_string(&body, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[");
    for (int i = 0; i < 2; i++) {
        text_string(&body, i ? "," : "");
        text_string(&body, call);
        for (size_t j = 0; j < API_MAX_VALUES / 2; j++)
            text_string(&body, ",0");
        text_string(&body, "]}\"}}");
    }
    text_string(&body, "]}]}");
    assert_true(api_request_parse(API_CHAT, body.data, body.bytes, &model, &request, &error));
    assert_true(json_is_object(arguments_of(&request, 0)) && json_is_string(arguments_of(&request, 1)));
    api_request_free(&request);
    text_free(&body);
}

static void test_refused(void **state)
{
    size_t i;

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

    memset(deep, '[', 100000);
    assert_false(api_request_parse(API_COMPLETION, deep, 100000, &model, &request, &error));
    assert_non_null(strstr(error.message, "nested deeper"));
    memcpy(deep, "{\"prompt\":[", 11);
    for (i = 11; i + 2 < 3000000; i += 2)
        memcpy(deep + i, "1,", 2);
    assert_false(api_request_parse(API_COMPLETION, deep, i, &model, &request, &error));
    assert_non_null(strstr(error.message, "more than"));
    // each allowed tool is looked for among all
    char *at = deep + sprintf(deep, "%s",
                              "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tool_choice\":{\"type\":"
                              "\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\",\"tools\":[{}");
    for (i = 0; i < API_MAX_TOOLS; i++)
        at += sprintf(at, ",{}");
    at += sprintf(at, "]}}}");
    assert_false(api_request_parse(API_CHAT, deep, (size_t)(at - deep), &model, &request, &error));
    assert_non_null(strstr(error.message, "at least one of 'tools', and at most 128"));
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
    model = api_model_of(VOCAB);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_defaults_of_a_model),
        cmocka_unit_test(test_what_is_set),
        cmocka_unit_test(test_all_fields),
        cmocka_unit_test(test_small_numbers),
        cmocka_unit_test(test_said_refusals),
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_sampling_fields),
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_long_fraction),
        cmocka_unit_test(test_arguments_as_text),
        cmocka_unit_test(test_values_of_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
