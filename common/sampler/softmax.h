// softmax.h: exp and sums over a vocabulary in a fixed order, so that the bits are the same on every CPU, whatever its vector
// width.
#ifndef FD_SAMPLER_SOFTMAX_H
#define FD_SAMPLER_SOFTMAX_H

#include <stdbool.h>
#include <stdint.h>

// Returns the largest value; -inf if the row is empty or all -inf. NaN counts as -inf. values: [count] f32.
float softmax_max(const float *values, uint32_t count);

// Sets weights[i] = exp((values[i] - max) * scale), or 0 for NaN and -inf; returns their sum. weights may be the same array as
// values.
double softmax_weights(const float *values, uint32_t count, float max, float scale, float *weights);

// --- how far one distribution over the vocabulary lies from another, given as logits. Pure; any thread ---

// At one position. Natural logarithms.
struct divergence {
    double kl;                        // sum over tokens of p (log p - log q): p is the reference's
    double reference_log_probability; // of the token that follows in the text
    double log_probability;           // the same of the other
    bool same_best;                   // the likeliest token is the same one; ties go to the lowest id
};

// reference, other: [vocab] f32 logits. Sums are f64, in the order of the vocabulary.
void divergence_of(const float *reference, const float *other, uint32_t vocab, uint32_t next, struct divergence *out);

// Over the positions of a text.
struct divergence_summary {
    uint32_t positions;
    double kl_mean, kl_error, kl_max; // error: the standard error of the mean
    uint32_t kl_max_at;               // index of the position
    double same_best;                 // share, 0 to 1
    double reference_perplexity, perplexity;
};

// items: [count], count > 0.
void divergence_sum(const struct divergence *items, uint32_t count, struct divergence_summary *out);

#endif
