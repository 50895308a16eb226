// not.c: schemas that hold where others do not.
//
// A schema is the conjunction of its keywords, so its negation is one of theirs (anyOf). Those of schemas within are left as "not" and worked off
// when somebody gets there. Schemas that are made say what no keyword says: the type "fraction" (a number that is no integer), "$not" with a
// pattern, format, multipleOf, const or enum, which the files of strings and numbers take as it is, and "$some" of objects: there is a
// property whose name is valid under its propertyNames and whose value is under its additionalProperties.
#include <string.h>

#include "common/schema/internal.h"

static json_t *not_of(const json_t *value) { return json_pack("{s:O}", "not", value); }

// {"type": type, keyword: number}
static json_t *typed_count(const char *type, const char *keyword, const json_t *limit, int add)
{
    const double given = json_text_number(limit);
    const json_int_t number = (json_int_t)(given < 1e15 ? given : 1e15) + add;

    return number < 0 ? json_false() : json_pack("{s:s, s:I}", "type", type, keyword, number);
}

static json_t *negate_type(struct jschema *schema, uint32_t entry)
{
    static const struct {
        uint32_t type;
        const char *name;
    } names[] = {{JSCHEMA_NULL, "null"},         {JSCHEMA_BOOLEAN, "boolean"}, {JSCHEMA_INTEGER, "integer"},
                 {JSCHEMA_FRACTION, "fraction"}, {JSCHEMA_STRING, "string"},   {JSCHEMA_ARRAY, "array"},
                 {JSCHEMA_OBJECT, "object"}};
    json_t *type = json_object_get(schema->entries[entry].value, "type"), *only, *others = json_array();
    uint32_t made, types;

    // jschema_types() would count const and enum, too.
    only = json_pack("{s:O}", "type", type);
    made = jschema_make(schema, only, entry, "not");
    types = made ? jschema_types(schema, made) : 0;
    for (uint32_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!(types & names[i].type))
            json_array_append_new(others, json_string(names[i].name));
    return json_pack("{s:o}", "type", others);
}

// Returns a schema of all other values, of any type.
static json_t *negate_values(const json_t *values)
{
    json_t *all = json_array(), *scalars = json_array(), *item;
    size_t i;

    json_array_foreach (values, i, item) {
        if (json_is_array(item) || json_text_is_object(item))
            json_array_append_new(all, json_pack("{s:o}", "not", jschema_only(item)));
        else
            json_array_append(scalars, item);
    }
    json_array_append_new(all, json_pack("{s:{s:o}}", "$not", "enum", scalars));
    return json_pack("{s:o}", "allOf", all);
}

static void negate_properties(json_t *any, const json_t *properties)
{
    const char *key;
    json_t *value;

    json_object_foreach ((json_t *)properties, key, value)
        if (!json_is_true(value))
            json_array_append_new(
                any, json_pack("{s:s, s:[s], s:{s:o}}", "type", "object", "required", key, "properties", key, not_of(value)));
}

static void negate_required(json_t *any, const json_t *required)
{
    json_t *key;
    size_t i;

    json_array_foreach (required, i, key)
        json_array_append_new(any, json_pack("{s:s, s:{s:b}}", "type", "object", "properties", json_string_value(key), 0));
}

// [true x count, last]
static json_t *negate_prefix(size_t count, const json_t *last)
{
    json_t *items = json_array();

    for (size_t i = 0; i < count; i++)
        json_array_append_new(items, json_true());
    json_array_append_new(items, not_of(last));
    return json_pack("{s:s, s:o, s:I}", "type", "array", "prefixItems", items, "minItems", (json_int_t)count + 1);
}

// Adds {"type": "object", "$some": ...}, which takes over all three; `was` is what it negates.
static void add_some(json_t *any, json_t *names, json_t *value, json_t *was)
{
    json_array_append_new(any, json_pack("{s:s, s:{s:o, s:o, s:o}}", "type", "object", "$some", "propertyNames", names,
                                         "additionalProperties", value, "not", was));
}

static json_t *negate_value(const json_t *schema) { return json_is_false(schema) ? json_true() : not_of(schema); }

// There is a key that neither properties nor patternProperties name, with another value.
static void negate_additional(json_t *any, const json_t *object, const json_t *value)
{
    json_t *names = json_array(), *keys = json_array(), *properties = json_object(), *patterns = json_object(), *held;
    const char *key;

    json_object_foreach (json_object_get(object, "properties"), key, held) {
        json_array_append_new(keys, json_string(key));
        json_object_set_new(properties, key, json_true());
    }
    json_array_append_new(names, json_pack("{s:{s:o}}", "$not", "enum", keys));
    json_object_foreach (json_object_get(object, "patternProperties"), key, held) {
        json_array_append_new(names, json_pack("{s:{s:s}}", "$not", "pattern", key));
        json_object_set_new(patterns, key, json_true());
    }
    add_some(any, json_pack("{s:o}", "allOf", names), negate_value(value),
             json_pack("{s:o, s:o, s:O}", "properties", properties, "patternProperties", patterns, "additionalProperties", value));
}

static void negate_patterns(json_t *any, const json_t *patterns)
{
    const char *pattern;
    json_t *value;

    json_object_foreach ((json_t *)patterns, pattern, value)
        if (!json_is_true(value))
            add_some(any, json_pack("{s:s}", "pattern", pattern), negate_value(value),
                     json_pack("{s:{s:O}}", "patternProperties", pattern, value));
}

static void negate_each(json_t *any, const json_t *values)
{
    json_t *value;
    size_t i;

    json_array_foreach (values, i, value)
        json_array_append_new(any, not_of(value));
}

// Negates a keyword that is a number: the number's other side. NULL: it is none of them.
static json_t *negate_limit(struct jschema *schema, uint32_t entry, const char *keyword, const json_t *value)
{
    static const char *const counts[][3] = {{"minLength", "string", "maxLength"},
                                            {"maxLength", "string", "minLength"},
                                            {"minItems", "array", "maxItems"},
                                            {"maxItems", "array", "minItems"},
                                            {"minProperties", "object", "maxProperties"},
                                            {"maxProperties", "object", "minProperties"}};
    static const char *const bounds[][2] = {{"minimum", "exclusiveMaximum"},
                                            {"exclusiveMinimum", "maximum"},
                                            {"maximum", "exclusiveMinimum"},
                                            {"exclusiveMaximum", "minimum"}};
    const bool is_least = keyword[0] == 'm' && keyword[1] == 'i'; // the client's, and perhaps empty

    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (strcmp(keyword, counts[i][0]) == 0)
            return typed_count(counts[i][1], counts[i][2], value, is_least ? -1 : 1);
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++)
        if (strcmp(keyword, bounds[i][0]) == 0 && json_text_is_number(value)) {
            const bool is_exclusive =
                json_is_true(jschema_get(schema, entry, is_least ? "exclusiveMinimum" : "exclusiveMaximum")); // draft 4
            return json_pack("{s:s, s:O}", "type", "number", bounds[is_exclusive ? i + 1 : i][1], value);
        }
    if (strcmp(keyword, "multipleOf") == 0)
        return json_pack("{s:s, s:{s:O}}", "type", "number", "$not", keyword, value);
    return NULL;
}

// Negates a keyword that says which values there are. NULL: it is none of them.
static json_t *negate_choice(struct jschema *schema, uint32_t entry, const char *keyword, const json_t *value)
{
    if (strcmp(keyword, "type") == 0)
        return negate_type(schema, entry);
    if (strcmp(keyword, "enum") == 0)
        return negate_values(value);
    if (strcmp(keyword, "const") == 0) {
        json_t *values = json_pack("[O]", value), *made = negate_values(values);
        json_decref(values);
        return made;
    }
    if (strcmp(keyword, "pattern") == 0 || (strcmp(keyword, "format") == 0 && json_is_string(value) &&
                                            jschema_format_kind(json_string_value(value)) != JSCHEMA_FORMAT_UNKNOWN))
        return json_pack("{s:s, s:{s:O}}", "type", "string", "$not", keyword, value);
    return NULL;
}

// Negates a keyword that applies other schemas to the same value. NULL: it is none of them.
static json_t *negate_applied(struct jschema *schema, uint32_t entry, const char *keyword, const json_t *value)
{
    uint32_t other; // found first: that may move schema->entries

    if (strcmp(keyword, "anyOf") == 0) {
        json_t *all = json_array();
        negate_each(all, value);
        return json_pack("{s:o}", "allOf", all);
    }
    if (strcmp(keyword, "not") == 0 || (strcmp(keyword, "$not") == 0 && schema->entries[entry].is_made))
        return json_incref((json_t *)value);
    if (strcmp(keyword, "$some") == 0 && schema->entries[entry].is_made)
        return json_incref(json_object_get(value, "not"));
    if (strcmp(keyword, "$ref") == 0 && json_is_string(value)) {
        other = jschema_resolve(schema, entry, json_string_value(value));
        return not_of(schema->entries[other].value);
    }
    return NULL;
}

// Adds the negations of a keyword about an array's or object's parts, or of the schemas of an allOf. Returns what stands in the way, or NULL.
static const char *negate_parts(struct jschema *schema, uint32_t entry, const char *keyword, const json_t *value, json_t *any)
{
    const bool is_items = strcmp(keyword, "items") == 0;

    if (strcmp(keyword, "additionalProperties") == 0) {
        if (!json_is_true(value))
            negate_additional(any, schema->entries[entry].value, value);
    } else if (strcmp(keyword, "patternProperties") == 0) {
        negate_patterns(any, value);
    } else if (strcmp(keyword, "propertyNames") == 0) {
        add_some(any, not_of(value), json_true(), json_pack("{s:O}", "propertyNames", value));
    } else if (strcmp(keyword, "properties") == 0) {
        negate_properties(any, value);
    } else if (strcmp(keyword, "required") == 0 && json_is_array(value)) {
        negate_required(any, value);
    } else if (strcmp(keyword, "prefixItems") == 0 || (is_items && json_is_array(value))) {
        for (size_t i = 0; i < json_array_size(value) && jschema_work(schema, (uint32_t)i + 1); i++) // each is as long as its place
            json_array_append_new(any, negate_prefix(i, json_array_get(value, i)));
    } else if (is_items && json_array_size(json_object_get(schema->entries[entry].value, "prefixItems"))) {
        return "items behind prefixItems";
    } else if (is_items || strcmp(keyword, "contains") == 0) {
        json_array_append_new(any, json_pack("{s:s, s:o}", "type", "array", is_items ? "contains" : "items", not_of(value)));
    } else if (strcmp(keyword, "allOf") == 0) {
        negate_each(any, value);
    }
    return NULL;
}

const char *jschema_negate_keyword(struct jschema *schema, uint32_t entry, const char *keyword, const json_t *value, json_t *any)
{
    static const char *const impossible[] = {"uniqueItems",           "unevaluatedItems", "minContains", "maxContains",
                                             "unevaluatedProperties", "additionalItems",  "$dynamicRef", "$recursiveRef"};
    json_t *made = negate_limit(schema, entry, keyword, value);

    for (size_t i = 0; i < sizeof impossible / sizeof impossible[0]; i++)
        if (strcmp(keyword, impossible[i]) == 0 &&
            (strcmp(keyword, "uniqueItems") == 0 ? json_is_true(value) : !json_is_true(value)))
            return impossible[i];
    if (!made)
        made = negate_choice(schema, entry, keyword, value);
    if (!made)
        made = negate_applied(schema, entry, keyword, value);
    if (!made)
        return negate_parts(schema, entry, keyword, value, any);
    json_array_append_new(any, made);
    return NULL;
}

json_t *jschema_only(const json_t *value)
{
    json_t *parts, *item, *required;
    const char *key;
    size_t i;

    if (json_is_array(value)) {
        json_int_t count = (json_int_t)json_array_size(value);
        parts = json_array();
        json_array_foreach (value, i, item)
            json_array_append_new(parts, json_pack("{s:O}", "const", item));
        return json_pack("{s:s, s:o, s:b, s:I}", "type", "array", "prefixItems", parts, "items", 0, "minItems", count);
    }
    parts = json_object();
    required = json_array();
    json_object_foreach ((json_t *)value, key, item) {
        json_object_set_new(parts, key, json_pack("{s:O}", "const", item));
        json_array_append_new(required, json_string(key));
    }
    return json_pack("{s:s, s:o, s:o, s:b}", "type", "object", "properties", parts, "required", required, "additionalProperties",
                     0);
}
