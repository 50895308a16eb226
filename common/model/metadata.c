// metadata.c: what a file's metadata says of a model: its shape, RoPE, what a tokenizer is built from, and pooling. Every number is checked
// against limits and against the others.
#include "common/model/metadata.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/checked.h"
#include "common/base/log.h"

// --- numbers within limits ------------------------------------------------------------------------------------------

struct shape_reader {
    const struct gguf *gguf;
    const struct arch *arch;
    struct error *error;
    enum status status; // the first failure; later reads do nothing
    char key[GGUF_MAX_NAME_BYTES + 1];
};

// Returns whether the file has "<name>.<suffix>", which becomes reader->key.
static bool shape_has(struct shape_reader *reader, const char *suffix)
{
    snprintf(reader->key, sizeof reader->key, "%s.%s", reader->arch->name, suffix);
    return !reader->status && gguf_has(reader->gguf, reader->key);
}

// A key that is missing makes the file wrong, not the call.
static void fail_as_invalid(struct shape_reader *reader)
{
    if (reader->status == STATUS_NOT_FOUND) {
        reader->status = STATUS_INVALID_ARGUMENT;
        if (reader->error)
            reader->error->status = STATUS_INVALID_ARGUMENT;
    }
}

// Reads a number from minimum to maximum, required or with a value if the key is missing.
static uint32_t shape_u32(struct shape_reader *reader, const char *suffix, uint32_t minimum, uint32_t maximum)
{
    uint32_t value = 0;
    (void)shape_has(reader, suffix);
    if (reader->status)
        return minimum;
    reader->status = gguf_get_u32(reader->gguf, reader->key, &value, reader->error);
    fail_as_invalid(reader);
    if (!reader->status && (value < minimum || value > maximum))
        reader->status = error_set(reader->error, STATUS_INVALID_ARGUMENT, "%s: key '%s' is %u, expected %u to %u",
                                   gguf_label(reader->gguf), reader->key, value, minimum, maximum);
    return reader->status ? minimum : value;
}

static uint32_t shape_u32_or(struct shape_reader *reader, const char *suffix, uint32_t minimum, uint32_t maximum, uint32_t fallback)
{
    return shape_has(reader, suffix) ? shape_u32(reader, suffix, minimum, maximum) : fallback;
}

// Likewise (NaN is neither); required if fallback is NaN.
static float shape_f32_or(struct shape_reader *reader, const char *suffix, float minimum, float maximum, float fallback)
{
    float value = fallback;
    if (!shape_has(reader, suffix) && !isnan(fallback))
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

// Sets reader->status and its error, unless there is one.
static void shape_fail(struct shape_reader *reader, enum status status, const char *format, ...)
{
    char text[sizeof reader->error->text];
    va_list args;

    if (reader->status)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    reader->status = error_set(reader->error, status, "%s: %s", gguf_label(reader->gguf), text);
}

// --- shape ----------------------------------------------------------------------------------------------------------

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

// Reads a key that only directories of other files have once they are translated.
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

// --- RoPE -----------------------------------------------------------------------------------------------------------

// The angles of RoPE: bases, and how frequencies are scaled for contexts longer than those of pre-training.
//
//   linear     all frequencies divided by a factor
//   factors    each divided by its own, from a tensor (llama3: rope_freqs.weight)
//   longrope   two such tensors: for contexts up to the original one, and beyond (Phi-3; arXiv 2402.13753)
//   yarn       high frequencies stay, low ones are divided, those between are mixed (arXiv 2309.00071)
//
// In windowed layers nothing is scaled if they have a base of their own.

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

// Returns the index of the frequency that turns `turns` times within the original context.
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

// --- tokenizer ------------------------------------------------------------------------------------------------------

// Counts and ids are checked to fit together. The rest that a kind of tokenizer needs (merges, scores) its own code checks.

struct tokenizer_reader {
    const struct gguf *gguf;
    struct error *error;
    enum status status; // the first failure; later reads do nothing
};

static bool key_wanted(const struct tokenizer_reader *reader, const char *key)
{
    return !reader->status && gguf_has(reader->gguf, key);
}

static void read_string(struct tokenizer_reader *reader, const char *key, struct gguf_string *out)
{
    *out = (struct gguf_string){"", 0};
    if (key_wanted(reader, key))
        reader->status = gguf_get_string(reader->gguf, key, out, reader->error);
}

typedef enum status get_array_fn(const struct gguf *gguf, const char *key, struct gguf_array *out, struct error *error);

// count: how many elements there must be; UINT64_MAX: any number.
static void read_array(struct tokenizer_reader *reader, const char *key, get_array_fn *get, uint64_t count, struct gguf_array *out)
{
    if (!key_wanted(reader, key))
        return;
    reader->status = get(reader->gguf, key, out, reader->error);
    if (!reader->status && count != UINT64_MAX && out->count != count)
        reader->status = error_set(reader->error, STATUS_INVALID_ARGUMENT,
                                   "%s: key '%s' has %" PRIu64 " elements, there are %" PRIu64 " tokens", gguf_label(reader->gguf),
                                   key, out->count, count);
}

// An id that lies outside the vocabulary would be looked up later. One that only ends an answer is left out: it never comes.
static void read_token(struct tokenizer_reader *reader, const char *key, uint32_t vocab, bool ends, uint32_t *out)
{
    *out = MODEL_NO_TOKEN;
    if (!key_wanted(reader, key))
        return;
    uint32_t id = 0;
    reader->status = gguf_get_u32(reader->gguf, key, &id, reader->error);
    if (!reader->status && id != MODEL_NO_TOKEN && id >= vocab && ends) {
        log_warn("END-IGNORED", "file=\"%s\" key=%s id=%u reason=\"there are %u tokens\"", gguf_label(reader->gguf), key, id,
                 vocab);
        return;
    }
    if (!reader->status && id != MODEL_NO_TOKEN && id >= vocab)
        reader->status = error_set(reader->error, STATUS_INVALID_ARGUMENT, "%s: key '%s' is %u, there are %u tokens",
                                   gguf_label(reader->gguf), key, id, vocab);
    *out = id;
}

static void read_flag(struct tokenizer_reader *reader, const char *key, bool *out, bool *known)
{
    *known = key_wanted(reader, key);
    if (*known)
        reader->status = gguf_get_bool(reader->gguf, key, out, reader->error);
}

static void read_tokens(struct tokenizer_reader *reader, uint32_t *vocab, struct gguf_array *tokens)
{
    static const char key[] = "tokenizer.ggml.tokens";
    const char *label = gguf_label(reader->gguf);

    if (!gguf_has(reader->gguf, key)) {
        reader->status =
            error_set(reader->error, STATUS_INVALID_ARGUMENT, "%s: key '%s' is missing: expected an array of strings", label, key);
        return;
    }
    reader->status = gguf_get_strings(reader->gguf, key, tokens, reader->error);
    if (reader->status)
        return;
    if (tokens->count == 0 || tokens->count > MODEL_MAX_VOCAB)
        reader->status = error_set(reader->error, STATUS_INVALID_ARGUMENT,
                                   "%s: key '%s' has %" PRIu64 " elements, expected 1 to %d", label, key, tokens->count,
                                   MODEL_MAX_VOCAB);
    else if (*vocab != 0 && *vocab != tokens->count)
        reader->status = error_set(reader->error, STATUS_INVALID_ARGUMENT,
                                   "%s: key '%s' has %" PRIu64 " elements, vocab_size is %u", label, key, tokens->count, *vocab);
    else
        *vocab = (uint32_t)tokens->count;
}

enum status model_read_tokenizer(const struct gguf *gguf, uint32_t *vocab, struct model_tokenizer *tokenizer, struct error *error)
{
    struct tokenizer_reader reader = {.gguf = gguf, .error = error};
    bool known;

    *tokenizer = (struct model_tokenizer){0};
    read_tokens(&reader, vocab, &tokenizer->tokens);
    read_string(&reader, "tokenizer.ggml.model", &tokenizer->kind);
    read_string(&reader, "tokenizer.ggml.pre", &tokenizer->pre);
    read_string(&reader, "tokenizer.chat_template", &tokenizer->chat_template);
    read_array(&reader, "tokenizer.ggml.token_type", gguf_get_integers, *vocab, &tokenizer->token_types);
    read_array(&reader, "fastdecode.token_flags", gguf_get_integers, *vocab, &tokenizer->token_flags);
    read_array(&reader, "tokenizer.ggml.scores", gguf_get_floats, *vocab, &tokenizer->scores);
    read_array(&reader, "tokenizer.ggml.merges", gguf_get_strings, UINT64_MAX, &tokenizer->merges);
    read_array(&reader, "fastdecode.end_token_ids", gguf_get_integers, UINT64_MAX, &tokenizer->end_tokens);
    read_token(&reader, "tokenizer.ggml.bos_token_id", *vocab, false, &tokenizer->bos);
    read_token(&reader, "tokenizer.ggml.eos_token_id", *vocab, true, &tokenizer->eos);
    read_token(&reader, "tokenizer.ggml.eot_token_id", *vocab, true, &tokenizer->eot);
    read_token(&reader, "tokenizer.ggml.eom_token_id", *vocab, true, &tokenizer->eom);
    read_token(&reader, "tokenizer.ggml.unknown_token_id", *vocab, false, &tokenizer->unknown);
    read_token(&reader, "tokenizer.ggml.padding_token_id", *vocab, false, &tokenizer->padding);
    read_flag(&reader, "tokenizer.ggml.add_bos_token", &tokenizer->add_bos, &tokenizer->add_bos_known);
    read_flag(&reader, "tokenizer.ggml.add_eos_token", &tokenizer->add_eos, &tokenizer->add_eos_known);
    read_flag(&reader, "tokenizer.ggml.add_space_prefix", &tokenizer->add_space_prefix, &tokenizer->add_space_prefix_known);
    read_flag(&reader, "fastdecode.prefix_at_start_only", &tokenizer->prefix_at_start_only, &known);
    read_flag(&reader, "fastdecode.prefix_unless_space", &tokenizer->prefix_unless_space, &known);
    read_flag(&reader, "fastdecode.spaces_last", &tokenizer->spaces_last, &known);
    return reader.status;
}

// --- pooling, and the tensors of a classification head --------------------------------------------------------------

struct head_tensor {
    const char *name;
    size_t offset;   // of the view in struct model
    bool is_matrix;  // with `hidden` columns
    bool of_outputs; // as many rows (or values) as there are outputs; otherwise `hidden`
};

static const struct head_tensor head_tensors[] = {
    {.name = "cls.weight", .offset = offsetof(struct model, cls), .is_matrix = true},
    {.name = "cls.bias", .offset = offsetof(struct model, cls_bias)},
    {.name = "cls.output.weight", .offset = offsetof(struct model, cls_output), .is_matrix = true, .of_outputs = true},
    {.name = "cls.output.bias", .offset = offsetof(struct model, cls_output_bias), .of_outputs = true},
};

bool model_is_head_tensor(struct gguf_string name)
{
    for (size_t i = 0; i < ARRAY_COUNT(head_tensors); i++)
        if (strlen(head_tensors[i].name) == name.length && memcmp(head_tensors[i].name, name.data, name.length) == 0)
            return true;
    return false;
}

// Reads which of two classes is "yes": the first, unless the file's labels say otherwise.
static enum status read_labels(struct model *model, struct error *error)
{
    struct gguf_array labels;
    struct gguf_strings strings;
    struct gguf_string label;
    char key[128];
    uint32_t index = 0;

    snprintf(key, sizeof key, "%s.classifier.output_labels", model->arch->name);
    if (model->pooling.outputs != 2 || gguf_get_strings(model->gguf, key, &labels, NULL))
        return STATUS_OK;
    strings = gguf_strings_of(&labels);
    while (gguf_next_string(&strings, &label) && index < 2) {
        if (label.length == 3 && strncasecmp(label.data, "yes", 3) == 0) {
            model->pooling.yes = index;
            return STATUS_OK;
        }
        index++;
    }
    return error_set(error, STATUS_UNIMPLEMENTED, "%s: key '%s' has no label 'yes': of two classes the rank is that of \"yes\"",
                     gguf_label(model->gguf), key);
}

enum status model_place_head(struct model *model, uint32_t *placed, struct error *error)
{
    const uint32_t hidden = model->shape.hidden;

    for (size_t i = 0; i < ARRAY_COUNT(head_tensors); i++) {
        const struct head_tensor *wanted = &head_tensors[i];
        const struct gguf_tensor *tensor = gguf_find_tensor(model->gguf, wanted->name);
        if (!tensor)
            continue;
        const uint64_t columns = wanted->is_matrix ? tensor->dims[0] : 1, rows = tensor->dims[wanted->is_matrix];
        const bool good = columns == (wanted->is_matrix ? hidden : 1) && tensor->dims[1 + wanted->is_matrix] == 1 &&
                          tensor->dims[3] == 1 && (wanted->of_outputs ? rows >= 1 && rows <= MODEL_OUTPUTS_MAX : rows == hidden);
        if (!good || (wanted->of_outputs && !wanted->is_matrix && rows != model->pooling.outputs))
            return error_set(error, STATUS_UNIMPLEMENTED,
                             "%s: tensor '%s' at offset 0x%" PRIx64 ": has dimensions %" PRIu64 " x %" PRIu64
                             ": heads for ranking have 1 output, or 2, of %u values",
                             gguf_label(model->gguf), wanted->name, tensor->entry_offset, tensor->dims[0], tensor->dims[1], hidden);
        *(struct tensor_view *)((char *)model + wanted->offset) =
            (struct tensor_view){.data = tensor->data,
                                 .type = tensor->type,
                                 .rows = wanted->is_matrix ? (uint32_t)rows : 1,
                                 .columns = wanted->is_matrix ? hidden : (uint32_t)rows,
                                 .bytes = tensor->bytes,
                                 .name = tensor->name.data,
                                 .name_length = (uint32_t)tensor->name.length,
                                 .stored = tensor->stored};
        if (wanted->of_outputs)
            model->pooling.outputs = (uint32_t)rows;
        ++*placed;
    }
    return read_labels(model, error);
}

// Returns the id of a token by its text; MODEL_NO_TOKEN: there is none.
static uint32_t find_token(const struct model *model, const char *text)
{
    struct gguf_strings strings = gguf_strings_of(&model->tokenizer.tokens);
    struct gguf_string token;

    for (uint32_t id = 0; gguf_next_string(&strings, &token); id++)
        if (token.length == strlen(text) && memcmp(token.data, text, token.length) == 0)
            return id;
    return MODEL_NO_TOKEN;
}

// Returns whether the file is a reranker by its name, or has a template of prompts to rank.
static bool is_named_reranker(const struct model *model)
{
    struct gguf_string template;
    static const char word[] = "reranker";

    if (gguf_get_string(model->gguf, "tokenizer.chat_template.rerank", &template, NULL) == STATUS_OK && template.length)
        return true;
    for (uint64_t i = 0; i + strlen(word) <= model->name.length; i++)
        if (strncasecmp(model->name.data + i, word, strlen(word)) == 0)
            return true;
    return false;
}

bool model_take_words(const struct model *model, struct model_pooling *out)
{
    out->yes_token = find_token(model, "yes");
    out->no_token = find_token(model, "no");
    if (out->yes_token == MODEL_NO_TOKEN || out->no_token == MODEL_NO_TOKEN)
        return false;
    out->kind = MODEL_POOL_RANK;
    out->outputs = 2;
    return true;
}

enum status model_read_pooling(struct model *model, struct error *error)
{
    struct model_pooling *pooling = &model->pooling;
    uint32_t kind = 0;
    bool truth;
    char key[128];

    snprintf(key, sizeof key, "%s.pooling_type", model->arch->name);
    enum status status = gguf_get_u32(model->gguf, key, &kind, error);
    if (status && status != STATUS_NOT_FOUND)
        return status;
    if (kind > MODEL_POOL_RANK)
        return error_set(error, STATUS_UNIMPLEMENTED,
                         "%s: key '%s' is %u; supported are 0 (none), 1 (mean), 2 (first token), 3 (last "
                         "token) and 4 (rank)",
                         gguf_label(model->gguf), key, kind);
    pooling->kind = (enum model_pool)kind;
    pooling->normalize = gguf_get_bool(model->gguf, "fastdecode.pooling_normalize", &truth, NULL) || truth;
    pooling->yes_token = pooling->no_token = MODEL_NO_TOKEN;
    pooling->named_reranker = is_named_reranker(model);
    if (pooling->outputs && (kind == MODEL_POOL_NONE || kind == MODEL_POOL_LAST))
        pooling->kind = MODEL_POOL_RANK;
    if (pooling->kind == MODEL_POOL_RANK && !pooling->outputs && !model_take_words(model, pooling))
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: key '%s' is 4 (rank), and there is no tensor 'cls.output.weight'",
                         gguf_label(model->gguf), key);
    if (pooling->kind == MODEL_POOL_NONE && pooling->named_reranker)
        (void)!model_take_words(model, pooling);
    return STATUS_OK;
}
