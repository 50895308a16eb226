// sched_queue.h: waiting sequences, and deadlines. Private to common/sched.
#ifndef FD_SCHED_SCHED_QUEUE_H
#define FD_SCHED_SCHED_QUEUE_H

#include "common/sched/sched_heap.h"

struct sched;

struct sched_queue {
    struct sched_heap waiting; // sequences to be rebuilt first, then by arrival
    struct sched_heap deadlines;
    uint32_t fresh; // how many of `waiting` were never placed
    uint64_t arrivals;
    double lifetime_us; // mean time from placement to end, smoothed
};

void sched_queue_add(struct sched *s, uint32_t slot);
void sched_queue_remove(struct sched *s, uint32_t slot); // does nothing if it is not in the queue

#endif
