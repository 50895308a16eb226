// pack.h: weights converted at load into the few layouts that the GEMM kernels read.
//
// A matrix of a GGUF file is output_count rows of k inputs each: y[o] = sum over i of w[o][i] * x[i]. It is cut into tiles of
// 16 outputs; a tile is contiguous, aligned to 64 bytes and holds all k inputs, in groups of 32:
//
//     layout    from                           weight                    bits/weight with scales
//     U4        Q4_0                           scale * (q - 8)           4.5
//     U4 + min  Q4_1; Q4_K                     scale * q + min           5; 4.63
//     S8        Q8_0, Q5_0, IQ4_NL; IQ4_XS     scale * q                 8.5; 8.31
//     S8 + min  Q5_1; Q5_K                     scale * q + min           9; 8.63
//     U4 of 16  Q3_K (two scales a group)      scale * (q - 8)           4.56
//     U4 of 16  Q2_K (and two minima)          scale * q + min           5.13
//     S8 of 16  Q6_K (two scales a group)      scale * q                 8.56
//     S8 f32    MXFP4, Q8_K (an f32 scale)     scale * q                 9
//     F32, F16, BF16                           as they are               32, 16, 16
//
// The value of each weight is exactly that of the source. Scales and minima stay in the source's own parts: f16, or for the
// K types and IQ4_XS ("super") one f16 for 256 inputs times a small integer for each group; both products are exact in f32. MXFP4's
// powers of two go far beyond f16, and Q8_K's scale is an f32, so these two have scales in f32. The 4-bit codes of IQ4_NL, IQ4_XS and
// MXFP4 are looked up when they are packed: q is the code's integer value.
//
// A tile's sections, each aligned to 64 bytes, [a][b] innermost last, G = k / 32, S = k / 256:
//
//     super scale  f16 [S][16]          K types only
//     super min    f16 [S][16]          K types with minimum only; the minimum is -(super min * small min)
//     scale        f16 [G][16]          or f32 [G][16]; K types: s8 [G][16] or, of 16, s8 [G][2][16]
//     min          f16 [G][16]          or, K types, u8 [G][16] or, of 16, u8 [G][2][16]
//     quants       U4: u8 [G][4][16][4]   byte [j][o][b]: low nibble = q[8j + b], high nibble = q[8j + 4 + b] of output o
//                  S8: u8 [G][8][16][4]   byte [j][o][b] = q[4j + b] + 128
//                  F32, F16, BF16: [k][16]
//
// so that 64 bytes are the unsigned operand of vpdpbusd: four inputs of each of 16 outputs. Outputs beyond output_count in
// the last tile have scale 0. Worked number: Q4_1 of 576 inputs: G = 18; scale and min 576 bytes each, quants 4,608 bytes:
// a tile is 5,760 bytes = 5 bits a weight.
#ifndef FD_KERNELS_QUANT_PACK_H
#define FD_KERNELS_QUANT_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "kernels/quant/pack_source.h"

// A plain value: the plan, then the packed weights.
struct packed_matrix {
    enum pack_layout layout;
    bool super;            // scales are those of the K types
    bool minimum;          // a minimum is stored
    uint32_t source_type;  // enum tensor_type, which has GGUF's numbers
    uint32_t output_count; // rows of the source
    uint32_t k;            // inputs
    uint32_t group_count;  // k / 32; 0 for float layouts
    uint32_t tile_count;
    uint32_t super_offset, super_min_offset, scale_offset, min_offset, quant_offset; // in a tile, bytes
    uint64_t tile_bytes;
    uint64_t source_row_bytes;
    uint64_t bytes; // tile_count * tile_bytes: what `data` must hold
    uint8_t *data;  // [tile_count][tile_bytes], aligned to 64; the caller's. NULL after pack_plan
};

// Fills *out for a tensor of GGUF type `source_type` and output_count rows of k values. Allocates nothing: the caller
// provides out->data, aligned to PACK_ALIGN, out->bytes long, before pack_tiles. A type or shape that cannot be packed:
// STATUS_INVALID_ARGUMENT and one line that says why. Any thread.
enum status pack_plan(uint32_t source_type, uint64_t output_count, uint64_t k, struct packed_matrix *out,
                      struct error *error) MUST_CHECK;

// Bytes of the packed matrix, for the memory plan; 0 if it cannot be packed.
uint64_t packed_bytes(uint32_t source_type, uint64_t output_count, uint64_t k);

// Packs tiles [tile_begin, tile_begin + tile_count). source: the whole tensor as in the file, any alignment,
// output_count * source_row_bytes long. Threads may pack disjoint ranges of one matrix at the same time.
void pack_tiles(const struct packed_matrix *matrix, const void *source, uint32_t tile_begin, uint32_t tile_count);

// One row of the matrix as f32, e.g. a token's embedding. row < output_count (asserted). Any thread.
void pack_dequantize_row(const struct packed_matrix *matrix, uint32_t row, float *out /* [k] */);

#endif
