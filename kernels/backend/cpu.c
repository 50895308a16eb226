// cpu.c: the CPU backend: memory, batches, the local pool, and the table of entries.
//
// Everything is finished when an entry returns. Activations of a mini-batch are one mapping, resident from the start.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cblas.h>

#include "common/base/alloc.h"
#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/kv/kv_shape.h"
#include "kernels/attention/attention.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/cpu_internal.h"

enum { SLICE_COUNT = 25, ALIGN = 64 };

// Address space for partials: more than a step may have (common/mesh/tensors.h).
#define PARTIAL_BYTES (128u << 20)
#define SLOTS_MAX (1u << 24)

// The arrays of a batch's mapping.
static void batch_slices(const struct backend_config *config, struct backend_batch *batch, struct slice *slices)
{
    const struct model_shape *shape = &config->model->shape;
    uint64_t rows = config->max_rows, q = (uint64_t)shape->heads * shape->head_dim,
             kv = (uint64_t)shape->kv_heads * shape->head_dim;
    uint32_t widest = MAX(MAX(shape->hidden, shape->ffn), (uint32_t)q);
    const uint64_t slots = cpu_expert_slots(config), mlp_rows = MAX(rows, slots);
    struct cpu_experts *experts = &batch->experts;
    const struct slice all[SLICE_COUNT] = {
        {(void **)&batch->rows, rows * sizeof *batch->rows},
        {(void **)&batch->place, rows * sizeof *batch->place},
        {(void **)&batch->x, rows * shape->hidden * 4},
        {(void **)&batch->h, rows * shape->hidden * 4},
        {(void **)&batch->qkv, rows * (q + 2 * kv) * 4},
        {(void **)&batch->att, rows * q * 4},
        {(void **)&batch->gate, mlp_rows * shape->ffn * 4},
        {(void **)&batch->up, mlp_rows * shape->ffn * 4},
        {&batch->quant, quantized_rows_bytes(config->max_rows, widest)},
        {(void **)&batch->own, cpu_own_bytes(config) * thread_pool_threads(config->pool)},
        {(void **)&batch->kv_rows, rows * sizeof *batch->kv_rows},
        {(void **)&batch->kv_q, rows * sizeof(void *)},
        {(void **)&batch->kv_k, rows * sizeof(void *)},
        {(void **)&batch->kv_v, rows * sizeof(void *)},
        {(void **)&batch->kv_o, rows * sizeof(void *)},
        {(void **)&batch->reads, rows * sizeof *batch->reads},
        {(void **)&experts->scores, slots ? rows * shape->experts * 4 : 0},
        {(void **)&experts->chosen, slots * sizeof *experts->chosen},
        {(void **)&experts->weight, slots * sizeof *experts->weight},
        {(void **)&experts->row, slots * sizeof *experts->row},
        {(void **)&experts->first, slots ? (shape->experts + 1ull) * sizeof *experts->first : 0},
        {(void **)&experts->active, slots ? shape->experts * sizeof *experts->active : 0},
        {(void **)&experts->in, cpu_experts_copy(config) ? slots * shape->hidden * 4 : 0},
        {(void **)&experts->out, slots * shape->hidden * 4},
        {&experts->quant, slots ? quantized_rows_bytes((uint32_t)slots, MAX(shape->hidden, shape->ffn)) : 0},
    };
    memcpy(slices, all, sizeof all);
}

static uint64_t batch_bytes(const struct backend_config *config)
{
    struct backend_batch unused;
    struct slice slices[SLICE_COUNT];

    batch_slices(config, &unused, slices);
    return slices_bytes(slices, SLICE_COUNT, ALIGN);
}

static struct kv_shape pool_shape(const struct backend_config *config, const struct layer_range *range)
{
    struct kv_shape shape = kv_shape_of_model(config->model, range->first, range->count);
    shape.page_tokens = config->page_tokens;
    shape.type = (enum kv_type)config->kv_type;
    shape.max_sequences = config->max_sequences;
    shape.max_context = config->context_tokens;
    shape.sparse_percent = config->sparse_percent;
    return shape;
}

static uint64_t logits_bytes(const struct backend_config *config)
{
    return (uint64_t)MIN((uint32_t)CPU_HEAD_ROWS, config->max_rows) * config->model->shape.vocab * sizeof(float);
}

static enum status cpu_plan(const struct backend_config *config, struct backend_plan *plan, struct error *error)
{
    const struct model_shape *shape = &config->model->shape;
    struct rope_params rope = {.dims = shape->rope_dim};
    uint32_t threads = thread_pool_threads(config->pool);
    struct layer_range range;
    struct cpu_pieces pieces;
    enum status status;

    memset(plan, 0, sizeof *plan);
    if ((status = layer_range_of(config, &range, error)) || (status = cpu_choose_pieces(config->model, &pieces, error)) ||
        (status = loaded_type_check(config, error)))
        return status;
    if (shape->head_dim % KV_TILE || shape->head_dim > KV_MAX_HEAD_DIM)
        return error_set(error, STATUS_UNIMPLEMENTED, "%s: heads of %u dimensions: supported are multiples of %u up to %u",
                         gguf_label(config->model->gguf), shape->head_dim, KV_TILE, KV_MAX_HEAD_DIM);
    if (config->batch_invariant && cpu_wants_dense(config)) // packed weights are so without being asked
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "--batch-invariant: f32 goes through OpenBLAS, whose order of summation depends on the number of rows: "
                         "leave --compute at auto");
    if (shape->experts &&
        (shape->ffn % PACK_TILE_OUTPUTS || shape->hidden % PACK_TILE_OUTPUTS || cpu_expert_slots(config) > SLOTS_MAX))
        return error_set(error, STATUS_UNIMPLEMENTED, "%s: experts of %u values in %u: supported are multiples of %u",
                         gguf_label(config->model->gguf), shape->ffn, shape->hidden, PACK_TILE_OUTPUTS);
    const struct kv_shape kv = pool_shape(config, &range);
    if ((status = cpu_plan_weights(config, &range, plan, error)))
        return status;
    plan->activation_bytes = batch_bytes(config) * config->max_batches +
                             model_rope_tables(shape) * rope_row_floats(&rope) * config->context_tokens * 4;
    if (range.is_last)
        plan->activation_bytes += logits_bytes(config) + (uint64_t)threads * shape->vocab * 16; // sampling
    plan->pool_page_bytes = kv_page_memory_bytes(&kv);
    plan->rows_alike = !cpu_wants_dense(config);
    if (config->local_pool_bytes) {
        struct kv_plan pool = kv_store_plan(&kv, config->local_pool_bytes, config->max_rows, threads, config->max_batches);
        plan->pool_pages = pool.pages;
        plan->pool_fixed_bytes = pool.fixed_bytes;
        plan->pool_table_bytes = pool.table_bytes;
    }
    return STATUS_OK;
}

// Memory of the head: logits, and room to sample.
static enum status open_head(struct backend *backend, struct error *error)
{
    uint32_t threads = thread_pool_threads(backend->config.pool);
    size_t bytes = logits_bytes(&backend->config);

    backend->logits = malloc(bytes);
    backend->scratch = calloc(threads, sizeof *backend->scratch);
    if (!backend->logits || !backend->scratch)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot allocate the logits of the CPU backend");
    memset(backend->logits, 0, bytes); // resident from the start, as the plan says
    for (uint32_t i = 0; i < threads; i++)
        if (sampler_scratch_open(backend->shape.vocab, &backend->scratch[i]))
            return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for sampling");
    return STATUS_OK;
}

static enum status open_tables(struct backend *backend, struct error *error)
{
    const struct model_shape *shape = &backend->shape;
    const uint32_t tables = model_rope_tables(shape), context = backend->config.context_tokens;
    const struct rope_params rope = {.dims = shape->rope_dim};

    backend->apart = shape->residual_scale != 1 || backend->config.model->layers[0].post_attn_norm.data;
    backend->q_factor = shape->attention_scale * sqrtf((float)shape->head_dim);
    if (fabsf(backend->q_factor - 1) < 1e-6f) // rounding
        backend->q_factor = 1;
    backend->rope_row = rope_row_floats(&rope);
    backend->layers = calloc(backend->range.count, sizeof *backend->layers);
    if (!backend->layers || (tables && !(backend->rope_table[0] = malloc(tables * backend->rope_row * context * sizeof(float)))))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for the tables of the CPU backend");
    for (uint32_t which = 0; tables && which < MODEL_ROPES; which++) {
        const struct rope_params params = model_rope_params(shape, which, context);
        backend->rope_table[which] = backend->rope_table[0] + (which < tables ? which * backend->rope_row * context : 0);
        if (which < tables)
            rope_table_build(&params, 0, context, backend->rope_table[which]);
    }
    return backend->range.is_last ? open_head(backend, error) : STATUS_OK;
}

static void cpu_close(struct backend *backend)
{
    if (!backend)
        return;
    kv_store_close(backend->kv);
    cpu_stream_close(backend);
    for (uint32_t i = 0; backend->scratch && i < thread_pool_threads(backend->config.pool); i++)
        sampler_scratch_close(backend->scratch[i]);
    if (backend->weights)
        munmap(backend->weights, backend->weights_bytes);
    free(backend->scratch);
    free(backend->logits);
    free(backend->rope_table[0]);
    free(backend->layers);
    free(backend);
}

static enum status open_pool(struct backend *backend, struct error *error)
{
    const struct backend_config *config = &backend->config;
    const struct kv_shape kv = pool_shape(config, &backend->range);

    if (!config->local_pool_bytes)
        return STATUS_OK;
    return kv_store_open(&kv, config->local_pool_bytes, config->max_rows, config->pool, &backend->kv, error);
}

static enum status cpu_pool_retype(struct backend *backend, uint32_t kv_type, struct error *error)
{
    kv_store_close(backend->kv);
    backend->kv = NULL;
    backend->attend_bytes = backend->attend_ns = 0; // they are the pool's
    backend->config.kv_type = kv_type;
    return open_pool(backend, error);
}

static enum status cpu_open(const struct backend_config *config, struct backend **out, struct error *error)
{
    struct backend *backend = calloc(1, sizeof *backend);
    enum status status;

    if (!backend)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for the CPU backend");
    backend->config = *config;
    backend->shape = config->model->shape;
    backend->dense = cpu_wants_dense(config);
    backend->q_width = backend->shape.heads * backend->shape.head_dim;
    backend->kv_width = backend->shape.kv_heads * backend->shape.head_dim;
    snprintf(backend->level, sizeof backend->level, "%s/%s", cpu_class_name(config), kernels_level_name());
    if (backend->dense)
        openblas_set_num_threads(1); // each of ours calls it (cpu_products.c)
    status = layer_range_of(config, &backend->range, error);
    if (!status)
        status = cpu_choose_pieces(config->model, &backend->pieces, error);
    if (!status)
        status = open_tables(backend, error);
    if (!status)
        status = cpu_load_weights(backend, error);
    if (!status)
        status = open_pool(backend, error);
    if (status) {
        cpu_close(backend);
        return status;
    }
    *out = backend;
    return STATUS_OK;
}

static void cpu_info(const struct backend *backend, struct backend_info *info)
{
    struct kv_stats stats;
    *info = (struct backend_info){
        .device = "cpu", .level = backend->level, .attend_bytes = backend->attend_bytes, .attend_us = backend->attend_ns / 1000};
    if (backend->kv) {
        info->pages_total = kv_store_pages_total(backend->kv);
        info->pages_used = kv_store_pages_used(backend->kv);
        kv_store_stats(backend->kv, &stats);
        info->pages_peak = stats.pages_peak;
    }
    cpu_stream_info(backend, info);
}

static void cpu_batch_close(struct backend_batch *batch)
{
    if (!batch)
        return;
    kv_batch_close(batch->kv);
    if (batch->partials)
        munmap(batch->partials, PARTIAL_BYTES);
    cpu_stream_leave(batch);
    if (batch->memory)
        munmap(batch->memory, batch->memory_bytes);
    free(batch);
}

static enum status cpu_batch_open(struct backend *backend, struct backend_batch **out, struct error *error)
{
    struct backend_batch *batch = calloc(1, sizeof *batch);
    struct slice slices[SLICE_COUNT];

    if (!batch)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for a mini-batch");
    batch->backend = backend;
    cpu_stream_join(batch);
    batch->memory_bytes = batch_bytes(&backend->config);
    batch->memory = mmap(NULL, batch->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1,
                         0); // a step takes no page faults
    if (batch->memory == MAP_FAILED) {
        batch->memory = NULL;
        cpu_batch_close(batch);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for the activations of a mini-batch");
    }
    batch->own_bytes = cpu_own_bytes(&backend->config);
    batch_slices(&backend->config, batch, slices);
    slices_place(slices, SLICE_COUNT, ALIGN, batch->memory);
    if (backend->kv)
        batch->partials = mmap(NULL, PARTIAL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (batch->partials == MAP_FAILED)
        batch->partials = NULL;
    if (backend->kv && (!batch->partials || kv_batch_open(backend->kv, &batch->kv))) {
        cpu_batch_close(batch);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for a mini-batch of the local pool");
    }
    *out = batch;
    return STATUS_OK;
}

// The first row of a sequence's extent begins it, whatever the pool held of the sequence.
static enum status begin_extent(struct backend *backend, const struct backend_row *row, struct error *error)
{
    struct kv_held held;

    if (row->position != row->first || (!row->first && (!kv_store_find(backend->kv, row->sequence, &held) || !held.first)))
        return STATUS_OK;
    return kv_store_begin(backend->kv, row->sequence, row->first, error);
}

// Adds a local row, or a read, to the plan of the pool. Returns where what comes behind its partials begins.
static float *add_kv_row(struct backend_batch *batch, uint32_t row, struct kv_row kv_row, float *partials)
{
    const struct backend *backend = batch->backend;
    size_t width = backend->q_width + 2u * backend->kv_width;
    uint32_t at = batch->local_count++;

    batch->kv_rows[at] = kv_row;
    batch->kv_q[at] = batch->qkv + row * width;
    batch->kv_k[at] = kv_row.reads ? NULL : batch->kv_q[at] + backend->q_width;
    batch->kv_v[at] = kv_row.reads ? NULL : batch->kv_k[at] + backend->kv_width;
    batch->kv_o[at] = kv_row.reads || kv_row.first ? partials : batch->att + (size_t)row * backend->q_width;
    if (kv_row.reads || kv_row.first)
        partials += kv_partial_count(kv_row.first, kv_row.position + 1) *
                    kv_partial_floats(backend->shape.heads, backend->shape.head_dim);
    return partials;
}

// Which row of the step the pool's row number `at` is of.
static uint32_t row_of_local(const struct backend_batch *batch, uint32_t at)
{
    uint32_t rows = batch->local_count - batch->read_count, row = 0;

    if (at >= rows)
        return batch->reads[at - rows].row;
    for (; !batch->rows[row].local || at-- > 0; row++)
        ;
    return row;
}

// Reserves pages for the local rows and plans their attention.
static enum status plan_local(struct backend_batch *batch, uint32_t *bad_row, struct error *error)
{
    struct backend *backend = batch->backend;
    float *partials = batch->partials;
    uint32_t bad = 0;
    enum status status;

    batch->local_count = 0;
    for (uint32_t row = 0; row < batch->row_count; row++) {
        const struct backend_row *own = &batch->rows[row];
        if (!own->local)
            continue;
        bool first_of_sequence = row == 0 || !own[-1].local || own[-1].sequence != own->sequence;
        bool last_of_sequence = row + 1 == batch->row_count || !own[1].local || own[1].sequence != own->sequence;
        *bad_row = row;
        if (!backend->kv)
            return error_set(error, STATUS_FAILED_PRECONDITION, "there is no local pool");
        if (first_of_sequence && (status = begin_extent(backend, own, error)))
            return status;
        if (last_of_sequence && (status = kv_store_reserve(backend->kv, own->sequence, own->position + 1, error)))
            return status;
        partials = add_kv_row(
            batch, row,
            (struct kv_row){.sequence = own->sequence, .position = own->position, .first = own->first, .sparse = own->sparse},
            partials);
    }
    for (uint32_t i = 0; i < batch->read_count; i++) {
        const struct backend_read *read = &batch->reads[i];
        *bad_row = read->row;
        if (!backend->kv)
            return error_set(error, STATUS_FAILED_PRECONDITION, "there is no local pool");
        partials = add_kv_row(
            batch, read->row,
            (struct kv_row){
                .sequence = batch->rows[read->row].sequence, .position = read->end - 1, .first = read->first, .reads = true},
            partials);
    }
    if (!batch->local_count)
        return STATUS_OK;
    status = kv_batch_plan(batch->kv, batch->kv_rows, batch->local_count, &bad, error);
    if (status)
        *bad_row = row_of_local(batch, bad);
    return status;
}

static void cpu_pool_reads(struct backend_batch *batch, const struct backend_read *reads, uint32_t count)
{
    assert_always(count <= batch->backend->config.max_rows);
    memcpy(batch->reads, reads, count * sizeof *reads);
    batch->next_read_count = count;
}

static float *cpu_pool_partials(struct backend_batch *batch) { return batch->partials; }

static enum status cpu_begin(struct backend_batch *batch, const struct backend_row *rows, uint32_t row_count, uint32_t *bad_row,
                             struct error *error)
{
    struct backend *backend = batch->backend;
    enum status status;

    assert_always(row_count <= backend->config.max_rows);
    memcpy(batch->rows, rows, row_count * sizeof *rows);
    batch->row_count = row_count;
    batch->read_count = batch->next_read_count;
    batch->next_read_count = 0;
    batch->kv_only_count = 0;
    for (uint32_t row = 0; row < row_count; row++) {
        *bad_row = row;
        batch->place[row] = row;
        batch->kv_only_count += !rows[row].needs_output;
        if (rows[row].token >= backend->shape.vocab || rows[row].position >= backend->config.context_tokens)
            return error_set(error, STATUS_INVALID_ARGUMENT, "row %u: token %u or position %u out of range", row, rows[row].token,
                             rows[row].position);
    }
    status = plan_local(batch, bad_row, error);
    batch->joined = 0;
    batch->joins = !status && batch->local_count && batch->local_count == row_count && cpu_has_few(batch) &&
                   kv_batch_can_join(batch->kv);
    if (!status)
        cpu_stream_want(batch, 0);
    if (!status && backend->range.is_first)
        cpu_embed(batch);
    return status;
}

static void cpu_put_x(struct backend_batch *batch, const float *x)
{
    assert_always(!batch->backend->range.is_first);
    memcpy(batch->x, x, (size_t)batch->row_count * batch->backend->shape.hidden * sizeof *x);
}

static void cpu_get_x(struct backend_batch *batch, float *x)
{
    assert_always(!batch->backend->range.is_last);
    memcpy(x, batch->x, (size_t)batch->row_count * batch->backend->shape.hidden * sizeof *x);
}

static void cpu_expect(struct backend *backend) { thread_pool_wake(backend->config.pool); }

static bool cpu_done(struct backend_batch *batch)
{
    (void)batch;
    return true;
}

static void cpu_pool_release(struct backend *backend, uint64_t sequence)
{
    if (backend->kv)
        kv_store_free(backend->kv, sequence);
}

static enum status cpu_pool_share(struct backend *backend, uint64_t from, uint32_t positions, uint64_t to, struct error *error)
{
    if (!backend->kv)
        return error_set(error, STATUS_FAILED_PRECONDITION, "there is no local pool");
    return kv_store_share(backend->kv, from, positions, to, error);
}

static uint32_t cpu_pool_held(const struct backend *backend, struct kv_held *held, uint32_t capacity)
{
    uint32_t count = 0;
    struct kv_held item;

    if (!backend->kv)
        return 0;
    for (uint32_t at = 0; kv_store_next(backend->kv, &at, &item); count++)
        if (count < capacity)
            held[count] = item;
    return count;
}

static uint64_t cpu_pool_page_bytes(const struct backend *backend)
{
    const struct kv_shape shape = pool_shape(&backend->config, &backend->range);
    return backend->kv ? kv_page_bytes(&shape) : 0;
}

static enum status cpu_pool_export(struct backend *backend, uint64_t sequence, uint32_t page_index, void *page, uint32_t *positions,
                                   struct error *error)
{
    if (!kv_store_export_page(backend->kv, sequence, page_index, page, positions))
        return STATUS_OK;
    return error_set(error, STATUS_NOT_FOUND, "page %u of sequence %llx is not held", page_index, (unsigned long long)sequence);
}

static enum status cpu_pool_import(struct backend *backend, uint64_t sequence, uint32_t page_index, const void *page,
                                   uint32_t positions, struct error *error)
{
    return kv_store_import_page(backend->kv, sequence, page_index, page, positions, error);
}

static bool cpu_pool_copied(struct backend *backend)
{
    (void)backend;
    return true;
}

static void cpu_pool_stop_copy(struct backend *backend) { (void)backend; }

const struct backend_ops backend_cpu = {
    .name = "cpu",
    .plan = cpu_plan,
    .open = cpu_open,
    .close = cpu_close,
    .info = cpu_info,
    .pool_retype = cpu_pool_retype,
    .batch_open = cpu_batch_open,
    .batch_close = cpu_batch_close,
    .begin = cpu_begin,
    .put_x = cpu_put_x,
    .get_x = cpu_get_x,
    .segment = cpu_segment,
    .turn = cpu_stream_turn,
    .hold = cpu_stream_hold,
    .end = cpu_stream_end,
    .pool_reads = cpu_pool_reads,
    .pool_partials = cpu_pool_partials,
    .attend = cpu_attend,
    .attended_ns = cpu_attended_ns,
    .head = cpu_head,
    .hidden = cpu_hidden,
    .expect = cpu_expect,
    .done = cpu_done,
    .pool_release = cpu_pool_release,
    .pool_share = cpu_pool_share,
    .pool_held = cpu_pool_held,
    .pool_page_bytes = cpu_pool_page_bytes,
    .pool_export = cpu_pool_export,
    .pool_import = cpu_pool_import,
    .pool_copied = cpu_pool_copied,
    .pool_stop_copy = cpu_pool_stop_copy,
};
