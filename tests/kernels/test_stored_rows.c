// test_stored_rows.c: matrices in another order than GGUF's, read in pieces of all sizes: bit for bit what a plain walk of the file finds.
#include "kernel_test.h"
#include "kernels/quant/dequant.h"
#include "kernels/quant/stored_rows.h"

struct order {
    uint32_t matrices, rows, columns; // of what is read
    uint32_t first, step;             // which outputs of the file they are
};

static const struct order orders[] = {
    {1, 1, 32, 0, 1}, {3, 5, 64, 0, 2}, {3, 5, 64, 1, 2}, {2, 16, 96, 1, 2}, {4, 33, 32, 0, 1}, {2, 50, 160, 0, 2},
};
static const enum tensor_type floats[] = {TENSOR_F32, TENSOR_F16, TENSOR_BF16};

// [matrices][columns][rows * step] in the file.
static struct stored_rows floats_in(const struct order *o, enum tensor_type type, const uint8_t *bytes)
{
    return (struct stored_rows){.type = type,
                                .columns = o->columns,
                                .matrix_rows = o->rows,
                                .matrix_count = o->matrices,
                                .first = o->first,
                                .row_step = o->step,
                                .column_step = (uint64_t)o->step * o->rows,
                                .values = bytes,
                                .values_bytes = (uint64_t)o->matrices * o->columns * o->rows * o->step *
                                                tensor_type_info((uint32_t)type)->block_bytes};
}

// [matrices][rows * step][columns / 32] blocks and scales in the file.
static struct stored_rows blocks_in(const struct order *o, const uint8_t *blocks, const uint8_t *scales)
{
    const uint64_t groups = o->columns / 32, count = o->matrices * o->rows * o->step * groups;
    return (struct stored_rows){.type = TENSOR_MXFP4,
                                .columns = o->columns,
                                .matrix_rows = o->rows,
                                .matrix_count = o->matrices,
                                .first = o->first * groups,
                                .row_step = o->step * groups,
                                .column_step = 1,
                                .values = blocks,
                                .scales = scales,
                                .values_bytes = count * 16,
                                .scales_bytes = count};
}

// Reads all in pieces of random sizes, at an odd address, and compares.
static void assert_reads(const struct stored_rows *stored, const uint8_t *wanted, uint64_t *seed)
{
    const struct tensor_type_info *info = tensor_type_info((uint32_t)stored->type);
    const uint64_t blocks = (uint64_t)stored->columns / info->block_values * stored->matrix_rows * stored->matrix_count;
    uint8_t *out = test_alloc(blocks * info->block_bytes + 1);

    for (int round = 0; round < 20; round++) {
        memset(out, 0xee, blocks * info->block_bytes + 1);
        for (uint64_t at = 0, take; at < blocks; at += take) {
            take = round == 0 ? blocks : 1 + random_next(seed) % MAX(blocks / (uint64_t)(1 + round % 4), (uint64_t)1);
            take = MIN(take, blocks - at);
            assert_true(
                stored_rows_read(stored, at * info->block_values, take * info->block_values, out + 1 + at * info->block_bytes));
        }
        assert_memory_equal(out + 1, wanted, blocks * info->block_bytes);
    }
    assert_int_equal(out[0], 0xee);
    free(out);
}

static void test_floats(void **state)
{
    uint64_t seed = 1;
    for (size_t i = 0; i < ARRAY_COUNT(orders); i++)
        for (size_t t = 0; t < ARRAY_COUNT(floats); t++) {
            const struct order *o = &orders[i];
            const size_t size = tensor_type_info((uint32_t)floats[t])->block_bytes, wide = (size_t)o->rows * o->step;
            const size_t count = o->matrices * o->columns * wide;
            uint8_t *file = test_alloc(count * size + 1), *wanted = test_alloc(count * size), *to = wanted;
            for (size_t b = 0; b < count * size; b++)
                file[1 + b] = (uint8_t)random_next(&seed);
            for (size_t m = 0; m < o->matrices; m++)
                for (size_t row = 0; row < o->rows; row++)
                    for (size_t c = 0; c < o->columns; c++, to += size)
                        memcpy(to, file + 1 + ((m * o->columns + c) * wide + o->first + row * o->step) * size, size);
            const struct stored_rows stored = floats_in(o, floats[t], file + 1);
            assert_reads(&stored, wanted, &seed);
            free(file);
            free(wanted);
        }
}

// A value of the file by the definition: code, sign, and exponent with the bias 127.
static float value_of(const uint8_t *blocks, const uint8_t *scales, size_t index)
{
    static const float codes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    const uint8_t byte = blocks[index / 2], code = index % 2 ? byte >> 4 : byte & 15;
    return ldexpf(code & 8 ? -codes[code & 7] : codes[code], scales[index / 32] - 127);
}

static void check_mxfp4(const struct order *o, uint64_t *seed)
{
    const size_t wide = (size_t)o->rows * o->step, groups = o->columns / 32, count = o->matrices * wide * groups;
    const size_t values = (size_t)o->matrices * o->rows * o->columns;
    uint8_t *blocks = test_alloc(count * 16), *scales = test_alloc(count), *read = test_alloc(values / 32 * 17);
    float *found = test_alloc(values * sizeof *found), *value = found;
    for (size_t b = 0; b < count * 16; b++)
        blocks[b] = (uint8_t)random_next(seed);
    for (size_t b = 0; b < count; b++) // all but the one that is no number, subnormals among them
        scales[b] = (uint8_t)(random_next(seed) % 255);
    const struct stored_rows stored = blocks_in(o, blocks, scales);
    assert_true(stored_rows_read(&stored, 0, values, read));
    dequantize(TENSOR_MXFP4, read, values, found);
    for (size_t m = 0; m < o->matrices; m++)
        for (size_t row = 0; row < o->rows; row++)
            for (size_t c = 0; c < o->columns; c++, value++) {
                const float wanted = value_of(blocks, scales, (m * wide + o->first + row * o->step) * o->columns + c);
                assert_true(*value == wanted); // a zero has no sign here
            }
    assert_reads(&stored, read, seed);
    free(blocks);
    free(scales);
    free(read);
    free(found);
}

static void test_mxfp4(void **state)
{
    uint64_t seed = 2;
    for (size_t i = 0; i < ARRAY_COUNT(orders); i++)
        check_mxfp4(&orders[i], &seed);
}

// Reading looks at the scales of the rows that are read, and at none of other rows or of the other matrices.
static void test_a_scale_that_is_not_a_number(void **state)
{
    const struct order gate = {2, 3, 64, 0, 2}, up = {2, 3, 64, 1, 2};
    uint8_t blocks[2 * 6 * 2 * 16] = {0}, scales[2 * 6 * 2] = {0}, out[2 * 3 * 2 * 17];
    scales[(1 * 6 + 3) * 2 + 1] = 255; // up's row 1 of matrix 1
    const struct stored_rows g = blocks_in(&gate, blocks, scales), u = blocks_in(&up, blocks, scales);
    assert_true(stored_rows_read(&g, 0, 2 * 3 * 64, out));
    assert_false(stored_rows_read(&u, 0, 2 * 3 * 64, out));
    assert_true(stored_rows_read(&u, 0, (3 + 1) * 64 + 32, out));
    assert_false(stored_rows_read(&u, (3 + 1) * 64 + 32, 32, out));
    assert_true(stored_rows_read(&u, (3 + 2) * 64, 64, out));
}

static void test_one_matrix(void **state)
{
    const struct order o = {3, 4, 32, 1, 2};
    uint8_t file[3 * 32 * 8 * 4], blocks[3 * 8 * 16] = {0}, scales[3 * 8], all[3 * 4 * 32 * 4], one[4 * 32 * 4];
    uint64_t seed = 3;
    for (size_t i = 0; i < sizeof file; i++)
        file[i] = (uint8_t)random_next(&seed), blocks[i % sizeof blocks] ^= file[i], scales[i % sizeof scales] = file[i] / 2;
    const struct stored_rows stored[] = {floats_in(&o, TENSOR_F32, file), blocks_in(&o, blocks, scales)};
    for (size_t s = 0; s < 2; s++) {
        const size_t bytes = s ? 4 * 17 : sizeof one;
        assert_true(stored_rows_read(&stored[s], 0, 3 * 4 * 32, all));
        for (uint32_t m = 0; m < 3; m++) {
            const struct stored_rows own = stored_rows_matrix(&stored[s], m);
            assert_true(stored_rows_read(&own, 0, 4 * 32, one));
            assert_memory_equal(one, all + m * bytes, bytes);
            assert_true(own.values_bytes * 3 == stored[s].values_bytes && own.scales_bytes * 3 == stored[s].scales_bytes);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_floats),
        cmocka_unit_test(test_mxfp4),
        cmocka_unit_test(test_a_scale_that_is_not_a_number),
        cmocka_unit_test(test_one_matrix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
