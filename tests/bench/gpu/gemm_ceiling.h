/* gemm_ceiling.h: what cuBLASLt's products of a shape take at best: each algorithm that its heuristics propose is timed, with up to 32 MiB
 * of workspace. The ceiling that the S-part and prefill attention are judged by; gemm_ceiling.c is on a GPU, gemm_ceiling_emulated.c, for
 * the smoke test, times the emulated product.
 */
#ifndef FD_TESTS_BENCH_GPU_GEMM_CEILING_H
#define FD_TESTS_BENCH_GPU_GEMM_CEILING_H

#include <cuda_runtime_api.h>
#include <stdint.h>

/* y [rows][outputs] = x [rows][inputs] times w [outputs][inputs] transposed, all f16 in device memory, sums in f32. */
struct ceiling_product {
    const void *w, *x;
    void *y;
    uint32_t rows, outputs, inputs;
};

enum { CEILING_WORKSPACE = 32 << 20, CEILING_QUEUED = 16, CEILING_PASSES = 9 };

/* Microseconds of one by the fastest algorithm: the median of passes of CEILING_QUEUED that are waited for once. Ends the program with
 * what failed. tried: how many algorithms there were. */
double gemm_ceiling_us(const struct ceiling_product *product, void *workspace, cudaStream_t stream, uint32_t *tried);

#endif
