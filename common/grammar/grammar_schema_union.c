// grammar_schema_union.c: oneOf, as an anyOf whose alternatives exclude each other.
//
// Most unions exclude each other as they are: by type, by the const of a required property. Where a pair of alternatives might hold at once, each
// is taken without the other ("not"); where that cannot be said, the schema is refused. With OpenAPI's discriminator the property that it
// names is required: without it a reader could not tell what the value is.
#include <stdlib.h>
#include <string.h>

#include "common/grammar/grammar_schema_internal.h"

struct text {
    const char *bytes;
    size_t count;
};

static int compare_texts(const void *left, const void *right)
{
    const struct text *a = left, *b = right;
    int order = memcmp(a->bytes, b->bytes, a->count < b->count ? a->count : b->count);

    return order ? order : (a->count > b->count) - (a->count < b->count);
}

// Whether each alternative has a const of its own, without looking at pairs: lists of choices with titles may be long.
static bool has_different_consts(struct jschema *schema, const json_t *alternatives)
{
    size_t count = json_array_size(alternatives);
    struct text *texts = jschema_take(schema, count, sizeof *texts);

    for (size_t i = 0; texts && i < count; i++) {
        const json_t *value = json_object_get(json_array_get(alternatives, i), "const");
        if (!value || json_is_array(value) || json_is_object(value))
            return false;
        texts[i].bytes = jschema_scalar_text(schema, value, &texts[i].count);
        if (!texts[i].bytes)
            return false;
    }
    if (!texts)
        return false;
    qsort(texts, count, sizeof *texts, compare_texts);
    for (size_t i = 1; i < count; i++)
        if (compare_texts(&texts[i - 1], &texts[i]) == 0)
            return false;
    return true;
}

// The alternatives as an array that is the caller's, those of a discriminator with its property required.
static json_t *read_alternatives(struct jschema *schema, uint32_t entry)
{
    const json_t *value = jschema_get(schema, entry, "oneOf"), *discriminator = jschema_get(schema, entry, "discriminator");
    const char *property = json_string_value(json_object_get(discriminator, "propertyName"));
    json_t *alternatives, *item;
    size_t i;

    if (!json_is_array(value) || json_array_size(value) == 0 || json_array_size(value) > JSCHEMA_MAX_OPTIONS) {
        jschema_fail(schema, entry, "oneOf", STATUS_INVALID_ARGUMENT, "must be a list of 1 to %u schemas", JSCHEMA_MAX_OPTIONS);
        return NULL;
    }
    alternatives = json_array();
    json_array_foreach (value, i, item) {
        if (!json_is_object(item) && !json_is_boolean(item))
            jschema_fail(schema, entry, "oneOf", STATUS_INVALID_ARGUMENT, "must have schemas: objects, true or false");
        if (property)
            json_array_append_new(alternatives, json_pack("{s:[O, {s:[s]}]}", "allOf", item, "required", property));
        else
            json_array_append(alternatives, item);
    }
    return alternatives;
}

static uint32_t entry_of(struct jschema *schema, uint32_t entry, const json_t *alternative)
{
    return jschema_add_entry(schema, alternative, entry, "oneOf");
}

// Alternative i without those that may hold at once with it.
static json_t *exclude(struct jschema *schema, uint32_t entry, const json_t *alternatives, const uint32_t *ids, uint32_t i)
{
    uint32_t count = (uint32_t)json_array_size(alternatives);
    json_t *alternative = json_array_get(alternatives, i), *all = NULL;

    for (uint32_t k = 0; k < count && !jschema_failed(schema); k++) {
        uint32_t pair[2] = {ids[i], ids[k]};
        const char *reason;
        if (k == i || schema->is_empty(schema, (struct jschema_set){ids[i] == ids[k] ? 1 : 2, pair}, 0))
            continue;
        json_t *negation = jschema_failed(schema) ? NULL : jschema_negation(schema, ids[k], &reason);
        if (!negation && !jschema_failed(schema))
            jschema_fail(schema, entry, "oneOf", STATUS_UNIMPLEMENTED,
                         "alternatives %u and %u may hold at once, and what is not valid under %s cannot be said by a grammar: "
                         "use anyOf, or a required property with a const in each",
                         i < k ? i : k, i < k ? k : i, reason);
        json_decref(negation);
        if (!all)
            all = json_pack("[O]", alternative);
        json_array_append_new(all, json_pack("{s:O}", "not", json_array_get(alternatives, k)));
    }
    return all ? json_pack("{s:o}", "allOf", all) : json_incref(alternative);
}

json_t *jschema_one_of(struct jschema *schema, uint32_t entry)
{
    json_t *alternatives = read_alternatives(schema, entry), *any;
    uint32_t count = (uint32_t)json_array_size(alternatives), *ids;

    if (!alternatives || jschema_failed(schema) || count == 1 || has_different_consts(schema, alternatives))
        return alternatives ? json_pack("{s:o}", "anyOf", alternatives) : NULL;
    ids = jschema_take(schema, count, sizeof *ids);
    json_array_append(schema->made, alternatives); // its own are entries from now on
    for (uint32_t i = 0; ids && i < count; i++)
        ids[i] = entry_of(schema, entry, json_array_get(alternatives, i));
    any = json_array();
    for (uint32_t i = 0; ids && i < count && !jschema_failed(schema); i++)
        json_array_append_new(any, exclude(schema, entry, alternatives, ids, i));
    json_decref(alternatives);
    return json_pack("{s:o}", "anyOf", any);
}
