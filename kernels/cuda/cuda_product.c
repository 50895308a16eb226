// cuda_product.c: products with a linear's weights, wide or packed, and rows of the embedding: the one place that knows how weights lie.
//
// A linear is one or more matrices below each other (q, k, v may come in different forms), each a product of its own into its columns
// of y. Packed ones are multiplied as they are for few rows (quant.h); for more, a panel of outputs is expanded to the batch's panel
// and multiplied by gemm.h, then the next. Panels of a matrix are of one size, or nearly so, so that none is left too small to fill
// the device. Batch-invariant, packed ones are multiplied as they are for any number of rows: each 16 read them anew.
#include <stdlib.h>

#include "common/base/checked.h"
#include "kernels/cuda/cuda.h"

enum { WIDE_BYTES = 2, PANEL_STEP = 128 /* outputs: a tile of the GEMM, and y stays aligned */ };

uint32_t cuda_panel_outputs(const struct gpu_quant *quant, uint64_t panel_bytes)
{
    uint64_t most = panel_bytes / ((uint64_t)quant->inputs * WIDE_BYTES);
    if (most >= quant->outputs)
        return quant->outputs;
    if (most < PANEL_STEP)
        return (uint32_t)(most / GPU_TILE_OUTPUTS * GPU_TILE_OUTPUTS);
    most = most / PANEL_STEP * PANEL_STEP;
    uint64_t panels = (quant->outputs + most - 1) / most, even = (quant->outputs + panels - 1) / panels;
    return (uint32_t)MIN(most, (even + PANEL_STEP - 1) / PANEL_STEP * PANEL_STEP);
}

uint64_t cuda_panel_bytes(const struct gpu_quant *quant)
{
    uint64_t row_bytes = (uint64_t)quant->inputs * WIDE_BYTES;
    if (quant->form == GPU_WIDE)
        return 0;
    return MIN(quant->outputs * row_bytes, MAX(CUDA_PANEL_BYTES, GPU_TILE_OUTPUTS * row_bytes));
}

static void expand_and_multiply(struct backend_batch *batch, const struct gpu_quant *quant, struct gpu_product product)
{
    const struct backend *backend = batch->backend;
    const uint32_t at_once = cuda_panel_outputs(quant, batch->panel_bytes);
    unsigned char *y = product.y;

    assert_always(at_once);
    for (uint32_t first = 0; first < quant->outputs; first += at_once) {
        product.outputs = MIN(at_once, quant->outputs - first);
        product.w = batch->panel;
        product.y = y + first * (product.y_wide ? WIDE_BYTES : sizeof(float));
        gpu_quant_expand(backend->type, quant, first, product.outputs, batch->panel, batch->stream);
        gpu_gemm_run(backend->gemm, &product, batch->workspace, batch->stream);
    }
}

void cuda_product(struct backend_batch *batch, const struct cuda_linear *linear, const void *x, uint32_t rows, void *y, bool y_wide,
                  bool add)
{
    const struct backend *backend = batch->backend;
    unsigned char *to = y;

    for (uint32_t i = 0; i < linear->part_count; i++) {
        const struct gpu_quant *part = &linear->parts[i];
        if (part->form != GPU_WIDE && (rows <= GPU_QUANT_DIRECT_ROWS || backend->config.batch_invariant)) {
            const struct gpu_quant_product product = {
                .x = x, .y = to, .rows = rows, .y_stride = linear->outputs, .y_wide = y_wide, .add = add};
            gpu_quant_multiply(backend->type, part, &product, batch->stream);
        } else {
            const struct gpu_product product = {.w = part->data,
                                                .x = x,
                                                .y = to,
                                                .rows = rows,
                                                .outputs = part->outputs,
                                                .inputs = linear->inputs,
                                                .y_wide = y_wide,
                                                .add = add,
                                                .y_stride = linear->outputs};
            if (part->form == GPU_WIDE)
                gpu_gemm_run(backend->gemm, &product, batch->workspace, batch->stream);
            else
                expand_and_multiply(batch, part, product);
        }
        to += part->outputs * (y_wide ? WIDE_BYTES : sizeof(float));
    }
}

void cuda_embed(struct backend_batch *batch)
{
    const struct backend *backend = batch->backend;
    const struct model_shape *shape = &backend->shape;
    const struct gpu_quant *table = &backend->embedding.parts[0];

    if (table->form == GPU_WIDE)
        gpu_embed(backend->type, table->data, batch->words, batch->padded_rows, shape->hidden, batch->x, batch->stream);
    else
        gpu_quant_embed(table, batch->words, batch->padded_rows, batch->x, batch->stream);
    if (shape->embedding_scale != 1 || backend->positions)
        gpu_place(shape->embedding_scale, backend->positions, batch->words + backend->config.max_rows, batch->padded_rows,
                  shape->hidden, batch->x, batch->stream);
}

// --- trying the algorithms of the model's products ---
//
// The products that steps of the loaded model will ask for, with buffers to try them on: the first mini-batch's own, before
// its first step. Every layer's matrix takes its turn, so that no run finds its weights in the cache of the one before. Packed weights
// come through the panel that they are expanded to (cuda_product.c): all its panels but the last are of one size.

enum { OF_A_LAYER = 4, TRIES_MAX = 48, PANEL_PATTERN = 0x2c /* 0.065 in f16: neither NaN nor 0 */ };

// One of the matrices that each layer has, or the head's.
struct kind {
    const struct cuda_linear *linear; // of the first layer; in the others it stands at the same place
    const void *x;
    void *y;
    uint32_t rows, layers;
    bool y_wide, add;
};

struct tries {
    struct gpu_trial all[TRIES_MAX];
    uint32_t count;
    const void **weights; // [TRIES_MAX][w_most]
    uint32_t w_most;
};

// Finds or adds the trial of a shape. Layers of a file may be packed, and so cut, differently; a shape that is wide in one layer and a
// panel in another is run with the rows of both. NULL: there are too many, and the library's guesses must do for the rest.
static struct gpu_trial *trial_of(struct tries *t, const struct gpu_product *p, uint32_t least_rows)
{
    for (uint32_t i = 0; i < t->count; i++) {
        if (gpu_same_shape(&t->all[i].product, p)) {
            t->all[i].least_rows = MIN(t->all[i].least_rows, least_rows);
            return &t->all[i];
        }
    }
    if (t->count == TRIES_MAX)
        return NULL;
    struct gpu_trial *trial = &t->all[t->count];
    *trial = (struct gpu_trial){.product = *p, .w = t->weights + (size_t)t->count * t->w_most, .least_rows = least_rows};
    t->count++;
    return trial;
}

static void push(struct tries *t, const struct gpu_product *p, uint32_t least_rows, const void *w)
{
    struct gpu_trial *trial = trial_of(t, p, least_rows);
    if (trial && trial->w_count < t->w_most)
        t->weights[(size_t)(trial - t->all) * t->w_most + trial->w_count++] = trial->product.w = w;
}

static void try_panels(struct tries *t, struct gpu_product *p, const struct gpu_quant *packed, const struct backend_batch *batch)
{
    const uint32_t at_once = cuda_panel_outputs(packed, batch->panel_bytes), rest = packed->outputs % at_once;

    p->outputs = at_once;
    push(t, p, GPU_QUANT_DIRECT_ROWS + 1, batch->panel);
    p->outputs = rest;
    if (rest)
        push(t, p, GPU_QUANT_DIRECT_ROWS + 1, batch->panel);
}

// Adds the products of one layer's matrix.
static void try_linear(struct tries *t, const struct kind *kind, const struct cuda_linear *linear,
                       const struct backend_batch *batch)
{
    unsigned char *y = kind->y;

    for (uint32_t i = 0; i < linear->part_count; i++) {
        const struct gpu_quant *part = &linear->parts[i];
        struct gpu_product p = {.x = kind->x,
                                .y = y,
                                .rows = kind->rows,
                                .outputs = part->outputs,
                                .inputs = linear->inputs,
                                .y_wide = kind->y_wide,
                                .add = kind->add,
                                .y_stride = linear->outputs};
        if (part->form == GPU_WIDE)
            push(t, &p, 1, part->data);
        else if (!batch->backend->config.batch_invariant && kind->rows > GPU_QUANT_DIRECT_ROWS)
            try_panels(t, &p, part, batch);
        y += part->outputs * (kind->y_wide ? sizeof(uint16_t) : sizeof(float));
    }
}

void cuda_try_products(struct backend_batch *batch)
{
    struct backend *backend = batch->backend;
    const uint32_t rows = backend->config.max_rows, layers = backend->range.count;
    const struct cuda_layer *first = &backend->layers[0];
    const bool adds = !backend->apart;
    float *to = adds ? batch->x : batch->apart;
    const struct kind kinds[OF_A_LAYER + 1] = {
        {.linear = &first->qkv, .x = batch->h, .y = batch->qkv, .rows = rows, .layers = layers},
        {.linear = &first->o, .x = batch->wide_o, .y = to, .rows = rows, .layers = layers, .add = adds},
        {.linear = &first->gate_up, .x = batch->h, .y = batch->gate_up, .rows = rows, .layers = layers, .y_wide = true},
        {.linear = &first->down, .x = batch->act, .y = to, .rows = rows, .layers = layers, .add = adds},
        {.linear = &backend->output,
         .x = batch->h,
         .y = batch->logits,
         .rows = MIN((uint32_t)CUDA_HEAD_ROWS, rows),
         .layers = backend->range.is_last},
    };
    struct tries tries = {.w_most = layers, .weights = calloc((size_t)TRIES_MAX * layers, sizeof *tries.weights)};

    if (!backend->products_tried && tries.weights) { // without the list the library's guesses do
        if (batch->panel_bytes)
            cuda_must(cudaMemsetAsync(batch->panel, PANEL_PATTERN, batch->panel_bytes, batch->stream), "trying products");
        for (uint32_t i = 0; i < ARRAY_COUNT(kinds); i++)
            for (uint32_t layer = 0; layer < kinds[i].layers; layer++)
                try_linear(&tries, &kinds[i],
                           (const void *)((const unsigned char *)kinds[i].linear + layer * sizeof(struct cuda_layer)), batch);
        gpu_gemm_try(backend->gemm, tries.all, tries.count, batch->workspace, batch->stream);
        backend->products_tried = true;
    }
    free(tries.weights);
}
