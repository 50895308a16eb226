// launch.h: the kernels, as the host side of the backend calls them. Every function starts work on the stream and returns; nothing
// is allocated. Pointers are to device memory unless said. `wide` tensors have the type of the weights, f16 or bf16 (enum gpu_type).
//
// Shapes: rows are those of a step; q_width = heads * head_dim, kv_width = kv_heads * head_dim, and a row of qkv is q, k, v one after
// the other: q_width + 2 * kv_width f32.
#ifndef FD_KERNELS_CUDA_LAUNCH_H
#define FD_KERNELS_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gpu_type { GPU_F16, GPU_BF16 };

// --- rows.cu: what is done to each row by itself ---

// x[row][:] = table[token[row]][:]. A token's id is below the table's rows (the caller has checked).
void gpu_embed(enum gpu_type type, const void *table /* [vocab][hidden] wide */, const uint32_t *token /* [rows] */, uint32_t rows,
               uint32_t hidden, float *x /* [rows][hidden] */, cudaStream_t stream);

// out[i] = norm of x[row_index ? row_index[i] : i], times weight. Sums in f32, fixed order.
void gpu_rms_norm(enum gpu_type type, const float *x /* [][hidden] */, const uint32_t *row_index /* [rows] or NULL */,
                  const float *weight /* [hidden] */, float epsilon, uint32_t rows, uint32_t hidden,
                  void *out /* [rows][hidden] wide */, cudaStream_t stream);

// The same with the mean taken off, and plus bias (or NULL): (x - mean) / sqrt(variance + epsilon) * weight + bias.
void gpu_layer_norm(enum gpu_type type, const float *x /* [][hidden] */, const uint32_t *row_index /* [rows] or NULL */,
                    const float *weight, const float *bias /* [hidden] each */, float epsilon, uint32_t rows, uint32_t hidden,
                    void *out /* [rows][hidden] wide */, cudaStream_t stream);

// The steps for q and k before RoPE: biases, RMS norms of each head or (whole) of all heads as one, then q times q_factor.
struct gpu_heads {
    const float *q_bias, *k_bias; // [q_width], [kv_width]; each or NULL
    const float *q_norm, *k_norm; // [head_dim] each; whole: [q_width], [kv_width]; each or NULL
    float epsilon, q_factor;
    uint32_t heads, kv_heads, head_dim;
    bool whole;
};
void gpu_heads(const struct gpu_heads *heads, uint32_t rows, float *qkv /* [rows][q_width + 2 kv_width] */, cudaStream_t stream);

struct gpu_rope {
    const float *table;                       // [positions][2][dims] f32, as rope_table_build makes it
    const uint32_t *position;                 // [rows]
    uint32_t heads, kv_heads, head_dim, dims; // dims 0: nothing is rotated, the table is not read
    bool neox;                                // partner of i: i + dims / 2; else its neighbour
};

// In place: adds the biases (each or NULL), then rotates q and k.
void gpu_rope(const struct gpu_rope *rope, const float *q_bias, const float *k_bias, const float *v_bias, uint32_t rows,
              float *qkv /* [rows][q_width + 2 kv_width] */, cudaStream_t stream);

// out = silu(gate) * up. Both 16-byte aligned; up to 65,535 rows.
void gpu_silu_mul(enum gpu_type type, const void *gate_up /* [rows][2][ffn] wide */, uint32_t rows, uint32_t ffn,
                  void *out /* [rows][ffn] wide */, cudaStream_t stream);

// The same for other MLPs: out = act(gate + gate_bias) * (up + up_bias); with GPU_GELU_PLAIN and GPU_RELU there is no up.
enum gpu_activation { GPU_SILU, GPU_GELU /* by tanh */, GPU_GELU_PLAIN, GPU_RELU };
struct gpu_mlp {
    enum gpu_activation activation;
    uint32_t ffn;
    const void *gate_up;              // [rows][2][ffn] wide; without up: [rows][ffn]
    const float *gate_bias, *up_bias; // [ffn] or NULL
    void *out;                        // [rows][ffn] wide
};
void gpu_activate(enum gpu_type type, const struct gpu_mlp *mlp, uint32_t rows, cudaStream_t stream);

// Rounds to the weights' type.
void gpu_narrow(enum gpu_type type, const float *x, size_t count, void *out, cudaStream_t stream);

// x[row][:] += bias.
void gpu_add_bias(float *x /* [rows][columns] */, const float *bias /* [columns] */, uint32_t rows, uint32_t columns,
                  cudaStream_t stream);

// x[row][:] += factor * norm(y[row][:] + bias): what attention or MLP gives, where more than a sum is done with it. y is overwritten.
struct gpu_residual {
    const float *bias, *norm; // [hidden] each, or NULL; an RMS norm
    float epsilon, factor;
};
void gpu_add_scaled(const struct gpu_residual *residual, uint32_t rows, uint32_t hidden, float *y /* [rows][hidden] */,
                    float *x /* [rows][hidden] */, cudaStream_t stream);

// x[row][:] = x[row][:] * factor + table[position[row]][:]. table NULL: nothing is added.
void gpu_place(float factor, const float *table /* [positions][hidden] or NULL */, const uint32_t *position /* [rows] */,
               uint32_t rows, uint32_t hidden, float *x, cudaStream_t stream);

// logits[i] = cap * tanh(logits[i] * factor / cap); soft_cap 0: logits[i] * factor.
void gpu_scale_logits(float *logits, size_t count, float factor, float soft_cap, cudaStream_t stream);

// --- attend.cu: K and V in pages of device memory, and attention over them ---

enum { GPU_PAGE_TOKENS = 16, GPU_MAX_HEAD_DIM = 256, GPU_MAX_CONTEXT = 1 << 23 };

// A page: [layers][kv_heads][2: K, V][GPU_PAGE_TOKENS][head_dim] f16.
struct gpu_pool {
    void *pages; // [page_count]
    uint32_t layers, heads, kv_heads, head_dim;
    bool small_shared; // a block has less than 68 KiB of shared memory, but GPU_SMALL_SHARED
};
enum { GPU_SMALL_SHARED = 64 << 10, GPU_USUAL_SHARED = 68 << 10 };

// The local rows of a step, in the order of the step.
struct gpu_rows {
    const uint32_t *row;      // [count] their index in qkv and o
    const uint32_t *position; // [count]
    const uint32_t *table;    // [count] where in `pages` the page table of the row's sequence begins
    const uint32_t *pages;    // page tables, one after the other
    uint32_t count;
    uint32_t longest; // the largest position of all, plus 1; host memory knows it for the grid
};

// Stores k and v of the rows at their positions, rounded to f16.
void gpu_store_kv(const struct gpu_pool *pool, uint32_t layer, const struct gpu_rows *rows, const float *qkv, cudaStream_t stream);

// Floats of scratch for `count` rows up to `longest`.
size_t gpu_attend_scratch(const struct gpu_pool *pool, uint32_t count, uint32_t longest);

// o[row][head][:] = attention of each row over the stored positions 0 to its own. A context is cut into ranges fixed by position, so
// that a row's result does not depend on its companions; their parts are merged by log-sum-exp.
void gpu_attend(const struct gpu_pool *pool, uint32_t layer, const struct gpu_rows *rows, const float *qkv,
                float *o /* [][q_width] */, float *scratch, cudaStream_t stream);

// --- sample.cu: from logits to tokens, as common/sampler does it ---

enum { GPU_SAMPLE_TOP = 20, GPU_MAX_VOCAB = 1 << 20 };

enum gpu_sample_flag {
    GPU_DRAW = 1,  // a token; else `token` is scored
    GPU_SCORE = 2, // what log-probabilities are made of
};

// The questions about a row. No flag: nothing, its result is not written.
struct gpu_sample {
    double uniform;        // of the draw: sampler_uniform()
    float scale;           // 1 / temperature; 0: greedy
    float top_p, min_p;    // 1, 0: off
    uint32_t top_k;        // 0: off
    uint32_t flags;        // enum gpu_sample_flag
    uint32_t token;        // to score
    uint32_t top_count;    // best tokens wanted, up to GPU_SAMPLE_TOP and the vocabulary
    uint32_t adjust_first; // its entries of the list: first those that were seen, each token once, then biases
    uint32_t seen_count, bias_count;
    float repetition_penalty, presence_penalty, frequency_penalty;
};

struct gpu_adjust {
    uint32_t token;
    union {
        uint32_t generated; // times
        float bias;
    };
};

// Sums over the raw logits, NaN as -inf: the log-probability of a logit is logit - (log(total) + max).
struct gpu_sampled {
    double total; // of exp(logit - max)
    float max;
    uint32_t token;
    float logit; // of token, NaN stays
    struct gpu_sampled_top {
        uint32_t token;
        float logit;
    } top[GPU_SAMPLE_TOP]; // best first, ties to the lower id
};

// samples[i] of logits[i] to out[i]. Rows that draw and have adjustments have them in their logits afterwards. Up to GPU_MAX_VOCAB
// tokens; 16-byte aligned. `flags` and `adjusted`: all that the samples have between them, so that what none wants is not started.
struct gpu_sampling {
    float *logits; // [rows][vocab]
    uint32_t rows, vocab;
    uint32_t flags;
    bool adjusted;
    const struct gpu_sample *samples; // [rows]
    const struct gpu_adjust *adjust;
    float *raw;              // scratch, of the size of `adjust`
    struct gpu_sampled *out; // [rows]
};
void gpu_sample_rows(const struct gpu_sampling *sampling, cudaStream_t stream);
// --- prefill.cu: the same attention for rows of one sequence that stand one after the other, on tensor cores ---

enum { GPU_TILE_SPAN = 512 }; // ranges of a context are cut at multiples of it

// A tile: rows of one sequence at positions one after the other, and all heads of them: `first`, its first row among struct gpu_rows',
// and how many, up to gpu_tile_rows.
struct gpu_tiles {
    const uint32_t *words; // [count][2] first, rows
    uint32_t count;
    uint32_t longest; // the largest position of their rows, plus 1
    uint32_t span;    // positions that a block takes: a multiple of GPU_TILE_SPAN; at least `longest`: the context is not cut
};

// Rows of a tile; 0: this shape's heads are gpu_attend's. Shapes that it takes: heads of up to 128 values, up to 32 query heads of a
// KV head.
uint32_t gpu_tile_rows(const struct gpu_pool *pool);

// Once on each device, before gpu_attend_tiles.
cudaError_t gpu_tile_open(const struct gpu_pool *pool, uint32_t *blocks /* that a multiprocessor runs at once */);

// Floats of scratch; 0 where the context is not cut.
size_t gpu_tile_scratch(const struct gpu_pool *pool, const struct gpu_tiles *tiles);

// o of the tiles' rows as gpu_attend has it, but for rounding: q and the weights of V are rounded to f16 (prefill.cu says what error that
// gives). A row's result depends on no other row, but that a NaN in a position's V reaches the rows before it in its tile; it depends on the
// span.
void gpu_attend_tiles(const struct gpu_pool *pool, uint32_t layer, const struct gpu_rows *rows, const struct gpu_tiles *tiles,
                      const float *qkv, float *o /* [][q_width] */, float *scratch, cudaStream_t stream);
// --- measure.cu: what memory alone can do ---

enum { GPU_READ_BLOCK_BYTES = 64 << 10 };

// Reads every byte once; bytes: a multiple of GPU_READ_BLOCK_BYTES, `from` at one of 16. sink: a word that keeps the loads alive.
void gpu_read(const void *from, size_t bytes, uint32_t *sink, cudaStream_t stream);

// Values of [-1, 1) in f16, a function of index and seed alone: products of zeros are faster than of anything else.
void gpu_fill(void *out /* [count] f16 */, size_t count, uint32_t seed, cudaStream_t stream);
// --- pages.cu: pages in the form of KV stores ---

// `count` tiles of a page from tile `first` on (a tile is K and V of a layer's KV head, in that order), to and from the form that
// kv_store.h's f16 pages have: [count]{ K [head_dim][GPU_PAGE_TOKENS], V [GPU_PAGE_TOKENS][head_dim] } f16. `host` is pinned memory,
// aligned to 16 bytes, which the kernel itself writes or reads over the bus. head_dim: a multiple of 16.
void gpu_pages_out(const struct gpu_pool *pool, uint32_t page, uint32_t first, uint32_t count, void *host, cudaStream_t stream);
void gpu_pages_in(const struct gpu_pool *pool, uint32_t page, uint32_t first, uint32_t count, const void *host,
                  cudaStream_t stream);

#endif
