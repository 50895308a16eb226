// quant.h: matrices in 4- and 8-bit groups in device memory, and what is done with them: products, rows, whole panels.
//
// Most GGUF types come into one of a few forms that keep the source's own integers and scales, so that each weight is exactly
// scale * q or scale * q + minimum of the source (f16 parts; for the K types one f16 for 256 inputs times a small integer):
//
//     form           from                  weight            bits/weight
//     U4             Q4_0                  scale * (q - 8)   4.5
//     U4_MIN         Q4_1                  scale * q + min   5
//     U4_SUPER       Q4_K                  the same          4.63
//     S8             Q8_0, Q5_0, IQ4_NL    scale * q         8.5
//     S8_MIN         Q5_1                  scale * q + min   9
//     S8_SUPER       Q5_K                  the same          8.63
//     S8_HALVES      Q6_K, Q3_K, IQ4_XS    scale * q, two scales a group    8.56
//
// Q2_K (two minima a group), MXFP4 and Q8_K (f32 scales) have no form: their weights are rounded to 16 bits.
//
// A matrix is cut into tiles of 16 outputs, a tile into steps of 64 inputs = 2 groups of 32: the operand A of two to four products
// m16n8k16 of the tensor cores. A warp takes a step of a tile with one load of 16 bytes a lane (8 bits: two), each 512 bytes in a row,
// and no lane needs what another has loaded. Lane 4g + t holds outputs g and g + 8 of the tile, of each group inputs
//
//     8t … 8t + 7                          in the two products of a group: 8t … 8t + 3, then 8t + 4 … 8t + 7
//     4t … 4t + 3, 16 + 4t … 16 + 4t + 3   S8_HALVES: a product is a half of the group, with a scale of its own
//
// (a sum may take its inputs in any order, as long as x comes in the same). A tile is contiguous, its sections one after the other:
//
//     quants   4 bits: u32 [steps][32 lanes][2 groups][2 outputs]     nibbles of a word, low first: q0 q2 q4 q6 q1 q3 q5 q7
//              8 bits: u32 [steps][2 groups][32 lanes][2 outputs][2]  bytes q + 128, four inputs a word
//     scales   [steps][8 g] of  U4, S8           f16 [2 groups][2 outputs]
//                               U4_MIN, S8_MIN   the same, then as many minima
//                               SUPER            u8 [2 groups][2 outputs], then as many small minima
//                               S8_HALVES        u8 [2 groups][2 outputs][2 halves]: the signed scale + 128
//     super    [ceil(inputs / 256)][8 g] of f16 [2 outputs], then as many minima, positive; S8_HALVES: no minima
//
// Inputs are a multiple of 32; what a last step has beyond them, and outputs beyond the last, have scale and minimum 0.
// Worked number: Q4_1 of 576 inputs: 9 steps of 512 + 128 bytes: a tile is 5,760 bytes, 5 bits a weight.
#ifndef FD_KERNELS_CUDA_QUANT_H
#define FD_KERNELS_CUDA_QUANT_H

#include "kernels/cuda/launch.h"

enum gpu_form { GPU_WIDE, GPU_U4, GPU_U4_MIN, GPU_U4_SUPER, GPU_S8, GPU_S8_MIN, GPU_S8_SUPER, GPU_S8_HALVES, GPU_FORMS };

// The facts that the packing and the kernels, compiled for each form, must both know of it.
#ifdef __cplusplus
#define GPU_CONSTANT static constexpr
#else
#define GPU_CONSTANT static inline
#endif
GPU_CONSTANT uint32_t gpu_form_bits(enum gpu_form form) { return form == GPU_WIDE ? 16 : form <= GPU_U4_SUPER ? 4 : 8; }
GPU_CONSTANT bool gpu_form_has_super(enum gpu_form form)
{
    return form == GPU_U4_SUPER || form == GPU_S8_SUPER || form == GPU_S8_HALVES;
}
GPU_CONSTANT bool gpu_form_has_minimum(enum gpu_form form)
{
    return form == GPU_U4_MIN || form == GPU_S8_MIN || form == GPU_U4_SUPER || form == GPU_S8_SUPER;
}
// Inputs of a g: in a step; in 256 inputs.
GPU_CONSTANT uint32_t gpu_form_scale_bytes(enum gpu_form form)
{
    return gpu_form_has_minimum(form) && !gpu_form_has_super(form) ? 16 : 8;
}
GPU_CONSTANT uint32_t gpu_form_super_bytes(enum gpu_form form)
{
    return !gpu_form_has_super(form) ? 0 : gpu_form_has_minimum(form) ? 8 : 4;
}

enum { GPU_TILE_OUTPUTS = 16, GPU_STEP_INPUTS = 64, GPU_GROUP_INPUTS = 32, GPU_SUPER_INPUTS = 256 };

// Up to here packed weights are multiplied as they are, read once for 16 rows (the second 16 mostly find them in the L2 cache); with
// more rows they are expanded, a panel at a time, and multiplied by gemm.h. Reckoned for an H200, Llama-7B's out-projection (16.8 M
// weights, 4.5 bits): expanding reads 9 MB, writes 34 and reads them back, some 14 us with most of it in L2. The direct kernel reads
// 9 MB from memory (2 us), and x once for each 32 outputs (other forms: 16): 8 KB * rows * 128 blocks, which at some 5.5 TB/s of L2 is 3 us at 16 rows,
// 6 at 32, 12 at 64. So they meet near 64; 32 is on the safe side until it has been measured.
enum { GPU_QUANT_DIRECT_ROWS = 32 };

// A plain value: how a packed matrix lies, and where.
struct gpu_quant {
    enum gpu_form form; // GPU_WIDE: data is [outputs][inputs] wide, and the rest is 0
    uint32_t outputs, inputs, tiles, steps;
    uint32_t scale_offset, super_offset; // bytes, in a tile
    uint64_t tile_bytes;                 // a multiple of 128
    const void *data;                    // device: [tiles][tile_bytes], aligned to 256
};

// --- quant_pack.c: on the host ---

// GPU_WIDE for the float types, for those without a form and for what is not known.
enum gpu_form gpu_form_of(uint32_t source_type);

// Fills all but `data`. form is not GPU_WIDE; inputs: a multiple of the source's block.
void gpu_quant_plan(enum gpu_form form, uint32_t outputs, uint32_t inputs, struct gpu_quant *out);

// One tile: rows [first, first + count) of a tensor as in the file, count <= 16, `source_type` of the plan's form. Threads may pack
// different tiles at the same time.
void gpu_quant_pack_tile(const struct gpu_quant *quant, uint32_t source_type, const void *rows, uint64_t row_bytes, uint32_t count,
                         void *tile /* tile_bytes, aligned to 16 */);

// --- quant.cu ---

struct gpu_quant_product {
    const void *x;     // [rows][inputs] wide, aligned to 16
    void *y;           // [rows][y_stride] f32, or wide if y_wide: the first `outputs` of each row are written
    uint32_t rows;     // any number; each 16 read the weights anew
    uint32_t y_stride; // elements
    bool y_wide, add;  // add: only to f32
};

// y = w x, sums in f32. How a sum is cut and added up depends on inputs alone: a row's bits do not depend on the number of rows.
void gpu_quant_multiply(enum gpu_type type, const struct gpu_quant *quant, const struct gpu_quant_product *product,
                        cudaStream_t stream);

// out[o - first][:] = outputs [first, first + count), the source's values rounded to `type` once. first: a multiple of 16.
void gpu_quant_expand(enum gpu_type type, const struct gpu_quant *quant, uint32_t first, uint32_t count,
                      void *out /* [count][inputs] wide, aligned to 16 */, cudaStream_t stream);

// x[row][:] = output token[row] of the matrix, exact. A token's id is below `outputs` (the caller has checked).
void gpu_quant_embed(const struct gpu_quant *quant, const uint32_t *token /* [rows] */, uint32_t rows,
                     float *x /* [rows][inputs], aligned to 16 */, cudaStream_t stream);

#endif
