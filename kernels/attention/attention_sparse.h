// attention_sparse.h: chooses the tiles that a sparse row attends to, by the bounds of Quest (arXiv 2406.10774).
//
// The bounds of a full tile are the smallest and the largest K of its 16 tokens in each dimension. No token of the tile has a larger
// q·k than
//
//     bound(q) = sum over dimensions of max(q * low, q * high) = sum of min(q, 0) * low + max(q, 0) * high
//
// so tiles with a small bound can be left out without being read. The query heads of a KV head share tiles, so they choose
// together, by the sum of their bounds. This is the bound for the sums of their min(q, 0) and max(q, 0), so it takes one product
// per tile, however many heads there are.
//
//     tiles of a row   0 1 2 3 | 4 5 6 . . . . . . . . . . . . . | n-4 n-3 n-2 n-1        (the last 64 tokens may touch a fifth)
//                      always  |  the best `keep`, ties: lower   |  always, n-1 up to the row's own position
//
// A row that would leave out no candidate is a dense row. That is so up to position 1,166.
//
// The range kernel gets the chosen tiles one after another, as if they were the whole context. It can do so unchanged, because
// positions matter to it only as the limit.
//
// Example: f16, head_dim 64, position 16,383: 1024 tiles of 4 KiB, 1016 candidates of which 102 are kept, 110 tiles read in all.
// With 256 bytes of bounds for each candidate that is 17 % of the dense row's bytes.
//
// This is plain C with the same bits at every level; the product and the choice (`scores` and `choose` in struct attention_kernels) have
// variants. Any thread.
#ifndef FD_KERNELS_ATTENTION_ATTENTION_SPARSE_H
#define FD_KERNELS_ATTENTION_ATTENTION_SPARSE_H

#include "kernels/attention/attention.h"

#define ATTEND_EDGE 64u       // tokens at both ends that are always attended to
#define ATTEND_KEEP_LEAST 64u // candidates that are kept, whatever the percentage: 1,024 tokens

// The tiles that a row at some position attends to.
struct attend_choice {
    uint32_t tiles;       // number of tiles up to its position
    uint32_t first, last; // candidates: tiles [first, last), all of them full; none: first == last
    uint32_t keep;        // how many of the candidates it attends to
};

// Returns the choice for a row. percent: how many of the candidates to keep, 1 to 100, rounded up; but ATTEND_KEEP_LEAST,
// because a tenth of a short context is too little: on the default model at 4,096 tokens it cost a mean KL of 0.16
// (docs/benchmarks.md has what is lost with them).
struct attend_choice attend_choice_of(uint32_t position, uint32_t percent);

// Computes the bounds of a full tile from its stored K, rounded outward. A NaN widens them to all of f16. out: [2][head_dim] f16: low,
// then high.
void attend_bounds(enum kv_type type, uint32_t head_dim, const void *tile, uint16_t *out);

// Adds up the heads' min(q, 0) and max(q, 0), in the order of the heads. q: [heads][head_dim] f32; out: [2][head_dim] f32.
void attend_bound_q(uint32_t heads, uint32_t head_dim, const float *q, float *out);

#endif
