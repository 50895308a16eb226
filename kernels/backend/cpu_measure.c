/* cpu_measure.c: see cpu_measure.h. Each rate is measured on more bytes than caches hold, since weights and KV never fit there. */
#include "kernels/backend/cpu_measure.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/kv/kv_store.h"
#include "kernels/dispatch/kernels.h"
#include "kernels/quant/tensor_type.h"

enum { PASSES = 31, PART = 1 << 20, HUGE_PAGE = 2 << 20, BARRIERS = 64 };
enum { SIDE = 2048, ROWS = 64, GRAIN = 8, SQUARE = 768, HEADS = 8, HEAD_DIM = 64, CONTEXT = 512 };
#define STREAM_BYTES (128ull << 20)

static int ascending(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* The time of a job on the pool that a quarter of the passes are faster than, after a pass that warms up: other programs only make
 * it longer. */
static double quarter_seconds(struct thread_pool *pool, thread_pool_fn *job, void *arg)
{
    double seconds[PASSES];

    for (int pass = -1; pass < PASSES; pass++) {
        uint64_t began_ns = clock_now_ns();
        thread_pool_run(pool, job, arg);
        seconds[MAX(pass, 0)] = (double)(clock_now_ns() - began_ns) * 1e-9;
    }
    qsort(seconds, PASSES, sizeof seconds[0], ascending);
    return seconds[PASSES / 4];
}

static unsigned char *stream_open(void)
{
    unsigned char *bytes = aligned_alloc(HUGE_PAGE, STREAM_BYTES);
    if (bytes)
        madvise(bytes, STREAM_BYTES, MADV_HUGEPAGE);
    return bytes;
}

/* --- memory ----------------------------------------------------------------------------------------------------------- */

struct stream {
    struct thread_pool *pool;
    const unsigned char *bytes;
    uint64_t sink;
};

__attribute__((optimize("O3"), noinline)) static uint64_t read_words(const uint64_t *words, size_t count)
{
    uint64_t sums[32] = {0}, all = 0;
    for (size_t i = 0; i + 32 <= count; i += 32)
        for (size_t j = 0; j < 32; j++)
            sums[j] ^= words[i + j];
    for (size_t j = 0; j < 32; j++)
        all ^= sums[j];
    return all;
}

static void read_job(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    struct stream *stream = arg;
    (void)thread_index, (void)thread_count;
    for (uint32_t item; (item = thread_pool_claim(stream->pool)) < STREAM_BYTES / PART;)
        __atomic_fetch_xor(&stream->sink,
                           read_words((const uint64_t *)(const void *)(stream->bytes + (size_t)item * PART), PART / 8),
                           __ATOMIC_RELAXED); /* keeps the reads; orders nothing */
}

static void barrier_job(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    (void)thread_index, (void)thread_count;
    for (int i = 0; i < BARRIERS; i++)
        thread_pool_barrier(arg);
}

static enum status measure_memory(struct thread_pool *pool, struct cpu_rates *out)
{
    unsigned char *bytes = stream_open();
    struct stream stream = {.pool = pool, .bytes = bytes};

    if (!bytes)
        return STATUS_RESOURCE_EXHAUSTED;
    memset(bytes, 1, STREAM_BYTES);
    out->read_bytes = (double)STREAM_BYTES / quarter_seconds(pool, read_job, &stream);
    out->phase_us = quarter_seconds(pool, barrier_job, pool) / BARRIERS * 1e6;
    free(bytes);
    return STATUS_OK;
}

/* --- products --------------------------------------------------------------------------------------------------------- */

struct products {
    struct thread_pool *pool;
    struct packed_matrix matrix; /* the first of copy_count that lie one after the other */
    struct quantized_rows x;
    uint32_t copy_count, rows;
    float *y; /* [ROWS][SIDE] */
};

static void product_job(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    struct products *p = arg;
    uint32_t per_copy = p->matrix.tile_count / GRAIN, count = per_copy * p->copy_count;
    (void)thread_index, (void)thread_count;

    for (uint32_t item = thread_pool_claim(p->pool), later; item < count; item = later) {
        struct packed_matrix w = p->matrix;
        uint32_t begin = item % per_copy * GRAIN;
        w.data += (uint64_t)(item / per_copy) * w.bytes;
        later = thread_pool_claim(p->pool); /* what is read next is asked for before */
        kernels->gemm(&w, &p->x, 0, p->rows, begin, GRAIN,
                      later < count
                          ? p->matrix.data + (uint64_t)(later / per_copy) * w.bytes + later % per_copy * GRAIN * w.tile_bytes
                          : NULL,
                      p->y, SIDE, GEMM_SET);
    }
}

static enum status measure_products(struct thread_pool *pool, struct cpu_rates *out, struct error *error)
{
    struct products p = {.pool = pool, .rows = 1};
    enum status status = pack_plan(TENSOR_Q4_0, SIDE, SIDE, &p.matrix, error);
    unsigned char *source, *memory;
    float *values;
    void *blocks;

    if (status)
        return status;
    source = calloc(SIDE, p.matrix.source_row_bytes);
    values = malloc(ROWS * SIDE * sizeof *values);
    p.y = malloc(ROWS * SIDE * sizeof *p.y);
    blocks = aligned_alloc(PACK_ALIGN, quantized_rows_bytes(ROWS, SIDE));
    memory = stream_open();
    if (source && values && p.y && blocks && memory) {
        for (size_t i = 0; i < SIDE * p.matrix.source_row_bytes; i++)
            source[i] = (unsigned char)((i * 2654435761u >> 16) & 0x3f); /* scales of f16 with small exponents */
        for (size_t i = 0; i < (size_t)ROWS * SIDE; i++)
            values[i] = (float)(i * 2654435761u % 2001) / 1000.0f - 1.0f;
        p.copy_count = (uint32_t)(STREAM_BYTES / p.matrix.bytes);
        p.matrix.data = memory;
        pack_tiles(&p.matrix, source, 0, p.matrix.tile_count);
        for (uint32_t i = 1; i < p.copy_count; i++)
            memcpy(memory + i * p.matrix.bytes, memory, p.matrix.bytes);
        quantized_rows_init(&p.x, blocks, ROWS, SIDE);
        quantized_rows_source(&p.x, values, SIDE);
        kernels->quantize_rows(&p.x, 0, ROWS);
        out->weight_bytes = (double)p.copy_count * (double)p.matrix.bytes / quarter_seconds(pool, product_job, &p);
        p.rows = ROWS;
        p.copy_count = MIN(p.copy_count, 8u);
        out->int8_operations = 2.0 * SIDE * SIDE * ROWS * p.copy_count / quarter_seconds(pool, product_job, &p);
    } else {
        status = STATUS_RESOURCE_EXHAUSTED;
    }
    free(source), free(values), free(p.y), free(blocks), free(memory);
    return status;
}

static enum status measure_f32(struct thread_pool *pool, struct cpu_rates *out)
{
    float *matrices = calloc(3 * SQUARE * SQUARE, sizeof *matrices);
    double seconds[PASSES];

    if (!matrices)
        return STATUS_RESOURCE_EXHAUSTED;
    openblas_set_num_threads((int)thread_pool_threads(pool));
    for (int pass = -1; pass < PASSES; pass++) {
        uint64_t began_ns = clock_now_ns();
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, SQUARE, SQUARE, SQUARE, 1, matrices, SQUARE,
                    matrices + SQUARE * SQUARE, SQUARE, 0, matrices + 2 * SQUARE * SQUARE, SQUARE);
        seconds[MAX(pass, 0)] = (double)(clock_now_ns() - began_ns) * 1e-9;
    }
    qsort(seconds, PASSES, sizeof seconds[0], ascending);
    out->f32_operations = 2.0 * SQUARE * SQUARE * SQUARE / seconds[PASSES / 4];
    free(matrices);
    return STATUS_OK;
}

/* --- attention -------------------------------------------------------------------------------------------------------- */

/* Fills a store of one layer with sequences and attends one row of each, at its last position. */
static enum status attend(struct kv_store *store, uint32_t count, double *bytes_per_second, struct error *error)
{
    uint32_t bad, width = HEADS * HEAD_DIM;
    float *tensor = calloc((size_t)count * width, sizeof *tensor), *o = calloc((size_t)count * width, sizeof *o);
    const float **in = calloc(count, sizeof *in);
    float **back = calloc(count, sizeof *back);
    struct kv_row *rows = calloc(count, sizeof *rows);
    struct kv_batch *batch = NULL;
    struct kv_stats before, after;
    double rates[PASSES];
    enum status status = tensor && o && in && back && rows ? kv_batch_open(store, &batch) : STATUS_RESOURCE_EXHAUSTED;

    for (uint32_t i = 0; !status && i < count; i++) {
        rows[i] = (struct kv_row){i, CONTEXT - 1};
        in[i] = tensor + (size_t)i * width;
        back[i] = o + (size_t)i * width;
    }
    for (int pass = -1; !status && pass < PASSES; pass++) {
        status = kv_batch_plan(batch, rows, count, &bad, error);
        if (status)
            break;
        kv_store_stats(store, &before);
        kv_batch_attend(batch, 0, in, in, in, back);
        kv_store_stats(store, &after);
        rates[MAX(pass, 0)] = (double)(after.bytes_read - before.bytes_read) / (double)(after.attend_ns - before.attend_ns) * 1e9;
    }
    if (!status) {
        qsort(rates, PASSES, sizeof rates[0], ascending);
        *bytes_per_second = rates[PASSES - 1 - PASSES / 4];
    }
    kv_batch_close(batch);
    free(tensor), free(o), free(in), free(back), free(rows);
    return status;
}

static enum status measure_attention(struct thread_pool *pool, struct cpu_rates *out, struct error *error)
{
    const struct kv_shape shape = {.layers = 1,
                                   .heads = HEADS,
                                   .kv_heads = HEADS,
                                   .head_dim = HEAD_DIM,
                                   .page_tokens = 16,
                                   .type = KV_F16,
                                   .max_sequences = 256,
                                   .max_context = CONTEXT};
    uint64_t page_bytes = kv_page_bytes(&shape), pages = CONTEXT / 16;
    uint32_t count = (uint32_t)MIN(256, STREAM_BYTES / (page_bytes * pages));
    void *page = calloc(1, page_bytes); /* zeros are as fast to read */
    struct kv_store *store = NULL;
    enum status status = page ? kv_store_open(&shape, page_bytes * pages * count, count, pool, &store, error)
                              : STATUS_RESOURCE_EXHAUSTED;

    for (uint32_t i = 0; !status && i < count; i++)
        for (uint32_t at = 0; !status && at < pages; at++)
            status = kv_store_import_page(store, i, at, page, at + 1 < pages ? 16 : 15, error);
    for (uint32_t i = 0; !status && i < count; i++)
        status = kv_store_reserve(store, i, CONTEXT, error);
    if (!status)
        status = attend(store, count, &out->kv_bytes, error);
    kv_store_close(store);
    free(page);
    return status;
}

enum status cpu_measure(struct thread_pool *pool, struct cpu_rates *out, struct error *error)
{
    enum status status;

    error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory to measure with");
    if ((status = measure_memory(pool, out)) || (status = measure_products(pool, out, error)) ||
        (status = measure_f32(pool, out)) || (status = measure_attention(pool, out, error)))
        return status;
    return STATUS_OK;
}
