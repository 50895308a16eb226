// filter.c: filters of texts and numbers, the tests that follow `is`, one function each, and their tables. arguments[i] is KIND_ABSENT if
// not given.
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "services/gateway/jinja/run.h"

static int64_t integer_or(const struct jinja_value *value, int64_t fallback)
{
    return value->kind == KIND_INTEGER || value->kind == KIND_BOOL ? jinja_as_integer(value) : fallback;
}

static struct jinja_value of_string(const struct jinja_string *string)
{
    return (struct jinja_value){.kind = KIND_STRING, .string = string};
}

// --- text ---------------------------------------------------------------------------------------------------------------

JINJA_BUILTIN(filter_trim)
{
    const struct jinja_string *string, *chars = NULL;
    return jinja_to_string(run, self, &string) && (arguments[0].kind <= KIND_NONE || jinja_to_string(run, &arguments[0], &chars)) &&
           jinja_strip(run, string, chars, 3, out);
}

// how: an enum jinja_case.
JINJA_BUILTIN(filter_case)
{
    const struct jinja_string *string;
    return jinja_to_string(run, self, &string) && jinja_change_case(run, string, (enum jinja_case)how, out);
}

JINJA_BUILTIN(filter_string)
{
    const struct jinja_string *string;
    if (!jinja_to_string(run, self, &string))
        return false;
    *out = of_string(string);
    return true;
}

JINJA_BUILTIN(filter_replace)
{
    const struct jinja_string *string, *old, *with;
    return jinja_to_string(run, self, &string) && jinja_to_string(run, &arguments[0], &old) &&
           jinja_to_string(run, &arguments[1], &with) && jinja_replace(run, string, old, with, integer_or(&arguments[2], -1), out);
}

JINJA_BUILTIN(filter_indent)
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

JINJA_BUILTIN(filter_tojson)
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

JINJA_BUILTIN(filter_join)
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

JINJA_BUILTIN(filter_int)
{
    int64_t whole;
    double number = 0;
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

JINJA_BUILTIN(filter_float)
{
    int64_t whole;
    double number;
    *out = arguments[0].kind == KIND_ABSENT ? jinja_float(0) : arguments[0];
    if (jinja_is_number(self))
        *out = jinja_float(jinja_as_double(self));
    else if (self->kind == KIND_STRING && to_number(self->string, false, &whole, &number))
        *out = jinja_float(number);
    return true;
}

JINJA_BUILTIN(filter_abs)
{
    if (!jinja_is_number(self) || (!jinja_is_float(self) && jinja_as_integer(self) == INT64_MIN))
        return jinja_fail(run, "cannot take 'abs' of %s", jinja_kind_name(self));
    *out = jinja_is_float(self) ? jinja_float(fabs(jinja_as_double(self))) : jinja_integer(llabs(jinja_as_integer(self)));
    return true;
}

// Rounds as Python does: to the nearest, ties to even.
JINJA_BUILTIN(filter_round)
{
    const int64_t precision = integer_or(&arguments[0], 0);
    const struct jinja_string *method = arguments[1].kind == KIND_STRING ? arguments[1].string : NULL;
    char text[420];
    if (!jinja_is_number(self))
        return jinja_fail(run, "cannot take 'round' of %s", jinja_kind_name(self));
    if (precision < 0 || precision > 30)
        return jinja_fail(run, "'round' to %lld digits is not supported", (long long)precision);
    const double value = jinja_as_double(self), scale = pow(10, (double)precision);
    if (!method || jinja_string_is(method, "common")) {
        *out = *self;
        snprintf(text, sizeof text, "%.*f", (int)precision, value);
        if (self->kind == KIND_FLOAT)
            *out = jinja_float(strtod(text, NULL));
        else if (self->kind != KIND_WRITTEN)
            *out = jinja_integer(jinja_as_integer(self));
        return true;
    }
    if (!jinja_string_is(method, "ceil") && !jinja_string_is(method, "floor"))
        return jinja_fail(run, "'round' knows the methods common, ceil and floor");
    *out = jinja_float((jinja_string_is(method, "ceil") ? ceil : floor)(value * scale) / scale);
    return true;
}

// --- others -------------------------------------------------------------------------------------------------------------

JINJA_BUILTIN(filter_default)
{
    const bool use = self->kind == KIND_UNDEFINED || (jinja_truth(&arguments[1]) && !jinja_truth(self));
    *out = !use ? *self : arguments[0];
    if (use && arguments[0].kind == KIND_ABSENT)
        return jinja_string_value(run, "", 0, false, out);
    return true;
}

JINJA_BUILTIN(filter_format)
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
JINJA_BUILTIN(filter_attr)
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

JINJA_BUILTIN(filter_escape)
{
    static const char *const escapes[][2] = {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&#34;"}, {"'", "&#39;"}};
    const struct jinja_string *string;
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

JINJA_BUILTIN(filter_truncate)
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

JINJA_BUILTIN(filter_center)
{
    const struct jinja_string *string;
    return jinja_to_string(run, self, &string) && jinja_pad(run, string, integer_or(&arguments[0], 80), NULL, PAD_BOTH, out);
}

JINJA_BUILTIN(filter_wordcount)
{
    const struct jinja_string *string;
    int64_t count = 0;
    bool inside = false;
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
    {.name = "capitalize", .how = CASE_CAPITAL, .call = filter_case},
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
    {.name = "lower", .how = CASE_LOWER, .call = filter_case},
    {.name = "replace", .params = {"old", "new", "count"}, .required = 2, .call = filter_replace},
    {.name = "round", .params = {"precision", "method"}, .call = filter_round},
    {.name = "safe", .call = filter_string},
    {.name = "string", .call = filter_string},
    {.name = "title", .how = CASE_TITLE_FILTER, .call = filter_case},
    {.name = "tojson", .params = {"indent", "ensure_ascii", "separators", "sort_keys"}, .call = filter_tojson},
    {.name = "trim", .params = {"chars"}, .call = filter_trim},
    {.name = "truncate", .params = {"length", "killwords", "end", "leeway"}, .call = filter_truncate},
    {.name = "upper", .how = CASE_UPPER, .call = filter_case},
    {.name = "wordcount", .call = filter_wordcount},
    {.name = NULL},
};

// --- tests --------------------------------------------------------------------------------------------------------------

// how: the kinds of values that pass, a bit each.
JINJA_BUILTIN(test_kind)
{
    *out = jinja_bool(how >> self->kind & 1);
    return true;
}

#define OF(kind) (1 << KIND_##kind)
enum {
    OF_NUMBERS = OF(BOOL) | OF(INTEGER) | OF(FLOAT) | OF(WRITTEN),
    OF_CONTAINERS = OF(STRING) | OF(LIST) | OF(TUPLE) | OF(DICT) | OF(UNDEFINED),
};

// how: which of the two booleans.
JINJA_BUILTIN(test_boolean)
{
    *out = jinja_bool(self->kind == KIND_BOOL && self->boolean == how);
    return true;
}

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

// how: what is left of a division by 2.
JINJA_BUILTIN(test_parity) { return divisible(run, self, 2, how, out); }

JINJA_BUILTIN(test_divisibleby)
{
    if (arguments[0].kind != KIND_INTEGER)
        return jinja_fail(run, "'divisibleby' needs an integer, not %s", jinja_kind_name(&arguments[0]));
    return divisible(run, self, arguments[0].integer, 0, out);
}

// how: whether the values are to be equal.
JINJA_BUILTIN(test_equal)
{
    bool equal;
    if (!jinja_equal(run, self, &arguments[0], &equal))
        return false;
    *out = jinja_bool(equal == how);
    return true;
}

JINJA_BUILTIN(test_in)
{
    bool found;
    if (!jinja_contains(run, &arguments[0], self, &found))
        return false;
    *out = jinja_bool(found);
    return true;
}

// how: the orders that pass, a bit each.
enum { LESS = 1, EQUAL = 2, GREATER = 4 };

JINJA_BUILTIN(test_order)
{
    int order;
    if (!jinja_order(run, self, &arguments[0], &order))
        return false;
    *out = jinja_bool(how & (order < 0 ? LESS : order > 0 ? GREATER : EQUAL));
    return true;
}

// how: an enum jinja_case.
JINJA_BUILTIN(test_case)
{
    const struct jinja_string *string;
    return jinja_to_string(run, self, &string) && jinja_has_case(run, string, (enum jinja_case)how, out);
}

JINJA_BUILTIN(test_sameas)
{
    bool equal;
    if (!jinja_equal(run, self, &arguments[0], &equal))
        return false;
    *out = jinja_bool(self->kind == arguments[0].kind && equal);
    return true;
}

// how: whether a filter, rather than a test, of this name is looked for.
JINJA_BUILTIN(test_known)
{
    const struct jinja_builtins *all = run->source->builtins;
    const struct jinja_string *name;
    if (!jinja_to_string(run, self, &name))
        return false;
    *out = jinja_bool(how ? jinja_find_filter(all, name->bytes, name->length)
                          : jinja_find_builtin(all->tests, name->bytes, name->length));
    return true;
}

#define ONE .params = {"other"}, .required = 1
const struct jinja_builtin jinja_tests[] = {
    {.name = "boolean", .how = OF(BOOL), .call = test_kind},
    {.name = "callable", .how = OF(MACRO) | OF(FUNCTION) | OF(UNDEFINED), .call = test_kind},
    {.name = "defined", .how = ~OF(UNDEFINED), .call = test_kind},
    {.name = "divisibleby", ONE, .call = test_divisibleby},
    {.name = "eq", ONE, .how = true, .call = test_equal},
    {.name = "equalto", ONE, .how = true, .call = test_equal},
    {.name = "even", .how = 0, .call = test_parity},
    {.name = "false", .how = false, .call = test_boolean},
    {.name = "filter", .how = true, .call = test_known},
    {.name = "float", .how = OF(FLOAT), .call = test_kind},
    {.name = "ge", ONE, .how = GREATER | EQUAL, .call = test_order},
    {.name = "greaterthan", ONE, .how = GREATER, .call = test_order},
    {.name = "gt", ONE, .how = GREATER, .call = test_order},
    {.name = "in", ONE, .call = test_in},
    {.name = "integer", .how = OF(INTEGER), .call = test_kind},
    {.name = "iterable", .how = OF_CONTAINERS | OF(LAZY) | OF(VIEW) | OF(LOOP), .call = test_kind},
    {.name = "le", ONE, .how = LESS | EQUAL, .call = test_order},
    {.name = "lessthan", ONE, .how = LESS, .call = test_order},
    {.name = "lower", .how = CASE_LOWER, .call = test_case},
    {.name = "lt", ONE, .how = LESS, .call = test_order},
    {.name = "mapping", .how = OF(DICT), .call = test_kind},
    {.name = "ne", ONE, .how = false, .call = test_equal},
    {.name = "none", .how = OF(NONE), .call = test_kind},
    {.name = "number", .how = OF_NUMBERS, .call = test_kind},
    {.name = "odd", .how = 1, .call = test_parity},
    {.name = "sameas", ONE, .call = test_sameas},
    {.name = "sequence", .how = OF_CONTAINERS | OF(VIEW), .call = test_kind},
    {.name = "string", .how = OF(STRING), .call = test_kind},
    {.name = "test", .how = false, .call = test_known},
    {.name = "true", .how = true, .call = test_boolean},
    {.name = "undefined", .how = OF(UNDEFINED), .call = test_kind},
    {.name = "upper", .how = CASE_UPPER, .call = test_case},
    {.name = "!=", ONE, .how = false, .call = test_equal},
    {.name = "<", ONE, .how = LESS, .call = test_order},
    {.name = "<=", ONE, .how = LESS | EQUAL, .call = test_order},
    {.name = "==", ONE, .how = true, .call = test_equal},
    {.name = ">", ONE, .how = GREATER, .call = test_order},
    {.name = ">=", ONE, .how = GREATER | EQUAL, .call = test_order},
    {.name = NULL},
};
