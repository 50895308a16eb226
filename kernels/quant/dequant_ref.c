// dequant_ref.c: each block format of GGUF to f32, one function a format, values in the order of the file.
//
//     Q4_0 {f16 d; u8 qs[16]}                 value i: low nibble of byte i, value i + 16: high; d * (q - 8)
//     Q4_1 {f16 d, m; u8 qs[16]}              d * q + m
//     Q5_0 {f16 d; u32 qh; u8 qs[16]}         bit i of qh is bit 4 of value i; d * (q - 16)
//     Q5_1 {f16 d, m; u32 qh; u8 qs[16]}      d * q + m
//     Q8_0 {f16 d; s8 qs[32]}                 d * q
//     Q4_K {f16 d, dmin; u8 scales[12], qs[128]}           8 groups of 32: (d * scale) * q - (dmin * minimum)
//     Q5_K {f16 d, dmin; u8 scales[12], qh[32], qs[128]}   the same with bit g of qh[i] as bit 4 of value i of group g
//     Q6_K {u8 ql[128], qh[64]; s8 scales[16]; f16 d}      16 groups of 16: (d * scale) * (q - 32)
//     Q2_K {u8 scales[16], qs[64]; f16 d, dmin}            16 groups of 16, scale and minimum of 4 bits: (d * scale) * q - (dmin * minimum)
//     Q3_K {u8 hmask[32], qs[64], scales[12]; f16 d}       16 groups of 16: (d * (scale - 32)) * (q - 4); bit 2 of q is in hmask
//     Q8_K {f32 d; s8 qs[256]; s16 sums[16]}               d * q; the sums of each 16 q are not needed
//     IQ4_NL {f16 d; u8 qs[16]}                            nibbles as in Q4_0; d * codebook[q]
//     IQ4_XS {f16 d; u16 scales_h; u8 scales_l[4], qs[128]}    8 groups of 32: (d * (scale - 32)) * codebook[q]
//     MXFP4 {u8 e; u8 qs[16]}                              nibbles as in Q4_0; 2^(e - 128) * doubled codebook[q]
//
// Bytes are read one by one: the host may be of any alignment rule, and blocks of 18 bytes lie anywhere.
#include "kernels/quant/dequant.h"

#include "common/base/status.h"
#include "kernels/quant/codebook.h"
#include "kernels/simd/half.h"

typedef void block_fn(const uint8_t *block, float *out);

static uint16_t read_u16(const uint8_t *bytes) { return (uint16_t)(bytes[0] | bytes[1] << 8); }

static uint32_t read_u32(const uint8_t *bytes) { return read_u16(bytes) | (uint32_t)read_u16(bytes + 2) << 16; }

static float read_f16(const uint8_t *bytes) { return f16_to_float(read_u16(bytes)); }

static void block_f32(const uint8_t *block, float *out) { *out = f32_from_bits(read_u32(block)); }

static void block_f16(const uint8_t *block, float *out) { *out = read_f16(block); }

static void block_bf16(const uint8_t *block, float *out) { *out = bf16_to_float(read_u16(block)); }

// --- 32 values a block ------------------------------------------------------------------------------------------------

static void block_q4_0(const uint8_t *block, float *out)
{
    const uint8_t *qs = block + 2;
    float d = read_f16(block);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)((qs[i] & 15) - 8);
        out[i + 16] = d * (float)((qs[i] >> 4) - 8);
    }
}

static void block_q4_1(const uint8_t *block, float *out)
{
    const uint8_t *qs = block + 4;
    float d = read_f16(block), m = read_f16(block + 2);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)(qs[i] & 15) + m;
        out[i + 16] = d * (float)(qs[i] >> 4) + m;
    }
}

static void block_q5_0(const uint8_t *block, float *out)
{
    const uint8_t *qs = block + 6;
    float d = read_f16(block);
    uint32_t qh = read_u32(block + 2);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)((int)((qs[i] & 15u) | (qh >> i & 1) << 4) - 16);
        out[i + 16] = d * (float)((int)((qs[i] >> 4) | (qh >> (i + 16) & 1) << 4) - 16);
    }
}

static void block_q5_1(const uint8_t *block, float *out)
{
    const uint8_t *qs = block + 8;
    float d = read_f16(block), m = read_f16(block + 2);
    uint32_t qh = read_u32(block + 4);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)((qs[i] & 15u) | (qh >> i & 1) << 4) + m;
        out[i + 16] = d * (float)((qs[i] >> 4) | (qh >> (i + 16) & 1) << 4) + m;
    }
}

static void block_q8_0(const uint8_t *block, float *out)
{
    float d = read_f16(block);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)(int8_t)block[2 + i];
}

static void block_codes(float d, const int8_t *codebook, const uint8_t *qs, float *out)
{
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)codebook[qs[i] & 15];
        out[i + 16] = d * (float)codebook[qs[i] >> 4];
    }
}

static void block_iq4_nl(const uint8_t *block, float *out) { block_codes(read_f16(block), codebook_iq4, block + 2, out); }

static void block_mxfp4(const uint8_t *block, float *out)
{
    block_codes(codebook_mxfp4_scale(block[0]), codebook_mxfp4, block + 1, out);
}

// --- 256 values a block -------------------------------------------------------------------------------------------------

// The 6-bit scale and minimum of group g (0..7) out of 12 bytes: groups 0..3 whole in bytes g and g + 4; groups 4..7 have
// their low four bits in byte g + 4 and the upper two in the top of bytes g - 4 (scale) and g (minimum).
static void unpack_scale(const uint8_t *scales, int g, uint8_t *scale, uint8_t *minimum)
{
    if (g < 4) {
        *scale = scales[g] & 63;
        *minimum = scales[g + 4] & 63;
    } else {
        *scale = (uint8_t)((scales[g + 4] & 15) | scales[g - 4] >> 6 << 4);
        *minimum = (uint8_t)(scales[g + 4] >> 4 | scales[g] >> 6 << 4);
    }
}

// Q4_K (qh NULL) and Q5_K.
static void block_k(const uint8_t *block, const uint8_t *qh, const uint8_t *qs, float *out)
{
    float d = read_f16(block), dmin = read_f16(block + 2);
    for (int g = 0; g < 8; g++) {
        uint8_t scale, minimum;
        unpack_scale(block + 4, g, &scale, &minimum);
        float group_d = d * (float)scale, group_m = dmin * (float)minimum;
        for (int i = 0; i < 32; i++) {
            unsigned q = (unsigned)qs[g / 2 * 32 + i] >> (g % 2 * 4) & 15u;
            if (qh)
                q |= ((unsigned)qh[i] >> g & 1u) << 4;
            out[g * 32 + i] = group_d * (float)q - group_m;
        }
    }
}

static void block_q4_k(const uint8_t *block, float *out) { block_k(block, NULL, block + 16, out); }

static void block_q5_k(const uint8_t *block, float *out) { block_k(block, block + 16, block + 48, out); }

// Halves of 128 values; in a half, values l, l + 32, l + 64, l + 96 share byte l of qh (two bits each), and ql holds the
// first two rows of 32 in low nibbles, the last two in high ones.
static void block_q6_k(const uint8_t *block, float *out)
{
    float d = read_f16(block + 208);
    for (int value = 0; value < 256; value++) {
        int half = value / 128, row = value % 128 / 32, column = value % 32;
        unsigned low = (unsigned)block[half * 64 + row % 2 * 32 + column] >> (row / 2 * 4) & 15u;
        unsigned high = (unsigned)block[128 + half * 32 + column] >> (row * 2) & 3u;
        int8_t scale = (int8_t)block[192 + value / 16];
        out[value] = d * (float)scale * (float)((int)(low | high << 4) - 32);
    }
}

// Halves of 128 values; in a half, values l, l + 32, l + 64, l + 96 share byte l of qs, two bits each.
static void block_q2_k(const uint8_t *block, float *out)
{
    float d = read_f16(block + 80), dmin = read_f16(block + 82);
    for (int value = 0; value < 256; value++) {
        int half = value / 128, row = value % 128 / 32, column = value % 32;
        unsigned q = (unsigned)block[16 + half * 32 + column] >> (row * 2) & 3u;
        uint8_t scales = block[value / 16];
        out[value] = d * (float)(scales & 15) * (float)q - dmin * (float)(scales >> 4);
    }
}

// The 6-bit scale of group g (0..15) out of 12 bytes: bytes 0..7 hold the low four bits of g in the low and of g + 8 in the high nibble;
// bytes 8..11 the upper two of g, g + 4, g + 8 and g + 12.
static int unpack_q3_scale(const uint8_t *scales, int g)
{
    int low = scales[g % 8] >> (g / 8 * 4) & 15, high = scales[8 + g % 4] >> (g / 4 * 2) & 3;
    return (low | high << 4) - 32;
}

// Two bits of each value as in Q2_K; the third of value i is bit i / 32 of byte i % 32 of hmask.
static void block_q3_k(const uint8_t *block, float *out)
{
    float d = read_f16(block + 108);
    for (int value = 0; value < 256; value++) {
        int half = value / 128, row = value % 128 / 32, column = value % 32;
        unsigned low = (unsigned)block[32 + half * 32 + column] >> (row * 2) & 3u;
        unsigned high = (unsigned)block[column] >> (value / 32) & 1u;
        int scale = unpack_q3_scale(block + 96, value / 16);
        out[value] = d * (float)scale * (float)((int)(low | high << 2) - 4);
    }
}

static void block_q8_k(const uint8_t *block, float *out)
{
    float d = f32_from_bits(read_u32(block));
    for (int i = 0; i < 256; i++)
        out[i] = d * (float)(int8_t)block[4 + i];
}

// The 6-bit scale of group g: its low four bits in nibble g of scales_l, the upper two at bit 2g of scales_h.
static void block_iq4_xs(const uint8_t *block, float *out)
{
    float d = read_f16(block);
    unsigned scales_h = read_u16(block + 2);
    for (int g = 0; g < 8; g++) {
        unsigned low = (unsigned)block[4 + g / 2] >> (g % 2 * 4) & 15u, high = scales_h >> (g * 2) & 3u;
        block_codes(d * (float)((int)(low | high << 4) - 32), codebook_iq4, block + 8 + g * 16, out + g * 32);
    }
}

void dequantize(enum tensor_type type, const void *source, uint64_t count, float *out)
{
    static block_fn *const functions[] = {
        [TENSOR_F32] = block_f32,     [TENSOR_F16] = block_f16,   [TENSOR_BF16] = block_bf16,     [TENSOR_Q4_0] = block_q4_0,
        [TENSOR_Q4_1] = block_q4_1,   [TENSOR_Q5_0] = block_q5_0, [TENSOR_Q5_1] = block_q5_1,     [TENSOR_Q8_0] = block_q8_0,
        [TENSOR_Q2_K] = block_q2_k,   [TENSOR_Q3_K] = block_q3_k, [TENSOR_Q4_K] = block_q4_k,     [TENSOR_Q5_K] = block_q5_k,
        [TENSOR_Q6_K] = block_q6_k,   [TENSOR_Q8_K] = block_q8_k, [TENSOR_IQ4_NL] = block_iq4_nl, [TENSOR_IQ4_XS] = block_iq4_xs,
        [TENSOR_MXFP4] = block_mxfp4,
    };
    const struct tensor_type_info *info = tensor_type_info((uint32_t)type);
    const uint8_t *block = source;

    assert_always(info && count % info->block_values == 0);
    for (uint64_t i = 0; i < count; i += info->block_values, block += info->block_bytes)
        functions[type](block, out + i);
}
