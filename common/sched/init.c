// init.c: all the memory that the core will ever use, and the limits and defaults of its configuration.
#include <stdlib.h>
#include <string.h>

#include "common/sched/state.h"

#define LIMIT_SEQUENCES (1u << 24)
#define LIMIT_ROWS (1u << 20)
#define LIMIT_TOKENS (1u << 30)

static enum status check_range(const char *field, uint64_t value, uint64_t low, uint64_t high, struct error *error)
{
    if (value >= low && value <= high)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID_ARGUMENT, "scheduler: %s is %llu, must be %llu to %llu", field,
                     (unsigned long long)value, (unsigned long long)low, (unsigned long long)high);
}

static void set_defaults(struct sched_config *c)
{
    c->max_running = c->max_running != 0 ? c->max_running : c->max_sequences;
    c->stages = c->stages != 0 ? c->stages : 1;
    if (c->stages > 1 && c->micro_batch == SCHED_MICRO_BATCH_AUTO)
        c->micro_batch = SCHED_MICRO_BATCH_UNIFORM;
    c->mini_batch_fill = c->mini_batch_fill != 0 ? c->mini_batch_fill : 2;
    c->plan_ahead = c->plan_ahead != 0 ? c->plan_ahead : 2;
    c->chunk_max_tokens = c->chunk_max_tokens != 0 ? c->chunk_max_tokens : 512;
    c->draft_tokens = c->draft_tokens != 0 ? c->draft_tokens : SCHED_DRAFT_TOKENS;
    c->tile_rows = c->tile_rows != 0 ? c->tile_rows : 8;
    c->aside = c->aside && c->mini_batches == 1 && c->stages <= 1 && c->micro_batch == SCHED_MICRO_BATCH_AUTO &&
               c->chunk_tokens == 0;
    c->step_target_auto = c->step_target_us == 0;
    c->step_target_us = c->step_target_us != 0 ? c->step_target_us : 16000; // auto: until steps are measured
    c->max_named_pages = c->max_named_pages != 0 ? c->max_named_pages : 1u << 18;
    c->max_moves = c->max_moves != 0 ? c->max_moves : 8;
    c->max_extents = c->extent_tokens == 0 ? 0 : c->max_extents != 0 ? c->max_extents : 1024;
}

static enum status check_config(const struct sched_config *c, struct error *error)
{
    const struct {
        const char *name;
        uint64_t value, low, high;
    } fields[] = {
        {"max_sequences", c->max_sequences, 1, LIMIT_SEQUENCES},
        {"max_running", c->max_running, 1, LIMIT_SEQUENCES},
        {"max_batch_rows", c->max_batch_rows, 1, LIMIT_ROWS},
        {"mini_batches", c->mini_batches, 1, SCHED_MINI_BATCHES_MAX},
        {"stages", c->stages, 1, SCHED_STAGES_MAX},
        {"micro_batch", c->micro_batch, SCHED_MICRO_BATCH_AUTO, SCHED_MICRO_BATCH_UNIFORM},
        {"plan_ahead", c->plan_ahead, 1, SCHED_PLAN_AHEAD_MAX},
        {"tile_rows", c->tile_rows, 1, LIMIT_ROWS},
        {"chunk_tokens", c->chunk_tokens, 0, LIMIT_TOKENS},
        {"chunk_max_tokens", c->chunk_max_tokens, 1, LIMIT_TOKENS},
        {"draft_tokens", c->draft_tokens, 1, SCHED_DRAFT_TOKENS_MAX},
        {"page_tokens", c->page_tokens, 1, 65536},
        {"context_tokens", c->context_tokens, 2, LIMIT_TOKENS},
        {"max_places", c->max_places, 1, SCHED_SEQ_NO_PLACE - 1},
        {"max_moves", c->max_moves, 1, 65536},
        {"max_kept", c->max_kept, 0, LIMIT_SEQUENCES},
        {"extent_tokens", c->extent_tokens, 0, LIMIT_TOKENS},
        {"max_extents", c->max_extents, 0, LIMIT_SEQUENCES},
        {"max_named_pages", c->max_named_pages, 1, LIMIT_TOKENS},
    };
    for (size_t i = 0; i < ARRAY_COUNT(fields); i++) {
        enum status status = check_range(fields[i].name, fields[i].value, fields[i].low, fields[i].high, error);
        if (status != STATUS_OK)
            return status;
    }
    if (c->extent_tokens % c->page_tokens != 0)
        return error_set(error, STATUS_INVALID_ARGUMENT, "scheduler: extent_tokens is %u, must be a multiple of page_tokens, %u",
                         c->extent_tokens, c->page_tokens);
    if (c->ring_pages != 0 && c->ring_rows == 0)
        return error_set(error, STATUS_INVALID_ARGUMENT, "scheduler: ring_rows is 0, with ring_pages %u", c->ring_pages);
    return STATUS_OK;
}

// Allocates for slots 0 to capacity - 1; false: no memory (heap_fini() is still right).
static bool heap_init(struct sched_heap *heap, uint32_t capacity)
{
    heap->entries = calloc(capacity, sizeof(*heap->entries));
    heap->where = calloc(capacity, sizeof(*heap->where));
    heap->count = 0;
    heap->capacity = capacity;
    if (heap->entries == NULL || heap->where == NULL)
        return false;
    memset(heap->where, 0xff, capacity * sizeof(*heap->where));
    return true;
}

static void heap_fini(struct sched_heap *heap)
{
    free(heap->entries);
    free(heap->where);
    heap->entries = NULL;
    heap->where = NULL;
}

static bool init_sequences(struct sched *s)
{
    // Kept sequences and extents take no slots from new ones.
    uint32_t n = s->config.max_sequences + s->config.max_kept + s->config.max_extents;
    size_t bytes = (size_t)n * sizeof(*s->seqs);
    s->seqs = aligned_alloc(64, bytes); // one cache line each; unaligned, every row would touch two
    s->cold = calloc(n, sizeof(*s->cold));
    s->ids.free_slots = calloc(n, sizeof(*s->ids.free_slots));
    uint32_t buckets = 2;
    while (buckets < 2 * n)
        buckets *= 2;
    s->ids.map = calloc(buckets, sizeof(*s->ids.map));
    s->ids.map_mask = buckets - 1;
    bool heaps = heap_init(&s->queue.waiting, n);
    heaps = heap_init(&s->queue.deadlines, n) && heaps;
    if (s->seqs == NULL || s->cold == NULL || s->ids.free_slots == NULL || s->ids.map == NULL || !heaps)
        return false;
    memset(s->seqs, 0, bytes);
    memset(s->ids.map, 0xff, buckets * sizeof(*s->ids.map));
    for (uint32_t i = 0; i < n; i++)
        s->ids.free_slots[i] = n - 1 - i;
    s->ids.free_count = n;
    return true;
}

static bool init_steps(struct sched *s)
{
    uint32_t rows = s->config.max_batch_rows;
    uint32_t ahead = s->config.plan_ahead;
    s->batches.flights = calloc((size_t)sched_batch_count_all(s) * ahead, sizeof(*s->batches.flights));
    if (s->batches.flights == NULL)
        return false;
    for (uint32_t m = 0; m < sched_batch_count_all(s); m++) {
        struct sched_batch *batch = &s->batches.of[m];
        for (enum sched_class class = 0; class < SCHED_CLASSES; class ++) {
            struct sched_group *group = &batch->of[class];
            group->prefill_head = group->prefill_tail = NONE;
            group->members = calloc(s->config.max_sequences, sizeof(*group->members));
            if (group->members == NULL)
                return false;
        }
        for (uint32_t k = 0; k < ahead; k++) {
            struct sched_flight *step = &s->batches.flights[m * ahead + k];
            step->runs = calloc(rows, sizeof(*step->runs));
            step->refs = calloc(rows, sizeof(*step->refs));
            step->extents = calloc(s->config.max_extents + 1u, sizeof(*step->extents));
            if (step->runs == NULL || step->refs == NULL || step->extents == NULL)
                return false;
            batch->spare[batch->spare_count++] = step;
        }
    }
    return true;
}

static bool init_prefix(struct sched *s)
{
    struct sched_prefix *t = &s->prefix;
    t->free_head = NONE;
    if (s->config.page_names == NULL)
        return true;
    uint32_t buckets = 2;
    while (buckets < s->config.max_named_pages)
        buckets *= 2;
    t->capacity = s->config.max_named_pages;
    t->bucket_mask = buckets - 1;
    t->nodes = calloc(t->capacity, sizeof(*t->nodes));
    t->buckets = calloc(buckets, sizeof(*t->buckets));
    if (t->nodes == NULL || t->buckets == NULL)
        return false;
    memset(t->buckets, 0xff, buckets * sizeof(*t->buckets));
    return true;
}

enum status sched_init(const struct sched_config *config, struct sched **out, struct error *error)
{
    *out = NULL;
    struct sched_config filled = *config;
    set_defaults(&filled);
    enum status status = check_config(&filled, error);
    if (status != STATUS_OK)
        return status;
    struct sched *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "scheduler: no memory for its state");
    s->config = filled;
    s->s_part.rows_max = filled.max_batch_rows;
    s->batches.in_use = s->batches.wanted = filled.mini_batch_auto ? MIN(filled.stages, filled.mini_batches) : filled.mini_batches;
    s->outbox.head = s->outbox.tail = NONE;
    s->batches.next_step = s->moves.next_id = 1;
    s->places.grace_wake_us = SCHED_NEVER;
    s->places.local_pool = NONE;
    s->places.of = calloc(filled.max_places, sizeof(*s->places.of));
    s->moves.slots = calloc(filled.max_moves + TUNE_MOVE_RELABELS_MAX, sizeof(*s->moves.slots));
    bool sequences = init_sequences(s);
    bool steps = init_steps(s);
    bool prefix = init_prefix(s);
    if (s->places.of == NULL || s->moves.slots == NULL || !sequences || !steps || !prefix) {
        sched_fini(s);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "scheduler: no memory for %u sequences and steps of %u rows",
                         filled.max_sequences, filled.max_batch_rows);
    }
    for (uint32_t p = 0; p < filled.max_places; p++)
        s->places.of[p].holders = s->places.of[p].kept = (struct sched_list){NONE, NONE};
    sched_time_init(s);
    sched_load_init(s);
    sched_chunk_init(s);
    *out = s;
    return STATUS_OK;
}

void sched_fini(struct sched *s)
{
    if (s == NULL)
        return;
    if (s->batches.flights != NULL) {
        for (uint32_t i = 0; i < sched_batch_count_all(s) * s->config.plan_ahead; i++) {
            free(s->batches.flights[i].runs);
            free(s->batches.flights[i].refs);
            free(s->batches.flights[i].extents);
        }
    }
    for (uint32_t m = 0; m < sched_batch_count_all(s); m++) {
        for (enum sched_class class = 0; class < SCHED_CLASSES; class ++)
            free(s->batches.of[m].of[class].members);
    }
    free(s->batches.flights);
    free(s->prefix.nodes);
    free(s->prefix.buckets);
    heap_fini(&s->queue.waiting);
    heap_fini(&s->queue.deadlines);
    free(s->ids.map);
    free(s->ids.free_slots);
    free(s->cold);
    free(s->seqs);
    free(s->moves.slots);
    free(s->places.of);
    free(s);
}
