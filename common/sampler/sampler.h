// sampler.h: draws a token from raw logits.
//
// The order is penalties, dry, bias, bans, temperature, top-k, typical-p, top-p, min-p, xtc, then one draw: llama.cpp's usual order, but that
// the temperature comes first, as in vLLM. The draw is counter-based: its random number is a pure function of (seed, choice, index of the
// token), and so is xtc's, so a rebuilt sequence draws the same tokens again. Log-probabilities are the log-softmax of the raw logits,
// before any of these steps.
//
// repetition_penalty counts prompt and generated tokens (Keskar et al., arXiv 1909.05858: positive logits are divided,
// negative ones multiplied); presence and frequency count generated tokens only (OpenAI's API reference).
//
// dry ("don't repeat yourself"): a token that would make a repetition of the text's end one longer costs multiplier * base ^ (length -
// allowed_length), where length is that of the longest such repetition so far, if it is at least allowed_length. A repetition does not
// reach back over a breaker. typical-p (Meister et al., arXiv 2202.00666) keeps the tokens whose information is nearest to the
// distribution's entropy. xtc ("exclude top choices") drops, with its probability, all tokens that have at least the threshold's
// probability, but the least likely of them.
//
// Bans: tokens that are not in allowed_tokens; end_tokens and stop_tokens before min_tokens are generated, unless nothing else is left; the last token of a bad sequence
// behind its other tokens, among the generated ones; and tokens that a mask does not allow.
//
// Threads: a sampler belongs to one sequence and is used by one thread at a time; a scratch by one thread.
#ifndef FD_SAMPLER_SAMPLER_H
#define FD_SAMPLER_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

enum {
    SAMPLER_TOP_LOGPROBS_MAX = 20,
    SAMPLER_BIAS_MAX = 1024,
    SAMPLER_END_TOKENS_MAX = 256, // of each kind
    SAMPLER_BAD_MAX = 1024,       // bad sequences
    SAMPLER_BAD_TOKENS_MAX = 1 << 14,
};

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
    float typical_p;       // 0 or 1: off
    float xtc_probability; // 0: off
    float xtc_threshold;
    float dry_multiplier; // 0: off
    float dry_base;
    uint32_t dry_allowed_length;
    uint32_t dry_last_tokens; // how far it looks back; 0: to the beginning
    uint32_t min_tokens;
    // Lists, copied by sampler_open.
    uint32_t bias_count, end_count, stop_count, allowed_count, bad_count, bad_token_count;
    const struct sampler_bias *bias;
    const uint32_t *end_tokens;     // those that end the sequence,
    const uint32_t *stop_tokens;    // and others that do
    const uint32_t *allowed_tokens; // count 0: all are
    const uint32_t *bad_lengths;    // [bad_count] of each bad sequence,
    const uint32_t *bad_tokens;     // [bad_token_count] which follow each other here
    // Bit t % 8 of byte t / 8 of token t; bytes behind the last one are 0.
    const unsigned char *dry_breakers;
    uint32_t dry_breaker_bytes;
};

struct sampler_top {
    uint32_t token;
    float logprob;
};

struct sampler_result {
    uint32_t token;
    bool all_banned;    // no token was left to be drawn: `token` says nothing
    float logprob;      // log-probability of `token` if logprobs were asked for, otherwise 0
    uint32_t top_count; // best first; of equal ones, the lower id first
    struct sampler_top top[SAMPLER_TOP_LOGPROBS_MAX];
};

struct sampler;
struct sampler_scratch;

// Checks the parameters. INVALID_ARGUMENT: the error names a parameter that is out of range or NaN.
enum status sampler_check(const struct sampler_params *params, uint32_t vocab, struct error *error) MUST_CHECK;

// INVALID_ARGUMENT: see sampler_check(). history_tokens: the most tokens the sequence can have, prompt included. Memory to count
// or keep them is allocated here, and only if there is something that looks at them. The caller closes *out.
enum status sampler_open(const struct sampler_params *params, uint32_t vocab, uint32_t history_tokens, struct sampler **out,
                         struct error *error) MUST_CHECK;
void sampler_close(struct sampler *sampler);

// Tells the sampler of a token of the prompt, or of a generated token, including those that it drew itself. Allocates nothing.
void sampler_see_prompt(struct sampler *sampler, uint32_t token);
void sampler_see_generated(struct sampler *sampler, uint32_t token);

// Returns true if tokens seen do not change what is drawn: there are no penalties, no dry, and no bad sequences of several tokens.
bool sampler_is_pure(const struct sampler *sampler);

// Returns true if token number `index` is drawn by penalties, biases, temperature, top-k, top-p and min-p alone, which a device may do.
bool sampler_is_simple(const struct sampler *sampler, uint32_t index);

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

// Draws generated token number `index` (from 0). logits: [vocab] f32, not changed. NaN counts as -inf. allowed: [(vocab + 31) / 32] bit t % 32
// of word t / 32: token t may be drawn; NULL: all. Allocates nothing.
void sampler_sample(const struct sampler *sampler, const float *logits, const uint32_t *allowed, uint32_t index,
                    struct sampler_scratch *scratch, struct sampler_result *result);

// Computes the log-probabilities of a given token and of the best `top_count` (<= SAMPLER_TOP_LOGPROBS_MAX). Allocates nothing.
void sampler_score(const float *logits, uint32_t vocab, uint32_t token, uint32_t top_count, struct sampler_scratch *scratch,
                   struct sampler_result *result);

// Returns a number uniform in [0, 1): 53 bits of a hash of (seed, choice, index).
double sampler_uniform(uint64_t seed, uint32_t choice, uint32_t index);

#endif
