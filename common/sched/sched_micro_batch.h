// sched_micro_batch.h: how many prefill rows a step has: config.micro_batch. Private to common/sched.
#ifndef FD_SCHED_SCHED_MICRO_BATCH_H
#define FD_SCHED_SCHED_MICRO_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "common/sched/sched_batch.h"
#include "common/sched/sched_seq.h"

// What is known of the rows that all steps of a class are to have.
struct sched_micro_batches {
    uint32_t rows;   // 0: not judged yet
    uint64_t judged; // number of steps emitted when it was judged last
    bool saturated;  // sequences waited then
};

// Returns how many prefill rows a step of the group may have beside its decode rows.
uint32_t sched_micro_batch_prefill(struct sched *s, enum sched_class class, const struct sched_group *group, uint32_t decode_rows);

// Whether a prompt's next rows may be added to a step in which `left` rows are left for prefill.
bool sched_micro_batch_takes(const struct sched *s, const struct sched_flight *step, const struct sched_seq *seq, uint32_t left);

// Returns how many rows a step of a class may have in all, once it has its decode rows and prefill: what rows of a class behind it must keep
// to.
uint32_t sched_micro_batch_most(const struct sched *s, const struct sched_flight *step);

#endif
