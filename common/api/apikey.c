// apikey.c: see apikey.h. Keys themselves are not kept.
#include "common/api/apikey.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"

bool apikey_is_name(const char *text)
{
    size_t length = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@");
    return length > 0 && length < APIKEY_NAME_BYTES && text[length] == '\0';
}

void apikey_hash(const char *key, size_t bytes, unsigned char hash[APIKEY_HASH_BYTES])
{
    crypto_generichash(hash, APIKEY_HASH_BYTES, (const unsigned char *)key, bytes, NULL, 0);
}

void apikey_hash_text(const char *key, char out[APIKEY_HASH_TEXT_BYTES])
{
    unsigned char hash[APIKEY_HASH_BYTES];

    apikey_hash(key, strlen(key), hash);
    memcpy(out, APIKEY_HASH_PREFIX, strlen(APIKEY_HASH_PREFIX));
    sodium_bin2hex(out + strlen(APIKEY_HASH_PREFIX), APIKEY_HASH_TEXT_BYTES - strlen(APIKEY_HASH_PREFIX), hash, sizeof hash);
}

void apikey_make(char out[APIKEY_TEXT_BYTES])
{
    unsigned char random[APIKEY_HASH_BYTES];

    randombytes_buf(random, sizeof random);
    memcpy(out, "fd-", 3);
    sodium_bin2base64(out + 3, APIKEY_TEXT_BYTES - 3, random, sizeof random, sodium_base64_VARIANT_URLSAFE_NO_PADDING);
    sodium_memzero(random, sizeof random);
}

// --- a file of keys ---------------------------------------------------------------------------------------------------

enum { LINE_BYTES = 2048, FIELDS_MAX = 8, TENANT_HASH_BYTES = 16 };
#define LIMIT_MAX 1000000000000ull

// A line that is being read.
struct reading {
    const char *path;
    uint32_t number;
    struct error *error;
};

static enum status wrong(const struct reading *r, const char *what)
{
    return error_set(r->error, STATUS_INVALID_ARGUMENT, "%s line %u: %s", r->path, r->number, what);
}

// The tenant is the same at all gateways, so it depends on the name, or on the plain key, alone.
static void name_tenant(const char *of, bool is_name, char tenant[APIKEY_TENANT_BYTES])
{
    static const unsigned char purposes[2][crypto_generichash_blake2b_PERSONALBYTES] = {"fastdecode owner", "fastdecode named"};
    unsigned char hash[TENANT_HASH_BYTES];

    crypto_generichash_blake2b_salt_personal(hash, sizeof hash, (const unsigned char *)of, strlen(of), NULL, 0, NULL,
                                             purposes[is_name]);
    memcpy(tenant, "key-", 4);
    sodium_bin2hex(tenant + 4, APIKEY_TENANT_BYTES - 4, hash, sizeof hash);
}

static bool read_limit(const char *value, uint64_t most, uint64_t *out)
{
    char *end;

    errno = 0;
    *out = strtoull(value, &end, 10);
    return *value >= '0' && *value <= '9' && !*end && !errno && *out >= 1 && *out <= most;
}

static enum status read_field(const struct reading *r, char *field, struct apikey_limits *out)
{
    char *value = strchr(field, '=');
    uint64_t number = 0;

    if (!value)
        return wrong(r, "a limit is NAME=VALUE: requests, tokens, open, class or models");
    *value++ = '\0';
    if (!strcmp(field, "class")) {
        out->batch = !strcmp(value, "batch");
        return out->batch || !strcmp(value, "interactive") ? STATUS_OK : wrong(r, "class is interactive or batch");
    }
    if (!strcmp(field, "models")) {
        if (!*value || strlen(value) >= sizeof out->models)
            return wrong(r, "models is a list of names with commas between them, at most 255 bytes");
        snprintf(out->models, sizeof out->models, "%s", value);
        return STATUS_OK;
    }
    if (strcmp(field, "requests") && strcmp(field, "tokens") && strcmp(field, "open"))
        return wrong(r, "an unknown limit: there are requests, tokens, open, class and models");
    if (!read_limit(value, !strcmp(field, "open") ? UINT32_MAX : LIMIT_MAX, &number))
        return wrong(r, "a limit is a whole number from 1 on; without one there is no limit");
    if (!strcmp(field, "requests"))
        out->requests = number;
    else if (!strcmp(field, "tokens"))
        out->tokens = number;
    else
        out->open = (uint32_t)number;
    return STATUS_OK;
}

static enum status read_named(const struct reading *r, char *const *fields, uint32_t count, struct apikey_line *out)
{
    enum status status = STATUS_OK;
    size_t bytes = 0;

    if (!apikey_is_name(fields[0]))
        return wrong(r, "an owner's name has letters, digits and ._-@, at most 63");
    if (strncmp(fields[1], APIKEY_HASH_PREFIX, strlen(APIKEY_HASH_PREFIX)) || strlen(fields[1]) != APIKEY_HASH_TEXT_BYTES - 1 ||
        sodium_hex2bin(out->hash, sizeof out->hash, fields[1] + strlen(APIKEY_HASH_PREFIX), 2 * (size_t)APIKEY_HASH_BYTES, NULL,
                       &bytes, NULL) ||
        bytes != APIKEY_HASH_BYTES)
        return wrong(r, "behind the name comes blake2b: and 64 hexadecimal digits, as `fastdecode key` prints them");
    snprintf(out->name, sizeof out->name, "%s", fields[0]);
    name_tenant(out->name, true, out->tenant);
    for (uint32_t i = 2; !status && i < count; i++)
        status = read_field(r, fields[i], &out->limits);
    return status;
}

// Whether the key is new, and fits what other lines say of its owner.
static enum status check_line(const struct apikey_file *file, const struct reading *r, const struct apikey_line *line, bool *known)
{
    *known = false;
    for (uint32_t i = 0; i < file->count; i++) {
        const struct apikey_line *other = &file->lines[i];
        const bool same_owner = !strcmp(other->tenant, line->tenant),
                   same_key = !memcmp(other->hash, line->hash, sizeof line->hash);
        if (same_key && !same_owner)
            return wrong(r, "this key has another owner in a line before it");
        if (same_owner && memcmp(&other->limits, &line->limits, sizeof line->limits) != 0)
            return error_set(r->error, STATUS_INVALID_ARGUMENT,
                             "%s line %u: '%s' has other limits in line %u: all keys of an owner need the same limits and class",
                             r->path, r->number, line->name, other->number);
        *known = *known || same_key;
    }
    return STATUS_OK;
}

static enum status append(struct apikey_file *file, const struct reading *r, const struct apikey_line *line)
{
    if (file->count == APIKEY_FILE_KEYS_MAX)
        return error_set(r->error, STATUS_INVALID_ARGUMENT, "%s: more than %d keys", r->path, APIKEY_FILE_KEYS_MAX);
    if (!(file->count & (file->count - 1))) { // it is full: its room doubles
        struct apikey_line *grown = realloc(file->lines, MAX(2 * file->count, 1u) * sizeof *grown);
        if (!grown)
            return error_set(r->error, STATUS_RESOURCE_EXHAUSTED, "%s: no memory", r->path);
        file->lines = grown;
    }
    file->lines[file->count++] = *line;
    return STATUS_OK;
}

enum status apikey_file_add(struct apikey_file *file, const char *path, char *text, struct error *error)
{
    const struct reading r = {.path = path, .number = ++file->number, .error = error};
    char *fields[FIELDS_MAX], *rest = NULL;
    struct apikey_line line;
    uint32_t count = 0;
    enum status status = STATUS_OK;
    bool known;

    memset(&line, 0, sizeof line); // limits are compared with what lies between their fields
    line.number = r.number;
    for (char *field = strtok_r(text, " \t\r\n", &rest); field; field = strtok_r(NULL, " \t\r\n", &rest)) {
        if (count == FIELDS_MAX)
            return wrong(&r, "more fields than a name, a hash and limits");
        fields[count++] = field;
    }
    if (count == 0 || fields[0][0] == '#')
        return STATUS_OK;
    if (count > 1) {
        status = read_named(&r, fields, count, &line);
    } else if (strlen(fields[0]) > APIKEY_BYTES_MAX) {
        status = wrong(&r, "a key has at most 512 bytes");
    } else {
        apikey_hash(fields[0], strlen(fields[0]), line.hash);
        name_tenant(fields[0], false, line.tenant);
    }
    if (!status)
        status = check_line(file, &r, &line, &known);
    return status || known ? status : append(file, &r, &line);
}

enum status apikey_file_read(FILE *file, const char *path, struct apikey_file *out, struct error *error)
{
    char text[LINE_BYTES];
    enum status status = STATUS_OK;

    *out = (struct apikey_file){0};
    while (!status && fgets(text, sizeof text, file)) {
        const struct reading r = {.path = path, .number = out->number + 1, .error = error};
        status = strlen(text) == sizeof text - 1 ? wrong(&r, "the line is too long") : apikey_file_add(out, path, text, error);
    }
    sodium_memzero(text, sizeof text);
    if (!status && ferror(file))
        status = error_set(error, STATUS_UNAVAILABLE, "%s: %s", path, strerror(errno));
    return status;
}

void apikey_file_close(struct apikey_file *file)
{
    free(file->lines);
    *file = (struct apikey_file){0};
}
