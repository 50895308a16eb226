// attention_tile.h: what a tile holds, as attention.h lays it out: K and V in double, read back from the bits that were stored.
#ifndef FD_TESTS_KERNELS_ATTENTION_TILE_H
#define FD_TESTS_KERNELS_ATTENTION_TILE_H

#include <stdint.h>
#include <string.h>

#include "kernels/attention/attention.h"
#include "kernels/simd/half.h"

static inline double half_at(const unsigned char *tile, size_t offset, size_t index)
{
    uint16_t bits;
    memcpy(&bits, tile + offset + 2 * index, sizeof bits);
    return (double)f16_to_float(bits);
}

static inline double plain_at(enum kv_type type, const unsigned char *at, size_t index)
{
    float whole;
    uint16_t bits;
    if (type == KV_F32) {
        memcpy(&whole, at + 4 * index, sizeof whole);
        return (double)whole;
    }
    memcpy(&bits, at + 2 * index, sizeof bits);
    return (double)(type == KV_BF16 ? bf16_to_float(bits) : f16_to_float(bits));
}

// step: the distance of two neighbouring values of the group.
static inline double tile_k(enum kv_type type, uint32_t head_dim, const unsigned char *tile, uint32_t slot, uint32_t i,
                            double *step)
{
    size_t groups = (head_dim + 31) / 32, scales = type == KV_INT4X ? head_dim * 8 : head_dim * 16;
    if (type <= KV_BF16)
        return plain_at(type, tile, (size_t)i * 16 + slot);
    *step = half_at(tile, scales, i / 32 * 16 + slot);
    if (type != KV_INT4X)
        return *step * (tile[(i / 4 * 16 + slot) * 4 + i % 4] - 128);
    return *step * (tile[(i / 8 * 16 + slot) * 4 + i % 4] >> (i % 8 < 4 ? 0 : 4) & 15) +
           half_at(tile, scales, (groups + i / 32) * 16 + slot);
}

static inline double tile_v(enum kv_type type, uint32_t head_dim, const unsigned char *tile, uint32_t slot, uint32_t i,
                            double *step)
{
    size_t groups = (head_dim + 31) / 32;
    size_t plain = type == KV_F32 ? head_dim * 64 : head_dim * 32, begin, row;
    if (type <= KV_BF16)
        return plain_at(type, tile + plain, (size_t)slot * head_dim + i);
    begin = type == KV_INT4X ? head_dim * 8 + groups * 64 : head_dim * 16 + groups * 32;
    row = type == KV_INT8 ? head_dim : groups * 16;
    *step = half_at(tile, begin + 16 * row, i / 32 * 16 + slot);
    if (type == KV_INT8)
        return *step * (signed char)tile[begin + (slot / 4 * row + i) * 4 + slot % 4];
    return *step * (tile[begin + (slot / 4 * row + i / 32 * 16 + i % 16) * 4 + slot % 4] >> (i % 32 < 16 ? 0 : 4) & 15) +
           half_at(tile, begin + 16 * row, (groups + i / 32) * 16 + slot);
}

// K and V of `count` tokens as they are stored: [count][head_dim] each.
static inline void round_values(enum kv_type type, uint32_t head_dim, const float *k, const float *v, uint32_t count, size_t stride,
                                double *k_out, double *v_out)
{
    static unsigned char tile[KV_TILE * KV_MAX_HEAD_DIM * 8];
    double step;
    for (uint32_t t = 0; t < count; t++) {
        attention_of_level(ISA_REF)->store(type, head_dim, k + t * stride, v + t * stride, tile, 3);
        for (uint32_t i = 0; i < head_dim; i++) {
            k_out[(size_t)t * head_dim + i] = tile_k(type, head_dim, tile, 3, i, &step);
            v_out[(size_t)t * head_dim + i] = tile_v(type, head_dim, tile, 3, i, &step);
        }
    }
}

#endif
