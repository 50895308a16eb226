// test_gemm.c: every level against ref, and every level, row count and split against one another, bit for bit.
#include "kernel_test.h"
#include "tests/unit/sample.h"

#define MAX_ROWS 33u

struct fixture {
    const struct source_type *type;
    uint32_t outputs, k, rows;
    size_t x_stride;
    struct packed_matrix w;
    struct quantized_rows x;
    float *values; // [rows][x_stride], misaligned by 4 bytes
    float *values_memory;
    void *blocks;
};

static void fixture_open(struct fixture *f, const struct source_type *type, uint32_t outputs, uint32_t k, uint32_t rows)
{
    uint64_t seed = outputs * 31u + k;
    *f = (struct fixture){.type = type, .outputs = outputs, .k = k, .rows = rows, .x_stride = k + 3};
    uint8_t *source = random_source(type, outputs, k, &seed);
    pack_all(type, source, outputs, k, &f->w);
    free(source);
    f->values_memory = test_alloc((rows * f->x_stride + 1) * sizeof(float));
    f->values = f->values_memory + 1;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < k; i++)
            f->values[r * f->x_stride + i] = random_normal(&seed) * (i % 32 == 7 ? 8.0f : 1.0f);
    f->blocks = test_alloc(quantized_rows_bytes(rows, k));
    quantized_rows_init(&f->x, f->blocks, rows, k);
    quantized_rows_source(&f->x, f->values, f->x_stride);
    kernels_of_level(ISA_REF)->quantize_rows(&f->x, 0, rows);
}

static void fixture_close(struct fixture *f)
{
    free(f->w.data);
    free(f->values_memory);
    free(f->blocks);
}

// The whole product into a fresh [rows][outputs] array.
static float *product(const struct fixture *f, const struct kernels *level)
{
    float *y = malloc((size_t)f->rows * f->outputs * sizeof *y);
    level->gemm(&f->w, &f->x, 0, f->rows, 0, f->w.tile_count, NULL, y, f->outputs, GEMM_SET);
    return y;
}

// How far f32 sums over the groups may stray: each of its roundings is at most 2^-24 of the terms' magnitudes.
static double error_limit(const struct fixture *f, uint32_t row, const float *weights)
{
    double largest = 0, x = 0;
    for (uint32_t i = 0; i < f->k; i++) {
        largest = fmax(largest, fabs((double)weights[i]));
        x += fabs((double)f->values[row * f->x_stride + i]);
    }
    uint32_t roundings = f->w.group_count ? 2 * f->w.group_count + 4 : f->k;
    return 3 * largest * x * roundings * 0x1p-24 + 1e-30;
}

static void check_against_ref(const struct fixture *f, const float *y, const char *level)
{
    float *expected = product(f, kernels_of_level(ISA_REF)), *weights = malloc(f->k * sizeof *weights);
    for (uint32_t o = 0; o < f->outputs; o++) {
        pack_dequantize_row(&f->w, o, weights);
        for (uint32_t r = 0; r < f->rows; r++) {
            float got = y[(size_t)r * f->outputs + o], want = expected[(size_t)r * f->outputs + o];
            if (!(fabs((double)got - (double)want) <= error_limit(f, r, weights)))
                fail_msg("%s %s %ux%u row %u output %u: %g, expected %g (limit %g)", level, f->type->name, f->outputs, f->k, r, o,
                         (double)got, (double)want, error_limit(f, r, weights));
        }
    }
    free(weights);
    free(expected);
}

static void for_all_shapes(void (*check)(const struct fixture *))
{
    static const uint32_t outputs[] = {1, 16, 37}, blocks[] = {1, 3};
    for (size_t t = 0; t < ARRAY_COUNT(source_types); t++)
        for (size_t o = 0; o < ARRAY_COUNT(outputs); o++)
            for (size_t b = 0; b < ARRAY_COUNT(blocks); b++) {
                uint32_t values = source_types[t].block_values;
                struct fixture f;
                fixture_open(&f, &source_types[t], outputs[o], values == 1 ? 1 + 36 * (uint32_t)b : values * blocks[b], MAX_ROWS);
                check(&f);
                fixture_close(&f);
            }
}

// ref against the definition: dequantized weights times dequantized activations.
static void check_ref(const struct fixture *f)
{
    float *y = product(f, kernels_of_level(ISA_REF)), *weights = malloc(f->k * sizeof *weights);
    for (uint32_t o = 0; o < f->outputs; o++) {
        pack_dequantize_row(&f->w, o, weights);
        for (uint32_t r = 0; r < f->rows; r++) {
            double sum = 0;
            for (uint32_t i = 0; i < f->k; i++) {
                const struct quant_block *block = &f->x.blocks[r / 8 * f->x.group_count + i / 32];
                const struct quant_part *part = &block->part[r % 8];
                double x = !f->w.group_count       ? (double)f->values[r * f->x_stride + i]
                           : i % 32 == part->index ? (double)part->outlier
                                                   : (double)part->scale * block->q[r % 8][i % 32];
                sum += (double)weights[i] * x;
            }
            assert_true(fabs(sum - (double)y[(size_t)r * f->outputs + o]) <= error_limit(f, r, weights));
        }
    }
    free(weights);
    free(y);
}

static void check_levels(const struct fixture *f)
{
    const struct kernels *levels[ISA_LEVEL_COUNT];
    uint32_t level_count = fast_levels(levels);
    float *first = NULL;
    for (uint32_t l = 0; l < level_count; l++) {
        float *y = product(f, levels[l]);
        check_against_ref(f, y, isa_name(levels[l]->level));
        if (!first) {
            first = y;
            continue;
        }
        if (memcmp(first, y, (size_t)f->rows * f->outputs * sizeof *y) != 0)
            fail_msg("%s: %s differs from %s", f->type->name, isa_name(levels[l]->level), isa_name(levels[0]->level));
        free(y);
    }
    free(first);
}

// Each row alone, any range of rows, any split of tiles: the same bits, and nothing else is written.
static void check_independence(const struct fixture *f)
{
    const struct kernels *levels[ISA_LEVEL_COUNT];
    uint32_t level_count = fast_levels(levels);
    const uint32_t step = is_emulated() ? 6 : 1; // between row counts
    size_t y_stride = f->outputs + 5;
    float *y = malloc((f->rows * y_stride + 1) * sizeof *y);
    for (uint32_t l = 0; l < level_count; l++) {
        float *expected = product(f, levels[l]);
        for (uint32_t begin = 0; begin < f->rows; begin += begin < 9 ? 1 : 7)
            for (uint32_t count = 1 + begin % step; begin + count <= f->rows; count += step) {
                memset(y, 0x55, (f->rows * y_stride + 1) * sizeof *y);
                uint32_t most = 1 + (begin + count) % 3; // tiles a call
                for (uint32_t t = 0, n; t < f->w.tile_count; t += n) {
                    n = MIN(most, f->w.tile_count - t);
                    levels[l]->gemm(&f->w, &f->x, begin, count, t, n, NULL, y + 1, y_stride, GEMM_SET);
                }
                for (uint32_t r = 0; r < f->rows; r++)
                    for (uint32_t o = 0; o < y_stride; o++) {
                        bool inside = r >= begin && r < begin + count && o < f->outputs;
                        uint32_t want = inside ? f32_bits(expected[(size_t)r * f->outputs + o]) : 0x55555555u;
                        if (f32_bits(y[1 + r * y_stride + o]) != want)
                            fail_msg("%s %s rows %u+%u: row %u output %u", isa_name(levels[l]->level), f->type->name, begin, count,
                                     r, o);
                    }
            }
        free(expected);
    }
    free(y);
}

static void check_add(const struct fixture *f)
{
    const struct kernels *levels[ISA_LEVEL_COUNT];
    uint32_t level_count = fast_levels(levels);
    levels[level_count++] = kernels_of_level(ISA_REF);
    for (uint32_t l = 0; l < level_count; l++) {
        float *plain = product(f, levels[l]), *added = malloc((size_t)f->rows * f->outputs * sizeof *added);
        for (size_t i = 0; i < (size_t)f->rows * f->outputs; i++)
            added[i] = (float)i * 0.37f;
        levels[l]->gemm(&f->w, &f->x, 0, f->rows, 0, f->w.tile_count, NULL, added, f->outputs, GEMM_ADD);
        for (size_t i = 0; i < (size_t)f->rows * f->outputs; i++)
            assert_int_equal(f32_bits(added[i]), f32_bits((float)i * 0.37f + plain[i]));
        free(added);
        free(plain);
    }
}

static void test_ref(void **state) { for_all_shapes(check_ref); }
static void test_levels(void **state) { for_all_shapes(check_levels); }
static void test_independence(void **state) { for_all_shapes(check_independence); }
static void test_add(void **state) { for_all_shapes(check_add); }

// The largest integer sums: any 16-bit saturation would show.
static void test_extreme_quants(void **state)
{
    enum { outputs = 3 * PACK_TILE_OUTPUTS, rows = 21 }; // register blocks of one tile and of two
    static const uint8_t fills[] = {0x00, 0xff, 0x7f, 0x80, 0xf0, 0x0f};
    for (size_t t = 3; t < ARRAY_COUNT(source_types); t++)
        for (size_t b = 0; b < ARRAY_COUNT(fills); b++)
            for (int sign = -1; sign <= 1; sign += 2) {
                struct fixture f;
                const struct source_type *type = &source_types[t];
                fixture_open(&f, type, outputs, 256, rows);
                size_t bytes = (size_t)outputs * 256 / type->block_values * type->block_bytes;
                uint8_t *source = malloc(bytes);
                memset(source, fills[b], bytes);
                for (size_t at = 0; at < bytes; at += type->block_bytes)
                    for (uint32_t s = 0; s < type->scale_count; s++)
                        set_scale(type, source + at, s, 1);
                pack_tiles(&f.w, source, 0, f.w.tile_count);
                free(source);
                for (size_t i = 0; i < rows * f.x_stride; i++)
                    f.values[i] = (float)sign * 3.0f;
                kernels_of_level(ISA_REF)->quantize_rows(&f.x, 0, rows);
                check_ref(&f);
                check_levels(&f);
                fixture_close(&f);
            }
}

// Panels and long rows: k large enough that the rows are cut into several panels.
static void test_panels(void **state)
{
    struct fixture f;
    fixture_open(&f, &source_types[4], 40, 8192, 50);
    check_levels(&f);
    const struct kernels *levels[ISA_LEVEL_COUNT];
    uint32_t level_count = fast_levels(levels);
    for (uint32_t l = 0; l < level_count; l++) {
        float *all = product(&f, levels[l]), y[40];
        for (uint32_t r = 0; r < f.rows; r++) {
            levels[l]->gemm(&f.w, &f.x, r, 1, 0, f.w.tile_count, NULL, y - (size_t)r * f.outputs, f.outputs, GEMM_SET);
            assert_memory_equal(y, all + (size_t)r * f.outputs, sizeof y);
        }
        free(all);
    }
    fixture_close(&f);
}

// Widened weights: a chunk of groups that is not full, and more rows than have their sums on the stack.
static void test_many_rows(void **state)
{
    for (size_t t = 3; t < ARRAY_COUNT(source_types); t++) {
        struct fixture f;
        fixture_open(&f, &source_types[t], 37, source_types[t].block_values == 32 ? 288 : 512, 151);
        check_levels(&f);
        const struct kernels *levels[ISA_LEVEL_COUNT];
        uint32_t level_count = fast_levels(levels);
        float *y = malloc((size_t)f.rows * f.outputs * sizeof *y);
        for (uint32_t l = 0; l < level_count; l++) {
            float *all = product(&f, levels[l]);
            for (uint32_t row = 0, count = 1; row < f.rows; row += count++) // by parts
                levels[l]->gemm(&f.w, &f.x, row, MIN(count, f.rows - row), 0, f.w.tile_count, NULL, y, f.outputs, GEMM_SET);
            assert_memory_equal(y, all, (size_t)f.rows * f.outputs * sizeof *y);
            free(all);
        }
        free(y);
        fixture_close(&f);
    }
}

// A row with a NaN or an infinity is NaN itself and leaves the others alone.
static void test_not_finite(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    const struct kernels *levels[ISA_LEVEL_COUNT];
    uint32_t level_count = fast_levels(levels);
    levels[level_count++] = kernels_of_level(ISA_REF);
    for (uint32_t l = 0; l < level_count; l++)
        for (size_t b = 0; b < ARRAY_COUNT(bad); b++) {
            struct fixture f;
            fixture_open(&f, &source_types[4], 20, 96, 9);
            float *expected = product(&f, levels[l]);
            f.values[4 * f.x_stride + 70] = bad[b];
            levels[l]->quantize_rows(&f.x, 0, 9);
            float *y = product(&f, levels[l]);
            for (uint32_t r = 0; r < 9; r++)
                for (uint32_t o = 0; o < 20; o++)
                    assert_true(r == 4 ? isnan(y[r * 20 + o]) : f32_bits(y[r * 20 + o]) == f32_bits(expected[r * 20 + o]));
            free(y);
            free(expected);
            fixture_close(&f);
        }
}

static void check_quantized_row(const struct quantized_rows *x, uint32_t row)
{
    const float *values = x->values + row * x->value_stride;
    for (uint32_t g = 0; g < x->group_count; g++) {
        const struct quant_block *block = &x->blocks[row / 8 * x->group_count + g];
        const struct quant_part *part = &block->part[row % 8];
        int sum = 0, sum_low = 0;
        float second = 0;
        assert_in_range(part->index, 0, 31);
        assert_int_equal(block->q[row % 8][part->index], 0);
        for (uint32_t i = 0; i < 32; i++) {
            int q = block->q[row % 8][i];
            float value = g * 32 + i < x->k ? values[g * 32 + i] : 0;
            sum += q;
            sum_low += i < 16 ? q : 0;
            assert_in_range(q + 127, 0, 254);
            if (i == part->index) { // exact
                assert_true(value == part->outlier || (fabsf(value) < 1e-30f && part->outlier == 0));
                continue;
            }
            second = fmaxf(second, fabsf(value));
            assert_true(fabsf(value) <= fabsf(part->outlier) || fabsf(value) < 1e-30f);
            assert_true(i > part->index || fabsf(value) < fabsf(part->outlier) || part->outlier == 0); // the first of equals
            assert_true(fabs((double)value - (double)part->scale * q) <= (double)part->scale * 0.50001 + 1e-30);
        }
        assert_true(part->outlier != 0 || part->index == 0);
        assert_int_equal(f32_bits(part->scale), f32_bits(second < 1e-30f ? 0 : second / 127));
        assert_int_equal(part->bias, -128 * sum);
        assert_int_equal(part->bias_low, -128 * sum_low);
        assert_int_equal(f32_bits(part->sum), f32_bits(fmaf(part->scale, (float)sum, part->outlier)));
    }
}

static void test_quantize(void **state)
{
    static const uint32_t widths[] = {1, 15, 16, 17, 31, 32, 33, 48, 49, 64, 576, 577};
    const struct kernels *levels[ISA_LEVEL_COUNT];
    uint32_t level_count = fast_levels(levels);
    levels[level_count++] = kernels_of_level(ISA_REF);
    for (size_t w = 0; w < ARRAY_COUNT(widths); w++) {
        uint32_t k = widths[w], rows = 11;
        uint64_t seed = k;
        float *memory = malloc((rows * (size_t)k + 1) * sizeof *memory), *values = memory + 1;
        for (size_t i = 0; i < rows * (size_t)k; i++)
            values[i] = random_normal(&seed) * (i % 5 == 0 ? 100.0f : 1.0f);
        for (uint32_t i = 0; i < k; i++) { // special rows: zeros, subnormals, huge, ties
            values[i] = 0;
            values[k + i] = 0x1p-140f;
            values[2 * k + i] = i % 2 ? 3.4e38f : -3.4e38f;
            values[3 * k + i] = i % 32 == 0 ? 127.0f : (float)(i % 32) - 10.5f;
            values[4 * k + i] = i % 7 == 3 ? -5.0f : i % 7 == 5 ? 5.0f : 0.25f;
            values[5 * k + i] = i % 32 == 19 ? -7.0f : 0; // nothing but outliers
            values[6 * k + i] = i % 32 == 31 ? 7.0f : i % 32 == 30 ? 0x1p-120f : 0;
        }
        size_t bytes = quantized_rows_bytes(rows, k);
        void *expected = NULL;
        for (uint32_t l = 0; l < level_count; l++) {
            void *blocks = test_alloc(bytes);
            memset(blocks, 0, bytes);
            struct quantized_rows x;
            quantized_rows_init(&x, blocks, rows, k);
            quantized_rows_source(&x, values, k);
            levels[l]->quantize_rows(&x, 5, rows - 5);
            levels[l]->quantize_rows(&x, 0, 5);
            for (uint32_t r = 0; r < rows; r++)
                check_quantized_row(&x, r);
            if (!expected) {
                expected = blocks;
                continue;
            }
            assert_memory_equal(blocks, expected, bytes);
            free(blocks);
        }
        free(expected);
        free(memory);
    }
    assert_int_equal(quantized_rows_bytes(9, 33), 2 * 2 * 448);
}

// The outlier and the one that sets the scale, at every pair of places: group j of row i.
static void test_quantize_places(void **state)
{
    enum { K = PACK_GROUP * PACK_GROUP };
    static float values[PACK_GROUP][K];
    const struct kernels *levels[ISA_LEVEL_COUNT];
    uint32_t level_count = fast_levels(levels);
    size_t bytes = quantized_rows_bytes(PACK_GROUP, K);
    void *expected = test_alloc(bytes), *blocks = test_alloc(bytes);
    uint64_t seed = 7;
    for (uint32_t i = 0; i < PACK_GROUP; i++)
        for (uint32_t j = 0; j < PACK_GROUP; j++) {
            float *group = &values[i][j * PACK_GROUP];
            for (uint32_t n = 0; n < PACK_GROUP; n++)
                group[n] = random_normal(&seed) / 8;
            group[j] = 8, group[i] = -9;
        }
    levels[level_count++] = kernels_of_level(ISA_REF);
    for (uint32_t l = level_count; l-- > 0;) { // ref first
        struct quantized_rows x;
        quantized_rows_init(&x, l + 1 == level_count ? expected : blocks, PACK_GROUP, K);
        quantized_rows_source(&x, values[0], K);
        levels[l]->quantize_rows(&x, 0, PACK_GROUP);
        for (uint32_t r = 0; r < PACK_GROUP; r++)
            check_quantized_row(&x, r);
        if (l + 1 < level_count)
            assert_memory_equal(blocks, expected, bytes);
    }
    free(expected);
    free(blocks);
}

// One huge input a group, at each place in turn: the product is as near to the exact one as the others' own steps allow.
// Quantized with the rest it would set steps of 8 instead of 1 / 127, beyond the limit many times.
static void test_outlier(void **state)
{
    const struct kernels *levels[ISA_LEVEL_COUNT];
    uint32_t level_count = fast_levels(levels);
    levels[level_count++] = kernels_of_level(ISA_REF);
    for (size_t t = 0; t < ARRAY_COUNT(source_types); t++) {
        struct fixture f;
        fixture_open(&f, &source_types[t], 24, 256, 32);
        if (!f.w.group_count) {
            fixture_close(&f);
            continue;
        }
        for (uint32_t r = 0; r < f.rows; r++)
            for (uint32_t i = 0; i < f.k; i++) {
                float *value = &f.values[r * f.x_stride + i];
                *value = i % 32 == (r + i / 32) % 32 ? (r % 2 ? -1000.0f : 1000.0f) + (float)i
                                                     : (float)((i * 37 + r * 11) % 64) / 32 - 1;
            }
        float *weights = malloc(f.k * sizeof *weights);
        for (uint32_t l = 0; l < level_count; l++) {
            levels[l]->quantize_rows(&f.x, 0, f.rows);
            float *y = product(&f, levels[l]);
            for (uint32_t o = 0; o < f.outputs; o++) {
                pack_dequantize_row(&f.w, o, weights);
                for (uint32_t r = 0; r < f.rows; r++) {
                    double want = 0, limit = error_limit(&f, r, weights);
                    for (uint32_t i = 0; i < f.k; i++) {
                        want += (double)weights[i] * (double)f.values[r * f.x_stride + i];
                        limit += fabs((double)weights[i]) * (0.51 / 127);
                    }
                    if (!(fabs(want - (double)y[(size_t)r * f.outputs + o]) <= limit))
                        fail_msg("%s %s row %u output %u: %g, expected %g (limit %g)", isa_name(levels[l]->level), f.type->name, r,
                                 o, (double)y[(size_t)r * f.outputs + o], want, limit);
                }
            }
            free(y);
        }
        free(weights);
        fixture_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ref),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_independence),
        cmocka_unit_test(test_add),
        cmocka_unit_test(test_extreme_quants),
        cmocka_unit_test(test_panels),
        cmocka_unit_test(test_many_rows),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_quantize),
        cmocka_unit_test(test_quantize_places),
        cmocka_unit_test(test_outlier),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
