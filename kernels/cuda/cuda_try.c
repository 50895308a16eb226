/* cuda_try.c: the products that steps of the loaded model will ask for, with buffers to try them on: the first mini-batch's own, before
 * its first step. Every layer's matrix takes its turn, so that no run finds its weights in the cache of the one before. Packed weights
 * come through the panel that they are expanded to (cuda_product.c): all its panels but the last are of one size. */
#include <stdlib.h>

#include "common/base/checked.h"
#include "kernels/cuda/cuda.h"

enum { OF_A_LAYER = 4, PANEL_PATTERN = 0x2c /* 0.065 in f16: neither NaN nor 0 */ };

/* A kind of linear. */
struct kind {
    const struct cuda_linear *linear; /* of the first layer; in the others it stands at the same place */
    const void *x;
    void *y;
    uint32_t rows, layers;
    bool y_wide, add;
};

struct tries {
    struct gpu_trial all[(OF_A_LAYER + 1) * CUDA_PARTS_MAX * 2];
    uint32_t count;
    const void **weights; /* room for those of each trial */
    uint32_t layers;
};

static struct gpu_trial *add_trial(struct tries *t, const struct kind *kind, void *y, uint32_t outputs)
{
    struct gpu_trial *trial = &t->all[t->count];
    trial->w = t->weights + (size_t)t->count++ * t->layers;
    trial->w_count = 0;
    trial->product = (struct gpu_product){
        NULL, kind->x, y, kind->rows, outputs, kind->linear->inputs, kind->y_wide, kind->add, kind->linear->outputs};
    return trial;
}

static void push(struct tries *t, struct gpu_trial *trial, const void *w)
{
    t->weights[(size_t)(trial - t->all) * t->layers + trial->w_count++] = trial->product.w = w;
}

/* The same part of every layer that has it wide and of this size. */
static void try_wide(struct tries *t, const struct kind *kind, uint32_t part, void *y)
{
    const struct gpu_quant *first = &kind->linear->parts[part];
    struct gpu_trial *trial = add_trial(t, kind, y, first->outputs);
    const unsigned char *at = (const unsigned char *)kind->linear;

    for (uint32_t layer = 0; layer < kind->layers; layer++, at += sizeof(struct cuda_layer)) {
        const struct cuda_linear *linear = (const void *)at;
        if (linear->parts[part].form == GPU_WIDE && linear->parts[part].outputs == first->outputs)
            push(t, trial, linear->parts[part].data);
    }
}

static void try_panels(struct tries *t, const struct kind *kind, uint32_t part, void *y, const struct backend_batch *batch)
{
    const struct gpu_quant *packed = &kind->linear->parts[part];
    const uint32_t at_once = cuda_panel_outputs(packed, batch->panel_bytes), rest = packed->outputs % at_once;

    push(t, add_trial(t, kind, y, at_once), batch->panel);
    if (rest)
        push(t, add_trial(t, kind, y, rest), batch->panel);
}

static void try_kind(struct tries *t, const struct kind *kind, const struct backend_batch *batch)
{
    unsigned char *y = kind->y;

    for (uint32_t i = 0; i < kind->linear->part_count; i++) {
        const struct gpu_quant *part = &kind->linear->parts[i];
        if (part->form == GPU_WIDE)
            try_wide(t, kind, i, y);
        else if (!batch->backend->config.batch_invariant && kind->rows > GPU_QUANT_DIRECT_ROWS)
            try_panels(t, kind, i, y, batch);
        y += part->outputs * (kind->y_wide ? sizeof(uint16_t) : sizeof(float));
    }
}

void cuda_try_products(struct backend_batch *batch)
{
    struct backend *backend = batch->backend;
    const uint32_t rows = backend->config.max_rows, layers = backend->shape.layers;
    const struct cuda_layer *first = &backend->layers[0];
    const struct kind kinds[OF_A_LAYER + 1] = {
        {&first->qkv, batch->h, batch->qkv, rows, layers, false, false},
        {&first->o, batch->wide_o, batch->x, rows, layers, false, true},
        {&first->gate_up, batch->h, batch->gate_up, rows, layers, true, false},
        {&first->down, batch->act, batch->x, rows, layers, false, true},
        {&backend->output, batch->h, batch->logits, MIN((uint32_t)CUDA_HEAD_ROWS, rows), 1, false, false},
    };
    struct tries tries = {.layers = layers, .weights = calloc(ARRAY_COUNT(tries.all) * layers, sizeof *tries.weights)};

    if (!backend->products_tried && tries.weights) { /* without the list the library's guesses do */
        if (batch->panel_bytes)
            cuda_must(cudaMemsetAsync(batch->panel, PANEL_PATTERN, batch->panel_bytes, batch->stream), "trying products");
        for (uint32_t i = 0; i < ARRAY_COUNT(kinds); i++)
            try_kind(&tries, &kinds[i], batch);
        gpu_gemm_try(backend->gemm, tries.all, tries.count, batch->workspace, batch->stream);
        backend->products_tried = true;
    }
    free(tries.weights);
}
