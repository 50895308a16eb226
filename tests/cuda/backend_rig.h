/* backend_rig.h: a backend with the rig's model (device_rig.h), the device's or the CPU's beside it: a mini-batch of any configuration,
 * steps of rows that are local or a worker's (who answers with o = q), and everything a step gave.
 */
#ifndef FD_TESTS_CUDA_BACKEND_RIG_H
#define FD_TESTS_CUDA_BACKEND_RIG_H

#include "tests/cuda/device_rig.h"

enum { RIG_ROWS_MAX = 320 };

struct rig {
    const struct backend_ops *ops;
    struct backend *backend;
    struct backend_batch *batch;
    bool joined; /* the backend is another rig's */
    uint32_t max_rows, q_width, kv_width;
    const float *o[RIG_ROWS_MAX];
    float *q[RIG_ROWS_MAX], *k[RIG_ROWS_MAX], *v[RIG_ROWS_MAX];
    struct backend_links links; /* to these */
    float *memory;              /* of q, k, v: [max_rows][q_width + 2 kv_width] */
    unsigned char *sent;        /* what workers were sent in the last step, of all layers, one after the other */
    size_t sent_bytes;
    struct backend_sample samples[RIG_ROWS_MAX]; /* of the last head */
    struct sampler_result results[RIG_ROWS_MAX];
    float *logits; /* [max_rows][vocab], sample by sample */
};

static inline struct backend_config rig_config(uint32_t max_rows)
{
    return (struct backend_config){.model = rig_model,
                                   .pool = rig_pool,
                                   .max_rows = max_rows,
                                   .max_batches = 1,
                                   .context_tokens = rig_model->shape.context_length,
                                   .kv_type = 1,
                                   .page_tokens = GPU_PAGE_TOKENS,
                                   .max_sequences = 64};
}

static inline void rig_open_batch(struct rig *rig, const struct backend_ops *ops, struct backend *backend, uint32_t max_rows)
{
    const struct model_shape *shape = &rig_model->shape;
    struct error error;

    assert_true(max_rows <= RIG_ROWS_MAX);
    *rig = (struct rig){.ops = ops,
                        .backend = backend,
                        .max_rows = max_rows,
                        .q_width = shape->heads * shape->head_dim,
                        .kv_width = shape->kv_heads * shape->head_dim,
                        .links = {rig->o, rig->q, rig->k, rig->v}};
    if (ops->batch_open(backend, &rig->batch, &error))
        fail_msg("%s", error.text);
    const size_t width = rig->q_width + 2 * (size_t)rig->kv_width;
    rig->memory = calloc(max_rows * width, sizeof *rig->memory);
    rig->logits = calloc((size_t)max_rows * shape->vocab, sizeof *rig->logits);
    rig->sent = calloc(max_rows * width * shape->layers, sizeof(float));
    assert_true(rig->memory && rig->logits && rig->sent);
    for (uint32_t row = 0; row < max_rows; row++) {
        rig->q[row] = rig->memory + row * width, rig->o[row] = rig->q[row];
        rig->k[row] = rig->q[row] + rig->q_width, rig->v[row] = rig->k[row] + rig->kv_width;
    }
}

/* With a local pool of so many pages. The CPU computes in f32: it is what the others are compared with. */
static inline void rig_open(struct rig *rig, const struct backend_ops *ops, struct backend_config config, uint32_t pages)
{
    struct backend_plan plan;
    struct backend *backend;
    struct error error;

    if (ops == &backend_cpu)
        config.compute = COMPUTE_F32;
    assert_int_equal(ops->plan(&config, &plan, &error), STATUS_OK);
    config.local_pool_bytes = pages * plan.pool_page_bytes;
    assert_int_equal(ops->plan(&config, &plan, &error), STATUS_OK);
    assert_int_equal(plan.pool_pages, pages);
    if (ops->open(&config, &backend, &error))
        fail_msg("%s", error.text);
    rig_open_batch(rig, ops, backend, config.max_rows);
}

/* Another mini-batch of its backend; to be closed before it. */
static inline void rig_join(struct rig *rig, const struct rig *first)
{
    rig_open_batch(rig, first->ops, first->backend, first->max_rows);
    rig->joined = true;
}

static inline void rig_close(struct rig *rig)
{
    rig->ops->batch_close(rig->batch);
    if (!rig->joined)
        rig->ops->close(rig->backend);
    free(rig->memory), free(rig->logits), free(rig->sent);
}

static inline uint64_t rig_pages_used(const struct rig *rig)
{
    struct backend_info info;
    rig->ops->info(rig->backend, &info);
    return info.pages_used;
}

/* --- steps ----------------------------------------------------------------------------------------------------------------- */

/* Rows of one sequence from position `first` on, behind the `at` rows that there are; returns how many there are then. */
static inline uint32_t rig_rows(struct backend_row *rows, uint32_t at, uint64_t sequence, uint32_t first, uint32_t count,
                                bool local)
{
    for (uint32_t i = 0; i < count; i++)
        rows[at + i] = (struct backend_row){.needs_output = true,
                                            .sequence = sequence,
                                            .token = (uint32_t)(sequence * 37 + (first + i) * 11) % 300 + 5,
                                            .position = first + i,
                                            .local = local};
    return at + count;
}

static inline void rig_wait(const struct rig *rig)
{
    while (!rig->ops->done(rig->batch)) {}
}

static inline void rig_begin_step(struct rig *rig, const struct backend_row *rows, uint32_t count)
{
    struct error error;
    uint32_t bad;

    if (rig->ops->begin(rig->batch, rows, count, &bad, &error))
        fail_msg("row %u: %s", bad, error.text);
}

/* Asks for the logits of some rows; not waited for. */
static inline void rig_head(struct rig *rig, const uint32_t *row_index, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        rig->samples[i] = (struct backend_sample){
            .token = 7, .top_count = 2, .result = &rig->results[i], .logits = rig->logits + (size_t)i * rig_model->shape.vocab};
    rig->ops->head(rig->batch, row_index, rig->samples, count);
}

/* A step through all layers; of its attention the last may still be under way. */
static inline void rig_layers(struct rig *rig, const struct backend_row *rows, uint32_t count)
{
    const size_t bytes = (rig->q_width + 2 * (size_t)rig->kv_width) * sizeof(float);
    const uint32_t layers = rig_model->shape.layers;

    rig_begin_step(rig, rows, count);
    rig->sent_bytes = 0;
    for (uint32_t s = 0; s <= layers; s++) {
        rig->ops->segment(rig->batch, s, &rig->links);
        rig_wait(rig);
        for (uint32_t row = 0; s < layers && row < count; row++)
            if (!rows[row].local && rig->q[row]) {
                memcpy(rig->sent + rig->sent_bytes, rig->q[row], bytes);
                rig->sent_bytes += bytes;
            }
        if (s < layers)
            rig->ops->attend(rig->batch, s);
    }
}

/* And the head, for all its rows. */
static inline void rig_step(struct rig *rig, const struct backend_row *rows, uint32_t count)
{
    uint32_t index[RIG_ROWS_MAX];

    rig_layers(rig, rows, count);
    for (uint32_t row = 0; row < count; row++)
        index[row] = row;
    rig_head(rig, index, count);
    rig_wait(rig);
}

/* A step of local rows with the head of the last one, queued as a whole: not waited for. */
static inline void rig_queue(struct rig *rig, const struct backend_row *rows, uint32_t count)
{
    const uint32_t last = count - 1;

    rig_begin_step(rig, rows, count);
    for (uint32_t s = 0; s <= rig_model->shape.layers; s++) {
        rig->ops->segment(rig->batch, s, &rig->links);
        if (s < rig_model->shape.layers)
            rig->ops->attend(rig->batch, s);
    }
    rig_head(rig, &last, 1);
}

/* The logits of `count` samples beside another's; returns the largest difference. */
static inline float rig_near(const struct rig *got, const struct rig *want, uint32_t count, float limit)
{
    float largest = 0;

    for (size_t i = 0; i < (size_t)count * rig_model->shape.vocab; i++) {
        near(got->logits[i], (double)want->logits[i], (double)limit);
        largest = fmaxf(largest, fabsf(got->logits[i] - want->logits[i]));
    }
    return largest;
}

#endif
