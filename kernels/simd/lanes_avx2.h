// lanes_avx2.h: part of lanes.h, which says what each operation does: the lanes as two __m256, lo = lanes 0..7, hi = lanes 8..15.
#ifndef FD_KERNELS_SIMD_LANES_AVX2_H
#define FD_KERNELS_SIMD_LANES_AVX2_H

#include <immintrin.h>

typedef struct {
    __m256 lo, hi;
} lanes; // 16 f32
typedef struct {
    __m256i lo, hi;
} lanes_i;                // 16 i32
typedef __m128i lanes_s8; // 16 bytes

#define LANES_MAP1(op, a) ((lanes){_mm256_##op((a).lo), _mm256_##op((a).hi)})
#define LANES_MAP2(op, a, b) ((lanes){_mm256_##op((a).lo, (b).lo), _mm256_##op((a).hi, (b).hi)})
#define LANES_MAP3(op, a, b, c) ((lanes){_mm256_##op((a).lo, (b).lo, (c).lo), _mm256_##op((a).hi, (b).hi, (c).hi)})

LANES_INLINE __m256i lanes_tail_mask_half(int32_t n) // lanes below n of eight
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
LANES_INLINE lanes lanes_set1(float x) { return (lanes){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
LANES_INLINE lanes_i lanes_set1_i(int32_t x) { return (lanes_i){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
LANES_INLINE lanes lanes_load(const float *p) { return (lanes){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
LANES_INLINE void lanes_store(float *p, lanes x)
{
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
}
// A masked-out element is never touched, so p + 8 may lie beyond the array, as an address only.
LANES_INLINE lanes lanes_load_tail(const float *p, uint32_t n)
{
    lanes x = {_mm256_maskload_ps(p, lanes_tail_mask_half((int32_t)n)), _mm256_setzero_ps()};
    if (n > 8)
        x.hi = _mm256_maskload_ps(p + 8, lanes_tail_mask_half((int32_t)n - 8));
    return x;
}
LANES_INLINE void lanes_store_tail(float *p, lanes x, uint32_t n)
{
    _mm256_maskstore_ps(p, lanes_tail_mask_half((int32_t)n), x.lo);
    if (n > 8)
        _mm256_maskstore_ps(p + 8, lanes_tail_mask_half((int32_t)n - 8), x.hi);
}
LANES_INLINE lanes lanes_fill_tail(lanes x, uint32_t n, float fill)
{
    __m256 value = _mm256_set1_ps(fill);
    return (lanes){_mm256_blendv_ps(value, x.lo, _mm256_castsi256_ps(lanes_tail_mask_half((int32_t)n))),
                   _mm256_blendv_ps(value, x.hi, _mm256_castsi256_ps(lanes_tail_mask_half((int32_t)n - 8)))};
}
LANES_INLINE lanes lanes_fill_head(lanes x, uint32_t n, float fill)
{
    __m256 value = _mm256_set1_ps(fill);
    return (lanes){_mm256_blendv_ps(x.lo, value, _mm256_castsi256_ps(lanes_tail_mask_half((int32_t)n))),
                   _mm256_blendv_ps(x.hi, value, _mm256_castsi256_ps(lanes_tail_mask_half((int32_t)n - 8)))};
}
LANES_INLINE lanes lanes_load_f16(const uint16_t *p)
{
    return (lanes){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                   _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}
LANES_INLINE lanes lanes_load_f16_tail(const uint16_t *p, uint32_t n)
{
    uint16_t padded[LANES] = {0};
    for (uint32_t i = 0; i < n; i++)
        padded[i] = p[i];
    return lanes_load_f16(padded);
}
LANES_INLINE void lanes_store_f16(uint16_t *p, lanes x)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(x.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
LANES_INLINE __m256 lanes_load_bf16_half(const uint16_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
LANES_INLINE lanes lanes_load_bf16(const uint16_t *p) { return (lanes){lanes_load_bf16_half(p), lanes_load_bf16_half(p + 8)}; }
LANES_INLINE lanes lanes_load_s8(const int8_t *p)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return (lanes){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                   _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
LANES_INLINE lanes lanes_load_u8(const uint8_t *p)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return (lanes){_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
                   _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
}
LANES_INLINE lanes lanes_from_i(lanes_i x) { return LANES_MAP1(cvtepi32_ps, x); }
LANES_INLINE lanes_i lanes_to_i(lanes x) { return (lanes_i){_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi)}; }
LANES_INLINE lanes lanes_round(lanes x)
{
    return (lanes){_mm256_round_ps(x.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                   _mm256_round_ps(x.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
LANES_INLINE lanes_i lanes_add_i(lanes_i a, lanes_i b)
{
    return (lanes_i){_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
LANES_INLINE lanes_i lanes_sub_i(lanes_i a, lanes_i b)
{
    return (lanes_i){_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
LANES_INLINE lanes_i lanes_sra_i(lanes_i a, int bits)
{
    return (lanes_i){_mm256_srai_epi32(a.lo, bits), _mm256_srai_epi32(a.hi, bits)};
}
LANES_INLINE lanes_i lanes_sll_i(lanes_i a, int bits)
{
    return (lanes_i){_mm256_slli_epi32(a.lo, bits), _mm256_slli_epi32(a.hi, bits)};
}
LANES_INLINE lanes lanes_as_f(lanes_i a) { return LANES_MAP1(castsi256_ps, a); }
LANES_INLINE lanes_i lanes_as_i(lanes a) { return (lanes_i){_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
LANES_INLINE lanes_i lanes_and_i(lanes_i a, lanes_i b)
{
    return (lanes_i){_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
LANES_INLINE lanes_i lanes_xor_i(lanes_i a, lanes_i b)
{
    return (lanes_i){_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
LANES_INLINE lanes_i lanes_max_u(lanes_i a, lanes_i b)
{
    return (lanes_i){_mm256_max_epu32(a.lo, b.lo), _mm256_max_epu32(a.hi, b.hi)};
}
LANES_INLINE lanes_i lanes_min_u(lanes_i a, lanes_i b)
{
    return (lanes_i){_mm256_min_epu32(a.lo, b.lo), _mm256_min_epu32(a.hi, b.hi)};
}
LANES_INLINE uint32_t lanes_equal_bits(lanes a, lanes b)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ)) |
           (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)) << 8;
}
LANES_INLINE lanes lanes_swap_pairs(lanes a) { return (lanes){_mm256_permute_ps(a.lo, 0xb1), _mm256_permute_ps(a.hi, 0xb1)}; }
LANES_INLINE lanes_s8 lanes_to_s8(lanes_i a)
{
    __m128i low = _mm_packs_epi32(_mm256_castsi256_si128(a.lo), _mm256_extracti128_si256(a.lo, 1));
    __m128i high = _mm_packs_epi32(_mm256_castsi256_si128(a.hi), _mm256_extracti128_si256(a.hi, 1));
    return _mm_packs_epi16(low, high);
}
LANES_INLINE lanes lanes_spread(const float *p)
{
    __m256 all = _mm256_broadcast_ss(p);
    __asm__("" : "+x"(all));
    return (lanes){all, all};
}
LANES_INLINE lanes_i lanes_srl_i(lanes_i a, int bits)
{
    __m256i count = _mm256_set1_epi32(bits);
    return (lanes_i){_mm256_srlv_epi32(a.lo, count), _mm256_srlv_epi32(a.hi, count)};
}
LANES_INLINE void lanes_store_i(void *p, lanes_i a)
{
    _mm256_storeu_si256((__m256i *)p, a.lo);
    _mm256_storeu_si256((__m256i *)p + 1, a.hi);
}
LANES_INLINE lanes_i lanes_load_i(const void *p)
{
    return (lanes_i){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1)};
}
LANES_INLINE lanes_i lanes_srl_16(lanes_i a, int bits)
{
    return (lanes_i){_mm256_srli_epi16(a.lo, bits), _mm256_srli_epi16(a.hi, bits)};
}
LANES_INLINE lanes_i lanes_sra_16(lanes_i a, int bits)
{
    return (lanes_i){_mm256_srai_epi16(a.lo, bits), _mm256_srai_epi16(a.hi, bits)};
}
LANES_INLINE lanes_i lanes_sll_16(lanes_i a, int bits)
{
    return (lanes_i){_mm256_slli_epi16(a.lo, bits), _mm256_slli_epi16(a.hi, bits)};
}
LANES_INLINE lanes_i lanes_add_pairs(lanes_i sum, lanes_i a, lanes_i b)
{
#if defined(__AVXVNNI__)
    return (lanes_i){_mm256_dpwssd_avx_epi32(sum.lo, a.lo, b.lo), _mm256_dpwssd_avx_epi32(sum.hi, a.hi, b.hi)};
#else
    sum.lo = _mm256_add_epi32(sum.lo, _mm256_madd_epi16(a.lo, b.lo));
    sum.hi = _mm256_add_epi32(sum.hi, _mm256_madd_epi16(a.hi, b.hi));
    __asm__("" : "+x"(sum.lo), "+x"(sum.hi)); // otherwise gcc first adds products to each other, and runs out of registers
    return sum;
#endif
}
#if defined(__AVXVNNI__)
#define LANES_DOT_U8S8 1
LANES_INLINE lanes_i lanes_dot_u8s8(lanes_i sum, lanes_i a, lanes_i b)
{
    return (lanes_i){_mm256_dpbusd_avx_epi32(sum.lo, a.lo, b.lo), _mm256_dpbusd_avx_epi32(sum.hi, a.hi, b.hi)};
}
#endif
LANES_INLINE lanes_i lanes_shuffle_quads(lanes_i a, __m128i pattern)
{
    __m256i both = _mm256_broadcastsi128_si256(pattern);
    return (lanes_i){_mm256_shuffle_epi8(a.lo, both), _mm256_shuffle_epi8(a.hi, both)};
}
LANES_INLINE __m256 lanes_lo(lanes a) { return a.lo; }
LANES_INLINE __m256 lanes_hi(lanes a) { return a.hi; }
LANES_INLINE __m256i lanes_lo_i(lanes_i a) { return a.lo; }
LANES_INLINE __m256i lanes_hi_i(lanes_i a) { return a.hi; }

#include "kernels/simd/lanes_x86.h"

#endif
