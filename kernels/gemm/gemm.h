// gemm.h: matrix products with packed weights: y[row][o] = sum over i of w[o][i] * x[row][i].
//
// Activations are quantized row by row in groups of 32 inputs to s8 with an f32 scale. One input of each group, the
// outlier, is left out: the one of largest magnitude keeps its f32 value, its q is 0, and the other 31 are quantized with
// the scale of the second largest magnitude. A few channels of a transformer are many times larger than the others; if they were
// quantized, they would set the scale and the others would lose their bits. Worked number: a group of one 60 and 31 values
// up to 1 has steps of 60 / 127 = 0.47 with the outlier quantized, and of 1 / 127 = 0.008 without.
//
// The integer dot product of a group is exact at every ISA level; it is turned to f32 and accumulated over the groups in
// order. With wq the integer weight at the outlier's place
//
//     y = sum_g  scale_w(g) * (dot(g) * scale_x(g) + wq(g) * outlier(g))  +  min_w(g) * xsum(g)
//
// one chain of fused multiply-adds in the order of g and, within g, as written. In the parentheses the outlier's product is
// rounded, and the rest is one fused multiply-add. A group with two scales is two links of the chain, one for each half with its
// own dot, scale_w, min_w and xsum; the outlier belongs to its half. (Magnitudes beyond 2^120 may overflow before scale_w makes them small
// again; with 8-bit weights to an infinity of either sign, even for a weight of 0.)
// A row's result depends neither on the rows and tiles that share a call nor on the thread. Float layouts are a chain of fused
// multiply-adds in the order of k on the unquantized rows. All levels but ref give the same bits.
//
// The rows of x are stored in blocks of eight, so that one pointer is enough for a register block of eight rows:
//
//     blocks[row / 8][group] = { q[8][32] s8, part[8] {scale, sum, bias, bias_low, outlier, index} }      448 bytes
//
// A group of x that holds a NaN or an infinity makes that row's results NaN.
#ifndef FD_KERNELS_GEMM_GEMM_H
#define FD_KERNELS_GEMM_GEMM_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/quant/pack.h"

#define QUANT_BLOCK_ROWS 8u

struct quant_part {
    float scale;      // second largest magnitude / 127; 0 where that is 0
    float sum;        // scale * (sum of q) + outlier, rounded once: the factor of a minimum
    int32_t bias;     // -128 * (sum of q): removes the offset of 128 from a dot product with S8 weights
    int32_t bias_low; // the same for the first 16 of the group
    float outlier;    // the value of largest magnitude; 0 for a group of zeros
    uint32_t index;   // of the outlier, 0 to 31; the first of equal magnitudes; 0 for a group of zeros
};

struct quant_block {
    int8_t q[QUANT_BLOCK_ROWS][PACK_GROUP]; // -127..127
    struct quant_part part[QUANT_BLOCK_ROWS];
};
_Static_assert(sizeof(struct quant_block) == 448, "kernels address the block by constant offsets");

// Rows of activations, and their quantized form once quantize_rows ran. A plain value that views the caller's memory.
struct quantized_rows {
    uint32_t k;
    uint32_t row_capacity;
    uint32_t group_count;       // k rounded up to groups; a last partial group is padded with zeros
    struct quant_block *blocks; // [row blocks][group_count], aligned to 64
    const float *values;        // [rows][value_stride] f32, the rows themselves; borrowed
    size_t value_stride;
};

enum gemm_store {
    GEMM_SET, // y  = result
    GEMM_ADD, // y += result: one rounding more, e.g. the residual
};

// Bytes of memory for the quantized form of row_capacity rows of k inputs; a multiple of 64. 0 on overflow.
size_t quantized_rows_bytes(uint32_t row_capacity, uint32_t k);

// Makes *out a view of `memory`, which is the caller's, aligned to 64 and quantized_rows_bytes() long. It may serve
// several widths one after another: initialize it anew for each k.
void quantized_rows_init(struct quantized_rows *out, void *memory, uint32_t row_capacity, uint32_t k);

// Sets the f32 rows. Call from one thread before quantize_rows and gemm; `values` must outlive both.
static inline void quantized_rows_source(struct quantized_rows *rows, const float *values, size_t value_stride)
{
    rows->values = values;
    rows->value_stride = value_stride;
}

// The entries of struct kernels; kernels.h says what each does.
void quantize_rows_ref(const struct quantized_rows *rows, uint32_t row_begin, uint32_t row_count);
void quantize_rows_avx2(const struct quantized_rows *rows, uint32_t row_begin, uint32_t row_count);
void quantize_rows_avx512(const struct quantized_rows *rows, uint32_t row_begin, uint32_t row_count);
void quantize_rows_neon(const struct quantized_rows *rows, uint32_t row_begin, uint32_t row_count);
#define GEMM_DECLARE(level)                                                                                                  \
    void gemm_##level(const struct packed_matrix *w, const struct quantized_rows *x, uint32_t row_begin, uint32_t row_count, \
                      uint32_t tile_begin, uint32_t tile_count, const void *next, float *y, size_t y_stride,                 \
                      enum gemm_store store)
GEMM_DECLARE(ref);
GEMM_DECLARE(avx2);
GEMM_DECLARE(avx512);
GEMM_DECLARE(neon);
// These have their own dot products, and quantize by the code of AVX-512, AVX2 and NEON.
GEMM_DECLARE(vnni);
GEMM_DECLARE(avxvnni);
GEMM_DECLARE(dotprod);
GEMM_DECLARE(i8mm);
#undef GEMM_DECLARE

#endif
