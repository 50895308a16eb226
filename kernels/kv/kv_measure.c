// kv_measure.c: measures what attention costs on these threads with a shape of KV.
//
// The store is larger than the caches. Its pages have the model's layers, or as many as leave room for four sequences, so that the
// data of one layer is scattered in memory as in a real step (a store of one layer was read up to twice as fast). It is full of
// zeros, which take as long to read as other values. Five settings are timed with the service's kernels. The time of a setting is
// the median of its passes over all layers.
#include "kernels/kv/kv_store.h"

#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/measure.h"

enum { CONTEXT = 512, SHORT = 64, SEQUENCES_MIN = 4, SEQUENCES_MAX = 128, CHUNK = 64, PASSES_MAX = 31 };

struct bench {
    struct kv_store *store;
    struct kv_batch *batch;
    uint32_t layers, sequences;
    uint32_t next;    // that it goes on with: sequences are taken in turn, so that none is in caches
    float *zeros, *o; // [SEQUENCES_MAX][heads][head_dim]
    const float *in[SEQUENCES_MAX];
    float *out[SEQUENCES_MAX];
};

// Fills the store: each sequence holds CONTEXT - 1 positions, with a page for the last one.
static enum status fill(struct bench *b, const struct kv_shape *shape, struct error *error)
{
    uint32_t pages = CONTEXT / shape->page_tokens;
    void *page = calloc(1, kv_page_bytes(shape));
    enum status status = page ? STATUS_OK : error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for a page");

    for (uint32_t i = 0; !status && i < b->sequences; i++) {
        for (uint32_t at = 0; !status && at < pages; at++)
            status = kv_store_import_page(b->store, i, at, page, shape->page_tokens - (at + 1 == pages), error);
        if (!status)
            status = kv_store_reserve(b->store, i, CONTEXT, error);
    }
    free(page);
    return status;
}

// A layer of `rows` rows that end at position `last`: of as many sequences, or of one. All layers, as a step runs them, or
// those that the time is enough for.
static enum status attend(void *user, uint32_t rows, uint32_t last, bool prefill, uint64_t limit_us, double *us,
                          struct error *error)
{
    struct bench *b = user;
    struct kv_row row[SEQUENCES_MAX];
    uint32_t bad, first = b->next + (prefill ? 1 : rows) <= b->sequences ? b->next : 0;

    for (uint32_t i = 0; i < rows; i++)
        row[i] = prefill ? (struct kv_row){.sequence = first, .position = last + 1 - rows + i}
                         : (struct kv_row){.sequence = first + i, .position = last};
    b->next = first + (prefill ? 1 : rows);
    enum status status = kv_batch_plan(b->batch, row, rows, &bad, error);
    if (status)
        return status;
    uint64_t began_ns = clock_now_ns(), taken_ns = 0;
    uint32_t layers = 0;
    while (layers < b->layers && (layers == 0 || taken_ns < 1000 * limit_us)) {
        kv_batch_attend(b->batch, layers++, b->in, b->in, b->in, b->out);
        taken_ns = clock_now_ns() - began_ns;
    }
    *us = (double)taken_ns * 1e-3 / layers;
    return STATUS_OK;
}

// The median of the passes of a setting.
static enum status median(const struct kv_timing *timing, uint32_t rows, uint32_t last, bool prefill, uint64_t limit_us, double *us,
                          struct error *error)
{
    double passes[PASSES_MAX];
    uint32_t count = 0;
    uint64_t until_us = clock_now_us() + limit_us;
    enum status status = STATUS_OK;

    while (!status && count < PASSES_MAX && (count == 0 || clock_now_us() < until_us))
        status = timing->attend(timing->user, rows, last, prefill, limit_us, &passes[count++], error);
    if (status)
        return status;
    *us = median_of(passes, count);
    return STATUS_OK;
}

enum status kv_time(const struct kv_timing *timing, uint64_t limit_us, struct kv_costs *out, struct error *error)
{
    struct kv_timed t = timing->settings;
    enum status status;

    if ((status = median(timing, 1, t.near - 1, false, limit_us / 8, &t.one_us, error)) ||
        (status = median(timing, t.rows, t.near - 1, false, limit_us / 4, &t.near_us, error)) ||
        (status = median(timing, t.rows, t.far - 1, false, limit_us / 4, &t.far_us, error)) ||
        (status = median(timing, t.chunk, t.chunk - 1, true, limit_us / 8, &t.first_us, error)) ||
        (status = median(timing, t.chunk, t.far - 1, true, limit_us / 4, &t.last_us, error)))
        return status;
    kv_costs_of(&t, out);
    return STATUS_OK;
}

enum status kv_measure(const struct kv_shape *shape, uint64_t memory_bytes, struct thread_pool *pool, uint64_t limit_us,
                       struct kv_costs *out, struct error *error)
{
    struct kv_shape one = *shape;
    struct bench bench = {0}, *b = &bench;
    uint32_t width = shape->heads * shape->head_dim;
    uint64_t sequence_bytes, layer_bytes;
    enum status status;

    one.layers = 1;
    one.max_sequences = SEQUENCES_MAX;
    one.max_context = CONTEXT;
    one.all_windowed = false;
    layer_bytes = kv_page_memory_bytes(&one) * (CONTEXT / MAX(one.page_tokens, 1u));
    if (layer_bytes == 0)
        return error_set(error, STATUS_INVALID_ARGUMENT, "a shape of KV that cannot be measured");
    one.layers = (uint32_t)MIN(MAX(memory_bytes / layer_bytes / SEQUENCES_MIN, 1), MAX(shape->layers, 1u));
    sequence_bytes = kv_page_memory_bytes(&one) * (CONTEXT / one.page_tokens);
    b->layers = one.layers;
    b->sequences = (uint32_t)MIN(MAX(memory_bytes / sequence_bytes, 2), SEQUENCES_MAX);
    if ((status = kv_store_open(&one, sequence_bytes * b->sequences, SEQUENCES_MAX, pool, &b->store, error)))
        return status;
    b->zeros = calloc(width, sizeof *b->zeros);
    b->o = calloc((size_t)SEQUENCES_MAX * width, sizeof *b->o);
    status = b->zeros && b->o && !kv_batch_open(b->store, &b->batch)
                 ? fill(b, &one, error)
                 : error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory to measure attention with");
    for (uint32_t i = 0; i < SEQUENCES_MAX; i++) {
        b->in[i] = b->zeros;
        b->out[i] = b->o + (size_t)i * width;
    }
    const struct kv_timing timing = {
        .settings = {.rows = b->sequences, .near = SHORT, .far = CONTEXT, .chunk = CHUNK}, .attend = attend, .user = b};
    if (!status)
        status = kv_time(&timing, limit_us, out, error);
    kv_batch_close(b->batch);
    kv_store_close(b->store);
    free(b->zeros);
    free(b->o);
    return status;
}
