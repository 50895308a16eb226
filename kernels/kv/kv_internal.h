// kv_internal.h: a store, and a planned mini-batch, which kv_batch.c makes and kv_attend.c attends to. Private to kernels/kv.
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
// chooses them first. If a row is so large a part of the step that it is split, all threads choose together, before they attend:
//
//     score: split rows × KV heads × shares of KV_SHARE_TILES candidates, and whoever scores the last share chooses ─ barrier
//
// Worked numbers: position 16,383, 2 KV heads: 1016 candidates are 4 shares for each head, so 8 for all threads.
//
// All positions, ranges and tiles of an extent are counted from its start, except where ranges are assigned to spans: its rows get a
// partial for each range up to the first start of a span, and for each span from there on.
//
// Whether a block is split changes who computes a range, never its bits: partials are folded in the order of ranges
// either way. A thread claims its next unit before it computes the one it has, and prefetches the first tiles of it.
//
// In a windowed layer a block is one unit, and its ranges begin where its first row's window does.
//
// A worked number: 32 rows at context 1024, 3 KV heads, 2 threads: 96 units of 3 lines and 128 KiB of f16 each, none
// split. One row at context 8192: 16 ranges × 3 heads = 48 units.
#ifndef FD_KERNELS_KV_KV_INTERNAL_H
#define FD_KERNELS_KV_KV_INTERNAL_H

#include <stdatomic.h>

#include "common/base/checked.h"
#include "common/kv/kv_ledger.h"
#include "kernels/attention/attention_sparse.h"
#include "kernels/kv/kv_store.h"

#define KV_BLOCK_LINES 64u // the most lines (rows times query heads of a KV head) that share a tile, unless one row has more
#define KV_PARTIAL_BYTES_MAX (64ull << 20)
#define KV_UNITS_PER_THREAD 16u       // a block with more work than a thread's share divided by this is split
#define KV_SPARSE_UNITS_PER_THREAD 4u // the same for a sparse row, for which the threads wait once more

struct kv_store {
    struct kv_shape shape;
    struct thread_pool *pool;
    const struct attention_kernels *kernels;
    uint32_t max_rows, group_heads, page_tiles;
    uint32_t block_rows;             // rows of one sequence whose lines share tiles
    uint64_t page_bytes, tile_bytes; // a tile has K, then V
    uint32_t bounds_width;           // number of f16 values in a tile's bounds; 0: the store has no bounds

    unsigned char *pages; // [pages_total][layers][kv_heads][page_tiles][tile_bytes]
    // [layers][kv_heads][pages_total][page_tiles][bounds_width] f16, bounds of full tiles. They are apart from the pages, so that
    // the bounds that a row reads are close together, and pages are handed over without them
    uint16_t *bounds;
    struct kv_ledger ledger;

    float *scratch; // [threads][scratch_floats]
    size_t scratch_floats;
    float *partials; // [partial_lines][head_dim], then m and l of each line
    uint32_t partial_lines;
    float *choices;           // [choice_capacity][kv_heads][kv_choice_floats()] of sparse rows that are split
    atomic_uint *shares_left; // [choice_capacity][kv_heads] shares of the candidates that are not scored yet
    uint32_t choice_capacity;
    uint32_t unit_capacity;

    void *memory; // the one mapping of scratch, partials and pages
    uint64_t memory_bytes;
    uint32_t batch_count; // number of open batches
    struct kv_stats stats;
    uint64_t began_ns; // the layer that is being attended
};

// Returns tile number `tile` (16 tokens) of what is held of the sequence in `slot`. The sequence must have the page.
static inline unsigned char *kv_tile(const struct kv_store *store, uint32_t slot, uint32_t layer, uint32_t kv_head, uint32_t tile)
{
    uint32_t page = kv_ledger_page(&store->ledger, slot, tile / store->page_tiles);
    uint64_t index = ((uint64_t)layer * store->shape.kv_heads + kv_head) * store->page_tiles + tile % store->page_tiles;
    return store->pages + page * store->page_bytes + index * store->tile_bytes;
}

// Returns the bounds of tile `tile` of page `page`.
static inline uint16_t *kv_bounds(const struct kv_store *store, uint32_t layer, uint32_t kv_head, uint32_t page, uint32_t tile)
{
    uint64_t index = ((uint64_t)layer * store->shape.kv_heads + kv_head) * store->ledger.shape.pages + page;
    return store->bounds + (index * store->page_tiles + tile) * store->bounds_width;
}

// Computes the bounds of tile `tile` of the sequence in `slot`, which has become full, for one layer and KV head. The store must
// have bounds.
static inline void kv_bounds_write(const struct kv_store *store, uint32_t slot, uint32_t layer, uint32_t kv_head, uint32_t tile)
{
    uint32_t page = kv_ledger_page(&store->ledger, slot, tile / store->page_tiles);
    attend_bounds(store->shape.type, store->shape.head_dim, kv_tile(store, slot, layer, kv_head, tile),
                  kv_bounds(store, layer, kv_head, page, tile % store->page_tiles));
}

// Returns the number of tiles of the longest sequence in a store that has bounds, otherwise 0.
static inline uint32_t kv_sparse_tiles(const struct kv_shape *shape)
{
    return shape->sparse_percent ? (shape->max_context + KV_TILE - 1) / KV_TILE : 0;
}

// Returns the floats of one choice: the scores of the candidates, and the tiles that are chosen.
static inline size_t kv_choice_floats(const struct kv_shape *shape) { return ((size_t)2 * kv_sparse_tiles(shape) + 15) / 16 * 16; }

// Returns how many floats of scratch a thread needs for blocks of `lines` lines and rows that choose among `sparse_tiles` tiles.
static inline size_t kv_scratch_floats(uint32_t lines, uint32_t head_dim, uint32_t sparse_tiles)
{
    size_t floats = (size_t)lines * (4 * head_dim + KV_TILE + 8) + ATTEND_SCORES + 2 * head_dim + 2 * (size_t)sparse_tiles;
    return (floats + 31) / 16 * 16; // shares no cache line with the next thread's
}

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
