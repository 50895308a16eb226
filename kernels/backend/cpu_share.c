// cpu_share.c: the rows of a segment's phases without weights: shared by the threads, or, of few rows, done by each thread for itself.
//
//     many: rows claimed ─ barrier ─ tiles claimed ─ barrier      few: all rows, by every thread ─ tiles claimed ─ barrier
//
// A barrier costs about a microsecond, and more with more threads. Norming and quantizing a row takes as long on one thread while the
// others wait as on all of them at the same time, since with one row nothing is shared. What a thread makes so is its own: it reads x and
// the products' results, which are shared, and writes to memory that no other thread reads.
#include <string.h>

#include "common/base/alloc.h"
#include "common/base/checked.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/cpu_claim.h"
#include "kernels/backend/cpu_internal.h"

enum { ALIGN = 64 };

uint64_t cpu_expert_slots(const struct backend_config *config)
{
    return (uint64_t)config->max_rows * config->model->shape.experts_used * (config->model->shape.experts != 0);
}

bool cpu_experts_copy(const struct backend_config *config)
{
    bool copies = cpu_wants_dense(config);

    for (uint32_t i = 0; i < config->model->shape.layers; i++) {
        const struct tensor_view *views[] = {&config->model->layers[i].gate, &config->model->layers[i].up};
        for (size_t j = 0; j < ARRAY_COUNT(views); j++) {
            enum tensor_type type = views[j]->data ? loaded_type_of(config, views[j]) : TENSOR_Q8_0;
            copies |= type == TENSOR_F32 || type == TENSOR_F16 || type == TENSOR_BF16;
        }
    }
    return copies && cpu_expert_slots(config);
}

// The parts of a thread's own memory. Returns how many bytes they are together. own: where they begin; NULL only counts.
static uint64_t place_own(const struct backend_config *config, unsigned char *own, struct cpu_share *share,
                          struct cpu_experts *experts)
{
    const struct model_shape *shape = &config->model->shape;
    const uint64_t q_width = (uint64_t)shape->heads * shape->head_dim, kv_width = (uint64_t)shape->kv_heads * shape->head_dim;
    const uint32_t widest = MAX(MAX(shape->hidden, shape->ffn), (uint32_t)q_width);
    const uint64_t slots = shape->experts ? (uint64_t)CPU_FEW_ROWS * shape->experts_used : 0;
    const struct slice slices[] = {
        {(void **)&share->x, (uint64_t)CPU_FEW_ROWS * shape->hidden * sizeof(float)},
        {(void **)&share->h, CPU_FEW_ROWS * MAX(shape->hidden, q_width) * sizeof(float)}, // o lies there, too
        {(void **)&share->qk, CPU_FEW_ROWS * (q_width + kv_width) * sizeof(float)},
        {&share->quant, quantized_rows_bytes(CPU_FEW_ROWS, widest)},
        {(void **)&share->experts, slots ? sizeof *experts : 0},
        {(void **)&experts->chosen, slots * sizeof *experts->chosen},
        {(void **)&experts->weight, slots * sizeof *experts->weight},
        {(void **)&experts->row, slots * sizeof *experts->row},
        {(void **)&experts->first, slots ? (shape->experts + 1ull) * sizeof *experts->first : 0},
        {(void **)&experts->active, slots ? shape->experts * sizeof *experts->active : 0},
        {(void **)&experts->in, cpu_experts_copy(config) ? slots * shape->hidden * sizeof(float) : 0},
        {&experts->quant, slots ? quantized_rows_bytes((uint32_t)slots, MAX(shape->hidden, shape->ffn)) : 0},
    };

    if (own)
        slices_place(slices, ARRAY_COUNT(slices), ALIGN, own);
    return slices_bytes(slices, ARRAY_COUNT(slices), ALIGN);
}

uint64_t cpu_own_bytes(const struct backend_config *config)
{
    struct cpu_share unused;
    struct cpu_experts none;
    return place_own(config, NULL, &unused, &none);
}

bool cpu_has_few(const struct backend_batch *batch) { return !batch->backend->dense && batch->row_count <= CPU_FEW_ROWS; }

struct cpu_share cpu_share_of(struct backend_batch *batch, uint32_t thread_index, bool few)
{
    const struct backend *backend = batch->backend;
    struct cpu_share share = {.batch = batch,
                              .thread_index = thread_index,
                              .few = few,
                              .h = batch->h,
                              .att = batch->att,
                              .quant = batch->quant,
                              .experts = &batch->experts,
                              .row_capacity = backend->config.max_rows,
                              .slot_capacity = backend->config.max_rows * backend->shape.experts_used};
    struct cpu_experts experts = batch->experts; // scores and out are shared

    if (!few)
        return share;
    place_own(&backend->config, batch->own + thread_index * batch->own_bytes, &share, &experts);
    share.att = share.h;
    share.row_capacity = CPU_FEW_ROWS;
    share.slot_capacity = CPU_FEW_ROWS * backend->shape.experts_used;
    if (backend->shape.experts)
        *share.experts = experts;
    return share;
}

struct claim cpu_share_claim(const struct cpu_share *share, uint32_t item_count)
{
    return share->few ? claim_all(item_count)
                      : claim_begin(share->batch->backend->config.pool, share->thread_index, item_count, false);
}

void cpu_share_end(const struct cpu_share *share)
{
    if (!share->few)
        thread_pool_barrier(share->batch->backend->config.pool);
}

void cpu_share_publish(const struct cpu_share *share)
{
    struct backend_batch *batch = share->batch;

    if (share->few && batch->backend->apart && share->thread_index == 0)
        memcpy(batch->x, share->x, (size_t)batch->row_count * batch->backend->shape.hidden * sizeof *batch->x);
}

void cpu_quantize(const struct cpu_share *share, const float *in, size_t stride, uint32_t inputs, uint32_t begin, uint32_t count)
{
    struct quantized_rows x;

    if (!share->batch->backend->sections.quantized)
        return;
    quantized_rows_init(&x, share->quant, share->row_capacity, inputs);
    quantized_rows_source(&x, in, stride);
    kernels->quantize_rows(&x, begin, count);
}

void cpu_share_products(const struct cpu_share *share, const struct cpu_product *products, uint32_t product_count, const void *next)
{
    cpu_products(share->batch->backend, products, product_count, share->batch->row_count, share->quant, share->row_capacity,
                 share->thread_index, next);
}
