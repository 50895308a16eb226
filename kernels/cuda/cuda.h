/* cuda.h: what the files of the CUDA backend's host side share. Not included from elsewhere.
 *
 * Weights, activations and the local pool are in device memory; each mini-batch has a stream of its own, on which its entries are
 * queued in order, and an event behind the last of them, which `done` asks. What goes to and comes from the host does so through
 * memory that the device reads and writes itself (pinned), one buffer a batch and direction:
 *
 *     links->o ─memcpy▶ o_host ─copy▶ att ─▶ … ─▶ qkv ─copy▶ qkv_host ─memcpy, in done▶ links->q, k, v
 */
#ifndef FD_KERNELS_CUDA_CUDA_H
#define FD_KERNELS_CUDA_CUDA_H

#include "common/kv/kv_ledger.h"
#include "common/model/model.h"
#include "kernels/backend/backend.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launch.h"

enum { CUDA_HEAD_ROWS = 256, CUDA_TABLE_ENTRIES_MAX = 4 << 20, CUDA_STAGING_BYTES = 16 << 20 };
enum { CUDA_SLICES = 2, CUDA_SLICE_BYTES = 512 << 10 }; /* of a page that is handed over */

struct cuda_linear {
    void *weight; /* [outputs][inputs] wide, in device memory */
    uint32_t outputs, inputs;
};

struct cuda_layer {
    const float *attn_norm, *ffn_norm;              /* [hidden] */
    const float *q_bias, *k_bias, *v_bias, *o_bias; /* [outputs] or NULL */
    struct cuda_linear qkv, o, gate_up, down;
};

/* A page of the local pool on its way to or from the host (cuda_pages.c). */
struct cuda_copy {
    cudaStream_t stream;
    cudaEvent_t event[CUDA_SLICES];
    unsigned char *slices; /* pinned: [CUDA_SLICES][CUDA_SLICE_BYTES] */
    uint32_t slice_tiles, tile_bytes;
    bool active;
    uint32_t page, tiles_begun, tiles_done; /* of the page's */
    unsigned char *out;                     /* NULL: it comes in */
    const unsigned char *in;
    uint32_t slot, generation, complete; /* of what comes in: the sequence, and its positions with it */
};

struct backend {
    struct backend_config config;
    struct model_shape shape;
    enum gpu_type type;
    char name[16], level[16];
    uint32_t q_width, kv_width, qkv_width;
    struct cuda_layer *layers; /* [shape.layers] */
    struct cuda_linear embedding, output;
    const float *output_norm, *rope_table;
    unsigned char *weights; /* device: all of the above, and the table of RoPE */
    struct gpu_gemm *gemm;
    struct gpu_pool pool; /* pages NULL: none */
    struct kv_ledger ledger;
    struct cuda_copy copy;
    struct sampler_scratch **scratch; /* [threads] */
    uint64_t attend_bytes;            /* of K and V that attention had to read */
};

/* Where the time of a step is taken (cuda_times.c): begin and end of each. */
enum cuda_span { CUDA_SEGMENT, CUDA_ATTEND, CUDA_HEAD, CUDA_SPANS };

struct backend_batch {
    struct backend *backend;
    cudaStream_t stream;
    cudaEvent_t event;
    cudaEvent_t mark[CUDA_SPANS][2];
    bool marked[CUDA_SPANS];
    uint32_t timed_layer;
    uint32_t row_count, local_count, table_entries; /* entries: of the page tables in words_host */
    const struct backend_links *scatter;            /* q, k, v to hand out once the event has come; NULL: none */
    struct kv_row *kv_rows;                         /* [max_rows] local ones */
    struct backend_row *rows;                       /* [max_rows] */
    uint32_t *slots;                                /* [max_rows] of the local rows' sequences */

    /* pinned */
    unsigned char *host;
    uint32_t *words_host;     /* token, position [max_rows]; then of the local rows row, position, table; then page tables */
    float *o_host, *qkv_host; /* [max_rows][q_width], [max_rows][qkv_width] */
    float *logits_host;       /* [CUDA_HEAD_ROWS][vocab] */
    uint32_t *index_host;     /* [CUDA_HEAD_ROWS] */

    unsigned char *memory; /* device */
    uint32_t *words, *index;
    float *x, *qkv, *att;             /* [max_rows][hidden], [qkv_width], [q_width] */
    void *h, *wide_o, *gate_up, *act; /* wide: [max_rows][hidden], [q_width], [2][ffn], [ffn] */
    float *logits;                    /* [CUDA_HEAD_ROWS][vocab] */
    float *scratch;                   /* of attention */
    uint64_t scratch_floats;
    void *workspace;
    struct gpu_rows local;
};

/* Ends the process: a device that fails does not come back by itself; the s-part is started again. */
_Noreturn void cuda_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
void cuda_must(cudaError_t error, const char *what);

/* Behind what an entry queued: a launch that was refused is seen here and nowhere else. */
void cuda_queued(struct backend_batch *batch, const char *what);

/* cuda_times.c: what a step takes on the device. begin and end stand around what is queued; of the layers the step's timed one counts. */
void cuda_times_open(struct backend_batch *batch);
void cuda_times_close(struct backend_batch *batch);
void cuda_times_begin_step(struct backend_batch *batch);
void cuda_span_begin(struct backend_batch *batch, enum cuda_span span, uint32_t layer);
void cuda_span_end(struct backend_batch *batch, enum cuda_span span, uint32_t layer);
void cuda_times(struct backend_batch *batch, uint32_t *segments_us, uint32_t *attend_us);

/* cuda_load.c */
uint64_t cuda_weight_bytes(const struct model *model, uint32_t context_tokens);
enum status cuda_load_weights(struct backend *backend, struct error *error) MUST_CHECK;

/* cuda_segment.c */
void cuda_segment(struct backend_batch *batch, uint32_t s, const struct backend_links *links);
void cuda_hand_out(struct backend_batch *batch);

/* cuda_head.c */
void cuda_head(struct backend_batch *batch, const uint32_t *row_index, const struct backend_sample *samples, uint32_t count);

/* cuda_pool.c */
enum status cuda_pool_open(struct backend *backend, struct error *error) MUST_CHECK;
void cuda_pool_close(struct backend *backend);
uint64_t cuda_page_bytes(const struct model_shape *shape);
struct kv_ledger_shape cuda_ledger_shape(const struct backend_config *config, uint32_t pages);
enum status cuda_plan_local(struct backend_batch *batch, uint32_t *bad_row, struct error *error) MUST_CHECK;
void cuda_attend(struct backend_batch *batch, uint32_t layer);
void cuda_pool_release(struct backend *backend, uint64_t sequence);
enum status cuda_pool_share(struct backend *backend, uint64_t from, uint32_t positions, uint64_t to, struct error *error);
uint32_t cuda_pool_held(const struct backend *backend, struct backend_held *held, uint32_t capacity);

/* cuda_pages.c */
uint64_t cuda_copy_bytes(const struct backend_config *config); /* pinned */
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
