// sched_queue.h: waiting sequences, and deadlines. Private to common/sched.
#ifndef FD_SCHED_SCHED_QUEUE_H
#define FD_SCHED_SCHED_QUEUE_H

#include "common/sched/sched.h"
#include "common/sched/sched_heap.h"

struct sched;

struct sched_queue {
    struct sched_heap waiting; // interactive sequences first; of a class, those to be rebuilt first, then by arrival
    struct sched_heap deadlines;
    uint32_t count[SCHED_CLASSES]; // how many are in `waiting`
    uint32_t fresh[SCHED_CLASSES]; // how many of these were never placed
    uint64_t known[SCHED_CLASSES]; // tokens of theirs that exist, which are prefilled once they are placed
    uint64_t arrivals;
    double lifetime_us[SCHED_CLASSES]; // mean time from placement to end, smoothed
};

void sched_queue_add(struct sched *s, uint32_t slot);
void sched_queue_remove(struct sched *s, uint32_t slot); // does nothing if it is not in the queue

#endif
