// kv_choose.h: the tiles that the sparse rows of a planned mini-batch attend to (attention_sparse.h), for kv_attend.c. Private to
// common/kv.
//
// The thread that attends to a row for a KV head chooses its tiles. If a row is so large a part of the step that it is split, all threads
// choose together, before they attend:
//
//     score: split rows × KV heads × shares of KV_SHARE_TILES candidates, and whoever scores the last share chooses ─ barrier
//
// Worked numbers: position 16,383, 2 KV heads: 1016 candidates are 4 shares for each head, so 8 for all threads.
#ifndef FD_KV_KV_CHOOSE_H
#define FD_KV_KV_CHOOSE_H

#include "common/kv/kv_batch_state.h"

#define KV_SHARE_TILES 256u

// A thread's scratch for the choice of one row and KV head.
struct kv_choosing {
    float *bound_q;   // [2][head_dim]
    float *scores;    // [candidates] of q·k
    uint32_t *chosen; // tiles, ascending
};

// Prepares a layer; call it before the threads begin.
void kv_choose_begin(const struct kv_batch *batch);

// Returns how many shares all split sparse rows have together. Some of them may be empty.
uint32_t kv_choose_shares(const struct kv_batch *batch);

// Scores one of them, and chooses if it is the last one of its row and KV head. Any thread; a barrier must come before
// kv_choose_chosen().
void kv_choose_share(const struct kv_batch *batch, uint32_t share, const struct kv_choosing *scratch);

// Chooses the tiles of a row that is not split, into scratch->chosen.
void kv_choose_alone(const struct kv_batch *batch, const struct block *block, uint32_t kv_head, const struct kv_choosing *scratch);

// Returns the tiles that were chosen for a row that is split.
const uint32_t *kv_choose_chosen(const struct kv_batch *batch, const struct block *block, uint32_t kv_head);

#endif
