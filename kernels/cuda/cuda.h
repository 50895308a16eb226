// cuda.h: what the files of the CUDA backend's host side share. Not included from elsewhere.
//
// Weights, activations and the local pool are in device memory; each mini-batch has a stream of its own, on which its entries are
// queued in order, and an event behind the last of them, which `done` asks. What goes to and comes from workers has a stream beside it
// (cuda_wire.c); their messages lie in memory that the device reads and writes itself (pinned):
//
//     links->o, a reply ─copy▶ att ─▶ … ─▶ qkv ─copy▶ links->q, k, v, a request
#ifndef FD_KERNELS_CUDA_CUDA_H
#define FD_KERNELS_CUDA_CUDA_H

#include "common/kv/kv_ledger.h"
#include "common/model/model.h"
#include "kernels/backend/backend.h"
#include "kernels/cuda/cuda_tier.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gemm_choice.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/quant.h"

enum { CUDA_HEAD_ROWS = 256, CUDA_TABLE_ENTRIES_MAX = 4 << 20, CUDA_STAGING_BYTES = 16 << 20, CUDA_ROW_WORDS = 6 };
enum { CUDA_LOGITS_ROWS = 16, CUDA_ADJUST_MAX = 1 << 18 }; // rows whose logits come down at once; penalties and biases of a step
enum { CUDA_SLICES = 2, CUDA_SLICE_BYTES = 512 << 10 };    // of a page that is handed over

// Packed weights that are expanded for a product with many rows are so a panel of outputs at a time: of this size it stays in the L2
// cache of an H100 or H200 (50 MB) until it is multiplied, and 1,024 rows of Llama-7B still make some 100 tiles of 128 x 128 of it.
#define CUDA_PANEL_BYTES (32ull << 20)

// Matrices of as many inputs below each other: of one form they are one, else up to three parts.
enum { CUDA_PARTS_MAX = 3 };
struct cuda_linear {
    struct gpu_quant parts[CUDA_PARTS_MAX];
    uint32_t part_count, outputs, inputs; // outputs: of all parts
};

// The weights of a norm. A layer that has no such norm has no weight: the values pass as they are.
struct cuda_norm_weights {
    const float *weight, *bias; // [hidden] or NULL
};

struct cuda_layer {
    struct cuda_norm_weights attn_norm, ffn_norm;
    const float *post_attn_norm, *post_ffn_norm;    // [hidden] or NULL: of what is added to x
    const float *q_norm, *k_norm;                   // [head_dim], or of all heads, or NULL
    const float *q_bias, *k_bias, *v_bias, *o_bias; // [outputs] or NULL
    const float *gate_bias, *up_bias, *down_bias;   // the same
    bool roped;
    struct cuda_linear qkv, o, gate_up, down;
};

// A page of the local pool on its way to or from the host (cuda_pages.c).
struct cuda_copy {
    cudaStream_t stream;
    cudaEvent_t event[CUDA_SLICES];
    unsigned char *slices; // pinned: [CUDA_SLICES][CUDA_SLICE_BYTES]
    uint32_t slice_tiles, tile_bytes;
    bool active;
    uint32_t page, tiles_begun, tiles_done; // of the page's
    unsigned char *out;                     // NULL: it comes in
    const unsigned char *in;
    uint32_t slot, generation, complete; // of what comes in: the sequence, and its positions with it
};

// The final norm, for hidden states that the host normalizes (cuda_head.c).
struct cuda_hidden {
    float *weight, *bias, *row; // [hidden] each, in one piece; bias NULL: the norm has none
};

struct backend {
    struct backend_config config;
    struct model_shape shape;
    struct layer_range range;
    enum gpu_type type;
    char name[16], level[32];
    uint32_t weight_bits; // of the narrowest form of a matrix: 4, 8 or 16
    uint32_t q_width, kv_width, qkv_width;
    struct cuda_layer *layers;            // [range.count]
    struct cuda_linear embedding, output; // if range.is_first; if range.is_last, and so the norm
    struct cuda_norm_weights output_norm;
    const float *rope_table; // NULL: no RoPE
    const float *positions;  // [context_tokens][hidden], added to the embedding; NULL: there are none
    float q_factor;          // times q, beyond the 1 / sqrt(head_dim) of attention
    bool apart;              // what attention and MLP give is not just added to x: a norm or a scale comes before
    bool whole_heads;        // norms of q and k are of all heads as one
    unsigned char *weights;  // device: all of the above, and the table of RoPE, but for the blobs that the tier keeps on the host
    struct cuda_tier tier;   // the layers' matrices
    uint64_t panel_bytes;    // of a mini-batch's room for expanded weights; 0: none will be expanded
    struct gpu_gemm *gemm;
    bool products_tried;
    struct gpu_pool pool; // pages NULL: none
    struct kv_ledger ledger;
    struct cuda_copy copy;
    struct sampler_scratch **scratch; // [threads]
    uint64_t attend_bytes;            // of K and V that attention had to read
    uint32_t tile_blocks;             // of gpu_attend_tiles that the device runs at once
    unsigned char *host_memory;       // pinned, lent to the messages
    struct cuda_hidden hidden;        // if range.is_last
};

// The points at which the time of a step is taken (cuda_events.c): begin and end of each. UP and DOWN are on the wire's stream.
enum cuda_span { CUDA_SEGMENT, CUDA_ATTEND, CUDA_UP, CUDA_DOWN, CUDA_HEAD, CUDA_SPANS };
struct cuda_mark {
    cudaEvent_t begin, end;
    bool made; // in this step
};

// q, k, v and o of the workers' rows on their way (cuda_wire.c).
struct cuda_wire {
    cudaStream_t stream;
    cudaEvent_t up, computed, out;
    const struct backend_links *links; // q, k, v are being copied to; NULL: they are there
    bool *detour;                      // [max_rows] by o_host or qkv_host: their message is out of the device's reach
    bool told;                         // that there are such messages
};

// The graphs of a mini-batch: a segment's kernels, one graph a bucket of rows and segment (cuda_segment.c).
struct cuda_graphs {
    uint32_t buckets, rows[GPU_BUCKETS_MAX]; // ascending: those that have graphs
    cudaGraphExec_t *execs;                  // [buckets][range.count + 1]
    uint64_t launched;                       // since batch_open
};

struct backend_batch {
    struct backend *backend;
    cudaStream_t stream;
    cudaEvent_t event;
    struct cuda_wire wire;
    struct cuda_mark *marks; // [CUDA_SPANS][mark_layers]
    struct cuda_mark *last_mark;
    uint64_t ended_ns;                 // by the host's clock, of the last time that all was done
    uint32_t mark_layers, timed_layer; // 1: of that layer alone
    bool completes; // the last attention of its local rows is queued: their positions are complete when the event has come
    struct cuda_graphs graphs;
    struct cuda_visit visit;                        // to the weights that come from the host
    uint32_t row_count, local_count, table_entries; // entries: of the page tables in words_host
    uint32_t padded_rows;                           // that segments compute (gemm_choice.h): those behind row_count are nobody's
    struct kv_row *kv_rows;                         // [max_rows] local ones
    struct backend_row *rows;                       // [max_rows]
    uint32_t *slots;                                // [max_rows] of the local rows' sequences
    const struct backend_sample *samples;           // of a head that was queued and not yet answered; NULL: none
    uint32_t sample_count;
    float *hidden; // [hidden_count][hidden] of rows that are coming down; NULL: none are
    uint32_t hidden_count;
    uint32_t fetched[CUDA_LOGITS_ROWS], fetched_count; // samples whose logits come down

    // pinned
    unsigned char *host;
    uint32_t *words_host;     // token, position [max_rows]; then of the local rows row, position, table; their tiles; page tables
    float *o_host, *qkv_host; // [max_rows][q_width], [max_rows][qkv_width]: of rows that make a detour
    unsigned char *head_host; // row numbers, samples, adjustments: struct cuda_asked
    float *logits_host;       // [CUDA_LOGITS_ROWS][vocab]
    struct gpu_sampled *sampled_host; // [max_rows]

    unsigned char *memory; // device
    uint32_t *words;
    unsigned char *head;
    float *raw; // [CUDA_ADJUST_MAX] at most
    struct gpu_sampled *sampled;
    float *x, *qkv, *att;             // [max_rows][hidden], [qkv_width], [q_width]
    void *h, *wide_o, *gate_up, *act; // wide: [max_rows][hidden], [q_width], [2][ffn], [ffn]
    float *apart;                     // [max_rows][hidden], if backend->apart
    float *logits;                    // [CUDA_HEAD_ROWS][vocab]
    float *scratch;                   // of attention
    uint64_t scratch_floats;
    void *workspace;
    void *panel; // of weights that are expanded (cuda_product.c)
    uint64_t panel_bytes;
    struct gpu_rows local;  // rows of tiles, then single ones
    struct gpu_tiles tiles; // of the first `tile_rows` of them
    uint32_t tile_rows;
};

// cuda_events.c. Ends the process: a device that fails does not come back by itself; the s-part is started again.
_Noreturn void cuda_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
void cuda_must(cudaError_t error, const char *what);
bool cuda_has_come(cudaEvent_t event, const char *what);

// Behind what an entry queued: a launch that was refused is seen here and nowhere else.
void cuda_queued(struct backend_batch *batch, const char *what);

// cuda_events.c: what a step takes on the device. begin and end stand around what is queued; of the layers the step's timed one counts,
// and with a trace all are shown.
enum status cuda_times_open(struct backend_batch *batch) MUST_CHECK;
void cuda_times_close(struct backend_batch *batch);
void cuda_times_begin_step(struct backend_batch *batch);
void cuda_span_begin(struct backend_batch *batch, enum cuda_span span, uint32_t layer);
void cuda_span_end(struct backend_batch *batch, enum cuda_span span, uint32_t layer);
void cuda_times(struct backend_batch *batch, struct backend_step_times *out);
uint32_t cuda_spans(struct backend_batch *batch, struct backend_span *out, uint32_t capacity);
// cuda_measure.c
struct device_rates;
enum status cuda_measure(int index, uint64_t limit_us, struct device_rates *out, struct error *error) MUST_CHECK;

// cuda_load.c
enum gpu_type cuda_type_of(const struct backend_config *config); // of wide weights and activations

// cuda_packed.c: the file of all blobs. begin, put, end: writes it, blob by blob as they are converted; end commits it, or with a status
// leaves nothing; begin: as packed_writer_open(). read: fills what stays and checks the rest. *out: the file, the caller's.
struct cuda_packing {
    struct packed_layout layout;
    struct packed_writer *writer;
    unsigned char *memory; // [CUDA_STAGING_BYTES]
    uint64_t held;         // bytes in it that are not written yet
    uint32_t segment;      // whose blob is being written
    uint64_t at;           // bytes of it so far
    uint64_t done, said_us, began_us;
};
enum status cuda_packing_begin(const char *path, const struct packed_layout *layout, struct cuda_packing *packing,
                               struct error *error) MUST_CHECK;
enum status cuda_packing_put(struct cuda_packing *packing, uint32_t segment, uint64_t at, const void *bytes, uint64_t count,
                             struct error *error) MUST_CHECK;
enum status cuda_packing_end(struct cuda_packing *packing, const char *path, enum status status, struct error *error) MUST_CHECK;
enum status cuda_packed_read(struct backend *backend, const struct packed_layout *layout, unsigned char *staging,
                             cudaStream_t stream, struct packed_file **out, double *us_per_byte, struct error *error) MUST_CHECK;

// cuda_load.c. fixed_bytes: embedding, head, norms, biases, the table of RoPE.
struct cuda_weights_plan {
    uint64_t fixed_bytes, panel_bytes;
    uint32_t weight_bits;      // of the narrowest form of a matrix
    struct weight_tiers tiers; // of blobs, one a segment, with fixed_bytes always on the device
    struct weight_tiers host;  // of the blobs that stream from the host: what streams there comes from disk
    uint64_t layout;           // a number made of what the blobs' bytes depend on
};
// blob_bytes: filled. RESOURCE_EXHAUSTED: config->weights_memory, or "on the host" weights_host_memory, is too little.
enum status cuda_plan_weights(const struct backend_config *config, const struct layer_range *range, struct cuda_weights_plan *out,
                              uint64_t *blob_bytes /* [range->count + 1] */, struct error *error) MUST_CHECK;
enum status cuda_load_weights(struct backend *backend, struct error *error) MUST_CHECK;

// cuda_product.c: y = w x, or y += that; x wide, y [rows][linear->outputs] f32 or wide.
void cuda_product(struct backend_batch *batch, const struct cuda_linear *linear, const void *x, uint32_t rows, void *y, bool y_wide,
                  bool add);
void cuda_embed(struct backend_batch *batch);             // x of padded_rows
uint64_t cuda_panel_bytes(const struct gpu_quant *quant); // the most that a panel of it takes
uint32_t cuda_panel_outputs(const struct gpu_quant *quant,
                            uint64_t panel_bytes); // of all its panels but the last, which may have less

// cuda_layer.c. check_pieces: UNIMPLEMENTED names the piece of the architecture that there are no kernels for. choose_pieces: sets what
// the backend computes beside products and attention. compute: queues the kernels and products of segment s for padded_rows.
enum status cuda_check_pieces(const struct model *model, struct error *error) MUST_CHECK;
void cuda_choose_pieces(struct backend *backend);
bool cuda_adds_apart(const struct model *model); // whether batches need `apart`
void cuda_norm(struct backend_batch *batch, const uint32_t *row_index, const struct cuda_norm_weights *norm,
               uint32_t rows); // x to h
void cuda_compute(struct backend_batch *batch, uint32_t s);

// cuda_segment.c
void cuda_segment(struct backend_batch *batch, uint32_t s, const struct backend_links *links);
void cuda_put_x(struct backend_batch *batch, const float *x);
void cuda_get_x(struct backend_batch *batch, float *x);

// cuda_wire.c: o of layer s - 1 up before segment s, q, k, v of layer s down behind it, for the rows of workers.
uint64_t cuda_host_bytes(const struct backend_config *config); // of the memory that messages may lie in
void cuda_host_memory(const struct backend *backend, void **memory, uint64_t *bytes);
enum status cuda_wire_open(struct backend_batch *batch) MUST_CHECK;
void cuda_wire_close(struct backend_batch *batch);
void cuda_wire_up(struct backend_batch *batch, uint32_t s, const struct backend_links *links);
void cuda_wire_down(struct backend_batch *batch, uint32_t s, const struct backend_links *links);
bool cuda_qkv_ready(struct backend_batch *batch);

// cuda_product.c: tries the algorithms of the model's products, on the mini-batch's buffers; once a backend.
void cuda_try_products(struct backend_batch *batch);

// cuda_segment.c: makes the graphs of a mini-batch, fewest rows first, until there are max_graphs or they take max_bytes of device memory;
// what has none is launched plainly. Before its first step. launch: false, this segment has none.
enum { CUDA_GRAPHS_MAX = 4096, CUDA_GRAPH_BYTES_MAX = 96 << 20 }; // of all mini-batches
void cuda_graphs_open(struct backend_batch *batch, uint32_t max_graphs, uint64_t max_bytes);
void cuda_graphs_close(struct backend_batch *batch); // none of them may be running

// cuda_head.c
uint64_t cuda_head_bytes(const struct backend_config *config); // of what is asked
uint64_t cuda_adjust_limit(const struct backend_config *config);
// Translates what a sample asks, for the device. Takes entries of `adjust` for it, up to `limit`; where they do not suffice it is for the host:
// out->flags is 0.
void cuda_ask(const struct backend_sample *sample, uint32_t vocab, struct gpu_adjust *adjust, uint32_t *used, uint64_t limit,
              struct gpu_sample *out);
void cuda_answer(const struct gpu_sample *asked, const struct gpu_sampled *sampled, struct sampler_result *result);
void cuda_hand_out_samples(struct backend_batch *batch);
void cuda_head(struct backend_batch *batch, const uint32_t *row_index, const struct backend_sample *samples, uint32_t count);

// cuda_head.c. hand_out: called once what was asked for has come.
uint64_t cuda_hidden_bytes(const struct model_shape *shape);
enum status cuda_hidden_open(struct backend *backend, struct error *error) MUST_CHECK;
void cuda_hidden_close(struct backend *backend);
void cuda_hidden(struct backend_batch *batch, const uint32_t *row_index, float *out, uint32_t count);
void cuda_hand_out_hidden(struct backend_batch *batch);

// cuda_pool.c
enum status cuda_pool_open(struct backend *backend, struct error *error) MUST_CHECK;
void cuda_pool_close(struct backend *backend);
uint64_t cuda_page_bytes(const struct model_shape *shape, const struct layer_range *range);
struct kv_ledger_shape cuda_ledger_shape(const struct backend_config *config, uint32_t pages);
enum status cuda_plan_local(struct backend_batch *batch, uint32_t *bad_row, struct error *error) MUST_CHECK;
void cuda_attend(struct backend_batch *batch, uint32_t layer);
void cuda_complete(struct backend_batch *batch);
void cuda_pool_release(struct backend *backend, uint64_t sequence);
enum status cuda_pool_share(struct backend *backend, uint64_t from, uint32_t positions, uint64_t to, struct error *error);
uint32_t cuda_pool_held(const struct backend *backend, struct kv_held *held, uint32_t capacity);

// cuda_pages.c
uint64_t cuda_copy_bytes(const struct backend_config *config); // pinned
enum status cuda_copy_open(struct backend *backend, struct error *error) MUST_CHECK;
void cuda_copy_close(struct backend *backend);
uint64_t cuda_pool_page_bytes(const struct backend *backend);
enum status cuda_pool_export(struct backend *backend, uint64_t sequence, uint32_t page_index, void *page, uint32_t *positions,
                             struct error *error);
enum status cuda_pool_import(struct backend *backend, uint64_t sequence, uint32_t page_index, const void *page, uint32_t positions,
                             struct error *error);
bool cuda_pool_copied(struct backend *backend);
void cuda_pool_stop_copy(struct backend *backend);

#endif
