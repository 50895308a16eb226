/* emulate.h: as much of CUDA as kernels/cuda uses, on the CPU, so that its kernels and its host side are tested where there is no
 * GPU. The files are compiled as C++ with FD_EMULATE; gpu.h then includes this in the place of CUDA's headers.
 *
 * A grid's blocks run one after the other, on the thread that launches. The threads of a block are fibers: one runs until it comes
 * to a barrier, of its block or its warp, or to its end; when nobody can run and somebody waits for who has ended or waits elsewhere,
 * the program is aborted with the name of the kernel: on a device it would hang or worse. So barriers that not all reach are found;
 * races between barriers are not (compute-sanitizer finds those, on a device).
 *
 * Streams are carried out at once (include/cuda_runtime_api.h). Device memory is ordinary memory filled with a pattern that is NaN as f32 and f16, so that what
 * was never written is seen; "bytes" on the device are limited by emulate_device_bytes, for tests of what does not fit.
 * Warp operations take the full mask: all lanes of a warp that have not ended must come.
 */
#ifndef FD_TESTS_CUDA_EMULATE_H
#define FD_TESTS_CUDA_EMULATE_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <functional>

#include <cuda_runtime_api.h>

#include "kernels/dispatch/half.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __restrict__
#define __align__(n) alignas(n)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct uint2 {
    unsigned x, y;
};
struct uint4 {
    unsigned x, y, z, w;
};
struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }

extern dim3 emulate_thread, emulate_block, emulate_block_dim, emulate_grid_dim;
#define threadIdx emulate_thread
#define blockIdx emulate_block
#define blockDim emulate_block_dim
#define gridDim emulate_grid_dim
enum { warpSize = 32 };

void emulate_run(const char *kernel, dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &body);
extern unsigned char *emulate_shared;                          /* dynamic shared memory of the block, aligned to 128 */
uint64_t emulate_exchange(uint64_t value, unsigned from_lane); /* all lanes of a warp: the value that lane gave */
void __syncthreads(void);
void __syncwarp(unsigned mask = ~0u);

#define GPU_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    ((void)(stream), emulate_run(#kernel, grid, block, shared_bytes, [&] { kernel(__VA_ARGS__); }))
#define GPU_SHARED(type, name) type *name = (type *)emulate_shared

static inline unsigned emulate_lane(void)
{
    return (emulate_thread.x + emulate_block_dim.x * (emulate_thread.y + emulate_block_dim.y * emulate_thread.z)) % 32;
}
template <typename T> T emulate_shuffle(T value, unsigned from)
{
    uint64_t bits = 0;
    static_assert(sizeof value <= sizeof bits, "shuffles move up to eight bytes");
    memcpy(&bits, &value, sizeof value);
    bits = emulate_exchange(bits, from);
    memcpy(&value, &bits, sizeof value);
    return value;
}
template <typename T> T __shfl_xor_sync(unsigned, T value, unsigned mask) { return emulate_shuffle(value, emulate_lane() ^ mask); }
template <typename T> T __shfl_sync(unsigned, T value, unsigned lane) { return emulate_shuffle(value, lane % 32); }
template <typename T> T __shfl_down_sync(unsigned, T value, unsigned by)
{
    unsigned from = emulate_lane() + by;
    return emulate_shuffle(value, from < 32 ? from : emulate_lane());
}
static inline unsigned __ballot_sync(unsigned, int predicate)
{
    unsigned bits = 0;
    for (unsigned lane = 0; lane < 32; lane++) {
        int there = emulate_shuffle(predicate ? 1 : 0, lane);
        bits |= (unsigned)there << lane;
    }
    return bits;
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }

template <typename T> T atomicAdd(T *at, T value)
{
    T old = *at;
    *at = (T)(old + value);
    return old;
}
template <typename T> T atomicMax(T *at, T value)
{
    T old = *at;
    if (value > old)
        *at = value;
    return old;
}

static inline float __fdividef(float x, float y) { return x / y; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline float __int_as_float(int x) { return f32_from_bits((uint32_t)x); }
static inline int __float_as_int(float x) { return (int)f32_bits(x); }
static inline unsigned __float_as_uint(float x) { return f32_bits(x); }
static inline float __uint_as_float(unsigned x) { return f32_from_bits(x); }
using std::max;
using std::min;
template <typename T> T __ldg(const T *at) { return *at; }

struct __half {
    uint16_t bits;
};
struct __nv_bfloat16 {
    uint16_t bits;
};
static inline float __half2float(__half x) { return f16_to_float(x.bits); }
static inline __half __float2half_rn(float x) { return {f16_from_float(x)}; }
static inline float __bfloat162float(__nv_bfloat16 x) { return bf16_to_float(x.bits); }
static inline __nv_bfloat16 __float2bfloat16_rn(float x) { return {bf16_from_float(x)}; }

#endif
