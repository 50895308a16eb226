// features.c: see features.h.
#include "common/messages/features.h"

uint32_t features_of(const Fastdecode__Sampling *s)
{
    const bool bans = s->min_tokens || s->n_stop_token || s->n_allowed_token || s->n_bad_length || s->typical_p != 0 ||
                      s->xtc_probability != 0 || s->dry_multiplier != 0;

    return (bans ? FEATURES_BANS : 0) | (s->grammar.len ? FEATURES_GRAMMAR : 0) | (s->pooling ? FEATURES_POOLING : 0);
}

uint32_t features_read(const Fastdecode__SamplingFeature *list, size_t count)
{
    uint32_t mask = 0;

    for (size_t i = 0; i < count; i++)
        if (list[i] > 0 && list[i] < 32)
            mask |= 1u << list[i];
    return mask & FEATURES_OURS;
}

size_t features_list(uint32_t mask, Fastdecode__SamplingFeature *list)
{
    size_t count = 0;

    for (uint32_t feature = 1; feature < 32; feature++)
        if ((mask & FEATURES_OURS) >> feature & 1)
            list[count++] = (Fastdecode__SamplingFeature)feature;
    return count;
}

const char *features_name(uint32_t mask)
{
    if (mask & FEATURES_GRAMMAR)
        return "grammars (response_format, structured_outputs, guided_*, grammar, json_schema, tool_choice)";
    if (mask & FEATURES_POOLING)
        return "embeddings and reranking, or was started without --pooling";
    return "min_tokens, stop_token_ids, bad_words, allowed_token_ids, typical_p, xtc or dry";
}
