// grammar_schema_number.c: numbers: JSON's, within bounds, multiples, and choices of them.
//
// One text of a value is enough: integers are written without a fraction, and numbers that are limited in any way without an exponent. Values with
// more digits than JSCHEMA_MAX_DIGITS and JSCHEMA_MAX_FRACTION have no text.
//
// Multiples of m x 10^e are found by a remainder: an automaton whose state is the value of the digits so far, modulo m.
#include <stdlib.h>
#include <string.h>

#include "common/grammar/grammar_builder_state.h"
#include "common/grammar/grammar_schema_internal.h"

enum { MAX_STATES = 1 << 12, MIN_DIGITS = 6, MAX_PLACES = 16 };

// --- multiples ---------------------------------------------------------------------------------------------------------------

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

// Texts whose digits, as far as they go, are multiples. That they are numbers is for others to see to.
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

// --- all together ------------------------------------------------------------------------------------------------------------

static bool keeps_bounds(const struct jschema_form *form, const struct jschema_decimal *value)
{
    int low = form->min.is_set ? jschema_decimal_compare(value, &form->min.value) : 1;
    int high = form->max.is_set ? jschema_decimal_compare(value, &form->max.value) : -1;

    return (low > 0 || (low == 0 && !form->min.is_exclusive)) && (high < 0 || (high == 0 && !form->max.is_exclusive));
}

static uint32_t texts_of(struct jschema *schema, const struct jschema_form *form, const json_t **values, uint32_t count)
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

// Texts without a zero at the end of a fraction, so that a value has one text.
static uint32_t canonical(struct jschema *schema)
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

// How many digits a number may have so that the product with all remainders stays bearable.
static uint32_t digits_beside(struct jschema *schema, const struct jschema_form *form)
{
    const struct jschema_bound *bounds[] = {&form->min, &form->max};
    uint32_t digits = JSCHEMA_MAX_DIGITS, states = 2; // of both signs
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
        node = texts_of(schema, form, form->values, form->value_count);
    } else if (!is_limited && types & JSCHEMA_INTEGER) {
        return jschema_any_number(schema, types == JSCHEMA_INTEGER);
    } else {
        node = jschema_range(schema, &form->min, &form->max, types == JSCHEMA_INTEGER, digits_beside(schema, form));
        if (types == JSCHEMA_FRACTION)
            node = without_integers(schema, node);
        if (needs_one_text && types & JSCHEMA_FRACTION)
            node = jschema_both(schema, node, canonical(schema));
    }
    if (has_divisor)
        node = apply_divisors(schema, form, node);
    others = texts_of(schema, form, form->not_values, form->not_value_count);
    if (others != schema->nothing)
        node = jschema_without(schema, node, others);
    return node;
}
