// messages.c: Anthropic's messages: the request as a chat's, the answer as a list of blocks, whole and as events.
//
// The prompt's tokens are counted in two parts, those whose KV was there before and the others; which it is is known at the end, so a stream
// says it again in its last event but one.
#include "services/gateway/api/dialects/dialect.h"

#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/json/json_text.h"
#include "services/gateway/api/dialects/pieces.h"
#include "services/gateway/api/schema/value.h"

// --- from Anthropic's request for a message to one for a chat --------------------------------------------------------
//
//   system                    a message of the system
//   text                      text of the message that it is in
//   thinking                  the message's reasoning_content
//   tool_use                  a call in the assistant's message
//   tool_result               a message of the tool, before or behind the user's text as it came
//   a last assistant message  is continued
//   output_config             format and effort are response_format and reasoning_effort

static const char *const read_fields[] = {"model",       "messages",      "system",        "max_tokens", "stop_sequences",
                                          "tools",       "tool_choice",   "thinking",      "metadata",   "service_tier",
                                          "stream",      "temperature",   "top_p",         "top_k",      "container",
                                          "mcp_servers", "output_config", "output_format", NULL};
static const char *const same_fields[] = {"model", "stream", "temperature", "top_p", NULL};

// One translation.
struct ask {
    struct dialect_ask *given;
    struct api_error *error;
    json_t *messages;
};

// --- blocks of a content ------------------------------------------------------------------------------------------
// A message that is being put together from blocks. The tools' results are messages of their own, so one may end and another begin.
struct building {
    const char *role;
    json_t *message; // borrowed: in the list; NULL: none has begun
    json_t *parts;   // its text; borrowed
};

static bool wrong_block(struct ask *ask, const char *where)
{
    return api_fail(ask->error, 400, "unsupported_content", where,
                    "'%s': only blocks of type 'text', 'thinking', 'tool_use' and 'tool_result' are supported", where);
}

static bool begin_message(struct ask *ask, struct building *building)
{
    if (building->message)
        return true;
    building->parts = json_array();
    return building->parts && dialect_add_message(ask->messages, building->role, building->parts, &building->message);
}

static bool take_text(struct ask *ask, const char *where, const json_t *block, struct building *building)
{
    const json_t *text = json_object_get(block, "text");

    if (!json_is_string(text))
        return api_fail(ask->error, 400, "invalid_type", where, "'%s.text' must be a string", where);
    return begin_message(ask, building) && dialect_add_new(building->parts, dialect_text_part(text));
}

static bool take_thinking(struct ask *ask, const char *where, const json_t *block, struct building *building)
{
    const json_t *text = json_object_get(block, "thinking");

    if (!json_is_string(text))
        return api_fail(ask->error, 400, "invalid_type", where, "'%s.thinking' must be a string", where);
    return begin_message(ask, building) && dialect_set(building->message, "reasoning_content", text);
}

static bool take_use(struct ask *ask, const char *where, const json_t *block, struct building *building)
{
    const json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name"),
                 *input = json_object_get(block, "input");
    json_t *arguments, *message;
    bool ok;

    if (!json_is_string(id) || !json_is_string(name) || !(json_text_is_object(input) || json_is_string(input)))
        return api_fail(ask->error, 400, "invalid_type", where, "'%s' must have the strings 'id' and 'name' and the object 'input'",
                        where);
    if (!begin_message(ask, building))
        return false;
    arguments = json_is_string(input) ? json_incref((json_t *)(uintptr_t)input) : json_text_string(input, false);
    ok = arguments && dialect_add_call(ask->messages, id, name, arguments, &message);
    json_decref(arguments);
    return ok;
}

// The content of a tool's result: text, or blocks of it.
static json_t *result_content(struct ask *ask, const char *where, const json_t *content)
{
    json_t *parts;
    size_t i;

    if (!content)
        return json_string("");
    if (json_is_string(content))
        return json_incref((json_t *)(uintptr_t)content);
    parts = json_array();
    for (i = 0; i < json_array_size(content) && !ask->error->status; i++) {
        const json_t *block = json_array_get(content, i), *text = json_object_get(block, "text");
        if (!schema_is_string(json_object_get(block, "type"), "text") || !json_is_string(text))
            (void)api_fail(ask->error, 400, "unsupported_content", where, "'%s.content': only blocks of type 'text' are supported",
                           where);
        else if (!dialect_add_new(parts, dialect_text_part(text)))
            (void)api_no_memory(ask->error);
    }
    if (!json_is_array(content))
        (void)schema_wrong_type(ask->error, where, "a string or an array of blocks", content);
    if (!ask->error->status)
        return parts;
    json_decref(parts);
    return NULL;
}

static bool take_result(struct ask *ask, const char *where, const json_t *block, struct building *building)
{
    const json_t *id = json_object_get(block, "tool_use_id");
    json_t *content, *message;

    if (!json_is_string(id))
        return api_fail(ask->error, 400, "invalid_type", where, "'%s.tool_use_id' must be a string", where);
    content = result_content(ask, where, dialect_member(block, "content"));
    building->message = NULL;
    return content && dialect_add_message(ask->messages, "tool", content, &message) && dialect_set(message, "tool_call_id", id);
}

static bool take_block(struct ask *ask, const char *where, const json_t *block, struct building *building)
{
    const bool assistant = strcmp(building->role, "assistant") == 0;
    const json_t *type = json_object_get(block, "type");

    if (schema_is_string(type, "text"))
        return take_text(ask, where, block, building);
    if (assistant && schema_is_string(type, "thinking"))
        return take_thinking(ask, where, block, building);
    if (assistant && schema_is_string(type, "redacted_thinking"))
        return true; // nobody can read it
    if (assistant && schema_is_string(type, "tool_use"))
        return take_use(ask, where, block, building);
    if (!assistant && schema_is_string(type, "tool_result"))
        return take_result(ask, where, block, building);
    return wrong_block(ask, where);
}

static bool take_message(struct ask *ask, size_t index, const json_t *given)
{
    const json_t *role = json_object_get(given, "role"), *content = dialect_member(given, "content");
    struct building building = {0};
    json_t *message;
    char where[64];
    size_t i;

    snprintf(where, sizeof where, "messages[%zu]", index);
    if (!json_text_is_object(given))
        return schema_wrong_type(ask->error, where, "an object", given);
    if (!schema_is_string(role, "user") && !schema_is_string(role, "assistant"))
        return api_fail(ask->error, 400, "invalid_value", where, "'%s.role' must be 'user' or 'assistant'", where);
    building.role = json_string_value(role);
    if (json_is_string(content))
        return dialect_add_message(ask->messages, building.role, json_incref((json_t *)(uintptr_t)content), &message);
    if (!json_is_array(content))
        return api_fail(ask->error, 400, "invalid_type", where, "'%s.content' must be a string or an array of blocks", where);
    for (i = 0; i < json_array_size(content); i++) {
        snprintf(where, sizeof where, "messages[%zu].content[%zu]", index, i);
        if (!take_block(ask, where, json_array_get(content, i), &building))
            return false;
    }
    return true;
}

static bool take_system(struct ask *ask)
{
    const json_t *system = dialect_member(ask->given->body, "system");
    struct building building = {.role = "system"};
    json_t *message;
    char where[48];
    size_t i;

    if (!system)
        return true;
    if (json_is_string(system))
        return dialect_add_message(ask->messages, "system", json_incref((json_t *)(uintptr_t)system), &message);
    if (!json_is_array(system))
        return schema_wrong_type(ask->error, "system", "a string or an array of blocks", system);
    for (i = 0; i < json_array_size(system); i++) {
        const json_t *block = json_array_get(system, i);
        snprintf(where, sizeof where, "system[%zu]", i);
        if (!schema_is_string(json_object_get(block, "type"), "text"))
            return api_fail(ask->error, 400, "unsupported_content", where, "'%s': only blocks of type 'text' are supported", where);
        if (!take_text(ask, where, block, &building))
            return false;
    }
    return true;
}

static bool take_messages(struct ask *ask, json_t *chat)
{
    const json_t *messages = dialect_member(ask->given->body, "messages"), *last;
    size_t i, count = json_array_size(messages);

    if (!messages)
        return api_missing(ask->error, "messages");
    if (!json_is_array(messages))
        return schema_wrong_type(ask->error, "messages", "an array of messages", messages);
    if (count == 0)
        return api_fail(ask->error, 400, "invalid_value", "messages", "'messages' must not be empty");
    for (i = 0; i < count; i++)
        if (!take_message(ask, i, json_array_get(messages, i)))
            return false;
    last = json_array_get(ask->messages, json_array_size(ask->messages) - 1);
    if (schema_is_string(json_object_get(last, "role"), "assistant") && !json_object_get(last, "tool_calls") &&
        !dialect_set_new(chat, "continue_final_message", json_true()))
        return false;
    return dialect_set(chat, "messages", ask->messages);
}

// --- tools --------------------------------------------------------------------------------------------------------
static bool take_tools(struct ask *ask, json_t *chat)
{
    const json_t *tools = dialect_member(ask->given->body, "tools");
    json_t *out = tools ? json_array() : NULL;
    size_t i, count = json_array_size(tools);
    bool ok = true;

    if (tools && !json_is_array(tools))
        ok = schema_wrong_type(ask->error, "tools", "an array", tools);
    for (i = 0; ok && i < count; i++) {
        const json_t *tool = json_array_get(tools, i), *type = dialect_member(tool, "type");
        char where[48];
        snprintf(where, sizeof where, "tools[%zu]", i);
        ok = !type || schema_is_string(type, "custom") ? dialect_add_new(out, dialect_function(tool, "input_schema"))
                                                       : api_fail(ask->error, 400, "unsupported_parameter", where,
                                                                  "'%s': only the client's own tools are supported", where);
    }
    ok = ok && dialect_set(chat, "tools", out);
    json_decref(out);
    return ok;
}

static bool take_tool_choice(struct ask *ask, json_t *chat)
{
    const json_t *choice = dialect_member(ask->given->body, "tool_choice"), *type = json_object_get(choice, "type");

    if (!choice)
        return true;
    if (!json_text_is_object(choice))
        return schema_wrong_type(ask->error, "tool_choice", "an object", choice);
    if (json_is_true(json_object_get(choice, "disable_parallel_tool_use")) &&
        !dialect_set_new(chat, "parallel_tool_calls", json_false()))
        return false;
    if (schema_is_string(type, "auto") || schema_is_string(type, "none"))
        return dialect_set(chat, "tool_choice", type);
    if (schema_is_string(type, "any"))
        return dialect_set_new(chat, "tool_choice", json_string("required"));
    if (schema_is_string(type, "tool"))
        return dialect_set_new(chat, "tool_choice", dialect_function(choice, "parameters"));
    return api_fail(ask->error, 400, "invalid_value", "tool_choice", "'tool_choice.type' must be 'auto', 'any', 'tool' or 'none'");
}

// --- the other fields ---------------------------------------------------------------------------------------------
static bool take_thinking_mode(struct ask *ask, json_t *chat)
{
    const json_t *thinking = dialect_member(ask->given->body, "thinking");

    if (!thinking)
        return true;
    if (!json_text_is_object(thinking))
        return schema_wrong_type(ask->error, "thinking", "an object", thinking);
    const int enable = !schema_is_string(json_object_get(thinking, "type"), "disabled");
    return dialect_set_new(chat, "chat_template_kwargs", json_pack("{s:b}", "enable_thinking", enable));
}

// A chat's response_format of a form, {"type": "json_schema", "schema": ...}.
static bool take_format(struct ask *ask, json_t *chat, const char *where, const json_t *format)
{
    const json_t *schema = json_object_get(format, "schema");

    if (!json_text_is_object(format))
        return schema_wrong_type(ask->error, where, "an object", format);
    if (!schema_is_string(json_object_get(format, "type"), "json_schema"))
        return api_fail(ask->error, 400, "invalid_value", where, "'%s.type' must be 'json_schema'", where);
    if (!schema)
        return api_fail(ask->error, 400, "missing_required_parameter", where, "'%s.schema' is required", where);
    return dialect_set_new(chat, "response_format",
                           json_pack("{s:s,s:{s:O}}", "type", "json_schema", "json_schema", "schema", schema));
}

// Takes how a message shall be. An effort is a chat's.
static bool take_output(struct ask *ask, json_t *chat)
{
    const json_t *body = ask->given->body, *config = dialect_member(body, "output_config"),
                 *format = dialect_member(config, "format"), *older = dialect_member(body, "output_format"),
                 *effort = dialect_member(config, "effort");

    if (config && !json_text_is_object(config))
        return schema_wrong_type(ask->error, "output_config", "an object", config);
    if (!dialect_set(chat, "reasoning_effort", effort))
        return false;
    if (format)
        return take_format(ask, chat, "output_config.format", format);
    return !older || take_format(ask, chat, "output_format", older);
}

// None at all ask for the prompt to be cached, which is done when it has one.
static bool take_most(struct ask *ask, json_t *chat, const json_t *most)
{
    ask->given->only_warms = ask->given->kind == API_CHAT && json_is_number(most) && json_number_value(most) == 0;
    return ask->given->only_warms ? dialect_set_new(chat, "max_tokens", json_integer(1)) : dialect_set(chat, "max_tokens", most);
}

static bool take_others(struct ask *ask, json_t *chat)
{
    static const char *const refused[] = {"container", "mcp_servers"};
    const json_t *body = ask->given->body, *most = dialect_member(body, "max_tokens"),
                 *stops = dialect_member(body, "stop_sequences");

    for (size_t i = 0; i < ARRAY_COUNT(refused); i++) {
        const json_t *value = dialect_member(body, refused[i]);
        if (value && !(json_is_array(value) && json_array_size(value) == 0))
            return dialect_unsupported(ask->error, refused[i], "");
    }
    if (stops && !json_is_array(stops))
        return schema_wrong_type(ask->error, "stop_sequences", "an array of strings", stops);
    if (!most && ask->given->kind == API_CHAT)
        return api_missing(ask->error, "max_tokens");
    return dialect_copy(chat, body, same_fields) && dialect_copy(chat, body, dialect_sampling_fields) &&
           take_most(ask, chat, most) && dialect_set(chat, "stop", stops) && take_thinking_mode(ask, chat) &&
           take_output(ask, chat);
}

// Translates a request of kind API_TOKENIZE, too: it has the same messages, to be counted.
static bool dialect_messages_translate(struct dialect_ask *given, struct api_error *error)
{
    struct ask ask = {.given = given, .error = error, .messages = json_array()};
    json_t *chat = given->chat = json_object();
    bool ok = chat && ask.messages && take_others(&ask, chat) && take_system(&ask) && take_messages(&ask, chat) &&
              take_tools(&ask, chat) && take_tool_choice(&ask, chat);

    json_decref(ask.messages);
    if (ok)
        dialect_note_ignored(&given->ignored, given->body, read_fields, dialect_sampling_fields, NULL);
    return ok;
}

static const struct dialect_rename renamed[] = {{"stop", "stop_sequences"},
                                                {"chat_template_kwargs", "thinking"},
                                                {"response_format.json_schema.schema", "output_config.format.schema"},
                                                {"response_format", "output_config.format"},
                                                {"reasoning_effort", "output_config.effort"},
                                                {NULL, NULL}};

static uint32_t index_of(const struct dialect_run *run, const struct dialect_item *item) { return (uint32_t)(item - run->items); }

// --- parts of an answer -------------------------------------------------------------------------------------------
// whole: as it is at the end; otherwise as it begins.
static void block_json(const struct dialect_item *item, bool whole, struct text *out)
{
    const size_t bytes = whole ? item->data.bytes : 0;

    switch (item->part) {
    case DIALECT_TEXT: text_json_bytes_after(out, "{\"type\":\"text\",\"text\":", item->data.data, bytes); break;
    case DIALECT_REASONING:
        text_json_bytes_after(out, "{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":", item->data.data, bytes);
        break;
    case DIALECT_CALL:
        text_json_bytes_after(out, "{\"type\":\"tool_use\",\"id\":", item->id.data, item->id.bytes);
        text_json_bytes_after(out, ",\"name\":", item->name.data, item->name.bytes);
        text_string(out, ",\"input\":");
        if (whole)
            dialect_append_arguments(item->data.data, bytes, out);
        else
            text_string(out, "{}");
        break;
    }
    text_append(out, "}", 1);
}

static void head(const struct dialect_run *run, struct text *out)
{
    text_json_after(out, "{\"id\":", run->id);
    text_json_after(out, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":", run->model);
    text_string(out, ",\"content\":[");
}

static void stop_json(const struct dialect_end *end, struct text *out)
{
    const char *reason = end->stop_string                                ? "stop_sequence"
                         : strcmp(end->finish_reason, "length") == 0     ? "max_tokens"
                         : strcmp(end->finish_reason, "tool_calls") == 0 ? "tool_use"
                                                                         : "end_turn";

    text_format(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
    if (end->stop_string)
        text_json(out, end->stop_string, end->stop_bytes);
    else
        text_string(out, "null");
}

static void usage_json(uint64_t prompt, uint64_t cached, uint64_t completion, struct text *out)
{
    text_format(out,
                "{\"input_tokens\":%llu,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%llu,\"output_tokens\":%llu}",
                (unsigned long long)(prompt - MIN(cached, prompt)), (unsigned long long)cached, (unsigned long long)completion);
}

// --- events -------------------------------------------------------------------------------------------------------
static void event(const char *type, struct text *out) { text_format(out, "event: %s\ndata: {\"type\":\"%s\"", type, type); }
static void event_end(struct text *out) { text_string(out, "}\n\n"); }

static void begin(struct dialect_run *run, struct text *out)
{
    event("message_start", out);
    text_string(out, ",\"message\":");
    head(run, out);
    text_string(out, "],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
    usage_json(run->prompt_tokens, 0, 0, out);
    text_append(out, "}", 1);
    event_end(out);
}

static void item_begin(struct dialect_run *run, const struct dialect_item *item, struct text *out)
{
    event("content_block_start", out);
    text_format(out, ",\"index\":%u,\"content_block\":", index_of(run, item));
    block_json(item, false, out);
    event_end(out);
}

static void delta(struct dialect_run *run, const struct dialect_item *item, const char *data, size_t bytes, struct text *out)
{
    static const char *const kinds[] = {[DIALECT_TEXT] = "\"text_delta\",\"text\":",
                                        [DIALECT_REASONING] = "\"thinking_delta\",\"thinking\":",
                                        [DIALECT_CALL] = "\"input_json_delta\",\"partial_json\":"};

    event("content_block_delta", out);
    text_format(out, ",\"index\":%u,\"delta\":{\"type\":%s", index_of(run, item), kinds[item->part]);
    text_json(out, data, bytes);
    text_append(out, "}", 1);
    event_end(out);
}

static void item_end(struct dialect_run *run, const struct dialect_item *item, struct text *out)
{
    event("content_block_stop", out);
    text_format(out, ",\"index\":%u", index_of(run, item));
    event_end(out);
}

static void end_stream(struct dialect_run *run, const struct dialect_end *end, struct text *out)
{
    (void)run;
    event("message_delta", out);
    text_string(out, ",\"delta\":{");
    stop_json(end, out);
    text_string(out, "},\"usage\":");
    usage_json(end->usage.prompt_tokens, end->usage.cached_tokens, end->usage.completion_tokens, out);
    event_end(out);
    event("message_stop", out);
    event_end(out);
}

static void whole(struct dialect_run *run, const struct dialect_end *end, struct text *out)
{
    head(run, out);
    for (uint32_t i = 0; i < run->item_count; i++) {
        shown_comma(out, i == 0);
        block_json(&run->items[i], true, out);
    }
    text_string(out, "],");
    stop_json(end, out);
    text_string(out, ",\"usage\":");
    usage_json(end->usage.prompt_tokens, end->usage.cached_tokens, end->usage.completion_tokens, out);
    text_string(out, "}\n");
}

// --- errors -------------------------------------------------------------------------------------------------------
static const char *type_of_status(int status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

// Clients look for these words of Anthropic's: some cut their conversation, or ask for fewer tokens, when they read them.
static void message_json(const struct api_error *error, struct text *out)
{
    const struct api_length *length = &error->length;
    char own[sizeof error->message];

    if (error->code && strcmp(error->code, "invalid_api_key") == 0)
        snprintf(own, sizeof own, "invalid x-api-key");
    else if (error->model[0])
        snprintf(own, sizeof own, "model: %s", error->model);
    else if (length->context && length->answer)
        snprintf(
            own, sizeof own,
            "input length and `max_tokens` exceed context limit: %u + %u > %u, decrease input length or `max_tokens` and try again",
            length->prompt, length->answer, length->context);
    else if (length->context)
        snprintf(own, sizeof own, "prompt is too long: %u tokens > %u maximum", length->prompt, length->context);
    else
        snprintf(own, sizeof own, "%s", error->message);
    text_json_string(out, own);
}

static void refuse(const struct api_error *error, struct text *out)
{
    text_format(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type_of_status(error->status));
    message_json(error, out);
    text_string(out, "}}");
}

static void fail_stream(struct dialect_run *run, const struct api_error *error, struct text *out)
{
    (void)run;
    text_string(out, "event: error\ndata: ");
    refuse(error, out);
    text_string(out, "\n\n");
}

static void tokens(uint32_t count, struct text *out) { text_format(out, "{\"input_tokens\":%u}\n", count); }

const struct dialect dialect_messages = {.id_prefix = "msg_",
                                         .stream_type = "text/event-stream; charset=utf-8",
                                         .keep_alive = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
                                         .id_header = "request-id",
                                         .renamed = renamed,
                                         .translate = dialect_messages_translate,
                                         .begin = begin,
                                         .item_begin = item_begin,
                                         .delta = delta,
                                         .item_end = item_end,
                                         .end = end_stream,
                                         .error = fail_stream,
                                         .whole = whole,
                                         .refuse = refuse};

const struct dialect dialect_count_tokens = {.id_prefix = "",
                                             .id_header = "request-id",
                                             .renamed = renamed,
                                             .translate = dialect_messages_translate,
                                             .refuse = refuse,
                                             .tokens = tokens};
