// kv_store.h: the KV cache of the sequences that one worker (or the local pool) holds, and attention over it.
//
// A page holds page_tokens tokens of one sequence for all layers; a sequence is a list of pages. A position is complete when its K
// and V have been written in every layer; only the complete positions from 0 on count as held. A write is addressed by (sequence,
// position), so any step may be repeated. The bits of a row's result depend only on its q and on the stored K and V of its
// positions, not on the other rows of the batch, on chunks, on pages, or on the number of threads.
//
//     reserve(7, 40) ─▶ plan(rows 7:32..7:39) ─▶ attend(layer 0) ─▶ … ─▶ attend(layer L-1) ─▶ held (7, 40)
//
// Example: 30 layers, 3 KV heads, head_dim 64, f16, 16 tokens: a page is 30 * 3 * 2 * 64 * 16 * 2 B = 360 KiB, and 1 GiB holds 2912
// pages, 46592 tokens.
//
// Threads: all calls on one store, its batches included, come from one thread at a time; only attend uses the pool.
// Memory: kv_store_open() maps all of it, and it becomes resident as pages are first used. Plan and attend allocate nothing.
#ifndef FD_KERNELS_KV_KV_STORE_H
#define FD_KERNELS_KV_KV_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/kv/kv_ledger.h"
#include "common/kv/kv_shape.h"

struct kv_store;
struct kv_batch;

// The memory that a store takes, for the memory plan.
struct kv_plan {
    uint64_t pages, page_bytes; // page_bytes: bytes of a page in the pool (kv_page_memory_bytes)
    uint64_t fixed_bytes;       // scratch, lists of free slots, and the rows of `batches` batches
    uint64_t table_bytes;       // upper limit: page tables, reference counts, split contexts, which become resident as pages come
                                // into use
};

// Returns zeros if the shape is out of range. threads: number of threads in the pool given to kv_store_open; max_rows: as for
// kv_store_open.
struct kv_plan kv_store_plan(const struct kv_shape *shape, uint64_t pool_bytes, uint32_t max_rows, uint32_t threads,
                             uint32_t batches);

// Opens a store of pool_bytes / kv_page_memory_bytes() pages. max_rows: the most rows of a batch. The pool of threads is
// borrowed and must outlive the store. The caller closes *out. INVALID_ARGUMENT: the shape is out of range, or pool_bytes is less
// than one page. RESOURCE_EXHAUSTED: not enough memory. *error says which. After a failure there is nothing to close.
enum status kv_store_open(const struct kv_shape *shape, uint64_t pool_bytes, uint32_t max_rows, struct thread_pool *pool,
                          struct kv_store **out, struct error *error) MUST_CHECK;

// Frees the store. Its batches must have been closed (asserted). NULL is allowed.
void kv_store_close(struct kv_store *store);

// Returns the mapping that holds the pages and attention's scratch, for policies of memory; after kv_store_open() it is untouched.
void *kv_store_memory(const struct kv_store *store, uint64_t *bytes);

uint32_t kv_store_pages_total(const struct kv_store *store);
uint32_t kv_store_pages_used(const struct kv_store *store);

// Makes the sequence known if it is not, and gives it pages for positions [0, positions), or from where its extent
// begins. Pages that it has are kept; if it would have more than kv_ring_pages(), the first ones are given back. OUT_OF_RANGE:
// positions is beyond max_context, or so far beyond those that are complete that pages would be given back which the next row reads
// (kv_ring_step_rows); RESOURCE_EXHAUSTED: not enough free pages, or max_sequences are known. A failure changes
// nothing.
enum status kv_store_reserve(struct kv_store *store, uint64_t sequence, uint32_t positions, struct error *error) MUST_CHECK;

// Makes the sequence known, if it is not, as an extent that begins at position `first`: what is before is held elsewhere. One that is known
// and begins elsewhere is replaced. OUT_OF_RANGE: `first` is not a multiple of KV_EXTENT_TOKENS below max_context; RESOURCE_EXHAUSTED:
// max_sequences are known.
enum status kv_store_begin(struct kv_store *store, uint64_t sequence, uint32_t first, struct error *error) MUST_CHECK;

// Forgets the sequence, if it is known, and frees its pages. Its rows in planned batches give o = 0 from then on, even if the sequence
// becomes known again.
void kv_store_free(struct kv_store *store, uint64_t sequence);

// Makes `to` a sequence whose first `positions` positions are those of `from`. Both use the same pages, which have reference
// counts. Of an extent, `to` gets one that begins at the same position. kv_store_reserve() copies a shared page when a further position in
// it is to be written; shared positions never change. If `to` already has these, nothing happens; what else it has is replaced.
// FAILED_PRECONDITION: `from` has fewer complete positions, or none of these, and so has `to`; RESOURCE_EXHAUSTED: max_sequences are known.
enum status kv_store_share(struct kv_store *store, uint64_t from, uint32_t positions, uint64_t to, struct error *error) MUST_CHECK;

// Iterates over the known sequences in no particular order; *cursor starts at 0. Returns false at the end. The store must not
// change meanwhile.
bool kv_store_next(const struct kv_store *store, uint32_t *cursor, struct kv_held *out);

// Returns false if the sequence is unknown.
bool kv_store_find(const struct kv_store *store, uint64_t sequence, struct kv_held *out);

// Opens a batch: the scratch memory and plan of one mini-batch in flight. The caller closes *out before it closes the store.
// RESOURCE_EXHAUSTED: not enough memory.
enum status kv_batch_open(struct kv_store *store, struct kv_batch **out) MUST_CHECK;
void kv_batch_close(struct kv_batch *batch); // NULL is allowed

// Plans a step, which replaces the batch's earlier plan. rows: sorted by sequence, then position, without duplicates; copied. A row
// at position p needs the positions below p complete or earlier in the batch, and a reserved page that is not shared. Behind them
// come rows that only read, sorted by sequence; those of one sequence read the same complete positions [first, position]. A row that
// reads, or whose `first` is not 0, gets partials (kv_shape.h) and is not sparse.
// INVALID_ARGUMENT: more than max_rows rows, or not sorted. FAILED_PRECONDITION: a row lacks what it needs; *bad_row and *error
// name the first such row. After a failure the batch has no rows.
enum status kv_batch_plan(struct kv_batch *batch, const struct kv_row *rows, uint32_t row_count, uint32_t *bad_row,
                          struct error *error) MUST_CHECK;

// Computes one layer of the planned step: stores K and V of all rows, then attends all rows, each over positions 0 to its own, or the
// last `window` of them if the layer is windowed; a sparse row attends to all of these.
// After the last layer the rows' positions are complete. Blocks until done; runs on the pool of threads.
// Each argument: [row_count] pointers, aligned to 4 bytes, to
//     q[i], o[i]: [heads][head_dim] f32      k[i], v[i]: [kv_heads][head_dim] f32, NULL for a row that reads
//     o[i] of a row that gets partials: [kv_partial_count(first, position + 1)][kv_partial_floats()]
// o must not overlap the others. If o[i] is NULL, the row's K and V are stored but its attention is not computed. Query head h uses
// KV head h / (heads / kv_heads).
void kv_batch_attend(struct kv_batch *batch, uint32_t layer, const float *const *q, const float *const *k, const float *const *v,
                     float *const *o);

// The same as a part of a job of the pool of threads that has phases before, for few rows: no thread waits for another between storing
// and attending. can_join: whether the planned step has at most KV_JOIN_ROWS rows, none of which is sparse or gets partials.
// begin: before the job, with kv_batch_attend's o. join: in the job, by every thread with its own q, k and v, which the threads
// must have equal; k and v may be written by others only before the phase. end: after the job.
enum { KV_JOIN_ROWS = 2 };
bool kv_batch_can_join(const struct kv_batch *batch);
void kv_batch_join_begin(struct kv_batch *batch, uint32_t layer, float *const *o);
void kv_batch_join(struct kv_batch *batch, uint32_t thread_index, const float *const *q, const float *const *k,
                   const float *const *v);
void kv_batch_join_end(struct kv_batch *batch);

// Gives the next layer to be attended sinks: a score for each query head that takes part in the softmax of its rows, without a value.
// Borrowed until then. A new plan forgets them. Rows that get partials have none. sinks: [heads] f32; NULL: none
void kv_batch_sinks(struct kv_batch *batch, const float *sinks);

// Totals since open. bytes_read: the bytes of K, V and bounds that attention read, counting each tile once per row block.
struct kv_stats {
    uint64_t bytes_read;
    uint64_t attend_ns;
    uint64_t rows;        // rows times layers
    uint64_t tokens_read; // context tokens that those rows attended to, times layers
    uint32_t pages_peak;  // the most pages in use at one time
};
void kv_store_stats(const struct kv_store *store, struct kv_stats *out);

// Copies a page to `out` and returns how many of its positions (1 to page_tokens) are complete. out: [kv_page_bytes]. NOT_FOUND:
// the sequence is unknown or has no complete position in that page.
enum status kv_store_export_page(const struct kv_store *store, uint64_t sequence, uint32_t page_index, void *out,
                                 uint32_t *positions) MUST_CHECK;

// Takes in a page that a store of the same shape exported. Its `positions` positions become complete; what rows in flight have
// written behind them stays. Makes the sequence known if it is not: as an extent, if the page begins at a multiple of KV_EXTENT_TOKENS.
// Pages must come in order. FAILED_PRECONDITION: positions before
// the page are not complete, or the page has fewer complete positions than the store. INVALID_ARGUMENT: `positions` is not 1 to
// page_tokens. OUT_OF_RANGE and RESOURCE_EXHAUSTED as for kv_store_reserve. A failure changes nothing.
enum status kv_store_import_page(struct kv_store *store, uint64_t sequence, uint32_t page_index, const void *page,
                                 uint32_t positions, struct error *error) MUST_CHECK;

// --- partial results of several places (kv_shape.h) ---

// The part that one place gives for one row.
struct kv_part {
    uint32_t first, end; // positions
    float *partials;     // [kv_partial_count(first, end)], aligned to 4 bytes
};

// Folds the parts of a row, which follow each other from position 0 on. Overwrites them; returns where among them o is: [heads][head_dim].
// Call it after kernels_init().
const float *kv_partials_fold(uint32_t heads, uint32_t head_dim, const struct kv_part *parts, uint32_t count);

// --- what attention costs ---

// Names how a setting is timed: layers of `rows` rows that end at position `last`, each of a different sequence or, of a prefill, all of one; *us is the mean
// of as many layers as limit_us is enough for. settings: rows, near, far and chunk are set.
struct kv_timing {
    struct kv_timed settings;
    enum status (*attend)(void *user, uint32_t rows, uint32_t last, bool prefill, uint64_t limit_us, double *us,
                          struct error *error);
    void *user;
};

// Times the five settings for about limit_us, with at least one pass of each, and computes the costs of the medians.
enum status kv_time(const struct kv_timing *timing, uint64_t limit_us, struct kv_costs *out, struct error *error) MUST_CHECK;

// Measures on the pool for about limit_us, with at least one pass of each setting. The calling thread must be the one that uses the
// pool. shape: max_sequences and max_context are ignored. memory_bytes: the most memory that the store may take.
// RESOURCE_EXHAUSTED: not enough memory. INVALID_ARGUMENT: the shape is out of range.
enum status kv_measure(const struct kv_shape *shape, uint64_t memory_bytes, struct thread_pool *pool, uint64_t limit_us,
                       struct kv_costs *out, struct error *error) MUST_CHECK;

#endif
