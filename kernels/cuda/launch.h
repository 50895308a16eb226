/* launch.h: the kernels, as the host side of the backend calls them. Every function starts work on the stream and returns; nothing
 * is allocated. Pointers are to device memory unless said. `wide` tensors have the type of the weights, f16 or bf16 (enum gpu_type).
 *
 * Shapes: rows are those of a step; q_width = heads * head_dim, kv_width = kv_heads * head_dim, and a row of qkv is q, k, v one after
 * the other: q_width + 2 * kv_width f32.
 */
#ifndef FD_KERNELS_CUDA_LAUNCH_H
#define FD_KERNELS_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gpu_type { GPU_F16, GPU_BF16 };

/* --- rows.cu: what is done to each row by itself ------------------------------------------------------------------------ */

/* x[row][:] = table[token[row]][:]. A token's id is below the table's rows (the caller has checked). */
void gpu_embed(enum gpu_type type, const void *table /* [vocab][hidden] wide */, const uint32_t *token /* [rows] */, uint32_t rows,
               uint32_t hidden, float *x /* [rows][hidden] */, cudaStream_t stream);

/* out[i] = norm of x[row_index ? row_index[i] : i], times weight. Sums in f32, fixed order. */
void gpu_rms_norm(enum gpu_type type, const float *x /* [][hidden] */, const uint32_t *row_index /* [rows] or NULL */,
                  const float *weight /* [hidden] */, float epsilon, uint32_t rows, uint32_t hidden,
                  void *out /* [rows][hidden] wide */, cudaStream_t stream);

struct gpu_rope {
    const float *table;       /* [positions][2][dims] f32, as rope_table_build makes it */
    const uint32_t *position; /* [rows] */
    uint32_t heads, kv_heads, head_dim, dims;
    bool neox; /* partner of i: i + dims / 2; else its neighbour */
};

/* In place: adds the biases (each or NULL), then rotates q and k. */
void gpu_rope(const struct gpu_rope *rope, const float *q_bias, const float *k_bias, const float *v_bias, uint32_t rows,
              float *qkv /* [rows][q_width + 2 kv_width] */, cudaStream_t stream);

/* out = silu(gate) * up. */
void gpu_silu_mul(enum gpu_type type, const void *gate_up /* [rows][2][ffn] wide */, uint32_t rows, uint32_t ffn,
                  void *out /* [rows][ffn] wide */, cudaStream_t stream);

/* Rounds to the weights' type. */
void gpu_narrow(enum gpu_type type, const float *x, size_t count, void *out, cudaStream_t stream);

/* x[row][:] += bias. */
void gpu_add_bias(float *x /* [rows][columns] */, const float *bias /* [columns] */, uint32_t rows, uint32_t columns,
                  cudaStream_t stream);

/* --- attend.cu: K and V in pages of device memory, and attention over them ----------------------------------------------- */

enum { GPU_PAGE_TOKENS = 16, GPU_MAX_HEAD_DIM = 256, GPU_MAX_CONTEXT = 1 << 23 };

/* A page: [layers][kv_heads][2: K, V][GPU_PAGE_TOKENS][head_dim] f16. */
struct gpu_pool {
    void *pages; /* [page_count] */
    uint32_t layers, heads, kv_heads, head_dim;
};

/* The local rows of a step, in the order of the step. */
struct gpu_rows {
    const uint32_t *row;      /* [count] their index in qkv and o */
    const uint32_t *position; /* [count] */
    const uint32_t *table;    /* [count] where in `pages` the page table of the row's sequence begins */
    const uint32_t *pages;    /* page tables, one after the other */
    uint32_t count;
    uint32_t longest; /* the largest position of all, plus 1; host memory knows it for the grid */
};

/* Stores k and v of the rows at their positions, rounded to f16. */
void gpu_store_kv(const struct gpu_pool *pool, uint32_t layer, const struct gpu_rows *rows, const float *qkv, cudaStream_t stream);

/* Floats of scratch for `count` rows up to `longest`. */
size_t gpu_attend_scratch(const struct gpu_pool *pool, uint32_t count, uint32_t longest);

/* o[row][head][:] = attention of each row over the stored positions 0 to its own. A context is cut into ranges fixed by position, so
 * that a row's result does not depend on its companions; their parts are merged by log-sum-exp. */
void gpu_attend(const struct gpu_pool *pool, uint32_t layer, const struct gpu_rows *rows, const float *qkv,
                float *o /* [][q_width] */, float *scratch, cudaStream_t stream);

/* --- pages.cu: pages in the form of KV stores ----------------------------------------------------------------------------- */

/* `count` tiles of a page from tile `first` on (a tile is K and V of a layer's KV head, in that order), to and from the form that
 * kv_store.h's f16 pages have: [count]{ K [head_dim][GPU_PAGE_TOKENS], V [GPU_PAGE_TOKENS][head_dim] } f16. `host` is pinned memory,
 * aligned to 16 bytes, which the kernel itself writes or reads over the bus. head_dim: a multiple of 16. */
void gpu_pages_out(const struct gpu_pool *pool, uint32_t page, uint32_t first, uint32_t count, void *host, cudaStream_t stream);
void gpu_pages_in(const struct gpu_pool *pool, uint32_t page, uint32_t first, uint32_t count, const void *host,
                  cudaStream_t stream);

#endif
