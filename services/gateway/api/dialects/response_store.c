// response_store.c: see response_store.h.
//
//   hash of the id ─▶ entry ◀─ list of all, oldest first ─▶ …
//                       └──── list of its tenant's, oldest first
#include "services/gateway/api/dialects/response_store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"

enum { BUCKETS = 4096, ENTRY_BYTES = 512, ID_MOST = 128 };

struct entry {
    struct entry *same_bucket;
    struct entry *older, *newer;         // of all
    struct entry *own_older, *own_newer; // of the tenant
    struct tenant *tenant;
    char *id;
    struct text conversation, answer;
    uint64_t since_us;
    bool complete;
};

struct tenant {
    struct tenant *next;
    char *name;
    struct entry *oldest, *newest;
    uint64_t bytes;
    uint32_t count;
};

struct response_store {
    struct response_store_config config;
    pthread_mutex_t mutex; // of what follows
    struct entry *buckets[BUCKETS];
    struct entry *oldest, *newest;
    struct tenant *tenants;
    uint64_t bytes;
};

enum status response_store_open(const struct response_store_config *config, struct response_store **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return STATUS_RESOURCE_EXHAUSTED;
    (*out)->config = *config;
    pthread_mutex_init(&(*out)->mutex, NULL);
    return STATUS_OK;
}

static uint32_t bucket_of(const char *id)
{
    uint32_t hash = 2166136261u;

    for (; *id; id++)
        hash = (hash ^ (unsigned char)*id) * 16777619u;
    return hash % BUCKETS;
}

// Returns what it takes of the memory, which may be more than it has bytes.
static uint64_t bytes_of(const struct entry *entry) { return ENTRY_BYTES + entry->conversation.capacity + entry->answer.capacity; }

static struct entry *find(struct response_store *store, const char *tenant, const char *id)
{
    struct entry *entry = store->buckets[bucket_of(id)];

    while (entry && (strcmp(entry->id, id) != 0 || strcmp(entry->tenant->name, tenant) != 0))
        entry = entry->same_bucket;
    return entry;
}

static struct tenant *tenant_of(struct response_store *store, const char *name)
{
    struct tenant *tenant = store->tenants;

    while (tenant && strcmp(tenant->name, name) != 0)
        tenant = tenant->next;
    if (tenant)
        return tenant;
    tenant = calloc(1, sizeof *tenant);
    if (tenant && !(tenant->name = strdup(name))) {
        free(tenant);
        return NULL;
    }
    if (tenant) {
        tenant->next = store->tenants;
        store->tenants = tenant;
    }
    return tenant;
}

// A tenant without entries is forgotten: keys come and go.
static void forget_tenant(struct response_store *store, struct tenant *tenant)
{
    struct tenant **at = &store->tenants;

    while (*at != tenant)
        at = &(*at)->next;
    *at = tenant->next;
    free(tenant->name);
    free(tenant);
}

static void link_entry(struct response_store *store, struct entry *entry)
{
    struct tenant *tenant = entry->tenant;
    struct entry **bucket = &store->buckets[bucket_of(entry->id)];

    entry->same_bucket = *bucket;
    *bucket = entry;
    entry->older = store->newest;
    *(entry->older ? &entry->older->newer : &store->oldest) = entry;
    store->newest = entry;
    entry->own_older = tenant->newest;
    *(entry->own_older ? &entry->own_older->own_newer : &tenant->oldest) = entry;
    tenant->newest = entry;
    tenant->count++;
    tenant->bytes += bytes_of(entry);
    store->bytes += bytes_of(entry);
}

static void remove_entry(struct response_store *store, struct entry *entry)
{
    struct tenant *tenant = entry->tenant;
    struct entry **at = &store->buckets[bucket_of(entry->id)];

    while (*at != entry)
        at = &(*at)->same_bucket;
    *at = entry->same_bucket;
    *(entry->older ? &entry->older->newer : &store->oldest) = entry->newer;
    *(entry->newer ? &entry->newer->older : &store->newest) = entry->older;
    *(entry->own_older ? &entry->own_older->own_newer : &tenant->oldest) = entry->own_newer;
    *(entry->own_newer ? &entry->own_newer->own_older : &tenant->newest) = entry->own_older;
    tenant->count--;
    tenant->bytes -= bytes_of(entry);
    store->bytes -= bytes_of(entry);
    if (tenant->count == 0)
        forget_tenant(store, tenant);
    text_free(&entry->conversation);
    text_free(&entry->answer);
    free(entry->id);
    free(entry);
}

void response_store_close(struct response_store *store)
{
    if (!store)
        return;
    while (store->oldest)
        remove_entry(store, store->oldest);
    pthread_mutex_destroy(&store->mutex);
    free(store);
}

static uint64_t tenant_limit(const struct response_store *store)
{
    return (uint64_t)((double)store->config.max_bytes * store->config.share);
}

// Takes the store within its limits, the newest entry last.
static void make_room(struct response_store *store, struct tenant *tenant, uint64_t now_us)
{
    const uint64_t most = tenant_limit(store), keep_us = (uint64_t)(store->config.keep_s * 1e6);

    while (tenant && tenant->count > 1 && (tenant->bytes > most || tenant->count > store->config.max_count))
        remove_entry(store, tenant->oldest);
    while (store->oldest != store->newest && store->bytes > store->config.max_bytes)
        remove_entry(store, store->oldest);
    while (store->oldest && store->oldest->since_us + keep_us < now_us)
        remove_entry(store, store->oldest);
}

bool response_store_begin(struct response_store *store, const char *tenant, const char *id, const struct text *conversation,
                          uint64_t now_us)
{
    struct entry *entry = calloc(1, sizeof *entry);
    bool ok;

    pthread_mutex_lock(&store->mutex);
    make_room(store, NULL, now_us);
    ok = entry && conversation->bytes + ENTRY_BYTES <= tenant_limit(store) && strlen(id) <= ID_MOST && !find(store, tenant, id);
    if (ok) {
        entry->since_us = now_us;
        entry->id = strdup(id);
        text_append(&entry->conversation, conversation->data, conversation->bytes);
        text_trim(&entry->conversation);
        entry->tenant = entry->id && !entry->conversation.failed ? tenant_of(store, tenant) : NULL;
        ok = entry->tenant != NULL;
    }
    if (ok) {
        link_entry(store, entry);
        make_room(store, entry->tenant, now_us);
    } else if (entry) {
        text_free(&entry->conversation);
        free(entry->id);
        free(entry);
    }
    pthread_mutex_unlock(&store->mutex);
    return ok;
}

void response_store_end(struct response_store *store, const char *tenant, const char *id, const struct text *message,
                        const struct text *answer, uint64_t now_us)
{
    struct entry *entry;
    uint64_t before;

    pthread_mutex_lock(&store->mutex);
    entry = find(store, tenant, id);
    if (entry && !entry->complete) {
        before = bytes_of(entry);
        entry->complete = true;
        entry->conversation.bytes -= 1; // "]"
        text_string(&entry->conversation, entry->conversation.bytes > 1 ? "," : "");
        text_append(&entry->conversation, message->data, message->bytes);
        text_append(&entry->conversation, "]", 1);
        text_append(&entry->answer, answer->data, answer->bytes);
        text_trim(&entry->conversation);
        text_trim(&entry->answer);
        entry->tenant->bytes += bytes_of(entry) - before;
        store->bytes += bytes_of(entry) - before;
        if (entry->conversation.failed || entry->answer.failed || message->failed || answer->failed ||
            bytes_of(entry) > tenant_limit(store))
            remove_entry(store, entry);
        else
            make_room(store, entry->tenant, now_us);
    }
    pthread_mutex_unlock(&store->mutex);
}

bool response_store_remove(struct response_store *store, const char *tenant, const char *id, uint64_t now_us)
{
    struct entry *entry;

    pthread_mutex_lock(&store->mutex);
    make_room(store, NULL, now_us);
    entry = find(store, tenant, id);
    if (entry)
        remove_entry(store, entry);
    pthread_mutex_unlock(&store->mutex);
    return entry != NULL;
}

static bool copy(struct response_store *store, const char *tenant, const char *id, uint64_t now_us, bool answer, struct text *out)
{
    const struct entry *entry;
    bool found;

    pthread_mutex_lock(&store->mutex);
    make_room(store, NULL, now_us);
    entry = find(store, tenant, id);
    found = entry && entry->complete;
    if (found) {
        const struct text *part = answer ? &entry->answer : &entry->conversation;
        text_append(out, part->data, part->bytes);
    }
    pthread_mutex_unlock(&store->mutex);
    return found;
}

bool response_store_answer(struct response_store *store, const char *tenant, const char *id, uint64_t now_us, struct text *out)
{
    return copy(store, tenant, id, now_us, true, out);
}

bool response_store_conversation(struct response_store *store, const char *tenant, const char *id, uint64_t now_us,
                                 struct text *out)
{
    return copy(store, tenant, id, now_us, false, out);
}

uint64_t response_store_bytes(struct response_store *store)
{
    uint64_t bytes;

    pthread_mutex_lock(&store->mutex);
    bytes = store->bytes;
    pthread_mutex_unlock(&store->mutex);
    return bytes;
}
