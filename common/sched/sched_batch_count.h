// sched_batch_count.h: how many mini-batches are in use. Private to common/sched.
#ifndef FD_SCHED_SCHED_BATCH_COUNT_H
#define FD_SCHED_SCHED_BATCH_COUNT_H

#include <stdbool.h>

struct sched;

// Chooses their number. Returns false if no step may be planned until those in flight are answered.
bool sched_batch_count_settled(struct sched *s);

#endif
