// responses.c: OpenAI's responses: the request as a chat's, the answer as a list of items, whole and as events.
//
// Each event has a number and says to which item and part it belongs. Items of one answer are numbered in its id's own space:
// resp_7f…, and in it rs_7f…_0 (reasoning), msg_7f…_1 (text), fc_7f…_2 (a call).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/json/json_text.h"
#include "services/gateway/api/dialects/dialect.h"
#include "services/gateway/api/dialects/pieces.h"
#include "services/gateway/api/dialects/response_store.h"
#include "services/gateway/api/schema/value.h"
#include "services/gateway/http/json_write.h"
#include "services/gateway/http/keys.h"

// The part of a request that its answer needs.
struct dialect_responses_own {
    struct text echo; // fields that the answer repeats: ,"instructions":null,...
    struct response_store *store;
    char tenant[KEY_TENANT_BYTES], id[DIALECT_ID_BYTES];
    bool kept; // the store has an entry that waits for the answer
};

// --- from a request for a response to one for a chat -----------------------------------------------------------------
//
//   instructions                 a message of the system
//   previous_response_id         the messages of that conversation, with its answer
//   input: text                  a message of the user
//   input: message               a message; parts input_text and output_text are parts of text
//   input: reasoning             reasoning_content of the assistant's message that follows
//   input: function_call         a call in the assistant's message before it, or in one of its own
//   input: function_call_output  a message of the tool
//   input: custom_tool_call, …   likewise, of a tool whose input is a text
//   input: item_reference        that item of a response that is kept
//
// The conversation is kept without the instructions, which are those of one request only.

static const char *const read_fields[] = {"model",
                                          "input",
                                          "instructions",
                                          "previous_response_id",
                                          "max_output_tokens",
                                          "stream",
                                          "store",
                                          "tools",
                                          "tool_choice",
                                          "text",
                                          "reasoning",
                                          "truncation",
                                          "metadata",
                                          "include",
                                          "background",
                                          "conversation",
                                          "prompt",
                                          "top_logprobs",
                                          "user",
                                          "safety_identifier",
                                          "prompt_cache_key",
                                          "prompt_cache_retention",
                                          "stream_options",
                                          "max_tool_calls",
                                          NULL};
static const char *const same_fields[] = {"model",        "temperature",         "top_p", "stream", "user",
                                          "service_tier", "parallel_tool_calls", "stop",  NULL};

// One translation.
struct ask {
    struct dialect_ask *given;
    struct api_error *error;
    json_t *messages;        // of the conversation
    const json_t *reasoning; // of the assistant's message to come; NULL: none
    json_t *held;            // responses that items were found in; NULL: none
    uint32_t references;
};

enum { REFERENCES_MOST = 64 };

// --- items of the input -------------------------------------------------------------------------------------------
// The parts of a content as parts of a chat's.
static json_t *take_parts(struct ask *ask, const char *where, const json_t *parts)
{
    json_t *out = json_array();
    size_t i, count = json_array_size(parts);
    char name[128];

    for (i = 0; i < count; i++) {
        const json_t *part = json_array_get(parts, i), *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
        snprintf(name, sizeof name, "%s[%zu]", where, i);
        bool ok = schema_is_string(type, "input_text") || schema_is_string(type, "output_text") || schema_is_string(type, "text");
        if (schema_is_string(type, "refusal"))
            text = json_object_get(part, "refusal");
        else if (!ok)
            (void)api_fail(ask->error, 400, "unsupported_content", name,
                           "'%s': only parts of type 'input_text', 'output_text' and 'refusal' are supported", name);
        if (!ask->error->status && !json_is_string(text))
            (void)api_fail(ask->error, 400, "invalid_type", name, "'%s.text' must be a string", name);
        if (ask->error->status || !dialect_add_new(out, dialect_text_part(text))) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

static json_t *take_content(struct ask *ask, const char *where, const json_t *content)
{
    if (json_is_array(content))
        return take_parts(ask, where, content);
    if (json_is_string(content))
        return json_incref((json_t *)(uintptr_t)content);
    if (content)
        schema_wrong_type(ask->error, where, "a string or an array of parts", content);
    else
        api_missing(ask->error, where);
    return NULL;
}

// Gives the reasoning that came before to the assistant's message.
static bool use_reasoning(struct ask *ask, json_t *message)
{
    const json_t *reasoning = ask->reasoning;

    ask->reasoning = NULL;
    return dialect_set(message, "reasoning_content", reasoning);
}

static bool take_message(struct ask *ask, const char *where, const json_t *item)
{
    const json_t *role = dialect_member(item, "role");
    json_t *content, *message;
    char name[96];

    snprintf(name, sizeof name, "%s.role", where);
    if (!role)
        return api_missing(ask->error, name);
    if (!json_is_string(role) || schema_has_zero(role))
        return schema_wrong_type(ask->error, name, "a string", role);
    snprintf(name, sizeof name, "%s.content", where);
    content = take_content(ask, name, dialect_member(item, "content"));
    return content && dialect_add_message(ask->messages, json_string_value(role), content, &message) &&
           (!schema_is_string(role, "assistant") || use_reasoning(ask, message));
}

static bool need_string(struct ask *ask, const char *where, const json_t *item, const char *key, const json_t **out)
{
    char name[128];

    *out = dialect_member(item, key);
    snprintf(name, sizeof name, "%s.%s", where, key);
    if (!*out)
        return api_missing(ask->error, name);
    return json_is_string(*out) || schema_wrong_type(ask->error, name, "a string", *out);
}

static bool take_call(struct ask *ask, const char *where, const json_t *item)
{
    const json_t *id, *function, *arguments;
    json_t *message;

    return need_string(ask, where, item, "call_id", &id) && need_string(ask, where, item, "name", &function) &&
           need_string(ask, where, item, "arguments", &arguments) &&
           dialect_add_call(ask->messages, id, function, arguments, &message) && (!ask->reasoning || use_reasoning(ask, message));
}

// It stays what it is: a chat has such calls, too, and its items may be listed.
static bool take_custom_call(struct ask *ask, const char *where, const json_t *item)
{
    const json_t *id, *name, *input;
    json_t *message;

    return need_string(ask, where, item, "call_id", &id) && need_string(ask, where, item, "name", &name) &&
           need_string(ask, where, item, "input", &input) &&
           dialect_append_call(
               ask->messages,
               json_pack("{s:O,s:s,s:{s:O,s:O}}", "id", id, "type", "custom", "custom", "name", name, "input", input), &message) &&
           (!ask->reasoning || use_reasoning(ask, message));
}

static bool take_output(struct ask *ask, const char *where, const json_t *item)
{
    json_t *content, *message;
    const json_t *id;
    char name[96];

    if (!need_string(ask, where, item, "call_id", &id))
        return false;
    snprintf(name, sizeof name, "%s.output", where);
    content = take_content(ask, name, dialect_member(item, "output"));
    return content && dialect_add_message(ask->messages, "tool", content, &message) && dialect_set(message, "tool_call_id", id);
}

// Uses the first of several parts: models write one.
static bool take_reasoning(struct ask *ask, const json_t *item)
{
    const json_t *parts = json_object_get(item, "content");
    const json_t *text = json_object_get(json_array_get(parts, 0), "text");

    if (!text)
        text = json_object_get(json_array_get(json_object_get(item, "summary"), 0), "text");
    if (json_is_string(text))
        ask->reasoning = text;
    return true;
}

static bool take_item(struct ask *ask, size_t index, const json_t *item);

// Returns an item of a kept response by its id, rs_7f…_0: the middle is the response's. *response: what holds it, to be released. NULL: there is
// no such item.
static const json_t *find_item(struct ask *ask, const char *id, json_t **response)
{
    const char *begin = strchr(id, '_'), *end = strrchr(id, '_');
    char name[DIALECT_ID_BYTES];
    struct text kept = {0};

    *response = NULL;
    if (!begin || begin == end || (size_t)(end - begin) + sizeof "resp" > sizeof name || !ask->given->store)
        return NULL;
    snprintf(name, sizeof name, "resp%.*s", (int)(end - begin), begin);
    if (response_store_answer(ask->given->store, ask->given->tenant, name, clock_now_us(), &kept) && !kept.failed)
        *response = json_text_read(kept.data, kept.bytes, JSON_ALLOW_NUL, NULL);
    text_free(&kept);
    const json_t *items = json_object_get(*response, "output");
    for (size_t i = 0; i < json_array_size(items); i++)
        if (schema_is_string(json_object_get(json_array_get(items, i), "id"), id))
            return json_array_get(items, i);
    return NULL;
}

// Each may be as large as an answer, so not many are looked up.
static bool take_reference(struct ask *ask, size_t index, const char *where, const json_t *item)
{
    const json_t *id, *found;
    json_t *response = NULL;
    bool ok;

    if (!need_string(ask, where, item, "id", &id))
        return false;
    if (++ask->references > REFERENCES_MOST)
        return api_fail(ask->error, 400, "invalid_value", where, "'input' refers to more than %d items", REFERENCES_MOST);
    found = schema_has_zero(id) ? NULL : find_item(ask, json_string_value(id), &response);
    if (!found) {
        json_decref(response);
        return api_fail(ask->error, 404, "not_found", where,
                        "'%s' refers to an item of a response that is not there: " RESPONSE_IS_GONE, where);
    }
    ask->held = ask->held ? ask->held : json_array(); // what is read of it may be needed for the next item
    ok = ask->held && json_array_append(ask->held, response) == 0 && take_item(ask, index, found);
    json_decref(response);
    return ok;
}

static bool take_item(struct ask *ask, size_t index, const json_t *item)
{
    const json_t *type = dialect_member(item, "type");
    char where[64];

    snprintf(where, sizeof where, "input[%zu]", index);
    if (!json_text_is_object(item))
        return schema_wrong_type(ask->error, where, "an object", item);
    if (!type && !dialect_member(item, "role") && dialect_member(item, "id"))
        return take_reference(ask, index, where, item);
    if (!type || schema_is_string(type, "message"))
        return take_message(ask, where, item);
    if (schema_is_string(type, "function_call"))
        return take_call(ask, where, item);
    if (schema_is_string(type, "custom_tool_call"))
        return take_custom_call(ask, where, item);
    if (schema_is_string(type, "function_call_output") || schema_is_string(type, "custom_tool_call_output"))
        return take_output(ask, where, item);
    if (schema_is_string(type, "reasoning"))
        return take_reasoning(ask, item);
    if (schema_is_string(type, "item_reference"))
        return take_reference(ask, index, where, item);
    return api_fail(
        ask->error, 400, "unsupported_content", where,
        "'%s': only items of type 'message', 'function_call', 'custom_tool_call', their outputs, 'reasoning' and 'item_reference' are "
        "supported",
        where);
}

static bool take_input(struct ask *ask)
{
    const json_t *input = dialect_member(ask->given->body, "input");
    size_t i, count = json_array_size(input);
    json_t *message;

    if (!input) // what is counted may be the instructions alone
        return (ask->given->kind == API_TOKENIZE && dialect_member(ask->given->body, "instructions")) ||
               api_missing(ask->error, "input");
    if (json_is_string(input))
        return dialect_add_message(ask->messages, "user", json_incref((json_t *)(uintptr_t)input), &message);
    if (!json_is_array(input))
        return schema_wrong_type(ask->error, "input", "a string or an array of items", input);
    if (count > API_MAX_MESSAGES)
        return api_fail(ask->error, 400, "invalid_value", "input", "'input' has %zu items, at most %d are allowed", count,
                        API_MAX_MESSAGES);
    for (i = 0; i < count; i++)
        if (!take_item(ask, i, json_array_get(input, i)))
            return false;
    return true;
}

// --- what came before ---------------------------------------------------------------------------------------------
static bool take_previous(struct ask *ask)
{
    const json_t *id = dialect_member(ask->given->body, "previous_response_id");
    struct text kept = {0};
    size_t at;

    if (!id) {
        ask->messages = json_array();
        return ask->messages != NULL;
    }
    if (!json_is_string(id) || schema_has_zero(id))
        return schema_wrong_type(ask->error, "previous_response_id", "a string", id);
    if (!ask->given->store)
        return api_fail(ask->error, 400, "unsupported_parameter", "previous_response_id",
                        "'previous_response_id' is not supported: this gateway keeps no responses (--responses-memory)");
    if (!response_store_conversation(ask->given->store, ask->given->tenant, json_string_value(id), clock_now_us(), &kept)) {
        text_free(&kept);
        return api_fail(ask->error, 404, "previous_response_not_found", "previous_response_id",
                        "there is no such response: " RESPONSE_IS_GONE);
    }
    if (!kept.failed && json_check_limits(kept.data, kept.bytes, API_MAX_DEPTH, API_MAX_VALUES, &at) != JSON_WITHIN) {
        text_free(&kept);
        return api_fail(ask->error, 400, "invalid_value", "previous_response_id",
                        "the conversation of that response has more than %d values: messages and their parts count",
                        API_MAX_VALUES);
    }
    ask->messages = kept.failed ? NULL : json_text_read(kept.data, kept.bytes, JSON_ALLOW_NUL, NULL);
    text_free(&kept);
    return ask->messages != NULL;
}

// --- the other fields ---------------------------------------------------------------------------------------------
static bool is_off(const json_t *value)
{
    return !value || json_is_false(value) || (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_integer(value) && json_integer_value(value) == 0);
}

static const char with_logprobs[] = "message.output_text.logprobs";

// Reasoning is never hidden, so nobody needs it encrypted; the others are of tools and content that are refused elsewhere.
static bool is_includable(const json_t *name)
{
    static const char *const names[] = {with_logprobs,
                                        "reasoning.encrypted_content",
                                        "file_search_call.results",
                                        "web_search_call.results",
                                        "web_search_call.action.sources",
                                        "code_interpreter_call.outputs",
                                        "computer_call_output.output.image_url",
                                        "message.input_image.image_url"};

    for (size_t i = 0; i < ARRAY_COUNT(names); i++)
        if (schema_is_string(name, names[i]))
            return true;
    return false;
}

// They are wanted by their name in `include`, or where their alternatives are.
static bool take_logprobs(struct ask *ask, json_t *chat)
{
    const json_t *tops = dialect_member(ask->given->body, "top_logprobs"), *include = dialect_member(ask->given->body, "include");
    bool wanted = json_is_number(tops) && json_number_value(tops) > 0;

    for (size_t i = 0; i < json_array_size(include); i++)
        wanted = wanted || schema_is_string(json_array_get(include, i), with_logprobs);
    return dialect_set(chat, "top_logprobs", tops) && (!wanted || dialect_set_new(chat, "logprobs", json_true()));
}

// Refuses fields that would change the answer and are not supported.
static bool check_refused(struct ask *ask)
{
    static const char *const refused[] = {"background", "conversation", "prompt"};
    const json_t *body = ask->given->body, *include = dialect_member(body, "include"), *store = dialect_member(body, "store");
    const json_t *metadata = dialect_member(body, "metadata");
    size_t i;

    for (i = 0; i < ARRAY_COUNT(refused); i++)
        if (!is_off(dialect_member(body, refused[i])))
            return dialect_unsupported(ask->error, refused[i], "");
    if (include && !json_is_array(include))
        return schema_wrong_type(ask->error, "include", "an array of strings", include);
    for (i = 0; i < json_array_size(include); i++)
        if (!is_includable(json_array_get(include, i)))
            return api_fail(ask->error, 400, "invalid_value", "include", "'include[%zu]' is not known", i);
    if (store && !json_is_boolean(store))
        return schema_wrong_type(ask->error, "store", "a boolean", store);
    return !metadata || json_text_is_object(metadata) || schema_wrong_type(ask->error, "metadata", "an object", metadata);
}

// A chat has a custom tool one level deeper, and its grammar another.
static json_t *custom_tool(const json_t *tool)
{
    const json_t *format = dialect_member(tool, "format");
    json_t *custom = json_object(), *out = json_pack("{s:s,s:O}", "type", "custom", "custom", custom), *inner;
    bool ok = out && dialect_set(custom, "name", dialect_member(tool, "name")) &&
              dialect_set(custom, "description", dialect_member(tool, "description"));

    if (ok && schema_is_string(json_object_get(format, "type"), "grammar")) {
        inner = json_pack("{s:s,s:{s:O?,s:O?}}", "type", "grammar", "grammar", "syntax", json_object_get(format, "syntax"),
                          "definition", json_object_get(format, "definition"));
        ok = dialect_set_new(custom, "format", inner);
    } else {
        ok = ok && dialect_set(custom, "format", format);
    }
    json_decref(custom);
    if (ok)
        return out;
    json_decref(out);
    return NULL;
}

// A tool, or what names one.
static json_t *chat_tool(const json_t *tool)
{
    return schema_is_string(json_object_get(tool, "type"), "custom") ? custom_tool(tool) : dialect_function(tool, "parameters");
}

// A chat's names functions one level deeper.
static json_t *allowed_tools(const json_t *choice)
{
    const json_t *tools = json_object_get(choice, "tools");
    json_t *named = json_array();
    bool ok = named != NULL;

    for (size_t i = 0; i < json_array_size(tools); i++)
        ok = ok && dialect_add_new(named, chat_tool(json_array_get(tools, i)));
    if (!ok)
        json_decref(named);
    return ok ? json_pack("{s:s,s:{s:O?,s:o}}", "type", "allowed_tools", "allowed_tools", "mode", json_object_get(choice, "mode"),
                          "tools", named)
              : NULL;
}

static bool take_tool_choice(json_t *chat, const json_t *choice)
{
    const json_t *type = json_object_get(choice, "type");

    if (schema_is_string(type, "function") || schema_is_string(type, "custom"))
        return dialect_set_new(chat, "tool_choice", chat_tool(choice));
    if (schema_is_string(type, "allowed_tools"))
        return dialect_set_new(chat, "tool_choice", allowed_tools(choice));
    return dialect_set(chat, "tool_choice", choice);
}

static bool take_tools(struct ask *ask, json_t *chat)
{
    const json_t *tools = dialect_member(ask->given->body, "tools"), *choice = dialect_member(ask->given->body, "tool_choice");
    json_t *out = tools ? json_array() : NULL;
    size_t i, count = json_array_size(tools);
    bool ok = true;

    if (tools && !json_is_array(tools))
        ok = schema_wrong_type(ask->error, "tools", "an array", tools);
    for (i = 0; ok && i < count; i++) {
        const json_t *tool = json_array_get(tools, i);
        char where[48];
        snprintf(where, sizeof where, "tools[%zu]", i);
        const json_t *type = json_object_get(tool, "type");
        ok = schema_is_string(type, "function") || schema_is_string(type, "custom")
                 ? dialect_add_new(out, chat_tool(tool))
                 : api_fail(ask->error, 400, "unsupported_parameter", where,
                            "'%s': only tools of type 'function' and 'custom' are supported: this server runs none itself", where);
    }
    ok = ok && dialect_set(chat, "tools", out);
    json_decref(out);
    return ok && (!choice || take_tool_choice(chat, choice));
}

// text.format is a chat's response_format, whose schema is one level deeper.
static bool take_format(struct ask *ask, json_t *chat)
{
    static const char *const members[] = {"name", "schema", "strict", "description", NULL};
    const json_t *text = dialect_member(ask->given->body, "text"), *format = dialect_member(text, "format");
    json_t *schema, *out;
    bool ok;

    if (text && !json_text_is_object(text))
        return schema_wrong_type(ask->error, "text", "an object", text);
    if (dialect_member(text, "verbosity")) // a wish
        api_ignored_add(&ask->given->ignored, "text.verbosity");
    if (!format || !schema_is_string(json_object_get(format, "type"), "json_schema"))
        return dialect_set(chat, "response_format", format);
    schema = json_object();
    out = json_object();
    ok = schema && out && dialect_copy(schema, format, members) && dialect_set_new(out, "type", json_string("json_schema")) &&
         dialect_set(out, "json_schema", schema) && dialect_set(chat, "response_format", out);
    json_decref(schema);
    json_decref(out);
    return ok;
}

static bool take_others(struct ask *ask, json_t *chat)
{
    const json_t *body = ask->given->body, *most = dialect_member(body, "max_output_tokens");
    const json_t *reasoning = dialect_member(body, "reasoning"), *truncation = dialect_member(body, "truncation");

    if (json_is_number(most) && json_number_value(most) < 1)
        return api_fail(ask->error, 400, "invalid_value", "max_output_tokens", "'max_output_tokens' must be at least 1");
    if (reasoning && !json_text_is_object(reasoning))
        return schema_wrong_type(ask->error, "reasoning", "an object", reasoning);
    if (truncation && !schema_is_string(truncation, "auto") && !schema_is_string(truncation, "disabled"))
        return api_fail(ask->error, 400, "invalid_value", "truncation", "'truncation' must be 'auto' or 'disabled'");
    if (schema_is_string(truncation, "auto") && !dialect_set_new(chat, "truncate_prompt_tokens", json_integer(-1)))
        return false;
    return dialect_copy(chat, body, same_fields) && dialect_copy(chat, body, dialect_sampling_fields) &&
           dialect_set(chat, "max_completion_tokens", most) && take_logprobs(ask, chat) &&
           dialect_set(chat, "reasoning_effort", dialect_member(reasoning, "effort"));
}

// The messages of the chat: the instructions before the conversation.
static bool put_messages(struct ask *ask, json_t *chat)
{
    const json_t *instructions = dialect_member(ask->given->body, "instructions");
    json_t *all, *message;
    bool ok;

    if (!instructions)
        return dialect_set(chat, "messages", ask->messages);
    if (!json_is_string(instructions))
        return schema_wrong_type(ask->error, "instructions", "a string", instructions);
    all = json_array();
    ok = all && dialect_add_message(all, "system", json_incref((json_t *)(uintptr_t)instructions), &message) &&
         json_array_extend(all, ask->messages) == 0 && dialect_set(chat, "messages", all);
    json_decref(all);
    return ok;
}

// --- what the answer needs ----------------------------------------------------------------------------------------
static void echo(struct text *out, const char *name, const json_t *value, const char *otherwise)
{
    text_format(out, ",\"%s\":", name);
    if (value)
        json_text_append(out, value, false);
    else
        text_string(out, otherwise);
}

static void echo_all(const json_t *body, bool kept, struct text *out)
{
    static const struct {
        const char *name, *otherwise;
    } rows[] = {{"instructions", "null"},
                {"max_output_tokens", "null"},
                {"metadata", "{}"},
                {"tools", "[]"},
                {"tool_choice", "\"auto\""},
                {"parallel_tool_calls", "true"},
                {"temperature", "null"},
                {"top_p", "null"},
                {"text", "{\"format\":{\"type\":\"text\"}}"},
                {"user", "null"},
                {"previous_response_id", "null"},
                {"reasoning", "{\"effort\":null,\"summary\":null}"},
                {"service_tier", "null"},
                {"top_logprobs", "0"},
                {"truncation", "\"disabled\""}};

    for (size_t i = 0; i < ARRAY_COUNT(rows); i++)
        echo(out, rows[i].name, dialect_member(body, rows[i].name), rows[i].otherwise);
    text_string(out, kept ? ",\"store\":true,\"background\":false" : ",\"store\":false,\"background\":false");
}

// Answers are found by their id alone, so it is nobody else's to choose.
static void draw_id(char out[DIALECT_ID_BYTES])
{
    uint64_t random[2];

    if (getrandom(random, sizeof random, GRND_NONBLOCK) != (ssize_t)sizeof random)
        random[0] = clock_wall_us(), random[1] = clock_now_ns();
    snprintf(out, DIALECT_ID_BYTES, "resp_%016llx%016llx", (unsigned long long)random[0], (unsigned long long)random[1]);
}

static bool make_own(struct ask *ask)
{
    struct dialect_responses_own *own = calloc(1, sizeof *own);
    struct dialect_ask *given = ask->given;
    struct text conversation = {0};

    if (!own)
        return false;
    draw_id(given->id);
    snprintf(own->id, sizeof own->id, "%s", given->id);
    snprintf(own->tenant, sizeof own->tenant, "%s", given->tenant);
    own->store = given->store;
    if (own->store && !json_is_false(json_object_get(given->body, "store"))) {
        json_text_append(&conversation, ask->messages, false);
        own->kept = !conversation.failed && response_store_begin(own->store, own->tenant, own->id, &conversation, clock_now_us());
        text_free(&conversation);
    }
    echo_all(given->body, own->kept, &own->echo);
    given->own = own;
    return !own->echo.failed;
}

static void dialect_responses_free_own(void *arg)
{
    struct dialect_responses_own *own = arg;

    if (own->kept) // without an answer
        (void)response_store_remove(own->store, own->tenant, own->id, clock_now_us());
    text_free(&own->echo);
    free(own);
}

// Kind API_TOKENIZE has the same input, to be counted.
static bool dialect_responses_translate(struct dialect_ask *given, struct api_error *error)
{
    struct ask ask = {.given = given, .error = error};
    json_t *chat = given->chat = json_object();
    bool ok = chat && check_refused(&ask) && take_previous(&ask) && take_input(&ask) && take_tools(&ask, chat) &&
              take_format(&ask, chat) && take_others(&ask, chat) && put_messages(&ask, chat) &&
              (given->kind == API_TOKENIZE || make_own(&ask));

    if (ok)
        dialect_note_ignored(&given->ignored, given->body, read_fields, same_fields, dialect_sampling_fields);
    json_decref(ask.messages);
    json_decref(ask.held);
    return ok;
}

// --- answers ---------------------------------------------------------------------------------------------------------
static const struct dialect_rename renamed[] = {{"max_completion_tokens", "max_output_tokens"},
                                                {"max_tokens", "max_output_tokens"},
                                                {"response_format.json_schema.schema", "text.format.schema"},
                                                {"response_format", "text.format"},
                                                {"reasoning_effort", "reasoning.effort"},
                                                {"truncate_prompt_tokens", "truncation"},
                                                {"messages", "input"},
                                                {NULL, NULL}};

static const char *item_prefix(const struct dialect_item *item)
{
    return item->part == DIALECT_TEXT ? "msg" : item->part == DIALECT_REASONING ? "rs" : item->custom ? "ctc" : "fc";
}

static uint32_t index_of(const struct dialect_run *run, const struct dialect_item *item) { return (uint32_t)(item - run->items); }

static void item_id(const struct dialect_run *run, const struct dialect_item *item, struct text *out)
{
    text_format(out, "\"%s_%s_%u\"", item_prefix(item), run->id + strlen("resp_"), index_of(run, item));
}

static void part_json(const struct dialect_item *item, bool whole, struct text *out)
{
    if (item->part == DIALECT_TEXT) {
        text_string(out, "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[");
        text_append(out, item->logprobs.data, whole ? item->logprobs.bytes : 0);
        text_string(out, "],\"text\":");
    } else {
        text_string(out, "{\"type\":\"reasoning_text\",\"text\":");
    }
    text_json(out, item->data.data, whole ? item->data.bytes : 0);
    text_append(out, "}", 1);
}

// whole: as it is at the end; otherwise as it begins.
static void item_json(const struct dialect_run *run, const struct dialect_item *item, const char *status, bool whole,
                      struct text *out)
{
    text_string(out, "{\"id\":");
    item_id(run, item, out);
    switch (item->part) {
    case DIALECT_TEXT: text_string(out, ",\"type\":\"message\",\"role\":\"assistant\",\"content\":["); break;
    case DIALECT_REASONING: text_string(out, ",\"type\":\"reasoning\",\"summary\":[],\"content\":["); break;
    case DIALECT_CALL:
        text_json_bytes_after(
            out, item->custom ? ",\"type\":\"custom_tool_call\",\"call_id\":" : ",\"type\":\"function_call\",\"call_id\":",
            item->id.data, item->id.bytes);
        text_json_bytes_after(out, ",\"name\":", item->name.data, item->name.bytes);
        text_json_bytes_after(out, item->custom ? ",\"input\":" : ",\"arguments\":", item->data.data, whole ? item->data.bytes : 0);
        break;
    }
    if (item->part != DIALECT_CALL && whole)
        part_json(item, true, out);
    text_format(out, "%s,\"status\":\"%s\"}", item->part == DIALECT_CALL ? "" : "]", status);
}

// --- the answer as one object -------------------------------------------------------------------------------------
static bool is_cut_off(const struct dialect_end *end) { return end && strcmp(end->finish_reason, "length") == 0; }

static void usage_json(const struct dialect_end *end, struct text *out)
{
    text_format(out,
                "{\"input_tokens\":%llu,\"input_tokens_details\":{\"cached_tokens\":%llu},\"output_tokens\":%llu,"
                "\"output_tokens_details\":{\"reasoning_tokens\":%llu},\"total_tokens\":%llu}",
                (unsigned long long)end->usage.prompt_tokens, (unsigned long long)end->usage.cached_tokens,
                (unsigned long long)end->usage.completion_tokens, (unsigned long long)end->usage.reasoning_tokens,
                (unsigned long long)(end->usage.prompt_tokens + end->usage.completion_tokens));
}

// end: NULL before it; error: NULL: none.
static void response_json(const struct dialect_run *run, const struct dialect_end *end, const struct api_error *error,
                          struct text *out)
{
    const struct dialect_responses_own *own = run->own;
    const bool cut_off = is_cut_off(end);
    const char *status = error ? "failed" : !end ? "in_progress" : cut_off ? "incomplete" : "completed";

    text_json_after(out, "{\"id\":", run->id);
    text_format(out,
                ",\"object\":\"response\",\"created_at\":%llu,\"status\":\"%s\",\"error\":", (unsigned long long)run->created_s,
                status);
    if (error) {
        text_json_after(out, "{\"code\":\"server_error\",\"message\":", error->message);
        text_append(out, "}", 1);
    } else {
        text_string(out, "null");
    }
    text_string(out, cut_off ? ",\"incomplete_details\":{\"reason\":\"max_output_tokens\"},\"model\":"
                             : ",\"incomplete_details\":null,\"model\":");
    text_json_string(out, run->model);
    text_string(out, ",\"output\":[");
    for (uint32_t i = 0; end && i < run->item_count; i++) {
        shown_comma(out, i == 0);
        item_json(run, &run->items[i], cut_off && i + 1 == run->item_count ? "incomplete" : "completed", true, out);
    }
    text_append(out, "]", 1);
    text_append(out, own->echo.data, own->echo.bytes);
    text_string(out, ",\"usage\":");
    if (end)
        usage_json(end, out);
    else
        text_string(out, "null");
    text_append(out, "}", 1);
}

// A call as a chat request has it.
static void call_json(const struct dialect_item *item, struct text *out)
{
    struct text arguments = {0};

    text_json_bytes_after(out, item->custom ? "{\"type\":\"custom\",\"id\":" : "{\"type\":\"function\",\"id\":", item->id.data,
                          item->id.bytes);
    text_json_bytes_after(out, item->custom ? ",\"custom\":{\"name\":" : ",\"function\":{\"name\":", item->name.data,
                          item->name.bytes);
    if (item->custom) {
        text_json_bytes_after(out, ",\"input\":", item->data.data, item->data.bytes);
    } else {
        text_string(out, ",\"arguments\":");
        dialect_append_arguments(item->data.data, item->data.bytes, &arguments);
        text_json(out, arguments.data, arguments.bytes);
    }
    text_string(out, "}}");
    out->failed |= arguments.failed;
    text_free(&arguments);
}

// The answer as a message of the conversation: [calls, text, reasoning].
static void message_json(const struct dialect_run *run, struct text *out)
{
    struct text parts[3] = {{0}};
    uint32_t calls = 0;

    for (uint32_t i = 0; i < run->item_count; i++) {
        const struct dialect_item *item = &run->items[i];
        struct text *part = &parts[item->part];
        if (item->part != DIALECT_CALL) {
            text_append(part, item->data.data, item->data.bytes);
            continue;
        }
        shown_comma(part, calls++ == 0);
        call_json(item, part);
    }
    text_json_bytes_after(out, "{\"role\":\"assistant\",\"content\":", parts[DIALECT_TEXT].data, parts[DIALECT_TEXT].bytes);
    if (parts[DIALECT_REASONING].bytes) {
        text_json_bytes_after(out, ",\"reasoning_content\":", parts[DIALECT_REASONING].data, parts[DIALECT_REASONING].bytes);
    }
    if (calls) {
        text_string(out, ",\"tool_calls\":[");
        text_append(out, parts[DIALECT_CALL].data, parts[DIALECT_CALL].bytes);
        text_append(out, "]", 1);
    }
    text_append(out, "}", 1);
    for (size_t i = 0; i < ARRAY_COUNT(parts); i++) {
        out->failed |= parts[i].failed;
        text_free(&parts[i]);
    }
}

static void keep(struct dialect_run *run, const struct text *answer)
{
    struct dialect_responses_own *own = run->own;
    struct text message = {0};

    if (!own->kept)
        return;
    message_json(run, &message);
    response_store_end(own->store, own->tenant, own->id, &message, answer, clock_now_us());
    own->kept = false;
    text_free(&message);
}

// --- events -------------------------------------------------------------------------------------------------------
static void event(struct dialect_run *run, const char *type, struct text *out)
{
    text_format(out, "event: response.%s\ndata: {\"type\":\"response.%s\",\"sequence_number\":%llu", type, type,
                (unsigned long long)run->event_count++);
}

static void event_end(struct text *out) { text_string(out, "}\n\n"); }

static void response_event(struct dialect_run *run, const char *type, const struct dialect_end *end, const struct api_error *error,
                           struct text *out)
{
    event(run, type, out);
    text_string(out, ",\"response\":");
    response_json(run, end, error, out);
    event_end(out);
}

static void begin(struct dialect_run *run, struct text *out)
{
    response_event(run, "created", NULL, NULL, out);
    response_event(run, "in_progress", NULL, NULL, out);
}

// Begins an event of a part of an item.
static void part_event(struct dialect_run *run, const struct dialect_item *item, const char *type, struct text *out)
{
    event(run, type, out);
    text_string(out, ",\"item_id\":");
    item_id(run, item, out);
    text_format(out, ",\"output_index\":%u", index_of(run, item));
    if (item->part != DIALECT_CALL)
        text_string(out, ",\"content_index\":0");
}

static void item_event(struct dialect_run *run, const struct dialect_item *item, const char *type, const char *status, bool whole,
                       struct text *out)
{
    event(run, type, out);
    text_format(out, ",\"output_index\":%u,\"item\":", index_of(run, item));
    item_json(run, item, status, whole, out);
    event_end(out);
}

static void item_begin(struct dialect_run *run, const struct dialect_item *item, struct text *out)
{
    item_event(run, item, "output_item.added", "in_progress", false, out);
    if (item->part == DIALECT_CALL)
        return;
    part_event(run, item, "content_part.added", out);
    text_string(out, ",\"part\":");
    part_json(item, false, out);
    event_end(out);
}

static void logprobs_json(const struct text *logprobs, struct text *out)
{
    text_string(out, ",\"logprobs\":[");
    text_append(out, logprobs->data, logprobs->bytes);
    text_append(out, "]", 1);
}

static void delta(struct dialect_run *run, const struct dialect_item *item, const char *data, size_t bytes, struct text *out)
{
    static const char *const types[] = {[DIALECT_TEXT] = "output_text.delta",
                                        [DIALECT_REASONING] = "reasoning_text.delta",
                                        [DIALECT_CALL] = "function_call_arguments.delta"};

    part_event(run, item, item->custom ? "custom_tool_call_input.delta" : types[item->part], out);
    text_json_bytes_after(out, ",\"delta\":", data, bytes);
    if (item->part == DIALECT_TEXT)
        logprobs_json(&run->logprobs, out);
    event_end(out);
}

static void item_end(struct dialect_run *run, const struct dialect_item *item, struct text *out)
{
    static const char *const types[] = {[DIALECT_TEXT] = "output_text.done",
                                        [DIALECT_REASONING] = "reasoning_text.done",
                                        [DIALECT_CALL] = "function_call_arguments.done"};

    part_event(run, item, item->custom ? "custom_tool_call_input.done" : types[item->part], out);
    text_string(out, item->custom ? ",\"input\":" : item->part == DIALECT_CALL ? ",\"arguments\":" : ",\"text\":");
    text_json(out, item->data.data, item->data.bytes);
    if (item->part == DIALECT_TEXT)
        logprobs_json(&item->logprobs, out);
    if (item->part == DIALECT_CALL) {
        text_json_bytes_after(out, ",\"name\":", item->name.data, item->name.bytes);
    }
    event_end(out);
    if (item->part != DIALECT_CALL) {
        part_event(run, item, "content_part.done", out);
        text_string(out, ",\"part\":");
        part_json(item, true, out);
        event_end(out);
    }
    item_event(run, item, "output_item.done", is_cut_off(run->end) ? "incomplete" : "completed", true, out);
}

static void whole(struct dialect_run *run, const struct dialect_end *end, struct text *out)
{
    response_json(run, end, NULL, out);
    keep(run, out);
    text_append(out, "\n", 1);
}

static void end_stream(struct dialect_run *run, const struct dialect_end *end, struct text *out)
{
    struct text answer = {0};

    response_json(run, end, NULL, &answer);
    keep(run, &answer);
    event(run, is_cut_off(end) ? "incomplete" : "completed", out);
    text_string(out, ",\"response\":");
    text_append(out, answer.data, answer.bytes);
    event_end(out);
    out->failed |= answer.failed;
    text_free(&answer);
}

static void fail_stream(struct dialect_run *run, const struct api_error *error, struct text *out)
{
    response_event(run, "failed", NULL, error, out);
}

const struct dialect dialect_responses = {.id_prefix = "resp_",
                                          .stream_type = "text/event-stream; charset=utf-8",
                                          .keep_alive = ": keep-alive\n\n",
                                          .renamed = renamed,
                                          .translate = dialect_responses_translate,
                                          .begin = begin,
                                          .item_begin = item_begin,
                                          .delta = delta,
                                          .item_end = item_end,
                                          .end = end_stream,
                                          .error = fail_stream,
                                          .whole = whole,
                                          .refuse = api_error_append,
                                          .free_own = dialect_responses_free_own};

static void tokens(uint32_t count, struct text *out)
{
    text_format(out, "{\"object\":\"response.input_tokens\",\"input_tokens\":%u}\n", count);
}

const struct dialect dialect_count_responses = {
    .id_prefix = "", .renamed = renamed, .translate = dialect_responses_translate, .refuse = api_error_append, .tokens = tokens};
