// jinja_operator.c: x + y and the like, of two values.
#include "common/jinja/jinja_run.h"

#include <math.h>
#include <string.h>

#include "common/base/checked.h"

// Whole powers are exact, or an error; others are floats.
static bool power(struct jinja_run *run, const struct jinja_value *x, const struct jinja_value *y, struct jinja_value *out)
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

static bool arithmetic(struct jinja_run *run, uint16_t op, const struct jinja_value *x, const struct jinja_value *y,
                       struct jinja_value *out)
{
    if (op == OP2('*', '*'))
        return power(run, x, y, out);
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
        return arithmetic(run, op, x, y, out);
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
