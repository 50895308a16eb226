// conversation.c: see conversation.h. Puts conversations into a form.
#include "services/gateway/text/conversation.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/checked.h"
#include "common/base/text.h"
#include "common/json/json_text.h"

static const char *role_of(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));

    return role ? role : "";
}

static const char *const role_names[CONVERSATION_ROLES] = {"system", "user", "assistant", "tool"};

static int role_index(const json_t *message)
{
    int role = 0;

    while (role < CONVERSATION_ROLES && strcmp(role_of(message), role_names[role]) != 0)
        role++;
    return role;
}

// Makes a text a message's content, and frees it. False: no memory.
static bool set_content(json_t *message, struct text *text)
{
    const bool ok = !text->failed &&
                    json_object_set_new(message, "content", json_stringn_nocheck(text->data ? text->data : "", text->bytes)) == 0;

    text_free(text);
    return ok;
}

// Ends a rewriting: takes `with` over, and puts it in place of the messages if all went well. Returns whether it did.
static bool replace_messages(json_t *messages, json_t *with, bool ok)
{
    ok = ok && json_array_clear(messages) == 0 && json_array_extend(messages, with) == 0;
    json_decref(with);
    return ok;
}

// --- which result belongs to which call, and the ids that tell so ----------------------------------------------------
//
// Results are matched by the id that they name, or without one in the order of the last message's calls. Some clients give all calls
// the same id: their results are matched in order, too. The template gets what is missing: the id of the call and the name of its
// function. Ids that it would refuse are replaced, at the call and its results alike. A new id depends on the old one and on what came
// before, and on nothing else, so that the next turn of the conversation has the same prefix.

enum { ID_BYTES = 9, MATCH_MAX = 128 }; // those of a message without ids that are looked at

struct matching {
    const struct call_form *form;
    json_t *by_id; // a group for each id that the client gave
    json_t *used;  // ids that the template is shown; true: made here
    json_t *open;  // borrowed: calls of the last message that has some
    bool answered[MATCH_MAX];
    const json_t **owners;                        // [message]: the call whose result it is, borrowed; NULL: none
    size_t call_count, message_count, made_count; // made_count: of ids
    json_t *strays;                               // results of no call
};

// A group is a list: the number of the last message with calls of this id, how many results they have, these calls.
enum { GROUP_MESSAGE, GROUP_RESULTS, GROUP_CALLS };

static bool is_short_id(const json_t *id)
{
    const char *text = json_string_value(id);

    return json_string_length(id) == ID_BYTES &&
           strspn(text, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") == ID_BYTES;
}

static bool has_zero(const json_t *string) { return memchr(json_string_value(string), 0, json_string_length(string)); }

// Returns a new id that stands for what is in `seed`; NULL: no memory.
static json_t *make_id(struct matching *matching, const char *seed, size_t bytes)
{
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    uint64_t hash = 14695981039346656037u; // FNV-1a (RFC 9923)
    char text[ID_BYTES + 1] = "";

    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ (unsigned char)seed[i]) * 1099511628211u;
    do {
        uint64_t rest = hash ^ hash >> 29;
        for (size_t i = 0; i < ID_BYTES; i++, rest /= sizeof letters - 1)
            text[i] = letters[rest % (sizeof letters - 1)];
        // Another one, on which no earlier call with the same seed has come.
        hash = (hash ^ ++matching->made_count) * 1099511628211u;
    } while (json_object_get(matching->used, text));
    return json_object_set_new(matching->used, text, json_true()) == 0 ? json_string(text) : NULL;
}

// Whether the template needs another id than this one, which may be NULL.
static bool needs_new(const struct matching *matching, const json_t *id)
{
    if (!id)
        return matching->form->short_ids || matching->form->needs_ids;
    return matching->form->short_ids && (!is_short_id(id) || json_is_true(json_object_get(matching->used, json_string_value(id))));
}

static bool add_to_group(struct matching *matching, const char *id, json_t *call)
{
    json_t *group = json_object_get(matching->by_id, id);

    if (group && json_integer_value(json_array_get(group, GROUP_MESSAGE)) == (json_int_t)matching->message_count)
        return json_array_append(group, call) == 0;
    return json_object_set_new(matching->by_id, id, json_pack("[I,i,O]", (json_int_t)matching->message_count, 0, call)) == 0;
}

// The call that the next result of this id belongs to; NULL: none.
static json_t *next_of_group(const struct matching *matching, const char *id)
{
    const json_t *group = json_object_get(matching->by_id, id);
    json_t *results = json_array_get(group, GROUP_RESULTS);
    const json_int_t count = json_integer_value(results), last = (json_int_t)json_array_size(group) - GROUP_CALLS - 1;

    if (!group)
        return NULL;
    json_integer_set(results, count + 1);
    return json_array_get(group, GROUP_CALLS + (size_t)(count < last ? count : last));
}

static bool take_call(struct matching *matching, json_t *call)
{
    json_t *given = json_object_get(call, "id"), *id = json_is_string(given) ? given : NULL;
    bool ok = true;

    matching->call_count++;
    if (id && !has_zero(id))
        ok = add_to_group(matching, json_string_value(id), call);
    if (!ok || !needs_new(matching, id))
        return ok &&
               (!id || !matching->form->short_ids || json_object_set_new(matching->used, json_string_value(id), json_false()) == 0);
    char place[32];
    const int length = snprintf(place, sizeof place, "call %zu", matching->call_count);
    return json_object_set_new(call, "id",
                               id ? make_id(matching, json_string_value(id), json_string_length(id))
                                  : make_id(matching, place, (size_t)length)) == 0;
}

// The call of a result that names no id: the first one of its name, or of any, that has no result yet.
static json_t *next_open(const struct matching *matching, const json_t *name)
{
    for (size_t i = 0; i < json_array_size(matching->open) && i < MATCH_MAX; i++) {
        json_t *call = json_array_get(matching->open, i);
        if (!matching->answered[i] &&
            (!json_is_string(name) || json_equal(name, json_object_get(json_object_get(call, "function"), "name"))))
            return call;
    }
    return NULL;
}

static bool take_result(struct matching *matching, json_t *message, const json_t **owner)
{
    json_t *id = json_object_get(message, "tool_call_id"), *name = json_object_get(message, "name"), *call = NULL;

    if (!json_is_string(id))
        call = next_open(matching, name);
    else if (!has_zero(id))
        call = next_of_group(matching, json_string_value(id));
    *owner = call;
    if (!call && matching->form->no_strays && json_array_append(matching->strays, message) != 0)
        return false;
    for (size_t i = 0; i < json_array_size(matching->open) && i < MATCH_MAX; i++)
        matching->answered[i] |= json_array_get(matching->open, i) == call;
    json_t *called_id = json_object_get(call, "id"), *called = json_object_get(json_object_get(call, "function"), "name");
    if (called_id && json_object_set(message, "tool_call_id", called_id) != 0)
        return false;
    if (!call && json_is_string(id) && needs_new(matching, id) &&
        json_object_set_new(message, "tool_call_id", make_id(matching, json_string_value(id), json_string_length(id))) != 0)
        return false;
    return name || !called || json_object_set(message, "name", called) == 0;
}

// --- one call a message ---------------------------------------------------------------------------------------------------
// Returns the message with one of its calls: what else it has stays with the first.
static json_t *with_call(json_t *message, json_t *call, bool first)
{
    json_t *single = first ? json_copy(message) : json_pack("{s:s,s:n}", "role", "assistant", "content");

    if (single && json_object_set_new(single, "tool_calls", json_pack("[O]", call)) != 0) {
        json_decref(single);
        return NULL;
    }
    return single;
}

// Puts a message with several calls, and the results up to message `end`, into `out`: each call, then its results.
static bool split_calls(json_t *messages, const json_t **owners, size_t at, size_t end, json_t *out)
{
    json_t *message = json_array_get(messages, at), *calls = json_object_get(message, "tool_calls");
    bool ok = true;

    for (size_t c = 0; ok && c < json_array_size(calls); c++) {
        json_t *call = json_array_get(calls, c);
        ok = json_array_append_new(out, with_call(message, call, c == 0)) == 0;
        for (size_t i = at + 1; ok && i < end; i++)
            if (owners[i] == call)
                ok = json_array_append(out, json_array_get(messages, i)) == 0;
    }
    for (size_t i = at + 1; ok && i < end; i++) { // results of none of them
        bool placed = false;
        for (size_t c = 0; c < json_array_size(calls); c++)
            placed |= owners[i] == json_array_get(calls, c);
        ok = placed || json_array_append(out, json_array_get(messages, i)) == 0;
    }
    return ok;
}

// Moves what is said beside calls to a message before them.
static bool move_content(json_t *message, json_t *out)
{
    json_t *content = json_object_get(message, "content");

    return json_string_length(content) == 0 ||
           (json_array_append_new(out, json_pack("{s:s,s:O}", "role", "assistant", "content", content)) == 0 &&
            json_object_set_new(message, "content", json_null()) == 0);
}

static bool split_all(const struct call_form *form, json_t *messages, const json_t **owners)
{
    json_t *out = json_array();
    bool ok = out != NULL;

    for (size_t i = 0, end; ok && i < json_array_size(messages); i = end) {
        json_t *message = json_array_get(messages, i);
        end = i + 1;
        const size_t calls = json_array_size(json_object_get(message, "tool_calls"));
        ok = !form->content_apart || calls == 0 || move_content(message, out);
        if (!form->one_call || calls < 2) {
            ok = ok && json_array_append(out, message) == 0;
            continue;
        }
        while (role_index(json_array_get(messages, end)) == CONVERSATION_TOOL)
            end++;
        ok = ok && split_calls(messages, owners, i, end, out);
    }
    return replace_messages(messages, out, ok);
}

// --- results of no call -----------------------------------------------------------------------------------------------------
static void conversation_tell_result(struct text *out, const json_t *message)
{
    const json_t *name = json_object_get(message, "name"), *content = json_object_get(message, "content");

    text_string(out, out->bytes ? "\n\n" : "");
    if (json_is_string(name))
        text_format(out, "The function %s returned:\n", json_string_value(name));
    else
        text_string(out, "A function returned:\n");
    text_append(out, json_string_value(content), json_string_length(content));
}

static bool tell_strays(const json_t *strays)
{
    bool ok = true;

    for (size_t i = 0; ok && i < json_array_size(strays); i++) {
        json_t *message = json_array_get(strays, i);
        struct text text = {0};
        conversation_tell_result(&text, message);
        json_object_del(message, "tool_call_id");
        json_object_del(message, "name");
        ok = set_content(message, &text) && json_object_set_new(message, "role", json_string("user")) == 0;
    }
    return ok;
}

bool conversation_match_calls(const struct call_form *form, json_t *messages)
{
    const size_t count = json_array_size(messages);
    struct matching matching = {.form = form,
                                .by_id = json_object(),
                                .used = json_object(),
                                .owners = calloc(count + 1, sizeof *matching.owners),
                                .strays = json_array()};
    bool ok = matching.by_id && matching.used && matching.owners && matching.strays;

    for (size_t i = 0; ok && i < count; i++) {
        json_t *message = json_array_get(messages, i), *calls = json_object_get(message, "tool_calls");
        if (role_index(message) == CONVERSATION_TOOL) {
            ok = take_result(&matching, message, &matching.owners[i]);
        } else if (json_array_size(calls) > 0) {
            matching.open = calls;
            matching.message_count++;
            memset(matching.answered, 0, sizeof matching.answered);
            for (size_t c = 0; ok && c < json_array_size(calls); c++)
                ok = take_call(&matching, json_array_get(calls, c));
        }
    }
    ok = ok && ((!form->one_call && !form->content_apart) || split_all(form, messages, matching.owners)) &&
         tell_strays(matching.strays);
    json_decref(matching.by_id);
    json_decref(matching.strays);
    json_decref(matching.used);
    free(matching.owners);
    return ok;
}

// --- which form of a conversation a template takes: small ones are rendered, and it is looked for what they say ------
#define KEY "probe_key"
#define VALUE "probe_value"
#define FIRST "probe_first"
#define SECOND "probe_second"

enum seen { REFUSED, HIDDEN, SHOWN }; // what a template does with a text: an error; leaves it out; writes it

// Whether a text is there in any case, as a template may change that.
static bool has(const struct chat_output *output, const char *text)
{
    const size_t bytes = strlen(text);

    for (size_t at = 0; at + bytes <= output->length; at++)
        if (strncasecmp(output->text + at, text, bytes) == 0)
            return true;
    return false;
}

static json_t *functions(void)
{
    return json_pack("[{s:s,s:{s:s,s:s,s:{s:s,s:{s:{s:s}}}}}]", "type", "function", "function", "name", "probe", "description", "d",
                     "parameters", "type", "object", "properties", "other", "type", "string");
}

struct probe {
    const struct chat_template *chat;
    struct conversation_form *form;
    bool with_tools; // some templates are for requests with tools alone
};

// Renders messages, which are taken over, in the form as it is, and looks for two texts. Arguments must not be quoted twice, nor be as Python
// prints them.
static enum seen look(const struct probe *probe, json_t *messages, const char *first, const char *second)
{
    json_t *tools = probe->with_tools ? functions() : NULL, *variables = NULL, *given;
    const struct chat_input input = {
        .messages = messages, .tools = tools, .add_generation_prompt = true, .tools_list = probe->form->tools_list};
    struct chat_output output;
    struct error error;
    enum seen seen = REFUSED;

    if (messages && (tools || !probe->with_tools) && conversation_shape(probe->form, messages, NULL, &variables, &given) &&
        chat_template_render(probe->chat, &input, &output, &error) == STATUS_OK) {
        const bool good = !has(&output, "\\\"" KEY) && !has(&output, "'" KEY "'");
        seen = good && has(&output, first) && has(&output, second) ? SHOWN : HIDDEN;
        chat_output_free(&output);
    }
    json_decref(messages);
    json_decref(tools);
    json_decref(variables);
    return seen;
}

// --- plain messages -------------------------------------------------------------------------------------------------------
// Messages of roles and contents in turn, up to a NULL.
static json_t *talk(const char *role, ...)
{
    json_t *messages = json_array();
    va_list args;

    va_start(args, role);
    for (; role; role = va_arg(args, const char *))
        json_array_append_new(messages, json_pack("{s:s,s:s}", "role", role, "content", va_arg(args, const char *)));
    va_end(args);
    return messages;
}

static json_t *append_all(json_t *messages, json_t *more)
{
    json_array_extend(messages, more);
    json_decref(more);
    return messages;
}

// Messages, one of a role, or two of it in a row; second: NULL, or the other's content.
static json_t *talk_with(enum conversation_role role, const char *first, const char *second)
{
    const char *name = role_names[role];
    json_t *messages = role == CONVERSATION_ASSISTANT ? talk("user", "u", name, first, NULL) : talk(name, first, NULL);

    if (second)
        append_all(messages, talk(name, second, NULL));
    return role == CONVERSATION_USER ? messages : append_all(messages, talk("user", "u", NULL));
}

// Finds out whether a role's content is text or a list of parts. Returns what becomes of it in the better form.
static enum seen probe_content(const struct probe *probe, enum conversation_role role)
{
    const enum seen text = look(probe, talk_with(role, VALUE, NULL), VALUE, "");

    if (text == SHOWN)
        return SHOWN;
    probe->form->typed |= 1u << role;
    const enum seen parts = look(probe, talk_with(role, VALUE, NULL), VALUE, "");
    if (parts != SHOWN)
        probe->form->typed &= ~(1u << role);
    return MAX(text, parts);
}

// Joins a role's messages if the template takes them joined alone.
static void probe_row(const struct probe *probe, enum conversation_role role)
{
    if (look(probe, talk_with(role, FIRST, SECOND), FIRST, SECOND) == SHOWN)
        return;
    probe->form->joined |= 1u << role;
    if (look(probe, talk_with(role, FIRST, SECOND), FIRST, SECOND) != SHOWN)
        probe->form->joined &= ~(1u << role);
}

// Sets a flag for what the template does not take, unless that does not help.
static void probe_flag(const struct probe *probe, json_t *messages, const char *second, bool *flag)
{
    *flag = look(probe, json_deep_copy(messages), VALUE, second) != SHOWN;
    if (*flag)
        *flag = look(probe, json_deep_copy(messages), VALUE, second) == SHOWN;
    json_decref(messages);
}

static json_t *late_system(void) { return talk("user", "u", "assistant", "a", "system", VALUE, "user", "v", NULL); }

static void probe_plain(struct probe *probe)
{
    struct conversation_form *form = probe->form;
    enum seen user = probe_content(probe, CONVERSATION_USER);

    if (user == REFUSED) {
        form->tools_list = true;
        user = probe_content(probe, CONVERSATION_USER);
        form->tools_list = user != REFUSED;
    }
    if (user == REFUSED) {
        probe->with_tools = true;
        user = probe_content(probe, CONVERSATION_USER);
    }
    if (user == HIDDEN && look(probe, talk("system", "s", "user", VALUE, NULL), VALUE, "") != SHOWN)
        form->lost |= 1u << CONVERSATION_USER;
    if (probe_content(probe, CONVERSATION_ASSISTANT) == HIDDEN &&
        look(probe, talk("user", "u", "assistant", VALUE, NULL), VALUE, "") != SHOWN)
        form->lost |= 1u << CONVERSATION_ASSISTANT;
    probe_row(probe, CONVERSATION_USER);
    probe_row(probe, CONVERSATION_ASSISTANT);
    probe_flag(probe, talk("assistant", VALUE, "user", "u", NULL), "", &form->fills_start);
    // A model whose limit of tokens ended before its text began.
    probe_flag(probe, talk("user", VALUE, "assistant", "", "user", SECOND, NULL), SECOND, &form->no_empty);
    if (probe_content(probe, CONVERSATION_SYSTEM) != SHOWN) {
        form->has_system = form->has_late_system = false; // unless that does not help
        form->has_system = form->has_late_system = look(probe, talk_with(CONVERSATION_SYSTEM, VALUE, NULL), VALUE, "") != SHOWN;
        return;
    }
    probe_row(probe, CONVERSATION_SYSTEM);
    probe_flag(probe, talk("system", VALUE, NULL), "", &form->needs_user);
    probe_flag(probe, talk("system", VALUE, "user", "u", "assistant", "a", NULL), "", &form->no_early_system);
    if (look(probe, late_system(), VALUE, "") != SHOWN) {
        form->has_late_system = false;
        form->has_late_system = look(probe, late_system(), VALUE, "") != SHOWN;
    }
}

// --- calls ----------------------------------------------------------------------------------------------------------------
static json_t *call_of(const char *id, const char *value)
{
    return json_pack("{s:s*,s:s,s:{s:s,s:{s:s}}}", "id", id, "type", "function", "function", "name", "probe", "arguments", KEY,
                     value);
}

static json_t *result_of(const char *id, const char *value)
{
    return json_pack("{s:s,s:s,s:s*,s:s}", "role", "tool", "content", value, "tool_call_id", id, "name", "probe");
}

// A conversation with a call and its result; another_id: with a second one.
static json_t *called(const char *id, const char *another_id)
{
    json_t *calls = json_pack("[o]", call_of(id, VALUE)), *messages;

    if (another_id)
        json_array_append_new(calls, call_of(another_id, SECOND));
    messages = json_pack("[{s:s,s:s},{s:s,s:n,s:o},o]", "role", "user", "content", "u", "role", "assistant", "content",
                         "tool_calls", calls, result_of(id, FIRST));
    if (another_id)
        json_array_append_new(messages, result_of(another_id, "r"));
    return messages;
}

// A call beside a content, and all that may follow.
static json_t *called_beside_content(void)
{
    json_t *messages = called("probecall", NULL);

    json_object_set_new(json_array_get(messages, 1), "content", json_string(SECOND));
    return append_all(messages, talk("assistant", "a", "user", "u", NULL));
}

static bool shows_call(const struct probe *probe, const char *id) { return look(probe, called(id, NULL), VALUE, FIRST) == SHOWN; }

// A conversation with a call whose arguments were cut off.
static json_t *cut_off(const char *id)
{
    json_t *messages = called(id, NULL), *calls = json_object_get(json_array_get(messages, 1), "tool_calls");

    json_object_set_new(json_object_get(json_array_get(calls, 0), "function"), "arguments", json_string("{" VALUE));
    return messages;
}

// A result whose call is not there: clients cut conversations where they become long.
static json_t *stray_result(void)
{
    json_t *messages = talk("user", "u", "tool", VALUE, "assistant", "a", "user", SECOND, NULL);

    json_object_set_new(json_array_get(messages, 1), "tool_call_id", json_string("probelost"));
    return messages;
}

static void probe_calls(struct probe *probe)
{
    static const char id[] = "probecall", foreign[] = "call_0123456789abcdefghijklmn";
    struct conversation_form *form = probe->form;
    bool shown = false;

    probe->with_tools = true;
    for (unsigned i = 0; i < 8 && !shown; i++) {
        form->content_empty = i & 1;
        form->arguments_text = i & 2;
        form->typed = (form->typed & ~(1u << CONVERSATION_TOOL)) | (i & 4 ? 1u << CONVERSATION_TOOL : 0);
        shown = shows_call(probe, id);
    }
    form->has_calls = shown;
    if (!shown) {
        form->content_empty = form->arguments_text = false;
        form->typed &= ~(1u << CONVERSATION_TOOL);
        return;
    }
    form->takes_broken = true;
    form->takes_broken = look(probe, cut_off(id), "{" VALUE, FIRST) == SHOWN;
    form->calls.short_ids = !shows_call(probe, foreign);
    form->calls.needs_ids = !form->calls.short_ids && !shows_call(probe, NULL);
    probe_flag(probe, called(id, "probetwo2"), SECOND, &form->calls.one_call);
    probe_flag(probe, called_beside_content(), SECOND, &form->calls.content_apart);
    // A user who does not wait for the answer to a result.
    probe_flag(probe, append_all(called(id, NULL), talk("user", SECOND, NULL)), SECOND, &form->fills_gap);
    probe_flag(probe, stray_result(), SECOND, &form->calls.no_strays);
}

// --- reasoning ------------------------------------------------------------------------------------------------------------
static json_t *with_reasoning(json_t *messages)
{
    json_object_set_new(json_array_get(messages, 1), "reasoning_content", json_string(SECOND));
    return messages;
}

// Finds the name under which the template shows what was thought before a call, or in the last message: it may hide that of earlier turns.
static void probe_reasoning(const struct probe *probe, const char *source, size_t length)
{
    static const char *const keys[] = {"reasoning_content", "reasoning", "thinking"};
    struct conversation_form *form = probe->form;

    for (size_t i = 0; i < ARRAY_COUNT(keys); i++) {
        form->reasoning_key = keys[i];
        if ((form->has_calls && look(probe, with_reasoning(called("probecall", NULL)), VALUE, SECOND) == SHOWN) ||
            look(probe, with_reasoning(talk("user", "u", "assistant", "a", NULL)), SECOND, "") == SHOWN)
            return;
    }
    const bool thinks = memmem(source, length, "thinking", strlen("thinking"));
    form->reasoning_key = !memmem(source, length, keys[0], strlen(keys[0])) && thinks ? "thinking" : keys[0];
}

void conversation_probe(const struct chat_template *chat, const char *source, size_t length, struct conversation_form *out)
{
    static const char *const tools[] = {"tools", "xml_tools"};

    // At first everything is taken as it is.
    *out = (struct conversation_form){
        .reasoning_key = "reasoning_content", .has_calls = true, .has_system = true, .has_late_system = true};
    for (size_t i = 0; i < ARRAY_COUNT(tools) && !out->tools_name; i++)
        if (chat_template_names(chat, tools[i]))
            out->tools_name = tools[i];
    struct probe probe = {.chat = chat, .form = out};
    probe_plain(&probe);
    probe_calls(&probe);
    probe_reasoning(&probe, source, length);
}

// --- templates without tools ----------------------------------------------------------------------------------------------
static void append_content(struct text *out, const json_t *message)
{
    const json_t *content = json_object_get(message, "content");

    if (json_string_length(content) == 0)
        return;
    if (out->bytes > 0)
        text_string(out, "\n\n");
    text_append(out, json_string_value(content), json_string_length(content));
}

// Describes the functions in the system message.
static bool describe_tools(json_t *messages, const json_t *tools)
{
    static const char how[] = "You can call these functions:\n\n";
    static const char answer[] =
        "\nTo call a function, answer with nothing but a JSON object: {\"name\": \"the function's name\", \"arguments\": {...}}. To "
        "call several, write one object a line. Answer in plain text where no function helps.";
    json_t *first = json_array_get(messages, 0);
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
    if (!has_system && json_array_insert_new(messages, 0, json_pack("{s:s}", "role", "system")) != 0) {
        text_free(&text);
        return false;
    }
    return set_content(json_array_get(messages, 0), &text);
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
    return set_content(message, &text);
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
    json_t *message = turn->message;
    const bool ok = !message || set_content(message, &turn->text);

    turn->message = NULL;
    text_free(&turn->text);
    return ok;
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
    json_t *out = json_array();
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
            ok = set_content(message, &system);
        }
        ok = ok && json_array_append(out, message) == 0;
    }
    if (ok && (system.bytes > 0 || json_array_size(out) == 0)) { // no user follows
        json_t *message = json_pack("{s:s}", "role", "user");
        ok = set_content(message, &system) && json_array_append(out, message) == 0;
        json_decref(message);
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
