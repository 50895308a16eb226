// grammar_schema_rewrite.c: keywords that are said by anyOf and allOf instead, once each.
//
//     if A then B else C      anyOf [allOf [A, B], allOf [not A, C]]
//     dependentRequired       allOf, over its properties p, of anyOf [p is not there, p and the others are]
//     dependentSchemas        the same with a schema
//     oneOf                   anyOf of alternatives that exclude each other (grammar_schema_union.c)
//     not                     grammar_schema_not.c
//     enum or const of arrays and objects    schemas that only they are valid under
#include <string.h>

#include "common/grammar/grammar_schema_internal.h"

// Either without the property, or with it and what comes with it, which is taken over.
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
    made = jschema_failed(schema) ? NULL : jschema_negation(schema, child, &reason);
    if (!made && !jschema_failed(schema))
        jschema_fail(schema, entry, "not", STATUS_UNIMPLEMENTED,
                     "what is not valid under %s cannot be said by a grammar: say what is valid instead", reason);
    return made;
}

uint32_t jschema_rewritten(struct jschema *schema, uint32_t entry, const char *keyword)
{
    const json_t *value = jschema_get(schema, entry, keyword);
    struct jschema_rewrite *rewrite;
    json_t *made;

    for (rewrite = schema->entries[entry].rewrites; rewrite; rewrite = rewrite->next)
        if (strcmp(rewrite->keyword, keyword) == 0)
            return rewrite->entry;
    if (!jschema_work(schema, 1))
        return 0;
    if (strcmp(keyword, "oneOf") == 0)
        made = jschema_one_of(schema, entry);
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
    if (jschema_failed(schema)) {
        json_decref(made);
        return 0;
    }
    uint32_t id = jschema_make(schema, made, entry, keyword);
    rewrite = id ? jschema_take(schema, 1, sizeof *rewrite) : NULL;
    if (!rewrite)
        return 0;
    *rewrite = (struct jschema_rewrite){schema->entries[entry].rewrites, keyword, id};
    schema->entries[entry].rewrites = rewrite;
    return id;
}
