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

// Whether words of four bytes can be multiplied and summed at once.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define HAS_DPBUSD 1
#else
#define HAS_DPBUSD 0
#endif

#if defined(__AVX512F__)
LANES_INLINE lanes_i load_words(const unsigned char *at) { return _mm512_loadu_si512(at); }
LANES_INLINE lanes_i shift_right_16(lanes_i x, const int bits) { return _mm512_srli_epi16(x, (unsigned)bits); }
LANES_INLINE lanes_i sign_extend_low(lanes_i x) { return _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8); }
LANES_INLINE lanes_i sign_extend_high(lanes_i x) { return _mm512_srai_epi16(x, 8); }
LANES_INLINE lanes_i add_pairs(lanes_i sum, lanes_i a, lanes_i b)
{
#if HAS_DPBUSD
    return _mm512_dpwssd_epi32(sum, a, b);
#else
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
    __asm__("" : "+v"(sum)); // otherwise gcc first adds products to each other, and runs out of registers
    return sum;
#endif
}
#if HAS_DPBUSD
LANES_INLINE lanes_i add_quads(lanes_i sum, lanes_i bytes, lanes_i signed_bytes)
{
    return _mm512_dpbusd_epi32(sum, bytes, signed_bytes);
}
#endif
// Shuffles the bytes within each four lanes.
LANES_INLINE lanes_i shuffle_quads(lanes_i x, __m128i pattern) { return _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(pattern)); }
#else
LANES_INLINE lanes_i load_words(const unsigned char *at)
{
    return (lanes_i){_mm256_loadu_si256((const __m256i *)at), _mm256_loadu_si256((const __m256i *)(at + 32))};
}
LANES_INLINE lanes_i shift_right_16(lanes_i x, const int bits)
{
    return (lanes_i){_mm256_srli_epi16(x.lo, bits), _mm256_srli_epi16(x.hi, bits)};
}
LANES_INLINE lanes_i sign_extend_low(lanes_i x)
{
    return (lanes_i){_mm256_srai_epi16(_mm256_slli_epi16(x.lo, 8), 8), _mm256_srai_epi16(_mm256_slli_epi16(x.hi, 8), 8)};
}
LANES_INLINE lanes_i sign_extend_high(lanes_i x) { return (lanes_i){_mm256_srai_epi16(x.lo, 8), _mm256_srai_epi16(x.hi, 8)}; }
LANES_INLINE lanes_i add_pairs(lanes_i sum, lanes_i a, lanes_i b)
{
#if HAS_DPBUSD
    return (lanes_i){_mm256_dpwssd_avx_epi32(sum.lo, a.lo, b.lo), _mm256_dpwssd_avx_epi32(sum.hi, a.hi, b.hi)};
#else
    sum.lo = _mm256_add_epi32(sum.lo, _mm256_madd_epi16(a.lo, b.lo));
    sum.hi = _mm256_add_epi32(sum.hi, _mm256_madd_epi16(a.hi, b.hi));
    __asm__("" : "+x"(sum.lo), "+x"(sum.hi)); // otherwise gcc first adds products to each other, and runs out of registers
    return sum;
#endif
}
#if HAS_DPBUSD
LANES_INLINE lanes_i add_quads(lanes_i sum, lanes_i bytes, lanes_i signed_bytes)
{
    return (lanes_i){_mm256_dpbusd_avx_epi32(sum.lo, bytes.lo, signed_bytes.lo),
                     _mm256_dpbusd_avx_epi32(sum.hi, bytes.hi, signed_bytes.hi)};
}
#endif
// Shuffles the bytes within each four lanes.
LANES_INLINE lanes_i shuffle_quads(lanes_i x, __m128i pattern)
{
    __m256i both = _mm256_broadcastsi128_si256(pattern);
    return (lanes_i){_mm256_shuffle_epi8(x.lo, both), _mm256_shuffle_epi8(x.hi, both)};
}
#endif

// 16 words of four bytes, as pairs of 16 bits: bytes 0 and 2, 1 and 3.
struct pairs {
    lanes_i even, odd;
};
LANES_INLINE struct pairs pairs_unsigned(lanes_i x)
{
    return (struct pairs){lanes_and_i(x, lanes_set1_i(0x00ff00ff)), shift_right_16(x, 8)};
}
LANES_INLINE struct pairs pairs_signed(lanes_i x) { return (struct pairs){sign_extend_low(x), sign_extend_high(x)}; }
LANES_INLINE lanes_i nibbles(lanes_i x, const bool high)
{
    return lanes_and_i(high ? shift_right_16(x, 4) : x, lanes_set1_i(0x0f0f0f0f));
}

LANES_INLINE bool has_codes(const enum attend_type type) { return type > ATTEND_BF16; }
LANES_INLINE bool v_has_minima(const enum attend_type type) { return type > ATTEND_INT8; }

// Tells whether words of K are multiplied as bytes: with VNNI, if q has 8 bits.
#if HAS_DPBUSD
#define K_IN_BYTES(type) attend_q_is_narrow(type)
#else
#define K_IN_BYTES(type) false
#endif
LANES_INLINE lanes_i add_k_word(lanes_i sum, const struct coded_q *q, uint32_t word, struct pairs k, const enum attend_type type)
{
#if HAS_DPBUSD
    if (K_IN_BYTES(type))
        return add_quads(sum, k.even, lanes_set1_i(((const int32_t *)q->bytes)[word]));
#endif
    (void)type;
    sum = add_pairs(sum, lanes_set1_i(((const int32_t *)q->pairs)[2 * word]), k.even);
    return add_pairs(sum, lanes_set1_i(((const int32_t *)q->pairs)[2 * word + 1]), k.odd);
}

// Computes the scores of n lines in t tiles from `tile` on.
LANES_INLINE void dot_codes(const struct group *g, uint32_t tile, const uint32_t n, const uint32_t t, const enum attend_type type,
                            const uint32_t head_dim)
{
    const bool packed = type == ATTEND_INT4X;
    const uint32_t groups = attend_groups(head_dim), step = packed ? 8 : 4; // step: values in a cache line of K
    const size_t code_bytes = attend_k_code_bytes(head_dim, type);
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
        uint32_t begin = group * ATTEND_GROUP_DIM, end = MIN(begin + ATTEND_GROUP_DIM, head_dim);
        lanes_i sum[GROUP][BLOCK_TILES];
        UNROLL for (uint32_t i = 0; i < n; i++)
            UNROLL for (uint32_t j = 0; j < t; j++)
                sum[i][j] = lanes_set1_i(packed ? 0 : q[i].starts[group]);
        for (uint32_t d = begin; d < end; d += step) {
            lanes_i words[BLOCK_TILES];
            UNROLL for (uint32_t j = 0; j < t; j++)
            {
                words[j] = load_words(k[j] + (size_t)d / step * 64);
                lanes_prefetch(ahead[j] + (size_t)d / step * 64);
            }
            UNROLL for (uint32_t u = 0; u < step / 4; u++)
            {
                struct pairs value[BLOCK_TILES];
                UNROLL for (uint32_t j = 0; j < t; j++)
                {
                    lanes_i x = packed ? nibbles(words[j], u) : words[j];
                    value[j] = K_IN_BYTES(type) ? (struct pairs){x, x} : pairs_unsigned(x);
                }
                UNROLL for (uint32_t i = 0; i < n; i++)
                    UNROLL for (uint32_t j = 0; j < t; j++)
                        sum[i][j] = add_k_word(sum[i][j], &q[i], d / 4 + u, value[j], type);
            }
        }
        UNROLL for (uint32_t j = 0; j < t; j++)
        {
            const uint16_t *scales = (const uint16_t *)(k[j] + code_bytes) + group * ATTEND_TILE;
            lanes scale = lanes_load_f16(scales), minimum = lanes_zero();
            if (packed)
                minimum = lanes_load_f16(scales + groups * ATTEND_TILE);
            if (group % 2 == 0)
                lanes_prefetch(ahead[j] + code_bytes + (packed ? 2 : 1) * group * ATTEND_TILE * sizeof(uint16_t));
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

LANES_INLINE float lanes_first(lanes x) { return _mm256_cvtss_f32(lanes_lo(x)); }

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

// The weights of a line's tokens in a group. Four tokens take two words: with 512-bit VNNI the low bytes and the high bytes, otherwise
// tokens (0, 2) and (1, 3) in 16 bits each.
struct weights {
    int32_t words[ATTEND_BLOCK / 4][4];
};

LANES_INLINE void store_weights(struct weights *weights, uint32_t tile, lanes_i x)
{
#if defined(__AVX512VNNI__)
    const __m128i pattern = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, -1, -1, -1, -1, -1, -1, -1, -1);
#else
    const __m128i pattern = _mm_setr_epi8(0, 1, 8, 9, 4, 5, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1);
#endif
    lanes_store((float *)weights->words[tile * 4], lanes_as_f(shuffle_quads(x, pattern)));
}

// Sums for 16 values of head_dim: low and high are products with the low and the high bytes of weights; without
// 512-bit VNNI, which has registers for two sums, low has both.
struct value_sum {
    lanes_i low, high;
};

LANES_INLINE void add_v_word(struct value_sum *sum, const int32_t *weights, struct pairs v)
{
#if defined(__AVX512VNNI__)
    sum->low = add_quads(sum->low, lanes_set1_i(weights[0]), v.even);
    sum->high = add_quads(sum->high, lanes_set1_i(weights[1]), v.even);
#else
    sum->low = add_pairs(sum->low, lanes_set1_i(weights[0]), v.even);
    sum->low = add_pairs(sum->low, lanes_set1_i(weights[1]), v.odd);
#endif
}

LANES_INLINE lanes value_total(const struct value_sum *sum)
{
#if defined(__AVX512VNNI__)
    return lanes_from_i(lanes_add_i(sum->low, lanes_sll_i(sum->high, 8)));
#else
    return lanes_from_i(sum->low);
#endif
}

// How many chunks of 16 values to take at once: as many as there are registers for their sums.
#if defined(__AVX512F__)
#define CODE_CHUNKS(n) 2
#else
#define CODE_CHUNKS(n) ((n) <= 2 ? 2 : 1)
#endif

// For each of n lines, adds the block's p·V to c chunks of 16 values in acc, starting at value `at`. unit and offset are per line.
LANES_INLINE void add_code_chunks(const struct group *g, uint32_t line, const struct weights *weights, const float *unit,
                                  const float *offset, uint32_t tiles, uint32_t at, const uint32_t n, const uint32_t c,
                                  const enum attend_type type, const uint32_t head_dim)
{
    const bool packed = v_has_minima(type);
    const size_t word_bytes = 4 * attend_v_row_bytes(head_dim, type); // of 4 tokens
    const size_t begin = attend_k_bytes(head_dim, type) +
                         (packed ? at / ATTEND_GROUP_DIM * ATTEND_GROUP_DIM / 2 : at) * (size_t)4;
    float *acc = g->range->acc + (size_t)line * head_dim + at;
    struct value_sum sum[GROUP][2];

    UNROLL for (uint32_t i = 0; i < n; i++)
        UNROLL for (uint32_t j = 0; j < c; j++)
            sum[i][j].low = sum[i][j].high = lanes_set1_i(0);
    for (uint32_t tile = 0; tile < tiles; tile++) {
        const unsigned char *v = g->tiles[tile] + begin, *ahead = g->ahead[tile] + begin;
        UNROLL for (uint32_t word = 0; word < ATTEND_TILE / 4; word++)
        {
            struct pairs value[2];
            UNROLL for (uint32_t j = 0; j < c; j++)
            {
                lanes_i x = load_words(v + word * word_bytes + (packed ? 0 : j * 64));
                if (packed)
                    x = nibbles(x, (at + j * LANES) % ATTEND_GROUP_DIM != 0);
#if defined(__AVX512VNNI__)
                value[j] = (struct pairs){x, x};
#else
                value[j] = packed ? pairs_unsigned(x) : pairs_signed(x);
#endif
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
                                 uint32_t group, const uint32_t n, const enum attend_type type, const uint32_t head_dim)
{
    const bool packed = v_has_minima(type);
    const uint32_t groups = attend_groups(head_dim), tiles = (seen + LANES - 1) / LANES;
    const size_t scales_at = attend_k_bytes(head_dim, type) + attend_v_row_bytes(head_dim, type) * ATTEND_TILE +
                             group * ATTEND_TILE * sizeof(uint16_t);
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
            lanes_prefetch(g->ahead[j] + scales_at + groups * ATTEND_TILE * sizeof(uint16_t));
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
            minimum = lanes_load_f16((const uint16_t *)(g->tiles[j] + scales_at) + groups * ATTEND_TILE);
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

    uint32_t at = group * ATTEND_GROUP_DIM, end = MIN(at + ATTEND_GROUP_DIM, head_dim);
    if (CODE_CHUNKS(n) == 2 && at + 2 * LANES == end) {
        add_code_chunks(g, line, weights, unit, offset, tiles, at, n, 2, type, head_dim);
        return;
    }
    for (; at < end; at += LANES)
        add_code_chunks(g, line, weights, unit, offset, tiles, at, n, 1, type, head_dim);
}

// Computes softmax and p·V of n lines from `line` on, all of which see the block's tokens [from, seen). scores: [n][ATTEND_BLOCK]
LANES_INLINE void add_codes(const struct group *g, uint32_t line, float *scores, uint32_t from, uint32_t seen, const uint32_t n,
                            const enum attend_type type, const uint32_t head_dim)
{
    float share[GROUP];
    UNROLL for (uint32_t i = 0; i < n; i++)
        share[i] = soften_block(g->range, line + i, scores + i * ATTEND_BLOCK, from, seen);
    for (uint32_t group = 0; group < attend_groups(head_dim); group++)
        add_code_group(g, line, scores, share, from, seen, group, n, type, head_dim);
}

#endif
