// sched_answer.h: handles steps that are answered or have become void. Private to common/sched.
#ifndef FD_SCHED_SCHED_ANSWER_H
#define FD_SCHED_SCHED_ANSWER_H

#include "common/sched/sched_batch.h"

void sched_answer_void(struct sched *s, struct sched_flight *flight); // drops the step's results and plans its rows again
void sched_answer_done(struct sched *s, const struct sched_step_done *done);

#endif
