/* test_cuda_prefill.c: attention of chunks by tensor cores (prefill.cu) beside plain loops in double, and beside single rows in the same
 * step. Pages that are in no order hold NaN wherever nothing was stored, so that a key too many is seen.
 */
#include "tests/cuda/device_rig.h"

/* For values near one: scores are off by 2e-4 (q as f16), weights by 2^-11; a key too many or too few in 600 makes some 5e-3. */
#define LIMIT 1e-3

enum { LAYERS = 2, LAYER = 1, CHUNKS_MAX = 24, UNUSED_ROWS = 2 /* in front, of other sequences */ };

/* Rows of a sequence of its own: positions first .. first + rows - 1, those before were stored in earlier steps. */
struct chunk {
    uint32_t first, rows;
    bool single; /* attended row by row */
};

struct step {
    struct gpu_pool pool;
    uint32_t q_width, kv_width, width;
    const struct chunk *chunks;
    uint32_t chunk_count, row_count, tile_count, longest, tile_longest;
    uint32_t *words; /* [4][row_count] row, position, table, chunk; then tiles; then page tables */
    uint32_t *tiles, *tables;
    uint32_t table_words;
    float *kv[CHUNKS_MAX]; /* [positions][2][kv_width], rounded to f16 */
    float *qkv;            /* [UNUSED_ROWS + rows][width] */
    uint32_t *words_at;
    float *qkv_at;
};

/* Rows and tiles: of chunks in tiles first, then single rows. `most` rows a tile. */
static void lay_out(struct step *s, uint32_t most)
{
    uint32_t row = 0, table = 0;
    for (uint32_t c = 0; c < s->chunk_count; c++) {
        s->row_count += s->chunks[c].rows;
        s->table_words += pages_for(s->chunks[c].first + s->chunks[c].rows);
    }
    s->words = calloc(6 * (size_t)s->row_count + s->table_words, sizeof *s->words);
    s->tiles = s->words + 4 * (size_t)s->row_count, s->tables = s->tiles + 2 * (size_t)s->row_count;
    for (int single = 0; single < 2; single++, table = 0)
        for (uint32_t c = 0; c < s->chunk_count; table += pages_for(s->chunks[c].first + s->chunks[c].rows), c++) {
            const struct chunk *chunk = &s->chunks[c];
            for (uint32_t i = 0; chunk->single == single && i < chunk->rows; i++, row++) {
                s->words[row] = UNUSED_ROWS + row;
                s->words[s->row_count + row] = chunk->first + i;
                s->words[2 * s->row_count + row] = table;
                s->words[3 * s->row_count + row] = c;
                s->longest = MAX(s->longest, chunk->first + i + 1);
                if (single || i % most)
                    continue;
                s->tiles[2 * s->tile_count] = row;
                s->tiles[2 * s->tile_count++ + 1] = MIN(most, chunk->rows - i);
                s->tile_longest = MAX(s->tile_longest, chunk->first + chunk->rows);
            }
        }
}

/* K and V of all positions before the chunks', as pages hold them, and NaN. */
static uint16_t *pages_before(struct step *s, size_t *bytes)
{
    const struct gpu_pool *p = &s->pool;
    const size_t head = (size_t)2 * GPU_PAGE_TOKENS * p->head_dim, page = head * LAYERS * p->kv_heads;
    uint16_t *pages = malloc(*bytes = page * s->table_words * 2);
    memset(pages, 0xff, *bytes);
    for (uint32_t c = 0, table = 0; c < s->chunk_count; table += pages_for(s->chunks[c].first + s->chunks[c].rows), c++)
        for (uint32_t t = 0; t < s->chunks[c].first; t++)
            for (uint32_t i = 0; i < 2 * s->kv_width; i++) {
                const uint32_t is_v = i >= s->kv_width, of = i % s->kv_width;
                pages[s->tables[table + t / GPU_PAGE_TOKENS] * page + (LAYER * p->kv_heads + of / p->head_dim) * head +
                      (is_v * GPU_PAGE_TOKENS + t % GPU_PAGE_TOKENS) * p->head_dim + of % p->head_dim] =
                    f16_from_float(s->kv[c][(size_t)t * 2 * s->kv_width + i]);
            }
    return pages;
}

/* q is `q_scale` times values near one, k `k_scale` times such: a power of two, so that it stays f16. */
static bool small_shared; /* as of a device with 64 KiB a block */

static void open_step(struct step *s, uint32_t heads, uint32_t kv_heads, uint32_t head_dim, const struct chunk *chunks,
                      uint32_t chunk_count, uint32_t most, float q_scale, float k_scale)
{
    const uint64_t seed = heads * 1000u + head_dim;
    size_t page_bytes;
    *s = (struct step){
        .pool = {.layers = LAYERS, .heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .small_shared = small_shared},
        .q_width = heads * head_dim,
        .kv_width = kv_heads * head_dim,
        .width = (heads + 2 * kv_heads) * head_dim,
        .chunks = chunks,
        .chunk_count = chunk_count};
    assert_true(chunk_count <= CHUNKS_MAX);
    lay_out(s, most ? most : gpu_tile_rows(&s->pool));
    random_order(s->tables, s->table_words, seed);
    for (uint32_t c = 0; c < chunk_count; c++) {
        const size_t count = (size_t)(chunks[c].first + chunks[c].rows) * 2 * s->kv_width;
        s->kv[c] = random_halves(count, seed + 1 + c);
        for (size_t i = 0; i < count; i++)
            s->kv[c][i] *= i / s->kv_width % 2 ? 1 : k_scale;
    }
    s->qkv = random_values((size_t)(UNUSED_ROWS + s->row_count) * s->width, seed + 1 + chunk_count);
    for (size_t i = 0; i < (size_t)(UNUSED_ROWS + s->row_count) * s->width; i++)
        s->qkv[i] *= q_scale;
    for (uint32_t row = 0; row < s->row_count; row++)
        memcpy(s->qkv + (size_t)s->words[row] * s->width + s->q_width,
               s->kv[s->words[3 * s->row_count + row]] + (size_t)s->words[s->row_count + row] * 2 * s->kv_width,
               2 * s->kv_width * sizeof(float));
    uint16_t *pages = pages_before(s, &page_bytes);
    s->pool.pages = on_device(pages, page_bytes);
    s->words_at = on_device(s->words, (6 * (size_t)s->row_count + s->table_words) * sizeof *s->words);
    s->qkv_at = on_device(s->qkv, (size_t)(UNUSED_ROWS + s->row_count) * s->width * sizeof(float));
    free(pages);
    uint32_t blocks = 0;
    assert_int_equal(gpu_tile_open(&s->pool, &blocks), cudaSuccess);
    assert_true(blocks >= 1);
}

static void close_step(struct step *s)
{
    for (uint32_t c = 0; c < s->chunk_count; c++)
        free(s->kv[c]);
    cudaFree(s->pool.pages), cudaFree(s->words_at), cudaFree(s->qkv_at);
    free(s->words), free(s->qkv);
}

/* Stores and attends as a step does. Returns o, [UNUSED_ROWS + rows][q_width]: free() it. */
static float *attend(struct step *s, uint32_t span)
{
    const uint32_t *at = s->words_at, n = s->row_count;
    const struct gpu_rows all = {at, at + n, at + 2 * n, at + 6 * n, n, s->longest};
    const struct gpu_tiles tiles = {at + 4 * n, s->tile_count, s->tile_longest, span};
    struct gpu_rows singles = all;
    uint32_t in_tiles = 0;
    for (uint32_t tile = 0; tile < s->tile_count; tile++)
        in_tiles += s->tiles[2 * tile + 1];
    singles.row += in_tiles, singles.position += in_tiles, singles.table += in_tiles, singles.count -= in_tiles;
    size_t o_bytes = (size_t)(UNUSED_ROWS + n) * s->q_width * sizeof(float),
           floats = MAX(s->tile_count ? gpu_tile_scratch(&s->pool, &tiles) : 0,
                        singles.count ? gpu_attend_scratch(&s->pool, singles.count, s->longest) : 0);
    float *o_at = on_device(NULL, o_bytes), *scratch = on_device(NULL, floats * sizeof(float));
    gpu_store_kv(&s->pool, LAYER, &all, s->qkv_at, rig_stream);
    if (s->tile_count)
        gpu_attend_tiles(&s->pool, LAYER, &all, &tiles, s->qkv_at, o_at, scratch, rig_stream);
    if (singles.count)
        gpu_attend(&s->pool, LAYER, &singles, s->qkv_at, o_at, scratch, rig_stream);
    float *o = on_host(o_at, o_bytes);
    cudaFree(o_at), cudaFree(scratch);
    return o;
}

/* One head's attention in double. `rounded`: q as the kernel has it, so that scores of any size can be compared.
 * Returns the largest score, an exponent of 2. */
static double reference(const struct step *s, uint32_t row, uint32_t head, bool rounded, double *out)
{
    const uint32_t dim = s->pool.head_dim, position = s->words[s->row_count + row];
    const float *q = s->qkv + (size_t)s->words[row] * s->width + head * dim;
    const float *k = s->kv[s->words[3 * s->row_count + row]] + head / (s->pool.heads / s->pool.kv_heads) * dim;
    double own[GPU_MAX_HEAD_DIM];
    for (uint32_t i = 0; i < dim; i++) {
        own[i] = (double)q[i] * attend_scale(dim);
        if (rounded)
            own[i] = (double)f16_to_float(f16_from_float((float)fmin(fmax(own[i], -65504), 65504)));
    }
    return attend_in_double(own, k, k + s->kv_width, 2 * s->kv_width, position + 1, dim, out);
}

/* The largest error of all rows; fails beyond the limit, and where a row was written that is none of the step's. */
static double compare(const struct step *s, const float *o, bool rounded, double limit)
{
    double largest = 0, want[GPU_MAX_HEAD_DIM];
    for (uint32_t row = 0; row < s->row_count; row++)
        for (uint32_t head = 0; head < s->pool.heads; head++) {
            reference(s, row, head, rounded, want);
            for (uint32_t i = 0; i < s->pool.head_dim; i++) {
                const float got = o[(size_t)s->words[row] * s->q_width + head * s->pool.head_dim + i];
                const double error = fabs((double)got - want[i]);
                if (!(error <= limit))
                    fail_msg("%u heads, %u KV heads of %u: position %u of chunk %u, head %u, value %u: %.9g for %.9g",
                             s->pool.heads, s->pool.kv_heads, s->pool.head_dim, s->words[s->row_count + row],
                             s->words[3 * s->row_count + row], head, i, (double)got, want[i]);
                largest = fmax(largest, error);
            }
        }
    return largest;
}

static double check(uint32_t heads, uint32_t kv_heads, uint32_t head_dim, const struct chunk *chunks, uint32_t count, uint32_t span)
{
    struct step s;
    open_step(&s, heads, kv_heads, head_dim, chunks, count, 0, 1, 1);
    float *o = attend(&s, span);
    double largest = compare(&s, o, false, LIMIT);
    free(o);
    close_step(&s);
    return largest;
}

enum { UNCUT = 1 << 20 };

/* Every length, in one step, behind contexts that end in and at the end of a page and of a piece of 64 keys. */
static void test_lengths(void **state)
{
    static const uint32_t contexts[] = {0, 5, 16, 59};
    struct chunk chunks[20];
    double largest = 0;
    for (size_t c = 0; c < ARRAY_COUNT(contexts); c++) {
        for (uint32_t i = 0; i < 17; i++)
            chunks[i] = (struct chunk){.first = contexts[(c + i) % ARRAY_COUNT(contexts)], .rows = i + 1};
        chunks[17] = (struct chunk){.first = contexts[c], .rows = 64};
        chunks[18] = (struct chunk){.first = contexts[c], .rows = 130};
        largest = fmax(largest, check(c % 2 ? 3 : 1, 1, c / 2 ? 128 : 64, chunks, c ? 18 : 19, UNCUT));
    }
    print_message("largest error %.2g\n", largest);
}

/* Query heads of a KV head, values of a head (some of them padded), contexts of some pages; rows one by one in the same step. */
static void test_shapes(void **state)
{
    static const struct {
        uint32_t heads, kv_heads, head_dim;
    } shapes[] = {{2, 2, 64}, {3, 1, 96}, {8, 2, 128}, {8, 1, 64},  {16, 1, 128}, {32, 1, 32},
                  {4, 2, 16}, {6, 2, 80}, {2, 1, 72},  {4, 4, 112}, {9, 3, 64},   {1, 1, 8}};
    static const struct chunk chunks[] = {{.first = 0, .rows = 33},
                                          {.first = 100, .rows = 1, .single = true},
                                          {.first = 5, .rows = 7},
                                          {.first = 16, .rows = 4},
                                          {.first = 47, .rows = 2, .single = true}};
    double largest = 0;
    for (size_t i = 0; i < ARRAY_COUNT(shapes); i++)
        largest = fmax(largest, check(shapes[i].heads, shapes[i].kv_heads, shapes[i].head_dim, chunks, ARRAY_COUNT(chunks), UNCUT));
    print_message("largest error %.2g\n", largest);
}

/* More pages than the lanes of a warp name at once, and contexts cut into spans, some of which rows of a tile do not see. */
static void test_long_contexts(void **state)
{
    static const struct chunk far[] = {{.first = 500, .rows = 17}, {.first = 505, .rows = 130}, {.first = 3, .rows = 12}},
                              farther[] = {{.first = 1013, .rows = 24}, {.first = 1024, .rows = 1}, {.first = 511, .rows = 2}};
    check(4, 1, 64, far, ARRAY_COUNT(far), UNCUT);
    check(1, 1, 128, far, ARRAY_COUNT(far), GPU_TILE_SPAN);
    check(8, 2, 64, farther, ARRAY_COUNT(farther), UNCUT);
    check(8, 2, 64, farther, ARRAY_COUNT(farther), GPU_TILE_SPAN);
    check(3, 1, 96, farther, ARRAY_COUNT(farther), 2 * GPU_TILE_SPAN);
}

/* A row's bits are the same in a tile of its own as in any company. */
static void test_alone(void **state)
{
    static const struct chunk chunks[] = {{.first = 530, .rows = 37}, {.first = 1, .rows = 70}};
    for (uint32_t span = GPU_TILE_SPAN; span <= UNCUT; span *= UNCUT / GPU_TILE_SPAN) {
        struct step s;
        float *o[3];
        for (uint32_t i = 0; i < 3; i++) {
            open_step(&s, 3, 1, 64, chunks, ARRAY_COUNT(chunks), i == 0 ? 0 : i == 1 ? 1 : 11, 1, 1);
            o[i] = attend(&s, span);
            assert_memory_equal(o[0] + UNUSED_ROWS * s.q_width, o[i] + UNUSED_ROWS * s.q_width,
                                (size_t)s.row_count * s.q_width * sizeof(float));
            close_step(&s);
        }
        for (uint32_t i = 0; i < 3; i++)
            free(o[i]);
    }
}

/* Scores of some hundred: nearly one key alone. Then q far beyond f16: its range ends there, nothing becomes NaN or infinite. */
static void test_extremes(void **state)
{
    static const struct chunk chunks[] = {{.first = 70, .rows = 20}, {.first = 0, .rows = 5}};
    struct step s;
    open_step(&s, 4, 2, 64, chunks, ARRAY_COUNT(chunks), 0, 100, 1);
    float *o = attend(&s, UNCUT);
    compare(&s, o, true, LIMIT);
    free(o);
    close_step(&s);
    open_step(&s, 4, 2, 128, chunks, ARRAY_COUNT(chunks), 0, 1e30f, 1);
    o = attend(&s, UNCUT);
    for (uint32_t row = 0; row < s.row_count; row++)
        for (uint32_t i = 0; i < s.q_width; i++)
            assert_true(fabsf(o[(size_t)s.words[row] * s.q_width + i]) < 3.6f);
    free(o);
    close_step(&s);
    open_step(&s, 4, 2, 64, chunks, ARRAY_COUNT(chunks), 0, 1e-30f, 1); /* all keys alike */
    o = attend(&s, UNCUT);
    compare(&s, o, false, LIMIT);
    free(o);
    close_step(&s);
}

/* Scores from 2^25 on, where f32 has not every integer any more: what weights are multiplied with, 2^14, would be lost in rounding or
 * grow beyond f16. The largest scores of the rows are at all sizes where it differs, and beyond. */
static void test_huge_scores(void **state)
{
    static const struct chunk chunks[] = {{.first = 70, .rows = 20}, {.first = 0, .rows = 33}, {.first = 530, .rows = 5}};
    uint32_t seen[4] = {0}; /* of 2^25 up to 2^26, and so on */
    for (float k_scale = 1024; k_scale <= 16384; k_scale *= 4)
        for (uint32_t span = GPU_TILE_SPAN; span <= UNCUT; span *= UNCUT / GPU_TILE_SPAN) {
            struct step s;
            double out[GPU_MAX_HEAD_DIM];
            open_step(&s, 4, 2, 64, chunks, ARRAY_COUNT(chunks), 0, 1e4f, k_scale);
            float *o = attend(&s, span);
            compare(&s, o, true, LIMIT);
            for (uint32_t row = 0; row < s.row_count; row++)
                for (uint32_t head = 0; head < s.pool.heads; head++) {
                    const double most = reference(&s, row, head, true, out);
                    for (uint32_t i = 0; i < ARRAY_COUNT(seen); i++)
                        seen[i] += most >= ldexp(1, 25 + (int)i) && most < ldexp(1, 26 + (int)i);
                }
            free(o);
            close_step(&s);
        }
    for (uint32_t i = 0; i < ARRAY_COUNT(seen); i++)
        assert_true(seen[i] > 20);
}

/* Half as many keys a turn. */
static void test_small_shared(void **state)
{
    small_shared = true;
    test_lengths(state);
    test_shapes(state);
    test_long_contexts(state);
    small_shared = false;
}

static void test_which_shapes(void **state)
{
    struct gpu_pool pool = {.layers = 1, .heads = 32, .kv_heads = 8, .head_dim = 128};
    struct gpu_tiles tiles = {.count = 5, .longest = 1025, .span = 512};
    assert_int_equal(gpu_tile_rows(&pool), 32);
    assert_int_equal(gpu_tile_scratch(&pool, &tiles), 5 * 8 * 3 * 128 * 130);
    tiles.span = 2048;
    assert_int_equal(gpu_tile_scratch(&pool, &tiles), 0);
    pool.head_dim = 136; /* gpu_attend's */
    assert_int_equal(gpu_tile_rows(&pool), 0);
    pool = (struct gpu_pool){.layers = 1, .heads = 71, .kv_heads = 1, .head_dim = 64};
    assert_int_equal(gpu_tile_rows(&pool), 0);
    pool.heads = 3;
    assert_int_equal(gpu_tile_rows(&pool), 42);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lengths),      cmocka_unit_test(test_shapes),       cmocka_unit_test(test_long_contexts),
        cmocka_unit_test(test_alone),        cmocka_unit_test(test_extremes),     cmocka_unit_test(test_huge_scores),
        cmocka_unit_test(test_small_shared), cmocka_unit_test(test_which_shapes),
    };
    return rig_begin(NULL) ? rig_end(cmocka_run_group_tests_name("cuda prefill", tests, NULL, NULL)) : 0;
}
