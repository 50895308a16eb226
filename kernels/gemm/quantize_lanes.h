// quantize_lanes.h: activations to s8, two times 16 lanes a group; the body of quantize_avx2.c, quantize_avx512.c and quantize_neon.c.
//
// It does what quantize_ref.c does, step by step. Define QUANTIZE_NAME before including.
#include <math.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/status.h"
#include "kernels/simd/half.h"
#include "kernels/simd/lanes.h"
#include "kernels/gemm/gemm.h"

#define QUANT_LEAST 1e-30f

// 32 words from 31 - index on are a mask that keeps all of a group but element `index`.
static const uint32_t all_but_one[63] = {
#define ONES ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u
    ONES, ONES, ~0u, 0, ~0u, ONES, ONES,
#undef ONES
};

LANES_INLINE lanes_i magnitude(lanes x) { return lanes_and_i(lanes_as_i(x), lanes_set1_i(0x7fffffff)); }

LANES_INLINE lanes keep(lanes x, const uint32_t *mask)
{
    return lanes_as_f(lanes_and_i(lanes_as_i(x), lanes_as_i(lanes_load((const float *)mask))));
}

// low, high: x, with zeros beyond its end.
LANES_INLINE void quantize_group(const float *x, lanes low, lanes high, int8_t *q, struct quant_part *part)
{
    const struct lanes_two largest = lanes_two_largest(magnitude(low), magnitude(high));
    const uint32_t amax_bits = f32_bits(largest.first);
    if (!(largest.first >= QUANT_LEAST) || amax_bits >= 0x7f800000u) {
        float scale = amax_bits >= 0x7f800000u ? NAN : 0.0f;
        memset(q, 0, PACK_GROUP);
        *part = (struct quant_part){.scale = scale, .sum = scale};
        return;
    }
    lanes limit = lanes_set1(largest.first);
    uint32_t index = (uint32_t)__builtin_ctz(lanes_equal_bits(lanes_as_f(magnitude(low)), limit) |
                                             lanes_equal_bits(lanes_as_f(magnitude(high)), limit) << LANES);
    const uint32_t *mask = &all_but_one[PACK_GROUP - 1 - index];
    lanes rest_low = keep(low, mask), rest_high = keep(high, mask + LANES);
    float outlier = x[index], second = largest.second;
    bool used = second >= QUANT_LEAST;
    lanes inverse = lanes_set1(used ? 127.0f / second : 0.0f);
    lanes_s8 q_low = lanes_to_s8(lanes_to_i(lanes_mul(rest_low, inverse))),
             q_high = lanes_to_s8(lanes_to_i(lanes_mul(rest_high, inverse)));
    lanes_store_s8(q, q_low);
    lanes_store_s8(q + LANES, q_high);
    int32_t sum_low = lanes_sum_s8(q_low), sum = sum_low + lanes_sum_s8(q_high);
    float scale = used ? second / 127.0f : 0.0f;
    *part = (struct quant_part){.scale = scale,
                                .sum = fmaf(scale, (float)sum, outlier),
                                .bias = -128 * sum,
                                .bias_low = -128 * sum_low,
                                .outlier = outlier,
                                .index = index};
}

void QUANTIZE_NAME(const struct quantized_rows *rows, uint32_t row_begin, uint32_t row_count)
{
    assert_always((uint64_t)row_begin + row_count <= rows->row_capacity);
    uint32_t full = rows->k / PACK_GROUP, rest = rows->k % PACK_GROUP;
    for (uint32_t row = row_begin; row < row_begin + row_count; row++) {
        const float *x = rows->values + row * rows->value_stride;
        struct quant_block *blocks = rows->blocks + (size_t)(row / QUANT_BLOCK_ROWS) * rows->group_count;
        uint32_t slot = row % QUANT_BLOCK_ROWS;
        for (uint32_t g = 0; g < full; g++, x += PACK_GROUP)
            quantize_group(x, lanes_load(x), lanes_load(x + LANES), blocks[g].q[slot], &blocks[g].part[slot]);
        if (rest) {
            lanes high = rest > LANES ? lanes_load_tail(x + LANES, rest - LANES) : lanes_zero();
            quantize_group(x, lanes_load_tail(x, MIN(rest, LANES)), high, blocks[full].q[slot], &blocks[full].part[slot]);
        }
    }
}
