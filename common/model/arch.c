// arch.c: the table of architectures.
#include "common/model/arch.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"

#define MODEL(member) offsetof(struct model, member)
#define LAYER(member) offsetof(struct model_layer, member)
#define END                       \
    {                             \
        .presence = ARCH_OPTIONAL \
    }
#define TENSOR(text, place, needed, first, second)                                             \
    {                                                                                          \
        .pattern = text, .offset = place, .presence = needed, .rows = first, .columns = second \
    }
#define VECTOR(name, member, presence, length) TENSOR("blk.%u." name, LAYER(member), presence, DIM_ONE, length)
#define MATRIX(name, member, rows, columns) TENSOR("blk.%u." name ".weight", LAYER(member), ARCH_REQUIRED, rows, columns)
#define BIAS(name, member, length) VECTOR(name ".bias", member, ARCH_OPTIONAL, length)

// --- outside of layers --------------------------------------------------------------------------------------------------

#define EMBEDDING TENSOR("token_embd.weight", MODEL(embedding), ARCH_REQUIRED, DIM_VOCAB, DIM_HIDDEN)
#define OUTPUT                                                                            \
    TENSOR("output_norm.weight", MODEL(output_norm), ARCH_REQUIRED, DIM_ONE, DIM_HIDDEN), \
        TENSOR("output.weight", MODEL(output), ARCH_OPTIONAL, DIM_VOCAB, DIM_HIDDEN)
#define OUTPUT_BIAS TENSOR("output_norm.bias", MODEL(output_norm_bias), ARCH_OPTIONAL, DIM_ONE, DIM_HIDDEN)
#define ROPE_FACTORS                                                                                     \
    TENSOR("rope_freqs.weight", MODEL(rope_factors), ARCH_OPTIONAL, DIM_ONE, DIM_ROPE_HALF),             \
        TENSOR("rope_factors_short.weight", MODEL(rope_factors), ARCH_OPTIONAL, DIM_ONE, DIM_ROPE_HALF), \
        TENSOR("rope_factors_long.weight", MODEL(rope_factors_long), ARCH_OPTIONAL, DIM_ONE, DIM_ROPE_HALF)

static const struct arch_tensor common_tensors[] = {EMBEDDING, OUTPUT, ROPE_FACTORS, END};
static const struct arch_tensor starcoder2_tensors[] = {EMBEDDING, OUTPUT, OUTPUT_BIAS, ROPE_FACTORS, END};

static const struct arch_tensor opt_tensors[] = {
    EMBEDDING, OUTPUT, OUTPUT_BIAS, TENSOR("position_embd.weight", MODEL(positions), ARCH_REQUIRED, DIM_POSITIONS, DIM_HIDDEN), END,
};

// --- attention ------------------------------------------------------------------------------------------------------------

#define SEPARATE_QKV \
    MATRIX("attn_q", q, DIM_Q, DIM_HIDDEN), MATRIX("attn_k", k, DIM_KV, DIM_HIDDEN), MATRIX("attn_v", v, DIM_KV, DIM_HIDDEN)
#define QKVO_BIAS                                                                                  \
    BIAS("attn_q", q_bias, DIM_Q), BIAS("attn_k", k_bias, DIM_KV), BIAS("attn_v", v_bias, DIM_KV), \
        BIAS("attn_output", o_bias, DIM_HIDDEN)
#define ATTENTION SEPARATE_QKV, MATRIX("attn_output", o, DIM_HIDDEN, DIM_Q), QKVO_BIAS
#define ATTN_NORM VECTOR("attn_norm.weight", attn_norm, ARCH_REQUIRED, DIM_HIDDEN)
#define FFN_NORM VECTOR("ffn_norm.weight", ffn_norm, ARCH_REQUIRED, DIM_HIDDEN)
#define QK_NORM(length_q, length_k) \
    VECTOR("attn_q_norm.weight", q_norm, ARCH_REQUIRED, length_q), VECTOR("attn_k_norm.weight", k_norm, ARCH_REQUIRED, length_k)
#define POST_NORMS                                                                   \
    VECTOR("post_attention_norm.weight", post_attn_norm, ARCH_REQUIRED, DIM_HIDDEN), \
        VECTOR("post_ffw_norm.weight", post_ffn_norm, ARCH_REQUIRED, DIM_HIDDEN)

// Two norms, separate Q, K, V without norms of their own.
static const struct arch_tensor llama_layer[] = {ATTN_NORM, ATTENTION, FFN_NORM, END};

// Q and K of each head have a norm.
static const struct arch_tensor qwen3_layer[] = {ATTN_NORM, ATTENTION, QK_NORM(DIM_HEAD, DIM_HEAD), FFN_NORM, END};

// The results of attention and MLP have norms, too.
static const struct arch_tensor gemma2_layer[] = {ATTN_NORM, ATTENTION, FFN_NORM, POST_NORMS, END};
static const struct arch_tensor gemma3_layer[] = {ATTN_NORM, ATTENTION, QK_NORM(DIM_HEAD, DIM_HEAD), FFN_NORM, POST_NORMS, END};

// Only that has; Q and K have one over all heads.
static const struct arch_tensor olmo2_layer[] = {ATTENTION, QK_NORM(DIM_Q, DIM_KV), POST_NORMS, END};

static const struct arch_tensor phi3_layer[] = {
    ATTN_NORM,
    MATRIX("attn_qkv", q, DIM_Q, DIM_HIDDEN),
    TENSOR("blk.%u.attn_qkv.weight", LAYER(k), ARCH_PART, DIM_KV, DIM_HIDDEN),
    TENSOR("blk.%u.attn_qkv.weight", LAYER(v), ARCH_PART, DIM_KV, DIM_HIDDEN),
    MATRIX("attn_output", o, DIM_HIDDEN, DIM_Q),
    FFN_NORM,
    END,
};

// Each head has a score that takes part in its softmax, without a value.
static const struct arch_tensor gpt_oss_layer[] = {
    ATTN_NORM,
    ATTENTION,
    VECTOR("attn_sinks.weight", sinks, ARCH_REQUIRED, DIM_HEADS),
    VECTOR("post_attention_norm.weight", ffn_norm, ARCH_REQUIRED, DIM_HIDDEN),
    END,
};

// Both norms have a bias.
static const struct arch_tensor opt_layer[] = {
    ATTN_NORM, VECTOR("attn_norm.bias", attn_norm_bias, ARCH_OPTIONAL, DIM_HIDDEN), ATTENTION,
    FFN_NORM,  VECTOR("ffn_norm.bias", ffn_norm_bias, ARCH_OPTIONAL, DIM_HIDDEN),   END,
};

// --- MLP ------------------------------------------------------------------------------------------------------------------

static const struct arch_tensor gated_mlp[] = {
    MATRIX("ffn_gate", gate, DIM_FFN, DIM_HIDDEN),
    MATRIX("ffn_up", up, DIM_FFN, DIM_HIDDEN),
    MATRIX("ffn_down", down, DIM_HIDDEN, DIM_FFN),
    BIAS("ffn_gate", gate_bias, DIM_FFN),
    BIAS("ffn_up", up_bias, DIM_FFN),
    BIAS("ffn_down", down_bias, DIM_HIDDEN),
    END,
};

static const struct arch_tensor phi3_mlp[] = {
    MATRIX("ffn_up", gate, DIM_FFN, DIM_HIDDEN),
    TENSOR("blk.%u.ffn_up.weight", LAYER(up), ARCH_PART, DIM_FFN, DIM_HIDDEN),
    MATRIX("ffn_down", down, DIM_HIDDEN, DIM_FFN),
    END,
};

static const struct arch_tensor plain_mlp[] = {
    MATRIX("ffn_up", gate, DIM_FFN, DIM_HIDDEN),
    BIAS("ffn_up", gate_bias, DIM_FFN),
    MATRIX("ffn_down", down, DIM_HIDDEN, DIM_FFN),
    BIAS("ffn_down", down_bias, DIM_HIDDEN),
    END,
};

static const struct arch_tensor gated_experts[] = {
    MATRIX("ffn_gate_inp", router, DIM_EXPERTS, DIM_HIDDEN),
    MATRIX("ffn_gate_exps", gate, DIM_EXPERTS_FFN, DIM_HIDDEN),
    MATRIX("ffn_up_exps", up, DIM_EXPERTS_FFN, DIM_HIDDEN),
    MATRIX("ffn_down_exps", down, DIM_EXPERTS_HIDDEN, DIM_EXPERT_FFN),
    END,
};

static const struct arch_tensor gpt_oss_experts[] = {
    MATRIX("ffn_gate_inp", router, DIM_EXPERTS, DIM_HIDDEN),
    BIAS("ffn_gate_inp", router_bias, DIM_EXPERTS),
    MATRIX("ffn_gate_exps", gate, DIM_EXPERTS_FFN, DIM_HIDDEN),
    MATRIX("ffn_up_exps", up, DIM_EXPERTS_FFN, DIM_HIDDEN),
    MATRIX("ffn_down_exps", down, DIM_EXPERTS_HIDDEN, DIM_EXPERT_FFN),
    TENSOR("blk.%u.ffn_gate_exps.bias", LAYER(gate_bias), ARCH_OPTIONAL, DIM_EXPERTS, DIM_EXPERT_FFN),
    TENSOR("blk.%u.ffn_up_exps.bias", LAYER(up_bias), ARCH_OPTIONAL, DIM_EXPERTS, DIM_EXPERT_FFN),
    TENSOR("blk.%u.ffn_down_exps.bias", LAYER(down_bias), ARCH_OPTIONAL, DIM_EXPERTS, DIM_HIDDEN),
    END,
};

// --- rows -----------------------------------------------------------------------------------------------------------------

// Keys that files of several architectures may have, of what the forward pass does not do.
static const struct arch_neutral common_neutral[] = {
    {.suffix = "attention.causal", .value = 1, .reason = "only causal attention is supported"},
    {.suffix = "use_parallel_residual", .reason = "parallel residuals are not supported"},
    {.suffix = "expert_shared_count", .reason = "shared experts are not supported"},
    {.suffix = NULL},
};

// A row with RMS norms, gated MLP and RoPE.
#define ROW(arch_name, models, rope, act, layer, mlp)                                                                             \
    .name = (arch_name), .families = (models), .norm = NORM_RMS, .rope_style = (rope), .activation = (act), .tied_allowed = true, \
    .epsilon_suffix = "attention.layer_norm_rms_epsilon", .neutral = common_neutral, .model_tensors = common_tensors,             \
    .layer_tensors = (layer), .mlp_tensors = (mlp)

static const struct arch archs[] = {
    {ROW("llama", "Llama, Mistral, Mixtral, SmolLM, TinyLlama", ROPE_PAIRS, ACTIVATION_SILU, llama_layer, gated_mlp),
     .expert_tensors = gated_experts, .window_period = 1},
    {ROW("qwen2", "Qwen 1.5, Qwen 2, Qwen 2.5", ROPE_NEOX, ACTIVATION_SILU, llama_layer, gated_mlp)},
    {ROW("qwen3", "Qwen 3", ROPE_NEOX, ACTIVATION_SILU, qwen3_layer, gated_mlp)},
    {ROW("qwen3moe", "Qwen 3 30B-A3B, 235B-A22B", ROPE_NEOX, ACTIVATION_SILU, qwen3_layer, gated_mlp),
     .expert_tensors = gated_experts},
    {ROW("phi3", "Phi-3, Phi-3.5, Phi-4", ROPE_NEOX, ACTIVATION_SILU, phi3_layer, phi3_mlp), .window_period = 1},
    {ROW("gemma2", "Gemma 2", ROPE_NEOX, ACTIVATION_GELU, gemma2_layer, gated_mlp), .embedding_sqrt_hidden = true,
     .window_period = 2, .usual_window = 4096, .usual_attention_cap = 50, .usual_logit_cap = 30, .hidden_scale_layers = 46},
    {ROW("gemma3", "Gemma 3 (text)", ROPE_NEOX, ACTIVATION_GELU, gemma3_layer, gated_mlp), .embedding_sqrt_hidden = true,
     .window_period = 6, .window_rope_base = 10000, .hidden_scale_layers = 62},
    {ROW("gpt-oss", "gpt-oss 20b, 120b", ROPE_NEOX, ACTIVATION_GPT_OSS, gpt_oss_layer, gated_mlp),
     .expert_tensors = gpt_oss_experts, .window_period = 2, .yarn_between = true},
    {ROW("granite", "Granite 3", ROPE_PAIRS, ACTIVATION_SILU, llama_layer, gated_mlp), .logits_divided = true},
    {ROW("olmo2", "OLMo 2", ROPE_NEOX, ACTIVATION_SILU, olmo2_layer, gated_mlp)},
    {ROW("smollm3", "SmolLM3", ROPE_PAIRS, ACTIVATION_SILU, llama_layer, gated_mlp), .rope_period = 4},
    {
        .name = "opt",
        .families = "OPT, but 350m",
        .norm = NORM_LAYER,
        .rope_style = ROPE_NONE,
        .activation = ACTIVATION_RELU,
        .tied_allowed = true,
        .positions_before = 2,
        .epsilon_suffix = "attention.layer_norm_epsilon",
        .neutral = common_neutral,
        .model_tensors = opt_tensors,
        .layer_tensors = opt_layer,
        .mlp_tensors = plain_mlp,
    },
    {
        .name = "starcoder2",
        .families = "StarCoder2",
        .norm = NORM_LAYER,
        .rope_style = ROPE_NEOX,
        .activation = ACTIVATION_GELU_PLAIN,
        .tied_allowed = true,
        .window_period = 1,
        .epsilon_suffix = "attention.layer_norm_epsilon",
        .neutral = common_neutral,
        .model_tensors = starcoder2_tensors,
        .layer_tensors = opt_layer,
        .mlp_tensors = plain_mlp,
    },
};

const struct arch *arch_find(struct gguf_string name)
{
    for (size_t i = 0; i < ARRAY_COUNT(archs); i++)
        if (strlen(archs[i].name) == name.length && memcmp(archs[i].name, name.data, name.length) == 0)
            return &archs[i];
    return NULL;
}

void arch_names(char *out, size_t bytes)
{
    size_t at = 0;

    out[0] = '\0';
    for (size_t i = 0; i < ARRAY_COUNT(archs) && at < bytes; i++)
        at += (size_t)snprintf(out + at, bytes - at, "%s%s", i ? ", " : "", archs[i].name);
}

static bool has(const struct arch_tensor *list, size_t offset)
{
    while (list && list->pattern && list->offset != offset)
        list++;
    return list && list->pattern;
}

bool arch_describe(uint32_t index, struct arch_description *out)
{
    static const char *const ropes[] = {
        [ROPE_PAIRS] = "RoPE, neighbours", [ROPE_NEOX] = "RoPE, half a head apart", [ROPE_NONE] = "learned"};
    static const char *const activations[] = {[ACTIVATION_SILU] = "SiLU",
                                              [ACTIVATION_GELU] = "GELU",
                                              [ACTIVATION_GELU_PLAIN] = "GELU",
                                              [ACTIVATION_RELU] = "ReLU",
                                              [ACTIVATION_GPT_OSS] = "clamped SiLU"};
    const struct arch *arch = index < ARRAY_COUNT(archs) ? &archs[index] : NULL;

    if (!arch)
        return false;
    const bool pre = has(arch->layer_tensors, LAYER(attn_norm)), post = has(arch->layer_tensors, LAYER(post_attn_norm));
    *out = (struct arch_description){.name = arch->name, .families = arch->families};
    snprintf(out->norms, sizeof out->norms, "%s, %s%s", arch->norm == NORM_RMS ? "RMS" : "LayerNorm",
             pre && post ? "before and after"
             : pre       ? "before"
                         : "after",
             has(arch->layer_tensors, LAYER(q_norm)) ? "; of q and k" : "");
    snprintf(out->positions, sizeof out->positions, "%s%s", ropes[arch->rope_style],
             arch->rope_period ? ", not in all layers" : "");
    snprintf(out->mlp, sizeof out->mlp, "%s%s%s", activations[arch->activation], has(arch->mlp_tensors, LAYER(up)) ? ", gated" : "",
             arch->expert_tensors ? "; experts" : "");
    if (arch->window_period == 1)
        snprintf(out->attention, sizeof out->attention, "a window, if the file has one");
    else if (arch->window_period)
        snprintf(out->attention, sizeof out->attention, "a window in %u of %u layers%s", arch->window_period - 1,
                 arch->window_period, has(arch->layer_tensors, LAYER(sinks)) ? "; sinks" : "");
    else
        snprintf(out->attention, sizeof out->attention, "all positions");
    return true;
}
