// attend_measure.c: see backend_measure.h. A sequence's positions must be held before one attends to them, so the pool is filled as a
// prompt would fill it, but for the last layer alone: that one makes a position complete. What the other layers' pages hold does
// not matter to the time it takes to read them.
//
// Worked number: llama-7b has 16 KiB of K and V a token and layer: sixteen sequences of 1,024 tokens are 256 MiB of a layer, several
// times what the caches of a device hold, and 8 GiB of the pool.
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/median.h"
#include "kernels/backend/backend_measure.h"

enum { NEAR = 64, CHUNK = 64, CONTEXT_MIN = 128, PASSES_MAX = 31 };
#define LAYER_BYTES (256ull << 20) // of K and V in f16 that the sequences of one layer should be

struct bench {
    const struct attend_measure *what;
    struct backend_row *rows; // [max_rows]
    uint32_t sequences, far;
    uint32_t next; // that it goes on with: sequences are taken in turn, so that none is in caches
};

static void wait_for(const struct bench *b)
{
    while (!b->what->ops->done(b->what->batch)) {}
}

static enum status begin(struct bench *b, uint32_t count, struct error *error)
{
    uint32_t bad;
    enum status status = b->what->ops->begin(b->what->batch, b->rows, count, &bad, error);
    if (!status)
        wait_for(b);
    return status;
}

// Rows of one sequence, or of as many, up to position `last`. Sequence ids begin with 1.
static void make_rows(struct bench *b, uint32_t first, uint32_t count, uint32_t last, bool one)
{
    for (uint32_t i = 0; i < count; i++)
        b->rows[i] = (struct backend_row){.needs_output = true,
                                          .sequence = 1 + first + (one ? 0 : i),
                                          .token = (17 + 31 * i) % b->what->shape->vocab,
                                          .position = one ? last + 1 - count + i : last,
                                          .local = true};
}

// Fills as many sequences as were asked for, or as there is time for: two at least.
static enum status fill(struct bench *b, uint32_t wanted, uint64_t until_us, struct error *error)
{
    const struct attend_measure *what = b->what;
    const struct backend_links none = {0};
    enum status status = STATUS_OK;

    while (b->sequences < wanted && (b->sequences < 2 || clock_now_us() < until_us)) {
        for (uint32_t at = 0, count; at < b->far; at += count) {
            count = MIN(what->max_rows, b->far - at);
            make_rows(b, b->sequences, count, at + count - 1, true);
            if ((status = begin(b, count, error)))
                return status;
            if (b->sequences == 0) { // so that what is stored are numbers
                what->ops->segment(what->batch, 0, &none);
                wait_for(b);
            }
            what->ops->attend(what->batch, what->shape->layers - 1);
            wait_for(b);
        }
        b->sequences++;
    }
    return STATUS_OK;
}

// A layer of `rows` rows that end at position `last`: all layers, or those that the time is enough for.
static enum status attend(struct bench *b, uint32_t rows, uint32_t last, bool prefill, uint64_t limit_us, double *us,
                          struct error *error)
{
    const struct attend_measure *what = b->what;
    uint32_t of = prefill ? 1 : rows, first = b->next + of <= b->sequences ? b->next : 0, layers = 0;
    enum status status;

    make_rows(b, first, rows, last, prefill);
    b->next = first + of;
    if ((status = begin(b, rows, error)))
        return status;
    uint64_t began_ns = clock_now_ns(), taken_ns = 0;
    while (layers < what->shape->layers && (layers == 0 || taken_ns < 1000 * limit_us)) {
        what->ops->attend(what->batch, layers++);
        wait_for(b);
        taken_ns = clock_now_ns() - began_ns;
    }
    *us = (double)taken_ns * 1e-3 / layers;
    return STATUS_OK;
}

static enum status median(struct bench *b, uint32_t rows, uint32_t last, bool prefill, uint64_t limit_us, double *us,
                          struct error *error)
{
    double passes[PASSES_MAX];
    uint32_t count = 0;
    uint64_t until_us = clock_now_us() + limit_us;
    enum status status = STATUS_OK;

    while (!status && count < PASSES_MAX && (count == 0 || clock_now_us() < until_us))
        status = attend(b, rows, last, prefill, limit_us, &passes[count++], error);
    if (status)
        return status;
    *us = median_of(passes, count);
    return STATUS_OK;
}

static enum status measure(struct bench *b, uint64_t limit_us, struct kv_costs *out, struct error *error)
{
    struct kv_timed t = {.rows = b->sequences, .near = NEAR, .far = b->far, .chunk = CHUNK};
    double unused;
    enum status status;

    if ((status = attend(b, b->sequences, b->far - 1, false, limit_us / 8, &unused, error)) || // clocks come up
        (status = median(b, 1, NEAR - 1, false, limit_us / 8, &t.one_us, error)) ||
        (status = median(b, b->sequences, NEAR - 1, false, limit_us / 8, &t.near_us, error)) ||
        (status = median(b, b->sequences, b->far - 1, false, limit_us / 4, &t.far_us, error)) ||
        (status = median(b, CHUNK, CHUNK - 1, true, limit_us / 8, &t.first_us, error)) ||
        (status = median(b, CHUNK, b->far - 1, true, limit_us / 4, &t.last_us, error)))
        return status;
    kv_costs_of(&t, out);
    return STATUS_OK;
}

enum status backend_measure_attention(const struct attend_measure *what, uint64_t limit_us, struct kv_costs *out,
                                      struct error *error)
{
    struct bench bench = {.what = what}, *b = &bench;
    uint64_t page_tokens = what->page_tokens, token_bytes = 4ull * what->shape->kv_heads * what->shape->head_dim;
    uint64_t held = what->pages * page_tokens / 2; // by each of two
    enum status status;

    b->far = (uint32_t)MIN(MIN((uint64_t)ATTEND_MEASURE_CONTEXT, what->context_tokens), held / page_tokens * page_tokens);
    if (b->far < CONTEXT_MIN || what->max_rows < CHUNK)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED,
                         "a pool of %llu tokens, contexts of %u and steps of %u rows are too small to measure attention with",
                         (unsigned long long)(what->pages * page_tokens), what->context_tokens, what->max_rows);
    uint64_t pages = (b->far + page_tokens - 1) / page_tokens, wanted = LAYER_BYTES / (b->far * token_bytes) + 1;
    wanted = MIN(MIN(wanted, (uint64_t)ATTEND_MEASURE_SEQUENCES), MIN(what->pages / pages, (uint64_t)what->max_rows));
    b->rows = calloc(what->max_rows, sizeof *b->rows);
    if (!b->rows)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory to measure attention with");
    status = fill(b, (uint32_t)wanted, clock_now_us() + limit_us / 2, error);
    if (!status)
        status = measure(b, limit_us / 2, out, error);
    for (uint32_t i = 0; i <= b->sequences; i++) // the last one's filling may have ended half-way
        what->ops->pool_release(what->backend, 1 + i);
    free(b->rows);
    return status;
}
