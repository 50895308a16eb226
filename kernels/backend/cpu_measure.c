// cpu_measure.c: see cpu_measure.h. Each rate is measured on more bytes than caches hold, since weights and KV never fit there.
#include "kernels/backend/cpu_measure.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/median.h"
#include "common/base/read_rate.h"
#include "common/kv/kv_measure.h"
#include "kernels/dispatch/kernels.h"
#include "kernels/quant/tensor_type.h"

enum { PASSES = 31, HUGE_PAGE = 2 << 20, BARRIERS = 64, ATTEND_US = 400000 };
enum { SIDE = 2048, ROWS = 64, GRAIN = 8, SQUARE = 768, HEADS = 8, HEAD_DIM = 64 };
#define STREAM_BYTES (128ull << 20)

// The time of a job on the pool that a quarter of the passes are faster than, after a pass that warms up: other programs only make
// it longer.
static double quarter_seconds(struct thread_pool *pool, thread_pool_fn *job, void *arg)
{
    double seconds[PASSES];

    for (int pass = -1; pass < PASSES; pass++) {
        uint64_t began_ns = clock_now_ns();
        thread_pool_run(pool, job, arg);
        seconds[MAX(pass, 0)] = (double)(clock_now_ns() - began_ns) * 1e-9;
    }
    return quartile_of(seconds, PASSES);
}

static unsigned char *stream_open(void)
{
    unsigned char *bytes = aligned_alloc(HUGE_PAGE, STREAM_BYTES);
    if (bytes)
        madvise(bytes, STREAM_BYTES, MADV_HUGEPAGE);
    return bytes;
}

// --- memory ---

static void barrier_job(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    (void)thread_index, (void)thread_count;
    for (int i = 0; i < BARRIERS; i++)
        thread_pool_barrier(arg);
}

static enum status measure_memory(struct thread_pool *pool, struct cpu_rates *out)
{
    out->read_bytes = read_rate_measure(pool, STREAM_BYTES, PASSES, UINT64_MAX / 2);
    out->phase_us = quarter_seconds(pool, barrier_job, pool) / BARRIERS * 1e6;
    return out->read_bytes > 0 ? STATUS_OK : STATUS_RESOURCE_EXHAUSTED;
}

// --- products ---

struct products {
    struct thread_pool *pool;
    struct packed_matrix matrix; // the first of copy_count that lie one after the other
    struct quantized_rows x;
    uint32_t copy_count, rows;
    float *y; // [ROWS][SIDE]
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
        later = thread_pool_claim(p->pool); // what is read next is asked for before
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
            source[i] = (unsigned char)((i * 2654435761u >> 16) & 0x3f); // scales of f16 with small exponents
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
    openblas_set_num_threads(1); // as the backend wants it
    out->f32_operations = 2.0 * SQUARE * SQUARE * SQUARE / quartile_of(seconds, PASSES);
    free(matrices);
    return STATUS_OK;
}

// --- attention ---

static enum status measure_attention(struct thread_pool *pool, struct cpu_rates *out, struct error *error)
{
    const struct kv_shape shape = {
        .heads = HEADS, .kv_heads = HEADS, .head_dim = HEAD_DIM, .page_tokens = 16, .type = KV_F16, .layers = 1};
    struct kv_costs costs;
    enum status status = kv_measure(&shape, STREAM_BYTES, pool, ATTEND_US, &costs, error);

    if (!status)
        out->kv_bytes = 2.0 * 2 * HEADS * HEAD_DIM / costs.token_us * 1e6;
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
