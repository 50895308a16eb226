// attention_store_lanes.h: writes K and V into tiles, and q into the form that attention reads, for the 16 lanes of lanes.h;
// attention_store_avx2.c, _avx512.c and _neon.c define NAME() and include it. attention_ref.c does the same in plain loops,
// with the same bits.
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "common/base/checked.h"
#include "kernels/attention/attention_codes.h"
#include "kernels/simd/half.h"
#include "kernels/simd/lanes.h"

LANES_INLINE lanes saturate(lanes x, float most)
{
    x = lanes_min(lanes_set1(most), x); // a NaN in x stays
    return lanes_max(lanes_set1(-most), x);
}

// The stored form of a group of 16 or 32 values.
struct coded_group {
    int8_t codes[KV_GROUP_DIM];
    uint16_t scale, minimum;
};

LANES_INLINE void quantize_group(const float *x, uint32_t count, const bool has_minimum, struct coded_group *out)
{
    const lanes_i magnitude = lanes_set1_i(0x7fffffff);
    bool two = count > LANES;
    lanes a = lanes_load(x), b = two ? lanes_load(x + LANES) : a;
    uint32_t largest = lanes_max_all_u(lanes_max_u(lanes_and_i(lanes_as_i(a), magnitude), lanes_and_i(lanes_as_i(b), magnitude)));
    float base = 0, step;

    memset(out->codes, 0, sizeof out->codes);
    out->minimum = 0;
    if (largest > 0x7f800000u) { // a NaN
        out->scale = 0x7e00;
        return;
    }
    a = saturate(a, 65504.0f), b = saturate(b, 65504.0f);
    float high = lanes_max_all(lanes_max(a, b)), low = -lanes_max_all(lanes_sub(lanes_set1(-0.0f), lanes_min(a, b)));
    if (has_minimum) {
        out->minimum = lanes_f16_down(low + 0.0f); // never -0
        base = f16_to_float(out->minimum);
        out->scale = lanes_f16_up((high - base) / 15.0f);
    } else {
        out->scale = lanes_f16_up(MAX(high, -low) / 127.0f);
    }
    step = f16_to_float(out->scale);
    if (!(step > 0))
        return;
    lanes_store_s8(out->codes, lanes_to_s8(lanes_to_i(lanes_div(lanes_sub(a, lanes_set1(base)), lanes_set1(step)))));
    if (two)
        lanes_store_s8(out->codes + LANES, lanes_to_s8(lanes_to_i(lanes_div(lanes_sub(b, lanes_set1(base)), lanes_set1(step)))));
}

LANES_INLINE void store_k_codes(const enum kv_type type, uint32_t head_dim, const float *k, unsigned char *tile, uint32_t slot)
{
    uint16_t *scales = (uint16_t *)(tile + kv_k_code_bytes(head_dim, type)) + slot;
    uint32_t groups = kv_groups(head_dim);
    struct coded_group group;

    for (uint32_t i = 0; i < groups; i++) {
        uint32_t first = i * KV_GROUP_DIM, count = MIN(KV_GROUP_DIM, head_dim - first);
        quantize_group(k + first, count, type == KV_INT4X, &group);
        scales[i * KV_TILE] = group.scale;
        if (type == KV_INT4X) {
            scales[(groups + i) * KV_TILE] = group.minimum;
            for (uint32_t j = 0; j < count; j += 8) {
                unsigned char *word = tile + ((size_t)(first + j) / 8 * KV_TILE + slot) * 4;
                for (uint32_t b = 0; b < 4; b++)
                    word[b] = (unsigned char)(group.codes[j + b] | group.codes[j + b + 4] << 4);
            }
        } else {
            for (uint32_t j = 0; j < count; j += 4) {
                uint32_t word;
                memcpy(&word, group.codes + j, sizeof word);
                word ^= 0x80808080u; // adds 128 to each code
                memcpy(tile + ((size_t)(first + j) / 4 * KV_TILE + slot) * 4, &word, sizeof word);
            }
        }
    }
}

LANES_INLINE void store_v_codes(const enum kv_type type, uint32_t head_dim, const float *v, unsigned char *half, uint32_t slot)
{
    size_t row_bytes = kv_v_row_bytes(head_dim, type);
    unsigned char *column = half + slot / 4 * 4 * row_bytes + slot % 4;
    uint16_t *scales = (uint16_t *)(half + KV_TILE * row_bytes) + slot;
    uint32_t groups = kv_groups(head_dim);
    struct coded_group group;

    for (uint32_t i = 0; i < groups; i++) {
        uint32_t first = i * KV_GROUP_DIM, count = MIN(KV_GROUP_DIM, head_dim - first);
        quantize_group(v + first, count, type != KV_INT8, &group);
        scales[i * KV_TILE] = group.scale;
        if (type == KV_INT8) {
            for (uint32_t j = 0; j < count; j++)
                column[(size_t)(first + j) * 4] = (unsigned char)group.codes[j];
            continue;
        }
        scales[(groups + i) * KV_TILE] = group.minimum;
        for (uint32_t j = 0; j < KV_GROUP_DIM / 2; j++)
            column[(size_t)(first / 2 + j) * 4] = (unsigned char)(group.codes[j] | group.codes[j + KV_GROUP_DIM / 2] << 4);
    }
}

LANES_INLINE uint16_t to_bf16(float x)
{
    const float most = 0x1.fep127f;
    return bf16_from_float(x > most ? most : x < -most ? -most : x);
}

LANES_INLINE void store_elements(const enum kv_type type, uint32_t head_dim, const float *k, const float *v, unsigned char *tile,
                                 uint32_t slot)
{
    unsigned char *v_half = tile + kv_k_bytes(head_dim, type);

    for (uint32_t i = 0; i < head_dim; i += LANES) {
        if (type == KV_F32) {
            float *column = (float *)tile + (size_t)i * KV_TILE + slot;
            for (uint32_t j = 0; j < LANES; j++)
                memcpy(&column[j * KV_TILE], &k[i + j], sizeof(float));
            lanes_store((float *)v_half + (size_t)slot * head_dim + i, lanes_load(v + i));
            continue;
        }
        uint16_t rounded[LANES], *column = (uint16_t *)tile + (size_t)i * KV_TILE + slot;
        uint16_t *row = (uint16_t *)v_half + (size_t)slot * head_dim + i;
        if (type == KV_F16) {
            lanes_store_f16(rounded, saturate(lanes_load(k + i), 65504.0f));
            lanes_store_f16(row, saturate(lanes_load(v + i), 65504.0f));
        } else {
            for (uint32_t j = 0; j < LANES; j++)
                rounded[j] = to_bf16(k[i + j]), row[j] = to_bf16(v[i + j]);
        }
        for (uint32_t j = 0; j < LANES; j++)
            column[j * KV_TILE] = rounded[j];
    }
}

void NAME(attend_store)(enum kv_type type, uint32_t head_dim, const float *k, const float *v, void *tile, uint32_t slot)
{
    unsigned char *v_half = (unsigned char *)tile + kv_k_bytes(head_dim, type);

    switch (type) {
    case KV_F16: store_elements(KV_F16, head_dim, k, v, tile, slot); return;
    case KV_BF16: store_elements(KV_BF16, head_dim, k, v, tile, slot); return;
    case KV_F32: store_elements(KV_F32, head_dim, k, v, tile, slot); return;
    case KV_INT8:
        store_k_codes(KV_INT8, head_dim, k, tile, slot);
        store_v_codes(KV_INT8, head_dim, v, v_half, slot);
        return;
    case KV_INT4:
        store_k_codes(KV_INT4, head_dim, k, tile, slot);
        store_v_codes(KV_INT4, head_dim, v, v_half, slot);
        return;
    case KV_INT4X:
        store_k_codes(KV_INT4X, head_dim, k, tile, slot);
        store_v_codes(KV_INT4X, head_dim, v, v_half, slot);
        return;
    }
}

// Stores the codes of 16 values of q into `pairs` and `bytes`, in words of four. Returns their sum.
LANES_INLINE int32_t store_q(lanes_i codes, int16_t *pairs, int8_t *bytes)
{
    int16_t halves[2 * LANES];
    int8_t whole[4 * LANES];

    lanes_store((float *)halves, lanes_as_f(lanes_pack_pairs(codes)));
    lanes_store((float *)whole, lanes_as_f(lanes_pack_bytes(codes)));
    for (uint32_t i = 0; i < LANES; i += 4) {
        memcpy(pairs + i, halves + 2 * i, 4 * sizeof *pairs);
        memcpy(bytes + i, whole + 4 * i, 4);
    }
    return lanes_sum_i(codes);
}

// For KV types with codes, q becomes codes too (struct coded_q).
void NAME(attend_load_q)(enum kv_type type, uint32_t head_dim, const float *q, float *out)
{
    const lanes_i magnitude = lanes_set1_i(0x7fffffff);
    const float most = attend_q_most(type);
    float scaled[KV_MAX_HEAD_DIM];
    struct coded_q to = coded_q_at(out, head_dim);

    if (type <= KV_BF16) {
        attend_scale_q(head_dim, q, out);
        return;
    }
    attend_scale_q(head_dim, q, scaled);
    memset(out, 0, head_dim * sizeof *out);
    for (uint32_t group = 0; group < kv_groups(head_dim); group++) {
        uint32_t first = group * KV_GROUP_DIM, end = MIN(first + KV_GROUP_DIM, head_dim);
        lanes_i largest = lanes_set1_i(0);
        for (uint32_t i = first; i < end; i += LANES)
            largest = lanes_max_u(largest, lanes_and_i(lanes_as_i(lanes_load(scaled + i)), magnitude));
        uint32_t bits = lanes_max_all_u(largest);
        if (bits > 0x7f800000u) { // there is a NaN, so all scores become NaN
            to.scales[group] = NAN;
            continue;
        }
        float scale = MIN(f32_from_bits(bits), FLT_MAX) / most;
        if (scale < FLT_MIN) // q·k would be below 1e-28
            continue;
        int32_t sum = 0;
        for (uint32_t i = first; i < end; i += LANES)
            sum += store_q(lanes_to_i(saturate(lanes_div(lanes_load(scaled + i), lanes_set1(scale)), most)), to.pairs + i, to.bytes + i);
        to.scales[group] = scale;
        to.starts[group] = -128 * sum;
        to.sums[group] = scale * (float)sum;
    }
}
