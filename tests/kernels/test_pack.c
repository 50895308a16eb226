// test_pack.c: what comes out of the packed tiles is bit for bit what the source's format says.
#include "kernel_test.h"
#include "kernels/quant/dequant.h"

static float half_at(const uint8_t *p)
{
    uint16_t half;
    memcpy(&half, p, 2);
    return f16_to_float(half);
}

static void k_scale(const uint8_t *s, uint32_t j, float *scale, float *minimum)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *minimum = s[j + 4] & 63;
    } else {
        *scale = (float)((s[j + 4] & 0xf) | ((s[j - 4] >> 6) << 4));
        *minimum = (float)((s[j + 4] >> 4) | ((s[j] >> 6) << 4));
    }
}

// Value i of 32 codes: of IQ4_NL and IQ4_XS or, doubled, of MXFP4.
static float code_value(bool fp4, const uint8_t *nibbles, uint32_t i)
{
    static const int iq4_codes[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    static const int fp4_codes[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    int code = nibbles[i % 16] >> (i / 16 * 4) & 15;
    return (float)(!fp4 ? iq4_codes[code] : code < 8 ? fp4_codes[code] : -fp4_codes[code - 8]);
}

// The types of two and three bits, and those of codes.
static float source_value_of_few_bits(uint32_t type, const uint8_t *b, uint32_t i)
{
    uint32_t shift = i % 128 / 32 * 2, at = i / 128 * 32 + i % 32, g = i / 16, scale;
    switch (type) {
    case 10: return half_at(b + 80) * (float)(b[g] & 15) * (float)(b[16 + at] >> shift & 3) - half_at(b + 82) * (float)(b[g] >> 4);
    case 11:
        scale = (b[96 + g % 8] >> (g < 8 ? 0 : 4) & 15) | (b[104 + g % 4] >> (g / 4 * 2) & 3) << 4;
        return half_at(b + 108) * (float)((int)scale - 32) *
               (float)((b[32 + at] >> shift & 3) - ((b[i % 32] >> (i / 32) & 1) ? 0 : 4));
    case 20: return half_at(b) * code_value(false, b + 2, i);
    case 23:
        g = i / 32;
        scale = (b[4 + g / 2] >> (g % 2 * 4) & 15) | (uint32_t)((b[2] | b[3] << 8) >> (g * 2) & 3) << 4;
        return half_at(b) * (float)((int)scale - 32) * code_value(false, b + 8 + g * 16, i % 32);
    default: return ldexpf(code_value(true, b + 1, i), b[0] - 128); // MXFP4
    }
}

// Value i of a block, written from the format's definition, one value at a time.
static float source_value(uint32_t type, const uint8_t *b, uint32_t i)
{
    uint32_t qh, low4 = i % 16;
    float scale, minimum;
    int q;
    switch (type) {
    case 10:
    case 11:
    case 20:
    case 23:
    case 39: return source_value_of_few_bits(type, b, i);
    case 15: memcpy(&scale, b, 4); return scale * (float)(int8_t)b[4 + i];
    case 0: memcpy(&scale, b, 4); return scale;
    case 1: return half_at(b);
    case 30: return f32_from_bits((uint32_t)(b[0] | b[1] << 8) << 16);
    case 2: q = i < 16 ? b[2 + low4] & 15 : b[2 + low4] >> 4; return half_at(b) * (float)(q - 8);
    case 3: q = i < 16 ? b[4 + low4] & 15 : b[4 + low4] >> 4; return half_at(b) * (float)q + half_at(b + 2);
    case 6:
        memcpy(&qh, b + 2, 4);
        q = (i < 16 ? b[6 + low4] & 15 : b[6 + low4] >> 4) | (int)(qh >> i & 1) << 4;
        return half_at(b) * (float)(q - 16);
    case 7:
        memcpy(&qh, b + 4, 4);
        q = (i < 16 ? b[8 + low4] & 15 : b[8 + low4] >> 4) | (int)(qh >> i & 1) << 4;
        return half_at(b) * (float)q + half_at(b + 2);
    case 8: return half_at(b) * (float)(int8_t)b[2 + i];
    case 12:
        k_scale(b + 4, i / 32, &scale, &minimum);
        q = b[16 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
        return half_at(b) * scale * (float)q - half_at(b + 2) * minimum;
    case 13:
        k_scale(b + 4, i / 32, &scale, &minimum);
        q = (b[48 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15) + (b[16 + i % 32] >> (i / 32) & 1) * 16;
        return half_at(b) * scale * (float)q - half_at(b + 2) * minimum;
    default: { // Q6_K: 128 values a half; low bits in ql, two high bits in qh
        uint32_t h = i / 128, r = i % 128, l = r % 32;
        int low = b[h * 64 + (r / 32 % 2) * 32 + l] >> (r / 64 * 4) & 15;
        q = (low | (b[128 + h * 32 + l] >> (r / 32 * 2) & 3) << 4) - 32;
        return half_at(b + 208) * (float)(int8_t)b[192 + i / 16] * (float)q;
    }
    }
}

static void check_type(const struct source_type *type, uint32_t outputs, uint32_t k)
{
    uint64_t seed = outputs * 1000u + k;
    uint8_t *source = random_source(type, outputs, k, &seed);
    size_t source_bytes = (size_t)outputs * k / type->block_values * type->block_bytes;
    uint8_t *misaligned = malloc(source_bytes + 1);
    memcpy(misaligned + 1, source, source_bytes);
    struct packed_matrix matrix;
    struct error error;
    assert_int_equal(pack_plan(type->type, outputs, k, &matrix, &error), STATUS_OK);
    assert_int_equal(matrix.source_row_bytes * outputs, source_bytes);
    assert_int_equal(matrix.bytes, packed_bytes(type->type, outputs, k));
    matrix.data = test_alloc(matrix.bytes);
    memset(matrix.data, 0xa5, matrix.bytes);
    for (uint32_t t = matrix.tile_count; t-- > 0;) // tiles are independent: any order
        pack_tiles(&matrix, misaligned + 1, t, 1);
    float *row = malloc(k * sizeof *row), *read = malloc(k * sizeof *read);
    for (uint32_t o = 0; o < outputs; o++) {
        pack_dequantize_row(&matrix, o, row);
        dequantize((enum tensor_type)type->type, misaligned + 1 + o * matrix.source_row_bytes, k, read);
        for (uint32_t i = 0; i < k; i++) {
            assert_true(row[i] == read[i] || (isnan(row[i]) && isnan(read[i]))); // what the f32 mode computes with
            const uint8_t *block = source + ((size_t)o * k + i) / type->block_values * type->block_bytes;
            float expected = source_value(type->type, block, i % type->block_values);
            if (f32_bits(expected) != f32_bits(row[i]) && !(expected == 0 && row[i] == 0))
                fail_msg("%s %ux%u: output %u input %u is %a, expected %a", type->name, outputs, k, o, i, (double)row[i],
                         (double)expected);
        }
    }
    free(read);
    free(row);
    free(matrix.data);
    free(misaligned);
    free(source);
}

static void test_exact(void **state)
{
    for (size_t t = 0; t < ARRAY_COUNT(source_types); t++) {
        const struct source_type *type = &source_types[t];
        static const uint32_t outputs[] = {1, 15, 16, 17, 33};
        for (size_t i = 0; i < ARRAY_COUNT(outputs); i++) {
            check_type(type, outputs[i], type->block_values == 1 ? 7 : type->block_values);
            check_type(type, outputs[i], type->block_values == 1 ? 65 : 3 * type->block_values);
        }
    }
}

static void test_every_half_scale(void **state) // subnormal, huge and negative scales too
{
    const struct source_type *type = &source_types[4]; // Q4_1
    uint8_t block[16 * 20];
    struct packed_matrix matrix;
    float row[32];
    for (uint32_t first = 0; first < 0x10000; first += 16) {
        if ((first & 0x7c00) == 0x7c00)
            continue; // not finite
        for (uint32_t o = 0; o < 16; o++) {
            uint16_t d = (uint16_t)(first + o), m = (uint16_t)((first + o) ^ 0x8001);
            memcpy(block + o * 20, &d, 2);
            memcpy(block + o * 20 + 2, &m, 2);
            memset(block + o * 20 + 4, (int)(0xf0 | o), 16);
        }
        pack_all(type, block, 16, 32, &matrix);
        for (uint32_t o = 0; o < 16; o++) {
            pack_dequantize_row(&matrix, o, row);
            assert_true(row[0] == source_value(3, block + o * 20, 0));
            assert_true(row[31] == source_value(3, block + o * 20, 31));
        }
        free(matrix.data);
    }
}

static void test_every_exponent(void **state) // of MXFP4: f32 subnormals, and infinities where f32 ends
{
    const struct source_type *type = &source_types[16];
    assert_string_equal(type->name, "MXFP4");
    uint8_t block[16 * 17];
    struct packed_matrix matrix;
    float row[32];
    for (uint32_t first = 0; first < 256; first += 16) {
        for (uint32_t o = 0; o < 16; o++) {
            block[o * 17] = (uint8_t)(first + o);
            for (uint32_t i = 0; i < 16; i++)
                block[o * 17 + 1 + i] = (uint8_t)(i * 0x11);
        }
        pack_all(type, block, 16, 32, &matrix);
        for (uint32_t o = 0; o < 16; o++) {
            pack_dequantize_row(&matrix, o, row);
            for (uint32_t i = 0; i < 32; i++)
                assert_true(row[i] == source_value(39, block + o * 17, i));
        }
        free(matrix.data);
    }
}

static void test_size(void **state)
{
    assert_int_equal(packed_bytes(3, 576, 576), 576 * 576 * 5 / 8);
    assert_int_equal(packed_bytes(8, 49152, 576), 49152ull * 576 * 17 / 16);
    assert_int_equal(packed_bytes(12, 2048, 2048), 2048 * 2048 / 8 * 37 / 8);
    assert_int_equal(packed_bytes(10, 2048, 2048), 2048 * 2048 / 8 * 41 / 8);
    assert_int_equal(packed_bytes(11, 2048, 2048), 2048 * 2048 / 8 * 73 / 16);
    assert_int_equal(packed_bytes(23, 2048, 2048), 2048 * 2048 / 8 * 133 / 16);
    assert_int_equal(packed_bytes(39, 2048, 2048), 2048 * 2048 / 8 * 9);
}

static void test_padding_is_zero(void **state)
{
    uint64_t seed = 5;
    uint8_t *source = random_source(&source_types[7], 3, 64, &seed);
    struct packed_matrix matrix;
    pack_all(&source_types[7], source, 3, 64, &matrix);
    const uint16_t *scales = (const uint16_t *)(matrix.data + matrix.scale_offset);
    for (uint32_t g = 0; g < 2; g++)
        for (uint32_t o = 3; o < 16; o++)
            assert_int_equal(scales[g * 16 + o], 0);
    free(matrix.data);
    free(source);
}

static void refuse(uint32_t type, uint64_t outputs, uint64_t k, const char *expected)
{
    struct packed_matrix matrix;
    struct error error = {0};
    assert_int_equal(pack_plan(type, outputs, k, &matrix, &error), STATUS_INVALID_ARGUMENT);
    if (!strstr(error.text, expected))
        fail_msg("'%s' lacks '%s'", error.text, expected);
    assert_int_equal(packed_bytes(type, outputs, k), 0);
}

static void test_refused(void **state)
{
    refuse(99, 16, 32, "type 99");
    refuse(3, 16, 33, "multiple of 32");
    refuse(14, 16, 128, "multiple of 256");
    refuse(23, 16, 32, "multiple of 256");
    refuse(8, 0, 32, "1 to");
    refuse(8, 16, 0, "multiple of 32");
    refuse(8, 1ull << 40, 32, "1 to");
    refuse(0, 16, 1ull << 40, "at most");
}

// The bits that a memory plan counts on.
static void test_bits(void **state)
{
    enum { SIDE = 4096 };
    for (uint32_t type = 0; type < TENSOR_TYPE_END; type++) {
        const struct tensor_type_info *info = tensor_type_info(type);
        if (info && (double)packed_bytes(type, SIDE, SIDE) * 8 != info->host_bits * SIDE * SIDE)
            fail_msg("%s: %.4f bits, not %.4f", info->name, (double)packed_bytes(type, SIDE, SIDE) * 8 / SIDE / SIDE,
                     info->host_bits);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact),   cmocka_unit_test(test_every_half_scale),
        cmocka_unit_test(test_size),    cmocka_unit_test(test_padding_is_zero),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_every_exponent),
        cmocka_unit_test(test_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
