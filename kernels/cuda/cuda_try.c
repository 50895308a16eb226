/* cuda_try.c: the products that steps of the loaded model will ask for, with buffers to try them on: the first mini-batch's own, before
 * its first step. Every layer's matrix takes its turn, so that no run finds its weights in the cache of the one before. */
#include <stddef.h>
#include <stdlib.h>

#include "common/base/checked.h"
#include "kernels/cuda/cuda.h"

enum { OF_A_LAYER = 4 };

static struct gpu_trial trial_of(const struct cuda_linear *linear, const void *x, void *y, uint32_t rows, bool y_wide, bool add)
{
    return (struct gpu_trial){.product = {linear->weight, x, y, rows, linear->outputs, linear->inputs, y_wide, add}};
}

/* Those of a kind that are wide, layer by layer; returns how many. Others have no product of their own to try. */
static uint32_t wide_of(const struct backend *backend, size_t member, const void **out)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < backend->shape.layers; i++) {
        const struct cuda_linear *linear = (const void *)((const unsigned char *)&backend->layers[i] + member);
        if (linear->weight)
            out[count++] = linear->weight;
    }
    return count;
}

void cuda_try_products(struct backend_batch *batch)
{
    struct backend *backend = batch->backend;
    const uint32_t rows = backend->config.max_rows, layers = backend->shape.layers, head_rows = MIN((uint32_t)CUDA_HEAD_ROWS, rows);
    const struct cuda_layer *first = &backend->layers[0];
    const size_t members[OF_A_LAYER] = {offsetof(struct cuda_layer, qkv), offsetof(struct cuda_layer, o),
                                        offsetof(struct cuda_layer, gate_up), offsetof(struct cuda_layer, down)};
    const void **weights = calloc((size_t)OF_A_LAYER * layers + 1, sizeof *weights);
    struct gpu_trial trials[OF_A_LAYER + 1] = {
        trial_of(&first->qkv, batch->h, batch->qkv, rows, false, false),
        trial_of(&first->o, batch->wide_o, batch->x, rows, false, true),
        trial_of(&first->gate_up, batch->h, batch->gate_up, rows, true, false),
        trial_of(&first->down, batch->act, batch->x, rows, false, true),
        trial_of(&backend->output, batch->h, batch->logits, head_rows, false, false),
    };
    uint32_t count = 0;

    if (backend->products_tried || !weights) { /* without the list the library's guesses do */
        free(weights);
        return;
    }
    for (uint32_t i = 0; i <= OF_A_LAYER; i++) {
        const void **own = weights + (size_t)i * layers;
        trials[i].w = own;
        trials[i].w_count = i < OF_A_LAYER ? wide_of(backend, members[i], own) : backend->output.weight != NULL;
        if (i == OF_A_LAYER)
            own[0] = backend->output.weight;
        if (trials[i].w_count)
            trials[count++] = trials[i];
    }
    gpu_gemm_try(backend->gemm, trials, count, batch->workspace, batch->stream);
    backend->products_tried = true;
    free(weights);
}
