/* keys.c: see keys.h. Read once at start; few enough that a request compares with all of them. */
#include "services/gateway/keys.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/checked.h"

enum { KEYS_MAX = 4096, KEY_BYTES_MAX = 512 };

struct keys {
    uint32_t count;
    char *values[KEYS_MAX];
};

static char *trim(char *line)
{
    size_t length;

    line += strspn(line, " \t");
    length = strlen(line);
    while (length > 0 && strchr(" \t\r\n", line[length - 1]))
        line[--length] = '\0';
    return line;
}

static enum status read_keys(FILE *file, const char *path, struct keys *keys, struct error *error)
{
    char line[KEY_BYTES_MAX + 2];
    uint32_t number = 0;

    while (fgets(line, sizeof line, file)) {
        char *key = trim(line);
        number++;
        if (strlen(line) >= sizeof line - 1)
            return error_set(error, STATUS_INVALID_ARGUMENT, "%s line %u: a key has at most %d bytes", path, number, KEY_BYTES_MAX);
        if (*key == '\0' || *key == '#')
            continue;
        if (keys->count == KEYS_MAX)
            return error_set(error, STATUS_INVALID_ARGUMENT, "%s: more than %d keys", path, KEYS_MAX);
        keys->values[keys->count] = strdup(key);
        if (!keys->values[keys->count])
            return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
        keys->count++;
    }
    if (keys->count == 0)
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: no key in it", path);
    return STATUS_OK;
}

enum status keys_open(const char *path, struct keys **out, struct error *error)
{
    struct keys *keys;
    enum status status;
    FILE *file = fopen(path, "re");

    *out = NULL;
    if (!file)
        return error_set(error, STATUS_NOT_FOUND, "%s: %s", path, strerror(errno));
    keys = calloc(1, sizeof *keys);
    status = keys ? read_keys(file, path, keys, error) : error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    fclose(file);
    if (status != STATUS_OK)
        keys_close(keys);
    else
        *out = keys;
    return status;
}

void keys_close(struct keys *keys)
{
    uint32_t i;

    if (!keys)
        return;
    for (i = 0; i < keys->count; i++)
        free(keys->values[i]);
    free(keys);
}

/* Looks at every byte of given, whatever the result. */
static bool equal(const char *given, size_t given_bytes, const char *key)
{
    size_t i, key_bytes = strlen(key);
    unsigned char differ = given_bytes != key_bytes;

    for (i = 0; i < given_bytes; i++)
        differ |= (unsigned char)(given[i] ^ key[key_bytes ? i % key_bytes : 0]);
    return !differ;
}

static uint64_t mix(const char *key)
{
    uint64_t hash = 0xCBF29CE484222325u;

    for (; *key; key++)
        hash = (hash ^ (unsigned char)*key) * 0x100000001B3u;
    hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93u;
    return hash ^ hash >> 32;
}

bool keys_accept(const struct keys *keys, const char *authorization, char *tenant, size_t tenant_bytes)
{
    const char *given = authorization + 7;
    const char *found = NULL;
    size_t bytes;
    uint32_t i;

    if (strncasecmp(authorization, "Bearer ", 7) != 0)
        return false;
    given += strspn(given, " ");
    bytes = MIN(strlen(given), (size_t)KEY_BYTES_MAX + 1);
    for (i = 0; i < keys->count; i++)
        if (equal(given, bytes, keys->values[i]))
            found = keys->values[i];
    if (found)
        snprintf(tenant, tenant_bytes, "key-%016llx", (unsigned long long)mix(found));
    return found != NULL;
}
