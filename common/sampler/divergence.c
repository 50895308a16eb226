// divergence.c: see divergence.h.
#include "common/sampler/divergence.h"

#include <math.h>

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
