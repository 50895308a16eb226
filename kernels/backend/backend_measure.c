// backend_measure.c: see backend_measure.h.
#include "kernels/backend/backend_measure.h"

#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/median.h"

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

// What the passes of one size took.
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
