// model_shape.c: reads an architecture's metadata into struct model_shape and checks every number against a limit and
// against the others.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/model/model_state.h"

struct reader {
    const struct gguf *gguf;
    const struct arch *arch;
    struct error *error;
    enum status status; // the first failure; later reads do nothing
    char key[GGUF_MAX_NAME_BYTES + 1];
};

static bool present(struct reader *reader, const char *suffix)
{
    snprintf(reader->key, sizeof reader->key, "%s.%s", reader->arch->name, suffix);
    return !reader->status && gguf_has(reader->gguf, reader->key);
}

// A key that is missing makes the file wrong, not the call.
static void fail_as_invalid(struct reader *reader)
{
    if (reader->status == STATUS_NOT_FOUND) {
        reader->status = STATUS_INVALID_ARGUMENT;
        if (reader->error)
            reader->error->status = STATUS_INVALID_ARGUMENT;
    }
}

// A required number from minimum to maximum.
static uint32_t read_u32(struct reader *reader, const char *suffix, uint32_t minimum, uint32_t maximum)
{
    uint32_t value = 0;
    (void)present(reader, suffix);
    if (reader->status)
        return minimum;
    reader->status = gguf_get_u32(reader->gguf, reader->key, &value, reader->error);
    fail_as_invalid(reader);
    if (!reader->status && (value < minimum || value > maximum))
        reader->status = error_set(reader->error, STATUS_INVALID_ARGUMENT, "%s: key '%s' is %u, expected %u to %u",
                                   gguf_label(reader->gguf), reader->key, value, minimum, maximum);
    return reader->status ? minimum : value;
}

static uint32_t read_u32_or(struct reader *reader, const char *suffix, uint32_t minimum, uint32_t maximum, uint32_t fallback)
{
    return present(reader, suffix) ? read_u32(reader, suffix, minimum, maximum) : fallback;
}

// A number from minimum to maximum (NaN is neither); required if fallback is NaN.
static float read_f32_or(struct reader *reader, const char *suffix, float minimum, float maximum, float fallback)
{
    float value = fallback;
    if (!present(reader, suffix) && !isnan(fallback))
        return fallback;
    if (reader->status)
        return minimum;
    reader->status = gguf_get_f32(reader->gguf, reader->key, &value, reader->error);
    fail_as_invalid(reader);
    if (!reader->status && !(value >= minimum && value <= maximum))
        reader->status = error_set(reader->error, STATUS_INVALID_ARGUMENT, "%s: key '%s' is %g, expected %g to %g",
                                   gguf_label(reader->gguf), reader->key, (double)value, (double)minimum, (double)maximum);
    return value;
}

// Keys that would change the answer must say that they do not.
static void check_neutral(struct reader *reader)
{
    for (const struct arch_neutral *neutral = reader->arch->neutral; neutral->suffix; neutral++) {
        uint32_t value = 0;
        bool truth;
        if (!present(reader, neutral->suffix))
            continue;
        if (gguf_get_bool(reader->gguf, reader->key, &truth, NULL) == STATUS_OK)
            value = truth;
        else if ((reader->status = gguf_get_u32(reader->gguf, reader->key, &value, reader->error)))
            return;
        if (value != neutral->value) {
            reader->status = error_set(reader->error, STATUS_UNIMPLEMENTED, "%s: key '%s' is %u: %s", gguf_label(reader->gguf),
                                       reader->key, value, neutral->reason);
            return;
        }
    }
}

static bool string_is(struct gguf_string string, const char *text)
{
    return string.length == strlen(text) && memcmp(string.data, text, string.length) == 0;
}

// rope.scaling.type: none or linear. Older files have rope.scale_linear alone. Factors per frequency (llama3) are a
// tensor instead.
static void read_rope_scaling(struct reader *reader, struct model_shape *shape)
{
    static const float least = 0x1p-20f, most = 0x1p20f;
    struct gguf_string type = {"none", 4};
    char shown[32];
    float factor = 1;

    if (present(reader, "rope.scaling.type"))
        reader->status = gguf_get_string(reader->gguf, reader->key, &type, reader->error);
    if (reader->status)
        return;
    if (!string_is(type, "none") && !string_is(type, "linear")) {
        reader->status = error_set(reader->error, STATUS_UNIMPLEMENTED,
                                   "%s: key '%s' is '%s': supported are none, linear, and factors in rope_freqs.weight",
                                   gguf_label(reader->gguf), reader->key, gguf_printable(shown, sizeof shown, type));
        return;
    }
    factor = read_f32_or(reader, "rope.scale_linear", least, most, factor);
    if (string_is(type, "linear"))
        factor = read_f32_or(reader, "rope.scaling.factor", least, most, factor);
    shape->rope_freq_scale = 1 / factor;
}

static void read_heads(struct reader *reader, struct model_shape *shape)
{
    const char *label = gguf_label(reader->gguf);

    shape->heads = read_u32(reader, "attention.head_count", 1, MODEL_MAX_HEADS);
    shape->kv_heads = read_u32_or(reader, "attention.head_count_kv", 1, MODEL_MAX_HEADS, shape->heads);
    if (reader->status)
        return;
    if (shape->heads % shape->kv_heads != 0) {
        reader->status = error_set(reader->error, STATUS_INVALID_ARGUMENT,
                                   "%s: key '%s.attention.head_count_kv' is %u, which does not divide the %u heads", label,
                                   reader->arch->name, shape->kv_heads, shape->heads);
        return;
    }
    if (!present(reader, "attention.key_length") && shape->hidden % shape->heads != 0) {
        reader->status =
            error_set(reader->error, STATUS_INVALID_ARGUMENT,
                      "%s: key '%s.embedding_length' is %u, not a multiple of the %u heads, and there is no attention.key_length",
                      label, reader->arch->name, shape->hidden, shape->heads);
        return;
    }
    shape->head_dim = read_u32_or(reader, "attention.key_length", 2, MODEL_MAX_HEAD_DIM, shape->hidden / shape->heads);
    uint32_t value_dim = read_u32_or(reader, "attention.value_length", 2, MODEL_MAX_HEAD_DIM, shape->head_dim);
    if (!reader->status && (shape->head_dim < 2 || shape->head_dim > MODEL_MAX_HEAD_DIM || shape->head_dim % 2 != 0))
        reader->status = error_set(reader->error, STATUS_INVALID_ARGUMENT,
                                   "%s: heads of %u dimensions, expected an even number from 2 to %d", label, shape->head_dim,
                                   MODEL_MAX_HEAD_DIM);
    if (!reader->status && value_dim != shape->head_dim)
        reader->status =
            error_set(reader->error, STATUS_UNIMPLEMENTED,
                      "%s: key '%s.attention.value_length' is %u, the keys have %u dimensions: only equal ones are supported",
                      label, reader->arch->name, value_dim, shape->head_dim);
}

enum status model_read_shape(const struct gguf *gguf, const struct arch *arch, struct model_shape *shape, struct error *error)
{
    struct reader reader = {.gguf = gguf, .arch = arch, .error = error};

    check_neutral(&reader);
    *shape = (struct model_shape){.rope_style = arch->rope_style, .norm = arch->norm, .activation = arch->activation};
    shape->layers = read_u32(&reader, "block_count", 1, MODEL_MAX_LAYERS);
    shape->hidden = read_u32(&reader, "embedding_length", 1, MODEL_MAX_HIDDEN);
    shape->ffn = read_u32(&reader, "feed_forward_length", 1, MODEL_MAX_FFN);
    shape->context_length = read_u32(&reader, "context_length", 1, MODEL_MAX_CONTEXT);
    read_heads(&reader, shape);
    shape->rope_dim = read_u32_or(&reader, "rope.dimension_count", 2, MODEL_MAX_HEAD_DIM, shape->head_dim);
    if (!reader.status && (shape->rope_dim % 2 != 0 || shape->rope_dim > shape->head_dim))
        reader.status =
            error_set(error, STATUS_INVALID_ARGUMENT,
                      "%s: key '%s.rope.dimension_count' is %u, expected an even number up to the %u dimensions of a head",
                      gguf_label(gguf), arch->name, shape->rope_dim, shape->head_dim);
    shape->rope_base = read_f32_or(&reader, "rope.freq_base", 1, 1e12f, 10000);
    read_rope_scaling(&reader, shape);
    shape->norm_epsilon = read_f32_or(&reader, arch->epsilon_suffix, 1e-12f, 1, NAN);
    shape->vocab = read_u32_or(&reader, "vocab_size", 1, MODEL_MAX_VOCAB, 0); // 0: as many as there are tokens
    return reader.status;
}
