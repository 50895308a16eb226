// cpu_pieces.c: from what an architecture's row says to the kernels that compute it. A new piece is a case here.
#include "kernels/backend/cpu_internal.h"

static void rms_norm(const float *x, const float *weight, const float *bias, float epsilon, uint32_t n, float *out)
{
    (void)bias;
    kernels->rms_norm(x, weight, epsilon, n, out);
}

static void no_rope(float *x, uint32_t heads, uint32_t head_dim, uint32_t dims, const float *angles)
{
    (void)x, (void)heads, (void)head_dim, (void)dims, (void)angles;
}

enum status cpu_choose_pieces(const struct model *model, struct cpu_pieces *out, struct error *error)
{
    const struct model_shape *shape = &model->shape;

    assert_always(kernels); // kernels_init() comes first
    *out = (struct cpu_pieces){0};
    switch (shape->norm) {
    case NORM_RMS: out->norm = rms_norm; break;
    case NORM_LAYER: out->norm = kernels->layer_norm; break;
    }
    switch (shape->rope_style) {
    case ROPE_PAIRS: out->rope = kernels->rope_pairs; break;
    case ROPE_NEOX: out->rope = kernels->rope_neox; break;
    case ROPE_NONE: out->rope = no_rope; break;
    }
    switch (shape->activation) {
    case ACTIVATION_SILU: out->activation = kernels->silu_mul; break;
    case ACTIVATION_GELU: out->activation = kernels->gelu_mul; break;
    case ACTIVATION_GELU_PLAIN: out->activation = kernels->gelu; break;
    case ACTIVATION_RELU: out->activation = kernels->relu; break;
    case ACTIVATION_GPT_OSS: out->activation = kernels->gpt_oss_mul; break;
    }
    // a row whose activation multiplies by up must list such a matrix, and the others must not
    const bool multiplies = shape->activation != ACTIVATION_RELU && shape->activation != ACTIVATION_GELU_PLAIN;
    const bool fits = multiplies == (model->layers[0].up.data != NULL);
    const char *missing = !out->norm ? "norm" : !out->rope ? "RoPE" : !out->activation || !fits ? "activation" : NULL;
    if (!missing)
        return STATUS_OK;
    return error_set(error, STATUS_UNIMPLEMENTED, "%s: the %s of architecture '%s' is not computed on the CPU",
                     gguf_label(model->gguf), missing, model->arch_name);
}
