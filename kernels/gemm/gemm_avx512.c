// gemm_avx512.c: the GEMM without VNNI: vpmaddubsw sums two products into 16 bits, which are added up over 32 inputs
// (at most 8 * 2 * 15 * 127 = 30,480, so nothing saturates) before one vpmaddwd widens them.
#include <stdbool.h>

#include "kernels/simd/lanes.h"
#include "kernels/gemm/gemm.h"

#define GEMM_NAME gemm_avx512
#define GEMM_ROWS 4
#define GEMM_FLOAT_ROWS 12
#define GEMM_ONE_ROW gemm_avx2 // as in gemm_vnni.c, which says where it was measured
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
LANES_INLINE counts counts_add(counts a, quad w, quad x) { return _mm512_add_epi16(a, _mm512_maddubs_epi16(w, x)); }
LANES_INLINE counts counts_keep(counts a)
{
    __asm__("" : "+v"(a));
    return a;
}
LANES_INLINE lanes_i counts_finish(counts a) { return _mm512_madd_epi16(a, _mm512_set1_epi16(1)); }
// An 8-bit weight is taken as its magnitude, at most 128, and x takes its sign. The sum of two products is at most 32,512, so it
// fits 16 bits until vpmaddwd widens it.
typedef struct {
    quad magnitude;
    __mmask64 negative;
} bytes;
LANES_INLINE bytes bytes_load(const uint8_t *p)
{
    quad value = _mm512_xor_si512(quad_load(p), _mm512_set1_epi8(-128));
    return (bytes){_mm512_abs_epi8(value), _mm512_movepi8_mask(value)};
}
LANES_INLINE lanes_i bytes_start(int32_t bias)
{
    (void)bias;
    return lanes_set1_i(0);
}
LANES_INLINE lanes_i bytes_add(lanes_i a, bytes w, quad x)
{
    x = _mm512_mask_sub_epi8(x, w.negative, _mm512_setzero_si512(), x);
    return counts_keep(lanes_add_i(a, counts_finish(_mm512_maddubs_epi16(w.magnitude, x))));
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
LANES_INLINE lanes pick_byte(const uint8_t *line, const uint32_t *shift)
{
    __m512i word = _mm512_srlv_epi32(_mm512_loadu_si512(line), _mm512_set1_epi32((int32_t)*shift));
    return _mm512_cvtepi32_ps(_mm512_and_si512(word, _mm512_set1_epi32(255)));
}

#include "kernels/gemm/gemm_lanes.h"
