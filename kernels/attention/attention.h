// attention.h: softmax(q·K / sqrt(head_dim)) V over stored K and V, for the lines of one KV head of one sequence.
//
// A line is one query head of one row. All lines of a KV head read the same tiles (common/kv/kv_type.h).
//
// The bits of a line's result depend only on its q, its limits and the tiles between them. Positions fix the order of operations:
//
//     positions   0 ........ 511 | 512 ....... 1023 | 1024 ...     ranges of KV_RANGE: a partial (m, l, acc) each,
//                 └64┴64┴ … ┴64┘                                    made in blocks of ATTEND_BLOCK by online softmax
//     span        fold(fold(range 0, range 1), range 2) …          of KV_SPAN: its ranges folded in order, by whichever thread
//     result      fold(fold(span 0, span 1), span 2) … / l         spans folded in order
//
// Thus what lies at several places is folded to the same bits: a place that holds a span from its start gives one partial for what it
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

#include "common/kv/kv_shape.h"
#include "common/kv/kv_type.h"
#include "kernels/simd/isa.h"

#define ATTEND_BLOCK 64u
#define KV_RANGE_TILES (KV_RANGE / KV_TILE)
#define ATTEND_AHEAD_TILES (2u * ATTEND_BLOCK / KV_TILE) // how far ahead the kernel prefetches
#define ATTEND_AHEAD_BOUNDS 16u                          // the same, for the bounds of tiles
#define ATTEND_SCORES (8u * ATTEND_BLOCK)                // number of floats in attend_range.scores

// One range of some lines.
struct attend_range {
    enum kv_type type;
    uint32_t head_dim;     // a multiple of 16, at most KV_MAX_HEAD_DIM
    uint32_t line_count;   // at least 1
    uint32_t begin;        // first position: a multiple of KV_RANGE
    const uint32_t *limit; // [lines] one past the last position that the line attends; ascending, all above begin
    const uint32_t *lower; // [lines] the first one: ascending, below the limit and below begin + KV_RANGE; NULL: 0 for all.
                           // A block with nothing that a line attends is not read; else its tiles must be readable
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
    void (*store)(enum kv_type type, uint32_t head_dim, const float *k, const float *v, void *tile, uint32_t slot);

    // Writes q / sqrt(head_dim) of one line in the form that `range` of the same level reads. q: [head_dim] f32; out: as large as
    // q.
    void (*load_q)(enum kv_type type, uint32_t head_dim, const float *q, float *out);

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
void attend_copy_tokens(enum kv_type type, uint32_t head_dim, void *to, const void *from, uint32_t count);

// Computes out[i] = acc[i] / l. Both are [head_dim] f32. The bits are the same at every level.
void attend_finish(uint32_t head_dim, const float *acc, float l, float *out);

// Declares the entries of each level, for attention.c.
#define ATTENTION_ENTRIES(suffix)                                                                                                \
    void attend_store_##suffix(enum kv_type type, uint32_t head_dim, const float *k, const float *v, void *tile, uint32_t slot); \
    void attend_load_q_##suffix(enum kv_type type, uint32_t head_dim, const float *q, float *out);                               \
    void attend_range_##suffix(const struct attend_range *range);                                                                \
    void attend_fold_##suffix(uint32_t line_count, uint32_t head_dim, const struct attend_partial *into,                         \
                              const struct attend_partial *next);                                                                \
    void attend_scores_##suffix(const struct attend_scores *job);                                                                \
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
