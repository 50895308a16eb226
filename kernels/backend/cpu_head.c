// cpu_head.c: final norm, output projection, sampling and scoring, for blocks of CPU_HEAD_ROWS rows.
//
// The rows wanted are gathered into h, so that the product is over them alone. The output projection is the largest
// matrix of a small model (49,152 x 576 here: as much as eight layers), hence never computed for a row nobody asked for.
#include <string.h>

#include "common/base/checked.h"
#include "kernels/backend/cpu_internal.h"

struct hidden_job {
    struct backend_batch *batch;
    const uint32_t *row_index;
    float *out; // [count][hidden]
    uint32_t count;
};

struct head_job {
    struct backend_batch *batch;
    const uint32_t *row_index;
    const struct backend_sample *samples;
    uint32_t count;
};

void backend_sample_row(const struct backend_sample *sample, const float *logits, uint32_t vocab, struct sampler_scratch *scratch)
{
    if (sample->logits)
        memcpy(sample->logits, logits, vocab * sizeof *logits);
    if (sample->sampler)
        sampler_sample(sample->sampler, logits, sample->allowed, sample->index, scratch, sample->result);
    else
        sampler_score(logits, vocab, sample->token, sample->top_count, scratch, sample->result);
}

static void finish_logits(const struct model_shape *shape, float *logits)
{
    if (shape->logit_scale != 1)
        kernels->scale(logits, shape->logit_scale, shape->vocab);
    if (shape->logit_soft_cap > 0)
        kernels->soft_cap(logits, shape->logit_soft_cap, shape->vocab);
}

static void head_thread(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    struct head_job *job = arg;
    struct backend_batch *batch = job->batch;
    struct backend *backend = batch->backend;
    uint32_t hidden = backend->shape.hidden, vocab = backend->shape.vocab, item;
    const struct cpu_product product = {.linear = &backend->output,
                                        .in = batch->h,
                                        .in_stride = hidden,
                                        .out = backend->logits,
                                        .out_stride = vocab,
                                        .store = GEMM_SET};
    struct quantized_rows x;

    (void)thread_count;
    quantized_rows_init(&x, batch->quant, backend->config.max_rows, hidden);
    quantized_rows_source(&x, batch->h, hidden);
    while ((item = thread_pool_claim(backend->config.pool)) < job->count) {
        backend->pieces.norm(batch->x + (size_t)batch->place[job->row_index[item]] * hidden, backend->output_norm.weight,
                             backend->output_norm.bias, backend->shape.norm_epsilon, hidden, batch->h + (size_t)item * hidden);
        if (backend->sections.quantized)
            kernels->quantize_rows(&x, item, 1);
    }
    thread_pool_barrier(backend->config.pool);
    cpu_products(backend, &product, 1, job->count, batch->quant, backend->config.max_rows, thread_index, NULL);
    while ((item = thread_pool_claim(backend->config.pool)) < job->count) {
        finish_logits(&backend->shape, backend->logits + (size_t)item * vocab);
        backend_sample_row(&job->samples[item], backend->logits + (size_t)item * vocab, vocab, backend->scratch[thread_index]);
    }
}

static void hidden_thread(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    const struct hidden_job *job = arg;
    const struct backend_batch *batch = job->batch;
    const struct backend *backend = batch->backend;
    const uint32_t hidden = backend->shape.hidden;
    uint32_t item;

    (void)thread_index;
    (void)thread_count;
    while ((item = thread_pool_claim(backend->config.pool)) < job->count)
        backend->pieces.norm(batch->x + (size_t)batch->place[job->row_index[item]] * hidden, backend->output_norm.weight,
                             backend->output_norm.bias, backend->shape.norm_epsilon, hidden, job->out + (size_t)item * hidden);
}

void cpu_hidden(struct backend_batch *batch, const uint32_t *row_index, float *out, uint32_t count)
{
    struct hidden_job job = {.batch = batch, .row_index = row_index, .out = out, .count = count};

    assert_always(batch->backend->range.is_last);
    thread_pool_run(batch->backend->config.pool, hidden_thread, &job);
}

void cpu_head(struct backend_batch *batch, const uint32_t *row_index, const struct backend_sample *samples, uint32_t count)
{
    uint32_t block = MIN((uint32_t)CPU_HEAD_ROWS, batch->backend->config.max_rows);
    assert_always(batch->backend->range.is_last);
    for (uint32_t begin = 0; begin < count; begin += block) {
        struct head_job job = {
            .batch = batch, .row_index = row_index + begin, .samples = samples + begin, .count = MIN(block, count - begin)};
        thread_pool_run(batch->backend->config.pool, head_thread, &job);
    }
}
