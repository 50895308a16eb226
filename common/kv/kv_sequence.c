/* kv_sequence.c: the sequences of a store, which are those of its ledger, and handing pages over. See kv_store.c. */
#include <string.h>

#include "common/base/checked.h"
#include "common/kv/kv_state.h"

enum status kv_store_reserve(struct kv_store *store, uint64_t sequence, uint32_t positions, struct error *error)
{
    struct kv_copy copy;
    enum status status = kv_ledger_reserve(&store->ledger, sequence, positions, &copy, error);

    if (copy.needed)
        memcpy(store->pages + copy.to * store->page_bytes, store->pages + copy.from * store->page_bytes, store->page_bytes);
    return status;
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
    uint32_t slot = kv_ledger_slot(&store->ledger, sequence);
    uint64_t begin = (uint64_t)page_index * store->shape.page_tokens;

    if (slot == KV_NONE || store->ledger.sequences[slot].complete <= begin)
        return STATUS_NOT_FOUND;
    *positions = (uint32_t)MIN(store->ledger.sequences[slot].complete - begin, store->shape.page_tokens);
    memcpy(out, kv_tile(store, slot, 0, 0, page_index * store->page_tiles), store->page_bytes);
    return STATUS_OK;
}

/* The first `positions` tokens of a page, in all layers. What lies behind them stays: rows of a planned batch may have been
 * written there in some layers, and an import that is sent twice must not undo that. */
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

enum status kv_store_import_page(struct kv_store *store, uint64_t sequence, uint32_t page_index, const void *page,
                                 uint32_t positions, struct error *error)
{
    struct kv_held held = {.sequence = sequence};
    uint64_t begin = (uint64_t)page_index * store->shape.page_tokens, end = begin + positions;
    enum status status;

    if (positions == 0 || positions > store->shape.page_tokens)
        return error_set(error, STATUS_INVALID_ARGUMENT, "sequence %llx, page %u: %u positions in a page of %u",
                         (unsigned long long)sequence, page_index, positions, store->shape.page_tokens);
    if (end > store->shape.max_context)
        return error_set(error, STATUS_OUT_OF_RANGE, "sequence %llx, page %u: beyond the context of %u",
                         (unsigned long long)sequence, page_index, store->shape.max_context);
    kv_ledger_find(&store->ledger, sequence, &held);
    if (held.positions < begin || held.positions > end)
        return error_set(error, STATUS_FAILED_PRECONDITION,
                         "sequence %llx, page %u with %u positions does not follow the %u that are held",
                         (unsigned long long)sequence, page_index, positions, held.positions);
    status = kv_store_reserve(store, sequence, (uint32_t)end, error);
    if (status)
        return status;
    uint32_t slot = kv_ledger_slot(&store->ledger, sequence);
    copy_tokens(store, kv_tile(store, slot, 0, 0, page_index * store->page_tiles), page, positions);
    store->ledger.sequences[slot].complete = (uint32_t)end;
    return STATUS_OK;
}
