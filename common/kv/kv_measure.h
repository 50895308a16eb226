// kv_measure.h: what attention costs on these threads with this shape of KV: r and r_p of the performance model (common/plan/cost.h).
//
// On a store that is larger than caches are, with the model's layers in its pages, or as many as leave room for four sequences: what
// one layer reads lies apart in memory as in a step (a store of one layer, all in one piece, was read up to twice as fast). Zeros in
// it are as fast to read. Five settings are timed by the kernels of the service, each by the median of its passes over all layers, and give
//
//     decode, a layer:    call_us + rows·row_us + Σ context·token_us
//     prefill, a layer:   call_us + rows·prefill_row_us + Σ context·pair_us
#ifndef FD_KV_KV_MEASURE_H
#define FD_KV_KV_MEASURE_H

#include "common/kv/kv_store.h"

struct kv_costs {
    double call_us;        // of a layer, whatever its rows: waking threads, dividing the work
    double row_us;         // storing K and V of a row, and its share of what else a row costs
    double token_us;       // r: one context token of a decode row
    double prefill_row_us; // as row_us, of a prefill row
    double pair_us;        // r_p: one prefill row and one context token
};

// What a layer took in the five settings.
struct kv_timed {
    uint32_t rows, near, far;       // of as many sequences; contexts
    double one_us, near_us, far_us; // decode: one row at `near`, all rows at `near` and at `far`
    uint32_t chunk;
    double first_us, last_us; // prefill: the first `chunk` rows of a sequence, and those that end at `far`
};

// The costs that give these times; none below zero, however they lie. far >= near + 1 and chunk + 1, rows >= 1.
void kv_costs_of(const struct kv_timed *timed, struct kv_costs *out);

// shape: its max_sequences and max_context are not looked at. memory_bytes: what the store may take meanwhile. Runs on the
// pool, whose caller it is, for about limit_us; one pass of each setting whatever that takes. RESOURCE_EXHAUSTED without memory;
// INVALID_ARGUMENT for a shape out of range.
enum status kv_measure(const struct kv_shape *shape, uint64_t memory_bytes, struct thread_pool *pool, uint64_t limit_us,
                       struct kv_costs *out, struct error *error) MUST_CHECK;

#endif
