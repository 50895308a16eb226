// operator.c: operators of two values, x + y and the like, and values put into a text as Python's '%s' % x and '{}'.format(x) do.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "services/gateway/jinja/run.h"

// --- formats ------------------------------------------------------------------------------------------------------------

enum { FORMAT_MAX_WIDTH = 999 };

// A conversion of '%': flags, width, precision and type.
struct format_conversion {
    char flags[8], type;
    int width, precision; // precision < 0: none
};

static size_t format_read_number(const struct jinja_string *format, size_t at, int *out)
{
    for (*out = 0; at < format->length && format->bytes[at] >= '0' && format->bytes[at] <= '9'; at++)
        *out = MIN(*out * 10 + (format->bytes[at] - '0'), FORMAT_MAX_WIDTH + 1);
    return at;
}

static bool format_spaces(struct jinja_run *run, struct jinja_builder *builder, int count)
{
    for (; count > 0; count--)
        if (!jinja_append_text(run, builder, " "))
            return false;
    return true;
}

static bool format_text(struct jinja_run *run, struct jinja_builder *builder, const struct format_conversion *how,
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
    const int missing = how->width - (int)MIN(jinja_char_count(string), (size_t)FORMAT_MAX_WIDTH);
    const bool left = strchr(how->flags, '-');
    return format_spaces(run, builder, left ? 0 : missing) && jinja_append(run, builder, string) &&
           format_spaces(run, builder, left ? missing : 0);
}

static bool format_number(struct jinja_run *run, struct jinja_builder *builder, const struct format_conversion *how,
                          const struct jinja_value *value)
{
    char pattern[48], text[FORMAT_MAX_WIDTH * 2 + 400], precision[8] = "";
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

// The values that conversions take: from a mapping by name, or one after the other.
struct format_source {
    const struct jinja_dict *named;
    const struct jinja_value *values;
    size_t count, used;
};

// Reads a conversion behind its '%' at *at, and takes its value.
static bool format_read_conversion(struct jinja_run *run, const struct jinja_string *format, size_t *at, struct format_source *from,
                                   struct format_conversion *how, struct jinja_value *value)
{
    size_t i = *at, flags = 0;
    *how = (struct format_conversion){.precision = -1};
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
    i = format_read_number(format, i, &how->width);
    if (i < format->length && format->bytes[i] == '.')
        i = format_read_number(format, i + 1, &how->precision);
    if (how->width > FORMAT_MAX_WIDTH || how->precision > FORMAT_MAX_WIDTH)
        return jinja_fail(run, "a width of more than %d in a format", FORMAT_MAX_WIDTH);
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
    struct format_source from = {.values = values, .count = 1};
    struct jinja_builder builder = {0};
    struct jinja_value part;
    size_t plain = 0;
    if (values->kind == KIND_TUPLE)
        from = (struct format_source){.values = values->list->items, .count = values->list->count};
    else if (values->kind == KIND_DICT)
        from.named = values->dict;
    for (size_t at = 0; at < format->length;) {
        struct format_conversion how;
        struct jinja_value value;
        if (format->bytes[at++] != '%')
            continue;
        if (!jinja_substring(run, format, plain, at - 1, &part) || !jinja_append(run, &builder, part.string) ||
            !format_read_conversion(run, format, &at, &from, &how, &value))
            return false;
        if (how.type == '%' ? !jinja_append_text(run, &builder, "%")
                            : !(how.type == 's' ? format_text : format_number)(run, &builder, &how, &value))
            return false;
        plain = at;
    }
    if (!from.named && from.used != from.count)
        return jinja_fail(run, "%zu values for a format that takes %zu", from.count, from.used);
    return jinja_substring(run, format, plain, format->length, &part) && jinja_append(run, &builder, part.string) &&
           jinja_build(run, &builder, out);
}

// Finds the value of {}, {0} or {name}. field is the text between the braces.
static bool format_get_field(struct jinja_run *run, const struct jinja_string *field, const struct jinja_list *values,
                             const struct jinja_dict *named, size_t *next, struct jinja_value *out)
{
    const struct jinja_value key = {.kind = KIND_STRING, .string = field};
    int number = 0;
    bool found = false;
    const bool numbered = field->length && format_read_number(field, 0, &number) == field->length;
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
            if (!format_get_field(run, &field, values, named, &next, &value) || !jinja_append_value(run, &builder, &value))
                return false;
            i += field.length;
        }
        plain = ++i + 1;
    }
    return jinja_substring(run, format, MIN(plain, format->length), format->length, &part) &&
           jinja_append(run, &builder, part.string) && jinja_build(run, &builder, out);
}

// --- operators ----------------------------------------------------------------------------------------------------------

// Whole powers are exact, or an error; others are floats.
static bool operate_power(struct jinja_run *run, const struct jinja_value *x, const struct jinja_value *y, struct jinja_value *out)
{
    int64_t result = 1, base, exponent;
    if (jinja_is_float(x) || jinja_is_float(y) || jinja_as_integer(y) < 0) {
        if (jinja_as_double(x) == 0 && jinja_as_double(y) < 0)
            return jinja_fail(run, "division by zero");
        *out = jinja_float(pow(jinja_as_double(x), jinja_as_double(y)));
        return !isnan(out->number) || jinja_fail(run, "a power that is no real number");
    }
    base = jinja_as_integer(x);
    exponent = jinja_as_integer(y);
    if (base == 0 || base == 1 || base == -1)
        exponent = exponent > 2 ? 2 - exponent % 2 : exponent;
    for (; exponent > 0; exponent--)
        if (__builtin_mul_overflow(result, base, &result))
            return jinja_fail(run, "integer overflow");
    *out = jinja_integer(result);
    return true;
}

static bool operate_arithmetic(struct jinja_run *run, uint16_t op, const struct jinja_value *x, const struct jinja_value *y,
                               struct jinja_value *out)
{
    if (op == OP2('*', '*'))
        return operate_power(run, x, y, out);
    if (jinja_is_float(x) || jinja_is_float(y) || op == '/') {
        const double a = jinja_as_double(x), b = jinja_as_double(y);
        if ((op == '/' || op == '%' || op == OP2('/', '/')) && b == 0)
            return jinja_fail(run, "division by zero");
        double r = fmod(a, op == '%' ? b : 1);
        if (op == '%' && r != 0 && (r < 0) != (b < 0)) // the sign of the divisor
            r += b;
        *out = jinja_float(op == '+'   ? a + b
                           : op == '-' ? a - b
                           : op == '*' ? a * b
                           : op == '/' ? a / b
                           : op == '%' ? r
                                       : floor(a / b));
        return true;
    }
    const int64_t a = jinja_as_integer(x), b = jinja_as_integer(y);
    int64_t r = 0;
    bool overflow = false;
    if (op == '+') {
        overflow = __builtin_add_overflow(a, b, &r);
    } else if (op == '-') {
        overflow = __builtin_sub_overflow(a, b, &r);
    } else if (op == '*') {
        overflow = __builtin_mul_overflow(a, b, &r);
    } else if (b == 0) {
        return jinja_fail(run, "division by zero");
    } else if (b == -1) { // also keeps INT64_MIN / -1 away
        overflow = op != '%' && __builtin_sub_overflow((int64_t)0, a, &r);
    } else {
        const int64_t rest = a % b, wrong = rest != 0 && (rest < 0) != (b < 0);
        r = op == '%' ? rest + (wrong ? b : 0) : a / b - wrong;
    }
    *out = jinja_integer(r);
    return !overflow || jinja_fail(run, "integer overflow");
}

static bool add_lists(struct jinja_run *run, const struct jinja_value *x, const struct jinja_value *y, struct jinja_value *out)
{
    struct jinja_list *list =
        jinja_work(run, x->list->count + y->list->count) ? jinja_list_new(run, x->list->count + y->list->count) : NULL;
    if (!list)
        return false;
    if (x->list->count)
        memcpy(list->items, x->list->items, x->list->count * sizeof *list->items);
    if (y->list->count)
        memcpy(list->items + x->list->count, y->list->items, y->list->count * sizeof *list->items);
    *out = jinja_listed(x->kind, list);
    return true;
}

bool jinja_concat(struct jinja_run *run, const struct jinja_value *values, size_t count, struct jinja_value *out)
{
    struct jinja_builder builder = {0};
    for (size_t i = 0; i < count; i++)
        if (!jinja_append_value(run, &builder, &values[i]))
            return false;
    return jinja_build(run, &builder, out);
}

static bool repeat_list(struct jinja_run *run, const struct jinja_value *list, int64_t times, struct jinja_value *out)
{
    const size_t count = list->list->count;
    size_t total;
    if (times < 0)
        times = 0;
    if (!checked_mul_size(count, (size_t)times, &total) || !jinja_work(run, MIN(total, (size_t)JINJA_MAX_WORK + 1)))
        return jinja_fail(run, "too long a list");
    struct jinja_list *repeated = jinja_list_new(run, total);
    for (size_t i = 0; repeated && i < total; i++)
        repeated->items[i] = list->list->items[i % count];
    *out = jinja_listed(list->kind, repeated);
    return repeated != NULL;
}

static bool is_list(const struct jinja_value *value) { return value->kind == KIND_LIST || value->kind == KIND_TUPLE; }

bool jinja_operate(struct jinja_run *run, uint16_t op, const struct jinja_value *x, const struct jinja_value *y,
                   struct jinja_value *out)
{
    if (jinja_is_number(x) && jinja_is_number(y))
        return operate_arithmetic(run, op, x, y, out);
    if (op == '%' && x->kind == KIND_STRING)
        return jinja_format_percent(run, x->string, y, out);
    if (op == '+' && x->kind == KIND_STRING && y->kind == KIND_STRING)
        return jinja_concat(run, (struct jinja_value[]){*x, *y}, 2, out);
    if (op == '+' && x->kind == y->kind && is_list(x))
        return add_lists(run, x, y, out);
    if (op == '*' && x->kind == KIND_INTEGER && (y->kind == KIND_STRING || is_list(y))) {
        const struct jinja_value *times = x;
        x = y;
        y = times;
    }
    if (op == '*' && x->kind == KIND_STRING && y->kind == KIND_INTEGER)
        return jinja_repeat(run, x->string, y->integer, out);
    if (op == '*' && is_list(x) && y->kind == KIND_INTEGER)
        return repeat_list(run, x, y->integer, out);
    return jinja_fail(run, "cannot apply '%c%s' to %s and %s", op & 255, op > 255 ? (char[]){(char)(op >> 8), 0} : "",
                      jinja_kind_name(x), jinja_kind_name(y));
}
