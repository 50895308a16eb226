// config.c: what a directory's JSON says beside weights and tokens: config.json, RoPE in it, and how hidden states are pooled.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/model/hf/internal.h"

// --- RoPE -----------------------------------------------------------------------------------------------------------

// RoPE's base and scaling: rope_theta and rope_scaling of config.json, or rope_parameters, which newer versions of
// transformers write for both.
//
// GGUF has keys for linear scaling and YaRN. Other scalings are divisors of the frequencies, computed here: rope_freqs.weight (llama3),
// or rope_factors_long.weight and rope_factors_short.weight (LongRoPE), beside a factor of the whole (attn_factor).

enum { MANY = 1 << 24, MOST_FACTORS = 1 << 16, MOST_LAYERS = 1 << 16, MOST_HEADS = 1 << 16, MOST_TOKENS = 1 << 21 };

static const double pi = 3.14159265358979323846;

static double positive_or(struct hf *hf, const json_t *object, const char *key, double fallback)
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
    double factor = positive_or(hf, params, "factor", NAN), low = positive_or(hf, params, "low_freq_factor", NAN);
    double high = positive_or(hf, params, "high_freq_factor", NAN);
    double context = positive_or(hf, params, "original_max_position_embeddings", NAN);
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
    double factor = original ? (double)hf->context / original : positive_or(hf, params, "factor", 1);
    double usual;

    if (!original)
        original = hf->context;
    usual = factor <= 1 ? 1 : sqrt(1 + log(factor) / log(original));
    make_long_factors(hf, params, "long_factor", "rope_factors_long.weight");
    make_long_factors(hf, params, "short_factor", "rope_factors_short.weight");
    hf_put_u32(hf, "rope.scaling.original_context_length", original);
    hf_put_f32(hf, "rope.scaling.attn_factor", positive_or(hf, params, "attention_factor", usual));
}

static void translate_yarn(struct hf *hf, const json_t *params)
{
    double factor = positive_or(hf, params, "factor", NAN), usual = factor <= 1 ? 1 : 0.1 * log(factor) + 1;
    const char *const refused[] = {"mscale", "mscale_all_dim", NULL};

    for (uint32_t i = 0; refused[i]; i++)
        if (hf_json_get(params, refused[i]))
            hf_refuse(hf, refused[i], hf_json_get(params, refused[i]), "YaRN's mscale is not supported");
    if (fabs(positive_or(hf, params, "attention_factor", usual) - usual) > 1e-6)
        hf_refuse(hf, "attention_factor", hf_json_get(params, "attention_factor"),
                  "only the one that follows from factor is supported");
    hf_put_string(hf, "rope.scaling.type", "yarn");
    hf_put_f32(hf, "rope.scaling.factor", factor);
    hf_put_u32(hf, "rope.scaling.original_context_length",
               hf_u32_or(hf, params, "original_max_position_embeddings", 1, MANY, hf->context));
    if (hf_json_get(params, "beta_fast"))
        hf_put_f32(hf, "rope.scaling.yarn_beta_fast", positive_or(hf, params, "beta_fast", 32));
    if (hf_json_get(params, "beta_slow"))
        hf_put_f32(hf, "rope.scaling.yarn_beta_slow", positive_or(hf, params, "beta_slow", 1));
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
        hf_put_f32(hf, "rope.scaling.factor", positive_or(hf, params, "factor", NAN));
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
    double part = positive_or(hf, from, "partial_rotary_factor", 1);

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

    hf_put_f32(hf, "rope.freq_base_swa", positive_or(hf, local ? local : hf->config.json, key, 10000));
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
    double theta = positive_or(hf, from, "rope_theta", hf->arch->rope_theta);
    hf_put_f32(hf, "rope.freq_base", theta);
    translate_dimensions(hf, params);
    translate_scaling(hf, params, theta);
    if (!hf->status)
        assembly_bool(&hf->assembly, "fastdecode.rope_halves", true);
}

// --- embeddings and ranks -------------------------------------------------------------------------------------------

// A directory says how it embeds by its class, or in the files of sentence-transformers.
//
//     modules.json            a list of steps: Transformer, Pooling, Normalize; another one is refused
//     1_Pooling/config.json   how rows become a vector (the folder is named in modules.json)
//
// A class that ends in Model has no output projection, and its tensors lack the prefix "model."; one that ends in ForSequenceClassification has a
// head, score.weight. Both are read as the class of the same model that generates.

#define MODULES "modules.json"

enum { MOST_MODULES = 16, NAME_BYTES = 128 };

// GGUF's numbers.
enum { POOL_NONE, POOL_MEAN, POOL_CLS, POOL_LAST, POOL_RANK };

static const struct {
    const char *key;  // of older files: a flag for each mode
    const char *mode; // of newer ones: pooling_mode
    uint32_t kind;    // POOL_NONE: not supported
} modes[] = {
    {"pooling_mode_cls_token", "cls", POOL_CLS},
    {"pooling_mode_mean_tokens", "mean", POOL_MEAN},
    {"pooling_mode_lasttoken", "lasttoken", POOL_LAST},
    {"pooling_mode_max_tokens", "max", POOL_NONE},
    {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", POOL_NONE},
    {"pooling_mode_weightedmean_tokens", "weightedmean", POOL_NONE},
};

const struct hf_arch *hf_pooling_arch(struct hf *hf, const char *class_name, const char *model_type)
{
    static const struct {
        const char *suffix;
        enum hf_form form;
    } suffixes[] = {{"TextForSequenceClassification", HF_CLASSIFIER},
                    {"ForSequenceClassification", HF_CLASSIFIER},
                    {"TextModel", HF_BARE},
                    {"Model", HF_BARE}};
    char name[NAME_BYTES];

    for (size_t i = 0; class_name && i < ARRAY_COUNT(suffixes); i++) {
        const size_t length = strlen(class_name), suffix = strlen(suffixes[i].suffix);
        if (length <= suffix || length >= NAME_BYTES / 2 || strcmp(class_name + length - suffix, suffixes[i].suffix) != 0)
            continue;
        snprintf(name, sizeof name, "%.*sForCausalLM", (int)(length - suffix), class_name);
        const struct hf_arch *arch = hf_arch_find(name, model_type);
        if (arch && !arch->prefix) {
            hf->form = suffixes[i].form;
            return arch;
        }
    }
    return NULL;
}

// Returns whether the step's type is "….NAME".
static bool is_step(const char *type, const char *name)
{
    const size_t length = strlen(type), suffix = strlen(name);
    return length >= suffix && strcmp(type + length - suffix, name) == 0 && (length == suffix || type[length - suffix - 1] == '.');
}

// Returns whether it is a folder beside config.json.
static bool is_plain_folder(const char *path)
{
    for (const char *at = path; *at; at++)
        if (!((*at >= '0' && *at <= '9') || (*at >= 'A' && *at <= 'Z') || (*at >= 'a' && *at <= 'z') || *at == '_' || *at == '-'))
            return false;
    return *path && strlen(path) < NAME_BYTES / 2;
}

// Returns how the step pools; POOL_NONE: a failure.
static uint32_t read_mode(struct hf *hf, const char *file, const json_t *config)
{
    const char *told = json_string_value(hf_json_get(config, "pooling_mode"));
    uint32_t kind = POOL_NONE, count = 0;
    const char *chosen = told ? told : "nothing";

    for (size_t i = 0; i < ARRAY_COUNT(modes) && !hf->status; i++)
        if (told ? strcmp(told, modes[i].mode) == 0 : hf_flag_of(hf, config, file, modes[i].key, false)) {
            kind = modes[i].kind;
            chosen = modes[i].mode;
            count++;
        }
    if (!hf->status && (count != 1 || kind == POOL_NONE)) {
        char shown[64];
        hf_fail(hf, STATUS_UNIMPLEMENTED, file, "the pooling is %s; supported are one of mean, cls and lasttoken",
                count > 1 ? "several at once" : gguf_printable(shown, sizeof shown, (struct gguf_string){chosen, strlen(chosen)}));
    }
    return kind;
}

static uint32_t read_pooling(struct hf *hf, const json_t *step)
{
    const char *path = json_string_value(hf_json_get(step, "path"));
    char file[NAME_BYTES];
    uint32_t kind = POOL_NONE;

    if (!path || !is_plain_folder(path)) {
        hf_fail(hf, STATUS_INVALID_ARGUMENT, MODULES, "the path of the step Pooling is not the name of a folder");
        return POOL_NONE;
    }
    snprintf(file, sizeof file, "%s/config.json", path);
    json_t *config = hf_file_json(hf, file);
    if (config)
        kind = read_mode(hf, file, config);
    else
        hf_fail(hf, STATUS_INVALID_ARGUMENT, file, "it is missing, and " MODULES " names it");
    json_decref(config);
    return kind;
}

static void translate_modules(struct hf *hf, const json_t *modules)
{
    bool normalize = false;
    uint32_t kind = POOL_NONE;

    if (json_array_size(modules) > MOST_MODULES)
        hf_fail(hf, STATUS_INVALID_ARGUMENT, MODULES, "it has more than %d steps", MOST_MODULES);
    for (size_t i = 0; i < json_array_size(modules) && !hf->status; i++) {
        const json_t *step = json_array_get(modules, i);
        const char *type = json_string_value(hf_json_get(step, "type"));
        char shown[NAME_BYTES];
        if (!type)
            hf_fail(hf, STATUS_INVALID_ARGUMENT, MODULES, "step %zu has no type", i);
        else if (is_step(type, "Pooling"))
            kind = read_pooling(hf, step);
        else if (is_step(type, "Normalize"))
            normalize = true;
        else if (!is_step(type, "Transformer"))
            hf_fail(hf, STATUS_UNIMPLEMENTED, MODULES, "step %zu is '%s'; supported are Transformer, Pooling and Normalize", i,
                    gguf_printable(shown, sizeof shown, (struct gguf_string){type, strlen(type)}));
    }
    if (hf->status || kind == POOL_NONE)
        return;
    hf_put_u32(hf, "pooling_type", kind);
    assembly_bool(&hf->assembly, "fastdecode.pooling_normalize", normalize);
}

// Puts the names of two classes, in the order of the head's rows.
static void translate_labels(struct hf *hf)
{
    const json_t *labels = hf_json_get(hf->config.json, "id2label");
    const char *names[2];
    char key[NAME_BYTES];

    if (json_object_size(labels) != 2)
        return;
    names[0] = json_string_value(json_object_get(labels, "0"));
    names[1] = json_string_value(json_object_get(labels, "1"));
    if (!names[0] || !names[1]) {
        hf_refuse(hf, "id2label", labels, "expected the names of classes 0 and 1");
        return;
    }
    snprintf(key, sizeof key, "%s.classifier.output_labels", hf->arch->gguf);
    assembly_array(&hf->assembly, key, GGUF_STRING, 2);
    buffer_string(&hf->assembly.keys, names[0], strlen(names[0]));
    buffer_string(&hf->assembly.keys, names[1], strlen(names[1]));
}

void hf_translate_pooling(struct hf *hf)
{
    json_t *modules;

    if (hf->status)
        return;
    if (hf->form == HF_CLASSIFIER) {
        hf_put_u32(hf, "pooling_type", POOL_RANK);
        translate_labels(hf);
        return;
    }
    modules = hf_file_list(hf, MODULES);
    if (modules)
        translate_modules(hf, modules);
    json_decref(modules);
}

// --- the keys that all architectures have ---------------------------------------------------------------------------

// A key that is missing has the value that the class of transformers gives it. A key that would change the answer and is not translated is
// in the tables of keys that must be neutral, here and in arch.c; what remains (dtypes, dropout of training, initialization) is
// ignored.

static const struct hf_neutral common_neutral[] = {
    {.key = "is_encoder_decoder", .expected = HF_FALSE},
    {.key = "add_cross_attention", .expected = HF_FALSE},
    {.key = "use_bidirectional_attention", .expected = HF_FALSE},
    {.key = "is_causal", .expected = HF_TRUE},
    {.key = "clip_qkv", .expected = HF_NOTHING},
    {.key = "mlp_bias", .expected = HF_FALSE},
    {.key = "alibi", .expected = HF_FALSE},
    {.key = "use_parallel_residual", .expected = HF_FALSE},
    {.key = "rope_interleave", .expected = HF_FALSE},
    {.key = "rope_interleaved", .expected = HF_FALSE},
    {.key = "pruned_heads", .expected = HF_NOTHING},
    {.expected = HF_FALSE},
};

// Keys that scale something in Granite only; elsewhere a class of another repository may mean them.
static const struct hf_neutral no_scale_neutral[] = {
    {.key = "attention_multiplier", .expected = HF_NUMBER, .number = 1},
    {.key = "embedding_multiplier", .expected = HF_NUMBER, .number = 1},
    {.key = "residual_multiplier", .expected = HF_NUMBER, .number = 1},
    {.key = "logits_scaling", .expected = HF_NUMBER, .number = 1},
    {.expected = HF_FALSE},
};

// layer_types must say of each layer what the architecture's row does.
static void check_layer_types(struct hf *hf)
{
    const json_t *types = hf_json_get(hf->config.json, "layer_types");
    uint32_t every = hf->arch->full_every;

    if (!types || hf->status)
        return;
    if (json_array_size(types) != hf->layers) {
        hf_refuse(hf, "layer_types", types, "not a type for each layer");
        return;
    }
    for (uint32_t i = 0; i < hf->layers && !hf->status; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        const char *expected = every && (i + 1) % every != 0 ? "sliding_attention" : "full_attention";
        char shown[32];
        if (!type || strcmp(type, expected) != 0)
            hf_fail(hf, STATUS_UNIMPLEMENTED, "config.json", "key 'layer_types': layer %u is %s, only %s is supported there for %s",
                    i, hf_json_shown(shown, sizeof shown, json_array_get(types, i)), expected, hf->arch->class_name);
    }
}

static void translate_heads(struct hf *hf)
{
    const json_t *config = hf->config.json;

    hf->heads = hf_u32(hf, config, "num_attention_heads", 1, MOST_HEADS);
    uint32_t kv_heads = hf_u32_or(hf, config, "num_key_value_heads", 1, MOST_HEADS, hf->heads);
    uint32_t usual = hf->arch->head_dim ? hf->arch->head_dim : hf->hidden / hf->heads;
    hf->head_dim = hf_u32_or(hf, config, "head_dim", 1, MOST_HEADS, usual);
    if (!hf->status && hf->head_dim == 0)
        hf_fail(hf, STATUS_INVALID_ARGUMENT, "config.json", "key 'num_attention_heads' is %u, hidden_size only %u", hf->heads,
                hf->hidden);
    hf_put_u32(hf, "attention.head_count", hf->heads);
    hf_put_u32(hf, "attention.head_count_kv", kv_heads);
    hf_put_u32(hf, "attention.key_length", hf->head_dim);
    hf_put_u32(hf, "attention.value_length", hf->head_dim);
}

// Which weights a directory has in fewer bits. Only MXFP4 is read, of stacked experts.
static void check_quantization(struct hf *hf)
{
    const json_t *told = hf_json_get(hf->config.json, "quantization_config"), *method = hf_json_get(told, "quant_method");
    const json_t *kept = hf_json_get(told, "modules_to_not_convert");
    const char *name = json_string_value(method);

    if (!told || hf->status)
        return;
    hf->mxfp4 = hf->arch->stacked_experts && name && strcmp(name, "mxfp4") == 0;
    if (!hf->mxfp4) {
        hf_refuse(hf, method ? "quant_method" : "quantization_config", method ? method : told,
                  hf->arch->stacked_experts
                      ? "only mxfp4 is read from a directory: use a GGUF file of this model, or its weights in BF16"
                      : "quantized weights are read from GGUF files only: use one of this model, or its weights in BF16");
        return;
    }
    if (kept && !json_is_array(kept))
        hf_refuse(hf, "modules_to_not_convert", kept, "expected an array of names");
    for (size_t i = 0; i < json_array_size(kept) && !hf->status; i++) {
        const char *module = json_string_value(json_array_get(kept, i));
        if (!module || strstr(module, "experts"))
            hf_refuse(hf, "modules_to_not_convert", json_array_get(kept, i),
                      module ? "with mxfp4 it is the experts that are converted" : "expected an array of names");
    }
}

void hf_translate_config(struct hf *hf)
{
    const json_t *config = hf->config.json;
    bool opt;

    if (hf->status)
        return;
    check_quantization(hf);
    hf_check_neutral(hf, common_neutral);
    hf_check_neutral(hf, hf->arch->neutral);
    if (strcmp(hf->arch->gguf, "granite") != 0)
        hf_check_neutral(hf, no_scale_neutral);
    opt = strcmp(hf->arch->gguf, "opt") == 0;
    if (hf->status)
        return;
    assembly_string(&hf->assembly, "general.architecture", hf->arch->gguf, strlen(hf->arch->gguf));
    hf->layers = hf_u32(hf, config, "num_hidden_layers", 1, MOST_LAYERS);
    hf->hidden = hf_u32(hf, config, "hidden_size", 1, MANY);
    hf->context = hf_u32(hf, config, "max_position_embeddings", 1, MANY);
    hf->vocab = hf_u32(hf, config, "vocab_size", 1, MOST_TOKENS);
    hf->tied = hf_flag_or(hf, config, "tie_word_embeddings", hf->arch->tied);
    hf_put_u32(hf, "block_count", hf->layers);
    hf_put_u32(hf, "context_length", hf->context);
    hf_put_u32(hf, "embedding_length", hf->hidden);
    hf_put_u32(hf, "feed_forward_length", hf_u32(hf, config, opt ? "ffn_dim" : "intermediate_size", 1, MANY));
    hf_put_u32(hf, "vocab_size", hf->vocab);
    if (opt)
        hf_put_f32(hf, "attention.layer_norm_epsilon", 1e-5); // torch's default, which the class takes
    else if (hf->arch->layer_norm_epsilon)
        hf_put_f32(hf, "attention.layer_norm_epsilon", hf_number_or(hf, config, hf->arch->layer_norm_epsilon, 1e-5));
    else
        hf_put_f32(hf, "attention.layer_norm_rms_epsilon", hf_number(hf, config, "rms_norm_eps"));
    translate_heads(hf);
    check_layer_types(hf);
    if (hf->arch->translate && !hf->status)
        hf->arch->translate(hf);
}
