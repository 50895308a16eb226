/* attention_codes_lanes.h: the part of attention_lanes.h that reads codes of 8 and 4 bits with their scales and minima.
 *
 *     score   = ((f0 * s0 + f1 * s1) + ...) * scale of q     f: exact sum of q code * k code of a group, in i32, then f32
 *               with minima, each group adds (sum of q codes) * minimum after f * s
 *     value   = code, its weight p * s                       so a group's scale costs one product a token and line
 *     minima  : sum over the block's tokens of p * minimum, lane by lane, then one sum, added to the group's 32 values
 */

/* sum + 16 tokens' products of two neighbouring values of head_dim: exact. */
#if defined(__AVX512F__)
LANES_INLINE lanes_i add_products(lanes_i sum, lanes_i a, lanes_i b)
{
#if defined(__AVX512VNNI__)
    return _mm512_dpwssd_epi32(sum, a, b);
#else
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
    __asm__("" : "+v"(sum)); /* or gcc adds products to each other first, and runs out of registers */
    return sum;
#endif
}
LANES_INLINE lanes_i load_pairs(const unsigned char *k) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)k)); }
LANES_INLINE lanes_i load_words(const unsigned char *k) { return _mm512_loadu_si512(k); }
LANES_INLINE lanes_i nibbles(lanes_i x, const int which)
{
    return _mm512_and_si512(_mm512_srli_epi32(x, 4 * (unsigned)which), _mm512_set1_epi32(0x000f000f));
}
/* 16 low or high nibbles of 16 bytes as f32: a permutation looks at the low 4 bits of a lane alone. */
LANES_INLINE lanes load_nibbles(const unsigned char *v, const bool high)
{
    const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)v));
    return _mm512_permutexvar_ps(high ? _mm512_srli_epi32(bytes, 4) : bytes, table);
}
#else
LANES_INLINE lanes_i add_products(lanes_i sum, lanes_i a, lanes_i b)
{
    sum.lo = _mm256_add_epi32(sum.lo, _mm256_madd_epi16(a.lo, b.lo));
    sum.hi = _mm256_add_epi32(sum.hi, _mm256_madd_epi16(a.hi, b.hi));
    __asm__("" : "+x"(sum.lo), "+x"(sum.hi)); /* or gcc adds products to each other first, and runs out of registers */
    return sum;
}
LANES_INLINE lanes_i load_pairs(const unsigned char *k)
{
    return (lanes_i){_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)k)),
                     _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(k + 16)))};
}
LANES_INLINE lanes_i load_words(const unsigned char *k)
{
    return (lanes_i){_mm256_loadu_si256((const __m256i *)k), _mm256_loadu_si256((const __m256i *)(k + 32))};
}
LANES_INLINE lanes_i nibbles(lanes_i x, const int which)
{
    const __m256i low = _mm256_set1_epi32(0x000f000f);
    return (lanes_i){_mm256_and_si256(_mm256_srli_epi32(x.lo, 4 * which), low), _mm256_and_si256(_mm256_srli_epi32(x.hi, 4 * which), low)};
}
LANES_INLINE lanes load_nibbles(const unsigned char *v, const bool high)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)v);
    bytes = _mm_and_si128(high ? _mm_srli_epi16(bytes, 4) : bytes, _mm_set1_epi8(15));
    return (lanes){_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
                   _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
}
#endif

LANES_INLINE bool has_codes(const enum attend_type type) { return type > ATTEND_BF16; }
LANES_INLINE bool v_has_minima(const enum attend_type type) { return type > ATTEND_INT8; }

/* Scores of n lines and t tiles from `tile` on. */
LANES_INLINE void dot_codes(const struct group *g, uint32_t tile, const uint32_t n, const uint32_t t, const enum attend_type type,
                            const uint32_t head_dim)
{
    const uint32_t groups = attend_groups(head_dim), step = type == ATTEND_INT4X ? 8 : 4; /* a cache line of K */
    const size_t code_bytes = attend_k_code_bytes(head_dim, type);
    const float *q = g->range->q + (size_t)g->line * head_dim;
    const unsigned char *k[BLOCK_TILES], *ahead[BLOCK_TILES];
    float *scores = g->range->scores + tile * LANES;

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
                sum[i][j] = lanes_set1_i(0);
        for (uint32_t d = begin; d < end; d += step) {
            lanes_i words[BLOCK_TILES];
            UNROLL for (uint32_t j = 0; j < t; j++)
            {
                if (type == ATTEND_INT4X)
                    words[j] = load_words(k[j] + (size_t)d / 8 * 64);
                prefetch(ahead[j] + (size_t)d / step * 64);
            }
            UNROLL for (uint32_t u = 0; u < step / 2; u++)
            {
                lanes_i value[BLOCK_TILES];
                UNROLL for (uint32_t j = 0; j < t; j++)
                    value[j] = type == ATTEND_INT4X ? nibbles(words[j], (int)u) : load_pairs(k[j] + ((size_t)d / 2 + u) * 32);
                UNROLL for (uint32_t i = 0; i < n; i++)
                {
                    lanes_i x = lanes_set1_i(((const int32_t *)(q + (size_t)i * head_dim))[d / 2 + u]);
                    UNROLL for (uint32_t j = 0; j < t; j++)
                        sum[i][j] = add_products(sum[i][j], x, value[j]);
                }
            }
        }
        UNROLL for (uint32_t j = 0; j < t; j++)
        {
            const uint16_t *scales = (const uint16_t *)(k[j] + code_bytes) + group * ATTEND_TILE;
            lanes scale = lanes_load_f16(scales), minimum;
            if (type == ATTEND_INT4X)
                minimum = lanes_load_f16(scales + groups * ATTEND_TILE);
            if (group % 2 == 0)
                prefetch(ahead[j] + code_bytes + (type == ATTEND_INT4X ? 2 : 1) * group * ATTEND_TILE * sizeof(uint16_t));
            UNROLL for (uint32_t i = 0; i < n; i++)
            {
                const float *tail = q + (size_t)i * head_dim + head_dim / 2;
                float *at = scores + i * ATTEND_BLOCK + j * LANES;
                lanes exact = lanes_from_i(sum[i][j]);
                lanes score = group ? lanes_fma(exact, scale, lanes_load(at)) : lanes_mul(exact, scale);
                if (type == ATTEND_INT4X)
                    score = lanes_fma(lanes_set1(tail[1 + group]), minimum, score);
                if (group + 1 == groups)
                    score = lanes_mul(score, lanes_set1(tail[0]));
                lanes_store(at, score);
            }
        }
    }
}

/* acc of a line gains what minima contribute. p: [ATTEND_BLOCK], 0 from `seen` on. */
LANES_INLINE void add_minima(const struct group *g, uint32_t line, const float *p, uint32_t seen, const enum attend_type type,
                             const uint32_t head_dim)
{
    const uint32_t groups = attend_groups(head_dim), tiles = (seen + LANES - 1) / LANES;
    const size_t at = attend_k_bytes(head_dim, type) + attend_v_row_bytes(head_dim, type) * ATTEND_TILE;
    float *acc = g->range->acc + (size_t)line * head_dim;

    for (uint32_t group = 0; group < groups; group++) {
        lanes sum = lanes_zero();
        for (uint32_t j = 0; j < tiles; j++) {
            lanes minimum = lanes_load_f16((const uint16_t *)(g->tiles[j] + at) + (groups + group) * ATTEND_TILE);
            if (seen < (j + 1) * LANES)
                minimum = lanes_fill_tail(minimum, seen - j * LANES, 0);
            sum = lanes_fma(lanes_load(p + j * LANES), minimum, sum);
        }
        lanes all = lanes_set1(lanes_sum(sum));
        for (uint32_t i = group * ATTEND_GROUP_DIM; i < MIN((group + 1) * ATTEND_GROUP_DIM, head_dim); i += LANES)
            lanes_store(acc + i, lanes_add(lanes_load(acc + i), all));
    }
}

/* weights[i][token] = p * scale of `group` for tiles [begin, end) of the block. */
LANES_INLINE void weigh(const struct group *g, const float *p, uint32_t begin, uint32_t end, uint32_t group, const uint32_t n,
                        const enum attend_type type, const uint32_t head_dim, float (*weights)[ATTEND_BLOCK])
{
    const size_t at = attend_k_bytes(head_dim, type) + attend_v_row_bytes(head_dim, type) * ATTEND_TILE;

    for (uint32_t j = begin / ATTEND_TILE; j * ATTEND_TILE < end; j++) {
        lanes scale = lanes_load_f16((const uint16_t *)(g->tiles[j] + at) + group * ATTEND_TILE);
        UNROLL for (uint32_t i = 0; i < n; i++)
            lanes_store(weights[i] + j * LANES, lanes_mul(lanes_load(p + i * ATTEND_BLOCK + j * LANES), scale));
    }
}
