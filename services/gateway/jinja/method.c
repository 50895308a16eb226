// method.c: the methods of strings, mappings and `loop`, and the functions, with their tables.
#include "services/gateway/jinja/run.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/checked.h"

// --- strings ------------------------------------------------------------------------------------------------------------

// Reads argument `index`, which must be a string. *out is NULL if it is absent or none.
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

// how: the sides, as for jinja_strip().
JINJA_BUILTIN(method_strip)
{
    const struct jinja_string *chars;
    return string_argument(run, arguments, 0, &chars) && jinja_strip(run, self->string, chars, how, out);
}

// how, here and below: from which side, or at which end, and whether it is an error that nothing is found.
enum { AT_START, AT_END = 1, MUST_FIND = 2 };

JINJA_BUILTIN(method_split)
{
    const struct jinja_string *separator;
    int64_t limit;
    return string_argument(run, arguments, 0, &separator) && integer_argument(run, arguments, 1, -1, &limit) &&
           jinja_split(run, self->string, separator, limit, how == AT_END, out);
}

// starts: does a prefix (or any of a tuple of them) fit? Its length then, else SIZE_MAX.
static bool affix(struct jinja_run *run, const struct jinja_string *string, const struct jinja_value *value, bool at_end,
                  size_t *length)
{
    const struct jinja_list single = {.count = 1, .items = (struct jinja_value *)(uintptr_t)value};
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

JINJA_BUILTIN(method_has_affix)
{
    size_t length;
    if (!affix(run, self->string, &arguments[0], how == AT_END, &length))
        return false;
    *out = jinja_bool(length != SIZE_MAX);
    return true;
}

JINJA_BUILTIN(method_remove_affix)
{
    const size_t all = self->string->length;
    size_t length;
    if (!affix(run, self->string, &arguments[0], how == AT_END, &length))
        return false;
    if (length == SIZE_MAX)
        length = 0;
    return jinja_substring(run, self->string, how == AT_END ? 0 : length, how == AT_END ? all - length : all, out);
}

// how: an enum jinja_case.
JINJA_BUILTIN(method_change_case) { return jinja_change_case(run, self->string, (enum jinja_case)how, out); }
JINJA_BUILTIN(method_has_case) { return jinja_has_case(run, self->string, (enum jinja_case)how, out); }

JINJA_BUILTIN(method_replace)
{
    const struct jinja_string *old, *with;
    int64_t limit;
    return needed_string(run, arguments, 0, &old) && needed_string(run, arguments, 1, &with) &&
           integer_argument(run, arguments, 2, -1, &limit) && jinja_replace(run, self->string, old, with, limit, out);
}

// Takes the part of a string between the positions in arguments 1 and 2, clipped as for a slice. *begin is its first character.
static bool part_argument(struct jinja_run *run, const struct jinja_value *self, const struct jinja_value *arguments,
                          struct jinja_value *part, int64_t *begin)
{
    const int64_t count = (int64_t)jinja_char_count(self->string);
    int64_t end = count;
    *begin = 0;
    if ((arguments[1].kind > KIND_NONE && !integer_argument(run, arguments, 1, 0, begin)) ||
        (arguments[2].kind > KIND_NONE && !integer_argument(run, arguments, 2, 0, &end)))
        return false;
    *begin = *begin < 0 ? MAX(*begin + count, 0) : MIN(*begin, count);
    end = end < 0 ? MAX(end + count, 0) : MIN(end, count);
    const size_t from = jinja_char_offset(self->string, (size_t)*begin), to = jinja_char_offset(self->string, (size_t)end);
    return jinja_work(run, self->string->length / 16) && jinja_substring(run, self->string, from, MAX(from, to), part);
}

// Returns the position of a part of the string, or -1.
JINJA_BUILTIN(method_find)
{
    const struct jinja_string *needle;
    struct jinja_value part;
    int64_t begin;
    if (!needed_string(run, arguments, 0, &needle) || !part_argument(run, self, arguments, &part, &begin) ||
        !jinja_work(run, 1 + self->string->length / 16))
        return false;
    size_t at = jinja_find(part.string, needle, 0);
    for (size_t next = at; (how & AT_END) && next != SIZE_MAX; next = jinja_find(part.string, needle, next + 1)) {
        at = next;
        if (!jinja_work(run, 1 + needle->length / 16)) // hits may overlap
            return false;
    }
    const struct jinja_string before = {.bytes = part.string->bytes, .length = at};
    *out = jinja_integer(at == SIZE_MAX ? -1 : begin + (int64_t)jinja_char_count(&before));
    return at != SIZE_MAX || !(how & MUST_FIND) || jinja_fail(run, "'index' finds nothing");
}

JINJA_BUILTIN(method_count)
{
    const struct jinja_string *needle;
    struct jinja_value part;
    int64_t count = 0, begin;
    if (!needed_string(run, arguments, 0, &needle) || !part_argument(run, self, arguments, &part, &begin) ||
        !jinja_work(run, 1 + self->string->length / 16))
        return false;
    if (!needle->length)
        count = (int64_t)jinja_char_count(part.string) + 1;
    else
        for (size_t at = 0; (at = jinja_find(part.string, needle, at)) != SIZE_MAX; at += needle->length)
            count++;
    *out = jinja_integer(count);
    return true;
}

// Cuts a string in three: before a separator, the separator, behind it.
JINJA_BUILTIN(method_partition)
{
    const struct jinja_string *separator;
    struct jinja_list *parts = jinja_list_new(run, 3);
    struct jinja_value pieces;
    if (!parts || !needed_string(run, arguments, 0, &separator) ||
        !jinja_split(run, self->string, separator, 1, how == AT_END, &pieces))
        return false;
    *out = jinja_listed(KIND_TUPLE, parts);
    for (size_t i = 0; i < 3; i++)
        if (!jinja_string_value(run, "", 0, false, &parts->items[i]))
            return false;
    if (pieces.list->count < 2) {
        parts->items[how == AT_END ? 2 : 0] = *self;
        return true;
    }
    parts->items[0] = pieces.list->items[0];
    parts->items[1] = arguments[0];
    parts->items[2] = pieces.list->items[1];
    return true;
}

// Returns the length of the end of a line at `at`, 0 if there is none.
static size_t line_end(const struct jinja_string *string, size_t at)
{
    const int32_t code = jinja_char_code(string->bytes + at, string->length - at);
    if (code == '\r' && at + 1 < string->length && string->bytes[at + 1] == '\n')
        return 2;
    if ((code >= 10 && code <= 13) || (code >= 0x1c && code <= 0x1e) || code == 0x85 || code == 0x2028 || code == 0x2029)
        return jinja_char_bytes(string->bytes + at, string->length - at);
    return 0;
}

JINJA_BUILTIN(method_splitlines)
{
    const struct jinja_string *string = self->string;
    const bool keep = jinja_truth(&arguments[0]);
    size_t count = 0, end;
    for (size_t at = 0; at < string->length; at += end ? end : 1) {
        end = line_end(string, at);
        count += end > 0;
    }
    struct jinja_list *lines = jinja_work(run, string->length / 4 + count) ? jinja_list_new(run, count + 1) : NULL;
    if (!lines)
        return false;
    lines->count = 0;
    size_t begin = 0;
    for (size_t at = 0; at < string->length; at += end ? end : 1) {
        end = line_end(string, at);
        if (end && !jinja_substring(run, string, begin, at + (keep ? end : 0), &lines->items[lines->count++]))
            return false;
        if (end)
            begin = at + end;
    }
    *out = jinja_listed(KIND_LIST, lines);
    return begin == string->length || jinja_substring(run, string, begin, string->length, &lines->items[lines->count++]);
}

// how: an enum jinja_pad_side.
JINJA_BUILTIN(method_pad)
{
    const struct jinja_string *fill;
    int64_t width;
    if (!integer_argument(run, arguments, 0, 0, &width) || !string_argument(run, arguments, 1, &fill))
        return false;
    if (fill && jinja_char_count(fill) != 1)
        return jinja_fail(run, "what a string is filled with must be one character");
    return jinja_pad(run, self->string, width, fill, (enum jinja_pad_side)how, out);
}

JINJA_BUILTIN(method_zfill)
{
    const struct jinja_string zero = {.bytes = "0", .length = 1}, *string = self->string;
    const size_t sign = string->length && strchr("+-", string->bytes[0]) && string->bytes[0];
    struct jinja_value head, rest;
    int64_t width;
    return integer_argument(run, arguments, 0, 0, &width) && jinja_substring(run, string, 0, sign, &head) &&
           jinja_substring(run, string, sign, string->length, &rest) &&
           jinja_pad(run, rest.string, MAX(width, 0) - (int64_t)sign, &zero, PAD_LEFT, &rest) &&
           jinja_concat(run, (struct jinja_value[]){head, rest}, 2, out);
}

// Returns whether a string is not empty and all its characters are of a class.
static bool all_are(struct jinja_run *run, const struct jinja_value *self, bool (*is)(int32_t code), struct jinja_value *out)
{
    const struct jinja_string *string = self->string;
    bool all = string->length > 0;
    for (size_t i = 0, bytes; all && i < string->length; i += bytes) {
        bytes = jinja_char_bytes(string->bytes + i, string->length - i);
        all = is(jinja_char_code(string->bytes + i, string->length - i));
    }
    *out = jinja_bool(all);
    return jinja_work(run, string->length / 4);
}

static bool is_digit(int32_t code) { return jinja_is_word(code) && !jinja_is_letter(code) && code != '_'; }
static bool is_alphanumeric(int32_t code) { return jinja_is_word(code) && code != '_'; }

JINJA_BUILTIN(method_isdigit) { return all_are(run, self, is_digit, out); }
JINJA_BUILTIN(method_isalpha) { return all_are(run, self, jinja_is_letter, out); }
JINJA_BUILTIN(method_isalnum) { return all_are(run, self, is_alphanumeric, out); }
JINJA_BUILTIN(method_isspace) { return all_are(run, self, jinja_is_space, out); }

JINJA_BUILTIN(method_join)
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

JINJA_BUILTIN(method_format) { return jinja_format_braces(run, self->string, arguments[0].list, arguments[1].dict, out); }

// --- lists --------------------------------------------------------------------------------------------------------------

JINJA_BUILTIN(method_list_index)
{
    bool equal = false;
    for (size_t i = 0; i < self->list->count; i++) {
        if (!jinja_equal(run, &self->list->items[i], &arguments[0], &equal))
            return false;
        if (equal) {
            *out = jinja_integer((int64_t)i);
            return true;
        }
    }
    return jinja_fail(run, "'index' finds nothing");
}

JINJA_BUILTIN(method_list_count)
{
    int64_t count = 0;
    bool equal;
    for (size_t i = 0; i < self->list->count; i++) {
        if (!jinja_equal(run, &self->list->items[i], &arguments[0], &equal))
            return false;
        count += equal;
    }
    *out = jinja_integer(count);
    return true;
}

// The sandbox of the reference renderer forbids it, but only where it is run.
JINJA_BUILTIN(method_append) { return jinja_fail(run, "%s cannot be changed", jinja_kind_name(self)); }

// --- mappings and loops -------------------------------------------------------------------------------------------------

JINJA_BUILTIN(method_items)
{
    struct jinja_list *list;
    if (!jinja_dict_items(run, self->dict, &list))
        return false;
    *out = jinja_listed(KIND_VIEW, list);
    return true;
}

static bool view(struct jinja_run *run, const struct jinja_dict *dict, const struct jinja_value *members, struct jinja_value *out)
{
    struct jinja_list *list = jinja_work(run, dict->count) ? jinja_list_new(run, dict->count) : NULL;
    if (!list)
        return false;
    if (dict->count)
        memcpy(list->items, members, dict->count * sizeof *members);
    *out = jinja_listed(KIND_VIEW, list);
    return true;
}

JINJA_BUILTIN(method_keys) { return view(run, self->dict, self->dict->keys, out); }
JINJA_BUILTIN(method_values) { return view(run, self->dict, self->dict->values, out); }

JINJA_BUILTIN(method_get)
{
    bool found;
    if (!jinja_dict_get(run, self->dict, &arguments[0], out, &found))
        return false;
    if (!found)
        *out = arguments[1].kind == KIND_ABSENT ? (struct jinja_value){.kind = KIND_NONE} : arguments[1];
    return true;
}

// Values do not change, so that a copy is the value.
JINJA_BUILTIN(method_copy)
{
    *out = *self;
    return true;
}

// Returns whether the values differ from those of the last call.
JINJA_BUILTIN(method_changed)
{
    struct jinja_loop *loop = self->loop;
    const struct jinja_list *seen = loop->seen;
    bool equal = false;
    loop->seen = arguments[0].list;
    if (seen) {
        const struct jinja_value before = jinja_listed(KIND_TUPLE, seen), now = jinja_listed(KIND_TUPLE, loop->seen);
        if (!jinja_equal(run, &before, &now, &equal))
            return false;
    }
    *out = jinja_bool(!equal);
    return true;
}

JINJA_BUILTIN(method_cycle)
{
    const struct jinja_list *list = arguments[0].list;
    if (!list->count)
        return jinja_fail(run, "'cycle' needs values");
    *out = list->items[self->loop->index % list->count];
    return true;
}

// --- functions ----------------------------------------------------------------------------------------------------------

JINJA_BUILTIN(function_range)
{
    int64_t start, stop, step;
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

// how: the kind that is made.
JINJA_BUILTIN(function_dict)
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
    *out = (struct jinja_value){.kind = (uint8_t)how, .dict = dict};
    return dict != NULL;
}

JINJA_BUILTIN(function_raise_exception)
{
    const struct jinja_string *text;
    if (!jinja_to_string(run, &arguments[0], &text))
        return false;
    (void)error_set(run->error, STATUS_INVALID_ARGUMENT, "%.*s", (int)MIN(text->length, 400u), text->bytes);
    return false;
}

JINJA_BUILTIN(function_strftime_now)
{
    const struct jinja_string *format;
    const time_t now = (time_t)run->unix_seconds;
    char pattern[128], text[512];
    struct tm utc;
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
    {.name = "append", .variadic = true, .self_kind = KIND_LIST, .call = method_append},
    {.name = "capitalize", STRING, .how = CASE_CAPITAL, .call = method_change_case},
    {.name = "center", .params = {"width", "fillchar"}, .required = 1, STRING, .how = PAD_BOTH, .call = method_pad},
    {.name = "changed", .variadic = true, .self_kind = KIND_LOOP, .call = method_changed},
    {.name = "clear", .variadic = true, .self_kind = KIND_LIST, .call = method_append},
    {.name = "clear", .variadic = true, DICT, .call = method_append},
    {.name = "copy", .self_kind = KIND_LIST, .call = method_copy},
    {.name = "copy", DICT, .call = method_copy},
    {.name = "count", .params = {"sub", "start", "end"}, .required = 1, STRING, .call = method_count},
    {.name = "count", .params = {"value"}, .required = 1, .self_kind = KIND_LIST, .call = method_list_count},
    {.name = "count", .params = {"value"}, .required = 1, .self_kind = KIND_TUPLE, .call = method_list_count},
    {.name = "cycle", .variadic = true, .self_kind = KIND_LOOP, .call = method_cycle},
    {.name = "endswith", .params = {"suffix"}, .required = 1, STRING, .how = AT_END, .call = method_has_affix},
    {.name = "extend", .variadic = true, .self_kind = KIND_LIST, .call = method_append},
    {.name = "find", .params = {"sub", "start", "end"}, .required = 1, STRING, .how = AT_START, .call = method_find},
    {.name = "format", .variadic = true, STRING, .call = method_format},
    {.name = "get", .params = {"key", "default"}, .required = 1, DICT, .call = method_get},
    {.name = "index", .params = {"sub", "start", "end"}, .required = 1, STRING, .how = AT_START | MUST_FIND, .call = method_find},
    {.name = "index", .params = {"value"}, .required = 1, .self_kind = KIND_LIST, .call = method_list_index},
    {.name = "index", .params = {"value"}, .required = 1, .self_kind = KIND_TUPLE, .call = method_list_index},
    {.name = "insert", .variadic = true, .self_kind = KIND_LIST, .call = method_append},
    {.name = "isalnum", STRING, .call = method_isalnum},
    {.name = "isalpha", STRING, .call = method_isalpha},
    {.name = "isdigit", STRING, .call = method_isdigit},
    {.name = "islower", STRING, .how = CASE_LOWER, .call = method_has_case},
    {.name = "isspace", STRING, .call = method_isspace},
    {.name = "isupper", STRING, .how = CASE_UPPER, .call = method_has_case},
    {.name = "items", DICT, .call = method_items},
    {.name = "join", .params = {"iterable"}, .required = 1, STRING, .call = method_join},
    {.name = "keys", DICT, .call = method_keys},
    {.name = "ljust", .params = {"width", "fillchar"}, .required = 1, STRING, .how = PAD_RIGHT, .call = method_pad},
    {.name = "lower", STRING, .how = CASE_LOWER, .call = method_change_case},
    {.name = "lstrip", .params = {"chars"}, STRING, .how = 1, .call = method_strip},
    {.name = "partition", .params = {"sep"}, .required = 1, STRING, .how = AT_START, .call = method_partition},
    {.name = "pop", .variadic = true, .self_kind = KIND_LIST, .call = method_append},
    {.name = "pop", .variadic = true, DICT, .call = method_append},
    {.name = "popitem", .variadic = true, DICT, .call = method_append},
    {.name = "remove", .variadic = true, .self_kind = KIND_LIST, .call = method_append},
    {.name = "removeprefix", .params = {"prefix"}, .required = 1, STRING, .how = AT_START, .call = method_remove_affix},
    {.name = "removesuffix", .params = {"suffix"}, .required = 1, STRING, .how = AT_END, .call = method_remove_affix},
    {.name = "replace", .params = {"old", "new", "count"}, .required = 2, STRING, .call = method_replace},
    {.name = "reverse", .variadic = true, .self_kind = KIND_LIST, .call = method_append},
    {.name = "rfind", .params = {"sub", "start", "end"}, .required = 1, STRING, .how = AT_END, .call = method_find},
    {.name = "rindex", .params = {"sub", "start", "end"}, .required = 1, STRING, .how = AT_END | MUST_FIND, .call = method_find},
    {.name = "rjust", .params = {"width", "fillchar"}, .required = 1, STRING, .how = PAD_LEFT, .call = method_pad},
    {.name = "rpartition", .params = {"sep"}, .required = 1, STRING, .how = AT_END, .call = method_partition},
    {.name = "rsplit", .params = {"sep", "maxsplit"}, STRING, .how = AT_END, .call = method_split},
    {.name = "rstrip", .params = {"chars"}, STRING, .how = 2, .call = method_strip},
    {.name = "setdefault", .variadic = true, DICT, .call = method_append},
    {.name = "sort", .variadic = true, .self_kind = KIND_LIST, .call = method_append},
    {.name = "split", .params = {"sep", "maxsplit"}, STRING, .how = AT_START, .call = method_split},
    {.name = "splitlines", .params = {"keepends"}, STRING, .call = method_splitlines},
    {.name = "startswith", .params = {"prefix"}, .required = 1, STRING, .how = AT_START, .call = method_has_affix},
    {.name = "strip", .params = {"chars"}, STRING, .how = 3, .call = method_strip},
    {.name = "title", STRING, .how = CASE_TITLE_METHOD, .call = method_change_case},
    {.name = "update", .variadic = true, DICT, .call = method_append},
    {.name = "upper", STRING, .how = CASE_UPPER, .call = method_change_case},
    {.name = "values", DICT, .call = method_values},
    {.name = "zfill", .params = {"width"}, .required = 1, STRING, .call = method_zfill},
    {.name = NULL},
};

const struct jinja_builtin jinja_functions[] = {
    {.name = "dict", .variadic = true, .how = KIND_DICT, .call = function_dict},
    {.name = "namespace", .variadic = true, .how = KIND_NAMESPACE, .call = function_dict},
    {.name = "raise_exception", .params = {"message"}, .required = 1, .call = function_raise_exception},
    {.name = "range", .params = {"start", "stop", "step"}, .required = 1, .call = function_range},
    {.name = "strftime_now", .params = {"format"}, .required = 1, .call = function_strftime_now},
    {.name = NULL},
};
