// kv_store.c: memory of a KV store. One mapping holds the pages and the scratch of attention; it becomes resident as it is
// touched. Which sequence has which pages is the ledger's (kv_ledger.h).
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/alloc.h"
#include "common/base/checked.h"
#include "kernels/dispatch/kernels.h"
#include "kernels/kv/kv_internal.h"

#define MAX_ROWS (1u << 20)
#define MAX_PAGES (1u << 30)

static struct kv_ledger_shape ledger_shape(const struct kv_shape *shape, uint64_t pages)
{
    return (struct kv_ledger_shape){
        .pages = (uint32_t)pages,
        .page_tokens = shape->page_tokens,
        .max_sequences = shape->max_sequences,
        .max_context = shape->max_context,
        .ring_pages = kv_ring_pages(shape),
        .window = shape->window,
    };
}

// Sizes that follow from the shape. `store` has shape and max_rows set.
static void set_sizes(struct kv_store *store, uint32_t threads)
{
    const struct kv_shape *shape = &store->shape;
    uint32_t lines, ranges;
    uint64_t wanted, line_bytes = (shape->head_dim + 2) * sizeof(float);

    store->page_bytes = kv_page_bytes(shape);
    store->page_tiles = shape->page_tokens / KV_TILE;
    store->tile_bytes = kv_tile_bytes(shape->head_dim, shape->type);
    store->bounds_width = shape->sparse_percent ? kv_bounds_width(shape->head_dim) : 0;
    store->group_heads = shape->heads / shape->kv_heads;
    store->block_rows = MAX(1u, KV_BLOCK_LINES / store->group_heads);

    lines = MIN(store->block_rows, store->max_rows) * store->group_heads;
    ranges = (shape->max_context + KV_RANGE - 1) / KV_RANGE;
    store->scratch_floats = kv_scratch_floats(lines, shape->head_dim, kv_sparse_tiles(shape));
    // A block that is split has over 1 / (threads * KV_UNITS_PER_THREAD) of all work, so there are fewer than that.
    wanted = MIN((uint64_t)threads * KV_UNITS_PER_THREAD * ranges * lines, KV_PARTIAL_BYTES_MAX / line_bytes);
    store->partial_lines = threads > 1 && ranges > 1 ? (uint32_t)wanted : 0;
    // A sparse row that is split thus has more than 1 / (threads * KV_SPARSE_UNITS_PER_THREAD) for each KV head.
    store->choice_capacity =
        threads > 1 && store->bounds_width ? (threads * KV_SPARSE_UNITS_PER_THREAD + shape->kv_heads - 1) / shape->kv_heads : 0;
    store->unit_capacity = store->max_rows + (threads > 1 ? threads * KV_UNITS_PER_THREAD * ranges : 0);
}

static uint64_t choice_bytes(const struct kv_store *store)
{
    return store->choice_capacity * store->shape.kv_heads * kv_choice_floats(&store->shape) * sizeof(float);
}

static uint64_t left_bytes(const struct kv_store *store)
{
    return (uint64_t)store->choice_capacity * store->shape.kv_heads * sizeof *store->shares_left;
}

static uint64_t batch_bytes(const struct kv_store *store)
{
    return (uint64_t)store->max_rows * (sizeof(struct kv_row) + 84) + (uint64_t)store->unit_capacity * 8 +
           (uint64_t)store->choice_capacity * 4 + (uint64_t)KV_JOIN_ROWS * store->shape.kv_heads * sizeof(atomic_uint);
}

enum { ALIGN = 64 };
#define HUGE_PAGE (2ull << 20)
static uint64_t to_huge_page(uint64_t at) { return (at + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE; }

struct kv_plan kv_store_plan(const struct kv_shape *shape, uint64_t pool_bytes, uint32_t max_rows, uint32_t threads,
                             uint32_t batches)
{
    struct kv_store store = {.shape = *shape, .max_rows = max_rows};
    struct kv_plan plan = {.page_bytes = kv_page_memory_bytes(shape)};

    if (!plan.page_bytes || max_rows > MAX_ROWS)
        return (struct kv_plan){0};
    plan.pages = MIN(pool_bytes / plan.page_bytes, MAX_PAGES);
    set_sizes(&store, threads);
    const struct kv_ledger_shape ledger = ledger_shape(shape, plan.pages);
    const struct kv_ledger_plan tables = kv_ledger_plan(&ledger);
    plan.fixed_bytes = sizeof store + batches * batch_bytes(&store) + threads * store.scratch_floats * sizeof(float) +
                       tables.fixed_bytes;
    plan.table_bytes = tables.table_bytes + store.partial_lines * (shape->head_dim + 2) * sizeof(float) + choice_bytes(&store) +
                       left_bytes(&store);
    return plan;
}

enum status kv_store_open(const struct kv_shape *shape, uint64_t pool_bytes, uint32_t max_rows, struct thread_pool *pool,
                          struct kv_store **out, struct error *error)
{
    uint64_t page_bytes = kv_page_memory_bytes(shape), line_bytes = (shape->head_dim + 2ull) * sizeof(float);
    struct kv_store *store;
    enum status status = kv_shape_check(shape, error);

    if (status)
        return status;
    if (pool_bytes / page_bytes == 0 || pool_bytes / page_bytes > MAX_PAGES || !max_rows || max_rows > MAX_ROWS)
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "KV store: a pool of %llu bytes (a page is %llu) and %u rows: out of range",
                         (unsigned long long)pool_bytes, (unsigned long long)page_bytes, max_rows);
    assert_always(kernels);
    store = calloc(1, sizeof *store);
    if (!store)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "KV store: no memory");
    store->shape = *shape;
    store->pool = pool;
    store->kernels = attention_of_level(kernels->level);
    store->max_rows = max_rows;
    set_sizes(store, thread_pool_threads(pool));
    const struct kv_ledger_shape ledger = ledger_shape(shape, pool_bytes / page_bytes);
    if ((status = kv_ledger_open(&ledger, &store->ledger, error))) {
        free(store);
        return status;
    }
    const struct slice scratch[] = {
        {(void **)&store->scratch, thread_pool_threads(pool) * store->scratch_floats * sizeof(float)},
        {(void **)&store->partials, store->partial_lines * line_bytes},
        {(void **)&store->choices, choice_bytes(store)},
        {(void **)&store->shares_left, left_bytes(store)},
    };
    // pages lie behind it, from a huge page on
    const uint64_t pages_at = to_huge_page(slices_bytes(scratch, ARRAY_COUNT(scratch), ALIGN));
    const uint64_t bounds_at = to_huge_page(pages_at + ledger.pages * store->page_bytes); // an address alone where there are none
    store->memory_bytes = bounds_at + ledger.pages * (page_bytes - store->page_bytes) + HUGE_PAGE;
    store->memory = mmap(NULL, store->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (store->memory == MAP_FAILED) {
        uint64_t bytes = store->memory_bytes;
        kv_ledger_close(&store->ledger);
        free(store);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "KV store: no memory for %llu bytes", (unsigned long long)bytes);
    }
    unsigned char *base = (unsigned char *)to_huge_page((uintptr_t)store->memory);
    slices_place(scratch, ARRAY_COUNT(scratch), ALIGN, base);
    store->pages = base + pages_at;
    store->bounds = (uint16_t *)(void *)(base + bounds_at);
    madvise(store->pages, ledger.pages * store->page_bytes, MADV_HUGEPAGE); // a wish: reads are random at the size of a page
    madvise(store->memory, store->memory_bytes, MADV_DONTDUMP);             // texts could be read from them
    *out = store;
    return STATUS_OK;
}

void kv_store_close(struct kv_store *store)
{
    if (!store)
        return;
    assert_always(store->batch_count == 0);
    munmap(store->memory, store->memory_bytes);
    kv_ledger_close(&store->ledger);
    free(store);
}

void *kv_store_memory(const struct kv_store *store, uint64_t *bytes)
{
    *bytes = store->memory_bytes;
    return store->memory;
}

uint32_t kv_store_pages_total(const struct kv_store *store) { return store->ledger.shape.pages; }
uint32_t kv_store_pages_used(const struct kv_store *store) { return store->ledger.shape.pages - store->ledger.free_count; }

void kv_store_stats(const struct kv_store *store, struct kv_stats *out)
{
    *out = store->stats;
    out->pages_peak = store->ledger.pages_peak;
}

// --- sequences, which are those of the ledger, and handing pages over ---

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
        uint32_t before = (uint32_t)(tile % store->page_tiles) * KV_TILE;
        if (positions > before)
            attend_copy_tokens(store->shape.type, store->shape.head_dim, to, from, MIN(positions - before, KV_TILE));
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
        write_bounds(store, slot, page_index - store->ledger.sequences[slot].first / store->shape.page_tokens, positions / KV_TILE);
    store->ledger.sequences[slot].complete = page_index * store->shape.page_tokens + positions;
    return STATUS_OK;
}
