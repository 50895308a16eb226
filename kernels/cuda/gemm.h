// gemm.h: matrix products on the device: y[row][o] = sum over i of w[o][i] * x[row][i], and y += that. By cuBLASLt: w and x are f16 or
// bf16, sums are f32. The algorithm of each shape and class of rows is tried at start (gpu_gemm_try, gemm_choice.h) and kept; a
// step then asks the library for nothing but the product. A shape that was not tried gets the first that the library offers, at its
// first use.
//
// Batch-invariant (gpu_gemm_invariant): every product is computed in pieces of GPU_GEMM_TILE_ROWS rows, the last one padded, by one
// algorithm a shape that does not split the sum: so the same kernel runs on the same grid for one row and for thousands, and a row's
// bytes do not depend on its companions. Nothing is timed then, so that the next start chooses the same.
//
// Threads: one at a time. A product that fails ends the process with what was asked for (cuda.h: cuda_die); while its stream is captured
// it ends the capture instead, which then gives no graph.
#ifndef FD_KERNELS_CUDA_GEMM_H
#define FD_KERNELS_CUDA_GEMM_H

#include "common/base/status.h"
#include "kernels/cuda/launch.h"

#define GPU_GEMM_WORKSPACE (32ull << 20)

// 128 rows: one row's product then takes as long as 128 rows', which on a GPU is still near what reading the weights takes; a prompt's
// pieces of 128 reach about two thirds of the rate of large ones (H200: 128 FLOP a byte of weight, 200 keep its tensor cores busy).
enum { GPU_GEMM_TILE_ROWS = 128 };

struct gpu_gemm;

// max_rows: of a product.
enum status gpu_gemm_open(enum gpu_type type, uint32_t max_rows, struct gpu_gemm **out, struct error *error) MUST_CHECK;
void gpu_gemm_close(struct gpu_gemm *gemm); // NULL is allowed

// Before the first product. From then on x and y must have room for rows up to a multiple of GPU_GEMM_TILE_ROWS; what stands in y's
// rows beyond the product's is lost.
void gpu_gemm_invariant(struct gpu_gemm *gemm);

struct gpu_product {
    const void *w; // [outputs][inputs] wide
    const void *x; // [rows][inputs] wide
    void *y;       // [rows][outputs] f32, or wide if y_wide; aligned to 16
    uint32_t rows, outputs, inputs;
    bool y_wide, add;  // add: only to f32
    uint32_t y_stride; // elements from row to row of y; 0: outputs
};

static inline uint32_t gpu_y_stride(const struct gpu_product *p) { return p->y_stride ? p->y_stride : p->outputs; }

// True for products of one shape, whatever their rows: one algorithm a class of rows does for both.
static inline bool gpu_same_shape(const struct gpu_product *a, const struct gpu_product *b)
{
    return a->outputs == b->outputs && a->inputs == b->inputs && gpu_y_stride(a) == gpu_y_stride(b) && a->y_wide == b->y_wide &&
           a->add == b->add;
}

// A shape that steps will ask for.
struct gpu_trial {
    struct gpu_product product;   // rows: the most that it is ever run with; w is not used, x and y are overwritten
    const void *const *w;         // [w_count] its matrices, taken in turn so that none is in the cache from the run before
    uint32_t w_count, least_rows; // that it is ever run with
};

// Tries the algorithms of all shapes; takes up to two seconds. Waits for the device.
void gpu_gemm_try(struct gpu_gemm *gemm, const struct gpu_trial *trials, uint32_t count, void *workspace, cudaStream_t stream);

// workspace: GPU_GEMM_WORKSPACE bytes of device memory that no other stream uses.
void gpu_gemm_run(struct gpu_gemm *gemm, const struct gpu_product *product, void *workspace, cudaStream_t stream);

#endif
