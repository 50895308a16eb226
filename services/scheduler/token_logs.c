/* token_logs.c: a pool of logs, and an index of their ids (open addressing, backward-shift deletion, at most half full). */
#include "services/scheduler/token_logs.h"

#include <stdlib.h>

#include "common/base/checked.h"

struct token_logs {
    uint32_t capacity, count, mask;
    struct token_log *pool; /* [capacity] */
    uint32_t *free_list;    /* [capacity] indices not in use: the first capacity - count */
    uint32_t *slots;        /* [mask + 1] index + 1 into pool, 0: empty */
};

enum status token_logs_open(uint32_t capacity, struct token_logs **out)
{
    uint32_t slots = 16;
    struct token_logs *logs = calloc(1, sizeof *logs);

    if (!logs)
        return STATUS_RESOURCE_EXHAUSTED;
    while (slots < capacity * 2)
        slots *= 2;
    *logs = (struct token_logs){.capacity = capacity, .mask = slots - 1};
    logs->pool = calloc(capacity, sizeof *logs->pool);
    logs->free_list = calloc(capacity, sizeof *logs->free_list);
    logs->slots = calloc(slots, sizeof *logs->slots);
    if (!logs->pool || !logs->free_list || !logs->slots) {
        token_logs_close(logs);
        return STATUS_RESOURCE_EXHAUSTED;
    }
    for (uint32_t i = 0; i < capacity; i++)
        logs->free_list[i] = capacity - 1 - i;
    *out = logs;
    return STATUS_OK;
}

static void free_memory(struct token_log *log)
{
    free(log->tokens);
    free(log->names);
}

void token_logs_close(struct token_logs *logs)
{
    if (!logs)
        return;
    for (uint32_t i = 0; logs->pool && i < logs->capacity; i++)
        free_memory(&logs->pool[i]);
    free(logs->pool);
    free(logs->free_list);
    free(logs->slots);
    free(logs);
}

static uint32_t home(const struct token_logs *logs, uint64_t id)
{
    return (uint32_t)((id * 0x9e3779b97f4a7c15u) >> 32) & logs->mask;
}

/* The slot of an id, or the empty one where it would go. */
static uint32_t find_slot(const struct token_logs *logs, uint64_t id)
{
    uint32_t slot = home(logs, id);
    while (logs->slots[slot] && logs->pool[logs->slots[slot] - 1].id != id)
        slot = (slot + 1) & logs->mask;
    return slot;
}

struct token_log *token_logs_find(struct token_logs *logs, uint64_t id)
{
    uint32_t index = logs->slots[find_slot(logs, id)];
    return index ? &logs->pool[index - 1] : NULL;
}

enum status token_logs_add(struct token_logs *logs, uint64_t id, uint32_t capacity, uint32_t pages, struct token_log **out)
{
    uint32_t slot = find_slot(logs, id), index;
    struct token_log log = {.id = id, .capacity = capacity, .name_capacity = pages};

    if (logs->slots[slot])
        return STATUS_ALREADY_EXISTS;
    if (logs->count == logs->capacity)
        return STATUS_RESOURCE_EXHAUSTED;
    log.tokens = malloc(capacity * sizeof *log.tokens);
    log.names = malloc(MAX(pages, 1u) * sizeof *log.names);
    if (!log.tokens || !log.names) {
        free_memory(&log);
        return STATUS_RESOURCE_EXHAUSTED;
    }
    index = logs->free_list[logs->capacity - 1 - logs->count++];
    logs->slots[slot] = index + 1;
    logs->pool[index] = log;
    *out = &logs->pool[index];
    return STATUS_OK;
}

void token_logs_remove(struct token_logs *logs, uint64_t id)
{
    uint32_t hole = find_slot(logs, id), index = logs->slots[hole];

    if (!index)
        return;
    free_memory(&logs->pool[index - 1]);
    logs->pool[index - 1] = (struct token_log){0};
    logs->free_list[logs->capacity - logs->count--] = index - 1;
    logs->slots[hole] = 0;
    for (uint32_t slot = (hole + 1) & logs->mask; logs->slots[slot]; slot = (slot + 1) & logs->mask) {
        uint32_t from_home = (slot - home(logs, logs->pool[logs->slots[slot] - 1].id)) & logs->mask;
        if (from_home >= ((slot - hole) & logs->mask)) {
            logs->slots[hole] = logs->slots[slot];
            logs->slots[slot] = 0;
            hole = slot;
        }
    }
}

uint32_t token_logs_count(const struct token_logs *logs) { return logs->count; }
