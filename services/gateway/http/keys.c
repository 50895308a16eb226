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

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/file.h"
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
    OWNERS_MAX = 16 * KEYS_MAX, // those that the file no longer names included
};

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

static void set_limits(struct key *owner, const struct apikey_limits *limits)
{
    pthread_mutex_lock(&owner->lock);
    owner->limits = *limits;
    owner->requests.limit = limits->requests;
    owner->tokens.limit = limits->tokens;
    pthread_mutex_unlock(&owner->lock);
}

// --- the file -------------------------------------------------------------------------------------------------------------

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

// Fills the table, and names each line's owner.
static enum status fill_table(struct keys *keys, const struct apikey_file *file, struct table *table, struct error *error)
{
    for (; table->count < file->count; table->count++) {
        const struct apikey_line *line = &file->lines[table->count];
        struct entry *entry = &table->entries[table->count];
        hash_again(keys, line->hash, entry->hash);
        entry->owner = owner_of(keys, line->name, line->tenant);
        if (!entry->owner)
            return error_set(error, STATUS_RESOURCE_EXHAUSTED,
                             "%s: there is no memory for more owners, or there were more than %d since the gateway started",
                             keys->path, OWNERS_MAX);
        *find_slot(table, entry->hash) = (uint16_t)(table->count + 1);
    }
    return table->count ? STATUS_OK : error_set(error, STATUS_INVALID_ARGUMENT, "%s: the file has no key", keys->path);
}

static void use_table(struct keys *keys, const struct apikey_file *file, struct table *table)
{
    struct table *before = keys->table;

    for (uint32_t i = 0; i < table->count; i++)
        set_limits(table->entries[i].owner, &file->lines[i].limits);
    pthread_mutex_lock(&keys->lock);
    keys->table = table;
    pthread_mutex_unlock(&keys->lock);
    free(before);
}

// Reads the file into a new table and, if all of it is right, uses that.
static enum status read_file(struct keys *keys, struct error *error)
{
    struct apikey_file lines = {0};
    struct table *table;
    FILE *file;
    enum status status;

    if (file_check_secret(keys->path, error))
        return error->status;
    if (!(file = fopen(keys->path, "re")))
        return error_set(error, status_of_path(errno), "%s: %s", keys->path, strerror(errno));
    table = calloc(1, sizeof *table);
    status = table ? apikey_file_read(file, keys->path, &lines, error)
                   : error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: no memory", keys->path);
    if (!status)
        status = fill_table(keys, &lines, table, error);
    if (status)
        free(table);
    else
        use_table(keys, &lines, table);
    apikey_file_close(&lines);
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
