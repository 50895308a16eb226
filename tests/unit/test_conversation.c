// test_conversation.c: which form of a conversation a chat template takes, found out by trying; and how tools, calls and results are told to a
// template that knows none.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "common/base/checked.h"
#include "services/gateway/conversation.h"

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
    {EACH "{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ m.content }}{% endfor %}", NULL, "reasoning_content",
     false, false, false, false},
    {EACH "{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('no') }}{% endif %}{{ m.content }}{% endfor %}", NULL,
     "reasoning_content", false, false, false, false},
};

static void test_forms(void **state)
{
    (void)state;
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

// The families' own templates take calls, but for those that are written without.
static void test_families(void **state)
{
    json_t *root = json_load_file("tests/golden/chat_tools.json", 0, NULL);
    json_t *templates = json_object_get(root, "templates"), *source;
    const char *name;
    size_t count = 0;

    (void)state;
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

    (void)state;
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

    (void)state;
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

    (void)state;
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
        cmocka_unit_test(test_forms), cmocka_unit_test(test_families),     cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_plain), cmocka_unit_test(test_many_results),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
