// grammar_schema_union.c: oneOf, as an anyOf whose alternatives exclude each other.
//
// Most unions exclude each other as they are: by type, by the const of a required property. Where a pair of alternatives might hold at once, each
// is taken without the other ("not"); where that cannot be said, the schema is refused. With OpenAPI's discriminator the property that it
// names is required: without it a reader could not tell what the value is.
#include <stdlib.h>
#include <string.h>

#include "common/grammar/grammar_schema_internal.h"

enum { MAX_HOPS = 8, MAX_KEYS = 8 };

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

static bool are_different(struct text *texts, size_t count)
{
    qsort(texts, count, sizeof *texts, compare_texts);
    for (size_t i = 1; i < count; i++)
        if (compare_texts(&texts[i - 1], &texts[i]) == 0)
            return false;
    return true;
}

// Whether each alternative has a const of its own, without looking at pairs: lists of choices with titles may be long.
static bool has_different_consts(struct jschema *schema, const json_t *alternatives)
{
    size_t count = json_array_size(alternatives);
    struct text *texts = jschema_take(schema, count, sizeof *texts);

    for (size_t i = 0; texts && i < count; i++) {
        const json_t *value = json_object_get(json_array_get(alternatives, i), "const");
        if (!value || json_is_array(value) || json_text_is_object(value))
            return false;
        texts[i].bytes = jschema_scalar_text(schema, value, &texts[i].count);
        if (!texts[i].bytes)
            return false;
    }
    return texts && are_different(texts, count);
}

// --- tags ------------------------------------------------------------------------------------------------------------------

// What an alternative refers to, if it does nothing but that.
static const json_t *resolved(struct jschema *schema, const json_t *alternative)
{
    for (int hops = 0; hops < MAX_HOPS && json_is_string(json_object_get(alternative, "$ref")) && !jschema_failed(schema); hops++) {
        uint32_t target =
            jschema_resolve(schema, jschema_entry_of(schema, alternative), json_string_value(json_object_get(alternative, "$ref")));
        alternative = schema->entries[target].value;
    }
    return alternative;
}

static bool lists(struct jschema *schema, const json_t *required, const char *key)
{
    json_t *item;
    size_t i;

    if (!jschema_work(schema, 1 + (uint32_t)json_array_size(required) / 16))
        return false;
    json_array_foreach (required, i, item)
        if (json_is_string(item) && strcmp(json_string_value(item), key) == 0)
            return true;
    return false;
}

struct tags {
    struct text *texts;
    uint32_t count, capacity;
};

static bool add_tag(struct jschema *schema, struct tags *tags, const json_t *value)
{
    struct text text = {0};

    if (json_is_array(value) || json_text_is_object(value) || !jschema_work(schema, 1) ||
        !jschema_grow(schema, &tags->texts, tags->count, &tags->capacity, sizeof text))
        return false;
    text.bytes = jschema_scalar_text(schema, value, &text.count);
    tags->texts[tags->count++] = text;
    return text.bytes != NULL;
}

// Adds what an alternative, which must be an object, has under a key that it requires: a const, or an enum of few.
static bool add_tags(struct jschema *schema, struct tags *tags, const json_t *alternative, const char *key, bool is_required)
{
    const json_t *object = resolved(schema, alternative), *type = json_object_get(object, "type");
    const json_t *property = json_object_get(json_object_get(object, "properties"), key),
                 *values = json_object_get(property, "enum");
    const json_t *value = json_object_get(property, "const");
    json_t *item;
    size_t i;

    if (!json_is_string(type) || strcmp(json_string_value(type), "object") != 0 ||
        (!is_required && !lists(schema, json_object_get(object, "required"), key)))
        return false;
    if (value)
        return add_tag(schema, tags, value);
    json_array_foreach (values, i, item)
        if (!add_tag(schema, tags, item))
            return false;
    return json_array_size(values) > 0;
}

// Whether the alternatives are objects that are told apart by the value of a property, without looking at pairs: unions of many are common.
static bool have_different_tags(struct jschema *schema, const json_t *alternatives, const char *discriminator)
{
    const json_t *required = json_object_get(resolved(schema, json_array_get(alternatives, 0)), "required");
    json_t *alternative;
    size_t k = 0, i;

    for (const char *key = discriminator ? discriminator : json_string_value(json_array_get(required, 0)); key && k < MAX_KEYS;) {
        struct tags tags = {0};
        bool differ = true;
        json_array_foreach (alternatives, i, alternative)
            differ = differ && add_tags(schema, &tags, alternative, key, discriminator != NULL);
        if (differ && are_different(tags.texts, tags.count))
            return true;
        key = discriminator ? NULL : json_string_value(json_array_get(required, ++k));
    }
    return false;
}

// --- oneOf -----------------------------------------------------------------------------------------------------------------

// The alternatives as an array that is the caller's, those of a discriminator with its property required.
static json_t *read_alternatives(struct jschema *schema, uint32_t entry, const char *property)
{
    const json_t *value = jschema_get(schema, entry, "oneOf");
    json_t *alternatives, *item;
    size_t i;

    if (!json_is_array(value) || json_array_size(value) == 0 || json_array_size(value) > JSCHEMA_MAX_OPTIONS) {
        jschema_fail(schema, entry, "oneOf", STATUS_INVALID_ARGUMENT, "must be a list of 1 to %u schemas", JSCHEMA_MAX_OPTIONS);
        return NULL;
    }
    alternatives = json_array();
    json_array_foreach (value, i, item) {
        if (!json_text_is_object(item) && !json_is_boolean(item))
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
    const char *discriminator = json_string_value(json_object_get(jschema_get(schema, entry, "discriminator"), "propertyName"));
    json_t *alternatives = read_alternatives(schema, entry, discriminator), *any;
    uint32_t count = (uint32_t)json_array_size(alternatives), *ids;

    if (!alternatives || jschema_failed(schema) || count == 1 || has_different_consts(schema, alternatives) ||
        have_different_tags(schema, jschema_get(schema, entry, "oneOf"), discriminator))
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
