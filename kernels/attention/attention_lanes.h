// attention_lanes.h: attention over one range, written once for the 16 lanes of lanes.h; attention_avx2.c,
// attention_avx512.c and attention_neon.c define NAME() and include it.
//
// Up to GROUP lines share each load and conversion of K and V. Register blocks differ by group size and instruction set; the order
// of the operations of one line does not:
//
//     score[t] = fma over head_dim        16 tokens in the lanes
//     soften   m, p = e^(score - m), sum  the block's 64 tokens: rescale once if m grew
//     acc     += p[t] * v[t]              token after token, 16 values of head_dim in the lanes, stops at the line's limit
//
// The memory of tokens at and beyond a line's limit may hold anything. q·k multiplies whole tiles and then sets the scores beyond
// the limit to -inf; p·v of f16, bf16 and f32 stops at the limit, because 0 · NaN is NaN. Lower limits likewise.
// KV types with codes are compiled into objects of their own (attention_codes_*.c, which define CODES), to compile in parallel.
// Each common group size has its own compiled instance. Other groups are split, which takes 1.3 to 1.8 times as long when the data
// is in cache. On AVX2 six lines (two rows of three heads) or three lines in two tiles are twelve chains of FMAs: prefill of f16 takes 0.89 of
// the time it takes in groups of four, three lines alone 0.93 of that in one tile.
#include <stdbool.h>
#include <string.h>

#include "common/base/checked.h"
#include "kernels/attention/attention_block_lanes.h"
#include "kernels/attention/attention_codes_lanes.h"

LANES_INLINE lanes load_k(const unsigned char *k, size_t index, const enum kv_type type)
{
    return type == KV_F16    ? lanes_load_f16((const uint16_t *)k + index)
           : type == KV_BF16 ? lanes_load_bf16((const uint16_t *)k + index)
                                 : lanes_load((const float *)k + index);
}

// Computes the scores of n lines in t tiles from `tile` on.
LANES_INLINE void dot(const struct group *g, uint32_t tile, const uint32_t n, const uint32_t t, const enum kv_type type,
                      const uint32_t head_dim)
{
    const float *q = g->range->q + (size_t)g->line * head_dim;
    const size_t row_bytes = kv_k_code_bytes(1, type);
    const unsigned char *k[BLOCK_TILES], *ahead[BLOCK_TILES];
    lanes sum[GROUP][BLOCK_TILES];

    UNROLL for (uint32_t j = 0; j < t; j++)
    {
        k[j] = g->tiles[tile + j];
        ahead[j] = g->ahead[tile + j];
        UNROLL for (uint32_t i = 0; i < n; i++)
            sum[i][j] = lanes_zero();
    }
    for (uint32_t d = 0; d < head_dim; d += 2) {
        UNROLL for (uint32_t u = 0; u < 2; u++)
        {
            lanes value[BLOCK_TILES];
            UNROLL for (uint32_t j = 0; j < t; j++)
            {
                value[j] = load_k(k[j], (size_t)(d + u) * KV_TILE, type);
                if (u == 0 || row_bytes == 64) // once per cache line
                    lanes_prefetch(ahead[j] + (d + u) * row_bytes);
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

// How many tiles, or chunks of 16 values, to take at once: as many as there are registers for their sums.
#if defined(__AVX512F__)
#define DOT_TILES(n) ((n) <= 4 ? 4 : 2)
#define VALUE_CHUNKS(n) ((n) <= 4 ? 4 : 2)
#else
// Four sums of 16 lanes are eight chains of FMAs, just enough for two units of four cycles each; six are twelve.
#define DOT_TILES(n) ((n) == 1 ? 4 : (n) <= (DOT_PAIRS) ? 2 : 1)
#define VALUE_CHUNKS(n) ((n) == 1 ? 4 : (n) <= (DOT_PAIRS) ? 2 : 1)
#ifdef CODES
#define DOT_PAIRS 2
#else
#define DOT_PAIRS 3
#endif
#endif

LANES_INLINE void dot_any(const struct group *g, uint32_t tile, const uint32_t n, const uint32_t t, const enum kv_type type,
                          const uint32_t head_dim)
{
    if (has_codes(type))
        dot_codes(g, tile, n, t, type, head_dim);
    else
        dot(g, tile, n, t, type, head_dim);
}

LANES_INLINE void dot_block(const struct group *g, const uint32_t n, const enum kv_type type, const uint32_t head_dim)
{
    uint32_t tile = 0;
    for (; tile + DOT_TILES(n) <= g->tile_count; tile += DOT_TILES(n))
        dot_any(g, tile, n, DOT_TILES(n), type, head_dim);
    for (; DOT_TILES(n) > 1 && tile < g->tile_count; tile++)
        dot_any(g, tile, n, 1, type, head_dim);
}

// Turns the scores of one line into p, and rescales its m, sums and acc to the new m. It sees the block's tokens [from, seen).
LANES_APART void soften(const struct attend_range *range, uint32_t line, float *scores, uint32_t from, uint32_t seen)
{
    const uint32_t head_dim = range->head_dim, tiles = (seen + LANES - 1) / LANES;
    lanes score[BLOCK_TILES], sum;
    float old = range->m[line], now = clip_scores(scores, from, seen, range->soft_cap, score);

    if (now > old) {
        lanes scale = exp_below(lanes_set1(old - now));
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
        lanes p = fill_unseen(exp_below(lanes_sub(score[j], lanes_set1(now))), j, from, seen, 0);
        sum = lanes_add(sum, p);
        lanes_store(scores + j * LANES, p);
    }
    lanes_store(range->sums + (size_t)line * LANES, sum);
}

// For each of n lines, adds p·V of the block's tokens [begin, end) to c chunks of 16 values in acc, starting at
// value `at`. p: [n][ATTEND_BLOCK].
LANES_INLINE void add_chunks(const struct group *g, uint32_t line, const float *p, uint32_t begin, uint32_t end, uint32_t at,
                             const uint32_t n, const uint32_t c, const enum kv_type type, const uint32_t head_dim)
{
    const size_t k_bytes = kv_k_bytes(head_dim, type), row_bytes = kv_v_row_bytes(head_dim, type);
    const size_t chunk_bytes = row_bytes / (head_dim / LANES), offset = k_bytes + at * row_bytes / head_dim;
    float *acc = g->range->acc + (size_t)line * head_dim + at;
    lanes sum[GROUP][BLOCK_TILES];

    UNROLL for (uint32_t i = 0; i < n; i++)
        UNROLL for (uint32_t j = 0; j < c; j++)
            sum[i][j] = lanes_load(acc + (size_t)i * head_dim + j * LANES);
    while (begin < end) {
        uint32_t first = begin % KV_TILE, tile = begin / KV_TILE, count = MIN(end - begin, KV_TILE - first);
        const unsigned char *row = g->tiles[tile] + k_bytes + first * row_bytes;
        const unsigned char *ahead = g->ahead[tile] + offset + first * row_bytes;
        for (uint32_t t = begin; t < begin + count; t++) {
            lanes value[BLOCK_TILES];
            UNROLL for (uint32_t j = 0; j < c; j++)
            {
                value[j] = load_k(row, at + j * LANES, type);
                if (j * chunk_bytes % 64 == 0)
                    lanes_prefetch(ahead + j * chunk_bytes);
            }
            UNROLL for (uint32_t i = 0; i < n; i++)
            {
                lanes x = lanes_set1(p[i * ATTEND_BLOCK + t]);
                UNROLL for (uint32_t j = 0; j < c; j++)
                    sum[i][j] = lanes_fma(x, value[j], sum[i][j]);
            }
            row += row_bytes;
            ahead += row_bytes;
        }
        begin += count;
    }
    UNROLL for (uint32_t i = 0; i < n; i++)
        UNROLL for (uint32_t j = 0; j < c; j++)
            lanes_store(acc + (size_t)i * head_dim + j * LANES, sum[i][j]);
}

LANES_INLINE void add_values(const struct group *g, uint32_t line, const float *p, uint32_t begin, uint32_t end,
                             const uint32_t n, const enum kv_type type, const uint32_t head_dim)
{
    uint32_t at = 0;

    if (begin >= end)
        return;
    for (; at + VALUE_CHUNKS(n) * LANES <= head_dim; at += VALUE_CHUNKS(n) * LANES)
        add_chunks(g, line, p, begin, end, at, n, VALUE_CHUNKS(n), type, head_dim);
    if (VALUE_CHUNKS(n) > 2)
        for (; at + 2 * LANES <= head_dim; at += 2 * LANES)
            add_chunks(g, line, p, begin, end, at, n, 2, type, head_dim);
    if (VALUE_CHUNKS(n) > 1)
        for (; at < head_dim; at += LANES)
            add_chunks(g, line, p, begin, end, at, n, 1, type, head_dim);
}

// Adds the block's tokens [begin, end) to one line. Types with codes: softmax and p·V. Other types: p·V.
typedef void line_fn(const struct group *g, uint32_t line, float *scores, uint32_t begin, uint32_t end);

LANES_INLINE void add_line(const struct group *g, uint32_t line, float *scores, uint32_t begin, uint32_t end,
                           const enum kv_type type, const uint32_t head_dim)
{
    if (has_codes(type))
        add_codes(g, line, scores, begin, end, 1, type, head_dim);
    else
        add_values(g, line, scores, begin, end, 1, type, head_dim);
}

// Attends one block for a group of n lines. block: its first position; one: the add_line of this type and head_dim.
LANES_INLINE void attend_group(const struct group *g, uint32_t block, line_fn *one, const uint32_t n, const enum kv_type type,
                               const uint32_t head_dim)
{
    const struct attend_range *range = g->range;
    const uint32_t *limit = range->limit + g->line;
    // limits ascend: all lines see the tokens [from, common)
    uint32_t from = seen_from(range, g->line + n - 1, block), common = MIN(limit[0] - block, ATTEND_BLOCK);
    bool differ = common != MIN(limit[n - 1] - block, ATTEND_BLOCK) || from != seen_from(range, g->line, block);
    bool apart = n == 1 || from >= common || (has_codes(type) && differ);

    dot_block(g, n, type, head_dim);
    if (!has_codes(type))
        for (uint32_t i = 0; i < n; i++)
            soften(range, g->line + i, range->scores + i * ATTEND_BLOCK, seen_from(range, g->line + i, block),
                   MIN(limit[i] - block, ATTEND_BLOCK));
    if (!apart && has_codes(type)) {
        add_codes(g, g->line, range->scores, from, common, n, type, head_dim);
        return;
    }
    if (!apart && from)
        for (uint32_t i = 0; i < n; i++) // tokens that only earlier lines see
            one(g, g->line + i, range->scores + i * ATTEND_BLOCK, seen_from(range, g->line + i, block), from);
    if (!apart)
        add_values(g, g->line, range->scores, from, common, n, type, head_dim);
    for (uint32_t i = 0; i < n; i++) { // tokens that only later lines see
        uint32_t seen = MIN(limit[i] - block, ATTEND_BLOCK);
        one(g, g->line + i, range->scores + i * ATTEND_BLOCK, apart ? seen_from(range, g->line + i, block) : common, seen);
    }
}

// One instance per group size: everything above, except LANES_APART functions, is inlined into it with its constants.
typedef void group_fn(const struct group *g, uint32_t block);
#define LINE_INSTANCE(name, type, head_dim)                                                                                \
    LANES_APART void line_##name(const struct group *g, uint32_t line, float *scores, uint32_t begin, uint32_t end)        \
    {                                                                                                                      \
        add_line(g, line, scores, begin, end, type, head_dim);                                                             \
    }
#define INSTANCE(n, name, type, head_dim)                                                                                  \
    static void group_##n##_##name(const struct group *g, uint32_t block)                                                  \
    {                                                                                                                      \
        attend_group(g, block, line_##name, n, type, head_dim);                                                            \
    }
// A group whose size has no instance is split.
#define SOME_SIZES(name, type, head_dim)                                                                                   \
    LINE_INSTANCE(name, type, head_dim)                                                                                    \
    INSTANCE(1, name, type, head_dim) INSTANCE(4, name, type, head_dim)                                                    \
    static group_fn *const groups_##name[GROUP] = {group_1_##name, [3] = group_4_##name};
#define SIZES_TO_4(name, type, head_dim)                                                                                   \
    LINE_INSTANCE(name, type, head_dim)                                                                                    \
    INSTANCE(1, name, type, head_dim) INSTANCE(2, name, type, head_dim) INSTANCE(3, name, type, head_dim)                  \
    INSTANCE(4, name, type, head_dim)                                                                                      \
    static group_fn *const groups_##name[GROUP] = {group_1_##name, group_2_##name, group_3_##name, group_4_##name};
#define SIZES_TO_8(name, type, head_dim)                                                                                   \
    LINE_INSTANCE(name, type, head_dim)                                                                                    \
    INSTANCE(1, name, type, head_dim) INSTANCE(2, name, type, head_dim) INSTANCE(3, name, type, head_dim)                  \
    INSTANCE(4, name, type, head_dim) INSTANCE(5, name, type, head_dim) INSTANCE(6, name, type, head_dim)                  \
    INSTANCE(7, name, type, head_dim) INSTANCE(8, name, type, head_dim)                                                    \
    static group_fn *const groups_##name[GROUP] = {group_1_##name, group_2_##name, group_3_##name, group_4_##name,         \
                                                   group_5_##name, group_6_##name, group_7_##name, group_8_##name};
#define SIZES_TO_6(name, type, head_dim)                                                                                   \
    LINE_INSTANCE(name, type, head_dim)                                                                                    \
    INSTANCE(1, name, type, head_dim) INSTANCE(2, name, type, head_dim) INSTANCE(3, name, type, head_dim)                  \
    INSTANCE(4, name, type, head_dim) INSTANCE(5, name, type, head_dim) INSTANCE(6, name, type, head_dim)                  \
    static group_fn *const groups_##name[GROUP] = {group_1_##name, group_2_##name, group_3_##name,                         \
                                                   group_4_##name, group_5_##name, group_6_##name};
#if defined(__AVX512F__) && !defined(CODES)
#define ALL_SIZES SIZES_TO_8
#elif !defined(CODES)
#define ALL_SIZES SIZES_TO_6
#else
#define ALL_SIZES SIZES_TO_4
#endif

#ifdef CODES
SOME_SIZES(int8, KV_INT8, g->range->head_dim)
SOME_SIZES(int4, KV_INT4, g->range->head_dim)
#if !defined(__AVX512F__) || defined(__AVX512VNNI__)
ALL_SIZES(int8_64, KV_INT8, 64)
ALL_SIZES(int8_128, KV_INT8, 128)
ALL_SIZES(int4_64, KV_INT4, 64)
ALL_SIZES(int4_128, KV_INT4, 128)
ALL_SIZES(int4x, KV_INT4X, g->range->head_dim) // three heads at once take 0.7 of the time of 1 + 1 + 1
#else // few processors have AVX-512 without VNNI, so general instances do
#define groups_int8_64 groups_int8
#define groups_int8_128 groups_int8
#define groups_int4_64 groups_int4
#define groups_int4_128 groups_int4
SOME_SIZES(int4x, KV_INT4X, g->range->head_dim)
#endif

static group_fn *const *groups_of(enum kv_type type, uint32_t head_dim)
{
    if (type == KV_INT8)
        return head_dim == 64 ? groups_int8_64 : head_dim == 128 ? groups_int8_128 : groups_int8;
    if (type == KV_INT4)
        return head_dim == 64 ? groups_int4_64 : head_dim == 128 ? groups_int4_128 : groups_int4;
    return groups_int4x;
}
#else
ALL_SIZES(f16_64, KV_F16, 64)
ALL_SIZES(f16_128, KV_F16, 128)
SIZES_TO_4(f16, KV_F16, g->range->head_dim)
SIZES_TO_4(f32, KV_F32, g->range->head_dim)
SIZES_TO_4(bf16, KV_BF16, g->range->head_dim)

static group_fn *const *groups_of(enum kv_type type, uint32_t head_dim)
{
    if (type == KV_F16)
        return head_dim == 64 ? groups_f16_64 : head_dim == 128 ? groups_f16_128 : groups_f16;
    return type == KV_F32 ? groups_f32 : groups_bf16;
}
#endif

#ifdef CODES
#define ATTEND_ENTRY NAME(attend_codes)
#else
#define ATTEND_ENTRY NAME(attend_range)
#endif
void NAME(attend_codes)(const struct attend_range *range); // attend_range for types with codes

void ATTEND_ENTRY(const struct attend_range *range)
{
#ifndef CODES
    if (has_codes(range->type)) {
        NAME(attend_codes)(range);
        return;
    }
#endif
    group_fn *const *table = groups_of(range->type, range->head_dim);
    uint32_t line_count = range->line_count, first = 0, last = range->lower ? 0 : line_count;
    uint32_t end = MIN(range->limit[line_count - 1], range->begin + KV_RANGE);

    for (uint32_t line = 0; line < line_count; line++)
        range->m[line] = -INFINITY;
    memset(range->acc, 0, (size_t)line_count * range->head_dim * sizeof(float));
    memset(range->sums, 0, (size_t)line_count * LANES * sizeof(float));
    for (uint32_t block = range->begin; block < end; block += ATTEND_BLOCK) {
        uint32_t tile = (block - range->begin) / KV_TILE;
        const unsigned char *ahead[BLOCK_TILES];
        for (uint32_t j = 0; j < BLOCK_TILES; j++)
            ahead[j] = range->tiles[MIN(tile + ATTEND_AHEAD_TILES + j, range->tile_count - 1)]; // at the end, a tile already in the cache
        while (range->limit[first] <= block) // ends, because the last line's limit is above
            first++;
        while (last < line_count && range->lower[last] < block + ATTEND_BLOCK)
            last++;
        for (uint32_t line = first, n; line < last; line += n) {
            n = MIN(last - line, GROUP);
            while (!table[n - 1])
                n--;
            uint32_t seen = MIN(range->limit[line + n - 1] - block, ATTEND_BLOCK);
            struct group g = {.range = range, .tiles = range->tiles + tile, .ahead = line == first ? ahead : range->tiles + tile,
                              .line = line, .tile_count = (seen + KV_TILE - 1) / KV_TILE};
            table[n - 1](&g, block);
        }
    }
    for (uint32_t line = 0; line < line_count; line++)
        range->l[line] = lanes_sum(lanes_load(range->sums + (size_t)line * LANES));
}

#ifndef CODES
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
#endif
