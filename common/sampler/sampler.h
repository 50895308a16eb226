// sampler.h: from raw logits to one token.
//
// Order: penalties, bias, temperature, top-k, top-p, min-p, then one draw. The draw is counter-based: a pure function of
// (seed, choice, index of the token), so that a rebuilt sequence draws what it would have drawn. Log-probabilities are
// the log-softmax of the raw logits, before any of that.
//
// repetition_penalty counts prompt and generated tokens (Keskar et al., arXiv 1909.05858: positive logits are divided,
// negative ones multiplied); presence and frequency count generated tokens only (OpenAI's API reference).
//
// Threads: a sampler belongs to one sequence and is used by one thread at a time; a scratch by one thread.
#ifndef FD_SAMPLER_SAMPLER_H
#define FD_SAMPLER_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

enum { SAMPLER_TOP_LOGPROBS_MAX = 20, SAMPLER_BIAS_MAX = 1024 };

struct sampler_bias {
    uint32_t token;
    float bias;
};

struct sampler_params {
    float temperature; // 0: greedy
    uint32_t top_k;    // 0: off
    float top_p;       // 1: off
    float min_p;       // 0: off
    float presence_penalty, frequency_penalty;
    float repetition_penalty; // 1: off
    uint64_t seed;
    uint32_t choice;
    bool logprobs;
    uint32_t top_logprobs;
    uint32_t bias_count;
    const struct sampler_bias *bias; // copied by sampler_open
};

struct sampler_top {
    uint32_t token;
    float logprob;
};

struct sampler_result {
    uint32_t token;
    float logprob;      // of token, where logprobs were asked for, else 0
    uint32_t top_count; // best first, ties to the lower id
    struct sampler_top top[SAMPLER_TOP_LOGPROBS_MAX];
};

struct sampler;
struct sampler_scratch;

// INVALID_ARGUMENT names a parameter out of range (NaN is).
enum status sampler_check(const struct sampler_params *params, uint32_t vocab, struct error *error) MUST_CHECK;

// INVALID_ARGUMENT: see sampler_check(). history_tokens: the most tokens the sequence can have, prompt
// included; memory for the penalties' counts is taken here and only if they are on. Caller closes.
enum status sampler_open(const struct sampler_params *params, uint32_t vocab, uint32_t history_tokens, struct sampler **out,
                         struct error *error) MUST_CHECK;
void sampler_close(struct sampler *sampler);

// Tells the sampler of a token of the prompt, or of one that was generated (its own samples too). No allocation.
void sampler_see_prompt(struct sampler *sampler, uint32_t token);
void sampler_see_generated(struct sampler *sampler, uint32_t token);

// No token that was seen changes what is drawn: there are no penalties.
bool sampler_is_pure(const struct sampler *sampler);

// What a device needs to draw as sampler_sample() does. A token that was seen: what penalties are of.
struct sampler_seen {
    uint32_t token;
    uint32_t generated; // times; 0: in the prompt only
};

// By what logits are multiplied for the weights of a draw: 1 / temperature, which is kept from infinity. 0: greedy.
float sampler_scale(const struct sampler_params *params);

// Valid for the sampler's life; bias points to its own.
const struct sampler_params *sampler_params_of(const struct sampler *sampler);

// Each token once; none without penalties. Valid until the next sampler_see_*().
const struct sampler_seen *sampler_seen_tokens(const struct sampler *sampler, uint32_t *count);

// One a thread.
enum status sampler_scratch_open(uint32_t vocab, struct sampler_scratch **out) MUST_CHECK;
void sampler_scratch_close(struct sampler_scratch *scratch);

// Draws generated token number `index` (from 0). logits: [vocab] f32, not changed. NaN counts as -inf. No allocation.
void sampler_sample(const struct sampler *sampler, const float *logits, uint32_t index, struct sampler_scratch *scratch,
                    struct sampler_result *result);

// Log-probability of a given token, and the best `top_count` (<= SAMPLER_TOP_LOGPROBS_MAX). No allocation.
void sampler_score(const float *logits, uint32_t vocab, uint32_t token, uint32_t top_count, struct sampler_scratch *scratch,
                   struct sampler_result *result);

// Uniform in [0, 1): 53 bits of a hash of (seed, choice, index).
double sampler_uniform(uint64_t seed, uint32_t choice, uint32_t index);

#endif
