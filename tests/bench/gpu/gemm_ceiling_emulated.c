/* gemm_ceiling_emulated.c: see gemm_ceiling.h: the emulated device has one algorithm. */
#include "common/base/checked.h"
#include "common/base/clock.h"
#include "kernels/cuda/gemm.h"
#include "tests/bench/gpu/gemm_ceiling.h"

double gemm_ceiling_us(const struct ceiling_product *product, void *workspace, cudaStream_t stream, uint32_t *tried)
{
    const struct gpu_product p = {.w = product->w,
                                  .x = product->x,
                                  .y = product->y,
                                  .rows = product->rows,
                                  .outputs = product->outputs,
                                  .inputs = product->inputs,
                                  .y_wide = true};
    struct gpu_gemm *gemm;
    struct error error;

    assert_always(!gpu_gemm_open(GPU_F16, product->rows, &gemm, &error));
    uint64_t began_ns = clock_now_ns();
    gpu_gemm_run(gemm, &p, workspace, stream);
    cudaStreamSynchronize(stream);
    double us = (double)(clock_now_ns() - began_ns) * 1e-3;
    gpu_gemm_close(gemm);
    *tried = 1;
    return us;
}
