// filter.c: filters of texts and numbers, the tests that follow `is`, one function each, and their tables. arguments[i] is KIND_ABSENT if
// not given.
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "services/gateway/jinja/run.h"

#define FILTER(name)                                                                                                      \
    static bool filter_##name(struct jinja_run *run, const struct jinja_value *self, const struct jinja_value *arguments, \
                              struct jinja_value *out)

static int64_t integer_or(const struct jinja_value *value, int64_t fallback)
{
    return value->kind == KIND_INTEGER || value->kind == KIND_BOOL ? jinja_as_integer(value) : fallback;
}

static struct jinja_value of_string(const struct jinja_string *string)
{
    return (struct jinja_value){.kind = KIND_STRING, .string = string};
}

// --- text ---------------------------------------------------------------------------------------------------------------

FILTER(trim)
{
    const struct jinja_string *string, *chars = NULL;
    return jinja_to_string(run, self, &string) && (arguments[0].kind <= KIND_NONE || jinja_to_string(run, &arguments[0], &chars)) &&
           jinja_strip(run, string, chars, 3, out);
}

static bool change_case(struct jinja_run *run, const struct jinja_value *self, enum jinja_case to, struct jinja_value *out)
{
    const struct jinja_string *string;
    return jinja_to_string(run, self, &string) && jinja_change_case(run, string, to, out);
}

FILTER(upper)
{
    (void)arguments;
    return change_case(run, self, CASE_UPPER, out);
}
FILTER(lower)
{
    (void)arguments;
    return change_case(run, self, CASE_LOWER, out);
}
FILTER(capitalize)
{
    (void)arguments;
    return change_case(run, self, CASE_CAPITAL, out);
}
FILTER(title)
{
    (void)arguments;
    return change_case(run, self, CASE_TITLE_FILTER, out);
}

FILTER(string)
{
    const struct jinja_string *string;
    (void)arguments;
    if (!jinja_to_string(run, self, &string))
        return false;
    *out = of_string(string);
    return true;
}

FILTER(safe) { return filter_string(run, self, arguments, out); }

FILTER(replace)
{
    const struct jinja_string *string, *old, *with;
    return jinja_to_string(run, self, &string) && jinja_to_string(run, &arguments[0], &old) &&
           jinja_to_string(run, &arguments[1], &with) && jinja_replace(run, string, old, with, integer_or(&arguments[2], -1), out);
}

FILTER(indent)
{
    const struct jinja_string *string, *by;
    struct jinja_value spaces;
    const struct jinja_string space = {.bytes = " ", .length = 1};
    struct jinja_builder builder = {0};
    if (arguments[0].kind == KIND_STRING)
        spaces = arguments[0];
    else if (!jinja_repeat(run, &space, integer_or(&arguments[0], 4), &spaces))
        return false;
    by = spaces.string;
    if (!jinja_to_string(run, self, &string) || (jinja_truth(&arguments[1]) && !jinja_append(run, &builder, by)))
        return false;
    for (size_t at = 0, end; at < string->length; at = end) {
        const char *newline = memchr(string->bytes + at, '\n', string->length - at);
        end = newline ? (size_t)(newline - string->bytes) + 1 : string->length;
        struct jinja_value line;
        const bool blank = string->bytes[at] == '\n' && !jinja_truth(&arguments[2]); // blank lines stay empty
        if ((at && !blank && !jinja_append(run, &builder, by)) || !jinja_substring(run, string, at, end, &line) ||
            !jinja_append(run, &builder, line.string))
            return false;
    }
    return jinja_build(run, &builder, out);
}

FILTER(tojson)
{
    struct jinja_builder builder = {0};
    const int64_t indent = integer_or(&arguments[0], -1);
    struct jinja_json_format format = {.indent = (int)MAX(indent, -1),
                                       .ascii = arguments[1].kind != KIND_ABSENT && jinja_truth(&arguments[1]),
                                       .sort = arguments[3].kind != KIND_ABSENT && jinja_truth(&arguments[3])};
    if (indent > 16)
        return jinja_fail(run, "an indent of more than 16");
    if (arguments[2].kind > KIND_NONE) { // (between items, between a key and its value)
        const struct jinja_list *pair;
        if (!jinja_iterate(run, &arguments[2], &pair))
            return false;
        if (pair->count != 2 || pair->items[0].kind != KIND_STRING || pair->items[1].kind != KIND_STRING)
            return jinja_fail(run, "tojson's separators must be two strings");
        format.between = pair->items[0].string;
        format.after_key = pair->items[1].string;
    }
    return jinja_append_json(run, &builder, self, &format) && jinja_build(run, &builder, out);
}

FILTER(join)
{
    const struct jinja_list *list;
    const struct jinja_string *separator = NULL;
    struct jinja_builder builder = {0};
    if (!jinja_iterate(run, self, &list) || (arguments[0].kind != KIND_ABSENT && !jinja_to_string(run, &arguments[0], &separator)))
        return false;
    for (size_t i = 0; i < list->count; i++) {
        struct jinja_value item = list->items[i];
        if ((arguments[1].kind > KIND_NONE && !jinja_get_path(run, &item, &arguments[1], &item)) ||
            (i && separator && !jinja_append(run, &builder, separator)) || !jinja_append_value(run, &builder, &item))
            return false;
    }
    return jinja_build(run, &builder, out);
}

// --- numbers ------------------------------------------------------------------------------------------------------------

// Reads a whole string as a number, by strtoll or strtod. Blanks around it are ignored.
static bool to_number(const struct jinja_string *string, bool integer, int64_t *whole, double *number)
{
    char text[64], *end;
    size_t n = 0;
    for (size_t i = 0; i < string->length && n < sizeof text - 1; i++)
        if (string->bytes[i] != '_' || !n)
            text[n++] = string->bytes[i];
    text[n] = 0;
    while (n && jinja_is_space(text[n - 1]))
        text[--n] = 0;
    if (!n || n == sizeof text - 1 || strpbrk(text, "xXpP(")) // no C notations
        return false;
    errno = 0;
    if (integer)
        *whole = strtoll(text, &end, 10);
    else
        *number = strtod(text, &end);
    return end != text && !*end && (!integer || !errno);
}

FILTER(int)
{
    int64_t whole;
    double number = 0;
    (void)run;
    *out = arguments[0].kind == KIND_ABSENT ? jinja_integer(0) : arguments[0];
    if (self->kind == KIND_STRING) {
        if (to_number(self->string, true, &whole, &number)) {
            *out = jinja_integer(whole);
            return true;
        }
        if (!to_number(self->string, false, &whole, &number))
            return true;
    } else if (self->kind == KIND_WRITTEN) {
        *out = *self;
        return true;
    } else if (self->kind == KIND_FLOAT) {
        number = self->number;
    } else {
        if (jinja_is_number(self))
            *out = jinja_integer(jinja_as_integer(self));
        return true;
    }
    if (number > -9e18 && number < 9e18)
        *out = jinja_integer((int64_t)number);
    return true;
}

FILTER(float)
{
    int64_t whole;
    double number;
    (void)run;
    *out = arguments[0].kind == KIND_ABSENT ? jinja_float(0) : arguments[0];
    if (jinja_is_number(self))
        *out = jinja_float(jinja_as_double(self));
    else if (self->kind == KIND_STRING && to_number(self->string, false, &whole, &number))
        *out = jinja_float(number);
    return true;
}

FILTER(abs)
{
    (void)arguments;
    if (!jinja_is_number(self) || (!jinja_is_float(self) && jinja_as_integer(self) == INT64_MIN))
        return jinja_fail(run, "cannot take 'abs' of %s", jinja_kind_name(self));
    *out = jinja_is_float(self) ? jinja_float(fabs(jinja_as_double(self))) : jinja_integer(llabs(jinja_as_integer(self)));
    return true;
}

// Rounds as Python does: to the nearest, ties to even.
FILTER(round)
{
    const int64_t precision = integer_or(&arguments[0], 0);
    const struct jinja_string *how = arguments[1].kind == KIND_STRING ? arguments[1].string : NULL;
    char text[420];
    if (!jinja_is_number(self))
        return jinja_fail(run, "cannot take 'round' of %s", jinja_kind_name(self));
    if (precision < 0 || precision > 30)
        return jinja_fail(run, "'round' to %lld digits is not supported", (long long)precision);
    const double value = jinja_as_double(self), scale = pow(10, (double)precision);
    if (!how || jinja_string_is(how, "common")) {
        *out = *self;
        snprintf(text, sizeof text, "%.*f", (int)precision, value);
        if (self->kind == KIND_FLOAT)
            *out = jinja_float(strtod(text, NULL));
        else if (self->kind != KIND_WRITTEN)
            *out = jinja_integer(jinja_as_integer(self));
        return true;
    }
    if (!jinja_string_is(how, "ceil") && !jinja_string_is(how, "floor"))
        return jinja_fail(run, "'round' knows the methods common, ceil and floor");
    *out = jinja_float((jinja_string_is(how, "ceil") ? ceil : floor)(value * scale) / scale);
    return true;
}

// --- others -------------------------------------------------------------------------------------------------------------

FILTER(default)
{
    (void)run;
    const bool use = self->kind == KIND_UNDEFINED || (jinja_truth(&arguments[1]) && !jinja_truth(self));
    *out = !use ? *self : arguments[0];
    if (use && arguments[0].kind == KIND_ABSENT)
        return jinja_string_value(run, "", 0, false, out);
    return true;
}

FILTER(format)
{
    const struct jinja_string *string;
    const struct jinja_value named = arguments[1], values = jinja_listed(KIND_TUPLE, arguments[0].list);
    if (!jinja_to_string(run, self, &string))
        return false;
    if (named.dict->count && values.list->count)
        return jinja_fail(run, "'format' takes values, or named values, but not both");
    return jinja_format_percent(run, string, named.dict->count ? &named : &values, out);
}

// An attribute alone: never an item of a mapping.
FILTER(attr)
{
    const struct jinja_string *name;
    const struct jinja_builtin *method;
    if (!jinja_to_string(run, &arguments[0], &name))
        return false;
    if (self->kind != KIND_DICT)
        return jinja_get_attribute(run, self, name, false, out);
    method = jinja_find_method(run->source->builtins, KIND_DICT, name->bytes, name->length);
    *out = jinja_undefined();
    return !method || jinja_function_value(run, method, self, out);
}

FILTER(escape)
{
    static const char *const escapes[][2] = {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&#34;"}, {"'", "&#39;"}};
    const struct jinja_string *string;
    (void)arguments;
    if (!jinja_to_string(run, self, &string))
        return false;
    *out = of_string(string);
    for (size_t i = 0; i < ARRAY_COUNT(escapes); i++) {
        const struct jinja_string from = {.bytes = escapes[i][0], .length = 1},
                                  to = {.bytes = escapes[i][1], .length = strlen(escapes[i][1])};
        if (!jinja_replace(run, out->string, &from, &to, -1, out))
            return false;
    }
    return true;
}

FILTER(truncate)
{
    const struct jinja_string *string, *end = &(struct jinja_string){.bytes = "...", .length = 3};
    const int64_t length = integer_or(&arguments[0], 255), leeway = integer_or(&arguments[3], 5);
    const struct jinja_string space = {.bytes = " ", .length = 1};
    struct jinja_value kept, parts;
    if (!jinja_to_string(run, self, &string) || (arguments[2].kind > KIND_NONE && !jinja_to_string(run, &arguments[2], &end)))
        return false;
    const int64_t end_length = (int64_t)jinja_char_count(end);
    if (length < end_length || leeway < 0)
        return jinja_fail(run, "'truncate' to %lld characters, of which its end has %lld", (long long)length,
                          (long long)end_length);
    *out = of_string(string);
    if (!jinja_work(run, string->length / 16))
        return false;
    if ((int64_t)jinja_char_count(string) - length <= leeway)
        return true;
    if (!jinja_substring(run, string, 0, jinja_char_offset(string, (size_t)(length - end_length)), &kept))
        return false;
    if (!jinja_truth(&arguments[1])) { // whole words
        if (!jinja_split(run, kept.string, &space, 1, true, &parts))
            return false;
        kept = parts.list->items[0];
    }
    return jinja_concat(run, (struct jinja_value[]){kept, of_string(end)}, 2, out);
}

FILTER(center)
{
    const struct jinja_string *string;
    return jinja_to_string(run, self, &string) && jinja_pad(run, string, integer_or(&arguments[0], 80), NULL, PAD_BOTH, out);
}

FILTER(wordcount)
{
    const struct jinja_string *string;
    int64_t count = 0;
    bool inside = false;
    (void)arguments;
    if (!jinja_to_string(run, self, &string) || !jinja_work(run, string->length / 4))
        return false;
    for (size_t i = 0, bytes; i < string->length; i += bytes) {
        bytes = jinja_char_bytes(string->bytes + i, string->length - i);
        const bool word = jinja_is_word(jinja_char_code(string->bytes + i, string->length - i));
        count += word && !inside;
        inside = word;
    }
    *out = jinja_integer(count);
    return true;
}

const struct jinja_builtin jinja_filters[] = {
    {.name = "abs", .call = filter_abs},
    {.name = "attr", .params = {"name"}, .required = 1, .call = filter_attr},
    {.name = "capitalize", .call = filter_capitalize},
    {.name = "center", .params = {"width"}, .call = filter_center},
    {.name = "d", .params = {"default_value", "boolean"}, .call = filter_default},
    {.name = "default", .params = {"default_value", "boolean"}, .call = filter_default},
    {.name = "e", .call = filter_escape},
    {.name = "escape", .call = filter_escape},
    {.name = "float", .params = {"default"}, .call = filter_float},
    {.name = "forceescape", .call = filter_escape},
    {.name = "format", .variadic = true, .call = filter_format},
    {.name = "indent", .params = {"width", "first", "blank"}, .call = filter_indent},
    {.name = "int", .params = {"default"}, .call = filter_int},
    {.name = "join", .params = {"d", "attribute"}, .call = filter_join},
    {.name = "lower", .call = filter_lower},
    {.name = "replace", .params = {"old", "new", "count"}, .required = 2, .call = filter_replace},
    {.name = "round", .params = {"precision", "method"}, .call = filter_round},
    {.name = "safe", .call = filter_safe},
    {.name = "string", .call = filter_string},
    {.name = "title", .call = filter_title},
    {.name = "tojson", .params = {"indent", "ensure_ascii", "separators", "sort_keys"}, .call = filter_tojson},
    {.name = "trim", .params = {"chars"}, .call = filter_trim},
    {.name = "truncate", .params = {"length", "killwords", "end", "leeway"}, .call = filter_truncate},
    {.name = "upper", .call = filter_upper},
    {.name = "wordcount", .call = filter_wordcount},
    {.name = NULL},
};

// --- tests --------------------------------------------------------------------------------------------------------------

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
