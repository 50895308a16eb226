// test_encode.c: block formats written and read again: each value within the error that dequant.h promises, each block the best there is.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "kernels/quant/dequant.h"
#include "kernels/simd/half.h"
#include "tests/cmocka.h"

enum { BLOCK = 32 };

static const enum tensor_type types[] = {TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q5_0, TENSOR_Q5_1, TENSOR_Q8_0, TENSOR_F16, TENSOR_BF16};

static float uniform(void) { return (float)rand() / (float)RAND_MAX; }

// A block of one of several kinds: even, with an outlier, of one sign, constant, tiny, large, all zero.
static void make_block(int kind, float *x)
{
    float spread = kind == 4 ? 1e-6f : kind == 5 ? 20000 : powf(10, 4 * uniform() - 3), shift = kind == 2 ? 3 * spread : 0;

    for (int i = 0; i < BLOCK; i++)
        x[i] = kind == 6 ? 0 : kind == 3 ? spread : (2 * uniform() - 1) * spread + shift;
    if (kind == 1)
        x[rand() % BLOCK] *= 8;
}

// The most that a value may be off, by the definition in dequant.h, in f64.
static double limit(enum tensor_type type, double least, double most, double x)
{
    double magnitude = fmax(-least, most), half = 0x1p-11;

    switch (type) {
    case TENSOR_Q4_1: return (most - least) / 15 / 2 * (1 + half) + half * (fabs(least) + most - least) + 16 * 0x1p-25;
    case TENSOR_Q5_1: return (most - least) / 31 / 2 * (1 + half) + half * (fabs(least) + most - least) + 32 * 0x1p-25;
    case TENSOR_Q4_0: return magnitude / 8 * (1 + half) + half * magnitude + 8 * 0x1p-25;
    case TENSOR_Q5_0: return magnitude / 16 * (1 + half) + half * magnitude + 16 * 0x1p-25;
    case TENSOR_Q8_0: return magnitude / 127 / 2 * (1 + half) + half * magnitude + 128 * 0x1p-25;
    case TENSOR_F16: return fabs(x) * half + 0x1p-25;
    default: return fabs(x) * 0x1p-8;
    }
}

static void values_are_within_the_limit(void **state)
{
    float x[BLOCK], y[BLOCK];
    uint8_t bytes[1 + 4 * BLOCK];

    srand(1);
    for (size_t t = 0; t < ARRAY_COUNT(types); t++) {
        double worst = 0;
        for (int round = 0; round < 7000; round++) {
            make_block(round % 7, x);
            double least = x[0], most = x[0];
            for (int i = 1; i < BLOCK; i++) {
                least = fmin(least, x[i]);
                most = fmax(most, x[i]);
            }
            assert_true(encode_values(types[t], x, BLOCK, bytes + round % 2));
            dequantize(types[t], bytes + round % 2, BLOCK, y);
            for (int i = 0; i < BLOCK; i++) {
                double share = fabs((double)y[i] - x[i]) / limit(types[t], least, most, x[i]);
                worst = fmax(worst, share);
                if (share > 1)
                    fail_msg("%s, kind %d: %g became %g in %g to %g", tensor_type_info((uint32_t)types[t])->name, round % 7,
                             (double)x[i], (double)y[i], least, most);
            }
        }
        printf("    %-5s worst error %.2f of its limit\n", tensor_type_info((uint32_t)types[t])->name, worst);
        assert_true(worst > 0.3); // the limit says something
    }
}

// No other code of the block's own scale is nearer, save by the rounding of the division.
static void codes_are_the_nearest(void **state)
{
    float x[BLOCK], y[BLOCK], all[BLOCK];
    uint8_t bytes[20], other[20];

    srand(2);
    for (int round = 0; round < 500; round++) {
        make_block(round % 3, x);
        assert_true(encode_values(TENSOR_Q4_1, x, BLOCK, bytes));
        dequantize(TENSOR_Q4_1, bytes, BLOCK, y);
        float scale = f16_to_float((uint16_t)(bytes[0] | bytes[1] << 8));
        for (int code = 0; code < 16; code++) {
            memcpy(other, bytes, 4);
            memset(other + 4, code * 17, 16);
            dequantize(TENSOR_Q4_1, other, BLOCK, all);
            for (int i = 0; i < BLOCK; i++)
                assert_true(fabsf(y[i] - x[i]) <= fabsf(all[i] - x[i]) + 1e-4f * scale);
        }
    }
}

// Values that a format holds exactly stay as they are: encoding again gives the same values.
static void again_is_the_same(void **state)
{
    float x[BLOCK], y[BLOCK], z[BLOCK];
    uint8_t bytes[4 * BLOCK];

    srand(3);
    for (size_t t = 0; t < ARRAY_COUNT(types); t++)
        for (int round = 0; round < 300; round++) {
            make_block(round % 7, x);
            assert_true(encode_values(types[t], x, BLOCK, bytes));
            dequantize(types[t], bytes, BLOCK, y);
            assert_true(encode_values(types[t], y, BLOCK, bytes));
            dequantize(types[t], bytes, BLOCK, z);
            for (int i = 0; i < BLOCK; i++)
                assert_true(fabsf(y[i] - z[i]) <= 2e-3f * fabsf(y[i]) + 1e-6f);
        }
}

static void what_cannot_be_written_is_refused(void **state)
{
    const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
    uint8_t bytes[4 * BLOCK];

    for (size_t t = 0; t < ARRAY_COUNT(types); t++)
        for (size_t b = 0; b < ARRAY_COUNT(bad); b++)
            for (int at = 0; at < BLOCK; at++) {
                float x[BLOCK] = {0.5f, -0.25f};
                x[at] = bad[b];
                bool is_held = types[t] == TENSOR_BF16 && isfinite(bad[b]);
                assert_int_equal(encode_values(types[t], x, BLOCK, bytes), is_held);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_within_the_limit),
        cmocka_unit_test(codes_are_the_nearest),
        cmocka_unit_test(again_is_the_same),
        cmocka_unit_test(what_cannot_be_written_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
