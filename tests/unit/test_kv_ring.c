/* test_kv_ring.c: stores of a model whose layers are all windowed: pages that all windows have passed are given back, and no bit changes. */
#include "tests/unit/kv_store_rig.h"

enum { CONTEXT = 600, WINDOW = 40, PAGES = 24 };

static struct kv_shape windowed(bool gives_back)
{
    struct kv_shape shape = small;
    shape.max_context = CONTEXT;
    shape.window = WINDOW;
    shape.windowed[0] = 7;
    shape.all_windowed = gives_back;
    return shape;
}

static void test_what_a_shape_gives_back(void **state)
{
    struct kv_shape shape = windowed(true);
    struct rig rig;
    struct error error;

    assert_int_equal(kv_ring_pages(&shape), (WINDOW + 64 + 15) / 16 + 1);
    assert_int_equal(kv_first_page(&shape, 72), 0);
    assert_int_equal(kv_first_page(&shape, 500), (500 - WINDOW - 32) / 16);
    shape.max_context = 128; /* no longer than the ring */
    assert_int_equal(kv_ring_pages(&shape), 0);
    assert_int_equal(kv_first_page(&shape, 120), 0);
    shape = windowed(false);
    assert_int_equal(kv_ring_pages(&shape), 0);
    shape = windowed(true);
    shape.windowed[0] = 5;
    assert_int_equal(kv_page_bytes(&shape), 0);
    shape = windowed(true);
    rig = rig_open_shape(&shape, 2);
    shape.windowed[0] = 5;
    struct kv_store *store;
    assert_int_equal(kv_store_open(&shape, 1 << 20, MAX_ROWS, rig.pool, &store, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "layer 1 has no window"));
    rig_close(&rig);
}

/* The same rows in a store that keeps all: o of each layer must have the same bits. */
static void write_both(struct rig *keeps, struct rig *gives, uint64_t sequence, uint32_t begin, uint32_t end)
{
    static float wanted[MAX_ROWS][WIDTH];
    struct kv_row rows[MAX_ROWS];
    uint32_t count = rows_of(rows, 0, sequence, begin, end), bad;
    struct error error;

    assert_int_equal(kv_store_reserve(keeps->store, sequence, end, &error), STATUS_OK);
    assert_int_equal(kv_store_reserve(gives->store, sequence, end, &error), STATUS_OK);
    assert_int_equal(plan(keeps, rows, count, &bad), STATUS_OK);
    assert_int_equal(plan(gives, rows, count, &bad), STATUS_OK);
    for (uint32_t layer = 0; layer < small.layers; layer++) {
        attend(keeps->batch, rows, count, layer);
        memcpy(wanted, outputs, sizeof wanted);
        attend(gives->batch, rows, count, layer);
        assert_memory_equal(outputs, wanted, count * sizeof outputs[0]);
    }
}

static void test_same_bits(void **state)
{
    const struct kv_shape all = windowed(false), ring = windowed(true);
    struct rig keeps = rig_open_shape(&all, 2 * (CONTEXT + 15) / 16), gives = rig_open_shape(&ring, PAGES);
    uint64_t seed = 7;
    uint32_t at[2] = {0, 0};

    for (uint32_t which = 0; at[0] < CONTEXT || at[1] < CONTEXT; which ^= 1) { /* in steps of 1 to 64 rows; some are repeated */
        uint32_t count = (uint32_t)(random_next(&seed) % 4 ? 1 + random_next(&seed) % 8 : 1 + random_next(&seed) % MAX_ROWS);
        uint32_t end = MIN(at[which] + count, (uint32_t)CONTEXT);
        if (at[which] == end)
            continue;
        write_both(&keeps, &gives, 11 + which, at[which], end);
        if (random_next(&seed) % 8 == 0)
            write_both(&keeps, &gives, 11 + which, at[which], end);
        at[which] = end;
        assert_true(kv_store_pages_used(gives.store) <= 2 * kv_ring_pages(&ring));
    }
    assert_int_equal(held(&gives, 11), CONTEXT);
    assert_int_equal(kv_store_pages_used(gives.store), 2 * kv_ring_pages(&ring));
    assert_true(kv_store_pages_used(keeps.store) > 70);
    rig_close(&keeps);
    rig_close(&gives);
}

/* Handed over in mid-course, from the first page on that is needed. */
static void test_hand_over(void **state)
{
    const struct kv_shape all = windowed(false), ring = windowed(true);
    struct rig keeps = rig_open_shape(&all, 40), gives = rig_open_shape(&ring, PAGES), takes = rig_open_shape(&ring, PAGES);
    unsigned char *page = malloc(kv_page_bytes(&ring));
    uint32_t positions, first = kv_first_page(&ring, 333);
    struct error error;

    for (uint32_t begin = 0; begin < 333; begin += 9)
        write_both(&keeps, &gives, 5, begin, begin + 9);
    assert_int_equal(kv_store_export_page(gives.store, 5, 0, page, &positions), STATUS_NOT_FOUND);
    for (uint32_t index = first; index <= 332 / 16; index++) {
        assert_int_equal(kv_store_export_page(gives.store, 5, index, page, &positions), STATUS_OK);
        assert_int_equal(kv_store_import_page(takes.store, 5, index, page, positions, &error), STATUS_OK);
        assert_int_equal(kv_store_import_page(takes.store, 5, index, page, positions, &error), STATUS_OK); /* sent twice */
    }
    assert_int_equal(held(&takes, 5), 333);
    for (uint32_t begin = 333; begin < CONTEXT; begin += 3)
        write_both(&keeps, &takes, 5, begin, MIN(begin + 3, (uint32_t)CONTEXT));
    assert_int_equal(kv_store_pages_used(takes.store), kv_ring_pages(&ring));
    free(page);
    rig_close(&keeps);
    rig_close(&gives);
    rig_close(&takes);
}

/* Rows that would read pages which are gone are refused. */
static void test_refused(void **state)
{
    const struct kv_shape ring = windowed(true);
    struct rig rig = rig_open_shape(&ring, PAGES);
    struct kv_row rows[MAX_ROWS];
    struct error error;
    uint32_t bad;

    for (uint32_t begin = 0; begin < 320; begin += 32)
        write_range(&rig, 5, begin, begin + 32);
    uint32_t begin = rig.store->ledger.sequences[kv_ledger_slot(&rig.store->ledger, 5)].begin;
    assert_int_equal(begin, (320 / 16 - kv_ring_pages(&ring)) * 16);
    rows_of(rows, 0, 5, begin + WINDOW - 2, begin + WINDOW - 1);
    assert_int_equal(plan(&rig, rows, 1, &bad), STATUS_FAILED_PRECONDITION);
    rows_of(rows, 0, 5, begin + WINDOW - 1, begin + WINDOW);
    assert_int_equal(plan(&rig, rows, 1, &bad), STATUS_OK);
    assert_int_equal(kv_store_reserve(rig.store, 5, 320 + 65 + 32, &error),
                     STATUS_OUT_OF_RANGE); /* more rows at once than there may be */
    assert_non_null(strstr(error.text, "do not fit"));
    assert_int_equal(held(&rig, 5), 320);
    assert_int_equal(kv_store_share(rig.store, 5, 320, 6, &error), STATUS_OK);
    assert_int_equal(kv_store_share(rig.store, 5, begin + WINDOW - 2, 7, &error), STATUS_FAILED_PRECONDITION);
    write_range(&rig, 6, 320, 350); /* beside the pages that it shares */
    write_range(&rig, 5, 320, 350);
    kv_store_free(rig.store, 5);
    write_range(&rig, 5, 0, 30);
    kv_store_free(rig.store, 5);
    kv_store_free(rig.store, 6);
    assert_int_equal(kv_store_pages_used(rig.store), 0);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_a_shape_gives_back),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_hand_over),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
