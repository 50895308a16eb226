/* gpu.cuh: what the kernels have in common. The files that include it are compiled by nvcc, and by tests for the CPU (FD_EMULATE,
 * tests/cuda/emulate.h), which therefore has all that is used here: launches go through a macro, warp operations take the full mask.
 */
#ifndef FD_KERNELS_CUDA_GPU_CUH
#define FD_KERNELS_CUDA_GPU_CUH

#include <stdint.h>

#ifdef FD_EMULATE
#include "tests/cuda/emulate.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define GPU_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) kernel<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__)
/* Shared memory whose size the launch says; beyond 48 KiB the kernel must have been allowed it (cudaFuncSetAttribute). */
#define GPU_DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#endif

extern "C" {
#include "kernels/cuda/launch.h"
}

static constexpr unsigned FULL_WARP = ~0u, LANES = 32;

__device__ __forceinline__ float gpu_float(float x) { return x; }
__device__ __forceinline__ float gpu_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float gpu_float(__nv_bfloat16 x) { return __bfloat162float(x); }
template <typename T> __device__ __forceinline__ T gpu_from(float x);
template <> __device__ __forceinline__ float gpu_from<float>(float x) { return x; }
/* f16 ends at 65,504: what is larger stays there, so that one large value does not make a row, and its K and V, NaN. */
__device__ __forceinline__ float f16_range(float x) { return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x; }
template <> __device__ __forceinline__ __half gpu_from<__half>(float x) { return __float2half_rn(f16_range(x)); }
template <> __device__ __forceinline__ __nv_bfloat16 gpu_from<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }

/* Of all lanes of the warp, the same in each. */
__device__ __forceinline__ float warp_sum(float x)
{
    for (unsigned step = LANES / 2; step; step /= 2)
        x += __shfl_xor_sync(FULL_WARP, x, step);
    return x;
}

/* Of a block of up to 1,024 threads, a multiple of 32; the same in each. Two barriers. */
__device__ __forceinline__ float block_sum(float x)
{
    __shared__ float of_warp[LANES];
    const unsigned lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, warps = blockDim.x / LANES;
    x = warp_sum(x);
    __syncthreads(); /* who called before has read */
    if (lane == 0)
        of_warp[warp] = x;
    __syncthreads();
    return warp_sum(lane < warps ? of_warp[lane] : 0.0f);
}

/* --- single instructions, as the PTX ISA describes them (sm_80); their twins are in tests/cuda/emulate ----------------------- */

#ifndef FD_EMULATE

/* c += a * b of a warp, f16 with f32 sums (mma.m16n8k16). With g = lane / 4 and t = lane % 4, and two f16 a register, the lower first:
 * a, 16 x 16: rows g, g + 8, g, g + 8, columns 2t, 2t, 2t + 8, 2t + 8, and the next; b, 16 x 8: rows 2t and 2t + 8, and the next,
 * column g; c, 16 x 8: row g, columns 2t and 2t + 1, then row g + 8. */
__device__ __forceinline__ void gpu_mma(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four 8 x 8 tiles of f16 from shared memory: lanes 8j to 8j + 7 name the rows of tile j (16 bytes each, aligned so), and out[j] is
 * row lane / 4, columns 2 (lane % 4) and the next, of tile j. */
__device__ __forceinline__ void gpu_load_tiles(uint32_t *out, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row)));
}

/* The same, each tile transposed. */
__device__ __forceinline__ void gpu_load_tiles_transposed(uint32_t *out, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row)));
}

/* Starts copying 16 bytes, both addresses aligned so, to shared memory; or, if not `any`, zeros (`from` is not read then). */
__device__ __forceinline__ void gpu_copy_async(void *shared, const void *from, bool any)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(from), "r"(any ? 16 : 0)
                 : "memory");
}

/* Until what this thread has started is there. The other threads see it behind a barrier. */
__device__ __forceinline__ void gpu_copy_wait(void) { asm volatile("cp.async.wait_all;" ::: "memory"); }

/* 2^x, within 2^-22 of it; 0 below 2^-126. */
__device__ __forceinline__ float gpu_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two values rounded to f16 in one register, the first one in its lower half. */
__device__ __forceinline__ uint32_t gpu_pack(float first, float second)
{
    uint32_t both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}

#endif

#endif
