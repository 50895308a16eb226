// layer_range.c: see layer_range.h.
#include "kernels/backend/layer_range.h"

#include "common/model/model.h"

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
