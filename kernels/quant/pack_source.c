// pack_source.c: reads one group of 32 weights from each of GGUF's block formats, as integers and the source's own scales.
//
//     Q4_0 {f16 d; u8 qs[16]}              byte i: value i in the low nibble, value i + 16 in the high one
//     Q4_1 {f16 d, m; u8 qs[16]}
//     Q5_0 {f16 d; u32 qh; u8 qs[16]}      bit i of qh is bit 4 of value i
//     Q5_1 {f16 d, m; u32 qh; u8 qs[16]}
//     Q8_0 {f16 d; s8 qs[32]}
//     Q4_K {f16 d, dmin; u8 scales[12], qs[128]}          8 groups; bytes 32j..32j+31: group 2j low, 2j + 1 high nibbles
//     Q5_K {f16 d, dmin; u8 scales[12], qh[32], qs[128]}  bit g of qh[i] is bit 4 of value i of group g
//     Q6_K {u8 ql[128], qh[64]; s8 scales[16]; f16 d}     8 groups, a scale for every 16
//     Q2_K {u8 scales[16], qs[64]; f16 d, dmin}           8 groups, a scale and a minimum for every 16
//     Q3_K {u8 hmask[32], qs[64], scales[12]; f16 d}      8 groups, a scale for every 16
//     Q8_K {f32 d; s8 qs[256]; s16 sums[16]}
//     IQ4_NL {f16 d; u8 qs[16]}                           codes, in the order of Q4_0
//     IQ4_XS {f16 d; u16 scales_h; u8 scales_l[4], qs[128]}    8 groups; bytes 16g..16g + 15: group g, codes in the order of Q4_0
//     MXFP4 {u8 e; u8 qs[16]}                             codes, in the order of Q4_0
//
// All are little-endian and unaligned in the file.
#include "kernels/quant/pack_source.h"

#include <string.h>

#include "common/base/checked.h"
#include "kernels/quant/codebook.h"

static uint16_t read_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

static void read_nibbles(const uint8_t *qs, uint8_t *q)
{
    for (int i = 0; i < 16; i++) {
        q[i] = qs[i] & 0x0f;
        q[i + 16] = qs[i] >> 4;
    }
}

// Adds bit 4 from qh, then `offset`, so that the result is value + 128.
static void read_five_bits(const uint8_t *qh_bytes, const uint8_t *qs, uint8_t offset, uint8_t *q)
{
    uint32_t qh;
    memcpy(&qh, qh_bytes, sizeof qh);
    read_nibbles(qs, q);
    for (int i = 0; i < 32; i++)
        q[i] = (uint8_t)(q[i] + ((qh >> i & 1) << 4) + offset);
}

static void read_q4_0(const uint8_t *block, uint32_t group, struct pack_group *out)
{
    (void)group;
    out->scale = read_u16(block);
    read_nibbles(block + 2, out->q);
}

static void read_q4_1(const uint8_t *block, uint32_t group, struct pack_group *out)
{
    (void)group;
    out->scale = read_u16(block);
    out->minimum = read_u16(block + 2);
    read_nibbles(block + 4, out->q);
}

static void read_q5_0(const uint8_t *block, uint32_t group, struct pack_group *out)
{
    (void)group;
    out->scale = read_u16(block);
    read_five_bits(block + 2, block + 6, 128 - 16, out->q);
}

static void read_q5_1(const uint8_t *block, uint32_t group, struct pack_group *out)
{
    (void)group;
    out->scale = read_u16(block);
    out->minimum = read_u16(block + 2);
    read_five_bits(block + 4, block + 8, 128, out->q);
}

static void read_q8_0(const uint8_t *block, uint32_t group, struct pack_group *out)
{
    (void)group;
    out->scale = read_u16(block);
    for (int i = 0; i < 32; i++)
        out->q[i] = block[2 + i] ^ 0x80;
}

// Six-bit scale and minimum of a K type's group: four low ones in six bits each, the others in four bits plus two.
static void read_k_scales(const uint8_t *block, uint32_t group, struct pack_group *out)
{
    const uint8_t *s = block + 4;
    out->scale = read_u16(block);
    out->minimum = read_u16(block + 2);
    uint8_t scale, minimum;
    if (group < 4) {
        scale = s[group] & 63;
        minimum = s[group + 4] & 63;
    } else {
        scale = (uint8_t)((s[group + 4] & 0x0f) | s[group - 4] >> 6 << 4);
        minimum = (uint8_t)(s[group + 4] >> 4 | s[group] >> 6 << 4);
    }
    out->small_scale[0] = out->small_scale[1] = (int8_t)scale;
    out->small_minimum[0] = out->small_minimum[1] = minimum;
}

static void read_q4_k(const uint8_t *block, uint32_t group, struct pack_group *out)
{
    read_k_scales(block, group, out);
    const uint8_t *qs = block + 16 + group / 2 * 32;
    uint32_t shift = group % 2 * 4;
    for (int i = 0; i < 32; i++)
        out->q[i] = qs[i] >> shift & 0x0f;
}

static void read_q5_k(const uint8_t *block, uint32_t group, struct pack_group *out)
{
    read_k_scales(block, group, out);
    const uint8_t *qh = block + 16, *qs = block + 48 + group / 2 * 32;
    uint32_t shift = group % 2 * 4;
    for (int i = 0; i < 32; i++)
        out->q[i] = (uint8_t)((qs[i] >> shift & 0x0f) + ((qh[i] >> group & 1) << 4) + 128);
}

static void read_q6_k(const uint8_t *block, uint32_t group, struct pack_group *out)
{
    uint32_t half = group / 4, part = group % 4;
    const uint8_t *ql = block + half * 64 + part % 2 * 32, *qh = block + 128 + half * 32;
    const uint8_t *scales = block + 192 + half * 8 + part * 2;
    for (int i = 0; i < 32; i++)
        out->q[i] = (uint8_t)((ql[i] >> part / 2 * 4 & 0x0f) + ((qh[i] >> part * 2 & 3) << 4) + 128 - 32);
    out->small_scale[0] = (int8_t)scales[0];
    out->small_scale[1] = (int8_t)scales[1];
    out->scale = read_u16(block + 208);
}

static void read_codes(const uint8_t *qs, const int8_t *codebook, uint8_t *q)
{
    read_nibbles(qs, q);
    for (int i = 0; i < 32; i++)
        q[i] = (uint8_t)(codebook[q[i]] + 128);
}

// Two bits of each value of a group, as Q2_K and Q3_K have them.
static void read_two_bits(const uint8_t *qs, uint32_t group, uint8_t *q)
{
    for (int i = 0; i < 32; i++)
        q[i] = qs[group / 4 * 32 + (uint32_t)i] >> (group % 4 * 2) & 3;
}

static void read_q2_k(const uint8_t *block, uint32_t group, struct pack_group *out)
{
    read_two_bits(block + 16, group, out->q);
    for (uint32_t half = 0; half < 2; half++) {
        uint8_t scales = block[group * 2 + half];
        out->small_scale[half] = (int8_t)(scales & 0x0f);
        out->small_minimum[half] = scales >> 4;
    }
    out->scale = read_u16(block + 80);
    out->minimum = read_u16(block + 82);
}

static void read_q3_k(const uint8_t *block, uint32_t group, struct pack_group *out)
{
    const uint8_t *scales = block + 96;
    read_two_bits(block + 32, group, out->q);
    for (int i = 0; i < 32; i++) // three bits, 4 for zero; a packed 4 is -4
        out->q[i] = (uint8_t)(out->q[i] + ((block[i] >> group & 1) << 2) + 4);
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t g = group * 2 + half;
        int low = scales[g % 8] >> (g / 8 * 4) & 0x0f, high = scales[8 + g % 4] >> (g / 4 * 2) & 3;
        out->small_scale[half] = (int8_t)((low | high << 4) - 32);
    }
    out->scale = read_u16(block + 108);
}

static void read_q8_k(const uint8_t *block, uint32_t group, struct pack_group *out)
{
    memcpy(&out->scale_f32, block, sizeof out->scale_f32);
    for (uint32_t i = 0; i < 32; i++)
        out->q[i] = block[4 + group * 32 + i] ^ 0x80;
}

static void read_iq4_nl(const uint8_t *block, uint32_t group, struct pack_group *out)
{
    (void)group;
    out->scale = read_u16(block);
    read_codes(block + 2, codebook_iq4, out->q);
}

static void read_iq4_xs(const uint8_t *block, uint32_t group, struct pack_group *out)
{
    int low = block[4 + group / 2] >> (group % 2 * 4) & 0x0f, high = read_u16(block + 2) >> (group * 2) & 3;
    out->scale = read_u16(block);
    out->small_scale[0] = out->small_scale[1] = (int8_t)((low | high << 4) - 32);
    read_codes(block + 8 + group * 16, codebook_iq4, out->q);
}

static void read_mxfp4(const uint8_t *block, uint32_t group, struct pack_group *out)
{
    (void)group;
    out->scale_f32 = codebook_mxfp4_scale(block[0]);
    read_codes(block + 1, codebook_mxfp4, out->q);
}

static const struct pack_source sources[] = {
    {.type = TENSOR_F32, .layout = PACK_F32},
    {.type = TENSOR_F16, .layout = PACK_F16},
    {.type = TENSOR_BF16, .layout = PACK_BF16},
    {.type = TENSOR_Q4_0, .layout = PACK_U4, .read = read_q4_0},
    {.type = TENSOR_Q4_1, .layout = PACK_U4, .minimum = true, .read = read_q4_1},
    {.type = TENSOR_Q5_0, .layout = PACK_S8, .read = read_q5_0},
    {.type = TENSOR_Q5_1, .layout = PACK_S8, .minimum = true, .read = read_q5_1},
    {.type = TENSOR_Q8_0, .layout = PACK_S8, .read = read_q8_0},
    {.type = TENSOR_Q4_K, .layout = PACK_U4, .super = true, .minimum = true, .read = read_q4_k},
    {.type = TENSOR_Q5_K, .layout = PACK_S8, .super = true, .minimum = true, .read = read_q5_k},
    {.type = TENSOR_Q6_K, .layout = PACK_S8_HALVES, .super = true, .read = read_q6_k},
    {.type = TENSOR_Q2_K, .layout = PACK_U4_HALVES, .super = true, .minimum = true, .read = read_q2_k},
    {.type = TENSOR_Q3_K, .layout = PACK_U4_HALVES, .super = true, .read = read_q3_k},
    {.type = TENSOR_Q8_K, .layout = PACK_S8_F32, .read = read_q8_k},
    {.type = TENSOR_IQ4_NL, .layout = PACK_S8, .read = read_iq4_nl},
    {.type = TENSOR_IQ4_XS, .layout = PACK_S8, .super = true, .read = read_iq4_xs},
    {.type = TENSOR_MXFP4, .layout = PACK_S8_F32, .read = read_mxfp4},
};

const struct pack_source *pack_source_find(uint32_t type)
{
    for (size_t i = 0; i < ARRAY_COUNT(sources); i++)
        if ((uint32_t)sources[i].type == type)
            return &sources[i];
    return NULL;
}
