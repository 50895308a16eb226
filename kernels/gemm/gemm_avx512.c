/* gemm_avx512.c: the GEMM without VNNI: vpmaddubsw sums two products into 16 bits, which are added up over 32 inputs
 * (at most 8 * 2 * 15 * 127 = 30,480, so nothing saturates) before one vpmaddwd widens them. */
#include <stdbool.h>

#include "kernels/dispatch/lanes.h"
#include "kernels/gemm/gemm.h"

#define GEMM_NAME gemm_avx512
#define GEMM_ROWS 4
#define GEMM_TILES 1
#define GEMM_WIDE_BYTES 0

typedef __m512i quad;
typedef __m512i counts;

LANES_INLINE quad quad_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
LANES_INLINE quad quad_and_0f(quad a) { return _mm512_and_si512(a, _mm512_set1_epi8(0x0f)); }
LANES_INLINE quad quad_shift_4(quad a) { return _mm512_srli_epi16(a, 4); }
LANES_INLINE counts counts_zero(void) { return _mm512_setzero_si512(); }
LANES_INLINE quad quad_spread(const int8_t *x)
{
    int32_t four;
    __builtin_memcpy(&four, x, sizeof four);
    return _mm512_set1_epi32(four);
}
LANES_INLINE counts counts_add(counts a, quad w, quad x)
{
    a = _mm512_add_epi16(a, _mm512_maddubs_epi16(w, x));
    __asm__("" : "+v"(a)); /* or gcc adds products to each other first, and runs out of registers */
    return a;
}
LANES_INLINE lanes_i counts_finish(counts a) { return _mm512_madd_epi16(a, _mm512_set1_epi16(1)); }
/* A table of the 16 products: its look-up reads the low four bits of each word, so it masks, converts and multiplies. */
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
LANES_INLINE lanes pick_byte(const uint8_t *line, const uint32_t *shift)
{
    __m512i word = _mm512_srlv_epi32(_mm512_loadu_si512(line), _mm512_set1_epi32((int32_t)*shift));
    return _mm512_cvtepi32_ps(_mm512_and_si512(word, _mm512_set1_epi32(255)));
}

#include "kernels/gemm/gemm_lanes.h"
