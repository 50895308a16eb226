/* hf_build_gpt_oss.h: a tiny gpt-oss as hf_build.h has a tiny llama, with its tokenizer: hidden 32, 2 heads of 16, 1 KV head, 3 experts of 64, of which a
 * row goes through 2. Experts are floats, or MXFP4 in blocks and scales as in published files. */
#ifndef FD_TESTS_HF_BUILD_GPT_OSS_H
#define FD_TESTS_HF_BUILD_GPT_OSS_H

#include "tests/unit/hf_build.h"

enum { OSS_HIDDEN = 32, OSS_FFN = 64, OSS_EXPERTS = 3, OSS_LAYERS = 2, OSS_VOCAB = 264 };

#define OSS_QUANTIZATION \
    "\"quantization_config\": {\"modules_to_not_convert\": [\"model.layers.*.self_attn\", \"lm_head\"], \"quant_method\": \"mxfp4\"}"

struct hf_gpt_oss {
    const char *floats; /* the type of all that is no block or scale */
    bool mxfp4;         /* experts are blocks and scales */
    uint32_t layers, vocab, ffn;
};

static inline void hf_build_gpt_oss_config(struct hf_build *build, const struct hf_gpt_oss *m)
{
    char config[1024];
    snprintf(
        config, sizeof config,
        "{\"architectures\": [\"GptOssForCausalLM\"], \"model_type\": \"gpt_oss\", \"num_hidden_layers\": %u, \"hidden_size\": 32,\n"
        " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 16, \"intermediate_size\": %u, \"vocab_size\": %u,\n"
        " \"num_local_experts\": 3, \"num_experts_per_tok\": 2, \"sliding_window\": 16, \"max_position_embeddings\": 256,\n"
        " \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", \"attention_bias\": true, \"swiglu_limit\": 7.0,\n"
        " \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 8.0, \"beta_fast\": 32.0, \"beta_slow\": 1.0, \"truncate\": false,\n"
        " \"original_max_position_embeddings\": 32}, \"tie_word_embeddings\": true%s}",
        m->layers, m->ffn, m->vocab, m->mxfp4 ? ",\n " OSS_QUANTIZATION : "");
    hf_build_text(build, "config.json", config);
}

static inline void hf_build_bytes_of(struct hf_build *build, const char *name, const char *shape, uint32_t count, uint32_t least,
                                     uint32_t range)
{
    struct hf_built_file *file = hf_build_find(build, HF_SHARD);
    size_t begin = file->data.count;
    hf_build_values(build, file, "U8", count, least, range);
    hf_build_entry(file, name, "U8", shape, begin);
}

/* "…experts.gate_up_proj" or down_proj, in [experts][inputs][outputs] or as blocks and scales. */
static inline void hf_build_stacked(struct hf_build *build, const char *name, const struct hf_gpt_oss *m, uint32_t inputs,
                                    uint32_t outputs)
{
    struct hf_built_file *file = hf_build_find(build, HF_SHARD);
    char full[112], shape[64];
    size_t begin = file->data.count;
    if (m->mxfp4) {
        snprintf(full, sizeof full, "%s_blocks", name);
        snprintf(shape, sizeof shape, "[3,%u,%u,16]", outputs, inputs / 32);
        hf_build_bytes_of(build, full, shape, OSS_EXPERTS * outputs * inputs / 2, 0, 256);
        snprintf(full, sizeof full, "%s_scales", name);
        snprintf(shape, sizeof shape, "[3,%u,%u]", outputs, inputs / 32);
        hf_build_bytes_of(build, full, shape, OSS_EXPERTS * outputs * inputs / 32, 118, 5);
    } else {
        snprintf(shape, sizeof shape, "[3,%u,%u]", inputs, outputs);
        hf_build_values(build, file, m->floats, OSS_EXPERTS * outputs * inputs, 0, 0);
        hf_build_entry(file, name, m->floats, shape, begin);
    }
    snprintf(full, sizeof full, "%s_bias", name);
    hf_build_tensor(build, HF_SHARD, full, m->floats, OSS_EXPERTS, outputs);
}

static inline void hf_build_gpt_oss_layer(struct hf_build *build, const struct hf_gpt_oss *m, uint32_t layer)
{
    static const struct {
        const char *name;
        uint32_t rows, columns;
    } tensors[] = {
        {"input_layernorm.weight", 0, 32},   {"self_attn.q_proj.weight", 32, 32},        {"self_attn.q_proj.bias", 0, 32},
        {"self_attn.k_proj.weight", 16, 32}, {"self_attn.k_proj.bias", 0, 16},           {"self_attn.v_proj.weight", 16, 32},
        {"self_attn.v_proj.bias", 0, 16},    {"self_attn.o_proj.weight", 32, 32},        {"self_attn.o_proj.bias", 0, 32},
        {"self_attn.sinks", 0, 2},           {"post_attention_layernorm.weight", 0, 32}, {"mlp.router.weight", 3, 32},
        {"mlp.router.bias", 0, 3},
    };
    char name[96];
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        snprintf(name, sizeof name, "model.layers.%u.%s", layer, tensors[i].name);
        hf_build_tensor(build, HF_SHARD, name, m->floats, tensors[i].rows, tensors[i].columns);
    }
    snprintf(name, sizeof name, "model.layers.%u.mlp.experts.gate_up_proj", layer);
    hf_build_stacked(build, name, m, OSS_HIDDEN, 2 * m->ffn);
    snprintf(name, sizeof name, "model.layers.%u.mlp.experts.down_proj", layer);
    hf_build_stacked(build, name, m, m->ffn, OSS_HIDDEN);
}

static inline void hf_build_gpt_oss_of(struct hf_build *build, const struct hf_gpt_oss *m)
{
    hf_build_tiny(build);
    hf_build_drop(build, HF_SHARD);
    hf_build_gpt_oss_config(build, m);
    hf_build_tensor(build, HF_SHARD, "model.embed_tokens.weight", m->floats, m->vocab, OSS_HIDDEN);
    hf_build_tensor(build, HF_SHARD, "model.norm.weight", m->floats, 0, OSS_HIDDEN);
    for (uint32_t layer = 0; layer < m->layers; layer++)
        hf_build_gpt_oss_layer(build, m, layer);
}

static inline void hf_build_gpt_oss(struct hf_build *build, const char *floats, bool mxfp4)
{
    const struct hf_gpt_oss m = {floats, mxfp4, OSS_LAYERS, OSS_VOCAB, OSS_FFN};
    hf_build_gpt_oss_of(build, &m);
}

#endif
