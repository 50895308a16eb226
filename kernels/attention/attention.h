/* attention.h: softmax(q·K / sqrt(head_dim)) V over stored K and V, for the lines of one KV head of one sequence.
 *
 * A line is one query head of one row. Lines of one KV head read the same tiles: a tile holds 16 tokens, K as
 * [head_dim][16] (q·k runs down the lanes, no horizontal sums), then V as [16][head_dim].
 *
 * The bits of a line depend on its q, its limit and the tiles below the limit alone. The order is fixed by position:
 *
 *     positions   0 ........ 511 | 512 ....... 1023 | 1024 ...     ranges of ATTEND_RANGE: a partial (m, l, acc) each,
 *                 └64┴64┴ … ┴64┘                                    made in blocks of ATTEND_BLOCK by online softmax
 *     result      fold(fold(range 0, range 1), range 2) / l        partials are folded in order, by whichever thread
 *
 * Within a block: q·k by fused multiply-adds over head_dim; the sum of p lane by lane; p·V token after token. How many
 * lines share a loop changes nothing of this. avx2 and avx512 give the same bits; ref has its own.
 */
#ifndef FD_KERNELS_ATTENTION_ATTENTION_H
#define FD_KERNELS_ATTENTION_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/dispatch/isa.h"

#define ATTEND_TILE 16u
#define ATTEND_BLOCK 64u
#define ATTEND_RANGE 512u
#define ATTEND_RANGE_TILES (ATTEND_RANGE / ATTEND_TILE)
#define ATTEND_AHEAD_TILES (ATTEND_BLOCK / ATTEND_TILE) /* how far the kernel prefetches */
#define ATTEND_MAX_HEAD_DIM 256u
#define ATTEND_SCORES (8u * ATTEND_BLOCK) /* floats of attend_range.scores */

enum attend_type { ATTEND_F16 = 1, ATTEND_F32 = 2 };

/* Bytes of the K (or V) half of a tile; V follows K. */
static inline size_t attend_half_bytes(uint32_t head_dim, enum attend_type type)
{
    return (size_t)head_dim * ATTEND_TILE * (type == ATTEND_F16 ? 2 : 4);
}

/* One range of some lines. */
struct attend_range {
    enum attend_type type;
    uint32_t head_dim;     /* a multiple of 16, at most ATTEND_MAX_HEAD_DIM */
    uint32_t line_count;   /* at least 1 */
    uint32_t begin;        /* first position: a multiple of ATTEND_RANGE */
    const uint32_t *limit; /* [lines] one past the last position that the line attends; ascending, all above begin */
    const float *q;        /* [lines][head_dim], scaled by attend_scale_q */
    /* Tiles from begin on, as far as the largest limit (or the range's end) asks; then up to ATTEND_AHEAD_TILES
     * addresses worth prefetching, up to tile_count in all. */
    const unsigned char *const *tiles;
    uint32_t tile_count;
    float *m, *l;  /* out: [lines] largest score; sum of e^(score - m) */
    float *acc;    /* out: [lines][head_dim] sum of e^(score - m) v */
    float *sums;   /* scratch: [lines][16] */
    float *scores; /* scratch: [ATTEND_SCORES] */
};

/* A partial result of some lines. */
struct attend_partial {
    float *m, *l; /* [lines] */
    float *acc;   /* [lines][head_dim] */
};

struct attention_kernels {
    enum isa_level level;

    /* Writes one token's K and V into a tile, rounded to the nearest even; what f16 cannot hold becomes its largest
     * value, NaN stays NaN. k, v: [head_dim] f32; slot: 0 to 15. */
    void (*store)(enum attend_type type, uint32_t head_dim, const float *k, const float *v, void *tile, uint32_t slot);

    /* Scores beyond f32 count as its largest value, so large logits give no NaN. */
    void (*range)(const struct attend_range *range);

    /* Folds `next`, the range after, into `into`. */
    void (*fold)(uint32_t line_count, uint32_t head_dim, const struct attend_partial *into, const struct attend_partial *next);
};

/* The table of a level; NULL if this machine cannot run it. Any thread. */
const struct attention_kernels *attention_of_level(enum isa_level level);

/* out[i] = q[i] / sqrt(head_dim). [head_dim] f32. The same bits at every level. */
void attend_scale_q(uint32_t head_dim, const float *q, float *out);

/* out[i] = acc[i] / l. [head_dim] f32. The same bits at every level. */
void attend_finish(uint32_t head_dim, const float *acc, float l, float *out);

/* The entries of the levels, for attention.c. */
#define ATTENTION_ENTRIES(suffix)                                                                                    \
    void attend_store_##suffix(enum attend_type type, uint32_t head_dim, const float *k, const float *v, void *tile, \
                               uint32_t slot);                                                                       \
    void attend_range_##suffix(const struct attend_range *range);                                                    \
    void attend_fold_##suffix(uint32_t line_count, uint32_t head_dim, const struct attend_partial *into,             \
                              const struct attend_partial *next);
ATTENTION_ENTRIES(ref)
ATTENTION_ENTRIES(avx2)
ATTENTION_ENTRIES(avx512)

#endif
