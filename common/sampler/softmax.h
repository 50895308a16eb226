// softmax.h: exp and sums over a vocabulary with a fixed order: the same bits on every CPU, whatever its vectors.
#ifndef FD_SAMPLER_SOFTMAX_H
#define FD_SAMPLER_SOFTMAX_H

#include <stdint.h>

// The largest value; NaN counts as -inf. values: [count] f32. -inf for an empty or all -inf row.
float softmax_max(const float *values, uint32_t count);

// weights[i] = exp((values[i] - max) * scale), 0 for NaN and -inf; returns their sum. weights may be values.
double softmax_weights(const float *values, uint32_t count, float max, float scale, float *weights);

#endif
