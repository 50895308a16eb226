// norm_rope_lanes.h: the body of norm_rope_avx2.c, norm_rope_avx512.c and norm_rope_neon.c, in 16 lanes (lanes.h).
//
// Define NAME(op), the entry's name at this level, before including. Sums run in four accumulators, block of 16 by block
// of 16 in turn, so that the latency of an addition is hidden; they are added ((0+1)+(2+3)), then down the tree. Sums of
// exponentials leave f32 every 1,024 elements for a double, so that a vocabulary of 200,000 loses nothing.
#include <math.h>

#include "common/base/checked.h"
#include "kernels/simd/half.h"
#include "kernels/simd/lanes.h"
#include "kernels/norm_rope/norm_rope.h"

#define SUM_BLOCK 1024u

// The n lanes at p; the others read 0. n may exceed 16.
LANES_INLINE lanes load_some(const float *p, uint32_t n) { return n >= LANES ? lanes_load(p) : lanes_load_tail(p, n); }

LANES_INLINE void store_some(float *p, lanes x, uint32_t n)
{
    if (n >= LANES)
        lanes_store(p, x);
    else
        lanes_store_tail(p, x, n);
}

void NAME(rms_norm)(const float *x, const float *weight, float epsilon, uint32_t n, float *out)
{
    lanes sum[4] = {lanes_zero(), lanes_zero(), lanes_zero(), lanes_zero()};
    uint32_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (uint32_t j = 0; j < 4; j++) {
            lanes v = lanes_load(x + i + j * LANES);
            sum[j] = lanes_fma(v, v, sum[j]);
        }
    for (uint32_t j = 0; i < n; i += LANES, j++) {
        lanes v = load_some(x + i, n - i);
        sum[j] = lanes_fma(v, v, sum[j]);
    }
    float squares = lanes_sum(lanes_add(lanes_add(sum[0], sum[1]), lanes_add(sum[2], sum[3])));
    lanes scale = lanes_set1(1.0f / sqrtf(squares / (float)(n ? n : 1) + epsilon));
    for (i = 0; i < n; i += LANES)
        store_some(out + i, lanes_mul(lanes_mul(load_some(x + i, n - i), scale), load_some(weight + i, n - i)), n - i);
}

// x * cos + partner * signed sin
LANES_INLINE lanes rotate(lanes x, lanes partner, lanes cosine, lanes sine)
{
    return lanes_fma(x, cosine, lanes_mul(partner, sine));
}

void NAME(rope_pairs)(float *x, uint32_t heads, uint32_t head_dim, uint32_t dims, const float *row)
{
    for (uint32_t h = 0; h < heads; h++, x += head_dim)
        for (uint32_t i = 0; i < dims; i += LANES) {
            uint32_t left = dims - i;
            lanes v = load_some(x + i, left);
            store_some(x + i, rotate(v, lanes_swap_pairs(v), load_some(row + i, left), load_some(row + dims + i, left)), left);
        }
}

void NAME(rope_neox)(float *x, uint32_t heads, uint32_t head_dim, uint32_t dims, const float *row)
{
    uint32_t half = dims / 2;
    const float *sines = row + dims;
    for (uint32_t h = 0; h < heads; h++, x += head_dim)
        for (uint32_t i = 0; i < half; i += LANES) {
            uint32_t left = half - i;
            lanes first = load_some(x + i, left), second = load_some(x + half + i, left);
            store_some(x + i, rotate(first, second, load_some(row + i, left), load_some(sines + i, left)), left);
            store_some(x + half + i, rotate(second, first, load_some(row + half + i, left), load_some(sines + half + i, left)), left);
        }
}

// Sums of values less `shift`, or of their squares.
LANES_INLINE float sum_of(const float *x, float shift, uint32_t n, const bool squared)
{
    lanes sum[4] = {lanes_zero(), lanes_zero(), lanes_zero(), lanes_zero()};
    for (uint32_t i = 0, j = 0; i < n; i += LANES, j = (j + 1) % 4) {
        lanes v = lanes_sub(load_some(x + i, n - i), lanes_set1(shift));
        if (n - i < LANES)
            v = lanes_fill_tail(v, n - i, 0);
        sum[j] = squared ? lanes_fma(v, v, sum[j]) : lanes_add(v, sum[j]);
    }
    return lanes_sum(lanes_add(lanes_add(sum[0], sum[1]), lanes_add(sum[2], sum[3])));
}

void NAME(layer_norm)(const float *x, const float *weight, const float *bias, float epsilon, uint32_t n, float *out)
{
    float count = (float)(n ? n : 1), mean = sum_of(x, 0, n, false) / count;
    lanes scale = lanes_set1(1.0f / sqrtf(sum_of(x, mean, n, true) / count + epsilon)), shift = lanes_set1(mean);
    for (uint32_t i = 0; i < n; i += LANES) {
        lanes v = lanes_mul(lanes_sub(load_some(x + i, n - i), shift), scale), w = load_some(weight + i, n - i);
        store_some(out + i, bias ? lanes_fma(v, w, load_some(bias + i, n - i)) : lanes_mul(v, w), n - i);
    }
}

// x / (1 + e^-z)
LANES_INLINE lanes times_sigmoid(lanes x, lanes z)
{
    return lanes_div(x, lanes_add(lanes_set1(1.0f), lanes_exp(lanes_sub(lanes_zero(), z))));
}

void NAME(silu_mul)(const float *gate, const float *up, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i += LANES) {
        lanes g = load_some(gate + i, n - i);
        store_some(out + i, lanes_mul(times_sigmoid(g, g), load_some(up + i, n - i)), n - i);
    }
}

LANES_INLINE lanes gelu(lanes x)
{
    const lanes one = lanes_set1(1.0f), cubic = lanes_set1(0.044715f), twice = lanes_set1(1.5957691216f); // 2 sqrt(2 / pi)
    return times_sigmoid(x, lanes_mul(lanes_mul(twice, x), lanes_fma(lanes_mul(cubic, x), x, one)));
}

void NAME(gelu_mul)(const float *gate, const float *up, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i += LANES)
        store_some(out + i, lanes_mul(gelu(load_some(gate + i, n - i)), load_some(up + i, n - i)), n - i);
}

void NAME(gelu)(const float *gate, const float *up, uint32_t n, float *out)
{
    (void)up;
    for (uint32_t i = 0; i < n; i += LANES)
        store_some(out + i, gelu(load_some(gate + i, n - i)), n - i);
}

void NAME(gpt_oss_mul)(const float *gate, const float *up, uint32_t n, float *out)
{
    const lanes most = lanes_set1(7.0f), least = lanes_set1(-7.0f), slope = lanes_set1(1.702f), one = lanes_set1(1.0f);
    for (uint32_t i = 0; i < n; i += LANES) {
        lanes g = lanes_min(most, load_some(gate + i, n - i)); // in this order NaN stays NaN
        lanes u = lanes_max(least, lanes_min(most, load_some(up + i, n - i)));
        store_some(out + i, lanes_mul(times_sigmoid(g, lanes_mul(slope, g)), lanes_add(u, one)), n - i);
    }
}

void NAME(relu)(const float *gate, const float *up, uint32_t n, float *out)
{
    (void)up;
    for (uint32_t i = 0; i < n; i += LANES)
        store_some(out + i, lanes_max(lanes_zero(), load_some(gate + i, n - i)), n - i);
}

void NAME(scale)(float *x, float factor, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += LANES)
        store_some(x + i, lanes_mul(load_some(x + i, n - i), lanes_set1(factor)), n - i);
}

void NAME(soft_cap)(float *x, float cap, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += LANES)
        store_some(x + i, lanes_mul(lanes_tanh(lanes_div(load_some(x + i, n - i), lanes_set1(cap))), lanes_set1(cap)), n - i);
}

void NAME(add)(float *x, const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += LANES)
        store_some(x + i, lanes_add(load_some(x + i, n - i), load_some(y + i, n - i)), n - i);
}

// The largest value, NaN passed over; -inf if there is none.
LANES_INLINE float largest(const float *x, uint32_t n)
{
    lanes best = lanes_set1(-INFINITY);
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        best = lanes_max(lanes_load(x + i), best);
    if (i < n)
        best = lanes_max(lanes_fill_tail(lanes_load_tail(x + i, n - i), n - i, -INFINITY), best);
    return lanes_max_all(best);
}

// Sum of e^(x - max).
LANES_INLINE double sum_exp(const float *x, uint32_t n, float max)
{
    lanes shift = lanes_set1(max);
    double total = 0;
    for (uint32_t begin = 0; begin < n; begin += SUM_BLOCK) {
        uint32_t end = n - begin < SUM_BLOCK ? n : begin + SUM_BLOCK, i = begin;
        lanes sum = lanes_zero();
        for (; i + LANES <= end; i += LANES)
            sum = lanes_add(sum, lanes_exp(lanes_sub(lanes_load(x + i), shift)));
        if (i < end) {
            lanes tail = lanes_exp(lanes_sub(lanes_load_tail(x + i, end - i), shift));
            sum = lanes_add(sum, lanes_fill_tail(tail, end - i, 0.0f));
        }
        total += (double)lanes_sum(sum);
    }
    return total;
}

// Whether a row that consists of -inf, or of NaN and -inf, holds a NaN.
LANES_INLINE bool any_nan(const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (isnan(x[i]))
            return true;
    return false;
}

double NAME(log_sum_exp)(const float *x, uint32_t n, float *max_out)
{
    float max = *max_out = largest(x, n);
    if (max == -INFINITY)
        return any_nan(x, n) ? NAN : 0;
    return log(sum_exp(x, n, max));
}

void NAME(softmax)(const float *x, uint32_t n, float *out)
{
    float max = largest(x, n);
    if (max == -INFINITY) {
        float fill = any_nan(x, n) ? NAN : 0.0f;
        for (uint32_t i = 0; i < n; i++)
            out[i] = fill;
        return;
    }
    lanes shift = lanes_set1(max), sum = lanes_set1((float)sum_exp(x, n, max));
    for (uint32_t i = 0; i < n; i += LANES)
        store_some(out + i, lanes_div(lanes_exp(lanes_sub(load_some(x + i, n - i), shift)), sum), n - i);
}

void NAME(log_softmax)(const float *x, uint32_t n, float *out)
{
    float max;
    double log_sum = NAME(log_sum_exp)(x, n, &max);
    if (max == -INFINITY) {
        float fill = isnan(log_sum) ? NAN : -INFINITY;
        for (uint32_t i = 0; i < n; i++)
            out[i] = fill;
        return;
    }
    lanes shift = lanes_set1(max), log_lanes = lanes_set1((float)log_sum);
    for (uint32_t i = 0; i < n; i += LANES)
        store_some(out + i, lanes_sub(lanes_sub(load_some(x + i, n - i), shift), log_lanes), n - i);
}

uint32_t NAME(argmax)(const float *x, uint32_t n)
{
    float max = largest(x, n);
    lanes wanted = lanes_set1(max);
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        uint32_t bits = lanes_equal_bits(lanes_load(x + i), wanted);
        if (bits)
            return i + (uint32_t)__builtin_ctz(bits);
    }
    for (; i < n; i++)
        if (x[i] == max)
            return i;
    return 0;
}

// Conversions: a tail goes through a full vector, so that there is one way to round.
void NAME(f32_to_f16)(const float *x, uint32_t n, uint16_t *out)
{
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        lanes_store_f16(out + i, lanes_load(x + i));
    if (i < n) {
        uint16_t tail[LANES];
        lanes_store_f16(tail, lanes_load_tail(x + i, n - i));
        memcpy(out + i, tail, (n - i) * sizeof *out);
    }
}

void NAME(f16_to_f32)(const uint16_t *x, uint32_t n, float *out)
{
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        lanes_store(out + i, lanes_load_f16(x + i));
    if (i < n)
        lanes_store_tail(out + i, lanes_load_f16_tail(x + i, n - i), n - i);
}

void NAME(f32_to_bf16)(const float *x, uint32_t n, uint16_t *out)
{
    for (uint32_t i = 0; i < n; i++) // integers: the compiler makes vectors of it
        out[i] = bf16_from_float(x[i]);
}

void NAME(bf16_to_f32)(const uint16_t *x, uint32_t n, float *out)
{
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        lanes_store(out + i, lanes_load_bf16(x + i));
    for (; i < n; i++)
        out[i] = bf16_to_float(x[i]);
}
