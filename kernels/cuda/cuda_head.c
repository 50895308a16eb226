// cuda_head.c: final norm, output projection and sampling, queued as a whole: what is asked goes up in one copy, blocks of CUDA_HEAD_ROWS
// rows follow each other through one buffer of logits, what was drawn comes down in one copy, and `done` hands it out.
//
//     head_host ─copy▶ head      norm ▶ product ▶ logits ▶ sample.cu ▶ sampled ─copy▶ sampled_host ─done▶ samples[].result
//                                                   └─copy▶ logits_host ─done▶ samples[].logits, or drawn by the host
//
// Logits come down for the rows that want to see them, for those with a mask or with steps of the sampler that the device does not have
// (sampler_is_simple()), and for those whose penalties and biases are more entries than there is room for (CUDA_ADJUST_MAX in a step: 1,024
// for each of 256 rows); these are drawn by the host's threads, with the code of the CPU backend.
// There is room for CUDA_LOGITS_ROWS such rows; if there are more, head waits for the first ones before it goes on. That is its only wait.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "kernels/cuda/cuda.h"
#include "kernels/dispatch/kernels.h"
#include "kernels/quant/dequant.h"

enum { ASKED_ALIGN = 16 };
_Static_assert((int)GPU_SAMPLE_TOP == (int)SAMPLER_TOP_LOGPROBS_MAX, "the device finds as many as may be asked for");

// The layout of head_host and head: three arrays one after the other, as long as the step needs.
struct cuda_asked {
    uint32_t *index;           // [count]
    struct gpu_sample *sample; // [count]
    struct gpu_adjust *adjust; // [adjust_count]
};

static uint64_t aligned(uint64_t bytes) { return (bytes + ASKED_ALIGN - 1) / ASKED_ALIGN * ASKED_ALIGN; }

static struct cuda_asked asked_at(unsigned char *at, uint32_t count)
{
    struct cuda_asked asked = {.index = (uint32_t *)(void *)at};
    at += aligned(count * sizeof *asked.index);
    asked.sample = (struct gpu_sample *)(void *)at;
    at += aligned(count * sizeof *asked.sample);
    asked.adjust = (struct gpu_adjust *)(void *)at;
    return asked;
}

uint64_t cuda_adjust_limit(const struct backend_config *config)
{
    return MIN((uint64_t)config->max_rows * ((uint64_t)config->context_tokens + SAMPLER_BIAS_MAX), (uint64_t)CUDA_ADJUST_MAX);
}

uint64_t cuda_head_bytes(const struct backend_config *config)
{
    return aligned(config->max_rows * sizeof(uint32_t)) + aligned(config->max_rows * sizeof(struct gpu_sample)) +
           cuda_adjust_limit(config) * sizeof(struct gpu_adjust);
}

// --- what is asked, and what is answered ---

void cuda_ask(const struct backend_sample *sample, uint32_t vocab, struct gpu_adjust *adjust, uint32_t *used, uint64_t limit,
              struct gpu_sample *out)
{
    const struct sampler_params *p;
    const struct sampler_seen *seen;
    uint32_t seen_count, at = *used;

    *out = (struct gpu_sample){.flags = GPU_SCORE, .token = sample->token, .top_count = MIN(sample->top_count, vocab)};
    assert_always(sample->top_count <= GPU_SAMPLE_TOP);
    if (!sample->sampler)
        return;
    p = sampler_params_of(sample->sampler);
    if (sample->allowed || !sampler_is_simple(sample->sampler, sample->index)) {
        out->flags = 0;
        return;
    }
    seen = sampler_seen_tokens(sample->sampler, &seen_count);
    *out = (struct gpu_sample){.top_p = p->top_p, .min_p = p->min_p, .top_k = p->top_k};
    if ((uint64_t)seen_count + p->bias_count > limit - at)
        return;
    out->flags = GPU_DRAW | (p->logprobs ? GPU_SCORE : 0);
    out->uniform = sampler_uniform(p->seed, p->choice, sample->index);
    out->scale = sampler_scale(p);
    out->top_count = p->logprobs ? MIN(p->top_logprobs, vocab) : 0;
    out->adjust_first = at, out->seen_count = seen_count, out->bias_count = p->bias_count;
    out->repetition_penalty = p->repetition_penalty;
    out->presence_penalty = p->presence_penalty;
    out->frequency_penalty = p->frequency_penalty;
    for (uint32_t i = 0; i < seen_count; i++, at++)
        adjust[at].token = seen[i].token, adjust[at].generated = seen[i].generated;
    for (uint32_t i = 0; i < p->bias_count; i++, at++)
        adjust[at].token = p->bias[i].token, adjust[at].bias = p->bias[i].bias;
    *used = at;
}

void cuda_answer(const struct gpu_sample *asked, const struct gpu_sampled *sampled, struct sampler_result *result)
{
    double log_total = asked->flags & GPU_SCORE ? log(sampled->total) + (double)sampled->max : 0;

    result->token = sampled->token;
    result->all_banned = false;
    result->logprob = asked->flags & GPU_SCORE ? (float)((double)sampled->logit - log_total) : 0;
    result->top_count = asked->top_count;
    for (uint32_t i = 0; i < asked->top_count; i++) {
        result->top[i].token = sampled->top[i].token;
        result->top[i].logprob = (float)((double)sampled->top[i].logit - log_total);
    }
}

// --- logits that came down ---

static void fetched_thread(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    struct backend_batch *batch = arg;
    struct backend *backend = batch->backend;
    uint32_t vocab = backend->shape.vocab, item;
    const struct cuda_asked asked = asked_at(batch->head_host, batch->sample_count);

    (void)thread_count;
    while ((item = thread_pool_claim(backend->config.pool)) < batch->fetched_count) {
        const struct backend_sample *sample = &batch->samples[batch->fetched[item]];
        const float *logits = batch->logits_host + (size_t)item * vocab;
        if (!asked.sample[batch->fetched[item]].flags)
            backend_sample_row(sample, logits, vocab, backend->scratch[thread_index]);
        else
            memcpy(sample->logits, logits, vocab * sizeof *logits);
    }
}

// Passes on the logits, which have come down.
static void hand_out_logits(struct backend_batch *batch)
{
    if (batch->fetched_count)
        thread_pool_run(batch->backend->config.pool, fetched_thread, batch);
    batch->fetched_count = 0;
}

static void fetch_logits(struct backend_batch *batch, uint32_t sample, const float *logits)
{
    uint32_t vocab = batch->backend->shape.vocab;

    if (batch->fetched_count == MIN((uint32_t)CUDA_LOGITS_ROWS, batch->backend->config.max_rows)) {
        cuda_must(cudaStreamSynchronize(batch->stream), "the head");
        hand_out_logits(batch);
    }
    cuda_must(cudaMemcpyAsync(batch->logits_host + (size_t)batch->fetched_count * vocab, logits, vocab * sizeof *logits,
                              cudaMemcpyDeviceToHost, batch->stream),
              "copying logits from the device");
    batch->fetched[batch->fetched_count++] = sample;
}

void cuda_hand_out_samples(struct backend_batch *batch)
{
    const struct cuda_asked asked = asked_at(batch->head_host, batch->sample_count);

    for (uint32_t i = 0; i < batch->sample_count; i++)
        if (asked.sample[i].flags)
            cuda_answer(&asked.sample[i], &batch->sampled_host[i], batch->samples[i].result);
    hand_out_logits(batch);
    batch->samples = NULL;
}

// --- the entry ---

static void head_block(struct backend_batch *batch, uint32_t begin, uint32_t count)
{
    const struct backend *backend = batch->backend;
    const struct model_shape *shape = &backend->shape;
    const struct cuda_asked host = asked_at(batch->head_host, batch->sample_count);
    const struct cuda_asked device = asked_at(batch->head, batch->sample_count);
    struct gpu_sampling sampling = {.logits = batch->logits,
                                    .rows = count,
                                    .vocab = shape->vocab,
                                    .samples = device.sample + begin,
                                    .adjust = device.adjust,
                                    .raw = batch->raw,
                                    .out = batch->sampled + begin};

    cuda_norm(batch, device.index + begin, &backend->output_norm, count);
    cuda_product(batch, &backend->output, batch->h, count, batch->logits, false, false);
    if (shape->logit_scale != 1 || shape->logit_soft_cap > 0)
        gpu_scale_logits(batch->logits, (size_t)count * shape->vocab, shape->logit_scale, shape->logit_soft_cap, batch->stream);
    for (uint32_t i = 0; i < count; i++) {
        const struct gpu_sample *asked = &host.sample[begin + i];
        if (!asked->flags || batch->samples[begin + i].logits)
            fetch_logits(batch, begin + i, batch->logits + (size_t)i * shape->vocab); // before they are adjusted
        sampling.flags |= asked->flags;
        sampling.adjusted |= asked->seen_count || asked->bias_count;
    }
    gpu_sample_rows(&sampling, batch->stream);
}

void cuda_head(struct backend_batch *batch, const uint32_t *row_index, const struct backend_sample *samples, uint32_t count)
{
    const struct backend_config *config = &batch->backend->config;
    const struct cuda_asked host = asked_at(batch->head_host, count);
    uint32_t block = MIN((uint32_t)CUDA_HEAD_ROWS, config->max_rows), adjust_count = 0;

    assert_always(count <= config->max_rows && !batch->samples && batch->backend->range.is_last);
    if (!count)
        return;
    batch->samples = samples;
    batch->sample_count = count;
    memcpy(host.index, row_index, count * sizeof *row_index);
    for (uint32_t i = 0; i < count; i++)
        cuda_ask(&samples[i], batch->backend->shape.vocab, host.adjust, &adjust_count, cuda_adjust_limit(config), &host.sample[i]);
    cuda_must(cudaMemcpyAsync(batch->head, batch->head_host,
                              (size_t)((unsigned char *)(host.adjust + adjust_count) - batch->head_host), cudaMemcpyHostToDevice,
                              batch->stream),
              "copying what to sample to the device");
    cuda_span_begin(batch, CUDA_HEAD, 0);
    for (uint32_t begin = 0; begin < count; begin += block)
        head_block(batch, begin, MIN(block, count - begin));
    cuda_must(
        cudaMemcpyAsync(batch->sampled_host, batch->sampled, count * sizeof *batch->sampled, cudaMemcpyDeviceToHost, batch->stream),
        "copying what was sampled from the device");
    cuda_span_end(batch, CUDA_HEAD, 0);
    cuda_queued(batch, "starting the head");
}

// --- hidden states behind the final norm, for prompts that are pooled ---
//
// x of the rows comes down as it is, in f32, and the host
// normalizes it once it has come, with the kernels of the CPU backend. So nothing of it is rounded to the type in which the device computes.

uint64_t cuda_hidden_bytes(const struct model_shape *shape) { return 3ull * shape->hidden * sizeof(float); }

static bool read_vector(const struct tensor_view *view, uint32_t count, float *out)
{
    unsigned char *buffer = view->stored ? malloc(view->bytes) : NULL;
    const void *values = view->stored && !buffer ? NULL : model_view_rows(view, 0, 1, buffer);

    if (values)
        dequantize(view->type, values, count, out);
    free(buffer);
    return values != NULL;
}

enum status cuda_hidden_open(struct backend *backend, struct error *error)
{
    const struct model *model = backend->config.model;
    const uint32_t hidden = backend->shape.hidden;
    struct cuda_hidden *out = &backend->hidden;

    if (!backend->range.is_last)
        return STATUS_OK;
    out->weight = calloc(3ull * hidden, sizeof *out->weight);
    if (!out->weight || !read_vector(&model->output_norm, hidden, out->weight))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for the final norm");
    out->bias = model->output_norm_bias.data ? out->weight + hidden : NULL;
    out->row = out->weight + 2ull * hidden;
    if (out->bias && !read_vector(&model->output_norm_bias, hidden, out->bias))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for the final norm");
    for (uint32_t i = 0; backend->shape.norm_plus_one && i < hidden; i++)
        out->weight[i] += 1;
    return STATUS_OK;
}

void cuda_hidden_close(struct backend *backend) { free(backend->hidden.weight); }

// Rows that follow one another, as those of a prompt do, come in one copy.
void cuda_hidden(struct backend_batch *batch, const uint32_t *row_index, float *out, uint32_t count)
{
    const size_t hidden = batch->backend->shape.hidden;

    assert_always(batch->backend->range.is_last && count <= batch->backend->config.max_rows);
    for (uint32_t i = 0, next; i < count; i = next) {
        for (next = i + 1; next < count && row_index[next] == row_index[next - 1] + 1; next++) {}
        cuda_must(cudaMemcpyAsync(out + i * hidden, batch->x + row_index[i] * hidden, (next - i) * hidden * sizeof *out,
                                  cudaMemcpyDeviceToHost, batch->stream),
                  "copying hidden states from the device");
    }
    batch->hidden = out;
    batch->hidden_count = count;
    cuda_queued(batch, "copying hidden states from the device");
}

void cuda_hand_out_hidden(struct backend_batch *batch)
{
    const struct backend *backend = batch->backend;
    const struct cuda_hidden *norm = &backend->hidden;
    const struct model_shape *shape = &backend->shape;

    for (uint32_t i = 0; i < batch->hidden_count; i++) {
        float *out = batch->hidden + (size_t)i * shape->hidden;
        memcpy(norm->row, out, shape->hidden * sizeof *out);
        if (shape->norm == NORM_LAYER)
            kernels->layer_norm(norm->row, norm->weight, norm->bias, shape->norm_epsilon, shape->hidden, out);
        else
            kernels->rms_norm(norm->row, norm->weight, shape->norm_epsilon, shape->hidden, out);
    }
    batch->hidden = NULL;
    batch->hidden_count = 0;
}
