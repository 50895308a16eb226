// conversation.c: see conversation.h. Puts conversations into a form.
#include "services/gateway/text/conversation.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/text.h"
#include "common/json/json_text.h"

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

static const char *role_of(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));

    return role ? role : "";
}

// Describes the functions in the system message.
static bool describe_tools(json_t *messages, const json_t *tools)
{
    static const char how[] = "You can call these functions:\n\n";
    static const char answer[] =
        "\nTo call a function, answer with nothing but a JSON object: {\"name\": \"the function's name\", \"arguments\": {...}}. To "
        "call several, write one object a line. Answer in plain text where no function helps.";
    json_t *first = json_array_get(messages, 0), *content;
    const bool has_system = strcmp(role_of(first), "system") == 0;
    struct text text = {0};

    if (has_system)
        append_content(&text, first);
    if (text.bytes > 0)
        text_string(&text, "\n\n");
    text_string(&text, how);
    for (size_t i = 0; i < json_array_size(tools); i++) {
        json_text_append(&text, json_object_get(json_array_get(tools, i), "function"), false);
        text_string(&text, "\n");
    }
    text_string(&text, answer);
    content = text_value(&text);
    if (!content)
        return false;
    if (has_system)
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

// Ends a rewriting: takes `with` over, and puts it in place of the messages if all went well. Returns whether it did.
static bool replace_messages(json_t *messages, json_t *with, bool ok)
{
    ok = ok && json_array_clear(messages) == 0 && json_array_extend(messages, with) == 0;
    json_decref(with);
    return ok;
}

// A message that takes in those that follow it.
struct turn {
    json_t *message; // borrowed; NULL: none is open
    struct text text;
};

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
        const char *role = role_of(message);
        const bool calls = json_object_get(message, "tool_calls"), result = !calls && strcmp(role, "tool") == 0;
        const bool joins = turn.message && (result || (!calls && strcmp(role, "user") == 0));
        if (!joins)
            ok = end_turn(&turn);
        if (result)
            conversation_tell_result(&turn.text, message);
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
    return replace_messages(messages, out, end_turn(&turn) && ok);
}

// --- turns ----------------------------------------------------------------------------------------------------------------
static const char *const role_names[CONVERSATION_ROLES] = {"system", "user", "assistant", "tool"};

static int role_index(const json_t *message)
{
    int role = 0;

    while (role < CONVERSATION_ROLES && strcmp(role_of(message), role_names[role]) != 0)
        role++;
    return role;
}

// Returns whether a message is put behind the one before it.
static bool joins_before(const struct conversation_form *form, const json_t *before, const json_t *message)
{
    const int role = role_index(message);

    return before && role == role_index(before) && role < CONVERSATION_ROLES && form->joined >> role & 1 &&
           !json_object_get(before, "tool_calls") && !json_object_get(message, "tool_calls");
}

static bool join(struct turn *turn, const json_t *message)
{
    json_t *reasoning = json_object_get(message, "reasoning_content");

    append_content(&turn->text, message);
    return !reasoning || json_object_set(turn->message, "reasoning_content", reasoning) == 0;
}

// Whether the template takes the system message that begins this conversation.
static bool takes_system(const struct conversation_form *form, const json_t *messages)
{
    const size_t count = json_array_size(messages);
    bool is_alone = true;

    for (size_t i = 0; is_alone && i < count; i++)
        is_alone = role_index(json_array_get(messages, i)) == CONVERSATION_SYSTEM;
    if (is_alone)
        return form->has_system && !form->needs_user;
    return form->has_system && !(form->no_early_system && role_index(json_array_get(messages, count - 1)) != CONVERSATION_USER);
}

// System messages that the template does not take go to the user's next one.
static bool fold_system(const struct conversation_form *form, json_t *messages)
{
    json_t *out = json_array(), *content;
    struct text system = {0};
    bool ok = out != NULL, begun = false;
    const bool takes = takes_system(form, messages);

    for (size_t i = 0; ok && i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i);
        const int role = role_index(message);
        if (role == CONVERSATION_SYSTEM && !(begun ? form->has_late_system : takes)) {
            append_content(&system, message);
            continue;
        }
        begun |= role != CONVERSATION_SYSTEM;
        if (role == CONVERSATION_USER && system.bytes > 0) {
            append_content(&system, message);
            content = text_value(&system);
            ok = content && json_object_set_new(message, "content", content) == 0;
        }
        ok = ok && json_array_append(out, message) == 0;
    }
    if (ok && (system.bytes > 0 || json_array_size(out) == 0)) { // no user follows
        content = text_value(&system);
        ok = content && json_array_append_new(out, json_pack("{s:s,s:o}", "role", "user", "content", content)) == 0;
    }
    text_free(&system);
    return replace_messages(messages, out, ok);
}

// Leaves out answers that say nothing, as of a model whose limit of tokens ended before its text began.
static bool drop_empty(json_t *messages)
{
    json_t *out = json_array();
    bool ok = out != NULL;

    for (size_t i = 0; ok && i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i);
        const bool is_empty = role_index(message) == CONVERSATION_ASSISTANT && !json_object_get(message, "tool_calls") &&
                              json_string_length(json_object_get(message, "content")) == 0;
        ok = is_empty || json_array_append(out, message) == 0;
    }
    if (!ok || json_array_size(out) > 0)
        return replace_messages(messages, out, ok);
    json_decref(out); // of a conversation of nothing else the template says what it thinks
    return true;
}

// Messages in a row become one where the template wants turns.
static bool join_rows(const struct conversation_form *form, json_t *messages)
{
    json_t *out = json_array(), *before = NULL;
    struct turn turn = {0};
    bool ok = out != NULL;

    for (size_t i = 0; ok && i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i);
        if (joins_before(form, before, message)) {
            if (!turn.message)
                append_content(&turn.text, turn.message = before);
            ok = join(&turn, message);
            continue;
        }
        before = message;
        ok = end_turn(&turn) && json_array_append(out, message) == 0;
    }
    return replace_messages(messages, out, end_turn(&turn) && ok);
}

// Puts empty messages where the template wants a turn that the client did not have.
static bool fill_turns(const struct conversation_form *form, json_t *messages)
{
    json_t *out = json_array();
    bool ok = out != NULL, begun = false, asked = false, called = false; // asked: and not answered; called: since then

    for (size_t i = 0; ok && i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i);
        const int role = role_index(message);
        const char *missing = NULL;
        if (role == CONVERSATION_USER && asked && called && form->fills_gap)
            missing = "assistant";
        else if (role == CONVERSATION_ASSISTANT && !begun && form->fills_start)
            missing = "user";
        if (missing)
            ok = json_array_append_new(out, json_pack("{s:s,s:s}", "role", missing, "content", "")) == 0;
        if (role == CONVERSATION_USER) {
            asked = true;
            called = false;
        } else if (role == CONVERSATION_TOOL || json_object_get(message, "tool_calls")) {
            called = true;
        } else if (role == CONVERSATION_ASSISTANT) {
            asked = false;
        }
        begun |= role != CONVERSATION_SYSTEM;
        ok = ok && json_array_append(out, message) == 0;
    }
    return replace_messages(messages, out, ok);
}

const char *conversation_find_lost(const struct conversation_form *form, const json_t *messages)
{
    for (size_t i = 0; form->lost && i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i), *content = json_object_get(message, "content");
        const int role = role_index(message);
        if (role < CONVERSATION_ROLES && form->lost >> role & 1 &&
            (json_array_size(content) > 0 || json_string_length(content) > 0))
            return role_names[role];
    }
    return NULL;
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

// A content as the list of parts that it is for a template that looks through one. The empty text is none.
static bool shape_content(json_t *message)
{
    json_t *content = json_object_get(message, "content"), *parts;

    if (!json_is_string(content))
        return true;
    parts = json_string_length(content) ? json_pack("[{s:s,s:O}]", "type", "text", "text", content) : json_array();
    return json_object_set_new(message, "content", parts) == 0;
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
    if (ok && (form->content_empty || !calls) && json_is_null(content))
        ok = json_object_set_new(message, "content", json_string("")) == 0;
    if (ok && role_index(message) < CONVERSATION_ROLES && form->typed >> role_index(message) & 1)
        ok = shape_content(message);
    return ok;
}

bool conversation_shape(const struct conversation_form *form, json_t *messages, json_t *tools, json_t **variables, json_t **given)
{
    *given = form->tools_name && strcmp(form->tools_name, "tools") == 0 ? tools : NULL;
    if (!conversation_match_calls(&form->calls, messages))
        return false;
    if ((!form->has_calls || (tools && !form->tools_name)) && !write_plain(messages)) // as described, so that examples are alike
        return false;
    if (tools && !form->tools_name && !describe_tools(messages, tools))
        return false;
    if ((form->no_empty && !drop_empty(messages)) || !fold_system(form, messages) || !join_rows(form, messages) ||
        !fill_turns(form, messages))
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
