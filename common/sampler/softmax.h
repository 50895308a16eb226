// softmax.h: exp and sums over a vocabulary in a fixed order, so that the bits are the same on every CPU, whatever its vector
// width.
#ifndef FD_SAMPLER_SOFTMAX_H
#define FD_SAMPLER_SOFTMAX_H

#include <stdint.h>

// Returns the largest value; -inf if the row is empty or all -inf. NaN counts as -inf. values: [count] f32.
float softmax_max(const float *values, uint32_t count);

// Sets weights[i] = exp((values[i] - max) * scale), or 0 for NaN and -inf; returns their sum. weights may be the same array as
// values.
double softmax_weights(const float *values, uint32_t count, float max, float scale, float *weights);

#endif
