// jinja_format.c: values put into a text, as Python's '%s' % x and '{}'.format(x) do.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/jinja/jinja_char.h"
#include "common/jinja/jinja_run.h"

enum { MAX_WIDTH = 999 };

// One %: flags, width, precision and type.
struct conversion {
    char flags[8], type;
    int width, precision; // precision < 0: none
};

static size_t read_number(const struct jinja_string *format, size_t at, int *out)
{
    for (*out = 0; at < format->length && format->bytes[at] >= '0' && format->bytes[at] <= '9'; at++)
        *out = MIN(*out * 10 + (format->bytes[at] - '0'), MAX_WIDTH + 1);
    return at;
}

static bool append_spaces(struct jinja_run *run, struct jinja_builder *builder, int count)
{
    for (; count > 0; count--)
        if (!jinja_append_text(run, builder, " "))
            return false;
    return true;
}

static bool append_text_of(struct jinja_run *run, struct jinja_builder *builder, const struct conversion *how,
                           const struct jinja_value *value)
{
    const struct jinja_string *string;
    struct jinja_value cut;
    if (!jinja_to_string(run, value, &string) || !jinja_work(run, string->length / 16))
        return false;
    if (how->precision >= 0 && jinja_char_count(string) > (size_t)how->precision) {
        if (!jinja_substring(run, string, 0, jinja_char_offset(string, (size_t)how->precision), &cut))
            return false;
        string = cut.string;
    }
    const int missing = how->width - (int)MIN(jinja_char_count(string), (size_t)MAX_WIDTH);
    const bool left = strchr(how->flags, '-');
    return append_spaces(run, builder, left ? 0 : missing) && jinja_append(run, builder, string) &&
           append_spaces(run, builder, left ? missing : 0);
}

static bool append_number(struct jinja_run *run, struct jinja_builder *builder, const struct conversion *how,
                          const struct jinja_value *value)
{
    char pattern[48], text[MAX_WIDTH * 2 + 400], precision[8] = "";
    const bool whole = strchr("dixXo", how->type);
    double number;
    if (!jinja_is_number(value) || (jinja_is_float(value) && strchr("xXo", how->type)))
        return jinja_fail(run, "'%%%c' needs a number, not %s", how->type, jinja_kind_name(value));
    number = jinja_as_double(value);
    if (whole && jinja_is_float(value) && !(number > -9e18 && number < 9e18))
        return jinja_fail(run, "'%%%c' needs a number in range", how->type);
    if (how->precision >= 0)
        snprintf(precision, sizeof precision, ".%d", how->precision);
    snprintf(pattern, sizeof pattern, "%%%s%d%s%s%c", how->flags, how->width, precision, whole ? "ll" : "", how->type);
    if (!how->width)
        snprintf(pattern, sizeof pattern, "%%%s%s%s%c", how->flags, precision, whole ? "ll" : "", how->type);
    const long long integer = jinja_is_float(value) ? (long long)number : jinja_as_integer(value);
    const bool negative = integer < 0 && strchr("xXo", how->type);
    if (negative)
        return jinja_fail(run, "'%%%c' of a negative number is not supported", how->type);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (whole)
        snprintf(text, sizeof text, pattern, integer);
    else
        snprintf(text, sizeof text, pattern, number);
#pragma GCC diagnostic pop
    return jinja_append_text(run, builder, text);
}

// The values of conversions: a mapping, or one after the other.
struct source {
    const struct jinja_dict *named;
    const struct jinja_value *values;
    size_t count, used;
};

// Reads a conversion behind its '%' at *at, and takes its value.
static bool read_conversion(struct jinja_run *run, const struct jinja_string *format, size_t *at, struct source *from,
                            struct conversion *how, struct jinja_value *value)
{
    size_t i = *at, flags = 0;
    *how = (struct conversion){.precision = -1};
    *value = jinja_undefined();
    bool found = false;
    if (i < format->length && format->bytes[i] == '(') {
        const char *close = memchr(format->bytes + i, ')', format->length - i);
        const struct jinja_string name = {.bytes = format->bytes + i + 1,
                                          .length = close ? (size_t)(close - format->bytes) - i - 1 : 0};
        const struct jinja_value key = {.kind = KIND_STRING, .string = &name};
        if (!close || !from->named)
            return jinja_fail(run, "'%%(' needs a mapping and a ')'");
        if (!jinja_dict_get(run, from->named, &key, value, &found))
            return false;
        if (!found)
            return jinja_fail(run, "there is no '%.*s' for '%%(%.*s)'", (int)MIN(name.length, 40u), name.bytes,
                              (int)MIN(name.length, 40u), name.bytes);
        i += name.length + 2;
    }
    for (; i < format->length && strchr("-+ 0#", format->bytes[i]) && format->bytes[i]; i++)
        if (flags < sizeof how->flags - 1 && !strchr(how->flags, format->bytes[i]))
            how->flags[flags++] = format->bytes[i];
    i = read_number(format, i, &how->width);
    if (i < format->length && format->bytes[i] == '.')
        i = read_number(format, i + 1, &how->precision);
    if (how->width > MAX_WIDTH || how->precision > MAX_WIDTH)
        return jinja_fail(run, "a width of more than %d in a format", MAX_WIDTH);
    how->type = i < format->length ? format->bytes[i] : 0;
    *at = i + 1;
    if (!how->type || !strchr("sdifFeEgGxXo%", how->type))
        return jinja_fail(run, "the format '%%%c' is not supported", how->type >= 32 && how->type < 127 ? how->type : '?');
    if (how->type == '%' || found)
        return true;
    if (from->used >= from->count)
        return jinja_fail(run, "too few values for a format");
    *value = from->values[from->used++];
    return true;
}

bool jinja_format_percent(struct jinja_run *run, const struct jinja_string *format, const struct jinja_value *values,
                          struct jinja_value *out)
{
    struct source from = {.values = values, .count = 1};
    struct jinja_builder builder = {0};
    struct jinja_value part;
    size_t plain = 0;
    if (values->kind == KIND_TUPLE)
        from = (struct source){.values = values->list->items, .count = values->list->count};
    else if (values->kind == KIND_DICT)
        from.named = values->dict;
    for (size_t at = 0; at < format->length;) {
        struct conversion how;
        struct jinja_value value;
        if (format->bytes[at++] != '%')
            continue;
        if (!jinja_substring(run, format, plain, at - 1, &part) || !jinja_append(run, &builder, part.string) ||
            !read_conversion(run, format, &at, &from, &how, &value))
            return false;
        if (how.type == '%' ? !jinja_append_text(run, &builder, "%")
                            : !(how.type == 's' ? append_text_of : append_number)(run, &builder, &how, &value))
            return false;
        plain = at;
    }
    if (!from.named && from.used != from.count)
        return jinja_fail(run, "%zu values for a format that takes %zu", from.count, from.used);
    return jinja_substring(run, format, plain, format->length, &part) && jinja_append(run, &builder, part.string) &&
           jinja_build(run, &builder, out);
}

// The value of {}, {0} or {name}; field: what is between the braces.
static bool get_field(struct jinja_run *run, const struct jinja_string *field, const struct jinja_list *values,
                      const struct jinja_dict *named, size_t *next, struct jinja_value *out)
{
    const struct jinja_value key = {.kind = KIND_STRING, .string = field};
    int number = 0;
    bool found = false;
    const bool numbered = field->length && read_number(field, 0, &number) == field->length;
    for (size_t i = 0; i < field->length; i++)
        if (strchr(".[!:{", field->bytes[i]))
            return jinja_fail(run, "'format' knows {}, {0} and {name} only, not {%.*s}", (int)MIN(field->length, 40u),
                              field->bytes);
    if (field->length && !numbered) {
        if (!jinja_dict_get(run, named, &key, out, &found))
            return false;
    } else {
        const size_t index = numbered ? (size_t)number : (*next)++;
        found = index < values->count;
        if (found)
            *out = values->items[index];
    }
    return found || jinja_fail(run, "'format' has no value for {%.*s}", (int)MIN(field->length, 40u), field->bytes);
}

bool jinja_format_braces(struct jinja_run *run, const struct jinja_string *format, const struct jinja_list *values,
                         const struct jinja_dict *named, struct jinja_value *out)
{
    struct jinja_builder builder = {0};
    size_t next = 0, plain = 0;
    struct jinja_value part, value;
    for (size_t i = 0; i < format->length; i++) {
        const char byte = format->bytes[i];
        if (byte != '{' && byte != '}')
            continue;
        const bool doubled = i + 1 < format->length && format->bytes[i + 1] == byte;
        if (!jinja_substring(run, format, plain, i + doubled, &part) || !jinja_append(run, &builder, part.string))
            return false;
        if (!doubled) {
            const char *close = byte == '{' ? memchr(format->bytes + i, '}', format->length - i) : NULL;
            if (!close)
                return jinja_fail(run, "'format' with a single '%c'", byte);
            const struct jinja_string field = {.bytes = format->bytes + i + 1, .length = (size_t)(close - format->bytes) - i - 1};
            if (!get_field(run, &field, values, named, &next, &value) || !jinja_append_value(run, &builder, &value))
                return false;
            i += field.length;
        }
        plain = ++i + 1;
    }
    return jinja_substring(run, format, MIN(plain, format->length), format->length, &part) &&
           jinja_append(run, &builder, part.string) && jinja_build(run, &builder, out);
}
