// kv_store.c: memory of a KV store. One mapping holds the pages and the scratch of attention; it becomes resident as it is
// touched. Which sequence has which pages is the ledger's (kv_ledger.h).
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/checked.h"
#include "common/base/slices.h"
#include "common/kv/kv_state.h"
#include "kernels/dispatch/kernels.h"

_Static_assert((int)KV_F16 == (int)ATTEND_F16 && (int)KV_F32 == (int)ATTEND_F32 && (int)KV_BF16 == (int)ATTEND_BF16 &&
                   (int)KV_INT8 == (int)ATTEND_INT8 && (int)KV_INT4 == (int)ATTEND_INT4 && (int)KV_INT4X == (int)ATTEND_INT4X,
               "one numbering");

_Static_assert(KV_EXTENT_TOKENS == ATTEND_RANGE, "extents hold whole ranges");

#define MAX_HEADS 4096u
#define MAX_SEQUENCES (1u << 20)
#define MAX_CONTEXT (1u << 24)
#define MAX_ROWS (1u << 20)
#define MAX_PAGES (1u << 30)

static enum status check_shape(const struct kv_shape *shape, struct error *error)
{
    if (!shape->layers || shape->layers > KV_LAYERS_MAX || !shape->heads || shape->heads > MAX_HEADS || !shape->kv_heads)
        return error_set(error, STATUS_INVALID_ARGUMENT, "KV store: %u layers, %u heads, %u KV heads: out of range", shape->layers,
                         shape->heads, shape->kv_heads);
    if (shape->heads % shape->kv_heads)
        return error_set(error, STATUS_INVALID_ARGUMENT, "KV store: %u heads are not a multiple of %u KV heads", shape->heads,
                         shape->kv_heads);
    if (!shape->head_dim || shape->head_dim % 16 || shape->head_dim > ATTEND_MAX_HEAD_DIM)
        return error_set(error, STATUS_INVALID_ARGUMENT, "KV store: head_dim %u is not a multiple of 16 up to %u", shape->head_dim,
                         ATTEND_MAX_HEAD_DIM);
    if (shape->page_tokens != 16 && shape->page_tokens != 32)
        return error_set(error, STATUS_INVALID_ARGUMENT, "KV store: page_tokens is %u: must be 16 or 32", shape->page_tokens);
    if (shape->type < KV_F16 || shape->type >= KV_TYPE_END)
        return error_set(error, STATUS_INVALID_ARGUMENT, "KV store: element type %d is unknown", (int)shape->type);
    if (!shape->max_sequences || shape->max_sequences > MAX_SEQUENCES || !shape->max_context || shape->max_context > MAX_CONTEXT)
        return error_set(error, STATUS_INVALID_ARGUMENT, "KV store: max_sequences %u or max_context %u out of range",
                         shape->max_sequences, shape->max_context);
    if (shape->sparse_percent > 100)
        return error_set(error, STATUS_INVALID_ARGUMENT, "KV store: sparse_percent is %u: at most 100", shape->sparse_percent);
    if (shape->all_windowed)
        for (uint32_t layer = 0; layer < shape->layers; layer++)
            if (!kv_is_windowed(shape, layer))
                return error_set(error, STATUS_INVALID_ARGUMENT, "KV store: layer %u has no window although all have one", layer);
    if (!(shape->soft_cap >= 0 && shape->soft_cap < 1e6f))
        return error_set(error, STATUS_INVALID_ARGUMENT, "KV store: soft_cap is %g: out of range", (double)shape->soft_cap);
    return STATUS_OK;
}

bool kv_same_shape(const struct kv_shape *a, const struct kv_shape *b)
{
    return a->layers == b->layers && a->heads == b->heads && a->kv_heads == b->kv_heads && a->head_dim == b->head_dim &&
           a->page_tokens == b->page_tokens && a->type == b->type && a->max_sequences == b->max_sequences &&
           a->max_context == b->max_context && a->sparse_percent == b->sparse_percent && a->window == b->window &&
           memcmp(a->windowed, b->windowed, sizeof a->windowed) == 0 && a->soft_cap == b->soft_cap &&
           a->all_windowed == b->all_windowed;
}

uint64_t kv_page_bytes(const struct kv_shape *shape)
{
    if (check_shape(shape, NULL))
        return 0;
    return (uint64_t)shape->layers * shape->kv_heads * (shape->page_tokens / ATTEND_TILE) *
           attend_tile_bytes(shape->head_dim, (enum attend_type)shape->type);
}

// Bytes of a page's bounds.
static uint64_t page_bounds_bytes(const struct kv_shape *shape)
{
    uint64_t tiles = (uint64_t)shape->layers * shape->kv_heads * (shape->page_tokens / ATTEND_TILE);
    return shape->sparse_percent ? tiles * attend_bounds_width(shape->head_dim) * sizeof(uint16_t) : 0;
}

uint64_t kv_page_memory_bytes(const struct kv_shape *shape)
{
    uint64_t bytes = kv_page_bytes(shape);
    return bytes ? bytes + page_bounds_bytes(shape) : 0;
}

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
    store->page_tiles = shape->page_tokens / ATTEND_TILE;
    store->tile_bytes = attend_tile_bytes(shape->head_dim, (enum attend_type)shape->type);
    store->bounds_width = shape->sparse_percent ? attend_bounds_width(shape->head_dim) : 0;
    store->group_heads = shape->heads / shape->kv_heads;
    store->block_rows = MAX(1u, KV_BLOCK_LINES / store->group_heads);

    lines = MIN(store->block_rows, store->max_rows) * store->group_heads;
    ranges = (shape->max_context + ATTEND_RANGE - 1) / ATTEND_RANGE;
    store->scratch_floats = kv_scratch_floats(lines, shape->head_dim, kv_sparse_tiles(shape));
    // A block that is split has over 1 / (threads * KV_UNITS_PER_THREAD) of all work, so there are fewer than that.
    wanted = MIN((uint64_t)threads * KV_UNITS_PER_THREAD * ranges * lines, KV_PARTIAL_BYTES_MAX / line_bytes);
    store->partial_lines = threads > 1 && ranges > 1 ? (uint32_t)wanted : 0;
    // So a sparse row that is split has more than 1 / (threads * KV_SPARSE_UNITS_PER_THREAD) for each KV head.
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
    enum status status = check_shape(shape, error);

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
    store->memory_bytes = bounds_at + ledger.pages * page_bounds_bytes(shape) + HUGE_PAGE;
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
