// kv_batch_state.h: a planned mini-batch, which kv_batch.c makes and kv_attend.c attends to. Private to common/kv.
//
// A block is up to block_rows rows of one sequence that follow each other; its lines (rows times the query heads of one
// KV head) share tiles. A unit is a block's whole context or, where a block is too large a part of the step for that,
// one range of it. Threads claim (unit, KV head) pairs:
//
//     store: pieces ─ barrier ─ attend: units × KV heads ─ barrier (if a block was split) ─ fold the split ones
//
// Few dense rows need no barrier (kv_batch_join): the thread that claims a unit first stores what the unit's rows write to the tiles
// that it reads, and whoever attends to the last range of a split block folds them:
//
//     store and attend: units × KV heads, and fold
//
// A piece is what a step writes to one tile, so that whoever stores the tile's last token has all 16 and writes its bounds.
// A sparse row (attention_sparse.h) is a block of its own, because it has tiles of its own: the thread that attends to it for a KV head
// chooses them first, or all threads together if it is split (kv_choose.h).
//
// Of an extent all positions, ranges and tiles are counted from its start, except where ranges are assigned to spans: its rows get a
// partial for each range up to the first start of a span, and for each span from there on.
//
// Whether a block is split changes who computes a range, never its bits: partials are folded in the order of ranges
// either way. A thread claims its next unit before it computes the one it has, and prefetches the first tiles of it.
//
// In a windowed layer a block is one unit, and its ranges begin where its first row's window does.
//
// A worked number: 32 rows at context 1024, 3 KV heads, 2 threads: 96 units of 3 lines and 128 KiB of f16 each, none
// split. One row at context 8192: 16 ranges × 3 heads = 48 units.
#ifndef FD_KV_KV_BATCH_STATE_H
#define FD_KV_KV_BATCH_STATE_H

#include "common/base/checked.h"
#include "common/kv/kv_state.h"

struct block {
    uint32_t slot, generation;
    uint32_t first_row, row_count;
    uint32_t range_count;
    uint32_t partial;                 // first line of its partials: [kv_heads][range_count][lines]; KV_NONE: not split
    uint64_t bytes_read, tokens_read; // of one layer
    uint32_t candidates;              // tiles that a sparse row chooses among
    uint32_t choice;                  // number of a sparse row among those that are split
    uint32_t seen;                    // positions that its last row attends to, of those held
    uint32_t first_range;             // of the sequence: the one that its extent begins with
    uint64_t window_bytes_read, window_tokens_read; // of one windowed layer
    bool sparse;                                    // one row, which attends to chosen tiles
    bool reads;                                     // its rows have no K and V
    bool gets_partials;                             // its rows do, because more of their context is elsewhere
    bool alive;                                     // its sequence is still what was planned
    bool wanted;                                    // alive, and o of a row is asked for
};

// Consecutive rows of one sequence that go to one tile.
struct piece {
    uint32_t block, first_row, row_count; // block: of its first row
};

struct unit {
    uint32_t block, range; // range KV_NONE: all of them
};

struct kv_batch {
    struct kv_store *store;
    uint32_t row_count, block_count, piece_count, unit_count, split_count, choice_count;
    uint32_t layers_done; // attended in order since the plan
    uint32_t *positions;  // [max_rows] counted from the first position that is held of the sequence
    struct block *blocks; // [max_rows]
    struct piece *pieces; // [max_rows]
    uint32_t *splits;     // [max_rows] numbers of the blocks that are split
    uint32_t *choices;    // [choice_capacity] of those that are sparse
    struct unit *units;   // [unit_capacity]
    atomic_uint *left;    // [KV_JOIN_ROWS][kv_heads] ranges of a split block that are not attended to yet, in a joined job
    // of the layer that is being attended
    uint32_t layer;
    bool windowed;
    const float *sinks; // [heads] f32, or NULL
    const float *const *q, *const *k, *const *v;
    float *const *o;
};

// Returns how many positions the block's last row sees.
static inline uint32_t kv_block_limit(const struct kv_batch *batch, const struct block *block)
{
    return batch->positions[block->first_row + block->row_count - 1] + 1;
}

// Returns the first position that a row sees in a windowed layer.
static inline uint32_t kv_window_first(const struct kv_batch *batch, uint32_t row)
{
    uint32_t end = batch->positions[row] + 1, window = batch->store->shape.window;
    return end > window ? end - window : 0;
}

// Returns what a sparse row chooses among.
static inline struct attend_choice kv_row_choice(const struct kv_batch *batch, uint32_t row)
{
    return attend_choice_of(batch->positions[row], batch->store->shape.sparse_percent);
}

#endif
