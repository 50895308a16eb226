// test_gemm_floats.c: products with F32, F16 and BF16 weights at sizes that are cut into panels of rows, groups of tiles, chunks of k and register
// blocks: every level gives the one chain of fused multiply-adds in the order of k, bit for bit, however a call is cut.
#include "kernel_test.h"

enum { FLOAT_TYPES = 3, ROWS = 150, GAP = 3 };

struct fixture {
    const struct source_type *type;
    uint32_t outputs, k;
    struct packed_matrix w;
    struct quantized_rows x;
    float *values;   // [ROWS][k + GAP], misaligned by 4 bytes
    float *memory;   // of values
    float *expected; // [ROWS][outputs]
};

static void fixture_open(struct fixture *f, const struct source_type *type, uint32_t outputs, uint32_t k)
{
    uint64_t seed = outputs * 31u + k;
    uint8_t *source = random_source(type, outputs, k, &seed);
    float *weights = malloc(k * sizeof *weights);

    *f = (struct fixture){.type = type, .outputs = outputs, .k = k};
    pack_all(type, source, outputs, k, &f->w);
    free(source);
    f->memory = malloc((ROWS * (size_t)(k + GAP) + 1) * sizeof *f->memory);
    f->expected = malloc((size_t)ROWS * outputs * sizeof *f->expected);
    f->values = f->memory + 1;
    for (size_t i = 0; i < ROWS * (size_t)(k + GAP); i++)
        f->values[i] = random_normal(&seed);
    quantized_rows_init(&f->x, NULL, ROWS, k);
    quantized_rows_source(&f->x, f->values, k + GAP);
    for (uint32_t o = 0; o < outputs; o++) {
        pack_dequantize_row(&f->w, o, weights);
        for (uint32_t r = 0; r < ROWS; r++) {
            float sum = 0;
            for (uint32_t i = 0; i < k; i++)
                sum = fmaf(weights[i], f->values[r * (size_t)(k + GAP) + i], sum);
            f->expected[(size_t)r * outputs + o] = sum;
        }
    }
    free(weights);
}

static void fixture_close(struct fixture *f)
{
    free(f->w.data);
    free(f->memory);
    free(f->expected);
}

static float before(size_t at) { return (float)(at % 1000) * 0.37f; }

// Rows begin .. begin + count - 1 in calls of `most` tiles: the chain, and nothing else is written.
static void check(const struct fixture *f, const struct kernels *level, uint32_t begin, uint32_t count, uint32_t most,
                  enum gemm_store store)
{
    const size_t y_stride = f->outputs + GAP, y_count = ROWS * y_stride;
    float *y = malloc((y_count + 1) * sizeof *y);

    for (size_t i = 0; i <= y_count; i++)
        y[i] = before(i);
    for (uint32_t t = 0, n; t < f->w.tile_count; t += n) {
        n = MIN(most, f->w.tile_count - t);
        level->gemm(&f->w, &f->x, begin, count, t, n, t % 2 ? f->w.data : NULL, y + 1, y_stride, store);
    }
    assert_int_equal(f32_bits(y[0]), f32_bits(before(0)));
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t o = 0; o < y_stride; o++) {
            const size_t at = 1 + r * y_stride + o;
            float want = before(at);
            if (r >= begin && r < begin + count && o < f->outputs) {
                const float sum = f->expected[(size_t)r * f->outputs + o];
                want = store == GEMM_ADD ? want + sum : sum;
            }
            if (f32_bits(y[at]) != f32_bits(want))
                fail_msg("%s %s %ux%u, rows %u+%u, calls of %u tiles: row %u output %u: %g, expected %g", isa_name(level->level),
                         f->type->name, f->outputs, f->k, begin, count, most, r, o, (double)y[at], (double)want);
        }
    free(y);
}

static void check_level(const struct fixture *f, const struct kernels *level)
{
    static const uint32_t large[] = {64, 75, 127, 128, 129, ROWS};
    for (uint32_t count = 1; count <= 26; count++)
        check(f, level, count % 5, count, f->w.tile_count, count % 2 ? GEMM_SET : GEMM_ADD);
    for (size_t i = 0; i < ARRAY_COUNT(large); i++)
        check(f, level, ROWS - large[i], large[i], f->w.tile_count, i % 2 ? GEMM_SET : GEMM_ADD);
    for (uint32_t most = 1; most <= 9; most++) {
        check(f, level, 0, most, most, GEMM_SET);
        check(f, level, 3, 13 * most, most, GEMM_ADD);
    }
    check(f, level, 7, 0, 1, GEMM_SET);
}

static void the_chain_in_the_order_of_k(void **state)
{
    static const struct {
        uint32_t outputs, k;
    } shapes[] = {{1, 1},
                  {16, 16},
                  {37, 15},
                  {85, 50},
                  {149, 1100}}; // the last: ten tiles, two chunks from 60 rows on, two panels from 129 on
    const struct kernels *levels[ISA_LEVEL_COUNT];
    const uint32_t level_count = fast_levels(levels);

    for (size_t t = 0; t < FLOAT_TYPES; t++)
        for (size_t s = 0; s < ARRAY_COUNT(shapes); s++) {
            struct fixture f;
            fixture_open(&f, &source_types[t], shapes[s].outputs, shapes[s].k);
            assert_int_equal(f.w.group_count, 0);
            for (uint32_t l = 0; l < level_count; l++)
                check_level(&f, levels[l]);
            fixture_close(&f);
        }
}

// The same row at another place in another company.
static void the_order_of_rows_does_not_matter(void **state)
{
    const struct kernels *levels[ISA_LEVEL_COUNT];
    const uint32_t level_count = fast_levels(levels);

    for (size_t t = 0; t < FLOAT_TYPES; t++)
        for (uint32_t l = 0; l < level_count; l++) {
            struct fixture f;
            fixture_open(&f, &source_types[t], 40, 1100);
            float *y = malloc((size_t)ROWS * f.outputs * sizeof *y);
            for (uint32_t r = 0; r < ROWS / 2; r++)
                for (uint32_t i = 0; i < f.k + GAP; i++) {
                    float *a = &f.values[r * (size_t)(f.k + GAP) + i], *b = &f.values[(ROWS - 1 - r) * (size_t)(f.k + GAP) + i],
                          was = *a;
                    *a = *b, *b = was;
                }
            levels[l]->gemm(&f.w, &f.x, 0, ROWS, 0, f.w.tile_count, NULL, y, f.outputs, GEMM_SET);
            for (uint32_t r = 0; r < ROWS; r++)
                assert_memory_equal(y + (size_t)r * f.outputs, f.expected + (size_t)(ROWS - 1 - r) * f.outputs,
                                    f.outputs * sizeof *y);
            free(y);
            fixture_close(&f);
        }
}

// A row with a NaN or an infinity leaves the others alone.
static void what_is_not_finite_stays_in_its_row(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    const struct kernels *levels[ISA_LEVEL_COUNT];
    const uint32_t level_count = fast_levels(levels);

    for (size_t t = 0; t < FLOAT_TYPES; t++)
        for (uint32_t l = 0; l < level_count; l++)
            for (size_t b = 0; b < ARRAY_COUNT(bad); b++) {
                struct fixture f;
                float y[9 * 20];
                fixture_open(&f, &source_types[t], 20, 96);
                f.values[4 * (f.k + GAP) + 70] = bad[b];
                levels[l]->gemm(&f.w, &f.x, 0, 9, 0, f.w.tile_count, NULL, y, f.outputs, GEMM_SET);
                for (uint32_t r = 0; r < 9; r++)
                    for (uint32_t o = 0; o < 20; o++)
                        assert_true(r == 4 ? !isfinite(y[r * 20 + o])
                                           : f32_bits(y[r * 20 + o]) == f32_bits(f.expected[r * 20 + o]));
                fixture_close(&f);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_chain_in_the_order_of_k),
                                       cmocka_unit_test(the_order_of_rows_does_not_matter),
                                       cmocka_unit_test(what_is_not_finite_stays_in_its_row)};
    return cmocka_run_group_tests_name("gemm of floats", tests, NULL, NULL);
}
