// quantize_ref.c: activations to s8 in plain loops.
//
// This defines the quantization. quantize_lanes.h does the same step by step, and every step is exact or correctly rounded, so
// that ref, too, gives the same bits. A group that is not finite has a NaN scale and sum and no outlier. If its largest magnitude is
// below 1e-30 the group is all zero; if only the second largest is, it has just the outlier, because 127 / second would overflow.
#include <math.h>

#include "common/base/checked.h"
#include "kernels/gemm/gemm.h"
#include "kernels/simd/half.h"

#define QUANT_LEAST 1e-30f

static void quantize_group(const float *x, uint32_t n, int8_t *q, struct quant_part *part)
{
    uint32_t amax_bits = 0, second_bits = 0, index = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = f32_bits(x[i]) & 0x7fffffffu;
        if (bits > amax_bits) {
            second_bits = amax_bits;
            amax_bits = bits;
            index = i;
        } else {
            second_bits = MAX(second_bits, bits);
        }
    }
    float second = f32_from_bits(second_bits), outlier = x[index];
    bool finite = amax_bits < 0x7f800000u, used = finite && second >= QUANT_LEAST;
    if (!finite || !(fabsf(outlier) >= QUANT_LEAST)) {
        outlier = 0;
        index = 0;
    }
    float inverse = used ? 127.0f / second : 0.0f;
    int32_t sum = 0, sum_low = 0;
    for (uint32_t i = 0; i < PACK_GROUP; i++) {
        q[i] = used && i < n && i != index ? (int8_t)lrintf(x[i] * inverse) : 0;
        sum += q[i];
        if (i < PACK_GROUP / 2)
            sum_low += q[i];
    }
    float scale = !finite ? NAN : used ? second / 127.0f : 0.0f;
    *part = (struct quant_part){.scale = scale,
                                .sum = fmaf(scale, (float)sum, outlier),
                                .bias = -128 * sum,
                                .bias_low = -128 * sum_low,
                                .outlier = outlier,
                                .index = index};
}

void quantize_rows_ref(const struct quantized_rows *rows, uint32_t row_begin, uint32_t row_count)
{
    assert_always((uint64_t)row_begin + row_count <= rows->row_capacity);
    for (uint32_t row = row_begin; row < row_begin + row_count; row++) {
        const float *x = rows->values + row * rows->value_stride;
        struct quant_block *blocks = rows->blocks + (size_t)(row / QUANT_BLOCK_ROWS) * rows->group_count;
        uint32_t slot = row % QUANT_BLOCK_ROWS;
        for (uint32_t g = 0; g < rows->group_count; g++) {
            uint32_t first = g * PACK_GROUP;
            quantize_group(x + first, MIN(PACK_GROUP, rows->k - first), blocks[g].q[slot], &blocks[g].part[slot]);
        }
    }
}

// --- the memory of quantized activations, at every level ---

static uint32_t group_count_of(uint32_t k) { return k / PACK_GROUP + (k % PACK_GROUP != 0); }

size_t quantized_rows_bytes(uint32_t row_capacity, uint32_t k)
{
    size_t row_blocks = (size_t)row_capacity / QUANT_BLOCK_ROWS + (row_capacity % QUANT_BLOCK_ROWS != 0);
    size_t blocks, bytes;
    if (!checked_mul_size(row_blocks, group_count_of(k), &blocks) || !checked_mul_size(blocks, sizeof(struct quant_block), &bytes))
        return 0;
    return bytes;
}

void quantized_rows_init(struct quantized_rows *out, void *memory, uint32_t row_capacity, uint32_t k)
{
    assert_always((uintptr_t)memory % PACK_ALIGN == 0);
    *out = (struct quantized_rows){
        .k = k,
        .row_capacity = row_capacity,
        .group_count = group_count_of(k),
        .blocks = memory,
    };
}
