// grammar_schema_string.c: strings: by length, pattern, format, and choices of them.
//
// Content is what a string says; patterns, formats and lengths are about that. Combined they are one regular language, whose characters are then
// written as JSON does: themselves, but for those that JSON wants escaped (grammar_escape.h). A string without pattern, format or choices may
// have any of JSON's escapes, each of which counts as one character.
#include <string.h>

#include "common/grammar/grammar_schema_internal.h"
#include "common/grammar/grammar_text.h"

uint32_t jschema_pattern(struct jschema *schema, const json_t *pattern, uint32_t entry, const char *keyword)
{
    uint32_t node = schema->nothing;

    if (jschema_charge(schema, 0))
        node = grammar_add_regex(schema->builder, json_string_value(pattern), json_string_length(pattern), false);
    jschema_blame(schema, entry, keyword);
    return node;
}

// What a pattern or format allows; `nothing`: it says nothing, *counts is false then.
static uint32_t content_of_term(struct jschema *schema, const struct jschema_term *term, bool *counts)
{
    *counts = true;
    if (strcmp(term->keyword, "pattern") == 0)
        return jschema_pattern(schema, term->value, term->entry, "pattern");
    if (strcmp(term->keyword, "format") == 0) {
        const char *name = json_string_value(term->value);
        switch (jschema_format_kind(name)) {
        case JSCHEMA_FORMAT_KNOWN: return jschema_format_content(schema, name);
        case JSCHEMA_FORMAT_REFUSED:
            return jschema_fail(schema, term->entry, "format", STATUS_UNIMPLEMENTED,
                                "\"%.40s\" cannot be said by a grammar: leave it out", name);
        case JSCHEMA_FORMAT_UNKNOWN: break;
        }
    }
    *counts = false;
    return schema->nothing;
}

static uint32_t contents_of_values(struct jschema *schema, const json_t **values, uint32_t count)
{
    uint32_t *nodes = jschema_take(schema, count, sizeof *nodes), node_count = 0;

    for (uint32_t i = 0; nodes && i < count; i++)
        if (json_is_string(values[i]))
            nodes[node_count++] = grammar_bytes(schema->builder, json_string_value(values[i]), json_string_length(values[i]));
    return nodes ? grammar_either(schema->builder, nodes, node_count) : schema->nothing;
}

struct lengths {
    uint64_t min, max;
};

static bool has_lengths(struct lengths lengths) { return lengths.min > 0 || lengths.max != UINT64_MAX; }

// The lengths that a form has, without what its format says anyway.
static struct lengths lengths_of(const struct jschema_form *form)
{
    struct lengths lengths = {form->min_length, form->max_length};
    uint64_t shortest, longest;

    for (uint32_t i = 0; i < form->term_count; i++) {
        if (strcmp(form->terms[i].keyword, "format") != 0 || form->terms[i].is_negative)
            continue;
        jschema_format_lengths(json_string_value(form->terms[i].value), &shortest, &longest);
        if (lengths.min <= shortest)
            lengths.min = 0;
        if (lengths.max >= longest)
            lengths.max = UINT64_MAX;
    }
    return lengths;
}

// Takes out of the content what patterns, formats and lengths do not allow. *is_narrow: they have said something so far.
static uint32_t apply_terms(struct jschema *schema, const struct jschema_form *form, uint32_t content, bool *is_narrow)
{
    struct lengths lengths = lengths_of(form);
    bool counts;

    for (int negative = 0; negative < 2; negative++)
        for (uint32_t i = 0; i < form->term_count; i++) {
            const struct jschema_term *term = &form->terms[i];
            uint32_t node;
            if (term->is_negative != negative)
                continue;
            node = content_of_term(schema, term, &counts);
            if (!counts)
                continue;
            if (negative)
                content = jschema_without(schema, content, node);
            else
                content = *is_narrow ? jschema_both(schema, content, node) : node;
            *is_narrow = true;
        }
    if (!has_lengths(lengths))
        return content;
    if (*is_narrow)
        return jschema_of_length(schema, form->leaves.ids[0], content, lengths.min, lengths.max);
    *is_narrow = true;
    return jschema_of_length(schema, form->leaves.ids[0], jschema_any_content(schema), lengths.min, lengths.max);
}

uint32_t jschema_string_content(struct jschema *schema, const struct jschema_form *form)
{
    bool is_narrow = form->has_values;
    uint32_t content, others;

    if (!(form->types & JSCHEMA_STRING) || form->min_length > form->max_length)
        return schema->nothing;
    content = form->has_values ? contents_of_values(schema, form->values, form->value_count) : jschema_any_content(schema);
    content = apply_terms(schema, form, content, &is_narrow);
    others = contents_of_values(schema, form->not_values, form->not_value_count);
    return others == schema->nothing ? content : jschema_without(schema, content, others);
}

// The texts of values, as they are.
static uint32_t texts_of_values(struct jschema *schema, const struct jschema_form *form)
{
    uint32_t *nodes = jschema_take(schema, form->value_count, sizeof *nodes), count = 0;

    for (uint32_t i = 0; nodes && i < form->value_count; i++) {
        size_t bytes;
        const char *text = json_is_string(form->values[i]) ? jschema_scalar_text(schema, form->values[i], &bytes) : NULL;
        if (text)
            nodes[count++] = grammar_bytes(schema->builder, text, bytes);
    }
    return nodes ? grammar_either(schema->builder, nodes, count) : schema->nothing;
}

uint32_t jschema_string(struct jschema *schema, const struct jschema_form *form)
{
    struct lengths lengths = lengths_of(form);
    bool is_long = has_lengths(lengths), is_narrow = false;
    uint32_t quote = grammar_text(schema->builder, "\""), term_count = 0;
    const char *format = NULL;

    if (!(form->types & JSCHEMA_STRING) || form->min_length > form->max_length)
        return schema->nothing;
    for (uint32_t i = 0; i < form->term_count; i++) {
        const struct jschema_term *term = &form->terms[i];
        bool is_format = strcmp(term->keyword, "format") == 0 &&
                         jschema_format_kind(json_string_value(term->value)) != JSCHEMA_FORMAT_UNKNOWN;
        if (!is_format && strcmp(term->keyword, "pattern") != 0)
            continue;
        is_narrow = true;
        term_count++;
        if (is_format && !term->is_negative && jschema_format_kind(json_string_value(term->value)) == JSCHEMA_FORMAT_KNOWN)
            format = json_string_value(term->value);
    }
    for (uint32_t i = 0; i < form->not_value_count; i++)
        if (json_is_string(form->not_values[i])) {
            is_narrow = true;
            term_count++;
        }
    if (format && term_count == 1 && !is_long && !form->has_values)
        return jschema_format_text(schema, format);
    if (format && term_count == 1 && !form->has_values && lengths.min == 0) {
        uint32_t texts = jschema_format_short_text(schema, format, lengths.max);
        if (texts != schema->nothing)
            return texts;
    }
    if (!is_narrow && form->has_values && !is_long)
        return texts_of_values(schema, form);
    if (!is_narrow && !form->has_values && !is_long)
        return jschema_any_string(schema);
    if (!is_narrow && !form->has_values)
        return JSCHEMA_SEQUENCE(schema, quote,
                                jschema_times(schema, jschema_any_character(schema), form->min_length, form->max_length), quote);
    return jschema_quoted(schema, jschema_string_content(schema, form));
}
