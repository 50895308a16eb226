// quantize_lanes.h: activations to s8, two times 16 lanes a group; the body of quantize_avx2.c and quantize_avx512.c.
//
// It does what quantize_ref.c does, step by step. Define QUANTIZE_NAME before including.
#include <math.h>

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

// The two largest of 32 unsigned words, equal ones counted as two: pairs of (larger, smaller) are merged until one is left.
struct two {
    __m128i first, second; // the lowest word of each
};

LANES_INLINE struct two two_largest(lanes_i a, lanes_i b)
{
    lanes_i most = lanes_max_u(a, b), less = lanes_min_u(a, b);
    __m256i most8 = _mm256_max_epu32(lanes_lo_i(most), lanes_hi_i(most));
    __m256i less8 = _mm256_max_epu32(_mm256_min_epu32(lanes_lo_i(most), lanes_hi_i(most)),
                                     _mm256_max_epu32(lanes_lo_i(less), lanes_hi_i(less)));
    __m128i low = _mm256_castsi256_si128(most8), high = _mm256_extracti128_si256(most8, 1);
    __m128i most4 = _mm_max_epu32(low, high);
    __m128i less4 =
        _mm_max_epu32(_mm_min_epu32(low, high), _mm_max_epu32(_mm256_castsi256_si128(less8), _mm256_extracti128_si256(less8, 1)));
    high = _mm_srli_si128(most4, 8);
    __m128i most2 = _mm_max_epu32(most4, high);
    __m128i less2 = _mm_max_epu32(_mm_min_epu32(most4, high), _mm_max_epu32(less4, _mm_srli_si128(less4, 8)));
    high = _mm_srli_si128(most2, 4);
    __m128i second = _mm_max_epu32(_mm_min_epu32(most2, high), _mm_max_epu32(less2, _mm_srli_si128(less2, 4)));
    return (struct two){_mm_max_epu32(most2, high), second};
}

// Returns the sum of 16 signed bytes.
LANES_INLINE int32_t sum_s8(__m128i q)
{
    __m128i halves = _mm_sad_epu8(_mm_xor_si128(q, _mm_set1_epi8(-128)), _mm_setzero_si128()); // of value + 128
    return _mm_cvtsi128_si32(_mm_add_epi32(halves, _mm_srli_si128(halves, 8))) - 16 * 128;
}

LANES_INLINE lanes keep(lanes x, const uint32_t *mask)
{
    return lanes_as_f(lanes_and_i(lanes_as_i(x), lanes_as_i(lanes_load((const float *)mask))));
}

// low, high: x, with zeros beyond its end.
LANES_INLINE void quantize_group(const float *x, lanes low, lanes high, int8_t *q, struct quant_part *part)
{
    const struct two largest = two_largest(magnitude(low), magnitude(high));
    const uint32_t amax_bits = (uint32_t)_mm_cvtsi128_si32(largest.first);
    float amax = f32_from_bits(amax_bits);
    if (!(amax >= QUANT_LEAST) || amax_bits >= 0x7f800000u) {
        float scale = amax_bits >= 0x7f800000u ? NAN : 0.0f;
        lanes_store_s8(q, lanes_set1_i(0));
        lanes_store_s8(q + LANES, lanes_set1_i(0));
        *part = (struct quant_part){.scale = scale, .sum = scale};
        return;
    }
    lanes limit = lanes_set1(_mm_cvtss_f32(_mm_castsi128_ps(largest.first)));
    uint32_t index = (uint32_t)__builtin_ctz(lanes_equal_bits(lanes_as_f(magnitude(low)), limit) |
                                             lanes_equal_bits(lanes_as_f(magnitude(high)), limit) << LANES);
    const uint32_t *mask = &all_but_one[PACK_GROUP - 1 - index];
    lanes rest_low = keep(low, mask), rest_high = keep(high, mask + LANES);
    float outlier = x[index], second = _mm_cvtss_f32(_mm_castsi128_ps(largest.second));
    bool used = second >= QUANT_LEAST;
    lanes inverse = lanes_set1(used ? 127.0f / second : 0.0f);
    __m128i q_low = lanes_to_s8(lanes_to_i(lanes_mul(rest_low, inverse))),
            q_high = lanes_to_s8(lanes_to_i(lanes_mul(rest_high, inverse)));
    _mm_storeu_si128((__m128i *)q, q_low);
    _mm_storeu_si128((__m128i *)(q + LANES), q_high);
    int32_t sum_low = sum_s8(q_low), sum = sum_low + sum_s8(q_high);
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
