/* cuda_head.c: final norm and output projection on the device, a block of CUDA_HEAD_ROWS rows at a time; logits come down and are
 * sampled or scored by the host's threads, with the code of the CPU backend's. */
#include <string.h>

#include "common/base/checked.h"
#include "kernels/cuda/cuda.h"

struct sample_job {
    struct backend_batch *batch;
    const struct backend_sample *samples;
    uint32_t count;
};

static void sample_thread(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    struct sample_job *job = arg;
    struct backend *backend = job->batch->backend;
    uint32_t vocab = backend->shape.vocab, item;

    (void)thread_count;
    while ((item = thread_pool_claim(backend->config.pool)) < job->count)
        backend_sample_row(&job->samples[item], job->batch->logits_host + (size_t)item * vocab, vocab,
                           backend->scratch[thread_index]);
}

static void head_block(struct backend_batch *batch, const uint32_t *row_index, const struct backend_sample *samples, uint32_t count)
{
    const struct backend *backend = batch->backend;
    const struct model_shape *shape = &backend->shape;
    struct sample_job job = {batch, samples, count};

    memcpy(batch->index_host, row_index, count * sizeof *row_index);
    cuda_must(cudaMemcpyAsync(batch->index, batch->index_host, count * sizeof *row_index, cudaMemcpyHostToDevice, batch->stream),
              "copying row numbers to the device");
    gpu_rms_norm(backend->type, batch->x, batch->index, backend->output_norm, shape->norm_epsilon, count, shape->hidden, batch->h,
                 batch->stream);
    cuda_product(batch, &backend->output, batch->h, count, batch->logits, false, false);
    cuda_must(cudaMemcpyAsync(batch->logits_host, batch->logits, (size_t)count * shape->vocab * sizeof(float),
                              cudaMemcpyDeviceToHost, batch->stream),
              "copying logits from the device");
    cuda_queued(batch, "starting the head");
    cuda_must(cudaStreamSynchronize(batch->stream), "the head");
    thread_pool_run(backend->config.pool, sample_thread, &job);
}

void cuda_head(struct backend_batch *batch, const uint32_t *row_index, const struct backend_sample *samples, uint32_t count)
{
    uint32_t block = MIN((uint32_t)CUDA_HEAD_ROWS, batch->backend->config.max_rows);
    for (uint32_t begin = 0; begin < count; begin += block)
        head_block(batch, row_index + begin, samples + begin, MIN(block, count - begin));
}
