// grammar_schema.c: see grammar_schema.h. Makes the nodes of sets of schemas, each once.
//
// A variant (grammar_schema_internal.h) gets a node; a set's node is one of its variants'. Objects and arrays are rules, which calls itself when a
// variant comes up again while it is being made. That ends the recursion, since there are only so many sets.
#include <stdlib.h>
#include <string.h>

#include "common/grammar/grammar_schema_internal.h"

enum { MEMO_BUCKETS = 1 << 10, REFERENCES_MAX = 128 };
enum progress { MAKING, MADE };

struct jschema_memo {
    struct made {
        struct made *next;
        struct jschema_set set;
        bool is_variant;
        enum progress progress;
        uint32_t node, rule; // rule: of a variant that was called while it was being made
        bool has_rule;
    } * buckets[MEMO_BUCKETS];
};

static struct made *find(struct jschema *schema, struct jschema_set set, bool is_variant)
{
    uint32_t hash = set.count * 2 + is_variant;
    struct made **bucket, *made;

    for (uint32_t i = 0; i < set.count; i++)
        hash = (hash ^ set.ids[i]) * 0x9e3779b1u;
    bucket = &schema->memo->buckets[(hash >> 16) % MEMO_BUCKETS];
    for (made = *bucket; made; made = made->next)
        if (made->is_variant == is_variant && made->set.count == set.count &&
            (set.count == 0 || memcmp(made->set.ids, set.ids, set.count * sizeof *set.ids) == 0))
            return made;
    made = jschema_take(schema, 1, sizeof *made);
    if (!made)
        return NULL;
    *made = (struct made){.next = *bucket, .set = set, .is_variant = is_variant};
    *bucket = made;
    return NULL;
}

static uint32_t literal(struct jschema *schema, const struct jschema_form *form, uint32_t type, const json_t *value,
                        const char *text)
{
    bool is_there = !form->has_values && form->types & type;

    for (uint32_t i = 0; i < form->value_count; i++)
        is_there |= form->types & type && json_equal((json_t *)form->values[i], (json_t *)value);
    for (uint32_t i = 0; i < form->not_value_count; i++)
        is_there &= !json_equal((json_t *)form->not_values[i], (json_t *)value);
    return is_there ? grammar_text(schema->builder, text) : schema->nothing;
}

// The values of each type.
static uint32_t write_form(struct jschema *schema, const struct jschema_form *form)
{
    uint32_t nodes[7], count = 0;

    if (form->leaves.count == 0)
        return jschema_any_value(schema);
    nodes[count++] = literal(schema, form, JSCHEMA_NULL, json_null(), "null");
    nodes[count++] = literal(schema, form, JSCHEMA_BOOLEAN, json_true(), "true");
    nodes[count++] = literal(schema, form, JSCHEMA_BOOLEAN, json_false(), "false");
    nodes[count++] = jschema_number(schema, form);
    nodes[count++] = jschema_string(schema, form);
    nodes[count++] = form->types & JSCHEMA_ARRAY && !form->has_values ? jschema_array(schema, form) : schema->nothing;
    nodes[count++] = form->types & JSCHEMA_OBJECT && !form->has_values ? jschema_object(schema, form) : schema->nothing;
    return grammar_either(schema->builder, nodes, count);
}

static const char *name_of(const struct jschema *schema, struct jschema_set set)
{
    const struct jschema_entry *entry = set.count ? &schema->entries[set.ids[0]] : NULL;

    return entry && entry->step && entry->step[0] ? entry->step : "schema";
}

static uint32_t compile_variant(struct jschema *schema, struct jschema_set variant)
{
    struct made *made = find(schema, variant, true);

    if (made && made->progress == MAKING) {
        if (!made->has_rule)
            made->rule = grammar_rule(schema->builder, name_of(schema, variant));
        made->has_rule = true;
        return grammar_call(schema->builder, made->rule);
    }
    if (made)
        return made->node;
    made = find(schema, variant, true);
    struct jschema_form form = jschema_merge(schema, variant);
    if (!made || jschema_failed(schema))
        return schema->nothing;
    uint32_t node = write_form(schema, &form);
    if (jschema_failed(schema)) {
        jschema_blame(schema, variant.count ? variant.ids[0] : (uint32_t)JSCHEMA_ROOT, NULL);
        return schema->nothing;
    }
    if (made->has_rule) {
        grammar_rule_set(schema->builder, made->rule, node);
        node = node == schema->nothing ? node : grammar_call(schema->builder, made->rule);
    } else if (form.types & (JSCHEMA_ARRAY | JSCHEMA_OBJECT) && form.leaves.count) {
        node = jschema_rule(schema, name_of(schema, variant), node);
    }
    made->node = node;
    made->progress = MADE;
    return node;
}

static uint32_t compile_set(struct jschema *schema, struct jschema_set set)
{
    struct made *made = jschema_failed(schema) ? NULL : find(schema, set, false);
    struct jschema_variants variants;
    uint32_t *nodes, node;

    if (jschema_failed(schema))
        return schema->nothing;
    if (made && made->progress == MADE)
        return made->node;
    if (schema->depth == JSCHEMA_MAX_DEPTH)
        return jschema_fail(schema, set.count ? set.ids[0] : JSCHEMA_ROOT, NULL, STATUS_RESOURCE_EXHAUSTED,
                            "schemas lead to each other over more than %u levels", JSCHEMA_MAX_DEPTH);
    schema->depth++;
    variants = jschema_flatten(schema, set);
    nodes = jschema_take(schema, variants.count, sizeof *nodes);
    for (uint32_t i = 0; nodes && i < variants.count; i++)
        if (variants.sets[i].count == 0) { // anything is valid: the others say nothing new
            variants.sets[0] = variants.sets[i];
            variants.count = 1;
        }
    for (uint32_t i = 0; nodes && i < variants.count && !jschema_failed(schema); i++)
        nodes[i] = compile_variant(schema, variants.sets[i]);
    schema->depth--;
    if (!nodes || jschema_failed(schema))
        return schema->nothing;
    node = grammar_either(schema->builder, nodes, variants.count);
    made = find(schema, set, false);
    if (made) {
        made->node = node;
        made->progress = MADE;
    }
    return node;
}

// --- the interface -----------------------------------------------------------------------------------------------------------

static bool open_schema(struct jschema *schema, struct grammar_builder *builder, const struct grammar_schema_options *options)
{
    *schema = (struct jschema){.builder = builder,
                               .options = options,
                               .arena = {.cap = JSCHEMA_ARENA_BYTES},
                               .made = json_array(),
                               .nothing = grammar_nothing(builder),
                               .rewritten = jschema_rewritten,
                               .compile = compile_set,
                               .is_empty = jschema_is_empty};
    schema->memo = jschema_take(schema, 1, sizeof *schema->memo);
    if (!schema->made)
        grammar_builder_fail(builder, STATUS_RESOURCE_EXHAUSTED, "#: no memory for the schema");
    return !jschema_failed(schema);
}

static void close_schema(struct jschema *schema)
{
    json_decref(schema->made);
    arena_free(&schema->arena);
}

// The texts of an entry, of which there must be some.
static uint32_t compile_entry(struct jschema *schema, uint32_t entry)
{
    const uint32_t node = compile_set(schema, (struct jschema_set){1, &entry});

    if (node == schema->nothing)
        jschema_fail(schema, entry, NULL, STATUS_INVALID_ARGUMENT, "no value is valid under the schema");
    return jschema_failed(schema) ? 0 : node;
}

uint32_t grammar_add_schema(struct grammar_builder *builder, const json_t *schema, const struct grammar_schema_options *options)
{
    struct jschema run;
    uint32_t node = 0;

    if (open_schema(&run, builder, options) && jschema_index(&run, schema))
        node = compile_entry(&run, json_is_true(schema) ? JSCHEMA_TRUE : json_is_false(schema) ? JSCHEMA_FALSE : JSCHEMA_ROOT);
    close_schema(&run);
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
        grammar_builder_fail(builder, STATUS_RESOURCE_EXHAUSTED, "#: no memory for the schema");
        return NULL;
    }
    parts->options = *options;
    if (open_schema(&parts->schema, builder, &parts->options) && jschema_index(&parts->schema, schema))
        return parts;
    grammar_schema_parts_close(parts);
    return NULL;
}

uint32_t grammar_schema_parts_add(struct grammar_schema_parts *parts, const json_t *part)
{
    const uint32_t entry = jschema_failed(&parts->schema) ? 0 : jschema_entry_of(&parts->schema, part);

    return entry ? compile_entry(&parts->schema, entry) : 0;
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
    close_schema(&parts->schema);
    free(parts);
}

uint32_t grammar_add_json_object(struct grammar_builder *builder, const struct grammar_schema_options *options)
{
    struct jschema run;
    uint32_t node = open_schema(&run, builder, options) ? jschema_any_object(&run) : 0;

    close_schema(&run);
    return node;
}

enum status grammar_from_schema(const json_t *schema, const struct grammar_schema_options *options, struct grammar **out,
                                struct error *error)
{
    struct grammar_builder *builder = grammar_builder_open();
    enum status status;

    *out = NULL;
    if (!builder)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "#: no memory for the schema");
    status = grammar_compile(builder, grammar_add_schema(builder, schema, options), out, error);
    grammar_builder_close(builder);
    return status;
}
