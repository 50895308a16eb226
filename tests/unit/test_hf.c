/* test_hf.c: a directory of Hugging Face files becomes the keys and tensors that the same model's GGUF file would have. */
#include <math.h>

#include "common/base/checked.h"
#include "common/model/model.h"
#include "tests/cmocka.h"
#include "tests/unit/hf_assert.h"

static void keys_are_those_of_a_gguf_file(void **state)
{
    struct hf_build build;
    hf_build_tiny(&build);
    struct gguf *gguf = open_built(&build);
    assert_text(gguf, "general.architecture", "llama");
    assert_int_equal(u32_of(gguf, "llama.block_count"), 2);
    assert_int_equal(u32_of(gguf, "llama.embedding_length"), 8);
    assert_int_equal(u32_of(gguf, "llama.feed_forward_length"), 12);
    assert_int_equal(u32_of(gguf, "llama.context_length"), 128);
    assert_int_equal(u32_of(gguf, "llama.vocab_size"), 264);
    assert_int_equal(u32_of(gguf, "llama.attention.head_count"), 2);
    assert_int_equal(u32_of(gguf, "llama.attention.head_count_kv"), 1);
    assert_int_equal(u32_of(gguf, "llama.attention.key_length"), 4);
    assert_int_equal(u32_of(gguf, "llama.rope.dimension_count"), 4);
    assert_true(f32_of(gguf, "llama.attention.layer_norm_rms_epsilon") == 1e-5f);
    assert_true(f32_of(gguf, "llama.rope.freq_base") == 10000);
    assert_true(is_set(gguf, "fastdecode.rope_halves"));
    assert_false(gguf_has(gguf, "fastdecode.norm_plus_one") || gguf_has(gguf, "llama.rope.scaling.type"));
    assert_text(gguf, "tokenizer.ggml.model", "gpt2");
    assert_text(gguf, "tokenizer.ggml.pre", "llama-bpe");
    assert_text(gguf, "tokenizer.chat_template", "{{ messages[0].content }}");
    assert_int_equal(u32_of(gguf, "tokenizer.ggml.bos_token_id"), 1);
    assert_int_equal(u32_of(gguf, "tokenizer.ggml.eos_token_id"), 2);
    assert_int_equal(u32_of(gguf, "tokenizer.ggml.eot_token_id"), 0);
    assert_false(is_set(gguf, "tokenizer.ggml.add_bos_token") || gguf_has(gguf, "tokenizer.ggml.padding_token_id"));
    assert_memory_equal(token_of(gguf, "tokenizer.ggml.tokens", 2).data, "<|im_end|>", 10);
    assert_memory_equal(token_of(gguf, "tokenizer.ggml.tokens", 260).data, "the", 3);
    assert_memory_equal(token_of(gguf, "tokenizer.ggml.tokens", 263).data, "[PAD263]", 8);
    assert_memory_equal(token_of(gguf, "tokenizer.ggml.merges", 1).data, "th e", 4);
    static const int64_t types[][2] = {{0, 3}, {2, 3}, {3, 1}, {260, 1}, {261, 4}, {262, 5}, {263, 5}};
    for (size_t i = 0; i < ARRAY_COUNT(types); i++)
        assert_int_equal(type_of(gguf, (uint64_t)types[i][0]), types[i][1]);
    assert_true(f32_of(gguf, "general.sampling.temp") == 0.5f);
    assert_int_equal(u32_of(gguf, "general.sampling.top_k"), 40);
    gguf_close(gguf);
}

static void tensors_lie_in_the_files(void **state)
{
    struct hf_build build;
    hf_build_tiny(&build);
    size_t count;
    struct hf_built_file *file = hf_build_find(&build, HF_SHARD);
    unsigned char *data = malloc(file->data.count);
    assert_non_null(data);
    memcpy(data, file->data.bytes, count = file->data.count);
    struct gguf *gguf = open_built(&build);
    assert_int_equal(gguf_tensor_count(gguf), 20);
    const struct gguf_tensor *embedding = gguf_find_tensor(gguf, "token_embd.weight");
    assert_non_null(embedding);
    assert_int_equal(embedding->type, TENSOR_BF16);
    assert_true(embedding->dims[0] == 8 && embedding->dims[1] == 264 && embedding->dim_count == 2);
    assert_memory_equal(embedding->data, data, embedding->bytes);
    const struct gguf_tensor *norm = gguf_find_tensor(gguf, "output_norm.weight");
    assert_true(norm && norm->dims[0] == 8 && norm->dim_count == 1);
    assert_memory_equal(norm->data, data + count - 16, 16);
    const struct gguf_tensor *down = gguf_find_tensor(gguf, "blk.1.ffn_down.weight");
    assert_true(down && down->dims[0] == 12 && down->dims[1] == 8);
    assert_non_null(gguf_find_tensor(gguf, "blk.0.attn_output.weight"));
    assert_ptr_equal(down->data, gguf_bytes(gguf) + down->data_offset);
    assert_true(down->data_offset >= gguf_header_bytes(gguf) && down->data_offset + down->bytes <= gguf_file_bytes(gguf));
    gguf_close(gguf);
    free(data);
}

/* The same model in two files beside an index. */
static void shards_are_read_by_their_index(void **state)
{
    struct hf_build build, split;
    hf_build_tiny(&build);
    hf_build_tiny(&split);
    hf_build_drop(&split, HF_SHARD);
    split.seed = 1;
    hf_build_tensor(&split, "model-00001-of-00002.safetensors", "model.embed_tokens.weight", "BF16", 264, 8);
    hf_build_tiny_layer(&split, "model-00001-of-00002.safetensors", 0);
    hf_build_tiny_layer(&split, "model-00002-of-00002.safetensors", 1);
    hf_build_tensor(&split, "model-00002-of-00002.safetensors", "model.norm.weight", "BF16", 0, 8);
    struct gguf_bytes index = {0};
    hf_append_text(&index, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {");
    for (uint32_t i = 0; i < split.count; i++) {
        if (!strstr(split.files[i].name, ".safetensors"))
            continue;
        for (const char *at = split.files[i].text; (at = strstr(at, "\"model.")) != NULL; at++) {
            if (index.bytes[index.count - 1] != '{')
                hf_append_text(&index, ", ");
            gguf_append(&index, at, (size_t)(strchr(at + 1, '"') + 1 - at));
            hf_append_text(&index, ": \"");
            hf_append_text(&index, split.files[i].name);
            hf_append_text(&index, "\"");
        }
    }
    hf_append_text(&index, "}}");
    gguf_append(&index, "", 1);
    hf_build_text(&split, "model.safetensors.index.json", (char *)index.bytes);
    free(index.bytes);
    struct gguf *one = open_built(&build), *two = open_kept(&split);
    assert_int_equal(gguf_tensor_count(two), gguf_tensor_count(one));
    for (uint32_t i = 0; i < gguf_tensor_count(one); i++) {
        const struct gguf_tensor *a = gguf_tensor_at(one, i);
        char name[GGUF_MAX_NAME_BYTES + 1];
        snprintf(name, sizeof name, "%.*s", (int)a->name.length, a->name.data);
        const struct gguf_tensor *b = gguf_find_tensor(two, name);
        assert_non_null(b);
        assert_memory_equal(a->data, b->data, a->bytes);
    }
    gguf_close(one);
    gguf_close(two);
    /* a tensor that the index has elsewhere */
    hf_build_edit(&split, "model.safetensors.index.json", "00002-of", "00001-of");
    assert_true(is_refused(&split, "split", STATUS_INVALID_ARGUMENT, "says that it is in model-00001-of-00002.safetensors"));
}

static void a_tensor_that_the_index_alone_has_is_told(void **state)
{
    struct hf_build build;
    struct gguf *gguf = NULL;
    struct error error = {0};
    hf_build_tiny(&build);
    struct gguf_bytes index = {0};
    hf_append_text(&index, "{\"weight_map\": {\"model.lost\": \"model.safetensors\", "
                           "\"model.layers.0.self_attn.rotary_emb.inv_freq\": \"model.safetensors\"");
    for (const char *at = hf_build_find(&build, HF_SHARD)->text; (at = strstr(at, "\"model.")) != NULL; at++) {
        hf_append_text(&index, ", ");
        gguf_append(&index, at, (size_t)(strchr(at + 1, '"') + 1 - at));
        hf_append_text(&index, ": \"model.safetensors\"");
    }
    hf_append_text(&index, "}}");
    gguf_append(&index, "", 1);
    hf_build_text(&build, "model.safetensors.index.json", (char *)index.bytes);
    free(index.bytes);
    assert_int_equal(hf_build_open(&build, &gguf, &error), STATUS_INVALID_ARGUMENT);
    assert_string_equal(error.text,
                        "tiny/model.safetensors: tensor 'model.lost' is missing, which model.safetensors.index.json says is here");
    hf_build_edit(&build, "model.safetensors.index.json", "\"model.lost\": \"model.safetensors\", ",
                  ""); /* the other is not missed */
    assert_int_equal(hf_build_open(&build, &gguf, &error), STATUS_OK);
    gguf_close(gguf);
    hf_build_free(&build);
}

/* --- architectures ------------------------------------------------------------------------------------------------------------ */

struct architecture_key {
    const char *class_name, *model_type, *more; /* more: keys of config.json */
    const char *gguf;
    const char *key; /* without the architecture, or whole if it begins with "fastdecode." */
    double value;    /* of a number; 0 or 1 of a bool */
};

static const struct architecture_key architecture_keys[] = {
    {"MistralForCausalLM", "mistral", "\"sliding_window\": 64", "llama", "attention.sliding_window", 64},
    {"Qwen2ForCausalLM", "qwen2", "\"use_sliding_window\": false, \"sliding_window\": 64", "qwen2", "context_length", 128},
    {"Qwen2ForCausalLM", "qwen2", "\"use_sliding_window\": true, \"sliding_window\": 64, \"max_window_layers\": 2", "qwen2",
     "block_count", 2},
    {"Qwen3ForCausalLM", "qwen3", "\"max_window_layers\": 2", "qwen3", "attention.key_length", 4},
    {"Qwen3MoeForCausalLM", "qwen3_moe",
     "\"num_experts\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 6, \"norm_topk_prob\": true", "qwen3moe",
     "expert_feed_forward_length", 6},
    {"Qwen3MoeForCausalLM", "qwen3_moe",
     "\"num_experts\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 6, \"norm_topk_prob\": true", "qwen3moe",
     "fastdecode.experts_listed", 1},
    {"Qwen3MoeForCausalLM", "qwen3_moe",
     "\"num_experts\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 6, \"norm_topk_prob\": true", "qwen3moe",
     "expert_weights_norm", 1},
    {"Qwen3MoeForCausalLM", "qwen3_moe", "\"num_experts\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 6", "qwen3moe",
     "expert_weights_norm", 0},
    {"MixtralForCausalLM", "mixtral", "\"num_local_experts\": 8, \"num_experts_per_tok\": 2", "llama", "expert_used_count", 2},
    {"Phi3ForCausalLM", "phi3", "\"partial_rotary_factor\": 0.5", "phi3", "rope.dimension_count", 2},
    {"Gemma2ForCausalLM", "gemma2", "\"sliding_window\": 32, \"query_pre_attn_scalar\": 16", "gemma2", "attention.scale", 0.25},
    {"Gemma2ForCausalLM", "gemma2", "\"sliding_window\": 32, \"attn_logit_softcapping\": 50.0", "gemma2", "attn_logit_softcapping",
     50},
    {"Gemma2ForCausalLM", "gemma2", "\"sliding_window\": 32, \"final_logit_softcapping\": null", "gemma2",
     "final_logit_softcapping", 0},
    {"Gemma2ForCausalLM", "gemma2", "\"sliding_window\": 32", "gemma2", "fastdecode.norm_plus_one", 1},
    {"Gemma3ForCausalLM", "gemma3_text", "\"sliding_window\": 32, \"rope_local_base_freq\": 5000", "gemma3", "rope.freq_base_swa",
     5000},
    {"Gemma3ForCausalLM", "gemma3_text",
     "\"sliding_window\": 32, \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 7000, \"rope_type\": \"linear\", \"factor\": 8}, "
     "\"sliding_attention\": {\"rope_theta\": 10000}}",
     "gemma3", "rope.freq_base", 7000},
    {"GraniteForCausalLM", "granite", "\"attention_multiplier\": 0.5, \"logits_scaling\": 8", "granite", "logit_scale", 8},
    {"SmolLM3ForCausalLM", "smollm3", "\"no_rope_layers\": [1, 1], \"no_rope_layer_interval\": 4", "smollm3", "block_count", 2},
    {"Starcoder2ForCausalLM", "starcoder2", "\"norm_epsilon\": 0.25, \"hidden_act\": \"gelu_pytorch_tanh\"", "starcoder2",
     "attention.layer_norm_epsilon", 0.25},
    {"Starcoder2ForCausalLM", "starcoder2", "\"hidden_act\": \"gelu_pytorch_tanh\", \"sliding_window\": 64", "starcoder2",
     "attention.sliding_window", 64},
    {"GptOssForCausalLM", "gpt_oss",
     "\"num_local_experts\": 4, \"experts_per_token\": 2, \"sliding_window\": 16, \"attention_bias\": true, \"rope_parameters\": "
     "{\"rope_type\": \"default\"}, \"layer_types\": "
     "[\"sliding_attention\", \"full_attention\"]",
     "gpt-oss", "expert_feed_forward_length", 12},
    {"LlamaForCausalLM", "llama", "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 500}", "llama",
     "rope.freq_base", 500},
    {"LlamaForCausalLM", "llama", "\"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 500, \"factor\": 4}", "llama",
     "rope.scaling.factor", 4},
    {"LlamaForCausalLM", "llama",
     "\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 32}", "llama",
     "rope.scaling.original_context_length", 32},
};

static void check_architecture(const struct architecture_key *has)
{
    struct hf_build build;
    char key[128], more[512];
    float number;
    uint32_t whole;
    bool truth;
    hf_build_tiny(&build);
    hf_build_edit(&build, CONFIG, "LlamaForCausalLM", has->class_name);
    snprintf(more, sizeof more, "\"model_type\": \"%s\", %s", has->model_type, has->more);
    hf_build_edit(&build, CONFIG, "\"model_type\": \"llama\"", more);
    hf_build_edit(&build, CONFIG, "\"rope_theta\": 10000.0,", "");
    hf_build_edit(&build, CONFIG, "\"attention_bias\": false,", "");
    hf_build_edit(&build, CONFIG, "\"hidden_act\": \"silu\",", "");
    struct gguf *gguf = open_built(&build);
    assert_text(gguf, "general.architecture", has->gguf);
    bool own = strncmp(has->key, "fastdecode.", 11) == 0;
    snprintf(key, sizeof key, "%s%s%s", own ? "" : has->gguf, own ? "" : ".", has->key);
    if (own)
        assert_true(is_set(gguf, key));
    else if (gguf_get_u32(gguf, key, &whole, NULL) == STATUS_OK)
        assert_int_equal(whole, has->value);
    else if (gguf_get_f32(gguf, key, &number, NULL) == STATUS_OK)
        assert_true((double)number == has->value);
    else if (gguf_get_bool(gguf, key, &truth, NULL) == STATUS_OK)
        assert_int_equal(truth, has->value);
    else
        fail_msg("no key %s", key);
    assert_true(is_set(gguf, "fastdecode.rope_halves"));
    gguf_close(gguf);
}

static void architectures_have_their_keys(void **state)
{
    for (size_t i = 0; i < ARRAY_COUNT(architecture_keys); i++)
        check_architecture(&architecture_keys[i]);
}

/* transformers gives Mistral a window where config.json has no such key; null is none. */
static void a_window_that_is_missing_is_the_class_own(void **state)
{
    static const struct {
        const char *more;
        uint32_t window; /* 0: none */
    } cases[] = {{"", 4096}, {", \"sliding_window\": null", 0}, {", \"sliding_window\": 64", 64}};

    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct hf_build build;
        char more[128];
        uint32_t window = 0;
        hf_build_tiny(&build);
        hf_build_edit(&build, CONFIG, "LlamaForCausalLM", "MistralForCausalLM");
        snprintf(more, sizeof more, "\"model_type\": \"mistral\"%s", cases[i].more);
        hf_build_edit(&build, CONFIG, "\"model_type\": \"llama\"", more);
        hf_build_edit(&build, CONFIG, "\"max_position_embeddings\": 128", "\"max_position_embeddings\": 8192");
        struct gguf *gguf = open_built(&build);
        if (gguf_has(gguf, "llama.attention.sliding_window"))
            assert_int_equal(gguf_get_u32(gguf, "llama.attention.sliding_window", &window, NULL), STATUS_OK);
        assert_int_equal(window, cases[i].window);
        gguf_close(gguf);
    }
}

static void what_an_architecture_has_not_is_refused(void **state)
{
    static const struct {
        const char *class_name, *more, *fragment;
    } cases[] = {
        {"Qwen2ForCausalLM", "\"use_sliding_window\": true, \"sliding_window\": 64, \"max_window_layers\": 1",
         "key 'use_sliding_window'"},
        {"Qwen3ForCausalLM", "\"attention_bias\": true", "key 'attention_bias' is true"},
        {"Qwen3MoeForCausalLM", "\"mlp_only_layers\": [1]", "key 'mlp_only_layers' is an array"},
        {"Qwen3MoeForCausalLM", "\"decoder_sparse_step\": 2", "key 'decoder_sparse_step' is 2: only 1"},
        {"Gemma3ForCausalLM", "\"sliding_window_pattern\": 4", "key 'sliding_window_pattern' is 4"},
        {"Gemma3ForCausalLM", "\"final_logit_softcapping\": 30.0", "key 'final_logit_softcapping' is 30"},
        {"Gemma2ForCausalLM", "\"hidden_activation\": \"relu\"", "key 'hidden_activation' is 'relu'"},
        {"Olmo2ForCausalLM", "\"clip_qkv\": 8", "key 'clip_qkv' is 8"},
        {"SmolLM3ForCausalLM", "\"no_rope_layers\": [1, 0]", "only every fourth layer without RoPE"},
        {"SmolLM3ForCausalLM", "\"no_rope_layer_interval\": 2", "key 'no_rope_layer_interval' is 2"},
        {"OPTForCausalLM", "\"do_layer_norm_before\": false", "key 'do_layer_norm_before' is false"},
        {"OPTForCausalLM", "\"ffn_dim\": 12, \"word_embed_proj_dim\": 4", "key 'word_embed_proj_dim' is 4"},
        {"Starcoder2ForCausalLM", "\"use_bias\": false", "key 'use_bias' is false"},
        {"GptOssForCausalLM", "\"swiglu_limit\": 5", "key 'swiglu_limit' is 5"},
        {"MistralForCausalLM", "\"sliding_window\": -1", "key 'sliding_window' is -1"},
    };
    uint32_t failed = 0;
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct hf_build build;
        char more[256];
        hf_build_tiny(&build);
        hf_build_edit(&build, CONFIG, "LlamaForCausalLM", cases[i].class_name);
        snprintf(more, sizeof more, "%s,", cases[i].more);
        hf_build_edit(&build, CONFIG, "\"model_type\": \"llama\",", more);
        hf_build_edit(&build, CONFIG, "\"attention_bias\": false,", "");
        hf_build_edit(&build, CONFIG, "\"hidden_act\": \"silu\",", "");
        failed += !is_refused(&build, cases[i].more, STATUS_OK, cases[i].fragment);
    }
    assert_int_equal(failed, 0);
}

static void names_follow_the_architecture(void **state)
{
    struct hf_build build;
    hf_build_tiny(&build);
    hf_build_text(
        &build, CONFIG,
        "{\"architectures\": [\"OPTForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 8, \"num_attention_heads\": 2, "
        "\"ffn_dim\": 12, \"vocab_size\": 264, \"max_position_embeddings\": 4, \"word_embed_proj_dim\": 8}");
    hf_build_drop(&build, HF_SHARD);
    hf_build_tensor(&build, HF_SHARD, "model.decoder.embed_tokens.weight", "F32", 264, 8);
    hf_build_tensor(&build, HF_SHARD, "model.decoder.embed_positions.weight", "F32", 6, 8);
    hf_build_tensor(&build, HF_SHARD, "model.decoder.layers.0.self_attn.out_proj.bias", "F32", 0, 8);
    hf_build_tensor(&build, HF_SHARD, "model.decoder.layers.0.fc1.weight", "F32", 12, 8);
    hf_build_tensor(&build, HF_SHARD, "lm_head.weight", "F32", 264, 8);
    struct gguf *gguf = open_built(&build);
    assert_int_equal(gguf_tensor_count(gguf), 4); /* the output is tied */
    const struct gguf_tensor *positions = gguf_find_tensor(gguf, "position_embd.weight");
    assert_true(positions && positions->dims[1] == 6);
    assert_non_null(gguf_find_tensor(gguf, "blk.0.attn_output.bias"));
    assert_non_null(gguf_find_tensor(gguf, "blk.0.ffn_up.weight"));
    assert_true(f32_of(gguf, "opt.attention.layer_norm_epsilon") == 1e-5f);
    assert_false(gguf_has(gguf, "fastdecode.rope_halves"));
    gguf_close(gguf);

    hf_build_tiny(&build);
    hf_build_edit(&build, CONFIG, "LlamaForCausalLM\"], \"model_type\": \"llama\"",
                  "MixtralForCausalLM\"], \"num_local_experts\": 12, \"num_experts_per_tok\": 1");
    hf_build_tensor(&build, HF_SHARD, "model.layers.1.block_sparse_moe.experts.11.w2.weight", "F16", 8, 12);
    hf_build_tensor(&build, HF_SHARD, "model.layers.1.block_sparse_moe.gate.weight", "F32", 12, 8);
    gguf = open_built(&build);
    assert_non_null(gguf_find_tensor(gguf, "blk.1.ffn_down.11.weight"));
    assert_non_null(gguf_find_tensor(gguf, "blk.1.ffn_gate_inp.weight"));
    gguf_close(gguf);

    hf_build_tiny(&build);
    hf_build_edit(&build, CONFIG, "LlamaForCausalLM\"], \"model_type\": \"llama\"", "Olmo2ForCausalLM\"]");
    for (uint32_t i = 0; i < 2; i++)
        hf_build_edit(&build, HF_SHARD, "input_layernorm", "post_feedforward_layernorm");
    gguf = open_built(&build);
    assert_non_null(gguf_find_tensor(gguf, "blk.1.post_ffw_norm.weight"));
    assert_non_null(gguf_find_tensor(gguf, "blk.1.post_attention_norm.weight"));
    gguf_close(gguf);
}

/* --- RoPE --------------------------------------------------------------------------------------------------------------------- */

/* As transformers computes them, from frequencies rather than wave lengths. */
static double llama3_divisor(double frequency, double factor, double low, double high, double context)
{
    double wave = 2 * 3.14159265358979323846 / frequency;
    if (wave < context / high)
        return 1;
    if (wave > context / low)
        return factor;
    double smooth = (context / wave - low) / (high - low);
    return frequency / ((1 - smooth) * frequency / factor + smooth * frequency);
}

static void scaling_becomes_divisors(void **state)
{
    struct hf_build build;
    hf_build_tiny(&build);
    hf_build_edit(&build, CONFIG, "\"head_dim\": 4", "\"head_dim\": 64");
    hf_build_edit(
        &build, CONFIG, "\"rope_scaling\": null",
        "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 32.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
        "\"original_max_position_embeddings\": 8192}");
    hf_build_edit(&build, CONFIG, "10000.0", "500000.0");
    struct gguf *gguf = open_built(&build);
    const struct gguf_tensor *tensor = gguf_find_tensor(gguf, "rope_freqs.weight");
    assert_true(tensor && tensor->type == TENSOR_F32 && tensor->dims[0] == 32);
    const float *factors = tensor->data;
    for (uint32_t i = 0; i < 32; i++) {
        double expected = llama3_divisor(pow(500000, -2.0 * i / 64), 32, 1, 4, 8192);
        assert_true(fabs((double)factors[i] - expected) < 1e-5 * expected);
    }
    assert_true(factors[0] == 1 && factors[31] == 32);
    gguf_release_pages(gguf, gguf_bytes(gguf), gguf_file_bytes(gguf)); /* what is in no file stays */
    assert_true(factors[31] == 32);
    assert_text(gguf, "general.architecture", "llama");
    gguf_close(gguf);

    hf_build_tiny(&build);
    hf_build_edit(&build, CONFIG, "LlamaForCausalLM\"], \"model_type\": \"llama\"",
                  "Phi3ForCausalLM\"], \"original_max_position_embeddings\": 32");
    hf_build_edit(&build, CONFIG, "\"rope_scaling\": null",
                  "\"rope_scaling\": {\"type\": \"longrope\", \"long_factor\": [2.5, 64], \"short_factor\": [1, 1.25]}");
    gguf = open_built(&build);
    factors = gguf_find_tensor(gguf, "rope_factors_long.weight")->data;
    assert_true(factors[0] == 2.5f && factors[1] == 64);
    factors = gguf_find_tensor(gguf, "rope_factors_short.weight")->data;
    assert_true(factors[0] == 1 && factors[1] == 1.25f);
    assert_int_equal(u32_of(gguf, "phi3.rope.scaling.original_context_length"), 32);
    assert_true(fabs((double)f32_of(gguf, "phi3.rope.scaling.attn_factor") - sqrt(1 + log(4) / log(32))) < 1e-6);
    gguf_close(gguf);
}

/* --- a directory on the disk -------------------------------------------------------------------------------------------------- */

static uint64_t fingerprint_of(const char *directory)
{
    struct model *model;
    struct error error = {0};
    if (model_open(directory, &model, &error))
        fail_msg("%s", error.text);
    uint64_t fingerprint = model->fingerprint;
    assert_int_equal(model->shape.layers, 2);
    assert_true(model->tied && model->tokenizer.tokens.count == 264);
    model_release_file(model);
    assert_int_equal(model->layers[1].down.rows, 8);
    assert_memory_equal(model->tokenizer.kind.data, "gpt2", 4);
    model_close(model);
    return fingerprint;
}

/* Named chat templates are read from their folder, in the order of their names whatever order it has. */
static void named_templates_lie_in_a_folder(void **state)
{
    static const char *const names[] = {"tool_use", "b", "rag", "a"}, *const found[] = {"a", "b", "rag", "tool_use"};
    struct hf_build build;
    char directory[] = "/tmp/fd-hf-XXXXXX", folder[64], path[128];
    struct gguf *gguf;
    struct error error = {0};
    size_t next = 0;
    assert_non_null(mkdtemp(directory));
    hf_build_tiny(&build);
    hf_build_write(&build, directory);
    snprintf(folder, sizeof folder, "%s/additional_chat_templates", directory);
    assert_int_equal(mkdir(folder, 0700), 0);
    for (size_t i = 0; i < ARRAY_COUNT(names); i++) {
        snprintf(path, sizeof path, "%s/%s.jinja", folder, names[i]);
        FILE *file = fopen(path, "wb");
        assert_true(file && fputs(names[i], file) >= 0 && fclose(file) == 0);
    }
    if (model_file_open(directory, &gguf, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    for (uint32_t i = 0; i < gguf_key_count(gguf); i++) {
        static const char prefix[] = "tokenizer.chat_template.";
        const struct gguf_string key = gguf_key_name(gguf, i);
        if (key.length < sizeof prefix || memcmp(key.data, prefix, sizeof prefix - 1) != 0)
            continue;
        assert_true(next < ARRAY_COUNT(found));
        snprintf(path, sizeof path, "%s%s", prefix, found[next]);
        assert_int_equal(key.length, strlen(path));
        assert_memory_equal(key.data, path, key.length);
        assert_text(gguf, path, found[next++]);
    }
    assert_int_equal(next, ARRAY_COUNT(found));
    gguf_close(gguf);
    for (size_t i = 0; i < ARRAY_COUNT(names); i++) {
        snprintf(path, sizeof path, "%s/%s.jinja", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
    remove_directory(&build, directory);
    hf_build_free(&build);
}

static void a_directory_opens_as_a_model(void **state)
{
    struct hf_build build;
    char directory[] = "/tmp/fd-hf-XXXXXX", path[512], moved[512];
    assert_non_null(mkdtemp(directory));
    hf_build_tiny(&build);
    hf_build_write(&build, directory);
    uint64_t first = fingerprint_of(directory);
    assert_int_equal(fingerprint_of(directory), first);
    /* a link to a file elsewhere, as in a cache of downloads */
    snprintf(path, sizeof path, "%s/" HF_SHARD, directory);
    snprintf(moved, sizeof moved, "%s.blob", directory);
    assert_int_equal(rename(path, moved), 0);
    assert_int_equal(symlink(moved, path), 0);
    assert_int_equal(fingerprint_of(directory), first);
    unlink(path);
    unlink(moved);
    build.files[build.count - 1].data.bytes[100] ^= 1; /* a weight of the embedding */
    hf_build_write(&build, directory);
    assert_int_not_equal(fingerprint_of(directory), first);
    build.files[build.count - 1].data.bytes[100] ^= 1;
    hf_build_edit(&build, "tokenizer_config.json", "{{ messages", "{{- messages");
    hf_build_write(&build, directory);
    assert_int_not_equal(fingerprint_of(directory), first);
    remove_directory(&build, directory);
    hf_build_free(&build);
}

static void paths_name_models(void **state)
{
    static const char *const cases[][2] = {{"models/Tiny.Q4_1.gguf", "Tiny.Q4_1"},
                                           {"/a/Tiny-1B", "Tiny-1B"},
                                           {"/a/Tiny-1B//", "Tiny-1B"},
                                           {"Tiny", "Tiny"},
                                           {".gguf", ".gguf"},
                                           {"a/big-00001-of-00012.gguf", "big"},
                                           {"a/big-0001-of-00012.gguf", "big-0001-of-00012"},
                                           {"a/big-00001-of-00012", "big-00001-of-00012"}};
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        size_t length;
        const char *stem = model_stem(cases[i][0], &length);
        assert_int_equal(length, strlen(cases[i][1]));
        assert_memory_equal(stem, cases[i][1], length);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_those_of_a_gguf_file),
        cmocka_unit_test(tensors_lie_in_the_files),
        cmocka_unit_test(shards_are_read_by_their_index),
        cmocka_unit_test(a_tensor_that_the_index_alone_has_is_told),
        cmocka_unit_test(architectures_have_their_keys),
        cmocka_unit_test(what_an_architecture_has_not_is_refused),
        cmocka_unit_test(a_window_that_is_missing_is_the_class_own),
        cmocka_unit_test(names_follow_the_architecture),
        cmocka_unit_test(scaling_becomes_divisors),
        cmocka_unit_test(paths_name_models),
        cmocka_unit_test(a_directory_opens_as_a_model),
        cmocka_unit_test(named_templates_lie_in_a_folder),
    };
    return cmocka_run_group_tests_name("hf", tests, NULL, NULL);
}
