// test_dialect_answers.c: other forms of the API: how an answer with text, reasoning and calls is told, whole and as a stream, and errors.
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "services/gateway/api/dialects/dialect.h"
#include "services/gateway/api/dialects/response_store.h"
#include "tests/cmocka.h"
#include "tests/unit/dialect_ask.h"

static const struct dialect_piece pieces[] = {
    {.part = DIALECT_REASONING, .data = "hm", .bytes = 2},
    {.part = DIALECT_REASONING, .data = "m", .bytes = 1},
    {.part = DIALECT_TEXT, .data = "It is ", .bytes = 6},
    {.part = DIALECT_TEXT, .data = "\"4\".", .bytes = 4},
    {.part = DIALECT_CALL, .call = 0, .id = "call_a", .name = "add", .name_bytes = 3, .data = "{\"a\":", .bytes = 5},
    {.part = DIALECT_CALL, .call = 0, .data = "2}", .bytes = 2},
    {.part = DIALECT_CALL, .call = 1, .id = "call_b", .name = "none", .name_bytes = 4},
};

static struct dialect_end end_of(const char *reason)
{
    return (struct dialect_end){.finish_reason = reason,
                                .usage = {.prompt_tokens = 9, .cached_tokens = 4, .completion_tokens = 7, .reasoning_tokens = 2},
                                .total_us = 3000,
                                .prompt_us = 1000};
}

// Tells an answer of the first pieces.
static struct text tell(const struct dialect *dialect, const char *body, size_t count, const struct dialect_end *end, bool stream,
                        struct response_store *store)
{
    struct dialect_ask ask = ask_of(body, store);
    struct dialect_run *run;
    struct api_error error;
    struct text out = {0};

    if (!dialect_translate(dialect, &ask, &error))
        fail_msg("%s", error.message);
    run = dialect_run_open(dialect, &ask);
    assert_non_null(run);
    run->model = "m";
    run->prompt_tokens = 9;
    for (size_t i = 0; i < count; i++)
        dialect_push(run, &pieces[i], stream ? &out : NULL);
    if (stream)
        dialect_end_stream(run, end, &out);
    else
        dialect_end_whole(run, end, &out);
    assert_false(out.failed);
    text_append(&out, "", 1);
    json_decref(ask.chat);
    json_decref((json_t *)(uintptr_t)ask.body);
    dialect_run_close(run);
    return out;
}

static json_t *load(const char *data, size_t bytes)
{
    json_error_t reason;
    json_t *root = json_loadb(data, bytes, 0, &reason);

    if (!root)
        fail_msg("%s in %.*s", reason.text, (int)bytes, data);
    return root;
}

// The events of a stream as an array. sse: each has a line that names it, which must be what its data say.
static json_t *events_of(const struct text *stream, bool sse)
{
    json_t *events = json_array();
    const char *at = stream->data;

    while (*at) {
        const char *end = strstr(at, sse ? "\n\n" : "\n"), *name = at + strlen("event: ");
        json_t *event;
        assert_non_null(end);
        if (sse) {
            const char *data = strstr(at, "\ndata: ");
            assert_non_null(data);
            event = load(data + 7, (size_t)(end - data - 7));
            const char *type = json_string_value(json_object_get(event, "type"));
            assert_int_equal(strlen(type), data - name);
            assert_memory_equal(type, name, strlen(type));
        } else {
            event = load(at, (size_t)(end - at));
        }
        json_array_append_new(events, event);
        at = end + (sse ? 2 : 1);
    }
    return events;
}

// Joins a member of all events that have it, at most once a type.
static void expect_joined(const json_t *events, const char *type, const char *member, const char *inner, const char *wanted)
{
    char joined[256] = "";
    size_t i;

    for (i = 0; i < json_array_size(events); i++) {
        const json_t *event = json_array_get(events, i), *value = json_object_get(event, member);
        const char *name = json_string_value(json_object_get(event, "type"));
        if (inner)
            value = json_object_get(value, inner);
        if (json_is_string(value) && (!type || (name && strcmp(name, type) == 0)))
            strncat(joined, json_string_value(value), sizeof joined - strlen(joined) - 1);
    }
    assert_string_equal(joined, wanted);
}

static void expect_types(const json_t *events, const char *const *types, size_t count)
{
    assert_int_equal(json_array_size(events), count);
    for (size_t i = 0; i < count; i++)
        assert_string_equal(json_string_value(json_object_get(json_array_get(events, i), "type")), types[i]);
}

static void test_responses_stream(void **state)
{
    static const char *const types[] = {"response.created",
                                        "response.in_progress",
                                        "response.output_item.added",
                                        "response.content_part.added",
                                        "response.reasoning_text.delta",
                                        "response.reasoning_text.delta",
                                        "response.reasoning_text.done",
                                        "response.content_part.done",
                                        "response.output_item.done",
                                        "response.output_item.added",
                                        "response.content_part.added",
                                        "response.output_text.delta",
                                        "response.output_text.delta",
                                        "response.output_text.done",
                                        "response.content_part.done",
                                        "response.output_item.done",
                                        "response.output_item.added",
                                        "response.function_call_arguments.delta",
                                        "response.function_call_arguments.delta",
                                        "response.function_call_arguments.done",
                                        "response.output_item.done",
                                        "response.output_item.added",
                                        "response.function_call_arguments.done",
                                        "response.output_item.done",
                                        "response.completed"};
    struct dialect_end end = end_of("tool_calls");
    struct text stream = tell(&dialect_responses, "{\"input\":\"x\"}", ARRAY_COUNT(pieces), &end, true, NULL);
    struct text whole = tell(&dialect_responses, "{\"input\":\"x\"}", ARRAY_COUNT(pieces), &end, false, NULL);
    json_t *events = events_of(&stream, true), *object = load(whole.data, whole.bytes - 1), *last;
    size_t i;

    expect_types(events, types, ARRAY_COUNT(types));
    for (i = 0; i < json_array_size(events); i++)
        assert_int_equal(json_integer_value(json_object_get(json_array_get(events, i), "sequence_number")), i);
    expect_joined(events, "response.output_text.delta", "delta", NULL, "It is \"4\".");
    expect_joined(events, "response.output_text.done", "text", NULL, "It is \"4\".");
    expect_joined(events, "response.reasoning_text.delta", "delta", NULL, "hmm");
    expect_joined(events, "response.function_call_arguments.delta", "delta", NULL, "{\"a\":2}");
    last = json_object_get(json_array_get(events, i - 1), "response");
    assert_string_equal(json_string_value(json_object_get(last, "status")), "completed");
    assert_int_equal(json_array_size(json_object_get(last, "output")), 4);
    // what is told at the end is the whole answer: all but its ids
    assert_true(json_equal(json_object_get(last, "usage"), json_object_get(object, "usage")));
    for (i = 0; i < 4; i++) {
        json_t *one = json_array_get(json_object_get(last, "output"), i),
               *two = json_array_get(json_object_get(object, "output"), i);
        json_object_del(one, "id");
        json_object_del(two, "id");
        assert_true(json_equal(one, two));
    }
    assert_string_equal(json_string_value(json_object_get(json_array_get(json_object_get(object, "output"), 2), "call_id")),
                        "call_a");
    json_decref(events);
    json_decref(object);
    text_free(&stream);
    text_free(&whole);
}

// The statuses of the items of all events of a type.
static void expect_statuses(const json_t *events, const char *type, const char *const *wanted)
{
    for (size_t i = 0, found = 0; i < json_array_size(events); i++) {
        const json_t *event = json_array_get(events, i);
        if (strcmp(json_string_value(json_object_get(event, "type")), type) == 0)
            assert_string_equal(json_string_value(json_object_get(json_object_get(event, "item"), "status")), wanted[found++]);
    }
}

static void test_responses_that_are_cut_off_or_empty(void **state)
{
    struct dialect_end end = end_of("length");
    struct text stream = tell(&dialect_responses, "{\"input\":\"x\"}", 4, &end, true, NULL), whole;
    json_t *events = events_of(&stream, true), *object, *output;

    object = json_object_get(json_array_get(events, json_array_size(events) - 1), "response");
    assert_string_equal(json_string_value(json_object_get(object, "status")), "incomplete");
    assert_string_equal(json_string_value(json_object_get(json_object_get(object, "incomplete_details"), "reason")),
                        "max_output_tokens");
    expect_statuses(events, "response.output_item.done", (const char *const[]){"completed", "incomplete"});
    json_decref(events);
    text_free(&stream);
    end = end_of("stop");
    whole = tell(&dialect_responses, "{\"input\":\"x\"}", 0, &end, false, NULL);
    object = load(whole.data, whole.bytes - 1);
    output = json_object_get(object, "output");
    assert_int_equal(json_array_size(output), 1);
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(json_object_get(json_array_get(output, 0), "content"), 0), "text")), "");
    json_decref(object);
    text_free(&whole);
}

// An answer is kept as a next request continues it: with calls and reasoning, without the instructions.
static void test_responses_that_are_kept(void **state)
{
    const struct response_store_config config = {.max_bytes = 1 << 20, .share = 1, .max_count = 10, .keep_s = 1e6};
    struct dialect_end end = end_of("tool_calls");
    struct response_store *store = NULL;
    struct text whole, stream, next = {0}, given = {0};
    json_t *object;
    struct dialect_ask ask;
    struct api_error error;

    assert_int_equal(response_store_open(&config, &store), STATUS_OK);
    whole = tell(&dialect_responses, "{\"input\":\"x\",\"instructions\":\"be brief\"}", ARRAY_COUNT(pieces), &end, false, store);
    object = load(whole.data, whole.bytes - 1);
    const char *id = json_string_value(json_object_get(object, "id"));
    assert_true(json_is_true(json_object_get(object, "store")));
    assert_true(response_store_answer(store, "t", id, 0, &given));
    assert_int_equal(given.bytes, whole.bytes - 2); // the line's end, and the test's own
    text_format(&next, "{\"input\":\"and?\",\"previous_response_id\":\"%s\",\"instructions\":\"go on\"}", id);
    text_append(&next, "", 1);
    ask = ask_of(next.data, store);
    assert_true(dialect_translate(&dialect_responses, &ask, &error));
    json_t *wanted =
        json_loads("[{\"role\":\"system\",\"content\":\"go on\"},{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\","
                   "\"content\":\"It is \\\"4\\\".\",\"reasoning_content\":\"hmm\",\"tool_calls\":[{\"type\":\"function\",\"id\":"
                   "\"call_a\",\"function\":{\"name\":\"add\",\"arguments\":\"{\\\"a\\\":2}\"}},{\"type\":\"function\",\"id\":"
                   "\"call_b\",\"function\":{\"name\":\"none\",\"arguments\":\"{}\"}}]},{\"role\":\"user\",\"content\":\"and?\"}]",
                   0, NULL);
    assert_true(json_equal(json_object_get(ask.chat, "messages"), wanted));
    json_decref(wanted);
    json_decref(ask.chat);
    json_decref((json_t *)(uintptr_t)ask.body);
    const uint64_t with = response_store_bytes(store);
    dialect_free_own(&dialect_responses, ask.own); // its answer never comes
    assert_true(response_store_bytes(store) < with);
    stream = tell(&dialect_responses, "{\"input\":\"x\",\"store\":false}", 4, &end, true, store);
    assert_non_null(strstr(stream.data, "\"store\":false"));
    text_free(&stream);
    json_decref(object);
    text_free(&whole);
    text_free(&next);
    text_free(&given);
    response_store_close(store);
}

// Arguments that are no JSON object, here since they are cut off, would have a next request refused: they are kept as a text in one.
static void test_invalid_arguments_that_are_kept(void **state)
{
    const struct response_store_config config = {.max_bytes = 1 << 20, .share = 1, .max_count = 10, .keep_s = 1e6};
    struct dialect_end end = end_of("length");
    struct response_store *store = NULL;
    struct text whole, kept = {0};
    json_t *object, *messages;

    assert_int_equal(response_store_open(&config, &store), STATUS_OK);
    whole = tell(&dialect_responses, "{\"input\":\"x\"}", 5, &end, false, store);
    object = load(whole.data, whole.bytes - 1);
    assert_true(response_store_conversation(store, "t", json_string_value(json_object_get(object, "id")), 0, &kept));
    messages = load(kept.data, kept.bytes);
    const json_t *call = json_array_get(json_object_get(json_array_get(messages, 1), "tool_calls"), 0);
    assert_string_equal(json_string_value(json_object_get(json_object_get(call, "function"), "arguments")),
                        "{\"arguments\":\"{\\\"a\\\":\"}");
    json_decref(messages);
    json_decref(object);
    text_free(&whole);
    text_free(&kept);
    response_store_close(store);
}

#define MESSAGE "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}"

static void test_messages_stream(void **state)
{
    static const char *const types[] = {"message_start",      "content_block_start", "content_block_delta", "content_block_delta",
                                        "content_block_stop", "content_block_start", "content_block_delta", "content_block_delta",
                                        "content_block_stop", "content_block_start", "content_block_delta", "content_block_delta",
                                        "content_block_stop", "content_block_start", "content_block_stop",  "message_delta",
                                        "message_stop"};
    struct dialect_end end = end_of("tool_calls");
    struct text stream = tell(&dialect_messages, MESSAGE, ARRAY_COUNT(pieces), &end, true, NULL);
    struct text whole = tell(&dialect_messages, MESSAGE, ARRAY_COUNT(pieces), &end, false, NULL);
    json_t *events = events_of(&stream, true), *object = load(whole.data, whole.bytes - 1), *content;

    expect_types(events, types, ARRAY_COUNT(types));
    expect_joined(events, "content_block_delta", "delta", "text", "It is \"4\".");
    expect_joined(events, "content_block_delta", "delta", "thinking", "hmm");
    expect_joined(events, "content_block_delta", "delta", "partial_json", "{\"a\":2}");
    expect_joined(events, "message_delta", "delta", "stop_reason", "tool_use");
    content = json_object_get(object, "content");
    assert_int_equal(json_array_size(content), 4);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(json_array_get(content, 2), "input"), "a")), 2);
    assert_true(json_is_object(json_object_get(json_array_get(content, 3), "input")));
    assert_int_equal(json_integer_value(json_object_get(json_object_get(object, "usage"), "input_tokens")), 5);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(object, "usage"), "cache_read_input_tokens")), 4);
    json_decref(events);
    json_decref(object);
    text_free(&stream);
    text_free(&whole);
}

static void test_messages_stop_reasons(void **state)
{
    const struct {
        const char *finish, *stop, *reason;
    } rows[] = {{"stop", NULL, "end_turn"},
                {"stop", "END", "stop_sequence"},
                {"length", NULL, "max_tokens"},
                {"tool_calls", NULL, "tool_use"}};

    for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
        struct dialect_end end = end_of(rows[i].finish);
        end.stop_string = rows[i].stop;
        end.stop_bytes = rows[i].stop ? strlen(rows[i].stop) : 0;
        struct text whole = tell(&dialect_messages, MESSAGE, 4, &end, false, NULL);
        json_t *object = load(whole.data, whole.bytes - 1);
        const json_t *stop = json_object_get(object, "stop_sequence");
        assert_string_equal(json_string_value(json_object_get(object, "stop_reason")), rows[i].reason);
        assert_true(rows[i].stop ? strcmp(json_string_value(stop), rows[i].stop) == 0 : json_is_null(stop));
        json_decref(object);
        text_free(&whole);
    }
}

#define CHAT "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}"

static void test_ollama_stream(void **state)
{
    struct dialect_end end = end_of("stop");
    struct text stream = tell(&dialect_ollama_chat, CHAT, ARRAY_COUNT(pieces), &end, true, NULL);
    struct text whole = tell(&dialect_ollama_chat, CHAT, ARRAY_COUNT(pieces), &end, false, NULL);
    json_t *events = events_of(&stream, false), *object = load(whole.data, whole.bytes - 1), *calls, *last;
    size_t count = json_array_size(events);

    expect_joined(events, NULL, "message", "content", "It is \"4\".");
    expect_joined(events, NULL, "message", "thinking", "hmm");
    assert_int_equal(count, 4 + 2 + 1); // pieces of text, calls, the end
    last = json_array_get(events, count - 1);
    assert_true(json_is_true(json_object_get(last, "done")));
    assert_int_equal(json_integer_value(json_object_get(last, "eval_duration")), 2000000);
    assert_int_equal(json_integer_value(json_object_get(last, "prompt_eval_count")), 9);
    calls = json_object_get(json_object_get(object, "message"), "tool_calls");
    assert_int_equal(json_array_size(calls), 2);
    assert_true(json_equal(json_array_get(json_object_get(json_object_get(json_array_get(events, 4), "message"), "tool_calls"), 0),
                           json_array_get(calls, 0)));
    assert_int_equal(json_integer_value(
                         json_object_get(json_object_get(json_object_get(json_array_get(calls, 0), "function"), "arguments"), "a")),
                     2);
    json_decref(events);
    json_decref(object);
    text_free(&stream);
    text_free(&whole);
    stream = tell(&dialect_ollama_generate, "{\"model\":\"m\",\"prompt\":\"a\"}", 4, &end, true, NULL);
    events = events_of(&stream, false);
    expect_joined(events, NULL, "response", NULL, "It is \"4\".");
    json_decref(events);
    text_free(&stream);
}

// --- errors -------------------------------------------------------------------------------------------------------
static void expect_error(const struct dialect *dialect, int status, const char *text)
{
    struct api_error error;
    struct text out = {0};

    api_fail(&error, status, "code", "p", "it \"broke\"");
    dialect->refuse(&error, &out);
    text_append(&out, "", 1);
    assert_string_equal(out.data, text);
    text_free(&out);
}

// Checks that an error has what clients look for, in each form's own words.
static void expect_words(const struct dialect *dialect, const struct api_error *error, const char *wanted)
{
    struct text out = {0};

    dialect->refuse(error, &out);
    text_append(&out, "", 1);
    if (!strstr(out.data, wanted))
        fail_msg("no %s in %s", wanted, out.data);
    text_free(&out);
}

static void test_error_words(void **state)
{
    struct api_error error;

    api_too_long(&error, "messages", 100, "at least ", 101);
    expect_words(&dialect_openai, &error,
                 "\"This model's maximum context length is 100 tokens. However, your messages resulted in at least 101 tokens.");
    expect_words(&dialect_openai, &error, "\"code\":\"context_length_exceeded\"");
    expect_words(&dialect_messages, &error, "\"prompt is too long: 101 tokens > 100 maximum\"");
    error.length.answer = 5;
    expect_words(&dialect_count_tokens, &error, "\"input length and `max_tokens` exceed context limit: 101 + 5 > 100, decrease ");
    api_fail(&error, 401, "invalid_api_key", NULL, "Incorrect API key provided");
    expect_words(&dialect_responses, &error, "Incorrect API key provided\",\"type\":\"invalid_request_error\"");
    expect_words(&dialect_messages, &error, "{\"type\":\"authentication_error\",\"message\":\"invalid x-api-key\"}");
    api_fail(&error, 404, "model_not_found", "model", "The model 'a\"b' does not exist");
    snprintf(error.model, sizeof error.model, "a\"b");
    expect_words(&dialect_messages, &error, "{\"type\":\"not_found_error\",\"message\":\"model: a\\\"b\"}");
    expect_words(&dialect_ollama_chat, &error, "{\"error\":\"model 'a\\\"b' not found\"}");
    api_fail(&error, 504, "timeout", NULL, "late"); // nothing was wrong with the request: clients try it again
    expect_words(&dialect_openai, &error, "\"type\":\"server_error\"");
}

static void test_errors(void **state)
{
    expect_error(
        &dialect_openai, 400,
        "{\"error\":{\"message\":\"it \\\"broke\\\"\",\"type\":\"invalid_request_error\",\"param\":\"p\",\"code\":\"code\"}}");
    expect_error(&dialect_messages, 429,
                 "{\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"message\":\"it \\\"broke\\\"\"}}");
    expect_error(&dialect_messages, 503,
                 "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"it \\\"broke\\\"\"}}");
    expect_error(&dialect_count_tokens, 401,
                 "{\"type\":\"error\",\"error\":{\"type\":\"authentication_error\",\"message\":\"it \\\"broke\\\"\"}}");
    expect_error(&dialect_ollama_other, 404, "{\"error\":\"it \\\"broke\\\"\"}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_responses_stream),
        cmocka_unit_test(test_responses_that_are_cut_off_or_empty),
        cmocka_unit_test(test_responses_that_are_kept),
        cmocka_unit_test(test_invalid_arguments_that_are_kept),
        cmocka_unit_test(test_messages_stream),
        cmocka_unit_test(test_messages_stop_reasons),
        cmocka_unit_test(test_ollama_stream),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_error_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}