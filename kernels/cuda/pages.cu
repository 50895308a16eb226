// pages.cu: pages of the pool in the form that KV stores have, for handing them over: K of a page is [token][dim] here and [dim][token]
// there, V is the same. Exact: no value changes.
//
// A block takes a tile, K and V of a layer's KV head. The host's side is pinned memory, which threads read and write over the bus
// in 16-byte vectors, a warp 512 contiguous bytes at once: the bus takes a few such blocks to fill (64 of 8 KiB in a slice at
// head_dim 128), so no copy of the page on the device is needed. K is turned in shared memory:
//
//     K[token][dim], rows of head_dim + 8 halves (16-byte aligned, and off the banks)  ◀─▶  vectors of 8 tokens of a dim
#include "kernels/cuda/gpu.cuh"

static constexpr unsigned THREADS = 128, PAGE = GPU_PAGE_TOKENS, VECTOR = 8 /* halves */, PAD = 8;
static_assert(PAGE == 2 * VECTOR, "a dim's tokens are two vectors");

union vector {
    uint4 words;
    __half halves[VECTOR];
};

__device__ __forceinline__ size_t tile_halves(uint32_t head_dim) { return (size_t)2 * PAGE * head_dim; }

__global__ __launch_bounds__(THREADS) void pages_out(const __half *tiles, uint32_t head_dim, __half *host)
{
    __shared__ uint4 aligned[PAGE * (GPU_MAX_HEAD_DIM + PAD) / VECTOR];
    __half *turned = (__half *)aligned;
    const __half *from = tiles + blockIdx.x * tile_halves(head_dim);
    __half *to = host + blockIdx.x * tile_halves(head_dim);
    const uint32_t vectors = PAGE * head_dim / VECTOR, row = head_dim + PAD; // of K; of V as many

    for (uint32_t i = threadIdx.x; i < vectors; i += THREADS) {
        const uint32_t token = i * VECTOR / head_dim, dim = i * VECTOR % head_dim;
        *(uint4 *)(turned + token * row + dim) = ((const uint4 *)from)[i];
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < vectors; i += THREADS) {
        const uint32_t dim = i / 2, token = i % 2 * VECTOR;
        union vector out;
#pragma unroll
        for (unsigned n = 0; n < VECTOR; n++)
            out.halves[n] = turned[(token + n) * row + dim];
        ((uint4 *)to)[i] = out.words;
        ((uint4 *)to)[vectors + i] = ((const uint4 *)from)[vectors + i];
    }
}

__global__ __launch_bounds__(THREADS) void pages_in(__half *tiles, uint32_t head_dim, const __half *host)
{
    __shared__ uint4 aligned[PAGE * (GPU_MAX_HEAD_DIM + PAD) / VECTOR];
    __half *turned = (__half *)aligned;
    const __half *from = host + blockIdx.x * tile_halves(head_dim);
    __half *to = tiles + blockIdx.x * tile_halves(head_dim);
    const uint32_t vectors = PAGE * head_dim / VECTOR, row = head_dim + PAD;

    for (uint32_t i = threadIdx.x; i < vectors; i += THREADS) {
        const uint32_t dim = i / 2, token = i % 2 * VECTOR;
        union vector in;
        in.words = ((const uint4 *)from)[i];
#pragma unroll
        for (unsigned n = 0; n < VECTOR; n++)
            turned[(token + n) * row + dim] = in.halves[n];
        ((uint4 *)to)[vectors + i] = ((const uint4 *)from)[vectors + i];
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < vectors; i += THREADS) {
        const uint32_t token = i * VECTOR / head_dim, dim = i * VECTOR % head_dim;
        ((uint4 *)to)[i] = *(const uint4 *)(turned + token * row + dim);
    }
}

static __half *tile_at(const struct gpu_pool *pool, uint32_t page, uint32_t first)
{
    return (__half *)pool->pages + ((size_t)page * pool->layers * pool->kv_heads + first) * 2 * PAGE * pool->head_dim;
}

void gpu_pages_out(const struct gpu_pool *pool, uint32_t page, uint32_t first, uint32_t count, void *host, cudaStream_t stream)
{
    GPU_LAUNCH(pages_out, count, THREADS, 0, stream, (const __half *)tile_at(pool, page, first), pool->head_dim, (__half *)host);
}

void gpu_pages_in(const struct gpu_pool *pool, uint32_t page, uint32_t first, uint32_t count, const void *host, cudaStream_t stream)
{
    GPU_LAUNCH(pages_in, count, THREADS, 0, stream, tile_at(pool, page, first), pool->head_dim, (const __half *)host);
}
