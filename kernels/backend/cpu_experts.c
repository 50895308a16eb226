// cpu_experts.c: the experts of a layer: each row goes through those that the router likes best.
//
//     h ─▶ router ─▶ choose: best experts of each row, softmax of their scores ─▶ sort: slots by expert
//       ─▶ gate, up, activation of each expert's slots ─▶ down ─▶ rows: sum of weight * what the slots give
//
// A slot is a row at one of its experts. Slots of one expert lie together, so its weights are read once for all of its rows, and those of an
// expert that no row has chosen are not read. A row's values do not depend on the other rows: slots are summed in the order of the row's
// own choice, the best expert first.
//
// With few rows (cpu_share.c) each thread chooses, sorts and quantizes for itself, and whoever computes outputs of `down` for all experts
// sums them, so that three barriers are left: router | choose, sort, gather, gate, up, activation | quantize, down, sum.
#include <math.h>
#include <string.h>

#include "common/base/checked.h"
#include "kernels/backend/cpu_claim.h"
#include "kernels/backend/cpu_internal.h"

// Chooses the best experts of a row, of equal ones the first. Their weights are the softmax of their scores, or their part of the softmax of all
// scores.
static void choose(const struct model_shape *shape, const float *scores, uint32_t *chosen, float *weight)
{
    const uint32_t experts = shape->experts, used = shape->experts_used;
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
    if (shape->router_softmax_all) {
        sum = 0;
        for (uint32_t e = 0; e < experts; e++)
            sum += expf(scores[e] - scores[chosen[0]]);
    }
    for (uint32_t i = 0; i < used; i++)
        weight[i] /= sum;
}

static void phase_choose(const struct cpu_share *share)
{
    const struct model_shape *shape = &share->batch->backend->shape;
    struct cpu_experts *x = share->experts;
    struct claim claim = cpu_share_claim(share, share->batch->row_count);

    for (uint32_t begin, count; claim_range(&claim, &begin, &count);)
        for (uint32_t row = begin; row < begin + count; row++)
            choose(shape, x->scores + (size_t)row * shape->experts, x->chosen + (size_t)row * shape->experts_used,
                   x->weight + (size_t)row * shape->experts_used);
    cpu_share_end(share);
}

// Gives each row at each of its experts a slot; `chosen` becomes the slots.
static void phase_sort(const struct cpu_share *share)
{
    const struct model_shape *shape = &share->batch->backend->shape;
    struct cpu_experts *x = share->experts;
    uint32_t pairs = share->batch->row_count * shape->experts_used;

    if (share->few || share->thread_index == 0) {
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
    cpu_share_end(share);
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

static struct quantized_rows slots_of(const struct cpu_share *share, const float *values, uint32_t width)
{
    struct quantized_rows x;
    quantized_rows_init(&x, share->experts->quant, share->slot_capacity, width);
    quantized_rows_source(&x, values, width);
    return x;
}

// The rows of h to their slots, quantized or as they are, as gate and up read them.
static void phase_gather(const struct cpu_share *share, const struct cpu_layer *layer, uint32_t slots)
{
    const struct cpu_experts *e = share->experts;
    const uint32_t hidden = share->batch->backend->shape.hidden;
    struct claim claim = cpu_share_claim(share, slots);
    struct quantized_rows from, to = slots_of(share, NULL, hidden);

    quantized_rows_init(&from, share->quant, share->row_capacity, hidden);
    for (uint32_t begin, count; claim_range(&claim, &begin, &count);)
        for (uint32_t slot = begin; slot < begin + count; slot++) {
            if (reads_floats(&layer->gate) || reads_floats(&layer->up))
                memcpy(e->in + (size_t)slot * hidden, share->h + (size_t)e->row[slot] * hidden, hidden * sizeof(float));
            if (!reads_floats(&layer->gate) || !reads_floats(&layer->up))
                copy_quantized(&from, e->row[slot], &to, slot);
        }
    cpu_share_end(share);
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
static void phase_dense(const struct cpu_share *share, const struct cpu_product *products, uint32_t product_count, bool activate)
{
    struct backend_batch *batch = share->batch;
    const struct cpu_experts *e = share->experts;
    const uint32_t experts = batch->backend->shape.experts;
    const struct cpu_columns columns = cpu_columns_of(batch->backend, products[0].linear->outputs / experts, share->thread_index);

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
static void phase_products(const struct cpu_share *share, const struct cpu_product *products, uint32_t product_count, bool activate)
{
    struct backend_batch *batch = share->batch;
    const struct backend *backend = batch->backend;
    const struct cpu_experts *e = share->experts;
    const uint32_t experts = backend->shape.experts, tiles = products[0].linear->outputs / experts / PACK_TILE_OUTPUTS;
    uint32_t begin, count;

    if (backend->dense) {
        phase_dense(share, products, product_count, activate);
        return;
    }
    const struct quantized_rows x = slots_of(share, products[0].in, products[0].linear->inputs);
    struct claim claim =
        claim_begin(backend->config.pool, share->thread_index, e->active_count * tiles, batch->row_count <= CLAIM_FEW_ROWS);
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

static void phase_quantize(const struct cpu_share *share, uint32_t slots)
{
    const struct quantized_rows x = slots_of(share, share->batch->gate, share->batch->backend->shape.ffn);
    struct claim claim = cpu_share_claim(share, slots);

    for (uint32_t begin, count; claim_range(&claim, &begin, &count);)
        kernels->quantize_rows(&x, begin, count);
    cpu_share_end(share);
}

// Columns of what a row's slots give, summed, to x or h.
static void sum_slots(const struct cpu_share *share, uint32_t row, uint32_t column, uint32_t columns, enum gemm_store store,
                      float *to)
{
    const struct model_shape *shape = &share->batch->backend->shape;
    const struct cpu_experts *e = share->experts;
    const uint32_t hidden = shape->hidden, used = shape->experts_used;
    const uint32_t *slot = e->chosen + (size_t)row * used;
    const float *weight = e->weight + (size_t)row * used;
    float *sum = e->out + (size_t)slot[0] * hidden + column;

    to += (size_t)row * hidden + column;
    kernels->scale(sum, weight[0], columns);
    for (uint32_t i = 1; i < used; i++) {
        float *out = e->out + (size_t)slot[i] * hidden + column;
        kernels->scale(out, weight[i], columns);
        kernels->add(sum, out, columns);
    }
    if (store == GEMM_ADD)
        kernels->add(to, sum, columns);
    else
        memcpy(to, sum, columns * sizeof *sum);
}

static void phase_sum(const struct cpu_share *share, enum gemm_store store, float *to)
{
    struct claim claim = cpu_share_claim(share, share->batch->row_count);

    for (uint32_t begin, count; claim_range(&claim, &begin, &count);)
        for (uint32_t row = begin; row < begin + count; row++)
            sum_slots(share, row, 0, share->batch->backend->shape.hidden, store, to);
    cpu_share_end(share);
}

// `down` of few rows: a claimed range of outputs for all experts, then their sums.
static void phase_down_sum(const struct cpu_share *share, const struct cpu_product *down, enum gemm_store store, float *to)
{
    const struct backend *backend = share->batch->backend;
    const struct cpu_experts *e = share->experts;
    const struct quantized_rows x = slots_of(share, down->in, down->linear->inputs);
    const uint32_t tiles = backend->shape.hidden / PACK_TILE_OUTPUTS;
    struct claim claim = claim_begin(backend->config.pool, share->thread_index, tiles, true);

    for (uint32_t begin, count; claim_range(&claim, &begin, &count);) {
        for (uint32_t i = 0; i < e->active_count; i++)
            expert_tiles(e, down, &x, backend->shape.experts, e->active[i], begin, count);
        for (uint32_t row = 0; row < share->batch->row_count; row++)
            sum_slots(share, row, begin * PACK_TILE_OUTPUTS, count * PACK_TILE_OUTPUTS, store, to);
    }
    thread_pool_barrier(backend->config.pool);
}

void cpu_experts(const struct cpu_share *share, const struct cpu_layer *layer, enum gemm_store store, float *to)
{
    struct backend_batch *batch = share->batch;
    const struct model_shape *shape = &batch->backend->shape;
    struct cpu_experts *e = share->experts;
    const uint32_t slots = batch->row_count * shape->experts_used;
    const struct cpu_product router = {.linear = &layer->router,
                                       .in = share->h,
                                       .in_stride = shape->hidden,
                                       .out = e->scores,
                                       .out_stride = shape->experts,
                                       .store = GEMM_SET};
    const struct cpu_product gate_up[] = {
        {.linear = &layer->gate,
         .in = e->in,
         .in_stride = shape->hidden,
         .out = batch->gate,
         .out_stride = shape->ffn,
         .store = GEMM_SET},
        {.linear = &layer->up,
         .in = e->in,
         .in_stride = shape->hidden,
         .out = batch->up,
         .out_stride = shape->ffn,
         .store = GEMM_SET},
    };
    const struct cpu_product down = {.linear = &layer->down,
                                     .in = batch->gate,
                                     .in_stride = shape->ffn,
                                     .out = e->out,
                                     .out_stride = shape->hidden,
                                     .store = GEMM_SET};

    cpu_share_products(share, &router, 1, NULL);
    cpu_share_publish(share);
    phase_choose(share);
    phase_sort(share);
    phase_gather(share, layer, slots);
    phase_products(share, gate_up, 2, true);
    if (batch->backend->sections.quantized)
        phase_quantize(share, slots);
    if (share->few) {
        phase_down_sum(share, &down, store, to);
        return;
    }
    phase_products(share, &down, 1, false);
    phase_sum(share, store, to);
}
