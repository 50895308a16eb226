// cpu_segment.c: a segment of the forward pass as one job of the thread pool.
//
// Phases are separated by barriers: [o: quantize | out-projection + residual | norm + quantize | gate, up, activation |
// quantize | down + residual] of layer s-1, then [norm + quantize | q, k, v | RoPE and scatter] of layer s. Inside a phase
// threads claim rows or tiles of 16 outputs; a value depends on its row alone, never on who computed it. Where a model changes what is
// added to x (a norm, a scale), the product goes to h, and the phase of the next norm adds it.
//
// Few rows (cpu_share.c) have no barrier after norms and quantizing. If all of them are local, their attention follows in the same job,
// where q and k are turned by RoPE as they are stored and read. A layer then has one job and five barriers, the job's end included:
//
//     o: quantize, out-projection | norm, gate, up, activation | quantize, down | norm, q, k, v | RoPE, store, attend
#include <string.h>

#include "common/base/checked.h"
#include "kernels/backend/cpu_claim.h"
#include "kernels/backend/cpu_internal.h"

// --- attention of the local rows: a job of its own, or, of few rows, a phase of the segment's job ---

// In the last layer: K and V of rows without output are stored, and no attention is computed for them.
static void skip_attention_of_kv_only(struct backend_batch *batch)
{
    for (uint32_t row = 0, local = 0; row < batch->row_count; row++) {
        if (!batch->rows[row].needs_output && batch->rows[row].local)
            batch->kv_o[local] = NULL;
        local += batch->rows[row].local;
    }
    for (uint32_t i = 0; i < batch->read_count; i++)
        if (!batch->rows[batch->reads[i].row].needs_output)
            batch->kv_o[batch->local_count - batch->read_count + i] = NULL;
}

// Prepares the attention of a layer's local rows.
static void attend_begins(struct backend_batch *batch, uint32_t layer)
{
    struct backend *backend = batch->backend;

    if (backend->range.is_last && layer + 1 == backend->range.count && batch->kv_only_count)
        skip_attention_of_kv_only(batch);
    kv_batch_sinks(batch->kv, backend->config.model->layers[backend->range.first + layer].sink_scores);
}

// Returns how long it took, in ns.
static uint64_t attend_ended(struct backend *backend)
{
    const uint64_t before_ns = backend->attend_ns;
    struct kv_stats stats;

    kv_store_stats(backend->kv, &stats);
    backend->attend_bytes = stats.bytes_read;
    backend->attend_ns = stats.attend_ns;
    return stats.attend_ns - before_ns;
}

void cpu_attend(struct backend_batch *batch, uint32_t layer)
{
    if (!batch->local_count || layer < batch->joined)
        return;
    attend_begins(batch, layer);
    kv_batch_attend(batch->kv, layer, batch->kv_q, batch->kv_k, batch->kv_v, batch->kv_o);
    attend_ended(batch->backend);
}

// Around a segment that attends to its rows.
static void cpu_join_begin(struct backend_batch *batch, uint32_t layer)
{
    attend_begins(batch, layer);
    kv_batch_join_begin(batch->kv, layer, batch->kv_o);
}

static void cpu_join_end(struct backend_batch *batch)
{
    kv_batch_join_end(batch->kv);
    batch->joined_ns = attend_ended(batch->backend);
    batch->joined++;
}

uint64_t cpu_attended_ns(const struct backend_batch *batch) { return batch->joined ? batch->joined_ns : 0; }

struct segment_job {
    struct backend_batch *batch;
    uint32_t s;
    const struct backend_links *links;
    bool joins; // it attends to its rows
};

static void norm_row(const struct backend *backend, const struct cpu_norm *norm, const float *x, float *out)
{
    backend->pieces.norm(x, norm->weight, norm->bias, backend->shape.norm_epsilon, norm->size, out);
}

// The result of attention or MLP for a row, in the mini-batch's h, is added to x, or, for few rows, to the thread's copy of it. Returns x.
static const float *add_apart(const struct cpu_share *share, const struct cpu_norm *post, uint32_t row)
{
    struct backend_batch *batch = share->batch;
    const struct model_shape *shape = &batch->backend->shape;
    const size_t at = (size_t)row * shape->hidden, bytes = shape->hidden * sizeof(float);
    float *h = share->h + at, *x = share->few ? share->x + at : batch->x + at;

    if (post->weight)
        norm_row(batch->backend, post, batch->h + at, h);
    else if (share->few)
        memcpy(h, batch->h + at, bytes);
    if (shape->residual_scale != 1)
        kernels->scale(h, shape->residual_scale, shape->hidden);
    if (share->few)
        memcpy(x, batch->x + at, bytes);
    kernels->add(x, h, shape->hidden);
    return x;
}

// x -> h, normed, and quantized. post: the norm of what is in h and is added to x before; NULL: nothing is.
static void phase_norm(const struct cpu_share *share, const struct cpu_norm *post, const struct cpu_norm *norm)
{
    struct backend_batch *batch = share->batch;
    const uint32_t hidden = batch->backend->shape.hidden;
    struct claim claim = cpu_share_claim(share, batch->row_count);

    for (uint32_t begin, count; claim_range(&claim, &begin, &count);) {
        for (uint32_t row = begin; row < begin + count; row++) {
            const float *x = post ? add_apart(share, post, row) : batch->x + (size_t)row * hidden;
            float *h = share->h + (size_t)row * hidden;
            if (norm->weight)
                norm_row(batch->backend, norm, x, h);
            else
                memcpy(h, x, hidden * sizeof *h);
        }
        cpu_quantize(share, share->h, hidden, hidden, begin, count);
    }
    cpu_share_end(share);
}

// After the last layer: what it has given, in h, is added to x.
static void phase_add_last(struct backend_batch *batch, const struct cpu_norm *post, uint32_t thread_index)
{
    const struct cpu_share all = cpu_share_of(batch, thread_index, false); // a row each, whatever their number
    struct claim claim = cpu_share_claim(&all, batch->row_count);

    for (uint32_t begin, count; claim_range(&claim, &begin, &count);)
        for (uint32_t row = begin; row < begin + count; row++)
            add_apart(&all, post, row);
}

// o of the attention -> quantized rows. What came from workers is read where it lies; only float products want it in
// one matrix.
static void phase_take_o(const struct cpu_share *share, const struct cpu_layer *layer, const struct backend_links *links)
{
    struct backend_batch *batch = share->batch;
    struct backend *backend = batch->backend;
    bool in_place = !backend->dense && layer->o.packed.group_count;
    struct claim claim = cpu_share_claim(share, batch->row_count);

    for (uint32_t begin, count; claim_range(&claim, &begin, &count);)
        for (uint32_t row = begin; row < begin + count; row++) {
            float *own = share->att + (size_t)row * backend->q_width;
            const float *local = batch->att + (size_t)row * backend->q_width;
            const float *o = batch->rows[row].local && !batch->rows[row].first ? local : links->o[row];
            if (!in_place && o != own)
                memcpy(own, o, backend->q_width * sizeof *own);
            if (in_place)
                cpu_quantize(share, o, 0, backend->q_width, row, 1); // stride 0: row `row` of it is `o` itself
            else
                cpu_quantize(share, share->att, backend->q_width, backend->q_width, row, 1);
        }
    cpu_share_end(share);
}

// gate, up -> gate = act(gate) * up. Packed: a thread that computed a tile of both applies the activation at once.
static void phase_gate_up(const struct cpu_share *share, const struct cpu_layer *layer, const void *next)
{
    struct backend_batch *batch = share->batch;
    struct backend *backend = batch->backend;
    uint32_t ffn = backend->shape.ffn, rows = batch->row_count;

    const struct cpu_product products[] = {
        {.linear = &layer->gate,
         .in = share->h,
         .in_stride = backend->shape.hidden,
         .out = batch->gate,
         .out_stride = ffn,
         .store = GEMM_SET},
        {.linear = &layer->up,
         .in = share->h,
         .in_stride = backend->shape.hidden,
         .out = batch->up,
         .out_stride = ffn,
         .store = GEMM_SET},
    };

    if (backend->dense) {
        cpu_share_products(share, products, layer->up.outputs ? 2 : 1, NULL);
        struct claim claim = cpu_share_claim(share, batch->row_count);
        for (uint32_t begin, count; claim_range(&claim, &begin, &count);)
            cpu_activate(batch, begin, count, 0, ffn);
        cpu_share_end(share);
        return;
    }
    struct quantized_rows x;
    quantized_rows_init(&x, share->quant, share->row_capacity, backend->shape.hidden);
    quantized_rows_source(&x, share->h, backend->shape.hidden);
    struct claim claim =
        claim_begin(backend->config.pool, share->thread_index, layer->gate.packed.tile_count, rows <= CLAIM_FEW_ROWS);
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

// gate -> quantized rows.
static void phase_take_gate(const struct cpu_share *share)
{
    const struct backend_batch *batch = share->batch;
    const uint32_t ffn = batch->backend->shape.ffn;

    if (!batch->backend->sections.quantized)
        return;
    struct claim claim = cpu_share_claim(share, batch->row_count);
    for (uint32_t begin, count; claim_range(&claim, &begin, &count);)
        cpu_quantize(share, batch->gate, ffn, ffn, begin, count);
    cpu_share_end(share);
}

// Returns what this thread reads first after the layer's last product: of q, k and v of the next layer, or of the head.
static const void *after_down(const struct segment_job *job, uint32_t thread_index)
{
    const struct backend *backend = job->batch->backend;
    const struct cpu_layer *next = &backend->layers[job->s]; // not read after the last
    const struct cpu_linear *qkv[] = {&next->q, &next->k, &next->v}, *output[] = {&backend->output};

    if (job->s < backend->range.count)
        return cpu_first_read(backend, qkv, 3, job->batch->row_count, thread_index);
    return backend->range.is_last ? cpu_first_read(backend, output, 1, job->batch->row_count, thread_index) : NULL;
}

static void finish_layer(const struct segment_job *job, const struct cpu_share *share)
{
    struct backend_batch *batch = job->batch;
    struct backend *backend = batch->backend;
    const struct cpu_layer *layer = &backend->layers[job->s - 1];
    uint32_t hidden = backend->shape.hidden, ffn = backend->shape.ffn, rows = batch->row_count;
    const enum gemm_store store = backend->apart ? GEMM_SET : GEMM_ADD;
    float *to = backend->apart ? batch->h : batch->x;
    const struct cpu_product out = {
        .linear = &layer->o, .in = share->att, .in_stride = backend->q_width, .out = to, .out_stride = hidden, .store = store};
    const struct cpu_product down = {
        .linear = &layer->down, .in = batch->gate, .in_stride = ffn, .out = to, .out_stride = hidden, .store = store};
    const struct cpu_linear *after_o[] = {&layer->gate}, *after_up[] = {&layer->down};

    phase_take_o(share, layer, job->links);
    cpu_share_products(share, &out, 1, cpu_first_read(backend, after_o, 1, rows, share->thread_index));
    phase_norm(share, backend->apart ? &layer->post_attn : NULL, &layer->ffn);
    if (backend->shape.experts) {
        cpu_experts(share, layer, store, to);
    } else {
        phase_gate_up(share, layer, cpu_first_read(backend, after_up, 1, rows, share->thread_index));
        cpu_share_publish(share);
        phase_take_gate(share);
        cpu_share_products(share, &down, 1, after_down(job, share->thread_index));
    }
    if (job->s == backend->range.count && backend->apart)
        phase_add_last(batch, &layer->post_ffn, share->thread_index);
}

// Each head of a row's q or k, or all as one.
static void norm_heads(const struct backend *backend, const struct cpu_norm *norm, float *heads, uint32_t width)
{
    for (uint32_t at = 0; norm->weight && at < width; at += norm->size)
        norm_row(backend, norm, heads + at, heads + at);
}

// Norms, RoPE and the scale of a row's q and k in place.
static void rope_row(const struct backend *backend, const struct cpu_layer *layer, uint32_t position, float *q, float *k)
{
    const struct model_shape *shape = &backend->shape;

    norm_heads(backend, &layer->q_norm, q, backend->q_width);
    norm_heads(backend, &layer->k_norm, k, backend->kv_width);
    if (layer->roped) {
        const float *angles = backend->rope_table[layer->rope] + position * backend->rope_row;
        backend->pieces.rope(q, shape->heads, shape->head_dim, shape->rope_dim, angles);
        backend->pieces.rope(k, shape->kv_heads, shape->head_dim, shape->rope_dim, angles);
    }
    if (backend->q_factor != 1)
        kernels->scale(q, backend->q_factor, backend->q_width);
}

// RoPE and all that goes with it, then q, k, v of the workers' rows to where they are wanted. The job's end is its barrier.
static void phase_rope(struct backend_batch *batch, const struct cpu_layer *layer, const struct backend_links *links,
                       uint32_t thread_index)
{
    struct backend *backend = batch->backend;
    size_t width = backend->q_width + 2u * backend->kv_width;
    struct claim claim = claim_begin(backend->config.pool, thread_index, batch->row_count, false);

    for (uint32_t begin, count; claim_range(&claim, &begin, &count);)
        for (uint32_t row = begin; row < begin + count; row++) {
            float *q = batch->qkv + row * width, *k = q + backend->q_width, *v = k + backend->kv_width;
            rope_row(backend, layer, batch->rows[row].position, q, k);
            if ((batch->rows[row].local && !batch->rows[row].first) || !links->q[row])
                continue;
            memcpy(links->q[row], q, backend->q_width * sizeof *q);
            if (batch->rows[row].local)
                continue;
            memcpy(links->k[row], k, backend->kv_width * sizeof *k);
            memcpy(links->v[row], v, backend->kv_width * sizeof *v);
        }
}

// The same for few rows that are all local: each thread turns q and k for itself, stores and attends. The job's end is its barrier.
static void phase_join(const struct cpu_share *share, const struct cpu_layer *layer)
{
    const struct backend_batch *batch = share->batch;
    const struct backend *backend = batch->backend;
    const float *q[CPU_FEW_ROWS], *k[CPU_FEW_ROWS];
    const size_t width = backend->q_width + backend->kv_width;

    for (uint32_t row = 0; row < batch->row_count; row++) {
        float *own = share->qk + row * width;
        memcpy(own, batch->kv_q[row], width * sizeof *own); // k lies behind q
        rope_row(backend, layer, batch->rows[row].position, own, own + backend->q_width);
        q[row] = own, k[row] = own + backend->q_width;
    }
    kv_batch_join(batch->kv, share->thread_index, q, k, batch->kv_v);
}

static void start_layer(const struct segment_job *job, const struct cpu_share *share)
{
    struct backend_batch *batch = job->batch;
    struct backend *backend = batch->backend;
    const struct cpu_layer *layer = &backend->layers[job->s];
    size_t width = backend->q_width + 2u * backend->kv_width;
    uint32_t hidden = backend->shape.hidden;
    const struct cpu_product products[] = {
        {.linear = &layer->q, .in = share->h, .in_stride = hidden, .out = batch->qkv, .out_stride = width, .store = GEMM_SET},
        {.linear = &layer->k,
         .in = share->h,
         .in_stride = hidden,
         .out = batch->qkv + backend->q_width,
         .out_stride = width,
         .store = GEMM_SET},
        {.linear = &layer->v,
         .in = share->h,
         .in_stride = hidden,
         .out = batch->qkv + backend->q_width + backend->kv_width,
         .out_stride = width,
         .store = GEMM_SET},
    };
    const struct cpu_linear *after[] = {&layer->o};
    const bool adds = job->s && backend->apart;

    phase_norm(share, adds ? &layer[-1].post_ffn : NULL, &layer->attn);
    cpu_share_products(share, products, 3, cpu_first_read(backend, after, 1, batch->row_count, share->thread_index));
    if (adds)
        cpu_share_publish(share);
    if (job->joins)
        phase_join(share, layer);
    else
        phase_rope(batch, layer, job->links, share->thread_index);
}

static void segment_thread(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    const struct segment_job *job = arg;
    const struct cpu_share share = cpu_share_of(job->batch, thread_index, cpu_has_few(job->batch));

    (void)thread_count;
    if (job->s > 0)
        finish_layer(job, &share);
    if (job->s < job->batch->backend->range.count)
        start_layer(job, &share);
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
    struct backend *backend = batch->backend;
    struct segment_job job = {.batch = batch, .s = s, .links = links, .joins = batch->joins && s < backend->range.count};

    if (backend->range.is_last && s == backend->range.count && batch->kv_only_count)
        end_kv_only(batch, links);
    if (batch->row_count) {
        cpu_stream_enter(batch, s);
        if (job.joins)
            cpu_join_begin(batch, s);
        thread_pool_run(backend->config.pool, segment_thread, &job);
        if (job.joins)
            cpu_join_end(batch);
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

// --- from what an architecture's row says to the kernels that compute it: a new piece is a case here ---

static void rms_norm(const float *x, const float *weight, const float *bias, float epsilon, uint32_t n, float *out)
{
    (void)bias;
    kernels->rms_norm(x, weight, epsilon, n, out);
}

static void no_rope(float *x, uint32_t heads, uint32_t head_dim, uint32_t dims, const float *angles)
{
    (void)x, (void)heads, (void)head_dim, (void)dims, (void)angles;
}

enum status cpu_choose_pieces(const struct model *model, struct cpu_pieces *out, struct error *error)
{
    const struct model_shape *shape = &model->shape;

    assert_always(kernels); // kernels_init() comes first
    *out = (struct cpu_pieces){0};
    switch (shape->norm) {
    case NORM_RMS: out->norm = rms_norm; break;
    case NORM_LAYER: out->norm = kernels->layer_norm; break;
    }
    switch (shape->rope_style) {
    case ROPE_PAIRS: out->rope = kernels->rope_pairs; break;
    case ROPE_NEOX: out->rope = kernels->rope_neox; break;
    case ROPE_NONE: out->rope = no_rope; break;
    }
    switch (shape->activation) {
    case ACTIVATION_SILU: out->activation = kernels->silu_mul; break;
    case ACTIVATION_GELU: out->activation = kernels->gelu_mul; break;
    case ACTIVATION_GELU_PLAIN: out->activation = kernels->gelu; break;
    case ACTIVATION_RELU: out->activation = kernels->relu; break;
    case ACTIVATION_GPT_OSS: out->activation = kernels->gpt_oss_mul; break;
    }
    // a row whose activation multiplies by up must list such a matrix, and the others must not
    const bool multiplies = shape->activation != ACTIVATION_RELU && shape->activation != ACTIVATION_GELU_PLAIN;
    const bool fits = multiplies == (model->layers[0].up.data != NULL);
    const char *missing = !out->norm ? "norm" : !out->rope ? "RoPE" : !out->activation || !fits ? "activation" : NULL;
    if (!missing)
        return STATUS_OK;
    return error_set(error, STATUS_UNIMPLEMENTED, "%s: the %s of architecture '%s' is not computed on the CPU",
                     gguf_label(model->gguf), missing, model->arch_name);
}
