/* test_kv_extent.c: a store that holds a part of a sequence, from a later position on: its pages, what counts as held, handing it over, and
 * which rows are refused. (That its attention is right: tests/kernels/test_attention_spans.c.) */
#include <math.h>

#include "common/kv/kv_shape.h"
#include "tests/unit/kv_store_rig.h"

enum { FIRST = 1024, CONTEXT = 4000 };

static struct rig rig_of(uint32_t pages)
{
    struct kv_shape shape = small;
    shape.max_context = CONTEXT;
    return rig_open_shape(&shape, pages);
}

static struct kv_held held_of(const struct rig *rig, uint64_t sequence)
{
    struct kv_held item = {.positions = UINT32_MAX};
    (void)kv_store_find(rig->store, sequence, &item);
    return item;
}

/* Writes positions [begin, end) of an extent, at most MAX_ROWS a step. */
static void write_extent(struct rig *rig, uint64_t sequence, uint32_t first, uint32_t begin, uint32_t end)
{
    static float partials[MAX_ROWS][4 * (2 * (16 + 2))];
    static float zeros[WIDTH];
    const float *in[MAX_ROWS];
    float *out[MAX_ROWS];
    struct kv_row rows[MAX_ROWS];
    struct error error;
    uint32_t bad;

    assert_int_equal(kv_store_reserve(rig->store, sequence, end, &error), STATUS_OK);
    for (uint32_t count; begin < end; begin += count) {
        count = MIN(end - begin, (uint32_t)MAX_ROWS);
        for (uint32_t i = 0; i < count; i++) {
            rows[i] = (struct kv_row){.sequence = sequence, .position = begin + i, .first = first};
            in[i] = zeros, out[i] = partials[i];
        }
        assert_int_equal(plan(rig, rows, count, &bad), STATUS_OK);
        for (uint32_t layer = 0; layer < small.layers; layer++)
            kv_batch_attend(rig->batch, layer, in, in, in, out);
    }
}

static void test_pages(void **state)
{
    struct rig rig = rig_of(20);
    struct error error;

    assert_int_equal(kv_store_begin(rig.store, 7, FIRST + 16, &error), STATUS_OUT_OF_RANGE);
    assert_int_equal(kv_store_begin(rig.store, 7, 4096, &error), STATUS_OUT_OF_RANGE);
    assert_int_equal(kv_store_begin(rig.store, 7, FIRST, &error), STATUS_OK);
    assert_int_equal(kv_store_pages_used(rig.store), 0);
    assert_int_equal(held_of(&rig, 7).positions, FIRST);
    assert_int_equal(held_of(&rig, 7).first, FIRST);
    write_extent(&rig, 7, FIRST, FIRST, FIRST + 33);
    assert_int_equal(kv_store_pages_used(rig.store), 3);
    assert_int_equal(held_of(&rig, 7).positions, FIRST + 33);
    assert_int_equal(kv_store_reserve(rig.store, 7, FIRST + 16 * 20, &error), STATUS_OK);
    assert_int_equal(kv_store_reserve(rig.store, 7, FIRST + 16 * 20 + 1, &error), STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(kv_store_begin(rig.store, 7, FIRST, &error), STATUS_OK); /* once more: it stays */
    assert_int_equal(held_of(&rig, 7).positions, FIRST + 33);
    assert_int_equal(kv_store_begin(rig.store, 7, 2048, &error), STATUS_OK); /* it begins elsewhere: all anew */
    assert_int_equal(held_of(&rig, 7).positions, 2048);
    assert_int_equal(kv_store_pages_used(rig.store), 0);
    rig_close(&rig);
}

static void test_share(void **state)
{
    struct rig rig = rig_of(20);
    struct error error;

    assert_int_equal(kv_store_begin(rig.store, 7, FIRST, &error), STATUS_OK);
    write_extent(&rig, 7, FIRST, FIRST, FIRST + 40);
    assert_int_equal(kv_store_share(rig.store, 7, FIRST, 8, &error), STATUS_FAILED_PRECONDITION); /* none of these is here */
    assert_int_equal(kv_store_share(rig.store, 7, FIRST + 24, 8, &error), STATUS_OK);
    assert_int_equal(held_of(&rig, 8).first, FIRST);
    assert_int_equal(held_of(&rig, 8).positions, FIRST + 24);
    assert_int_equal(kv_store_pages_used(rig.store), 3);
    write_extent(&rig, 8, FIRST, FIRST + 24, FIRST + 30); /* a page of its own */
    assert_int_equal(kv_store_pages_used(rig.store), 4);
    rig_close(&rig);
}

/* Page by page to another store, by the indices of the whole sequence. */
static void test_hand_over(void **state)
{
    struct rig from = rig_of(8), to = rig_of(8);
    struct kv_shape shape = small;
    unsigned char *page = malloc(kv_page_bytes(&shape)), *again = malloc(kv_page_bytes(&shape));
    uint32_t positions;
    struct error error;

    assert_int_equal(kv_store_begin(from.store, 7, FIRST, &error), STATUS_OK);
    write_extent(&from, 7, FIRST, FIRST, FIRST + 40);
    assert_int_equal(kv_store_export_page(from.store, 7, 0, page, &positions), STATUS_NOT_FOUND);
    assert_int_equal(kv_store_export_page(from.store, 7, FIRST / 16 - 1, page, &positions), STATUS_NOT_FOUND);
    assert_int_equal(kv_store_export_page(from.store, 7, FIRST / 16 + 3, page, &positions), STATUS_NOT_FOUND);
    assert_int_equal(kv_store_import_page(to.store, 7, FIRST / 16 + 1, page, 16, &error), STATUS_FAILED_PRECONDITION);
    for (uint32_t index = FIRST / 16; index < FIRST / 16 + 3; index++) {
        assert_int_equal(kv_store_export_page(from.store, 7, index, page, &positions), STATUS_OK);
        assert_int_equal(positions, index == FIRST / 16 + 2 ? 8 : 16);
        assert_int_equal(kv_store_import_page(to.store, 7, index, page, positions, &error), STATUS_OK);
        if (positions == 16) {
            assert_int_equal(kv_store_export_page(to.store, 7, index, again, &positions), STATUS_OK);
            assert_memory_equal(again, page, kv_page_bytes(&shape));
        }
    }
    assert_int_equal(held_of(&to, 7).first, FIRST);
    assert_int_equal(held_of(&to, 7).positions, FIRST + 40);
    assert_int_equal(kv_store_import_page(to.store, 7, FIRST / 16 - 1, page, 16, &error), STATUS_FAILED_PRECONDITION);
    free(page), free(again);
    rig_close(&from), rig_close(&to);
}

static void test_refused_rows(void **state)
{
    struct rig rig = rig_of(20);
    struct error error;
    uint32_t bad;
    static const struct {
        struct kv_row rows[2];
        uint32_t count;
        enum status status;
    } cases[] = {
        {{{.sequence = 7, .position = FIRST + 40, .first = FIRST}}, 1, STATUS_OK},
        {{{.sequence = 7, .position = FIRST + 40}}, 1, STATUS_FAILED_PRECONDITION}, /* not held from 0 on */
        {{{.sequence = 7, .position = FIRST - 1, .first = FIRST}}, 1, STATUS_FAILED_PRECONDITION},
        {{{.sequence = 7, .position = FIRST + 41, .first = FIRST}}, 1, STATUS_FAILED_PRECONDITION},
        {{{.sequence = 7, .position = FIRST + 39, .first = FIRST, .reads = true}}, 1, STATUS_OK},
        {{{.sequence = 7, .position = FIRST + 40, .first = FIRST, .reads = true}}, 1, STATUS_FAILED_PRECONDITION},
        {{{.sequence = 7, .position = FIRST + 39, .first = 512, .reads = true}}, 1, STATUS_FAILED_PRECONDITION},
        {{{.sequence = 9, .position = 0, .reads = true}}, 1, STATUS_FAILED_PRECONDITION},
        {{{.sequence = 7, .position = FIRST + 9, .first = FIRST, .reads = true},
          {.sequence = 7, .position = FIRST + 9, .first = FIRST, .reads = true}},
         2,
         STATUS_OK},
        {{{.sequence = 7, .position = FIRST + 9, .first = FIRST, .reads = true},
          {.sequence = 7, .position = FIRST + 10, .first = FIRST, .reads = true}},
         2,
         STATUS_INVALID_ARGUMENT},
        {{{.sequence = 7, .position = FIRST + 9, .first = FIRST, .reads = true}, {.sequence = 8, .position = 3}},
         2,
         STATUS_INVALID_ARGUMENT},
        {{{.sequence = 8, .position = 3}, {.sequence = 7, .position = FIRST + 9, .first = FIRST, .reads = true}}, 2, STATUS_OK},
    };

    assert_int_equal(kv_store_begin(rig.store, 7, FIRST, &error), STATUS_OK);
    write_extent(&rig, 7, FIRST, FIRST, FIRST + 40);
    assert_int_equal(kv_store_reserve(rig.store, 7, FIRST + 48, &error), STATUS_OK);
    write_range(&rig, 8, 0, 10);
    assert_int_equal(kv_store_begin(rig.store, 9, 0, &error), STATUS_OK); /* nothing of it yet */
    for (uint32_t i = 0; i < ARRAY_COUNT(cases); i++)
        if (plan(&rig, cases[i].rows, cases[i].count, &bad) != cases[i].status)
            fail_msg("case %u: not status %d", i, (int)cases[i].status);
    assert_int_equal(held_of(&rig, 7).certain, FIRST + 40); /* reading changes nothing */
    rig_close(&rig);
}

/* The sequence goes while its rows are planned: their partials are zero. */
static void test_freed(void **state)
{
    enum { FLOATS = 2 * (16 + 2) };
    struct rig rig = rig_of(20);
    const struct kv_row rows[] = {{.sequence = 7, .position = FIRST + 40, .first = FIRST},
                                  {.sequence = 8, .position = 7, .reads = true}};
    float in[WIDTH] = {0}, out[2][FLOATS + 1], *outs[] = {out[0], out[1]};
    const float *ins[] = {in, in};
    struct error error;
    uint32_t bad;

    assert_int_equal(kv_store_begin(rig.store, 7, FIRST, &error), STATUS_OK);
    write_extent(&rig, 7, FIRST, FIRST, FIRST + 40);
    write_range(&rig, 8, 0, 8);
    assert_int_equal(plan(&rig, rows, 2, &bad), STATUS_OK);
    kv_store_free(rig.store, 7);
    kv_store_free(rig.store, 8);
    memset(out, 0xff, sizeof out);
    kv_batch_attend(rig.batch, 0, ins, ins, ins, outs);
    for (uint32_t i = 0; i < 2 * (FLOATS + 1); i++)
        assert_true(i % (FLOATS + 1) == FLOATS ? isnan(out[i / (FLOATS + 1)][FLOATS])
                                               : out[i / (FLOATS + 1)][i % (FLOATS + 1)] == 0);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages),        cmocka_unit_test(test_share), cmocka_unit_test(test_hand_over),
        cmocka_unit_test(test_refused_rows), cmocka_unit_test(test_freed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
