// test_attention_sparse.c: what a sparse row attends to: bounds, scores and the choice against plain loops, and sparse rows through the
// KV store against sums in double over the tiles that a plain sort chooses.
#include "tests/kernels/kernel_test.h"

#include "kernels/attention/attention_sparse.h"
#include "kernels/kv/kv_store.h"

// --- one tile ------------------------------------------------------------------------------------------------------------

// Returns the largest q·k of the tile's tokens, by the reference kernel.
static float largest_dot(enum kv_type type, uint32_t head_dim, const unsigned char *tile, const float *q)
{
    float scaled[KV_MAX_HEAD_DIM], acc[KV_MAX_HEAD_DIM], m, l;
    attend_load_q_ref(type, head_dim, q, scaled);
    attend_range_ref(&(struct attend_range){.type = type,
                                            .head_dim = head_dim,
                                            .line_count = 1,
                                            .limit = (uint32_t[]){KV_TILE},
                                            .q = scaled,
                                            .tiles = (const unsigned char *[]){tile},
                                            .tile_count = 1,
                                            .m = &m,
                                            .l = &l,
                                            .acc = acc});
    return m * sqrtf((float)head_dim);
}

static float score_by(const struct attention_kernels *kernels_of, uint32_t head_dim, const uint16_t *bounds, const float *q)
{
    float sums[2 * KV_MAX_HEAD_DIM], score;
    const uint16_t *list[] = {bounds};
    attend_bound_q(1, head_dim, q, sums);
    kernels_of->scores(
        &(struct attend_scores){.head_dim = head_dim, .count = 1, .q = sums, .bounds = list, .bounds_count = 1, .scores = &score});
    return score;
}

// No token of a tile beats its bound, and along one dimension a token reaches it.
static void test_bounds(void **state)
{
    static const uint32_t head_dims[] = {16, 48, 64, 128, 256};
    uint64_t seed = 1;
    for (int type = KV_F16; type <= KV_INT4X; type++)
        for (uint32_t d = 0; d < ARRAY_COUNT(head_dims); d++) {
            uint32_t head_dim = head_dims[d];
            unsigned char *tile = test_alloc(kv_tile_bytes(head_dim, (enum kv_type)type));
            float k[KV_MAX_HEAD_DIM], q[KV_MAX_HEAD_DIM];
            uint16_t bounds[2 * KV_MAX_HEAD_DIM];
            for (uint32_t slot = 0; slot < KV_TILE; slot++) {
                for (uint32_t i = 0; i < head_dim; i++)
                    k[i] = random_normal(&seed) * (slot % 3 ? 1.0f : 40.0f) - 0.3f * (float)(i % 5);
                attend_store_ref((enum kv_type)type, head_dim, k, k, tile, slot);
            }
            attend_bounds((enum kv_type)type, head_dim, tile, bounds);
            for (uint32_t i = 0; i < head_dim; i++)
                for (int sign = -1; sign <= 1; sign += 2) {
                    memset(q, 0, sizeof q);
                    q[i] = (float)sign;
                    float most = largest_dot((enum kv_type)type, head_dim, tile, q);
                    float bound = score_by(attention_of_level(ISA_REF), head_dim, bounds, q), step = fabsf(most) * 0x1p-9f + 1e-6f;
                    assert_true(bound >= most - fabsf(most) * 1e-6f && bound <= most + step);
                }
            for (uint32_t n = 0; n < 20; n++) {
                float size = 0;
                for (uint32_t i = 0; i < head_dim; i++)
                    q[i] = random_normal(&seed), size += 40 * fabsf(q[i]);
                assert_true(score_by(attention_of_level(ISA_REF), head_dim, bounds, q) >=
                            largest_dot((enum kv_type)type, head_dim, tile, q) - 1e-6f * size);
            }
            free(tile);
        }
}

// A NaN and values that f16 does not hold widen the bounds to all that it does.
static void test_bounds_of_extremes(void **state)
{
    const float values[] = {NAN, -NAN, 1e30f, -1e30f, INFINITY, -INFINITY, 0.0f, -0.0f};
    uint16_t bounds[2 * 16];
    for (int type = KV_F16; type <= KV_INT4X; type++)
        for (uint32_t v = 0; v < ARRAY_COUNT(values); v++) {
            unsigned char *tile = test_alloc(kv_tile_bytes(16, (enum kv_type)type));
            for (uint32_t slot = 0; slot < KV_TILE; slot++) {
                float k[16] = {0};
                k[3] = slot == 9 ? values[v] : 0;
                attend_store_ref((enum kv_type)type, 16, k, k, tile, slot);
            }
            attend_bounds((enum kv_type)type, 16, tile, bounds);
            float low = f16_to_float(bounds[3]), high = f16_to_float(bounds[16 + 3]);
            assert_true(isnan(values[v]) ? low == -65504 && high == 65504 : low <= 0 && high >= 0);
            assert_true(values[v] > 1 ? high >= 65000 : values[v] < -1 ? low <= -65000 : true);
            for (uint32_t i = 0; i < 16; i++)
                assert_true(fabsf(f16_to_float(bounds[i])) <= 65504 && fabsf(f16_to_float(bounds[16 + i])) <= 65504);
            free(tile);
        }
}

static void test_scores(void **state)
{
    enum { TILES = 71 };
    static const uint32_t head_dims[] = {16, 48, 64, 128, 256}, counts[] = {1, 2, 3, 4, 5, 17, 64, TILES};
    const struct attention_kernels *fast[ISA_LEVEL_COUNT], *ref = attention_of_level(ISA_REF);
    uint32_t level_count = 0;
    uint64_t seed = 2;
    for (int level = ISA_AVX2; level < ISA_LEVEL_COUNT; level++)
        if (isa_supported((enum isa_level)level))
            fast[level_count++] = attention_of_level((enum isa_level)level);
    for (uint32_t d = 0; d < ARRAY_COUNT(head_dims); d++) {
        uint32_t width = 2 * head_dims[d];
        uint16_t *bounds = test_alloc((size_t)TILES * width * sizeof *bounds + 2);
        const uint16_t *list[TILES];
        float *q = (float *)test_alloc((width + 1) * sizeof *q) + 1, wanted[TILES], first[TILES], got[TILES + 1];
        for (uint32_t i = 0; i < TILES * width; i++)
            bounds[i + 1] = f16_from_float(random_normal(&seed) * 3);
        for (uint32_t i = 0; i < TILES; i++)
            list[i] = bounds + 1 + (size_t)(i * 31 % TILES) * width;
        for (uint32_t i = 0; i < width; i++)
            q[i] = random_normal(&seed);
        for (uint32_t c = 0; c < ARRAY_COUNT(counts); c++) {
            struct attend_scores job = {
                .head_dim = head_dims[d], .count = counts[c], .q = q, .bounds = list, .bounds_count = TILES, .scores = wanted};
            ref->scores(&job);
            for (uint32_t level = 0; level < level_count; level++) {
                job.scores = got, got[counts[c]] = 77;
                fast[level]->scores(&job);
                assert_true(got[counts[c]] == 77);
                if (level == 0)
                    memcpy(first, got, sizeof first);
                assert_memory_equal(got, first, counts[c] * sizeof *got);
                for (uint32_t i = 0; i < counts[c]; i++)
                    assert_true(fabsf(got[i] - wanted[i]) < 1e-5f * (float)width);
            }
        }
        free(bounds);
        free(q - 1);
    }
}

// --- the choice ------------------------------------------------------------------------------------------------------------

static const float *sort_scores;

static bool is_better(float a, float b) { return isnan(a) ? !isnan(b) : a > b; }

static int by_score(const void *a, const void *b)
{
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    float x = sort_scores[i], y = sort_scores[j];
    return is_better(x, y) ? -1 : is_better(y, x) ? 1 : i < j ? -1 : 1;
}

static int by_number(const void *a, const void *b) { return *(const uint32_t *)a < *(const uint32_t *)b ? -1 : 1; }

// The best `keep` of scores, ties to the lower one, ascending.
static void choose_plainly(const float *scores, uint32_t count, uint32_t keep, uint32_t first, uint32_t *out)
{
    uint32_t order[4096];
    for (uint32_t i = 0; i < count; i++)
        order[i] = i;
    sort_scores = scores;
    qsort(order, count, sizeof *order, by_score);
    for (uint32_t i = 0; i < keep; i++)
        out[i] = first + order[i];
    qsort(out, keep, sizeof *out, by_number);
}

static void test_choose(void **state)
{
    enum { MOST = 600 };
    const float odd[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, -NAN, 1e-40f, -1e-40f, 3e38f, -3e38f};
    float scores[MOST], copy[MOST];
    uint32_t wanted[MOST], got[MOST + 1];
    uint64_t seed = 3;
    for (uint32_t round = 0; round < 3000; round++) {
        uint32_t count = 1 + (uint32_t)(random_next(&seed) % (round % 10 ? 40 : MOST)), kind = round % 4;
        uint32_t keep = (uint32_t)(random_next(&seed) % (count + 1)), first = (uint32_t)(random_next(&seed) % 1000);
        for (uint32_t i = 0; i < count; i++) {
            uint64_t r = random_next(&seed);
            scores[i] = kind == 0   ? random_normal(&seed)
                        : kind == 1 ? (float)(r % 5) - 2 // many ties
                        : kind == 2 ? odd[r % ARRAY_COUNT(odd)]
                                    : 7.5f;
        }
        choose_plainly(scores, count, keep, first, wanted);
        for (int level = ISA_REF; level < ISA_LEVEL_COUNT; level++) {
            if (!isa_supported((enum isa_level)level))
                continue;
            memcpy(copy, scores, sizeof copy);
            got[keep] = 12345;
            attention_of_level((enum isa_level)level)->choose(copy, count, keep, first, got);
            assert_memory_equal(got, wanted, keep * sizeof *got);
            assert_int_equal(got[keep], 12345);
        }
    }
}

// The tokens at both ends are attended to at every position, candidates are full tiles, and a share of them is kept.
static void test_candidates(void **state)
{
    static const uint32_t percents[] = {1, 10, 33, 99, 100};
    for (uint32_t p = 0; p < ARRAY_COUNT(percents); p++)
        for (uint32_t position = 0; position < 5000; position++) {
            const struct attend_choice c = attend_choice_of(position, percents[p]);
            uint32_t candidates = c.last - c.first;
            assert_true(c.first <= c.last && c.last <= c.tiles && (c.tiles - 1) * KV_TILE <= position);
            assert_true(c.tiles * KV_TILE > position && c.first == MIN(4u, c.tiles));
            assert_true(c.last * KV_TILE + ATTEND_EDGE <= position + 1 || candidates == 0);
            assert_true((c.last + 1) * KV_TILE + ATTEND_EDGE > position + 1); // no more than the last 64, in whole tiles
            assert_true(c.keep * 100 >= candidates * percents[p] && c.keep >= MIN(candidates, 64u));
            assert_true(c.keep <= 64 || (c.keep - 1) * 100 < candidates * percents[p]);
            assert_true(c.keep <= candidates);
        }
    const struct attend_choice c = attend_choice_of(16383, 10); // the worked number of attention_sparse.h
    assert_true(c.tiles == 1024 && c.first == 4 && c.last == 1020 && c.keep == 102);
}

// --- through the store -----------------------------------------------------------------------------------------------------

enum { KV_HEADS = 2, GROUP = 3, HEAD_DIM = 32, POSITIONS = 1500, PROMPT = 1250, LAYERS = 2 };
enum { Q_WIDTH = KV_HEADS * GROUP * HEAD_DIM, KV_WIDTH = KV_HEADS * HEAD_DIM };

static const struct kv_shape shape_f16 = {.layers = LAYERS,
                                          .heads = KV_HEADS * GROUP,
                                          .kv_heads = KV_HEADS,
                                          .head_dim = HEAD_DIM,
                                          .page_tokens = 16,
                                          .type = KV_F16,
                                          .max_sequences = 4,
                                          .max_context = 2048,
                                          .sparse_percent = 10};

// Inputs that f16 holds, so that the store keeps them as they are.
struct feed {
    float q[LAYERS][POSITIONS][Q_WIDTH], k[LAYERS][POSITIONS][KV_WIDTH], v[LAYERS][POSITIONS][KV_WIDTH];
    float o[LAYERS][POSITIONS][Q_WIDTH];
};

static struct feed *feed_make(uint64_t seed)
{
    struct feed *feed = test_alloc(sizeof *feed);
    float *at = feed->q[0][0];
    for (size_t i = 0; i < offsetof(struct feed, o) / sizeof(float); i++)
        at[i] = f16_to_float(f16_from_float(random_normal(&seed)));
    return feed;
}

static bool is_sparse(uint32_t position) { return position >= PROMPT; }

// Runs the whole sequence in steps of `chunk` rows, beside the rows of another sequence.
static void run(struct feed *feed, const struct kv_shape *shape, uint32_t chunk, uint32_t threads, const char *level)
{
    enum { ROWS = 512 };
    static struct kv_row rows[2 * ROWS];
    static const float *q[2 * ROWS], *k[2 * ROWS], *v[2 * ROWS];
    static float *o[2 * ROWS], other[2 * ROWS][Q_WIDTH];
    struct thread_pool *pool;
    struct kv_store *store;
    struct kv_batch *batch;
    struct error error;
    uint32_t bad;

    assert_int_equal(kernels_init(level, &error), STATUS_OK);
    assert_int_equal(thread_pool_open(threads, &pool), STATUS_OK);
    assert_int_equal(kv_store_open(shape, kv_page_memory_bytes(shape) * 200, 2 * ROWS, pool, &store, &error), STATUS_OK);
    assert_int_equal(kv_batch_open(store, &batch), STATUS_OK);
    for (uint32_t begin = 0, step = 0; begin < POSITIONS; begin += chunk, step++) {
        uint32_t end = MIN(begin + chunk, (uint32_t)POSITIONS), count = 0;
        assert_int_equal(kv_store_reserve(store, 5, end, &error), STATUS_OK);
        assert_int_equal(kv_store_reserve(store, 6, step + 1, &error), STATUS_OK);
        for (uint32_t position = begin; position < end; position++)
            rows[count++] = (struct kv_row){.sequence = 5, .position = position, .sparse = is_sparse(position)};
        rows[count++] = (struct kv_row){.sequence = 6, .position = step, .sparse = step % 2};
        assert_int_equal(kv_batch_plan(batch, rows, count, &bad, &error), STATUS_OK);
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            for (uint32_t i = 0; i < count; i++) {
                uint32_t at = rows[i].position;
                q[i] = feed->q[layer][at], k[i] = feed->k[layer][at], v[i] = feed->v[layer][at];
                o[i] = rows[i].sequence == 5 ? feed->o[layer][at] : other[i];
            }
            kv_batch_attend(batch, layer, q, k, v, o);
        }
    }
    kv_batch_close(batch);
    kv_store_close(store);
    thread_pool_close(pool);
}

// The tiles that a row attends to for a KV head, in order; returns how many.
static uint32_t tiles_of(const struct feed *feed, uint32_t percent, uint32_t layer, uint32_t position, uint32_t kv_head,
                         uint32_t *out)
{
    const struct attend_choice c = attend_choice_of(position, percent);
    float scores[POSITIONS / KV_TILE + 1];
    uint32_t count = 0;

    if (!is_sparse(position)) {
        for (uint32_t tile = 0; tile < c.tiles; tile++)
            out[count++] = tile;
        return count;
    }
    for (uint32_t tile = c.first; tile < c.last; tile++) {
        double score = 0;
        for (uint32_t head = kv_head * GROUP; head < (kv_head + 1) * GROUP; head++)
            for (uint32_t i = 0; i < HEAD_DIM; i++) {
                double x = (double)feed->q[layer][position][head * HEAD_DIM + i], best = -INFINITY;
                for (uint32_t t = tile * KV_TILE; t < (tile + 1) * KV_TILE; t++)
                    best = MAX(best, x * (double)feed->k[layer][t][kv_head * HEAD_DIM + i]);
                score += best;
            }
        scores[tile - c.first] = (float)score;
    }
    for (uint32_t tile = 0; tile < c.first; tile++)
        out[count++] = tile;
    choose_plainly(scores, c.last - c.first, c.keep, c.first, out + count);
    count += c.keep;
    for (uint32_t tile = c.last; tile < c.tiles; tile++)
        out[count++] = tile;
    return count;
}

static double error_of(const struct feed *feed, uint32_t percent, uint32_t layer, uint32_t position, uint32_t head)
{
    const uint32_t kv_head = head / GROUP;
    const float *q = feed->q[layer][position] + head * HEAD_DIM, *o = feed->o[layer][position] + head * HEAD_DIM;
    uint32_t tiles[POSITIONS / KV_TILE + 1], count = tiles_of(feed, percent, layer, position, kv_head, tiles);
    double sum = 0, total[HEAD_DIM] = {0}, worst = 0;

    for (uint32_t n = 0; n < count; n++)
        for (uint32_t t = tiles[n] * KV_TILE; t <= position && t < (tiles[n] + 1) * KV_TILE; t++) {
            double dot = 0;
            for (uint32_t i = 0; i < HEAD_DIM; i++)
                dot += (double)q[i] * (double)feed->k[layer][t][kv_head * HEAD_DIM + i];
            double p = exp(dot / sqrt(HEAD_DIM));
            sum += p;
            for (uint32_t i = 0; i < HEAD_DIM; i++)
                total[i] += p * (double)feed->v[layer][t][kv_head * HEAD_DIM + i];
        }
    for (uint32_t i = 0; i < HEAD_DIM; i++)
        worst = MAX(worst, fabs(total[i] / sum - (double)o[i]));
    return worst;
}

// percent: 90 is more than the least.
static void expect_rows(struct feed *feed, struct kv_shape shape, uint32_t percent, const char *level)
{
    static const uint32_t positions[] = {0, 63, 100, 1249, 1250, 1251, 1263, 1264, 1400, 1498, 1499};
    shape.sparse_percent = percent;
    run(feed, &shape, 64, 2, level);
    for (uint32_t i = 0; i < ARRAY_COUNT(positions); i++)
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            for (uint32_t head = 0; head < KV_HEADS * GROUP; head++)
                assert_true(error_of(feed, percent, layer, positions[i], head) < 2e-5);
}

static void test_store(void **state)
{
    struct feed *feed = feed_make(4), *again = feed_make(4);
    struct kv_shape shape = shape_f16;
    const char *best = isa_supported(ISA_AVX512) ? "avx512" : isa_supported(ISA_AVX2) ? "avx2" : "ref";
    expect_rows(feed, shape, 90, best);
    expect_rows(feed, shape, 10, "ref");
    expect_rows(feed, shape, 10, best);
    static const uint32_t chunks[] = {1, 13, 512};
    for (uint32_t i = 0; i < ARRAY_COUNT(chunks); i++) { // the same bytes, however it is computed
        shape.page_tokens = i % 2 ? 32 : 16;
        memset(again->o, 0xff, sizeof again->o);
        run(again, &shape, chunks[i], 1 + i, i == 1 && isa_supported(ISA_AVX512) ? "avx2" : best);
        assert_memory_equal(again->o, feed->o, sizeof feed->o);
    }
    shape.sparse_percent = 100; // all tiles: the bytes of dense rows
    run(feed, &shape, 64, 2, best);
    shape.sparse_percent = 0;
    run(again, &shape, 64, 2, best);
    assert_memory_equal(again->o, feed->o, sizeof feed->o);
    free(feed);
    free(again);
}

// Checks what one row reads: the bounds of the candidates, and the tiles that it keeps.
static void test_bytes_read(void **state)
{
    struct kv_shape shape = shape_f16;
    unsigned char *page = calloc(1, kv_page_bytes(&shape));
    const uint64_t tile_bytes = kv_tile_bytes(HEAD_DIM, KV_F16), bounds_bytes = 2 * HEAD_DIM * sizeof(uint16_t);
    const float zeros[Q_WIDTH] = {0}, *in[] = {zeros};
    float out[Q_WIDTH], *o[] = {out};
    struct thread_pool *pool;
    struct kv_store *store;
    struct kv_batch *batch;
    struct kv_stats dense, sparse;
    struct error error;
    uint32_t bad;
    assert_int_equal(kernels_init(NULL, &error), STATUS_OK);
    assert_int_equal(thread_pool_open(1, &pool), STATUS_OK);
    assert_int_equal(kv_store_open(&shape, kv_page_memory_bytes(&shape) * 128, 8, pool, &store, &error), STATUS_OK);
    assert_int_equal(kv_batch_open(store, &batch), STATUS_OK);
    for (uint32_t i = 0; i < 128; i++)
        assert_int_equal(kv_store_import_page(store, 1, i, page, i < 127 ? 16 : 15, &error), STATUS_OK);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(kv_batch_plan(batch, &(struct kv_row){.sequence = 1, .position = 2047, .sparse = i == 1}, 1, &bad, &error),
                         STATUS_OK);
        kv_batch_attend(batch, 0, in, in, in, o);
        kv_store_stats(store, i ? &sparse : &dense);
    }
    assert_int_equal(dense.bytes_read, 128 * KV_HEADS * tile_bytes);
    assert_int_equal(sparse.bytes_read - dense.bytes_read, KV_HEADS * (72 * tile_bytes + 120 * bounds_bytes));
    assert_int_equal(sparse.tokens_read - dense.tokens_read, 72 * 16);
    // the memory plan counts the bounds
    shape.sparse_percent = 0;
    assert_int_equal(kv_page_memory_bytes(&shape), kv_page_bytes(&shape));
    assert_int_equal(kv_page_memory_bytes(&shape_f16), kv_page_bytes(&shape) + LAYERS * KV_HEADS * bounds_bytes);
    struct kv_plan plan = kv_store_plan(&shape_f16, 1 << 24, 8, 1, 1);
    assert_int_equal(plan.page_bytes, kv_page_memory_bytes(&shape_f16));
    assert_int_equal(plan.pages, (1 << 24) / plan.page_bytes);
    assert_true(plan.fixed_bytes > kv_store_plan(&shape, 1 << 24, 8, 1, 1).fixed_bytes);
    kv_batch_close(batch);
    kv_store_close(store);
    thread_pool_close(pool);
    free(page);
}

// --- rows that threads share -------------------------------------------------------------------------------------------------

enum { LONG = 10240, LONG_KINDS = 37, LONG_HEADS = 3 };

// o of sparse rows at the end of sequences of `contexts` positions, 0 for none, computed by so many threads.
static void run_long(const unsigned char *pages, const uint32_t contexts[2], uint32_t threads, uint32_t percent,
                     float o[2][LONG_HEADS * GROUP * HEAD_DIM])
{
    const struct kv_shape shape = {.layers = 1,
                                   .heads = LONG_HEADS * GROUP,
                                   .kv_heads = LONG_HEADS,
                                   .head_dim = HEAD_DIM,
                                   .page_tokens = 32,
                                   .type = KV_F16,
                                   .max_sequences = 2,
                                   .max_context = LONG,
                                   .sparse_percent = percent};
    float q[2][LONG_HEADS * GROUP * HEAD_DIM], before[2][LONG_HEADS * GROUP * HEAD_DIM], k[LONG_HEADS * HEAD_DIM] = {0};
    const float *qs[] = {q[0], q[1]}, *ks[] = {k, k};
    float *os[] = {o[0], o[1]};
    struct kv_row rows[2];
    struct thread_pool *pool;
    struct kv_store *store;
    struct kv_batch *batch;
    struct error error;
    uint32_t bad, count = 0;
    uint64_t seed = 7;

    assert_int_equal(thread_pool_open(threads, &pool), STATUS_OK);
    assert_int_equal(kv_store_open(&shape, kv_page_memory_bytes(&shape) * LONG / 16, 8, pool, &store, &error), STATUS_OK);
    assert_int_equal(kv_batch_open(store, &batch), STATUS_OK);
    for (uint32_t i = 0; i < ARRAY_COUNT(q) * ARRAY_COUNT(q[0]); i++)
        q[i / ARRAY_COUNT(q[0])][i % ARRAY_COUNT(q[0])] = random_normal(&seed);
    for (uint32_t i = 0; i < 2 && contexts[i]; i++) {
        uint32_t last = (contexts[i] - 1) / 32;
        for (uint32_t page = 0; page <= last; page++)
            assert_int_equal(kv_store_import_page(store, i, page, pages + (page * 7 + i) % LONG_KINDS * kv_page_bytes(&shape),
                                                  page < last ? 32 : (contexts[i] - 1) % 32, &error),
                             STATUS_OK);
        rows[count++] = (struct kv_row){.sequence = i, .position = contexts[i] - 1, .sparse = true};
    }
    for (uint32_t times = 0; times < 2; times++) { // what the first left behind changes nothing
        memcpy(before, o, sizeof before);
        memset(o, 0xff, 2 * sizeof o[0]);
        assert_int_equal(kv_batch_plan(batch, rows, count, &bad, &error), STATUS_OK);
        kv_batch_attend(batch, 0, qs, ks, ks, os);
    }
    assert_memory_equal(before, o, count * sizeof o[0]);
    kv_batch_close(batch);
    kv_store_close(store);
    thread_pool_close(pool);
}

// A row that threads share has the bytes of one that a thread has to itself, in one share of candidates and in several.
static void test_shared_rows(void **state)
{
    static const uint32_t cases[][2] = {{1250, 0}, {4260, 0}, {LONG - 1, 0}, {LONG - 2, 4300}, {5000, LONG - 3}, {LONG - 1, 40}};
    const size_t values = (size_t)LONG_KINDS * 32 * 2 * LONG_HEADS * HEAD_DIM;
    uint16_t *pages = test_alloc(values * sizeof *pages);
    static float alone[2][LONG_HEADS * GROUP * HEAD_DIM], shared[2][LONG_HEADS * GROUP * HEAD_DIM];
    struct error error;
    uint64_t seed = 5;
    assert_int_equal(kernels_init(NULL, &error), STATUS_OK);
    for (size_t i = 0; i < values; i++)
        pages[i] = f16_from_float(random_normal(&seed));
    for (uint32_t i = 0; i < ARRAY_COUNT(cases); i++) {
        run_long((unsigned char *)pages, cases[i], 1, 10, alone);
        for (uint32_t threads = 2; threads <= 5; threads += 3) {
            run_long((unsigned char *)pages, cases[i], threads, 10, shared);
            assert_memory_equal(shared, alone, cases[i][1] ? sizeof alone : sizeof alone[0]);
        }
    }
    free(pages);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounds),     cmocka_unit_test(test_bounds_of_extremes), cmocka_unit_test(test_scores),
        cmocka_unit_test(test_choose),     cmocka_unit_test(test_candidates),         cmocka_unit_test(test_store),
        cmocka_unit_test(test_bytes_read), cmocka_unit_test(test_shared_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
