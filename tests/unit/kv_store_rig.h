/* kv_store_rig.h: a store with a pool of two threads and one batch, and rows whose tensors are a function of what they are. */
#ifndef FD_TESTS_UNIT_KV_STORE_RIG_H
#define FD_TESTS_UNIT_KV_STORE_RIG_H

#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/random.h"
#include "kernels/dispatch/kernels.h"
#include "kernels/kv/kv_internal.h"
#include "tests/cmocka.h"

enum { MAX_ROWS = 64, WIDTH = 32 };

static const struct kv_shape small = {.layers = 3,
                                      .heads = 2,
                                      .kv_heads = 1,
                                      .head_dim = 16,
                                      .page_tokens = 16,
                                      .type = KV_F16,
                                      .max_sequences = 4,
                                      .max_context = 200};

struct rig {
    struct thread_pool *pool;
    struct kv_store *store;
    struct kv_batch *batch;
};

static __attribute__((unused)) struct rig rig_open_shape(const struct kv_shape *shape, uint32_t pages)
{
    struct rig rig;
    struct error error;
    assert_int_equal(kernels_init(NULL, &error), STATUS_OK);
    assert_int_equal(thread_pool_open(2, &rig.pool), STATUS_OK);
    assert_int_equal(kv_store_open(shape, pages * kv_page_memory_bytes(shape) + 7, MAX_ROWS, rig.pool, &rig.store, &error),
                     STATUS_OK);
    assert_int_equal(kv_batch_open(rig.store, &rig.batch), STATUS_OK);
    return rig;
}

static __attribute__((unused)) struct rig rig_open(uint32_t pages) { return rig_open_shape(&small, pages); }

static void rig_close(struct rig *rig)
{
    kv_batch_close(rig->batch);
    kv_store_close(rig->store);
    thread_pool_close(rig->pool);
}

static uint32_t guess; /* 0, or K and V are those of other tokens */

/* Returns a value of a row's tensors: a function of what the row is, so that repeats and copies agree. */
static float value_of(uint64_t sequence, uint32_t position, uint32_t layer, uint32_t which, uint32_t i)
{
    uint64_t state = sequence * 1000003 + position * 8191u + guess * 65537u + layer * 131u + which * 17u + i * 0x10001u;
    return (float)(random_next(&state) % 2001) / 1000.0f - 1.0f;
}

static float outputs[MAX_ROWS][WIDTH];
static uint64_t unwanted;                 /* bit i: o of row i is not asked for */
static uint32_t sparse_from = UINT32_MAX; /* positions from there on are sparse */

/* One layer of the planned rows. */
static void attend(struct kv_batch *batch, const struct kv_row *rows, uint32_t count, uint32_t layer)
{
    static float tensors[MAX_ROWS][3][WIDTH];
    const float *q[MAX_ROWS], *k[MAX_ROWS], *v[MAX_ROWS];
    float *o[MAX_ROWS];
    for (uint32_t row = 0; row < count; row++) {
        for (uint32_t which = 0; which < 3; which++)
            for (uint32_t i = 0; i < WIDTH; i++)
                tensors[row][which][i] = value_of(rows[row].sequence, rows[row].position, layer, which, i);
        q[row] = tensors[row][0], k[row] = tensors[row][1], v[row] = tensors[row][2];
        o[row] = unwanted >> row & 1 ? NULL : outputs[row];
    }
    kv_batch_attend(batch, layer, q, k, v, o);
}

static __attribute__((unused)) uint32_t rows_of(struct kv_row *rows, uint32_t count, uint64_t sequence, uint32_t begin,
                                                uint32_t end)
{
    for (; begin < end; begin++)
        rows[count++] = (struct kv_row){.sequence = sequence, .position = begin, .sparse = begin >= sparse_from};
    return count;
}

static enum status plan(struct rig *rig, const struct kv_row *rows, uint32_t count, uint32_t *bad)
{
    struct error error;
    return kv_batch_plan(rig->batch, rows, count, bad, &error);
}

/* Reserves, plans and runs all layers for positions [begin, end). */
static void write_range(struct rig *rig, uint64_t sequence, uint32_t begin, uint32_t end)
{
    struct kv_row rows[MAX_ROWS];
    uint32_t count = rows_of(rows, 0, sequence, begin, end), bad;
    struct error error;
    assert_int_equal(kv_store_reserve(rig->store, sequence, end, &error), STATUS_OK);
    assert_int_equal(plan(rig, rows, count, &bad), STATUS_OK);
    for (uint32_t layer = 0; layer < small.layers; layer++)
        attend(rig->batch, rows, count, layer);
}

/* Checks that each full tile that is complete has the bounds that its K gives. */
static __attribute__((unused)) void expect_bounds(const struct rig *rig, uint64_t sequence)
{
    const struct kv_store *store = rig->store;
    uint32_t slot = kv_ledger_slot(&store->ledger, sequence);
    uint32_t tiles = slot == KV_NONE ? 0 : store->ledger.sequences[slot].complete / KV_TILE;
    uint16_t expected[2 * KV_MAX_HEAD_DIM];
    for (uint32_t tile = 0; tile < tiles; tile++)
        for (uint32_t layer = 0; layer < store->shape.layers; layer++) {
            uint32_t page = kv_ledger_table(&store->ledger, slot)[tile / store->page_tiles];
            attend_bounds(store->shape.type, store->shape.head_dim, kv_tile(store, slot, layer, 0, tile), expected);
            assert_memory_equal(kv_bounds(store, layer, 0, page, tile % store->page_tiles), expected,
                                store->bounds_width * sizeof *expected);
        }
}

static __attribute__((unused)) uint32_t held(const struct rig *rig, uint64_t sequence)
{
    struct kv_held item;
    return kv_store_find(rig->store, sequence, &item) ? item.positions : UINT32_MAX;
}

#endif
