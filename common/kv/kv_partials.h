// kv_partials.h: attention of a sequence whose KV is at several places: each gives partial results of the positions that it holds, and
// whoever has them all folds them to the bits that one place with all positions gives (kernels/attention/attention.h).
//
//     positions    0 … 4095 │ 4096 … 4607 4608 … 5119 … 8191 │ 8192 … 9000
//     extents      └─────── first place ──────┘ └──── second place ────┘
//     partials     │  span  │   span so far   │  7 ranges    │  span so far
//
// A place that holds a span from its start has folded its ranges in order, as far as it has them. Ranges of a span whose start is elsewhere
// come one by one, because they are folded behind what is before them.
//
// A partial is [heads] the largest score, [heads] the sum of weights, [heads][head_dim] weighted V, all f32. Any thread.
#ifndef FD_KV_KV_PARTIALS_H
#define FD_KV_KV_PARTIALS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/checked.h"

#define KV_RANGE 512u // positions of a partial that stands alone
#define KV_SPAN 4096u // positions of a partial of several ranges, folded in order
#define KV_SPAN_RANGES (KV_SPAN / KV_RANGE)

// Returns the number of partials of positions [first, end). first: a multiple of KV_RANGE, below end.
static inline uint32_t kv_partial_count(uint32_t first, uint32_t end)
{
    uint32_t first_range = first / KV_RANGE, ranges = (end - first + KV_RANGE - 1) / KV_RANGE;
    uint32_t single = MIN(ranges, (KV_SPAN_RANGES - first_range % KV_SPAN_RANGES) % KV_SPAN_RANGES);

    return single + (ranges - single + KV_SPAN_RANGES - 1) / KV_SPAN_RANGES;
}

// Returns the number of floats of one partial.
static inline size_t kv_partial_floats(uint32_t heads, uint32_t head_dim) { return (size_t)heads * (head_dim + 2); }

#endif
