// keys.c: see keys.h. Read once at start; the keys themselves are not kept.
#include "services/gateway/keys.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/checked.h"

enum { KEYS_MAX = 4096, KEY_BYTES_MAX = 512, SLOT_COUNT = 2 * KEYS_MAX, HASH_BYTES = 32, TENANT_HASH_BYTES = 16 };

struct entry {
    unsigned char hash[HASH_BYTES];
    struct key key;
};

struct keys {
    unsigned char secret[crypto_generichash_KEYBYTES]; // random, so that nobody can choose hashes
    uint32_t count;
    uint16_t slots[SLOT_COUNT]; // open addressing: index of an entry + 1; 0: free
    struct entry entries[KEYS_MAX];
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

static void hash_key(const struct keys *keys, const char *key, size_t bytes, unsigned char hash[HASH_BYTES])
{
    crypto_generichash(hash, HASH_BYTES, (const unsigned char *)key, bytes, keys->secret, sizeof keys->secret);
}

// The name is the same at all gateways, so it depends on the key alone.
static void name_tenant(const char *key, char tenant[KEY_TENANT_BYTES])
{
    static const unsigned char purpose[crypto_generichash_blake2b_PERSONALBYTES] = "fastdecode owner";
    unsigned char hash[TENANT_HASH_BYTES];

    crypto_generichash_blake2b_salt_personal(hash, sizeof hash, (const unsigned char *)key, strlen(key), NULL, 0, NULL, purpose);
    memcpy(tenant, "key-", 4);
    sodium_bin2hex(tenant + 4, KEY_TENANT_BYTES - 4, hash, sizeof hash);
}

// The slot of this hash, or the free slot where it belongs. There are more slots than keys.
static uint16_t *find_slot(struct keys *keys, const unsigned char hash[HASH_BYTES])
{
    uint32_t at;

    memcpy(&at, hash, sizeof at);
    for (at %= SLOT_COUNT; keys->slots[at]; at = (at + 1) % SLOT_COUNT)
        if (sodium_memcmp(keys->entries[keys->slots[at] - 1].hash, hash, HASH_BYTES) == 0)
            break;
    return &keys->slots[at];
}

static enum status add_key(struct keys *keys, const char *key, const char *path, struct error *error)
{
    struct entry *entry = &keys->entries[keys->count];
    uint16_t *slot;

    if (keys->count == KEYS_MAX)
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: more than %d keys", path, KEYS_MAX);
    hash_key(keys, key, strlen(key), entry->hash);
    slot = find_slot(keys, entry->hash);
    if (*slot)
        return STATUS_OK; // it was there before
    name_tenant(key, entry->key.tenant);
    *slot = (uint16_t)++keys->count;
    return STATUS_OK;
}

static enum status read_keys(FILE *file, const char *path, struct keys *keys, struct error *error)
{
    char line[KEY_BYTES_MAX + 2];
    enum status status = STATUS_OK;
    uint32_t number = 0;

    while (status == STATUS_OK && fgets(line, sizeof line, file)) {
        char *key = trim(line);
        number++;
        if (strlen(line) >= sizeof line - 1)
            status =
                error_set(error, STATUS_INVALID_ARGUMENT, "%s line %u: a key has at most %d bytes", path, number, KEY_BYTES_MAX);
        else if (*key != '\0' && *key != '#')
            status = add_key(keys, key, path, error);
    }
    sodium_memzero(line, sizeof line);
    if (status == STATUS_OK && keys->count == 0)
        status = error_set(error, STATUS_INVALID_ARGUMENT, "%s: the file has no key", path);
    return status;
}

enum status keys_open(const char *path, struct keys **out, struct error *error)
{
    struct keys *keys;
    enum status status;
    FILE *file;

    *out = NULL;
    if (sodium_init() < 0)
        return error_set(error, STATUS_UNAVAILABLE, "libsodium finds no source of random bytes");
    file = fopen(path, "re");
    if (!file)
        return error_set(error, STATUS_NOT_FOUND, "%s: %s", path, strerror(errno));
    keys = calloc(1, sizeof *keys);
    if (keys) {
        randombytes_buf(keys->secret, sizeof keys->secret);
        status = read_keys(file, path, keys, error);
    } else {
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    }
    fclose(file);
    if (status != STATUS_OK)
        keys_close(keys);
    else
        *out = keys;
    return status;
}

void keys_close(struct keys *keys) { free(keys); }

uint32_t keys_count(const struct keys *keys) { return keys->count; }

struct key *keys_find(struct keys *keys, const char *authorization)
{
    unsigned char hash[HASH_BYTES];
    const char *given;
    size_t bytes;
    uint16_t *slot;

    if (strncasecmp(authorization, "Bearer ", 7) != 0)
        return NULL;
    given = authorization + 7 + strspn(authorization + 7, " ");
    bytes = strlen(given);
    if (bytes > KEY_BYTES_MAX)
        return NULL;
    hash_key(keys, given, bytes, hash);
    slot = find_slot(keys, hash);
    return *slot ? &keys->entries[*slot - 1].key : NULL;
}
