// number.c: numbers: JSON's, within bounds, multiples, and choices of them.
//
// One text of a value is enough: integers are written without a fraction, and numbers that are limited in any way without an exponent.
// Values with more digits than JSCHEMA_MAX_DIGITS and JSCHEMA_MAX_FRACTION have no text.
//
// Bounds: numbers with equally many digits before the point are compared like words. While all digits so far are the bound's, the next one must
// not be less (or greater); once one was, the rest is free. Of 25 to 1000.5 the numbers with two digits are
//
//     2 ─ 5 ─ any fraction (the bound's digits)   2 ─ [6-9] ─ free   [3-9] ─ free
//
// so each bound is a chain of as many links as it has digits.
//
// Multiples of m x 10^e are found by a remainder: an automaton whose state is the value of the digits so far, modulo m.
#include <stdlib.h>
#include <string.h>

#include "common/grammar/fsa.h"
#include "common/schema/internal.h"

// --- bounds -------------------------------------------------------------------------------------------------------------

struct range {
    struct jschema *schema;
    struct jschema_decimal low, high; // not negative
    bool has_high, low_is_exclusive, high_is_exclusive, whole;
    int32_t digits; // before the point
    uint32_t any_digit;
};

static uint32_t range_digit(struct range *range, uint32_t first, uint32_t last)
{
    struct grammar_range chars = {'0' + first, '0' + last};

    return first > last ? range->schema->nothing : grammar_chars(range->schema->builder, &chars, 1, false);
}

static uint32_t range_digits(struct range *range, uint32_t min, uint32_t max)
{
    return grammar_repeat(range->schema->builder, range->any_digit, min, max);
}

// Returns whether the number has no digits from this place on.
static bool is_zero_from(const struct jschema_decimal *decimal, int32_t place)
{
    return decimal->point - decimal->count > place || !decimal->count;
}

// Returns whether a text may end before this place. low (or high): all digits so far are those of that bound.
static bool range_may_end(const struct range *range, int32_t place, bool low, bool high)
{
    if (low && (!is_zero_from(&range->low, place) || range->low_is_exclusive))
        return false;
    return !(high && is_zero_from(&range->high, place) && range->high_is_exclusive);
}

static uint32_t range_fraction_from(struct range *range, int32_t place, bool low, bool high);

// Writes at least one digit behind the point, from this place on.
static uint32_t range_more(struct range *range, int32_t place, bool low, bool high)
{
    struct jschema *schema = range->schema;
    uint32_t least, most, options[3];

    if (low && !range->low_is_exclusive && is_zero_from(&range->low, place))
        low = false; // it has been reached
    if (place < -JSCHEMA_MAX_FRACTION)
        return schema->nothing;
    if (!low && !high)
        return range_digits(range, 1, (uint32_t)(JSCHEMA_MAX_FRACTION + place + 1));
    least = low ? jschema_decimal_digit(&range->low, place) : 0;
    most = high ? jschema_decimal_digit(&range->high, place) : 9;
    if (least > most)
        return schema->nothing;
    if (low && high && least == most)
        return JSCHEMA_SEQUENCE(schema, range_digit(range, least, least), range_fraction_from(range, place - 1, true, true));
    options[0] =
        low ? JSCHEMA_SEQUENCE(schema, range_digit(range, least, least), range_fraction_from(range, place - 1, true, false)) : 0;
    options[1] = high ? JSCHEMA_SEQUENCE(schema, range_digit(range, most, most), range_fraction_from(range, place - 1, false, true))
                      : 0;
    options[2] = 0;
    if (least + low + high <= most)
        options[2] = JSCHEMA_SEQUENCE(schema, range_digit(range, least + low, most - high),
                                      range_fraction_from(range, place - 1, false, false));
    return grammar_either(schema->builder, options, 3);
}

static uint32_t range_fraction_from(struct range *range, int32_t place, bool low, bool high)
{
    uint32_t rest = range_more(range, place, low, high);

    return range_may_end(range, place, low, high) ? jschema_optional(range->schema, rest) : rest;
}

// Writes what may come behind the digits before the point.
static uint32_t range_fraction(struct range *range, bool low, bool high)
{
    struct jschema *schema = range->schema;
    uint32_t rest = range->whole ? schema->nothing
                                 : JSCHEMA_SEQUENCE(schema, grammar_text(schema->builder, "."), range_more(range, -1, low, high));

    return range_may_end(range, -1, low, high) ? jschema_optional(schema, rest) : rest;
}

// Writes the digits from this place on, of a number with `count` digits before the point.
static uint32_t range_whole_from(struct range *range, int32_t count, int32_t place, bool low, bool high)
{
    struct jschema *schema = range->schema;
    uint32_t least, most, options[3] = {0};

    if (place < 0)
        return range_fraction(range, low, high);
    if (!low && !high && place < count - 1)
        return JSCHEMA_SEQUENCE(schema, range_digits(range, (uint32_t)place + 1, (uint32_t)place + 1),
                                range_fraction(range, false, false));
    least = low ? jschema_decimal_digit(&range->low, place) : place == count - 1 && count > 1;
    most = high ? jschema_decimal_digit(&range->high, place) : 9;
    if (least > most)
        return schema->nothing;
    if (low && high && least == most)
        return JSCHEMA_SEQUENCE(schema, range_digit(range, least, least), range_whole_from(range, count, place - 1, true, true));
    if (low)
        options[0] =
            JSCHEMA_SEQUENCE(schema, range_digit(range, least, least), range_whole_from(range, count, place - 1, true, false));
    if (high)
        options[1] =
            JSCHEMA_SEQUENCE(schema, range_digit(range, most, most), range_whole_from(range, count, place - 1, false, true));
    if (least + low + high <= most)
        options[2] = JSCHEMA_SEQUENCE(schema, range_digit(range, least + low, most - high),
                                      range_whole_from(range, count, place - 1, false, false));
    return grammar_either(schema->builder, options, 3);
}

// Writes the numbers from low to high, neither of which is negative.
static uint32_t range_positive(struct range *range)
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
    options[0] = range_whole_from(range, first, first - 1, true, first == last);
    if (first + 1 < last) // those with more digits than the one and fewer than the other are free
        options[1] = JSCHEMA_SEQUENCE(schema, range_digit(range, 1, 9), range_digits(range, (uint32_t)first, (uint32_t)last - 2),
                                      range_fraction(range, false, false));
    if (first < last && range->has_high)
        options[2] = range_whole_from(range, last, last - 1, false, true);
    return grammar_either(schema->builder, options, 3);
}

// Returns the plain texts (no exponent) of numbers that keep to the bounds, of at most `digits` before the point. whole: integers only.
static uint32_t range_texts(struct jschema *schema, const struct jschema_bound *min, const struct jschema_bound *max, bool whole,
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
        options[0] = range_positive(&up);
    }
    if (!(min->is_set && !min->value.negative)) { // numbers less than 0, by their size
        down.low_is_exclusive = true;
        if (max->is_set && max->value.negative) {
            down.low = max->value;
            down.low_is_exclusive = max->is_exclusive;
        }
        down.has_high = min->is_set;
        down.high = min->value;
        down.high_is_exclusive = min->is_exclusive;
        options[1] = JSCHEMA_SEQUENCE(schema, grammar_text(schema->builder, "-"), range_positive(&down));
    }
    return grammar_either(schema->builder, options, 2);
}

enum { MAX_STATES = 1 << 12, MIN_DIGITS = 6, MAX_PLACES = 16 };

// --- multiples ----------------------------------------------------------------------------------------------------------

// m x 10^exponent
struct divisor {
    uint32_t m;
    int32_t exponent;
};

static bool read_divisor(struct jschema *schema, const struct jschema_term *term, struct divisor *divisor)
{
    struct jschema_decimal decimal;

    if (!json_text_is_number(term->value) || json_text_number(term->value) <= 0) {
        jschema_fail(schema, term->entry, term->keyword, STATUS_INVALID_ARGUMENT, "must be a number greater than 0");
        return false;
    }
    decimal = jschema_decimal_of(term->value);
    *divisor = (struct divisor){0, decimal.point - decimal.count};
    for (int i = 0; i < decimal.count && divisor->m <= JSCHEMA_MAX_DIVISOR; i++)
        divisor->m = divisor->m * 10 + decimal.digits[i];
    if (divisor->m <= JSCHEMA_MAX_DIVISOR && divisor->exponent >= -MAX_PLACES && divisor->exponent < JSCHEMA_MAX_DIGITS &&
        (divisor->exponent >= 0 || divisor->m * (1u - (uint32_t)divisor->exponent) <= MAX_STATES))
        return true;
    jschema_fail(schema, term->entry, term->keyword, STATUS_UNIMPLEMENTED,
                 "is supported up to %u, times a power of ten, and to %u digits behind the point", JSCHEMA_MAX_DIVISOR, MAX_PLACES);
    return false;
}

static uint32_t power_modulo(uint32_t exponent, uint32_t m)
{
    uint32_t power = 1 % m;

    while (exponent--)
        power = power * 10 % m;
    return power;
}

// State base + r: the digits so far leave r. Adds the arcs of one more digit, to the states from `to` on.
static void add_digits(struct grammar_fsa *fsa, uint32_t m, uint32_t base, uint32_t to)
{
    for (uint32_t r = 0; r < m; r++)
        for (uint32_t d = 0; d < 10; d++)
            grammar_fsa_add_arc(fsa, base + r, '0' + d, '0' + d, to + (r * 10 + d) % m);
}

// Returns the texts whose digits, as far as they go, are multiples. The caller sees to it that they are numbers.
static uint32_t multiples(struct jschema *schema, const struct divisor *divisor)
{
    struct grammar_fsa fsa = {.max_states = GRAMMAR_MAX_REGULAR_STATES, .max_arcs = GRAMMAR_MAX_EDGES};
    uint32_t m = divisor->m, places = divisor->exponent < 0 ? (uint32_t)-divisor->exponent : 0;
    uint32_t start = grammar_fsa_add_state(&fsa, false), base = 1;

    fsa.start = start;
    for (uint32_t place = 0; place <= places; place++)
        for (uint32_t r = 0; r < m; r++)
            grammar_fsa_add_state(&fsa, divisor->exponent <= 0 && r * power_modulo(places - place, m) % m == 0);
    grammar_fsa_add_arc(&fsa, start, '-', '-', base);
    grammar_fsa_add_arc(&fsa, start, GRAMMAR_JUMP, GRAMMAR_JUMP, base);
    add_digits(&fsa, m, base, base);
    for (uint32_t place = 1; place <= places; place++) { // remainders behind the point have states of their own
        uint32_t before = base + (place - 1) * m;
        if (place == 1) {
            uint32_t point = fsa.state_count;
            for (uint32_t r = 0; r < m; r++) {
                grammar_fsa_add_state(&fsa, false);
                grammar_fsa_add_arc(&fsa, base + r, '.', '.', point + r);
            }
            before = point;
        }
        add_digits(&fsa, m, before, base + place * m);
    }
    if (divisor->exponent > 0) { // a multiple of m, then zeros; or zero itself
        uint32_t from = base, next = 0;
        for (int32_t i = 0; i < divisor->exponent; i++, from = next) {
            next = grammar_fsa_add_state(&fsa, i + 1 == divisor->exponent);
            grammar_fsa_add_arc(&fsa, from, '0', '0', next);
        }
        grammar_fsa_add_arc(&fsa, start, '0', '0', from);
    }
    if (grammar_fsa_seal(&fsa))
        grammar_fsa_trim(&fsa);
    return grammar_add_regular(schema->builder, &fsa);
}

// --- all together -------------------------------------------------------------------------------------------------------

static bool keeps_bounds(const struct jschema_form *form, const struct jschema_decimal *value)
{
    int low = form->min.is_set ? jschema_decimal_compare(value, &form->min.value) : 1;
    int high = form->max.is_set ? jschema_decimal_compare(value, &form->max.value) : -1;

    return (low > 0 || (low == 0 && !form->min.is_exclusive)) && (high < 0 || (high == 0 && !form->max.is_exclusive));
}

static uint32_t number_texts_of(struct jschema *schema, const struct jschema_form *form, const json_t **values, uint32_t count)
{
    uint32_t *nodes = jschema_take(schema, count, sizeof *nodes), node_count = 0;

    for (uint32_t i = 0; nodes && i < count; i++) {
        struct jschema_decimal decimal;
        char text[JSCHEMA_DECIMAL_BYTES];
        if (!json_text_is_number(values[i]))
            continue;
        decimal = jschema_decimal_of(values[i]);
        if (!(form->types & (jschema_decimal_is_integer(&decimal) ? JSCHEMA_INTEGER : JSCHEMA_FRACTION)) ||
            !keeps_bounds(form, &decimal))
            continue;
        jschema_decimal_text(&decimal, text);
        nodes[node_count++] = grammar_text(schema->builder, text);
    }
    return nodes ? grammar_either(schema->builder, nodes, node_count) : schema->nothing;
}

// Returns the texts without a zero at the end of a fraction, so that a value has one text.
static uint32_t without_end_zeros(struct jschema *schema)
{
    struct grammar_builder *builder = schema->builder;
    uint32_t digit = jschema_class(schema, "0-9"), any = grammar_repeat(builder, digit, 0, GRAMMAR_NO_LIMIT);
    uint32_t fraction = JSCHEMA_SEQUENCE(schema, grammar_text(builder, "."), any, jschema_class(schema, "1-9"));

    return JSCHEMA_SEQUENCE(schema, jschema_optional(schema, grammar_text(builder, "-")), any, jschema_optional(schema, fraction));
}

static uint32_t without_integers(struct jschema *schema, uint32_t node)
{
    struct grammar_builder *builder = schema->builder;
    uint32_t zeros = grammar_repeat(builder, grammar_text(builder, "0"), 1, GRAMMAR_NO_LIMIT);
    uint32_t whole = JSCHEMA_SEQUENCE(schema, jschema_optional(schema, grammar_text(builder, "-")),
                                      grammar_repeat(builder, jschema_class(schema, "0-9"), 1, GRAMMAR_NO_LIMIT),
                                      jschema_optional(schema, JSCHEMA_SEQUENCE(schema, grammar_text(builder, "."), zeros)));

    return jschema_without(schema, node, whole);
}

// Returns how many digits a number may have so that the product with all remainders stays bearable.
static uint32_t digits_beside(struct jschema *schema, const struct jschema_form *form)
{
    const struct jschema_bound *bounds[] = {&form->min, &form->max};
    uint32_t digits = JSCHEMA_MAX_DIGITS, states = 2; // both signs
    struct divisor divisor;

    for (uint32_t i = 0; i < form->term_count; i++)
        if (strcmp(form->terms[i].keyword, "multipleOf") == 0 && read_divisor(schema, &form->terms[i], &divisor) &&
            states < MAX_STATES && divisor.m > 1)
            states *= divisor.m * (divisor.exponent < 0 ? 1 - (uint32_t)divisor.exponent : 1);
    if (states * digits > MAX_STATES)
        digits = MAX_STATES / states;
    if (digits < MIN_DIGITS)
        digits = MIN_DIGITS;
    for (int i = 0; i < 2; i++) // but what a bound names can be reached
        if (bounds[i]->is_set && bounds[i]->value.point > (int32_t)digits)
            digits = bounds[i]->value.point < JSCHEMA_MAX_DIGITS ? (uint32_t)bounds[i]->value.point : (uint32_t)JSCHEMA_MAX_DIGITS;
    return digits;
}

// Takes out of the texts those that multipleOf does not allow.
static uint32_t apply_divisors(struct jschema *schema, const struct jschema_form *form, uint32_t node)
{
    struct divisor divisor;

    for (uint32_t i = 0; i < form->term_count && node != schema->nothing; i++) {
        const struct jschema_term *term = &form->terms[i];
        if (strcmp(term->keyword, "multipleOf") != 0)
            continue;
        if (!read_divisor(schema, term, &divisor))
            return schema->nothing;
        if (!jschema_charge(schema, divisor.m * digits_beside(schema, form)))
            return schema->nothing;
        if (term->is_negative)
            node = jschema_without(schema, node, multiples(schema, &divisor));
        else if (divisor.m != 1 || divisor.exponent != 0 || form->types & JSCHEMA_FRACTION)
            node = jschema_both(schema, node, multiples(schema, &divisor));
    }
    return node;
}

uint32_t jschema_number(struct jschema *schema, const struct jschema_form *form)
{
    uint32_t types = form->types & JSCHEMA_NUMBER, node, others;
    bool has_divisor = jschema_has_term(form, "multipleOf"), is_limited, needs_one_text = false;

    for (uint32_t i = 0; i < form->not_value_count; i++)
        needs_one_text |= json_text_is_number(form->not_values[i]);
    for (uint32_t i = 0; i < form->term_count; i++)
        needs_one_text |= form->terms[i].is_negative && strcmp(form->terms[i].keyword, "multipleOf") == 0;
    is_limited = form->min.is_set || form->max.is_set || has_divisor || needs_one_text;
    if (!types)
        return schema->nothing;
    if (form->has_values) {
        node = number_texts_of(schema, form, form->values, form->value_count);
    } else if (!is_limited && types & JSCHEMA_INTEGER) {
        return jschema_any_number(schema, types == JSCHEMA_INTEGER);
    } else {
        node = range_texts(schema, &form->min, &form->max, types == JSCHEMA_INTEGER, digits_beside(schema, form));
        if (types == JSCHEMA_FRACTION)
            node = without_integers(schema, node);
        if (needs_one_text && types & JSCHEMA_FRACTION)
            node = jschema_both(schema, node, without_end_zeros(schema));
    }
    if (has_divisor)
        node = apply_divisors(schema, form, node);
    others = number_texts_of(schema, form, form->not_values, form->not_value_count);
    if (others != schema->nothing)
        node = jschema_without(schema, node, others);
    return node;
}
