// kernels.h: the table of compute kernels, filled once at start for the level that isa.h chose.
//
// A caller writes kernels->rms_norm(...). No entry allocates, blocks, locks or keeps state. Any thread may call them, several
// at once if their outputs are disjoint. Pointers need no alignment unless an entry says so. `out` may be an input only where
// an entry says so. n and row counts may be 0. Attention has a table of its own, by the same enum isa_level.
//
// A segment of the S-part, for one row block:
//
//     rms_norm ▶ quantize_rows ▶ gemm(q), gemm(k), gemm(v) ▶ rope ▶ (attention) ▶ quantize_rows ▶ gemm(o, GEMM_ADD)
//     rms_norm ▶ quantize_rows ▶ gemm(gate), gemm(up) ▶ silu_mul ▶ quantize_rows ▶ gemm(down, GEMM_ADD)
#ifndef FD_KERNELS_DISPATCH_KERNELS_H
#define FD_KERNELS_DISPATCH_KERNELS_H

#include "kernels/gemm/gemm.h"
#include "kernels/norm_rope/norm_rope.h"
#include "kernels/simd/isa.h"

struct kernels {
    enum isa_level level;

    // Quantizes rows [row_begin, row_begin + row_count) of rows->values into rows->blocks. Threads take disjoint rows.
    void (*quantize_rows)(const struct quantized_rows *rows, uint32_t row_begin, uint32_t row_count);

    // The outputs of tiles [tile_begin, +tile_count) (16 outputs each) of rows [row_begin, +row_count): threads take
    // disjoint tiles or rows. y: [rows][y_stride] f32, indexed by the row's number in x and the output's number; nothing
    // beyond w->output_count is written. w->k == x->k (asserted). Quantized layouts read x->blocks, float layouts read
    // x->values and need no quantize_rows. next: the packed weights that this thread reads after these, or NULL. They are
    // prefetched towards the end, so that memory is not idle between two calls.
    void (*gemm)(const struct packed_matrix *w, const struct quantized_rows *x, uint32_t row_begin, uint32_t row_count,
                 uint32_t tile_begin, uint32_t tile_count, const void *next, float *y, size_t y_stride, enum gemm_store store);

    // out[i] = x[i] / sqrt(mean(x^2) + epsilon) * weight[i]; all [n] f32. out may be x.
    void (*rms_norm)(const float *x, const float *weight, float epsilon, uint32_t n, float *out);

    // out[i] = (x[i] - mean(x)) / sqrt(variance(x) + epsilon) * weight[i] + bias[i]; all [n] f32; bias may be NULL. out may be x.
    void (*layer_norm)(const float *x, const float *weight, const float *bias, float epsilon, uint32_t n, float *out);

    // Rotates the first `dims` of each head in place. x: [heads][head_dim] f32; row: [2][dims] f32 of rope_table_build
    // for the same style. dims is even and at most head_dim.
    void (*rope_pairs)(float *x, uint32_t heads, uint32_t head_dim, uint32_t dims, const float *row);
    void (*rope_neox)(float *x, uint32_t heads, uint32_t head_dim, uint32_t dims, const float *row);

    // out[i] = gate[i] / (1 + e^-gate[i]) * up[i]; all [n] f32. out may be gate or up.
    void (*silu_mul)(const float *gate, const float *up, uint32_t n, float *out);

    // The same for other activations. gelu_mul: gate / (1 + e^-2z) * up, z = sqrt(2 / pi) * (gate + 0.044715 * gate^3). gpt_oss: with
    // g = min(gate, 7) and u = up within -7 to 7, g / (1 + e^-1.702g) * (u + 1). relu: max(gate, 0); up is not read. gelu: as
    // gelu_mul without up, which is not read.
    void (*gelu_mul)(const float *gate, const float *up, uint32_t n, float *out);
    void (*gelu)(const float *gate, const float *up, uint32_t n, float *out);
    void (*gpt_oss_mul)(const float *gate, const float *up, uint32_t n, float *out);
    void (*relu)(const float *gate, const float *up, uint32_t n, float *out);

    // x[i] += y[i]; [n] f32.
    void (*add)(float *x, const float *y, uint32_t n);
    // x[i] *= factor; x[i] = cap * tanh(x[i] / cap); [n] f32.
    void (*scale)(float *x, float factor, uint32_t n);
    void (*soft_cap)(float *x, float cap, uint32_t n);

    // The largest x[i] into *max_out, and log(sum of e^(x[i] - max)): the log-probability of i is
    // (x[i] - max) - returned. NaN anywhere or +inf: NaN. All -inf or n == 0: max -inf, returns 0. x: [n] f32.
    double (*log_sum_exp)(const float *x, uint32_t n, float *max_out);
    // Probabilities; log-probabilities. [n] f32; out may be x. All -inf: probabilities 0, log-probabilities -inf.
    void (*softmax)(const float *x, uint32_t n, float *out);
    void (*log_softmax)(const float *x, uint32_t n, float *out);

    // The lowest index of the largest value; NaN is passed over; 0 if there is nothing else. x: [n] f32.
    uint32_t (*argmax)(const float *x, uint32_t n);

    // Conversions of [n] values, to nearest even; NaN stays NaN.
    void (*f32_to_f16)(const float *x, uint32_t n, uint16_t *out);
    void (*f16_to_f32)(const uint16_t *x, uint32_t n, float *out);
    void (*f32_to_bf16)(const float *x, uint32_t n, uint16_t *out);
    void (*bf16_to_f32)(const uint16_t *x, uint32_t n, float *out);
};

// The chosen table. NULL before kernels_init.
extern const struct kernels *kernels;

// The help of an option that names the level.
#define KERNELS_ISA_HELP \
    "instruction set of the kernels: ref, avx2, avxvnni, avx512 or vnni; on AArch64 neon, dotprod or i8mm; default: FD_ISA, else the best that the CPU has"

// Chooses the level (isa_choose: name, else FD_ISA, else the best) and sets `kernels`. Call once at start, before other
// threads; on failure nothing is changed and *error says what was asked for and what this machine can run.
enum status kernels_init(const char *level_name, struct error *error) MUST_CHECK;

// The name of the chosen level, for logs and the handshake; "none" before kernels_init.
const char *kernels_level_name(void);

// The table of one level, for tests and benches; NULL if this machine cannot run it.
const struct kernels *kernels_of_level(enum isa_level level);

#endif
