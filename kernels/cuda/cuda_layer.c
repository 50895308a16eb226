// cuda_layer.c: the kernels and products of a segment, queued on the mini-batch's stream: what a graph holds (cuda_graph.c). They run
// on the padded rows of the step (buckets.h). Padding rows begin as the embedding of token 0 at position 0 (or as zeros, in a stage that is given x), and their o is
// what an earlier step left. No row's result depends on another's, and those of padding rows are not read.
#include "kernels/cuda/cuda.h"

#include <math.h>

#include "common/base/checked.h"

enum status cuda_check_pieces(const struct model *model, struct error *error)
{
    const struct model_shape *s = &model->shape;
    const struct model_layer *first = &model->layers[0];
    const struct {
        bool lacks;
        const char *name;
    } pieces[] = {
        {s->norm != NORM_RMS, "norm"},
        {s->rope_style != ROPE_PAIRS && s->rope_style != ROPE_NEOX, "RoPE"},
        {s->activation != ACTIVATION_SILU || first->up.data == NULL, "activation"},
        {s->window != 0, "window of attention"},
        {s->experts != 0, "router of experts"},
        {first->q_norm.data || first->k_norm.data, "norm of q and k"},
        {first->post_attn_norm.data || first->post_ffn_norm.data || !first->attn_norm.data, "norm of what is added"},
        {first->gate_bias.data || first->up_bias.data || first->down_bias.data, "bias of the MLP"},
        {s->embedding_scale != 1 || s->residual_scale != 1, "scale of what is added"},
        {s->logit_scale != 1 || s->logit_soft_cap > 0, "scale of the logits"},
        {s->attention_soft_cap > 0 || first->sinks.data, "softmax"},
        {fabsf(s->attention_scale * sqrtf((float)s->head_dim) - 1) > 1e-6f, "scale of attention"},
    };
    const char *missing = NULL;

    for (size_t i = 0; !missing && i < ARRAY_COUNT(pieces); i++)
        missing = pieces[i].lacks ? pieces[i].name : NULL;
    for (uint32_t l = 0; !missing && l < s->layers; l++)
        missing = model->layers[l].roped ? NULL : "layer without RoPE";
    if (!missing)
        return STATUS_OK;
    return error_set(error, STATUS_UNIMPLEMENTED, "%s: the %s of architecture '%s' is not computed on CUDA",
                     gguf_label(model->gguf), missing, model->arch_name);
}

// These compute the pieces that an architecture's row names. cuda_check_pieces() refuses all others.
void cuda_norm(struct backend_batch *batch, const uint32_t *row_index, const float *weight, uint32_t rows)
{
    const struct model_shape *shape = &batch->backend->shape;

    gpu_rms_norm(batch->backend->type, batch->x, row_index, weight, shape->norm_epsilon, rows, shape->hidden, batch->h, batch->stream);
}

static void activate(struct backend_batch *batch)
{
    gpu_silu_mul(batch->backend->type, batch->gate_up, batch->padded_rows, batch->backend->shape.ffn, batch->act, batch->stream);
}

static void finish_layer(struct backend_batch *batch, const struct cuda_layer *layer)
{
    const struct backend *backend = batch->backend;
    const struct model_shape *shape = &backend->shape;
    uint32_t rows = batch->padded_rows;

    gpu_narrow(backend->type, batch->att, (size_t)rows * backend->q_width, batch->wide_o, batch->stream);
    cuda_product(batch, &layer->o, batch->wide_o, rows, batch->x, false, true);
    if (layer->o_bias)
        gpu_add_bias(batch->x, layer->o_bias, rows, shape->hidden, batch->stream);
    cuda_norm(batch, NULL, layer->ffn_norm, rows);
    cuda_product(batch, &layer->gate_up, batch->h, rows, batch->gate_up, true, false);
    activate(batch);
    cuda_product(batch, &layer->down, batch->act, rows, batch->x, false, true);
}

static void start_layer(struct backend_batch *batch, const struct cuda_layer *layer)
{
    const struct backend *backend = batch->backend;
    const struct model_shape *shape = &backend->shape;
    const struct gpu_rope rope = {
        .table = backend->rope_table,
        .position = batch->words + backend->config.max_rows,
        .heads = shape->heads,
        .kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
        .dims = shape->rope_dim,
        .neox = shape->rope_style == ROPE_NEOX,
    };

    cuda_norm(batch, NULL, layer->attn_norm, batch->padded_rows);
    cuda_product(batch, &layer->qkv, batch->h, batch->padded_rows, batch->qkv, false, false);
    gpu_rope(&rope, layer->q_bias, layer->k_bias, layer->v_bias, batch->padded_rows, batch->qkv, batch->stream);
}

void cuda_compute(struct backend_batch *batch, uint32_t s)
{
    const struct backend *backend = batch->backend;
    if (s > 0)
        finish_layer(batch, &backend->layers[s - 1]);
    if (s < backend->range.count)
        start_layer(batch, &backend->layers[s]);
}
