// loaded_type.c: see loaded_type.h.
#include "kernels/backend/loaded_type.h"

#include "common/base/checked.h"

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
