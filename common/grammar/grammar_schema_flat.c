// grammar_schema_flat.c: works off what schemas apply in place, so that a set of schemas becomes variants, of which only the other keywords count.
//
//     {A: {"$ref": B, "minLength": 2}, B: {"anyOf": [C, D], "type": "string"}}      flatten({A}) = {A, B, C}, {A, B, D}
//
// Schemas are added one by one; each anyOf that comes up is put aside, and when nothing else is left each of its alternatives is tried, with
// those put aside behind it. A variant is dropped as soon as its types exclude each other, so that unions by type do not multiply. A schema that
// has no keyword of its own that counts is no member of a variant, which lets places share what they refer to.
#include <string.h>

#include "common/grammar/grammar_schema_internal.h"

struct chain { // of schemas that apply each other in place
    uint32_t entry, length;
    const struct chain *up;
};

struct choice {
    uint32_t entry;
    const json_t *alternatives;
    struct chain chain;
};

struct run {
    struct jschema *schema;
    uint32_t number; // of the run, for entry->seen
    uint32_t types;
    uint32_t *leaves, leaf_count, leaf_capacity;
    struct undo {
        uint32_t entry, seen;
    } * undo;
    uint32_t undo_count, undo_capacity;
    struct choice *choices;
    uint32_t choice_count, choice_capacity;
    struct jschema_variants found;
    uint32_t found_capacity;
};

// What a keyword does, in ascending order of names. Others are annotations.
enum effect { LEAF, ALL_OF, ANY_OF, REFERENCE, REWRITTEN, REWRITTEN_VALUE, REFUSED };
static const struct effect_of {
    const char *keyword;
    enum effect effect;
} effects[] = {
    {"$dynamicRef", REFUSED},
    {"$not", LEAF},
    {"$recursiveRef", REFUSED},
    {"$ref", REFERENCE},
    {"$some", LEAF},
    {"additionalItems", LEAF},
    {"additionalProperties", LEAF},
    {"allOf", ALL_OF},
    {"anyOf", ANY_OF},
    {"const", REWRITTEN_VALUE},
    {"contains", LEAF},
    {"dependencies", REWRITTEN},
    {"dependentRequired", REWRITTEN},
    {"dependentSchemas", REWRITTEN},
    {"enum", REWRITTEN_VALUE},
    {"exclusiveMaximum", LEAF},
    {"exclusiveMinimum", LEAF},
    {"format", LEAF},
    {"if", REWRITTEN},
    {"items", LEAF},
    {"maxItems", LEAF},
    {"maxLength", LEAF},
    {"maxProperties", LEAF},
    {"maximum", LEAF},
    {"minItems", LEAF},
    {"minLength", LEAF},
    {"minProperties", LEAF},
    {"minimum", LEAF},
    {"multipleOf", LEAF},
    {"not", REWRITTEN},
    {"oneOf", REWRITTEN},
    {"pattern", LEAF},
    {"patternProperties", LEAF},
    {"prefixItems", LEAF},
    {"properties", LEAF},
    {"propertyNames", LEAF},
    {"required", LEAF},
    {"type", LEAF},
    {"unevaluatedItems", REFUSED},
    {"unevaluatedProperties", REFUSED},
    {"uniqueItems", LEAF},
};

static int compare_effects(const void *key, const void *row) { return strcmp(key, ((const struct effect_of *)row)->keyword); }

// --- adding ----------------------------------------------------------------------------------------------------------------

static void add(struct run *run, uint32_t entry, const struct chain *up);

static void add_child(struct run *run, const json_t *child, const struct chain *chain, const char *keyword)
{
    if (!json_text_is_object(child) && !json_is_boolean(child))
        jschema_fail(run->schema, chain->entry, keyword, STATUS_INVALID_ARGUMENT, "must have schemas: objects, true or false");
    else
        add(run, jschema_entry_of(run->schema, child), chain);
}

static bool has_complex_value(const json_t *values)
{
    json_t *item;
    size_t i;

    json_array_foreach (values, i, item)
        if (json_is_array(item) || json_text_is_object(item))
            return true;
    return json_text_is_object(values);
}

static void add_leaf(struct run *run, uint32_t entry)
{
    if (jschema_grow(run->schema, &run->leaves, run->leaf_count, &run->leaf_capacity, sizeof *run->leaves))
        run->leaves[run->leaf_count++] = entry;
}

static void put_aside(struct run *run, const struct chain *chain, const json_t *alternatives)
{
    struct choice choice = {chain->entry, alternatives, *chain};

    if (!json_is_array(alternatives) || json_array_size(alternatives) == 0 || json_array_size(alternatives) > JSCHEMA_MAX_OPTIONS) {
        jschema_fail(run->schema, chain->entry, "anyOf", STATUS_INVALID_ARGUMENT, "must be a list of 1 to %u schemas",
                     JSCHEMA_MAX_OPTIONS);
        return;
    }
    // The chain above lies on the stack of the caller, which has returned when the choice is made.
    struct chain *copy = jschema_take(run->schema, chain->length, sizeof *copy);
    for (uint32_t i = 0; copy && i < choice.chain.length; i++, chain = chain->up) {
        copy[i] = *chain;
        copy[i].up = chain->up ? &copy[i + 1] : NULL;
    }
    if (copy && jschema_grow(run->schema, &run->choices, run->choice_count, &run->choice_capacity, sizeof choice)) {
        choice.chain = copy[0];
        run->choices[run->choice_count++] = choice;
    }
}

// Does what a keyword does. Returns whether it makes the schema a leaf.
static bool add_keyword(struct run *run, const struct chain *chain, const char *keyword, const json_t *value)
{
    const struct effect_of *row = bsearch(keyword, effects, sizeof effects / sizeof effects[0], sizeof effects[0], compare_effects);
    struct jschema *schema = run->schema;
    json_t *child;
    size_t i;

    if (!row || (keyword[0] == '$' && row->effect == LEAF && !schema->entries[chain->entry].is_made))
        return false;
    switch (row->effect) {
    case LEAF: return true;
    case ALL_OF:
        if (!json_is_array(value))
            jschema_fail(schema, chain->entry, keyword, STATUS_INVALID_ARGUMENT, "must be a list of schemas");
        json_array_foreach (value, i, child)
            add_child(run, child, chain, keyword);
        return false;
    case ANY_OF: put_aside(run, chain, value); return false;
    case REFERENCE:
        if (!json_is_string(value))
            jschema_fail(schema, chain->entry, keyword, STATUS_INVALID_ARGUMENT, "must be a string");
        else
            add(run, jschema_resolve(schema, chain->entry, json_string_value(value)), chain);
        return false;
    case REWRITTEN_VALUE:
        if (!has_complex_value(value) && !(json_is_array(value) && strcmp(keyword, "const") == 0))
            return true;
        add(run, jschema_rewritten(schema, chain->entry, keyword), chain);
        return false;
    case REWRITTEN: add(run, jschema_rewritten(schema, chain->entry, keyword), chain); return false;
    case REFUSED: break;
    }
    if (json_is_true(value))
        return true;
    jschema_fail(schema, chain->entry, keyword, STATUS_UNIMPLEMENTED, "is not supported; %s",
                 row->keyword[0] == '$' ? "use $ref" : "use additionalProperties or items where the properties or items are");
    return false;
}

static void add(struct run *run, uint32_t entry, const struct chain *up)
{
    struct jschema *schema = run->schema;
    struct chain chain = {entry, up ? up->length + 1 : 1, up};
    bool is_leaf = false, is_added = false;
    const char *keyword;
    json_t *value;

    if (!jschema_work(schema, 1) || run->types == 0 || entry == JSCHEMA_NONE || entry == JSCHEMA_TRUE)
        return;
    if (entry == JSCHEMA_FALSE) {
        run->types = 0;
        return;
    }
    for (const struct chain *link = up; link; link = link->up)
        if (link->entry == entry || link->length > JSCHEMA_MAX_DEPTH) {
            jschema_fail(schema, entry, NULL, link->entry == entry ? STATUS_INVALID_ARGUMENT : STATUS_RESOURCE_EXHAUSTED,
                         link->entry == entry ? "the schema refers to itself without an end"
                                              : "schemas are applied in each other too often");
            return;
        }
    if (schema->entries[entry].seen == run->number)
        return;
    if (!jschema_grow(schema, &run->undo, run->undo_count, &run->undo_capacity, sizeof *run->undo))
        return;
    run->undo[run->undo_count++] = (struct undo){entry, schema->entries[entry].seen};
    schema->entries[entry].seen = run->number;
    run->types &= jschema_types(schema, entry);
    json_object_foreach ((json_t *)schema->entries[entry].value, keyword, value) {
        is_leaf |= add_keyword(run, &chain, keyword, value);
        if (is_leaf && !is_added && strcmp(keyword, "properties") == 0) { // keys come in the order of the text
            is_added = true;
            add_leaf(run, entry);
        }
        if (run->types == 0 || jschema_failed(schema))
            return;
    }
    if (is_leaf && !is_added)
        add_leaf(run, entry);
}

// --- variants ----------------------------------------------------------------------------------------------------------------

static void keep_variant(struct run *run)
{
    struct jschema *schema = run->schema;
    struct jschema_set set = {run->leaf_count, NULL};
    uint32_t *ids;

    for (uint32_t i = 0; i < run->found.count; i++)
        if (run->found.sets[i].count == set.count &&
            (set.count == 0 || memcmp(run->found.sets[i].ids, run->leaves, set.count * sizeof *set.ids) == 0))
            return;
    if (run->found.count == JSCHEMA_MAX_VARIANTS) {
        grammar_builder_fail(schema->builder, STATUS_RESOURCE_EXHAUSTED,
                             "#: alternatives combine in more than %u ways: simplify anyOf, oneOf or if", JSCHEMA_MAX_VARIANTS);
        return;
    }
    if (!(ids = jschema_take(schema, set.count, sizeof *ids)) || !jschema_work(schema, 1 + set.count) ||
        !jschema_grow(schema, &run->found.sets, run->found.count, &run->found_capacity, sizeof set))
        return;
    if (set.count)
        memcpy(ids, run->leaves, set.count * sizeof *ids);
    set.ids = ids;
    run->found.sets[run->found.count++] = set;
}

static void forget(struct run *run, uint32_t undo_count)
{
    while (run->undo_count > undo_count) {
        struct undo *undo = &run->undo[--run->undo_count];
        run->schema->entries[undo->entry].seen = undo->seen;
    }
}

// Makes the choices from `first` on, one by one.
static void choose(struct run *run, uint32_t first)
{
    uint32_t types = run->types, leaf_count = run->leaf_count, choice_count = run->choice_count, undo_count = run->undo_count;

    if (run->types == 0 || jschema_failed(run->schema))
        return;
    if (first == choice_count) {
        keep_variant(run);
        return;
    }
    struct choice choice = run->choices[first];
    if (first > JSCHEMA_MAX_DEPTH) {
        jschema_fail(run->schema, choice.entry, NULL, STATUS_RESOURCE_EXHAUSTED,
                     "more than %u alternatives are applied in one place", JSCHEMA_MAX_DEPTH);
        return;
    }
    for (size_t i = 0; i < json_array_size(choice.alternatives); i++) {
        add_child(run, json_array_get(choice.alternatives, i), &choice.chain, "anyOf");
        choose(run, first + 1);
        forget(run, undo_count);
        run->types = types;
        run->leaf_count = leaf_count;
        run->choice_count = choice_count;
    }
}

struct jschema_variants jschema_flatten(struct jschema *schema, struct jschema_set set)
{
    struct run run = {.schema = schema, .number = ++schema->runs, .types = JSCHEMA_ANY};

    for (uint32_t i = 0; i < set.count; i++)
        add(&run, set.ids[i], NULL);
    choose(&run, 0);
    forget(&run, 0);
    return run.found;
}
