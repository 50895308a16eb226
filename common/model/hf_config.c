// hf_config.c: the keys of config.json that all architectures have, as GGUF calls them.
//
// A key that is missing has the value that the class of transformers gives it. What would change the answer and is not translated is
// in the tables of keys that must be neutral, here and in hf_arch.c; what remains (dtypes, dropout of training, initialization) is
// ignored.
#include <string.h>

#include "common/model/hf_state.h"

enum { MANY = 1 << 24, MOST_LAYERS = 1 << 16, MOST_HEADS = 1 << 16, MOST_TOKENS = 1 << 21 };

static const struct hf_neutral common_neutral[] = {
    {"is_encoder_decoder", HF_FALSE, 0, NULL},
    {"add_cross_attention", HF_FALSE, 0, NULL},
    {"use_bidirectional_attention", HF_FALSE, 0, NULL},
    {"is_causal", HF_TRUE, 0, NULL},
    {"clip_qkv", HF_NOTHING, 0, NULL},
    {"mlp_bias", HF_FALSE, 0, NULL},
    {"alibi", HF_FALSE, 0, NULL},
    {"use_parallel_residual", HF_FALSE, 0, NULL},
    {"rope_interleave", HF_FALSE, 0, NULL},
    {"rope_interleaved", HF_FALSE, 0, NULL},
    {"pruned_heads", HF_NOTHING, 0, NULL},
    {NULL, HF_FALSE, 0, NULL},
};

// Keys that scale something in Granite only; elsewhere a class of another repository may mean them.
static const struct hf_neutral no_scale_neutral[] = {
    {"attention_multiplier", HF_NUMBER, 1, NULL},
    {"embedding_multiplier", HF_NUMBER, 1, NULL},
    {"residual_multiplier", HF_NUMBER, 1, NULL},
    {"logits_scaling", HF_NUMBER, 1, NULL},
    {NULL, HF_FALSE, 0, NULL},
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
