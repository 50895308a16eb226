// attention_scores_lanes.h: bounds of tiles times q, for the 16 lanes of lanes.h; attention_scores_avx2.c,
// _avx512.c and _neon.c define NAME() and include it.
//
// The lanes run along head_dim: low, then high, in one sum per tile. Tiles are independent, so four are computed at once.
#include "common/base/checked.h"
#include "kernels/attention/attention.h"
#include "kernels/simd/lanes.h"

#define UNROLL _Pragma("GCC unroll 4")

LANES_INLINE void scores_of(const struct attend_scores *job, uint32_t tile, const uint32_t n)
{
    const uint16_t *bounds[4], *ahead[4];
    const uint32_t width = 2 * job->head_dim;
    lanes sum[4];

    UNROLL for (uint32_t j = 0; j < n; j++)
    {
        bounds[j] = job->bounds[tile + j];
        ahead[j] = job->bounds[MIN(tile + j + ATTEND_AHEAD_BOUNDS, job->bounds_count - 1)];
        sum[j] = lanes_zero();
    }
    for (uint32_t i = 0; i < width; i += 2 * LANES) // a cache line
        UNROLL for (uint32_t j = 0; j < n; j++)
        {
            lanes_prefetch(ahead[j] + i);
            sum[j] = lanes_fma(lanes_load(job->q + i), lanes_load_f16(bounds[j] + i), sum[j]);
            sum[j] = lanes_fma(lanes_load(job->q + i + LANES), lanes_load_f16(bounds[j] + i + LANES), sum[j]);
        }
    UNROLL for (uint32_t j = 0; j < n; j++)
        job->scores[tile + j] = lanes_sum(sum[j]);
}

void NAME(attend_scores)(const struct attend_scores *job)
{
    uint32_t tile = 0;
    for (; tile + 4 <= job->count; tile += 4)
        scores_of(job, tile, 4);
    for (; tile < job->count; tile++)
        scores_of(job, tile, 1);
}
