/* gemm.h: matrix products on the device: y[row][o] = sum over i of w[o][i] * x[row][i], and y += that. By cuBLASLt: w and x are f16 or
 * bf16, sums are f32. For each shape the best of its heuristics is looked up once for each power of two of rows, for the most rows of that
 * class, and kept; before it is used for other rows it is checked, and looked up anew where it does not fit.
 *
 * Threads: one at a time. A product that fails ends the process with what was asked for (cuda.h: cuda_die).
 */
#ifndef FD_KERNELS_CUDA_GEMM_H
#define FD_KERNELS_CUDA_GEMM_H

#include "common/base/status.h"
#include "kernels/cuda/launch.h"

#define GPU_GEMM_WORKSPACE (32ull << 20)

struct gpu_gemm;

/* max_rows: of a product. */
enum status gpu_gemm_open(enum gpu_type type, uint32_t max_rows, struct gpu_gemm **out, struct error *error) MUST_CHECK;
void gpu_gemm_close(struct gpu_gemm *gemm); /* NULL is allowed */

struct gpu_product {
    const void *w; /* [outputs][inputs] wide */
    const void *x; /* [rows][inputs] wide */
    void *y;       /* [rows][outputs] f32, or wide if y_wide; aligned to 16 */
    uint32_t rows, outputs, inputs;
    bool y_wide, add;  /* add: only to f32 */
    uint32_t y_stride; /* elements from row to row of y; 0: outputs */
};

/* workspace: GPU_GEMM_WORKSPACE bytes of device memory that no other stream uses. */
void gpu_gemm_run(struct gpu_gemm *gemm, const struct gpu_product *product, void *workspace, cudaStream_t stream);

#endif
