// model_shape.c: reads an architecture's metadata into struct model_shape and checks every number against a limit and
// against the others.
#include <math.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/model/model_state.h"
#include "common/model/shape_reader.h"

static const float SCALE_LEAST = 1e-6f, SCALE_MOST = 1e6f;

// Keys that would change the answer must say that they do not.
static void check_neutral(struct shape_reader *reader)
{
    for (const struct arch_neutral *neutral = reader->arch->neutral; neutral->suffix; neutral++) {
        uint32_t value = 0;
        bool truth;
        if (!shape_has(reader, neutral->suffix))
            continue;
        if (gguf_get_bool(reader->gguf, reader->key, &truth, NULL) == STATUS_OK)
            value = truth;
        else if ((reader->status = gguf_get_u32(reader->gguf, reader->key, &value, reader->error)))
            return;
        if (value != neutral->value)
            shape_fail(reader, STATUS_UNIMPLEMENTED, "key '%s' is %u: %s", reader->key, value, neutral->reason);
    }
}

// A key that only what was no GGUF file has.
static bool gguf_flag(const struct gguf *gguf, const char *key)
{
    bool value;
    return gguf_get_bool(gguf, key, &value, NULL) == STATUS_OK && value;
}

static void read_heads(struct shape_reader *reader, struct model_shape *shape)
{
    const char *arch = reader->arch->name;

    shape->heads = shape_u32(reader, "attention.head_count", 1, MODEL_MAX_HEADS);
    shape->kv_heads = shape_u32_or(reader, "attention.head_count_kv", 1, MODEL_MAX_HEADS, shape->heads);
    if (reader->status)
        return;
    if (shape->heads % shape->kv_heads != 0) {
        shape_fail(reader, STATUS_INVALID_ARGUMENT, "key '%s.attention.head_count_kv' is %u, which does not divide the %u heads",
                   arch, shape->kv_heads, shape->heads);
        return;
    }
    if (!shape_has(reader, "attention.key_length") && shape->hidden % shape->heads != 0) {
        shape_fail(reader, STATUS_INVALID_ARGUMENT,
                   "key '%s.embedding_length' is %u, not a multiple of the %u heads, and there is no attention.key_length", arch,
                   shape->hidden, shape->heads);
        return;
    }
    shape->head_dim = shape_u32_or(reader, "attention.key_length", 2, MODEL_MAX_HEAD_DIM, shape->hidden / shape->heads);
    uint32_t value_dim = shape_u32_or(reader, "attention.value_length", 2, MODEL_MAX_HEAD_DIM, shape->head_dim);
    if (shape->head_dim < 2 || shape->head_dim > MODEL_MAX_HEAD_DIM || shape->head_dim % 2 != 0)
        shape_fail(reader, STATUS_INVALID_ARGUMENT, "heads of %u dimensions, expected an even number from 2 to %d", shape->head_dim,
                   MODEL_MAX_HEAD_DIM);
    if (value_dim != shape->head_dim)
        shape_fail(reader, STATUS_UNIMPLEMENTED,
                   "key '%s.attention.value_length' is %u, the keys have %u dimensions: only equal ones are supported", arch,
                   value_dim, shape->head_dim);
}

static void read_scales(struct shape_reader *reader, struct model_shape *shape)
{
    float hidden = reader->arch->embedding_sqrt_hidden ? sqrtf((float)shape->hidden) : 1;
    float logits = shape_f32_or(reader, "logit_scale", SCALE_LEAST, SCALE_MOST, 1);
    uint32_t divisor = reader->arch->hidden_scale_layers == shape->layers ? shape->hidden / shape->heads : shape->head_dim;

    shape->embedding_scale = shape_f32_or(reader, "embedding_scale", SCALE_LEAST, SCALE_MOST, hidden);
    shape->residual_scale = shape_f32_or(reader, "residual_scale", SCALE_LEAST, SCALE_MOST, 1);
    shape->attention_scale = shape_f32_or(reader, "attention.scale", SCALE_LEAST, SCALE_MOST, 1 / sqrtf((float)MAX(divisor, 1u)));
    shape->attention_soft_cap = shape_f32_or(reader, "attn_logit_softcapping", 0, SCALE_MOST, reader->arch->usual_attention_cap);
    shape->logit_scale = reader->arch->logits_divided ? 1 / logits : logits;
    shape->logit_soft_cap = shape_f32_or(reader, "final_logit_softcapping", 0, SCALE_MOST, reader->arch->usual_logit_cap);
}

static void read_window(struct shape_reader *reader, struct model_shape *shape)
{
    shape->window = shape_u32_or(reader, "attention.sliding_window", 0, UINT32_MAX, reader->arch->usual_window);
    if (shape->window >= shape->context_length) // every row sees all
        shape->window = 0;
    if (shape->window && !reader->arch->window_period)
        shape_fail(reader, STATUS_UNIMPLEMENTED,
                   "key '%s.attention.sliding_window' is %u: this architecture's windows are not supported", reader->arch->name,
                   shape->window);
}

static void read_experts(struct shape_reader *reader, struct model_shape *shape)
{
    shape->experts = shape_u32_or(reader, "expert_count", 0, MODEL_MAX_EXPERTS, 0);
    if (shape->experts && !reader->arch->expert_tensors)
        shape_fail(reader, STATUS_UNIMPLEMENTED, "key '%s.expert_count' is %u: experts of this architecture are not supported",
                   reader->arch->name, shape->experts);
    if (shape->experts) {
        shape->experts_used = shape_u32(reader, "expert_used_count", 1, shape->experts);
        shape->ffn = shape_u32_or(reader, "expert_feed_forward_length", 1, MODEL_MAX_FFN, shape->ffn);
        if (shape_has(reader, "expert_weights_norm")) {
            bool is_normalized = true;
            reader->status = gguf_get_bool(reader->gguf, reader->key, &is_normalized, reader->error);
            shape->router_softmax_all = !is_normalized;
        }
    }
    if ((uint64_t)shape->experts * shape->ffn > MODEL_MAX_EXPERT_ROWS ||
        (uint64_t)shape->experts * shape->hidden > MODEL_MAX_EXPERT_ROWS)
        shape_fail(reader, STATUS_INVALID_ARGUMENT, "%u experts of %u values: at most %d rows together", shape->experts, shape->ffn,
                   MODEL_MAX_EXPERT_ROWS);
}

enum status model_read_shape(const struct gguf *gguf, const struct arch *arch, struct model_shape *shape, struct error *error)
{
    struct shape_reader reader = {.gguf = gguf, .arch = arch, .error = error};

    check_neutral(&reader);
    *shape = (struct model_shape){.rope_style = arch->rope_style,
                                  .norm = arch->norm,
                                  .activation = arch->activation,
                                  .positions_before = arch->positions_before};
    if (gguf_flag(gguf, "fastdecode.rope_halves") && shape->rope_style == ROPE_PAIRS)
        shape->rope_style = ROPE_NEOX;
    shape->norm_plus_one = gguf_flag(gguf, "fastdecode.norm_plus_one");
    shape->layers = shape_u32(&reader, "block_count", 1, MODEL_MAX_LAYERS);
    shape->hidden = shape_u32(&reader, "embedding_length", 1, MODEL_MAX_HIDDEN);
    shape->ffn = shape_has(&reader, "expert_feed_forward_length")
                     ? shape_u32_or(&reader, "feed_forward_length", 0, MODEL_MAX_FFN, 1)
                     : shape_u32(&reader, "feed_forward_length", 1, MODEL_MAX_FFN);
    shape->context_length = shape_u32(&reader, "context_length", 1, MODEL_MAX_CONTEXT);
    read_heads(&reader, shape);
    shape->rope_dim = shape_u32_or(&reader, "rope.dimension_count", 2, MODEL_MAX_HEAD_DIM, shape->head_dim);
    if (shape->rope_dim % 2 != 0 || shape->rope_dim > shape->head_dim)
        shape_fail(&reader, STATUS_INVALID_ARGUMENT,
                   "key '%s.rope.dimension_count' is %u, expected an even number up to the %u dimensions of a head", arch->name,
                   shape->rope_dim, shape->head_dim);
    read_window(&reader, shape);
    read_experts(&reader, shape);
    read_scales(&reader, shape);
    shape->norm_epsilon = shape_f32_or(&reader, arch->epsilon_suffix, 1e-12f, 1, NAN);
    shape->vocab = shape_u32_or(&reader, "vocab_size", 1, MODEL_MAX_VOCAB, 0); // 0: as many as there are tokens
    return reader.status;
}

// Says of each layer whether it is windowed and roped: by the row's periods, or by the file's own list or period of windows.
enum status model_read_layers(const struct gguf *gguf, const struct arch *arch, const struct model_shape *shape,
                              struct model_layer *layers, struct error *error)
{
    struct shape_reader reader = {.gguf = gguf, .arch = arch, .error = error};
    struct gguf_array listed = {0};
    uint32_t period = arch->window_period;

    if (shape->window && shape_has(&reader, "attention.sliding_window_pattern")) {
        if (gguf_get_integers(gguf, reader.key, &listed, NULL))
            period = shape_u32(&reader, "attention.sliding_window_pattern", 1, MODEL_MAX_LAYERS);
        else if (listed.count != shape->layers)
            shape_fail(&reader, STATUS_INVALID_ARGUMENT, "key '%s' has %llu elements, there are %u layers", reader.key,
                       (unsigned long long)listed.count, shape->layers);
    }
    for (uint32_t l = 0; !reader.status && l < shape->layers; l++) {
        bool windowed = !period        ? false
                        : listed.count ? gguf_array_integer(&listed, l) != 0
                                       : period == 1 || l % MAX(period, 1u) != period - 1;
        layers[l].windowed = shape->window && windowed; // with a window that no context exceeds there is none, but its angles
        layers[l].rope = windowed ? MODEL_ROPE_WINDOWED : MODEL_ROPE_WHOLE;
        layers[l].roped = shape->rope_style != ROPE_NONE && (!arch->rope_period || l % arch->rope_period != arch->rope_period - 1);
    }
    return reader.status;
}
