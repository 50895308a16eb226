/* test_hf_broken.c: a line for each way in which the files of a directory are damaged, do not fit together, or say what is not
 * supported. */
#include "common/base/checked.h"
#include "tests/unit/hf_assert.h"

#define SPECIAL "tokenizer_config.json"
#define GENERATION "generation_config.json"

/* One edit of the tiny directory. from NULL: the file gets text `to`; to NULL too: it is left out. */
struct change {
    const char *label, *file, *from, *to;
    enum status status;
    const char *fragment;
};

#define INVALID STATUS_INVALID_ARGUMENT
#define UNKNOWN STATUS_UNIMPLEMENTED
#define BROKEN STATUS_DATA_LOSS

static const struct change changes[] = {
    /* config.json */
    {"no config", CONFIG, NULL, NULL, INVALID, "tiny: not a model's directory: it has no config.json"},
    {"config is no JSON", CONFIG, NULL, "{\"a\": ", INVALID, "tiny/config.json: JSON at byte 6"},
    {"config is a list", CONFIG, NULL, "[1]", INVALID, "tiny/config.json: not a JSON object"},
    {"empty config", CONFIG, NULL, "{}", UNKNOWN, "key 'model_type' is ''; supported are: LlamaForCausalLM, MistralForCausalLM"},
    {"a key twice", CONFIG, "\"head_dim\": 4", "\"head_dim\": 4, \"head_dim\": 8", INVALID, "duplicate object key"},
    {"deep JSON", CONFIG, "\"head_dim\": 4",
     "\"x\": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]"
     "]]]]]]]]]]]]]]]",
     INVALID, "nested more than 64 deep"},
    {"another class", CONFIG, "LlamaForCausalLM", "MambaForCausalLM", UNKNOWN,
     "key 'architectures' is 'MambaForCausalLM'; supported are"},
    {"a class of another use", CONFIG, "LlamaForCausalLM", "LlamaForTokenClassification", UNKNOWN, "'LlamaForTokenClassification'"},
    {"class and type differ", CONFIG, "\"model_type\": \"llama\"", "\"model_type\": \"qwen2\"", UNKNOWN,
     "key 'model_type' is 'qwen2': not that of the class"},
    {"no layers", CONFIG, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 0", INVALID,
     "key 'num_hidden_layers' is 0, expected a whole number from 1"},
    {"layers missing", CONFIG, "\"num_hidden_layers\": 2,", "", INVALID,
     "key 'num_hidden_layers' is missing: expected a whole number"},
    {"half a layer", CONFIG, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 2.5", INVALID, "is 2.5, expected a whole number"},
    {"negative size", CONFIG, "\"hidden_size\": 8", "\"hidden_size\": -8", INVALID, "key 'hidden_size' is -8"},
    {"size as text", CONFIG, "\"hidden_size\": 8", "\"hidden_size\": \"8\"", INVALID, "key 'hidden_size' is '8', expected"},
    {"huge vocabulary", CONFIG, "\"vocab_size\": 264", "\"vocab_size\": 1e9", INVALID, "key 'vocab_size' is 1000000000"},
    {"epsilon as text", CONFIG, "1e-05", "\"small\"", INVALID, "key 'rms_norm_eps' is 'small', expected a number"},
    {"flag as number", CONFIG, "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": 1", INVALID, "expected true or false"},
    {"quantized", CONFIG, "\"attention_bias\"", "\"quantization_config\": {\"bits\": 4}, \"attention_bias\"", UNKNOWN,
     "key 'quantization_config' is an object: quantized weights are read from GGUF files only"},
    {"another activation", CONFIG, "silu", "gelu", UNKNOWN,
     "key 'hidden_act' is 'gelu': only silu is supported for LlamaForCausalLM"},
    {"biases in the MLP", CONFIG, "\"attention_bias\": false", "\"mlp_bias\": true", UNKNOWN, "key 'mlp_bias' is true: only false"},
    {"half of a head rotated", CONFIG, "\"attention_bias\": false", "\"partial_rotary_factor\": 0.5", UNKNOWN,
     "key 'partial_rotary_factor' is 0.5: only 1"},
    {"sliding layers", CONFIG, "\"attention_bias\": false", "\"layer_types\": [\"full_attention\", \"sliding_attention\"]", UNKNOWN,
     "layer 1 is 'sliding_attention', only full_attention"},
    {"too few layer types", CONFIG, "\"attention_bias\": false", "\"layer_types\": [\"full_attention\"]", UNKNOWN,
     "not a type for each layer"},
    {"scaled like Granite", CONFIG, "\"attention_bias\": false", "\"residual_multiplier\": 0.22", UNKNOWN,
     "key 'residual_multiplier' is 0.22: only 1 is supported"},
    {"bidirectional", CONFIG, "\"attention_bias\": false", "\"use_bidirectional_attention\": true", UNKNOWN,
     "key 'use_bidirectional_attention' is true"},
    {"dynamic RoPE", CONFIG, "\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\": \"dynamic\", \"factor\": 2}", UNKNOWN,
     "key 'rope_type' is 'dynamic': supported are default, linear, llama3, longrope, yarn"},
    {"RoPE without factor", CONFIG, "\"rope_scaling\": null", "\"rope_scaling\": {\"type\": \"linear\"}", INVALID,
     "key 'factor' is missing: expected a number"},
    {"RoPE of factor 0", CONFIG, "\"rope_scaling\": null", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 0}", UNKNOWN,
     "key 'factor' is 0: expected a positive number"},
    {"RoPE scaling as text", CONFIG, "\"rope_scaling\": null", "\"rope_scaling\": \"linear\"", UNKNOWN,
     "key 'rope_scaling' is 'linear'"},
    {"LongRoPE of another length", CONFIG, "\"rope_scaling\": null",
     "\"rope_scaling\": {\"type\": \"longrope\", \"long_factor\": [1], \"short_factor\": [1, 2]}", INVALID,
     "key 'long_factor' has 1 elements, expected 2"},
    {"YaRN with mscale", CONFIG, "\"rope_scaling\": null", "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"mscale\": 0.7}",
     UNKNOWN, "key 'mscale' is 0.7: YaRN's mscale"},
    {"heads of nothing", CONFIG, "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 4",
     "\"num_attention_heads\": 9", INVALID, "key 'num_attention_heads' is 9, hidden_size only 8"},
    /* weights */
    {"no weights", HF_SHARD, NULL, NULL, INVALID, "it has neither model.safetensors nor model.safetensors.index.json"},
    {"header is no object", HF_SHARD, NULL, "[1]", INVALID, "its header does not begin with '{'"},
    {"header is broken", HF_SHARD, "\"dtype\"", "dtype", INVALID, "tiny/model.safetensors: JSON at byte"},
    {"a tensor twice", HF_SHARD, "model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.gate_proj.weight", INVALID,
     "duplicate object key"},
    {"entry is no object", HF_SHARD, "{\"model.embed", "{\"x\":1,\"model.embed", BROKEN, "tensor 'x': its entry is no object"},
    {"8-bit floats", HF_SHARD, "\"BF16\"", "\"F8_E4M3\"", UNKNOWN,
     "tensor 'model.embed_tokens.weight': dtype is 'F8_E4M3'; supported are F32, F16, BF16"},
    {"dtype of a number", HF_SHARD, "\"BF16\"", "16", UNKNOWN, "dtype is 16"},
    {"no shape", HF_SHARD, "\"shape\"", "\"form\"", BROKEN, "shape is no array"},
    {"scalar", HF_SHARD, "\"shape\":[264,8]", "\"shape\":[]", UNKNOWN, "shape is an array of 0 numbers"},
    {"five dimensions", HF_SHARD, "\"shape\":[264,8]", "\"shape\":[264,2,2,2,1]", UNKNOWN, "shape is an array of 5 numbers"},
    {"empty dimension", HF_SHARD, "\"shape\":[264,8]", "\"shape\":[0,8]", BROKEN,
     "dimension 0 of its shape is no whole number above 0"},
    {"negative dimension", HF_SHARD, "\"shape\":[264,8]", "\"shape\":[264,-8]", BROKEN, "dimension 1 of its shape"},
    {"absurd shape", HF_SHARD, "\"shape\":[264,8]", "\"shape\":[9007199254740992,9007199254740992]", BROKEN, "its shape is absurd"},
    {"another shape", HF_SHARD, "\"shape\":[264,8]", "\"shape\":[264,9]", BROKEN,
     "has 4224 bytes by data_offsets, 4752 by shape and dtype"},
    {"another dtype", HF_SHARD, "\"BF16\"", "\"F32\"", BROKEN, "has 4224 bytes by data_offsets, 8448 by shape"},
    {"one offset", HF_SHARD, "[0,4224]", "[4224]", BROKEN, "data_offsets is not [begin, end]"},
    {"offsets turned around", HF_SHARD, "[0,4224]", "[4224,0]", BROKEN, "data_offsets [4224, 0] lie outside"},
    {"offset past the end", HF_SHARD, "[0,4224]", "[1000000,1004224]", BROKEN, "lie outside the"},
    {"offset of 2^60", HF_SHARD, "[0,4224]", "[0,1152921504606846976]", BROKEN, "data_offsets is not"},
    {"negative offset", HF_SHARD, "[0,4224]", "[-2,4222]", BROKEN, "data_offsets is not"},
    {"odd offset", HF_SHARD, "[0,4224]", "[1,4225]", UNKNOWN, "which is no multiple of 2: write the file again"},
    {"overlap", HF_SHARD, "[0,4224]", "[2,4226]", BROKEN, "its data lies over that of 'model.embed_tokens.weight'"},
    {"unknown tensor", HF_SHARD, "self_attn.q_proj.weight", "self_attn.qkv.weight", UNKNOWN,
     "tensor 'model.layers.0.self_attn.qkv.weight': LlamaForCausalLM with 2 layers has no such tensor"},
    {"tensor of another layer", HF_SHARD, "model.layers.1.", "model.layers.2.", UNKNOWN, "tensor 'model.layers.2.input"},
    {"layer with a zero in front", HF_SHARD, "model.layers.1.", "model.layers.01.", UNKNOWN, "tensor 'model.layers.01.input"},
    {"untied without an output", CONFIG, "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false", INVALID,
     "tensor 'lm_head.weight' is missing"},
    {"index without a map", "model.safetensors.index.json", NULL, "{\"metadata\": {}}", INVALID, "key 'weight_map' is missing"},
    {"index of nothing", "model.safetensors.index.json", NULL, "{\"weight_map\": {}}", INVALID, "it names 0 files"},
    {"index leads out", "model.safetensors.index.json", NULL, "{\"weight_map\": {\"a\": \"../other/model.safetensors\"}}", INVALID,
     "tensor 'a' is in '../other/model.safetensors', expected the name of a .safetensors file beside it"},
    {"index of an absolute path", "model.safetensors.index.json", NULL, "{\"weight_map\": {\"a\": \"/etc/x.safetensors\"}}",
     INVALID, "'/etc/x.safetensors', expected the name"},
    {"index of a hidden file", "model.safetensors.index.json", NULL, "{\"weight_map\": {\"a\": \"..safetensors\"}}", INVALID,
     "'..safetensors', expected the name"},
    {"index of another kind", "model.safetensors.index.json", NULL, "{\"weight_map\": {\"a\": \"passwd\"}}", INVALID,
     "'passwd', expected"},
    {"index of a name for terminals", "model.safetensors.index.json", NULL,
     "{\"weight_map\": {\"a\": \"b\\u001b[2J\\n.safetensors\"}}", INVALID,
     "tensor 'a' is in 'b?[2J?.safetensors', expected the name of a .safetensors file"},
    {"index of a number", "model.safetensors.index.json", NULL, "{\"weight_map\": {\"a\": 1}}", INVALID,
     "tensor 'a' is in 1, expected"},
    {"index of a missing file", "model.safetensors.index.json", NULL, "{\"weight_map\": {\"a\": \"b.safetensors\"}}", INVALID,
     "tiny/b.safetensors: it is missing, and model.safetensors.index.json names it"},
    {"index without a tensor", "model.safetensors.index.json", NULL, "{\"weight_map\": {\"a\": \"model.safetensors\"}}", INVALID,
     "says that it is in no file"},
    /* tokenizer.json */
    {"no tokenizer", TOKENIZER, NULL, NULL, INVALID, "it has no tokenizer.json"},
    {"no model of a tokenizer", TOKENIZER, NULL, "{}", INVALID, "tiny/tokenizer.json: key 'model' is missing"},
    {"Unigram", TOKENIZER, "\"BPE\"", "\"Unigram\"", UNKNOWN, "a model of type 'Unigram' is not supported: only BPE is"},
    {"no vocabulary", TOKENIZER, "\"vocab\"", "\"words\"", INVALID, "key 'vocab' of its model is missing"},
    {"no merges", TOKENIZER, "\"merges\"", "\"rules\"", INVALID, "key 'merges' of its model is missing"},
    {"a suffix of words", TOKENIZER, "\"dropout\": null", "\"end_of_word_suffix\": \"</w>\"", UNKNOWN, "key 'end_of_word_suffix'"},
    {"dropout", TOKENIZER, "\"dropout\": null", "\"dropout\": 0.1", UNKNOWN, "key 'dropout' is 0.1"},
    {"unknown expression", TOKENIZER, "\\\\p{N}{1,3}", "\\\\p{N}{1,4}", UNKNOWN,
     "regular expression is not known: (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,4}|"},
    {"expression with another normalizer", TOKENIZER, "\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}", UNKNOWN,
     "its pre-tokenizer is not known with NFC and ignore_merges true"},
    {"lower case", TOKENIZER, "\"normalizer\": null", "\"normalizer\": {\"type\": \"Lowercase\"}", UNKNOWN,
     "a normalizer of type 'Lowercase' is not supported"},
    {"words without their borders", TOKENIZER, "\"Isolated\"", "\"Removed\"", UNKNOWN, "a pre-tokenizer of type Split must"},
    {"a space in front", TOKENIZER, "\"add_prefix_space\": false", "\"add_prefix_space\": true", UNKNOWN, "'add_prefix_space'"},
    {"another pre-tokenizer", TOKENIZER, "\"type\": \"Split\"", "\"type\": \"Whitespace\"", UNKNOWN,
     "of type 'Whitespace' is not supported"},
    {"no pre-tokenizer", TOKENIZER, "\"ByteLevel\"", "\"Whitespace\"", UNKNOWN,
     "its pre-tokenizer is not supported: expected ByteLevel"},
    {"id beyond the embedding", TOKENIZER, "\"the\": 260", "\"the\": 264", INVALID,
     "token 'the' has the id 264, config.json's vocab_size is 264"},
    {"id is no number", TOKENIZER, "\"the\": 260", "\"the\": \"260\"", INVALID, "token 'the' has the id '260', expected"},
    {"an id twice", TOKENIZER, "\"the\": 260", "\"the\": 259", INVALID, "tokens 'th' and 'the' have the same id, 259"},
    {"a token of another", TOKENIZER, "\"id\": 261", "\"id\": 260", INVALID,
     "key 'added_tokens': '<think>' has the id 260 of another token"},
    {"added without a text", TOKENIZER, "\"content\": \"<think>\"", "\"text\": 1", INVALID, "element 3 has no content or no id"},
    {"merge of one", TOKENIZER, "\"t h\"", "\"th\"", INVALID, "merge 0 is not \"left right\""},
    {"merge of three", TOKENIZER, "[\"th\", \"e\"]", "[\"t\", \"h\", \"e\"]", INVALID, "merge 1 is not \"left right\""},
    {"half a character", TOKENIZER, "\"<think>\"", "\"\\ud800\"", INVALID, "tiny/tokenizer.json: JSON at byte"},
    {"another post-processor", TOKENIZER, "\"post_processor\": null", "\"post_processor\": {\"type\": \"RobertaProcessing\"}",
     UNKNOWN, "its post-processor is not supported: type RobertaProcessing"},
    {"template of another token", TOKENIZER, "\"post_processor\": null",
     "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<|im_end|>\"}}, {\"Sequence\": "
     "{\"id\": \"A\"}}]}",
     UNKNOWN, "begins a text with '<|im_end|>', which is not the bos_token"},
    /* the others */
    {"special tokens are no JSON", SPECIAL, NULL, "x", INVALID, "tiny/tokenizer_config.json: JSON at byte"},
    {"add_bos_token as text", SPECIAL, "\"pad_token\": null", "\"add_bos_token\": \"yes\"", INVALID,
     "tiny/tokenizer_config.json: key 'add_bos_token' is 'yes', expected true or false"},
    {"end below", GENERATION, "[2, 0]", "[2, -1]", INVALID, "key 'eos_token_id': element 1 is no whole number"},
    {"end as text", GENERATION, "[2, 0]", "\"</s>\"", INVALID, "key 'eos_token_id': element 0 is no whole number"},
};

static void what_is_wrong_is_told(void **state)
{
    uint32_t failed = 0;
    for (size_t i = 0; i < ARRAY_COUNT(changes); i++) {
        const struct change *change = &changes[i];
        struct hf_build build;

        hf_build_tiny(&build);
        if (!change->to)
            hf_build_drop(&build, change->file);
        else if (!change->from)
            hf_build_text(&build, change->file, change->to);
        else
            hf_build_edit(&build, change->file, change->from, change->to);
        failed += !is_refused(&build, change->label, change->status, change->fragment);
    }
    assert_int_equal(failed, 0);
}

/* A shard that is damaged in other ways than its JSON is refused, with the reason. */
static void a_damaged_shard_is_told(void **state)
{
    static const struct {
        const char *label;
        int64_t told_bytes;
        size_t cut;
        const char *fragment;
    } cases[] = {
        {"cut in the data", -1, 2, "lie outside the"},
        {"cut in the header", -1, 7000, "the file has 1160 left (cut short?)"},
        {"seven bytes", -1, 0, "7 bytes, too few for a safetensors file"},
        {"header past the end", 100000, 0, "a header of 100000 bytes, the file has"},
        {"header past the limit", 100000001, 0, "a header of 100000001 bytes, supported: up to 100000000"},
        {"header of 2^63", INT64_MAX, 0, "a header of 9223372036854775807 bytes, supported"},
        {"no header", 0, 0, "its header does not begin with '{'"},
        {"header cut short", 16, 0, "JSON at byte"},
        {"more data than tensors", -1, 0, "its tensors end at byte"},
    };
    uint32_t failed = 0;
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct hf_build build;

        hf_build_tiny(&build);
        struct hf_built_file *file = hf_build_find(&build, HF_SHARD);
        file->told_bytes = cases[i].told_bytes;
        file->cut = cases[i].cut;
        size_t count;
        if (strstr(cases[i].label, "seven"))
            free(hf_build_bytes(file, &count)), file->cut = count - 7;
        if (strstr(cases[i].label, "more data"))
            gguf_append_number(&file->data, 0, 8);
        failed += !is_refused(&build, cases[i].label, STATUS_OK, cases[i].fragment);
    }
    assert_int_equal(failed, 0);
}

static void every_flip_is_survived(void **state)
{
    struct hf_build build;
    hf_build_tiny(&build);
    assert_flips_are_survived(&build, 5, 150);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_wrong_is_told),
        cmocka_unit_test(a_damaged_shard_is_told),
        cmocka_unit_test(every_flip_is_survived),
    };
    return cmocka_run_group_tests_name("hf_broken", tests, NULL, NULL);
}
