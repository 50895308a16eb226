// cpu_segment.c: a segment of the forward pass as one job of the thread pool.
//
// Phases are separated by barriers: [o: quantize | out-projection + residual | norm + quantize | gate, up, activation |
// quantize | down + residual] of layer s-1, then [norm + quantize | q, k, v | RoPE and scatter] of layer s. Inside a phase
// threads claim rows or tiles of 16 outputs; a value depends on its row alone, never on who computed it. Where a model changes what is
// added to x (a norm, a scale), the product goes to h, and the phase of the next norm adds it.
#include <string.h>

#include "common/base/checked.h"
#include "kernels/backend/cpu_claim.h"
#include "kernels/backend/cpu_internal.h"

struct segment_job {
    struct backend_batch *batch;
    uint32_t s;
    const struct backend_links *links;
};

static void quantize(struct backend_batch *batch, const float *in, size_t stride, uint32_t inputs, uint32_t begin, uint32_t count)
{
    struct quantized_rows x;
    if (!batch->backend->sections.quantized)
        return;
    quantized_rows_init(&x, batch->quant, batch->backend->config.max_rows, inputs);
    quantized_rows_source(&x, in, stride);
    kernels->quantize_rows(&x, begin, count);
}

static void norm_row(const struct backend *backend, const struct cpu_norm *norm, const float *x, float *out)
{
    backend->pieces.norm(x, norm->weight, norm->bias, backend->shape.norm_epsilon, norm->size, out);
}

// What attention or MLP has given for a row, in h, is added to x.
static void add_apart(struct backend_batch *batch, const struct cpu_norm *post, uint32_t row)
{
    const struct model_shape *shape = &batch->backend->shape;
    float *h = batch->h + (size_t)row * shape->hidden;

    if (post->weight)
        norm_row(batch->backend, post, h, h);
    if (shape->residual_scale != 1)
        kernels->scale(h, shape->residual_scale, shape->hidden);
    kernels->add(batch->x + (size_t)row * shape->hidden, h, shape->hidden);
}

// x -> h, normed, and quantized. post: the norm of what is in h and is added to x before; NULL: nothing is. norm NULL: only that.
static void phase_norm(struct backend_batch *batch, const struct cpu_norm *post, const struct cpu_norm *norm, uint32_t thread_index)
{
    const uint32_t hidden = batch->backend->shape.hidden;
    struct claim claim = claim_begin(batch->backend->config.pool, thread_index, batch->row_count, false);

    for (uint32_t begin, count; claim_range(&claim, &begin, &count);) {
        for (uint32_t row = begin; row < begin + count; row++) {
            const float *x = batch->x + (size_t)row * hidden;
            float *h = batch->h + (size_t)row * hidden;
            if (post)
                add_apart(batch, post, row);
            if (norm && norm->weight)
                norm_row(batch->backend, norm, x, h);
            else if (norm)
                memcpy(h, x, hidden * sizeof *h);
        }
        if (norm)
            quantize(batch, batch->h, hidden, hidden, begin, count);
    }
    thread_pool_barrier(batch->backend->config.pool);
}

// o of the attention -> quantized rows. What came from workers is read where it lies; only float products want it in
// one matrix.
static void phase_take_o(struct backend_batch *batch, const struct cpu_layer *layer, const struct backend_links *links,
                         uint32_t thread_index)
{
    struct backend *backend = batch->backend;
    bool in_place = !backend->dense && layer->o.packed.group_count;
    struct claim claim = claim_begin(backend->config.pool, thread_index, batch->row_count, false);

    for (uint32_t begin, count; claim_range(&claim, &begin, &count);)
        for (uint32_t row = begin; row < begin + count; row++) {
            float *own = batch->att + (size_t)row * backend->q_width;
            const float *o = batch->rows[row].local && !batch->rows[row].first ? own : links->o[row];
            if (!in_place && o != own)
                memcpy(own, o, backend->q_width * sizeof *own);
            if (in_place)
                quantize(batch, o, 0, backend->q_width, row, 1); // stride 0: row `row` of it is `o` itself
            else
                quantize(batch, batch->att, backend->q_width, backend->q_width, row, 1);
        }
    thread_pool_barrier(backend->config.pool);
}

// gate, up -> gate = act(gate) * up. Packed: a thread that computed a tile of both applies the activation at once.
static void phase_gate_up(struct backend_batch *batch, const struct cpu_layer *layer, uint32_t thread_index, const void *next)
{
    struct backend *backend = batch->backend;
    uint32_t ffn = backend->shape.ffn, rows = batch->row_count;

    const struct cpu_product products[] = {
        {&layer->gate, batch->h, backend->shape.hidden, batch->gate, ffn, GEMM_SET},
        {&layer->up, batch->h, backend->shape.hidden, batch->up, ffn, GEMM_SET},
    };

    if (backend->dense) {
        cpu_products(backend, products, layer->up.outputs ? 2 : 1, rows, batch->quant, backend->config.max_rows, thread_index,
                     NULL);
        struct claim claim = claim_begin(backend->config.pool, thread_index, rows, false);
        for (uint32_t begin, count; claim_range(&claim, &begin, &count);)
            cpu_activate(batch, begin, count, 0, ffn);
        thread_pool_barrier(backend->config.pool);
        return;
    }
    struct quantized_rows x;
    quantized_rows_init(&x, batch->quant, backend->config.max_rows, backend->shape.hidden);
    quantized_rows_source(&x, batch->h, backend->shape.hidden);
    struct claim claim = claim_begin(backend->config.pool, thread_index, layer->gate.packed.tile_count, rows <= CLAIM_FEW_ROWS);
    uint32_t begin, count, next_begin = 0, next_count = 0;
    const bool is_gated = layer->up.outputs != 0;
    for (bool more = claim_range(&claim, &begin, &count); more; begin = next_begin, count = next_count) {
        const struct packed_matrix *up = &layer->up.packed;
        uint32_t column = begin * PACK_TILE_OUTPUTS, columns = MIN(count * PACK_TILE_OUTPUTS, ffn - column);
        more = claim_range(&claim, &next_begin, &next_count);
        const void *after = more ? layer->gate.packed.data + next_begin * layer->gate.packed.tile_bytes : next;
        cpu_product_tiles(&products[0], &x, 0, rows, begin, count, is_gated ? up->data + begin * up->tile_bytes : after);
        if (is_gated)
            cpu_product_tiles(&products[1], &x, 0, rows, begin, count, after);
        cpu_activate(batch, 0, rows, column, columns);
    }
    thread_pool_barrier(backend->config.pool);
}

static void finish_layer(struct segment_job *job, uint32_t thread_index)
{
    struct backend_batch *batch = job->batch;
    struct backend *backend = batch->backend;
    const struct cpu_layer *layer = &backend->layers[job->s - 1];
    uint32_t hidden = backend->shape.hidden, ffn = backend->shape.ffn;
    const enum gemm_store store = backend->apart ? GEMM_SET : GEMM_ADD;
    float *to = backend->apart ? batch->h : batch->x;
    const struct cpu_product out = {&layer->o, batch->att, backend->q_width, to, hidden, store};
    const struct cpu_product down = {&layer->down, batch->gate, ffn, to, hidden, store};

    const struct cpu_linear *after_o[] = {&layer->gate}, *after_up[] = {&layer->down}, *output[] = {&backend->output};
    bool last = job->s == backend->range.count;
    const struct cpu_layer *later = last ? layer : layer + 1; // not read after the last
    const struct cpu_linear *qkv[] = {&later->q, &later->k, &later->v};

    phase_take_o(batch, layer, job->links, thread_index);
    cpu_products(backend, &out, 1, batch->row_count, batch->quant, backend->config.max_rows, thread_index,
                 cpu_first_read(backend, after_o, 1, batch->row_count, thread_index));
    phase_norm(batch, backend->apart ? &layer->post_attn : NULL, &layer->ffn, thread_index);
    if (backend->shape.experts) {
        cpu_experts(batch, layer, thread_index, store, to);
        if (last && backend->apart)
            phase_norm(batch, &layer->post_ffn, NULL, thread_index);
        return;
    }
    phase_gate_up(batch, layer, thread_index, cpu_first_read(backend, after_up, 1, batch->row_count, thread_index));
    if (backend->sections.quantized) {
        struct claim claim = claim_begin(backend->config.pool, thread_index, batch->row_count, false);
        for (uint32_t begin, count; claim_range(&claim, &begin, &count);)
            quantize(batch, batch->gate, ffn, ffn, begin, count);
        thread_pool_barrier(backend->config.pool);
    }
    cpu_products(backend, &down, 1, batch->row_count, batch->quant, backend->config.max_rows, thread_index,
                 !last                    ? cpu_first_read(backend, qkv, 3, batch->row_count, thread_index)
                 : backend->range.is_last ? cpu_first_read(backend, output, 1, batch->row_count, thread_index)
                                          : NULL);
    if (last && backend->apart)
        phase_norm(batch, &layer->post_ffn, NULL, thread_index);
}

// Each head of a row's q or k, or all as one.
static void norm_heads(const struct backend *backend, const struct cpu_norm *norm, float *heads, uint32_t width)
{
    for (uint32_t at = 0; norm->weight && at < width; at += norm->size)
        norm_row(backend, norm, heads + at, heads + at);
}

// Norms, RoPE and the scale of q and k in place, then q, k, v of the workers' rows to where they are wanted.
static void phase_rope(struct backend_batch *batch, const struct cpu_layer *layer, const struct backend_links *links,
                       uint32_t thread_index)
{
    struct backend *backend = batch->backend;
    const struct model_shape *shape = &backend->shape;
    size_t width = backend->q_width + 2u * backend->kv_width;
    struct claim claim = claim_begin(backend->config.pool, thread_index, batch->row_count, false);

    for (uint32_t begin, count; claim_range(&claim, &begin, &count);)
        for (uint32_t row = begin; row < begin + count; row++) {
            const float *table = backend->rope_table[layer->rope];
            float *q = batch->qkv + row * width, *k = q + backend->q_width, *v = k + backend->kv_width;
            norm_heads(backend, &layer->q_norm, q, backend->q_width);
            norm_heads(backend, &layer->k_norm, k, backend->kv_width);
            if (layer->roped) {
                const float *angles = table + batch->rows[row].position * backend->rope_row;
                backend->pieces.rope(q, shape->heads, shape->head_dim, shape->rope_dim, angles);
                backend->pieces.rope(k, shape->kv_heads, shape->head_dim, shape->rope_dim, angles);
            }
            if (backend->q_factor != 1)
                kernels->scale(q, backend->q_factor, backend->q_width);
            if ((batch->rows[row].local && !batch->rows[row].first) || !links->q[row])
                continue;
            memcpy(links->q[row], q, backend->q_width * sizeof *q);
            if (batch->rows[row].local)
                continue;
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

    const struct cpu_linear *after[] = {&layer->o};
    phase_norm(batch, job->s && backend->apart ? &layer[-1].post_ffn : NULL, &layer->attn, thread_index);
    cpu_products(backend, products, 3, batch->row_count, batch->quant, backend->config.max_rows, thread_index,
                 cpu_first_read(backend, after, 1, batch->row_count, thread_index));
    phase_rope(batch, layer, job->links, thread_index);
}

static void segment_thread(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    struct segment_job *job = arg;
    (void)thread_count;
    if (job->s > 0)
        finish_layer(job, thread_index);
    if (job->s < job->batch->backend->range.count)
        start_layer(job, thread_index);
}

// Before the last layer is finished: moves x and o of the rows that need output together, and drops the others. Most rows of a prompt need
// none: a thirtieth of a small model's work.
static void end_kv_only(struct backend_batch *batch, const struct backend_links *links)
{
    uint32_t kept = 0;

    for (uint32_t row = 0; row < batch->row_count; row++) {
        const float *o = batch->rows[row].local && !batch->rows[row].first ? batch->att + (size_t)row * batch->backend->q_width
                                                                           : links->o[row];
        if (!batch->rows[row].needs_output)
            continue;
        memmove(batch->x + (size_t)kept * batch->backend->shape.hidden, batch->x + (size_t)row * batch->backend->shape.hidden,
                batch->backend->shape.hidden * sizeof *batch->x);
        memmove(batch->att + (size_t)kept * batch->backend->q_width, o, batch->backend->q_width * sizeof *o);
        batch->rows[kept] = batch->rows[row];
        batch->rows[kept].local = true; // its o is here
        batch->rows[kept].first = 0;
        batch->place[row] = kept++;
    }
    batch->row_count = kept;
}

void cpu_segment(struct backend_batch *batch, uint32_t s, const struct backend_links *links)
{
    struct segment_job job = {batch, s, links};
    if (batch->backend->range.is_last && s == batch->backend->range.count && batch->kv_only_count)
        end_kv_only(batch, links);
    if (batch->row_count) {
        cpu_stream_enter(batch, s);
        thread_pool_run(batch->backend->config.pool, segment_thread, &job);
    }
    cpu_stream_want(batch, s + 1);
}

static void embed_thread(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    struct backend_batch *batch = arg;
    struct backend *backend = batch->backend;
    uint32_t hidden = backend->shape.hidden;
    struct claim claim = claim_begin(backend->config.pool, thread_index, batch->row_count, false);

    (void)thread_count;
    for (uint32_t begin, count; claim_range(&claim, &begin, &count);)
        for (uint32_t row = begin; row < begin + count; row++) {
            float *x = batch->x + (size_t)row * hidden;
            if (backend->dense)
                memcpy(x, backend->embedding.dense + (size_t)batch->rows[row].token * hidden, hidden * sizeof *x);
            else
                pack_dequantize_row(&backend->embedding.packed, batch->rows[row].token, x);
            if (backend->shape.embedding_scale != 1)
                kernels->scale(x, backend->shape.embedding_scale, hidden);
            if (backend->positions)
                kernels->add(x, backend->positions + (size_t)(batch->rows[row].position + backend->shape.positions_before) * hidden,
                             hidden);
        }
}

void cpu_embed(struct backend_batch *batch) { thread_pool_run(batch->backend->config.pool, embed_thread, batch); }
