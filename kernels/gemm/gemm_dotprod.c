// gemm_dotprod.c: the GEMM with sdot: 16 products of signed bytes, summed by fours into 4 lanes, exactly.
//
// The four bytes of x are one of two in a register (sdot by element), so that a row costs one load for 8 inputs of 8 outputs. Weights are
// multiplied as signed bytes: nibbles are 0 to 15, and those of 8 bits lose the 128 that was added to them.
#define GEMM_NAME gemm_dotprod

#include "kernels/gemm/gemm_eight_neon.h"

LANES_INLINE eight eight_low_nibbles(eight x)
{
    const int32x4_t mask = vdupq_n_s32(0x0f0f0f0f);
    return (eight){vandq_s32(x.a, mask), vandq_s32(x.b, mask)};
}
LANES_INLINE eight eight_high_nibbles(eight x)
{
    return (eight){vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(x.a), 4)),
                   vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(x.b), 4))};
}
LANES_INLINE eight eight_signed(eight x)
{
    const int32x4_t offset = vdupq_n_s32((int32_t)0x80808080);
    return (eight){veorq_s32(x.a, offset), veorq_s32(x.b, offset)};
}

// sum += w * quad number k, a constant, of x.
#define ADD_QUAD(sum, w, x, k)                                                \
    do {                                                                      \
        (sum).a = vdotq_lane_s32((sum).a, vreinterpretq_s8_s32((w).a), x, k); \
        (sum).b = vdotq_lane_s32((sum).b, vreinterpretq_s8_s32((w).b), x, k); \
    } while (0)

// Adds the products of eight inputs of n rows: those of w[0] and w[1]. One row has two sums, `odd` too: a single one would wait for itself.
LANES_INLINE void add_inputs(eight *sum, eight *odd, const eight *w, const int8_t (*q)[PACK_GROUP], uint32_t at, uint32_t n)
{
    _Pragma("GCC unroll 4") for (uint32_t r = 0; r < n; r++)
    {
        int8x8_t x = vld1_s8(&q[r][at]);
        eight *second = n == 1 ? odd : &sum[r];
        ADD_QUAD(sum[r], w[0], x, 0);
        ADD_QUAD(*second, w[1], x, 1);
    }
}

// first, last: steps of eight inputs. start: [n], or NULL for zeros.
LANES_INLINE void dot_steps(const uint8_t *quants, const int8_t (*q)[PACK_GROUP], uint32_t n, uint32_t first, uint32_t last,
                            const bool is_u4, const int32_t *start, lanes_i *dot)
{
    _Pragma("GCC unroll 2") for (uint32_t h = 0; h < 2; h++)
    {
        eight sum[GEMM_ROWS], odd = eight_set1(0);
        _Pragma("GCC unroll 4") for (uint32_t r = 0; r < n; r++) sum[r] = eight_set1(start ? start[r] : 0);
        _Pragma("GCC unroll 4") for (uint32_t j = first; j < last; j++)
        {
            const uint8_t *at = quants + j * (is_u4 ? 64 : 128) + h * EIGHT_BYTES;
            eight line = eight_load(at), w[2];
            w[0] = is_u4 ? eight_low_nibbles(line) : eight_signed(line);
            w[1] = is_u4 ? eight_high_nibbles(line) : eight_signed(eight_load(at + 64));
            add_inputs(sum, &odd, w, q, 8 * j, n);
        }
        if (n == 1)
            sum[0] = (eight){vaddq_s32(sum[0].a, odd.a), vaddq_s32(sum[0].b, odd.b)};
        _Pragma("GCC unroll 4") for (uint32_t r = 0; r < n; r++) put_eight(&dot[r], h, sum[r]);
    }
}

LANES_INLINE void own_dot_u4(const uint8_t *quants, const int8_t (*q)[PACK_GROUP], uint32_t n, uint32_t first, uint32_t last,
                             const int32_t *start, lanes_i *dot)
{
    dot_steps(quants, q, n, first, last, true, start, dot);
}

LANES_INLINE void own_dot_s8(const uint8_t *quants, const int8_t (*q)[PACK_GROUP], uint32_t n, uint32_t first, uint32_t last,
                             const int32_t *bias, lanes_i *dot)
{
    (void)bias; // the weights have no offset left
    dot_steps(quants, q, n, first / 2, last / 2, false, NULL, dot);
}

#include "kernels/gemm/gemm_lanes.h"
