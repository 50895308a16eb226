// kv_state.h: what kv_store.c (memory), kv_sequence.c (handing pages over), kv_batch.c (plans) and kv_attend.c share. Private to common/kv.
#ifndef FD_KV_KV_STATE_H
#define FD_KV_KV_STATE_H

#include <stdatomic.h>

#include "common/kv/kv_ledger.h"
#include "common/kv/kv_store.h"
#include "kernels/attention/attention_sparse.h"

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
    attend_bounds((enum attend_type)store->shape.type, store->shape.head_dim, kv_tile(store, slot, layer, kv_head, tile),
                  kv_bounds(store, layer, kv_head, page, tile % store->page_tiles));
}

// Returns the number of tiles of the longest sequence in a store that has bounds, otherwise 0.
static inline uint32_t kv_sparse_tiles(const struct kv_shape *shape)
{
    return shape->sparse_percent ? (shape->max_context + ATTEND_TILE - 1) / ATTEND_TILE : 0;
}

// Returns the floats of one choice: the scores of the candidates, and the tiles that are chosen.
static inline size_t kv_choice_floats(const struct kv_shape *shape) { return ((size_t)2 * kv_sparse_tiles(shape) + 15) / 16 * 16; }

// Returns how many floats of scratch a thread needs for blocks of `lines` lines and rows that choose among `sparse_tiles` tiles.
static inline size_t kv_scratch_floats(uint32_t lines, uint32_t head_dim, uint32_t sparse_tiles)
{
    size_t floats = (size_t)lines * (4 * head_dim + ATTEND_TILE + 8) + ATTEND_SCORES + 2 * head_dim + 2 * (size_t)sparse_tiles;
    return (floats + 31) / 16 * 16; // shares no cache line with the next thread's
}

#endif
