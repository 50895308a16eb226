// sched_batch_count.h: how many mini-batches are in use. Private to common/sched.
#ifndef FD_SCHED_SCHED_BATCH_COUNT_H
#define FD_SCHED_SCHED_BATCH_COUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/sched/sched.h"

struct sched;

// Chooses their number. Returns false if no step may be planned until those in flight are answered.
bool sched_batch_count_settled(struct sched *s);

// Moves the sequences of a class that does not lead out of a mini-batch that has none of the leading class. Only mini-batches with those have
// steps, so the sequences join one of them.
void sched_batch_count_follow(struct sched *s, uint32_t mini_batch, enum sched_class class);

#endif
