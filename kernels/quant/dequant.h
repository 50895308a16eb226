// dequant.h: GGUF's block formats to f32, in plain loops: what every packed layout and kernel is measured against.
//
// Arithmetic is that of the format's definition in f32 (scale times integer, then minus or plus the minimum, one
// rounding an operation), so that values equal those of other readers bit by bit.
#ifndef FD_KERNELS_QUANT_DEQUANT_H
#define FD_KERNELS_QUANT_DEQUANT_H

#include "kernels/quant/tensor_type.h"

// source: count values of `type`, blocks as in the file, at any alignment. count must be a multiple of the type's
// block_values (asserted; a file's own counts are checked when it is opened). out: [count] f32. Any thread.
void dequantize(enum tensor_type type, const void *source, uint64_t count, float *out);

#endif
