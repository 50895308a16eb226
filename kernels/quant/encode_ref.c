// encode_ref.c: each block format in plain loops, one function a format. Sums and comparisons are in lanes, which the compiler makes
// vectors of: about 250 million values a second and core, which is more than a disk gives.

#include <math.h>
#include <string.h>

#include "common/base/checked.h"
#include "kernels/quant/dequant.h"
#include "kernels/simd/half.h"

enum { GROUP = 32, LANES = 8, PIECE = 2048 }; // PIECE: whole blocks of any type

typedef bool encode_fn(const float *values, uint8_t *block);

static void write_u16(uint8_t *bytes, uint16_t value)
{
    bytes[0] = (uint8_t)value;
    bytes[1] = (uint8_t)(value >> 8);
}

static bool is_finite_f16(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

// Finds the ends of a group. A NaN loses every comparison, so finiteness is looked at apart: x - x is 0 for finite x alone.
static bool find_ends(const float *x, float *least, float *most)
{
    float low[LANES], high[LANES], zero[LANES] = {0};

    memcpy(low, x, sizeof low);
    memcpy(high, x, sizeof high);
    for (int i = 0; i < GROUP; i += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            float value = x[i + lane];
            low[lane] = value < low[lane] ? value : low[lane];
            high[lane] = value > high[lane] ? value : high[lane];
            zero[lane] += value - value;
        }
    float sum = zero[0];
    *least = low[0];
    *most = high[0];
    for (int lane = 1; lane < LANES; lane++) {
        *least = MIN(*least, low[lane]);
        *most = MAX(*most, high[lane]);
        sum += zero[lane];
    }
    return sum == 0;
}

// Writes the nearest code, 0 to `most`, of each (x - minimum) / scale. A scale of 0 has code 0.
static void find_codes(const float *x, float scale, float minimum, int most, uint8_t *q)
{
    float inverse = scale != 0 ? 1 / scale : 0;

    inverse = isfinite(inverse) ? inverse : 0; // of a scale among the smallest: its values are nearly 0
    for (int i = 0; i < GROUP; i++) {
        float code = (x[i] - minimum) * inverse + 0.5f;
        code = code < 0 ? 0 : code > (float)most ? (float)most : code;
        q[i] = (uint8_t)code;
    }
}

static void write_nibbles(const uint8_t *q, uint8_t *qs)
{
    for (int i = 0; i < GROUP / 2; i++)
        qs[i] = (uint8_t)((q[i] & 15) | q[i + GROUP / 2] << 4);
}

static void write_fifth_bits(const uint8_t *q, uint8_t *qh)
{
    uint32_t bits = 0;
    for (int i = 0; i < GROUP; i++)
        bits |= (uint32_t)(q[i] >> 4) << i;
    for (int i = 0; i < 4; i++)
        qh[i] = (uint8_t)(bits >> 8 * i);
}

// Codes 0 to `most` between the group's ends; writes scale and minimum.
static bool encode_between(const float *x, int most, uint8_t *block, uint8_t *q)
{
    float least, greatest;

    if (!find_ends(x, &least, &greatest))
        return false;
    uint16_t minimum = f16_from_float(least), scale = f16_from_float((greatest - least) / (float)most);
    write_u16(block, scale);
    write_u16(block + 2, minimum);
    if (!is_finite_f16(scale) || !is_finite_f16(minimum))
        return false;
    find_codes(x, f16_to_float(scale), f16_to_float(minimum), most, q);
    return true;
}

// Codes around `middle`, of which 0 is the value of the largest magnitude; writes the scale, which may be negative.
static bool encode_around(const float *x, int middle, uint8_t *block, uint8_t *q)
{
    float least, most;

    if (!find_ends(x, &least, &most))
        return false;
    uint16_t scale = f16_from_float((-least > most ? least : most) / (float)-middle);
    float rounded = f16_to_float(scale);
    write_u16(block, scale);
    if (!is_finite_f16(scale))
        return false;
    find_codes(x, rounded, -rounded * (float)middle, 2 * middle - 1, q);
    return true;
}

// Codes of four bits, or of five, whose last ones lie together before the nibbles; behind the scale and, between the ends, the minimum.
static bool encode_bits(const float *x, bool between, bool fifth, uint8_t *block)
{
    uint8_t q[GROUP], *at = block + (between ? 4 : 2);

    if (!(between ? encode_between(x, fifth ? 31 : 15, block, q) : encode_around(x, fifth ? 16 : 8, block, q)))
        return false;
    if (fifth)
        write_fifth_bits(q, at);
    write_nibbles(q, at + (fifth ? 4 : 0));
    return true;
}

static bool encode_q4_0(const float *x, uint8_t *block) { return encode_bits(x, false, false, block); }
static bool encode_q4_1(const float *x, uint8_t *block) { return encode_bits(x, true, false, block); }
static bool encode_q5_0(const float *x, uint8_t *block) { return encode_bits(x, false, true, block); }
static bool encode_q5_1(const float *x, uint8_t *block) { return encode_bits(x, true, true, block); }

static bool encode_q8_0(const float *x, uint8_t *block)
{
    float least, most;
    uint8_t q[GROUP];

    if (!find_ends(x, &least, &most))
        return false;
    uint16_t scale = f16_from_float(MAX(-least, most) / 127);
    float rounded = f16_to_float(scale);
    write_u16(block, scale);
    if (!is_finite_f16(scale))
        return false;
    find_codes(x, rounded, -rounded * 128, 255, q);
    for (int i = 0; i < GROUP; i++)
        block[2 + i] = q[i] ^ 0x80;
    return true;
}

static bool encode_f16(const float *x, uint8_t *block)
{
    uint16_t half = f16_from_float(*x);
    write_u16(block, half);
    return is_finite_f16(half);
}

static bool encode_bf16(const float *x, uint8_t *block)
{
    uint16_t half = bf16_from_float(*x);
    write_u16(block, half);
    return (half & 0x7f80) != 0x7f80;
}

static encode_fn *function_of(enum tensor_type type)
{
    switch (type) {
    case TENSOR_Q4_0: return encode_q4_0;
    case TENSOR_Q4_1: return encode_q4_1;
    case TENSOR_Q5_0: return encode_q5_0;
    case TENSOR_Q5_1: return encode_q5_1;
    case TENSOR_Q8_0: return encode_q8_0;
    case TENSOR_F16: return encode_f16;
    case TENSOR_BF16: return encode_bf16;
    default: return NULL;
    }
}

bool encode_values(enum tensor_type type, const float *values, uint64_t count, void *out)
{
    encode_fn *function = function_of(type);
    const struct tensor_type_info *info = tensor_type_info((uint32_t)type);
    uint8_t *block = out;
    bool ok = true;

    assert_always(function && count % info->block_values == 0);
    for (uint64_t i = 0; i < count; i += info->block_values, block += info->block_bytes)
        ok &= function(values + i, block);
    return ok;
}

bool encode_blocks(enum tensor_type from, const void *source, uint64_t count, enum tensor_type to, void *out)
{
    const struct tensor_type_info *read = tensor_type_info((uint32_t)from), *written = tensor_type_info((uint32_t)to);
    const uint8_t *next = source;
    uint8_t *block = out;
    float values[PIECE];
    bool ok = true;

    assert_always(read && written);
    for (uint64_t take; count; count -= take) {
        take = MIN(count, (uint64_t)PIECE);
        dequantize(from, next, take, values);
        ok &= encode_values(to, values, take, block);
        next += take / read->block_values * read->block_bytes;
        block += take / written->block_values * written->block_bytes;
    }
    return ok;
}
