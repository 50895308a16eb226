// synthetic.c: see synthetic.h. GGUF v3: header, keys, tensor descriptions, then the tensors, each at a multiple of 32 bytes.
//
// Values are uniform with a standard deviation of 1 / sqrt(inputs), so that norms stay where real models have them; norms are
// 1. The vocabulary is SentencePiece-style: bytes, letters, then made-up words, each of which is reached by merging shorter
// ones (consonant-vowel: "ba", "bab", "baba"), so that a prompt of words costs about as many tokens as with a real model.
// Worked number: llama-1b in Q4_0 is 1.1 G values of 4.5 bits: 620 MB.
#include "services/fastdecode/model/synthetic.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/random.h"
#include "kernels/quant/tensor_type.h"
#include "kernels/simd/half.h"

enum { VOCAB = 32000, ALIGN = 32, NAME_BYTES = 64, BUFFER_BYTES = 1 << 20 };
enum { GGUF_U32 = 4, GGUF_F32 = 6, GGUF_BOOL = 7, GGUF_STRING = 8, GGUF_ARRAY = 9, GGUF_I32 = 5 };
enum { TOKEN_NORMAL = 1, TOKEN_UNKNOWN = 2, TOKEN_CONTROL = 3, TOKEN_BYTE = 6 };

static const struct shape {
    const char *name;
    uint32_t layers, hidden, ffn, heads, kv_heads, context;
    const char *arch;
    uint32_t head_dim, experts, experts_used; // experts of ffn values; 0: none
} shapes[] = {
    {"llama-1b", 22, 2048, 5632, 32, 4, 8192, "llama", 64, 0, 0},    // TinyLlama, arXiv 2401.02385, with a longer context
    {"llama-7b", 32, 4096, 11008, 32, 32, 4096, "llama", 128, 0, 0}, // arXiv 2302.13971, table 2; context of the second edition
    {"llama-13b", 40, 5120, 13824, 40, 40, 4096, "llama", 128, 0, 0},
    {"qwen3moe-1b", 12, 1024, 384, 16, 4, 8192, "qwen3moe", 128, 64,
     8},                                                       // of no real model: half the width of arXiv 2505.09388's 30B-A3B
    {"llama-tiny", 2, 128, 384, 4, 2, 256, "llama", 32, 0, 0}, // of no real model: tests the tools that measure the others
};

static const struct kind {
    const char *name;
    enum tensor_type type;
} kinds[] = {{"f16", TENSOR_F16}, {"q8_0", TENSOR_Q8_0}, {"q4_1", TENSOR_Q4_1}, {"q4_0", TENSOR_Q4_0}};

struct writer {
    FILE *file;
    uint64_t written, total; // total: 0 while it is not known
    uint64_t random;
    int percent;
    const char *path, *arch;
};

static void put(struct writer *w, const void *bytes, size_t count) { w->written += fwrite(bytes, 1, count, w->file); }
static void put_u32(struct writer *w, uint32_t value) { put(w, &value, sizeof value); }
static void put_u64(struct writer *w, uint64_t value) { put(w, &value, sizeof value); }
static void put_text(struct writer *w, const char *text)
{
    put_u64(w, strlen(text));
    put(w, text, strlen(text));
}

// --- keys -------------------------------------------------------------------------------------------------------------

// A key that begins with a dot belongs to the architecture.
static void put_key(struct writer *w, const char *key, uint32_t type)
{
    char name[NAME_BYTES];

    snprintf(name, sizeof name, "%s%s", *key == '.' ? w->arch : "", key);
    put_text(w, name);
    put_u32(w, type);
}

static void key_u32(struct writer *w, const char *key, uint32_t value)
{
    put_key(w, key, GGUF_U32);
    put_u32(w, value);
}

static void key_f32(struct writer *w, const char *key, float value)
{
    put_key(w, key, GGUF_F32);
    put(w, &value, sizeof value);
}

static void key_text(struct writer *w, const char *key, const char *value)
{
    put_key(w, key, GGUF_STRING);
    put_text(w, value);
}

static void key_array(struct writer *w, const char *key, uint32_t type, uint64_t count)
{
    put_key(w, key, GGUF_ARRAY);
    put_u32(w, type);
    put_u64(w, count);
}

// Writes the text of token `id`; returns its kind. Word n counts through consonants and vowels as a clock does through digits.
static uint32_t token_of(uint32_t id, char *text)
{
    static const char consonants[] = "bcdfghjklmnprstvwxyz", vowels[] = "aeiou";
    static const char *const specials[] = {"<unk>", "<s>", "</s>"};
    enum { BYTES = 3, LETTERS = BYTES + 256, WORDS = LETTERS + 96, CV = 100, CVC = 2000, CVCV = 10000 };

    if (id < BYTES) {
        strcpy(text, specials[id]);
        return id == 0 ? TOKEN_UNKNOWN : TOKEN_CONTROL;
    }
    if (id < LETTERS) {
        sprintf(text, "<0x%02X>", id - BYTES);
        return TOKEN_BYTE;
    }
    if (id < WORDS) { // U+2581, then the printable characters of ASCII except the space
        sprintf(text, id == LETTERS ? "\xe2\x96\x81" : "%c", (int)(id - LETTERS + 0x20));
        return TOKEN_NORMAL;
    }
    uint32_t n = (id - WORDS) / 2, count = CV;
    char word[16];
    int length = 2;
    while (n >= count) { // CV, CVC, CVCV, CVCVC ...
        n -= count;
        count *= length % 2 ? 5 : 20;
        length++;
    }
    word[length] = '\0';
    for (int i = length - 1; i >= 0; i--) {
        uint32_t base = i % 2 ? 5 : 20;
        word[i] = (i % 2 ? vowels : consonants)[n % base];
        n /= base;
    }
    sprintf(text, "%s%s", (id - WORDS) % 2 ? "\xe2\x96\x81" : "", word);
    return TOKEN_NORMAL;
}

static void put_tokenizer(struct writer *w)
{
    char text[32];

    key_text(w, "tokenizer.ggml.model", "llama");
    key_array(w, "tokenizer.ggml.tokens", GGUF_STRING, VOCAB);
    for (uint32_t id = 0; id < VOCAB; id++) {
        token_of(id, text);
        put_text(w, text);
    }
    key_array(w, "tokenizer.ggml.scores", GGUF_F32, VOCAB);
    for (uint32_t id = 0; id < VOCAB; id++) {
        float score = -(float)id;
        put(w, &score, sizeof score);
    }
    key_array(w, "tokenizer.ggml.token_type", GGUF_I32, VOCAB);
    for (uint32_t id = 0; id < VOCAB; id++)
        put_u32(w, token_of(id, text));
    key_u32(w, "tokenizer.ggml.bos_token_id", 1);
    key_u32(w, "tokenizer.ggml.eos_token_id", 2);
    key_u32(w, "tokenizer.ggml.unknown_token_id", 0);
}

static void put_keys(struct writer *w, const struct shape *shape)
{
    char name[NAME_BYTES];

    snprintf(name, sizeof name, "synthetic %s", shape->name);
    key_text(w, "general.architecture", shape->arch);
    key_text(w, "general.name", name);
    key_u32(w, ".context_length", shape->context);
    key_u32(w, ".embedding_length", shape->hidden);
    key_u32(w, ".block_count", shape->layers);
    key_u32(w, ".feed_forward_length", shape->ffn);
    key_u32(w, ".attention.head_count", shape->heads);
    key_u32(w, ".attention.head_count_kv", shape->kv_heads);
    key_u32(w, ".attention.key_length", shape->head_dim);
    key_u32(w, ".attention.value_length", shape->head_dim);
    key_u32(w, ".rope.dimension_count", shape->head_dim);
    key_u32(w, ".vocab_size", VOCAB);
    key_f32(w, ".attention.layer_norm_rms_epsilon", 1e-5f);
    key_f32(w, ".rope.freq_base", 10000);
    if (shape->experts) {
        key_u32(w, ".expert_count", shape->experts);
        key_u32(w, ".expert_used_count", shape->experts_used);
        key_u32(w, ".expert_feed_forward_length", shape->ffn);
    }
    put_tokenizer(w);
}
enum { KEYS = 14 + 7, EXPERT_KEYS = 3 };

// --- tensors ----------------------------------------------------------------------------------------------------------

// One block whose values have the standard deviation `spread`.
static void make_block(struct writer *w, enum tensor_type type, float spread, unsigned char *out)
{
    const double levels_4 = 4.61, levels_8 = 73.9, uniform = 1.7320508; // deviation of 0..15, of -128..127; of [-1, 1], inverse
    uint16_t half = f16_from_float((float)((double)spread / (type == TENSOR_Q8_0 ? levels_8 : levels_4)));
    uint16_t least = f16_from_float(-7.5f * f16_to_float(half));
    uint32_t values = tensor_type_info(type)->block_bytes, head = type == TENSOR_Q4_1 ? 4 : 2;

    if (type == TENSOR_F16 || type == TENSOR_F32) {
        float x = (float)((double)(int64_t)random_next(&w->random) * 0x1p-63 * uniform) * spread;
        if (type == TENSOR_F32) {
            memcpy(out, &x, sizeof x);
            return;
        }
        half = f16_from_float(x);
        memcpy(out, &half, sizeof half);
        return;
    }
    memcpy(out, &half, sizeof half);
    if (type == TENSOR_Q4_1)
        memcpy(out + 2, &least, sizeof least);
    for (uint32_t i = head; i < values; i += 8) {
        uint64_t bits = random_next(&w->random);
        memcpy(out + i, &bits, MIN(8u, values - i));
    }
}

static void say_progress(struct writer *w)
{
    int percent = (int)(w->written * 100 / MAX(w->total, (uint64_t)1));
    if (percent == w->percent || !isatty(STDERR_FILENO))
        return;
    w->percent = percent;
    fprintf(stderr, "\r%s: %3d %% of %.1f GB", w->path, percent, (double)w->total / 1e9);
    if (percent == 100)
        fputc('\n', stderr);
}

struct tensor {
    char name[NAME_BYTES];
    uint32_t columns, rows; // rows 0: a norm, a vector of f32
    enum tensor_type type;
    uint32_t matrices; // of as many experts; 0: one
};

static uint64_t tensor_bytes(const struct tensor *t)
{
    const struct tensor_type_info *info = tensor_type_info(t->type);
    return (uint64_t)t->columns / info->block_values * info->block_bytes * MAX(t->rows, 1u) * MAX(t->matrices, 1u);
}

static void pad(struct writer *w)
{
    static const char zeros[ALIGN];
    put(w, zeros, (ALIGN - w->written % ALIGN) % ALIGN);
}

static void put_tensor(struct writer *w, const struct tensor *t, unsigned char *buffer)
{
    const struct tensor_type_info *info = tensor_type_info(t->type);
    uint64_t left = tensor_bytes(t);
    float one = 1, spread = 1 / sqrtf((float)t->columns);

    for (uint32_t i = 0; t->rows == 0 && i < t->columns; i++, left = 0)
        put(w, &one, sizeof one);
    while (left) {
        size_t take = (size_t)MIN(left, (uint64_t)(BUFFER_BYTES / info->block_bytes * info->block_bytes));
        for (size_t at = 0; at < take; at += info->block_bytes)
            make_block(w, t->type, spread, buffer + at);
        put(w, buffer, take);
        left -= take;
        say_progress(w);
        if (ferror(w->file))
            return;
    }
    pad(w);
}

enum { LAYER_TENSORS = 12 };

// Lists all tensors in the file's order; returns their number. out: [3 + LAYER_TENSORS * layers]
static uint32_t list_tensors(const struct shape *s, enum tensor_type type, struct tensor *out)
{
    const uint32_t head_dim = s->head_dim, q = head_dim * s->heads, kv = head_dim * s->kv_heads;
    const bool has_experts = s->experts != 0;
    uint32_t count = 0;
    const struct {
        const char *name;
        uint32_t columns, rows, matrices;
        bool left_out, is_f32;
    } parts[LAYER_TENSORS] = {
        {.name = "attn_norm", .columns = s->hidden},
        {.name = "attn_q", .columns = s->hidden, .rows = q},
        {.name = "attn_k", .columns = s->hidden, .rows = kv},
        {.name = "attn_v", .columns = s->hidden, .rows = kv},
        {.name = "attn_q_norm", .columns = head_dim, .left_out = !has_experts},
        {.name = "attn_k_norm", .columns = head_dim, .left_out = !has_experts},
        {.name = "attn_output", .columns = q, .rows = s->hidden},
        {.name = "ffn_norm", .columns = s->hidden},
        {.name = "ffn_gate_inp", .columns = s->hidden, .rows = s->experts, .left_out = !has_experts, .is_f32 = true},
        {.name = has_experts ? "ffn_gate_exps" : "ffn_gate", .columns = s->hidden, .rows = s->ffn, .matrices = s->experts},
        {.name = has_experts ? "ffn_up_exps" : "ffn_up", .columns = s->hidden, .rows = s->ffn, .matrices = s->experts},
        {.name = has_experts ? "ffn_down_exps" : "ffn_down", .columns = s->ffn, .rows = s->hidden, .matrices = s->experts},
    };

    out[count++] = (struct tensor){.name = "token_embd.weight", .columns = s->hidden, .rows = VOCAB, .type = type};
    out[count++] = (struct tensor){.name = "output.weight", .columns = s->hidden, .rows = VOCAB, .type = type};
    out[count++] = (struct tensor){.name = "output_norm.weight", .columns = s->hidden, .type = TENSOR_F32};
    for (uint32_t layer = 0; layer < s->layers; layer++)
        for (size_t i = 0; i < ARRAY_COUNT(parts); i++) {
            if (parts[i].left_out)
                continue;
            struct tensor *t = &out[count++];
            *t = (struct tensor){.columns = parts[i].columns,
                                 .rows = parts[i].rows,
                                 .type = parts[i].rows && !parts[i].is_f32 ? type : TENSOR_F32,
                                 .matrices = parts[i].matrices};
            snprintf(t->name, sizeof t->name, "blk.%u.%s.weight", layer, parts[i].name);
        }
    return count;
}

static void put_file(struct writer *w, const struct shape *shape, const struct tensor *tensors, uint32_t count,
                     unsigned char *buffer)
{
    uint64_t offset = 0;

    put(w, "GGUF", 4);
    put_u32(w, 3);
    put_u64(w, count);
    put_u64(w, KEYS + (shape->experts ? EXPERT_KEYS : 0));
    put_keys(w, shape);
    for (uint32_t i = 0; i < count; i++) {
        const struct tensor *t = &tensors[i];
        put_text(w, t->name);
        put_u32(w, t->matrices ? 3 : t->rows ? 2 : 1);
        put_u64(w, t->columns);
        if (t->rows)
            put_u64(w, t->rows);
        if (t->matrices)
            put_u64(w, t->matrices);
        put_u32(w, (uint32_t)t->type);
        put_u64(w, offset);
        offset += (tensor_bytes(t) + ALIGN - 1) / ALIGN * ALIGN;
    }
    pad(w);
    w->total = w->written + offset;
    for (uint32_t i = 0; i < count && !ferror(w->file); i++)
        put_tensor(w, &tensors[i], buffer);
}

enum status synthetic_write(const struct synthetic_config *config, struct error *error)
{
    const struct shape *shape = NULL;
    struct shape chosen;
    const struct kind *kind = NULL;
    bool to_stdout = !strcmp(config->path, "-");
    struct writer w = {.random = config->seed, .percent = -1, .path = config->path};
    char temporary[4096];

    for (size_t i = 0; i < ARRAY_COUNT(shapes); i++)
        if (!strcmp(shapes[i].name, config->shape))
            shape = &shapes[i];
    for (size_t i = 0; i < ARRAY_COUNT(kinds); i++)
        if (!strcmp(kinds[i].name, config->type))
            kind = &kinds[i];
    if (!shape)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--synthetic is '%s', want one of " SYNTHETIC_SHAPES, config->shape);
    if (!kind)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--type is '%s', want one of " SYNTHETIC_TYPES, config->type);
    w.arch = shape->arch;
    chosen = *shape;
    chosen.layers = config->layers ? config->layers : shape->layers;
    shape = &chosen;
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.part", config->path) >= sizeof temporary)
        return error_set(error, STATUS_INVALID_ARGUMENT, "FILE: the name is too long");
    struct tensor *tensors = calloc(3u + LAYER_TENSORS * shape->layers, sizeof *tensors);
    unsigned char *buffer = malloc(BUFFER_BYTES);
    w.file = tensors && buffer ? to_stdout ? stdout : fopen(temporary, "wbe") : NULL;
    enum status status = STATUS_OK;
    if (!w.file)
        status = error_set(error, status_of_path(errno), "%s: %s", temporary, strerror(errno));
    if (!status) {
        put_file(&w, shape, tensors, list_tensors(shape, kind->type, tensors), buffer);
        bool ok = !ferror(w.file);
        ok = (to_stdout ? fflush(w.file) : fclose(w.file)) == 0 && ok;
        if (ok && !to_stdout)
            ok = rename(temporary, config->path) == 0;
        if (!ok) {
            status = error_set(error, STATUS_UNAVAILABLE, "%s: %s after %.1f of %.1f GB", config->path, strerror(errno),
                               (double)w.written / 1e9, (double)w.total / 1e9);
            if (!to_stdout)
                unlink(temporary);
        }
    }
    free(tensors);
    free(buffer);
    return status;
}
