// text.c: JSON's own texts: values of any kind, strings, white space, and what is counted.
//
// Counting by copies takes as many states as the count. Large counts are made of blocks of 32, those of blocks of 32 and so on, each a rule: 0 to
// 1000 is at most 30 whole blocks of 32 and up to 31 more, or 31 blocks and up to 8 more.
#include <stdio.h>
#include <string.h>

#include "common/grammar/fsa.h"
#include "common/schema/internal.h"

enum { BLOCK = 32, DIRECT = 64, INDENT = 64, STATES_OF_OPERATION = 16 };

uint32_t jschema_optional(struct jschema *schema, uint32_t node) { return grammar_repeat(schema->builder, node, 0, 1); }

uint32_t jschema_class(struct jschema *schema, const char *bytes)
{
    struct grammar_range ranges[64];
    uint32_t count = 0;

    for (; *bytes && count < 64; bytes++) {
        bool is_range = bytes[1] == '-' && bytes[2];
        ranges[count++] = (struct grammar_range){(unsigned char)bytes[0], (unsigned char)(is_range ? bytes[2] : bytes[0])};
        bytes += is_range ? 2 : 0;
    }
    return grammar_chars(schema->builder, ranges, count, false);
}

uint32_t jschema_rule(struct jschema *schema, const char *name, uint32_t node)
{
    if (jschema_failed(schema) || node == schema->nothing)
        return schema->nothing;
    uint32_t rule = grammar_rule(schema->builder, name);
    grammar_rule_set(schema->builder, rule, node);
    return grammar_call(schema->builder, rule);
}

uint32_t jschema_shared(struct jschema *schema, const char *name, uint32_t node)
{
    if (jschema_failed(schema) || node <= GRAMMAR_NODE_EMPTY)
        return node;
    uint32_t rule = grammar_rule(schema->builder, name);
    grammar_rule_set(schema->builder, rule, node);
    grammar_rule_keep(schema->builder, rule);
    return grammar_call(schema->builder, rule);
}

bool jschema_has_sets(struct jschema *schema, uint32_t members)
{
    const bool has = members < 32 && (1u << members) <= JSCHEMA_MAX_SETS - schema->sets;

    schema->sets += has ? 1u << members : 0;
    return has;
}

bool jschema_charge(struct jschema *schema, uint32_t states)
{
    schema->operations += 1 + states / STATES_OF_OPERATION;
    if (schema->operations > JSCHEMA_MAX_OPERATIONS || grammar_builder_work(schema->builder) > JSCHEMA_MAX_BUILDER_WORK)
        grammar_builder_fail(schema->builder, STATUS_RESOURCE_EXHAUSTED,
                             "the schema has too many patterns, multiples and keys: use fewer, or additionalProperties: false");
    return !jschema_failed(schema);
}

// Counts an operation's result as well: what it cost was more than that.
static uint32_t charge_result(struct jschema *schema, uint32_t node)
{
    const struct grammar_fsa *made = grammar_node_fsa(schema->builder, node);

    if (made && !jschema_charge(schema, made->state_count))
        return schema->nothing;
    return node;
}

uint32_t jschema_both(struct jschema *schema, uint32_t a, uint32_t b)
{
    if (a == schema->nothing || b == schema->nothing || !jschema_charge(schema, 0))
        return schema->nothing;
    return charge_result(schema, grammar_both(schema->builder, a, b));
}

uint32_t jschema_without(struct jschema *schema, uint32_t a, uint32_t b)
{
    if (a == schema->nothing || b == schema->nothing)
        return a;
    return jschema_charge(schema, 0) ? charge_result(schema, grammar_without(schema->builder, a, b)) : schema->nothing;
}

bool jschema_is_nothing(struct jschema *schema, uint32_t node)
{
    return node == schema->nothing || grammar_is_empty(schema->builder, node);
}

// --- counts -------------------------------------------------------------------------------------------------------------

static uint32_t times_exactly(struct jschema *schema, uint32_t node, uint64_t count)
{
    if (count < DIRECT)
        return grammar_repeat(schema->builder, node, (uint32_t)count, (uint32_t)count);
    uint32_t block = jschema_rule(schema, "block", grammar_repeat(schema->builder, node, BLOCK, BLOCK));
    return JSCHEMA_SEQUENCE(schema, times_exactly(schema, block, count / BLOCK),
                            grammar_repeat(schema->builder, node, count % BLOCK, count % BLOCK));
}

static uint32_t times_up_to(struct jschema *schema, uint32_t node, uint64_t count)
{
    uint64_t size = BLOCK;
    uint32_t block = node, blocks = 0;

    if (count < DIRECT)
        return grammar_repeat(schema->builder, node, 0, (uint32_t)count);
    for (size = 1; size <= count / BLOCK; size *= BLOCK)
        block = jschema_rule(schema, "block", grammar_repeat(schema->builder, block, BLOCK, BLOCK));
    blocks = (uint32_t)(count / size);
    return JSCHEMA_EITHER(
        schema,
        JSCHEMA_SEQUENCE(schema, grammar_repeat(schema->builder, block, 0, blocks - 1), times_up_to(schema, node, size - 1)),
        JSCHEMA_SEQUENCE(schema, grammar_repeat(schema->builder, block, blocks, blocks), times_up_to(schema, node, count % size)));
}

uint32_t jschema_times(struct jschema *schema, uint32_t node, uint64_t min, uint64_t max)
{
    if (min > max || (node == schema->nothing && min > 0))
        return schema->nothing;
    if (node == schema->nothing)
        return grammar_empty(schema->builder);
    if (max < DIRECT)
        return grammar_repeat(schema->builder, node, (uint32_t)min, (uint32_t)max);
    if (max == UINT64_MAX)
        return JSCHEMA_SEQUENCE(schema, times_exactly(schema, node, min),
                                grammar_repeat(schema->builder, node, 0, GRAMMAR_NO_LIMIT));
    return JSCHEMA_SEQUENCE(schema, times_exactly(schema, node, min), times_up_to(schema, node, max - min));
}

// --- white space --------------------------------------------------------------------------------------------------------

uint32_t jschema_space(struct jschema *schema, char beside)
{
    bool is_inside = beside == ':' || beside == ',';
    uint32_t space, spaces;

    if (schema->options->space == GRAMMAR_SPACE_NONE || (schema->options->space == GRAMMAR_SPACE_ONE && !is_inside))
        return grammar_empty(schema->builder);
    space = jschema_optional(schema, grammar_text(schema->builder, " "));
    if (schema->options->space == GRAMMAR_SPACE_ONE || beside == ':')
        return space;
    if (!schema->line) {
        spaces = grammar_repeat(schema->builder, grammar_text(schema->builder, " "), 0, INDENT);
        schema->line = jschema_rule(schema, "line", JSCHEMA_SEQUENCE(schema, grammar_text(schema->builder, "\n"), spaces));
    }
    if (beside == ',')
        return JSCHEMA_EITHER(schema, space, schema->line);
    return jschema_optional(schema, schema->line);
}

// --- any value ----------------------------------------------------------------------------------------------------------

uint32_t jschema_any_character(struct jschema *schema)
{
    static const struct grammar_range not_plain[] = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};
    struct grammar_builder *builder = schema->builder;

    if (!schema->any_character) {
        uint32_t hex = jschema_class(schema, "0-9a-fA-F");
        uint32_t unit = JSCHEMA_EITHER(
            schema, JSCHEMA_SEQUENCE(schema, jschema_class(schema, "0-9a-cA-CefEF"), grammar_repeat(builder, hex, 3, 3)),
            JSCHEMA_SEQUENCE(schema, jschema_class(schema, "dD"), jschema_class(schema, "0-7"), grammar_repeat(builder, hex, 2, 2)),
            JSCHEMA_SEQUENCE(schema, jschema_class(schema, "dD"), jschema_class(schema, "89abAB"),
                             grammar_repeat(builder, hex, 2, 2), grammar_text(builder, "\\u"), jschema_class(schema, "dD"),
                             jschema_class(schema, "c-fC-F"), grammar_repeat(builder, hex, 2, 2)));
        uint32_t escape =
            JSCHEMA_EITHER(schema, jschema_class(schema, "\"\\/bfnrt"), JSCHEMA_SEQUENCE(schema, grammar_text(builder, "u"), unit));
        schema->any_character = jschema_rule(schema, "character",
                                             JSCHEMA_EITHER(schema, grammar_chars(builder, not_plain, 3, true),
                                                            JSCHEMA_SEQUENCE(schema, grammar_text(builder, "\\"), escape)));
    }
    return schema->any_character;
}

uint32_t jschema_any_string(struct jschema *schema)
{
    if (!schema->any_string) {
        uint32_t quote = grammar_text(schema->builder, "\"");
        uint32_t characters = grammar_repeat(schema->builder, jschema_any_character(schema), 0, GRAMMAR_NO_LIMIT);
        schema->any_string = jschema_rule(schema, "string", JSCHEMA_SEQUENCE(schema, quote, characters, quote));
    }
    return schema->any_string;
}

uint32_t jschema_any_content(struct jschema *schema)
{
    return grammar_repeat(schema->builder, grammar_chars(schema->builder, NULL, 0, true), 0, GRAMMAR_NO_LIMIT);
}

uint32_t jschema_quoted(struct jschema *schema, uint32_t content)
{
    uint32_t quote = grammar_text(schema->builder, "\"");

    if (content == schema->nothing || jschema_failed(schema))
        return schema->nothing;
    return JSCHEMA_SEQUENCE(schema, quote, grammar_json_escaped(schema->builder, content), quote);
}

uint32_t jschema_any_number(struct jschema *schema, bool integers)
{
    uint32_t *node = integers ? &schema->any_integer : &schema->any_number;
    struct grammar_builder *builder = schema->builder;

    if (!*node) {
        uint32_t digit = jschema_class(schema, "0-9"), minus = jschema_optional(schema, grammar_text(builder, "-"));
        uint32_t zero = grammar_text(builder, "0"), one = jschema_class(schema, "1-9");
        uint32_t whole = JSCHEMA_SEQUENCE(schema, one, grammar_repeat(builder, digit, 0, JSCHEMA_MAX_DIGITS - 1));
        if (integers) {
            *node = jschema_rule(schema, "integer", JSCHEMA_EITHER(schema, zero, JSCHEMA_SEQUENCE(schema, minus, whole)));
        } else {
            uint32_t fraction =
                JSCHEMA_SEQUENCE(schema, grammar_text(builder, "."), grammar_repeat(builder, digit, 1, JSCHEMA_MAX_FRACTION));
            uint32_t exponent = JSCHEMA_SEQUENCE(schema, jschema_class(schema, "eE"),
                                                 jschema_optional(schema, jschema_class(schema, "+-")),
                                                 grammar_repeat(builder, digit, 1, 2));
            *node = jschema_rule(schema, "number",
                                 JSCHEMA_SEQUENCE(schema, minus, JSCHEMA_EITHER(schema, zero, whole),
                                                  jschema_optional(schema, fraction), jschema_optional(schema, exponent)));
        }
    }
    return *node;
}

// Writes `open`, nothing or items with commas between them, and `close`.
static uint32_t list_of(struct jschema *schema, const char *open, uint32_t item, const char *close)
{
    struct grammar_builder *builder = schema->builder;
    uint32_t comma = JSCHEMA_SEQUENCE(schema, grammar_text(builder, ","), jschema_space(schema, ','), item);
    uint32_t items = JSCHEMA_SEQUENCE(schema, item, grammar_repeat(builder, comma, 0, GRAMMAR_NO_LIMIT));

    return JSCHEMA_SEQUENCE(schema, grammar_text(builder, open), jschema_space(schema, '{'), jschema_optional(schema, items),
                            jschema_space(schema, '}'), grammar_text(builder, close));
}

uint32_t jschema_any_value(struct jschema *schema)
{
    struct grammar_builder *builder = schema->builder;

    if (!schema->any_value && !jschema_failed(schema)) {
        uint32_t rule = grammar_rule(builder, "value");
        schema->any_value = grammar_call(builder, rule);
        grammar_rule_set(builder, rule,
                         JSCHEMA_EITHER(schema, jschema_any_object(schema), jschema_any_array(schema), jschema_any_string(schema),
                                        jschema_any_number(schema, false), grammar_text(builder, "true"),
                                        grammar_text(builder, "false"), grammar_text(builder, "null")));
    }
    return schema->any_value;
}

uint32_t jschema_any_object(struct jschema *schema)
{
    if (!schema->any_object && !jschema_failed(schema)) {
        uint32_t pair = JSCHEMA_SEQUENCE(schema, jschema_any_string(schema), grammar_text(schema->builder, ":"),
                                         jschema_space(schema, ':'), jschema_any_value(schema));
        if (!schema->any_object) // the value's rule has made it
            schema->any_object = jschema_rule(schema, "object", list_of(schema, "{", pair, "}"));
    }
    return schema->any_object;
}

uint32_t jschema_any_array(struct jschema *schema)
{
    if (!schema->any_array && !jschema_failed(schema)) {
        uint32_t value = jschema_any_value(schema);
        if (!schema->any_array)
            schema->any_array = jschema_rule(schema, "array", list_of(schema, "[", value, "]"));
    }
    return schema->any_array;
}

// --- scalars ------------------------------------------------------------------------------------------------------------

static const char *string_text(struct jschema *schema, const json_t *value, size_t *bytes)
{
    static const char short_escapes[] = "\bb\ff\nn\rr\tt\"\"\\\\";
    const char *from = json_string_value(value), *found;
    size_t count = json_string_length(value);
    char *text = jschema_take(schema, 6 * count + 3, 1), *out = text;

    if (!text)
        return NULL;
    *out++ = '"';
    for (size_t i = 0; i < count; i++) {
        found = NULL;
        for (const char *pair = short_escapes; *pair && !found; pair += 2)
            if (*pair == from[i])
                found = pair + 1;
        if (found)
            out += sprintf(out, "\\%c", *found);
        else if ((unsigned char)from[i] < 0x20)
            out += sprintf(out, "\\u%04x", (unsigned)from[i]);
        else
            *out++ = from[i];
    }
    *out++ = '"';
    *bytes = (size_t)(out - text);
    return text;
}

const char *jschema_scalar_text(struct jschema *schema, const json_t *value, size_t *bytes)
{
    const char *text = json_is_true(value) ? "true" : json_is_false(value) ? "false" : "null";

    if (json_is_string(value))
        return string_text(schema, value, bytes);
    if (json_text_is_number(value)) {
        struct jschema_decimal decimal = jschema_decimal_of(value);
        char *number = jschema_take(schema, JSCHEMA_DECIMAL_BYTES, 1);
        if (number)
            jschema_decimal_text(&decimal, number);
        text = number;
    }
    *bytes = text ? strlen(text) : 0;
    return text;
}
