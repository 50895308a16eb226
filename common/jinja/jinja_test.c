// jinja_test.c: the tests that follow `is`, and their table.
#include "common/jinja/jinja_char.h"
#include "common/jinja/jinja_run.h"

#include "common/base/checked.h"

#define TEST(name)                                                                                                      \
    static bool test_##name(struct jinja_run *run, const struct jinja_value *self, const struct jinja_value *arguments, \
                            struct jinja_value *out)
// A test that looks at the value alone.
#define TEST_OF_KIND(name, condition) \
    TEST(name)                        \
    {                                 \
        (void)run;                    \
        (void)arguments;              \
        *out = jinja_bool(condition); \
        return true;                  \
    }

static bool is_container(const struct jinja_value *value)
{
    return value->kind == KIND_STRING || value->kind == KIND_LIST || value->kind == KIND_TUPLE || value->kind == KIND_DICT ||
           value->kind == KIND_UNDEFINED;
}

TEST_OF_KIND(defined, self->kind != KIND_UNDEFINED)
TEST_OF_KIND(undefined, self->kind == KIND_UNDEFINED)
TEST_OF_KIND(none, self->kind == KIND_NONE)
TEST_OF_KIND(string, self->kind == KIND_STRING)
TEST_OF_KIND(mapping, self->kind == KIND_DICT)
TEST_OF_KIND(sequence, is_container(self) || self->kind == KIND_VIEW)
TEST_OF_KIND(iterable, is_container(self) || jinja_is_sequence(self) || self->kind == KIND_LOOP)
TEST_OF_KIND(number, jinja_is_number(self))
TEST_OF_KIND(integer, self->kind == KIND_INTEGER)
TEST_OF_KIND(float, self->kind == KIND_FLOAT)
TEST_OF_KIND(boolean, self->kind == KIND_BOOL)
TEST_OF_KIND(yes, self->kind == KIND_BOOL && self->boolean)
TEST_OF_KIND(no, self->kind == KIND_BOOL && !self->boolean)
TEST_OF_KIND(callable, self->kind == KIND_MACRO || self->kind == KIND_FUNCTION || self->kind == KIND_UNDEFINED)

static bool divisible(struct jinja_run *run, const struct jinja_value *self, int64_t by, int64_t rest, struct jinja_value *out)
{
    if (self->kind != KIND_INTEGER && self->kind != KIND_BOOL)
        return jinja_fail(run, "a test of divisibility needs an integer, not %s", jinja_kind_name(self));
    if (!by)
        return jinja_fail(run, "division by zero");
    const int64_t left = by == -1 ? 0 : jinja_as_integer(self) % by;
    *out = jinja_bool((left < 0 ? -left : left) == rest);
    return true;
}

TEST(even)
{
    (void)arguments;
    return divisible(run, self, 2, 0, out);
}
TEST(odd)
{
    (void)arguments;
    return divisible(run, self, 2, 1, out);
}

TEST(divisibleby)
{
    if (arguments[0].kind != KIND_INTEGER)
        return jinja_fail(run, "'divisibleby' needs an integer, not %s", jinja_kind_name(&arguments[0]));
    return divisible(run, self, arguments[0].integer, 0, out);
}

TEST(eq)
{
    bool equal;
    if (!jinja_equal(run, self, &arguments[0], &equal))
        return false;
    *out = jinja_bool(equal);
    return true;
}

TEST(ne)
{
    bool equal;
    if (!jinja_equal(run, self, &arguments[0], &equal))
        return false;
    *out = jinja_bool(!equal);
    return true;
}

TEST(in)
{
    bool found;
    if (!jinja_contains(run, &arguments[0], self, &found))
        return false;
    *out = jinja_bool(found);
    return true;
}

#define TEST_OF_ORDER(name, condition)                      \
    TEST(name)                                              \
    {                                                       \
        int order;                                          \
        if (!jinja_order(run, self, &arguments[0], &order)) \
            return false;                                   \
        *out = jinja_bool(condition);                       \
        return true;                                        \
    }
TEST_OF_ORDER(lt, order < 0)
TEST_OF_ORDER(le, order <= 0)
TEST_OF_ORDER(gt, order > 0)
TEST_OF_ORDER(ge, order >= 0)

static bool same_case(struct jinja_run *run, const struct jinja_value *self, enum jinja_case to, struct jinja_value *out)
{
    const struct jinja_string *string;
    return jinja_to_string(run, self, &string) && jinja_has_case(run, string, to, out);
}

TEST(lower)
{
    (void)arguments;
    return same_case(run, self, CASE_LOWER, out);
}
TEST(upper)
{
    (void)arguments;
    return same_case(run, self, CASE_UPPER, out);
}

TEST(sameas)
{
    bool equal;
    if (!jinja_equal(run, self, &arguments[0], &equal))
        return false;
    *out = jinja_bool(self->kind == arguments[0].kind && equal);
    return true;
}

TEST(filter)
{
    const struct jinja_string *name;
    (void)arguments;
    if (!jinja_to_string(run, self, &name))
        return false;
    *out = jinja_bool(jinja_find_filter(run->source->builtins, name->bytes, name->length));
    return true;
}

TEST(test)
{
    const struct jinja_string *name;
    (void)arguments;
    if (!jinja_to_string(run, self, &name))
        return false;
    *out = jinja_bool(jinja_find_builtin(run->source->builtins->tests, name->bytes, name->length));
    return true;
}

#define ONE .params = {"other"}, .required = 1
const struct jinja_builtin jinja_tests[] = {
    {.name = "boolean", .call = test_boolean},
    {.name = "callable", .call = test_callable},
    {.name = "defined", .call = test_defined},
    {.name = "divisibleby", ONE, .call = test_divisibleby},
    {.name = "eq", ONE, .call = test_eq},
    {.name = "equalto", ONE, .call = test_eq},
    {.name = "even", .call = test_even},
    {.name = "false", .call = test_no},
    {.name = "filter", .call = test_filter},
    {.name = "float", .call = test_float},
    {.name = "ge", ONE, .call = test_ge},
    {.name = "greaterthan", ONE, .call = test_gt},
    {.name = "gt", ONE, .call = test_gt},
    {.name = "in", ONE, .call = test_in},
    {.name = "integer", .call = test_integer},
    {.name = "iterable", .call = test_iterable},
    {.name = "le", ONE, .call = test_le},
    {.name = "lessthan", ONE, .call = test_lt},
    {.name = "lower", .call = test_lower},
    {.name = "lt", ONE, .call = test_lt},
    {.name = "mapping", .call = test_mapping},
    {.name = "ne", ONE, .call = test_ne},
    {.name = "none", .call = test_none},
    {.name = "number", .call = test_number},
    {.name = "odd", .call = test_odd},
    {.name = "sameas", ONE, .call = test_sameas},
    {.name = "sequence", .call = test_sequence},
    {.name = "string", .call = test_string},
    {.name = "test", .call = test_test},
    {.name = "true", .call = test_yes},
    {.name = "undefined", .call = test_undefined},
    {.name = "upper", .call = test_upper},
    {.name = "!=", ONE, .call = test_ne},
    {.name = "<", ONE, .call = test_lt},
    {.name = "<=", ONE, .call = test_le},
    {.name = "==", ONE, .call = test_eq},
    {.name = ">", ONE, .call = test_gt},
    {.name = ">=", ONE, .call = test_ge},
    {.name = NULL},
};
