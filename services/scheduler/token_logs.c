// token_logs.c: logs in the slots that an id_map gives them.
#include "services/scheduler/token_logs.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/id_map.h"
#include "services/scheduler/sequence_spans.h"

struct token_logs {
    struct id_map slots;
    struct token_log *pool;       // [slots.capacity]
    struct sequence_spans *spans; // [span_count] of the first slots
    uint32_t span_count;
};

enum status token_logs_open(uint32_t capacity, uint32_t traced, struct token_logs **out)
{
    struct token_logs *logs = calloc(1, sizeof *logs);

    if (!logs)
        return STATUS_RESOURCE_EXHAUSTED;
    logs->pool = calloc(capacity, sizeof *logs->pool);
    logs->span_count = traced;
    logs->spans = traced ? calloc(traced, sizeof *logs->spans) : NULL;
    if (!logs->pool || (traced && !logs->spans) || id_map_open(capacity, &logs->slots)) {
        free(logs->spans);
        free(logs->pool);
        free(logs);
        return STATUS_RESOURCE_EXHAUSTED;
    }
    *out = logs;
    return STATUS_OK;
}

static void free_memory(struct token_log *log)
{
    free(log->tokens);
    free(log->names.of);
    free(log->fault.text);
}

void token_logs_close(struct token_logs *logs)
{
    if (!logs)
        return;
    for (uint32_t i = 0; i < logs->slots.used; i++)
        free_memory(&logs->pool[i]);
    id_map_close(&logs->slots);
    free(logs->spans);
    free(logs->pool);
    free(logs);
}

struct token_log *token_logs_find(struct token_logs *logs, uint64_t id)
{
    uint32_t slot = id_map_find(&logs->slots, id);
    return slot == ID_MAP_NONE ? NULL : &logs->pool[slot];
}

enum status token_logs_add(struct token_logs *logs, uint64_t id, uint32_t capacity, uint32_t pages, struct token_log **out)
{
    struct token_log log = {.id = id, .capacity = capacity, .names.capacity = pages};

    if (token_logs_find(logs, id))
        return STATUS_ALREADY_EXISTS;
    if (logs->slots.count == logs->slots.capacity)
        return STATUS_RESOURCE_EXHAUSTED;
    log.tokens = malloc(capacity * sizeof *log.tokens);
    log.names.of = malloc(MAX(pages, 1u) * sizeof *log.names.of);
    if (!log.tokens || !log.names.of) {
        free_memory(&log);
        return STATUS_RESOURCE_EXHAUSTED;
    }
    *out = &logs->pool[id_map_add(&logs->slots, id)];
    **out = log;
    return STATUS_OK;
}

struct sequence_spans *token_logs_spans(struct token_logs *logs, const struct token_log *log)
{
    const size_t slot = (size_t)(log - logs->pool);
    return slot < logs->span_count ? &logs->spans[slot] : NULL;
}

void token_logs_remove(struct token_logs *logs, uint64_t id)
{
    struct token_log *log = token_logs_find(logs, id);

    if (!log)
        return;
    free_memory(log);
    *log = (struct token_log){0};
    id_map_remove(&logs->slots, id);
}

uint32_t token_logs_count(const struct token_logs *logs) { return logs->slots.count; }

uint32_t token_logs_features(const struct token_logs *logs)
{
    uint32_t features = 0;

    for (uint32_t i = 0; i < logs->slots.used; i++)
        features |= logs->pool[i].call && !logs->pool[i].over ? logs->pool[i].asked.features : 0;
    return features;
}

// --- names of pages

_Static_assert(sizeof(struct sched_page_name) == crypto_shorthash_siphashx24_BYTES, "a name is a hash");
_Static_assert(sizeof(((struct page_names *)0)->key) == crypto_shorthash_siphashx24_KEYBYTES, "the hash's key");

enum { PAGE_TOKENS_MAX = 32 };

enum status page_names_open(struct page_names *names, uint32_t page_tokens, bool prompt_only, struct error *error)
{
    assert_always(page_tokens > 0 && page_tokens <= PAGE_TOKENS_MAX);
    if (sodium_init() < 0)
        return error_set(error, STATUS_UNAVAILABLE, "libsodium finds no source of random bytes");
    names->page_tokens = page_tokens;
    names->prompt_only = prompt_only;
    randombytes_buf(names->key, sizeof names->key);
    return STATUS_OK;
}

static struct sched_page_name hash(const struct page_names *names, const void *bytes, size_t length)
{
    struct sched_page_name name;
    crypto_shorthash_siphashx24((unsigned char *)&name, bytes, length, names->key);
    return name;
}

struct sched_page_name page_names_root(const struct page_names *names, const char *tenant, const char *salt)
{
    const struct sched_page_name both[2] = {hash(names, tenant, strlen(tenant)), hash(names, salt, strlen(salt))};
    return hash(names, both, sizeof both);
}

uint32_t page_names_extend(const struct page_names *names, struct token_log *log)
{
    struct {
        struct sched_page_name before;
        uint32_t tokens[PAGE_TOKENS_MAX];
    } link;
    uint32_t tokens = names->prompt_only ? log->prompt_count : log->token_count;
    uint32_t full = MIN(tokens / names->page_tokens, log->names.capacity);

    for (; log->names.count < full; log->names.count++) {
        link.before = log->names.count ? log->names.of[log->names.count - 1] : log->names.root;
        memcpy(link.tokens, log->tokens + (size_t)log->names.count * names->page_tokens, names->page_tokens * sizeof *link.tokens);
        log->names.of[log->names.count] = hash(names, &link, sizeof link.before + names->page_tokens * sizeof *link.tokens);
    }
    return log->names.count;
}
