/* test_kv_store.c: pages, sequences, plans and handing over, without regard to what attention computes; and a random
 * walk beside a model of a few arrays. */
#include "common/kv/kv_shape.h"
#include "tests/unit/kv_store_rig.h"

static void test_shapes(void **state)
{
    struct rig rig = rig_open(2);
    struct kv_store *store = NULL;
    struct error error;
    struct kv_shape bad[9];
    for (uint32_t i = 0; i < 9; i++)
        bad[i] = small;
    bad[0].layers = 0, bad[1].heads = 3, bad[1].kv_heads = 2, bad[2].head_dim = 24, bad[3].head_dim = 272;
    bad[4].page_tokens = 8, bad[5].type = (enum kv_type)9, bad[6].max_sequences = 0, bad[7].max_context = UINT32_MAX;
    bad[8].sparse_percent = 101;
    for (uint32_t i = 0; i < 9; i++) {
        assert_int_equal(kv_store_open(&bad[i], 1 << 20, 4, rig.pool, &store, &error), STATUS_INVALID_ARGUMENT);
        assert_true(strncmp(error.text, "KV store: ", 10) == 0);
        assert_int_equal(kv_page_bytes(&bad[i]), 0);
        assert_int_equal(kv_store_plan(&bad[i], 1 << 20, 4, 2, 1).fixed_bytes, 0);
    }
    assert_int_equal(kv_page_bytes(&small), 3 * 2 * 16 * 16 * 2);
    for (int type = KV_F16; type < KV_TYPE_END; type++) {
        static const uint32_t tile_bytes[] = {
            [KV_F16] = 8192, [KV_F32] = 16384, [KV_BF16] = 8192, [KV_INT8] = 4352, [KV_INT4] = 3456, [KV_INT4X] = 2560};
        struct kv_shape shape = small;
        enum kv_type parsed;
        shape.head_dim = 128, shape.type = (enum kv_type)type;
        assert_int_equal(kv_page_bytes(&shape), 3 * tile_bytes[type]);
        assert_int_equal(kv_type_parse(kv_type_name(shape.type), &parsed, &error), STATUS_OK);
        assert_int_equal(parsed, type);
    }
    assert_int_equal(kv_type_parse("f8", &(enum kv_type){0}, &error), STATUS_INVALID_ARGUMENT);
    assert_string_equal(kv_type_name((enum kv_type)0), "unknown");
    assert_int_equal(kv_store_open(&small, kv_page_bytes(&small) - 1, 4, rig.pool, &store, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(kv_store_open(&small, 1 << 20, 0, rig.pool, &store, &error), STATUS_INVALID_ARGUMENT);
    assert_null(store);
    struct kv_plan plan = kv_store_plan(&small, 1 << 20, 4, 2, 1);
    assert_int_equal(plan.page_bytes, kv_page_bytes(&small));
    assert_int_equal(plan.pages, (1 << 20) / kv_page_bytes(&small));
    assert_true(plan.fixed_bytes > 0 && plan.table_bytes > 0);
    assert_int_equal(kv_store_pages_total(rig.store), 2);
    kv_store_close(NULL);
    kv_batch_close(NULL);
    rig_close(&rig);
}

static void test_sparse_option(void **state)
{
    static const char *const bad[] = {
        "", "0", "0%", "101", "101%", "-1", "10%%", "10 %", "%", "ten", "1e1", "99999999999999999999", "Off"};
    uint32_t percent = 7;
    struct error error;
    assert_int_equal(kv_sparse_parse("off", &percent, &error), STATUS_OK);
    assert_int_equal(percent, 0);
    assert_int_equal(kv_sparse_parse("10%", &percent, &error), STATUS_OK);
    assert_int_equal(percent, 10);
    assert_int_equal(kv_sparse_parse("100", &percent, &error), STATUS_OK);
    assert_int_equal(percent, 100);
    for (uint32_t i = 0; i < ARRAY_COUNT(bad); i++) {
        assert_int_equal(kv_sparse_parse(bad[i], &percent, &error), STATUS_INVALID_ARGUMENT);
        assert_non_null(strstr(error.text, "--sparse-attention is '"));
        assert_int_equal(percent, 0);
    }
}

static void test_pages(void **state)
{
    struct rig rig = rig_open(5);
    struct error error;
    struct kv_held item;
    assert_int_equal(kv_store_reserve(rig.store, 1, 33, &error), STATUS_OK);
    assert_int_equal(kv_store_pages_used(rig.store), 3);
    assert_int_equal(kv_store_reserve(rig.store, 1, 10, &error), STATUS_OK); /* never takes pages away */
    assert_int_equal(kv_store_reserve(rig.store, 1, 48, &error), STATUS_OK);
    assert_int_equal(kv_store_pages_used(rig.store), 3);
    assert_int_equal(kv_store_reserve(rig.store, 2, 33, &error), STATUS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(error.text, "2 of 5"));
    assert_false(kv_store_find(rig.store, 2, &item)); /* nothing changed */
    assert_int_equal(kv_store_pages_used(rig.store), 3);
    assert_int_equal(kv_store_reserve(rig.store, 1, 201, &error), STATUS_OUT_OF_RANGE);
    assert_int_equal(kv_store_reserve(rig.store, 2, 32, &error), STATUS_OK);
    assert_int_equal(kv_store_reserve(rig.store, 3, 0, &error), STATUS_OK);
    assert_int_equal(kv_store_reserve(rig.store, 4, 1, &error), STATUS_RESOURCE_EXHAUSTED);
    kv_store_free(rig.store, 1);
    kv_store_free(rig.store, 1);
    kv_store_free(rig.store, 77);
    assert_int_equal(kv_store_pages_used(rig.store), 2);
    assert_int_equal(kv_store_reserve(rig.store, 4, 48, &error), STATUS_OK);
    assert_int_equal(kv_store_reserve(rig.store, 5, 0, &error), STATUS_OK);
    assert_int_equal(kv_store_reserve(rig.store, 6, 0, &error), STATUS_RESOURCE_EXHAUSTED); /* four sequences */
    assert_int_equal(held(&rig, 4), 0);
    rig_close(&rig);
}

static void test_plan_refusals(void **state)
{
    struct rig rig = rig_open(8);
    struct error error;
    struct kv_row rows[MAX_ROWS + 1];
    uint32_t bad = 99;
    assert_int_equal(kv_store_reserve(rig.store, 5, 16, &error), STATUS_OK);
    rows[0] = (struct kv_row){.sequence = 4, .position = 0};
    assert_int_equal(plan(&rig, rows, 1, &bad), STATUS_FAILED_PRECONDITION); /* unknown */
    assert_int_equal(bad, 0);
    rows[0] = (struct kv_row){.sequence = 5, .position = 1};
    assert_int_equal(plan(&rig, rows, 1, &bad), STATUS_FAILED_PRECONDITION); /* position 0 is missing */
    rows[0] = (struct kv_row){.sequence = 5, .position = 0}, rows[1] = (struct kv_row){.sequence = 5, .position = 2};
    assert_int_equal(plan(&rig, rows, 2, &bad), STATUS_FAILED_PRECONDITION); /* a gap */
    assert_int_equal(bad, 1);
    rows_of(rows, 0, 5, 0, 17);
    assert_int_equal(plan(&rig, rows, 17, &bad), STATUS_FAILED_PRECONDITION); /* no page */
    assert_int_equal(bad, 16);
    attend(rig.batch, rows, 17, 0); /* after a failure there are no rows */
    assert_int_equal(held(&rig, 5), 0);
    rows[1] = (struct kv_row){.sequence = 5, .position = 0};
    assert_int_equal(plan(&rig, rows, 2, &bad), STATUS_INVALID_ARGUMENT); /* twice */
    assert_int_equal(bad, 1);
    assert_int_equal(kv_store_reserve(rig.store, 3, 16, &error), STATUS_OK);
    rows[1] = (struct kv_row){.sequence = 3, .position = 0};
    assert_int_equal(plan(&rig, rows, 2, &bad), STATUS_INVALID_ARGUMENT); /* not sorted */
    assert_int_equal(plan(&rig, rows, MAX_ROWS + 1, &bad), STATUS_INVALID_ARGUMENT);
    assert_int_equal(plan(&rig, rows, 0, &bad), STATUS_OK);
    rig_close(&rig);
}

static void test_layers_and_repeats(void **state)
{
    struct rig rig = rig_open(8);
    struct kv_row rows[MAX_ROWS];
    float before[MAX_ROWS][WIDTH];
    struct kv_stats stats;
    struct error error;
    uint32_t bad, count = rows_of(rows, 0, 9, 0, 20);
    assert_int_equal(kv_store_reserve(rig.store, 9, 20, &error), STATUS_OK);
    assert_int_equal(plan(&rig, rows, count, &bad), STATUS_OK);
    attend(rig.batch, rows, count, 0);
    attend(rig.batch, rows, count, 1);
    assert_int_equal(held(&rig, 9), 0); /* half-way does not exist */
    assert_int_equal(plan(&rig, rows, count, &bad), STATUS_OK);
    attend(rig.batch, rows, count, 2); /* the last layer alone completes nothing */
    assert_int_equal(held(&rig, 9), 0);
    assert_int_equal(plan(&rig, rows, count, &bad), STATUS_OK);
    for (uint32_t layer = 0; layer < 3; layer++)
        attend(rig.batch, rows, count, layer);
    assert_int_equal(held(&rig, 9), 20);
    memcpy(before, outputs, sizeof before);
    memset(outputs, 0xff, sizeof outputs);
    write_range(&rig, 9, 0, 20); /* the whole step again */
    assert_int_equal(held(&rig, 9), 20);
    assert_memory_equal(before, outputs, 20 * sizeof *outputs);
    write_range(&rig, 9, 13, 14); /* one row from the middle */
    assert_int_equal(held(&rig, 9), 20);
    assert_memory_equal(before[13], outputs[0], sizeof *outputs);
    kv_store_stats(rig.store, &stats);
    assert_int_equal(stats.rows, 20 * 9 + 3);
    assert_int_equal(stats.tokens_read, 210 * 9 + 3 * 14);
    assert_int_equal(stats.bytes_read, (2 * 9 + 3) * 1024);
    rig_close(&rig);
}

static bool all_zero(uint32_t row)
{
    for (uint32_t i = 0; i < WIDTH; i++)
        if (outputs[row][i] != 0)
            return false;
    return true;
}

/* A sequence freed (and its pages given to another) between plan and attend: its rows give 0, and nothing else changes. */
static void test_freed_in_flight(void **state)
{
    struct rig rig = rig_open(3), other = rig;
    struct kv_row rows[MAX_ROWS];
    float expected[WIDTH];
    uint32_t bad, count;
    assert_int_equal(kv_batch_open(rig.store, &other.batch), STATUS_OK);
    write_range(&rig, 2, 0, 5);
    memcpy(expected, outputs[4], sizeof expected);
    write_range(&rig, 1, 0, 3);
    count = rows_of(rows, rows_of(rows, 0, 1, 3, 5), 2, 4, 5);
    assert_int_equal(plan(&rig, rows, count, &bad), STATUS_OK);
    attend(rig.batch, rows, count, 0);
    assert_false(all_zero(0));
    kv_store_free(rig.store, 1);
    write_range(&other, 1, 0, 3); /* known again, on the same pages: still not what was planned */
    write_range(&other, 3, 0, 16);
    for (uint32_t layer = 1; layer < 3; layer++) {
        attend(rig.batch, rows, count, layer);
        assert_true(all_zero(0));
        assert_true(all_zero(1));
    }
    assert_memory_equal(outputs[2], expected, sizeof expected);
    assert_int_equal(held(&rig, 1), 3);
    assert_int_equal(held(&rig, 2), 5);
    kv_batch_close(other.batch);
    rig_close(&rig);
}

static void test_handing_over(void **state)
{
    struct rig from = rig_open(8), to = rig_open(3);
    unsigned char *page = malloc(kv_page_bytes(&small));
    struct error error;
    uint32_t positions = 0;
    float expected[WIDTH];
    write_range(&from, 6, 0, 41);
    assert_int_equal(kv_store_export_page(from.store, 6, 3, page, &positions), STATUS_NOT_FOUND);
    assert_int_equal(kv_store_export_page(from.store, 5, 0, page, &positions), STATUS_NOT_FOUND);
    assert_int_equal(kv_store_import_page(to.store, 6, 1, page, 16, &error), STATUS_FAILED_PRECONDITION); /* out of order */
    assert_int_equal(held(&to, 6), UINT32_MAX);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(kv_store_export_page(from.store, 6, i, page, &positions), STATUS_OK);
        assert_int_equal(positions, i < 2 ? 16 : 9);
        assert_int_equal(kv_store_import_page(to.store, 6, i, page, 17, &error), STATUS_INVALID_ARGUMENT);
        assert_int_equal(kv_store_import_page(to.store, 6, i, page, 0, &error), STATUS_INVALID_ARGUMENT);
        assert_int_equal(kv_store_import_page(to.store, 6, i, page, positions, &error), STATUS_OK);
        assert_int_equal(kv_store_import_page(to.store, 6, i, page, positions, &error), STATUS_OK); /* sent twice */
    }
    assert_int_equal(held(&to, 6), 41);
    assert_int_equal(kv_store_import_page(to.store, 6, 2, page, 8, &error), STATUS_FAILED_PRECONDITION); /* shorter */
    assert_int_equal(kv_store_import_page(to.store, 6, 0, page, 16, &error), STATUS_FAILED_PRECONDITION);
    assert_int_equal(kv_store_import_page(to.store, 6, 12, page, 9, &error), STATUS_OUT_OF_RANGE);
    assert_int_equal(kv_store_import_page(to.store, 7, 0, page, 1, &error), STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(held(&to, 6), 41);
    write_range(&from, 6, 41, 42);
    memcpy(expected, outputs[0], sizeof expected);
    write_range(&to, 6, 41, 42); /* decoding goes on with the same bits */
    assert_memory_equal(expected, outputs[0], sizeof expected);
    free(page);
    rig_close(&from);
    rig_close(&to);
}

/* The last page of `positions` positions arrives twice, the second time while the row behind them is half-way through its
 * layers: what that row had written stays. */
static void test_page_twice_in_flight(void **state)
{
    static const uint32_t lengths[] = {10, 26};
    static const enum kv_type types[] = {KV_F16, KV_BF16, KV_F32, KV_INT8, KV_INT4, KV_INT4X};
    for (uint32_t which = 0; which < 2 * ARRAY_COUNT(types); which++)
        for (uint32_t i = 0; i < ARRAY_COUNT(lengths); i++) {
            uint32_t page_tokens = which % 2 ? 32 : 16;
            struct kv_shape shape = small;
            shape.page_tokens = page_tokens;
            shape.type = types[which / 2];
            struct rig from = rig_open_shape(&shape, 8), to = rig_open_shape(&shape, 8);
            unsigned char *page = malloc(kv_page_bytes(&shape)), *expected = malloc(kv_page_bytes(&shape));
            uint32_t length = lengths[i], last = (length - 1) / page_tokens, positions = 0, bad;
            struct kv_row row = {.sequence = 6, .position = length};
            struct error error;

            write_range(&from, 6, 0, length);
            for (uint32_t at = 0; at * page_tokens < length; at++) {
                assert_int_equal(kv_store_export_page(from.store, 6, at, page, &positions), STATUS_OK);
                assert_int_equal(kv_store_import_page(to.store, 6, at, page, positions, &error), STATUS_OK);
            }
            assert_int_equal(kv_store_reserve(to.store, 6, length + 1, &error), STATUS_OK);
            assert_int_equal(plan(&to, &row, 1, &bad), STATUS_OK);
            for (uint32_t layer = 0; layer < small.layers; layer++) {
                attend(to.batch, &row, 1, layer);
                assert_int_equal(kv_store_import_page(to.store, 6, last, page, positions, &error),
                                 layer + 1 < small.layers ? STATUS_OK : STATUS_FAILED_PRECONDITION);
            }
            assert_int_equal(held(&to, 6), length + 1);
            write_range(&from, 6, length, length + 1);
            assert_int_equal(kv_store_export_page(from.store, 6, last, expected, &positions), STATUS_OK);
            assert_int_equal(kv_store_export_page(to.store, 6, last, page, &positions), STATUS_OK);
            assert_memory_equal(expected, page, kv_page_bytes(&shape)); /* every layer; unused slots are 0 in both */
            free(expected);
            free(page);
            rig_close(&from);
            rig_close(&to);
        }
}

/* A tile that is full of wrong guesses is written again, in steps that end within it: its bounds are those of what it holds once it is
 * full again. So they are after it was handed over, whatever its type. */
static void test_bounds_follow(void **state)
{
    for (int type = KV_F16; type < KV_TYPE_END; type++) {
        struct kv_shape shape = small;
        unsigned char *page = malloc(kv_page_bytes(&small) * 2);
        struct error error;
        uint32_t positions;
        shape.type = (enum kv_type)type;
        shape.sparse_percent = 10;
        struct rig from = rig_open_shape(&shape, 8), to = rig_open_shape(&shape, 8);
        write_range(&from, 6, 0, 13);
        guess = 1;
        write_range(&from, 6, 13, 19);
        expect_bounds(&from, 6);
        guess = 0;
        write_range(&from, 6, 13, 15);
        write_range(&from, 6, 15, 41);
        expect_bounds(&from, 6);
        for (uint32_t i = 0; i < 3; i++) {
            assert_int_equal(kv_store_export_page(from.store, 6, i, page, &positions), STATUS_OK);
            assert_int_equal(kv_store_import_page(to.store, 6, i, page, positions, &error), STATUS_OK);
        }
        expect_bounds(&to, 6);
        write_range(&to, 6, 41, 50);
        expect_bounds(&to, 6);
        free(page);
        rig_close(&from);
        rig_close(&to);
    }
}

/* Ids that share buckets: removal must close gaps. The low byte is the number i, the rest is scattered over both halves. */
static uint64_t id_of(uint32_t i)
{
    uint64_t state = i;
    return random_next(&state) << 8 | i;
}

/* Random calls beside a model: for each id, what is reserved and what is complete. */
static void test_random_walk(void **state)
{
    enum { IDS = 7, PAGES = 12 };
    struct kv_shape shape = small;
    shape.sparse_percent = 20;
    struct rig rig = rig_open_shape(&shape, PAGES);
    uint32_t known[IDS] = {0}, pages[IDS] = {0}, complete[IDS] = {0}, seen[IDS] = {0};
    uint64_t seed = 42;
    struct error error;
    for (uint32_t step = 0; step < 4000; step++) {
        uint32_t i = (uint32_t)(random_next(&seed) % IDS), n = (uint32_t)(random_next(&seed) % 60), used = 0, count = 0;
        uint64_t id = id_of(i);
        uint32_t need = MAX(pages[i], (n + 15) / 16);
        for (uint32_t j = 0; j < IDS; j++)
            used += pages[j], count += known[j];
        switch (random_next(&seed) % 4) {
        case 0: {
            bool fits = used - pages[i] + need <= PAGES && (known[i] || count < small.max_sequences);
            assert_int_equal(kv_store_reserve(rig.store, id, n, &error), fits ? STATUS_OK : STATUS_RESOURCE_EXHAUSTED);
            if (fits)
                known[i] = 1, pages[i] = need;
            break;
        }
        case 1:
        case 2: {
            struct kv_row rows[MAX_ROWS];
            uint32_t begin = complete[i] - MIN(complete[i], n % 3), end = begin + 1 + n % 20, bad;
            bool fits = known[i] && end <= pages[i] * 16;
            count = rows_of(rows, 0, id, begin, end);
            assert_int_equal(plan(&rig, rows, count, &bad), fits ? STATUS_OK : STATUS_FAILED_PRECONDITION);
            for (uint32_t layer = 0; fits && layer < (n % 4 ? 3 : 2); layer++)
                attend(rig.batch, rows, count, layer);
            if (fits && n % 4)
                complete[i] = MAX(complete[i], end);
            break;
        }
        default: kv_store_free(rig.store, id); known[i] = pages[i] = complete[i] = 0;
        }
        expect_bounds(&rig, id);
        used = count = 0;
        for (uint32_t j = 0; j < IDS; j++) {
            used += pages[j], count += known[j];
            assert_int_equal(held(&rig, id_of(j)), known[j] ? complete[j] : UINT32_MAX);
        }
        assert_int_equal(kv_store_pages_used(rig.store), used);
        struct kv_held item;
        memset(seen, 0, sizeof seen);
        for (uint32_t cursor = 0; kv_store_next(rig.store, &cursor, &item); count--) {
            uint32_t j = (uint32_t)(item.sequence & 0xff);
            assert_true(known[j] && !seen[j] && item.positions == complete[j]);
            seen[j] = 1;
        }
        assert_int_equal(count, 0);
    }
    rig_close(&rig);
}

/* Rows whose o nobody wants are stored as others are, read nothing, and change nothing for the others. */
static void test_unwanted(void **state)
{
    struct rig all = rig_open(12), some = rig_open(12);
    struct kv_row rows[MAX_ROWS];
    struct kv_stats before, after;
    struct error error;
    uint64_t seed = 3;
    uint32_t bad;
    for (uint32_t begin = 0; begin < 90; begin += 30) {
        uint32_t count = rows_of(rows, rows_of(rows, 0, 1, begin, begin + 30), 2, begin, begin + 30);
        for (uint64_t id = 1; id <= 2; id++) {
            assert_int_equal(kv_store_reserve(all.store, id, begin + 30, &error), STATUS_OK);
            assert_int_equal(kv_store_reserve(some.store, id, begin + 30, &error), STATUS_OK);
        }
        assert_int_equal(plan(&all, rows, count, &bad), STATUS_OK);
        assert_int_equal(plan(&some, rows, count, &bad), STATUS_OK);
        for (uint32_t layer = 0; layer < small.layers; layer++) {
            static float wanted[MAX_ROWS][WIDTH];
            bool none = begin == 30 && layer == 1;
            attend(all.batch, rows, count, layer);
            memcpy(wanted, outputs, sizeof wanted);
            memset(outputs, 0, sizeof outputs);
            unwanted = none ? UINT64_MAX : random_next(&seed);
            kv_store_stats(some.store, &before);
            attend(some.batch, rows, count, layer);
            kv_store_stats(some.store, &after);
            assert_int_equal(after.bytes_read > before.bytes_read, !none);
            assert_int_equal(after.tokens_read > before.tokens_read, !none);
            for (uint32_t row = 0; row < count; row++)
                if (!(unwanted >> row & 1))
                    assert_memory_equal(outputs[row], wanted[row], sizeof wanted[row]);
            unwanted = 0;
        }
    }
    rig_close(&all);
    rig_close(&some);
}

// Fills in a shape member by member, so that the padding between them keeps its bytes. The member number `other` has another value.
static void fill_shape(struct kv_shape *out, int padding, uint32_t other)
{
    uint32_t *const numbers[] = {&out->layers,        &out->heads,       &out->kv_heads,       &out->head_dim, &out->page_tokens,
                                 &out->max_sequences, &out->max_context, &out->sparse_percent, &out->window};
    enum { NUMBERS = sizeof numbers / sizeof *numbers };

    memset(out, padding, sizeof *out);
    for (uint32_t i = 0; i < NUMBERS; i++)
        *numbers[i] = 10 + i + (i == other);
    out->type = other == NUMBERS ? KV_INT8 : KV_F16;
    out->soft_cap = other == NUMBERS + 1 ? 31 : 30;
    out->all_windowed = other == NUMBERS + 2;
    for (uint32_t i = 0; i < KV_LAYER_WORDS; i++)
        out->windowed[i] = i + (other == NUMBERS + 3 + i);
}

static void test_same_shape(void **state)
{
    enum { MEMBERS = 9 + 3 + KV_LAYER_WORDS };
    struct kv_shape a, b;

    fill_shape(&a, 0x00, MEMBERS);
    fill_shape(&b, 0xff, MEMBERS);
    assert_true(memcmp(&a, &b, sizeof a) != 0); // otherwise there is no padding
    assert_true(kv_same_shape(&a, &b));
    for (uint32_t other = 0; other < MEMBERS; other++) {
        fill_shape(&b, 0x00, other);
        assert_false(kv_same_shape(&a, &b));
        assert_false(kv_same_shape(&b, &a));
    }
}

// Sinks are for one layer of one plan. v is 1: so is o without them.
static void test_sinks_do_not_stay(void **state)
{
    const struct kv_row row = {.sequence = 1};
    float ones[16], out[32];
    const float sinks[2] = {0, 0}, zeros[32] = {0}, *const q[] = {zeros}, *const kv[] = {ones};
    float *const o[] = {out};
    struct rig rig = rig_open(4);
    struct error error;
    uint32_t bad;

    for (uint32_t i = 0; i < 16; i++)
        ones[i] = 1;
    assert_int_equal(kv_store_reserve(rig.store, 1, 1, &error), STATUS_OK);
    kv_batch_sinks(rig.batch, sinks);
    assert_int_equal(kv_batch_plan(rig.batch, &row, 1, &bad, &error), STATUS_OK);
    kv_batch_attend(rig.batch, 0, q, kv, kv, o);
    assert_true(out[0] == 1);
    kv_batch_sinks(rig.batch, sinks);
    kv_batch_attend(rig.batch, 1, q, kv, kv, o);
    assert_true(out[0] == 0.5f);
    kv_batch_attend(rig.batch, 2, q, kv, kv, o);
    assert_true(out[0] == 1);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_sparse_option),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_plan_refusals),
        cmocka_unit_test(test_layers_and_repeats),
        cmocka_unit_test(test_freed_in_flight),
        cmocka_unit_test(test_handing_over),
        cmocka_unit_test(test_page_twice_in_flight),
        cmocka_unit_test(test_bounds_follow),
        cmocka_unit_test(test_random_walk),
        cmocka_unit_test(test_unwanted),
        cmocka_unit_test(test_same_shape),
        cmocka_unit_test(test_sinks_do_not_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
