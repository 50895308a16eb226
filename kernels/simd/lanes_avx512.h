// lanes_avx512.h: part of lanes.h, which says what each operation does: the lanes as one __m512.
#ifndef FD_KERNELS_SIMD_LANES_AVX512_H
#define FD_KERNELS_SIMD_LANES_AVX512_H

#include <immintrin.h>

typedef __m512 lanes;     // 16 f32
typedef __m512i lanes_i;  // 16 i32
typedef __m128i lanes_s8; // 16 bytes

#define LANES_MAP1(op, a) _mm512_##op(a)
#define LANES_MAP2(op, a, b) _mm512_##op(a, b)
#define LANES_MAP3(op, a, b, c) _mm512_##op(a, b, c)

LANES_INLINE __mmask16 lanes_tail_mask(uint32_t n) { return (__mmask16)((1u << n) - 1u); }
LANES_INLINE lanes lanes_set1(float x) { return _mm512_set1_ps(x); }
LANES_INLINE lanes_i lanes_set1_i(int32_t x) { return _mm512_set1_epi32(x); }
LANES_INLINE lanes lanes_load(const float *p) { return _mm512_loadu_ps(p); }
LANES_INLINE void lanes_store(float *p, lanes x) { _mm512_storeu_ps(p, x); }
LANES_INLINE lanes lanes_load_tail(const float *p, uint32_t n) { return _mm512_maskz_loadu_ps(lanes_tail_mask(n), p); }
LANES_INLINE void lanes_store_tail(float *p, lanes x, uint32_t n) { _mm512_mask_storeu_ps(p, lanes_tail_mask(n), x); }
LANES_INLINE lanes lanes_fill_tail(lanes x, uint32_t n, float fill)
{
    return _mm512_mask_mov_ps(_mm512_set1_ps(fill), lanes_tail_mask(n), x);
}
LANES_INLINE lanes lanes_fill_head(lanes x, uint32_t n, float fill)
{
    return _mm512_mask_mov_ps(x, lanes_tail_mask(n), _mm512_set1_ps(fill));
}
LANES_INLINE lanes lanes_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
LANES_INLINE lanes lanes_load_f16_tail(const uint16_t *p, uint32_t n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes_tail_mask(n), p));
}
LANES_INLINE void lanes_store_f16(uint16_t *p, lanes x)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
LANES_INLINE lanes lanes_load_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
LANES_INLINE lanes lanes_load_s8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
LANES_INLINE lanes lanes_load_u8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
LANES_INLINE lanes lanes_from_i(lanes_i x) { return _mm512_cvtepi32_ps(x); }
LANES_INLINE lanes_i lanes_to_i(lanes x) { return _mm512_cvtps_epi32(x); }
LANES_INLINE lanes lanes_round(lanes x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
LANES_INLINE lanes_i lanes_add_i(lanes_i a, lanes_i b) { return _mm512_add_epi32(a, b); }
LANES_INLINE lanes_i lanes_sub_i(lanes_i a, lanes_i b) { return _mm512_sub_epi32(a, b); }
LANES_INLINE lanes_i lanes_sra_i(lanes_i a, int bits) { return _mm512_srai_epi32(a, (unsigned)bits); }
LANES_INLINE lanes_i lanes_sll_i(lanes_i a, int bits) { return _mm512_slli_epi32(a, (unsigned)bits); }
LANES_INLINE lanes lanes_as_f(lanes_i a) { return _mm512_castsi512_ps(a); }
LANES_INLINE lanes_i lanes_as_i(lanes a) { return _mm512_castps_si512(a); }
LANES_INLINE lanes_i lanes_and_i(lanes_i a, lanes_i b) { return _mm512_and_si512(a, b); }
LANES_INLINE lanes_i lanes_xor_i(lanes_i a, lanes_i b) { return _mm512_xor_si512(a, b); }
LANES_INLINE lanes_i lanes_max_u(lanes_i a, lanes_i b) { return _mm512_max_epu32(a, b); }
LANES_INLINE lanes_i lanes_min_u(lanes_i a, lanes_i b) { return _mm512_min_epu32(a, b); }
LANES_INLINE uint32_t lanes_equal_bits(lanes a, lanes b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
LANES_INLINE lanes lanes_swap_pairs(lanes a) { return _mm512_permute_ps(a, 0xb1); }
LANES_INLINE lanes_s8 lanes_to_s8(lanes_i a) { return _mm512_cvtepi32_epi8(a); }
LANES_INLINE lanes lanes_spread(const float *p)
{
    lanes all = _mm512_set1_ps(*p);
    __asm__("" : "+v"(all));
    return all;
}
LANES_INLINE lanes_i lanes_srl_i(lanes_i a, int bits) { return _mm512_srlv_epi32(a, _mm512_set1_epi32(bits)); }
LANES_INLINE void lanes_store_i(void *p, lanes_i a) { _mm512_storeu_si512(p, a); }
LANES_INLINE lanes_i lanes_load_i(const void *p) { return _mm512_loadu_si512(p); }
LANES_INLINE lanes_i lanes_srl_16(lanes_i a, int bits) { return _mm512_srli_epi16(a, (unsigned)bits); }
LANES_INLINE lanes_i lanes_sra_16(lanes_i a, int bits) { return _mm512_srai_epi16(a, (unsigned)bits); }
LANES_INLINE lanes_i lanes_sll_16(lanes_i a, int bits) { return _mm512_slli_epi16(a, (unsigned)bits); }
LANES_INLINE lanes_i lanes_add_pairs(lanes_i sum, lanes_i a, lanes_i b)
{
#if defined(__AVX512VNNI__)
    return _mm512_dpwssd_epi32(sum, a, b);
#else
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
    __asm__("" : "+v"(sum)); // otherwise gcc first adds products to each other, and runs out of registers
    return sum;
#endif
}
#if defined(__AVX512VNNI__)
#define LANES_DOT_U8S8 1
LANES_INLINE lanes_i lanes_dot_u8s8(lanes_i sum, lanes_i a, lanes_i b) { return _mm512_dpbusd_epi32(sum, a, b); }
#endif
LANES_INLINE lanes_i lanes_shuffle_quads(lanes_i a, __m128i pattern)
{
    return _mm512_shuffle_epi8(a, _mm512_broadcast_i32x4(pattern));
}
LANES_INLINE __m256 lanes_lo(lanes a) { return _mm512_castps512_ps256(a); }
LANES_INLINE __m256 lanes_hi(lanes a) { return _mm512_extractf32x8_ps(a, 1); }
LANES_INLINE __m256i lanes_lo_i(lanes_i a) { return _mm512_castsi512_si256(a); }
LANES_INLINE __m256i lanes_hi_i(lanes_i a) { return _mm512_extracti64x4_epi64(a, 1); }

#include "kernels/simd/lanes_x86.h"

#endif
