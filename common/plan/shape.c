// shape.c: see shape.h.
#include "common/plan/shape.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/base/checked.h"
#include "common/kv/kv_ledger.h"
#include "common/model/model.h"
#include "kernels/quant/tensor_type.h"

static const struct known {
    const char *name;
    uint32_t layers, hidden, heads, kv_heads, ffn, vocab;
    uint32_t ffn_matrices; // gate, up and down, or two
    bool tied;
} known[] = {
    {"llama-7b", 32, 4096, 32, 32, 11008, 32000, 3, false}, {"llama-13b", 40, 5120, 40, 40, 13824, 32000, 3, false},
    {"llama-70b", 80, 8192, 64, 8, 28672, 32000, 3, false}, {"opt-6.7b", 32, 4096, 32, 32, 16384, 50272, 2, true},
    {"opt-13b", 40, 5120, 40, 40, 20480, 50272, 2, true},   {"opt-30b", 48, 7168, 56, 56, 28672, 50272, 2, true},
    {"opt-66b", 64, 9216, 72, 72, 36864, 50272, 2, true},   {"opt-175b", 96, 12288, 96, 96, 49152, 50272, 2, true},
};

static const struct tensor_type_info *type_named(const char *name, uint32_t *type)
{
    for (*type = 0; *type < TENSOR_TYPE_END; ++*type) {
        const struct tensor_type_info *info = tensor_type_info(*type);
        if (info && !strcasecmp(info->name, name))
            return info;
    }
    return NULL;
}

enum status shape_named(const char *name, const char *type_name, struct plan_shape *out, struct error *error)
{
    uint32_t type;
    const struct tensor_type_info *info = type_named(type_name, &type);

    if (!info)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--weights is '%s', want one of " TENSOR_TYPES_SUPPORTED, type_name);
    for (size_t i = 0; i < ARRAY_COUNT(known); i++) {
        const struct known *k = &known[i];
        if (strcmp(k->name, name))
            continue;
        *out = (struct plan_shape){
            .layers = k->layers,
            .hidden = k->hidden,
            .heads = k->heads,
            .kv_heads = k->kv_heads,
            .head_dim = k->hidden / k->heads,
            .ffn = k->ffn,
            .vocab = k->vocab,
            .layer_values = 2ull * k->hidden * k->hidden * (k->heads + k->kv_heads) / k->heads +
                            (uint64_t)k->ffn_matrices * k->hidden * k->ffn,
            .head_values = (uint64_t)k->hidden * k->vocab,
            .quantized = info->block_values > 1,
        };
        snprintf(out->name, sizeof out->name, "%s %s", name, info->name);
        out->layer_bytes = out->layer_values / info->block_values * info->block_bytes;
        out->head_bytes = out->head_values / info->block_values * info->block_bytes;
        out->embedding_bytes = k->tied ? 0 : out->head_bytes;
        return STATUS_OK;
    }
    return error_set(error, STATUS_INVALID_ARGUMENT, "--shape is '%s', want one of " SHAPE_NAMES, name);
}

static void add(const struct tensor_view *view, uint64_t *values, uint64_t *bytes, uint64_t *quantized_bytes)
{
    *values += (uint64_t)view->rows * view->columns;
    *bytes += view->bytes;
    if (view->bytes && tensor_type_info(view->type)->block_values > 1)
        *quantized_bytes += view->bytes;
}

enum status shape_read(const char *path, struct plan_shape *out, struct error *error)
{
    enum { FIRST_OF_MLP = 4 };
    uint64_t values = 0, bytes = 0, quantized = 0, expert_values = 0, expert_bytes = 0, unused = 0;
    const char *slash = strrchr(path, '/');
    struct model *model;
    enum status status = model_open(path, &model, error);

    if (status)
        return status;
    const struct model_shape *s = &model->shape;
    *out = (struct plan_shape){
        .layers = s->layers,
        .hidden = s->hidden,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .ffn = s->ffn,
        .vocab = s->vocab,
        .embedding_bytes = model->tied ? 0 : model->embedding.bytes,
    };
    snprintf(out->name, sizeof out->name, "%s", slash ? slash + 1 : path);
    add(&model->output, &out->head_values, &out->head_bytes, &unused);
    for (uint32_t i = 0; i < s->layers; i++) {
        const struct model_layer *l = &model->layers[i];
        const struct tensor_view *views[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t j = 0; j < ARRAY_COUNT(views); j++)
            add(views[j], &values, &bytes, &quantized);
        for (size_t j = FIRST_OF_MLP; s->experts && j < ARRAY_COUNT(views); j++)
            add(views[j], &expert_values, &expert_bytes, &unused);
    }
    for (uint32_t i = 0; i < s->layers; i++)
        out->windowed_layers += model->layers[i].windowed;
    out->window = s->window;
    out->experts = s->experts;
    out->experts_used = s->experts_used;
    out->expert_values = expert_values / s->layers;
    out->expert_bytes = expert_bytes / s->layers;
    out->layer_values = values / s->layers;
    out->layer_bytes = bytes / s->layers;
    out->quantized = 2 * quantized > bytes;
    model_close(model);
    return STATUS_OK;
}

double shape_kv_bytes(const struct plan_shape *shape, enum kv_type type)
{
    return shape->kv_heads * (double)kv_tile_bytes(shape->head_dim, (enum kv_type)type) / KV_TILE;
}

double shape_link_bytes(const struct plan_shape *shape)
{
    return 4.0 * (2.0 * shape->heads + 2.0 * shape->kv_heads) * shape->head_dim;
}

uint32_t shape_ring_pages(const struct plan_shape *shape, uint32_t page_tokens, uint32_t context_tokens)
{
    return shape->windowed_layers == shape->layers ? kv_ring_pages_of(shape->window, page_tokens, context_tokens) : 0;
}
