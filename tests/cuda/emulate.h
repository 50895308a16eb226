/* emulate.h: as much of CUDA as kernels/cuda uses, on the CPU, so that its kernels and its host side are tested where there is no
 * GPU. The files are compiled as C++ with FD_EMULATE; gpu.cuh then includes this in the place of CUDA's headers.
 *
 * A grid's blocks run one after the other. The threads of a block are fibers: one runs until it comes to a barrier, of its block or
 * its warp, or to its end; when nobody can run and somebody waits for who has ended or waits elsewhere, the program is aborted with
 * the name of the kernel: on a device it would hang or worse. So barriers that not all reach are found; races between barriers are
 * not (compute-sanitizer finds those, on a device). Warp operations take the full mask: all lanes that have not ended must come.
 *
 * What is queued on a stream (launches, copies) runs late: when somebody waits for the stream, or, a few operations of streams drawn by
 * a seed, each time an event is asked for that has not come. So a buffer that is used before it is there, or filled anew before it
 * was read, is seen. A stream that is captured queues nothing: its operations, with the arguments they were given, become a graph, and
 * each launch of that queues them once more; what a capture does not allow (waiting for the stream, an event on it, taking or freeing
 * memory) is an error and spoils it: from then on the stream answers that its capture is invalid, until its end, which gives no graph.
 * There can be a virtual clock (emulate_clock_start): each operation starts when its stream, the event it waits for, its lane (one
 * operation computes at a time, one copy goes up, one comes down) and the host's call allow it, and takes what the bytes take that it
 * moves. Operations run in the order in which they start then, and the times that events tell are the clock's: so overlap can be
 * measured where there is no device.
 * Device and pinned memory, and shared memory at the start of each block, are NaN as f32 and f16. "Bytes" on the device are limited
 * (emulate_device_bytes), for tests of what does not fit.
 */
#ifndef FD_TESTS_CUDA_EMULATE_H
#define FD_TESTS_CUDA_EMULATE_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <functional>
#include <tuple>

#include <cuda_runtime_api.h>

#include "kernels/simd/half.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
/* In a section of its own, so that each block finds NaN there. */
#define __shared__ static __attribute__((section("emulated_shared")))
#define __restrict__
#define __align__(n) alignas(n)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
/* Aligned as CUDA's: a load or store of one at another address faults on a device, and ends the program here (the kernels are compiled
 * with -fsanitize=alignment). */
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
static inline float2 make_float2(float x, float y) { return {x, y}; }

extern dim3 emulate_thread, emulate_block, emulate_block_dim, emulate_grid_dim;
#define threadIdx emulate_thread
#define blockIdx emulate_block
#define blockDim emulate_block_dim
#define gridDim emulate_grid_dim
enum { warpSize = 32 };

uint64_t emulate_exchange(uint64_t value, unsigned from_lane); /* all lanes of a warp: the value that lane gave */
void __syncthreads(void);

/* The shared memory that a launch asks for. The 256 bytes behind it are checked: they must not change. */
extern unsigned char *emulate_dynamic_shared;
#define GPU_DYNAMIC_SHARED(name) unsigned char *const name = emulate_dynamic_shared
bool emulate_shared_allowed(const char *name, const void *kernel, size_t bytes); /* false: the launch fails */

/* Queues a grid; the arguments are taken now, as a launch does. */
void emulate_launch(const char *kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                    std::function<void()> body);
template <typename... P, typename... A>
void emulate_call(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                  A... arguments)
{
    std::tuple<P...> taken(arguments...);
    if (!emulate_shared_allowed(name, (const void *)kernel, shared_bytes))
        return;
    emulate_launch(name, grid, block, shared_bytes, stream, [kernel, taken] { std::apply(kernel, taken); });
}
#define GPU_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    emulate_call(#kernel, kernel, grid, block, shared_bytes, stream, __VA_ARGS__)

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
template <typename T> T __shfl_sync(unsigned, T value, unsigned from) { return emulate_shuffle(value, from % 32); }
template <typename T> T __ldg(const T *at) { return *at; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
using std::max;
using std::min;

/* Fibers do not interrupt each other: atomic as they are. */
static inline uint32_t atomicAdd(uint32_t *at, uint32_t x) { return (*at += x) - x; }
static inline uint32_t atomicMin(uint32_t *at, uint32_t x)
{
    uint32_t old = *at;
    *at = min(old, x);
    return old;
}
static inline uint32_t atomicMax(uint32_t *at, uint32_t x)
{
    uint32_t old = *at;
    *at = max(old, x);
    return old;
}
/* Lanes below `delta` keep their own. */
template <typename T> T __shfl_up_sync(unsigned, T value, unsigned delta)
{
    return emulate_shuffle(value, emulate_lane() >= delta ? emulate_lane() - delta : emulate_lane());
}
static inline float __fadd_rn(float a, float b) { return a + b; } /* compiled without contraction */
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __uint_as_float(uint32_t bits) { return f32_from_bits(bits); }
static inline uint32_t __float_as_uint(float x) { return f32_bits(x); }

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

/* Returns those of the two words' eight bytes that the nibbles of `selector` name. */
static inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector)
{
    uint64_t both = (uint64_t)y << 32 | x, out = 0;
    for (int i = 0; i < 4; i++)
        out |= (both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return (uint32_t)out;
}
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }

/* --- what fragment.cuh is of instructions ------------------------------------------------------------------------------------
 *
 * Lanes lay down what they give, wait for each other, and take from there what the PTX ISA's pictures of the fragments say. An
 * asynchronous copy is done when its thread waits for it, so that what is read earlier is NaN or old. Addresses that are not
 * aligned abort, as they would there. */

void emulate_load_tiles(uint32_t *out, const void *row, bool transposed);
static inline void gpu_load_tiles(uint32_t *out, const void *row) { emulate_load_tiles(out, row, false); }
static inline void gpu_load_tiles_transposed(uint32_t *out, const void *row) { emulate_load_tiles(out, row, true); }
void gpu_copy_async(void *shared, const void *from, bool any);
void gpu_copy_wait(void);
static inline float gpu_exp2(float x) { return exp2f(x) < 0x1p-126f ? 0.0f : exp2f(x); }
static inline uint32_t gpu_pack(float first, float second)
{
    return f16_from_float(first) | (uint32_t)f16_from_float(second) << 16;
}

/* All lanes of a warp: d += a b, of 16 x 16 and 16 x 8 values. A lane's a: pairs a[0] to a[3] of m16n8k16, b: b[0] and b[1]. */
void emulate_multiply(float d[4], const float a[8], const float b[4]);

template <typename T> T from_bits(uint32_t bits) { return {(uint16_t)bits}; }
static inline uint32_t to_bits(__half x) { return x.bits; }
static inline uint32_t to_bits(__nv_bfloat16 x) { return x.bits; }
static inline float emulate_float(__half x) { return __half2float(x); }
static inline float emulate_float(__nv_bfloat16 x) { return __bfloat162float(x); }
static inline void emulate_round(float x, __half *to) { *to = __float2half_rn(x); }
static inline void emulate_round(float x, __nv_bfloat16 *to) { *to = __float2bfloat16_rn(x); }

template <typename T> uint32_t pair_fma(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t out = 0;
    for (int shift = 0; shift < 32; shift += 16) {
        T d;
        emulate_round(fmaf(emulate_float(from_bits<T>(a >> shift)), emulate_float(from_bits<T>(b >> shift)),
                           emulate_float(from_bits<T>(c >> shift))),
                      &d);
        out |= (uint32_t)d.bits << shift;
    }
    return out;
}

template <typename T> void multiply_fragments(float *d, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    float wide_a[8], wide_b[4];
    for (int i = 0; i < 8; i++)
        wide_a[i] = emulate_float(from_bits<T>(a[i / 2] >> i % 2 * 16));
    for (int i = 0; i < 4; i++)
        wide_b[i] = emulate_float(from_bits<T>((i < 2 ? b0 : b1) >> i % 2 * 16));
    emulate_multiply(d, wide_a, wide_b);
}

static inline uint32_t and_or(uint32_t x, uint32_t mask, uint32_t bits) { return (x & mask) | bits; }
static inline uint4 load_once(const uint4 *at) { return *at; }

#endif
