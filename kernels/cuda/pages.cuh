// pages.cuh: where K and V of the local pool lie, for the kernels that store and attend.
#ifndef FD_KERNELS_CUDA_PAGES_CUH
#define FD_KERNELS_CUDA_PAGES_CUH

#include "kernels/cuda/gpu.cuh"

static constexpr unsigned PAGE = GPU_PAGE_TOKENS;

struct place {
    uint32_t layers, heads, kv_heads, head_dim, layer;
};

static inline struct place place_of(const struct gpu_pool *pool, uint32_t layer)
{
    return {pool->layers, pool->heads, pool->kv_heads, pool->head_dim, layer};
}

// K of a page's layer and KV head, [PAGE][head_dim]; V follows.
__device__ __forceinline__ size_t page_offset(const struct place &p, uint32_t page, uint32_t kv_head)
{
    return (((size_t)page * p.layers + p.layer) * p.kv_heads + kv_head) * 2 * PAGE * p.head_dim;
}

#endif
