// lanes_x86.h: part of lanes.h, which says what each operation does: what AVX2 and AVX-512 share, by LANES_MAP and by halves of 8 lanes.
#ifndef FD_KERNELS_SIMD_LANES_X86_H
#define FD_KERNELS_SIMD_LANES_X86_H

LANES_INLINE lanes lanes_add(lanes a, lanes b) { return LANES_MAP2(add_ps, a, b); }
LANES_INLINE lanes lanes_sub(lanes a, lanes b) { return LANES_MAP2(sub_ps, a, b); }
LANES_INLINE lanes lanes_mul(lanes a, lanes b) { return LANES_MAP2(mul_ps, a, b); }
LANES_INLINE lanes lanes_div(lanes a, lanes b) { return LANES_MAP2(div_ps, a, b); }
LANES_INLINE lanes lanes_fma(lanes a, lanes b, lanes c) { return LANES_MAP3(fmadd_ps, a, b, c); }
LANES_INLINE lanes lanes_fnma(lanes a, lanes b, lanes c) { return LANES_MAP3(fnmadd_ps, a, b, c); }
LANES_INLINE lanes lanes_max(lanes a, lanes b) { return LANES_MAP2(max_ps, a, b); }
LANES_INLINE lanes lanes_min(lanes a, lanes b) { return LANES_MAP2(min_ps, a, b); }

LANES_INLINE float lanes_sum(lanes a)
{
    __m256 eight = _mm256_add_ps(lanes_lo(a), lanes_hi(a));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

LANES_INLINE float lanes_max_all(lanes a)
{
    __m256 eight = _mm256_max_ps(lanes_lo(a), lanes_hi(a));
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

LANES_INLINE void lanes_store_s8(int8_t *p, lanes_s8 a) { _mm_storeu_si128((__m128i *)p, a); }
LANES_INLINE int32_t lanes_sum_s8(lanes_s8 a)
{
    __m128i halves = _mm_sad_epu8(_mm_xor_si128(a, _mm_set1_epi8(-128)), _mm_setzero_si128()); // of value + 128
    return _mm_cvtsi128_si32(_mm_add_epi32(halves, _mm_srli_si128(halves, 8))) - 16 * 128;
}

LANES_INLINE uint32_t lanes_max_all_u(lanes_i a)
{
    __m256i eight = _mm256_max_epu32(lanes_lo_i(a), lanes_hi_i(a));
    __m128i four = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    __m128i two = _mm_max_epu32(four, _mm_srli_si128(four, 8));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(two, _mm_srli_si128(two, 4)));
}

LANES_INLINE int32_t lanes_sum_i(lanes_i a)
{
    __m256i eight = _mm256_add_epi32(lanes_lo_i(a), lanes_hi_i(a));
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    __m128i two = _mm_add_epi32(four, _mm_srli_si128(four, 8));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_srli_si128(two, 4)));
}

LANES_INLINE float lanes_first(lanes a) { return _mm256_cvtss_f32(lanes_lo(a)); }

// Pairs of (larger, smaller) are merged until one is left.
LANES_INLINE struct lanes_two lanes_two_largest(lanes_i a, lanes_i b)
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
    return (struct lanes_two){_mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epu32(most2, high))), _mm_cvtss_f32(_mm_castsi128_ps(second))};
}

LANES_INLINE lanes_i lanes_pack_pairs(lanes_i a)
{
    return lanes_shuffle_quads(a, _mm_setr_epi8(0, 1, 8, 9, 4, 5, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1));
}
LANES_INLINE lanes_i lanes_pack_bytes(lanes_i a)
{
    return lanes_shuffle_quads(a, _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, -1, -1, -1, -1, -1, -1, -1, -1));
}

#define LANES_F16(x, way) ((uint16_t)_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), (way) | _MM_FROUND_NO_EXC)))
LANES_INLINE uint16_t lanes_f16_down(float x) { return LANES_F16(x, _MM_FROUND_TO_NEG_INF); }
LANES_INLINE uint16_t lanes_f16_up(float x) { return LANES_F16(x, _MM_FROUND_TO_POS_INF); }

#endif
