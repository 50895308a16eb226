// kernel_test.h: what the kernel tests share: seeded random numbers, source blocks of every GGUF type, packed matrices.
#ifndef FD_TESTS_KERNELS_KERNEL_TEST_H
#define FD_TESTS_KERNELS_KERNEL_TEST_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/random.h"
#include "kernels/dispatch/kernels.h"
#include "kernels/simd/half.h"
#include "tests/cmocka.h"

// Roughly normal, standard deviation 1.
static inline float random_normal(uint64_t *state)
{
    uint64_t r = random_next(state);
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)(r >> (16 * i) & 0xffff) / 65536.0f - 0.5f;
    return sum * 1.7320508f;
}

static inline void *test_alloc(size_t bytes) // aligned to 64, exact enough for ASan
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    assert_non_null(p);
    return p;
}

struct source_type {
    uint32_t type; // GGUF's number
    const char *name;
    uint32_t block_values, block_bytes;
    uint32_t scale_at[2], scale_count; // byte offsets of scales in a block: f16, but for Q8_K and MXFP4
};

static const struct source_type source_types[] = {
    {0, "F32", 1, 4, {0, 0}, 0},         {1, "F16", 1, 2, {0, 0}, 1},         {30, "BF16", 1, 2, {0, 0}, 0},
    {2, "Q4_0", 32, 18, {0, 0}, 1},      {3, "Q4_1", 32, 20, {0, 2}, 2},      {6, "Q5_0", 32, 22, {0, 0}, 1},
    {7, "Q5_1", 32, 24, {0, 2}, 2},      {8, "Q8_0", 32, 34, {0, 0}, 1},      {12, "Q4_K", 256, 144, {0, 2}, 2},
    {13, "Q5_K", 256, 176, {0, 2}, 2},   {14, "Q6_K", 256, 210, {208, 0}, 1}, {10, "Q2_K", 256, 84, {80, 82}, 2},
    {11, "Q3_K", 256, 110, {108, 0}, 1}, {15, "Q8_K", 256, 292, {0, 0}, 1},   {20, "IQ4_NL", 32, 18, {0, 0}, 1},
    {23, "IQ4_XS", 256, 136, {0, 0}, 1}, {39, "MXFP4", 32, 17, {0, 0}, 1},
};

// Writes scale number s of a block; MXFP4 takes the power of two below its magnitude.
static inline void set_scale(const struct source_type *type, uint8_t *block, uint32_t s, float value)
{
    uint8_t *at = block + type->scale_at[s];
    uint16_t half = f16_from_float(value);
    if (type->type == 15)
        memcpy(at, &value, sizeof value);
    else if (type->type == 39)
        *at = (uint8_t)(f32_bits(value) >> 23);
    else
        memcpy(at, &half, sizeof half);
}

// Random blocks: any bits in the quants, scales like those of real files. Returns bytes; free() it.
static inline uint8_t *random_source(const struct source_type *type, uint32_t outputs, uint32_t k, uint64_t *seed)
{
    size_t blocks = (size_t)outputs * k / type->block_values;
    uint8_t *bytes = malloc(blocks * type->block_bytes);
    assert_non_null(bytes);
    for (size_t b = 0; b < blocks; b++) {
        uint8_t *block = bytes + b * type->block_bytes;
        for (uint32_t i = 0; i < type->block_bytes; i++)
            block[i] = (uint8_t)random_next(seed);
        for (uint32_t s = 0; s < type->scale_count; s++)
            set_scale(type, block, s, random_normal(seed) * (s ? 0.1f : 0.02f));
        float value = random_normal(seed) * 0.05f;
        uint16_t half = bf16_from_float(value);
        if (type->type == 0)
            memcpy(block, &value, 4);
        else if (type->type == 30)
            memcpy(block, &half, 2);
    }
    return bytes;
}

// Packs source into memory of its own: free matrix->data.
static inline void pack_all(const struct source_type *type, const uint8_t *source, uint32_t outputs, uint32_t k,
                            struct packed_matrix *matrix)
{
    struct error error;
    assert_int_equal(pack_plan(type->type, outputs, k, matrix, &error), STATUS_OK);
    matrix->data = test_alloc(matrix->bytes);
    pack_tiles(matrix, source, 0, matrix->tile_count);
}

// Fills `out` with the levels that this machine can run, without ref. Returns how many.
static inline uint32_t fast_levels(const struct kernels *out[ISA_LEVEL_COUNT])
{
    uint32_t count = 0;
    for (int level = ISA_AVX2; level < ISA_LEVEL_COUNT; level++)
        if (isa_supported((enum isa_level)level))
            out[count++] = kernels_of_level((enum isa_level)level);
    return count;
}

#endif
