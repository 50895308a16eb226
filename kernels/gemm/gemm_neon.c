// gemm_neon.c: the GEMM on AArch64's baseline: smlal adds products of bytes to 16 bits, each of four inputs of an output in a sum of its
// own, over 32 inputs (at most 8 * 15 * 127 = 15,240, so nothing overflows) before they are widened and added to each other.
#include <stdbool.h>

#include "kernels/gemm/gemm.h"
#include "kernels/simd/lanes.h"

#define GEMM_NAME gemm_neon
#define GEMM_ROWS 2 // eight registers of sums a row
#define GEMM_FLOAT_ROWS 6
#define GEMM_TILES 1
#define GEMM_WIDE_BYTES 0

#include "kernels/gemm/gemm_quad_lanes.h"

typedef struct {
    int16x8_t low, high; // of four outputs
} part_counts;
typedef struct {
    part_counts a, b, c, d;
} counts;

LANES_INLINE counts counts_zero(void)
{
    part_counts part = {vdupq_n_s16(0), vdupq_n_s16(0)};
    return (counts){part, part, part, part};
}
LANES_INLINE part_counts part_add(part_counts sum, int32x4_t w, int32x4_t x)
{
    int8x16_t p = vreinterpretq_s8_s32(w), q = vreinterpretq_s8_s32(x);
    return (part_counts){vmlal_s8(sum.low, vget_low_s8(p), vget_low_s8(q)), vmlal_high_s8(sum.high, p, q)};
}
LANES_INLINE counts counts_add(counts sum, quad w, quad x) { return LANES_MAP3(counts, part_add, sum, w, x); }
LANES_INLINE counts counts_keep(counts a) { return a; } // gcc leaves the order of smlal as it is
LANES_INLINE int32x4_t part_finish(part_counts sum) { return vpaddq_s32(vpaddlq_s16(sum.low), vpaddlq_s16(sum.high)); }
LANES_INLINE lanes_i counts_finish(counts sum) { return LANES_MAP1(lanes_i, part_finish, sum); }
// The sum of two products of an 8-bit weight is at most 2 * 128 * 127 = 32,512, which fits 16 bits.
typedef lanes_i bytes;
LANES_INLINE bytes bytes_load(const uint8_t *p) { return lanes_xor_i(lanes_load_i(p), lanes_set1_i((int32_t)0x80808080)); }
LANES_INLINE lanes_i bytes_start(int32_t bias)
{
    (void)bias;
    return lanes_set1_i(0);
}
LANES_INLINE int32x4_t part_bytes_add(int32x4_t sum, int32x4_t w, int32x4_t x)
{
    int8x16_t p = vreinterpretq_s8_s32(w), q = vreinterpretq_s8_s32(x);
    return vpadalq_s16(sum, vpaddq_s16(vmull_s8(vget_low_s8(p), vget_low_s8(q)), vmull_high_s8(p, q)));
}
LANES_INLINE lanes_i bytes_add(lanes_i sum, bytes w, quad x) { return LANES_MAP3(lanes_i, part_bytes_add, sum, w, x); }

#include "kernels/gemm/gemm_lanes.h"
