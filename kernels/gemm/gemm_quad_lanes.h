// gemm_quad_lanes.h: what gemm_lanes.h needs of `quad` and of the picks, by the operations of lanes.h, for levels without a look-up in 16
// floats: AVX2, AVX-VNNI and those of NEON. The including file has the products of bytes.
#ifndef FD_KERNELS_GEMM_GEMM_QUAD_LANES_H
#define FD_KERNELS_GEMM_GEMM_QUAD_LANES_H

#include <stdbool.h>

#include "kernels/simd/lanes.h"

typedef lanes_i quad;

LANES_INLINE quad quad_load(const uint8_t *p) { return lanes_load_i(p); }
LANES_INLINE void quad_store(uint8_t *p, quad a) { lanes_store_i(p, a); }
LANES_INLINE quad quad_add_120(quad a) { return lanes_add_i(a, lanes_set1_i(0x78787878)); } // bytes of 0 to 15: nothing is carried
LANES_INLINE quad quad_and_0f(quad a) { return lanes_and_i(a, lanes_set1_i(0x0f0f0f0f)); }
LANES_INLINE quad quad_shift_4(quad a) { return lanes_srl_16(a, 4); }
LANES_INLINE quad quad_spread(const int8_t *x)
{
    int32_t four;
    __builtin_memcpy(&four, x, sizeof four);
    return lanes_set1_i(four);
}
LANES_INLINE lanes pick(const uint8_t *line, uint32_t shift, int32_t mask, int32_t offset)
{
    lanes_i words = lanes_srl_i(quad_load(line), (int)shift);
    return lanes_from_i(lanes_sub_i(lanes_and_i(words, lanes_set1_i(mask)), lanes_set1_i(offset)));
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
