// sampler.h: draws a token from raw logits.
//
// The order is penalties, bias, temperature, top-k, top-p, min-p, then one draw. The draw is counter-based: its random number is a
// pure function of (seed, choice, index of the token), so a rebuilt sequence draws the same tokens again. Log-probabilities are the
// log-softmax of the raw logits, before any of these steps.
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
    float logprob;      // log-probability of `token` if logprobs were asked for, otherwise 0
    uint32_t top_count; // best first; of equal ones, the lower id first
    struct sampler_top top[SAMPLER_TOP_LOGPROBS_MAX];
};

struct sampler;
struct sampler_scratch;

// Checks the parameters. INVALID_ARGUMENT: the error names a parameter that is out of range or NaN.
enum status sampler_check(const struct sampler_params *params, uint32_t vocab, struct error *error) MUST_CHECK;

// INVALID_ARGUMENT: see sampler_check(). history_tokens: the most tokens the sequence can have, prompt included. Memory to count
// them is allocated here, and only if there are penalties. The caller closes *out.
enum status sampler_open(const struct sampler_params *params, uint32_t vocab, uint32_t history_tokens, struct sampler **out,
                         struct error *error) MUST_CHECK;
void sampler_close(struct sampler *sampler);

// Tells the sampler of a token of the prompt, or of a generated token, including those that it drew itself. Allocates nothing.
void sampler_see_prompt(struct sampler *sampler, uint32_t token);
void sampler_see_generated(struct sampler *sampler, uint32_t token);

// Returns true if tokens seen do not change what is drawn, because there are no penalties.
bool sampler_is_pure(const struct sampler *sampler);

// A token that was seen, for penalties. This and the functions below give a device what it needs to draw like sampler_sample().
struct sampler_seen {
    uint32_t token;
    uint32_t generated; // how often it was generated; 0: it is only in the prompt
};

// Returns the factor of the logits in the weights of a draw: 1 / temperature, limited to a finite number. 0: greedy.
float sampler_scale(const struct sampler_params *params);

// Returns the sampler's parameters, valid as long as the sampler; bias points to the sampler's own copy.
const struct sampler_params *sampler_params_of(const struct sampler *sampler);

// Returns the tokens seen, each once; none if there are no penalties. Valid until the next sampler_see_*().
const struct sampler_seen *sampler_seen_tokens(const struct sampler *sampler, uint32_t *count);

// Opens a scratch. Each thread needs its own.
enum status sampler_scratch_open(uint32_t vocab, struct sampler_scratch **out) MUST_CHECK;
void sampler_scratch_close(struct sampler_scratch *scratch);

// Draws generated token number `index` (from 0). logits: [vocab] f32, not changed. NaN counts as -inf. Allocates nothing.
void sampler_sample(const struct sampler *sampler, const float *logits, uint32_t index, struct sampler_scratch *scratch,
                    struct sampler_result *result);

// Computes the log-probabilities of a given token and of the best `top_count` (<= SAMPLER_TOP_LOGPROBS_MAX). Allocates nothing.
void sampler_score(const float *logits, uint32_t vocab, uint32_t token, uint32_t top_count, struct sampler_scratch *scratch,
                   struct sampler_result *result);

// Returns a number uniform in [0, 1): 53 bits of a hash of (seed, choice, index).
double sampler_uniform(uint64_t seed, uint32_t choice, uint32_t index);

#endif
