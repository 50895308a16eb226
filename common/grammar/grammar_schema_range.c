// grammar_schema_range.c: numbers between two bounds, as texts without an exponent.
//
// Numbers with equally many digits before the point are compared like words. While all digits so far are the bound's, the next one must not be
// less (or greater); once one was, the rest is free. Of 25 to 1000.5 the numbers with two digits are
//
//     2 ─ 5 ─ any fraction (the bound's digits)   2 ─ [6-9] ─ free   [3-9] ─ free
//
// so each bound is a chain of as many links as it has digits.
#include "common/grammar/grammar_schema_internal.h"

struct range {
    struct jschema *schema;
    struct jschema_decimal low, high; // not negative
    bool has_high, low_is_exclusive, high_is_exclusive, whole;
    int32_t digits; // before the point
    uint32_t any_digit;
};

static uint32_t digit_class(struct range *range, uint32_t first, uint32_t last)
{
    struct grammar_range chars = {'0' + first, '0' + last};

    return first > last ? range->schema->nothing : grammar_chars(range->schema->builder, &chars, 1, false);
}

static uint32_t digits(struct range *range, uint32_t min, uint32_t max)
{
    return grammar_repeat(range->schema->builder, range->any_digit, min, max);
}

// Whether the number has no digits from this place on.
static bool is_zero_from(const struct jschema_decimal *decimal, int32_t place)
{
    return decimal->point - decimal->count > place || !decimal->count;
}

// Whether a text may end before this place, all digits so far being a bound's if low (or high) is set.
static bool may_end(const struct range *range, int32_t place, bool low, bool high)
{
    if (low && (!is_zero_from(&range->low, place) || range->low_is_exclusive))
        return false;
    return !(high && is_zero_from(&range->high, place) && range->high_is_exclusive);
}

static uint32_t fraction_from(struct range *range, int32_t place, bool low, bool high);

// At least one digit behind the point, from this place on.
static uint32_t more(struct range *range, int32_t place, bool low, bool high)
{
    struct jschema *schema = range->schema;
    uint32_t least, most, options[3];

    if (low && !range->low_is_exclusive && is_zero_from(&range->low, place))
        low = false; // it has been reached
    if (place < -JSCHEMA_MAX_FRACTION)
        return schema->nothing;
    if (!low && !high)
        return digits(range, 1, (uint32_t)(JSCHEMA_MAX_FRACTION + place + 1));
    least = low ? jschema_decimal_digit(&range->low, place) : 0;
    most = high ? jschema_decimal_digit(&range->high, place) : 9;
    if (least > most)
        return schema->nothing;
    if (low && high && least == most)
        return JSCHEMA_SEQUENCE(schema, digit_class(range, least, least), fraction_from(range, place - 1, true, true));
    options[0] = low ? JSCHEMA_SEQUENCE(schema, digit_class(range, least, least), fraction_from(range, place - 1, true, false)) : 0;
    options[1] = high ? JSCHEMA_SEQUENCE(schema, digit_class(range, most, most), fraction_from(range, place - 1, false, true)) : 0;
    options[2] = 0;
    if (least + low + high <= most)
        options[2] =
            JSCHEMA_SEQUENCE(schema, digit_class(range, least + low, most - high), fraction_from(range, place - 1, false, false));
    return grammar_either(schema->builder, options, 3);
}

static uint32_t fraction_from(struct range *range, int32_t place, bool low, bool high)
{
    uint32_t rest = more(range, place, low, high);

    return may_end(range, place, low, high) ? jschema_optional(range->schema, rest) : rest;
}

// What may come behind the digits before the point.
static uint32_t fraction(struct range *range, bool low, bool high)
{
    struct jschema *schema = range->schema;
    uint32_t rest = range->whole ? schema->nothing
                                 : JSCHEMA_SEQUENCE(schema, grammar_text(schema->builder, "."), more(range, -1, low, high));

    return may_end(range, -1, low, high) ? jschema_optional(schema, rest) : rest;
}

// The digits from this place on, of a number with `count` digits before the point.
static uint32_t whole_from(struct range *range, int32_t count, int32_t place, bool low, bool high)
{
    struct jschema *schema = range->schema;
    uint32_t least, most, options[3] = {0};

    if (place < 0)
        return fraction(range, low, high);
    if (!low && !high && place < count - 1)
        return JSCHEMA_SEQUENCE(schema, digits(range, (uint32_t)place + 1, (uint32_t)place + 1), fraction(range, false, false));
    least = low ? jschema_decimal_digit(&range->low, place) : place == count - 1 && count > 1;
    most = high ? jschema_decimal_digit(&range->high, place) : 9;
    if (least > most)
        return schema->nothing;
    if (low && high && least == most)
        return JSCHEMA_SEQUENCE(schema, digit_class(range, least, least), whole_from(range, count, place - 1, true, true));
    if (low)
        options[0] = JSCHEMA_SEQUENCE(schema, digit_class(range, least, least), whole_from(range, count, place - 1, true, false));
    if (high)
        options[1] = JSCHEMA_SEQUENCE(schema, digit_class(range, most, most), whole_from(range, count, place - 1, false, true));
    if (least + low + high <= most)
        options[2] = JSCHEMA_SEQUENCE(schema, digit_class(range, least + low, most - high),
                                      whole_from(range, count, place - 1, false, false));
    return grammar_either(schema->builder, options, 3);
}

// Numbers from low to high, neither of them negative.
static uint32_t positive(struct range *range)
{
    struct jschema *schema = range->schema;
    int32_t first = range->low.point > 1 ? range->low.point : 1, last = range->high.point > 1 ? range->high.point : 1;
    uint32_t options[3] = {0};

    if (!range->has_high || last > range->digits) {
        range->has_high = false;
        last = range->digits + 1;
    }
    if (first > last || first > range->digits)
        return schema->nothing;
    options[0] = whole_from(range, first, first - 1, true, first == last);
    if (first + 1 < last) // those with more digits than the one and fewer than the other are free
        options[1] = JSCHEMA_SEQUENCE(schema, digit_class(range, 1, 9), digits(range, (uint32_t)first, (uint32_t)last - 2),
                                      fraction(range, false, false));
    if (first < last && range->has_high)
        options[2] = whole_from(range, last, last - 1, false, true);
    return grammar_either(schema->builder, options, 3);
}

uint32_t jschema_range(struct jschema *schema, const struct jschema_bound *min, const struct jschema_bound *max, bool whole,
                       uint32_t digit_count)
{
    struct range up = {.schema = schema, .whole = whole, .digits = (int32_t)digit_count, .any_digit = jschema_class(schema, "0-9")},
                 down = up;
    const struct jschema_bound *bounds[2] = {min, max};
    uint32_t options[2] = {0};

    for (int i = 0; i < 2; i++)
        if (bounds[i]->is_set && bounds[i]->value.count - bounds[i]->value.point > JSCHEMA_MAX_FRACTION)
            return jschema_fail(schema, bounds[i]->entry, bounds[i]->keyword, STATUS_UNIMPLEMENTED,
                                "has more than %u digits behind the point", JSCHEMA_MAX_FRACTION);
    if (min->is_set && max->is_set && jschema_decimal_compare(&min->value, &max->value) > 0)
        return schema->nothing;
    if (!(max->is_set && max->value.negative)) {
        if (min->is_set && !min->value.negative) {
            up.low = min->value;
            up.low_is_exclusive = min->is_exclusive;
        }
        up.has_high = max->is_set;
        up.high = max->value;
        up.high_is_exclusive = max->is_exclusive;
        options[0] = positive(&up);
    }
    if (!(min->is_set && !min->value.negative)) { // what is less than 0, by its size
        down.low_is_exclusive = true;
        if (max->is_set && max->value.negative) {
            down.low = max->value;
            down.low_is_exclusive = max->is_exclusive;
        }
        down.has_high = min->is_set;
        down.high = min->value;
        down.high_is_exclusive = min->is_exclusive;
        options[1] = JSCHEMA_SEQUENCE(schema, grammar_text(schema->builder, "-"), positive(&down));
    }
    return grammar_either(schema->builder, options, 2);
}
