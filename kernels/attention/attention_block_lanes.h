// attention_block_lanes.h: what attention over values (attention_lanes.h) and over codes (attention_codes_lanes.h) share: a group of
// lines in one block, and what both do with its scores.
#ifndef FD_KERNELS_ATTENTION_ATTENTION_BLOCK_LANES_H
#define FD_KERNELS_ATTENTION_ATTENTION_BLOCK_LANES_H

#include <float.h>
#include <math.h>

#include "common/base/checked.h"
#include "kernels/attention/attention_codes.h"
#include "kernels/simd/lanes.h"

#if defined(CODES)
#define GROUP 4u // enough lines to share the work done once per word of four codes
#elif defined(__AVX512F__)
#define GROUP 8u // 32 registers: room for 16 sums
#else
#define GROUP 6u // room for 8 values of 16 lanes, with AVX2 and with NEON: six sums, a value and a factor
#endif
#define BLOCK_TILES (ATTEND_BLOCK / KV_TILE)
#define UNROLL _Pragma("GCC unroll 8")

// The first of the block's tokens that a line sees.
LANES_INLINE uint32_t seen_from(const struct attend_range *range, uint32_t line, uint32_t block)
{
    return range->lower && range->lower[line] > block ? range->lower[line] - block : 0;
}

_Static_assert(LANES == KV_TILE, "a tile's tokens are the lanes");
_Static_assert(GROUP * ATTEND_BLOCK <= ATTEND_SCORES, "scores of a group");

// A group of lines in one block. After inlining, n (lines) and type are constants, and so is head_dim in the instances for 64 and
// 128. There every address is one register and an offset.
struct group {
    const struct attend_range *range;
    const unsigned char *const *tiles; // the block's tiles
    const unsigned char *const *ahead; // [BLOCK_TILES] tiles to prefetch meanwhile
    uint32_t line; // the first
    uint32_t tile_count; // tiles up to the last line's limit
};

// Returns e^x for x <= 0 within 2 ulp, in half the operations of lanes_exp. Below -87 the result stays at e^-87 = 2e-38. NaN stays
// NaN.
LANES_INLINE lanes exp_below(lanes x)
{
    lanes_i exponent;
    lanes p = lanes_exp_fraction(lanes_max(lanes_set1(-87.0f), x), &exponent);
    // Multiplies by 2^n through the exponent bits, which is safe because p >= 0.7 and n >= -126.
    return lanes_as_f(lanes_add_i(lanes_as_i(p), lanes_sll_i(exponent, 23)));
}

// Sets what a line does not see of a tile, of the block's tokens those outside [from, seen), to `fill`.
LANES_INLINE lanes fill_unseen(lanes x, uint32_t tile, uint32_t from, uint32_t seen, float fill)
{
    if (seen < (tile + 1) * LANES)
        x = lanes_fill_tail(x, seen - tile * LANES, fill);
    if (from > tile * LANES)
        x = lanes_fill_head(x, MIN(from - tile * LANES, LANES), fill);
    return x;
}

// Limits a line's scores in a block to what f32 holds, and sets those outside [from, seen) to -inf. from < seen <= ATTEND_BLOCK. Returns
// the largest one that is not NaN.
LANES_INLINE float clip_scores(const float *scores, uint32_t from, uint32_t seen, float soft_cap, lanes *out)
{
    uint32_t tiles = (seen + LANES - 1) / LANES;
    lanes best = lanes_set1(-INFINITY);

    UNROLL for (uint32_t j = 0; j < BLOCK_TILES; j++)
        out[j] = lanes_zero();
    UNROLL for (uint32_t j = 0; j < BLOCK_TILES; j++)
    {
        if (j >= tiles)
            break;
        out[j] = lanes_max(lanes_set1(-FLT_MAX), lanes_min(lanes_set1(FLT_MAX), lanes_load(scores + j * LANES)));
        if (soft_cap > 0)
            out[j] = lanes_mul(lanes_tanh(lanes_div(out[j], lanes_set1(soft_cap))), lanes_set1(soft_cap));
        out[j] = fill_unseen(out[j], j, from, seen, -INFINITY);
        best = lanes_max(out[j], best);
    }
    return lanes_max_all(best);
}

#endif
