/* fragment.cuh: values in pairs of 16 bits, and the tensor cores' product of 16 x 16 by 16 x 8, by their instructions (sm_80 on).
 *
 * A pair is two values of T (f16 or bf16) in 32 bits, the first in the lower half. Fragments of m16n8k16, for lane 4g + t:
 *
 *     a[0]: row g, columns 2t, 2t + 1    a[1]: row g + 8, the same    a[2]: row g, columns 2t + 8, 2t + 9    a[3]: row g + 8, the same
 *     b[0]: rows 2t, 2t + 1 of column g  b[1]: rows 2t + 8, 2t + 9
 *     c[0], c[1]: row g, columns 2t, 2t + 1    c[2], c[3]: row g + 8
 */
#ifndef FD_KERNELS_CUDA_FRAGMENT_CUH
#define FD_KERNELS_CUDA_FRAGMENT_CUH

#include "kernels/cuda/gpu.cuh"

#ifndef FD_EMULATE

/* a * b + c of both halves, rounded once. */
template <typename T> __device__ __forceinline__ uint32_t pair_fma(uint32_t a, uint32_t b, uint32_t c);
template <> __device__ __forceinline__ uint32_t pair_fma<__half>(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
template <> __device__ __forceinline__ uint32_t pair_fma<__nv_bfloat16>(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* (x & mask) | bits, as one instruction: two constants in one do not come of themselves. */
__device__ __forceinline__ uint32_t and_or(uint32_t x, uint32_t mask, uint32_t bits)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(x), "r"(mask), "r"(bits));
    return d;
}

/* d += a b; all lanes of the warp together. */
template <typename T>
__device__ __forceinline__ void multiply_fragments(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void multiply_fragments<__half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void multiply_fragments<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* What is read once: not kept in L1, where what is read again is to stay. */
__device__ __forceinline__ uint4 load_once(const uint4 *at)
{
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(at));
    return v;
}

/* 16 bits as T. */
template <typename T> __device__ __forceinline__ T from_bits(uint32_t bits);
template <> __device__ __forceinline__ __half from_bits<__half>(uint32_t bits) { return __ushort_as_half((unsigned short)bits); }
template <> __device__ __forceinline__ __nv_bfloat16 from_bits<__nv_bfloat16>(uint32_t bits)
{
    return __ushort_as_bfloat16((unsigned short)bits);
}
__device__ __forceinline__ uint32_t to_bits(__half x) { return __half_as_ushort(x); }
__device__ __forceinline__ uint32_t to_bits(__nv_bfloat16 x) { return __bfloat16_as_ushort(x); }

#endif

template <typename T> __device__ __forceinline__ float pair_low(uint32_t pair) { return gpu_float(from_bits<T>(pair & 0xffff)); }
template <typename T> __device__ __forceinline__ float pair_high(uint32_t pair) { return gpu_float(from_bits<T>(pair >> 16)); }
template <typename T> __device__ __forceinline__ uint32_t pair_of(float low, float high)
{
    return to_bits(gpu_from<T>(low)) | to_bits(gpu_from<T>(high)) << 16;
}

#endif
