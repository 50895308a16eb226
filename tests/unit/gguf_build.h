/* gguf_build.h: writes GGUF files in memory for tests: keys and tensors one by one, or a whole tiny llama model of seeded
 * random weights with a byte-level tokenizer.
 *
 *     struct gguf_build build = {0};
 *     struct tiny_llama tiny = TINY_LLAMA;
 *     gguf_build_llama(&build, &tiny);
 *     size_t count;
 *     unsigned char *bytes = gguf_build_finish(&build, &count);   // free(bytes)
 *
 * TINY_LLAMA: 2 layers, hidden 64, 4 heads of 16, 2 KV heads, 320 tokens: 3 control tokens, the 256 bytes, 61 merges.
 */
#ifndef FD_TESTS_GGUF_BUILD_H
#define FD_TESTS_GGUF_BUILD_H

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/random.h"
#include "common/base/status.h"
#include "common/model/gguf/gguf.h"
#include "kernels/simd/half.h"

struct gguf_bytes {
    unsigned char *bytes;
    size_t count, capacity;
};

struct gguf_build {
    struct gguf_bytes keys, entries, data;
    uint64_t key_count, tensor_count;
    uint64_t seed;
    const char *drop; /* a key or tensor of this name is left out */
};

static inline void gguf_append(struct gguf_bytes *to, const void *bytes, size_t count)
{
    if (to->count + count > to->capacity) {
        to->capacity = (to->count + count) * 2;
        to->bytes = realloc(to->bytes, to->capacity);
        assert_always(to->bytes);
    }
    if (count)
        memcpy(to->bytes + to->count, bytes, count);
    to->count += count;
}

static inline void gguf_append_number(struct gguf_bytes *to, uint64_t value, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        unsigned char byte = (unsigned char)(value >> (8 * i));
        gguf_append(to, &byte, 1);
    }
}

static inline void gguf_append_string(struct gguf_bytes *to, const char *text)
{
    gguf_append_number(to, strlen(text), 8);
    gguf_append(to, text, strlen(text));
}

static inline void gguf_pad(struct gguf_bytes *to, size_t alignment)
{
    while (to->count % alignment != 0)
        gguf_append_number(to, 0, 1);
}

/* --- keys ------------------------------------------------------------------------------------------------------------- */

/* false: the key is dropped. */
static inline bool gguf_build_key(struct gguf_build *build, const char *name, enum gguf_type type)
{
    if (build->drop && strcmp(build->drop, name) == 0)
        return false;
    gguf_append_string(&build->keys, name);
    gguf_append_number(&build->keys, type, 4);
    build->key_count++;
    return true;
}

static inline void gguf_build_number(struct gguf_build *build, const char *name, enum gguf_type type, uint64_t bits, size_t count)
{
    if (gguf_build_key(build, name, type))
        gguf_append_number(&build->keys, bits, count);
}

static inline void gguf_build_u32(struct gguf_build *build, const char *name, uint32_t value)
{
    gguf_build_number(build, name, GGUF_U32, value, 4);
}

static inline void gguf_build_f32(struct gguf_build *build, const char *name, float value)
{
    gguf_build_number(build, name, GGUF_F32, f32_bits(value), 4);
}

static inline void gguf_build_bool(struct gguf_build *build, const char *name, bool value)
{
    gguf_build_number(build, name, GGUF_BOOL, value, 1);
}

static inline void gguf_build_string(struct gguf_build *build, const char *name, const char *value)
{
    if (gguf_build_key(build, name, GGUF_STRING))
        gguf_append_string(&build->keys, value);
}

/* The elements follow, by gguf_append_…(&build->keys, …). false: the key is dropped, append nothing. */
static inline bool gguf_build_array(struct gguf_build *build, const char *name, enum gguf_type type, uint64_t count)
{
    if (!gguf_build_key(build, name, GGUF_ARRAY))
        return false;
    gguf_append_number(&build->keys, type, 4);
    gguf_append_number(&build->keys, count, 8);
    return true;
}

/* --- tensors ------------------------------------------------------------------------------------------------------------ */

/* In [-1, 1). */
static inline float gguf_random_float(uint64_t *seed) { return (float)((double)(random_next(seed) >> 11) * 0x1p-52 - 1.0); }

/* One block of random weights of about the given size; ones: all values near 1 (norms; float types only). */
static inline void gguf_random_block(enum tensor_type type, float size, bool ones, uint64_t *seed, unsigned char *block)
{
    /* Offsets of the scale and the minimum (-1: none), f16 but for Q8_K and MXFP4, and how large the integers get. */
    static const struct {
        int scale, minimum;
        float largest;
    } places[] = {
        [TENSOR_Q4_0] = {0, -1, 8},          [TENSOR_Q4_1] = {0, 2, 8},           [TENSOR_Q5_0] = {0, -1, 16},
        [TENSOR_Q5_1] = {0, 2, 16},          [TENSOR_Q8_0] = {0, -1, 128},        [TENSOR_Q4_K] = {0, 2, 8 * 63},
        [TENSOR_Q5_K] = {0, 2, 16 * 63},     [TENSOR_Q6_K] = {208, -1, 32 * 128}, [TENSOR_Q2_K] = {80, 82, 1.5f * 15},
        [TENSOR_Q3_K] = {108, -1, 4 * 32},   [TENSOR_Q8_K] = {0, -1, 128},        [TENSOR_IQ4_NL] = {0, -1, 127},
        [TENSOR_IQ4_XS] = {0, -1, 127 * 32}, [TENSOR_MXFP4] = {0, -1, 12},
    };
    const struct tensor_type_info *info = tensor_type_info((uint32_t)type);
    float value = ones ? 1 + 0.1f * gguf_random_float(seed) : size * gguf_random_float(seed);
    uint32_t bits = f32_bits(value), half = f16_from_float(value), brain = bf16_from_float(value);

    switch (type) {
    case TENSOR_F32: memcpy(block, &bits, 4); return;
    case TENSOR_F16: memcpy(block, &half, 2); return;
    case TENSOR_BF16: memcpy(block, &brain, 2); return;
    default: break;
    }
    for (uint32_t i = 0; i < info->block_bytes; i++)
        block[i] = (unsigned char)(random_next(seed) >> 32);
    float d = size / places[type].largest * (0.75f + 0.25f * gguf_random_float(seed));
    half = f16_from_float(d), bits = f32_bits(d);
    if (type == TENSOR_Q8_K)
        memcpy(block, &bits, 4);
    else if (type == TENSOR_MXFP4)
        block[0] = (unsigned char)((bits >> 23) + 1); /* the power of two below d */
    else
        memcpy(block + places[type].scale, &half, 2);
    if (places[type].minimum >= 0) { /* so that values lie around zero; the K types subtract theirs */
        bool super = info->block_values == 256;
        float small = type == TENSOR_Q2_K ? 15 : 63; /* the largest small minimum */
        half = f16_from_float(super ? d * places[type].largest / small : -d * places[type].largest);
        memcpy(block + places[type].minimum, &half, 2);
    }
}

/* A tensor of random values; size: the largest magnitude, about. rows 0: one dimension. data: the values, or NULL for random. */
static inline void gguf_build_tensor_of(struct gguf_build *build, const char *name, enum tensor_type type, uint64_t columns,
                                        uint64_t rows, float size, bool ones, const void *data)
{
    const struct tensor_type_info *info = tensor_type_info((uint32_t)type);
    unsigned char block[512]; /* the largest, Q8_K: 292 */

    if (build->drop && strcmp(build->drop, name) == 0)
        return;
    gguf_pad(&build->data, 32); /* in front, so that nothing follows the last tensor */
    gguf_append_string(&build->entries, name);
    gguf_append_number(&build->entries, rows ? 2 : 1, 4);
    gguf_append_number(&build->entries, columns, 8);
    if (rows)
        gguf_append_number(&build->entries, rows, 8);
    gguf_append_number(&build->entries, type, 4);
    gguf_append_number(&build->entries, build->data.count, 8);
    build->tensor_count++;
    uint64_t blocks = columns * (rows ? rows : 1) / info->block_values;
    if (data) {
        gguf_append(&build->data, data, blocks * info->block_bytes);
        return;
    }
    for (uint64_t i = 0; i < blocks; i++) {
        gguf_random_block(type, size, ones, &build->seed, block);
        gguf_append(&build->data, block, info->block_bytes);
    }
}

/* The file. Frees what the build holds; the caller frees the result. */
static inline unsigned char *gguf_build_finish(struct gguf_build *build, size_t *count)
{
    struct gguf_bytes out = {0};
    gguf_append(&out, "GGUF", 4);
    gguf_append_number(&out, 3, 4);
    gguf_append_number(&out, build->tensor_count, 8);
    gguf_append_number(&out, build->key_count, 8);
    gguf_append(&out, build->keys.bytes, build->keys.count);
    gguf_append(&out, build->entries.bytes, build->entries.count);
    gguf_pad(&out, 32);
    gguf_append(&out, build->data.bytes, build->data.count);
    free(build->keys.bytes);
    free(build->entries.bytes);
    free(build->data.bytes);
    *build = (struct gguf_build){0};
    *count = out.count;
    return out.bytes;
}

/* --- a tiny llama ----------------------------------------------------------------------------------------------------------- */

struct tiny_llama {
    const char *arch; /* "llama", or another that has the same tensors */
    uint32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, context;
    enum tensor_type type; /* of the matrices; K types want hidden, heads * head_dim and ffn multiples of 256 */
    enum tensor_type embedding_type;
    bool tied, biases;
    float rope_factor; /* not 0: linear scaling by it */
    bool rope_factors; /* rope_freqs.weight */
    uint64_t seed;
};

#define TINY_LLAMA                                                                                                      \
    {                                                                                                                   \
        .arch = "llama", .layers = 2, .hidden = 64, .heads = 4, .kv_heads = 2, .head_dim = 16, .ffn = 96, .vocab = 320, \
        .context = 256, .type = TENSOR_F32, .embedding_type = TENSOR_F32, .tied = true, .seed = 1                       \
    }

/* Token i of the tiny vocabulary; text holds at least 16 bytes. */
static inline void gguf_tiny_token(uint32_t i, char *text)
{
    static const char *const control[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    uint32_t code;

    if (i < 3) {
        strcpy(text, control[i]);
        return;
    }
    if (i >= 3 + 256) { /* pairs of letters */
        uint32_t pair = i - 259;
        sprintf(text, "%c%c", 'a' + (int)(pair / 26 % 26), 'a' + (int)(pair % 26));
        if (pair >= 26 * 26)
            sprintf(text, "<unused%u>", i % 1000000);
        return;
    }
    /* Byte-level BPE writes a byte as a printable character: itself, or one from U+0100 on for those that are not. */
    uint32_t byte = i - 3, shift = 0;
    for (uint32_t b = 0; b < byte; b++)
        shift += !((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174);
    code = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174 ? byte : 256 + shift;
    if (code < 128) {
        sprintf(text, "%c", (int)code);
    } else {
        text[0] = (char)(0xc0 | code >> 6);
        text[1] = (char)(0x80 | (code & 63));
        text[2] = '\0';
    }
}

static inline void gguf_build_tiny_tokenizer(struct gguf_build *build, const struct tiny_llama *tiny)
{
    uint32_t merges = tiny->vocab > 259 ? tiny->vocab - 259 : 0;
    char text[16];

    gguf_build_string(build, "tokenizer.ggml.model", "gpt2");
    gguf_build_string(build, "tokenizer.ggml.pre", "smollm");
    if (gguf_build_array(build, "tokenizer.ggml.tokens", GGUF_STRING, tiny->vocab))
        for (uint32_t i = 0; i < tiny->vocab; i++) {
            gguf_tiny_token(i, text);
            gguf_append_string(&build->keys, text);
        }
    if (gguf_build_array(build, "tokenizer.ggml.token_type", GGUF_I32, tiny->vocab))
        for (uint32_t i = 0; i < tiny->vocab; i++)
            gguf_append_number(&build->keys, i < 3 ? 3 : i >= 259 + 676 ? 5 : 1, 4);
    merges = merges > 676 ? 676 : merges;
    if (gguf_build_array(build, "tokenizer.ggml.merges", GGUF_STRING, merges))
        for (uint32_t i = 0; i < merges; i++) {
            sprintf(text, "%c %c", 'a' + (int)(i / 26), 'a' + (int)(i % 26));
            gguf_append_string(&build->keys, text);
        }
    gguf_build_u32(build, "tokenizer.ggml.bos_token_id", 1);
    gguf_build_u32(build, "tokenizer.ggml.eos_token_id", 2);
    gguf_build_bool(build, "tokenizer.ggml.add_bos_token", false);
    gguf_build_string(build, "tokenizer.chat_template",
                      "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
                      "'<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}");
}

static inline void gguf_build_tiny_layer(struct gguf_build *build, const struct tiny_llama *tiny, uint32_t layer)
{
    uint32_t q = tiny->heads * tiny->head_dim, kv = tiny->kv_heads * tiny->head_dim;
    const struct {
        const char *name;
        uint32_t rows, columns; /* rows 0: a vector */
        bool norm, bias;
    } tensors[] = {
        {"attn_norm.weight", 0, tiny->hidden, true, false},
        {"attn_q.weight", q, tiny->hidden, false, false},
        {"attn_k.weight", kv, tiny->hidden, false, false},
        {"attn_v.weight", kv, tiny->hidden, false, false},
        {"attn_output.weight", tiny->hidden, q, false, false},
        {"attn_q.bias", 0, q, false, true},
        {"attn_k.bias", 0, kv, false, true},
        {"attn_v.bias", 0, kv, false, true},
        {"ffn_norm.weight", 0, tiny->hidden, true, false},
        {"ffn_gate.weight", tiny->ffn, tiny->hidden, false, false},
        {"ffn_up.weight", tiny->ffn, tiny->hidden, false, false},
        {"ffn_down.weight", tiny->hidden, tiny->ffn, false, false},
    };
    char name[64];

    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        if (tensors[i].bias && !tiny->biases)
            continue;
        snprintf(name, sizeof name, "blk.%u.%s", layer, tensors[i].name);
        gguf_build_tensor_of(build, name, tensors[i].rows ? tiny->type : TENSOR_F32, tensors[i].columns, tensors[i].rows,
                             2 / sqrtf((float)tensors[i].columns), tensors[i].norm, NULL);
    }
}

/* "<arch>.<suffix>" in key, which holds 100 bytes. */
static inline const char *gguf_tiny_key(char *key, const struct tiny_llama *tiny, const char *suffix)
{
    snprintf(key, 100, "%s.%s", tiny->arch, suffix);
    return key;
}

static inline void gguf_build_tiny_u32(struct gguf_build *build, const struct tiny_llama *tiny, const char *suffix, uint32_t value)
{
    char key[100];
    gguf_build_u32(build, gguf_tiny_key(key, tiny, suffix), value);
}

static inline void gguf_build_llama(struct gguf_build *build, const struct tiny_llama *tiny)
{
    char key[100];

    build->seed = tiny->seed;
    gguf_build_string(build, "general.architecture", tiny->arch);
    gguf_build_string(build, "general.name", "Tiny");
    gguf_build_u32(build, "general.alignment", 32);
    gguf_build_tiny_u32(build, tiny, "block_count", tiny->layers);
    gguf_build_tiny_u32(build, tiny, "context_length", tiny->context);
    gguf_build_tiny_u32(build, tiny, "embedding_length", tiny->hidden);
    gguf_build_tiny_u32(build, tiny, "feed_forward_length", tiny->ffn);
    gguf_build_tiny_u32(build, tiny, "attention.head_count", tiny->heads);
    gguf_build_tiny_u32(build, tiny, "attention.head_count_kv", tiny->kv_heads);
    gguf_build_tiny_u32(build, tiny, "attention.key_length", tiny->head_dim);
    gguf_build_tiny_u32(build, tiny, "attention.value_length", tiny->head_dim);
    gguf_build_f32(build, gguf_tiny_key(key, tiny, "attention.layer_norm_rms_epsilon"), 1e-5f);
    gguf_build_tiny_u32(build, tiny, "rope.dimension_count", tiny->head_dim);
    gguf_build_f32(build, gguf_tiny_key(key, tiny, "rope.freq_base"), 10000);
    gguf_build_tiny_u32(build, tiny, "vocab_size", tiny->vocab);
    if (tiny->rope_factor != 0) {
        gguf_build_string(build, gguf_tiny_key(key, tiny, "rope.scaling.type"), "linear");
        gguf_build_f32(build, gguf_tiny_key(key, tiny, "rope.scaling.factor"), tiny->rope_factor);
    }
    gguf_build_tiny_tokenizer(build, tiny);
    gguf_build_tensor_of(build, "token_embd.weight", tiny->embedding_type, tiny->hidden, tiny->vocab, 1, false, NULL);
    if (tiny->rope_factors)
        gguf_build_tensor_of(build, "rope_freqs.weight", TENSOR_F32, tiny->head_dim / 2, 0, 1, true, NULL);
    for (uint32_t layer = 0; layer < tiny->layers; layer++)
        gguf_build_tiny_layer(build, tiny, layer);
    gguf_build_tensor_of(build, "output_norm.weight", TENSOR_F32, tiny->hidden, 0, 1, true, NULL);
    if (!tiny->tied)
        gguf_build_tensor_of(build, "output.weight", tiny->type, tiny->hidden, tiny->vocab, 1, false, NULL);
}

/* Writes a tiny model to a file. */
static inline void gguf_write_llama(const char *path, const struct tiny_llama *tiny)
{
    struct gguf_build build = {0};
    size_t count;

    gguf_build_llama(&build, tiny);
    unsigned char *bytes = gguf_build_finish(&build, &count);
    FILE *file = fopen(path, "wb");
    assert_always(file && fwrite(bytes, 1, count, file) == count && fclose(file) == 0);
    free(bytes);
}

#endif
