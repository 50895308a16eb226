// buckets.h: to how many rows a step is rounded up. Pure: no device, no memory.
//
// The rows of a step are padded to a few counts, so that a graph that was captured for such a count serves all below it (cuda_graph.c),
// and each product has an algorithm that was tried at start for its class of rows (gemm_choice.h):
//
//     1 2 4 8 16 24 32 48 64 96 128 192 256       buckets: a graph a segment
//     320 384 448 …                               beyond them multiples of 64: prompts, without graphs
//
// Up to some 200 rows (H200: 790 TFLOP/s at 4 TB/s) a product of 16-bit weights waits for the weights, so padding costs next to nothing
// there, and twice the rows is a step that is small enough; from 16 on there is one in the middle, because what is done to each row
// by itself (norms, activation) does grow. From 8 on all are multiples of 8, the rows of a tensor core's tile. Beyond 256 a product's
// tiles have 64 rows or more: it would compute them anyway.
#ifndef FD_KERNELS_CUDA_BUCKETS_H
#define FD_KERNELS_CUDA_BUCKETS_H

#include <stdint.h>

enum { GPU_BUCKETS_MAX = 13, GPU_BUCKET_ROWS_MAX = 256, GPU_ROWS_STEP = 64, GPU_CLASSES_MAX = 24 };

// The buckets of a mini-batch, ascending; the last is max_rows where that is below the largest. Returns how many.
uint32_t gpu_buckets(uint32_t max_rows, uint32_t rows[GPU_BUCKETS_MAX]);

// Rows that a step of `rows`, at most max_rows, is computed with: at least one, at most max_rows.
uint32_t gpu_padded_rows(uint32_t rows, uint32_t max_rows);

// Classes of rows that have an algorithm each: the most rows of each, ascending: the buckets, then twice and twice again up to max_rows.
uint32_t gpu_classes(uint32_t max_rows, uint32_t rows[GPU_CLASSES_MAX]);

// Index of the first of `rows` that is at least `wanted`; count: none is.
uint32_t gpu_class_of(const uint32_t *rows, uint32_t count, uint32_t wanted);

#endif
