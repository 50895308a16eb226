// openapi.c: see openapi.h.
//
// A schema of the file with "x-fields": kind gets the fields of that kind as its properties. What a field may be that is more than any number or
// text is in the file's "x-custom", by name. Fields that are refused unless they change nothing are listed in "x-not-supported".
#include "services/gateway/serve/openapi.h"

#include <jansson.h>
#include <string.h>

#include "common/base/checked.h"
#include "services/gateway/api/schema/schema.h"

// The document of one schema.
struct filling {
    json_t *properties, *refused;
    const json_t *custom;
    bool failed;
};

static json_t *number_schema(const struct api_field *field, const char *type)
{
    json_t *schema = json_pack("{s:[s,s]}", "type", type, "null");

    json_object_set_new(schema, field->above_min ? "exclusiveMinimum" : "minimum", json_real(field->min));
    json_object_set_new(schema, "maximum", json_real(field->max));
    return schema;
}

static json_t *schema_of(const struct api_field *field, const json_t *custom)
{
    const json_t *given = json_object_get(custom, field->name);

    if (given)
        return json_deep_copy(given);
    switch (field->type) {
    case API_FIELD_BOOL: return json_pack("{s:[s,s]}", "type", "boolean", "null");
    case API_FIELD_INTEGER: return number_schema(field, "integer");
    case API_FIELD_NUMBER: return number_schema(field, "number");
    case API_FIELD_STRING: return json_pack("{s:[s,s]}", "type", "string", "null");
    default: return json_object(); // any value
    }
}

static void add_field(void *arg, const struct api_field *field)
{
    struct filling *filling = arg;

    if (field->type == API_FIELD_REFUSED)
        filling->failed |= json_array_append_new(filling->refused, json_string(field->name)) != 0;
    else
        filling->failed |= json_object_set_new(filling->properties, field->name, schema_of(field, filling->custom)) != 0;
}

static bool fill(json_t *schema, const json_t *custom)
{
    static const struct {
        const char *name;
        enum api_kind kind;
    } kinds[] = {{"chat", API_CHAT},   {"completion", API_COMPLETION}, {"tokenize", API_TOKENIZE}, {"detokenize", API_DETOKENIZE},
                 {"embed", API_EMBED}, {"rerank", API_RERANK}};
    const char *wanted = json_string_value(json_object_get(schema, "x-fields"));
    struct filling filling = {.custom = custom};

    if (!wanted)
        return true;
    filling.properties = json_object();
    filling.refused = json_array();
    for (size_t i = 0; i < ARRAY_COUNT(kinds); i++)
        if (strcmp(wanted, kinds[i].name) == 0)
            api_each_field(kinds[i].kind, add_field, &filling);
    filling.failed |= json_object_set_new(schema, "properties", filling.properties) != 0;
    filling.failed |= json_object_set_new(schema, "x-not-supported", filling.refused) != 0;
    json_object_del(schema, "x-fields");
    return !filling.failed;
}

void openapi_render(const char *version, const char *model, struct text *out)
{
    json_t *document = json_loadb((const char *)openapi_file, openapi_file_bytes, 0, NULL), *schema;
    json_t *custom = json_incref(json_object_get(document, "x-custom"));
    json_t *schemas = json_object_get(json_object_get(document, "components"), "schemas");
    const char *name;
    char *dumped;

    json_object_foreach (schemas, name, schema)
        out->failed |= !fill(schema, custom);
    json_object_set_new(json_object_get(schemas, "ModelName"), "enum", json_pack("[s,s,n]", model, "default"));
    json_object_del(document, "x-custom");
    json_object_set_new(json_object_get(document, "info"), "version", json_string(version));
    dumped = json_dumps(document, JSON_COMPACT);
    out->failed |= !dumped;
    text_string(out, dumped ? dumped : "");
    free(dumped);
    json_decref(custom);
    json_decref(document);
}
