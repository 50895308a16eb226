// backend.c: answers that every backend takes from a configuration and a model: the layers that it has, the types in which it loads matrices,
// the shape of its KV.
#include "kernels/backend/backend.h"
#include "common/base/checked.h"
#include "common/model/model.h"

enum tensor_type loaded_type_of(const struct backend_config *config, const struct tensor_view *view)
{
    enum tensor_type wanted = config->quantize_bits == 4 ? TENSOR_Q4_1 : config->quantize_bits == 8 ? TENSOR_Q8_0 : view->type;
    bool is_float = view->type == TENSOR_F32 || view->type == TENSOR_F16 || view->type == TENSOR_BF16;

    return is_float && view->columns % tensor_type_info((uint32_t)wanted)->block_values == 0 ? wanted : view->type;
}

bool backend_quantizes(const struct model *model, uint32_t bits)
{
    const struct backend_config config = {.quantize_bits = bits};

    for (uint32_t i = 0; i < model->shape.layers; i++) {
        const struct model_layer *l = &model->layers[i];
        const struct tensor_view *views[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t j = 0; j < ARRAY_COUNT(views); j++)
            if (loaded_type_of(&config, views[j]) != views[j]->type)
                return true;
    }
    return false;
}

enum status loaded_type_check(const struct backend_config *config, struct error *error)
{
    const struct model *model = config->model;

    if (!config->quantize_bits || backend_quantizes(model, config->quantize_bits))
        return STATUS_OK;
    return error_set(error, STATUS_INVALID_ARGUMENT, "--quantize: %s has its matrices in %s already: leave it out",
                     gguf_label(model->gguf), tensor_type_info((uint32_t)model->layers[0].q.type)->name);
}

enum status layer_range_of(const struct backend_config *config, struct layer_range *out, struct error *error)
{
    const uint32_t layers = config->model->shape.layers, first = config->first_layer;
    const uint32_t count = config->layer_count || first >= layers ? config->layer_count : layers - first;

    if (first >= layers || count == 0 || count > layers - first)
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: layers %u to %u are asked for, the model has %u",
                         gguf_label(config->model->gguf), first, first + (count ? count - 1 : 0), layers);
    *out = (struct layer_range){.first = first, .count = count, .is_first = first == 0, .is_last = first + count == layers};
    return STATUS_OK;
}

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
