// stored_rows.h: matrices that a file has in another order than GGUF, read as the blocks that GGUF would have. The experts of gpt-oss in
// a directory of transformers are such ones:
//
//     floats   gate_up_proj [experts][inputs][2 * outputs]    input by input, gate and up by turns: step from an output to the next 2, from
//                                                             an input to the next 2 * outputs
//     MXFP4    …_blocks u8 [rows][inputs / 32][16]            byte i of a block: value 2i in the low nibble, value 2i + 1 in the high one
//              …_scales u8 [rows][inputs / 32]                the exponent, apart; 255 is not a number
//
// An element is a value or, of MXFP4, a block of 32. Element (row, column) of a matrix is number first + row * row_step + column *
// column_step of it. A few rows are read at a time, so that no tensor is in memory twice.
#ifndef FD_KERNELS_QUANT_STORED_ROWS_H
#define FD_KERNELS_QUANT_STORED_ROWS_H

#include <stdbool.h>

#include "common/base/status.h"
#include "kernels/quant/tensor_type.h"

// A plain value; the bytes are borrowed.
struct stored_rows {
    enum tensor_type type; // of what is read: F32, F16, BF16 or MXFP4
    uint32_t columns;      // values of a row; a multiple of the type's block_values
    uint32_t matrix_rows;  // rows of one matrix
    uint32_t matrix_count; // they follow one another in the file
    uint64_t first, row_step, column_step;
    const uint8_t *values;               // of floats, or MXFP4's blocks, at any alignment
    const uint8_t *scales;               // MXFP4's exponents; NULL of floats
    uint64_t values_bytes, scales_bytes; // of all matrices; may be more than what is read: up's rows lie between those of gate
};

// Reads values [first, first + count) of all rows one after the other, both whole blocks (asserted), as blocks of the type into out, at
// any alignment. False: an exponent is 255; what is in out is undefined then. Any thread.
MUST_CHECK bool stored_rows_read(const struct stored_rows *stored, uint64_t first, uint64_t count, void *out);

// Returns one of the matrices alone.
struct stored_rows stored_rows_matrix(const struct stored_rows *stored, uint32_t index);

#endif
