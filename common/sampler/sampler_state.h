// sampler_state.h: what the files of the sampler share: its state, the scratch, and the pieces of a draw.
//
//     sampler.c: logits ─▶ penalties ─▶ sampler_dry.c ─▶ biases ─▶ sampler_ban.c ─▶ adjusted ─▶ weights ─▶ sampler_filter.c ─▶ one of the
//                                                                                                           candidates
#ifndef FD_SAMPLER_SAMPLER_STATE_H
#define FD_SAMPLER_SAMPLER_STATE_H

#include "common/sampler/sampler.h"

struct sampler {
    struct sampler_params params; // its lists point to copies below
    uint32_t vocab;
    // penalties
    uint32_t slot_mask;
    uint32_t seen_count, seen_limit;
    struct sampler_seen *seen; // [seen_limit] in the order they were first seen; NULL without penalties
    uint32_t *slots;           // [slot_mask + 1] open addressing: index into seen, plus 1; 0: empty
    // dry, and sequences that are banned
    uint32_t *history;                                     // [history_limit] prompt, then generated; NULL if nobody looks back
    uint32_t history_count, history_limit, history_prompt; // history_prompt: how many of them are the prompt's
    uint32_t *dry_breakers;                                // [words of the vocabulary] a bit a token; NULL: there are none
    // bans
    uint32_t *allowed;     // [words of the vocabulary] a bit a token; NULL: all
    uint32_t *token_lists; // what the lists of params point to
    struct sampler_bias bias[];
};

struct sampler_candidate {
    uint32_t token;
    float weight;
};

struct sampler_scratch {
    uint32_t vocab;
    float *adjusted;                      // [vocab]
    float *weights;                       // [vocab]
    struct sampler_candidate *candidates; // [vocab]
};

static inline bool sampler_has_typical(const struct sampler_params *p) { return p->typical_p > 0 && p->typical_p < 1; }

static inline uint32_t sampler_words(uint32_t vocab) { return (vocab + 31) / 32; }

static inline bool sampler_has_bit(const uint32_t *words, uint32_t token) { return words[token / 32] >> token % 32 & 1; }

// sampler_ban.c. any: whether there is a token that may be banned at this index. apply: sets the logits of banned tokens to -inf.
bool sampler_ban_any(const struct sampler *sampler, uint32_t index, const uint32_t *allowed);
void sampler_ban_apply(const struct sampler *sampler, uint32_t index, const uint32_t *allowed, float *logits);

// sampler_dry.c. Takes off scratch->adjusted of tokens that would go on with a repetition what that costs. Uses scratch->weights and candidates.
void sampler_dry_apply(const struct sampler *sampler, struct sampler_scratch *scratch);

// What is left of a row before the filters: scratch->weights are exp((adjusted - max) * scale), and their sum is `total`.
struct sampler_weighed {
    const float *adjusted;
    float max, scale;
    double total;
    bool excludes_top; // xtc applies to this token
};

// sampler_filter.c. Leaves in scratch->candidates those that may be drawn, and returns how many.
uint32_t sampler_filter(const struct sampler *sampler, const struct sampler_weighed *weighed, struct sampler_scratch *scratch);

#endif
