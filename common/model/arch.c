// arch.c: the table of architectures.
#include "common/model/arch.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"

#define MODEL(member) offsetof(struct model, member)
#define LAYER(member) offsetof(struct model_layer, member)

// Tensors outside of layers are named alike everywhere.
static const struct arch_tensor common_tensors[] = {
    {"token_embd.weight", MODEL(embedding), ARCH_REQUIRED, DIM_VOCAB, DIM_HIDDEN},
    {"output_norm.weight", MODEL(output_norm), ARCH_REQUIRED, DIM_ONE, DIM_HIDDEN},
    {"output.weight", MODEL(output), ARCH_OPTIONAL, DIM_VOCAB, DIM_HIDDEN},
    {"rope_freqs.weight", MODEL(rope_factors), ARCH_OPTIONAL, DIM_ONE, DIM_ROPE_HALF},
    {NULL, 0, ARCH_OPTIONAL, DIM_ONE, DIM_ONE},
};

// Two norms, separate Q, K, V without norms of their own, a gated MLP.
static const struct arch_tensor llama_layer[] = {
    {"blk.%u.attn_norm.weight", LAYER(attn_norm), ARCH_REQUIRED, DIM_ONE, DIM_HIDDEN},
    {"blk.%u.attn_q.weight", LAYER(q), ARCH_REQUIRED, DIM_Q, DIM_HIDDEN},
    {"blk.%u.attn_k.weight", LAYER(k), ARCH_REQUIRED, DIM_KV, DIM_HIDDEN},
    {"blk.%u.attn_v.weight", LAYER(v), ARCH_REQUIRED, DIM_KV, DIM_HIDDEN},
    {"blk.%u.attn_output.weight", LAYER(o), ARCH_REQUIRED, DIM_HIDDEN, DIM_Q},
    {"blk.%u.attn_q.bias", LAYER(q_bias), ARCH_OPTIONAL, DIM_ONE, DIM_Q},
    {"blk.%u.attn_k.bias", LAYER(k_bias), ARCH_OPTIONAL, DIM_ONE, DIM_KV},
    {"blk.%u.attn_v.bias", LAYER(v_bias), ARCH_OPTIONAL, DIM_ONE, DIM_KV},
    {"blk.%u.attn_output.bias", LAYER(o_bias), ARCH_OPTIONAL, DIM_ONE, DIM_HIDDEN},
    {"blk.%u.ffn_norm.weight", LAYER(ffn_norm), ARCH_REQUIRED, DIM_ONE, DIM_HIDDEN},
    {"blk.%u.ffn_gate.weight", LAYER(gate), ARCH_REQUIRED, DIM_FFN, DIM_HIDDEN},
    {"blk.%u.ffn_up.weight", LAYER(up), ARCH_REQUIRED, DIM_FFN, DIM_HIDDEN},
    {"blk.%u.ffn_down.weight", LAYER(down), ARCH_REQUIRED, DIM_HIDDEN, DIM_FFN},
    {NULL, 0, ARCH_OPTIONAL, DIM_ONE, DIM_ONE},
};

// What files of several architectures may say, and the forward pass does not do.
static const struct arch_neutral common_neutral[] = {
    {"expert_count", 0, "mixture-of-experts models are not supported"},
    {"attention.sliding_window", 0, "sliding-window attention is not supported"},
    {"attention.causal", 1, "only causal attention is supported"},
    {"use_parallel_residual", 0, "parallel residuals are not supported"},
    {NULL, 0, NULL},
};

static const struct arch archs[] = {
    {
        .name = "llama",
        .norm = NORM_RMS,
        .rope_style = ROPE_PAIRS,
        .activation = ACTIVATION_SILU_GATED,
        .tied_allowed = true,
        .epsilon_suffix = "attention.layer_norm_rms_epsilon",
        .neutral = common_neutral,
        .model_tensors = common_tensors,
        .layer_tensors = llama_layer,
    },
    {
        .name = "qwen2",
        .norm = NORM_RMS,
        .rope_style = ROPE_NEOX,
        .activation = ACTIVATION_SILU_GATED,
        .tied_allowed = true,
        .epsilon_suffix = "attention.layer_norm_rms_epsilon",
        .neutral = common_neutral,
        .model_tensors = common_tensors,
        .layer_tensors = llama_layer,
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
