// grammar_schema_key.c: which keys an object may have, and what holds for the values of each.
//
// Each member of a variant says something about a key: what it has under properties and under the patterns that match, or, if neither names it, under
// additionalProperties. What all of them say holds together. Keys that nobody declares fall into classes by the patterns that they match.
// They are spelled without escapes, so that a declared key cannot come again under another spelling.
#include <stdlib.h>
#include <string.h>

#include "common/grammar/grammar_builder_state.h"
#include "common/grammar/grammar_schema_internal.h"

enum { MAX_TREE_DEPTH = 128 }; // bytes of a key

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

// The content of strings that propertyNames allows.
static void read_names(struct jschema *schema, struct jschema_keys *keys)
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
            declare(schema, &keys, key, &capacity);
        read_patterns(schema, &keys, entry);
        has_properties |= properties && !schema->entries[entry].is_made;
        is_named |= json_object_size(properties) && !schema->entries[entry].is_made;
        says_others |= jschema_get(schema, entry, "additionalProperties") || jschema_get(schema, entry, "unevaluatedProperties");
        says_patterns |= jschema_get(schema, entry, "patternProperties") != NULL;
    }
    for (uint32_t i = 0; i < form->required_count; i++)
        declare(schema, &keys, form->required[i], &capacity);
    keys.is_closed = schema->options->closed_by_default && !says_others &&
                     (schema->options->is_strict ? has_properties : is_named && !says_patterns);
    read_names(schema, &keys);
    return keys;
}

static void add_schema(struct jschema *schema, uint32_t *ids, uint32_t *count, uint32_t entry, const char *keyword,
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
    return what_holds(schema, keys, key, matched);
}

struct jschema_set jschema_additional(struct jschema *schema, const struct jschema_keys *keys, uint32_t matched)
{
    return what_holds(schema, keys, NULL, matched);
}

// --- keys that are not declared ----------------------------------------------------------------------------------------------

// Of UTF-8: any characters may come, so many bytes of one are still to come, or its next byte has fewer choices.
enum { ANY, TAIL_1, TAIL_2, TAIL_3, AFTER_E0, AFTER_ED, AFTER_F0, AFTER_F4, UTF8_STATES, ASCII = 0x80 };

static void add_utf8(struct grammar_fsa *fsa)
{
    static const uint32_t arcs[][4] = {{TAIL_1, 0x80, 0xbf, ANY},      {TAIL_2, 0x80, 0xbf, TAIL_1},
                                       {TAIL_3, 0x80, 0xbf, TAIL_2},   {AFTER_E0, 0xa0, 0xbf, TAIL_1},
                                       {AFTER_ED, 0x80, 0x9f, TAIL_1}, {AFTER_F0, 0x90, 0xbf, TAIL_2},
                                       {AFTER_F4, 0x80, 0x8f, TAIL_2}};

    for (uint32_t i = 0; i < UTF8_STATES; i++)
        grammar_fsa_add_state(fsa, i == ANY);
    for (uint32_t i = 0; i < sizeof arcs / sizeof arcs[0]; i++)
        grammar_fsa_add_arc(fsa, arcs[i][0], arcs[i][1], arcs[i][2], arcs[i][3]);
}

// From a state any character leads to ANY, but for ASCII characters that are taken.
static void add_others(struct grammar_fsa *fsa, uint32_t state, const bool *is_taken)
{
    static const uint32_t arcs[][3] = {{0xc2, 0xdf, TAIL_1}, {0xe0, 0xe0, AFTER_E0}, {0xe1, 0xec, TAIL_2}, {0xed, 0xed, AFTER_ED},
                                       {0xee, 0xef, TAIL_2}, {0xf0, 0xf0, AFTER_F0}, {0xf1, 0xf3, TAIL_3}, {0xf4, 0xf4, AFTER_F4}};

    for (uint32_t i = 0; i < sizeof arcs / sizeof arcs[0]; i++)
        grammar_fsa_add_arc(fsa, state, arcs[i][0], arcs[i][1], arcs[i][2]);
    for (uint32_t first = 0, last; first < ASCII; first = last + 1) {
        for (last = first; last < ASCII && !is_taken[last]; last++) {}
        if (last > first)
            grammar_fsa_add_arc(fsa, state, first, last - 1, ANY);
    }
}

static int compare_keys(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

// Adds the state that the keys, which are sorted, have reached after `depth` bytes, and those behind it. Returns it.
static uint32_t add_branch(struct grammar_fsa *fsa, const char **keys, uint32_t count, size_t depth)
{
    uint32_t state = grammar_fsa_add_state(fsa, keys[0][depth] != '\0');
    bool is_taken[ASCII] = {false};

    for (uint32_t first = keys[0][depth] == '\0', last; first < count && !fsa->failure; first = last) {
        unsigned char byte = (unsigned char)keys[first][depth];
        for (last = first; last < count && (unsigned char)keys[last][depth] == byte; last++) {}
        is_taken[byte] = true;
        grammar_fsa_add_arc(fsa, state, byte, byte, add_branch(fsa, keys + first, last - first, depth + 1));
    }
    add_others(fsa, state, is_taken);
    return state;
}

// All strings but the declared keys. Those of ASCII, as most are, are a tree, which is quicker than a difference of languages.
static uint32_t undeclared(struct jschema *schema, const struct jschema_keys *keys)
{
    struct grammar_fsa fsa = {.max_states = GRAMMAR_MAX_REGULAR_STATES, .max_arcs = GRAMMAR_MAX_EDGES};
    const char **sorted = jschema_take(schema, keys->declared_count, sizeof *sorted);
    uint32_t *texts = jschema_take(schema, keys->declared_count, sizeof *texts);
    bool is_simple = true;

    if (!sorted || !texts)
        return schema->nothing;
    for (uint32_t i = 0; i < keys->declared_count; i++) {
        sorted[i] = keys->declared[i];
        is_simple &= strlen(sorted[i]) <= MAX_TREE_DEPTH;
        for (const char *c = sorted[i]; *c; c++)
            is_simple &= (unsigned char)*c < ASCII;
    }
    if (!is_simple) {
        for (uint32_t i = 0; i < keys->declared_count; i++)
            texts[i] = grammar_text(schema->builder, keys->declared[i]);
        return jschema_without(schema, jschema_any_content(schema), grammar_either(schema->builder, texts, keys->declared_count));
    }
    qsort(sorted, keys->declared_count, sizeof *sorted, compare_keys);
    add_utf8(&fsa);
    add_others(&fsa, ANY, (const bool[ASCII]){false});
    fsa.start = add_branch(&fsa, sorted, keys->declared_count, 0);
    if (grammar_fsa_seal(&fsa))
        grammar_fsa_trim(&fsa);
    if (jschema_charge(schema, fsa.state_count))
        return grammar_add_regular(schema->builder, &fsa);
    grammar_fsa_free(&fsa);
    return schema->nothing;
}

uint32_t jschema_additional_keys(struct jschema *schema, const struct jschema_keys *keys, uint32_t matched, uint32_t among)
{
    uint32_t content;

    if (keys->declared_count == 0 && keys->any_name && keys->pattern_count == 0 && among == schema->nothing)
        return jschema_any_string(schema);
    content = keys->declared_count ? undeclared(schema, keys) : jschema_any_content(schema);
    if (!keys->any_name)
        content = jschema_both(schema, content, keys->names);
    if (among != schema->nothing)
        content = jschema_both(schema, content, among);
    for (uint32_t p = 0; p < keys->pattern_count; p++)
        content = matched >> p & 1 ? jschema_both(schema, content, keys->patterns[p].content)
                                   : jschema_without(schema, content, keys->patterns[p].content);
    return jschema_failed(schema) || jschema_is_nothing(schema, content) ? schema->nothing : jschema_quoted(schema, content);
}
