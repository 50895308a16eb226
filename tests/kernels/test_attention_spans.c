// test_attention_spans.c: ranges of 512 positions are folded within spans of 4,096, and spans in order. A sequence that lies at several
// places has the bits that it has at one, however it is cut, for rows that decode and for chunks.
#include "tests/kernels/kernel_test.h"

#include "kernels/attention/attention.h"
#include "kernels/kv/kv_store.h"
#include "tests/unit/sample.h"

enum { POSITIONS = 9800, LAST_ROWS = 40, PLACES = 6, ROWS = POSITIONS };

struct place {
    struct kv_store *store;
    struct kv_batch *batch;
    uint32_t first, end; // of its extent
};

static struct thread_pool *pool;
static struct kv_shape shape;
static float *q, *k, *v; // [POSITIONS][heads or kv_heads][head_dim], one layer

static uint32_t q_width(void) { return shape.heads * shape.head_dim; }
static uint32_t kv_width(void) { return shape.kv_heads * shape.head_dim; }

static void open_all(uint32_t threads, const char *level, uint32_t group, uint32_t head_dim, enum kv_type type)
{
    uint64_t seed = (uint64_t)type * 100 + head_dim + group;
    struct error error;

    shape = (struct kv_shape){.layers = 1,
                              .heads = group,
                              .kv_heads = 1,
                              .head_dim = head_dim,
                              .page_tokens = 16,
                              .type = type,
                              .max_sequences = 2,
                              .max_context = POSITIONS};
    assert_int_equal(kernels_init(level, &error), STATUS_OK);
    assert_int_equal(thread_pool_open(threads, &pool), STATUS_OK);
    q = test_alloc((size_t)POSITIONS * q_width() * sizeof *q);
    k = test_alloc((size_t)POSITIONS * kv_width() * sizeof *k);
    v = test_alloc((size_t)POSITIONS * kv_width() * sizeof *v);
    for (size_t i = 0; i < (size_t)POSITIONS * q_width(); i++)
        q[i] = 2 * random_normal(&seed);
    for (size_t i = 0; i < (size_t)POSITIONS * kv_width(); i++)
        k[i] = random_normal(&seed), v[i] = random_normal(&seed);
}

static void close_all(void)
{
    free(q), free(k), free(v);
    thread_pool_close(pool);
}

static struct place place_open(uint32_t first, uint32_t end)
{
    struct place place = {.first = first, .end = end};
    struct error error;
    uint64_t pages = (end - first + 15) / 16 + 1;

    assert_int_equal(kv_store_open(&shape, kv_page_bytes(&shape) * pages, ROWS, pool, &place.store, &error), STATUS_OK);
    assert_int_equal(kv_batch_open(place.store, &place.batch), STATUS_OK);
    assert_int_equal(kv_store_begin(place.store, 5, first, &error), STATUS_OK);
    return place;
}

static void place_close(struct place *place)
{
    kv_batch_close(place->batch);
    kv_store_close(place->store);
}

// Runs rows [begin, end) at a place: they are its own, or (reads) only attend to what it has. out[i]: o or the partials of row begin + i;
// NULL: not wanted.
static void run_rows(const struct place *place, uint32_t begin, uint32_t end, bool reads, float **out)
{
    static struct kv_row rows[ROWS];
    static const float *q_at[ROWS], *k_at[ROWS], *v_at[ROWS];
    struct error error;
    uint32_t bad;

    if (!reads)
        assert_int_equal(kv_store_reserve(place->store, 5, end, &error), STATUS_OK);
    for (uint32_t i = 0; i < end - begin; i++) {
        rows[i] =
            (struct kv_row){.sequence = 5, .position = reads ? place->end - 1 : begin + i, .first = place->first, .reads = reads};
        q_at[i] = q + (size_t)(begin + i) * q_width();
        k_at[i] = reads ? NULL : k + (size_t)(begin + i) * kv_width();
        v_at[i] = reads ? NULL : v + (size_t)(begin + i) * kv_width();
    }
    assert_int_equal(kv_batch_plan(place->batch, rows, end - begin, &bad, &error), STATUS_OK);
    kv_batch_attend(place->batch, 0, q_at, k_at, v_at, out);
}

// Fills the place with its positions. Nothing is attended to.
static void fill(const struct place *place, uint32_t end)
{
    static float *nowhere[ROWS];
    if (end > place->first)
        run_rows(place, place->first, end, false, nowhere);
}

// o of rows [begin, end) with all at one place: [end - begin][q_width].
static float *attend_whole(uint32_t begin, uint32_t end)
{
    struct place place = place_open(0, POSITIONS);
    float *o = test_alloc((size_t)(end - begin) * q_width() * sizeof *o), *out[LAST_ROWS];

    fill(&place, begin);
    for (uint32_t i = 0; i < end - begin; i++)
        out[i] = o + (size_t)i * q_width();
    run_rows(&place, begin, end, false, out);
    place_close(&place);
    return o;
}

// The same with extents that begin at firsts[0] = 0, firsts[1] …; the last one is the tail.
static float *attend_split(uint32_t begin, uint32_t end, const uint32_t *firsts, uint32_t count)
{
    size_t floats = kv_partial_floats(shape.heads, shape.head_dim);
    float *o = test_alloc((size_t)(end - begin) * q_width() * sizeof *o), *partials[PLACES], *out[LAST_ROWS];

    for (uint32_t p = 0; p < count; p++) {
        bool is_tail = p + 1 == count;
        struct place place = place_open(firsts[p], is_tail ? end : firsts[p + 1]);
        uint32_t most = kv_partial_count(place.first, place.end);
        partials[p] = test_alloc(LAST_ROWS * most * floats * sizeof(float));
        memset(partials[p], 0xff, LAST_ROWS * most * floats * sizeof(float));
        fill(&place, is_tail ? begin : place.end);
        for (uint32_t i = 0; i < end - begin; i++)
            out[i] = partials[p] + i * most * floats;
        run_rows(&place, begin, end, !is_tail, out);
        place_close(&place);
    }
    for (uint32_t i = 0; i < end - begin; i++) {
        struct kv_part parts[PLACES];
        for (uint32_t p = 0; p < count; p++) {
            uint32_t last = p + 1 == count ? end : firsts[p + 1];
            parts[p] = (struct kv_part){.first = firsts[p],
                                        .end = p + 1 == count ? begin + i + 1 : last,
                                        .partials = partials[p] + i * kv_partial_count(firsts[p], last) * floats};
        }
        memcpy(o + (size_t)i * q_width(), kv_partials_fold(shape.heads, shape.head_dim, parts, count), q_width() * sizeof *o);
    }
    for (uint32_t p = 0; p < count; p++)
        free(partials[p]);
    return o;
}

// Attends as attention.h says, kernel by kernel: one KV head, the row at `position`.
static void attend_by_kernels(uint32_t position, float *o)
{
    const struct attention_kernels *table = attention_of_level(kernels->level);
    enum kv_type type = (enum kv_type)shape.type;
    uint32_t heads = shape.heads, head_dim = shape.head_dim, limits[8];
    size_t tile_bytes = kv_tile_bytes(head_dim, type);
    unsigned char *tiles = test_alloc((position / KV_TILE + 1) * tile_bytes);
    const unsigned char *at[KV_RANGE_TILES];
    float *memory = test_alloc((size_t)heads * (4 * head_dim + 6 + 16) * sizeof(float) + ATTEND_SCORES * sizeof(float)),
          *free_at = memory;
    struct attend_partial partials[3]; // total, span, range
    float *lines = free_at, *sums = lines + (size_t)heads * head_dim, *scores = sums + 16 * (size_t)heads;

    free_at = scores + ATTEND_SCORES;
    for (uint32_t i = 0; i < 3; i++, free_at += heads * (head_dim + 2u))
        partials[i] = (struct attend_partial){free_at, free_at + heads, free_at + 2 * heads};
    for (uint32_t t = 0; t <= position; t++)
        table->store(type, head_dim, k + (size_t)t * head_dim, v + (size_t)t * head_dim, tiles + t / KV_TILE * tile_bytes,
                     t % KV_TILE);
    for (uint32_t head = 0; head < heads; head++) {
        table->load_q(type, head_dim, q + (size_t)position * q_width() + (size_t)head * head_dim, lines + (size_t)head * head_dim);
        limits[head] = position + 1;
    }
    for (uint32_t begin = 0; begin <= position; begin += KV_RANGE) {
        uint32_t in_span = begin % 4096, count = 0;
        struct attend_partial *into = in_span ? &partials[2] : begin ? &partials[1] : &partials[0];
        for (uint32_t t = begin; t <= position && t < begin + KV_RANGE; t += KV_TILE)
            at[count++] = tiles + t / KV_TILE * tile_bytes;
        table->range(&(struct attend_range){.type = type,
                                            .head_dim = head_dim,
                                            .line_count = heads,
                                            .begin = begin,
                                            .limit = limits,
                                            .q = lines,
                                            .tiles = at,
                                            .tile_count = count,
                                            .m = into->m,
                                            .l = into->l,
                                            .acc = into->acc,
                                            .sums = sums,
                                            .scores = scores});
        if (in_span)
            table->fold(heads, head_dim, begin < 4096 ? &partials[0] : &partials[1], &partials[2]);
        if (begin >= 4096 && (in_span == 4096 - 512 || begin + 512 > position))
            table->fold(heads, head_dim, &partials[0], &partials[1]);
    }
    for (uint32_t head = 0; head < heads; head++)
        attend_finish(head_dim, partials[0].acc + (size_t)head * head_dim, partials[0].l[head], o + (size_t)head * head_dim);
    free(tiles), free(memory);
}

static void expect_same(const float *got, const float *expected, uint32_t begin, uint32_t end, const char *what)
{
    for (uint32_t i = 0; i < end - begin; i++)
        if (memcmp(got + (size_t)i * q_width(), expected + (size_t)i * q_width(), q_width() * sizeof *got))
            fail_msg("%s, %s, head_dim %u: position %u differs", what, kv_type_name(shape.type), shape.head_dim, begin + i);
}

// Two to PLACES extents before position `begin`. Returns how many.
static uint32_t random_cuts(uint32_t begin, uint32_t *firsts, uint64_t *seed)
{
    bool cut[POSITIONS / 512 + 1] = {true};
    uint32_t count = 0;

    for (uint64_t i = 1 + random_next(seed) % (PLACES - 1); i; i--)
        cut[1 + random_next(seed) % (begin / 512)] = true;
    for (uint32_t at = 0; at <= begin / 512; at++)
        if (cut[at])
            firsts[count++] = at * 512;
    return count;
}

// A level and shape: what is folded in which order; then that any cut gives the same.
static void check_case(const char *level, uint32_t group, uint32_t head_dim, enum kv_type type, uint32_t threads)
{
    static const uint32_t rows[][2] = {{4094, 4098}, {8189, 8194}, {9700, 9740}}; // begin, end
    uint64_t seed = 77 + type;

    open_all(threads, level, group, head_dim, type);
    for (uint32_t r = 0; r < ARRAY_COUNT(rows); r++) {
        uint32_t begin = rows[r][0], end = is_emulated() ? MIN(begin + 5, rows[r][1]) : rows[r][1];
        float *expected = attend_whole(begin, end), *one = test_alloc(q_width() * sizeof *one);
        attend_by_kernels(end - 1, one);
        expect_same(expected + (size_t)(end - 1 - begin) * q_width(), one, end - 1, end, "two levels");
        for (uint32_t turn = 0; turn < 2; turn++) {
            uint32_t firsts[PLACES], count = random_cuts(begin, firsts, &seed);
            float *got = attend_split(begin, end, firsts, count);
            expect_same(got, expected, begin, end, "cut");
            free(got);
        }
        free(expected), free(one);
    }
    close_all();
}

static void test_types(void **state)
{
    static const struct {
        uint32_t group, head_dim;
        enum kv_type type;
    } cases[] = {{3, 64, KV_F16}, {1, 16, KV_F32}, {2, 80, KV_BF16}, {3, 64, KV_INT8}, {1, 64, KV_INT4}, {4, 48, KV_INT4X}};
    for (uint32_t i = 0; i < ARRAY_COUNT(cases); i++)
        if (!is_emulated() || in_sample(i, 1, 2))
            check_case(NULL, cases[i].group, cases[i].head_dim, cases[i].type, 1 + i % 3);
}

static void test_levels(void **state)
{
    for (int level = ISA_REF; level < ISA_LEVEL_COUNT; level++)
        if (isa_supported((enum isa_level)level)) {
            check_case(isa_name((enum isa_level)level), 1, 16, KV_F16, 2);
            if (level != ISA_REF)
                check_case(isa_name((enum isa_level)level), 2, 32, KV_INT8, 2);
        }
}

// Checks the number of partials for each number of ranges before and in an extent.
static void test_partial_count(void **state)
{
    for (uint32_t first = 0; first < 3 * 4096; first += 512)
        for (uint32_t end = first + 1; end < first + 9000; end += 37) {
            uint32_t count = 0;
            for (uint32_t at = first; at < end; at += 512)
                count += at % 4096 == 0 || at < (first + 4095) / 4096 * 4096;
            assert_int_equal(kv_partial_count(first, end), count);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_partial_count),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_levels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
