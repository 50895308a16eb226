// attention.h: softmax(q·K / sqrt(head_dim)) V over stored K and V, for the lines of one KV head of one sequence.
//
// A line is one query head of one row. All lines of a KV head read the same tiles. A tile holds 16 tokens in contiguous memory: first
// K, laid out so that each SIMD lane computes q·k of one token, then V row by row:
//
//     f16, bf16, f32   K [head_dim][16]                                      V [16][head_dim]
//     int8             K [head_dim / 4][16][4] codes + 128, [groups][16] scales
//                      V [4][head_dim][4] codes, [groups][16] scales
//     int4             K as int8
//                      V [4][groups][16][4] bytes, [groups][16] scales, [groups][16] minima
//     int4x            K [head_dim / 8][16][4] bytes, [groups][16] scales, [groups][16] minima
//                      V as int4
//
// Codes are stored in words of four, the unit of a dot product of bytes: in K four values of a token, in V one value of four tokens.
// A group is 32 values of one token along head_dim (the last one may have 16), so the stored form of a token does not depend on
// its neighbours. Scales and minima are f16. A value is code * scale with codes -127 to 127, or code * scale + minimum with
// codes 0 to 15; scales are rounded up and minima down, so that no value is out of range. 4-bit V: byte i of a group is its values
// i (low nibble) and i + 16. 4-bit K: of 8 values, byte i is values i (low nibble) and i + 4.
//
// The bits of a line's result depend only on its q, its limits and the tiles between them. Positions fix the order of operations:
//
//     positions   0 ........ 511 | 512 ....... 1023 | 1024 ...     ranges of ATTEND_RANGE: a partial (m, l, acc) each,
//                 └64┴64┴ … ┴64┘                                    made in blocks of ATTEND_BLOCK by online softmax
//     span        fold(fold(range 0, range 1), range 2) …          of ATTEND_SPAN: its ranges folded in order, by whichever thread
//     result      fold(fold(span 0, span 1), span 2) … / l         spans folded in order
//
// So what lies at several places is folded to the same bits: a place that holds a span from its start gives one partial for what it
// holds of it, and single ranges otherwise.
//
// Within a block: q·k by fused multiply-adds over head_dim; the sum of p lane by lane; p·V token after token. This does not depend
// on how many lines share a loop. avx2 and avx512 give the same bits; ref has its own.
// If K and V are codes, q is rounded to codes too (see attention_codes.h), and the weights p * scale of V are rounded to 15 bits in
// each group and block. Both products are then sums of integers, exact in any order.
#ifndef FD_KERNELS_ATTENTION_ATTENTION_H
#define FD_KERNELS_ATTENTION_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/simd/isa.h"

#define ATTEND_TILE 16u
#define ATTEND_BLOCK 64u
#define ATTEND_RANGE 512u
#define ATTEND_RANGE_TILES (ATTEND_RANGE / ATTEND_TILE)
#define ATTEND_SPAN 4096u
#define ATTEND_SPAN_RANGES (ATTEND_SPAN / ATTEND_RANGE)
#define ATTEND_AHEAD_TILES (2u * ATTEND_BLOCK / ATTEND_TILE) // how far ahead the kernel prefetches
#define ATTEND_AHEAD_BOUNDS 16u                              // the same, for the bounds of tiles
#define ATTEND_MAX_HEAD_DIM 256u
#define ATTEND_SCORES (8u * ATTEND_BLOCK) // number of floats in attend_range.scores

enum attend_type {
    ATTEND_F16 = 1,
    ATTEND_F32 = 2,
    ATTEND_BF16 = 3,
    ATTEND_INT8 = 4,
    ATTEND_INT4 = 5,  // K int8, V 4 bits
    ATTEND_INT4X = 6, // both 4 bits
};
#define ATTEND_GROUP_DIM 32u

static inline uint32_t attend_groups(uint32_t head_dim) { return (head_dim + ATTEND_GROUP_DIM - 1) / ATTEND_GROUP_DIM; }

// Return the bytes of K in a tile: its elements or codes alone, or (attend_k_bytes) with scales and minima. V begins where K ends.
static inline size_t attend_k_code_bytes(uint32_t head_dim, enum attend_type type)
{
    size_t values = (size_t)head_dim * ATTEND_TILE;
    return type == ATTEND_F32 ? 4 * values : type <= ATTEND_BF16 ? 2 * values : type == ATTEND_INT4X ? values / 2 : values;
}

static inline size_t attend_k_bytes(uint32_t head_dim, enum attend_type type)
{
    size_t scales = type <= ATTEND_BF16 ? 0 : type == ATTEND_INT4X ? 2 : 1;
    return attend_k_code_bytes(head_dim, type) + scales * attend_groups(head_dim) * ATTEND_TILE * sizeof(uint16_t);
}

// Returns the bytes of one token's V: its elements or codes.
static inline size_t attend_v_row_bytes(uint32_t head_dim, enum attend_type type)
{
    return type == ATTEND_F32    ? 4 * (size_t)head_dim
           : type <= ATTEND_BF16 ? 2 * (size_t)head_dim
           : type == ATTEND_INT8 ? head_dim
                                 : attend_groups(head_dim) * (size_t)(ATTEND_GROUP_DIM / 2);
}

// Returns the bytes of a tile, a whole number of cache lines.
static inline size_t attend_tile_bytes(uint32_t head_dim, enum attend_type type)
{
    size_t scales = type <= ATTEND_BF16 ? 0 : type == ATTEND_INT8 ? 1 : 2;
    size_t bytes = attend_k_bytes(head_dim, type) + attend_v_row_bytes(head_dim, type) * ATTEND_TILE +
                   scales * attend_groups(head_dim) * ATTEND_TILE * sizeof(uint16_t);
    return (bytes + 63) / 64 * 64;
}

// One range of some lines.
struct attend_range {
    enum attend_type type;
    uint32_t head_dim;     // a multiple of 16, at most ATTEND_MAX_HEAD_DIM
    uint32_t line_count;   // at least 1
    uint32_t begin;        // first position: a multiple of ATTEND_RANGE
    const uint32_t *limit; // [lines] one past the last position that the line attends; ascending, all above begin
    const uint32_t *lower; // [lines] the first one: ascending, below the limit and below begin + ATTEND_RANGE; NULL: 0 for all.
                           // Of a block with nothing that a line attends nothing is read; else its tiles must be readable
    float soft_cap;        // a score s becomes cap * tanh(s / cap); 0: it stays
    const float *q;        // [lines][head_dim] as load_q wrote it
    // [tile_count] the tiles from begin up to the largest limit or the range's end, and after them up to ATTEND_AHEAD_TILES
    // addresses to prefetch.
    const unsigned char *const *tiles;
    uint32_t tile_count;
    float *m, *l;  // out: [lines] largest score; sum of e^(score - m)
    float *acc;    // out: [lines][head_dim] sum of e^(score - m) v
    float *sums;   // scratch: [lines][16]
    float *scores; // scratch: [ATTEND_SCORES]
};

// The product of some tiles' bounds and a row's q (attention_sparse.h).
struct attend_scores {
    uint32_t head_dim, count; // count: number of tiles, at least 1
    const float *q;           // [2][head_dim] as attend_bound_q wrote it
    const uint16_t *const
        *bounds; // [bounds_count] -> [2][head_dim] f16; behind `count` up to ATTEND_AHEAD_BOUNDS addresses to prefetch
    uint32_t bounds_count;
    float *scores; // out: [count]
};

// A partial result of some lines.
struct attend_partial {
    float *m, *l; // [lines]
    float *acc;   // [lines][head_dim]
};

struct attention_kernels {
    enum isa_level level;

    // Writes one token's K and V into a tile, rounded to the nearest even. A value too large for f16 or bf16 becomes the largest
    // finite one; types with codes have the limit of f16. NaN stays NaN; in a type with codes it makes its whole group NaN. The
    // bits are the same at every level. k, v: [head_dim] f32; slot: 0 to 15.
    void (*store)(enum attend_type type, uint32_t head_dim, const float *k, const float *v, void *tile, uint32_t slot);

    // Writes q / sqrt(head_dim) of one line in the form that `range` of the same level reads. q: [head_dim] f32; out: as large as
    // q.
    void (*load_q)(enum attend_type type, uint32_t head_dim, const float *q, float *out);

    // Attends one range. A score too large for f32 is replaced by the largest f32, so that it does not lead to NaN.
    void (*range)(const struct attend_range *range);

    // Folds `next`, the partial result of the range or span that follows, into `into`.
    void (*fold)(uint32_t line_count, uint32_t head_dim, const struct attend_partial *into, const struct attend_partial *next);

    // Computes the bound of q·k for each tile: the sum of q * bounds.
    void (*scores)(const struct attend_scores *job);

    // Writes the `keep` (at most `count`) tiles with the largest scores in ascending order, as `first` and the index of the score. Of
    // equal scores the lower tile is taken; NaN counts as larger than all. scores: [count] f32, overwritten; out: [keep]. The same
    // choice at every level.
    void (*choose)(float *scores, uint32_t count, uint32_t keep, uint32_t first, uint32_t *out);
};

// Returns the table of a level, or NULL if this machine cannot run it. Any thread.
const struct attention_kernels *attention_of_level(enum isa_level level);

// Computes out[i] = q[i] / sqrt(head_dim). Both are [head_dim] f32. The bits are the same at every level.
void attend_scale_q(uint32_t head_dim, const float *q, float *out);

// Copies the first `count` tokens (1 to 16) of a tile into another tile without touching its other tokens.
void attend_copy_tokens(enum attend_type type, uint32_t head_dim, void *to, const void *from, uint32_t count);

// Computes out[i] = acc[i] / l. Both are [head_dim] f32. The bits are the same at every level.
void attend_finish(uint32_t head_dim, const float *acc, float l, float *out);

// Declares the entries of each level, for attention.c.
#define ATTENTION_ENTRIES(suffix)                                                                                    \
    void attend_store_##suffix(enum attend_type type, uint32_t head_dim, const float *k, const float *v, void *tile, \
                               uint32_t slot);                                                                       \
    void attend_load_q_##suffix(enum attend_type type, uint32_t head_dim, const float *q, float *out);               \
    void attend_range_##suffix(const struct attend_range *range);                                                    \
    void attend_fold_##suffix(uint32_t line_count, uint32_t head_dim, const struct attend_partial *into,             \
                              const struct attend_partial *next);                                                    \
    void attend_scores_##suffix(const struct attend_scores *job);                                                    \
    void attend_choose_##suffix(float *scores, uint32_t count, uint32_t keep, uint32_t first, uint32_t *out);
ATTENTION_ENTRIES(ref)
ATTENTION_ENTRIES(avx2)
ATTENTION_ENTRIES(avx512)
ATTENTION_ENTRIES(neon)
void attend_range_avxvnni(const struct attend_range *range);
void attend_range_vnni(const struct attend_range *range);
void attend_range_dotprod(const struct attend_range *range);
void attend_range_i8mm(const struct attend_range *range);

#endif
