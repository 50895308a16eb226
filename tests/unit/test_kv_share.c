/* test_kv_share.c: sequences that share pages, beside a store that copies them instead. */
#include "tests/unit/kv_store_rig.h"

static void expect_page(const struct rig *rig, uint64_t sequence, uint32_t index, const unsigned char *expected)
{
    static unsigned char page[1 << 16];
    uint32_t positions;
    assert_true(kv_page_bytes(&small) <= sizeof page);
    assert_int_equal(kv_store_export_page(rig->store, sequence, index, page, &positions), STATUS_OK);
    assert_memory_equal(page, expected, kv_page_bytes(&small));
}

/* 40 positions are two pages and a half: all are shared, and the last is copied for whoever writes to it first. */
static void test_share(void **state)
{
    struct rig rig = rig_open(5);
    unsigned char *last = malloc(kv_page_bytes(&small));
    uint32_t positions, bad;
    const struct kv_row row = {.sequence = 2, .position = 40};
    struct error error;
    write_range(&rig, 1, 0, 40);
    assert_int_equal(kv_store_export_page(rig.store, 1, 2, last, &positions), STATUS_OK);
    assert_int_equal(kv_store_share(rig.store, 1, 41, 2, &error), STATUS_FAILED_PRECONDITION);
    assert_int_equal(kv_store_share(rig.store, 7, 16, 2, &error), STATUS_FAILED_PRECONDITION);
    assert_int_equal(kv_store_share(rig.store, 1, 16, 1, &error), STATUS_OK); /* it has them */
    assert_int_equal(held(&rig, 2), UINT32_MAX);
    assert_int_equal(kv_store_share(rig.store, 1, 40, 2, &error), STATUS_OK);
    assert_int_equal(kv_store_share(rig.store, 1, 40, 2, &error), STATUS_OK);
    assert_int_equal(kv_store_share(rig.store, 2, 32, 3, &error), STATUS_OK);
    assert_int_equal(kv_store_pages_used(rig.store), 3);
    assert_int_equal(held(&rig, 2), 40);
    assert_int_equal(plan(&rig, &row, 1, &bad), STATUS_FAILED_PRECONDITION); /* not before it has a page of its own */
    write_range(&rig, 2, 40, 44);
    assert_int_equal(kv_store_pages_used(rig.store), 4);
    expect_page(&rig, 1, 2, last);
    write_range(&rig, 1, 40, 41); /* nobody else reads it now */
    write_range(&rig, 3, 32, 48);
    assert_int_equal(kv_store_pages_used(rig.store), 5);
    assert_int_equal(kv_store_share(rig.store, 2, 44, 4, &error), STATUS_OK);
    assert_int_equal(kv_store_reserve(rig.store, 4, 45, &error), STATUS_RESOURCE_EXHAUSTED);  /* no page for the copy */
    assert_int_equal(kv_store_share(rig.store, 2, 44, 5, &error), STATUS_RESOURCE_EXHAUSTED); /* four sequences */
    kv_store_free(rig.store, 1);
    assert_int_equal(kv_store_pages_used(rig.store), 4);
    kv_store_free(rig.store, 2);
    assert_int_equal(kv_store_pages_used(rig.store), 4);
    kv_store_free(rig.store, 4);
    assert_int_equal(kv_store_pages_used(rig.store), 3);
    kv_store_free(rig.store, 3);
    assert_int_equal(kv_store_pages_used(rig.store), 0);
    free(last);
    rig_close(&rig);
}

static void copy_sequence(struct rig *rig, uint64_t from, uint64_t to, uint32_t positions)
{
    static unsigned char page[1 << 16];
    struct error error;
    uint32_t in_page;
    kv_store_free(rig->store, to);
    const uint32_t page_tokens = rig->store->shape.page_tokens;
    for (uint32_t at = 0; at < positions; at += page_tokens) {
        assert_int_equal(kv_store_export_page(rig->store, from, at / page_tokens, page, &in_page), STATUS_OK);
        in_page = MIN(in_page, positions - at);
        assert_int_equal(kv_store_import_page(rig->store, to, at / page_tokens, page, in_page, &error), STATUS_OK);
    }
}

/* Compares the attention of a row behind what is held; its other layers are not computed. */
static void expect_attention(struct rig *shared, struct rig *copied, uint64_t sequence)
{
    const uint32_t position = held(shared, sequence);
    const struct kv_row row = {.sequence = sequence, .position = position, .sparse = position >= sparse_from};
    float expected[WIDTH];
    struct error error;
    uint32_t bad;
    if (row.position == small.max_context || kv_store_reserve(shared->store, sequence, row.position + 1, &error))
        return;
    assert_int_equal(kv_store_reserve(copied->store, sequence, row.position + 1, &error), STATUS_OK);
    assert_int_equal(plan(copied, &row, 1, &bad), STATUS_OK);
    attend(copied->batch, &row, 1, 1);
    memcpy(expected, outputs[0], sizeof expected);
    assert_int_equal(plan(shared, &row, 1, &bad), STATUS_OK);
    attend(shared->batch, &row, 1, 1);
    assert_memory_equal(outputs[0], expected, sizeof expected);
}

/* Random shares, writes and ends beside a store that copies instead: the same attention, sparse rows too, and fewer pages, none of them
 * left at the end. */
static void walk(uint32_t page_tokens)
{
    enum { IDS = 9, PAGES = 60 };
    struct kv_shape shape = small;
    shape.max_sequences = IDS;
    shape.page_tokens = page_tokens;
    shape.sparse_percent = 20;
    sparse_from = 90;
    struct rig shared = rig_open_shape(&shape, PAGES), copied = rig_open_shape(&shape, IDS * 13);
    uint64_t seed = 7;
    uint32_t shares = 0;
    struct error error;
    for (uint32_t step = 0; step < 6000; step++) {
        uint64_t id = 1 + random_next(&seed) % IDS, other = 1 + random_next(&seed) % IDS;
        uint32_t have = held(&shared, id), n = (uint32_t)(random_next(&seed) % 40);
        have = have == UINT32_MAX ? 0 : have;
        switch (random_next(&seed) % 4) {
        case 0:
            if (other == id || !have || held(&shared, other) != UINT32_MAX)
                break;
            uint32_t positions = 1 + (uint32_t)(random_next(&seed) % have);
            assert_int_equal(kv_store_share(shared.store, id, positions, other, &error), STATUS_OK);
            copy_sequence(&copied, id, other, positions);
            shares++;
            break;
        case 1:
        case 2:
            if (have + n + 1 > shape.max_context || kv_store_reserve(shared.store, id, have + n + 1, &error))
                break;
            write_range(&shared, id, have, have + n + 1);
            write_range(&copied, id, have, have + n + 1);
            break;
        default:
            if (n < 24)
                kv_store_free(shared.store, id), kv_store_free(copied.store, id);
        }
        assert_true(kv_store_pages_used(shared.store) <= kv_store_pages_used(copied.store));
        for (uint64_t i = 1; i <= IDS; i++) {
            assert_int_equal(held(&shared, i), held(&copied, i));
            if (held(&shared, i) == UINT32_MAX || step % 7)
                continue;
            expect_attention(&shared, &copied, i);
            expect_bounds(&shared, i);
            expect_bounds(&copied, i);
        }
    }
    assert_true(shares > 100);
    for (uint64_t i = 1; i <= IDS; i++)
        kv_store_free(shared.store, i);
    assert_int_equal(kv_store_pages_used(shared.store), 0);
    sparse_from = UINT32_MAX;
    rig_close(&shared);
    rig_close(&copied);
}

static void test_share_walk(void **state) { walk(16); }

static void test_share_walk_of_pages_of_two_tiles(void **state) { walk(32); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_share),
        cmocka_unit_test(test_share_walk),
        cmocka_unit_test(test_share_walk_of_pages_of_two_tiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
