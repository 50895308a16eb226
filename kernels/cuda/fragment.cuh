// fragment.cuh: values in pairs of 16 bits, the tensor cores' product of 16 x 16 by 16 x 8, and what brings them there, by their
// instructions (as the PTX ISA describes them); their twins are in tests/cuda/emulate.h.
//
// A pair is two values of T (f16 or bf16) in 32 bits, the first in the lower half. Fragments of m16n8k16, for lane 4g + t:
//
//     a[0]: row g, columns 2t, 2t + 1    a[1]: row g + 8, the same    a[2]: row g, columns 2t + 8, 2t + 9    a[3]: row g + 8, the same
//     b[0]: rows 2t, 2t + 1 of column g  b[1]: rows 2t + 8, 2t + 9
//     c[0], c[1]: row g, columns 2t, 2t + 1    c[2], c[3]: row g + 8
#ifndef FD_KERNELS_CUDA_FRAGMENT_CUH
#define FD_KERNELS_CUDA_FRAGMENT_CUH

#include "kernels/cuda/gpu.cuh"

#ifndef FD_EMULATE

// sm_75 has products of 16 x 8 by 8 x 8, of f16 alone, and no copies that go on by themselves.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define GPU_TURING
#endif

// a * b + c of both halves, rounded once.
template <typename T> __device__ __forceinline__ uint32_t pair_fma(uint32_t a, uint32_t b, uint32_t c);
template <> __device__ __forceinline__ uint32_t pair_fma<__half>(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
template <> __device__ __forceinline__ uint32_t pair_fma<__nv_bfloat16>(uint32_t a, uint32_t b, uint32_t c)
{
#ifdef GPU_TURING
    (void)a, (void)b, (void)c;
    __trap(); // the host computes in f16 there
    return 0;
#else
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
#endif
}

// (x & mask) | bits, as one instruction: two constants in one do not come of themselves.
__device__ __forceinline__ uint32_t and_or(uint32_t x, uint32_t mask, uint32_t bits)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(x), "r"(mask), "r"(bits));
    return d;
}

// d += a b; all lanes of the warp together.
template <typename T> __device__ __forceinline__ void multiply_fragments(float *d, const uint32_t *a, uint32_t b0, uint32_t b1);
template <> __device__ __forceinline__ void multiply_fragments<__half>(float *d, const uint32_t *a, uint32_t b0, uint32_t b1)
{
#ifdef GPU_TURING
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[2]), "r"(a[3]), "r"(b1));
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}
template <> __device__ __forceinline__ void multiply_fragments<__nv_bfloat16>(float *d, const uint32_t *a, uint32_t b0, uint32_t b1)
{
#ifdef GPU_TURING
    (void)d, (void)a, (void)b0, (void)b1;
    __trap();
#else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// Four 8 x 8 tiles of f16 from shared memory: lanes 8j to 8j + 7 name the rows of tile j (16 bytes each, aligned so), and out[j] is
// row lane / 4, columns 2 (lane % 4) and the next, of tile j.
__device__ __forceinline__ void gpu_load_tiles(uint32_t *out, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row)));
}

// The same, each tile transposed.
__device__ __forceinline__ void gpu_load_tiles_transposed(uint32_t *out, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row)));
}

// Starts copying 16 bytes, both addresses aligned so, to shared memory; or, if not `any`, zeros (`from` is not read then).
__device__ __forceinline__ void gpu_copy_async(void *shared, const void *from, bool any)
{
#ifdef GPU_TURING
    *(uint4 *)shared = any ? *(const uint4 *)from : uint4{0, 0, 0, 0};
#else
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(from), "r"(any ? 16 : 0)
                 : "memory");
#endif
}

// Until what this thread has started is there. The other threads see it behind a barrier.
__device__ __forceinline__ void gpu_copy_wait(void)
{
#ifndef GPU_TURING
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// 2^x, within 2^-22 of it; 0 below 2^-126.
__device__ __forceinline__ float gpu_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Two values rounded to f16 in one register, the first one in its lower half.
__device__ __forceinline__ uint32_t gpu_pack(float first, float second)
{
#ifdef GPU_TURING
    return (uint32_t)__half_as_ushort(__float2half_rn(first)) | (uint32_t)__half_as_ushort(__float2half_rn(second)) << 16;
#else
    uint32_t both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
#endif
}

// Loads of what is read once: not kept in L1, where what is read again is to stay.
__device__ __forceinline__ uint4 load_once(const uint4 *at)
{
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(at));
    return v;
}

// 16 bits as T.
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
