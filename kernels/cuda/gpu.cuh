// gpu.cuh: what the kernels have in common. The files that include it are compiled by nvcc, and by tests for the CPU (FD_EMULATE,
// tests/cuda/emulate.h), which therefore has all that is used here: launches go through a macro, warp operations take the full mask.
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
// Shared memory whose size the launch says; beyond 48 KiB the kernel must have been allowed it (cudaFuncSetAttribute).
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
// f16 ends at 65,504: what is larger stays there, so that one large value does not make a row, and its K and V, NaN.
__device__ __forceinline__ float f16_range(float x) { return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x; }
template <> __device__ __forceinline__ __half gpu_from<__half>(float x) { return __float2half_rn(f16_range(x)); }
template <> __device__ __forceinline__ __nv_bfloat16 gpu_from<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }

// Returns the sum of all lanes of the warp, the same in each.
template <typename T> __device__ __forceinline__ T warp_sum(T x)
{
    for (unsigned step = LANES / 2; step; step /= 2)
        x += __shfl_xor_sync(FULL_WARP, x, step);
    return x;
}

// Returns the sum of a block of up to 1,024 threads, a multiple of 32; the same in each. Two barriers.
__device__ __forceinline__ float block_sum(float x)
{
    __shared__ float of_warp[LANES];
    const unsigned lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, warps = blockDim.x / LANES;
    x = warp_sum(x);
    __syncthreads(); // who called before has read
    if (lane == 0)
        of_warp[warp] = x;
    __syncthreads();
    return warp_sum(lane < warps ? of_warp[lane] : 0.0f);
}

#endif
