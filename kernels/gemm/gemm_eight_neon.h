// gemm_eight_neon.h: what gemm_dotprod.c and gemm_i8mm.c share: a register block of four rows, and sums of half a line of outputs.
#ifndef FD_KERNELS_GEMM_GEMM_EIGHT_NEON_H
#define FD_KERNELS_GEMM_GEMM_EIGHT_NEON_H

#include <stdbool.h>

#include "kernels/gemm/gemm.h"
#include "kernels/simd/lanes.h"

#define GEMM_ROWS 4
#define GEMM_FLOAT_ROWS 6
#define GEMM_TILES 1
#define GEMM_WIDE_BYTES 1
#define GEMM_OWN_DOTS

#include "kernels/gemm/gemm_quad_lanes.h"

// Eight outputs: half of a line, so that the sums of four rows and a line's weights leave registers for what is summed over groups.
typedef struct {
    int32x4_t a, b;
} eight;
#define EIGHT_BYTES 32u

LANES_INLINE eight eight_load(const uint8_t *p)
{
    return (eight){vld1q_s32((const int32_t *)p), vld1q_s32((const int32_t *)(p + 16))};
}
LANES_INLINE eight eight_set1(int32_t x) { return (eight){vdupq_n_s32(x), vdupq_n_s32(x)}; }

// Half h of 16 sums.
LANES_INLINE void put_eight(lanes_i *dot, uint32_t h, eight x)
{
    if (h == 0)
        dot->a = x.a, dot->b = x.b;
    else
        dot->c = x.a, dot->d = x.b;
}

#endif
