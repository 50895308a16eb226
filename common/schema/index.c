// index.c: every schema of a document gets an entry: its path, the resource whose base its references have, a hash of what it says.
//
// The document is walked once, along the keywords that have schemas, before anything is made of it: identifiers and anchors may be used before
// they come, and depth and size are known to be bearable from then on. Schemas elsewhere (under unknown keywords) get an entry when something
// refers to them. Equal schemas of one resource get one canonical entry; only its number is used in sets, so equal parts share rules.
//
// A $ref is "#", "#/a/json/pointer", "#anchor", and the same in resources of the document that have an $id. Nothing is ever fetched: a
// reference to what the document does not have fails.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/schema/internal.h"

enum {
    MAX_PROBES = 32,
    MAX_PATH_BYTES = 200,
    REFERENCE_BYTES = 1024
}; // REFERENCE_BYTES: of one that is looked up without a builder

bool jschema_failed(const struct jschema *schema) { return grammar_builder_failed(schema->builder); }

// Writes the path of an entry to the end of text. The beginning goes if it is too long.
static char *write_path(const struct jschema *schema, uint32_t entry, char *end, const char *start)
{
    while (entry > JSCHEMA_ROOT) {
        const struct jschema_entry *e = &schema->entries[entry];
        char step[64];
        int length;
        if (e->has_index)
            length = snprintf(step, sizeof step, "/%.40s/%u", e->step, e->index);
        else
            length = snprintf(step, sizeof step, "%s%.60s", e->step[0] ? "/" : "", e->step);
        length = length < (int)sizeof step ? length : (int)sizeof step - 1;
        if (end - start < length + 4) {
            end -= 3;
            memcpy(end, "...", 3);
            return end;
        }
        end -= length;
        memcpy(end, step, (size_t)length);
        entry = e->parent;
    }
    *--end = '#';
    return end;
}

uint32_t jschema_fail(struct jschema *schema, uint32_t entry, const char *keyword, enum status status, const char *format, ...)
{
    char path[MAX_PATH_BYTES + 1], text[256];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    path[MAX_PATH_BYTES] = '\0';
    return grammar_builder_fail(schema->builder, status, "%s%s%s: %s", write_path(schema, entry, path + MAX_PATH_BYTES, path),
                                keyword ? "/" : "", keyword ? keyword : "", text);
}

void jschema_blame(struct jschema *schema, uint32_t entry, const char *keyword)
{
    char path[MAX_PATH_BYTES + 1];
    struct error *error = grammar_builder_failure(schema->builder);

    path[MAX_PATH_BYTES] = '\0';
    if (error->status && error->text[0] != '#')
        error_prefix(error, "%s%s%s", write_path(schema, entry, path + MAX_PATH_BYTES, path), keyword ? "/" : "",
                     keyword ? keyword : "");
}

bool jschema_work(struct jschema *schema, uint32_t amount)
{
    schema->work += amount;
    if (schema->work > JSCHEMA_MAX_WORK)
        grammar_builder_fail(schema->builder, STATUS_RESOURCE_EXHAUSTED,
                             "#: the schema is too complex: it has too many combinations of alternatives or references");
    return !jschema_failed(schema);
}

void *jschema_take(struct jschema *schema, size_t count, size_t size)
{
    void *memory = count < JSCHEMA_ARENA_BYTES / (size + 1) ? arena_take(&schema->arena, count * size + 1) : NULL;

    if (!memory)
        grammar_builder_fail(schema->builder, STATUS_RESOURCE_EXHAUSTED, "#: the schema needs too much memory: simplify it");
    else
        memset(memory, 0, count * size + 1);
    return memory;
}

bool jschema_grow(struct jschema *schema, void *array, uint32_t count, uint32_t *capacity, size_t size)
{
    void **slot = array;

    if (count < *capacity)
        return true;
    uint32_t wanted = *capacity ? 2 * *capacity : 8;
    void *grown = jschema_take(schema, wanted, size);
    if (!grown)
        return false;
    if (count)
        memcpy(grown, *slot, count * size);
    *slot = grown;
    *capacity = wanted;
    return true;
}

const json_t *jschema_get(const struct jschema *schema, uint32_t entry, const char *keyword)
{
    return json_object_get(schema->entries[entry].value, keyword);
}

uint64_t jschema_count(struct jschema *schema, uint32_t entry, const char *keyword, uint64_t otherwise)
{
    const json_t *value = jschema_get(schema, entry, keyword);
    double number = value ? json_text_number(value) : 0;

    if (!value)
        return otherwise;
    if (!json_text_is_number(value) || number < 0 || number != (double)(uint64_t)(number < 1e18 ? number : 1e18)) {
        jschema_fail(schema, entry, keyword, STATUS_INVALID_ARGUMENT, "must be a whole number of at least 0");
        return otherwise;
    }
    return number < 1e18 ? (uint64_t)number : (uint64_t)1e18;
}

// --- addresses of references --------------------------------------------------------------------------------------------

// Returns the length of "scheme:", 0 without one.
static size_t scheme_length(const char *uri)
{
    size_t length = strspn(uri, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.");

    return length > 0 && uri[length] == ':' ? length + 1 : 0;
}

// Returns the length of "scheme://authority".
static size_t authority_end(const char *uri)
{
    size_t at = scheme_length(uri);

    return strncmp(uri + at, "//", 2) == 0 ? at + 2 + strcspn(uri + at + 2, "/?#") : at;
}

// Takes "." and ".." out of a path, in place.
static void remove_dots(char *path)
{
    char *out = path, *in = path;

    while (*in) {
        if (strncmp(in, "/./", 3) == 0 || strcmp(in, "/.") == 0) {
            in += 2;
            if (!*in)
                *out++ = '/';
        } else if (strncmp(in, "/../", 4) == 0 || strcmp(in, "/..") == 0) {
            in += 3;
            while (out > path && *--out != '/') {}
            if (!*in)
                *out++ = '/';
        } else {
            do
                *out++ = *in++;
            while (*in && *in != '/');
        }
    }
    *out = '\0';
}

// Joins them as RFC 3986 (5.2) does, without the fragment. joined: as long as both together, and two bytes more.
static void join_uris(const char *base, const char *reference, char *joined)
{
    size_t base_bytes = strcspn(base, "#"), bytes = strcspn(reference, "#");
    size_t kept;

    if (scheme_length(reference) && scheme_length(reference) <= bytes)
        kept = 0;
    else if (bytes == 0)
        kept = base_bytes;
    else if (reference[0] == '/')
        kept = reference[1] == '/' ? scheme_length(base) : authority_end(base);
    else
        for (kept = strcspn(base, "?#"); kept > authority_end(base) && base[kept - 1] != '/';)
            kept--;
    memcpy(joined, base, kept);
    memcpy(joined + kept, reference, bytes);
    joined[kept + bytes] = '\0';
    if (strchr(joined + authority_end(joined), '/'))
        remove_dots(joined + authority_end(joined));
}

// --- entries ------------------------------------------------------------------------------------------------------------

// The hash is spread first, since small numbers would collide: [true] and 0 would be the same.
static uint64_t hash_mix(uint64_t hash, uint64_t value)
{
    hash = (hash * 0xd6e8feb86659fd93u ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

static uint64_t hash_bytes(const char *bytes, size_t count)
{
    uint64_t hash = count;

    for (size_t i = 0; i < count; i++)
        hash = hash_mix(hash, (unsigned char)bytes[i]);
    return hash;
}

static uint32_t *slot_of(struct jschema *schema, const json_t *value)
{
    uint64_t hash = hash_mix(0, (uintptr_t)value);

    for (;; hash++) {
        uint32_t *slot = &schema->slots[hash & (schema->slot_count - 1)];
        if (*slot == 0 || schema->entries[*slot - 1].value == value)
            return slot;
    }
}

// Returns a hash of all that a value says, in its order. Entries know theirs, so that each value is looked at once. The depth was checked before.
static uint64_t hash_value(struct jschema *schema, const json_t *value)
{
    uint32_t known = json_text_is_object(value) ? *slot_of(schema, value) : 0;
    uint64_t hash = (uint64_t)json_typeof(value) + 1;
    const char *key;
    json_t *item;
    size_t i;

    if (known && schema->entries[known - 1].hash)
        return schema->entries[known - 1].hash;
    if (json_is_string(value))
        return hash_mix(hash, hash_bytes(json_string_value(value), json_string_length(value)));
    if (json_is_integer(value))
        return hash_mix(hash, (uint64_t)json_integer_value(value));
    if (json_is_real(value)) {
        double number = json_real_value(value);
        uint64_t bits;
        memcpy(&bits, &number, sizeof bits);
        return hash_mix(hash, bits);
    }
    if (json_text_kept(value))
        return hash_mix(hash, hash_bytes(json_text_kept(value), strlen(json_text_kept(value))));
    if (json_is_array(value)) {
        json_array_foreach (value, i, item)
            hash = hash_mix(hash, hash_value(schema, item));
    } else if (json_text_is_object(value)) {
        json_object_foreach ((json_t *)value, key, item)
            hash = hash_mix(hash_mix(hash, hash_bytes(key, strlen(key))), hash_value(schema, item));
    }
    return hash;
}

// Returns the first entry of this resource that says the same. The hash is believed: two schemas made to have one hash spoil only their own
// grammar.
static uint32_t entry_canonical(struct jschema *schema, uint32_t entry)
{
    const struct jschema_entry *e = &schema->entries[entry];

    for (uint32_t i = 0; i < MAX_PROBES; i++) {
        uint32_t *slot = &schema->contents[(hash_mix(e->hash, e->resource) + i) & (schema->slot_count - 1)];
        if (*slot == 0) {
            *slot = entry + 1;
            return entry;
        }
        const struct jschema_entry *other = &schema->entries[*slot - 1];
        if (other->hash == e->hash && other->resource == e->resource && other->is_made == e->is_made)
            return *slot - 1;
    }
    return entry;
}

static void entry_name(struct jschema *schema, struct jschema_named **names, uint32_t *count, uint32_t *capacity,
                       struct jschema_named named)
{
    if (jschema_grow(schema, names, *count, capacity, sizeof named))
        (*names)[(*count)++] = named;
}

// Takes note of what an entry is called.
static void entry_read_identity(struct jschema *schema, uint32_t entry)
{
    struct jschema_entry *e = &schema->entries[entry];
    const char *id = json_string_value(json_object_get(e->value, "$id"));

    if (id && id[0] != '#') {
        const char *base = "";
        for (uint32_t i = 0; i < schema->resource_count; i++)
            if (schema->resources[i].entry == e->resource)
                base = schema->resources[i].name;
        char *joined =
            jschema_work(schema, 1 + schema->resource_count / 16) ? jschema_take(schema, strlen(base) + strlen(id) + 2, 1) : NULL;
        if (!joined)
            return;
        join_uris(base, id, joined);
        e->resource = entry;
        entry_name(schema, &schema->resources, &schema->resource_count, &schema->resource_capacity,
                   (struct jschema_named){.name = joined, .entry = entry, .resource = entry});
    } else if (entry == JSCHEMA_ROOT) {
        entry_name(schema, &schema->resources, &schema->resource_count, &schema->resource_capacity,
                   (struct jschema_named){.name = "", .entry = entry, .resource = entry});
    }
    static const char *const anchors[] = {"$anchor", "$dynamicAnchor"};
    for (int i = 0; i < 2; i++) {
        const char *anchor = json_string_value(json_object_get(e->value, anchors[i]));
        if (anchor)
            entry_name(schema, &schema->anchors, &schema->anchor_count, &schema->anchor_capacity,
                       (struct jschema_named){.name = anchor, .entry = entry, .resource = schema->entries[entry].resource});
    }
}

// Adds an entry without what is in it. Returns it; 0: failed.
static uint32_t entry_add(struct jschema *schema, const json_t *value, struct jschema_entry entry)
{
    uint32_t id = schema->entry_count;

    if (2 * id >= schema->slot_count)
        return jschema_fail(schema, JSCHEMA_ROOT, NULL, STATUS_RESOURCE_EXHAUSTED, "the schema has more than %u parts",
                            schema->slot_count / 2);
    if (!jschema_grow(schema, &schema->entries, id, &schema->entry_capacity, sizeof *schema->entries))
        return 0;
    entry.value = value;
    entry.canonical = id;
    schema->entries[id] = entry;
    schema->entry_count++;
    *slot_of(schema, value) = id + 1;
    if (!entry.is_made)
        entry_read_identity(schema, id);
    return id;
}

// Ends the entry of an object once those of the schemas in it are there.
static void entry_settle(struct jschema *schema, uint32_t id)
{
    schema->entries[id].hash = hash_value(schema, schema->entries[id].value) | 1;
    schema->entries[id].canonical = entry_canonical(schema, id);
}

// --- the walk -----------------------------------------------------------------------------------------------------------

enum holds { ONE, LIST, MAP };
static const struct {
    const char *keyword;
    enum holds holds;
} schema_keywords[] = {
    {"additionalItems", ONE},
    {"additionalProperties", ONE},
    {"contains", ONE},
    {"contentSchema", ONE},
    {"else", ONE},
    {"if", ONE},
    {"items", ONE},
    {"not", ONE},
    {"propertyNames", ONE},
    {"then", ONE},
    {"unevaluatedItems", ONE},
    {"unevaluatedProperties", ONE},
    {"allOf", LIST},
    {"anyOf", LIST},
    {"oneOf", LIST},
    {"prefixItems", LIST},
    {"items", LIST},
    {"$defs", MAP},
    {"definitions", MAP},
    {"dependencies", MAP},
    {"dependentSchemas", MAP},
    {"patternProperties", MAP},
    {"properties", MAP},
};
enum { SCHEMA_KEYWORDS = sizeof schema_keywords / sizeof schema_keywords[0] };

static bool is_exact(const json_t *value)
{
    const char *key;
    json_t *item;
    size_t i;

    if (!jschema_decimal_is_exact(value))
        return false;
    json_array_foreach (value, i, item)
        if (!is_exact(item))
            return false;
    if (json_text_is_object(value))
        json_object_foreach ((json_t *)value, key, item)
            if (!is_exact(item))
                return false;
    return true;
}

// Returns whether the numbers that the grammar is made of have all their digits. Those of annotations may be as long as they like.
static bool entry_check_numbers(struct jschema *schema, uint32_t id)
{
    static const char *const keywords[] = {"const",     "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                                           "multipleOf"};

    for (size_t i = 0; i < sizeof keywords / sizeof keywords[0]; i++) {
        const json_t *held = json_object_get(schema->entries[id].value, keywords[i]);
        if (held && !is_exact(held)) {
            jschema_fail(schema, id, keywords[i], STATUS_RESOURCE_EXHAUSTED, "has a number of more than %u digits",
                         JSCHEMA_MAX_DIGITS);
            return false;
        }
    }
    return true;
}

static void entry_walk(struct jschema *schema, const json_t *value, struct jschema_entry place)
{
    const char *key;
    json_t *item;
    size_t i;

    if (!(json_text_is_object(value) || json_is_boolean(value)) || jschema_failed(schema))
        return; // whoever uses it says what is wrong
    if (json_is_boolean(value) || *slot_of(schema, value))
        return;
    uint32_t id = entry_add(schema, value, place);
    if (!id || !entry_check_numbers(schema, id))
        return;
    struct jschema_entry child = {.parent = id, .resource = schema->entries[id].resource, .is_made = place.is_made};
    for (uint32_t k = 0; k < SCHEMA_KEYWORDS; k++) {
        const json_t *held = json_object_get(value, schema_keywords[k].keyword);
        child.step = schema_keywords[k].keyword;
        child.has_index = false;
        child.parent = id;
        if (!held) {
            continue;
        } else if (schema_keywords[k].holds == ONE) {
            entry_walk(schema, held, child);
        } else if (schema_keywords[k].holds == LIST && json_is_array(held)) {
            child.has_index = true;
            json_array_foreach (held, i, item) {
                child.index = (uint32_t)i;
                entry_walk(schema, item, child);
            }
        } else if (schema_keywords[k].holds == MAP && json_text_is_object(held)) {
            json_object_foreach ((json_t *)held, key, item) {
                size_t bytes = strlen(child.step) + strlen(key) + 2;
                char *step = jschema_take(schema, bytes, 1);
                struct jschema_entry named = child;
                if (!step)
                    return;
                snprintf(step, bytes, "%s/%s", child.step, key);
                named.step = step;
                entry_walk(schema, item, named);
            }
        }
    }
    if (!jschema_failed(schema))
        entry_settle(schema, id);
}

// Returns whether a value is small and shallow enough to be walked.
static bool measure_value(struct jschema *schema, const json_t *value, uint32_t depth, uint32_t *count)
{
    const char *key;
    json_t *item;
    size_t i;

    if (depth > 2 * JSCHEMA_MAX_DEPTH) {
        jschema_fail(schema, JSCHEMA_ROOT, NULL, STATUS_RESOURCE_EXHAUSTED, "the schema is nested deeper than %u levels",
                     2 * JSCHEMA_MAX_DEPTH);
        return false;
    }
    if (++*count > JSCHEMA_MAX_VALUES) {
        jschema_fail(schema, JSCHEMA_ROOT, NULL, STATUS_RESOURCE_EXHAUSTED, "the schema has more than %u values",
                     JSCHEMA_MAX_VALUES);
        return false;
    }
    json_array_foreach (value, i, item)
        if (!measure_value(schema, item, depth + 1, count))
            return false;
    if (json_text_is_object(value))
        json_object_foreach ((json_t *)value, key, item)
            if (!measure_value(schema, item, depth + 1, count))
                return false;
    return true;
}

bool jschema_index(struct jschema *schema, const json_t *root)
{
    static const char *const no_step = "";
    uint32_t count = 0;

    if (!json_text_is_object(root) && !json_is_boolean(root)) {
        grammar_builder_fail(schema->builder, STATUS_INVALID_ARGUMENT, "#: a schema is an object, true or false");
        return false;
    }
    if (!measure_value(schema, root, 0, &count))
        return false;
    for (schema->slot_count = 1 << 10; schema->slot_count < 4 * count;)
        schema->slot_count *= 2;
    schema->slot_count *= 4; // room for schemas that are made
    schema->slots = jschema_take(schema, schema->slot_count, sizeof *schema->slots);
    schema->contents = jschema_take(schema, schema->slot_count, sizeof *schema->contents);
    if (!schema->slots || !schema->contents)
        return false;
    struct jschema_entry place = {.step = no_step, .resource = JSCHEMA_ROOT, .is_made = true};
    if (!jschema_grow(schema, &schema->entries, 0, &schema->entry_capacity, sizeof *schema->entries))
        return false;
    schema->entry_count = JSCHEMA_TRUE;
    entry_add(schema, json_true(), place);
    entry_add(schema, json_false(), place);
    if (json_is_boolean(root))
        return !jschema_failed(schema);
    place.is_made = false;
    entry_walk(schema, root, place);
    return !jschema_failed(schema);
}

uint32_t jschema_entry_of(struct jschema *schema, const json_t *value)
{
    uint32_t slot = json_text_is_object(value) || json_is_boolean(value) ? *slot_of(schema, value) : 0;

    if (slot)
        return schema->entries[slot - 1].canonical;
    return grammar_builder_fail(schema->builder, STATUS_INVALID_ARGUMENT, "#: a schema is missing where one is needed");
}

uint32_t jschema_add_entry(struct jschema *schema, const json_t *value, uint32_t parent, const char *step)
{
    if (!json_text_is_object(value) && !json_is_boolean(value))
        return jschema_fail(schema, parent, step, STATUS_INVALID_ARGUMENT, "must be a schema: an object, true or false");
    entry_walk(schema, value,
               (struct jschema_entry){.parent = parent,
                                      .step = step,
                                      .resource = schema->entries[parent].resource,
                                      .is_made = schema->entries[parent].is_made});
    return jschema_failed(schema) ? 0 : jschema_entry_of(schema, value);
}

uint32_t jschema_make(struct jschema *schema, json_t *value, uint32_t parent, const char *step)
{
    if (!value || json_array_append_new(schema->made, value))
        return grammar_builder_fail(schema->builder, STATUS_UNAVAILABLE, "#: no memory for the schema");
    if (json_is_boolean(value))
        return json_is_true(value) ? JSCHEMA_TRUE : JSCHEMA_FALSE;
    entry_walk(
        schema, value,
        (struct jschema_entry){.parent = parent, .step = step, .resource = schema->entries[parent].resource, .is_made = true});
    return jschema_failed(schema) ? 0 : jschema_entry_of(schema, value);
}

// --- references ---------------------------------------------------------------------------------------------------------

static int hex_digit(char c)
{
    const char *digits = "0123456789abcdef", *found = c ? strchr(digits, c | 0x20) : NULL;

    return found && ((c >= '0' && c <= '9') || (c | 0x20) >= 'a') ? (int)(found - digits) : -1;
}

// Undoes percent-encoding, in place.
static void decode_percent(char *text)
{
    char *out = text;

    for (; *text; text++) {
        if (*text == '%' && hex_digit(text[1]) >= 0 && hex_digit(text[2]) >= 0) {
            *out++ = (char)(hex_digit(text[1]) << 4 | hex_digit(text[2]));
            text += 2;
        } else {
            *out++ = *text;
        }
    }
    *out = '\0';
}

// Undoes a pointer's ~0 and ~1, in place.
static void decode_tildes(char *text)
{
    char *out = text;

    for (; *text; text++) {
        bool is_escape = *text == '~' && (text[1] == '0' || text[1] == '1');
        *out++ = !is_escape ? *text : text[1] == '0' ? '~' : '/';
        text += is_escape;
    }
    *out = '\0';
}

// Returns what a value has under a name of a pointer, or NULL.
static const json_t *member_of(const json_t *value, char *name)
{
    char *end;

    decode_tildes(name);
    if (!json_is_array(value))
        return json_object_get(value, name);
    unsigned long index = strtoul(name, &end, 10);
    return name[0] >= '0' && name[0] <= '9' && !*end ? json_array_get(value, index) : NULL;
}

const json_t *grammar_schema_at(const json_t *schema, const char *reference)
{
    char pointer[REFERENCE_BYTES], *rest = pointer, *name;
    const size_t bytes = strlen(reference);

    if (reference[0] != '#' || bytes > sizeof pointer)
        return NULL;
    memcpy(pointer, reference + 1, bytes); // with its end
    decode_percent(pointer);
    if (*strsep(&rest, "/"))
        return NULL; // an anchor
    while (schema && (name = strsep(&rest, "/")))
        schema = member_of(schema, name);
    return schema;
}

// Follows "/a/b/0" from an entry. Returns 0 if nothing is there.
static uint32_t follow_pointer(struct jschema *schema, uint32_t entry, char *pointer)
{
    const json_t *value = schema->entries[entry].value;
    uint32_t nearest = entry;
    char *rest = pointer, *name, *path;

    path = jschema_take(schema, strlen(pointer) + 1, 1);
    if (!path)
        return 0;
    strcpy(path, pointer + (pointer[0] == '/'));
    strsep(&rest, "/");
    while ((name = strsep(&rest, "/"))) {
        value = member_of(value, name);
        if (!value || !jschema_work(schema, 1 + schema->resource_count / 16))
            return 0;
        // A schema on the way may be a resource of its own: references from below have its base.
        for (uint32_t i = 0; i < schema->resource_count; i++)
            if (schema->entries[schema->resources[i].entry].value == value)
                nearest = schema->resources[i].entry;
    }
    return jschema_add_entry(schema, value, nearest, nearest == entry ? path : "...");
}

uint32_t jschema_resolve(struct jschema *schema, uint32_t entry, const char *reference)
{
    uint32_t resource = schema->entries[entry].resource, target = 0;
    const char *base = "";
    char *fragment, *uri;

    if (!jschema_work(schema, 1 + (schema->resource_count + schema->anchor_count) / 16))
        return 0;
    for (uint32_t i = 0; i < schema->resource_count; i++)
        if (schema->resources[i].entry == resource)
            base = schema->resources[i].name;
    uri = jschema_take(schema, strlen(base) + strlen(reference) + 2, 1);
    if (!uri)
        return 0;
    join_uris(base, reference, uri);
    for (uint32_t i = 0; i < schema->resource_count && !target; i++)
        if (strcmp(schema->resources[i].name, uri) == 0)
            target = schema->resources[i].entry;
    if (!target)
        return jschema_fail(schema, entry, "$ref", STATUS_UNIMPLEMENTED,
                            "\"%.100s\" is not part of the schema; nothing is fetched: put it under $defs", reference);
    const char *hash = strchr(reference, '#');
    fragment = jschema_take(schema, strlen(hash ? hash : "#"), 1);
    if (!fragment)
        return 0;
    strcpy(fragment, hash ? hash + 1 : "");
    decode_percent(fragment);
    if (fragment[0] == '\0') {
        target = schema->entries[target].canonical;
    } else if (fragment[0] == '/') {
        target = follow_pointer(schema, target, fragment);
    } else {
        uint32_t holder = target;
        target = 0;
        for (uint32_t i = 0; i < schema->anchor_count && !target; i++)
            if (schema->anchors[i].resource == holder && strcmp(schema->anchors[i].name, fragment) == 0)
                target = schema->entries[schema->anchors[i].entry].canonical;
    }
    if (!target && !jschema_failed(schema))
        jschema_fail(schema, entry, "$ref", STATUS_INVALID_ARGUMENT, "there is nothing at \"%.100s\"", reference);
    return target;
}
