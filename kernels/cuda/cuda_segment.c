/* cuda_segment.c: a segment of the forward pass as kernels and products queued on the mini-batch's stream; what is exchanged with
 * KV workers goes through pinned memory. */
#include <string.h>

#include "common/base/checked.h"
#include "kernels/cuda/cuda.h"

enum { ROWS_A_CLAIM = 8 };

struct move_job {
    struct backend_batch *batch;
    const struct backend_links *links;
};

/* Runs of rows that are not local: calls `move` for each. */
static void each_run(struct backend_batch *batch, void (*move)(struct backend_batch *batch, uint32_t first, uint32_t count))
{
    for (uint32_t row = 0, end; row < batch->row_count; row = end) {
        bool local = batch->rows[row].local;
        for (end = row + 1; end < batch->row_count && batch->rows[end].local == local;)
            end++;
        if (!local)
            move(batch, row, end - row);
    }
}

static bool has_remote(const struct backend_batch *batch) { return batch->local_count < batch->row_count; }

/* --- o of the workers' rows: up ---------------------------------------------------------------------------------------- */

static void gather_thread(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    struct move_job *job = arg;
    struct backend_batch *batch = job->batch;
    size_t width = batch->backend->q_width;

    (void)thread_index, (void)thread_count;
    for (uint32_t first; (first = thread_pool_claim(batch->backend->config.pool) * ROWS_A_CLAIM) < batch->row_count;)
        for (uint32_t row = first; row < MIN(first + ROWS_A_CLAIM, batch->row_count); row++)
            if (!batch->rows[row].local)
                memcpy(batch->o_host + row * width, job->links->o[row], width * sizeof(float));
}

static void copy_o(struct backend_batch *batch, uint32_t first, uint32_t count)
{
    size_t width = batch->backend->q_width;
    cuda_must(cudaMemcpyAsync(batch->att + first * width, batch->o_host + first * width, count * width * sizeof(float),
                              cudaMemcpyHostToDevice, batch->stream),
              "copying o to the device");
}

/* --- q, k, v of the workers' rows: down, then out ------------------------------------------------------------------------ */

static void copy_qkv(struct backend_batch *batch, uint32_t first, uint32_t count)
{
    size_t width = batch->backend->qkv_width;
    cuda_must(cudaMemcpyAsync(batch->qkv_host + first * width, batch->qkv + first * width, count * width * sizeof(float),
                              cudaMemcpyDeviceToHost, batch->stream),
              "copying q, k, v from the device");
}

static void hand_out_thread(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    struct move_job *job = arg;
    const struct backend *backend = job->batch->backend;
    size_t q_bytes = backend->q_width * sizeof(float), kv_bytes = backend->kv_width * sizeof(float);

    (void)thread_index, (void)thread_count;
    for (uint32_t first; (first = thread_pool_claim(backend->config.pool) * ROWS_A_CLAIM) < job->batch->row_count;)
        for (uint32_t row = first; row < MIN(first + ROWS_A_CLAIM, job->batch->row_count); row++) {
            const float *q = job->batch->qkv_host + (size_t)row * backend->qkv_width;
            if (job->batch->rows[row].local || !job->links->q[row])
                continue;
            memcpy(job->links->q[row], q, q_bytes);
            memcpy(job->links->k[row], q + backend->q_width, kv_bytes);
            memcpy(job->links->v[row], q + backend->q_width + backend->kv_width, kv_bytes);
        }
}

void cuda_hand_out(struct backend_batch *batch)
{
    struct move_job job = {batch, batch->scatter};
    batch->scatter = NULL;
    thread_pool_run(batch->backend->config.pool, hand_out_thread, &job);
}

/* --- layers ------------------------------------------------------------------------------------------------------------ */

static void finish_layer(struct backend_batch *batch, const struct cuda_layer *layer, const struct backend_links *links)
{
    const struct backend *backend = batch->backend;
    const struct model_shape *shape = &backend->shape;
    uint32_t rows = batch->row_count;

    if (has_remote(batch)) {
        struct move_job job = {batch, links};
        thread_pool_run(backend->config.pool, gather_thread, &job);
        each_run(batch, copy_o);
    }
    gpu_narrow(backend->type, batch->att, (size_t)rows * backend->q_width, batch->wide_o, batch->stream);
    cuda_product(batch, &layer->o, batch->wide_o, rows, batch->x, false, true);
    if (layer->o_bias)
        gpu_add_bias(batch->x, layer->o_bias, rows, shape->hidden, batch->stream);
    gpu_rms_norm(backend->type, batch->x, NULL, layer->ffn_norm, shape->norm_epsilon, rows, shape->hidden, batch->h, batch->stream);
    cuda_product(batch, &layer->gate_up, batch->h, rows, batch->gate_up, true, false);
    gpu_silu_mul(backend->type, batch->gate_up, rows, shape->ffn, batch->act, batch->stream);
    cuda_product(batch, &layer->down, batch->act, rows, batch->x, false, true);
}

static void start_layer(struct backend_batch *batch, const struct cuda_layer *layer, const struct backend_links *links)
{
    const struct backend *backend = batch->backend;
    const struct model_shape *shape = &backend->shape;
    const struct gpu_rope rope = {
        .table = backend->rope_table,
        .position = batch->words + backend->config.max_rows,
        .heads = shape->heads,
        .kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
        .dims = shape->rope_dim,
        .neox = shape->rope_style == ROPE_NEOX,
    };

    gpu_rms_norm(backend->type, batch->x, NULL, layer->attn_norm, shape->norm_epsilon, batch->row_count, shape->hidden, batch->h,
                 batch->stream);
    cuda_product(batch, &layer->qkv, batch->h, batch->row_count, batch->qkv, false, false);
    gpu_rope(&rope, layer->q_bias, layer->k_bias, layer->v_bias, batch->row_count, batch->qkv, batch->stream);
    if (has_remote(batch)) {
        each_run(batch, copy_qkv);
        batch->scatter = links;
    }
}

void cuda_segment(struct backend_batch *batch, uint32_t s, const struct backend_links *links)
{
    const struct backend *backend = batch->backend;
    if (s > 0)
        finish_layer(batch, &backend->layers[s - 1], links);
    if (s < backend->shape.layers)
        start_layer(batch, &backend->layers[s], links);
    cuda_queued(batch, "starting a segment");
}
