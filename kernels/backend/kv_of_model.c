// kv_of_model.c: see kv_of_model.h.
#include "kernels/backend/kv_of_model.h"

struct kv_shape kv_shape_of_model(const struct model *model, uint32_t first_layer, uint32_t layer_count)
{
    const struct model_shape *shape = &model->shape;
    struct kv_shape out = {.layers = layer_count,
                           .heads = shape->heads,
                           .kv_heads = shape->kv_heads,
                           .head_dim = shape->head_dim,
                           .window = shape->window,
                           .soft_cap = shape->attention_soft_cap};

    out.all_windowed = shape->window > 0;
    for (uint32_t l = 0; l < shape->layers; l++)
        out.all_windowed = out.all_windowed && model->layers[l].windowed;
    for (uint32_t l = 0; shape->window && l < layer_count; l++)
        if (model->layers[first_layer + l].windowed)
            out.windowed[l / 64] |= 1ull << l % 64;
    return out;
}
