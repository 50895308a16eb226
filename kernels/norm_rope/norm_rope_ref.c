// norm_rope_ref.c: plain loops with double accumulation: the oracle of norm_rope_lanes.h and the fallback.
#include <math.h>

#include "kernels/norm_rope/norm_rope.h"
#include "kernels/simd/half.h"

void rms_norm_ref(const float *x, const float *weight, float epsilon, uint32_t n, float *out)
{
    double squares = 0;
    for (uint32_t i = 0; i < n; i++)
        squares += (double)x[i] * (double)x[i];
    double scale = 1 / sqrt(squares / (n ? n : 1) + (double)epsilon);
    for (uint32_t i = 0; i < n; i++)
        out[i] = (float)((double)x[i] * scale * (double)weight[i]);
}

static void rotate(float *a, float *b, double cosine, double sine)
{
    double first = (double)*a, second = (double)*b;
    *a = (float)(first * cosine - second * sine);
    *b = (float)(second * cosine + first * sine);
}

void rope_pairs_ref(float *x, uint32_t heads, uint32_t head_dim, uint32_t dims, const float *row)
{
    for (uint32_t h = 0; h < heads; h++, x += head_dim)
        for (uint32_t i = 0; i < dims; i += 2)
            rotate(&x[i], &x[i + 1], (double)row[i], (double)row[dims + i + 1]);
}

void rope_neox_ref(float *x, uint32_t heads, uint32_t head_dim, uint32_t dims, const float *row)
{
    uint32_t half = dims / 2;
    for (uint32_t h = 0; h < heads; h++, x += head_dim)
        for (uint32_t i = 0; i < half; i++)
            rotate(&x[i], &x[i + half], (double)row[i], (double)row[dims + half + i]);
}

void silu_mul_ref(const float *gate, const float *up, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = (float)((double)gate[i] / (1 + exp(-(double)gate[i])) * (double)up[i]);
}

void layer_norm_ref(const float *x, const float *weight, const float *bias, float epsilon, uint32_t n, float *out)
{
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i];
    double mean = sum / (n ? n : 1);
    for (uint32_t i = 0; i < n; i++)
        squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    double scale = 1 / sqrt(squares / (n ? n : 1) + (double)epsilon);
    for (uint32_t i = 0; i < n; i++)
        out[i] = (float)(((double)x[i] - mean) * scale * (double)weight[i] + (bias ? (double)bias[i] : 0));
}

static double gelu(double x)
{
    double z = 0.7978845608028654 * (x + 0.044715 * x * x * x);
    return x / (1 + exp(-2 * z));
}

void gelu_mul_ref(const float *gate, const float *up, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = (float)(gelu((double)gate[i]) * (double)up[i]);
}

void gelu_ref(const float *gate, const float *up, uint32_t n, float *out)
{
    (void)up;
    for (uint32_t i = 0; i < n; i++)
        out[i] = (float)gelu((double)gate[i]);
}

void gpt_oss_mul_ref(const float *gate, const float *up, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i++) {
        double g = gate[i] > 7 ? 7 : (double)gate[i], u = up[i] > 7 ? 7 : up[i] < -7 ? -7 : (double)up[i];
        out[i] = (float)(g / (1 + exp(-1.702 * g)) * (u + 1));
    }
}

void relu_ref(const float *gate, const float *up, uint32_t n, float *out)
{
    (void)up;
    for (uint32_t i = 0; i < n; i++)
        out[i] = gate[i] < 0 ? 0 : gate[i];
}

void scale_ref(float *x, float factor, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] *= factor;
}

void soft_cap_ref(float *x, float cap, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = (float)((double)cap * tanh((double)x[i] / (double)cap));
}

void add_ref(float *x, const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] += y[i];
}

static float largest(const float *x, uint32_t n)
{
    float max = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        if (x[i] > max)
            max = x[i];
    return max;
}

static double sum_exp(const float *x, uint32_t n, float max)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - (double)max);
    return sum;
}

double log_sum_exp_ref(const float *x, uint32_t n, float *max_out)
{
    float max = *max_out = largest(x, n);
    for (uint32_t i = 0; i < n; i++)
        if (isnan(x[i]))
            return NAN;
    return max == -INFINITY ? 0 : log(sum_exp(x, n, max));
}

void softmax_ref(const float *x, uint32_t n, float *out)
{
    float max;
    double log_sum = log_sum_exp_ref(x, n, &max);
    for (uint32_t i = 0; i < n; i++)
        out[i] = isnan(log_sum) ? NAN : max == -INFINITY ? 0 : (float)exp((double)x[i] - (double)max - log_sum);
}

void log_softmax_ref(const float *x, uint32_t n, float *out)
{
    float max;
    double log_sum = log_sum_exp_ref(x, n, &max);
    for (uint32_t i = 0; i < n; i++)
        out[i] = isnan(log_sum) ? NAN : max == -INFINITY ? -INFINITY : (float)((double)x[i] - (double)max - log_sum);
}

uint32_t argmax_ref(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best] || (isnan(x[best]) && !isnan(x[i])))
            best = i;
    return best;
}

void f32_to_f16_ref(const float *x, uint32_t n, uint16_t *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = f16_from_float(x[i]);
}

void f16_to_f32_ref(const uint16_t *x, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = f16_to_float(x[i]);
}

void f32_to_bf16_ref(const float *x, uint32_t n, uint16_t *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = bf16_from_float(x[i]);
}

void bf16_to_f32_ref(const uint16_t *x, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = bf16_to_float(x[i]);
}
