// cuda_layer.c: the kernels and products of a segment, queued on the mini-batch's stream: what a graph holds (cuda_segment.c). They run
// on the padded rows of the step (gemm_choice.h). Padding rows begin as the embedding of token 0 at position 0 (or as zeros, in a stage that is given x), and their o is
// what an earlier step left. No row's result depends on another's, and those of padding rows are not read.
#include "kernels/cuda/cuda.h"

#include <math.h>

#include "common/base/checked.h"

// 1: nothing but what attention itself does, which may differ from the file's number in its last bits.
static float q_factor_of(const struct model_shape *shape)
{
    const float factor = shape->attention_scale * sqrtf((float)shape->head_dim);
    return fabsf(factor - 1) < 1e-6f ? 1 : factor;
}

enum status cuda_check_pieces(const struct model *model, struct error *error)
{
    const struct model_shape *s = &model->shape;
    const struct model_layer *first = &model->layers[0];
    const bool is_gated = first->up.data != NULL, norms_more = first->q_norm.data || first->post_attn_norm.data;
    const bool is_known_activation = is_gated ? s->activation == ACTIVATION_SILU || s->activation == ACTIVATION_GELU
                                              : s->activation == ACTIVATION_RELU || s->activation == ACTIVATION_GELU_PLAIN;
    const struct {
        bool lacks;
        const char *name;
    } pieces[] = {
        {s->window != 0, "window of attention"},
        {model_rope_tables(s) > 1, "RoPE of some layers apart from others"},
        {s->attention_soft_cap > 0, "soft cap of attention"},
        {first->sinks.data, "sinks of attention"},
        {s->experts != 0, "router of experts"},
        {(s->norm != NORM_RMS && (s->norm != NORM_LAYER || norms_more)) || s->norm_plus_one, "norm"},
        {s->rope_style != ROPE_PAIRS && s->rope_style != ROPE_NEOX && s->rope_style != ROPE_NONE, "RoPE"},
        {!is_known_activation, "activation"},
    };

    for (size_t i = 0; i < ARRAY_COUNT(pieces); i++)
        if (pieces[i].lacks)
            return error_set(error, STATUS_UNIMPLEMENTED, "%s: the %s of architecture '%s' is not computed on CUDA",
                             gguf_label(model->gguf), pieces[i].name, model->arch_name);
    return STATUS_OK;
}

bool cuda_adds_apart(const struct model *model)
{
    return model->shape.residual_scale != 1 || model->layers[0].post_attn_norm.data || model->layers[0].post_ffn_norm.data;
}

void cuda_choose_pieces(struct backend *backend)
{
    const struct model *model = backend->config.model;

    backend->apart = cuda_adds_apart(model);
    backend->q_factor = q_factor_of(&model->shape);
    backend->whole_heads = model->layers[0].q_norm.columns == backend->q_width;
}

// These compute the pieces that an architecture's row names. cuda_check_pieces() refuses all others.
void cuda_norm(struct backend_batch *batch, const uint32_t *row_index, const struct cuda_norm_weights *norm, uint32_t rows)
{
    const struct backend *backend = batch->backend;
    const struct model_shape *shape = &backend->shape;

    assert_always(norm->weight || !row_index);
    if (!norm->weight)
        gpu_narrow(backend->type, batch->x, (size_t)rows * shape->hidden, batch->h, batch->stream);
    else if (shape->norm == NORM_LAYER)
        gpu_layer_norm(backend->type, batch->x, row_index, norm->weight, norm->bias, shape->norm_epsilon, rows, shape->hidden,
                       batch->h, batch->stream);
    else
        gpu_rms_norm(backend->type, batch->x, row_index, norm->weight, shape->norm_epsilon, rows, shape->hidden, batch->h,
                     batch->stream);
}

static enum gpu_activation activation_of(const struct model_shape *shape)
{
    switch (shape->activation) {
    case ACTIVATION_GELU: return GPU_GELU;
    case ACTIVATION_GELU_PLAIN: return GPU_GELU_PLAIN;
    case ACTIVATION_RELU: return GPU_RELU;
    default: return GPU_SILU;
    }
}

static void activate(struct backend_batch *batch, const struct cuda_layer *layer)
{
    const struct backend *backend = batch->backend;
    const struct gpu_mlp mlp = {.activation = activation_of(&backend->shape),
                                .ffn = backend->shape.ffn,
                                .gate_up = batch->gate_up,
                                .gate_bias = layer->gate_bias,
                                .up_bias = layer->up_bias,
                                .out = batch->act};

    if (mlp.activation == GPU_SILU && !mlp.gate_bias && !mlp.up_bias)
        gpu_silu_mul(backend->type, batch->gate_up, batch->padded_rows, mlp.ffn, batch->act, batch->stream);
    else
        gpu_activate(backend->type, &mlp, batch->padded_rows, batch->stream);
}

// x += what attention or MLP gives: in the product itself where it is no more than a sum, and a bias.
static void add_product(struct backend_batch *batch, const struct cuda_linear *linear, const void *from, const float *bias,
                        const float *post_norm)
{
    const struct backend *backend = batch->backend;
    const struct model_shape *shape = &backend->shape;
    const struct gpu_residual residual = {
        .bias = bias, .norm = post_norm, .epsilon = shape->norm_epsilon, .factor = shape->residual_scale};
    const uint32_t rows = batch->padded_rows;

    if (backend->apart) {
        cuda_product(batch, linear, from, rows, batch->apart, false, false);
        gpu_add_scaled(&residual, rows, shape->hidden, batch->apart, batch->x, batch->stream);
        return;
    }
    cuda_product(batch, linear, from, rows, batch->x, false, true);
    if (bias)
        gpu_add_bias(batch->x, bias, rows, shape->hidden, batch->stream);
}

static void finish_layer(struct backend_batch *batch, const struct cuda_layer *layer)
{
    const struct backend *backend = batch->backend;
    uint32_t rows = batch->padded_rows;

    gpu_narrow(backend->type, batch->att, (size_t)rows * backend->q_width, batch->wide_o, batch->stream);
    add_product(batch, &layer->o, batch->wide_o, layer->o_bias, layer->post_attn_norm);
    cuda_norm(batch, NULL, &layer->ffn_norm, rows);
    cuda_product(batch, &layer->gate_up, batch->h, rows, batch->gate_up, true, false);
    activate(batch, layer);
    add_product(batch, &layer->down, batch->act, layer->down_bias, layer->post_ffn_norm);
}

// Biases, norms, RoPE and the scale of q and k in place. The scale comes before RoPE, which only turns what is scaled.
static void finish_qkv(struct backend_batch *batch, const struct cuda_layer *layer)
{
    const struct backend *backend = batch->backend;
    const struct model_shape *shape = &backend->shape;
    const bool takes_biases = layer->q_norm || layer->k_norm || backend->q_factor != 1;
    const float *q_bias = takes_biases ? NULL : layer->q_bias, *k_bias = takes_biases ? NULL : layer->k_bias;
    const struct gpu_heads heads = {
        .q_bias = layer->q_bias,
        .k_bias = layer->k_bias,
        .q_norm = layer->q_norm,
        .k_norm = layer->k_norm,
        .epsilon = shape->norm_epsilon,
        .q_factor = backend->q_factor,
        .heads = shape->heads,
        .kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
        .whole = backend->whole_heads,
    };
    const struct gpu_rope rope = {
        .table = backend->rope_table,
        .position = batch->words + backend->config.max_rows,
        .heads = shape->heads,
        .kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
        .dims = layer->roped ? shape->rope_dim : 0,
        .neox = shape->rope_style == ROPE_NEOX,
    };

    if (takes_biases)
        gpu_heads(&heads, batch->padded_rows, batch->qkv, batch->stream);
    if (rope.dims || q_bias || k_bias || layer->v_bias)
        gpu_rope(&rope, q_bias, k_bias, layer->v_bias, batch->padded_rows, batch->qkv, batch->stream);
}

static void start_layer(struct backend_batch *batch, const struct cuda_layer *layer)
{
    cuda_norm(batch, NULL, &layer->attn_norm, batch->padded_rows);
    cuda_product(batch, &layer->qkv, batch->h, batch->padded_rows, batch->qkv, false, false);
    finish_qkv(batch, layer);
}

void cuda_compute(struct backend_batch *batch, uint32_t s)
{
    const struct backend *backend = batch->backend;
    if (s > 0)
        finish_layer(batch, &backend->layers[s - 1]);
    if (s < backend->range.count)
        start_layer(batch, &backend->layers[s]);
}
