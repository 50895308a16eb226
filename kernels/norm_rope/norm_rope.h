// norm_rope.h: what a transformer does to one row besides matrix products: norms, rotary positions, activations, softmax.
//
// Every entry works on one row, so a row's result never depends on its companions. AVX2 and AVX-512 give the same bits
// (lanes.h); ref accumulates in double. The functions themselves are entries of struct kernels (kernels.h). Here are
// the tables for RoPE, built in double so that a large position keeps its angle.
//
//     angle(position, i) = position * freq_scale / freq_factor[i] * base ^ (-2i / dims),  i = 0 .. dims/2 - 1
//
// A table row holds [dims] cosines, then [dims] signed sines, both in the order of the style, so that one kernel body
// serves both:  out[j] = x[j] * cos[j] + x[partner(j)] * sin[j]
//
//     pairs  partner(2i) = 2i + 1        sin: -s0 s0 -s1 s1 ...         (GGUF "norm" rope: llama)
//     neox   partner(i) = i + dims/2     sin: -s0 -s1 ... s0 s1 ...     (qwen2 and others)
#ifndef FD_KERNELS_NORM_ROPE_NORM_ROPE_H
#define FD_KERNELS_NORM_ROPE_NORM_ROPE_H

#include <stddef.h>
#include <stdint.h>

enum rope_style { ROPE_PAIRS, ROPE_NEOX, ROPE_NONE };

struct rope_params {
    enum rope_style style;
    uint32_t dims;             // rotated dimensions of a head, even; the others pass through
    double base;               // e.g. 10000
    double freq_scale;         // 1, or 1/factor for linear scaling; 0 means 1
    double magnitude;          // scales cos and sin; 0 means 1
    const float *freq_factors; // [dims/2] f32 divisors, or NULL
};

// Floats of one position's table row.
static inline size_t rope_row_floats(const struct rope_params *params) { return (size_t)params->dims * 2; }

// Fills rows for positions [position_begin, position_begin + count). Any thread; disjoint ranges may be built at once.
// table: [count][2][dims] f32, the caller's.
void rope_table_build(const struct rope_params *params, uint32_t position_begin, uint32_t count, float *table);

// The entries of struct kernels; kernels.h says what each does.
#define NORM_ROPE_DECLARE(level)                                                                                            \
    void rms_norm_##level(const float *x, const float *weight, float epsilon, uint32_t n, float *out);                      \
    void rope_pairs_##level(float *x, uint32_t heads, uint32_t head_dim, uint32_t dims, const float *row);                  \
    void rope_neox_##level(float *x, uint32_t heads, uint32_t head_dim, uint32_t dims, const float *row);                   \
    void layer_norm_##level(const float *x, const float *weight, const float *bias, float epsilon, uint32_t n, float *out); \
    void silu_mul_##level(const float *gate, const float *up, uint32_t n, float *out);                                      \
    void gelu_mul_##level(const float *gate, const float *up, uint32_t n, float *out);                                      \
    void gelu_##level(const float *gate, const float *up, uint32_t n, float *out);                                          \
    void gpt_oss_mul_##level(const float *gate, const float *up, uint32_t n, float *out);                                   \
    void relu_##level(const float *gate, const float *up, uint32_t n, float *out);                                          \
    void add_##level(float *x, const float *y, uint32_t n);                                                                 \
    void scale_##level(float *x, float factor, uint32_t n);                                                                 \
    void soft_cap_##level(float *x, float cap, uint32_t n);                                                                 \
    double log_sum_exp_##level(const float *x, uint32_t n, float *max_out);                                                 \
    void softmax_##level(const float *x, uint32_t n, float *out);                                                           \
    void log_softmax_##level(const float *x, uint32_t n, float *out);                                                       \
    uint32_t argmax_##level(const float *x, uint32_t n);                                                                    \
    void f32_to_f16_##level(const float *x, uint32_t n, uint16_t *out);                                                     \
    void f16_to_f32_##level(const uint16_t *x, uint32_t n, float *out);                                                     \
    void f32_to_bf16_##level(const float *x, uint32_t n, uint16_t *out);                                                    \
    void bf16_to_f32_##level(const uint16_t *x, uint32_t n, float *out)
NORM_ROPE_DECLARE(ref);
NORM_ROPE_DECLARE(avx2);
NORM_ROPE_DECLARE(avx512);
NORM_ROPE_DECLARE(neon);
#undef NORM_ROPE_DECLARE

#endif
