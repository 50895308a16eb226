// test_dequant.c: every block format against another reader's values (tests/golden/dequant.inc), bit by bit.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "kernels/quant/dequant.h"
#include "kernels/simd/half.h"
#include "tests/cmocka.h"

static const struct golden {
    enum tensor_type type;
    uint32_t count;
    const char *blocks, *values;
} goldens[] = {
#define GOLDEN(type, count, blocks, values) {type, count, blocks, values},
#include "tests/golden/dequant.inc"
#undef GOLDEN
};

static uint32_t hex(const char *digits, uint32_t count)
{
    char text[9] = {0};
    memcpy(text, digits, count);
    return (uint32_t)strtoul(text, NULL, 16);
}

// Also one byte off any alignment, in a buffer that ends where the blocks do.
static void values_equal_the_golden_ones(void **state)
{
    for (size_t i = 0; i < ARRAY_COUNT(goldens); i++) {
        const struct golden *golden = &goldens[i];
        const struct tensor_type_info *info = tensor_type_info((uint32_t)golden->type);
        size_t bytes = golden->count / info->block_values * info->block_bytes;
        assert_int_equal(strlen(golden->blocks), bytes * 2);
        assert_int_equal(strlen(golden->values), golden->count * 8);
        for (size_t shift = 0; shift < 2; shift++) {
            uint8_t *source = malloc(bytes + shift);
            float *out = malloc(golden->count * sizeof *out);
            for (size_t b = 0; b < bytes; b++)
                source[shift + b] = (uint8_t)hex(golden->blocks + b * 2, 2);
            dequantize(golden->type, source + shift, golden->count, out);
            for (uint32_t v = 0; v < golden->count; v++) {
                uint32_t wanted = hex(golden->values + v * 8, 8);
                if (f32_bits(out[v]) != wanted && !(f32_bits(out[v]) << 1 == 0 && wanted << 1 == 0)) // -0 is 0
                    fail_msg("%s value %u: %g (%08x), expected %08x", info->name, v, (double)out[v], f32_bits(out[v]), wanted);
            }
            free(out);
            free(source);
        }
    }
}

static void every_type_is_covered(void **state)
{
    uint32_t found = 0, known = 0;
    for (uint32_t type = 0; type < 64; type++)
        known += tensor_type_info(type) != NULL;
    for (size_t i = 0; i < ARRAY_COUNT(goldens); i++)
        found += tensor_type_info((uint32_t)goldens[i].type) != NULL;
    assert_int_equal(known, 17);
    assert_int_equal(found, 17);
    assert_null(tensor_type_info(4));
    assert_null(tensor_type_info(TENSOR_TYPE_END));
    assert_null(tensor_type_info(UINT32_MAX));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_equal_the_golden_ones),
        cmocka_unit_test(every_type_is_covered),
    };
    return cmocka_run_group_tests_name("dequant", tests, NULL, NULL);
}
