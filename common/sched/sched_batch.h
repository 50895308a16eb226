// sched_batch.h: mini-batches: who is in them, and their steps in flight. Private to common/sched.
#ifndef FD_SCHED_SCHED_BATCH_H
#define FD_SCHED_SCHED_BATCH_H

#include "common/sched/sched.h"

struct sched;

// A sequence's part, while it is in prefill.
struct sched_batch_link {
    uint32_t prev, next; // in its mini-batch, oldest first
};

struct sched_flight_run {
    uint32_t slot, epoch;
    uint32_t source; // pinned: who gives it its first pages; NONE
};

// A step, from its action to its answer.
struct sched_flight {
    uint64_t id;
    uint32_t mini_batch, run_count, row_count, prefill_rows, draft_rows;
    uint64_t emitted_us;
    bool queued;                   // behind another one
    struct sched_run *runs;        // [max_batch_rows]
    struct sched_flight_run *refs; // [max_batch_rows]
};

struct sched_batch {
    uint32_t *members; // [max_sequences] slots in DECODE
    uint32_t member_count;
    uint32_t cursor; // where decode rows start when not all fit a step
    uint32_t prefill_head, prefill_tail, prefill_count;
    uint64_t prefill_rows;                                // left to plan
    struct sched_flight *in_flight[SCHED_PLAN_AHEAD_MAX]; // oldest first
    uint32_t in_flight_count;
    struct sched_flight *spare[SCHED_PLAN_AHEAD_MAX];
    uint32_t spare_count;
};

struct sched_batches {
    struct sched_batch of[SCHED_MINI_BATCHES_MAX];
    uint32_t in_use, wanted;      // wanted: after what is in flight is back
    uint64_t judged;              // steps emitted by then
    uint32_t turn;                // mini-batch that is planned first
    struct sched_flight *flights; // all records, behind in_flight and spare
    uint64_t next_step;
};

// Returns how many sequences are in it.
static inline uint32_t sched_batch_size(const struct sched_batch *batch) { return batch->member_count + batch->prefill_count; }

// Into and out of the list of those in prefill, oldest first; in DECODE: among the members.
void sched_batch_add_prefill(struct sched *s, uint32_t slot);
void sched_batch_remove_prefill(struct sched *s, uint32_t slot);
void sched_batch_add_member(struct sched *s, uint32_t slot);
void sched_batch_remove_member(struct sched *s, uint32_t slot);
void sched_batch_prefill_done(struct sched *s, uint32_t slot); // PREFILL -> DECODE: all rows below target are planned

// A step in flight by its id; NULL: unknown, or void already.
struct sched_flight *sched_batch_find_flight(struct sched *s, uint64_t id);
void sched_batch_retire_flight(struct sched *s, struct sched_flight *flight);

#endif
