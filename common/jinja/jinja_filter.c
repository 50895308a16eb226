// jinja_filter.c: the filters, one function each, and their table. arguments[i] is KIND_ABSENT if not given.
#include "common/jinja/jinja_char.h"
#include "common/jinja/jinja_run.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"

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

// A string as a number: strtoll or strtod over all of it, blanks apart.
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

// --- lists --------------------------------------------------------------------------------------------------------------

FILTER(length)
{
    (void)arguments;
    if (self->kind == KIND_STRING)
        *out = jinja_integer((int64_t)jinja_char_count(self->string));
    else if (self->kind == KIND_DICT)
        *out = jinja_integer((int64_t)self->dict->count);
    else if (jinja_is_sequence(self))
        *out = jinja_integer((int64_t)self->list->count);
    else if (self->kind == KIND_UNDEFINED)
        *out = jinja_integer(0);
    else
        return jinja_fail(run, "%s has no length", jinja_kind_name(self));
    return jinja_work(run, self->kind == KIND_STRING ? self->string->length / 16 : 0);
}

FILTER(default)
{
    (void)run;
    const bool use = self->kind == KIND_UNDEFINED || (jinja_truth(&arguments[1]) && !jinja_truth(self));
    *out = !use ? *self : arguments[0];
    if (use && arguments[0].kind == KIND_ABSENT)
        return jinja_string_value(run, "", 0, false, out);
    return true;
}

FILTER(first)
{
    const struct jinja_list *list;
    (void)arguments;
    if (!jinja_iterate(run, self, &list))
        return false;
    *out = list->count ? list->items[0] : jinja_undefined();
    return true;
}

FILTER(last)
{
    const struct jinja_list *list;
    (void)arguments;
    if (!jinja_iterate(run, self, &list))
        return false;
    *out = list->count ? list->items[list->count - 1] : jinja_undefined();
    return true;
}

// The least item (sign -1) or the greatest one (1); undefined of none. Strings by lower case unless case_sensitive.
static bool extreme(struct jinja_run *run, const struct jinja_value *self, const struct jinja_value *arguments, int sign,
                    struct jinja_value *out)
{
    const struct jinja_list *list;
    struct jinja_value best = jinja_undefined(), key = best;
    if (!jinja_iterate(run, self, &list))
        return false;
    *out = jinja_undefined();
    for (size_t i = 0; i < list->count; i++) {
        int order = sign;
        best = list->items[i];
        if (arguments[1].kind > KIND_NONE && !jinja_get_path(run, &best, &arguments[1], &best))
            return false;
        if (best.kind == KIND_STRING && !jinja_truth(&arguments[0]) && !jinja_change_case(run, best.string, CASE_LOWER, &best))
            return false;
        if (i && !jinja_order(run, &best, &key, &order))
            return false;
        if (order * sign > 0) {
            key = best;
            *out = list->items[i];
        }
    }
    return true;
}

FILTER(min) { return extreme(run, self, arguments, -1, out); }
FILTER(max) { return extreme(run, self, arguments, 1, out); }

FILTER(list)
{
    const struct jinja_list *list;
    (void)arguments;
    if (!jinja_iterate(run, self, &list))
        return false;
    *out = jinja_listed(KIND_LIST, list);
    return true;
}

FILTER(reverse)
{
    const struct jinja_list *list;
    struct jinja_builder builder = {0};
    (void)arguments;
    struct jinja_list *reversed = jinja_iterate(run, self, &list) ? jinja_list_new(run, list->count) : NULL;
    if (!reversed)
        return false;
    for (size_t i = 0; i < list->count; i++) {
        reversed->items[i] = list->items[list->count - 1 - i];
        if (self->kind == KIND_STRING && !jinja_append(run, &builder, reversed->items[i].string))
            return false;
    }
    if (self->kind == KIND_STRING)
        return jinja_build(run, &builder, out);
    *out = jinja_listed(KIND_LAZY, reversed);
    return true;
}

// A stable merge sort over (key, item) pairs: qsort() could not report an error.
struct pair {
    struct jinja_value key, item;
};

static bool merge_sort(struct jinja_run *run, struct pair *pairs, struct pair *spare, size_t count, bool reverse)
{
    if (count < 2)
        return true;
    const size_t half = count / 2;
    if (!merge_sort(run, pairs, spare, half, reverse) || !merge_sort(run, pairs + half, spare, count - half, reverse))
        return false;
    memcpy(spare, pairs, half * sizeof *pairs);
    for (size_t i = 0, j = half, to = 0; i < half; to++) {
        int order = 0;
        if (j < count && !jinja_order(run, &spare[i].key, &pairs[j].key, &order))
            return false;
        pairs[to] = j < count && (reverse ? order < 0 : order > 0) ? pairs[j++] : spare[i++];
    }
    return true;
}

// The items of self sorted: by attribute unless it is absent; strings by lower case unless case_sensitive.
static bool sorted(struct jinja_run *run, const struct jinja_list *list, const struct jinja_value *attribute, bool case_sensitive,
                   bool reverse, struct pair **out)
{
    struct pair *pairs = jinja_run_alloc(run, list->count, sizeof *pairs);
    struct pair *spare = pairs ? jinja_run_alloc(run, list->count, sizeof *spare) : NULL;
    if (!spare)
        return false;
    for (size_t i = 0; i < list->count; i++) {
        struct jinja_value key = list->items[i];
        if (attribute->kind > KIND_NONE && !jinja_get_path(run, &key, attribute, &key))
            return false;
        if (key.kind == KIND_STRING && !case_sensitive && !jinja_change_case(run, key.string, CASE_LOWER, &key))
            return false;
        pairs[i] = (struct pair){key, list->items[i]};
    }
    *out = pairs;
    return merge_sort(run, pairs, spare, list->count, reverse);
}

FILTER(sort)
{
    const struct jinja_list *list;
    struct pair *pairs;
    if (!jinja_iterate(run, self, &list) ||
        !sorted(run, list, &arguments[2], jinja_truth(&arguments[1]), jinja_truth(&arguments[0]), &pairs))
        return false;
    struct jinja_list *result = jinja_list_new(run, list->count);
    for (size_t i = 0; result && i < list->count; i++)
        result->items[i] = pairs[i].item;
    *out = jinja_listed(KIND_LIST, result);
    return result != NULL;
}

FILTER(unique)
{
    const struct jinja_list *list;
    struct jinja_list *result = jinja_iterate(run, self, &list) ? jinja_list_new(run, list->count) : NULL;
    struct jinja_list *keys = result ? jinja_list_new(run, list->count) : NULL;
    if (!keys)
        return false;
    keys->count = result->count = 0;
    const struct jinja_value seen = jinja_listed(KIND_LIST, keys);
    for (size_t i = 0; i < list->count; i++) {
        struct jinja_value key = list->items[i];
        bool found;
        if (arguments[1].kind > KIND_NONE && !jinja_get_path(run, &key, &arguments[1], &key))
            return false;
        if (key.kind == KIND_STRING && !jinja_truth(&arguments[0]) && !jinja_change_case(run, key.string, CASE_LOWER, &key))
            return false;
        if (!jinja_contains(run, &seen, &key, &found))
            return false;
        if (found)
            continue;
        keys->items[keys->count++] = key;
        result->items[result->count++] = list->items[i];
    }
    *out = jinja_listed(KIND_LAZY, result);
    return true;
}

// The pairs of a mapping, as tuples.
static bool items_of(struct jinja_run *run, const struct jinja_dict *dict, struct jinja_list **out)
{
    *out = jinja_work(run, dict->count) ? jinja_list_new(run, dict->count) : NULL;
    for (size_t i = 0; *out && i < dict->count; i++) {
        struct jinja_list *pair = jinja_list_new(run, 2);
        if (!pair)
            return false;
        pair->items[0] = dict->keys[i];
        pair->items[1] = dict->values[i];
        (*out)->items[i] = jinja_listed(KIND_TUPLE, pair);
    }
    return *out != NULL;
}

FILTER(items)
{
    static const struct jinja_dict empty;
    struct jinja_list *list;
    (void)arguments;
    if (self->kind != KIND_DICT && self->kind != KIND_UNDEFINED)
        return jinja_fail(run, "'items' needs a mapping, not %s", jinja_kind_name(self));
    if (!items_of(run, self->kind == KIND_DICT ? self->dict : &empty, &list))
        return false;
    *out = jinja_listed(KIND_LAZY, list);
    return true;
}

FILTER(dictsort)
{
    struct jinja_list *list;
    struct pair *pairs;
    if (self->kind != KIND_DICT)
        return jinja_fail(run, "'dictsort' needs a mapping, not %s", jinja_kind_name(self));
    const bool by_value = arguments[1].kind == KIND_STRING && jinja_string_is(arguments[1].string, "value");
    const struct jinja_value position = jinja_integer(by_value);
    if (!items_of(run, self->dict, &list) ||
        !sorted(run, list, &position, jinja_truth(&arguments[0]), jinja_truth(&arguments[2]), &pairs))
        return false;
    for (size_t i = 0; i < list->count; i++)
        list->items[i] = pairs[i].item;
    *out = jinja_listed(KIND_LIST, list);
    return true;
}

const struct jinja_builtin jinja_filters[] = {
    {.name = "abs", .call = filter_abs},
    {.name = "capitalize", .call = filter_capitalize},
    {.name = "count", .call = filter_length},
    {.name = "d", .params = {"default_value", "boolean"}, .call = filter_default},
    {.name = "default", .params = {"default_value", "boolean"}, .call = filter_default},
    {.name = "dictsort", .params = {"case_sensitive", "by", "reverse"}, .call = filter_dictsort},
    {.name = "first", .call = filter_first},
    {.name = "float", .params = {"default"}, .call = filter_float},
    {.name = "indent", .params = {"width", "first", "blank"}, .call = filter_indent},
    {.name = "int", .params = {"default"}, .call = filter_int},
    {.name = "items", .call = filter_items},
    {.name = "join", .params = {"d", "attribute"}, .call = filter_join},
    {.name = "last", .call = filter_last},
    {.name = "length", .call = filter_length},
    {.name = "list", .call = filter_list},
    {.name = "lower", .call = filter_lower},
    {.name = "map"}, // map, select and the like are syntax: the parser handles them itself
    {.name = "max", .params = {"case_sensitive", "attribute"}, .call = filter_max},
    {.name = "min", .params = {"case_sensitive", "attribute"}, .call = filter_min},
    {.name = "reject"},
    {.name = "rejectattr"},
    {.name = "replace", .params = {"old", "new", "count"}, .required = 2, .call = filter_replace},
    {.name = "reverse", .call = filter_reverse},
    {.name = "safe", .call = filter_safe},
    {.name = "select"},
    {.name = "selectattr"},
    {.name = "sort", .params = {"reverse", "case_sensitive", "attribute"}, .call = filter_sort},
    {.name = "string", .call = filter_string},
    {.name = "title", .call = filter_title},
    {.name = "tojson", .params = {"indent", "ensure_ascii", "separators", "sort_keys"}, .call = filter_tojson},
    {.name = "trim", .params = {"chars"}, .call = filter_trim},
    {.name = "unique", .params = {"case_sensitive", "attribute"}, .call = filter_unique},
    {.name = "upper", .call = filter_upper},
    {.name = NULL},
};
