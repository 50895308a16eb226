/* cuda_try.c: the products that steps of the loaded model will ask for, with buffers to try them on: the first mini-batch's own, before
 * its first step. Every layer's matrix takes its turn, so that no run finds its weights in the cache of the one before. */
#include <stdlib.h>

#include "common/base/checked.h"
#include "kernels/cuda/cuda.h"

enum { OF_A_LAYER = 4 };

static struct gpu_trial trial_of(const struct cuda_linear *linear, const void *x, void *y, uint32_t rows, bool y_wide, bool add)
{
    return (struct gpu_trial){.product = {linear->weight, x, y, rows, linear->outputs, linear->inputs, y_wide, add}};
}

void cuda_try_products(struct backend_batch *batch)
{
    struct backend *backend = batch->backend;
    const uint32_t rows = backend->config.max_rows, layers = backend->shape.layers, head_rows = MIN((uint32_t)CUDA_HEAD_ROWS, rows);
    const struct cuda_layer *first = &backend->layers[0];
    const void **weights = calloc((size_t)OF_A_LAYER * layers, sizeof *weights), *output = backend->output.weight;
    struct gpu_trial trials[OF_A_LAYER + 1] = {
        trial_of(&first->qkv, batch->h, batch->qkv, rows, false, false),
        trial_of(&first->o, batch->wide_o, batch->x, rows, false, true),
        trial_of(&first->gate_up, batch->h, batch->gate_up, rows, true, false),
        trial_of(&first->down, batch->act, batch->x, rows, false, true),
        trial_of(&backend->output, batch->h, batch->logits, head_rows, false, false),
    };

    if (backend->products_tried || !weights) { /* without the list the library's guesses do */
        free(weights);
        return;
    }
    for (uint32_t i = 0; i < layers; i++) {
        const struct cuda_layer *layer = &backend->layers[i];
        const void *const own[OF_A_LAYER] = {layer->qkv.weight, layer->o.weight, layer->gate_up.weight, layer->down.weight};
        for (uint32_t p = 0; p < OF_A_LAYER; p++)
            weights[p * layers + i] = own[p];
    }
    for (uint32_t p = 0; p < OF_A_LAYER; p++)
        trials[p].w = weights + p * layers, trials[p].w_count = layers;
    trials[OF_A_LAYER].w = &output, trials[OF_A_LAYER].w_count = 1;
    gpu_gemm_try(backend->gemm, trials, OF_A_LAYER + 1, batch->workspace, batch->stream);
    backend->products_tried = true;
    free(weights);
}
