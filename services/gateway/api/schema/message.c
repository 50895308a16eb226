// message.c: messages of a chat: roles, content, reasoning, calls of functions and their results.
//
// What a chat template is given is a list of its own, `conversation`, with the members that templates know, each checked: what else
// a client sends with a message does not reach a template. The arguments of calls are JSON in a string, as OpenAI's clients send them; templates
// take them as an object, or as text where they are no object.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/json/json_text.h"
#include "services/gateway/api/schema/schema_internal.h"

enum { PATH_BYTES = 192 };

static const char *known_role(const json_t *role)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    size_t i;

    if (schema_is_string(role, "developer"))
        return "system"; // its newer name: templates know only the old one
    for (i = 0; i < ARRAY_COUNT(roles); i++)
        if (schema_is_string(role, roles[i]))
            return roles[i];
    return NULL;
}

// Gives the message for the template a member; value: taken over. False: no memory.
static bool give(struct schema_run *run, json_t *message, const char *name, json_t *value)
{
    return json_object_set_new(message, name, value) == 0 || api_no_memory(run->error);
}

// --- content --------------------------------------------------------------------------------------------------------------
static bool is_assistant(const struct api_chat_message *message) { return strcmp(message->role, "assistant") == 0; }

// [{"type": "text", "text": ...}, ...]: one text. What an assistant refused is its text, too.
static bool read_parts(struct schema_run *run, const char *where, const json_t *parts, struct api_chat_message *out)
{
    size_t i, count = json_array_size(parts);
    struct text joined = {0};
    char part_name[PATH_BYTES + 32];

    for (i = 0; i < count; i++) {
        const json_t *part = json_array_get(parts, i), *type = json_object_get(part, "type");
        const char *member = is_assistant(out) && schema_is_string(type, "refusal") ? "refusal" : "text";
        const json_t *text = json_object_get(part, member);
        bool ok = true;

        snprintf(part_name, sizeof part_name, "%s[%zu]", where, i);
        if (!json_is_string(type))
            ok = api_fail(run->error, 400, "invalid_type", part_name, "'%s' must be an object with a 'type'", part_name);
        else if (!schema_is_string(type, member))
            ok = api_fail(run->error, 400, "unsupported_content", part_name, "'%s': only parts of type 'text' are supported",
                          part_name);
        else if (!json_is_string(text))
            ok = api_fail(run->error, 400, "invalid_type", part_name, "'%s.%s' must be a string", part_name, member);
        if (!ok) {
            text_free(&joined);
            return false;
        }
        text_append(&joined, json_string_value(text), json_string_length(text));
    }
    text_append(&joined, "", 1); // never NULL
    if (joined.failed) {
        text_free(&joined);
        return api_no_memory(run->error);
    }
    out->joined = joined.data;
    out->content = joined.data;
    out->bytes = joined.bytes - 1;
    return true;
}

static bool read_content(struct schema_run *run, const char *where, json_t *value, json_t *message, struct api_chat_message *out)
{
    json_t *content = json_object_get(value, "content"), *refusal = json_object_get(value, "refusal");
    char field[PATH_BYTES];

    snprintf(field, sizeof field, "%s.content", where);
    if (json_string_length(refusal) > 0) // check_refused() has seen that nothing else is said
        content = refusal;
    if (json_is_array(content)) {
        if (!read_parts(run, field, content, out))
            return false;
        return give(run, message, "content", json_stringn_nocheck(out->content, out->bytes));
    }
    if (json_is_string(content)) {
        out->content = json_string_value(content);
        out->bytes = json_string_length(content);
        return give(run, message, "content", json_incref(content));
    }
    if (content && !json_is_null(content))
        return schema_wrong_type(run->error, field, "a string or an array of parts", content);
    if (is_assistant(out))
        return give(run, message, "content", json_null());
    return api_missing(run->error, field);
}

// A member that is a string, or not given. *out: NULL if not given.
static bool read_text(struct schema_run *run, const char *where, const json_t *value, const char *name, size_t max_bytes,
                      json_t **out)
{
    json_t *text = json_object_get(value, name);
    char field[PATH_BYTES];

    *out = NULL;
    if (!text || json_is_null(text))
        return true;
    snprintf(field, sizeof field, "%s.%s", where, name);
    if (!json_is_string(text))
        return schema_wrong_type(run->error, field, "a string", text);
    if (max_bytes > 0 && json_string_length(text) > max_bytes)
        return api_fail(run->error, 400, "invalid_value", field, "'%s' has %zu bytes, the most is %zu", field,
                        json_string_length(text), max_bytes);
    *out = text;
    return true;
}

// --- calls ----------------------------------------------------------------------------------------------------------------
// A JSON object in a string; also the object itself, as some clients keep it. A string that holds none stays a string: a model wrote it
// that way, or its limit of tokens cut it off, and the conversation goes on. *out is the caller's.
static bool read_arguments(struct schema_run *run, const char *where, json_t *value, json_t **out)
{
    size_t at;

    *out = NULL;
    if (json_text_is_object(value)) {
        *out = json_incref(value);
        return true;
    }
    if (!value || json_is_null(value) || (json_is_string(value) && json_string_length(value) == 0)) {
        *out = json_object();
        return *out || api_no_memory(run->error);
    }
    if (!json_is_string(value))
        return schema_wrong_type(run->error, where, "a JSON object in a string", value);
    if (json_count_limits(json_string_value(value), json_string_length(value), API_MAX_DEPTH, API_MAX_VALUES, &run->argument_values,
                          &at) == JSON_WITHIN)
        *out = json_text_read(json_string_value(value), json_string_length(value), JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    if (!json_text_is_object(*out)) {
        json_decref(*out);
        *out = json_incref(value);
    }
    return true;
}

static bool read_call(struct schema_run *run, const char *where, json_t *value, json_t *calls)
{
    json_t *function = json_object_get(value, "function"), *type = json_object_get(value, "type"), *id, *name, *arguments, *call;
    char field[PATH_BYTES], inner[PATH_BYTES + 16];

    if (!json_text_is_object(value))
        return schema_wrong_type(run->error, where, "an object", value);
    snprintf(field, sizeof field, "%s.type", where);
    if (type && !json_is_null(type) && !schema_is_string(type, "function"))
        return api_fail(run->error, 400, "invalid_value", field, "'%s' must be 'function'", field);
    snprintf(field, sizeof field, "%s.function", where);
    if (!function)
        return api_missing(run->error, field);
    if (!json_text_is_object(function))
        return schema_wrong_type(run->error, field, "an object", function);
    snprintf(inner, sizeof inner, "%s.name", field);
    name = json_object_get(function, "name");
    if (!name)
        return api_missing(run->error, inner);
    if (!schema_check_function_name(run, inner, name) || !read_text(run, where, value, "id", API_MAX_CALL_ID_BYTES, &id))
        return false;
    snprintf(inner, sizeof inner, "%s.arguments", field);
    if (!read_arguments(run, inner, json_object_get(function, "arguments"), &arguments))
        return false;
    call = json_pack("{s:O?, s:s, s:{s:O, s:o}}", "id", id, "type", "function", "function", "name", name, "arguments", arguments);
    if (call && !id)
        json_object_del(call, "id");
    return (call && json_array_append_new(calls, call) == 0) || api_no_memory(run->error);
}

static bool read_calls(struct schema_run *run, const char *where, const json_t *value, json_t *message, const char *role)
{
    const json_t *list = json_object_get(value, "tool_calls");
    size_t i, count = json_array_size(list);
    char field[PATH_BYTES], item[PATH_BYTES + 32];
    json_t *calls;

    snprintf(field, sizeof field, "%s.tool_calls", where);
    if (!list || json_is_null(list) || (json_is_array(list) && count == 0))
        return true; // templates ask whether it is there
    if (!json_is_array(list))
        return schema_wrong_type(run->error, field, "an array of calls", list);
    if (strcmp(role, "assistant") != 0)
        return api_fail(run->error, 400, "invalid_value", field, "'%s' is for messages of role 'assistant'", field);
    if (count > API_MAX_CALLS)
        return api_fail(run->error, 400, "invalid_value", field, "'%s' has %zu calls, at most %d are allowed", field, count,
                        API_MAX_CALLS);
    calls = json_array();
    if (!calls || !give(run, message, "tool_calls", calls))
        return api_no_memory(run->error);
    for (i = 0; i < count; i++) {
        snprintf(item, sizeof item, "%s[%zu]", field, i);
        if (!schema_unfold_custom_call(run, item, json_array_get(list, i)) || !read_call(run, item, json_array_get(list, i), calls))
            return false;
    }
    return true;
}

// Remembers whose call an id is, for the message with its result.
static bool note_calls(struct schema_run *run, const json_t *message, json_t *names)
{
    const json_t *calls = json_object_get(message, "tool_calls");

    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i), *id = json_object_get(call, "id");
        json_t *name = json_object_get(json_object_get(call, "function"), "name");
        if (json_is_string(id) && !schema_has_zero(id) && json_object_set(names, json_string_value(id), name) != 0)
            return api_no_memory(run->error);
    }
    return true;
}

// The result of a call: its id, and the function's name, which some templates want and clients leave out.
static bool read_result(struct schema_run *run, const char *where, const json_t *value, json_t *message, const json_t *names)
{
    json_t *id, *name = json_object_get(message, "name");

    if (!read_text(run, where, value, "tool_call_id", API_MAX_CALL_ID_BYTES, &id))
        return false;
    if (id && !give(run, message, "tool_call_id", json_incref(id)))
        return false;
    if (!name && id && !schema_has_zero(id))
        name = json_object_get(names, json_string_value(id));
    return !name || json_object_get(message, "name") || give(run, message, "name", json_incref(name));
}

// --- a message ------------------------------------------------------------------------------------------------------------
static bool read_role(struct schema_run *run, const char *where, const json_t *value, struct api_chat_message *out)
{
    const json_t *role = json_object_get(value, "role");
    char field[PATH_BYTES];

    snprintf(field, sizeof field, "%s.role", where);
    if (!role)
        return api_missing(run->error, field);
    if (!json_is_string(role))
        return schema_wrong_type(run->error, field, "a string", role);
    out->role = known_role(role);
    return out->role || api_fail(run->error, 400, "invalid_value", field,
                                 "'%s' must be 'system', 'developer', 'user', 'assistant' or 'tool'", field);
}

static bool check_refused(struct schema_run *run, const char *where, const json_t *value, const struct api_chat_message *message)
{
    static const char *const refused[] = {"function_call", "audio", "refusal"};
    const json_t *content = json_object_get(value, "content");
    const bool is_alone = is_assistant(message) && json_is_string(json_object_get(value, "refusal")) &&
                          json_string_length(content) == 0 && json_array_size(content) == 0;
    char field[PATH_BYTES];

    for (size_t i = 0; i < ARRAY_COUNT(refused) - is_alone; i++) {
        const json_t *extra = json_object_get(value, refused[i]);
        snprintf(field, sizeof field, "%s.%s", where, refused[i]);
        if (extra && !json_is_null(extra) && !(json_is_array(extra) && json_array_size(extra) == 0) &&
            !(json_is_string(extra) && json_string_length(extra) == 0))
            return api_fail(run->error, 400, "unsupported_parameter", field, "'%s' is not supported%s", field,
                            i == 0 ? ": use 'tool_calls'" : "");
    }
    return true;
}

static bool read_message(struct schema_run *run, const char *where, json_t *value, json_t *message, json_t *names,
                         struct api_chat_message *out)
{
    json_t *name, *reasoning;

    if (!json_text_is_object(value))
        return schema_wrong_type(run->error, where, "an object", value);
    if (!read_role(run, where, value, out) || !check_refused(run, where, value, out) ||
        !give(run, message, "role", json_string(out->role)) || !read_content(run, where, value, message, out) ||
        !read_text(run, where, value, "name", API_MAX_CALL_ID_BYTES, &name) ||
        !read_text(run, where, value, "reasoning_content", 0, &reasoning) ||
        (!reasoning && !read_text(run, where, value, "reasoning", 0, &reasoning)))
        return false;
    if ((name && !give(run, message, "name", json_incref(name))) ||
        (reasoning && is_assistant(out) && !give(run, message, "reasoning_content", json_incref(reasoning))))
        return false;
    if (!read_calls(run, where, value, message, out->role) || !note_calls(run, message, names))
        return false;
    return strcmp(out->role, "tool") != 0 || read_result(run, where, value, message, names);
}

bool schema_read_messages(struct schema_run *run, const char *name, const json_t *value)
{
    struct api_request *out = run->out;
    size_t i, count = json_array_size(value);
    json_t *names;
    bool ok;

    if (!json_is_array(value))
        return schema_wrong_type(run->error, name, "an array of messages", value);
    if (count == 0)
        return api_fail(run->error, 400, "invalid_value", name, "'%s' must not be empty", name);
    if (count > API_MAX_MESSAGES)
        return api_fail(run->error, 400, "invalid_value", name, "'%s' has %zu messages, at most %d are allowed", name, count,
                        API_MAX_MESSAGES);
    out->messages = calloc(count, sizeof *out->messages);
    out->chat.conversation = json_array();
    names = json_object();
    out->message_count = out->messages ? (uint32_t)count : 0;
    ok = (out->messages && out->chat.conversation && names) || api_no_memory(run->error);
    for (i = 0; ok && i < count; i++) {
        json_t *message = json_object();
        char where[48];
        snprintf(where, sizeof where, "%s[%zu]", name, i);
        ok = (message && json_array_append_new(out->chat.conversation, message) == 0) || api_no_memory(run->error);
        ok = ok && read_message(run, where, json_array_get(value, i), message, names, &out->messages[i]);
    }
    json_decref(names);
    return ok;
}
