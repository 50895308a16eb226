// grammar_schema_ref.c: finds what a $ref names: "#", "#/a/json/pointer", "#anchor", and the same in resources of the document that have an $id.
//
// Nothing is ever fetched: a reference to what the document does not have fails.
#include <stdlib.h>
#include <string.h>

#include "common/grammar/grammar_schema_internal.h"

enum { REFERENCE_BYTES = 1024 }; // of one that is looked up without a builder

static int hex(char c)
{
    const char *digits = "0123456789abcdef", *found = c ? strchr(digits, c | 0x20) : NULL;

    return found && ((c >= '0' && c <= '9') || (c | 0x20) >= 'a') ? (int)(found - digits) : -1;
}

// Undoes percent-encoding, in place.
static void decode_percent(char *text)
{
    char *out = text;

    for (; *text; text++) {
        if (*text == '%' && hex(text[1]) >= 0 && hex(text[2]) >= 0) {
            *out++ = (char)(hex(text[1]) << 4 | hex(text[2]));
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
static uint32_t follow(struct jschema *schema, uint32_t entry, char *pointer)
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
    jschema_join(base, reference, uri);
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
        target = follow(schema, target, fragment);
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
