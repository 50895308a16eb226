// hf_rope.c: RoPE's base and scaling: rope_theta and rope_scaling of config.json, or rope_parameters, which newer versions of
// transformers write for both.
//
// GGUF has keys for linear scaling and YaRN. Other scalings are divisors of the frequencies, computed here: rope_freqs.weight (llama3),
// or rope_factors_long.weight and rope_factors_short.weight (LongRoPE), beside a factor of the whole (attn_factor).
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/hf_state.h"

enum { MANY = 1 << 24, MOST_FACTORS = 1 << 16 };

static const double pi = 3.14159265358979323846;

static double positive(struct hf *hf, const json_t *object, const char *key, double fallback)
{
    double value = isnan(fallback) ? hf_number(hf, object, key) : hf_number_or(hf, object, key, fallback);

    if (hf->status || (value > 0 && isfinite(value)))
        return value;
    hf_refuse(hf, key, hf_json_get(object, key), "expected a positive number");
    return 1;
}

// llama3: low frequencies are divided by factor, high ones stay, and those between are blended.
static void make_llama3_factors(struct hf *hf, const json_t *params, double theta)
{
    double factor = positive(hf, params, "factor", NAN), low = positive(hf, params, "low_freq_factor", NAN);
    double high = positive(hf, params, "high_freq_factor", NAN);
    double context = positive(hf, params, "original_max_position_embeddings", NAN);
    uint32_t count = hf->rope_dim / 2;
    float *factors = hf->status ? NULL : calloc(count + 1u, sizeof *factors);

    if (hf->status)
        return;
    if (high == low)
        hf_refuse(hf, "high_freq_factor", hf_json_get(params, "high_freq_factor"), "equal to low_freq_factor");
    if (!factors)
        hf_fail(hf, STATUS_RESOURCE_EXHAUSTED, NULL, "no memory for RoPE's factors");
    for (uint32_t i = 0; i < count && !hf->status; i++) {
        double wave = 2 * pi * pow(theta, 2.0 * i / hf->rope_dim), smooth = (context / wave - low) / (high - low);
        factors[i] = wave < context / high  ? 1
                     : wave > context / low ? (float)factor
                                            : (float)(1 / ((1 - smooth) / factor + smooth));
    }
    if (!hf->status)
        assembly_made_vector(&hf->assembly, "rope_freqs.weight", factors, count);
    free(factors);
}

static void make_long_factors(struct hf *hf, const json_t *params, const char *key, const char *tensor)
{
    const json_t *list = hf_json_get(params, key);
    uint32_t count = hf->rope_dim / 2;

    if (hf->status)
        return;
    if (json_array_size(list) != count) {
        hf_fail(hf, STATUS_INVALID_ARGUMENT, "config.json",
                "key '%s' has %zu elements, expected %u: half the %u dimensions of RoPE", key, json_array_size(list), count,
                hf->rope_dim);
        return;
    }
    float *factors = calloc(count + 1u, sizeof *factors);
    if (!factors)
        hf_fail(hf, STATUS_RESOURCE_EXHAUSTED, NULL, "no memory for RoPE's factors");
    for (uint32_t i = 0; i < count && !hf->status; i++) {
        factors[i] = (float)json_number_value(json_array_get(list, i));
        if (!(isfinite(factors[i]) && factors[i] > 0))
            hf_fail(hf, STATUS_INVALID_ARGUMENT, "config.json", "key '%s': value %u is no positive number", key, i);
    }
    if (!hf->status)
        assembly_made_vector(&hf->assembly, tensor, factors, count);
    free(factors);
}

static void translate_long(struct hf *hf, const json_t *params)
{
    const json_t *config = hf->config.json;
    const json_t *from = hf_json_get(config, "original_max_position_embeddings") ? config : params;
    uint32_t original = hf_u32_or(hf, from, "original_max_position_embeddings", 2, MANY, 0);
    double factor = original ? (double)hf->context / original : positive(hf, params, "factor", 1);
    double usual;

    if (!original)
        original = hf->context;
    usual = factor <= 1 ? 1 : sqrt(1 + log(factor) / log(original));
    make_long_factors(hf, params, "long_factor", "rope_factors_long.weight");
    make_long_factors(hf, params, "short_factor", "rope_factors_short.weight");
    hf_put_u32(hf, "rope.scaling.original_context_length", original);
    hf_put_f32(hf, "rope.scaling.attn_factor", positive(hf, params, "attention_factor", usual));
}

static void translate_yarn(struct hf *hf, const json_t *params)
{
    double factor = positive(hf, params, "factor", NAN), usual = factor <= 1 ? 1 : 0.1 * log(factor) + 1;
    const char *const refused[] = {"mscale", "mscale_all_dim", NULL};

    for (uint32_t i = 0; refused[i]; i++)
        if (hf_json_get(params, refused[i]))
            hf_refuse(hf, refused[i], hf_json_get(params, refused[i]), "YaRN's mscale is not supported");
    if (fabs(positive(hf, params, "attention_factor", usual) - usual) > 1e-6)
        hf_refuse(hf, "attention_factor", hf_json_get(params, "attention_factor"),
                  "only the one that follows from factor is supported");
    hf_put_string(hf, "rope.scaling.type", "yarn");
    hf_put_f32(hf, "rope.scaling.factor", factor);
    hf_put_u32(hf, "rope.scaling.original_context_length",
               hf_u32_or(hf, params, "original_max_position_embeddings", 1, MANY, hf->context));
    if (hf_json_get(params, "beta_fast"))
        hf_put_f32(hf, "rope.scaling.yarn_beta_fast", positive(hf, params, "beta_fast", 32));
    if (hf_json_get(params, "beta_slow"))
        hf_put_f32(hf, "rope.scaling.yarn_beta_slow", positive(hf, params, "beta_slow", 1));
    if (!hf_flag_or(hf, params, "truncate", true) && !hf->status)
        assembly_bool(&hf->assembly, "fastdecode.rope_yarn_truncate", false);
}

static void translate_scaling(struct hf *hf, const json_t *params, double theta)
{
    const char *type = hf_text_or(hf, params, "rope_type", hf_text_or(hf, params, "type", "default"));

    if (hf->status || strcmp(type, "default") == 0)
        return;
    if (strcmp(type, "linear") == 0) {
        hf_put_string(hf, "rope.scaling.type", "linear");
        hf_put_f32(hf, "rope.scaling.factor", positive(hf, params, "factor", NAN));
    } else if (strcmp(type, "llama3") == 0) {
        make_llama3_factors(hf, params, theta);
    } else if (strcmp(type, "longrope") == 0 || strcmp(type, "su") == 0) {
        translate_long(hf, params);
    } else if (strcmp(type, "yarn") == 0) {
        translate_yarn(hf, params);
    } else {
        const char *key = hf_json_get(params, "rope_type") ? "rope_type" : "type";
        hf_refuse(hf, key, hf_json_get(params, key), "supported are default, linear, llama3, longrope, yarn");
    }
}

// The dimensions of a head that are rotated.
static void translate_dimensions(struct hf *hf, const json_t *params)
{
    const json_t *from = hf_json_get(params, "partial_rotary_factor") ? params : hf->config.json;
    double part = positive(hf, from, "partial_rotary_factor", 1);

    if (!hf->status && (part > 1 || (part != 1 && !hf->arch->may_rotate_part)))
        hf_refuse(hf, "partial_rotary_factor", hf_json_get(from, "partial_rotary_factor"),
                  hf->arch->may_rotate_part ? "expected at most 1" : "only 1 is supported for this architecture");
    hf->rope_dim = (uint32_t)(hf->head_dim * part);
    hf_put_u32(hf, "rope.dimension_count", hf->rope_dim);
}

// Gemma 3 has a base of its own for layers with a sliding window, without scaling.
static const json_t *translate_local(struct hf *hf, const json_t *params)
{
    const json_t *global = hf_json_get(params, "full_attention"), *local = hf_json_get(params, "sliding_attention");
    const char *key = local ? "rope_theta" : "rope_local_base_freq";

    hf_put_f32(hf, "rope.freq_base_swa", positive(hf, local ? local : hf->config.json, key, 10000));
    if (local && strcmp(hf_text_or(hf, local, "rope_type", "default"), "default") != 0)
        hf_refuse(hf, "rope_type", hf_json_get(local, "rope_type"), "only default is supported for sliding_attention");
    return global ? global : params;
}

void hf_translate_rope(struct hf *hf)
{
    const json_t *config = hf->config.json, *params = hf_json_get(config, "rope_parameters");

    if (hf->status || hf->arch->rope_theta == 0)
        return;
    if (!params)
        params = hf_json_get(config, "rope_scaling");
    if (params && !json_is_object(params))
        hf_refuse(hf, hf_json_get(config, "rope_parameters") ? "rope_parameters" : "rope_scaling", params, "expected an object");
    if (strcmp(hf->arch->gguf, "gemma3") == 0)
        params = translate_local(hf, params);
    const json_t *from = hf_json_get(params, "rope_theta") ? params : config;
    double theta = positive(hf, from, "rope_theta", hf->arch->rope_theta);
    hf_put_f32(hf, "rope.freq_base", theta);
    translate_dimensions(hf, params);
    translate_scaling(hf, params, theta);
    if (!hf->status)
        assembly_bool(&hf->assembly, "fastdecode.rope_halves", true);
}
