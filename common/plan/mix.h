// mix.h: the cheapest meshes that together reach a rate, out of several kinds of S-parts and workers with prices.
//
// A mesh is one S-part with N workers of one kind, or none. For each pair of kinds and each N the batch is taken that gives most
// tokens a second within the allowed time between tokens. Meshes that cost more and reach less than another are left out. Of the
// rest, all counts of one or two kinds of mesh are tried. (More kinds are rarely cheaper: the second kind only fills what whole
// numbers of the best leave over.)
//
// Worked number: 3,000 tokens/s are wanted; a mesh of 1,000 costs 1.00, one of 300 costs 0.35. The answer is 3 of the first. For
// 3,200 it is 3 of the first and 1 of the second: 3.35 instead of 4.00.
//
// On any thread. Allocates nothing, but the tables of a call take some 100 KiB of stack.
#ifndef FD_PLAN_MIX_H
#define FD_PLAN_MIX_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/plan/plan.h"

enum { PLAN_MIX_KINDS = 8, PLAN_MIX_WORKERS = 64, PLAN_MIX_COUNT = 1000 };

struct plan_mix_part {
    uint32_t count; // of this mesh
    const struct hardware *s_part, *worker;
    struct plan plan; // of one
};

struct plan_mix {
    struct plan_mix_part parts[2];
    uint32_t part_count; // 1 or 2
    double tokens_per_second, price_per_hour, cost_per_million;
};

// Finds the cheapest mix that reaches the request's tokens_per_second within its latency_ms; its s_part, worker, batch and workers are
// ignored. At most PLAN_MIX_KINDS of each kind. INVALID_ARGUMENT: a price or the rate is missing. FAILED_PRECONDITION: no mesh fits in
// memory and time, or more than PLAN_MIX_COUNT are needed.
enum status plan_cheapest(const struct plan_request *request, const struct hardware *s_parts, uint32_t s_part_count,
                          const struct hardware *workers, uint32_t worker_count, struct plan_mix *out,
                          struct error *error) MUST_CHECK;

#endif
