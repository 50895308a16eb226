/* kv_sequence.c: which sequences a store knows, which pages they have, and handing pages over. See kv_store.c. */
#include <string.h>

#include "common/base/checked.h"
#include "common/kv/kv_state.h"

static uint32_t bucket_of(const struct kv_store *store, uint64_t sequence)
{
    uint64_t z = (sequence ^ sequence >> 32) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(z >> 32) & store->bucket_mask;
}

uint32_t kv_sequence_slot(const struct kv_store *store, uint64_t sequence)
{
    for (uint32_t at = bucket_of(store, sequence);; at = (at + 1) & store->bucket_mask) {
        uint32_t slot = store->buckets[at];
        if (slot == KV_NONE || store->sequences[slot].id == sequence)
            return slot;
    }
}

static void bucket_insert(struct kv_store *store, uint64_t sequence, uint32_t slot)
{
    uint32_t at = bucket_of(store, sequence);
    while (store->buckets[at] != KV_NONE)
        at = (at + 1) & store->bucket_mask;
    store->buckets[at] = slot;
}

/* Empties the sequence's bucket and moves later ones of its run back, each no further than its own place. */
static void bucket_remove(struct kv_store *store, uint64_t sequence)
{
    uint32_t hole = bucket_of(store, sequence);
    while (store->sequences[store->buckets[hole]].id != sequence)
        hole = (hole + 1) & store->bucket_mask;
    for (uint32_t at = (hole + 1) & store->bucket_mask; store->buckets[at] != KV_NONE; at = (at + 1) & store->bucket_mask) {
        uint32_t home = bucket_of(store, store->sequences[store->buckets[at]].id);
        if (((at - home) & store->bucket_mask) >= ((at - hole) & store->bucket_mask)) {
            store->buckets[hole] = store->buckets[at];
            hole = at;
        }
    }
    store->buckets[hole] = KV_NONE;
}

static uint32_t pages_for(const struct kv_store *store, uint32_t positions)
{
    return (uint32_t)(((uint64_t)positions + store->shape.page_tokens - 1) / store->shape.page_tokens);
}

static void drop_pages(struct kv_store *store, uint32_t slot, uint32_t keep)
{
    struct kv_sequence *sequence = &store->sequences[slot];
    const uint32_t *table = store->tables + (size_t)slot * store->table_length;

    while (sequence->page_count > keep) {
        uint32_t page = table[--sequence->page_count];
        assert_always(store->references[page] > 0);
        if (--store->references[page] == 0)
            store->free_pages[store->free_count++] = page;
    }
}

/* Whether the next position is written into a page that other sequences read as well. */
static bool next_is_shared(const struct kv_store *store, uint32_t slot)
{
    const struct kv_sequence *sequence = &store->sequences[slot];
    uint32_t index = sequence->complete / store->shape.page_tokens;
    return sequence->complete % store->shape.page_tokens && index < sequence->page_count &&
           store->references[store->tables[(size_t)slot * store->table_length + index]] > 1;
}

/* Gives the sequence a page of its own with the same content. There must be a free one. */
static void copy_shared(struct kv_store *store, uint32_t slot)
{
    uint32_t *page =
        &store->tables[(size_t)slot * store->table_length + store->sequences[slot].complete / store->shape.page_tokens];
    uint32_t own = store->free_pages[--store->free_count];

    memcpy(store->pages + own * store->page_bytes, store->pages + *page * store->page_bytes, store->page_bytes);
    store->references[*page]--;
    store->references[own] = 1;
    *page = own;
}

static enum status add_sequence(struct kv_store *store, uint64_t sequence, uint32_t *slot, struct error *error)
{
    if (!store->free_slot_count)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "sequence %llx: there are %u sequences, the most allowed",
                         (unsigned long long)sequence, store->shape.max_sequences);
    *slot = store->free_slots[--store->free_slot_count];
    store->sequences[*slot] = (struct kv_sequence){.id = sequence, .generation = store->sequences[*slot].generation, .used = true};
    bucket_insert(store, sequence, *slot);
    return STATUS_OK;
}

enum status kv_store_reserve(struct kv_store *store, uint64_t sequence, uint32_t positions, struct error *error)
{
    uint32_t slot = kv_sequence_slot(store, sequence), have = slot == KV_NONE ? 0 : store->sequences[slot].page_count;
    uint32_t need = pages_for(store, positions), more = need > have ? need - have : 0;
    bool copy = slot != KV_NONE && positions > store->sequences[slot].complete && next_is_shared(store, slot);
    enum status status;

    if (positions > store->shape.max_context)
        return error_set(error, STATUS_OUT_OF_RANGE, "sequence %llx: %u positions are more than the context of %u",
                         (unsigned long long)sequence, positions, store->shape.max_context);
    if (more + copy > store->free_count)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "sequence %llx: %u more pages are needed and %u of %u are free",
                         (unsigned long long)sequence, more + copy, store->free_count, store->pages_total);
    if (slot == KV_NONE && (status = add_sequence(store, sequence, &slot, error)))
        return status;
    if (copy)
        copy_shared(store, slot);
    for (; have < need; have++) {
        uint32_t page = store->free_pages[--store->free_count];
        store->references[page] = 1;
        store->tables[(size_t)slot * store->table_length + have] = page;
        store->sequences[slot].page_count = have + 1;
    }
    store->stats.pages_peak = MAX(store->stats.pages_peak, store->pages_total - store->free_count);
    return STATUS_OK;
}

void kv_store_free(struct kv_store *store, uint64_t sequence)
{
    uint32_t slot = kv_sequence_slot(store, sequence);

    if (slot == KV_NONE)
        return;
    drop_pages(store, slot, 0);
    bucket_remove(store, sequence);
    store->sequences[slot].used = false;
    store->sequences[slot].generation++;
    store->free_slots[store->free_slot_count++] = slot;
}

enum status kv_store_share(struct kv_store *store, uint64_t from, uint32_t positions, uint64_t to, struct error *error)
{
    uint32_t source = kv_sequence_slot(store, from), slot = kv_sequence_slot(store, to);
    enum status status;

    if (slot != KV_NONE && store->sequences[slot].complete >= positions)
        return STATUS_OK; /* said before */
    if (from == to || positions == 0 || source == KV_NONE || store->sequences[source].complete < positions)
        return error_set(error, STATUS_FAILED_PRECONDITION,
                         "sequence %llx holds %u positions, %u of them are to be shared with %llx", (unsigned long long)from,
                         source == KV_NONE ? 0 : store->sequences[source].complete, positions, (unsigned long long)to);
    if (slot != KV_NONE)
        kv_store_free(store, to);
    if ((status = add_sequence(store, to, &slot, error)))
        return status;
    struct kv_sequence *sequence = &store->sequences[slot];
    sequence->page_count = pages_for(store, positions);
    sequence->complete = positions;
    for (uint32_t i = 0; i < sequence->page_count; i++) {
        uint32_t page = store->tables[(size_t)source * store->table_length + i];
        store->tables[(size_t)slot * store->table_length + i] = page;
        store->references[page]++;
    }
    return STATUS_OK;
}

void kv_store_truncate(struct kv_store *store, uint64_t sequence, uint32_t positions)
{
    uint32_t slot = kv_sequence_slot(store, sequence);

    if (slot == KV_NONE || positions >= (uint64_t)store->sequences[slot].page_count * store->shape.page_tokens)
        return;
    store->sequences[slot].generation++;
    store->sequences[slot].complete = MIN(store->sequences[slot].complete, positions);
    drop_pages(store, slot, pages_for(store, positions));
}

bool kv_store_next(const struct kv_store *store, uint32_t *cursor, struct kv_held *out)
{
    while (*cursor < store->shape.max_sequences) {
        const struct kv_sequence *sequence = &store->sequences[(*cursor)++];
        if (sequence->used) {
            *out = (struct kv_held){sequence->id, sequence->complete};
            return true;
        }
    }
    return false;
}

bool kv_store_find(const struct kv_store *store, uint64_t sequence, struct kv_held *out)
{
    uint32_t slot = kv_sequence_slot(store, sequence);
    if (slot == KV_NONE)
        return false;
    *out = (struct kv_held){sequence, store->sequences[slot].complete};
    return true;
}

enum status kv_store_export_page(const struct kv_store *store, uint64_t sequence, uint32_t page_index, void *out,
                                 uint32_t *positions)
{
    uint32_t slot = kv_sequence_slot(store, sequence);
    uint64_t begin = (uint64_t)page_index * store->shape.page_tokens;

    if (slot == KV_NONE || store->sequences[slot].complete <= begin)
        return STATUS_NOT_FOUND;
    *positions = (uint32_t)MIN(store->sequences[slot].complete - begin, store->shape.page_tokens);
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
    kv_store_find(store, sequence, &held);
    if (held.positions < begin || held.positions > end)
        return error_set(error, STATUS_FAILED_PRECONDITION,
                         "sequence %llx, page %u with %u positions does not follow the %u that are held",
                         (unsigned long long)sequence, page_index, positions, held.positions);
    status = kv_store_reserve(store, sequence, (uint32_t)end, error);
    if (status)
        return status;
    uint32_t slot = kv_sequence_slot(store, sequence);
    copy_tokens(store, kv_tile(store, slot, 0, 0, page_index * store->page_tiles), page, positions);
    store->sequences[slot].complete = (uint32_t)end;
    return STATUS_OK;
}
