// conversation.c: see conversation.h.
#include "services/gateway/conversation.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/text.h"
#include "common/json/json_text.h"

// --- finding out ----------------------------------------------------------------------------------------------------------
#define PROBE_KEY "probe_key"
#define PROBE_VALUE "probe_value"

static bool has(const struct chat_output *output, const char *text)
{
    return output->length > 0 && memmem(output->text, output->length, text, strlen(text));
}

// Renders a call with arguments, which it takes over. Returns whether they come out as they should: not quoted twice, not as Python
// prints them.
static bool renders_call(const struct chat_template *chat, bool empty, json_t *arguments)
{
    json_t *messages = json_pack("[{s:s,s:s},{s:s,s:o,s:[{s:s,s:s,s:{s:s,s:o}}]},{s:s,s:s,s:s,s:s}]", "role", "user", "content",
                                 "u", "role", "assistant", "content", empty ? json_string("") : json_null(), "tool_calls", "id",
                                 "probecall", "type", "function", "function", "name", "probe", "arguments", arguments, "role",
                                 "tool", "content", "r", "tool_call_id", "probecall", "name", "probe");
    json_t *tools = json_pack("[{s:s,s:{s:s,s:s,s:{s:s,s:{s:{s:s}}}}}]", "type", "function", "function", "name", "probe",
                              "description", "d", "parameters", "type", "object", "properties", "other", "type", "string");
    const struct chat_input input = {.messages = messages, .tools = tools, .add_generation_prompt = true};
    struct chat_output output;
    struct error error;
    bool good = false;

    if (messages && tools && chat_template_render(chat, &input, &output, &error) == STATUS_OK) {
        good = has(&output, PROBE_VALUE) && !has(&output, "\\\"" PROBE_KEY) && !has(&output, "'" PROBE_KEY "'");
        chat_output_free(&output);
    }
    json_decref(messages);
    json_decref(tools);
    return good;
}

static bool takes_system(const struct chat_template *chat)
{
    json_t *messages = json_pack("[{s:s,s:s},{s:s,s:s}]", "role", "system", "content", PROBE_VALUE, "role", "user", "content", "u");
    const struct chat_input input = {.messages = messages, .add_generation_prompt = true};
    struct chat_output output;
    struct error error;
    bool good = false;

    if (messages && chat_template_render(chat, &input, &output, &error) == STATUS_OK) {
        good = has(&output, PROBE_VALUE);
        chat_output_free(&output);
    }
    json_decref(messages);
    return good;
}

void conversation_probe(const struct chat_template *chat, const char *source, size_t length, struct conversation_form *out)
{
    static const char *const tools[] = {"tools", "xml_tools"};

    *out = (struct conversation_form){.reasoning_key = "reasoning_content", .has_system = takes_system(chat)};
    for (size_t i = 0; i < ARRAY_COUNT(tools) && !out->tools_name; i++)
        if (chat_template_names(chat, tools[i]))
            out->tools_name = tools[i];
    for (int i = 0; i < 4 && !out->has_calls; i++) {
        out->content_empty = i & 1;
        out->arguments_text = i & 2;
        out->has_calls = renders_call(chat, out->content_empty,
                                      out->arguments_text ? json_string("{\"" PROBE_KEY "\": \"" PROBE_VALUE "\"}")
                                                          : json_pack("{s:s}", PROBE_KEY, PROBE_VALUE));
    }
    if (!out->has_calls)
        out->content_empty = out->arguments_text = false;
    out->takes_broken = out->has_calls && renders_call(chat, out->content_empty, json_string("{" PROBE_VALUE));
    if (!memmem(source, length, "reasoning_content", strlen("reasoning_content")) &&
        memmem(source, length, "thinking", strlen("thinking")))
        out->reasoning_key = "thinking";
}

// --- templates without tools ----------------------------------------------------------------------------------------------
static json_t *text_value(struct text *text)
{
    json_t *value = text->failed ? NULL : json_stringn_nocheck(text->data ? text->data : "", text->bytes);

    text_free(text);
    return value;
}

static void append_content(struct text *out, const json_t *message)
{
    const json_t *content = json_object_get(message, "content");

    if (json_string_length(content) == 0)
        return;
    if (out->bytes > 0)
        text_string(out, "\n\n");
    text_append(out, json_string_value(content), json_string_length(content));
}

// Describes the functions in the system message or, where the template takes none, in the first message.
static bool describe_tools(const struct conversation_form *form, json_t *messages, const json_t *tools)
{
    static const char how[] = "You can call these functions:\n\n";
    static const char answer[] =
        "\nTo call a function, answer with nothing but a JSON object: {\"name\": \"the function's name\", \"arguments\": {...}}. To "
        "call several, write one object a line. Answer in plain text where no function helps.";
    json_t *first = json_array_get(messages, 0), *content;
    const char *role = json_string_value(json_object_get(first, "role"));
    struct text text = {0};

    if (role && strcmp(role, "system") == 0)
        append_content(&text, first);
    if (text.bytes > 0)
        text_string(&text, "\n\n");
    text_string(&text, how);
    for (size_t i = 0; i < json_array_size(tools); i++) {
        json_text_append(&text, json_object_get(json_array_get(tools, i), "function"), false);
        text_string(&text, "\n");
    }
    text_string(&text, answer);
    if (role && strcmp(role, "system") != 0 && !form->has_system)
        append_content(&text, first);
    content = text_value(&text);
    if (!content)
        return false;
    if (role && (strcmp(role, "system") == 0 || !form->has_system))
        return json_object_set_new(first, "content", content) == 0;
    return json_array_insert_new(messages, 0, json_pack("{s:s,s:o}", "role", "system", "content", content)) == 0;
}

// Calls as the text that describe_tools() asks for.
static bool write_calls(json_t *message)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    struct text text = {0};

    append_content(&text, message);
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *function = json_object_get(json_array_get(calls, i), "function");
        text_string(&text, text.bytes ? "\n{\"name\":" : "{\"name\":");
        json_text_append(&text, json_object_get(function, "name"), false);
        text_string(&text, ",\"arguments\":");
        json_text_append(&text, json_object_get(function, "arguments"), false);
        text_string(&text, "}");
    }
    json_object_del(message, "tool_calls");
    json_t *content = text_value(&text);
    return content && json_object_set_new(message, "content", content) == 0;
}

// What the user says in one message: results in a row, and what follows them. Many templates want turns.
struct turn {
    json_t *message; // borrowed; NULL: none is open
    struct text text;
};

static void add_result(struct turn *turn, const json_t *message)
{
    const json_t *name = json_object_get(message, "name"), *content = json_object_get(message, "content");

    text_format(&turn->text, "%sThe function %s returned:\n", turn->text.bytes ? "\n\n" : "",
                json_is_string(name) ? json_string_value(name) : "");
    text_append(&turn->text, json_string_value(content), json_string_length(content));
}

static bool begin_turn(struct turn *turn, json_t *message)
{
    turn->message = message;
    json_object_del(message, "tool_call_id");
    json_object_del(message, "name");
    return json_object_set_new(message, "role", json_string("user")) == 0;
}

static bool end_turn(struct turn *turn)
{
    json_t *message = turn->message, *content = text_value(&turn->text);

    turn->message = NULL;
    if (message)
        return content && json_object_set_new(message, "content", content) == 0;
    json_decref(content);
    return true;
}

static bool write_plain(json_t *messages)
{
    json_t *out = json_array();
    struct turn turn = {0};
    bool ok = out != NULL;

    for (size_t i = 0; ok && i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i);
        const char *role = json_string_value(json_object_get(message, "role"));
        const bool calls = json_object_get(message, "tool_calls"), result = !calls && strcmp(role, "tool") == 0;
        const bool joins = turn.message && (result || (!calls && strcmp(role, "user") == 0));
        if (!joins)
            ok = end_turn(&turn);
        if (result)
            add_result(&turn, message);
        else if (joins)
            append_content(&turn.text, message);
        if (joins)
            continue;
        if (ok && result)
            ok = begin_turn(&turn, message);
        else if (ok && calls)
            ok = write_calls(message);
        ok = ok && json_array_append(out, message) == 0;
    }
    ok = end_turn(&turn) && ok && json_array_clear(messages) == 0 && json_array_extend(messages, out) == 0;
    json_decref(out);
    return ok;
}

// --- the form -------------------------------------------------------------------------------------------------------------
static bool shape_call(const struct conversation_form *form, json_t *function)
{
    json_t *arguments = json_object_get(function, "arguments");

    if (form->arguments_text && json_text_is_object(arguments))
        return json_object_set_new(function, "arguments", json_text_string(arguments, true)) == 0;
    if (json_is_string(arguments) && !form->takes_broken)
        return json_object_set_new(function, "arguments", json_pack("{s:O}", "arguments", arguments)) == 0;
    return true;
}

static bool shape_message(const struct conversation_form *form, json_t *message)
{
    const json_t *calls = json_object_get(message, "tool_calls"), *content = json_object_get(message, "content");
    json_t *reasoning = json_object_get(message, "reasoning_content");
    bool ok = true;

    for (size_t i = 0; ok && i < json_array_size(calls); i++)
        ok = shape_call(form, json_object_get(json_array_get(calls, i), "function"));
    if (ok && reasoning && strcmp(form->reasoning_key, "reasoning_content") != 0) {
        if (!calls || json_string_length(content) == 0) // some take one or the other beside a call
            ok = json_object_set(message, form->reasoning_key, reasoning) == 0;
        json_object_del(message, "reasoning_content");
    }
    if (ok && form->content_empty && calls && json_is_null(content))
        ok = json_object_set_new(message, "content", json_string("")) == 0;
    return ok;
}

bool conversation_shape(const struct conversation_form *form, json_t *messages, json_t *tools, json_t **variables, json_t **given)
{
    *given = form->tools_name && strcmp(form->tools_name, "tools") == 0 ? tools : NULL;
    if ((!form->has_calls || (tools && !form->tools_name)) && !write_plain(messages)) // as described, so that examples are alike
        return false;
    if (tools && !form->tools_name && !describe_tools(form, messages, tools))
        return false;
    if (tools && form->tools_name && !*given) {
        if (!*variables && !(*variables = json_object()))
            return false;
        if (json_object_set(*variables, form->tools_name, tools) != 0)
            return false;
    }
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!shape_message(form, json_array_get(messages, i)))
            return false;
    return true;
}
