// grammar_schema_key.c: which keys an object may have, and what holds for the values of each.
//
// Each member of a variant says something about a key: what it has under properties and under the patterns that match, or, if neither names it, under
// additionalProperties. What all of them say holds together. Keys that nobody declares fall into classes by the patterns that they match.
// They are spelled without escapes, so that a declared key cannot come again under another spelling.
#include <string.h>

#include "common/grammar/grammar_schema_internal.h"

static bool is_declared(const struct jschema_keys *keys, const char *key)
{
    for (uint32_t i = 0; i < keys->declared_count; i++)
        if (strcmp(keys->declared[i], key) == 0)
            return true;
    return false;
}

static void declare(struct jschema *schema, struct jschema_keys *keys, const char *key, uint32_t *capacity)
{
    if (jschema_work(schema, 1 + keys->declared_count / 16) && !is_declared(keys, key) &&
        jschema_grow(schema, &keys->declared, keys->declared_count, capacity, sizeof *keys->declared))
        keys->declared[keys->declared_count++] = key;
}

static void read_patterns(struct jschema *schema, struct jschema_keys *keys, uint32_t entry)
{
    const json_t *patterns = jschema_get(schema, entry, "patternProperties");
    const char *text;
    json_t *value;

    if (patterns && !json_is_object(patterns))
        jschema_fail(schema, entry, "patternProperties", STATUS_INVALID_ARGUMENT, "must be an object");
    if (!json_is_object(patterns))
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

// The content of strings that propertyNames allows.
static void read_names(struct jschema *schema, struct jschema_keys *keys)
{
    const struct jschema_form *form = keys->form;
    uint32_t *ids = jschema_take(schema, form->leaves.count, sizeof *ids), count = 0;

    for (uint32_t i = 0; ids && i < form->leaves.count; i++) {
        const json_t *names = jschema_get(schema, form->leaves.ids[i], "propertyNames");
        if (names && !json_is_object(names) && !json_is_boolean(names))
            jschema_fail(schema, form->leaves.ids[i], "propertyNames", STATUS_INVALID_ARGUMENT,
                         "must be a schema: an object, true or false");
        else if (names && !json_is_true(names))
            ids[count++] = jschema_entry_of(schema, names);
    }
    keys->any_name = count == 0;
    keys->names = schema->nothing;
    if (count == 0)
        return;
    struct jschema_variants variants = jschema_flatten(schema, (struct jschema_set){count, ids});
    for (uint32_t i = 0; i < variants.count && !jschema_failed(schema); i++) {
        struct jschema_form names = jschema_merge(schema, variants.sets[i]);
        keys->names = JSCHEMA_EITHER(schema, keys->names, jschema_string_content(schema, &names));
    }
}

struct jschema_keys jschema_keys_of(struct jschema *schema, const struct jschema_form *form)
{
    struct jschema_keys keys = {.form = form};
    bool has_properties = false, says_additional = false;
    uint32_t capacity = 0;

    for (uint32_t i = 0; i < form->leaves.count && !jschema_failed(schema); i++) {
        uint32_t entry = form->leaves.ids[i];
        const json_t *properties = jschema_get(schema, entry, "properties");
        const char *key;
        json_t *value;
        if (properties && !json_is_object(properties)) {
            jschema_fail(schema, entry, "properties", STATUS_INVALID_ARGUMENT, "must be an object");
            break;
        }
        json_object_foreach ((json_t *)properties, key, value)
            declare(schema, &keys, key, &capacity);
        read_patterns(schema, &keys, entry);
        has_properties |= properties && !schema->entries[entry].is_made;
        says_additional |= jschema_get(schema, entry, "additionalProperties") != NULL;
    }
    for (uint32_t i = 0; i < form->required_count; i++)
        declare(schema, &keys, form->required[i], &capacity);
    keys.is_closed = schema->options->closed_by_default && has_properties && !says_additional;
    read_names(schema, &keys);
    return keys;
}

static void add_schema(struct jschema *schema, uint32_t *ids, uint32_t *count, uint32_t entry, const char *keyword,
                       const json_t *value)
{
    if (!value || json_is_true(value))
        return;
    if (!json_is_object(value) && !json_is_boolean(value)) {
        jschema_fail(schema, entry, keyword, STATUS_INVALID_ARGUMENT, "must have schemas: objects, true or false");
        return;
    }
    uint32_t id = jschema_entry_of(schema, value);
    for (uint32_t i = 0; i < *count; i++)
        if (ids[i] == id)
            return;
    ids[(*count)++] = id;
}

// What holds for a key, or, key NULL, for one that is not declared. Both match exactly the patterns of `matched`.
static struct jschema_set what_holds(struct jschema *schema, const struct jschema_keys *keys, const char *key, uint32_t matched)
{
    const struct jschema_set leaves = keys->form->leaves;
    uint32_t *ids = jschema_take(schema, leaves.count * (2 + keys->pattern_count) + 1, sizeof *ids), count = 0;
    bool is_named = false;

    for (uint32_t i = 0; ids && i < leaves.count; i++) {
        uint32_t entry = leaves.ids[i];
        const json_t *property = key ? json_object_get(jschema_get(schema, entry, "properties"), key) : NULL;
        const json_t *patterns = jschema_get(schema, entry, "patternProperties");
        bool named_here = property != NULL;
        add_schema(schema, ids, &count, entry, "properties", property);
        for (uint32_t p = 0; patterns && p < keys->pattern_count; p++) {
            const json_t *value = matched >> p & 1 ? json_object_get(patterns, keys->patterns[p].text) : NULL;
            named_here |= value != NULL;
            add_schema(schema, ids, &count, entry, "patternProperties", value);
        }
        if (!named_here)
            add_schema(schema, ids, &count, entry, "additionalProperties", jschema_get(schema, entry, "additionalProperties"));
        is_named |= named_here;
    }
    if (ids && !is_named && keys->is_closed)
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
    return what_holds(schema, keys, key, matched);
}

struct jschema_set jschema_additional(struct jschema *schema, const struct jschema_keys *keys, uint32_t matched)
{
    return what_holds(schema, keys, NULL, matched);
}

uint32_t jschema_additional_keys(struct jschema *schema, const struct jschema_keys *keys, uint32_t matched)
{
    uint32_t *declared = jschema_take(schema, keys->declared_count, sizeof *declared), content;

    if (!declared)
        return schema->nothing;
    if (keys->declared_count == 0 && keys->any_name && keys->pattern_count == 0)
        return jschema_any_string(schema);
    content = keys->any_name ? jschema_any_content(schema) : keys->names;
    for (uint32_t i = 0; i < keys->declared_count; i++)
        declared[i] = grammar_text(schema->builder, keys->declared[i]);
    if (keys->declared_count)
        content = jschema_without(schema, content, grammar_either(schema->builder, declared, keys->declared_count));
    for (uint32_t p = 0; p < keys->pattern_count; p++)
        content = matched >> p & 1 ? jschema_both(schema, content, keys->patterns[p].content)
                                   : jschema_without(schema, content, keys->patterns[p].content);
    return jschema_failed(schema) || jschema_is_nothing(schema, content) ? schema->nothing : jschema_quoted(schema, content);
}
