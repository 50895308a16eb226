// gemm_whole_avx512.h: what gemm_avx512.c and gemm_vnni.c share: 16 outputs in one register, without the products of bytes. It says what
// gemm_lanes.h needs of `quad` and of the picks; the including file has the rest.
#ifndef FD_KERNELS_GEMM_GEMM_WHOLE_AVX512_H
#define FD_KERNELS_GEMM_GEMM_WHOLE_AVX512_H

#include <stdbool.h>

#include "kernels/simd/lanes.h"

typedef __m512i quad;

// The asm keeps the value in a register for both nibbles; without it gcc loads it at each use.
LANES_INLINE quad quad_load(const uint8_t *p)
{
    quad a = _mm512_loadu_si512(p);
    __asm__("" : "+v"(a));
    return a;
}
LANES_INLINE void quad_store(uint8_t *p, quad a) { _mm512_storeu_si512(p, a); }
LANES_INLINE quad quad_add_120(quad a) { return _mm512_add_epi8(a, _mm512_set1_epi8(120)); }
LANES_INLINE quad quad_and_0f(quad a) { return _mm512_and_si512(a, _mm512_set1_epi8(0x0f)); }
LANES_INLINE quad quad_shift_4(quad a) { return _mm512_srli_epi16(a, 4); }
LANES_INLINE quad quad_spread(const int8_t *x)
{
    int32_t four;
    __builtin_memcpy(&four, x, sizeof four);
    return _mm512_set1_epi32(four);
}
// A table of the 16 products. The look-up reads only the low four bits of each word, so it masks, converts and multiplies at once.
typedef __m512 products;
LANES_INLINE products nibble_products(float x, bool bias)
{
    __m512 n = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_mul_ps(_mm512_sub_ps(n, _mm512_set1_ps(bias ? 8 : 0)), _mm512_set1_ps(x));
}
LANES_INLINE lanes pick_product(const uint8_t *line, const uint32_t *shift, products table)
{
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_loadu_si512(line), _mm512_set1_epi32((int32_t)*shift)), table);
}
// The low four bits of value + 128 are those of the value.
LANES_INLINE products widened_products(float x, bool bias)
{
    __m512 n = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    return bias && GEMM_WIDE_BYTES ? _mm512_mul_ps(n, _mm512_set1_ps(x)) : nibble_products(x, bias);
}
LANES_INLINE lanes pick_widened_product(const uint8_t *at, products table)
{
    return _mm512_permutexvar_ps(_mm512_loadu_si512(at), table);
}
LANES_INLINE lanes pick_widened_byte(const uint8_t *at)
{
    return _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_loadu_si512(at), _mm512_set1_epi32(255)));
}
LANES_INLINE lanes pick_byte(const uint8_t *line, const uint32_t *shift)
{
    __m512i word = _mm512_srlv_epi32(_mm512_loadu_si512(line), _mm512_set1_epi32((int32_t)*shift));
    return _mm512_cvtepi32_ps(_mm512_and_si512(word, _mm512_set1_epi32(255)));
}

#endif
