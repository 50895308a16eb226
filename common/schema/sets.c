// sets.c: what sets of schemas say: which variants they have, what these ask of items and properties, and whether any value is valid at all.
//
// Keywords that apply schemas in place are worked off, so that a set becomes variants, of which only the other keywords count:
//
//     {A: {"$ref": B, "minLength": 2}, B: {"anyOf": [C, D], "type": "string"}}      flatten({A}) = {A, B, C}, {A, B, D}
//
// Schemas are added one by one; each anyOf that comes up is put aside, and when nothing else is left each of its alternatives is tried, with
// those put aside behind it. A variant is dropped as soon as its types exclude each other, so that unions by type do not multiply. A schema that
// has no keyword of its own that counts is no member of a variant, which lets places share what they refer to.
//
// A oneOf is rewritten into alternatives that exclude each other, for which it has to be known whether two of them can hold at once: whether the
// set of both is empty, which its own variants tell.
#include <stdlib.h>
#include <string.h>

#include "common/schema/internal.h"

// --- items --------------------------------------------------------------------------------------------------------------

// Returns the list of a leaf's first items; NULL: none. `items` was that list before 2020.
static const json_t *prefix_of(const struct jschema *schema, uint32_t entry)
{
    const json_t *prefix = jschema_get(schema, entry, "prefixItems"), *items = jschema_get(schema, entry, "items");

    return prefix ? prefix : json_is_array(items) ? items : NULL;
}

uint32_t jschema_prefix_count(struct jschema *schema, const struct jschema_form *form)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < form->leaves.count; i++) {
        const json_t *prefix = prefix_of(schema, form->leaves.ids[i]);
        if (prefix && (!json_is_array(prefix) || !jschema_work(schema, (uint32_t)json_array_size(prefix))))
            jschema_fail(schema, form->leaves.ids[i], "prefixItems", STATUS_INVALID_ARGUMENT, "must be a list of schemas");
        count = json_array_size(prefix) > count ? (uint32_t)json_array_size(prefix) : count;
    }
    return count;
}

// Returns the schema that a leaf has for an item; NULL: none.
static const json_t *item_of(const struct jschema *schema, uint32_t entry, uint64_t index)
{
    const json_t *prefix = prefix_of(schema, entry), *items = jschema_get(schema, entry, "items");

    if (index < json_array_size(prefix))
        return json_array_get(prefix, (size_t)index);
    return json_is_array(items) ? jschema_get(schema, entry, "additionalItems") : items;
}

struct jschema_set jschema_item(struct jschema *schema, const struct jschema_form *form, uint64_t index, uint32_t extra)
{
    uint32_t *ids = jschema_take(schema, form->leaves.count + 1, sizeof *ids), count = 0;

    for (uint32_t i = 0; ids && i < form->leaves.count; i++) {
        const json_t *item = item_of(schema, form->leaves.ids[i], index);
        if (!item)
            continue;
        if (!json_text_is_object(item) && !json_is_boolean(item))
            jschema_fail(schema, form->leaves.ids[i], "items", STATUS_INVALID_ARGUMENT,
                         "must be a schema: an object, true or false");
        else
            ids[count++] = jschema_entry_of(schema, item);
    }
    if (ids && extra != JSCHEMA_TRUE)
        ids[count++] = extra;
    return (struct jschema_set){ids ? count : 0, ids};
}

// --- properties ---------------------------------------------------------------------------------------------------------

// Each member of a variant says something about a key: what it has under properties and under the patterns that match, or, if neither names
// it, under additionalProperties. What all of them say holds together. Keys that nobody declares fall into classes by the patterns that they
// match. They are spelled without escapes, so that a declared key cannot come again under another spelling.

static bool is_declared(const struct jschema_keys *keys, const char *key)
{
    for (uint32_t i = 0; i < keys->declared_count; i++)
        if (strcmp(keys->declared[i], key) == 0)
            return true;
    return false;
}

static void keys_declare(struct jschema *schema, struct jschema_keys *keys, const char *key, uint32_t *capacity)
{
    if (jschema_work(schema, 1 + keys->declared_count / 16) && !is_declared(keys, key) &&
        jschema_grow(schema, &keys->declared, keys->declared_count, capacity, sizeof *keys->declared))
        keys->declared[keys->declared_count++] = key;
}

static void keys_read_patterns(struct jschema *schema, struct jschema_keys *keys, uint32_t entry)
{
    const json_t *patterns = jschema_get(schema, entry, "patternProperties");
    const char *text;
    json_t *value;

    if (patterns && !json_text_is_object(patterns))
        jschema_fail(schema, entry, "patternProperties", STATUS_INVALID_ARGUMENT, "must be an object");
    if (!json_text_is_object(patterns))
        return;
    json_object_foreach ((json_t *)patterns, text, value) {
        uint32_t i;
        for (i = 0; i < keys->pattern_count && strcmp(keys->patterns[i].text, text) != 0; i++) {}
        if (i < keys->pattern_count)
            continue;
        if (i == JSCHEMA_MAX_PATTERN_KEYS) {
            jschema_fail(schema, entry, "patternProperties", STATUS_UNIMPLEMENTED,
                         "at most %u patterns are supported for one object", JSCHEMA_MAX_PATTERN_KEYS);
            return;
        }
        json_t *string = json_string(text);
        keys->patterns[keys->pattern_count++] =
            (struct jschema_key_pattern){text, jschema_pattern(schema, string, entry, "patternProperties")};
        json_decref(string);
    }
}

uint32_t jschema_names(struct jschema *schema, struct jschema_set set)
{
    struct jschema_variants variants = jschema_flatten(schema, set);
    uint32_t content = schema->nothing;

    for (uint32_t i = 0; i < variants.count && !jschema_failed(schema); i++) {
        struct jschema_form names = jschema_merge(schema, variants.sets[i]);
        content = JSCHEMA_EITHER(schema, content, jschema_string_content(schema, &names));
    }
    return content;
}

// Reads which strings propertyNames allows, as content.
static void keys_read_names(struct jschema *schema, struct jschema_keys *keys)
{
    const struct jschema_form *form = keys->form;
    uint32_t *ids = jschema_take(schema, form->leaves.count, sizeof *ids), count = 0;

    for (uint32_t i = 0; ids && i < form->leaves.count; i++) {
        const json_t *names = jschema_get(schema, form->leaves.ids[i], "propertyNames");
        if (names && !json_text_is_object(names) && !json_is_boolean(names))
            jschema_fail(schema, form->leaves.ids[i], "propertyNames", STATUS_INVALID_ARGUMENT,
                         "must be a schema: an object, true or false");
        else if (names && !json_is_true(names))
            ids[count++] = jschema_entry_of(schema, names);
    }
    keys->any_name = count == 0;
    keys->names = count == 0 ? schema->nothing : jschema_names(schema, (struct jschema_set){count, ids});
}

struct jschema_keys jschema_keys_of(struct jschema *schema, const struct jschema_form *form)
{
    struct jschema_keys keys = {.form = form};
    bool has_properties = false, is_named = false, says_others = false, says_patterns = false;
    uint32_t capacity = 0;

    for (uint32_t i = 0; i < form->leaves.count && !jschema_failed(schema); i++) {
        uint32_t entry = form->leaves.ids[i];
        const json_t *properties = jschema_get(schema, entry, "properties");
        const char *key;
        json_t *value;
        if (properties && !json_text_is_object(properties)) {
            jschema_fail(schema, entry, "properties", STATUS_INVALID_ARGUMENT, "must be an object");
            break;
        }
        json_object_foreach ((json_t *)properties, key, value)
            keys_declare(schema, &keys, key, &capacity);
        keys_read_patterns(schema, &keys, entry);
        has_properties |= properties && !schema->entries[entry].is_made;
        is_named |= json_object_size(properties) && !schema->entries[entry].is_made;
        says_others |= jschema_get(schema, entry, "additionalProperties") || jschema_get(schema, entry, "unevaluatedProperties");
        says_patterns |= jschema_get(schema, entry, "patternProperties") != NULL;
    }
    for (uint32_t i = 0; i < form->required_count; i++)
        keys_declare(schema, &keys, form->required[i], &capacity);
    keys.is_closed = schema->options->closed_by_default && !says_others &&
                     (schema->options->is_strict ? has_properties : is_named && !says_patterns);
    keys_read_names(schema, &keys);
    return keys;
}

static void keys_add_schema(struct jschema *schema, uint32_t *ids, uint32_t *count, uint32_t entry, const char *keyword,
                            const json_t *value)
{
    if (!value || json_is_true(value))
        return;
    if (!json_text_is_object(value) && !json_is_boolean(value)) {
        jschema_fail(schema, entry, keyword, STATUS_INVALID_ARGUMENT, "must have schemas: objects, true or false");
        return;
    }
    uint32_t id = jschema_entry_of(schema, value);
    for (uint32_t i = 0; i < *count; i++)
        if (ids[i] == id)
            return;
    ids[(*count)++] = id;
}

// Returns what holds for a key, or, key NULL, for one that is not declared. Both match exactly the patterns of `matched`.
static struct jschema_set keys_what_holds(struct jschema *schema, const struct jschema_keys *keys, const char *key,
                                          uint32_t matched)
{
    const struct jschema_set leaves = keys->form->leaves;
    uint32_t *ids = jschema_take(schema, leaves.count * (2 + keys->pattern_count) + 1, sizeof *ids), count = 0;
    bool is_named = false;

    for (uint32_t i = 0; ids && i < leaves.count; i++) {
        uint32_t entry = leaves.ids[i];
        const json_t *property = key ? json_object_get(jschema_get(schema, entry, "properties"), key) : NULL;
        const json_t *patterns = jschema_get(schema, entry, "patternProperties");
        bool named_here = property != NULL;
        keys_add_schema(schema, ids, &count, entry, "properties", property);
        for (uint32_t p = 0; patterns && p < keys->pattern_count; p++) {
            const json_t *value = matched >> p & 1 ? json_object_get(patterns, keys->patterns[p].text) : NULL;
            named_here |= value != NULL;
            keys_add_schema(schema, ids, &count, entry, "patternProperties", value);
        }
        if (!named_here)
            keys_add_schema(schema, ids, &count, entry, "additionalProperties", jschema_get(schema, entry, "additionalProperties"));
        is_named |= named_here;
    }
    if (ids && !is_named && keys->is_closed && !(key && jschema_requires(keys->form, key)))
        ids[count++] = JSCHEMA_FALSE;
    return (struct jschema_set){ids ? count : 0, ids};
}

struct jschema_set jschema_property(struct jschema *schema, const struct jschema_keys *keys, const char *key)
{
    static const uint32_t no[] = {JSCHEMA_FALSE};
    uint32_t matched = 0, text;

    if (keys->pattern_count || !keys->any_name) {
        text = grammar_text(schema->builder, key);
        for (uint32_t p = 0; p < keys->pattern_count; p++)
            if (!jschema_is_nothing(schema, jschema_both(schema, text, keys->patterns[p].content)))
                matched |= 1u << p;
        if (!keys->any_name && jschema_is_nothing(schema, jschema_both(schema, text, keys->names)))
            return (struct jschema_set){1, no};
    }
    return keys_what_holds(schema, keys, key, matched);
}

struct jschema_set jschema_additional(struct jschema *schema, const struct jschema_keys *keys, uint32_t matched)
{
    return keys_what_holds(schema, keys, NULL, matched);
}

// --- emptiness ----------------------------------------------------------------------------------------------------------

// Shows, where that is easy, that no value is valid under a set of schemas: by types, by values and bounds, by regular languages of strings and
// numbers, and by required properties and items for which the same holds.

static bool is_empty(struct jschema *schema, struct jschema_set set, uint32_t depth);

enum { MAX_NESTING = 4, MAX_ITEMS = 16, COST = 32 };

static bool may_be_scalar(struct jschema *schema, const struct jschema_form *form)
{
    uint32_t simple = form->types & (JSCHEMA_NULL | JSCHEMA_BOOLEAN);

    if (simple && !form->has_values)
        return true;
    for (uint32_t i = 0; i < form->value_count; i++)
        if ((json_is_null(form->values[i]) && simple & JSCHEMA_NULL) ||
            (json_is_boolean(form->values[i]) && simple & JSCHEMA_BOOLEAN))
            return true;
    if (form->types & JSCHEMA_STRING) {
        // Most strings are not narrow; what they match need not be made to know that.
        if (!form->has_values && form->term_count == 0 && form->min_length <= form->max_length)
            return true;
        if (!jschema_is_nothing(schema, jschema_string_content(schema, form)))
            return true;
    }
    if (form->types & JSCHEMA_NUMBER) {
        if (!form->has_values && form->term_count == 0 && !form->min.is_set && !form->max.is_set)
            return true;
        if (!form->has_values && form->term_count == 0 && form->types & JSCHEMA_FRACTION && form->min.is_set && form->max.is_set &&
            jschema_decimal_compare(&form->min.value, &form->max.value) < 0)
            return true;
        if (!jschema_is_nothing(schema, jschema_number(schema, form)))
            return true;
    }
    return false;
}

static bool may_be_array(struct jschema *schema, const struct jschema_form *form, uint32_t depth)
{
    if (!(form->types & JSCHEMA_ARRAY) || form->min_items > form->max_items)
        return false;
    for (uint64_t i = 0; i < form->min_items && i < MAX_ITEMS && depth < MAX_NESTING; i++)
        if (is_empty(schema, jschema_item(schema, form, i, JSCHEMA_TRUE), depth + 1))
            return false;
    return true;
}

static bool may_be_object(struct jschema *schema, const struct jschema_form *form, uint32_t depth)
{
    struct jschema_keys keys;

    if (!(form->types & JSCHEMA_OBJECT) || form->min_properties > form->max_properties ||
        form->required_count > form->max_properties)
        return false;
    if (depth == MAX_NESTING || form->required_count == 0)
        return true;
    keys = jschema_keys_of(schema, form);
    for (uint32_t i = 0; i < form->required_count && !jschema_failed(schema); i++)
        if (is_empty(schema, jschema_property(schema, &keys, form->required[i]), depth + 1))
            return false;
    return true;
}

static bool is_empty(struct jschema *schema, struct jschema_set set, uint32_t depth)
{
    struct jschema_variants variants = {0};

    if (jschema_work(schema, COST))
        variants = jschema_flatten(schema, set);
    for (uint32_t i = 0; i < variants.count && !jschema_failed(schema); i++) {
        struct jschema_form form = jschema_merge(schema, variants.sets[i]);
        if (form.has_values)
            form.types &= ~(uint32_t)(JSCHEMA_ARRAY | JSCHEMA_OBJECT);
        if (may_be_array(schema, &form, depth) || may_be_object(schema, &form, depth) || may_be_scalar(schema, &form))
            return false;
    }
    return true;
}

// --- negation -----------------------------------------------------------------------------------------------------------

static uint32_t rewritten(struct jschema *schema, uint32_t entry, const char *keyword);

static bool is_rewritten(const char *keyword)
{
    static const char *const names[] = {"oneOf", "if", "dependentRequired", "dependentSchemas", "dependencies"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(keyword, names[i]) == 0)
            return true;
    return false;
}

// Returns a schema that holds where the other does not. NULL: failed, or none can be said: then *reason says why (it is static).
static json_t *negation_of(struct jschema *schema, uint32_t entry, const char **reason)
{
    const json_t *value = schema->entries[entry].value;
    const char *keyword;
    json_t *held, *any;

    *reason = NULL;
    if (json_is_boolean(value))
        return json_boolean(!json_is_true(value));
    any = json_array();
    json_object_foreach ((json_t *)value, keyword, held) {
        if (is_rewritten(keyword)) {
            const uint32_t other = rewritten(schema, entry, keyword); // found first: that may move schema->entries
            json_array_append_new(any, json_pack("{s:O}", "not", schema->entries[other].value));
        } else {
            *reason = jschema_negate_keyword(schema, entry, keyword, held, any);
        }
        if (*reason || jschema_failed(schema)) {
            json_decref(any);
            return NULL;
        }
    }
    if (json_array_size(any) == 1) {
        json_t *only = json_incref(json_array_get(any, 0));
        json_decref(any);
        return only;
    }
    if (json_array_size(any) == 0) {
        json_decref(any);
        return json_false();
    }
    return json_pack("{s:o}", "anyOf", any);
}

// --- oneOf --------------------------------------------------------------------------------------------------------------

// Most unions exclude each other as they are: by type, by the const of a required property. Where a pair of alternatives might hold at once, each
// is taken without the other ("not"); where that cannot be said, the schema is refused. With OpenAPI's discriminator the property that it
// names is required: without it a reader could not tell what the value is.

enum { MAX_HOPS = 8, MAX_KEYS = 8 };

struct scalar_text {
    const char *bytes;
    size_t count;
};

static int compare_texts(const void *left, const void *right)
{
    const struct scalar_text *a = left, *b = right;
    int order = memcmp(a->bytes, b->bytes, a->count < b->count ? a->count : b->count);

    return order ? order : (a->count > b->count) - (a->count < b->count);
}

static bool are_different(struct scalar_text *texts, size_t count)
{
    qsort(texts, count, sizeof *texts, compare_texts);
    for (size_t i = 1; i < count; i++)
        if (compare_texts(&texts[i - 1], &texts[i]) == 0)
            return false;
    return true;
}

// Returns whether each alternative has a const of its own, without looking at pairs: lists of choices with titles may be long.
static bool has_different_consts(struct jschema *schema, const json_t *alternatives)
{
    size_t count = json_array_size(alternatives);
    struct scalar_text *texts = jschema_take(schema, count, sizeof *texts);

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

// Returns what an alternative refers to, if it does nothing but that.
static const json_t *one_of_resolved(struct jschema *schema, const json_t *alternative)
{
    for (int hops = 0; hops < MAX_HOPS && json_is_string(json_object_get(alternative, "$ref")) && !jschema_failed(schema); hops++) {
        uint32_t target =
            jschema_resolve(schema, jschema_entry_of(schema, alternative), json_string_value(json_object_get(alternative, "$ref")));
        alternative = schema->entries[target].value;
    }
    return alternative;
}

static bool lists_key(struct jschema *schema, const json_t *required, const char *key)
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
    struct scalar_text *texts;
    uint32_t count, capacity;
};

static bool add_tag(struct jschema *schema, struct tags *tags, const json_t *value)
{
    struct scalar_text text = {0};

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
    const json_t *object = one_of_resolved(schema, alternative), *type = json_object_get(object, "type");
    const json_t *property = json_object_get(json_object_get(object, "properties"), key),
                 *values = json_object_get(property, "enum");
    const json_t *value = json_object_get(property, "const");
    json_t *item;
    size_t i;

    if (!json_is_string(type) || strcmp(json_string_value(type), "object") != 0 ||
        (!is_required && !lists_key(schema, json_object_get(object, "required"), key)))
        return false;
    if (value)
        return add_tag(schema, tags, value);
    json_array_foreach (values, i, item)
        if (!add_tag(schema, tags, item))
            return false;
    return json_array_size(values) > 0;
}

// Returns whether the alternatives are objects that differ in the value of a property, without looking at pairs: unions of many are common.
static bool have_different_tags(struct jschema *schema, const json_t *alternatives, const char *discriminator)
{
    const json_t *required = json_object_get(one_of_resolved(schema, json_array_get(alternatives, 0)), "required");
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

// Returns the alternatives as an array that is the caller's. With a discriminator its property is required.
static json_t *one_of_alternatives(struct jschema *schema, uint32_t entry, const char *property)
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

static uint32_t one_of_entry(struct jschema *schema, uint32_t entry, const json_t *alternative)
{
    return jschema_add_entry(schema, alternative, entry, "oneOf");
}

// Alternative i without those that may hold at once with it.
static json_t *one_of_exclude(struct jschema *schema, uint32_t entry, const json_t *alternatives, const uint32_t *ids, uint32_t i)
{
    uint32_t count = (uint32_t)json_array_size(alternatives);
    json_t *alternative = json_array_get(alternatives, i), *all = NULL;

    for (uint32_t k = 0; k < count && !jschema_failed(schema); k++) {
        uint32_t pair[2] = {ids[i], ids[k]};
        const char *reason;
        if (k == i || is_empty(schema, (struct jschema_set){ids[i] == ids[k] ? 1 : 2, pair}, 0))
            continue;
        json_t *negation = jschema_failed(schema) ? NULL : negation_of(schema, ids[k], &reason);
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

static json_t *one_of(struct jschema *schema, uint32_t entry)
{
    const char *discriminator = json_string_value(json_object_get(jschema_get(schema, entry, "discriminator"), "propertyName"));
    json_t *alternatives = one_of_alternatives(schema, entry, discriminator), *any;
    uint32_t count = (uint32_t)json_array_size(alternatives), *ids;

    if (!alternatives || jschema_failed(schema) || count == 1 || has_different_consts(schema, alternatives) ||
        have_different_tags(schema, jschema_get(schema, entry, "oneOf"), discriminator))
        return alternatives ? json_pack("{s:o}", "anyOf", alternatives) : NULL;
    ids = jschema_take(schema, count, sizeof *ids);
    json_array_append(schema->made, alternatives); // its own are entries from now on
    for (uint32_t i = 0; ids && i < count; i++)
        ids[i] = one_of_entry(schema, entry, json_array_get(alternatives, i));
    any = json_array();
    for (uint32_t i = 0; ids && i < count && !jschema_failed(schema); i++)
        json_array_append_new(any, one_of_exclude(schema, entry, alternatives, ids, i));
    json_decref(alternatives);
    return json_pack("{s:o}", "anyOf", any);
}

// --- keywords that are said by anyOf and allOf instead, once each -------------------------------------------------------

//     if A then B else C      anyOf [allOf [A, B], allOf [not A, C]]
//     dependentRequired       allOf, over its properties p, of anyOf [p is not there, p and the others are]
//     dependentSchemas        the same with a schema
//     oneOf                   anyOf of alternatives that exclude each other
//     not                     not.c
//     enum or const of arrays and objects    schemas that only they are valid under

// Returns a schema of objects without the property, or with it and valid under `schema`, which is taken over.
static json_t *with_property(const char *key, json_t *schema)
{
    return json_pack("{s:[{s:{s:b}}, {s:[s], s:[o]}]}", "anyOf", "properties", key, 0, "required", key, "allOf", schema);
}

static json_t *rewrite_dependent(struct jschema *schema, uint32_t entry, const char *keyword, const json_t *value)
{
    json_t *all = json_array(), *held;
    const char *key;

    json_object_foreach ((json_t *)value, key, held) {
        if (json_is_array(held) && strcmp(keyword, "dependentSchemas") != 0)
            json_array_append_new(all, with_property(key, json_pack("{s:O}", "required", held)));
        else if (strcmp(keyword, "dependentRequired") != 0)
            json_array_append_new(all, with_property(key, json_incref(held)));
        else
            jschema_fail(schema, entry, keyword, STATUS_INVALID_ARGUMENT, "must have lists of properties");
    }
    if (!json_text_is_object(value))
        jschema_fail(schema, entry, keyword, STATUS_INVALID_ARGUMENT, "must be an object");
    return json_pack("{s:o}", "allOf", all);
}

static json_t *rewrite_if(struct jschema *schema, uint32_t entry, const json_t *value)
{
    const json_t *then = jschema_get(schema, entry, "then"), *otherwise = jschema_get(schema, entry, "else");

    if (!then && !otherwise)
        return json_true();
    return json_pack("{s:[{s:[O, O]}, {s:[{s:O}, O]}]}", "anyOf", "allOf", value, then ? then : json_true(), "allOf", "not", value,
                     otherwise ? otherwise : json_true());
}

static json_t *rewrite_enum(const json_t *values)
{
    json_t *any = json_array(), *scalars = json_array(), *item;
    size_t i;

    json_array_foreach (values, i, item) {
        if (json_is_array(item) || json_text_is_object(item))
            json_array_append_new(any, json_pack("{s:O}", "const", item));
        else
            json_array_append(scalars, item);
    }
    if (json_array_size(scalars))
        json_array_append_new(any, json_pack("{s:O}", "enum", scalars));
    json_decref(scalars);
    return json_pack("{s:o}", "anyOf", any);
}

static json_t *rewrite_not(struct jschema *schema, uint32_t entry, const json_t *value)
{
    uint32_t child;
    const char *reason;
    json_t *made;

    if (!json_text_is_object(value) && !json_is_boolean(value)) {
        jschema_fail(schema, entry, "not", STATUS_INVALID_ARGUMENT, "must be a schema: an object, true or false");
        return NULL;
    }
    child = jschema_entry_of(schema, value);
    made = jschema_failed(schema) ? NULL : negation_of(schema, child, &reason);
    if (!made && !jschema_failed(schema))
        jschema_fail(schema, entry, "not", STATUS_UNIMPLEMENTED,
                     "what is not valid under %s cannot be said by a grammar: say what is valid instead", reason);
    return made;
}

// Returns a schema that says in place what entry's keyword does, in terms of anyOf and allOf. It is made once. 0: failed.
static uint32_t rewritten(struct jschema *schema, uint32_t entry, const char *keyword)
{
    const json_t *value = jschema_get(schema, entry, keyword);
    struct jschema_rewrite *rewrite;
    json_t *made;

    for (rewrite = schema->entries[entry].rewrites; rewrite; rewrite = rewrite->next)
        if (strcmp(rewrite->keyword, keyword) == 0)
            return rewrite->entry;
    // A oneOf leads back here where it compares alternatives that have one: its own, if they refer to it.
    if (!jschema_work(schema, schema->rewriting < JSCHEMA_MAX_DEPTH ? 1 : JSCHEMA_MAX_WORK))
        return 0;
    schema->rewriting++;
    if (strcmp(keyword, "oneOf") == 0)
        made = one_of(schema, entry);
    else if (strcmp(keyword, "not") == 0)
        made = rewrite_not(schema, entry, value);
    else if (strcmp(keyword, "if") == 0)
        made = rewrite_if(schema, entry, value);
    else if (strcmp(keyword, "enum") == 0)
        made = rewrite_enum(value);
    else if (strcmp(keyword, "const") == 0)
        made = jschema_only(value);
    else
        made = rewrite_dependent(schema, entry, keyword, value);
    schema->rewriting--;
    if (jschema_failed(schema)) {
        json_decref(made);
        return 0;
    }
    uint32_t id = jschema_make(schema, made, entry, keyword);
    rewrite = id ? jschema_take(schema, 1, sizeof *rewrite) : NULL;
    if (!rewrite)
        return 0;
    *rewrite = (struct jschema_rewrite){.next = schema->entries[entry].rewrites, .keyword = keyword, .entry = id};
    schema->entries[entry].rewrites = rewrite;
    return id;
}

// --- variants -----------------------------------------------------------------------------------------------------------

struct chain { // schemas that apply each other in place
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
    uint32_t number; // the run's, for entry->seen
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

// The effects of keywords, in ascending order of names. Others are annotations.
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

static void flat_add(struct run *run, uint32_t entry, const struct chain *up);

static void flat_add_child(struct run *run, const json_t *child, const struct chain *chain, const char *keyword)
{
    if (!json_text_is_object(child) && !json_is_boolean(child))
        jschema_fail(run->schema, chain->entry, keyword, STATUS_INVALID_ARGUMENT, "must have schemas: objects, true or false");
    else
        flat_add(run, jschema_entry_of(run->schema, child), chain);
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

static void flat_add_leaf(struct run *run, uint32_t entry)
{
    if (jschema_grow(run->schema, &run->leaves, run->leaf_count, &run->leaf_capacity, sizeof *run->leaves))
        run->leaves[run->leaf_count++] = entry;
}

static void flat_put_aside(struct run *run, const struct chain *chain, const json_t *alternatives)
{
    struct choice choice = {.entry = chain->entry, .alternatives = alternatives, .chain = *chain};

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
static bool flat_add_keyword(struct run *run, const struct chain *chain, const char *keyword, const json_t *value)
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
            flat_add_child(run, child, chain, keyword);
        return false;
    case ANY_OF: flat_put_aside(run, chain, value); return false;
    case REFERENCE:
        if (!json_is_string(value))
            jschema_fail(schema, chain->entry, keyword, STATUS_INVALID_ARGUMENT, "must be a string");
        else
            flat_add(run, jschema_resolve(schema, chain->entry, json_string_value(value)), chain);
        return false;
    case REWRITTEN_VALUE:
        if (!has_complex_value(value) && !(json_is_array(value) && strcmp(keyword, "const") == 0))
            return true;
        flat_add(run, rewritten(schema, chain->entry, keyword), chain);
        return false;
    case REWRITTEN: flat_add(run, rewritten(schema, chain->entry, keyword), chain); return false;
    case REFUSED: break;
    }
    if (json_is_true(value))
        return true;
    jschema_fail(schema, chain->entry, keyword, STATUS_UNIMPLEMENTED, "is not supported; %s",
                 row->keyword[0] == '$' ? "use $ref" : "use additionalProperties or items where the properties or items are");
    return false;
}

static void flat_add(struct run *run, uint32_t entry, const struct chain *up)
{
    struct jschema *schema = run->schema;
    struct chain chain = {.entry = entry, .length = up ? up->length + 1 : 1, .up = up};
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
        is_leaf |= flat_add_keyword(run, &chain, keyword, value);
        if (is_leaf && !is_added && strcmp(keyword, "properties") == 0) { // keys come in the order of the text
            is_added = true;
            flat_add_leaf(run, entry);
        }
        if (run->types == 0 || jschema_failed(schema))
            return;
    }
    if (is_leaf && !is_added)
        flat_add_leaf(run, entry);
}

static void flat_keep_variant(struct run *run)
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

static void flat_forget(struct run *run, uint32_t undo_count)
{
    while (run->undo_count > undo_count) {
        struct undo *undo = &run->undo[--run->undo_count];
        run->schema->entries[undo->entry].seen = undo->seen;
    }
}

// Makes the choices from `first` on, one by one.
static void flat_choose(struct run *run, uint32_t first)
{
    uint32_t types = run->types, leaf_count = run->leaf_count, choice_count = run->choice_count, undo_count = run->undo_count;

    if (run->types == 0 || jschema_failed(run->schema))
        return;
    if (first == choice_count) {
        flat_keep_variant(run);
        return;
    }
    struct choice choice = run->choices[first];
    if (first > JSCHEMA_MAX_DEPTH) {
        jschema_fail(run->schema, choice.entry, NULL, STATUS_RESOURCE_EXHAUSTED,
                     "more than %u alternatives are applied in one place", JSCHEMA_MAX_DEPTH);
        return;
    }
    for (size_t i = 0; i < json_array_size(choice.alternatives); i++) {
        flat_add_child(run, json_array_get(choice.alternatives, i), &choice.chain, "anyOf");
        flat_choose(run, first + 1);
        flat_forget(run, undo_count);
        run->types = types;
        run->leaf_count = leaf_count;
        run->choice_count = choice_count;
    }
}

struct jschema_variants jschema_flatten(struct jschema *schema, struct jschema_set set)
{
    struct run run = {.schema = schema, .number = ++schema->runs, .types = JSCHEMA_ANY};

    for (uint32_t i = 0; i < set.count; i++)
        flat_add(&run, set.ids[i], NULL);
    flat_choose(&run, 0);
    flat_forget(&run, 0);
    return run.found;
}
