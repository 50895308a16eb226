/* cuda_segment.c: a segment of the forward pass as kernels and products queued on the mini-batch's stream; what is exchanged with
 * KV workers goes through pinned memory, before and behind them: cuda_compute is what a graph holds (cuda_graph.c). It runs on the padded
 * rows of the step (buckets.h). Padding rows begin as the embedding of token 0 at position 0; o is whatever an earlier step left there.
 * No row's result depends on another's, and theirs are read by nobody. */
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

static void finish_layer(struct backend_batch *batch, const struct cuda_layer *layer)
{
    const struct backend *backend = batch->backend;
    const struct model_shape *shape = &backend->shape;
    uint32_t rows = batch->padded_rows;

    gpu_narrow(backend->type, batch->att, (size_t)rows * backend->q_width, batch->wide_o, batch->stream);
    cuda_product(batch, &layer->o, batch->wide_o, rows, batch->x, false, true);
    if (layer->o_bias)
        gpu_add_bias(batch->x, layer->o_bias, rows, shape->hidden, batch->stream);
    gpu_rms_norm(backend->type, batch->x, NULL, layer->ffn_norm, shape->norm_epsilon, rows, shape->hidden, batch->h, batch->stream);
    cuda_product(batch, &layer->gate_up, batch->h, rows, batch->gate_up, true, false);
    gpu_silu_mul(backend->type, batch->gate_up, rows, shape->ffn, batch->act, batch->stream);
    cuda_product(batch, &layer->down, batch->act, rows, batch->x, false, true);
}

static void start_layer(struct backend_batch *batch, const struct cuda_layer *layer)
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

    gpu_rms_norm(backend->type, batch->x, NULL, layer->attn_norm, shape->norm_epsilon, batch->padded_rows, shape->hidden, batch->h,
                 batch->stream);
    cuda_product(batch, &layer->qkv, batch->h, batch->padded_rows, batch->qkv, false, false);
    gpu_rope(&rope, layer->q_bias, layer->k_bias, layer->v_bias, batch->padded_rows, batch->qkv, batch->stream);
}

void cuda_compute(struct backend_batch *batch, uint32_t s)
{
    const struct backend *backend = batch->backend;
    if (s > 0)
        finish_layer(batch, &backend->layers[s - 1]);
    if (s < backend->shape.layers)
        start_layer(batch, &backend->layers[s]);
}

void cuda_segment(struct backend_batch *batch, uint32_t s, const struct backend_links *links)
{
    const struct backend *backend = batch->backend;
    cuda_span_begin(batch, CUDA_SEGMENT, s);
    if (s > 0 && has_remote(batch)) {
        struct move_job job = {batch, links};
        thread_pool_run(backend->config.pool, gather_thread, &job);
        each_run(batch, copy_o);
    }
    if (!cuda_graph_launch(batch, s))
        cuda_compute(batch, s);
    if (s < backend->shape.layers && has_remote(batch)) {
        each_run(batch, copy_qkv);
        batch->scatter = links;
    }
    cuda_span_end(batch, CUDA_SEGMENT, s);
    cuda_queued(batch, "starting a segment");
}
