// sampling.c: see sampling.h.
#include "common/messages/sampling.h"

#include "common/base/checked.h"

static uint32_t count_of(size_t count) { return (uint32_t)MIN(count, (size_t)UINT32_MAX); } // too many are refused

enum status sampling_parse(const Fastdecode__Sampling *s, uint32_t vocab, struct sampler_bias *bias, struct sampler_params *out,
                           struct error *error)
{
    if (!s)
        return error_set(error, STATUS_INVALID_ARGUMENT, "sampling is missing");
    if (s->n_bias > SAMPLER_BIAS_MAX)
        return error_set(error, STATUS_INVALID_ARGUMENT, "sampling: %zu biases, at most %d are taken", s->n_bias, SAMPLER_BIAS_MAX);
    for (size_t i = 0; i < s->n_bias; i++)
        bias[i] = (struct sampler_bias){s->bias[i]->token, s->bias[i]->bias};
    *out = (struct sampler_params){
        .temperature = s->temperature,
        .top_k = s->top_k,
        .top_p = s->top_p == 0 ? 1 : s->top_p,
        .min_p = s->min_p,
        .presence_penalty = s->presence_penalty,
        .frequency_penalty = s->frequency_penalty,
        .repetition_penalty = s->repetition_penalty == 0 ? 1 : s->repetition_penalty,
        .seed = s->seed,
        .choice = s->choice,
        .logprobs = s->logprobs || s->prompt_logprobs,
        .top_logprobs = s->top_logprobs,
        .typical_p = s->typical_p,
        .xtc_probability = s->xtc_probability,
        .xtc_threshold = s->xtc_threshold,
        .dry_multiplier = s->dry_multiplier,
        .dry_base = s->dry_base,
        .dry_allowed_length = s->dry_allowed_length,
        .dry_last_tokens = s->dry_last_tokens,
        .min_tokens = s->min_tokens,
        .bias_count = (uint32_t)s->n_bias,
        .end_count = count_of(s->n_end_token),
        .stop_count = count_of(s->n_stop_token),
        .allowed_count = count_of(s->n_allowed_token),
        .bad_count = count_of(s->n_bad_length),
        .bad_token_count = count_of(s->n_bad_token),
        .bias = bias,
        .end_tokens = s->end_token,
        .stop_tokens = s->stop_token,
        .allowed_tokens = s->allowed_token,
        .bad_lengths = s->bad_length,
        .bad_tokens = s->bad_token,
        .dry_breakers = s->dry_breakers.data,
        .dry_breaker_bytes = count_of(s->dry_breakers.len),
    };
    return sampler_check(out, vocab, error);
}

bool sampling_is_pure(const Fastdecode__Sampling *s)
{
    bool pure = (s->repetition_penalty == 0 || s->repetition_penalty == 1) && s->presence_penalty == 0 &&
                s->frequency_penalty == 0 && s->dry_multiplier == 0;

    for (size_t i = 0; i < s->n_bad_length; i++)
        pure = pure && s->bad_length[i] <= 1;
    return pure;
}
