// grammar_schema_type.c: which types of values a schema allows, by its own type, const and enum.
#include <string.h>

#include "common/grammar/grammar_schema_internal.h"

static uint32_t type_of_name(struct jschema *schema, uint32_t entry, const char *name)
{
    static const struct {
        const char *name;
        uint32_t types;
    } names[] = {{"null", JSCHEMA_NULL},     {"boolean", JSCHEMA_BOOLEAN},  {"integer", JSCHEMA_INTEGER},
                 {"number", JSCHEMA_NUMBER}, {"string", JSCHEMA_STRING},    {"array", JSCHEMA_ARRAY},
                 {"object", JSCHEMA_OBJECT}, {"fraction", JSCHEMA_FRACTION}};

    for (uint32_t i = 0; name && i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i].name) == 0 && (names[i].types != JSCHEMA_FRACTION || schema->entries[entry].is_made))
            return names[i].types;
    jschema_fail(schema, entry, "type", STATUS_INVALID_ARGUMENT,
                 "must be null, boolean, object, array, number, integer or string, or a list of these");
    return 0;
}

static uint32_t types_of_value(const json_t *value)
{
    struct jschema_decimal decimal;

    if (json_text_is_number(value)) {
        decimal = jschema_decimal_of(value);
        return jschema_decimal_is_integer(&decimal) ? JSCHEMA_INTEGER : JSCHEMA_FRACTION;
    }
    switch (json_typeof(value)) {
    case JSON_NULL: return JSCHEMA_NULL;
    case JSON_TRUE:
    case JSON_FALSE: return JSCHEMA_BOOLEAN;
    case JSON_STRING: return JSCHEMA_STRING;
    case JSON_ARRAY: return JSCHEMA_ARRAY;
    default: return JSCHEMA_OBJECT;
    }
}

uint32_t jschema_types(struct jschema *schema, uint32_t entry)
{
    const json_t *type = jschema_get(schema, entry, "type"), *values = jschema_get(schema, entry, "enum");
    const json_t *value = jschema_get(schema, entry, "const");
    uint32_t types = type ? 0 : JSCHEMA_ANY, listed = 0;
    json_t *item;
    size_t i;

    if (json_is_string(type))
        types = type_of_name(schema, entry, json_string_value(type));
    else if (json_is_array(type))
        json_array_foreach (type, i, item)
            types |= type_of_name(schema, entry, json_string_value(item));
    else if (type)
        type_of_name(schema, entry, NULL);
    if (values && !json_is_array(values))
        jschema_fail(schema, entry, "enum", STATUS_INVALID_ARGUMENT, "must be a list of values");
    json_array_foreach (values, i, item)
        listed |= types_of_value(item);
    return types & (values ? listed : JSCHEMA_ANY) & (value ? types_of_value(value) : JSCHEMA_ANY);
}
