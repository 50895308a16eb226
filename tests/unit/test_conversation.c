// test_conversation.c: which form of a conversation a chat template takes, found out by trying; and how tools, calls and results are told to a
// template that knows none.
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "common/base/checked.h"
#include "services/gateway/text/conversation.h"
#include "tests/cmocka.h"

static struct conversation_form form_of(const char *source)
{
    struct chat_template *chat;
    struct conversation_form form;
    struct error error = {0};

    if (chat_template_open(source, strlen(source), "<s>", "</s>", &chat, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    conversation_probe(chat, source, strlen(source), &form);
    chat_template_close(chat);
    return form;
}

#define EACH "{% for m in messages %}"
#define CALL "{% for c in m.tool_calls or [] %}"

static const struct {
    const char *source, *tools, *reasoning;
    bool calls, system, empty, text;
} forms[] = {
    {EACH "{{ m.content }}{% endfor %}", NULL, "reasoning_content", false, true, false, false},
    {EACH "{{ m.content or '' }}" CALL "{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}{{ tools }}", "tools",
     "reasoning_content", true, true, false, false},
    {EACH "{{ '-' + m.content }}" CALL "{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}{{ xml_tools }}", "xml_tools",
     "reasoning_content", true, true, true, false},
    {EACH CALL "{{ '{' + c.function.arguments + '}' }}{% endfor %}{{ m.thinking }}{{ m.content }}{% endfor %}", NULL, "thinking",
     true, true, false, true},
    {EACH "{{ '-' + m.content }}" CALL "{{ c.function.arguments }}{% endfor %}{% endfor %}", NULL, "reasoning_content", true, true,
     true, true},
    {EACH "{{ m.content or '' }}{{ m.reasoning }}{% endfor %}", NULL, "reasoning", false, true, false, false},
    {EACH "{{ m.content or '' }}{{ m.reasoning or m.reasoning_content }}{% endfor %}", NULL, "reasoning_content", false, true,
     false, false},
    // A comment that names another.
    {"{# not reasoning_content #}" EACH "{{ m.content or '' }}{% if loop.last %}{{ m.thinking }}{% endif %}{% endfor %}", NULL,
     "thinking", false, true, false, false},
    {EACH "{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ m.content }}{% endfor %}", NULL, "reasoning_content",
     false, false, false, false},
    {EACH "{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('no') }}{% endif %}{{ m.content }}{% endfor %}", NULL,
     "reasoning_content", false, false, false, false},
};

static void test_forms(void **state)
{
    for (size_t i = 0; i < ARRAY_COUNT(forms); i++) {
        const struct conversation_form form = form_of(forms[i].source);
        assert_string_equal(form.tools_name ? form.tools_name : "-", forms[i].tools ? forms[i].tools : "-");
        assert_string_equal(form.reasoning_key, forms[i].reasoning);
        if (form.has_calls != forms[i].calls || form.has_system != forms[i].system || form.content_empty != forms[i].empty ||
            form.arguments_text != forms[i].text)
            fail_msg("%s: calls %d, system %d, empty %d, text %d", forms[i].source, form.has_calls, form.has_system,
                     form.content_empty, form.arguments_text);
    }
}

#define SAYS(role) "{% if m.role == '" role "' %}"
#define PARTS "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}"
#define RAISE(what) "{{ raise_exception('" what "') }}"
#define BIT(role) (1u << CONVERSATION_##role)
#define PLAIN EACH "{{ m.content or '' }}" CALL "{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}"

// Templates with their demands on contents, turns and ids.
static const struct {
    const char *source;
    struct conversation_form form;
} wants[] = {
    {PLAIN, {.has_calls = true, .has_system = true, .has_late_system = true}},
    {EACH PARTS "{% endfor %}", {.has_system = true, .has_late_system = true, .typed = BIT(SYSTEM) | BIT(USER) | BIT(ASSISTANT)}},
    // Both forms: text is simpler.
    {EACH "{% if m.content is string %}{{ m.content }}{% else %}" PARTS "{% endif %}{% endfor %}",
     {.has_system = true, .has_late_system = true}},
    // A user's parts, and others' text; results in parts, too.
    {EACH "{% if m.role == 'user' or m.role == 'tool' %}" PARTS "{% else %}{{ '' + (m.content or '') }}{% endif %}" CALL
          "{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}",
     {.has_calls = true, .has_system = true, .has_late_system = true, .typed = BIT(USER) | BIT(TOOL)}},
    // A template that takes parts and refuses text.
    {EACH "{% if m.content is string %}" RAISE("no") "{% endif %}" PARTS "{% endfor %}",
     {.has_system = true, .has_late_system = true, .typed = BIT(SYSTEM) | BIT(USER) | BIT(ASSISTANT)}},
    {EACH SAYS("user") "{{ m.content }}{% endif %}{% endfor %}", {.lost = BIT(ASSISTANT)}},
    {EACH "{{ m.content|upper }}{% endfor %}", {.has_system = true, .has_late_system = true}},
    {"{% if messages|length > 1 %}" EACH "{{ m.content }}{% endfor %}{% endif %}",
     {.has_system = true, .has_late_system = true, .needs_user = false}},
    {"static", {.has_system = true, .has_late_system = true, .lost = BIT(USER) | BIT(ASSISTANT)}},
    // Turns, and a system message at the start alone.
    {"{% set ms = messages[1:] if messages[0].role == 'system' else messages %}{{ messages[0].content }}{% for m in ms %}"
     "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}" RAISE("turns") "{% endif %}{{ m.content }}{% endfor %}",
     {.has_system = true, .fills_start = true, .joined = BIT(SYSTEM) | BIT(USER) | BIT(ASSISTANT)}},
    {EACH CALL "{% if c.id|default('')|length != 9 %}" RAISE("id") "{% endif %}{{ c.function.arguments|tojson }}"
                                                                   "{% endfor %}{{ m.content or '' }}{% endfor %}",
     {.has_calls = true, .has_system = true, .has_late_system = true, .calls = {.short_ids = true}}},
    {EACH CALL "{{ 'id ' + c.id }}{{ c.function.arguments|tojson }}{% endfor %}{{ m.content or '' }}{% endfor %}",
     {.has_calls = true, .has_system = true, .has_late_system = true, .calls = {.needs_ids = true}}},
    {EACH "{% if m.tool_calls and m.tool_calls|length > 1 %}" RAISE(
         "one call") "{% endif %}" CALL "{{ c.function.arguments|tojson }}{% endfor %}{{ m.content or '' }}{% endfor %}",
     {.has_calls = true, .has_system = true, .has_late_system = true, .calls = {.one_call = true}}},
    // A system message that is shown with the user's last message alone.
    {EACH "{% if m.role == 'user' and loop.last and messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
          "{% if m.role != 'system' %}{{ m.content or '' }}" CALL
          "{{ c.function.arguments|tojson }}{% endfor %}{% endif %}{% endfor %}",
     {.has_calls = true, .has_system = true, .needs_user = true, .no_early_system = true, .joined = BIT(SYSTEM)}},
    // Answers without text, and results without their call.
    {EACH "{% if m.role == 'assistant' and not m.content and not m.tool_calls %}" RAISE(
         "empty") "{% endif %}" CALL "{{ c.function.arguments|tojson }}{% endfor %}{{ m.content or '' }}{% endfor %}",
     {.has_calls = true, .has_system = true, .has_late_system = true, .no_empty = true}},
    {"{% set ns = namespace(called=false) %}" EACH "{% if m.tool_calls %}{% set ns.called = true %}{% endif %}"
     "{% if m.role != 'tool' or ns.called %}{{ m.content or '' }}{% endif %}" CALL
     "{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}",
     {.has_calls = true, .has_system = true, .has_late_system = true, .calls = {.no_strays = true}}},
    // For requests with tools alone.
    {"{% if not tools %}" RAISE("tools") "{% endif %}" PLAIN, {.has_calls = true, .has_system = true, .has_late_system = true}},
};

// All flags of a form that are set.
static void describe(const struct conversation_form *form, char out[300])
{
    const struct {
        const char *name;
        bool is;
    } flags[] = {{"calls", form->has_calls},
                 {"system", form->has_system},
                 {"late_system", form->has_late_system},
                 {"needs_user", form->needs_user},
                 {"no_early_system", form->no_early_system},
                 {"no_empty", form->no_empty},
                 {"no_strays", form->calls.no_strays},
                 {"fills_start", form->fills_start},
                 {"fills_gap", form->fills_gap},
                 {"tools_list", form->tools_list},
                 {"short_ids", form->calls.short_ids},
                 {"needs_ids", form->calls.needs_ids},
                 {"one_call", form->calls.one_call},
                 {"content_apart", form->calls.content_apart}};
    size_t length = (size_t)snprintf(out, 300, "typed %x joined %x lost %x", form->typed, form->joined, form->lost);

    for (size_t i = 0; i < ARRAY_COUNT(flags); i++)
        if (flags[i].is)
            length += (size_t)snprintf(out + length, 300 - length, " %s", flags[i].name);
}

static void test_wants(void **state)
{
    for (size_t i = 0; i < ARRAY_COUNT(wants); i++) {
        const struct conversation_form form = form_of(wants[i].source);
        char found[300], wanted[300];
        describe(&form, found);
        describe(&wants[i].form, wanted);
        if (strcmp(found, wanted) != 0)
            fail_msg("%s\nfound  %s\nwanted %s", wants[i].source, found, wanted);
    }
}

// The families' own templates take calls, but for those that are written without.
static void test_families(void **state)
{
    json_t *root = json_load_file("tests/golden/chat_tools.json", 0, NULL);
    json_t *templates = json_object_get(root, "templates"), *source;
    const char *name;
    size_t count = 0;

    json_object_foreach (templates, name, source) {
        const struct conversation_form form = form_of(json_string_value(source));
        const bool calls = strcmp(name, "smollm3") != 0 && strcmp(name, "values") != 0; // smollm3 leaves them to the content
        if (form.has_calls != calls || form.arguments_text || !form.tools_name)
            fail_msg("%s: calls %d, text %d, tools %s", name, form.has_calls, form.arguments_text,
                     form.tools_name ? form.tools_name : "-");
        count++;
    }
    assert_true(count >= 12);
    json_decref(root);
}

// --- shaping --------------------------------------------------------------------------------------------------------------
static char *shaped(const struct conversation_form *form, const char *messages, const char *tools, json_t **variables)
{
    json_t *list = json_loads(messages, 0, NULL), *functions = tools ? json_loads(tools, 0, NULL) : NULL, *given;
    char *text;

    assert_non_null(list);
    assert_true(conversation_shape(form, list, functions, variables, &given));
    assert_true(!given == !(functions && form->tools_name && !strcmp(form->tools_name, "tools")));
    text = json_dumps(list, JSON_COMPACT);
    json_decref(list);
    json_decref(functions);
    return text;
}

static void check(const struct conversation_form *form, const char *messages, const char *tools, const char *expected)
{
    json_t *variables = NULL;
    char *text = shaped(form, messages, tools, &variables);

    assert_string_equal(text, expected);
    free(text);
    json_decref(variables);
}

#define ASK "{\"role\":\"user\",\"content\":\"q\"}"
#define CALLED(content) \
    "{\"role\":\"assistant\",\"content\":" content ",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}}]}"
#define CUT "{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":\"{cut\"}}]}" // by a limit of tokens
#define RESULT(text) "{\"role\":\"tool\",\"content\":\"" text "\",\"tool_call_id\":\"1\",\"name\":\"f\"}"

static void test_shapes(void **state)
{
    struct conversation_form form = {
        .tools_name = "tools", .has_calls = true, .has_system = true, .reasoning_key = "reasoning_content"};
    json_t *variables = NULL;
    char *text;

    check(&form, "[" ASK "," CALLED("null") "]", "[{}]", "[" ASK "," CALLED("null") "]");
    check(&form, "[" CUT "]", NULL,
          "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":{\"arguments\":\"{cut\"}}}]}]");
    form.takes_broken = true;
    check(&form, "[" CUT "]", NULL, "[" CUT "]");
    form.content_empty = form.arguments_text = true;
    check(&form, "[" CUT "]", NULL, "[" CUT "]");
    check(
        &form, "[" ASK "," CALLED("null") "]", NULL,
        "[" ASK
        ",{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}}]}]");
    form.reasoning_key = "thinking";
    check(&form, "[{\"role\":\"assistant\",\"content\":\"c\",\"reasoning_content\":\"r\"}]", NULL,
          "[{\"role\":\"assistant\",\"content\":\"c\",\"thinking\":\"r\"}]");
    form.tools_name = "xml_tools";
    text = shaped(&form, "[" ASK "]", "[{\"x\":1}]", &variables);
    assert_int_equal(json_array_size(json_object_get(variables, "xml_tools")), 1);
    json_decref(variables);
    free(text);
}

static void test_plain(void **state)
{
    struct conversation_form form = {.has_system = true, .reasoning_key = "reasoning_content"};

    check(
        &form, "[" ASK "," CALLED("\"c\"") "," RESULT("r1") "," RESULT("r2") "," ASK "]", NULL,
        "[" ASK
        ",{\"role\":\"assistant\",\"content\":\"c\\n{\\\"name\\\":\\\"f\\\",\\\"arguments\\\":{\\\"a\\\":1}}\"},{\"role\":\"user\",\"content\":"
        "\"The function f returned:\\nr1\\n\\nThe function f returned:\\nr2\\n\\nq\"}]");
    const char *tools = "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]";
    json_t *variables = NULL;
    char *text = shaped(&form, "[" ASK "]", tools, &variables);
    assert_non_null(
        strstr(text, "{\"role\":\"system\",\"content\":\"You can call these functions:\\n\\n{\\\"name\\\":\\\"f\\\"}\\n"));
    free(text);
    text = shaped(&form, "[{\"role\":\"system\",\"content\":\"s\"}," ASK "]", tools, &variables);
    assert_non_null(strstr(text, "[{\"role\":\"system\",\"content\":\"s\\n\\nYou can call"));
    free(text);
    form.has_system = false;
    text = shaped(&form, "[" ASK "]", tools, &variables);
    assert_non_null(strstr(text, "[{\"role\":\"user\",\"content\":\"You can call"));
    assert_non_null(strstr(text, "\\n\\nq\"}]"));
    free(text);
}

#define SAID(role, text) "{\"role\":\"" role "\",\"content\":\"" text "\"}"
#define PART(role, text) "{\"role\":\"" role "\",\"content\":[{\"type\":\"text\",\"text\":\"" text "\"}]}"

static void test_contents(void **state)
{
    const struct conversation_form form = {
        .has_system = true, .reasoning_key = "reasoning_content", .typed = BIT(USER) | BIT(ASSISTANT), .lost = BIT(SYSTEM)};
    json_t *messages = json_loads("[" SAID("user", "a") "," SAID("system", "") "]", 0, NULL);

    check(&form, "[" SAID("system", "s") "," ASK "," SAID("assistant", "") "]", NULL,
          "[" SAID("system", "s") "," PART("user", "q") ",{\"role\":\"assistant\",\"content\":[]}]");
    assert_null(conversation_find_lost(&form, messages)); // an empty one loses nothing
    json_array_append_new(messages, json_loads(SAID("system", "x"), 0, NULL));
    assert_string_equal(conversation_find_lost(&form, messages), "system");
    json_decref(messages);
}

// No word is lost where a template knows no system, or wants turns.
static void test_turns(void **state)
{
    struct conversation_form form = {.has_calls = true, .reasoning_key = "reasoning_content"};

    check(&form, "[" SAID("system", "s") "," SAID("system", "t") "," ASK "," SAID("assistant", "a") "," SAID("system", "u") "]",
          NULL, "[" SAID("user", "s\\n\\nt\\n\\nq") "," SAID("assistant", "a") "," SAID("user", "u") "]");
    form.has_system = true;
    form.joined = BIT(SYSTEM) | BIT(USER) | BIT(ASSISTANT);
    check(&form,
          "[" SAID("system", "s") "," SAID("system", "t") "," ASK "," SAID("system", "u") "," ASK "," SAID(
              "assistant", "a") "," SAID("assistant", "b") "," SAID("assistant", "c") "," ASK "]",
          NULL,
          "[" SAID("system", "s\\n\\nt") "," SAID("user", "q\\n\\nu\\n\\nq") "," SAID("assistant", "a\\n\\nb\\n\\nc") "," ASK "]");
    check(&form, "[" ASK "," CALLED("\"a\"") "," CALLED("\"b\"") "]", NULL, "[" ASK "," CALLED("\"a\"") "," CALLED("\"b\"") "]");

    form.needs_user = form.no_early_system = true;
    check(&form, "[" SAID("system", "s") "]", NULL, "[" SAID("user", "s") "]");
    check(&form, "[" SAID("system", "s") "," ASK "]", NULL, "[" SAID("system", "s") "," ASK "]");
    check(&form, "[" SAID("system", "s") "," ASK "," SAID("assistant", "a") "]", NULL,
          "[" SAID("user", "s\\n\\nq") "," SAID("assistant", "a") "]");
}

// Answers that say nothing, as of a model whose limit of tokens ended before its text began.
static void test_empty(void **state)
{
    static const char none[] = "{\"role\":\"assistant\",\"content\":null}";
    struct conversation_form form = {
        .has_calls = true, .has_system = true, .reasoning_key = "reasoning_content", .joined = BIT(USER)};
    char messages[256];

    snprintf(messages, sizeof messages, "[%s,%s,%s,%s]", ASK, none, SAID("assistant", ""), ASK);
    check(&form, messages, NULL, "[" ASK "," SAID("assistant", "") "," SAID("assistant", "") "," ASK "]");
    form.no_empty = true;
    check(&form, messages, NULL, "[" SAID("user", "q\\n\\nq") "]");
    check(&form, "[" CALLED("null") "]", NULL, "[" CALLED("null") "]");
    check(&form, "[" SAID("assistant", "") "]", NULL, "[" SAID("assistant", "") "]"); // never no message at all
    form.no_empty = false;
    form.typed = BIT(ASSISTANT);
    check(&form, messages, NULL,
          "[" ASK ",{\"role\":\"assistant\",\"content\":[]},{\"role\":\"assistant\",\"content\":[]}," ASK "]");
}

// Turns that the client did not have are empty.
static void test_fills(void **state)
{
    const struct conversation_form form = {.has_calls = true,
                                           .has_system = true,
                                           .needs_user = true,
                                           .fills_start = true,
                                           .fills_gap = true,
                                           .reasoning_key = "reasoning_content"};

    check(&form, "[" SAID("system", "s") "," SAID("assistant", "a") "," ASK "," CALLED("null") "," RESULT("r") "," ASK "]", NULL,
          "[" SAID("system", "s") "," SAID("user", "") "," SAID("assistant", "a") "," ASK "," CALLED("null") "," RESULT(
              "r") "," SAID("assistant", "") "," ASK "]");
    check(&form, "[" ASK "," CALLED("null") "," RESULT("r") "," SAID("assistant", "a") "," ASK "]", NULL,
          "[" ASK "," CALLED("null") "," RESULT("r") "," SAID("assistant", "a") "," ASK "]");
    check(&form, "[" SAID("system", "s") "," SAID("system", "t") "]", NULL, "[" SAID("user", "s\\n\\nt") "]");
    check(&form, "[" SAID("system", "") "]", NULL, "[" SAID("user", "") "]"); // never no message at all
}

#define ID_CALL(id, name) "{" id "\"function\":{\"name\":\"" name "\",\"arguments\":{}}}"
#define ID(id) "\"id\":\"" id "\","
#define ID_CALLS(calls) "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[" calls "]}"
#define ID_RESULT(text, more) "{\"role\":\"tool\",\"content\":\"" text "\"" more "}"
#define OF(id) ",\"tool_call_id\":\"" id "\""

// The id of call `call` of message `message`, or of a result.
static const char *id_at(const json_t *messages, size_t message, size_t call)
{
    const json_t *at = json_array_get(messages, message), *calls = json_object_get(at, "tool_calls");

    return json_string_value(calls ? json_object_get(json_array_get(calls, call), "id") : json_object_get(at, "tool_call_id"));
}

static json_t *matched(const struct call_form *form, const char *text)
{
    json_t *messages = json_loads(text, 0, NULL);

    assert_non_null(messages);
    assert_true(conversation_match_calls(form, messages));
    return messages;
}

static void test_ids(void **state)
{
    static const char foreign[] =
        "[" ASK
        "," ID_CALLS(ID_CALL(ID("call_abc"), "f") "," ID_CALL(ID("toolu_1"), "g")) "," ID_RESULT("1", OF("toolu_1")) "," ID_RESULT("2", OF("call_abc")) "," ID_CALLS(
            ID_CALL(ID("call_abc"), "f") "," ID_CALL(
                ID("abcDEF123"),
                "g")) "," ID_RESULT("3", OF("call_abc")) "," ID_RESULT("4", OF("abcDEF123")) "," ID_RESULT("5", OF("nobody")) "]";
    static const char nameless[] = "[" ASK "," ID_CALLS(ID_CALL("", "f") "," ID_CALL("", "g") "," ID_CALL("", "f")) "," ID_RESULT(
        "1", ",\"name\":\"g\"") "," ID_RESULT("2", "") "," ID_RESULT("3", "") "]";
    struct call_form form = {.short_ids = true};
    json_t *messages = matched(&form, foreign), *again = matched(&form, foreign);

    assert_true(json_equal(messages, again));
    for (size_t i = 1; i < 8; i++)
        for (size_t c = 0; c < 2; c++)
            if (id_at(messages, i, c))
                assert_int_equal(strspn(id_at(messages, i, c), "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"),
                                 9);
    assert_string_equal(id_at(messages, 1, 0), id_at(messages, 3, 0));
    assert_string_equal(id_at(messages, 1, 1), id_at(messages, 2, 0));
    assert_string_not_equal(id_at(messages, 1, 0), id_at(messages, 1, 1));
    assert_string_not_equal(id_at(messages, 1, 0), id_at(messages, 4, 0)); // a later call with the same id
    assert_string_equal(id_at(messages, 4, 0), id_at(messages, 5, 0));
    assert_string_equal(id_at(messages, 4, 1), "abcDEF123");
    assert_string_equal(id_at(messages, 6, 0), "abcDEF123");
    json_decref(again);

    // Ids do not change with what follows.
    json_t *longer = json_loads(foreign, 0, NULL);
    while (json_array_size(longer) > 4)
        json_array_remove(longer, json_array_size(longer) - 1);
    assert_true(conversation_match_calls(&form, longer));
    assert_string_equal(id_at(longer, 1, 0), id_at(messages, 1, 0));
    json_decref(longer);
    json_decref(messages);

    for (int needs = 0; needs < 2; needs++) { // results without an id are those of the calls in turn, or by their name
        form = (struct call_form){.short_ids = !needs, .needs_ids = needs};
        messages = matched(&form, nameless);
        assert_string_equal(id_at(messages, 2, 0), id_at(messages, 1, 1));
        assert_string_equal(id_at(messages, 3, 0), id_at(messages, 1, 0));
        assert_string_equal(id_at(messages, 4, 0), id_at(messages, 1, 2));
        assert_string_equal(json_string_value(json_object_get(json_array_get(messages, 3), "name")), "f");
        json_decref(messages);
    }
    // Calls of one message with the same id: their results are in order, and a further one is the last call's.
    static const char same[] = "[" ASK "," ID_CALLS(ID_CALL(ID("c"), "e")) "," ID_CALLS(ID_CALL(ID("c"), "f") "," ID_CALL(
        ID("c"), "g")) "," ID_RESULT("1", OF("c")) "," ID_RESULT("2", OF("c")) "," ID_RESULT("3", OF("c")) "]";
    form = (struct call_form){.short_ids = true};
    messages = matched(&form, same);
    for (size_t i = 3; i < 6; i++) {
        assert_string_equal(id_at(messages, i, 0), id_at(messages, 2, i > 3));
        assert_string_equal(json_string_value(json_object_get(json_array_get(messages, i), "name")), i > 3 ? "g" : "f");
    }
    json_decref(messages);

    form = (struct call_form){0}; // a template that takes any: what the client sent
    messages = matched(&form, foreign);
    assert_string_equal(id_at(messages, 1, 0), "call_abc");
    json_decref(messages);
    messages = matched(&form, nameless);
    assert_null(id_at(messages, 1, 0));
    json_decref(messages);
}

// An agent that gives each of very many calls the same id. To look for a new one from the same start each time would take minutes.
static void test_same_ids(void **state)
{
    enum { CALLS = 60000 };
    const struct call_form form = {.short_ids = true};
    json_t *messages = json_array(), *seen = json_object();

    for (size_t i = 0; i < CALLS; i++) {
        json_array_append_new(messages, json_loads(ID_CALLS(ID_CALL(ID("call_1"), "f")), 0, NULL));
        json_array_append_new(messages, json_loads(ID_RESULT("r", OF("call_1")), 0, NULL));
    }
    assert_true(conversation_match_calls(&form, messages));
    for (size_t i = 0; i < CALLS; i++) {
        assert_string_equal(id_at(messages, 2 * i, 0), id_at(messages, 2 * i + 1, 0));
        json_object_set_new(seen, id_at(messages, 2 * i, 0), json_true());
    }
    assert_int_equal(json_object_size(seen), CALLS);
    json_decref(seen);
    json_decref(messages);
}

// The calls of messages are matched, and become these.
static void assert_matched(const struct call_form *form, const char *text, const char *expected_text)
{
    json_t *messages = matched(form, text), *expected = json_loads(expected_text, 0, NULL);

    if (!json_equal(messages, expected))
        fail_msg("%s", json_dumps(messages, 0));
    json_decref(messages);
    json_decref(expected);
}

static void test_one_call(void **state)
{
    const struct call_form form = {.one_call = true};
    assert_matched(&form,
                   "[" ASK "," ID_CALLS(ID_CALL(ID("1"), "f") "," ID_CALL(ID("2"), "g")) "," ID_RESULT(
                       "of 2", OF("2")) "," ID_RESULT("of 1", OF("1")) "," ID_RESULT("of 3", OF("3")) "," ASK "]",
                   "[" ASK
                   "," ID_CALLS(ID_CALL(ID("1"), "f")) "," ID_RESULT("of 1", OF("1") ",\"name\":\"f\"") "," ID_CALLS(ID_CALL(
                       ID("2"), "g")) "," ID_RESULT("of 2", OF("2") ",\"name\":\"g\"") "," ID_RESULT("of 3", OF("3")) "," ASK "]");

    // A content beside a call goes before it.
    const struct call_form apart = {.content_apart = true};
    assert_matched(&apart, "[" ASK "," CALLED("\"c\"") "," CALLED("null") "," CALLED("\"\"") "]",
                   "[" ASK "," SAID("assistant", "c") "," CALLED("null") "," CALLED("null") "," CALLED("\"\"") "]");
}

static void test_strays(void **state)
{
    const struct call_form form = {.no_strays = true};
    assert_matched(&form,
                   "[" ASK "," ID_RESULT("a", OF("1")) "," ID_CALLS(ID_CALL(ID("1"), "f")) "," ID_RESULT(
                       "b", OF("1")) "," ID_RESULT("c", OF("2") ",\"name\":\"g\"") "]",
                   "[" ASK "," SAID("user", "A function returned:\\na") "," ID_CALLS(ID_CALL(ID("1"), "f")) "," ID_RESULT(
                       "b", OF("1") ",\"name\":\"f\"") "," SAID("user", "The function g returned:\\nc") "]");
}

static size_t allocated_bytes;

static void *allocate(size_t bytes)
{
    allocated_bytes += bytes;
    return malloc(bytes);
}

// However many results are one message, each is copied once, not with every one that follows.
static void test_many_results(void **state)
{
    enum { RESULTS = 300, RESULT_BYTES = 10000, SLACK = 4 };
    const struct conversation_form form = {.has_system = true, .reasoning_key = "reasoning_content"};
    json_t *list = json_array(), *variables = NULL, *given;
    static char text[RESULT_BYTES + 1];
    json_malloc_t usual_malloc;
    json_free_t usual_free;

    memset(text, 'x', RESULT_BYTES);
    for (size_t i = 0; i < RESULTS; i++)
        json_array_append_new(list, json_pack("{s:s,s:s}", "role", i % 2 ? "user" : "tool", "content", text));
    json_get_alloc_funcs(&usual_malloc, &usual_free);
    json_set_alloc_funcs(allocate, free);
    assert_true(conversation_shape(&form, list, NULL, &variables, &given));
    json_set_alloc_funcs(usual_malloc, usual_free);
    assert_int_equal(json_array_size(list), 1);
    assert_true(json_string_length(json_object_get(json_array_get(list, 0), "content")) > RESULTS * RESULT_BYTES);
    if (allocated_bytes > (size_t)SLACK * RESULTS * RESULT_BYTES)
        fail_msg("%zu bytes for %d results of %d", allocated_bytes, RESULTS, RESULT_BYTES);
    json_decref(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),        cmocka_unit_test(test_wants),    cmocka_unit_test(test_families),
        cmocka_unit_test(test_shapes),       cmocka_unit_test(test_plain),    cmocka_unit_test(test_contents),
        cmocka_unit_test(test_turns),        cmocka_unit_test(test_fills),    cmocka_unit_test(test_empty),
        cmocka_unit_test(test_strays),       cmocka_unit_test(test_ids),      cmocka_unit_test(test_one_call),
        cmocka_unit_test(test_many_results), cmocka_unit_test(test_same_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
