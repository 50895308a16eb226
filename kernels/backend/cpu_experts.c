// cpu_experts.c: the experts of a layer: each row goes through those that the router likes best.
//
//     h ─▶ router ─▶ choose: best experts of each row, softmax of their scores ─▶ sort: slots by expert
//       ─▶ gate, up, activation of each expert's slots ─▶ down ─▶ rows: sum of weight * what the slots give
//
// A slot is a row at one of its experts. Slots of one expert lie together, so its weights are read once for all of its rows, and those of an
// expert that no row has chosen are not read. A row's values do not depend on the other rows: slots are summed in the order of the row's
// own choice, the best expert first.
#include <math.h>
#include <string.h>

#include "common/base/checked.h"
#include "kernels/backend/cpu_claim.h"
#include "kernels/backend/cpu_internal.h"
#include "kernels/backend/loaded_type.h"

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

// The best experts of a row, of equal ones the first, and the softmax of their scores.
static void choose(const float *scores, uint32_t experts, uint32_t used, uint32_t *chosen, float *weight)
{
    float sum = 0;

    for (uint32_t i = 0; i < used; i++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t e = 0; e < experts; e++) {
            bool taken = false;
            for (uint32_t j = 0; j < i; j++)
                taken |= chosen[j] == e;
            if (!taken && (best == UINT32_MAX || scores[e] > scores[best]))
                best = e;
        }
        chosen[i] = best;
        weight[i] = expf(scores[best] - scores[chosen[0]]);
        sum += weight[i];
    }
    for (uint32_t i = 0; i < used; i++)
        weight[i] /= sum;
}

static void phase_choose(struct backend_batch *batch, uint32_t thread_index)
{
    const struct model_shape *shape = &batch->backend->shape;
    struct cpu_experts *x = &batch->experts;
    struct claim claim = claim_begin(batch->backend->config.pool, thread_index, batch->row_count, false);

    for (uint32_t begin, count; claim_range(&claim, &begin, &count);)
        for (uint32_t row = begin; row < begin + count; row++)
            choose(x->scores + (size_t)row * shape->experts, shape->experts, shape->experts_used,
                   x->chosen + (size_t)row * shape->experts_used, x->weight + (size_t)row * shape->experts_used);
    thread_pool_barrier(batch->backend->config.pool);
}

// Gives each row at each of its experts a slot; `chosen` becomes the slots.
static void phase_sort(struct backend_batch *batch, uint32_t thread_index)
{
    const struct model_shape *shape = &batch->backend->shape;
    struct cpu_experts *x = &batch->experts;
    uint32_t pairs = batch->row_count * shape->experts_used;

    if (thread_index == 0) {
        memset(x->first, 0, (shape->experts + 1) * sizeof *x->first);
        for (uint32_t i = 0; i < pairs; i++)
            x->first[x->chosen[i] + 1]++;
        x->active_count = 0;
        for (uint32_t e = 0; e < shape->experts; e++) {
            if (x->first[e + 1])
                x->active[x->active_count++] = e;
            x->first[e + 1] += x->first[e];
        }
        for (uint32_t i = 0; i < pairs; i++) {
            uint32_t slot = x->first[x->chosen[i]]++;
            x->row[slot] = i / shape->experts_used;
            x->chosen[i] = slot;
        }
        memmove(x->first + 1, x->first, shape->experts * sizeof *x->first); // they have moved to the next one's beginning
        x->first[0] = 0;
    }
    thread_pool_barrier(batch->backend->config.pool);
}

static void copy_quantized(const struct quantized_rows *from, uint32_t row, const struct quantized_rows *to, uint32_t slot)
{
    const struct quant_block *source = from->blocks + (size_t)(row / QUANT_BLOCK_ROWS) * from->group_count;
    struct quant_block *out = to->blocks + (size_t)(slot / QUANT_BLOCK_ROWS) * to->group_count;
    for (uint32_t group = 0; group < from->group_count; group++) {
        memcpy(out[group].q[slot % QUANT_BLOCK_ROWS], source[group].q[row % QUANT_BLOCK_ROWS], PACK_GROUP);
        out[group].part[slot % QUANT_BLOCK_ROWS] = source[group].part[row % QUANT_BLOCK_ROWS];
    }
}

// Whether a product reads its rows as they are.
static bool reads_floats(const struct cpu_linear *linear) { return !linear->packed.group_count; }

static struct quantized_rows slots_of(const struct backend_batch *batch, const float *values, uint32_t width)
{
    struct quantized_rows x;
    quantized_rows_init(&x, batch->experts.quant, (uint32_t)cpu_expert_slots(&batch->backend->config), width);
    quantized_rows_source(&x, values, width);
    return x;
}

// The rows of h to their slots, quantized or as they are, as gate and up read them.
static void phase_gather(struct backend_batch *batch, const struct cpu_layer *layer, uint32_t slots, uint32_t thread_index)
{
    const struct backend *backend = batch->backend;
    const uint32_t hidden = backend->shape.hidden;
    struct claim claim = claim_begin(backend->config.pool, thread_index, slots, false);
    struct quantized_rows from, to = slots_of(batch, NULL, hidden);

    quantized_rows_init(&from, batch->quant, backend->config.max_rows, hidden);
    for (uint32_t begin, count; claim_range(&claim, &begin, &count);)
        for (uint32_t slot = begin; slot < begin + count; slot++) {
            if (reads_floats(&layer->gate) || reads_floats(&layer->up))
                memcpy(batch->experts.in + (size_t)slot * hidden, batch->h + (size_t)batch->experts.row[slot] * hidden,
                       hidden * sizeof(float));
            if (!reads_floats(&layer->gate) || !reads_floats(&layer->up))
                copy_quantized(&from, batch->experts.row[slot], &to, slot);
        }
    thread_pool_barrier(backend->config.pool);
}

// One expert's part of a product of all experts, for all of its slots. The rows of `in` are slots.
static void expert_dense(const struct cpu_experts *e, const struct cpu_product *all, uint32_t experts, uint32_t expert,
                         struct cpu_columns columns)
{
    const struct cpu_linear own = cpu_linear_part(all->linear, expert, experts);
    const uint32_t first = e->first[expert];
    struct cpu_product product = *all;

    product.linear = &own;
    product.in += first * all->in_stride;
    product.out += first * all->out_stride;
    cpu_product_dense(&product, e->first[expert + 1] - first, columns);
}

static void expert_tiles(const struct cpu_experts *e, const struct cpu_product *all, const struct quantized_rows *x,
                         uint32_t experts, uint32_t expert, uint32_t tile, uint32_t tiles)
{
    const struct cpu_linear own = cpu_linear_part(all->linear, expert, experts);
    struct cpu_product product = *all;

    product.linear = &own;
    cpu_product_tiles(&product, x, e->first[expert], e->first[expert + 1] - e->first[expert], tile, tiles, NULL);
}

// The same by OpenBLAS: of each expert, a thread has a part of the outputs.
static void phase_dense(struct backend_batch *batch, const struct cpu_product *products, uint32_t product_count, bool activate,
                        uint32_t thread_index)
{
    const struct cpu_experts *e = &batch->experts;
    const uint32_t experts = batch->backend->shape.experts;
    const struct cpu_columns columns = cpu_columns_of(batch->backend, products[0].linear->outputs / experts, thread_index);

    for (uint32_t i = 0; i < e->active_count; i++) {
        const uint32_t expert = e->active[i], first = e->first[expert];
        for (uint32_t p = 0; p < product_count; p++)
            expert_dense(e, &products[p], experts, expert, columns);
        if (activate)
            cpu_activate(batch, first, e->first[expert + 1] - first, columns.first, columns.count);
    }
    thread_pool_barrier(batch->backend->config.pool);
}

// Products of all experts that have slots, each with equally many outputs. activate: of gate and up, by who has computed both.
static void phase_products(struct backend_batch *batch, const struct cpu_product *products, uint32_t product_count, bool activate,
                           uint32_t thread_index)
{
    const struct backend *backend = batch->backend;
    const struct cpu_experts *e = &batch->experts;
    const uint32_t experts = backend->shape.experts, tiles = products[0].linear->outputs / experts / PACK_TILE_OUTPUTS;
    uint32_t begin, count;

    if (backend->dense) {
        phase_dense(batch, products, product_count, activate, thread_index);
        return;
    }
    const struct quantized_rows x = slots_of(batch, products[0].in, products[0].linear->inputs);
    struct claim claim =
        claim_begin(backend->config.pool, thread_index, e->active_count * tiles, batch->row_count <= CLAIM_FEW_ROWS);
    while (claim_range(&claim, &begin, &count))
        for (uint32_t take; count; begin += take, count -= take) { // a range may go over several experts
            const uint32_t expert = e->active[begin / tiles], tile = begin % tiles, first = e->first[expert];
            take = MIN(count, tiles - tile);
            for (uint32_t p = 0; p < product_count; p++)
                expert_tiles(e, &products[p], &x, experts, expert, tile, take);
            if (activate)
                cpu_activate(batch, first, e->first[expert + 1] - first, tile * PACK_TILE_OUTPUTS, take * PACK_TILE_OUTPUTS);
        }
    thread_pool_barrier(backend->config.pool);
}

static void phase_quantize(struct backend_batch *batch, uint32_t slots, uint32_t thread_index)
{
    const struct quantized_rows x = slots_of(batch, batch->gate, batch->backend->shape.ffn);
    struct claim claim = claim_begin(batch->backend->config.pool, thread_index, slots, false);

    for (uint32_t begin, count; claim_range(&claim, &begin, &count);)
        kernels->quantize_rows(&x, begin, count);
    thread_pool_barrier(batch->backend->config.pool);
}

static void phase_sum(struct backend_batch *batch, enum gemm_store store, float *to, uint32_t thread_index)
{
    const struct model_shape *shape = &batch->backend->shape;
    const struct cpu_experts *e = &batch->experts;
    const uint32_t hidden = shape->hidden, used = shape->experts_used;
    struct claim claim = claim_begin(batch->backend->config.pool, thread_index, batch->row_count, false);

    for (uint32_t begin, count; claim_range(&claim, &begin, &count);)
        for (uint32_t row = begin; row < begin + count; row++) {
            const uint32_t *slot = e->chosen + (size_t)row * used;
            const float *weight = e->weight + (size_t)row * used;
            float *sum = e->out + (size_t)slot[0] * hidden;
            kernels->scale(sum, weight[0], hidden);
            for (uint32_t i = 1; i < used; i++) {
                float *out = e->out + (size_t)slot[i] * hidden;
                kernels->scale(out, weight[i], hidden);
                kernels->add(sum, out, hidden);
            }
            if (store == GEMM_ADD)
                kernels->add(to + (size_t)row * hidden, sum, hidden);
            else
                memcpy(to + (size_t)row * hidden, sum, hidden * sizeof *sum);
        }
    thread_pool_barrier(batch->backend->config.pool);
}

void cpu_experts(struct backend_batch *batch, const struct cpu_layer *layer, uint32_t thread_index, enum gemm_store store,
                 float *to)
{
    struct backend *backend = batch->backend;
    const struct model_shape *shape = &backend->shape;
    struct cpu_experts *e = &batch->experts;
    const uint32_t slots = batch->row_count * shape->experts_used;
    const struct cpu_product router = {&layer->router, batch->h, shape->hidden, e->scores, shape->experts, GEMM_SET};
    const struct cpu_product gate_up[] = {
        {&layer->gate, e->in, shape->hidden, batch->gate, shape->ffn, GEMM_SET},
        {&layer->up, e->in, shape->hidden, batch->up, shape->ffn, GEMM_SET},
    };
    const struct cpu_product down = {&layer->down, batch->gate, shape->ffn, e->out, shape->hidden, GEMM_SET};

    cpu_products(backend, &router, 1, batch->row_count, batch->quant, backend->config.max_rows, thread_index, NULL);
    phase_choose(batch, thread_index);
    phase_sort(batch, thread_index);
    phase_gather(batch, layer, slots, thread_index);
    phase_products(batch, gate_up, 2, true, thread_index);
    if (backend->sections.quantized)
        phase_quantize(batch, slots, thread_index);
    phase_products(batch, &down, 1, false, thread_index);
    phase_sum(batch, store, to, thread_index);
}
