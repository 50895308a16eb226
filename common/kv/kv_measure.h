// kv_measure.h: measures what attention costs on these threads with this shape of KV: r and r_p of the performance model
// (common/plan/cost.h).
//
// The store is larger than the caches. Its pages have the model's layers, or as many as leave room for four sequences, so that the
// data of one layer is scattered in memory as in a real step (a store of one layer was read up to twice as fast). It is full of
// zeros, which take as long to read as other values. Five settings are timed with the service's kernels. The time of a setting is
// the median of its passes over all layers. Together they give
//
//     decode, a layer:    call_us + rows·row_us + Σ context·token_us
//     prefill, a layer:   call_us + rows·prefill_row_us + Σ context·pair_us
#ifndef FD_KV_KV_MEASURE_H
#define FD_KV_KV_MEASURE_H

#include "common/kv/kv_store.h"

struct kv_costs {
    double call_us;        // fixed cost of a layer: waking threads, dividing the work
    double row_us;         // per decode row: storing its K and V, and other work per row
    double token_us;       // r: per context token of a decode row
    double prefill_row_us; // as row_us, for a prefill row
    double pair_us;        // r_p: per pair of a prefill row and a context token
};

// The times of a layer in the five settings.
struct kv_timed {
    uint32_t rows, near, far;       // rows: each of a different sequence; near, far: context lengths
    double one_us, near_us, far_us; // decode: one row at `near`, all rows at `near`, all rows at `far`
    uint32_t chunk;
    double first_us, last_us; // prefill: the first `chunk` rows of a sequence, and those that end at `far`
};

// Computes the costs that explain these times. No cost is negative, whatever the times are. Needs far > near, far > chunk and rows
// >= 1.
void kv_costs_of(const struct kv_timed *timed, struct kv_costs *out);

// Measures on the pool for about limit_us, with at least one pass of each setting. The calling thread must be the one that uses the
// pool. shape: max_sequences and max_context are ignored. memory_bytes: the most memory that the store may take.
// RESOURCE_EXHAUSTED: not enough memory. INVALID_ARGUMENT: the shape is out of range.
enum status kv_measure(const struct kv_shape *shape, uint64_t memory_bytes, struct thread_pool *pool, uint64_t limit_us,
                       struct kv_costs *out, struct error *error) MUST_CHECK;

#endif
