// keys.c: see keys.h. Keys themselves are not kept.
//
//     file ──read_file()──▶ table: hash ─▶ owner        owners: a list that only grows
//                              │ replaced as a whole        ▲
//                              └────────────────────────────┘
#include "services/gateway/http/keys.h"

#include <errno.h>
#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/api/apikey.h"
#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/file_version.h"
#include "common/base/log.h"

// --- rate ------------------------------------------------------------------------------------------------------------

// Forgets the seconds that count no longer.
static void advance(struct rate *rate, uint64_t now_s)
{
    uint64_t gone = now_s > rate->now_s ? MIN(now_s - rate->now_s, (uint64_t)RATE_SECONDS) : 0;

    for (uint64_t i = 1; i <= gone; i++) {
        uint64_t *second = &rate->taken[(rate->now_s + i) % RATE_SECONDS];
        rate->sum -= *second;
        *second = 0;
    }
    rate->now_s = MAX(rate->now_s, now_s);
}

bool rate_take(struct rate *rate, uint64_t now_s, uint64_t amount)
{
    advance(rate, now_s);
    if (rate->limit && (amount > rate->limit || rate->sum > rate->limit - amount))
        return false;
    rate->taken[rate->now_s % RATE_SECONDS] += amount;
    rate->sum += amount;
    return true;
}

void rate_give_back(struct rate *rate, uint64_t now_s, uint64_t taken_s, uint64_t amount)
{
    advance(rate, now_s);
    if (taken_s + RATE_SECONDS <= rate->now_s)
        return;
    uint64_t *second = &rate->taken[taken_s % RATE_SECONDS];
    amount = MIN(amount, *second);
    *second -= amount;
    rate->sum -= amount;
}

uint64_t rate_left(struct rate *rate, uint64_t now_s)
{
    advance(rate, now_s);
    if (!rate->limit)
        return UINT64_MAX;
    return rate->limit - MIN(rate->sum, rate->limit); // the limit may have been lowered
}

uint32_t rate_wait_s(struct rate *rate, uint64_t now_s, uint64_t amount)
{
    uint64_t left = rate_left(rate, now_s), sum = rate->sum;

    if (amount <= left)
        return 0;
    for (uint32_t s = 1; s < RATE_SECONDS; s++) {
        sum -= rate->taken[(rate->now_s + s) % RATE_SECONDS]; // the oldest first
        if (amount <= rate->limit && sum <= rate->limit - amount)
            return s;
    }
    return RATE_SECONDS;
}

// --- key -------------------------------------------------------------------------------------------------------------

static uint64_t now_s(void) { return clock_now_us() / 1000000; }

bool key_permits_model(struct key *key, const char *model, struct api_error *error)
{
    size_t length = strlen(model);
    bool permitted;

    pthread_mutex_lock(&key->lock);
    permitted = key->limits.models[0] == '\0';
    for (const char *at = key->limits.models; *at && !permitted; at += strcspn(at, ",")) {
        at += *at == ',';
        permitted = strcspn(at, ",") == length && memcmp(at, model, length) == 0;
    }
    pthread_mutex_unlock(&key->lock);
    return permitted || api_fail(error, 403, "model_not_allowed", "model", "this API key may not use this model");
}

bool key_is_batch(struct key *key)
{
    pthread_mutex_lock(&key->lock);
    bool batch = key->limits.batch;
    pthread_mutex_unlock(&key->lock);
    return batch;
}

bool key_begin(struct key *key, struct key_grant *grant, struct api_error *error)
{
    bool ok = true;

    *grant = (struct key_grant){0};
    if (!key)
        return true;
    pthread_mutex_lock(&key->lock);
    uint64_t now = now_s();
    if (key->limits.open && key->open >= key->limits.open) {
        ok = api_limit(error, "key_open", "this API key may have %u open requests, and has them", key->limits.open);
        error->retry_after_s = 1;
    } else if (!rate_take(&key->requests, now, 1)) {
        ok = api_limit(error, "key_requests", "this API key may send %llu requests a minute",
                       (unsigned long long)key->limits.requests);
        error->retry_after_s = rate_wait_s(&key->requests, now, 1);
    } else {
        key->open++;
        grant->key = key;
    }
    pthread_mutex_unlock(&key->lock);
    return ok;
}

bool key_take_tokens(struct key_grant *grant, uint64_t tokens, struct api_error *error)
{
    struct key *key = grant->key;
    bool ok;

    if (!key)
        return true;
    pthread_mutex_lock(&key->lock);
    uint64_t now = now_s();
    ok = rate_take(&key->tokens, now, tokens);
    if (ok) {
        grant->second = now;
        grant->tokens = tokens;
    } else {
        (void)api_limit(
            error, "key_tokens",
            "this API key may use %llu tokens a minute, of which %llu are left; the request needs up to %llu, its prompt and "
            "'max_tokens' together",
            (unsigned long long)key->limits.tokens, (unsigned long long)rate_left(&key->tokens, now), (unsigned long long)tokens);
        error->retry_after_s = rate_wait_s(&key->tokens, now, tokens);
    }
    pthread_mutex_unlock(&key->lock);
    return ok;
}

void key_end(struct key_grant *grant, uint64_t used_tokens)
{
    struct key *key = grant->key;

    if (!key)
        return;
    pthread_mutex_lock(&key->lock);
    if (grant->tokens > used_tokens)
        rate_give_back(&key->tokens, now_s(), grant->second, grant->tokens - used_tokens);
    key->open--;
    pthread_mutex_unlock(&key->lock);
    *grant = (struct key_grant){0};
}

void key_state(struct key *key, struct key_state *out)
{
    pthread_mutex_lock(&key->lock);
    uint64_t now = now_s();
    *out = (struct key_state){.requests_limit = key->limits.requests,
                              .requests_left = rate_left(&key->requests, now),
                              .tokens_limit = key->limits.tokens,
                              .tokens_left = rate_left(&key->tokens, now),
                              .requests_reset_s = rate_wait_s(&key->requests, now, key->limits.requests),
                              .tokens_reset_s = rate_wait_s(&key->tokens, now, key->limits.tokens)};
    pthread_mutex_unlock(&key->lock);
}

enum {
    SLOT_COUNT = 2 * KEYS_MAX,
    HASH_BYTES = APIKEY_HASH_BYTES,
    TENANT_HASH_BYTES = 16,
    OWNERS_MAX = 16 * KEYS_MAX, // those that the file no longer names included
    LINE_BYTES = 2048,
    FIELDS_MAX = 8,
};
#define LIMIT_MAX 1000000000000ull

struct entry {
    unsigned char hash[HASH_BYTES]; // keyed, of the key's hash
    struct key *owner;
};

struct table {
    uint32_t count;
    uint16_t slots[SLOT_COUNT]; // open addressing: index of an entry + 1; 0: free
    struct entry entries[KEYS_MAX];
};

struct keys {
    char *path;
    unsigned char secret[crypto_generichash_KEYBYTES]; // random, so that nobody can choose hashes
    pthread_mutex_t lock;                              // of `table`
    struct table *table;
    struct key *owners; // all that there ever were
    uint32_t owner_count;
    struct file_version version; // of the latest file that was looked at, used or not
};

// --- hashes ---------------------------------------------------------------------------------------------------------------

static void hash_again(const struct keys *keys, const unsigned char hash[HASH_BYTES], unsigned char out[HASH_BYTES])
{
    crypto_generichash(out, HASH_BYTES, hash, HASH_BYTES, keys->secret, sizeof keys->secret);
}

// The tenant is the same at all gateways, so it depends on the name, or on the plain key, alone.
static void name_tenant(const char *of, bool is_name, char tenant[KEY_TENANT_BYTES])
{
    static const unsigned char purposes[2][crypto_generichash_blake2b_PERSONALBYTES] = {"fastdecode owner", "fastdecode named"};
    unsigned char hash[TENANT_HASH_BYTES];

    crypto_generichash_blake2b_salt_personal(hash, sizeof hash, (const unsigned char *)of, strlen(of), NULL, 0, NULL,
                                             purposes[is_name]);
    memcpy(tenant, "key-", 4);
    sodium_bin2hex(tenant + 4, KEY_TENANT_BYTES - 4, hash, sizeof hash);
}

// --- owners ---------------------------------------------------------------------------------------------------------------

// The owner with that tenant, new if there is none yet; NULL: no memory, or too many.
static struct key *owner_of(struct keys *keys, const char *name, const char *tenant)
{
    struct key *owner;

    for (owner = keys->owners; owner; owner = owner->next)
        if (strcmp(owner->tenant, tenant) == 0)
            return owner;
    owner = keys->owner_count < OWNERS_MAX ? calloc(1, sizeof *owner) : NULL;
    if (!owner)
        return NULL;
    snprintf(owner->name, sizeof owner->name, "%s", name);
    memcpy(owner->tenant, tenant, sizeof owner->tenant);
    pthread_mutex_init(&owner->lock, NULL);
    owner->next = keys->owners;
    keys->owners = owner;
    keys->owner_count++;
    return owner;
}

static void set_limits(struct key *owner, const struct key_limits *limits)
{
    pthread_mutex_lock(&owner->lock);
    owner->limits = *limits;
    owner->requests.limit = limits->requests;
    owner->tokens.limit = limits->tokens;
    pthread_mutex_unlock(&owner->lock);
}

// --- the file -------------------------------------------------------------------------------------------------------------

// A line that has been read: a plain key, or a name with a hash and limits.
struct line {
    const char *name; // "": plain
    unsigned char hash[HASH_BYTES];
    char tenant[KEY_TENANT_BYTES];
    struct key_limits limits;
};

struct reading {
    struct keys *keys;
    struct table *table;
    struct key_limits *limits; // [KEYS_MAX] of each entry's owner, set only when all of the file is right
    const char *path;
    uint32_t number; // of the line
    struct error *error;
};

static enum status wrong(const struct reading *r, const char *what)
{
    return error_set(r->error, STATUS_INVALID_ARGUMENT, "%s line %u: %s", r->path, r->number, what);
}

static bool read_limit(const char *value, uint64_t most, uint64_t *out)
{
    char *end;

    errno = 0;
    *out = strtoull(value, &end, 10);
    return *value >= '0' && *value <= '9' && !*end && !errno && *out >= 1 && *out <= most;
}

static enum status read_field(const struct reading *r, char *field, struct key_limits *out)
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

static enum status read_named(const struct reading *r, char *const *fields, uint32_t count, struct line *out)
{
    enum status status = STATUS_OK;
    size_t bytes = 0;

    if (!apikey_is_name(fields[0]))
        return wrong(r, "an owner's name has letters, digits and ._-@, at most 63");
    if (strncmp(fields[1], APIKEY_HASH_PREFIX, strlen(APIKEY_HASH_PREFIX)) || strlen(fields[1]) != APIKEY_HASH_TEXT_BYTES - 1 ||
        sodium_hex2bin(out->hash, sizeof out->hash, fields[1] + strlen(APIKEY_HASH_PREFIX), 2 * (size_t)HASH_BYTES, NULL, &bytes,
                       NULL) ||
        bytes != HASH_BYTES)
        return wrong(r, "behind the name comes blake2b: and 64 hexadecimal digits, as `fastdecode key` prints them");
    out->name = fields[0];
    name_tenant(out->name, true, out->tenant);
    for (uint32_t i = 2; !status && i < count; i++)
        status = read_field(r, fields[i], &out->limits);
    return status;
}

// The slot of this hash, or the free slot where it belongs. There are more slots than keys.
static uint16_t *find_slot(struct table *table, const unsigned char hash[HASH_BYTES])
{
    uint32_t at;

    memcpy(&at, hash, sizeof at);
    for (at %= SLOT_COUNT; table->slots[at]; at = (at + 1) % SLOT_COUNT)
        if (sodium_memcmp(table->entries[table->slots[at] - 1].hash, hash, HASH_BYTES) == 0)
            break;
    return &table->slots[at];
}

static enum status add_line(struct reading *r, const struct line *line)
{
    struct table *table = r->table;
    struct entry *entry = &table->entries[table->count];
    uint16_t *slot;

    if (table->count == KEYS_MAX)
        return error_set(r->error, STATUS_INVALID_ARGUMENT, "%s: more than %d keys", r->path, KEYS_MAX);
    hash_again(r->keys, line->hash, entry->hash);
    slot = find_slot(table, entry->hash);
    struct key *owner = owner_of(r->keys, line->name, line->tenant);
    if (!owner)
        return error_set(r->error, STATUS_RESOURCE_EXHAUSTED,
                         "%s: there is no memory for more owners, or there were more than %d since the gateway started", r->path,
                         OWNERS_MAX);
    if (*slot)
        return table->entries[*slot - 1].owner == owner ? STATUS_OK : wrong(r, "this key has another owner in a line before it");
    for (uint32_t i = 0; i < table->count; i++)
        if (table->entries[i].owner == owner && memcmp(&r->limits[i], &line->limits, sizeof line->limits))
            return wrong(r, "this owner has other limits in a line before it");
    entry->owner = owner;
    r->limits[table->count] = line->limits;
    *slot = (uint16_t)++table->count;
    return STATUS_OK;
}

static enum status read_line(struct reading *r, char *text)
{
    char *fields[FIELDS_MAX], *rest = NULL;
    struct line line = {.name = ""};
    uint32_t count = 0;
    enum status status = STATUS_OK;

    for (char *field = strtok_r(text, " \t\r\n", &rest); field; field = strtok_r(NULL, " \t\r\n", &rest)) {
        if (count == FIELDS_MAX)
            return wrong(r, "more fields than a name, a hash and limits");
        fields[count++] = field;
    }
    if (count == 0 || fields[0][0] == '#')
        return STATUS_OK;
    if (count > 1) {
        status = read_named(r, fields, count, &line);
    } else if (strlen(fields[0]) > APIKEY_BYTES_MAX) {
        status = wrong(r, "a key has at most 512 bytes");
    } else {
        apikey_hash(fields[0], strlen(fields[0]), line.hash);
        name_tenant(fields[0], false, line.tenant);
    }
    return status ? status : add_line(r, &line);
}

static enum status read_lines(struct reading *r, FILE *file)
{
    char text[LINE_BYTES];
    enum status status = STATUS_OK;

    while (!status && fgets(text, sizeof text, file)) {
        r->number++;
        status = strlen(text) == sizeof text - 1 ? wrong(r, "the line is too long") : read_line(r, text);
    }
    sodium_memzero(text, sizeof text);
    if (!status && ferror(file))
        status = error_set(r->error, STATUS_UNAVAILABLE, "%s: %s", r->path, strerror(errno));
    if (!status && r->table->count == 0)
        status = error_set(r->error, STATUS_INVALID_ARGUMENT, "%s: the file has no key", r->path);
    return status;
}

// Reads the file into a new table and, if all of it is right, uses that.
static enum status read_file(struct keys *keys, struct error *error)
{
    struct reading r = {.keys = keys, .path = keys->path, .error = error};
    FILE *file = fopen(keys->path, "re");
    enum status status;

    if (!file)
        return error_set(error, STATUS_NOT_FOUND, "%s: %s", keys->path, strerror(errno));
    r.table = calloc(1, sizeof *r.table);
    r.limits = calloc(KEYS_MAX, sizeof *r.limits);
    status = r.table && r.limits ? read_lines(&r, file) : error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: no memory", keys->path);
    if (!status) {
        struct table *before = keys->table;
        for (uint32_t i = 0; i < r.table->count; i++)
            set_limits(r.table->entries[i].owner, &r.limits[i]);
        pthread_mutex_lock(&keys->lock);
        keys->table = r.table;
        pthread_mutex_unlock(&keys->lock);
        r.table = before;
    }
    free(r.table);
    free(r.limits);
    fclose(file);
    return status;
}

enum status keys_open(const char *path, struct keys **out, struct error *error)
{
    struct keys *keys;
    enum status status;

    *out = NULL;
    if (sodium_init() < 0)
        return error_set(error, STATUS_UNAVAILABLE, "libsodium finds no source of random bytes");
    keys = calloc(1, sizeof *keys);
    if (keys)
        pthread_mutex_init(&keys->lock, NULL);
    if (!keys || !(keys->path = strdup(path))) {
        keys_close(keys);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    }
    randombytes_buf(keys->secret, sizeof keys->secret);
    keys->version = file_version_of(path);
    status = read_file(keys, error);
    if (status)
        keys_close(keys);
    else
        *out = keys;
    return status;
}

void keys_close(struct keys *keys)
{
    if (!keys)
        return;
    for (struct key *owner = keys->owners, *next; owner; owner = next) {
        next = owner->next;
        pthread_mutex_destroy(&owner->lock);
        free(owner);
    }
    pthread_mutex_destroy(&keys->lock);
    free(keys->table);
    free(keys->path);
    free(keys);
}

bool keys_reload(struct keys *keys, bool always)
{
    const struct file_version now = file_version_of(keys->path);
    struct error error;

    if (!always && file_version_same(&now, &keys->version))
        return false;
    keys->version = now;
    if (read_file(keys, &error)) {
        log_warn("KEYS-NOT-READ", "why=\"%s: the keys that were read before are used on\"", error.text);
        return false;
    }
    log_info("KEYS-READ", "file=%s keys=%u", keys->path, keys_count(keys));
    return true;
}

// --- look-ups -------------------------------------------------------------------------------------------------------------

uint32_t keys_count(struct keys *keys)
{
    pthread_mutex_lock(&keys->lock);
    uint32_t count = keys->table->count;
    pthread_mutex_unlock(&keys->lock);
    return count;
}

struct key *keys_find(struct keys *keys, const char *authorization)
{
    unsigned char hash[HASH_BYTES], again[HASH_BYTES];
    struct key *owner = NULL;
    const char *given;
    size_t bytes;

    if (strncasecmp(authorization, "Bearer ", 7) != 0)
        return NULL;
    given = authorization + 7 + strspn(authorization + 7, " ");
    bytes = strlen(given);
    if (bytes > APIKEY_BYTES_MAX)
        return NULL;
    apikey_hash(given, bytes, hash);
    hash_again(keys, hash, again);
    pthread_mutex_lock(&keys->lock);
    uint16_t slot = *find_slot(keys->table, again);
    if (slot)
        owner = keys->table->entries[slot - 1].owner;
    pthread_mutex_unlock(&keys->lock);
    return owner;
}
