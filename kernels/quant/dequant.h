// dequant.h: GGUF's block formats to f32 and back, in plain loops: what every packed layout and kernel is measured against.
//
// Arithmetic is that of the format's definition in f32 (scale times integer, then minus or plus the minimum, one
// rounding an operation), so that values equal those of other readers bit by bit.
#ifndef FD_KERNELS_QUANT_DEQUANT_H
#define FD_KERNELS_QUANT_DEQUANT_H

#include <stdbool.h>

#include "common/base/status.h"
#include "kernels/quant/tensor_type.h"

// source: count values of `type`, blocks as in the file, at any alignment. count must be a multiple of the type's
// block_values (asserted; a file's own counts are checked when it is opened). out: [count] f32. Any thread.
void dequantize(enum tensor_type type, const void *source, uint64_t count, float *out);

// --- f32 values to block formats ---
//
// A block is encoded by itself, so that threads may share a tensor. q is the nearest integer; x, min and max are of the block:
//
//     Q4_1, Q5_1   d = (max - min) / 15 or 31, m = min         q = (x - m) / d            group-wise and asymmetric, as in FlexGen
//                                                              (arXiv 2303.06865, section 4.4: 4 bits)
//     Q4_0, Q5_0   d = x of the largest magnitude / -8 or -16  q = x / d + 8 or 16        the extreme value is exact
//     Q8_0         d = largest magnitude / 127                 q = x / d
//     F16, BF16    nearest even
//
// d and m are rounded to f16 first and q is chosen for what they have become. A value is off by at most
//
//     Q4_1, Q5_1   d/2 + 2^-11·(|min| + max - min)     Q4_0, Q5_0   d, at the end of the range without a code; else d/2
//     Q8_0         d/2 + 2^-11·largest magnitude       plus 2^-24 where d or m is too small for f16
//
// Worked number: 32 values between -0.12 and 0.18 in Q4_1: d = 0.02, so each is off by at most 0.0102; 20 bytes, in f16 64.

#define ENCODE_TYPES "q4_1, q8_0, q4_0, q5_0, q5_1, f16, bf16"

// Encodes values, [count], a multiple of the type's block_values (asserted), into blocks as a file has them. out: at any alignment.
// false: a value is not finite or too large for an f16 scale; what is in out is undefined then. Any thread.
MUST_CHECK bool encode_values(enum tensor_type type, const float *values, uint64_t count, void *out);

// The same from blocks of another type, [count] values: each is decoded and encoded.
MUST_CHECK bool encode_blocks(enum tensor_type from, const void *source, uint64_t count, enum tensor_type to, void *out);

#endif
