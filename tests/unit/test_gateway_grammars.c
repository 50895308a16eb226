// test_gateway_grammars.c: forms of answers as grammars: the same form is compiled once, another one is another grammar, errors say where.
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/grammar/grammar.h"
#include "services/gateway/text/grammars.h"
#include "tests/cmocka.h"

static struct grammars *grammars;

static struct api_form text_form(enum api_form_kind kind, const char *text)
{
    return (struct api_form){.kind = kind, .text = text, .bytes = strlen(text)};
}

static struct packed_grammar *get(const struct api_form *form)
{
    struct packed_grammar *packed;
    struct grammar *grammar;
    struct error error;
    size_t count;

    if (grammars_get(grammars, &(struct wanted){.form = form}, &packed, &error))
        fail_msg("%s", error.text);
    const void *bytes = packed_grammar_bytes(packed, &count);
    assert_int_equal(grammar_unpack(bytes, count, &grammar, &error), STATUS_OK); // the s-part can use it
    grammar_free(grammar);
    return packed;
}

static void test_kept(void **state)
{
    const struct api_form regex = text_form(API_FORM_REGEX, "a+"), gbnf = text_form(API_FORM_GBNF, "root ::= \"a\""),
                          other = text_form(API_FORM_REGEX, "a*");
    struct packed_grammar *first = get(&regex), *again = get(&regex), *another = get(&other), *third = get(&gbnf);

    assert_ptr_equal(first, again);
    assert_ptr_not_equal(first, another);
    assert_ptr_not_equal(first, third);
    packed_grammar_let_go(again);
    packed_grammar_let_go(another);
    packed_grammar_let_go(third);
    for (int i = 0; i < 100; i++) { // more than are kept
        char text[32];
        snprintf(text, sizeof text, "x{%d}", i + 1);
        const struct api_form form = text_form(API_FORM_REGEX, text);
        packed_grammar_let_go(get(&form));
    }
    struct packed_grammar *anew = get(&regex);
    assert_ptr_not_equal(first, anew); // which is still held here
    packed_grammar_let_go(first);
    packed_grammar_let_go(anew);
}

// A schema's meaning depends on its options.
static void test_schemas(void **state)
{
    json_t *schema = json_loads("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}}", 0, NULL);
    struct api_form form = {.kind = API_FORM_SCHEMA, .json = schema}, strict = form, open = form, any = form, dense = form;
    const struct api_form object = {.kind = API_FORM_OBJECT};
    struct packed_grammar *all[6];

    strict.is_strict = true;
    open.open_objects = true;
    any.in_any_order = true;
    dense.space = API_SPACE_NONE;
    all[0] = get(&form), all[1] = get(&strict), all[2] = get(&open), all[3] = get(&dense), all[4] = get(&object),
    all[5] = get(&any);
    for (size_t i = 0; i < ARRAY_COUNT(all); i++)
        for (size_t k = 0; k < i; k++)
            assert_ptr_not_equal(all[i], all[k]);
    for (size_t i = 0; i < ARRAY_COUNT(all); i++)
        packed_grammar_let_go(all[i]);
    json_decref(schema);
}

static void test_refused(void **state)
{
    json_t *schema = json_loads("{\"properties\":{\"a\":{\"type\":5}}}", 0, NULL);
    const struct api_form forms[] = {text_form(API_FORM_REGEX, "ab(c"), text_form(API_FORM_GBNF, "root ::= other"),
                                     (struct api_form){.kind = API_FORM_SCHEMA, .json = schema}};
    static const char *const said[] = {"byte 2", "other", "#/properties/a/type"};

    for (size_t i = 0; i < ARRAY_COUNT(forms); i++) {
        struct packed_grammar *packed;
        struct error error;
        assert_int_not_equal(grammars_get(grammars, &(struct wanted){.form = &forms[i]}, &packed, &error), STATUS_OK);
        if (!strstr(error.text, said[i]))
            fail_msg("%s does not say %s", error.text, said[i]);
    }
    json_decref(schema);
}

static int open_grammars(void **state)
{
    grammars = grammars_open();
    return grammars ? 0 : -1;
}

static int close_grammars(void **state)
{
    grammars_close(grammars);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kept), cmocka_unit_test(test_schemas), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, open_grammars, close_grammars);
}
