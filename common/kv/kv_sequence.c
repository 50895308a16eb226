// kv_sequence.c: the sequences of a store, which are those of its ledger, and handing pages over. See kv_store.c.
#include <string.h>

#include "common/base/checked.h"
#include "common/kv/kv_state.h"

// Copies a page that is about to differ from the one it was shared with.
static void copy_page(const struct kv_store *store, const struct kv_copy *copy)
{
    memcpy(store->pages + copy->to * store->page_bytes, store->pages + copy->from * store->page_bytes, store->page_bytes);
    for (uint32_t layer = 0; store->bounds_width && layer < store->shape.layers; layer++)
        for (uint32_t head = 0; head < store->shape.kv_heads; head++)
            memcpy(kv_bounds(store, layer, head, copy->to, 0), kv_bounds(store, layer, head, copy->from, 0),
                   store->page_tiles * store->bounds_width * sizeof(uint16_t));
}

enum status kv_store_reserve(struct kv_store *store, uint64_t sequence, uint32_t positions, struct error *error)
{
    struct kv_copy copy;
    enum status status = kv_ledger_reserve(&store->ledger, sequence, positions, &copy, error);

    if (copy.needed)
        copy_page(store, &copy);
    return status;
}

enum status kv_store_begin(struct kv_store *store, uint64_t sequence, uint32_t first, struct error *error)
{
    return kv_ledger_begin(&store->ledger, sequence, first, error);
}

void kv_store_free(struct kv_store *store, uint64_t sequence) { kv_ledger_free(&store->ledger, sequence); }

enum status kv_store_share(struct kv_store *store, uint64_t from, uint32_t positions, uint64_t to, struct error *error)
{
    return kv_ledger_share(&store->ledger, from, positions, to, error);
}

void kv_store_truncate(struct kv_store *store, uint64_t sequence, uint32_t positions)
{
    kv_ledger_truncate(&store->ledger, sequence, positions);
}

bool kv_store_next(const struct kv_store *store, uint32_t *cursor, struct kv_held *out)
{
    return kv_ledger_next(&store->ledger, cursor, out);
}

bool kv_store_find(const struct kv_store *store, uint64_t sequence, struct kv_held *out)
{
    return kv_ledger_find(&store->ledger, sequence, out);
}

enum status kv_store_export_page(const struct kv_store *store, uint64_t sequence, uint32_t page_index, void *out,
                                 uint32_t *positions)
{
    uint32_t page;
    enum status status = kv_ledger_give_page(&store->ledger, sequence, page_index, &page, positions);

    if (!status)
        memcpy(out, store->pages + page * store->page_bytes, store->page_bytes);
    return status;
}

// The first `positions` tokens of a page, in all layers. What lies behind them stays: rows of a planned batch may have been
// written there in some layers, and an import that is sent twice must not undo that.
static void copy_tokens(const struct kv_store *store, unsigned char *to, const unsigned char *from, uint32_t positions)
{
    uint64_t tile_count = store->page_bytes / store->tile_bytes;

    for (uint64_t tile = 0; tile < tile_count; tile++, to += store->tile_bytes, from += store->tile_bytes) {
        uint32_t before = (uint32_t)(tile % store->page_tiles) * ATTEND_TILE;
        if (positions > before)
            attend_copy_tokens((enum attend_type)store->shape.type, store->shape.head_dim, to, from,
                               MIN(positions - before, ATTEND_TILE));
    }
}

// Computes the bounds of the first `tiles` tiles of a page, counted from the sequence's first, in all layers.
static void write_bounds(const struct kv_store *store, uint32_t slot, uint32_t page_index, uint32_t tiles)
{
    for (uint32_t layer = 0; layer < store->shape.layers; layer++)
        for (uint32_t head = 0; head < store->shape.kv_heads; head++)
            for (uint32_t tile = 0; tile < tiles; tile++)
                kv_bounds_write(store, slot, layer, head, page_index * store->page_tiles + tile);
}

enum status kv_store_import_page(struct kv_store *store, uint64_t sequence, uint32_t page_index, const void *page,
                                 uint32_t positions, struct error *error)
{
    uint32_t slot, to;
    struct kv_copy copy;
    enum status status = kv_ledger_take_page(&store->ledger, sequence, page_index, positions, &slot, &to, &copy, error);

    if (status)
        return status;
    if (copy.needed)
        copy_page(store, &copy);
    copy_tokens(store, store->pages + to * store->page_bytes, page, positions);
    if (store->bounds_width)
        write_bounds(store, slot, page_index - store->ledger.sequences[slot].first / store->shape.page_tokens,
                     positions / ATTEND_TILE);
    store->ledger.sequences[slot].complete = page_index * store->shape.page_tokens + positions;
    return STATUS_OK;
}
