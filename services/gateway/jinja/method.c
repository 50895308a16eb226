// method.c: the methods of strings, mappings and `loop`, and the functions, with their tables.
#include "services/gateway/jinja/run.h"

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
static bool position(struct jinja_run *run, const struct jinja_value *self, const struct jinja_value *arguments, bool last,
                     struct jinja_value *out)
{
    const struct jinja_string *needle;
    struct jinja_value part;
    int64_t begin;
    if (!needed_string(run, arguments, 0, &needle) || !part_argument(run, self, arguments, &part, &begin) ||
        !jinja_work(run, 1 + self->string->length / 16))
        return false;
    size_t at = jinja_find(part.string, needle, 0);
    for (size_t next = at; last && next != SIZE_MAX; next = jinja_find(part.string, needle, next + 1)) {
        at = next;
        if (!jinja_work(run, 1 + needle->length / 16)) // hits may overlap
            return false;
    }
    const struct jinja_string before = {.bytes = part.string->bytes, .length = at};
    *out = jinja_integer(at == SIZE_MAX ? -1 : begin + (int64_t)jinja_char_count(&before));
    return true;
}

METHOD(find) { return position(run, self, arguments, false, out); }
METHOD(rfind) { return position(run, self, arguments, true, out); }

static bool found_position(struct jinja_run *run, bool good, const struct jinja_value *out)
{
    return good && (out->integer >= 0 || jinja_fail(run, "'index' finds nothing"));
}

METHOD(index) { return found_position(run, position(run, self, arguments, false, out), out); }
METHOD(rindex) { return found_position(run, position(run, self, arguments, true, out), out); }

METHOD(count)
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
static bool partition(struct jinja_run *run, const struct jinja_value *self, const struct jinja_value *arguments, bool last,
                      struct jinja_value *out)
{
    const struct jinja_string *separator;
    struct jinja_list *parts = jinja_list_new(run, 3);
    struct jinja_value pieces;
    if (!parts || !needed_string(run, arguments, 0, &separator) || !jinja_split(run, self->string, separator, 1, last, &pieces))
        return false;
    *out = jinja_listed(KIND_TUPLE, parts);
    for (size_t i = 0; i < 3; i++)
        if (!jinja_string_value(run, "", 0, false, &parts->items[i]))
            return false;
    if (pieces.list->count < 2) {
        parts->items[last ? 2 : 0] = *self;
        return true;
    }
    parts->items[0] = pieces.list->items[0];
    parts->items[1] = arguments[0];
    parts->items[2] = pieces.list->items[1];
    return true;
}

METHOD(partition) { return partition(run, self, arguments, false, out); }
METHOD(rpartition) { return partition(run, self, arguments, true, out); }

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

METHOD(splitlines)
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

static bool pad(struct jinja_run *run, const struct jinja_value *self, const struct jinja_value *arguments,
                enum jinja_pad_side side, struct jinja_value *out)
{
    const struct jinja_string *fill;
    int64_t width;
    if (!integer_argument(run, arguments, 0, 0, &width) || !string_argument(run, arguments, 1, &fill))
        return false;
    if (fill && jinja_char_count(fill) != 1)
        return jinja_fail(run, "what a string is filled with must be one character");
    return jinja_pad(run, self->string, width, fill, side, out);
}

METHOD(ljust) { return pad(run, self, arguments, PAD_RIGHT, out); }
METHOD(rjust) { return pad(run, self, arguments, PAD_LEFT, out); }
METHOD(center) { return pad(run, self, arguments, PAD_BOTH, out); }

METHOD(zfill)
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

METHOD(isdigit)
{
    (void)arguments;
    return all_are(run, self, is_digit, out);
}
METHOD(isalpha)
{
    (void)arguments;
    return all_are(run, self, jinja_is_letter, out);
}
METHOD(isalnum)
{
    (void)arguments;
    return all_are(run, self, is_alphanumeric, out);
}
METHOD(isupper)
{
    (void)arguments;
    return jinja_has_case(run, self->string, CASE_UPPER, out);
}
METHOD(islower)
{
    (void)arguments;
    return jinja_has_case(run, self->string, CASE_LOWER, out);
}
METHOD(isspace)
{
    (void)arguments;
    return all_are(run, self, jinja_is_space, out);
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

METHOD(format) { return jinja_format_braces(run, self->string, arguments[0].list, arguments[1].dict, out); }

// --- lists --------------------------------------------------------------------------------------------------------------

METHOD(list_index)
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

METHOD(list_count)
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
METHOD(append)
{
    (void)arguments;
    (void)out;
    return jinja_fail(run, "%s cannot be changed", jinja_kind_name(self));
}

// --- mappings and loops -------------------------------------------------------------------------------------------------

METHOD(items)
{
    struct jinja_list *list;
    (void)arguments;
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

METHOD(keys)
{
    (void)arguments;
    return view(run, self->dict, self->dict->keys, out);
}
METHOD(values)
{
    (void)arguments;
    return view(run, self->dict, self->dict->values, out);
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

// Values do not change, so that a copy is the value.
METHOD(copy)
{
    (void)run;
    (void)arguments;
    *out = *self;
    return true;
}

// Returns whether the values differ from those of the last call.
METHOD(changed)
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
    {.name = "append", .variadic = true, .self_kind = KIND_LIST, .call = method_append},
    {.name = "capitalize", STRING, .call = method_capitalize},
    {.name = "center", .params = {"width", "fillchar"}, .required = 1, STRING, .call = method_center},
    {.name = "changed", .variadic = true, .self_kind = KIND_LOOP, .call = method_changed},
    {.name = "clear", .variadic = true, .self_kind = KIND_LIST, .call = method_append},
    {.name = "clear", .variadic = true, DICT, .call = method_append},
    {.name = "copy", .self_kind = KIND_LIST, .call = method_copy},
    {.name = "copy", DICT, .call = method_copy},
    {.name = "count", .params = {"sub", "start", "end"}, .required = 1, STRING, .call = method_count},
    {.name = "count", .params = {"value"}, .required = 1, .self_kind = KIND_LIST, .call = method_list_count},
    {.name = "count", .params = {"value"}, .required = 1, .self_kind = KIND_TUPLE, .call = method_list_count},
    {.name = "cycle", .variadic = true, .self_kind = KIND_LOOP, .call = method_cycle},
    {.name = "endswith", .params = {"suffix"}, .required = 1, STRING, .call = method_endswith},
    {.name = "extend", .variadic = true, .self_kind = KIND_LIST, .call = method_append},
    {.name = "find", .params = {"sub", "start", "end"}, .required = 1, STRING, .call = method_find},
    {.name = "format", .variadic = true, STRING, .call = method_format},
    {.name = "get", .params = {"key", "default"}, .required = 1, DICT, .call = method_get},
    {.name = "index", .params = {"sub", "start", "end"}, .required = 1, STRING, .call = method_index},
    {.name = "index", .params = {"value"}, .required = 1, .self_kind = KIND_LIST, .call = method_list_index},
    {.name = "index", .params = {"value"}, .required = 1, .self_kind = KIND_TUPLE, .call = method_list_index},
    {.name = "insert", .variadic = true, .self_kind = KIND_LIST, .call = method_append},
    {.name = "isalnum", STRING, .call = method_isalnum},
    {.name = "isalpha", STRING, .call = method_isalpha},
    {.name = "isdigit", STRING, .call = method_isdigit},
    {.name = "islower", STRING, .call = method_islower},
    {.name = "isspace", STRING, .call = method_isspace},
    {.name = "isupper", STRING, .call = method_isupper},
    {.name = "items", DICT, .call = method_items},
    {.name = "join", .params = {"iterable"}, .required = 1, STRING, .call = method_join},
    {.name = "keys", DICT, .call = method_keys},
    {.name = "ljust", .params = {"width", "fillchar"}, .required = 1, STRING, .call = method_ljust},
    {.name = "lower", STRING, .call = method_lower},
    {.name = "lstrip", .params = {"chars"}, STRING, .call = method_lstrip},
    {.name = "partition", .params = {"sep"}, .required = 1, STRING, .call = method_partition},
    {.name = "pop", .variadic = true, .self_kind = KIND_LIST, .call = method_append},
    {.name = "pop", .variadic = true, DICT, .call = method_append},
    {.name = "popitem", .variadic = true, DICT, .call = method_append},
    {.name = "remove", .variadic = true, .self_kind = KIND_LIST, .call = method_append},
    {.name = "removeprefix", .params = {"prefix"}, .required = 1, STRING, .call = method_removeprefix},
    {.name = "removesuffix", .params = {"suffix"}, .required = 1, STRING, .call = method_removesuffix},
    {.name = "replace", .params = {"old", "new", "count"}, .required = 2, STRING, .call = method_replace},
    {.name = "reverse", .variadic = true, .self_kind = KIND_LIST, .call = method_append},
    {.name = "rfind", .params = {"sub", "start", "end"}, .required = 1, STRING, .call = method_rfind},
    {.name = "rindex", .params = {"sub", "start", "end"}, .required = 1, STRING, .call = method_rindex},
    {.name = "rjust", .params = {"width", "fillchar"}, .required = 1, STRING, .call = method_rjust},
    {.name = "rpartition", .params = {"sep"}, .required = 1, STRING, .call = method_rpartition},
    {.name = "rsplit", .params = {"sep", "maxsplit"}, STRING, .call = method_rsplit},
    {.name = "rstrip", .params = {"chars"}, STRING, .call = method_rstrip},
    {.name = "setdefault", .variadic = true, DICT, .call = method_append},
    {.name = "sort", .variadic = true, .self_kind = KIND_LIST, .call = method_append},
    {.name = "split", .params = {"sep", "maxsplit"}, STRING, .call = method_split},
    {.name = "splitlines", .params = {"keepends"}, STRING, .call = method_splitlines},
    {.name = "startswith", .params = {"prefix"}, .required = 1, STRING, .call = method_startswith},
    {.name = "strip", .params = {"chars"}, STRING, .call = method_strip},
    {.name = "title", STRING, .call = method_title},
    {.name = "update", .variadic = true, DICT, .call = method_append},
    {.name = "upper", STRING, .call = method_upper},
    {.name = "values", DICT, .call = method_values},
    {.name = "zfill", .params = {"width"}, .required = 1, STRING, .call = method_zfill},
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
