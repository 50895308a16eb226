// softmax.c: exp and sums over a vocabulary, and how far two distributions lie apart.
//
// Sixteen accumulators, added up in the end from the first to the last, whatever the vector width the compiler picks
// (the clones differ in width only; contraction to FMA is off, so each operation rounds alike). exp is 2^n times a
// polynomial of degree 6 on [-ln2/2, ln2/2] (Cody and Waite's reduction), relative error below 3e-7, flushed to zero
// under -87.
#include "common/sampler/softmax.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { LANES = 16 };

#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define CLONES
#endif

static inline float exp_negative(float x)
{
    bool tiny = !(x > -87.0f); // below the smallest normal float; and what is no number
    x = tiny ? -87.0f : x;
    float n = x * 1.44269504f;
    n = (n + 12582912.0f) - 12582912.0f; // round to nearest: |n| < 2^22
    float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return tiny ? 0.0f : p * power;
}

CLONES float softmax_max(const float *values, uint32_t count)
{
    float lane[LANES];
    uint32_t i = 0;

    for (int l = 0; l < LANES; l++)
        lane[l] = -INFINITY;
    for (; i + LANES <= count; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] = values[i + (uint32_t)l] > lane[l] ? values[i + (uint32_t)l] : lane[l];
    for (; i < count; i++)
        lane[0] = values[i] > lane[0] ? values[i] : lane[0];
    for (int l = 1; l < LANES; l++)
        lane[0] = lane[l] > lane[0] ? lane[l] : lane[0];
    return lane[0];
}

CLONES double softmax_weights(const float *values, uint32_t count, float max, float scale, float *weights)
{
    enum { BLOCK = 4096 }; // f32 sums of a block, f64 over blocks
    double total = 0;

    if (!(max > -INFINITY)) {
        memset(weights, 0, count * sizeof *weights);
        return 0;
    }
    for (uint32_t begin = 0; begin < count; begin += BLOCK) {
        uint32_t end = count - begin < BLOCK ? count : begin + BLOCK, i = begin;
        float lane[LANES] = {0};
        for (; i + LANES <= end; i += LANES)
            for (int l = 0; l < LANES; l++) {
                float x = (values[i + (uint32_t)l] - max) * scale;
                x = x > -100.0f ? x : -100.0f; // NaN too
                x = x < 0.0f ? x : 0.0f;
                float w = exp_negative(x);
                weights[i + (uint32_t)l] = w;
                lane[l] += w;
            }
        for (; i < end; i++) {
            float x = (values[i] - max) * scale;
            x = x > -100.0f ? x : -100.0f;
            x = x < 0.0f ? x : 0.0f;
            weights[i] = exp_negative(x);
            lane[0] += weights[i];
        }
        for (int l = 0; l < LANES; l++)
            total += (double)lane[l];
    }
    return total;
}

// --- divergence ---

struct normalizer {
    double log_sum; // log of the sum of exp(logit)
    uint32_t best;
};

static struct normalizer normalize(const float *logits, uint32_t vocab)
{
    struct normalizer out = {.best = 0};
    double sum = 0;

    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[out.best])
            out.best = i;
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - (double)logits[out.best]);
    out.log_sum = (double)logits[out.best] + log(sum);
    return out;
}

void divergence_of(const float *reference, const float *other, uint32_t vocab, uint32_t next, struct divergence *out)
{
    const struct normalizer p = normalize(reference, vocab), q = normalize(other, vocab);
    double kl = 0;

    for (uint32_t i = 0; i < vocab; i++) {
        double log_p = (double)reference[i] - p.log_sum, weight = exp(log_p);
        if (weight > 0 || isnan(weight)) // 0 log 0 is 0
            kl += weight * (log_p - ((double)other[i] - q.log_sum));
    }
    *out = (struct divergence){
        .kl = kl < 0 ? 0 : kl, // it is none: rounding
        .reference_log_probability = (double)reference[next] - p.log_sum,
        .log_probability = (double)other[next] - q.log_sum,
        .same_best = p.best == q.best,
    };
}

void divergence_sum(const struct divergence *items, uint32_t count, struct divergence_summary *out)
{
    double reference = 0, other = 0, kl = 0, squares = 0;
    uint32_t same = 0;

    *out = (struct divergence_summary){.positions = count};
    for (uint32_t i = 0; i < count; i++) {
        reference += items[i].reference_log_probability;
        other += items[i].log_probability;
        kl += items[i].kl;
        same += items[i].same_best;
        if (items[i].kl > items[out->kl_max_at].kl)
            out->kl_max_at = i;
    }
    out->kl_mean = kl / count;
    for (uint32_t i = 0; i < count; i++)
        squares += (items[i].kl - out->kl_mean) * (items[i].kl - out->kl_mean);
    out->kl_error = count > 1 ? sqrt(squares / (count - 1.0) / count) : 0;
    out->kl_max = items[out->kl_max_at].kl;
    out->same_best = (double)same / count;
    out->reference_perplexity = exp(-reference / count);
    out->perplexity = exp(-other / count);
}
