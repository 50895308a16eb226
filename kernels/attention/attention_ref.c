// attention_ref.c: plain loops with double accumulation: the oracle of attention_lanes.h and the fallback.
#include <float.h>
#include <math.h>
#include <string.h>

#include "common/base/checked.h"
#include "kernels/attention/attention.h"
#include "kernels/simd/half.h"

// --- store: the same bits as attention_store_lanes.h -------------------------------------------------------------------

static float saturate(float x, float most) { return x > most ? most : x < -most ? -most : x; }

static void put_u16(unsigned char *at, size_t index, uint16_t bits) { memcpy(at + 2 * index, &bits, sizeof bits); }

static void put(enum kv_type type, unsigned char *at, size_t index, float value)
{
    if (type == KV_F16)
        put_u16(at, index, f16_from_float(saturate(value, 65504.0f)));
    else if (type == KV_BF16)
        put_u16(at, index, bf16_from_float(saturate(value, bf16_to_float(0x7f7f))));
    else
        memcpy(at + 4 * index, &value, sizeof value);
}

// Computes the codes, the scale and, unless `minimum` is NULL, the minimum of one group of `count` values.
static void quantize_group(const float *x, uint32_t count, int8_t *codes, uint16_t *scale, uint16_t *minimum)
{
    float values[KV_GROUP_DIM], low = INFINITY, high = -INFINITY, base = 0, step;

    memset(codes, 0, count);
    for (uint32_t i = 0; i < count; i++) {
        if (isnan(x[i])) {
            *scale = 0x7e00;
            if (minimum)
                *minimum = 0;
            return;
        }
        values[i] = saturate(x[i], 65504.0f);
        low = MIN(low, values[i]), high = MAX(high, values[i]);
    }
    if (minimum) {
        *minimum = f16_down(low + 0.0f); // never -0
        base = f16_to_float(*minimum);
        *scale = f16_up((high - base) / 15.0f);
    } else {
        *scale = f16_up(MAX(high, -low) / 127.0f);
    }
    step = f16_to_float(*scale);
    for (uint32_t i = 0; step > 0 && i < count; i++)
        codes[i] = (int8_t)lrintf((values[i] - base) / step);
}

static void put_k_codes(enum kv_type type, uint32_t head_dim, const float *k, unsigned char *tile, uint32_t slot)
{
    unsigned char *scales = tile + kv_k_code_bytes(head_dim, type);
    uint32_t groups = kv_groups(head_dim);

    for (uint32_t group = 0; group < groups; group++) {
        uint32_t first = group * KV_GROUP_DIM, count = MIN(KV_GROUP_DIM, head_dim - first);
        uint16_t scale, minimum;
        int8_t codes[KV_GROUP_DIM];
        quantize_group(k + first, count, codes, &scale, type == KV_INT4X ? &minimum : NULL);
        put_u16(scales, group * KV_TILE + slot, scale);
        if (type == KV_INT4X) {
            put_u16(scales, (groups + group) * KV_TILE + slot, minimum);
            for (uint32_t i = 0; i < count; i += 8)
                for (uint32_t j = 0; j < 4; j++)
                    tile[((size_t)(first + i) / 8 * KV_TILE + slot) * 4 + j] =
                        (unsigned char)(codes[i + j] | codes[i + j + 4] << 4);
        } else {
            for (uint32_t i = 0; i < count; i++)
                tile[((size_t)(first + i) / 4 * KV_TILE + slot) * 4 + i % 4] = (unsigned char)(codes[i] + 128);
        }
    }
}

static void put_v_codes(enum kv_type type, uint32_t head_dim, const float *v, unsigned char *half, uint32_t slot)
{
    size_t row_bytes = kv_v_row_bytes(head_dim, type);
    unsigned char *column = half + slot / 4 * 4 * row_bytes + slot % 4, *scales = half + KV_TILE * row_bytes;
    uint32_t groups = kv_groups(head_dim);

    for (uint32_t group = 0; group < groups; group++) {
        uint32_t first = group * KV_GROUP_DIM, count = MIN(KV_GROUP_DIM, head_dim - first);
        uint16_t scale, minimum;
        int8_t codes[KV_GROUP_DIM] = {0};
        quantize_group(v + first, count, codes, &scale, type == KV_INT8 ? NULL : &minimum);
        put_u16(scales, group * KV_TILE + slot, scale);
        for (uint32_t i = 0; type == KV_INT8 && i < count; i++)
            column[(size_t)(first + i) * 4] = (unsigned char)codes[i];
        if (type == KV_INT8)
            continue;
        put_u16(scales, (groups + group) * KV_TILE + slot, minimum);
        for (uint32_t i = 0; i < KV_GROUP_DIM / 2; i++)
            column[(size_t)(first / 2 + i) * 4] = (unsigned char)(codes[i] | codes[i + KV_GROUP_DIM / 2] << 4);
    }
}

void attend_store_ref(enum kv_type type, uint32_t head_dim, const float *k, const float *v, void *tile, uint32_t slot)
{
    unsigned char *v_half = (unsigned char *)tile + kv_k_bytes(head_dim, type);

    if (type > KV_BF16) {
        put_k_codes(type, head_dim, k, tile, slot);
        put_v_codes(type, head_dim, v, v_half, slot);
        return;
    }
    for (uint32_t i = 0; i < head_dim; i++) {
        put(type, tile, (size_t)i * KV_TILE + slot, k[i]);
        put(type, v_half, (size_t)slot * head_dim + i, v[i]);
    }
}

// --- attend ----------------------------------------------------------------------------------------------------------

static double get_u16(enum kv_type type, const unsigned char *at, size_t index)
{
    uint16_t bits;
    memcpy(&bits, at + 2 * index, sizeof bits);
    return (double)(type == KV_BF16 ? bf16_to_float(bits) : f16_to_float(bits));
}

static double get(enum kv_type type, const unsigned char *at, size_t index)
{
    float value;
    if (type != KV_F32)
        return get_u16(type, at, index);
    memcpy(&value, at + 4 * index, sizeof value);
    return (double)value;
}

static double k_value(const struct attend_range *range, uint32_t token, uint32_t i)
{
    const unsigned char *k = range->tiles[token / KV_TILE];
    const unsigned char *scales = k + kv_k_code_bytes(range->head_dim, range->type);
    uint32_t slot = token % KV_TILE, groups = kv_groups(range->head_dim), group = i / KV_GROUP_DIM;

    if (range->type <= KV_BF16)
        return get(range->type, k, (size_t)i * KV_TILE + slot);
    double scale = get_u16(KV_F16, scales, group * KV_TILE + slot);
    if (range->type != KV_INT4X)
        return scale * (k[((size_t)i / 4 * KV_TILE + slot) * 4 + i % 4] - 128);
    int code = k[((size_t)i / 8 * KV_TILE + slot) * 4 + i % 4] >> (i % 8 < 4 ? 0 : 4) & 15;
    return scale * code + get_u16(KV_F16, scales, (groups + group) * KV_TILE + slot);
}

static double v_value(const struct attend_range *range, uint32_t token, uint32_t i)
{
    size_t row_bytes = kv_v_row_bytes(range->head_dim, range->type);
    const unsigned char *half = range->tiles[token / KV_TILE] + kv_k_bytes(range->head_dim, range->type);
    uint32_t slot = token % KV_TILE, groups = kv_groups(range->head_dim), group = i / KV_GROUP_DIM;
    const unsigned char *scales = half + KV_TILE * row_bytes, *column = half + slot / 4 * 4 * row_bytes + slot % 4;

    if (range->type <= KV_BF16)
        return get(range->type, half + slot * row_bytes, i);
    double scale = get_u16(KV_F16, scales, group * KV_TILE + slot);
    if (range->type == KV_INT8)
        return scale * (int8_t)column[(size_t)i * 4];
    int code = column[(size_t)(group * 16 + i % 16) * 4] >> (i % KV_GROUP_DIM < 16 ? 0 : 4) & 15;
    return scale * code + get_u16(KV_F16, scales, (groups + group) * KV_TILE + slot);
}

void attend_load_q_ref(enum kv_type type, uint32_t head_dim, const float *q, float *out)
{
    (void)type;
    attend_scale_q(head_dim, q, out);
}

static void attend_line(const struct attend_range *range, uint32_t line)
{
    uint32_t head_dim = range->head_dim, count = MIN(range->limit[line] - range->begin, KV_RANGE);
    uint32_t from = range->lower && range->lower[line] > range->begin ? range->lower[line] - range->begin : 0;
    const float *q = range->q + (size_t)line * head_dim;
    double scores[KV_RANGE], sums[KV_MAX_HEAD_DIM] = {0}, best = -INFINITY, sum = 0;

    for (uint32_t t = from; t < count; t++) {
        scores[t] = 0;
        for (uint32_t i = 0; i < head_dim; i++)
            scores[t] += (double)q[i] * k_value(range, t, i);
        scores[t] = scores[t] > FLT_MAX ? FLT_MAX : scores[t] < -FLT_MAX ? -FLT_MAX : scores[t];
        if (range->soft_cap > 0)
            scores[t] = (double)range->soft_cap * tanh(scores[t] / (double)range->soft_cap);
        scores[t] = (double)(float)scores[t]; // m is returned as f32, and no score may be above it
        best = scores[t] > best ? scores[t] : best;
    }
    for (uint32_t t = from; t < count; t++) {
        double p = exp(scores[t] - best);
        sum += p;
        for (uint32_t i = 0; i < head_dim; i++)
            sums[i] += p * v_value(range, t, i);
    }
    range->m[line] = (float)best;
    range->l[line] = (float)sum;
    for (uint32_t i = 0; i < head_dim; i++)
        range->acc[(size_t)line * head_dim + i] = (float)sums[i];
}

void attend_range_ref(const struct attend_range *range)
{
    for (uint32_t line = 0; line < range->line_count; line++)
        attend_line(range, line);
}

void attend_fold_ref(uint32_t line_count, uint32_t head_dim, const struct attend_partial *into, const struct attend_partial *next)
{
    for (uint32_t line = 0; line < line_count; line++) {
        double best = (double)MAX(into->m[line], next->m[line]);
        double a = exp((double)into->m[line] - best), b = exp((double)next->m[line] - best);
        float *acc = into->acc + (size_t)line * head_dim;
        const float *more = next->acc + (size_t)line * head_dim;

        into->m[line] = (float)best;
        into->l[line] = (float)((double)into->l[line] * a + (double)next->l[line] * b);
        for (uint32_t i = 0; i < head_dim; i++)
            acc[i] = (float)((double)acc[i] * a + (double)more[i] * b);
    }
}

void attend_scores_ref(const struct attend_scores *job)
{
    for (uint32_t tile = 0; tile < job->count; tile++) {
        double sum = 0;
        for (uint32_t i = 0; i < 2 * job->head_dim; i++)
            sum += (double)job->q[i] * (double)f16_to_float(job->bounds[tile][i]);
        job->scores[tile] = (float)sum;
    }
}

#define NAME(op) op##_ref
#include "kernels/attention/attention_choose_body.h"
