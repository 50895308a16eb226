/* backend_measure.c: see backend_measure.h. */
#include "kernels/backend/backend_measure.h"

#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/clock.h"

enum { PASSES_MAX = 15, SIZES_MAX = 10 };

struct bench {
    const struct backend_ops *ops;
    struct backend_batch *batch;
    const struct model_shape *shape;
    struct backend_row *rows;       /* [max_rows] */
    const float **o;                /* [max_rows] -> zeros */
    float **nowhere;                /* [max_rows] NULL: q, k and v are not wanted */
    float *zeros;                   /* [heads][head_dim] */
    uint32_t *index;                /* [max_sampled] */
    struct backend_sample *samples; /* [max_sampled] */
    struct sampler_result *results; /* [max_sampled] */
    struct sampler *sampler;
    uint32_t layers; /* that a pass runs */
};

static int ascending(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static double median(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, ascending);
    return values[count / 2];
}

/* A layer's time in a pass of `rows` rows; its share of a step's beginning is in it. */
static enum status layer_pass(struct bench *b, uint32_t rows, double *us, struct error *error)
{
    const struct backend_links links = {.o = b->o, .q = b->nowhere, .k = b->nowhere, .v = b->nowhere};
    uint32_t bad_row;
    uint64_t began_ns = clock_now_ns();
    enum status status = b->ops->begin(b->batch, b->rows, rows, &bad_row, error);

    if (status)
        return status;
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

static enum status head_pass(struct bench *b, uint32_t rows, double *us, struct error *error)
{
    uint64_t began_ns = clock_now_ns();
    (void)error;
    b->ops->head(b->batch, b->index, b->samples, rows);
    while (!b->ops->done(b->batch)) {}
    *us = (double)(clock_now_ns() - began_ns) * 1e-3;
    return STATUS_OK;
}

/* The median of as many passes as fit, after one that warms up if there is time; at least one. */
static enum status passes(struct bench *b, enum status (*pass)(struct bench *, uint32_t, double *, struct error *), uint32_t rows,
                          uint64_t limit_us, double *us, struct error *error)
{
    double times[PASSES_MAX];
    uint64_t until_us = clock_now_us() + limit_us;
    uint32_t count = 0;
    enum status status = pass(b, rows, &times[0], error);

    while (!status && count < PASSES_MAX && clock_now_us() < until_us)
        status = pass(b, rows, &times[count++], error);
    *us = median(times, MAX(count, 1u));
    return status;
}

static enum status measure(struct bench *b, uint32_t max_rows, uint32_t max_sampled, uint64_t limit_us, struct backend_times *out,
                           struct error *error)
{
    uint64_t until_us = clock_now_us() + limit_us;
    double share_us = (double)limit_us / SIZES_MAX / 2; /* of a size's layers, and of its head */
    double layer_us = 0, head_us = 0;
    enum status status = STATUS_OK;

    *out = (struct backend_times){0};
    for (uint32_t rows = 1; !status && rows <= max_rows && out->layer_count < BACKEND_POINTS_MAX; rows *= 2) {
        double left_us = (double)until_us - (double)clock_now_us(), whole = b->shape->layers > 1 ? b->shape->layers - 1 : 1;
        if (layer_us > 0 && 2 * 2 * layer_us > left_us)
            break;
        b->layers = layer_us > 0 ? (uint32_t)MAX(MIN(share_us / 4 / (2 * layer_us), whole), 1) : 1;
        if ((status = passes(b, layer_pass, rows, (uint64_t)share_us, &layer_us, error)))
            break;
        if (rows == 1 && layer_us * 8 * whole < share_us) { /* now it is known what one takes: all of them, as in a step */
            b->layers = (uint32_t)whole;
            status = passes(b, layer_pass, rows, (uint64_t)share_us, &layer_us, error);
        }
        out->layer_rows[out->layer_count] = rows;
        out->layer_us[out->layer_count++] = layer_us;
        if (status || rows > max_sampled || (head_us > 0 && 2 * 2 * head_us > (double)until_us - (double)clock_now_us()))
            continue;
        status = passes(b, head_pass, rows, (uint64_t)share_us, &head_us, error);
        out->head_rows[out->head_count] = rows;
        out->head_us[out->head_count++] = head_us;
    }
    return status;
}

enum status backend_measure(const struct backend_ops *ops, struct backend_batch *batch, const struct model_shape *shape,
                            uint32_t max_rows, uint32_t max_sampled, uint64_t limit_us, struct backend_times *out,
                            struct error *error)
{
    const struct sampler_params greedy = {.top_p = 1, .repetition_penalty = 1};
    struct bench bench = {.ops = ops, .batch = batch, .shape = shape}, *b = &bench;
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
            b->rows[i] = (struct backend_row){.sequence = i + 1, .token = (17 + 31 * i) % shape->vocab};
            b->o[i] = b->zeros;
        }
        for (uint32_t i = 0; i < max_sampled; i++) {
            b->index[i] = i;
            b->samples[i] = (struct backend_sample){.sampler = b->sampler, .result = &b->results[i]};
        }
        status = measure(b, max_rows, max_sampled, limit_us, out, error);
    }
    sampler_close(b->sampler);
    free(b->rows), free(b->o), free(b->nowhere), free(b->zeros), free(b->index), free(b->samples), free(b->results);
    return status;
}
