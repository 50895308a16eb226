// gemm_i8mm.c: the GEMM with usmmla: two outputs by two rows of eight products of unsigned and signed bytes, exactly.
//
// A register of weights holds eight inputs of two outputs, which interleaving two lines gives; one of x holds those of two rows. The sums
// of two rows lie side by side and are set apart at the end:
//
//     sum of outputs o, o + 1 and rows r, r + 1:   [o·r, o·(r+1), (o+1)·r, (o+1)·(r+1)]
//
// Half as many instructions as usdot, which a single row has. Weights are multiplied as they are stored, without a sign.
#define GEMM_NAME gemm_i8mm

#include "kernels/gemm/gemm_eight_neon.h"

// The sums of eight outputs and two rows: ab of outputs 0 and 1, and so on.
typedef struct {
    int32x4_t ab, cd, ef, gh;
} pair_sums;

LANES_INLINE pair_sums pair_start(int32_t first, int32_t second)
{
    const int32x4_t both = {first, second, first, second};
    return (pair_sums){both, both, both, both};
}

LANES_INLINE int32x4_t add_two(int32x4_t sum, int32x4_t w, int8x16_t x) { return vusmmlaq_s32(sum, vreinterpretq_u8_s32(w), x); }

// Adds the products of eight inputs: those of w[0] with x[0..3] and of w[1] with x[4..7] of two rows.
LANES_INLINE pair_sums pair_add(pair_sums sum, const eight *w, const int8_t *x)
{
    int8x16_t rows = vcombine_s8(vld1_s8(x), vld1_s8(x + PACK_GROUP));
    return (pair_sums){add_two(sum.ab, vzip1q_s32(w[0].a, w[1].a), rows), add_two(sum.cd, vzip2q_s32(w[0].a, w[1].a), rows),
                       add_two(sum.ef, vzip1q_s32(w[0].b, w[1].b), rows), add_two(sum.gh, vzip2q_s32(w[0].b, w[1].b), rows)};
}

LANES_INLINE eight pair_first(pair_sums sum) { return (eight){vuzp1q_s32(sum.ab, sum.cd), vuzp1q_s32(sum.ef, sum.gh)}; }
LANES_INLINE eight pair_second(pair_sums sum) { return (eight){vuzp2q_s32(sum.ab, sum.cd), vuzp2q_s32(sum.ef, sum.gh)}; }

// Loads eight inputs of eight outputs: w[0] has the first four, w[1] the others.
LANES_INLINE void load_step(const uint8_t *at, const bool is_u4, eight *w)
{
    eight line = eight_load(at);
    if (is_u4) {
        const uint8x16_t mask = vdupq_n_u8(0x0f), a = vreinterpretq_u8_s32(line.a), b = vreinterpretq_u8_s32(line.b);
        w[0] = (eight){vreinterpretq_s32_u8(vandq_u8(a, mask)), vreinterpretq_s32_u8(vandq_u8(b, mask))};
        w[1] = (eight){vreinterpretq_s32_u8(vshrq_n_u8(a, 4)), vreinterpretq_s32_u8(vshrq_n_u8(b, 4))};
    } else {
        w[0] = line;
        w[1] = eight_load(at + 64);
    }
}

// Adds w * quad number k, a constant, of x.
#define ADD_QUAD(sum, w, x, k)                                                  \
    do {                                                                        \
        (sum).a = vusdotq_lane_s32((sum).a, vreinterpretq_u8_s32((w).a), x, k); \
        (sum).b = vusdotq_lane_s32((sum).b, vreinterpretq_u8_s32((w).b), x, k); \
    } while (0)

// Two sums: a single one would wait for itself.
LANES_INLINE eight dot_of_one(const uint8_t *at, const int8_t *q, uint32_t first, uint32_t last, const bool is_u4, int32_t start)
{
    eight sum = eight_set1(start), odd = eight_set1(0), w[2];
    _Pragma("GCC unroll 4") for (uint32_t j = first; j < last; j++)
    {
        int8x8_t x = vld1_s8(&q[8 * j]);
        load_step(at + j * (is_u4 ? 64 : 128), is_u4, w);
        ADD_QUAD(sum, w[0], x, 0);
        ADD_QUAD(odd, w[1], x, 1);
    }
    return (eight){vaddq_s32(sum.a, odd.a), vaddq_s32(sum.b, odd.b)};
}

// first, last: steps of eight inputs.
LANES_INLINE void dot_steps(const uint8_t *quants, const int8_t (*q)[PACK_GROUP], uint32_t n, uint32_t first, uint32_t last,
                            const bool is_u4, const int32_t *start, lanes_i *dot)
{
    _Pragma("GCC unroll 2") for (uint32_t h = 0; h < 2; h++)
    {
        const uint8_t *at = quants + h * EIGHT_BYTES;
        if (n == 1) {
            put_eight(dot, h, dot_of_one(at, q[0], first, last, is_u4, start[0]));
            continue;
        }
        pair_sums sum[GEMM_ROWS / 2];
        _Pragma("GCC unroll 2") for (uint32_t r = 0; r < n; r += 2) sum[r / 2] = pair_start(start[r], start[r + 1]);
        _Pragma("GCC unroll 4") for (uint32_t j = first; j < last; j++)
        {
            eight w[2];
            load_step(at + j * (is_u4 ? 64 : 128), is_u4, w);
            _Pragma("GCC unroll 2") for (uint32_t r = 0; r < n; r += 2) sum[r / 2] = pair_add(sum[r / 2], w, &q[r][8 * j]);
        }
        _Pragma("GCC unroll 2") for (uint32_t r = 0; r < n; r += 2)
        {
            put_eight(&dot[r], h, pair_first(sum[r / 2]));
            put_eight(&dot[r + 1], h, pair_second(sum[r / 2]));
        }
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
    dot_steps(quants, q, n, first / 2, last / 2, false, bias, dot);
}

#include "kernels/gemm/gemm_lanes.h"
