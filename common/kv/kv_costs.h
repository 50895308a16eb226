// kv_costs.h: what attention costs a place with a model's shape of KV: r and r_p of the performance model (common/plan/cost.h).
//
//     decode, a layer:    call_us + rows·row_us + Σ context·token_us
//     prefill, a layer:   call_us + rows·prefill_row_us + Σ context·pair_us
#ifndef FD_KV_KV_COSTS_H
#define FD_KV_KV_COSTS_H

#include <stdint.h>

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

#endif
