// model_rope.c: the angles of RoPE: bases, and how frequencies are scaled for contexts longer than those of pre-training.
//
//   linear     all frequencies divided by a factor
//   factors    each divided by its own, from a tensor (llama3: rope_freqs.weight)
//   longrope   two such tensors: for contexts up to the original one, and beyond (Phi-3; arXiv 2402.13753)
//   yarn       high frequencies stay, low ones are divided, those between are mixed (arXiv 2309.00071)
//
// In windowed layers nothing is scaled if they have a base of their own.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/model/model_state.h"
#include "common/model/shape_reader.h"

static const float LEAST = 0x1p-20f, MOST = 0x1p20f;

static bool string_is(struct gguf_string string, const char *text)
{
    return string.length == strlen(text) && memcmp(string.data, text, string.length) == 0;
}

static enum status check_factors(const struct model *model, const struct tensor_view *view, struct error *error)
{
    const float *factors = view->data;

    if (!factors)
        return STATUS_OK;
    if (view->type != TENSOR_F32)
        return error_set(error, STATUS_UNIMPLEMENTED, "%s: tensor '%.*s' has type %s, expected F32", gguf_label(model->gguf),
                         (int)view->name_length, view->name, tensor_type_info(view->type)->name);
    for (uint32_t i = 0; i < view->columns; i++)
        if (!(isfinite(factors[i]) && factors[i] > 0))
            return error_set(error, STATUS_INVALID_ARGUMENT, "%s: tensor '%.*s': value %u is %g, expected a positive number",
                             gguf_label(model->gguf), (int)view->name_length, view->name, i, (double)factors[i]);
    return STATUS_OK;
}

// The index of the frequency that turns `turns` times within the original context.
static double yarn_index(const struct model_shape *shape, double base, double context, double turns)
{
    return shape->rope_dim * log(context / (turns * 6.283185307179586)) / (2 * log(base));
}

// Fills model->rope_made.
static void read_yarn(struct shape_reader *reader, struct model *model, float factor)
{
    const struct model_shape *shape = &model->shape;
    struct model_rope *rope = &model->shape.rope[MODEL_ROPE_WHOLE];
    double context = shape_u32_or(reader, "rope.scaling.original_context_length", 1, MODEL_MAX_CONTEXT,
                                  (uint32_t)MAX((float)shape->context_length / factor, 1.0f));
    double fast = (double)shape_f32_or(reader, "rope.scaling.yarn_beta_fast", LEAST, MOST, 32);
    double slow = (double)shape_f32_or(reader, "rope.scaling.yarn_beta_slow", LEAST, MOST, 1);
    float own = shape_f32_or(reader, "rope.scaling.attn_factor", LEAST, MOST, 1);
    double low = yarn_index(shape, (double)rope->base, context, fast), high = yarn_index(shape, (double)rope->base, context, slow);
    uint32_t count = shape->rope_dim / 2;

    if (reader->status)
        return;
    if (!(model->rope_made = calloc(count, sizeof *model->rope_made))) {
        shape_fail(reader, STATUS_RESOURCE_EXHAUSTED, "no memory for RoPE");
        return;
    }
    bool rounded = !reader->arch->yarn_between, said;
    if (gguf_get_bool(reader->gguf, "fastdecode.rope_yarn_truncate", &said, NULL) == STATUS_OK)
        rounded = said;
    if (rounded)
        low = floor(low), high = ceil(high);
    low = MAX(low, 0), high = MIN(high, shape->rope_dim - 1.0);
    for (uint32_t i = 0; i < count; i++) {
        double ramp = MIN(MAX((i - low) / MAX(high - low, 0.001), 0), 1);
        model->rope_made[i] = (float)(1 / (1 - ramp + ramp / (double)factor));
    }
    rope->factors = model->rope_made;
    rope->magnitude = own * (factor > 1 ? 0.1f * logf(factor) + 1 : 1);
}

static void read_scaling(struct shape_reader *reader, struct model *model)
{
    struct model_rope *rope = &model->shape.rope[MODEL_ROPE_WHOLE];
    struct gguf_string type = {"none", 4};
    char shown[32];
    float factor = 1;

    if (shape_has(reader, "rope.scaling.type"))
        reader->status = gguf_get_string(reader->gguf, reader->key, &type, reader->error);
    if (reader->status)
        return;
    if (!string_is(type, "none") && !string_is(type, "linear") && !string_is(type, "yarn") && !string_is(type, "longrope")) {
        shape_fail(reader, STATUS_UNIMPLEMENTED,
                   "key '%s' is '%s': supported are none, linear, yarn, longrope, and factors in rope_freqs.weight", reader->key,
                   gguf_printable(shown, sizeof shown, type));
        return;
    }
    factor = shape_f32_or(reader, "rope.scale_linear", LEAST, MOST, factor); // older files
    if (string_is(type, "linear") || string_is(type, "yarn"))
        factor = shape_f32_or(reader, "rope.scaling.factor", LEAST, MOST, factor);
    if (string_is(type, "yarn"))
        read_yarn(reader, model, factor);
    else
        rope->freq_scale = 1 / factor;
    if (model->rope_factors.data)
        rope->factors = model->rope_factors.data;
    if (!model->rope_factors_long.data)
        return;
    rope->factors_long = model->rope_factors_long.data;
    rope->long_context = shape_u32(reader, "rope.scaling.original_context_length", 1, MODEL_MAX_CONTEXT);
    rope->magnitude = shape_f32_or(reader, "rope.scaling.attn_factor", LEAST, MOST, 1);
}

enum status model_read_rope(struct model *model, struct error *error)
{
    struct shape_reader reader = {.gguf = model->gguf, .arch = model->arch, .error = error};
    struct model_rope *whole = &model->shape.rope[MODEL_ROPE_WHOLE], *windowed = &model->shape.rope[MODEL_ROPE_WINDOWED];
    float own = model->arch->window_rope_base;

    if ((reader.status = check_factors(model, &model->rope_factors, error)) ||
        (reader.status = check_factors(model, &model->rope_factors_long, error)))
        return reader.status;
    *whole = (struct model_rope){.freq_scale = 1, .magnitude = 1};
    whole->base = shape_f32_or(&reader, "rope.freq_base", 1, 1e12f, 10000);
    read_scaling(&reader, model);
    own = shape_f32_or(&reader, "rope.freq_base_swa", 1, 1e12f, own);
    *windowed = own > 0 ? (struct model_rope){.base = own, .freq_scale = 1, .magnitude = 1} : *whole;
    return reader.status;
}

struct rope_params model_rope_params(const struct model_shape *shape, uint32_t which, uint32_t context_tokens)
{
    const struct model_rope *rope = &shape->rope[which];
    bool is_long = rope->factors_long && context_tokens > rope->long_context;

    return (struct rope_params){.style = shape->rope_style,
                                .dims = shape->rope_dim,
                                .base = (double)rope->base,
                                .freq_scale = (double)rope->freq_scale,
                                .magnitude = (double)rope->magnitude,
                                .freq_factors = is_long ? rope->factors_long : rope->factors};
}

uint32_t model_rope_tables(const struct model_shape *shape)
{
    const struct model_rope *whole = &shape->rope[MODEL_ROPE_WHOLE], *windowed = &shape->rope[MODEL_ROPE_WINDOWED];
    bool alike = whole->base == windowed->base && whole->freq_scale == windowed->freq_scale && whole->factors == windowed->factors;
    return shape->rope_style == ROPE_NONE ? 0 : alike ? 1 : 2;
}
