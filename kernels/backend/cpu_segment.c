/* cpu_segment.c: a segment of the forward pass as one job of the thread pool.
 *
 * Phases are separated by barriers: [o: quantize | out-projection + residual | norm + quantize | gate, up, activation |
 * quantize | down + residual] of layer s-1, then [norm + quantize | q, k, v | RoPE and scatter] of layer s. Inside a phase
 * threads claim rows or tiles of 16 outputs; a value depends on its row alone, never on who computed it.
 *
 * Dense f32 products are left to OpenBLAS, called by thread 0 while the others wait at the barrier.
 */
#include <cblas.h>
#include <string.h>

#include "common/base/checked.h"
#include "kernels/backend/cpu.h"

struct segment_job {
    struct backend_batch *batch;
    uint32_t s;
    const struct backend_links *links;
};

/* Items of a phase, several at a claim so that the counter is touched rarely but a slow core still takes fewer. */
struct claim {
    struct thread_pool *pool;
    uint32_t item_count, grain, next, end;
};

static struct claim claim_begin(struct thread_pool *pool, uint32_t item_count, uint32_t grain_min)
{
    uint32_t shares = thread_pool_threads(pool) * 8;
    return (struct claim){pool, item_count, MAX(grain_min, item_count / shares), 0, 0};
}

/* The next range [begin, begin + *count); false when none is left. */
static bool claim_range(struct claim *claim, uint32_t *begin, uint32_t *count)
{
    uint64_t at = (uint64_t)thread_pool_claim(claim->pool) * claim->grain;
    if (at >= claim->item_count)
        return false;
    *begin = (uint32_t)at;
    *count = MIN(claim->grain, claim->item_count - (uint32_t)at);
    return true;
}

static void add_bias(const struct cpu_linear *linear, float *out, size_t stride, uint32_t rows, uint32_t column, uint32_t columns)
{
    if (!linear->bias)
        return;
    for (uint32_t row = 0; row < rows; row++)
        kernels->add(out + row * stride + column, linear->bias + column, columns);
}

static void product_dense(const struct cpu_product *p, uint32_t rows)
{
    const struct cpu_linear *w = p->linear;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)w->outputs, (int)w->inputs, 1.0f, p->in, (int)p->in_stride,
                w->dense, (int)w->inputs, p->store == GEMM_ADD ? 1.0f : 0.0f, p->out, (int)p->out_stride);
    add_bias(w, p->out, p->out_stride, rows, 0, w->outputs);
}

void cpu_products(struct backend *backend, const struct cpu_product *products, uint32_t product_count, uint32_t rows, void *quant,
                  uint32_t row_capacity, uint32_t thread_index)
{
    struct thread_pool *pool = backend->config.pool;
    uint32_t tile_total = 0;

    if (backend->dense) {
        for (uint32_t i = 0; thread_index == 0 && i < product_count; i++)
            product_dense(&products[i], rows);
        thread_pool_barrier(pool);
        return;
    }
    for (uint32_t i = 0; i < product_count; i++)
        tile_total += products[i].linear->packed.tile_count;
    struct claim claim = claim_begin(pool, tile_total, 1);
    for (uint32_t begin, count; claim_range(&claim, &begin, &count);) {
        for (uint32_t i = 0; count; i++) {
            const struct cpu_product *p = &products[i];
            const struct packed_matrix *w = &p->linear->packed;
            if (begin >= w->tile_count) { /* the range lies in a later matrix */
                begin -= w->tile_count;
                continue;
            }
            uint32_t take = MIN(count, w->tile_count - begin), column = begin * PACK_TILE_OUTPUTS;
            struct quantized_rows x;
            quantized_rows_init(&x, quant, row_capacity, w->k);
            quantized_rows_source(&x, p->in, p->in_stride);
            kernels->gemm(w, &x, 0, rows, begin, take, p->out, p->out_stride, p->store);
            add_bias(p->linear, p->out, p->out_stride, rows, column, MIN(take * PACK_TILE_OUTPUTS, w->output_count - column));
            begin = 0;
            count -= take;
        }
    }
    thread_pool_barrier(pool);
}

static void quantize(struct backend_batch *batch, const float *in, size_t stride, uint32_t inputs, uint32_t begin, uint32_t count)
{
    struct quantized_rows x;
    if (batch->backend->dense)
        return;
    quantized_rows_init(&x, batch->quant, batch->backend->config.max_rows, inputs);
    quantized_rows_source(&x, in, stride);
    kernels->quantize_rows(&x, begin, count);
}

/* x -> h, normed, and quantized. */
static void phase_norm(struct backend_batch *batch, const float *weight)
{
    const struct model_shape *shape = &batch->backend->shape;
    struct claim claim = claim_begin(batch->backend->config.pool, batch->row_count, 1);

    for (uint32_t begin, count; claim_range(&claim, &begin, &count);) {
        for (uint32_t row = begin; row < begin + count; row++)
            kernels->rms_norm(batch->x + (size_t)row * shape->hidden, weight, shape->norm_epsilon, shape->hidden,
                              batch->h + (size_t)row * shape->hidden);
        quantize(batch, batch->h, shape->hidden, shape->hidden, begin, count);
    }
    thread_pool_barrier(batch->backend->config.pool);
}

/* o of the attention -> quantized rows. What came from workers is read where it lies; only float products want it in
 * one matrix. */
static void phase_take_o(struct backend_batch *batch, const struct cpu_layer *layer, const struct backend_links *links)
{
    struct backend *backend = batch->backend;
    bool in_place = !backend->dense && layer->o.packed.group_count;
    struct claim claim = claim_begin(backend->config.pool, batch->row_count, 1);

    for (uint32_t begin, count; claim_range(&claim, &begin, &count);)
        for (uint32_t row = begin; row < begin + count; row++) {
            float *own = batch->att + (size_t)row * backend->q_width;
            const float *o = batch->rows[row].local ? own : links->o[row];
            if (!in_place && o != own)
                memcpy(own, o, backend->q_width * sizeof *own);
            if (in_place)
                quantize(batch, o, 0, backend->q_width, row, 1); /* stride 0: row `row` of it is `o` itself */
            else
                quantize(batch, batch->att, backend->q_width, backend->q_width, row, 1);
        }
    thread_pool_barrier(backend->config.pool);
}

/* gate, up -> gate = act(gate) * up. int8: a thread that computed a tile of both applies the activation at once. */
static void phase_gate_up(struct backend_batch *batch, const struct cpu_layer *layer, uint32_t thread_index)
{
    struct backend *backend = batch->backend;
    uint32_t ffn = backend->shape.ffn, rows = batch->row_count;

    if (backend->dense) {
        const struct cpu_product products[] = {
            {&layer->gate, batch->h, backend->shape.hidden, batch->gate, ffn, GEMM_SET},
            {&layer->up, batch->h, backend->shape.hidden, batch->up, ffn, GEMM_SET},
        };
        cpu_products(backend, products, 2, rows, batch->quant, backend->config.max_rows, thread_index);
        struct claim claim = claim_begin(backend->config.pool, rows, 1);
        for (uint32_t begin, count; claim_range(&claim, &begin, &count);)
            kernels->silu_mul(batch->gate + (size_t)begin * ffn, batch->up + (size_t)begin * ffn, count * ffn,
                              batch->gate + (size_t)begin * ffn);
        thread_pool_barrier(backend->config.pool);
        return;
    }
    struct quantized_rows x;
    quantized_rows_init(&x, batch->quant, backend->config.max_rows, backend->shape.hidden);
    quantized_rows_source(&x, batch->h, backend->shape.hidden);
    struct claim claim = claim_begin(backend->config.pool, layer->gate.packed.tile_count, 1);
    for (uint32_t begin, count; claim_range(&claim, &begin, &count);) {
        uint32_t column = begin * PACK_TILE_OUTPUTS, columns = MIN(count * PACK_TILE_OUTPUTS, ffn - column);
        kernels->gemm(&layer->gate.packed, &x, 0, rows, begin, count, batch->gate, ffn, GEMM_SET);
        kernels->gemm(&layer->up.packed, &x, 0, rows, begin, count, batch->up, ffn, GEMM_SET);
        add_bias(&layer->gate, batch->gate, ffn, rows, column, columns);
        add_bias(&layer->up, batch->up, ffn, rows, column, columns);
        for (uint32_t row = 0; row < rows; row++) {
            float *gate = batch->gate + (size_t)row * ffn + column;
            kernels->silu_mul(gate, batch->up + (size_t)row * ffn + column, columns, gate);
        }
    }
    thread_pool_barrier(backend->config.pool);
}

static void finish_layer(struct segment_job *job, uint32_t thread_index)
{
    struct backend_batch *batch = job->batch;
    struct backend *backend = batch->backend;
    const struct cpu_layer *layer = &backend->layers[job->s - 1];
    uint32_t hidden = backend->shape.hidden, ffn = backend->shape.ffn;
    const struct cpu_product out = {&layer->o, batch->att, backend->q_width, batch->x, hidden, GEMM_ADD};
    const struct cpu_product down = {&layer->down, batch->gate, ffn, batch->x, hidden, GEMM_ADD};

    phase_take_o(batch, layer, job->links);
    cpu_products(backend, &out, 1, batch->row_count, batch->quant, backend->config.max_rows, thread_index);
    phase_norm(batch, layer->ffn_norm);
    phase_gate_up(batch, layer, thread_index);
    if (!backend->dense) {
        struct claim claim = claim_begin(backend->config.pool, batch->row_count, 1);
        for (uint32_t begin, count; claim_range(&claim, &begin, &count);)
            quantize(batch, batch->gate, ffn, ffn, begin, count);
        thread_pool_barrier(backend->config.pool);
    }
    cpu_products(backend, &down, 1, batch->row_count, batch->quant, backend->config.max_rows, thread_index);
}

/* RoPE on q and k in place, then q, k, v of the workers' rows to where they are wanted. */
static void phase_rope(struct backend_batch *batch, const struct backend_links *links)
{
    struct backend *backend = batch->backend;
    const struct model_shape *shape = &backend->shape;
    size_t width = backend->q_width + 2u * backend->kv_width;
    struct claim claim = claim_begin(backend->config.pool, batch->row_count, 1);

    for (uint32_t begin, count; claim_range(&claim, &begin, &count);)
        for (uint32_t row = begin; row < begin + count; row++) {
            const float *angles = backend->rope_table + batch->rows[row].position * backend->rope_row;
            float *q = batch->qkv + row * width, *k = q + backend->q_width, *v = k + backend->kv_width;
            if (shape->rope_style == ROPE_NEOX) {
                kernels->rope_neox(q, shape->heads, shape->head_dim, shape->rope_dim, angles);
                kernels->rope_neox(k, shape->kv_heads, shape->head_dim, shape->rope_dim, angles);
            } else {
                kernels->rope_pairs(q, shape->heads, shape->head_dim, shape->rope_dim, angles);
                kernels->rope_pairs(k, shape->kv_heads, shape->head_dim, shape->rope_dim, angles);
            }
            if (batch->rows[row].local || !links->q[row])
                continue;
            memcpy(links->q[row], q, backend->q_width * sizeof *q);
            memcpy(links->k[row], k, backend->kv_width * sizeof *k);
            memcpy(links->v[row], v, backend->kv_width * sizeof *v);
        }
    thread_pool_barrier(backend->config.pool);
}

static void start_layer(struct segment_job *job, uint32_t thread_index)
{
    struct backend_batch *batch = job->batch;
    struct backend *backend = batch->backend;
    const struct cpu_layer *layer = &backend->layers[job->s];
    size_t width = backend->q_width + 2u * backend->kv_width;
    uint32_t hidden = backend->shape.hidden;
    const struct cpu_product products[] = {
        {&layer->q, batch->h, hidden, batch->qkv, width, GEMM_SET},
        {&layer->k, batch->h, hidden, batch->qkv + backend->q_width, width, GEMM_SET},
        {&layer->v, batch->h, hidden, batch->qkv + backend->q_width + backend->kv_width, width, GEMM_SET},
    };

    phase_norm(batch, layer->attn_norm);
    cpu_products(backend, products, 3, batch->row_count, batch->quant, backend->config.max_rows, thread_index);
    phase_rope(batch, job->links);
}

static void segment_thread(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    struct segment_job *job = arg;
    (void)thread_count;
    if (job->s > 0)
        finish_layer(job, thread_index);
    if (job->s < job->batch->backend->shape.layers)
        start_layer(job, thread_index);
}

void cpu_segment(struct backend_batch *batch, uint32_t s, const struct backend_links *links)
{
    struct segment_job job = {batch, s, links};
    thread_pool_run(batch->backend->config.pool, segment_thread, &job);
}

static void embed_thread(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    struct backend_batch *batch = arg;
    struct backend *backend = batch->backend;
    uint32_t hidden = backend->shape.hidden;
    struct claim claim = claim_begin(backend->config.pool, batch->row_count, 1);

    (void)thread_index, (void)thread_count;
    for (uint32_t begin, count; claim_range(&claim, &begin, &count);)
        for (uint32_t row = begin; row < begin + count; row++) {
            float *x = batch->x + (size_t)row * hidden;
            if (backend->dense)
                memcpy(x, backend->embedding.dense + (size_t)batch->rows[row].token * hidden, hidden * sizeof *x);
            else
                pack_dequantize_row(&backend->embedding.packed, batch->rows[row].token, x);
        }
}

void cpu_embed(struct backend_batch *batch) { thread_pool_run(batch->backend->config.pool, embed_thread, batch); }
