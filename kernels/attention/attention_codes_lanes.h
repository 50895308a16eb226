// attention_codes_lanes.h: the part of attention_lanes.h for K and V stored as codes of 8 or 4 bits with scales and minima. Both
// products are exact sums of integers, with four products per lane:
//
//     q·k    16 tokens in the lanes, a word of 4 values each      score += sum * (scale of k * scale of q)      a group of head_dim
//     p·V    16 values of head_dim in the lanes, 4 tokens each    acc   += sum * unit * e^(best - m)            a group and block
//
// In p·V each block has a softmax of its own: p = e^(score - best) with the block's best score, so that the largest p is 1. The
// weight of a token in a group is p * scale of v, rounded to steps (`unit`) of 1/32767 of the largest scale that the line sees in
// the block. (Steps of 1/255 would save one of two products, but double the mean KL of int8.) A token beyond the limit has weight
// 0: its codes are multiplied, but its scale and minimum are replaced by 0.
// Minima are summed in f32: p * minimum lane by lane, then over the lanes.
// Instruction sets differ in how they multiply a word of four, but not in the sums.
#ifndef FD_KERNELS_ATTENTION_ATTENTION_CODES_LANES_H
#define FD_KERNELS_ATTENTION_ATTENTION_CODES_LANES_H

#include <stdbool.h>

#include "common/base/checked.h"
#include "kernels/attention/attention_block_lanes.h"
#include "kernels/simd/half.h"

// 16 words of four bytes, as pairs of 16 bits: bytes 0 and 2, 1 and 3.
struct pairs {
    lanes_i even, odd;
};
LANES_INLINE struct pairs pairs_unsigned(lanes_i x)
{
    return (struct pairs){lanes_and_i(x, lanes_set1_i(0x00ff00ff)), lanes_srl_16(x, 8)};
}
LANES_INLINE struct pairs pairs_signed(lanes_i x) { return (struct pairs){lanes_sra_16(lanes_sll_16(x, 8), 8), lanes_sra_16(x, 8)}; }
LANES_INLINE lanes_i nibbles(lanes_i x, const bool high)
{
    return lanes_and_i(high ? lanes_srl_16(x, 4) : x, lanes_set1_i(0x0f0f0f0f));
}

LANES_INLINE bool has_codes(const enum kv_type type) { return type > KV_BF16; }
LANES_INLINE bool v_has_minima(const enum kv_type type) { return type > KV_INT8; }

// If the instruction set multiplies words of four bytes, those of K are multiplied so if q has 8 bits, and those of V, which takes two
// sums, if there are registers for them: AVX2 has 16.
#if defined(__AVXVNNI__) && !defined(__AVX512F__)
#define V_IN_BYTES 0
#else
#define V_IN_BYTES HAS_BYTE_PRODUCTS
#endif
#if defined(LANES_DOT_U8S8) || defined(LANES_DOT_S8)
#define HAS_BYTE_PRODUCTS 1
#define K_IN_BYTES(type) attend_q_is_narrow(type)
LANES_INLINE lanes_i dot_bytes(lanes_i sum, lanes_i a, lanes_i b)
{
#if defined(LANES_DOT_U8S8)
    return lanes_dot_u8s8(sum, a, b);
#else
    return lanes_dot_s8(sum, a, b);
#endif
}
#else
#define HAS_BYTE_PRODUCTS 0
#define K_IN_BYTES(type) false
#endif
// Without products of unsigned bytes a code of K of 8 bits loses the 128 that was added to it, and weights are negated, because their
// high bytes would reach 128.
#if HAS_BYTE_PRODUCTS && !defined(LANES_DOT_U8S8)
#define SIGNED_ONLY 1
#else
#define SIGNED_ONLY 0
#endif

// Returns the start of a line's sum for a group of K. Codes of 8 bits are stored with 128 added; 4-bit ones are as they are.
LANES_INLINE lanes_i k_start(const struct coded_q *q, uint32_t group, const enum kv_type type)
{
    const bool plain = type == KV_INT4X || (SIGNED_ONLY && K_IN_BYTES(type));
    return lanes_set1_i(plain ? 0 : q->starts[group]);
}

// Returns words of K in the form that add_k_word takes.
LANES_INLINE struct pairs k_operand(lanes_i words, const enum kv_type type)
{
    if (!K_IN_BYTES(type))
        return pairs_unsigned(words);
    if (SIGNED_ONLY && type != KV_INT4X)
        words = lanes_xor_i(words, lanes_set1_i((int32_t)0x80808080));
    return (struct pairs){words, words};
}

LANES_INLINE lanes_i add_k_word(lanes_i sum, const struct coded_q *q, uint32_t word, struct pairs k, const enum kv_type type)
{
#if HAS_BYTE_PRODUCTS
    if (K_IN_BYTES(type))
        return dot_bytes(sum, k.even, lanes_set1_i(((const int32_t *)q->bytes)[word]));
#endif
    (void)type;
    sum = lanes_add_pairs(sum, lanes_set1_i(((const int32_t *)q->pairs)[2 * word]), k.even);
    return lanes_add_pairs(sum, lanes_set1_i(((const int32_t *)q->pairs)[2 * word + 1]), k.odd);
}

// Computes the scores of n lines in t tiles from `tile` on.
LANES_INLINE void dot_codes(const struct group *g, uint32_t tile, const uint32_t n, const uint32_t t, const enum kv_type type,
                            const uint32_t head_dim)
{
    const bool packed = type == KV_INT4X;
    const uint32_t groups = kv_groups(head_dim), step = packed ? 8 : 4; // step: values in a cache line of K
    const size_t code_bytes = kv_k_code_bytes(head_dim, type);
    const unsigned char *k[BLOCK_TILES], *ahead[BLOCK_TILES];
    float *scores = g->range->scores + tile * LANES;
    struct coded_q q[GROUP];

    UNROLL for (uint32_t i = 0; i < n; i++)
        q[i] = coded_q_at((float *)g->range->q + (size_t)(g->line + i) * head_dim, head_dim);
    UNROLL for (uint32_t j = 0; j < t; j++)
    {
        k[j] = g->tiles[tile + j];
        ahead[j] = g->ahead[tile + j];
    }
    for (uint32_t group = 0; group < groups; group++) {
        uint32_t begin = group * KV_GROUP_DIM, end = MIN(begin + KV_GROUP_DIM, head_dim);
        lanes_i sum[GROUP][BLOCK_TILES];
        UNROLL for (uint32_t i = 0; i < n; i++)
            UNROLL for (uint32_t j = 0; j < t; j++)
                sum[i][j] = k_start(&q[i], group, type);
        for (uint32_t d = begin; d < end; d += step) {
            lanes_i words[BLOCK_TILES];
            UNROLL for (uint32_t j = 0; j < t; j++)
            {
                words[j] = lanes_load_i(k[j] + (size_t)d / step * 64);
                lanes_prefetch(ahead[j] + (size_t)d / step * 64);
            }
            UNROLL for (uint32_t u = 0; u < step / 4; u++)
            {
                struct pairs value[BLOCK_TILES];
                UNROLL for (uint32_t j = 0; j < t; j++)
                    value[j] = k_operand(packed ? nibbles(words[j], u) : words[j], type);
                UNROLL for (uint32_t i = 0; i < n; i++)
                    UNROLL for (uint32_t j = 0; j < t; j++)
                        sum[i][j] = add_k_word(sum[i][j], &q[i], d / 4 + u, value[j], type);
            }
        }
        UNROLL for (uint32_t j = 0; j < t; j++)
        {
            const uint16_t *scales = (const uint16_t *)(k[j] + code_bytes) + group * KV_TILE;
            lanes scale = lanes_load_f16(scales), minimum = lanes_zero();
            if (packed)
                minimum = lanes_load_f16(scales + groups * KV_TILE);
            if (group % 2 == 0)
                lanes_prefetch(ahead[j] + code_bytes + (packed ? 2 : 1) * group * KV_TILE * sizeof(uint16_t));
            UNROLL for (uint32_t i = 0; i < n; i++)
            {
                float *at = scores + i * ATTEND_BLOCK + j * LANES;
                lanes exact = lanes_from_i(sum[i][j]), both = lanes_mul(scale, lanes_set1(q[i].scales[group]));
                lanes score = group ? lanes_fma(exact, both, lanes_load(at)) : lanes_mul(exact, both);
                if (packed)
                    score = lanes_fma(lanes_set1(q[i].sums[group]), minimum, score);
                lanes_store(at, score);
            }
        }
    }
}

// Turns the scores of one line into the p of this block alone, and rescales m, sums and acc to the new m. Returns e^(best - m).
LANES_APART float soften_block(const struct attend_range *range, uint32_t line, float *scores, uint32_t from, uint32_t seen)
{
    const uint32_t head_dim = range->head_dim, tiles = (seen + LANES - 1) / LANES;
    lanes score[BLOCK_TILES], sum = lanes_zero(), share = lanes_set1(1.0f);
    float old = range->m[line], best = clip_scores(scores, from, seen, range->soft_cap, score), *sums = range->sums + (size_t)line * LANES;

    if (best > old) {
        lanes scale = exp_below(lanes_set1(old - best));
        float *acc = range->acc + (size_t)line * head_dim;
        range->m[line] = best;
        for (uint32_t i = 0; i < head_dim; i += LANES)
            lanes_store(acc + i, lanes_mul(lanes_load(acc + i), scale));
        lanes_store(sums, lanes_mul(lanes_load(sums), scale));
    } else {
        share = exp_below(lanes_set1(best - old));
    }
    UNROLL for (uint32_t j = 0; j < BLOCK_TILES; j++)
    {
        if (j >= tiles)
            break;
        lanes p = fill_unseen(exp_below(lanes_sub(score[j], lanes_set1(best))), j, from, seen, 0);
        sum = lanes_add(sum, p);
        lanes_store(scores + j * LANES, p);
    }
    lanes_store(sums, lanes_fma(sum, share, lanes_load(sums)));
    return lanes_first(share);
}

#define WEIGHT_MOST 32767.0f

// The weights of a line's tokens in a group. Four tokens take two words: V_IN_BYTES the low bytes and the high bytes,
// otherwise tokens (0, 2) and (1, 3) in 16 bits each.
struct weights {
    int32_t words[ATTEND_BLOCK / 4][4];
};

LANES_INLINE void store_weights(struct weights *weights, uint32_t tile, lanes_i x)
{
#if SIGNED_ONLY // -x as low + 256 * high, with low in -128..127 and high in -128..0
    lanes_i carry = lanes_set1_i(128);
    x = lanes_xor_i(lanes_add_i(lanes_sub_i(lanes_set1_i(0), x), carry), carry);
#endif
    x = V_IN_BYTES ? lanes_pack_bytes(x) : lanes_pack_pairs(x);
    lanes_store((float *)weights->words[tile * 4], lanes_as_f(x));
}

// Sums for 16 values of head_dim: low and high are products with the low and the high bytes of weights; if not V_IN_BYTES low has
// both.
struct value_sum {
    lanes_i low, high;
};

LANES_INLINE void add_v_word(struct value_sum *sum, const int32_t *weights, struct pairs v)
{
#if V_IN_BYTES
    sum->low = dot_bytes(sum->low, lanes_set1_i(weights[0]), v.even);
    sum->high = dot_bytes(sum->high, lanes_set1_i(weights[1]), v.even);
#else
    sum->low = lanes_add_pairs(sum->low, lanes_set1_i(weights[0]), v.even);
    sum->low = lanes_add_pairs(sum->low, lanes_set1_i(weights[1]), v.odd);
#endif
}

LANES_INLINE lanes value_total(const struct value_sum *sum)
{
    if (!V_IN_BYTES)
        return lanes_from_i(sum->low);
    lanes_i total = lanes_add_i(sum->low, lanes_sll_i(sum->high, 8));
    return lanes_from_i(SIGNED_ONLY ? lanes_sub_i(lanes_set1_i(0), total) : total);
}

// How many chunks of 16 values to take at once: as many as there are registers for their sums.
#if defined(__AVX512F__)
#define CODE_CHUNKS(n) 2
#elif V_IN_BYTES
#define CODE_CHUNKS(n) ((n) == 1 ? 2 : 1)
#else
#define CODE_CHUNKS(n) ((n) <= 2 ? 2 : 1)
#endif

// For each of n lines, adds the block's p·V to c chunks of 16 values in acc, starting at value `at`. unit and offset are per line.
LANES_INLINE void add_code_chunks(const struct group *g, uint32_t line, const struct weights *weights, const float *unit,
                                  const float *offset, uint32_t tiles, uint32_t at, const uint32_t n, const uint32_t c,
                                  const enum kv_type type, const uint32_t head_dim)
{
    const bool packed = v_has_minima(type);
    const size_t word_bytes = 4 * kv_v_row_bytes(head_dim, type); // of 4 tokens
    const size_t begin = kv_k_bytes(head_dim, type) +
                         (packed ? at / KV_GROUP_DIM * KV_GROUP_DIM / 2 : at) * (size_t)4;
    float *acc = g->range->acc + (size_t)line * head_dim + at;
    struct value_sum sum[GROUP][2];

    UNROLL for (uint32_t i = 0; i < n; i++)
        UNROLL for (uint32_t j = 0; j < c; j++)
            sum[i][j].low = sum[i][j].high = lanes_set1_i(0);
    for (uint32_t tile = 0; tile < tiles; tile++) {
        const unsigned char *v = g->tiles[tile] + begin, *ahead = g->ahead[tile] + begin;
        UNROLL for (uint32_t word = 0; word < KV_TILE / 4; word++)
        {
            struct pairs value[2];
            UNROLL for (uint32_t j = 0; j < c; j++)
            {
                lanes_i x = lanes_load_i(v + word * word_bytes + (packed ? 0 : j * 64));
                if (packed)
                    x = nibbles(x, (at + j * LANES) % KV_GROUP_DIM != 0);
                value[j] = V_IN_BYTES ? (struct pairs){x, x} : packed ? pairs_unsigned(x) : pairs_signed(x);
                if (!packed || j == 0)
                    lanes_prefetch(ahead + word * word_bytes + j * 64);
            }
            UNROLL for (uint32_t i = 0; i < n; i++)
                UNROLL for (uint32_t j = 0; j < c; j++)
                    add_v_word(&sum[i][j], weights[i].words[tile * 4 + word], value[j]);
        }
    }
    UNROLL for (uint32_t i = 0; i < n; i++)
        UNROLL for (uint32_t j = 0; j < c; j++)
        {
            float *to = acc + (size_t)i * head_dim + j * LANES;
            lanes was = lanes_load(to);
            if (packed)
                was = lanes_add(was, lanes_set1(offset[i]));
            lanes_store(to, lanes_fma(value_total(&sum[i][j]), lanes_set1(unit[i]), was));
        }
}

// Adds p·V of the block's tokens [from, seen) to acc of n lines, in one group of head_dim. p: [n][ATTEND_BLOCK].
LANES_INLINE void add_code_group(const struct group *g, uint32_t line, const float *p, const float *share, uint32_t from, uint32_t seen,
                                 uint32_t group, const uint32_t n, const enum kv_type type, const uint32_t head_dim)
{
    const bool packed = v_has_minima(type);
    const uint32_t groups = kv_groups(head_dim), tiles = (seen + LANES - 1) / LANES;
    const size_t scales_at = kv_k_bytes(head_dim, type) + kv_v_row_bytes(head_dim, type) * KV_TILE +
                             group * KV_TILE * sizeof(uint16_t);
    struct weights weights[GROUP];
    float unit[GROUP], offset[GROUP];
    lanes scale[BLOCK_TILES], base[GROUP];
    lanes_i most = lanes_set1_i(0);

    UNROLL for (uint32_t j = 0; j < BLOCK_TILES; j++)
        scale[j] = lanes_zero();
    UNROLL for (uint32_t j = 0; j < BLOCK_TILES; j++)
    {
        if (j >= tiles)
            break;
        scale[j] = fill_unseen(lanes_load_f16((const uint16_t *)(g->tiles[j] + scales_at)), j, from, seen, 0);
        most = lanes_max_u(most, lanes_and_i(lanes_as_i(scale[j]), lanes_set1_i(0x7fffffff)));
        if (group % 2 == 0)
            lanes_prefetch(g->ahead[j] + scales_at);
        if (packed && group % 2 == 0)
            lanes_prefetch(g->ahead[j] + scales_at + groups * KV_TILE * sizeof(uint16_t));
    }
    const float largest = f32_from_bits(lanes_max_all_u(most)); // NaN if any value is
    const lanes inverse = lanes_set1(largest > 0 ? WEIGHT_MOST / largest : 0);
    UNROLL for (uint32_t i = 0; i < n; i++)
    {
        unit[i] = share[i] * (largest / WEIGHT_MOST);
        base[i] = lanes_zero();
    }
    UNROLL for (uint32_t j = 0; j < BLOCK_TILES; j++)
    {
        if (j >= tiles)
            break;
        lanes steps = lanes_mul(scale[j], inverse), minimum = lanes_zero();
        if (packed) {
            minimum = lanes_load_f16((const uint16_t *)(g->tiles[j] + scales_at) + groups * KV_TILE);
            minimum = fill_unseen(minimum, j, from, seen, 0);
        }
        UNROLL for (uint32_t i = 0; i < n; i++)
        {
            lanes x = lanes_load(p + i * ATTEND_BLOCK + j * LANES);
            if (packed)
                base[i] = lanes_fma(x, minimum, base[i]);
            store_weights(&weights[i], j, lanes_to_i(lanes_mul(x, steps)));
        }
    }
    UNROLL for (uint32_t i = 0; i < n; i++)
        offset[i] = packed ? share[i] * lanes_sum(base[i]) : 0;

    uint32_t at = group * KV_GROUP_DIM, end = MIN(at + KV_GROUP_DIM, head_dim);
    if (CODE_CHUNKS(n) == 2 && at + 2 * LANES == end) {
        add_code_chunks(g, line, weights, unit, offset, tiles, at, n, 2, type, head_dim);
        return;
    }
    for (; at < end; at += LANES)
        add_code_chunks(g, line, weights, unit, offset, tiles, at, n, 1, type, head_dim);
}

// Computes softmax and p·V of n lines from `line` on, all of which see the block's tokens [from, seen). scores: [n][ATTEND_BLOCK]
LANES_INLINE void add_codes(const struct group *g, uint32_t line, float *scores, uint32_t from, uint32_t seen, const uint32_t n,
                            const enum kv_type type, const uint32_t head_dim)
{
    float share[GROUP];
    UNROLL for (uint32_t i = 0; i < n; i++)
        share[i] = soften_block(g->range, line + i, scores + i * ATTEND_BLOCK, from, seen);
    for (uint32_t group = 0; group < kv_groups(head_dim); group++)
        add_code_group(g, line, scores, share, from, seen, group, n, type, head_dim);
}

#endif
