// sched_admit.h: from the queue into mini-batches, and what to do when pages run out (sched_shortage.c). Private to common/sched.
#ifndef FD_SCHED_SCHED_ADMIT_H
#define FD_SCHED_SCHED_ADMIT_H

#include <stdbool.h>

struct sched;

void sched_admit(struct sched *s);
bool sched_shortage_resolve(struct sched *s); // true: pages are on their way that were not before
void sched_shortage_drain(struct sched *s);   // places that drain hand over what they hold

#endif
