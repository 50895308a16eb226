/* attention_lanes.h: attention over one range, written once for the 16 lanes of lanes.h; attention_avx2.c and
 * attention_avx512.c define NAME() and include it.
 *
 * Lines are taken in groups of up to GROUP that share each load and conversion of K and V. Register blocks differ by
 * group size and instruction set; the order of the operations of one line does not:
 *
 *     score[t] = fma over head_dim        16 tokens in the lanes
 *     soften   m, p = e^(score - m), sum  the block's 64 tokens: rescale once if m grew (by e^0 = 1 otherwise)
 *     acc     += p[t] * v[t]              token after token, 16 values of head_dim in the lanes, stops at the line's limit
 *
 * Tokens at and beyond a line's limit are never multiplied, not even by zero: what lies there may be anything.
 */
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "common/base/checked.h"
#include "kernels/attention/attention.h"
#include "kernels/dispatch/lanes.h"

#if defined(__AVX512F__)
#define GROUP 8u /* 32 registers: 16 sums */
#else
#define GROUP 4u /* 16 registers, two a value: 4 to 6 sums */
#endif
#define BLOCK_TILES (ATTEND_BLOCK / ATTEND_TILE)
#define UNROLL _Pragma("GCC unroll 8")

_Static_assert(LANES == ATTEND_TILE, "a tile's tokens are the lanes");
_Static_assert(GROUP * ATTEND_BLOCK <= ATTEND_SCORES, "scores of a group");

LANES_INLINE lanes load_kv(const unsigned char *half, size_t index, enum attend_type type)
{
    return type == ATTEND_F16 ? lanes_load_f16((const uint16_t *)half + index) : lanes_load((const float *)half + index);
}

LANES_INLINE lanes saturate(lanes x)
{
    x = lanes_min(lanes_set1(65504.0f), x); /* a NaN in x stays */
    return lanes_max(lanes_set1(-65504.0f), x);
}

void NAME(attend_store)(enum attend_type type, uint32_t head_dim, const float *k, const float *v, void *tile, uint32_t slot)
{
    unsigned char *k_half = tile, *v_half = k_half + attend_half_bytes(head_dim, type);

    for (uint32_t i = 0; i < head_dim; i += LANES) {
        if (type == ATTEND_F16) {
            uint16_t rounded[LANES], *column = (uint16_t *)k_half + (size_t)i * ATTEND_TILE + slot;
            lanes_store_f16(rounded, saturate(lanes_load(k + i)));
            for (uint32_t j = 0; j < LANES; j++)
                column[j * ATTEND_TILE] = rounded[j];
            lanes_store_f16((uint16_t *)v_half + (size_t)slot * head_dim + i, saturate(lanes_load(v + i)));
        } else {
            float *column = (float *)k_half + (size_t)i * ATTEND_TILE + slot;
            for (uint32_t j = 0; j < LANES; j++)
                memcpy(&column[j * ATTEND_TILE], &k[i + j], sizeof(float));
            lanes_store((float *)v_half + (size_t)slot * head_dim + i, lanes_load(v + i));
        }
    }
}

/* A group of lines in one block. Functions take n (lines), type and head_dim as constants once inlined; head_dim of 64 and
 * 128 get instances of their own, so that every address is one register and an offset. */
struct group {
    const struct attend_range *range;
    const unsigned char *const *tiles; /* of the block */
    const unsigned char *const *ahead; /* [BLOCK_TILES] tiles to prefetch meanwhile; NULL: nothing */
    uint32_t line;                     /* the first */
    uint32_t tile_count;               /* as far as the last line sees */
};

/* Into the second level. Measured with one line, head_dim 64, as a share of read bandwidth: 78 %; into the first level 44 %
 * (too few lines can be on their way), not at all 47 %. */
LANES_INLINE void prefetch(const unsigned char *at) { _mm_prefetch((const char *)at, _MM_HINT_T1); }

/* Scores of n lines and t tiles from `tile` on. */
LANES_INLINE void dot(const struct group *g, uint32_t tile, const uint32_t n, const uint32_t t, const enum attend_type type,
                      const uint32_t head_dim, const bool fetch)
{
    const float *q = g->range->q + (size_t)g->line * head_dim;
    const size_t row_bytes = attend_half_bytes(1, type);
    const unsigned char *k[BLOCK_TILES], *ahead[BLOCK_TILES];
    lanes sum[GROUP][BLOCK_TILES];

    UNROLL for (uint32_t j = 0; j < t; j++)
    {
        k[j] = g->tiles[tile + j];
        ahead[j] = fetch ? g->ahead[tile + j] : NULL;
        UNROLL for (uint32_t i = 0; i < n; i++)
            sum[i][j] = lanes_zero();
    }
    for (uint32_t d = 0; d < head_dim; d += 2) {
        UNROLL for (uint32_t u = 0; u < 2; u++)
        {
            lanes value[BLOCK_TILES];
            UNROLL for (uint32_t j = 0; j < t; j++)
            {
                value[j] = load_kv(k[j], (size_t)(d + u) * ATTEND_TILE, type);
                if (fetch && (u == 0 || row_bytes == 64)) /* once a cache line */
                    prefetch(ahead[j] + (d + u) * row_bytes);
            }
            UNROLL for (uint32_t i = 0; i < n; i++)
            {
                lanes x = lanes_set1(q[(size_t)i * head_dim + d + u]);
                UNROLL for (uint32_t j = 0; j < t; j++)
                    sum[i][j] = lanes_fma(x, value[j], sum[i][j]);
            }
        }
    }
    UNROLL for (uint32_t i = 0; i < n; i++)
        UNROLL for (uint32_t j = 0; j < t; j++)
            lanes_store(g->range->scores + i * ATTEND_BLOCK + (tile + j) * LANES, sum[i][j]);
}

/* Tiles at once: as many as keep sums in registers. */
#if defined(__AVX512F__)
#define DOT_TILES(n) ((n) <= 4 ? 4 : 2)
#define VALUE_CHUNKS(n) ((n) <= 4 ? 4 : 2)
#else
#define DOT_TILES(n) ((n) == 1 ? 4 : (n) == 2 ? 2 : 1)
#define VALUE_CHUNKS(n) ((n) == 1 ? 4 : (n) == 2 ? 2 : 1)
#endif

LANES_INLINE void dot_block(const struct group *g, const uint32_t n, const enum attend_type type, const uint32_t head_dim,
                            const bool fetch)
{
    uint32_t tile = 0;
    for (; tile + DOT_TILES(n) <= g->tile_count; tile += DOT_TILES(n))
        dot(g, tile, n, DOT_TILES(n), type, head_dim, fetch);
    if (DOT_TILES(n) > 1)
        for (; tile < g->tile_count; tile++)
            dot(g, tile, n, 1, type, head_dim, fetch);
}

/* Scores of one line become p; its m, sums and acc are brought to the new m. seen: 1 to ATTEND_BLOCK tokens. */
LANES_INLINE void soften(const struct attend_range *range, uint32_t line, float *scores, uint32_t seen, const uint32_t head_dim)
{
    uint32_t tiles = (seen + LANES - 1) / LANES;
    lanes score[BLOCK_TILES], best = lanes_set1(-INFINITY), sum;
    float old = range->m[line], now;

    UNROLL for (uint32_t j = 0; j < BLOCK_TILES; j++)
    {
        if (j >= tiles)
            break;
        score[j] = lanes_max(lanes_set1(-FLT_MAX), lanes_min(lanes_set1(FLT_MAX), lanes_load(scores + j * LANES)));
        if (seen < (j + 1) * LANES)
            score[j] = lanes_fill_tail(score[j], seen - j * LANES, -INFINITY);
        best = lanes_max(score[j], best);
    }
    now = lanes_max_all(best);
    if (now > old) {
        lanes scale = lanes_exp(lanes_set1(old - now));
        float *acc = range->acc + (size_t)line * head_dim;
        range->m[line] = now;
        for (uint32_t i = 0; i < head_dim; i += LANES)
            lanes_store(acc + i, lanes_mul(lanes_load(acc + i), scale));
        lanes_store(range->sums + (size_t)line * LANES, lanes_mul(lanes_load(range->sums + (size_t)line * LANES), scale));
    } else {
        now = old;
    }
    sum = lanes_load(range->sums + (size_t)line * LANES);
    UNROLL for (uint32_t j = 0; j < BLOCK_TILES; j++)
    {
        if (j >= tiles)
            break;
        lanes p = lanes_exp(lanes_sub(score[j], lanes_set1(now)));
        sum = lanes_add(sum, p);
        lanes_store(scores + j * LANES, p);
    }
    lanes_store(range->sums + (size_t)line * LANES, sum);
}

/* acc of n lines, c chunks of 16 from value `at` on, gains tokens [begin, end) of the block. p: [n][ATTEND_BLOCK]. */
LANES_INLINE void add_chunks(const struct group *g, uint32_t line, const float *p, uint32_t begin, uint32_t end, uint32_t at,
                             const uint32_t n, const uint32_t c, const enum attend_type type, const uint32_t head_dim,
                             const bool fetch)
{
    const size_t half = attend_half_bytes(head_dim, type), value_bytes = type == ATTEND_F16 ? 2 : 4;
    float *acc = g->range->acc + (size_t)line * head_dim + at;
    lanes sum[GROUP][BLOCK_TILES];

    UNROLL for (uint32_t i = 0; i < n; i++)
        UNROLL for (uint32_t j = 0; j < c; j++)
            sum[i][j] = lanes_load(acc + (size_t)i * head_dim + j * LANES);
    while (begin < end) {
        uint32_t first = begin % ATTEND_TILE, tile = begin / ATTEND_TILE, count = MIN(end - begin, ATTEND_TILE - first);
        const unsigned char *v = g->tiles[tile] + half + ((size_t)first * head_dim + at) * value_bytes;
        const unsigned char *ahead = fetch ? g->ahead[tile] + half + ((size_t)first * head_dim + at) * value_bytes : NULL;
        const float *weights = p + begin;
        begin += count;
        for (uint32_t t = 0; t < count; t++) {
            lanes value[BLOCK_TILES];
            UNROLL for (uint32_t j = 0; j < c; j++)
            {
                value[j] = load_kv(v, j * LANES, type);
                if (fetch && j * LANES * value_bytes % 64 == 0)
                    prefetch(ahead + j * LANES * value_bytes);
            }
            UNROLL for (uint32_t i = 0; i < n; i++)
            {
                lanes x = lanes_set1(weights[i * ATTEND_BLOCK + t]);
                UNROLL for (uint32_t j = 0; j < c; j++)
                    sum[i][j] = lanes_fma(x, value[j], sum[i][j]);
            }
            v += head_dim * value_bytes;
            if (fetch)
                ahead += head_dim * value_bytes;
        }
    }
    UNROLL for (uint32_t i = 0; i < n; i++)
        UNROLL for (uint32_t j = 0; j < c; j++)
            lanes_store(acc + (size_t)i * head_dim + j * LANES, sum[i][j]);
}

LANES_INLINE void add_values(const struct group *g, uint32_t line, const float *p, uint32_t begin, uint32_t end,
                             const uint32_t n, const enum attend_type type, const uint32_t head_dim, const bool fetch)
{
    uint32_t at = 0;

    if (begin == end)
        return;
    for (; at + VALUE_CHUNKS(n) * LANES <= head_dim; at += VALUE_CHUNKS(n) * LANES)
        add_chunks(g, line, p, begin, end, at, n, VALUE_CHUNKS(n), type, head_dim, fetch);
    if (VALUE_CHUNKS(n) > 2)
        for (; at + 2 * LANES <= head_dim; at += 2 * LANES)
            add_chunks(g, line, p, begin, end, at, n, 2, type, head_dim, fetch);
    if (VALUE_CHUNKS(n) > 1)
        for (; at < head_dim; at += LANES)
            add_chunks(g, line, p, begin, end, at, n, 1, type, head_dim, fetch);
}

/* One block of a group of n lines. block: its first position. */
LANES_INLINE void attend_group(const struct group *g, uint32_t block, const uint32_t n, const enum attend_type type,
                               const uint32_t head_dim)
{
    const struct attend_range *range = g->range;
    const uint32_t *limit = range->limit + g->line;
    uint32_t common = MIN(limit[0] - block, ATTEND_BLOCK); /* limits ascend: all lines see these */

    if (g->ahead)
        dot_block(g, n, type, head_dim, true);
    else
        dot_block(g, n, type, head_dim, false);
    for (uint32_t i = 0; i < n; i++)
        soften(range, g->line + i, range->scores + i * ATTEND_BLOCK, MIN(limit[i] - block, ATTEND_BLOCK), head_dim);
    if (g->ahead)
        add_values(g, g->line, range->scores, 0, common, n, type, head_dim, true);
    else
        add_values(g, g->line, range->scores, 0, common, n, type, head_dim, false);
    for (uint32_t i = 1; i < n; i++) { /* what only later lines see */
        uint32_t seen = MIN(limit[i] - block, ATTEND_BLOCK);
        add_values(g, g->line + i, range->scores + i * ATTEND_BLOCK, common, seen, 1, type, head_dim, false);
    }
}

/* Instances for each size of group: everything above is inlined into these with its constants. */
typedef void group_fn(const struct group *g, uint32_t block);
#define INSTANCE(n)                                                                                                      \
    static void group_##n##_f16_64(const struct group *g, uint32_t block) { attend_group(g, block, n, ATTEND_F16, 64); }  \
    static void group_##n##_f16_128(const struct group *g, uint32_t block) { attend_group(g, block, n, ATTEND_F16, 128); } \
    static void group_##n##_f16(const struct group *g, uint32_t block)                                                   \
    {                                                                                                                    \
        attend_group(g, block, n, ATTEND_F16, g->range->head_dim);                                                       \
    }                                                                                                                    \
    static void group_##n##_f32(const struct group *g, uint32_t block)                                                   \
    {                                                                                                                    \
        attend_group(g, block, n, ATTEND_F32, g->range->head_dim);                                                       \
    }
INSTANCE(1) INSTANCE(2) INSTANCE(3) INSTANCE(4)
#if defined(__AVX512F__)
INSTANCE(5) INSTANCE(6) INSTANCE(7) INSTANCE(8)
#define TABLE(suffix)                                                                                                    \
    {group_1_##suffix, group_2_##suffix, group_3_##suffix, group_4_##suffix,                                             \
     group_5_##suffix, group_6_##suffix, group_7_##suffix, group_8_##suffix}
#else
#define TABLE(suffix) {group_1_##suffix, group_2_##suffix, group_3_##suffix, group_4_##suffix}
#endif
static group_fn *const groups[4][GROUP] = {TABLE(f16_64), TABLE(f16_128), TABLE(f16), TABLE(f32)};

void NAME(attend_range)(const struct attend_range *range)
{
    group_fn *const *table = groups[range->type == ATTEND_F32 ? 3 : range->head_dim == 64 ? 0 : range->head_dim == 128 ? 1 : 2];
    uint32_t line_count = range->line_count, first = 0;
    uint32_t end = MIN(range->limit[line_count - 1], range->begin + ATTEND_RANGE);

    for (uint32_t line = 0; line < line_count; line++)
        range->m[line] = -INFINITY;
    memset(range->acc, 0, (size_t)line_count * range->head_dim * sizeof(float));
    memset(range->sums, 0, (size_t)line_count * LANES * sizeof(float));
    for (uint32_t block = range->begin; block < end; block += ATTEND_BLOCK) {
        uint32_t tile = (block - range->begin) / ATTEND_TILE;
        const unsigned char *ahead[BLOCK_TILES];
        for (uint32_t j = 0; j < BLOCK_TILES; j++)
            ahead[j] = range->tiles[MIN(tile + ATTEND_AHEAD_TILES + j, range->tile_count - 1)]; /* in the cache already: harmless */
        while (range->limit[first] <= block) /* ends: the last line's limit is above */
            first++;
        for (uint32_t line = first; line < line_count; line += GROUP) {
            uint32_t n = MIN(line_count - line, GROUP);
            uint32_t seen = MIN(range->limit[line + n - 1] - block, ATTEND_BLOCK);
            struct group g = {.range = range, .tiles = range->tiles + tile, .ahead = line == first ? ahead : NULL,
                              .line = line, .tile_count = (seen + ATTEND_TILE - 1) / ATTEND_TILE};
            table[n - 1](&g, block);
        }
    }
    for (uint32_t line = 0; line < line_count; line++)
        range->l[line] = lanes_sum(lanes_load(range->sums + (size_t)line * LANES));
}

static float exp_one(float x)
{
    float out[LANES];
    lanes_store(out, lanes_exp(lanes_set1(x)));
    return out[0];
}

void NAME(attend_fold)(uint32_t line_count, uint32_t head_dim, const struct attend_partial *into,
                       const struct attend_partial *next)
{
    for (uint32_t line = 0; line < line_count; line++) {
        float best = MAX(into->m[line], next->m[line]);
        float a = exp_one(into->m[line] - best), b = exp_one(next->m[line] - best);
        float *acc = into->acc + (size_t)line * head_dim;
        const float *more = next->acc + (size_t)line * head_dim;
        float kept = into->l[line] * a, gained = next->l[line] * b;

        into->m[line] = best;
        into->l[line] = kept + gained;
        for (uint32_t i = 0; i < head_dim; i += LANES)
            lanes_store(acc + i, lanes_fma(lanes_load(more + i), lanes_set1(b), lanes_mul(lanes_load(acc + i), lanes_set1(a))));
    }
}
