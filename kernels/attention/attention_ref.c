/* attention_ref.c: plain loops with double accumulation: the oracle of attention_lanes.h and the fallback. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "common/base/checked.h"
#include "kernels/attention/attention.h"
#include "kernels/dispatch/half.h"

static double element(enum attend_type type, const unsigned char *half, size_t index)
{
    float value;
    uint16_t bits;

    if (type == ATTEND_F16) {
        memcpy(&bits, half + 2 * index, sizeof bits);
        return (double)f16_to_float(bits);
    }
    memcpy(&value, half + 4 * index, sizeof value);
    return (double)value;
}

static void put(enum attend_type type, unsigned char *half, size_t index, float value)
{
    if (type == ATTEND_F16) {
        uint16_t bits = f16_from_float(value > 65504.0f ? 65504.0f : value < -65504.0f ? -65504.0f : value);
        memcpy(half + 2 * index, &bits, sizeof bits);
    } else {
        memcpy(half + 4 * index, &value, sizeof value);
    }
}

void attend_store_ref(enum attend_type type, uint32_t head_dim, const float *k, const float *v, void *tile, uint32_t slot)
{
    unsigned char *k_half = tile, *v_half = k_half + attend_half_bytes(head_dim, type);

    for (uint32_t i = 0; i < head_dim; i++) {
        put(type, k_half, (size_t)i * ATTEND_TILE + slot, k[i]);
        put(type, v_half, (size_t)slot * head_dim + i, v[i]);
    }
}

static void attend_line(const struct attend_range *range, uint32_t line)
{
    uint32_t head_dim = range->head_dim, count = MIN(range->limit[line] - range->begin, ATTEND_RANGE);
    const float *q = range->q + (size_t)line * head_dim;
    size_t half = attend_half_bytes(head_dim, range->type);
    double scores[ATTEND_RANGE], sums[ATTEND_MAX_HEAD_DIM] = {0}, best = -INFINITY, sum = 0;

    for (uint32_t t = 0; t < count; t++) {
        const unsigned char *k = range->tiles[t / ATTEND_TILE];
        scores[t] = 0;
        for (uint32_t i = 0; i < head_dim; i++)
            scores[t] += (double)q[i] * element(range->type, k, (size_t)i * ATTEND_TILE + t % ATTEND_TILE);
        scores[t] = scores[t] > FLT_MAX ? FLT_MAX : scores[t] < -FLT_MAX ? -FLT_MAX : scores[t];
        scores[t] = (double)(float)scores[t]; /* m leaves as f32, and no score may be above it */
        best = scores[t] > best ? scores[t] : best;
    }
    for (uint32_t t = 0; t < count; t++) {
        const unsigned char *v = range->tiles[t / ATTEND_TILE] + half;
        double p = exp(scores[t] - best);
        sum += p;
        for (uint32_t i = 0; i < head_dim; i++)
            sums[i] += p * element(range->type, v, (size_t)(t % ATTEND_TILE) * head_dim + i);
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
