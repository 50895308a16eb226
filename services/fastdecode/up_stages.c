// up_stages.c: see up_stages.h. A decode step takes as long as its weights are read, so bytes stand for time here: those of a layer, and
// with the last stage those of the output matrix. (`fastdecode plan` measures instead.)
#include "services/fastdecode/up_stages.h"

#include <stdlib.h>

#include "common/base/checked.h"
#include "common/model/model.h"

static uint64_t layer_bytes(const struct model_layer *layer)
{
    return layer->q.bytes + layer->k.bytes + layer->v.bytes + layer->o.bytes + layer->gate.bytes + layer->up.bytes +
           layer->down.bytes;
}

enum status up_stages_split(const char *model_path, uint32_t stages, struct plan_range *ranges, struct error *error)
{
    struct model *model;
    double slowest, *layers;
    enum status status = model_open(model_path, &model, error);

    if (status)
        return status;
    layers = calloc(model->shape.layers, sizeof *layers);
    assert_always(layers); // a few kilobytes
    for (uint32_t i = 0; i < model->shape.layers; i++)
        layers[i] = (double)layer_bytes(&model->layers[i]);
    const struct plan_split split = {
        .layer_us = layers, .layer_count = model->shape.layers, .head_us = (double)model->output.bytes, .stages = stages};
    status = plan_split_layers(&split, ranges, &slowest, error);
    if (status)
        error_prefix(error, "--s-parts %u", stages);
    free(layers);
    model_close(model);
    return status;
}
