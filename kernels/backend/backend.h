// backend.h: the S-part's only view of a device.
//
// A backend holds the weights, the activations of the mini-batches in flight and the local KV pool, and runs segments. A segment is
// the computation between two attentions. It knows the model as a table of tensors and never sees a sequence's text, a worker or a
// socket. For rows that live on KV workers, q, k, v are written straight into the caller's outgoing message, and o is read straight
// from the incoming one.
//
//     begin ─▶ segment(0) ─▶ … attention … ─▶ segment(1) ─▶ … ─▶ segment(layers) ─▶ head ─▶ sample
//               q,k,v of layer 0              o of layer 0 in,                o of the last layer in
//                                             q,k,v of layer 1 out
//
// Entries may be asynchronous. Entries of one batch run in the order of the calls, so a step whose rows are all local can be queued as a
// whole; entries of different batches may overlap. The caller must poll `done` before it touches anything that an entry writes, or
// changes or frees anything that an entry reads (links, samples and all that they point at). For memory that links point at,
// `qkv_ready` is enough. Entries of the CPU backend finish before they return. All entries of one backend are called from one
// thread.
//
// Nothing here allocates after batch_open, so a step allocates nothing.
#ifndef FD_KERNELS_BACKEND_BACKEND_H
#define FD_KERNELS_BACKEND_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/disk/disk.h"
#include "common/kv/kv_ledger.h"
#include "common/kv/kv_shape.h"
#include "common/model/model.h"
#include "common/sampler/sampler.h"

struct model;
struct backend;
struct backend_batch;

#define BACKEND_NOT_YET UINT32_MAX

enum compute_mode { COMPUTE_AUTO, COMPUTE_F32, COMPUTE_INT8 };

// KV element types; the numbers are those of proto/common.proto.
struct backend_config {
    const struct model *model; // borrowed for the backend's life
    uint32_t first_layer;      // first of the layers that the backend has (struct layer_range)
    uint32_t layer_count;      // 0: from first_layer to the model's last
    enum compute_mode compute; // a CPU: F32 is dense weights and OpenBLAS, any other packed weights of the file's types
    uint32_t quantize_bits;    // of matrices that the file has in F32, F16 or BF16: 4 (Q4_1), 8 (Q8_0), or 0: as they are
    struct thread_pool *pool;  // borrowed
    uint32_t max_rows;         // the most rows of one mini-batch's step
    uint32_t max_batches;      // mini-batches in flight
    uint32_t context_tokens;   // longest sequence
    uint32_t kv_type;          // KvType of the local pool
    uint32_t page_tokens;
    uint32_t sparse_percent; // of the local pool: percent of the tiles that a sparse row attends to; 0: there are no sparse rows
    uint32_t max_sequences;
    uint64_t local_pool_bytes; // 0: none
    int device;                // index among the devices of its kind
    const char *packed_path;   // file of packed weights: read if it is there, else written (packed_file.h); NULL: none. Borrowed
    enum disk_method disk;     // how it is read
    uint64_t
        weights_memory; // for weights, where the backend computes: what does not fit is fetched each step (CPU: from disk). 0: all
    uint64_t
        weights_host_memory; // for a device with memory of its own: of the host's, for weights that do not fit there. What does not
                             // fit here either is read from packed_path each step. 0: all of those
    void (*on_weights)(void *user); // from any thread: weights that `turn` waits for may be there; NULL: nobody waits
    void *on_weights_user;
    bool trace;           // `spans` reports all layers
    bool batch_invariant; // a row's bytes must not depend on the rows beside it; plan() of a backend that cannot do this fails
};

// The memory that a configuration will take, known before anything is loaded.
struct backend_plan {
    uint64_t weight_bytes;     // packed: those that stay in memory, and the slots that the others are read into
    uint64_t streamed_bytes;   // of weights that are fetched each step; 0: all stay in memory
    uint32_t weight_slots;     // for those
    uint64_t disk_bytes;       // of streamed_bytes, those that are read from disk
    uint32_t disk_slots;       // of a device: in the host's memory, that they pass through
    uint64_t activation_bytes; // all batches, logits and scratch
    uint64_t start_bytes;      // while loading, in addition to the rest
    uint64_t pool_fixed_bytes; // scratch and small tables of the local pool
    uint64_t pool_table_bytes; // tables of the local pool, which grow with the pages in use
    uint64_t pool_page_bytes;  // one page; set even without a pool
    uint64_t pool_pages;
    char weights_kind[16]; // names the layout of packed weights, e.g. "int8" or "f16w"; empty: the backend keeps none (packed_path)
    bool rows_alike;       // a row's bytes do not depend on the rows beside it, whether or not batch_invariant asks for it
    // For a device whose own memory holds weights, activations and pool. The fields above are then the host's share, except for
    // pool_page_bytes and pool_pages.
    bool pool_on_device;
    uint64_t device_weight_bytes, device_activation_bytes, device_free_bytes;
};

// One row: a token of a sequence in this step.
struct backend_row {
    uint64_t sequence; // used for local rows only
    uint32_t token;
    uint32_t position;
    bool local;        // its KV is in the local pool
    bool needs_output; // the head may be asked for it; if false, its last layer ends once its K and V are stored
    bool sparse;       // for a local row: it attends to chosen tiles only, if there is a sparse_percent
    uint32_t first;    // for a local row: the first position that the pool holds of its sequence. Not 0: it gets partials
};

// A row, of whatever place, that reads positions [first, end) of its sequence in the local pool, and gets partials of them.
struct backend_read {
    uint32_t row, first, end;
};

// Tells where a segment writes q, k, v and reads o: one 4-byte aligned pointer per row, ignored for local rows. For a lost row q is
// NULL, and its q, k and v are not written. Of a local row that gets partials, o is read and q, unless it is NULL, is written all the same.
struct backend_links {
    const float *const *o; // [rows] -> [heads][head_dim] f32, never NULL
    float *const *q;       // [rows] -> [heads][head_dim] f32
    float *const *k;       // [rows] -> [kv_heads][head_dim] f32
    float *const *v;       // [rows] -> [kv_heads][head_dim] f32
};

struct backend_step_times {
    uint32_t segments_us, attend_us, copies_us;
};

// A piece of a step on a device. Spans of the same mini-batch and track do not overlap.
enum backend_track { BACKEND_S_PART, BACKEND_R_PART, BACKEND_TRANSFER, BACKEND_TRACKS };
struct backend_span {
    enum backend_track track;
    const char *name; // static
    uint32_t layer;
    uint64_t began_ns, ended_ns; // by clock_now_ns()
};

// One row of the head's output.
struct backend_sample {
    const struct sampler *sampler; // draws a token; NULL: score `token` instead
    uint32_t index;                // index of the token to draw in its sequence
    const uint32_t *allowed;       // mask of the tokens that may be drawn (sampler_sample()); NULL: all
    uint32_t token;                // to score
    uint32_t top_count;            // to score
    struct sampler_result *result;
    float *logits; // [vocab] f32: receives a copy of the row's logits; NULL: no copy
};

struct backend_info {
    const char *device; // "cpu"
    const char *level;  // numeric class, e.g. "int8/vnni"
    uint64_t pages_total, pages_used, pages_peak;
    uint64_t attend_bytes, attend_us;           // local pool, since start
    uint64_t streamed_segments, streamed_bytes; // weights fetched since start, for what does not stay in memory
    uint64_t stream_pieces;                     // pieces of them that have come: grows while the disk answers
    double stream_step_us;                      // how long reading them once takes; 0: all stay in memory, or not known
};

struct backend_ops {
    const char *name;
    // Call plan and open after kernels_init(). UNIMPLEMENTED: the backend cannot compute this model or configuration.
    enum status (*plan)(const struct backend_config *config, struct backend_plan *plan, struct error *error);
    enum status (*open)(const struct backend_config *config, struct backend **out, struct error *error);
    void (*close)(struct backend *backend);
    void (*info)(const struct backend *backend, struct backend_info *info);

    // Optional: opens the local pool, if there is one, anew with another KvType. Call it while no batch is open; the pool is empty
    // afterwards. A failure leaves no pool.
    enum status (*pool_retype)(struct backend *backend, uint32_t kv_type, struct error *error);

    enum status (*batch_open)(struct backend *backend, struct backend_batch **out, struct error *error);
    void (*batch_close)(struct backend_batch *batch);

    // Copies the rows of a step and embeds them. Local rows come sorted by sequence, then position. FAILED_PRECONDITION: the earlier
    // positions of a local sequence are not held; RESOURCE_EXHAUSTED: the pool is full. In both cases *bad_row is the row, and
    // nothing was done: the caller drops that sequence and begins again.
    enum status (*begin)(struct backend_batch *batch, const struct backend_row *rows, uint32_t row_count, uint32_t *bad_row,
                         struct error *error);
    // Gives x of the rows, from the previous stage, to a backend without the model's first layer, which does not embed. Call it
    // after begin and before segment 0; x must not change until done.
    void (*put_x)(struct backend_batch *batch, const float *x /* [rows][hidden] */);
    // Gets x of all rows after the last segment from a backend without the model's last layer. x is written until done.
    void (*get_x)(struct backend_batch *batch, float *x /* [rows][hidden] */);
    // Runs segment s: finishes layer s-1 (if s > 0) and starts layer s (if s < layers). Layers are numbered from 0 within the
    // backend's range.
    void (*segment)(struct backend_batch *batch, uint32_t s, const struct backend_links *links);
    // Optional, for weights that do not stay in memory. Returns who of some mini-batches goes first with its next segment s: the one with the
    // lowest number, which lets the next weights be fetched soonest. BACKEND_NOT_YET: they are being read; on_weights tells when to ask
    // again. A segment that is started all the same waits.
    uint32_t (*turn)(struct backend_batch *batch, uint32_t s);
    // Optional, with `turn`: goes on with the fetching of weights; to be called at each turn of the caller's loop. True: call it again soon,
    // for no on_weights will tell.
    bool (*advance)(struct backend *backend);
    // Optional: keeps the weights of the first segments in memory while `hold` is true, whatever steps pass, so that they can be run again
    // and again without reading: to measure.
    void (*hold)(struct backend *backend, bool hold);
    // Optional: the step is over, or given up. Until then weights are kept for what it needs next.
    void (*end)(struct backend_batch *batch);
    // Optional, for a pool that can hold a part of a sequence (kv_store.h: extents). reads: called before `begin` with the step's
    // reads of the pool, sorted by sequence and row; copied; without a call there are none. partials: after `attend`, the partials of
    // the local rows that get some, in their order, then those of the reads; the caller may change them.
    void (*pool_reads)(struct backend_batch *batch, const struct backend_read *reads, uint32_t count);
    float *(*pool_partials)(struct backend_batch *batch);
    // Attends the local rows of a layer. Call it between segment(layer) and segment(layer + 1).
    void (*attend)(struct backend_batch *batch, uint32_t layer);
    // Optional, without `times`: how long segment(layer) has taken for the attention of local rows, which it does in the same job where they
    // are few. Call it after the segment of a layer; `attend` has nothing left to do then. 0: it has not attended.
    uint64_t (*attended_ns)(const struct backend_batch *batch);
    // In a backend with the model's last layer: runs final norm, output projection, and sampling or scoring for up to max_rows
    // rows, all with needs_output. samples[i] is for row row_index[i]. row_index is copied. Until done, samples and the samplers,
    // results and logits that they point to must not move or change, because results and logits are written and samplers are read
    // (call sampler_see_generated() afterwards).
    void (*head)(struct backend_batch *batch, const uint32_t *row_index, const struct backend_sample *samples, uint32_t count);
    // Optional, in a backend with the model's last layer: gets hidden states of up to max_rows rows behind the final norm, all with
    // needs_output. Call it after the last segment. out[i] is row row_index[i], which is copied; out is written until done.
    void (*hidden)(struct backend_batch *batch, const uint32_t *row_index, float *out /* [count][hidden] f32 */, uint32_t count);
    // Optional: work is likely to come soon: wakes threads that sleep.
    void (*expect)(struct backend *backend);
    bool (*done)(struct backend_batch *batch);
    // Without `times` the backend is synchronous. With it: returns how long segments and head, attention of the local rows, and
    // copies of q, k, v and o took on the device in this step. Call it once `done` is true after `head`. A device may measure one
    // layer and multiply. The caller's times of links do not include the copies, because a message is sent only when it is
    // complete.
    void (*times)(struct backend_batch *batch, struct backend_step_times *out);
    // Optional, with `times`: returns the step's spans for a trace. Call it when `times` may be called. Returns their number, at
    // most `capacity`.
    uint32_t (*spans)(struct backend_batch *batch, struct backend_span *out, uint32_t capacity);

    // Optional: returns host memory that the device can read and write by itself. It belongs to the backend from open to close.
    // Messages in it are copied to and from the device directly.
    void (*host_memory)(const struct backend *backend, void **memory, uint64_t *bytes);
    // Optional, for a backend that attends to local rows while those of workers travel. Polled as `done` is. True: q, k and v of the last
    // segment are where its links point, and its o has been read. Attend may be called before. NULL: wait for `done`, then attend.
    bool (*qkv_ready)(struct backend_batch *batch);

    void (*pool_release)(struct backend *backend, uint64_t sequence);
    // Makes `to` a sequence of the local pool that shares the first positions of `from` and their pages (kv_store_share). Call it
    // before `begin` of the step with the rows that follow them.
    enum status (*pool_share)(struct backend *backend, uint64_t from, uint32_t positions, uint64_t to, struct error *error);
    // Lists the sequences that the pool holds; returns their number, which may exceed `capacity`.
    uint32_t (*pool_held)(const struct backend *backend, struct kv_held *held, uint32_t capacity);

    // These hand pages over in the format in which KV stores exchange them. Optional, all or none. pool_page_bytes returns the size
    // of such a page. 0: there is no pool, or its pages have no such format, and the other entries must not be called.
    uint64_t (*pool_page_bytes)(const struct backend *backend);
    // Like kv_store_export_page and kv_store_import_page, but the copy may still be under way on return. The caller polls
    // pool_copied, which continues the copy. Until it returns true, `page` must not change, no other copy may begin, and the
    // sequence must not be released. A sequence may be exported while steps use it, but not imported. Imported positions count as
    // held once pool_copied returns true.
    enum status (*pool_export)(struct backend *backend, uint64_t sequence, uint32_t page_index, void *page, uint32_t *positions,
                               struct error *error);
    enum status (*pool_import)(struct backend *backend, uint64_t sequence, uint32_t page_index, const void *page,
                               uint32_t positions, struct error *error);
    bool (*pool_copied)(struct backend *backend);
    // Gives up the copy under way, if any; afterwards nothing touches `page` or the pool.
    void (*pool_stop_copy)(struct backend *backend);
};

extern const struct backend_ops backend_cpu;

// Returns whether quantize_bits would change any matrix of the model.
bool backend_quantizes(const struct model *model, uint32_t bits);

// Copies a row's logits ([vocab] f32, in host memory), draws from them or scores them, as the sample says. Each thread needs its
// own scratch.
void backend_sample_row(const struct backend_sample *sample, const float *logits, uint32_t vocab, struct sampler_scratch *scratch);

// --- for all backends: which of the model's layers one has: all of them, or those of a pipeline stage ---
//
//     stage 0: layers [0, k)   embeds tokens; after segment k its x goes to stage 1  (get_x)
//     stage 1: layers [k, L)   begins with that x (put_x); has the final norm and the head
//
// A backend numbers segments and layers within its range, and loads weights and holds KV of these layers only.

struct layer_range {
    uint32_t first, count; // of the model's layers; count is at least 1
    bool is_first;         // it begins with the model's first layer, so tokens are embedded
    bool is_last;          // it ends with the model's last layer, so there is a head
};

// Returns the range of a configuration: first_layer and layer_count, or all layers. INVALID_ARGUMENT: the model has no such layers.
enum status layer_range_of(const struct backend_config *config, struct layer_range *out, struct error *error) MUST_CHECK;

// --- for all backends: the type in which a matrix is loaded ---
//
// It is the file's, or with quantize_bits the one that the matrix is quantized to on its way: a device has the numbers that the CPU has, and
// both those of `fastdecode quantize`.

// Returns Q4_1 or Q8_0 for a matrix in F32, F16 or BF16 if the configuration asks for it and rows are whole blocks; else the view's type.
enum tensor_type loaded_type_of(const struct backend_config *config, const struct tensor_view *view);

// INVALID_ARGUMENT: quantize_bits would change no matrix.
enum status loaded_type_check(const struct backend_config *config, struct error *error) MUST_CHECK;

// --- for all backends: the shape of the KV ---

// Returns the shape of the KV of some layers: its heads, windows and soft cap. The caller adds what is no matter of the model.
struct kv_shape kv_shape_of_model(const struct model *model, uint32_t first_layer, uint32_t layer_count);

#endif
