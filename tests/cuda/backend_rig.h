/* backend_rig.h: the CUDA backend on a tiny model, for tests that compare bytes: one mini-batch of any configuration, steps of rows that
 * are local or a worker's (who answers with o = q), and everything a step gave. On the emulated device or a real one. */
#ifndef FD_TESTS_CUDA_BACKEND_RIG_H
#define FD_TESTS_CUDA_BACKEND_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/checked.h"
#include "kernels/backend/device.h"
#include "kernels/cuda/cuda.h"
#include "kernels/dispatch/kernels.h"
#include "tests/unit/gguf_build.h"

extern const struct device_library fastdecode_device;

enum { RIG_ROWS_MAX = 320 };

static struct model *rig_model;
static struct thread_pool *rig_pool;

struct rig {
    struct backend *backend;
    struct backend_batch *batch;
    uint32_t max_rows, q_width, kv_width;
    const float *o[RIG_ROWS_MAX];
    float *q[RIG_ROWS_MAX], *k[RIG_ROWS_MAX], *v[RIG_ROWS_MAX];
    float *memory;       /* of q, k, v: [max_rows][q_width + 2 kv_width] */
    float *logits;       /* [max_rows][vocab] */
    unsigned char *sent; /* what workers were sent in the last step, of all layers, one after the other */
    size_t sent_bytes;
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

static inline void rig_open(struct rig *rig, struct backend_config config, uint32_t pages)
{
    const struct model_shape *shape = &rig_model->shape;
    struct backend_plan plan;
    struct error error;

    assert_true(config.max_rows <= RIG_ROWS_MAX);
    *rig = (struct rig){
        .max_rows = config.max_rows, .q_width = shape->heads * shape->head_dim, .kv_width = shape->kv_heads * shape->head_dim};
    assert_int_equal(fastdecode_device.ops->plan(&config, &plan, &error), STATUS_OK);
    config.local_pool_bytes = pages * plan.pool_page_bytes;
    if (fastdecode_device.ops->open(&config, &rig->backend, &error) ||
        fastdecode_device.ops->batch_open(rig->backend, &rig->batch, &error))
        fail_msg("%s", error.text);
    const size_t width = rig->q_width + 2 * (size_t)rig->kv_width;
    rig->memory = calloc(config.max_rows * width, sizeof *rig->memory);
    rig->logits = calloc((size_t)config.max_rows * shape->vocab, sizeof *rig->logits);
    rig->sent = calloc(config.max_rows * width * shape->layers, sizeof(float));
    for (uint32_t row = 0; row < config.max_rows; row++) {
        rig->q[row] = rig->memory + row * width, rig->o[row] = rig->q[row];
        rig->k[row] = rig->q[row] + rig->q_width, rig->v[row] = rig->k[row] + rig->kv_width;
    }
}

static inline void rig_close(struct rig *rig)
{
    fastdecode_device.ops->batch_close(rig->batch);
    fastdecode_device.ops->close(rig->backend);
    free(rig->memory), free(rig->logits), free(rig->sent);
}

static inline void rig_wait(const struct rig *rig)
{
    while (!fastdecode_device.ops->done(rig->batch)) {}
}

/* A step through all layers and the head, for all its rows. */
static inline void rig_step(struct rig *rig, const struct backend_row *rows, uint32_t count)
{
    const struct backend_ops *ops = fastdecode_device.ops;
    const struct backend_links links = {rig->o, rig->q, rig->k, rig->v};
    const uint32_t vocab = rig_model->shape.vocab, layers = rig_model->shape.layers;
    const size_t sent_bytes = (rig->q_width + 2 * (size_t)rig->kv_width) * sizeof(float);
    struct backend_sample samples[RIG_ROWS_MAX];
    struct sampler_result results[RIG_ROWS_MAX];
    uint32_t index[RIG_ROWS_MAX], bad;
    struct error error;

    if (ops->begin(rig->batch, rows, count, &bad, &error))
        fail_msg("row %u: %s", bad, error.text);
    rig->sent_bytes = 0;
    for (uint32_t s = 0; s <= layers; s++) {
        ops->segment(rig->batch, s, &links);
        rig_wait(rig);
        for (uint32_t row = 0; s < layers && row < count; row++)
            if (!rows[row].local && rig->q[row]) {
                memcpy(rig->sent + rig->sent_bytes, rig->q[row], sent_bytes);
                rig->sent_bytes += sent_bytes;
            }
        if (s < layers)
            ops->attend(rig->batch, s);
    }
    for (uint32_t row = 0; row < count; row++) {
        index[row] = row;
        samples[row] = (struct backend_sample){
            .token = 7, .top_count = 2, .result = &results[row], .logits = rig->logits + (size_t)row * vocab};
    }
    ops->head(rig->batch, index, samples, count);
    rig_wait(rig);
}

/* Model and threads; nonzero: there is no device, or it failed. */
static inline int rig_begin(unsigned char **bytes, bool *skipped)
{
    struct gguf_build build = {0};
    struct tiny_llama tiny = TINY_LLAMA;
    struct error error;
    char name[200];
    size_t count;

    *bytes = NULL;
    if ((*skipped = fastdecode_device.probe(0, name, sizeof name, &error) != STATUS_OK)) {
        printf("%s: skipped\n", error.text);
        return 1;
    }
    gguf_build_llama(&build, &tiny);
    *bytes = gguf_build_finish(&build, &count);
    return kernels_init(NULL, &error) || model_open_memory("tiny.gguf", *bytes, count, &rig_model, &error) ||
           thread_pool_open(2, &rig_pool);
}

static inline void rig_end(unsigned char *bytes)
{
    thread_pool_close(rig_pool);
    model_close(rig_model);
    free(bytes);
}

#endif
