// conversation_probe.c: finds out which form of a conversation a template takes, by rendering small ones and looking for what they say.
#include <stdarg.h>
#include <string.h>
#include <strings.h>

#include "common/base/checked.h"
#include "services/gateway/text/conversation.h"

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

static json_t *talk_with(enum conversation_role role)
{
    return role == CONVERSATION_SYSTEM      ? talk("system", VALUE, "user", "u", NULL)
           : role == CONVERSATION_ASSISTANT ? talk("user", "u", "assistant", VALUE, "user", "u", NULL)
                                            : talk("user", VALUE, NULL);
}

// Finds out whether a role's content is text or a list of parts. Returns what becomes of it in the better form.
static enum seen probe_content(const struct probe *probe, enum conversation_role role)
{
    const enum seen text = look(probe, talk_with(role), VALUE, "");

    if (text == SHOWN)
        return SHOWN;
    probe->form->typed |= 1u << role;
    const enum seen parts = look(probe, talk_with(role), VALUE, "");
    if (parts != SHOWN)
        probe->form->typed &= ~(1u << role);
    return MAX(text, parts);
}

// Messages of a role in a row, to be tried.
static json_t *row_of(enum conversation_role role)
{
    return role == CONVERSATION_SYSTEM      ? talk("system", FIRST, "system", SECOND, "user", "u", NULL)
           : role == CONVERSATION_ASSISTANT ? talk("user", "u", "assistant", FIRST, "assistant", SECOND, "user", "u", NULL)
                                            : talk("user", FIRST, "user", SECOND, NULL);
}

// Joins a role's messages if the template takes them joined alone.
static void probe_row(const struct probe *probe, enum conversation_role role)
{
    if (look(probe, row_of(role), FIRST, SECOND) == SHOWN)
        return;
    probe->form->joined |= 1u << role;
    if (look(probe, row_of(role), FIRST, SECOND) != SHOWN)
        probe->form->joined &= ~(1u << role);
}

static json_t *system_alone(void) { return talk("system", VALUE, NULL); }
static json_t *answer_first(void) { return talk("assistant", VALUE, "user", "u", NULL); }
static json_t *early_system(void) { return talk("system", VALUE, "user", "u", "assistant", "a", NULL); }

// Sets a flag for what the template does not take, unless that does not help.
static void probe_flag(const struct probe *probe, json_t *(*make)(void), const char *second, bool *flag)
{
    *flag = look(probe, make(), VALUE, second) != SHOWN;
    if (*flag)
        *flag = look(probe, make(), VALUE, second) == SHOWN;
}

// A model whose limit of tokens ended before its text began.
static json_t *empty_answer(void) { return talk("user", VALUE, "assistant", "", "user", SECOND, NULL); }

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
    probe_flag(probe, answer_first, "", &form->fills_start);
    probe_flag(probe, empty_answer, SECOND, &form->no_empty);
    if (probe_content(probe, CONVERSATION_SYSTEM) != SHOWN) {
        form->has_system = form->has_late_system = false; // unless that does not help
        form->has_system = form->has_late_system = look(probe, talk_with(CONVERSATION_SYSTEM), VALUE, "") != SHOWN;
        return;
    }
    probe_row(probe, CONVERSATION_SYSTEM);
    probe_flag(probe, system_alone, "", &form->needs_user);
    probe_flag(probe, early_system, "", &form->no_early_system);
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

static json_t *called_twice(void) { return called("probecall", "probetwo2"); }

static json_t *append_all(json_t *messages, json_t *more)
{
    json_array_extend(messages, more);
    json_decref(more);
    return messages;
}

// A call beside a content, and all that may follow.
static json_t *called_beside_content(void)
{
    json_t *messages = called("probecall", NULL);

    json_object_set_new(json_array_get(messages, 1), "content", json_string(SECOND));
    return append_all(messages, talk("assistant", "a", "user", "u", NULL));
}

// A user who does not wait for the answer to a result.
static json_t *called_in_vain(void)
{
    json_t *messages = called("probecall", NULL);

    return append_all(messages, talk("user", SECOND, NULL));
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
    probe_flag(probe, called_twice, SECOND, &form->calls.one_call);
    probe_flag(probe, called_beside_content, SECOND, &form->calls.content_apart);
    probe_flag(probe, called_in_vain, SECOND, &form->fills_gap);
    probe_flag(probe, stray_result, SECOND, &form->calls.no_strays);
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
