// jinja_method.c: the methods of strings, mappings and `loop`, and the functions, with their tables.
#include "common/jinja/jinja_char.h"
#include "common/jinja/jinja_run.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/checked.h"

#define METHOD(name)                                                                                                      \
    static bool method_##name(struct jinja_run *run, const struct jinja_value *self, const struct jinja_value *arguments, \
                              struct jinja_value *out)
#define FUNCTION(name)                                                                                                      \
    static bool function_##name(struct jinja_run *run, const struct jinja_value *self, const struct jinja_value *arguments, \
                                struct jinja_value *out)

// --- strings ------------------------------------------------------------------------------------------------------------

// The string that argument `index` must be; NULL and true if it is absent or none.
static bool string_argument(struct jinja_run *run, const struct jinja_value *arguments, int index, const struct jinja_string **out)
{
    *out = NULL;
    if (arguments[index].kind == KIND_ABSENT || arguments[index].kind == KIND_NONE)
        return true;
    if (arguments[index].kind != KIND_STRING)
        return jinja_fail(run, "a string is needed, not %s", jinja_kind_name(&arguments[index]));
    *out = arguments[index].string;
    return true;
}

static bool needed_string(struct jinja_run *run, const struct jinja_value *arguments, int index, const struct jinja_string **out)
{
    return string_argument(run, arguments, index, out) && (*out || jinja_fail(run, "a string is needed, not none"));
}

static bool integer_argument(struct jinja_run *run, const struct jinja_value *arguments, int index, int64_t fallback, int64_t *out)
{
    const struct jinja_value *value = &arguments[index];
    *out = value->kind == KIND_ABSENT ? fallback : 0;
    if (value->kind == KIND_ABSENT)
        return true;
    if (value->kind != KIND_INTEGER && value->kind != KIND_BOOL)
        return jinja_fail(run, "an integer is needed, not %s", jinja_kind_name(value));
    *out = jinja_as_integer(value);
    return true;
}

static bool strip(struct jinja_run *run, const struct jinja_value *self, const struct jinja_value *arguments, int sides,
                  struct jinja_value *out)
{
    const struct jinja_string *chars;
    return string_argument(run, arguments, 0, &chars) && jinja_strip(run, self->string, chars, sides, out);
}

METHOD(strip) { return strip(run, self, arguments, 3, out); }
METHOD(lstrip) { return strip(run, self, arguments, 1, out); }
METHOD(rstrip) { return strip(run, self, arguments, 2, out); }

static bool split(struct jinja_run *run, const struct jinja_value *self, const struct jinja_value *arguments, bool right,
                  struct jinja_value *out)
{
    const struct jinja_string *separator;
    int64_t limit;
    return string_argument(run, arguments, 0, &separator) && integer_argument(run, arguments, 1, -1, &limit) &&
           jinja_split(run, self->string, separator, limit, right, out);
}

METHOD(split) { return split(run, self, arguments, false, out); }
METHOD(rsplit) { return split(run, self, arguments, true, out); }

// starts: does a prefix (or any of a tuple of them) fit? Its length then, else SIZE_MAX.
static bool affix(struct jinja_run *run, const struct jinja_string *string, const struct jinja_value *value, bool at_end,
                  size_t *length)
{
    const struct jinja_list single = {1, (struct jinja_value *)(uintptr_t)value};
    const struct jinja_list *list = value->kind == KIND_TUPLE ? value->list : &single;
    *length = SIZE_MAX;
    for (size_t i = 0; *length == SIZE_MAX && i < list->count; i++) {
        if (list->items[i].kind != KIND_STRING)
            return jinja_fail(run, "a string is needed, not %s", jinja_kind_name(&list->items[i]));
        const struct jinja_string *part = list->items[i].string;
        if (part->length <= string->length &&
            !memcmp(string->bytes + (at_end ? string->length - part->length : 0), part->bytes, part->length))
            *length = part->length;
        if (!jinja_work(run, 1 + part->length / 64))
            return false;
    }
    return true;
}

METHOD(startswith)
{
    size_t length;
    if (!affix(run, self->string, &arguments[0], false, &length))
        return false;
    *out = jinja_bool(length != SIZE_MAX);
    return true;
}

METHOD(endswith)
{
    size_t length;
    if (!affix(run, self->string, &arguments[0], true, &length))
        return false;
    *out = jinja_bool(length != SIZE_MAX);
    return true;
}

METHOD(removeprefix)
{
    size_t length;
    if (!affix(run, self->string, &arguments[0], false, &length))
        return false;
    return jinja_substring(run, self->string, length == SIZE_MAX ? 0 : length, self->string->length, out);
}

METHOD(removesuffix)
{
    size_t length;
    if (!affix(run, self->string, &arguments[0], true, &length))
        return false;
    return jinja_substring(run, self->string, 0, self->string->length - (length == SIZE_MAX ? 0 : length), out);
}

METHOD(upper)
{
    (void)arguments;
    return jinja_change_case(run, self->string, CASE_UPPER, out);
}
METHOD(lower)
{
    (void)arguments;
    return jinja_change_case(run, self->string, CASE_LOWER, out);
}
METHOD(title)
{
    (void)arguments;
    return jinja_change_case(run, self->string, CASE_TITLE_METHOD, out);
}
METHOD(capitalize)
{
    (void)arguments;
    return jinja_change_case(run, self->string, CASE_CAPITAL, out);
}

METHOD(replace)
{
    const struct jinja_string *old, *with;
    int64_t limit;
    return needed_string(run, arguments, 0, &old) && needed_string(run, arguments, 1, &with) &&
           integer_argument(run, arguments, 2, -1, &limit) && jinja_replace(run, self->string, old, with, limit, out);
}

METHOD(find)
{
    const struct jinja_string *needle;
    if (!needed_string(run, arguments, 0, &needle) || !jinja_work(run, 1 + self->string->length / 16))
        return false;
    const size_t at = jinja_find(self->string, needle, 0);
    const struct jinja_string before = {.bytes = self->string->bytes, .length = at};
    *out = jinja_integer(at == SIZE_MAX ? -1 : (int64_t)jinja_char_count(&before));
    return true;
}

METHOD(count)
{
    const struct jinja_string *needle;
    int64_t count = 0;
    if (!needed_string(run, arguments, 0, &needle) || !jinja_work(run, 1 + self->string->length / 16))
        return false;
    if (!needle->length)
        count = (int64_t)jinja_char_count(self->string) + 1;
    else
        for (size_t at = 0; (at = jinja_find(self->string, needle, at)) != SIZE_MAX; at += needle->length)
            count++;
    *out = jinja_integer(count);
    return true;
}

METHOD(join)
{
    const struct jinja_list *list;
    struct jinja_builder builder = {0};
    if (!jinja_iterate(run, &arguments[0], &list))
        return false;
    for (size_t i = 0; i < list->count; i++) {
        if (list->items[i].kind != KIND_STRING)
            return jinja_fail(run, "'join' needs strings, not %s", jinja_kind_name(&list->items[i]));
        if ((i && !jinja_append(run, &builder, self->string)) || !jinja_append(run, &builder, list->items[i].string))
            return false;
    }
    return jinja_build(run, &builder, out);
}

// '{} and {}'.format(a, b): each {} in turn, without specifications.
METHOD(format)
{
    const struct jinja_string *string = self->string;
    const struct jinja_list *values = arguments[0].list;
    struct jinja_builder builder = {0};
    size_t used = 0, plain = 0;
    struct jinja_value part;
    for (size_t i = 0; i < string->length; i++) {
        const char byte = string->bytes[i], next = i + 1 < string->length ? string->bytes[i + 1] : 0;
        if (byte != '{' && byte != '}')
            continue;
        const bool doubled = next == byte;
        if (!doubled && (byte == '}' || next != '}' || used == values->count))
            return jinja_fail(run, "'format' knows {} only, one for each value");
        if (!jinja_substring(run, string, plain, i + doubled, &part) || !jinja_append(run, &builder, part.string) ||
            (!doubled && !jinja_append_value(run, &builder, &values->items[used++])))
            return false;
        plain = ++i + 1;
    }
    return jinja_substring(run, string, plain, string->length, &part) && jinja_append(run, &builder, part.string) &&
           jinja_build(run, &builder, out);
}

// The sandbox of the reference renderer forbids it, but only where it is run.
METHOD(append)
{
    (void)self;
    (void)arguments;
    (void)out;
    return jinja_fail(run, "a list cannot be changed");
}

// --- mappings and loops -------------------------------------------------------------------------------------------------

static bool view(struct jinja_run *run, const struct jinja_dict *dict, bool keys, bool values, struct jinja_value *out)
{
    struct jinja_list *list = jinja_work(run, dict->count) ? jinja_list_new(run, dict->count) : NULL;
    if (!list)
        return false;
    for (size_t i = 0; i < dict->count; i++) {
        if (keys && values) {
            struct jinja_list *pair = jinja_list_new(run, 2);
            if (!pair)
                return false;
            pair->items[0] = dict->keys[i];
            pair->items[1] = dict->values[i];
            list->items[i] = jinja_listed(KIND_TUPLE, pair);
        } else {
            list->items[i] = keys ? dict->keys[i] : dict->values[i];
        }
    }
    *out = jinja_listed(KIND_VIEW, list);
    return true;
}

METHOD(items)
{
    (void)arguments;
    return view(run, self->dict, true, true, out);
}
METHOD(keys)
{
    (void)arguments;
    return view(run, self->dict, true, false, out);
}
METHOD(values)
{
    (void)arguments;
    return view(run, self->dict, false, true, out);
}

METHOD(get)
{
    bool found;
    if (!jinja_dict_get(run, self->dict, &arguments[0], out, &found))
        return false;
    if (!found)
        *out = arguments[1].kind == KIND_ABSENT ? (struct jinja_value){.kind = KIND_NONE} : arguments[1];
    return true;
}

METHOD(cycle)
{
    const struct jinja_list *list = arguments[0].list;
    if (!list->count)
        return jinja_fail(run, "'cycle' needs values");
    *out = list->items[self->loop->index % list->count];
    return true;
}

// --- functions ----------------------------------------------------------------------------------------------------------

FUNCTION(range)
{
    int64_t start, stop, step;
    (void)self;
    if (!integer_argument(run, arguments, 0, 0, &start) || !integer_argument(run, arguments, 1, 0, &stop) ||
        !integer_argument(run, arguments, 2, 1, &step))
        return false;
    if (arguments[1].kind == KIND_ABSENT) {
        stop = start;
        start = 0;
    }
    if (!step)
        return jinja_fail(run, "range() with a step of 0");
    const double span = ((double)stop - (double)start) / (double)step;
    if (span > 100000) // the reference's sandbox has this limit too
        return jinja_fail(run, "range() of more than 100000 numbers");
    size_t count = 0;
    for (int64_t i = start; step > 0 ? i < stop : i > stop; count++)
        if (__builtin_add_overflow(i, step, &i))
            break;
    struct jinja_list *list = jinja_work(run, count) ? jinja_list_new(run, count) : NULL;
    for (size_t i = 0; list && i < count; i++)
        list->items[i] = jinja_integer(start + (int64_t)i * step);
    *out = jinja_listed(KIND_VIEW, list);
    return list != NULL;
}

static bool make_dict(struct jinja_run *run, const struct jinja_value *arguments, uint8_t kind, struct jinja_value *out)
{
    const struct jinja_list *positional = arguments[0].list;
    struct jinja_dict *dict = arguments[1].dict;
    if (positional->count > 1 || (positional->count && positional->items[0].kind != KIND_DICT))
        return jinja_fail(run, "dict() and namespace() take one mapping and named arguments");
    if (positional->count) {
        const struct jinja_dict *from = positional->items[0].dict, *named = dict;
        dict = jinja_dict_new(run, from->count + named->count);
        for (size_t i = 0; dict && i < from->count; i++)
            if (!jinja_dict_set(run, dict, &from->keys[i], &from->values[i]))
                return false;
        for (size_t i = 0; dict && i < named->count; i++)
            if (!jinja_dict_set(run, dict, &named->keys[i], &named->values[i]))
                return false;
    }
    *out = (struct jinja_value){.kind = kind, .dict = dict};
    return dict != NULL;
}

FUNCTION(dict)
{
    (void)self;
    return make_dict(run, arguments, KIND_DICT, out);
}
FUNCTION(namespace)
{
    (void)self;
    return make_dict(run, arguments, KIND_NAMESPACE, out);
}

FUNCTION(raise_exception)
{
    const struct jinja_string *text;
    (void)self;
    (void)out;
    if (!jinja_to_string(run, &arguments[0], &text))
        return false;
    (void)error_set(run->error, STATUS_INVALID_ARGUMENT, "%.*s", (int)MIN(text->length, 400u), text->bytes);
    return false;
}

FUNCTION(strftime_now)
{
    const struct jinja_string *format;
    const time_t now = (time_t)run->unix_seconds;
    char pattern[128], text[512];
    struct tm utc;
    (void)self;
    if (!needed_string(run, arguments, 0, &format))
        return false;
    if (format->length >= sizeof pattern || memchr(format->bytes, 0, format->length) || !gmtime_r(&now, &utc))
        return jinja_fail(run, "strftime_now() with a bad format");
    memcpy(pattern, format->bytes, format->length);
    pattern[format->length] = 0;
    const size_t length = strftime(text, sizeof text, pattern, &utc);
    char *kept = jinja_run_alloc(run, length, 1);
    if (!kept)
        return false;
    memcpy(kept, text, length);
    return jinja_string_value(run, kept, length, format->span_count != 0, out);
}

#define STRING .self_kind = KIND_STRING
#define DICT .self_kind = KIND_DICT
const struct jinja_builtin jinja_methods[] = {
    {.name = "append", .params = {"object"}, .required = 1, .self_kind = KIND_LIST, .call = method_append},
    {.name = "capitalize", STRING, .call = method_capitalize},
    {.name = "count", .params = {"sub"}, .required = 1, STRING, .call = method_count},
    {.name = "cycle", .variadic = true, .self_kind = KIND_LOOP, .call = method_cycle},
    {.name = "endswith", .params = {"suffix"}, .required = 1, STRING, .call = method_endswith},
    {.name = "find", .params = {"sub"}, .required = 1, STRING, .call = method_find},
    {.name = "format", .variadic = true, STRING, .call = method_format},
    {.name = "get", .params = {"key", "default"}, .required = 1, DICT, .call = method_get},
    {.name = "items", DICT, .call = method_items},
    {.name = "join", .params = {"iterable"}, .required = 1, STRING, .call = method_join},
    {.name = "keys", DICT, .call = method_keys},
    {.name = "lower", STRING, .call = method_lower},
    {.name = "lstrip", .params = {"chars"}, STRING, .call = method_lstrip},
    {.name = "pop", .params = {"index"}, .self_kind = KIND_LIST, .call = method_append},
    {.name = "removeprefix", .params = {"prefix"}, .required = 1, STRING, .call = method_removeprefix},
    {.name = "removesuffix", .params = {"suffix"}, .required = 1, STRING, .call = method_removesuffix},
    {.name = "replace", .params = {"old", "new", "count"}, .required = 2, STRING, .call = method_replace},
    {.name = "rsplit", .params = {"sep", "maxsplit"}, STRING, .call = method_rsplit},
    {.name = "rstrip", .params = {"chars"}, STRING, .call = method_rstrip},
    {.name = "split", .params = {"sep", "maxsplit"}, STRING, .call = method_split},
    {.name = "startswith", .params = {"prefix"}, .required = 1, STRING, .call = method_startswith},
    {.name = "strip", .params = {"chars"}, STRING, .call = method_strip},
    {.name = "title", STRING, .call = method_title},
    {.name = "upper", STRING, .call = method_upper},
    {.name = "values", DICT, .call = method_values},
    {.name = NULL},
};

const struct jinja_builtin jinja_functions[] = {
    {.name = "dict", .variadic = true, .call = function_dict},
    {.name = "namespace", .variadic = true, .call = function_namespace},
    {.name = "raise_exception", .params = {"message"}, .required = 1, .call = function_raise_exception},
    {.name = "range", .params = {"start", "stop", "step"}, .required = 1, .call = function_range},
    {.name = "strftime_now", .params = {"format"}, .required = 1, .call = function_strftime_now},
    {.name = NULL},
};
