// sampler_ban.c: tokens that may not be drawn (sampler.h: bans).
#include <math.h>

#include "common/sampler/sampler_state.h"

static bool is_before_min(const struct sampler_params *p, uint32_t index)
{
    return index < p->min_tokens && (p->end_count || p->stop_count);
}

bool sampler_ban_any(const struct sampler *sampler, uint32_t index, const uint32_t *allowed)
{
    return allowed || sampler->allowed || sampler->params.bad_count || is_before_min(&sampler->params, index);
}

// Bans all tokens without a bit in both masks; NULL: all bits.
static void apply_masks(const uint32_t *a, const uint32_t *b, uint32_t vocab, float *logits)
{
    for (uint32_t first = 0; first < vocab; first += 32) {
        uint32_t bits = (a ? a[first / 32] : ~0u) & (b ? b[first / 32] : ~0u);
        for (uint32_t i = 0; bits != ~0u && i < 32 && first + i < vocab; i++)
            if (!(bits >> i & 1))
                logits[first + i] = -INFINITY;
    }
}

// Whether the tokens generated last are these.
static bool ends_with(const struct sampler *sampler, const uint32_t *tokens, uint32_t count)
{
    if (count > sampler->history_count - sampler->history_prompt)
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (sampler->history[sampler->history_count - 1 - i] != tokens[count - 1 - i])
            return false;
    return true;
}

static void ban_all(const uint32_t *tokens, uint32_t count, float *logits)
{
    for (uint32_t i = 0; i < count; i++)
        logits[tokens[i]] = -INFINITY;
}

void sampler_ban_apply(const struct sampler *sampler, uint32_t index, const uint32_t *allowed, float *logits)
{
    const struct sampler_params *p = &sampler->params;
    const uint32_t *bad = p->bad_tokens;

    if (allowed || sampler->allowed)
        apply_masks(allowed, sampler->allowed, sampler->vocab, logits);
    if (is_before_min(p, index)) {
        ban_all(p->end_tokens, p->end_count, logits);
        ban_all(p->stop_tokens, p->stop_count, logits);
    }
    for (uint32_t i = 0; i < p->bad_count; bad += p->bad_lengths[i++])
        if (p->bad_lengths[i] == 1 || ends_with(sampler, bad, p->bad_lengths[i] - 1))
            logits[bad[p->bad_lengths[i] - 1]] = -INFINITY;
}
