// grammar_schema_object.c: objects: the declared properties in their order, each of which may be left out unless it is required, then others.
//
// With r the first required property, what comes before it brings its comma behind, and what follows before:
//
//     (a ,)? (b ,)? r (, c)? , s (, x)*
//
// Without a required property, or where properties are counted, a rule for each property and number of properties so far says what may follow:
//
//     tail(i, n) = (, p_i tail(i + 1, n + 1)) | tail(i + 1, n)        the comma unless n = 0
//
// which is linear: n is only told apart as far as it matters (0 or not, if nothing is counted).
#include <string.h>

#include "common/grammar/grammar_schema_internal.h"

enum { MAX_GRID = 1 << 12, COST = 80 };

struct property {
    uint32_t pair;
    bool is_required;
};

struct object {
    struct jschema *schema;
    const struct jschema_form *form;
    struct property *properties;
    uint32_t count, required_count, comma, others; // others: pairs with keys that are not declared; nothing: none
    uint64_t min, max;
    uint32_t columns; // of tails; the last number of properties stands for all greater ones, unless they are limited
    bool is_limited;  // max counts
    uint32_t *tails;  // [count + 1][columns]
    bool *is_made;
};

static uint32_t pair_of(struct jschema *schema, uint32_t key, uint32_t value)
{
    return JSCHEMA_SEQUENCE(schema, key, grammar_text(schema->builder, ":"), jschema_space(schema, ':'), value);
}

// Reads the declared properties. Returns false if a required one cannot be there.
static bool read_properties(struct object *object, const struct jschema_keys *keys)
{
    struct jschema *schema = object->schema;

    object->properties = jschema_take(schema, keys->declared_count, sizeof *object->properties);
    for (uint32_t i = 0; object->properties && i < keys->declared_count && jschema_work(schema, COST); i++) {
        const char *key = keys->declared[i], *text;
        bool is_required = jschema_requires(object->form, key);
        uint32_t value = schema->compile(schema, jschema_property(schema, keys, key));
        size_t bytes;
        json_t *string;
        if (value == schema->nothing && is_required)
            return false;
        if (value == schema->nothing)
            continue;
        string = json_string(key);
        text = string ? jschema_scalar_text(schema, string, &bytes) : NULL;
        json_decref(string);
        if (!text)
            return false;
        object->properties[object->count++] =
            (struct property){pair_of(schema, grammar_bytes(schema->builder, text, bytes), value), is_required};
        object->required_count += is_required;
    }
    return !jschema_failed(schema);
}

static void read_others(struct object *object, const struct jschema_keys *keys)
{
    struct jschema *schema = object->schema;

    object->others = schema->nothing;
    for (uint32_t matched = 0; matched < 1u << keys->pattern_count && !jschema_failed(schema); matched++) {
        uint32_t value = schema->compile(schema, jschema_additional(schema, keys, matched)), texts;
        if (value == schema->nothing)
            continue;
        texts = jschema_additional_keys(schema, keys, matched);
        if (texts != schema->nothing)
            object->others = JSCHEMA_EITHER(schema, object->others, pair_of(schema, texts, value));
    }
}

// --- the two forms -----------------------------------------------------------------------------------------------------------

static uint32_t write_simple(const struct object *object)
{
    struct jschema *schema = object->schema;
    uint32_t *parts = jschema_take(schema, object->count + 1, sizeof *parts), pair;
    bool is_behind = false;

    if (!parts)
        return schema->nothing;
    for (uint32_t i = 0; i < object->count; i++) {
        const struct property *property = &object->properties[i];
        if (is_behind)
            pair = JSCHEMA_SEQUENCE(schema, object->comma, property->pair);
        else
            pair = property->is_required ? property->pair : JSCHEMA_SEQUENCE(schema, property->pair, object->comma);
        parts[i] = property->is_required ? pair : jschema_optional(schema, pair);
        is_behind |= property->is_required;
    }
    parts[object->count] = grammar_empty(schema->builder);
    if (object->others != schema->nothing)
        parts[object->count] = jschema_times(schema, JSCHEMA_SEQUENCE(schema, object->comma, object->others), 0, UINT64_MAX);
    return grammar_sequence(schema->builder, parts, object->count + 1);
}

// What may follow all declared properties, n of which were there.
static uint32_t write_others(const struct object *object, uint32_t n)
{
    struct jschema *schema = object->schema;
    uint64_t min = object->min > n ? object->min - n : 0, max = object->is_limited ? object->max - n : UINT64_MAX;
    uint32_t next, first;

    if (object->others == schema->nothing)
        return min == 0 ? grammar_empty(schema->builder) : schema->nothing;
    next = JSCHEMA_SEQUENCE(schema, object->comma, object->others);
    if (n > 0 || max == 0)
        return jschema_times(schema, next, min, max);
    first =
        JSCHEMA_SEQUENCE(schema, object->others, jschema_times(schema, next, min ? min - 1 : 0, max == UINT64_MAX ? max : max - 1));
    return min == 0 ? jschema_optional(schema, first) : first;
}

static uint32_t tail(struct object *object, uint32_t i, uint32_t n) { return object->tails[i * object->columns + n]; }

static void make_tail(struct object *object, uint32_t i, uint32_t n)
{
    struct jschema *schema = object->schema;
    const struct property *property = &object->properties[i];
    uint32_t options[2] = {schema->nothing, schema->nothing}, more = n + 1 < object->columns ? n + 1 : n, node;

    if (i == object->count) {
        node = write_others(object, n);
    } else {
        if (!(object->is_limited && n >= object->max))
            options[0] = JSCHEMA_SEQUENCE(schema, n ? object->comma : grammar_empty(schema->builder), property->pair,
                                          tail(object, i + 1, more));
        if (!property->is_required)
            options[1] = tail(object, i + 1, n);
        node = grammar_either(schema->builder, options, 2);
    }
    object->tails[i * object->columns + n] = node <= 1 ? node : jschema_rule(schema, "properties", node);
}

static uint32_t write_counted(struct object *object)
{
    struct jschema *schema = object->schema;
    uint64_t columns = (object->is_limited ? object->max : object->min > 1 ? object->min : 1) + 1;

    if (columns > object->count + 2u && !object->is_limited)
        columns = object->count + 2u;
    if (columns > MAX_GRID || (object->count + 1) * columns > MAX_GRID)
        return jschema_fail(schema, object->form->leaves.ids[0], NULL, STATUS_UNIMPLEMENTED,
                            "minProperties and maxProperties are supported only beside few properties");
    object->columns = (uint32_t)columns;
    object->tails = jschema_take(schema, (object->count + 1) * columns, sizeof *object->tails);
    if (!object->tails)
        return schema->nothing;
    for (uint32_t i = 0; i < object->count; i++) // they come in several tails
        object->properties[i].pair = jschema_rule(schema, "property", object->properties[i].pair);
    for (uint32_t i = object->count + 1; i-- > 0;)
        for (uint32_t n = 0; n < object->columns && n <= i + 0u; n++)
            make_tail(object, i, n);
    return tail(object, 0, 0);
}

static bool has_object_keyword(struct jschema *schema, const struct jschema_form *form)
{
    static const char *const keywords[] = {"properties", "additionalProperties", "patternProperties", "propertyNames"};

    for (uint32_t i = 0; i < form->leaves.count; i++)
        for (int k = 0; k < 4; k++)
            if (jschema_get(schema, form->leaves.ids[i], keywords[k]))
                return true;
    return form->required_count > 0 || form->min_properties > 0 || form->max_properties != UINT64_MAX;
}

uint32_t jschema_object(struct jschema *schema, const struct jschema_form *form)
{
    struct grammar_builder *builder = schema->builder;
    struct object object = {.schema = schema, .form = form, .min = form->min_properties, .max = form->max_properties};
    struct jschema_keys keys;
    uint32_t body;

    if (!has_object_keyword(schema, form))
        return jschema_any_object(schema);
    keys = jschema_keys_of(schema, form);
    if (jschema_failed(schema) || !read_properties(&object, &keys))
        return schema->nothing;
    keys.is_closed &= schema->options->is_strict || object.count >= object.min; // closing alone must not leave nothing
    read_others(&object, &keys);
    if (jschema_failed(schema) || object.required_count > object.max)
        return schema->nothing;
    // A key that is not declared could come twice, which makes one property: only the first is sure to count.
    if (object.others != schema->nothing && object.min > object.required_count + 1u)
        return jschema_fail(schema, form->leaves.ids[0], "minProperties", STATUS_UNIMPLEMENTED,
                            "a grammar cannot tell whether keys are equal: use required, or additionalProperties: false");
    object.is_limited = object.max != UINT64_MAX && (object.others != schema->nothing || object.max < object.count);
    object.comma = JSCHEMA_SEQUENCE(schema, grammar_text(builder, ","), jschema_space(schema, ','));
    body = object.required_count > 0 && object.min <= object.required_count && !object.is_limited ? write_simple(&object)
                                                                                                  : write_counted(&object);
    return JSCHEMA_SEQUENCE(schema, grammar_text(builder, "{"), jschema_space(schema, '{'), body, jschema_space(schema, '}'),
                            grammar_text(builder, "}"));
}
