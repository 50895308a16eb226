// extents.h: what a sequence costs whose KV no worker can hold whole, so that it lies at several (docs/scheduling.md).
//
// Every row of it goes to all of its workers in each layer: q there, and back from each one partial result for each span of 4,096 tokens that
// it holds from the start, and one for each 512 tokens before its first span. A partial result has (2 + head_dim) floats a head.
//
// Worked number: 9 heads of 64, 16,384 tokens on 4 workers that begin at multiples of 4,096: 4 partial results of 9·66·4 = 2,376 bytes
// come back where one worker sends 9·64·4 = 2,304.
//
// Plain values, on any thread.
#ifndef FD_PLAN_EXTENTS_H
#define FD_PLAN_EXTENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/plan/plan.h"

enum { PLAN_EXTENT_PLACES_MAX = 9 };

struct plan_extents {
    uint32_t tokens;                 // of the sequence at its end
    uint32_t workers;                // among which it is dealt out evenly
    uint32_t spans;                  // of 4,096 tokens
    uint32_t partials;               // that a row gets in a layer
    double layer_bytes, whole_bytes; // that a row sends and gets in a layer; if one worker had all of it
};

// Returns whether no worker can hold a sequence of all its tokens.
bool plan_extents_needed(const struct plan_request *r);

// Fills in what such a sequence costs on so many workers. False: none is too large, or all that it may use have too little memory.
bool plan_extents(const struct plan_request *r, uint32_t workers, struct plan_extents *out);

#endif
