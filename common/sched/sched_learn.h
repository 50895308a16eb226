// sched_learn.h: corrects the models of time by the answer to a step. Private to common/sched.
#ifndef FD_SCHED_SCHED_LEARN_H
#define FD_SCHED_SCHED_LEARN_H

#include "common/sched/sched_batch.h"

void sched_learn_step(struct sched *s, const struct sched_flight *flight, const struct sched_step_done *done);

#endif
