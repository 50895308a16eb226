// gemm_halves_lanes.h: what gemm_avx2.c and gemm_avxvnni.c share: 16 outputs as two halves of 8, without the products of bytes. It says what
// gemm_lanes.h needs of `quad` and of the picks; the including file has the rest.
#ifndef FD_KERNELS_GEMM_GEMM_HALVES_LANES_H
#define FD_KERNELS_GEMM_GEMM_HALVES_LANES_H

#include <stdbool.h>

#include "kernels/simd/lanes.h"

typedef lanes_i quad;
typedef lanes_i counts;

LANES_INLINE quad quad_load(const uint8_t *p)
{
    return (quad){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 32))};
}
LANES_INLINE void quad_store(uint8_t *p, quad a)
{
    _mm256_storeu_si256((__m256i *)p, a.lo);
    _mm256_storeu_si256((__m256i *)(p + 32), a.hi);
}
LANES_INLINE quad quad_add_120(quad a)
{
    return (quad){_mm256_add_epi8(a.lo, _mm256_set1_epi8(120)), _mm256_add_epi8(a.hi, _mm256_set1_epi8(120))};
}
LANES_INLINE quad quad_and_0f(quad a)
{
    __m256i mask = _mm256_set1_epi8(0x0f);
    return (quad){_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask)};
}
LANES_INLINE quad quad_shift_4(quad a) { return (quad){_mm256_srli_epi16(a.lo, 4), _mm256_srli_epi16(a.hi, 4)}; }
LANES_INLINE quad quad_spread(const int8_t *x)
{
    int32_t four;
    __builtin_memcpy(&four, x, sizeof four);
    return lanes_set1_i(four);
}
LANES_INLINE lanes spread_float(const float *x)
{
    __m256 all = _mm256_broadcast_ss(x);
    __asm__("" : "+x"(all));
    return (lanes){all, all};
}
LANES_INLINE lanes pick(const uint8_t *line, uint32_t shift, int32_t mask, int32_t offset)
{
    lanes_i words = quad_load(line), wide = lanes_set1_i(mask);
    __m256i count = _mm256_set1_epi32((int32_t)shift);
    words = (lanes_i){_mm256_srlv_epi32(words.lo, count), _mm256_srlv_epi32(words.hi, count)};
    return lanes_from_i(lanes_sub_i(lanes_and_i(words, wide), lanes_set1_i(offset)));
}
typedef struct {
    lanes x;
    int32_t offset;
} products;
LANES_INLINE products nibble_products(float x, bool bias) { return (products){lanes_set1(x), bias ? 8 : 0}; }
LANES_INLINE lanes pick_product(const uint8_t *line, const uint32_t *shift, products p)
{
    return lanes_mul(pick(line, *shift, 15, p.offset), p.x);
}
LANES_INLINE products widened_products(float x, bool bias)
{
    return (products){lanes_set1(x), bias ? (GEMM_WIDE_BYTES ? 128 : 8) : 0};
}
LANES_INLINE lanes pick_widened_byte(const uint8_t *at) { return lanes_from_i(lanes_and_i(quad_load(at), lanes_set1_i(255))); }
LANES_INLINE lanes pick_widened_product(const uint8_t *at, products p)
{
    return lanes_mul(lanes_from_i(lanes_sub_i(lanes_and_i(quad_load(at), lanes_set1_i(255)), lanes_set1_i(p.offset))), p.x);
}
LANES_INLINE lanes pick_byte(const uint8_t *line, const uint32_t *shift) { return pick(line, *shift, 255, 0); }

#endif
