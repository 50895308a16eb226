// split_model.c: see split.h.
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/model/model.h"
#include "common/plan/split.h"

static uint64_t layer_bytes(const struct model_layer *layer)
{
    return layer->q.bytes + layer->k.bytes + layer->v.bytes + layer->o.bytes + layer->gate.bytes + layer->up.bytes +
           layer->down.bytes;
}

enum status plan_split_model(const struct model *model, uint32_t stages, struct plan_range *ranges, struct error *error)
{
    double slowest, *layers = calloc(model->shape.layers, sizeof *layers);

    assert_always(layers); // a few kilobytes
    for (uint32_t i = 0; i < model->shape.layers; i++)
        layers[i] = (double)layer_bytes(&model->layers[i]);
    const struct plan_split split = {
        .layer_us = layers, .layer_count = model->shape.layers, .head_us = (double)model->output.bytes, .stages = stages};
    enum status status = plan_split_layers(&split, ranges, &slowest, error);
    free(layers);
    return status;
}
