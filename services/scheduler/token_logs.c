// token_logs.c: logs in the slots that an id_map gives them.
#include "services/scheduler/token_logs.h"

#include <stdlib.h>

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
    free(log->names);
    free(log->fault);
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
    struct token_log log = {.id = id, .capacity = capacity, .name_capacity = pages};

    if (token_logs_find(logs, id))
        return STATUS_ALREADY_EXISTS;
    if (logs->slots.count == logs->slots.capacity)
        return STATUS_RESOURCE_EXHAUSTED;
    log.tokens = malloc(capacity * sizeof *log.tokens);
    log.names = malloc(MAX(pages, 1u) * sizeof *log.names);
    if (!log.tokens || !log.names) {
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
        features |= logs->pool[i].call && !logs->pool[i].over ? logs->pool[i].features : 0;
    return features;
}
