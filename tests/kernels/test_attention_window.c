// test_attention_window.c: layers in which a row attends to the last positions alone, and capped scores: against plain sums, the same bits in
// any chunks, what is read, and that pages before the window may hold anything.
#include "tests/kernels/attention_rig.h"

static struct kv_shape windowed(struct kv_shape shape, uint32_t window, float soft_cap)
{
    shape.window = window;
    shape.windowed[0] = 2; // the second of the two layers
    shape.soft_cap = soft_cap;
    return shape;
}

static const struct {
    uint32_t group, head_dim, positions, window;
    float soft_cap;
    enum kv_type type;
} cases[] = {
    {1, 64, 300, 1, 0, KV_F16},     {3, 64, 600, 5, 0, KV_F16},      {2, 64, 1100, 64, 0, KV_F16},  {8, 64, 1100, 100, 0, KV_F16},
    {1, 256, 600, 512, 0, KV_F16},  {4, 128, 1100, 513, 20, KV_F16}, {3, 80, 600, 33, 3, KV_F32},   {2, 64, 600, 17, 0, KV_BF16},
    {3, 64, 600, 70, 0, KV_INT8},   {4, 128, 600, 16, 5, KV_INT8},   {5, 80, 600, 100, 0, KV_INT4}, {3, 64, 600, 31, 0, KV_INT4X},
    {2, 64, 1500, 700, 0, KV_INT8}, {1, 64, 600, 600, 9, KV_F16},
};

static void windows_are_right_in_any_chunks(void **state)
{
    static const uint32_t chunks[] = {1, 7, 50, 333};

    for (uint32_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct kv_shape shape =
            windowed(shape_of(i % 2 + 1, cases[i].group, cases[i].head_dim, cases[i].type), cases[i].window, cases[i].soft_cap);
        struct feed feed = feed_make(&shape, 3, cases[i].positions, 2, 10 + i);
        float *expected = NULL;
        for (uint32_t c = 0; c < ARRAY_COUNT(chunks); c++) {
            feed_alone(&feed, chunks[c], 1 + c, fast_level());
            check_rows(&feed, "window");
            if (expected)
                assert_same(&feed, expected, "chunks");
            else
                expected = take_outputs(&feed);
        }
        if (cases[i].positions <= 600) {
            struct feed brief = feed_make(&shape, 3, 150, 2, i);
            feed_alone(&brief, 37, 1, "ref");
            check_rows(&brief, "ref");
            free(brief.memory);
        }
        free(expected);
        free(feed.memory);
    }
}

// Windows that reach over the border of a span, and ones that lie within the second.
static void windows_reach_over_spans(void **state)
{
    static const uint32_t windows[] = {100, 700, 4300};

    for (uint32_t i = 0; i < ARRAY_COUNT(windows); i++) {
        struct kv_shape shape = windowed(shape_of(1, 2, 64, KV_F16), windows[i], 0);
        shape.max_context = 8192;
        struct feed feed = feed_make(&shape, 3, 4700, 2, 40 + i);
        feed_alone(&feed, 500, 2, fast_level());
        check_rows(&feed, "spans");
        float *expected = take_outputs(&feed);
        feed_alone(&feed, 97, 2, fast_level());
        assert_same(&feed, expected, "spans, in other chunks");
        free(expected);
        free(feed.memory);
    }
}

// At every level the same bits.
static void levels_agree(void **state)
{
    for (uint32_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct kv_shape shape =
            windowed(shape_of(1, cases[i].group, cases[i].head_dim, cases[i].type), cases[i].window, cases[i].soft_cap);
        struct feed feed = feed_make(&shape, 3, 200, 2, 70 + i);
        assert_levels_agree(&feed);
        free(feed.memory);
    }
}

// Decode rows read what their window says, in whole tiles.
static void only_the_window_is_read(void **state)
{
    enum { CONTEXT = 8192, WINDOW = 200 };
    struct kv_shape shape = windowed(shape_of(1, 2, 64, KV_F16), WINDOW, 0);
    shape.max_context = CONTEXT;
    struct rig rig = rig_open(&shape, 1, fast_level());
    struct feed feed = feed_make(&shape, 3, CONTEXT, 1, 5);
    struct kv_stats before, after;
    const uint64_t tile = kv_tile_bytes(64, KV_F16);
    uint32_t chunk = 1024;

    feed.positions = CONTEXT - 1;
    feed_all(&rig, &feed, &chunk, 1);
    kv_store_stats(rig.store, &before);
    struct kv_row row = {.sequence = 3, .position = CONTEXT - 1};
    struct error error;
    uint32_t bad;
    const float *q = feed.q, *k = feed.k, *v = feed.v;
    float *o = feed.o;
    assert_int_equal(kv_store_reserve(rig.store, 3, CONTEXT, &error), STATUS_OK);
    assert_int_equal(kv_batch_plan(rig.batch, &row, 1, &bad, &error), STATUS_OK);
    for (uint32_t layer = 0; layer < 2; layer++)
        kv_batch_attend(rig.batch, layer, &q, &k, &v, &o);
    kv_store_stats(rig.store, &after);
    assert_int_equal(after.bytes_read - before.bytes_read, (CONTEXT / 16 + (WINDOW + 15) / 16) * tile);
    assert_int_equal(after.tokens_read - before.tokens_read, CONTEXT + WINDOW);
    free(feed.memory);
    rig_close(&rig);
}

// A sequence that is at several places has no windows: what lies elsewhere would have to be told apart.
static void no_partials(void **state)
{
    struct kv_shape shape = windowed(shape_of(1, 2, 64, KV_F16), 100, 0);
    struct rig rig = rig_open(&shape, 1, fast_level());
    struct kv_row row = {.sequence = 3, .position = KV_EXTENT_TOKENS, .first = KV_EXTENT_TOKENS};
    struct error error;
    uint32_t bad;

    assert_int_equal(kv_store_begin(rig.store, 3, KV_EXTENT_TOKENS, &error), STATUS_OK);
    assert_int_equal(kv_store_reserve(rig.store, 3, KV_EXTENT_TOKENS + 1, &error), STATUS_OK);
    assert_int_equal(kv_batch_plan(rig.batch, &row, 1, &bad, &error), STATUS_INVALID_ARGUMENT);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_are_right_in_any_chunks),
        cmocka_unit_test(windows_reach_over_spans),
        cmocka_unit_test(levels_agree),
        cmocka_unit_test(only_the_window_is_read),
        cmocka_unit_test(no_partials),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
