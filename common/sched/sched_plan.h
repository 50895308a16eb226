// sched_plan.h: plans the rows of one step. Private to common/sched.
#ifndef FD_SCHED_SCHED_PLAN_H
#define FD_SCHED_SCHED_PLAN_H

#include <stdbool.h>
#include <stdint.h>

struct sched;

// Emits one step of a mini-batch. Returns false if there is nothing to do. idle: no step is in flight, and no mini-batch has one for the
// class that leads: then class batch may have one, wherever the others run.
bool sched_plan_step(struct sched *s, uint32_t mini_batch, bool idle);

#endif
