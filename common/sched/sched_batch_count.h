// sched_batch_count.h: how many mini-batches are in use. Private to common/sched.
#ifndef FD_SCHED_SCHED_BATCH_COUNT_H
#define FD_SCHED_SCHED_BATCH_COUNT_H

#include <stdbool.h>

struct sched;

// Chooses their number. False: nothing is to be planned until what is in flight is back.
bool sched_batch_count_settled(struct sched *s);

#endif
