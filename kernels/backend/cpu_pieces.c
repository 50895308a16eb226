// cpu_pieces.c: from what an architecture's row says to the kernels that compute it. A new piece is a case here.
#include "kernels/backend/cpu_internal.h"

enum status cpu_choose_pieces(const struct model *model, struct cpu_pieces *out, struct error *error)
{
    const struct model_shape *shape = &model->shape;

    assert_always(kernels); // kernels_init() comes first
    *out = (struct cpu_pieces){0};
    switch (shape->norm) {
    case NORM_RMS: out->norm = kernels->rms_norm; break;
    }
    switch (shape->rope_style) {
    case ROPE_PAIRS: out->rope = kernels->rope_pairs; break;
    case ROPE_NEOX: out->rope = kernels->rope_neox; break;
    }
    switch (shape->activation) {
    case ACTIVATION_SILU_GATED: out->activation = kernels->silu_mul; break;
    }
    const char *missing = !out->norm ? "norm" : !out->rope ? "RoPE" : !out->activation ? "activation" : NULL;
    if (!missing)
        return STATUS_OK;
    return error_set(error, STATUS_UNIMPLEMENTED, "%s: the %s of architecture '%s' is not computed on the CPU",
                     gguf_label(model->gguf), missing, model->arch_name);
}
