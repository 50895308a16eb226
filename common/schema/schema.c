// schema.c: adds the texts of a schema, or of its parts, to a builder.
#include "common/schema/schema.h"

#include <stdlib.h>

#include "common/schema/internal.h"

enum { REFERENCES_MAX = 128 };

static bool schema_open(struct jschema *schema, struct grammar_builder *builder, const struct grammar_schema_options *options)
{
    *schema = (struct jschema){.builder = builder,
                               .options = options,
                               .arena = {.cap = JSCHEMA_ARENA_BYTES},
                               .made = json_array(),
                               .nothing = grammar_nothing(builder)};
    if (!schema->made)
        grammar_builder_fail(builder, STATUS_UNAVAILABLE, "#: no memory for the schema");
    return !jschema_failed(schema);
}

static void schema_close(struct jschema *schema)
{
    json_decref(schema->made);
    arena_free(&schema->arena);
}

// Returns the texts of an entry, of which there must be some.
static uint32_t schema_compile_entry(struct jschema *schema, uint32_t entry)
{
    const uint32_t node = jschema_compile(schema, (struct jschema_set){1, &entry});

    if (node == schema->nothing)
        jschema_fail(schema, entry, NULL, STATUS_INVALID_ARGUMENT, "no value is valid under the schema");
    return jschema_failed(schema) ? 0 : node;
}

uint32_t grammar_add_schema(struct grammar_builder *builder, const json_t *schema, const struct grammar_schema_options *options)
{
    struct jschema run;
    uint32_t node = 0;

    if (schema_open(&run, builder, options) && jschema_index(&run, schema))
        node = schema_compile_entry(&run, json_is_true(schema)    ? JSCHEMA_TRUE
                                          : json_is_false(schema) ? JSCHEMA_FALSE
                                                                  : JSCHEMA_ROOT);
    schema_close(&run);
    return node;
}

struct grammar_schema_parts {
    struct grammar_schema_options options;
    struct jschema schema;
};

struct grammar_schema_parts *grammar_schema_parts_open(struct grammar_builder *builder, const json_t *schema,
                                                       const struct grammar_schema_options *options)
{
    struct grammar_schema_parts *parts = calloc(1, sizeof *parts);

    if (!parts) {
        grammar_builder_fail(builder, STATUS_UNAVAILABLE, "#: no memory for the schema");
        return NULL;
    }
    parts->options = *options;
    if (schema_open(&parts->schema, builder, &parts->options) && jschema_index(&parts->schema, schema))
        return parts;
    grammar_schema_parts_close(parts);
    return NULL;
}

uint32_t grammar_schema_parts_add(struct grammar_schema_parts *parts, const json_t *part)
{
    const uint32_t entry = jschema_failed(&parts->schema) ? 0 : jschema_entry_of(&parts->schema, part);

    return entry ? schema_compile_entry(&parts->schema, entry) : 0;
}

const json_t *grammar_schema_parts_referred(struct grammar_schema_parts *parts, const json_t *part)
{
    struct jschema *schema = &parts->schema;
    const char *reference;

    for (int hops = 0; (reference = json_string_value(json_object_get(part, "$ref"))); hops++) {
        const uint32_t entry = jschema_failed(schema) ? 0 : jschema_entry_of(schema, part);
        uint32_t target; // found first: that may move schema->entries
        if (entry && hops == REFERENCES_MAX)
            jschema_fail(schema, entry, "$ref", STATUS_UNIMPLEMENTED, "leads to more than %d others", REFERENCES_MAX);
        target = entry && hops < REFERENCES_MAX ? jschema_resolve(schema, entry, reference) : 0;
        if (!target)
            break;
        part = schema->entries[target].value;
    }
    return part;
}

void grammar_schema_parts_close(struct grammar_schema_parts *parts)
{
    if (!parts)
        return;
    schema_close(&parts->schema);
    free(parts);
}

uint32_t grammar_add_json_object(struct grammar_builder *builder, const struct grammar_schema_options *options)
{
    struct jschema run;
    uint32_t node = schema_open(&run, builder, options) ? jschema_any_object(&run) : 0;

    schema_close(&run);
    return node;
}
