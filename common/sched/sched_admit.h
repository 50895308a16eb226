// sched_admit.h: moves sequences from the queue into mini-batches. Private to common/sched.
#ifndef FD_SCHED_SCHED_ADMIT_H
#define FD_SCHED_SCHED_ADMIT_H

struct sched;

void sched_admit(struct sched *s);

#endif
