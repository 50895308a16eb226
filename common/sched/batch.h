// batch.h: mini-batches: their sequences, and their steps in flight. Private to common/sched.
#ifndef FD_SCHED_BATCH_H
#define FD_SCHED_BATCH_H

#include "common/sched/sched.h"

// The part of a sequence's state that belongs here, while it is in prefill.
struct sched_batch_link {
    uint32_t prev, next; // in its mini-batch's list, oldest first
};

struct sched_flight_run {
    uint32_t slot, epoch;
    uint32_t source; // the pinned sequence that provides its first pages, or NONE
};

// A step, from its action to its answer.
struct sched_flight {
    uint64_t id;
    uint32_t mini_batch, run_count, row_count, prefill_rows, draft_rows;
    enum sched_class class;            // whose step it is. Rows of a class behind it were added last
    uint32_t decode_rows, decode_runs; // the first ones: those of that class that decode, with their drafts
    uint32_t late_run;                 // the first run of a class behind it; run_count: there is none
    uint64_t emitted_us;
    bool aside;                    // it has prompts alone, and goes aside (plan.c)
    bool queued;                   // it follows another step that is in flight
    struct sched_run *runs;        // [max_batch_rows]
    struct sched_flight_run *refs; // [max_batch_rows]
    struct sched_extent *extents;  // [max_extents] of its runs
    uint32_t extent_count;
    uint64_t partials; // of the rows of split sequences
};

// The sequences of one class in a mini-batch.
struct sched_group {
    uint32_t *members; // [max_sequences] slots in DECODE
    uint32_t member_count;
    uint32_t cursor; // the member whose decode row is first when not all fit in a step
    uint32_t prefill_head, prefill_tail, prefill_count;
    uint64_t prefill_rows; // still to plan
};

struct sched_batch {
    struct sched_group of[SCHED_CLASSES];
    uint32_t late_steps;                                  // steps since one had rows of a class behind its own
    double late_saved_us;                                 // time for such rows that the steps before left unused
    struct sched_flight *in_flight[SCHED_PLAN_AHEAD_MAX]; // oldest first
    uint32_t in_flight_count;
    struct sched_flight *spare[SCHED_PLAN_AHEAD_MAX];
    uint32_t spare_count;
};

struct sched_batches {
    struct sched_batch of[SCHED_MINI_BATCHES_MAX];
    uint32_t in_use, wanted;                      // wanted: their number once the steps in flight are answered
    uint64_t judged;                              // number of steps emitted when the number was last judged
    double missed_us[SCHED_MINI_BATCHES_MAX + 1]; // [number] time that it would have saved since then, as predicted
    uint32_t turn;                                // the mini-batch that is planned first
    struct sched_flight *flights;                 // all records, to which in_flight and spare point
    uint64_t next_step;
};

// Returns the number of mini-batches that may have steps in flight: with the one for steps that go aside, which has no sequences.
uint32_t sched_batch_count_all(const struct sched *s);

// Returns how many sequences of a class are in the mini-batch.
static inline uint32_t sched_batch_size(const struct sched_batch *batch, enum sched_class class)
{
    return batch->of[class].member_count + batch->of[class].prefill_count;
}

// Add a sequence to, or remove it from, the list of those in prefill (oldest first) or the members (those in DECODE).
void sched_batch_add_prefill(struct sched *s, uint32_t slot);
void sched_batch_remove_prefill(struct sched *s, uint32_t slot);
void sched_batch_add_member(struct sched *s, uint32_t slot);
void sched_batch_remove_member(struct sched *s, uint32_t slot);
void sched_batch_prefill_done(struct sched *s, uint32_t slot); // PREFILL -> DECODE: all rows below target are planned

// Returns a step in flight by its id; NULL: unknown, or already void.
struct sched_flight *sched_batch_find_flight(struct sched *s, uint64_t id);
void sched_batch_retire_flight(struct sched *s, struct sched_flight *flight);

#endif
