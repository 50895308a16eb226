// backend_measure.c: times of the loaded model, of attention in its pool, and rates of the CPU.
#include "kernels/backend/backend_measure.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/measure.h"
#include "kernels/dispatch/kernels.h"
#include "kernels/kv/kv_store.h"
#include "kernels/quant/tensor_type.h"

enum { PASSES_MAX = 31, SIZES_MAX = 10, ROUNDS = 8 };
_Static_assert((int)SIZES_MAX <= (int)BACKEND_POINTS_MAX, "a point a size");

struct bench {
    const struct backend_ops *ops;
    struct backend_batch *batch;
    const struct model_shape *shape;
    struct backend_row *rows;       // [max_rows]
    const float **o;                // [max_rows] -> zeros
    float **nowhere;                // [max_rows] NULL: q, k and v are not wanted
    float *zeros;                   // [heads][head_dim]
    uint32_t *index;                // [max_sampled]
    struct backend_sample *samples; // [max_sampled]
    struct sampler_result *results; // [max_sampled]
    struct sampler *sampler;
    uint32_t layers; // that a pass runs
    uint32_t layers_most;
};

// The times of the passes of one size.
struct size {
    uint32_t rows, layers, layer_count, head_count;
    double layer_us[PASSES_MAX], head_us[PASSES_MAX];
};

// A layer's time in a pass of `rows` rows; its share of a step's beginning is in it.
static enum status layer_pass(struct bench *b, uint32_t rows, double *us, struct error *error)
{
    const struct backend_links links = {.o = b->o, .q = b->nowhere, .k = b->nowhere, .v = b->nowhere};
    uint32_t bad_row;
    uint64_t began_ns = clock_now_ns();
    enum status status = b->ops->begin(b->batch, b->rows, rows, &bad_row, error);

    if (status)
        return status;
    while (!b->ops->done(b->batch)) {} // no entry before the one before is done; and the time is the device's, not of asking it
    uint64_t begun_ns = clock_now_ns();
    b->ops->segment(b->batch, 0, &links);
    while (!b->ops->done(b->batch)) {}
    uint64_t first_ns = clock_now_ns();
    for (uint32_t s = 1; s <= b->layers; s++) {
        b->ops->segment(b->batch, s, &links);
        while (!b->ops->done(b->batch)) {}
    }
    *us = (double)(clock_now_ns() - first_ns) * 1e-3 / b->layers + (double)(begun_ns - began_ns) * 1e-3 / b->shape->layers;
    return STATUS_OK;
}

static double head_pass(struct bench *b, uint32_t rows)
{
    uint64_t began_ns = clock_now_ns();
    b->ops->head(b->batch, b->index, b->samples, rows);
    while (!b->ops->done(b->batch)) {}
    return (double)(clock_now_ns() - began_ns) * 1e-3;
}

// One pass of a size: some layers, and the head if so many rows are ever sampled.
static enum status pass(struct bench *b, struct size *size, uint32_t max_sampled, struct error *error)
{
    enum status status;

    b->layers = size->layers;
    if ((status = layer_pass(b, size->rows, &size->layer_us[size->layer_count], error)))
        return status;
    size->layer_count++;
    if (size->rows <= max_sampled)
        size->head_us[size->head_count++] = head_pass(b, size->rows);
    return STATUS_OK;
}

// Predicts what another pass takes from the last one.
static double expected_us(const struct size *size)
{
    return size->layer_us[size->layer_count - 1] * (size->layers + 1) +
           (size->head_count ? size->head_us[size->head_count - 1] : 0);
}

// All sizes in turn, again and again: what else the machine does for a moment hits one pass of each and not all passes of one.
static enum status measure(struct bench *b, uint32_t max_rows, uint32_t max_sampled, uint64_t limit_us, struct size *sizes,
                           uint32_t *size_count, struct error *error)
{
    uint64_t until_us = clock_now_us() + limit_us;
    uint32_t whole = MIN(MAX(b->shape->layers, 2u) - 1, b->layers_most), count = 0, again = 1;
    double share_us = (double)limit_us / SIZES_MAX / ROUNDS, unused;
    enum status status = STATUS_OK;

    b->layers = whole;
    if ((status = layer_pass(b, 1, &unused, error))) // weights come into memory's reach, threads awake
        return status;
    for (uint32_t rows = 1; !status && rows <= max_rows && count < SIZES_MAX; rows *= 2) {
        double last_us = count ? expected_us(&sizes[count - 1]) / sizes[count - 1].layers : unused;
        if (count && 3 * last_us > (double)until_us - (double)clock_now_us())
            break;
        sizes[count] = (struct size){.rows = rows, .layers = (uint32_t)MIN(MAX(share_us / (2 * last_us), 1), whole)};
        status = pass(b, &sizes[count], max_sampled, error);
        count++;
    }
    while (!status && again) {
        again = 0;
        for (uint32_t i = 0; !status && i < count; i++)
            if (sizes[i].layer_count < PASSES_MAX && (double)clock_now_us() + expected_us(&sizes[i]) < (double)until_us) {
                status = pass(b, &sizes[i], max_sampled, error);
                again++;
            }
    }
    *size_count = count;
    return status;
}

static void sum_up(struct size *sizes, uint32_t count, struct backend_times *out)
{
    *out = (struct backend_times){0};
    for (uint32_t i = 0; i < count; i++) {
        out->layer_rows[out->layer_count] = sizes[i].rows;
        out->layer_us[out->layer_count++] = median_of(sizes[i].layer_us, sizes[i].layer_count);
        if (sizes[i].head_count == 0)
            continue;
        out->head_rows[out->head_count] = sizes[i].rows;
        out->head_us[out->head_count++] = median_of(sizes[i].head_us, sizes[i].head_count);
    }
}

enum status backend_measure(const struct backend_ops *ops, struct backend_batch *batch, const struct model_shape *shape,
                            uint32_t max_rows, uint32_t max_sampled, uint32_t max_layers, uint64_t limit_us,
                            struct backend_times *out, struct error *error)
{
    const struct sampler_params greedy = {.top_p = 1, .repetition_penalty = 1};
    struct bench bench = {.ops = ops, .batch = batch, .shape = shape, .layers_most = max_layers}, *b = &bench;
    struct size sizes[SIZES_MAX];
    uint32_t size_count = 0;
    enum status status = STATUS_OK;

    max_sampled = MIN(max_sampled, max_rows);
    b->rows = calloc(max_rows, sizeof *b->rows);
    b->o = calloc(max_rows, sizeof *b->o);
    b->nowhere = calloc(max_rows, sizeof *b->nowhere);
    b->zeros = calloc((size_t)shape->heads * shape->head_dim, sizeof *b->zeros);
    b->index = calloc(max_sampled, sizeof *b->index);
    b->samples = calloc(max_sampled, sizeof *b->samples);
    b->results = calloc(max_sampled, sizeof *b->results);
    if (!b->rows || !b->o || !b->nowhere || !b->zeros || !b->index || !b->samples || !b->results)
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory to measure with");
    if (!status)
        status = sampler_open(&greedy, shape->vocab, 1, &b->sampler, error);
    if (!status) {
        for (uint32_t i = 0; i < max_rows; i++) {
            b->rows[i] = (struct backend_row){.needs_output = true, .sequence = i + 1, .token = (17 + 31 * i) % shape->vocab};
            b->o[i] = b->zeros;
        }
        for (uint32_t i = 0; i < max_sampled; i++) {
            b->index[i] = i;
            b->samples[i] = (struct backend_sample){.sampler = b->sampler, .result = &b->results[i]};
        }
        status = measure(b, max_rows, max_sampled, limit_us, sizes, &size_count, error);
        if (!status)
            sum_up(sizes, size_count, out);
    }
    if (ops->end)
        ops->end(batch);
    sampler_close(b->sampler);
    free(b->rows), free(b->o), free(b->nowhere), free(b->zeros), free(b->index), free(b->samples), free(b->results);
    return status;
}

// --- rates of the CPU and its memory ---
//
// Each rate is measured on more bytes than caches hold, since weights and KV never fit there.

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

// --- attention in the device's pool ---
//
// A sequence's positions must be held before one attends to them, so the pool is filled as a
// prompt would fill it, but for the last layer alone: that one makes a position complete. What the other layers' pages hold does
// not matter to the time it takes to read them.
//
// Worked number: llama-7b has 16 KiB of K and V a token and layer: sixteen sequences of 1,024 tokens are 256 MiB of a layer, several
// times what the caches of a device hold, and 8 GiB of the pool.

enum { NEAR = 64, CHUNK = 64, CONTEXT_MIN = 128 };
#define LAYER_BYTES (256ull << 20) // of K and V in f16 that the sequences of one layer should be

struct attend_bench {
    const struct attend_measure *what;
    struct backend_row *rows; // [max_rows]
    uint32_t sequences, far;
    uint32_t next; // that it goes on with: sequences are taken in turn, so that none is in caches
};

static void wait_for(const struct attend_bench *b)
{
    while (!b->what->ops->done(b->what->batch)) {}
}

static enum status begin(struct attend_bench *b, uint32_t count, struct error *error)
{
    uint32_t bad;
    enum status status = b->what->ops->begin(b->what->batch, b->rows, count, &bad, error);
    if (!status)
        wait_for(b);
    return status;
}

// Rows of one sequence, or of as many, up to position `last`. Sequence ids begin with 1.
static void make_rows(struct attend_bench *b, uint32_t first, uint32_t count, uint32_t last, bool one)
{
    for (uint32_t i = 0; i < count; i++)
        b->rows[i] = (struct backend_row){.needs_output = true,
                                          .sequence = 1 + first + (one ? 0 : i),
                                          .token = (17 + 31 * i) % b->what->shape->vocab,
                                          .position = one ? last + 1 - count + i : last,
                                          .local = true};
}

// Fills as many sequences as were asked for, or as there is time for: two at least.
static enum status fill(struct attend_bench *b, uint32_t wanted, uint64_t until_us, struct error *error)
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
static enum status attend(void *user, uint32_t rows, uint32_t last, bool prefill, uint64_t limit_us, double *us,
                          struct error *error)
{
    struct attend_bench *b = user;
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

static enum status measure_pool(struct attend_bench *b, uint64_t limit_us, struct kv_costs *out, struct error *error)
{
    const struct kv_timing timing = {
        .settings = {.rows = b->sequences, .near = NEAR, .far = b->far, .chunk = CHUNK}, .attend = attend, .user = b};
    double unused;
    const uint64_t first_us = limit_us / 8;
    enum status status = attend(b, b->sequences, b->far - 1, false, first_us, &unused, error); // clocks come up

    return status ? status : kv_time(&timing, limit_us - first_us, out, error);
}

enum status backend_measure_attention(const struct attend_measure *what, uint64_t limit_us, struct kv_costs *out,
                                      struct error *error)
{
    struct attend_bench attend_bench = {.what = what}, *b = &attend_bench;
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
        status = measure_pool(b, limit_us / 2, out, error);
    for (uint32_t i = 0; i <= b->sequences; i++) // the last one's filling may have ended half-way
        what->ops->pool_release(what->backend, 1 + i);
    free(b->rows);
    return status;
}
