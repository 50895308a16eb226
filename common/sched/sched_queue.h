// sched_queue.h: the sequences that wait, and deadlines. Private to common/sched.
#ifndef FD_SCHED_SCHED_QUEUE_H
#define FD_SCHED_SCHED_QUEUE_H

#include "common/sched/sched_heap.h"

struct sched;

struct sched_queue {
    struct sched_heap waiting; // those to be rebuilt first, then by arrival
    struct sched_heap deadlines;
    uint32_t fresh; // of `waiting`, those that were never placed
    uint64_t arrivals;
    double lifetime_us; // smoothed: from placement to end
};

void sched_queue_add(struct sched *s, uint32_t slot);
void sched_queue_remove(struct sched *s, uint32_t slot); // not in it: nothing

#endif
