// sampler_dry.c: what repetitions cost (sampler.h: dry).
//
//     text   … the cat sat on the     repetition "the", 1 long, of the text's end; next was "cat"
//                   r(2)   r(1)  r(0)
//
// The lengths of all repetitions come from one pass over the text, backwards: the Z function of the reversed text (Gusfield). z[k] is how
// many tokens before the k-th last one, itself included, are those before the text's end; the token behind it is r(k - 1).
#include <math.h>

#include "common/base/checked.h"
#include "common/sampler/sampler_state.h"

#define COST_MOST 1e30 // far beyond any logit, and finite: a repetition is no ban

// base ^ exponent by squaring: the same bits on every machine, unlike pow().
static double power(double base, uint32_t exponent)
{
    double result = 1;
    for (; exponent; exponent >>= 1, base *= base)
        if (exponent & 1)
            result *= base;
    return result;
}

static float cost_of(const struct sampler_params *p, uint32_t length)
{
    double cost = (double)p->dry_multiplier * power((double)p->dry_base, length - p->dry_allowed_length);
    return (float)(cost < COST_MOST ? cost : COST_MOST);
}

static bool is_breaker(const struct sampler *sampler, uint32_t token)
{
    return sampler->dry_breakers && sampler_has_bit(sampler->dry_breakers, token);
}

// z[k].token for k of 1 to count - 1.
static void find_repetitions(const uint32_t *last, uint32_t count, struct sampler_candidate *z)
{
#define R(i) (*(last - (i)))
    for (uint32_t k = 1, left = 0, right = 0; k < count; k++) {
        uint32_t length = k < right ? MIN(right - k, z[k - left].token) : 0;
        while (k + length < count && R(length) == R(k + length))
            length++;
        z[k].token = length;
        if (k + length > right)
            left = k, right = k + length;
    }
#undef R
}

void sampler_dry_apply(const struct sampler *sampler, struct sampler_scratch *scratch)
{
    const struct sampler_params *p = &sampler->params;
    const uint32_t reach = p->dry_last_tokens ? MIN(p->dry_last_tokens, sampler->vocab) : sampler->vocab;
    const uint32_t count = MIN(sampler->history_count, reach);
    const uint32_t *last = sampler->history + sampler->history_count - 1;
    struct sampler_candidate *z = scratch->candidates;
    float *before = scratch->weights; // of tokens that cost something: their logits without it
    uint32_t longest = 0;             // tokens behind the last breaker

    if (count == 0)
        return;
    while (longest < count && !is_breaker(sampler, *(last - longest)))
        longest++;
    if (longest < p->dry_allowed_length)
        return;
    find_repetitions(last, count, z);
    for (uint32_t k = 1; k < count; k++)
        before[*(last - (k - 1))] = scratch->adjusted[*(last - (k - 1))];
    for (uint32_t k = 1; k < count; k++) {
        uint32_t next = *(last - (k - 1)), length = MIN(z[k].token, longest);
        if (length && length >= p->dry_allowed_length && !is_breaker(sampler, next))
            scratch->adjusted[next] = fminf(scratch->adjusted[next], before[next] - cost_of(p, length));
    }
}
