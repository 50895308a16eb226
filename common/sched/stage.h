// stage.h: two rules about a stage's time that s-parts, on their clock, and the simulator share: why a stage of a pipeline was idle, and when a
// segment of a step that goes aside begins.
//
// A bubble is time in which a stage has nothing to do while a micro-batch (a mini-batch's step) is in the pipeline, that is between the
// first segment of the first stage and the last one of the last. Its cause is one of those of SARATHI (arXiv 2308.16369), by the
// micro-batches on both sides of the gap, and one of our own:
//
//   PB1  both have prefill rows: their numbers of rows differ
//   PB2  one of them has: a step with prefill takes longer than one without
//   PB3  neither has: their contexts differ
//   R    the micro-batch that ends the gap comes back from KV workers
//
//      stage 0  [ A prefill, 90 ms ][ B ][ C ]
//      stage 1  .....................[ A prefill, 90 ms ][ B ][ C ]
//      stage 2  [ C ]...........................................[ A prefill …      idle behind C until A comes: PB2
//
// Plain values, on any thread. Times are of the stage's own clock.
#ifndef FD_SCHED_STAGE_H
#define FD_SCHED_STAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/checked.h"

enum sched_bubble { SCHED_BUBBLE_PB1 = 0, SCHED_BUBBLE_PB2, SCHED_BUBBLE_PB3, SCHED_BUBBLE_R, SCHED_BUBBLES };

// Time without work at a stage, from the end of one micro-batch's segment to the begin of the next one's.
struct sched_gap {
    uint64_t begin_us, end_us;
    uint64_t entered_us;                // when the micro-batch that ends the gap entered the pipeline
    uint64_t left_us;                   // when the last of those that entered before it left the pipeline; UINT64_MAX: one has not
    bool prefill_before, prefill_after; // whether the micro-batches on both sides have prefill rows
    bool waited;                        // the one behind the gap comes back from KV workers, and not from the stage before
};

// Returns the cause of a gap, and how much of it is a bubble: the time in which a micro-batch was in the pipeline.
enum sched_bubble sched_bubble_of(const struct sched_gap *gap, uint64_t *us);

// "pb1", "pb2", "pb3", "r".
const char *sched_bubble_name(enum sched_bubble kind);

// Returns whether of most_us, the time between two steps of the others, enough is left: half of what the latest segment took. used_us: what
// steps that go aside have had of it. However long the latest segment was, one fits into the time that nobody has used: only a segment can
// show that they are short again.
static inline bool sched_aside_has_time(double used_us, double latest_us, double most_us)
{
    return used_us + MIN(latest_us, most_us) / 2 < most_us;
}

#endif
