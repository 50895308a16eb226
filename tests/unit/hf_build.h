/* hf_build.h: a directory of Hugging Face files in memory for tests and fuzzers: a tiny model of seeded random weights with a
 * tokenizer, each file as a text that a case may edit.
 *
 *     struct hf_build build;
 *     hf_build_tiny(&build);
 *     hf_build_edit(&build, "config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
 *     struct gguf *gguf;
 *     status = hf_build_open(&build, &gguf, &error);
 *     hf_build_free(&build);
 *
 * The tiny model: 2 layers, hidden 8, 2 heads of 4, 1 KV head, 12 in the MLP, 264 rows in the embedding, BF16: 3 special tokens, the
 * 256 bytes, "th", "the", a user-defined one, and 2 rows that pad.
 */
#ifndef FD_TESTS_HF_BUILD_H
#define FD_TESTS_HF_BUILD_H

#include <sys/stat.h>
#include <unistd.h>

#include "common/model/hf/hf.h"
#include "tests/unit/gguf_build.h"

#define HF_SHARD "model.safetensors"

enum { HF_BUILD_FILES = 16 };

struct hf_built_file {
    char name[64];
    char *text;             /* of a .safetensors file: its header */
    struct gguf_bytes data; /* what follows the header */
    int64_t told_bytes;     /* header length to write; -1: the true one */
    size_t cut;             /* bytes to leave out at the end */
};

struct hf_build {
    struct hf_built_file files[HF_BUILD_FILES];
    uint32_t count;
    uint64_t seed;
};

static inline struct hf_built_file *hf_build_find(struct hf_build *build, const char *name)
{
    for (uint32_t i = 0; i < build->count; i++)
        if (strcmp(build->files[i].name, name) == 0)
            return &build->files[i];
    return NULL;
}

/* Adds a file, or gives one another text. */
static inline struct hf_built_file *hf_build_text(struct hf_build *build, const char *name, const char *text)
{
    struct hf_built_file *file = hf_build_find(build, name);
    if (!file) {
        assert_always(build->count < HF_BUILD_FILES);
        file = &build->files[build->count++];
        *file = (struct hf_built_file){.told_bytes = -1};
        snprintf(file->name, sizeof file->name, "%s", name);
    }
    free(file->text);
    file->text = strdup(text);
    assert_always(file->text);
    return file;
}

static inline void hf_build_drop(struct hf_build *build, const char *name)
{
    struct hf_built_file *file = hf_build_find(build, name);
    assert_always(file);
    free(file->text);
    free(file->data.bytes);
    *file = build->files[--build->count];
}

/* Puts other text in place of the first `from`, which must be there. */
static inline void hf_build_edit(struct hf_build *build, const char *name, const char *from, const char *to)
{
    struct hf_built_file *file = hf_build_find(build, name);
    char *at = file ? strstr(file->text, from) : NULL, *edited;
    if (!at) {
        fprintf(stderr, "no \"%s\" in %s\n", from, name);
        assert_always(at);
    }
    size_t before = (size_t)(at - file->text);
    edited = malloc(strlen(file->text) + strlen(to) + 1);
    assert_always(edited);
    memcpy(edited, file->text, before);
    strcpy(edited + before, to);
    strcat(edited, at + strlen(from));
    free(file->text);
    file->text = edited;
}

/* Appends a tensor to a .safetensors file whose data begins at `begin` and has just been appended. shape: "[2,3]". */
static inline void hf_build_entry(struct hf_built_file *file, const char *name, const char *type, const char *shape, size_t begin)
{
    char entry[320];
    snprintf(entry, sizeof entry, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}}",
             file->text[1] == '}' ? "" : ",", name, type, shape, begin, file->data.count);
    char *joined = malloc(strlen(file->text) + strlen(entry) + 1);
    assert_always(joined);
    strcpy(joined, file->text);
    strcpy(joined + strlen(joined) - 1, entry);
    free(file->text);
    file->text = joined;
}

/* Appends random values, or for "U8" random bytes from `least` on, `range` of them. */
static inline void hf_build_values(struct hf_build *build, struct hf_built_file *file, const char *type, uint32_t count,
                                   uint32_t least, uint32_t range)
{
    for (uint32_t i = 0; i < count; i++) {
        float value = gguf_random_float(&build->seed);
        if (strcmp(type, "F32") == 0)
            gguf_append_number(&file->data, f32_bits(value), 4);
        else if (strcmp(type, "U8") == 0)
            gguf_append_number(&file->data, least + random_next(&build->seed) % range, 1);
        else
            gguf_append_number(&file->data, strcmp(type, "F16") == 0 ? f16_from_float(value) : bf16_from_float(value), 2);
    }
}

/* Appends a tensor of random values to a .safetensors file. rows 0: a vector. type: "BF16", "F32" or "F16". */
static inline void hf_build_tensor(struct hf_build *build, const char *file_name, const char *name, const char *type, uint32_t rows,
                                   uint32_t columns)
{
    struct hf_built_file *file = hf_build_find(build, file_name);
    char shape[48];
    if (!file)
        file = hf_build_text(build, file_name, "{}");
    size_t begin = file->data.count;
    hf_build_values(build, file, type, (rows ? rows : 1) * columns, 0, 0);
    snprintf(shape, sizeof shape, rows ? "[%u,%u]" : "[%u]", rows ? rows : columns, columns);
    hf_build_entry(file, name, type, shape, begin);
}

/* The bytes of a file as on the disk. The caller frees them. */
static inline unsigned char *hf_build_bytes(const struct hf_built_file *file, size_t *count)
{
    struct gguf_bytes out = {0};
    if (strstr(file->name, ".safetensors") && !strstr(file->name, ".json")) {
        size_t length = (strlen(file->text) + 7) / 8 * 8;
        gguf_append_number(&out, file->told_bytes < 0 ? length : (uint64_t)file->told_bytes, 8);
        gguf_append(&out, file->text, strlen(file->text));
        for (size_t i = strlen(file->text); i < length; i++)
            gguf_append(&out, " ", 1);
        gguf_append(&out, file->data.bytes, file->data.count);
    } else {
        gguf_append(&out, file->text, strlen(file->text));
    }
    *count = out.count > file->cut ? out.count - file->cut : 0;
    return out.bytes;
}

static inline enum status hf_build_open(const struct hf_build *build, struct gguf **out, struct error *error)
{
    struct hf_memory_file files[HF_BUILD_FILES];
    unsigned char *bytes[HF_BUILD_FILES];
    for (uint32_t i = 0; i < build->count; i++) {
        size_t count;
        bytes[i] = hf_build_bytes(&build->files[i], &count);
        files[i] = (struct hf_memory_file){build->files[i].name, bytes[i], count};
    }
    enum status status = hf_open_memory("tiny", files, build->count, out, error);
    for (uint32_t i = 0; i < build->count; i++)
        free(bytes[i]);
    return status;
}

/* Writes all files into a directory that exists. */
static inline void hf_build_write(const struct hf_build *build, const char *directory)
{
    for (uint32_t i = 0; i < build->count; i++) {
        char path[512];
        size_t count;
        unsigned char *bytes = hf_build_bytes(&build->files[i], &count);
        snprintf(path, sizeof path, "%s/%s", directory, build->files[i].name);
        FILE *file = fopen(path, "wb");
        assert_always(file && fwrite(bytes, 1, count, file) == count && fclose(file) == 0);
        free(bytes);
    }
}

static inline void hf_build_free(struct hf_build *build)
{
    while (build->count)
        hf_build_drop(build, build->files[0].name);
}

/* --- the tiny model ----------------------------------------------------------------------------------------------------------- */

#define HF_TINY_CONFIG                                                                                                            \
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 8,\n"      \
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 4, \"intermediate_size\": 12, \"vocab_size\": 264,\n" \
    " \"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\",\n"            \
    " \"attention_bias\": false, \"rope_scaling\": null, \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\"}"

#define HF_LLAMA3_REGEX                                                                                                            \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|" \
    "\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

/* A token's text as a JSON string. */
static inline void hf_json_token(struct gguf_bytes *out, const char *text)
{
    gguf_append(out, "\"", 1);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            gguf_append(out, "\\", 1);
        gguf_append(out, text, 1);
    }
    gguf_append(out, "\"", 1);
}

static inline void hf_append_text(struct gguf_bytes *out, const char *text) { gguf_append(out, text, strlen(text)); }

/* tokenizer.json of the tiny model; the caller frees it. Tokens 3 to 258 are the bytes. */
static inline char *hf_tiny_tokenizer(void)
{
    struct gguf_bytes out = {0};
    char text[16], number[16];
    hf_append_text(&out, "{\"version\": \"1.0\", \"added_tokens\": [\n");
    for (uint32_t i = 0; i < 3; i++) {
        gguf_tiny_token(i, text);
        sprintf(number, "%u", i);
        hf_append_text(&out, "{\"id\": ");
        hf_append_text(&out, number);
        hf_append_text(&out, ", \"content\": ");
        hf_json_token(&out, text);
        hf_append_text(&out, ", \"special\": true},\n");
    }
    hf_append_text(
        &out, "{\"id\": 261, \"content\": \"<think>\", \"special\": false}],\n\"normalizer\": null,\n\"pre_tokenizer\": {\"type\": "
              "\"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" HF_LLAMA3_REGEX
              "\"}, \"behavior\": \"Isolated\", \"invert\": false}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
              "\"trim_offsets\": true, \"use_regex\": false}]},\n\"post_processor\": null,\n\"model\": {\"type\": \"BPE\", "
              "\"dropout\": null, \"ignore_merges\": true, \"vocab\": {\n");
    for (uint32_t i = 3; i < 259; i++) {
        gguf_tiny_token(i, text);
        hf_json_token(&out, text);
        sprintf(number, ": %u, ", i);
        hf_append_text(&out, number);
    }
    hf_append_text(&out, "\"th\": 259, \"the\": 260},\n\"merges\": [\"t h\", [\"th\", \"e\"]]}}");
    gguf_append(&out, "", 1);
    return (char *)out.bytes;
}

static inline void hf_build_tiny_layer(struct hf_build *build, const char *file, uint32_t layer)
{
    static const struct {
        const char *name;
        uint32_t rows, columns;
    } tensors[] = {
        {"input_layernorm.weight", 0, 8},  {"self_attn.q_proj.weight", 8, 8}, {"self_attn.k_proj.weight", 4, 8},
        {"self_attn.v_proj.weight", 4, 8}, {"self_attn.o_proj.weight", 8, 8}, {"post_attention_layernorm.weight", 0, 8},
        {"mlp.gate_proj.weight", 12, 8},   {"mlp.up_proj.weight", 12, 8},     {"mlp.down_proj.weight", 8, 12},
    };
    char name[96];
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        snprintf(name, sizeof name, "model.layers.%u.%s", layer, tensors[i].name);
        hf_build_tensor(build, file, name, "BF16", tensors[i].rows, tensors[i].columns);
    }
}

/* The tiny model with so many rows in its embedding. */
static inline void hf_build_tiny_rows(struct hf_build *build, uint32_t rows)
{
    char *tokenizer = hf_tiny_tokenizer(), size[32];
    *build = (struct hf_build){.seed = 1};
    hf_build_text(build, "config.json", HF_TINY_CONFIG);
    snprintf(size, sizeof size, "\"vocab_size\": %u,", rows);
    hf_build_edit(build, "config.json", "\"vocab_size\": 264,", size);
    hf_build_text(build, "tokenizer.json", tokenizer);
    hf_build_text(build, "tokenizer_config.json",
                  "{\"bos_token\": \"<|im_start|>\", \"eos_token\": {\"content\": \"<|im_end|>\"}, \"pad_token\": null,\n"
                  " \"model_max_length\": 1000000000000000019884624838656, \"chat_template\": \"{{ messages[0].content }}\"}");
    hf_build_text(build, "generation_config.json",
                  "{\"eos_token_id\": [2, 0], \"do_sample\": true, \"temperature\": 0.5, \"top_k\": 40}");
    hf_build_tensor(build, HF_SHARD, "model.embed_tokens.weight", "BF16", rows, 8);
    hf_build_tiny_layer(build, HF_SHARD, 0);
    hf_build_tiny_layer(build, HF_SHARD, 1);
    hf_build_tensor(build, HF_SHARD, "model.norm.weight", "BF16", 0, 8);
    free(tokenizer);
}

static inline void hf_build_tiny(struct hf_build *build) { hf_build_tiny_rows(build, 264); }

#endif
