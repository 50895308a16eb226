// cpu_internal.h: what the files of the CPU backend share.
#ifndef FD_KERNELS_BACKEND_CPU_INTERNAL_H
#define FD_KERNELS_BACKEND_CPU_INTERNAL_H

#include "common/model/model.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/packed_file.h"
#include "kernels/backend/weight_stream.h"
#include "kernels/dispatch/kernels.h"
#include "kernels/kv/kv_store.h"

enum { CPU_HEAD_ROWS = 64 };          // the most rows of logits at one time: 64 x 49,152 x 4 bytes = 12.6 MB
enum { CPU_FEW_ROWS = KV_JOIN_ROWS }; // so many rows are normed and quantized by each thread for itself (cpu_share.c)

// The kernels that the model's architecture needs.
struct cpu_pieces {
    void (*norm)(const float *x, const float *weight, const float *bias, float epsilon, uint32_t n, float *out);
    void (*rope)(float *x, uint32_t heads, uint32_t head_dim, uint32_t dims, const float *angles);
    void (*activation)(const float *gate, const float *up, uint32_t n, float *out);
};

// One matrix: packed, or dense f32 for OpenBLAS.
struct cpu_linear {
    struct packed_matrix packed;
    const float *dense; // [outputs][inputs] f32, or NULL
    const float *bias;  // [outputs] f32, or NULL
    uint32_t outputs, inputs;
};

// A norm's vectors. weight NULL: there is no such norm. bias may be NULL.
struct cpu_norm {
    const float *weight, *bias; // [size] f32
    uint32_t size;
};

struct cpu_layer {
    struct cpu_norm attn, ffn, post_attn, post_ffn; // of x; of what is added to x
    struct cpu_norm q_norm, k_norm;                 // of each head, or of all as one
    struct cpu_linear q, k, v, o, gate, up,
        down; // without gates `gate` is the one matrix, and `up` has no outputs. Of all experts,
              // one below the other
    struct cpu_linear router;
    bool roped;
    uint8_t rope; // MODEL_ROPE_…
};

// The weights in pieces (cpu_load.c): of the head and the embedding, then of each segment.
enum { CPU_SECTIONS_MAX = MODEL_MAX_LAYERS + 2 };

struct cpu_sections {
    uint32_t count;
    uint64_t bytes[CPU_SECTIONS_MAX]; // multiples of 4,096, as a packed file has them
    uint64_t largest_tensor;          // of the model file
    uint64_t layout;                  // a number made of what their bytes depend on, beside the model
    bool quantized;                   // there are quantized matrices: they read quantized rows
};

struct backend {
    struct backend_config config;
    struct model_shape shape;
    struct layer_range range;
    struct cpu_pieces pieces;
    bool dense; // COMPUTE_F32
    char level[32];
    uint32_t q_width, kv_width;  // heads x head_dim, kv_heads x head_dim
    struct cpu_layer *layers;    // [range.count]
    struct cpu_linear embedding; // if range.is_first
    struct cpu_linear output;    // if range.is_last; so is output_norm
    struct cpu_norm output_norm;
    const float *positions;         // [context_length + positions_before][hidden] f32, if they are learned and range.is_first
    bool apart;                     // what attention and MLP give is changed before it is added to x
    float q_factor;                 // times q, since attention divides by sqrt(head_dim)
    float *rope_table[MODEL_ROPES]; // [context_tokens][rope_row_floats] f32; one allocation if they are equal. NULL without RoPE
    size_t rope_row;
    struct kv_store *kv;    // NULL without a local pool
    unsigned char *weights; // one mapping: packed or dense matrices, norms, biases
    uint64_t weights_bytes;
    struct cpu_sections sections;
    unsigned char *section_at[CPU_SECTIONS_MAX]; // in the mapping; of one that streams: the slot that its tables point to, or NULL
    struct weight_tiers tiers;
    struct packed_file *packed; // while some stream; and so:
    struct disk_queue *disk;
    struct weight_stream *stream;
    double disk_bytes_per_us;         // measured while the file was checked
    uint32_t users;                   // of the stream: a bit each
    float *logits;                    // [CPU_HEAD_ROWS][vocab] f32, if range.is_last
    struct sampler_scratch **scratch; // [threads], if range.is_last; otherwise NULL
    uint64_t attend_bytes, attend_ns;
};

struct backend_batch {
    struct backend *backend;
    uint32_t user; // of the stream
    uint32_t row_count, local_count;
    struct backend_row *rows; // [max_rows]
    uint32_t *place;          // [max_rows] where a row's x is after the last segment, which drops rows without output
    uint32_t kv_only_count;   // number of rows without output; the last layer computes only their K and V
    float *x;                 // [max_rows][hidden] f32: the residual stream
    float *h;                 // [max_rows][hidden] f32: normed
    float *qkv;               // [max_rows][q_width + 2 kv_width] f32
    float *att;               // [max_rows][q_width] f32: o
    float *gate, *up;         // [max_rows][ffn] f32; of experts: [max_rows * experts_used]
    struct cpu_experts {      // cpu_experts.c; a slot is a row at one of its experts. NULL without experts
        float *scores;        // [max_rows][experts] of the router
        uint32_t *chosen;     // [max_rows][experts_used] experts, then their slots
        float *weight;        // [max_rows][experts_used]
        uint32_t *row;        // [slots] sorted by expert, then row
        uint32_t *first;      // [experts + 1] slot
        uint32_t *active;     // [experts] those that have slots
        uint32_t active_count;
        float *in, *out; // [slots][hidden] f32; in: only for dense products and float layouts
        void *quant;     // quantized slots
    } experts;
    void *quant;        // quantized rows, of the width that the current phase needs
    unsigned char *own; // [threads][own_bytes] what threads have for themselves (cpu_share.c)
    uint64_t own_bytes;
    bool joins;            // segments of this step attend to its rows, which are few and all local
    uint32_t joined;       // layers attended to so, from 0 on
    uint64_t joined_ns;    // what the last of them took
    unsigned char *memory; // the one allocation that holds all of these
    uint64_t memory_bytes;
    struct kv_batch *kv;
    struct kv_row *kv_rows;               // [max_rows] local rows, then reads
    const float **kv_q, **kv_k, **kv_v;   // [max_rows] -> row of qkv
    float **kv_o;                         // [max_rows] -> row of att, or partials
    struct backend_read *reads;           // [max_rows]
    uint32_t read_count, next_read_count; // of the step; of the one that begins next
    float *partials;                      // ATTEND_PARTIAL_BYTES_MAX, resident as they come into use; NULL: no local pool
};

// cpu_segment.c. UNIMPLEMENTED: there are no kernels for a piece; the error names it.
enum status cpu_choose_pieces(const struct model *model, struct cpu_pieces *out, struct error *error) MUST_CHECK;

// cpu_load.c. size: of all sections of a range. fill: converts a section of the model file into `base`, which has room for it. place: points
// the tables of matrices and vectors to a section that lies at `base`.
enum status cpu_size_sections(const struct backend_config *config, const struct layer_range *range, struct cpu_sections *out,
                              struct error *error) MUST_CHECK;
enum status cpu_fill_section(struct backend *backend, uint32_t section, unsigned char *base, struct error *error) MUST_CHECK;
void cpu_place_section(struct backend *backend, uint32_t section, unsigned char *base);
bool cpu_wants_dense(const struct backend_config *config);
// The numeric class without the instruction set: "f32"; else by the first layer's weights "f16w", "bf16w", "f32w", products of which are
// chains of f32, or "int8". Static.
const char *cpu_class_name(const struct backend_config *config);

// cpu_weights.c. plan: fills weight_bytes and start_bytes.
enum status cpu_plan_weights(const struct backend_config *config, const struct layer_range *range, struct backend_plan *plan,
                             struct error *error) MUST_CHECK;
enum status cpu_load_weights(struct backend *backend, struct error *error) MUST_CHECK;

// Weights that do not stay in memory. close: of the backend. join, leave: a mini-batch. enter: waits for a segment's weights and points its
// tables to them. want: segment s is the next one; the ones before are passed. turn, hold, end: entries of the backend.
void cpu_stream_close(struct backend *backend);
void cpu_stream_join(struct backend_batch *batch);
void cpu_stream_leave(struct backend_batch *batch);
void cpu_stream_enter(struct backend_batch *batch, uint32_t s);
void cpu_stream_want(struct backend_batch *batch, uint32_t s);
uint32_t cpu_stream_turn(struct backend_batch *batch, uint32_t s);
void cpu_stream_hold(struct backend *backend, bool hold);
void cpu_stream_end(struct backend_batch *batch);
void cpu_stream_info(const struct backend *backend, struct backend_info *info);

// cpu_segment.c. attend, attended_ns: entries of the backend.
void cpu_attend(struct backend_batch *batch, uint32_t layer);
uint64_t cpu_attended_ns(const struct backend_batch *batch);
void cpu_embed(struct backend_batch *batch);
void cpu_segment(struct backend_batch *batch, uint32_t s, const struct backend_links *links);

// cpu_head.c
void cpu_head(struct backend_batch *batch, const uint32_t *row_index, const struct backend_sample *samples, uint32_t count);
void cpu_hidden(struct backend_batch *batch, const uint32_t *row_index, float *out, uint32_t count);

// cpu_products.c. Call it inside a job of the pool. Computes one linear phase for rows [0, rows) of `in` into `out`; ends with a
// barrier. next: the weights that this thread reads in the next phase, or NULL.
struct cpu_product {
    const struct cpu_linear *linear;
    const float *in; // [rows][in_stride] f32
    size_t in_stride;
    float *out; // [rows][out_stride] f32
    size_t out_stride;
    enum gemm_store store;
};
void cpu_products(struct backend *backend, const struct cpu_product *products, uint32_t product_count, uint32_t rows, void *quant,
                  uint32_t row_capacity, uint32_t thread_index, const void *next);
// The weights that a thread reads first in a phase over these matrices; NULL: none.
const void *cpu_first_read(const struct backend *backend, const struct cpu_linear *const *linears, uint32_t linear_count,
                           uint32_t rows, uint32_t thread_index);
// The parts of cpu_products. A thread's part of the outputs of one product by OpenBLAS; and which part it is: whole tiles, maybe none.
struct cpu_columns {
    uint32_t first, count;
};
struct cpu_columns cpu_columns_of(const struct backend *backend, uint32_t outputs, uint32_t thread_index);
void cpu_product_dense(const struct cpu_product *product, uint32_t rows, struct cpu_columns columns);
// Tiles [tile, tile + tiles) for rows [first_row, first_row + rows) of x, which was made from `in`.
void cpu_product_tiles(const struct cpu_product *product, const struct quantized_rows *x, uint32_t first_row, uint32_t rows,
                       uint32_t tile, uint32_t tiles, const void *next);
// Columns of rows of batch->gate become the activation of them and, with gates, of those of batch->up.
void cpu_activate(struct backend_batch *batch, uint32_t first_row, uint32_t rows, uint32_t column, uint32_t columns);
// A part of a matrix that is one of several with equally many outputs, one below the other: an expert's. Each has whole tiles.
struct cpu_linear cpu_linear_part(const struct cpu_linear *whole, uint32_t part, uint32_t parts);

// cpu_share.c: what a thread of a segment's job works with. Rows are normed and quantized by the threads together, and a barrier follows. Few
// rows of packed weights are normed and quantized by each thread for itself, which takes as long and spares the barrier.
struct cpu_share {
    struct backend_batch *batch;
    uint32_t thread_index;
    bool few;
    float *x;              // few: [CPU_FEW_ROWS][hidden] f32, the thread's copy where something is added apart; otherwise NULL
    float *h;              // [rows][hidden] f32: normed
    float *att;            // [rows][q_width] f32: o, for float products; not used beside h
    float *qk;             // few: [CPU_FEW_ROWS][q_width + kv_width] f32; otherwise NULL
    void *quant;           // quantized rows
    uint32_t row_capacity; // of quant
    struct cpu_experts *experts;
    uint32_t slot_capacity; // of the experts' quant
};
uint64_t cpu_own_bytes(const struct backend_config *config);    // of one thread
uint64_t cpu_expert_slots(const struct backend_config *config); // 0 without experts
bool cpu_experts_copy(const struct backend_config *config);     // experts read rows as they are: copies of them
struct cpu_share cpu_share_of(struct backend_batch *batch, uint32_t thread_index, bool few);
bool cpu_has_few(const struct backend_batch *batch);
// A phase without weights over rows or slots: those that this thread does, and what follows when it has done them.
struct claim cpu_share_claim(const struct cpu_share *share, uint32_t item_count);
void cpu_share_end(const struct cpu_share *share);
// Call it in the phase after a norm that added something apart: one thread's copy of x becomes x. Nobody reads x in that phase.
void cpu_share_publish(const struct cpu_share *share);
// Rows of `in` become quantized rows of the share.
void cpu_quantize(const struct cpu_share *share, const float *in, size_t stride, uint32_t inputs, uint32_t begin, uint32_t count);
// A linear phase over the share's quantized rows (cpu_products).
void cpu_share_products(const struct cpu_share *share, const struct cpu_product *products, uint32_t product_count,
                        const void *next);

// cpu_experts.c. Call it inside a job of the pool, after a phase that leaves h and its quantized rows; ends with a barrier. Computes a layer's experts, and
// adds what they give to `to`, or sets it.
void cpu_experts(const struct cpu_share *share, const struct cpu_layer *layer, enum gemm_store store, float *to);

#endif
