// sampling.c: see sampling.h.
#include "common/messages/sampling.h"

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
        .bias_count = (uint32_t)s->n_bias,
        .bias = bias,
    };
    return sampler_check(out, vocab, error);
}
