// weight_tiers.h: which segments' weights stay in memory, and which are read from the packed file each step, for a given amount of memory.
//
// What does not fit streams: it is read ahead into slots, one segment each, while the segments before it compute. Streamed segments
// are spread evenly among resident ones, so that the disk reads while those compute. Worked number: 32 segments of 110 MiB and 500 MiB
// that are always resident, in 2,400 MiB: 3 slots take 330 MiB, so 14 segments stay and 18 stream, more than every other one: 1,980 MiB a step.
//
// Pure: no clock, no I/O. Any thread.
#ifndef FD_KERNELS_BACKEND_WEIGHT_TIERS_H
#define FD_KERNELS_BACKEND_WEIGHT_TIERS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

enum { WEIGHT_SLOTS_MIN = 2, WEIGHT_SLOTS_MAX = 3 };

struct weight_tiers {
    uint32_t segment_count, streamed_count; // streamed_count 0: everything is resident
    uint32_t slots;
    uint64_t slot_bytes;     // of one: the largest streamed segment
    uint64_t resident_bytes; // without slots
    uint64_t streamed_bytes; // read each step
};

// Chooses for segments of the given sizes beside always_bytes that are resident in any case. memory_bytes: for all of it, slots included.
// As few segments as possible stream, through 3 slots, or 2 where 3 do not fit. RESOURCE_EXHAUSTED: not even two slots fit; the line
// says how much would do.
enum status weight_tiers_choose(const uint64_t *segment_bytes, uint32_t segment_count, uint64_t always_bytes, uint64_t memory_bytes,
                                struct weight_tiers *out, struct error *error) MUST_CHECK;

// Returns whether a segment streams; segment < segment_count.
static inline bool weight_tiers_streams(const struct weight_tiers *tiers, uint32_t segment)
{
    const uint64_t streamed = tiers->streamed_count, count = tiers->segment_count;
    return (segment + 1) * streamed / count > segment * streamed / count;
}

static inline uint64_t weight_tiers_bytes(const struct weight_tiers *tiers)
{
    return tiers->resident_bytes + tiers->slots * tiers->slot_bytes;
}

#endif
