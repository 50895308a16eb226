// arch.c: the table of classes of transformers that are read, with what GGUF calls their tensors. The rest is in
// config.c and weights.c.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/model/hf/hf.h"
#include "common/model/hf/internal.h"

enum { MANY = 1 << 24 };

// --- tensors --------------------------------------------------------------------------------------------------------

static const struct hf_name usual_model[] = {
    {"embed_tokens.weight", "token_embd.weight"},
    {"norm.weight", "output_norm.weight"},
    {NULL, NULL},
};

// A norm in front of attention, another in front of the MLP.
static const struct hf_name norms_in_front[] = {
    {"input_layernorm.weight", "attn_norm.weight"},
    {"post_attention_layernorm.weight", "ffn_norm.weight"},
    {NULL, NULL},
};

static const struct hf_name mixtral_layer[] = {
    {"input_layernorm.weight", "attn_norm.weight"},
    {"post_attention_layernorm.weight", "ffn_norm.weight"},
    {"block_sparse_moe.gate.weight", "ffn_gate_inp.weight"},
    {"block_sparse_moe.experts.%u.w1.weight", "ffn_gate.%u.weight"},
    {"block_sparse_moe.experts.%u.w2.weight", "ffn_down.%u.weight"},
    {"block_sparse_moe.experts.%u.w3.weight", "ffn_up.%u.weight"},
    {NULL, NULL},
};

static const struct hf_name qwen3_moe_layer[] = {
    {"input_layernorm.weight", "attn_norm.weight"},
    {"post_attention_layernorm.weight", "ffn_norm.weight"},
    {"mlp.gate.weight", "ffn_gate_inp.weight"},
    {"mlp.experts.%u.gate_proj.weight", "ffn_gate.%u.weight"},
    {"mlp.experts.%u.down_proj.weight", "ffn_down.%u.weight"},
    {"mlp.experts.%u.up_proj.weight", "ffn_up.%u.weight"},
    {NULL, NULL},
};

static const struct hf_name phi3_layer[] = {
    {"input_layernorm.weight", "attn_norm.weight"},
    {"post_attention_layernorm.weight", "ffn_norm.weight"},
    {"self_attn.qkv_proj.weight", "attn_qkv.weight"},
    {"mlp.gate_up_proj.weight", "ffn_up.weight"}, // the gate's rows first, as in GGUF
    {NULL, NULL},
};

static const struct hf_name gemma_layer[] = {
    {"input_layernorm.weight", "attn_norm.weight"},
    {"post_attention_layernorm.weight", "post_attention_norm.weight"},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight"},
    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
    {NULL, NULL},
};

static const struct hf_name olmo2_layer[] = {
    {"post_attention_layernorm.weight", "post_attention_norm.weight"},
    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
    {NULL, NULL},
};

static const struct hf_name opt_model[] = {
    {"embed_tokens.weight", "token_embd.weight"},
    {"embed_positions.weight", "position_embd.weight"},
    {"final_layer_norm.weight", "output_norm.weight"},
    {"final_layer_norm.bias", "output_norm.bias"},
    {NULL, NULL},
};

static const struct hf_name opt_layer[] = {
    {"self_attn_layer_norm.weight", "attn_norm.weight"},
    {"self_attn_layer_norm.bias", "attn_norm.bias"},
    {"self_attn.out_proj.weight", "attn_output.weight"},
    {"self_attn.out_proj.bias", "attn_output.bias"},
    {"final_layer_norm.weight", "ffn_norm.weight"},
    {"final_layer_norm.bias", "ffn_norm.bias"},
    {"fc1.weight", "ffn_up.weight"},
    {"fc1.bias", "ffn_up.bias"},
    {"fc2.weight", "ffn_down.weight"},
    {"fc2.bias", "ffn_down.bias"},
    {NULL, NULL},
};

static const struct hf_name starcoder2_model[] = {
    {"embed_tokens.weight", "token_embd.weight"},
    {"norm.weight", "output_norm.weight"},
    {"norm.bias", "output_norm.bias"},
    {NULL, NULL},
};

static const struct hf_name starcoder2_layer[] = {
    {"input_layernorm.weight", "attn_norm.weight"},
    {"input_layernorm.bias", "attn_norm.bias"},
    {"post_attention_layernorm.weight", "ffn_norm.weight"},
    {"post_attention_layernorm.bias", "ffn_norm.bias"},
    {"mlp.c_fc.weight", "ffn_up.weight"},
    {"mlp.c_fc.bias", "ffn_up.bias"},
    {"mlp.c_proj.weight", "ffn_down.weight"},
    {"mlp.c_proj.bias", "ffn_down.bias"},
    {NULL, NULL},
};

static const struct hf_name gpt_oss_layer[] = {
    {"input_layernorm.weight", "attn_norm.weight"}, {"post_attention_layernorm.weight", "post_attention_norm.weight"},
    {"self_attn.sinks", "attn_sinks.weight"},       {"mlp.router.weight", "ffn_gate_inp.weight"},
    {"mlp.router.bias", "ffn_gate_inp.bias"},       {NULL, NULL},
};

// --- what must not be otherwise -------------------------------------------------------------------------------------

static const struct hf_neutral llama_neutral[] = {{.key = "hidden_act", .expected = HF_TEXT, .text = "silu"},
                                                  {.key = "use_qk_norm", .expected = HF_FALSE},
                                                  {.expected = HF_FALSE}};

static const struct hf_neutral mistral_neutral[] = {{.key = "hidden_act", .expected = HF_TEXT, .text = "silu"},
                                                    {.expected = HF_FALSE}};

static const struct hf_neutral no_bias_neutral[] = {{.key = "hidden_act", .expected = HF_TEXT, .text = "silu"},
                                                    {.key = "attention_bias", .expected = HF_FALSE},
                                                    {.expected = HF_FALSE}};

static const struct hf_neutral qwen3_moe_neutral[] = {{.key = "hidden_act", .expected = HF_TEXT, .text = "silu"},
                                                      {.key = "attention_bias", .expected = HF_FALSE},
                                                      {.key = "decoder_sparse_step", .expected = HF_NUMBER, .number = 1},
                                                      {.key = "mlp_only_layers", .expected = HF_NOTHING},
                                                      {.expected = HF_FALSE}};

static const struct hf_neutral gemma_neutral[] = {{.key = "hidden_activation", .expected = HF_TEXT, .text = "gelu_pytorch_tanh"},
                                                  {.key = "attention_bias", .expected = HF_FALSE},
                                                  {.expected = HF_FALSE}};

static const struct hf_neutral gemma3_neutral[] = {{.key = "hidden_activation", .expected = HF_TEXT, .text = "gelu_pytorch_tanh"},
                                                   {.key = "attention_bias", .expected = HF_FALSE},
                                                   {.key = "attn_logit_softcapping", .expected = HF_NOTHING},
                                                   {.key = "final_logit_softcapping", .expected = HF_NOTHING},
                                                   {.key = "sliding_window_pattern", .expected = HF_NUMBER, .number = 6},
                                                   {.key = "_sliding_window_pattern", .expected = HF_NUMBER, .number = 6},
                                                   {.expected = HF_FALSE}};

static const struct hf_neutral opt_neutral[] = {{.key = "do_layer_norm_before", .expected = HF_TRUE},
                                                {.key = "activation_function", .expected = HF_TEXT, .text = "relu"},
                                                {.key = "enable_bias", .expected = HF_TRUE},
                                                {.key = "layer_norm_elementwise_affine", .expected = HF_TRUE},
                                                {.key = "_remove_final_layer_norm", .expected = HF_FALSE},
                                                {.expected = HF_FALSE}};

static const struct hf_neutral starcoder2_neutral[] = {{.key = "hidden_act", .expected = HF_TEXT, .text = "gelu_pytorch_tanh"},
                                                       {.key = "use_bias", .expected = HF_TRUE},
                                                       {.expected = HF_FALSE}};

static const struct hf_neutral gpt_oss_neutral[] = {{.key = "hidden_act", .expected = HF_TEXT, .text = "silu"},
                                                    {.key = "attention_bias", .expected = HF_TRUE},
                                                    {.key = "swiglu_alpha", .expected = HF_NUMBER, .number = 1.702},
                                                    {.key = "swiglu_limit", .expected = HF_NUMBER, .number = 7},
                                                    {.expected = HF_FALSE}};

// --- keys of one architecture ---------------------------------------------------------------------------------------

// A window that is as long as the context cuts nothing off. usual: where config.json has no such key; null means none.
static void translate_window_or(struct hf *hf, uint32_t usual)
{
    bool is_told = json_object_get(hf->config.json, "sliding_window") != NULL;
    uint32_t window = hf_u32_or(hf, hf->config.json, "sliding_window", 1, MANY, is_told ? 0 : usual);

    if (window && window < hf->context)
        hf_put_u32(hf, "attention.sliding_window", window);
}

static void translate_window(struct hf *hf) { translate_window_or(hf, 0); }

static void translate_mistral(struct hf *hf) { translate_window_or(hf, 4096); }

// Qwen's layers from max_window_layers on slide, if any do.
static void translate_qwen(struct hf *hf)
{
    const json_t *config = hf->config.json;
    bool used = hf_flag_or(hf, config, "use_sliding_window", false);
    uint32_t window = hf_u32_or(hf, config, "sliding_window", 1, MANY, MANY);

    if (used && window < hf->context && hf_u32_or(hf, config, "max_window_layers", 0, MANY, 28) < hf->layers)
        hf_refuse(hf, "use_sliding_window", json_true(), "a sliding window in some layers is not supported");
}

// Each class has one of the two names, and transformers 5 saves the second for all.
static uint32_t read_experts(struct hf *hf)
{
    const char *key = hf_json_get(hf->config.json, "num_experts") ? "num_experts" : "num_local_experts";

    return hf_u32(hf, hf->config.json, key, 1, 65536);
}

static void translate_mixtral(struct hf *hf)
{
    hf_put_u32(hf, "expert_count", read_experts(hf));
    hf_put_u32(hf, "expert_used_count", hf_u32(hf, hf->config.json, "num_experts_per_tok", 1, 65536));
    if (!hf->status)
        assembly_bool(&hf->assembly, "fastdecode.experts_listed", true);
    translate_window(hf);
}

static void translate_qwen3_moe(struct hf *hf)
{
    const json_t *config = hf->config.json;

    hf_put_u32(hf, "expert_count", read_experts(hf));
    hf_put_u32(hf, "expert_used_count", hf_u32(hf, config, "num_experts_per_tok", 1, 65536));
    hf_put_u32(hf, "expert_feed_forward_length", hf_u32(hf, config, "moe_intermediate_size", 1, MANY));
    hf_put_bool(hf, "expert_weights_norm", hf_flag_or(hf, config, "norm_topk_prob", false));
    if (!hf->status)
        assembly_bool(&hf->assembly, "fastdecode.experts_listed", true);
    translate_qwen(hf);
}

// Scores are divided by the root of another number than a head's dimensions.
static void translate_query_scale(struct hf *hf)
{
    double scalar = hf_number_or(hf, hf->config.json, "query_pre_attn_scalar", 256);

    if (!hf->status && !(scalar > 0))
        hf_refuse(hf, "query_pre_attn_scalar", hf_json_get(hf->config.json, "query_pre_attn_scalar"), "not a positive number");
    hf_put_f32(hf, "attention.scale", 1 / sqrt(scalar));
}

static void translate_gemma(struct hf *hf)
{
    hf_put_u32(hf, "attention.sliding_window", hf_u32(hf, hf->config.json, "sliding_window", 1, MANY));
    translate_query_scale(hf);
    if (!hf->status)
        assembly_bool(&hf->assembly, "fastdecode.norm_plus_one", true);
}

static void translate_gemma2(struct hf *hf)
{
    const json_t *config = hf->config.json;

    translate_gemma(hf);
    // null means none, and a key that is missing the class' own default
    hf_put_f32(hf, "attn_logit_softcapping",
               hf_number_or(hf, config, "attn_logit_softcapping", json_object_get(config, "attn_logit_softcapping") ? 0 : 50));
    hf_put_f32(hf, "final_logit_softcapping",
               hf_number_or(hf, config, "final_logit_softcapping", json_object_get(config, "final_logit_softcapping") ? 0 : 30));
}

static void translate_granite(struct hf *hf)
{
    const json_t *config = hf->config.json;

    hf_put_f32(hf, "attention.scale", hf_number_or(hf, config, "attention_multiplier", 1));
    hf_put_f32(hf, "embedding_scale", hf_number_or(hf, config, "embedding_multiplier", 1));
    hf_put_f32(hf, "residual_scale", hf_number_or(hf, config, "residual_multiplier", 1));
    hf_put_f32(hf, "logit_scale", hf_number_or(hf, config, "logits_scaling", 1));
}

// Every fourth layer has no RoPE, which GGUF does not say either.
static void translate_smollm3(struct hf *hf)
{
    const json_t *list = hf_json_get(hf->config.json, "no_rope_layers");

    if (hf_flag_or(hf, hf->config.json, "use_sliding_window", false))
        hf_refuse(hf, "use_sliding_window", json_true(), "a sliding window is not supported for SmolLM3ForCausalLM");
    if (!list && hf_u32_or(hf, hf->config.json, "no_rope_layer_interval", 1, MANY, 4) != 4)
        hf_refuse(hf, "no_rope_layer_interval", hf_json_get(hf->config.json, "no_rope_layer_interval"), "only 4 is supported");
    if (list && json_array_size(list) != hf->layers)
        hf_refuse(hf, "no_rope_layers", list, "not a number for each layer");
    for (uint32_t i = 0; list && i < hf->layers && !hf->status; i++)
        if (json_number_value(json_array_get(list, i)) != ((i + 1) % 4 != 0))
            hf_refuse(hf, "no_rope_layers", list, "only every fourth layer without RoPE is supported");
}

static void translate_opt(struct hf *hf)
{
    if (hf_u32_or(hf, hf->config.json, "word_embed_proj_dim", 1, MANY, hf->hidden) != hf->hidden)
        hf_refuse(hf, "word_embed_proj_dim", hf_json_get(hf->config.json, "word_embed_proj_dim"),
                  "embeddings of another size than hidden_size are not supported");
}

static void translate_gpt_oss(struct hf *hf)
{
    const json_t *config = hf->config.json;
    const char *used = hf_json_get(config, "num_experts_per_tok") ? "num_experts_per_tok" : "experts_per_token";

    if (!hf_json_get(config, "rope_scaling") &&
        !hf_json_get(config, "rope_parameters")) // the class' own is YaRN, with a factor of 32
        hf_fail(hf, STATUS_INVALID_ARGUMENT, "config.json", "key 'rope_scaling' is missing: expected an object");
    hf->experts = read_experts(hf);
    hf->ffn = hf_u32(hf, config, "intermediate_size", 1, MANY);
    hf_put_u32(hf, "expert_count", hf->experts);
    hf_put_u32(hf, "expert_used_count", hf_u32(hf, config, used, 1, 65536));
    hf_put_u32(hf, "expert_feed_forward_length", hf->ffn);
    hf_put_u32(hf, "attention.sliding_window", hf_u32(hf, config, "sliding_window", 1, MANY));
}

static const struct hf_arch archs[] = {
    {.class_name = "LlamaForCausalLM",
     .model_type = "llama",
     .gguf = "llama",
     .rope_theta = 10000,
     .neutral = llama_neutral,
     .model_names = usual_model,
     .layer_names = norms_in_front},
    {.class_name = "MistralForCausalLM",
     .model_type = "mistral",
     .gguf = "llama",
     .rope_theta = 10000,
     .neutral = mistral_neutral,
     .model_names = usual_model,
     .layer_names = norms_in_front,
     .translate = translate_mistral},
    {.class_name = "MixtralForCausalLM",
     .model_type = "mixtral",
     .gguf = "llama",
     .rope_theta = 1e6,
     .neutral = mistral_neutral,
     .model_names = usual_model,
     .layer_names = mixtral_layer,
     .translate = translate_mixtral},
    {.class_name = "Qwen2ForCausalLM",
     .model_type = "qwen2",
     .gguf = "qwen2",
     .rope_theta = 10000,
     .neutral = mistral_neutral,
     .model_names = usual_model,
     .layer_names = norms_in_front,
     .translate = translate_qwen},
    {.class_name = "Qwen3ForCausalLM",
     .model_type = "qwen3",
     .gguf = "qwen3",
     .head_dim = 128,
     .rope_theta = 10000,
     .neutral = no_bias_neutral,
     .model_names = usual_model,
     .layer_names = norms_in_front,
     .translate = translate_qwen},
    {.class_name = "Qwen3MoeForCausalLM",
     .model_type = "qwen3_moe",
     .gguf = "qwen3moe",
     .rope_theta = 10000,
     .neutral = qwen3_moe_neutral,
     .model_names = usual_model,
     .layer_names = qwen3_moe_layer,
     .translate = translate_qwen3_moe},
    {.class_name = "Phi3ForCausalLM",
     .model_type = "phi3",
     .gguf = "phi3",
     .rope_theta = 10000,
     .may_rotate_part = true,
     .neutral = no_bias_neutral,
     .model_names = usual_model,
     .layer_names = phi3_layer,
     .translate = translate_window},
    {.class_name = "Gemma2ForCausalLM",
     .model_type = "gemma2",
     .gguf = "gemma2",
     .tied = true,
     .full_every = 2,
     .head_dim = 256,
     .rope_theta = 10000,
     .neutral = gemma_neutral,
     .model_names = usual_model,
     .layer_names = gemma_layer,
     .translate = translate_gemma2},
    {.class_name = "Gemma3ForCausalLM",
     .model_type = "gemma3_text",
     .gguf = "gemma3",
     .tied = true,
     .full_every = 6,
     .head_dim = 256,
     .rope_theta = 1e6,
     .neutral = gemma3_neutral,
     .model_names = usual_model,
     .layer_names = gemma_layer,
     .translate = translate_gemma},
    {.class_name = "GraniteForCausalLM",
     .model_type = "granite",
     .gguf = "granite",
     .rope_theta = 10000,
     .neutral = no_bias_neutral,
     .model_names = usual_model,
     .layer_names = norms_in_front,
     .translate = translate_granite},
    {.class_name = "Olmo2ForCausalLM",
     .model_type = "olmo2",
     .gguf = "olmo2",
     .rope_theta = 10000,
     .neutral = no_bias_neutral,
     .model_names = usual_model,
     .layer_names = olmo2_layer},
    {.class_name = "SmolLM3ForCausalLM",
     .model_type = "smollm3",
     .gguf = "smollm3",
     .tied = true,
     .rope_theta = 2e6,
     .neutral = no_bias_neutral,
     .model_names = usual_model,
     .layer_names = norms_in_front,
     .translate = translate_smollm3},
    {.class_name = "OPTForCausalLM",
     .model_type = "opt",
     .gguf = "opt",
     .prefix = "model.decoder.",
     .tied = true,
     .neutral = opt_neutral,
     .model_names = opt_model,
     .layer_names = opt_layer,
     .translate = translate_opt},
    {.class_name = "Starcoder2ForCausalLM",
     .model_type = "starcoder2",
     .gguf = "starcoder2",
     .tied = true,
     .rope_theta = 10000,
     .layer_norm_epsilon = "norm_epsilon",
     .neutral = starcoder2_neutral,
     .model_names = starcoder2_model,
     .layer_names = starcoder2_layer,
     .translate = translate_window},
    {.class_name = "GptOssForCausalLM",
     .model_type = "gpt_oss",
     .gguf = "gpt-oss",
     .full_every = 2,
     .head_dim = 64,
     .rope_theta = 150000,
     .stacked_experts = true,
     .neutral = gpt_oss_neutral,
     .model_names = usual_model,
     .layer_names = gpt_oss_layer,
     .translate = translate_gpt_oss},
};

const struct hf_arch *hf_arch_find(const char *class_name, const char *model_type)
{
    for (size_t i = 0; (class_name || model_type) && i < ARRAY_COUNT(archs); i++)
        if ((!class_name || strcmp(archs[i].class_name, class_name) == 0) &&
            (!model_type || strcmp(archs[i].model_type, model_type) == 0))
            return &archs[i];
    return NULL;
}

bool hf_knows_class(const char *class_name) { return hf_arch_find(class_name, NULL) != NULL; }

void hf_arch_names(char *out, size_t bytes)
{
    size_t at = 0;

    out[0] = '\0';
    for (size_t i = 0; i < ARRAY_COUNT(archs) && at < bytes; i++)
        at += (size_t)snprintf(out + at, bytes - at, "%s%s", i ? ", " : "", archs[i].class_name);
}
