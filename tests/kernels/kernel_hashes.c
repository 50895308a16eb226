// kernel_hashes.c: what the kernels of one level compute from fixed inputs, as a line with a hash for each operation and case:
//
//     kernel_hashes LEVEL
//
// All levels but ref print the same lines, on every architecture. tests/arm/check_arm.sh compares those of this machine with those of AArch64
// under qemu. Inputs are finite, because the bits of a NaN are free; -0, denormal values, infinities of f16 and ties are among them. They are
// random numbers made of integer arithmetic, so that no library's functions have a part in them.
#include "tests/kernels/attention_rig.h"

static uint64_t hash_bytes(const void *bytes, size_t size) // FNV-1a
{
    const unsigned char *at = bytes;
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ at[i]) * 0x100000001b3u;
    return hash;
}

static void print_hash(const char *name, uint64_t a, uint64_t b, const void *bytes, size_t size)
{
    printf("%s %llu %llu %016llx\n", name, (unsigned long long)a, (unsigned long long)b,
           (unsigned long long)hash_bytes(bytes, size));
}

static void fill(float *x, size_t count, float size, uint64_t *seed)
{
    for (size_t i = 0; i < count; i++)
        x[i] = size * random_normal(seed);
}

// --- matrix products -------------------------------------------------------------------------------------------------

enum { ROWS = 17, OUTPUTS = 43 };

static void hash_gemm(const struct kernels *k, const struct source_type *type, uint32_t width, uint64_t seed)
{
    static float y[ROWS * OUTPUTS];
    struct packed_matrix matrix;
    struct quantized_rows rows;
    uint8_t *source = random_source(type, OUTPUTS, width, &seed);
    float *x = test_alloc(ROWS * width * sizeof *x);
    void *memory = test_alloc(quantized_rows_bytes(ROWS, width));

    pack_all(type, source, OUTPUTS, width, &matrix);
    fill(x, (size_t)ROWS * width, 1, &seed);
    for (uint32_t i = 0; i < ROWS; i++)
        x[i * width + random_next(&seed) % width] *= 60; // an outlier
    quantized_rows_init(&rows, memory, ROWS, width);
    memset(memory, 0, quantized_rows_bytes(ROWS, width));
    quantized_rows_source(&rows, x, width);
    k->quantize_rows(&rows, 0, ROWS);
    if (type->type == 2)
        print_hash("quantize_rows", width, 0, memory, quantized_rows_bytes(ROWS, width));
    for (uint32_t count = 1; count <= ROWS; count += count < 6 ? 1 : 11) {
        memset(y, 0, sizeof y);
        k->gemm(&matrix, &rows, ROWS - count, count, 0, matrix.tile_count, NULL, y, OUTPUTS, GEMM_SET);
        k->gemm(&matrix, &rows, ROWS - count, count, 1, matrix.tile_count - 1, NULL, y, OUTPUTS, GEMM_ADD);
        char name[32];
        snprintf(name, sizeof name, "gemm_%s", type->name);
        print_hash(name, width, count, y, sizeof y);
    }
    free(matrix.data);
    free(memory);
    free(x);
    free(source);
}

// --- operations on a row ---------------------------------------------------------------------------------------------

enum { LONGEST = 1100 };

static void hash_row(const struct kernels *k, uint32_t n, uint64_t seed)
{
    static float x[LONGEST], y[LONGEST], z[LONGEST], out[LONGEST];
    static uint16_t halves[LONGEST];
    float most;
    fill(x, n, 4, &seed);
    fill(y, n, 2, &seed);
    fill(z, n, 1, &seed);
    x[n / 2] = -0.0f;
    x[n / 3] = 0x1p-140f;

#define HASH(name, call, result) (memset(out, 0, sizeof out), (call), print_hash(name, n, 0, result, n * sizeof *(result)))
    HASH("rms_norm", k->rms_norm(x, y, 1e-5f, n, out), out);
    HASH("layer_norm", k->layer_norm(x, y, z, 1e-5f, n, out), out);
    HASH("silu_mul", k->silu_mul(x, y, n, out), out);
    HASH("gelu_mul", k->gelu_mul(x, y, n, out), out);
    HASH("gelu", k->gelu(x, NULL, n, out), out);
    HASH("gpt_oss_mul", k->gpt_oss_mul(x, y, n, out), out);
    HASH("relu", k->relu(x, NULL, n, out), out);
    HASH("softmax", k->softmax(x, n, out), out);
    HASH("log_softmax", k->log_softmax(x, n, out), out);
    HASH("add", (memcpy(out, x, sizeof x), k->add(out, y, n)), out);
    HASH("scale", (memcpy(out, x, sizeof x), k->scale(out, 0.3f, n)), out);
    HASH("soft_cap", (memcpy(out, x, sizeof x), k->soft_cap(out, 5, n)), out);
    HASH("f32_to_f16", k->f32_to_f16(x, n, halves), halves);
    HASH("f16_to_f32", k->f16_to_f32(halves, n, out), out);
    HASH("f32_to_bf16", k->f32_to_bf16(x, n, halves), halves);
    HASH("bf16_to_f32", k->bf16_to_f32(halves, n, out), out);
#undef HASH
    double sum = k->log_sum_exp(x, n, &most);
    print_hash("log_sum_exp", n, k->argmax(x, n), &sum, sizeof sum);
}

// Values of all magnitudes, for the conversions and for e^x.
static void hash_magnitudes(const struct kernels *k)
{
    enum { COUNT = 1u << 15 };
    static float x[COUNT], out[COUNT];
    static uint16_t halves[COUNT];
    uint64_t seed = 77;
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t bits = (uint32_t)random_next(&seed);
        x[i] = f32_from_bits((bits >> 23 & 0xff) == 0xff ? bits ^ 0x40000000u : bits);
    }
    k->f32_to_f16(x, COUNT, halves);
    print_hash("f32_to_f16", COUNT, 1, halves, sizeof halves);
    for (uint32_t i = 0; i < COUNT; i++) // ties of f16: a value in the middle of two
        x[i] = f32_from_bits(((uint32_t)random_next(&seed) & 0x8fffe000u) | 0x30001000u);
    k->f32_to_f16(x, COUNT, halves);
    print_hash("f32_to_f16", COUNT, 2, halves, sizeof halves);
    for (uint32_t i = 0; i < COUNT; i++)
        halves[i] = (uint16_t)((i << 1 & 0x7c00u) == 0x7c00u ? 0x7c00u : i << 1);
    k->f16_to_f32(halves, COUNT, out);
    print_hash("f16_to_f32", COUNT, 1, out, sizeof out);
    for (uint32_t i = 0; i < COUNT; i++)
        x[i] = -110.0f * (float)i / COUNT;
    k->softmax(x, COUNT, out);
    print_hash("softmax", COUNT, 1, out, sizeof out);
    k->soft_cap(x, 30, COUNT);
    print_hash("soft_cap", COUNT, 1, x, sizeof x);
}

static void hash_rope(const struct kernels *k, uint32_t head_dim, uint32_t dims)
{
    float x[4 * 128], row[2 * 128], was[4 * 128];
    uint64_t seed = 5;
    fill(was, 4 * head_dim, 3, &seed);
    fill(row, 2 * dims, 1, &seed);
    memcpy(x, was, sizeof x);
    k->rope_pairs(x, 4, head_dim, dims, row);
    print_hash("rope_pairs", head_dim, dims, x, 4 * head_dim * sizeof *x);
    memcpy(x, was, sizeof x);
    k->rope_neox(x, 4, head_dim, dims, row);
    print_hash("rope_neox", head_dim, dims, x, 4 * head_dim * sizeof *x);
}

// --- attention -------------------------------------------------------------------------------------------------------

// One layer and KV head of `shape`, `chunk` rows a step.
static void hash_attention(const char *level, const char *name, struct kv_shape shape, uint32_t positions, uint32_t chunk)
{
    shape.layers = 1;
    struct feed feed = feed_make(&shape, 3, positions, 3, 20 + shape.head_dim + shape.heads);
    feed_alone(&feed, chunk, 1, level);
    char whole[48];
    snprintf(whole, sizeof whole, "attention_%s_%s", kv_type_name(shape.type), name);
    print_hash(whole, shape.head_dim, shape.heads, feed.o, (size_t)feed.positions * shape.heads * shape.head_dim * sizeof *feed.o);
    free(feed.memory);
}

static void hash_attention_of(const char *level, enum kv_type type, uint32_t head_dim)
{
    struct kv_shape shape = shape_of(1, 1 + (head_dim / 16 + (uint32_t)type) % 4, head_dim, type);
    hash_attention(level, "ranges", shape, 530, 149);
    for (uint32_t group = 1; group <= 9; group++) // the lines of a row alone: each size of a register block, and a rest
        hash_attention(level, "rows", shape_of(1, group, head_dim, type), 35, 1);
    shape.window = 50, shape.windowed[0] = 1;
    hash_attention(level, "windowed", shape, 140, 140);
    shape.soft_cap = 20;
    hash_attention(level, "capped", shape, 140, 140);
}

static void hash_tiles(const struct attention_kernels *a, enum kv_type type, uint32_t head_dim)
{
    static unsigned char tile[KV_TILE * KV_MAX_HEAD_DIM * 8];
    float k[KV_MAX_HEAD_DIM], v[KV_MAX_HEAD_DIM], q[KV_MAX_HEAD_DIM];
    uint64_t seed = head_dim;
    memset(tile, 0, sizeof tile);
    for (uint32_t slot = 0; slot < KV_TILE; slot++) {
        fill(k, head_dim, slot == 3 ? 1e6f : slot == 4 ? 1e-6f : 1, &seed);
        fill(v, head_dim, slot == 5 ? 1e38f : 1, &seed);
        a->store(type, head_dim, k, v, tile, slot);
    }
    print_hash("attend_store", type, head_dim, tile, sizeof tile);
    memset(q, 0, sizeof q);
    a->load_q(type, head_dim, k, q);
    print_hash("attend_load_q", type, head_dim, q, sizeof q);
}

static void hash_scores(const struct attention_kernels *a, uint32_t head_dim)
{
    enum { COUNT = 70 };
    static uint16_t bounds[COUNT][2 * 128];
    const uint16_t *at[COUNT];
    float q[2 * 128], scores[COUNT];
    uint32_t chosen[COUNT];
    uint64_t seed = 9;
    fill(q, 2 * head_dim, 1, &seed);
    for (uint32_t i = 0; i < COUNT; i++) {
        at[i] = bounds[i];
        for (uint32_t j = 0; j < 2 * head_dim; j++)
            bounds[i][j] = f16_from_float(random_normal(&seed));
    }
    a->scores(&(struct attend_scores){
        .head_dim = head_dim, .count = COUNT, .q = q, .bounds = at, .bounds_count = COUNT, .scores = scores});
    print_hash("attend_scores", head_dim, COUNT, scores, sizeof scores);
    a->choose(scores, COUNT, 20, 0, chosen);
    print_hash("attend_choose", head_dim, 20, chosen, 20 * sizeof *chosen);
}

int main(int argc, char **argv)
{
    struct error error;
    if (argc != 2 || kernels_init(argv[1], &error) != STATUS_OK) {
        fprintf(stderr, "usage: kernel_hashes LEVEL%s%s\n", argc == 2 ? ": " : "", argc == 2 ? error.text : "");
        return 2;
    }
    for (uint32_t i = 0; i < ARRAY_COUNT(source_types); i++) {
        hash_gemm(kernels, &source_types[i], 256, 100 + i);
        hash_gemm(kernels, &source_types[i], source_types[i].block_values == 256 ? 768 : 32 * 9, 200 + i);
    }
    static const uint32_t lengths[] = {1, 7, 15, 16, 17, 33, 576, LONGEST}, dims[] = {64, 80, 128};
    for (uint32_t i = 0; i < ARRAY_COUNT(lengths); i++)
        hash_row(kernels, lengths[i], 300 + i);
    hash_magnitudes(kernels);
    hash_rope(kernels, 64, 64);
    hash_rope(kernels, 80, 24);
    for (uint32_t i = 0; i < ARRAY_COUNT(dims); i++) {
        const struct attention_kernels *a = attention_of_level(kernels->level);
        hash_scores(a, dims[i]);
        for (int type = KV_F16; type <= KV_INT4X; type++) {
            hash_tiles(a, (enum kv_type)type, dims[i]);
            hash_attention_of(argv[1], (enum kv_type)type, dims[i]);
        }
    }
    return 0;
}
