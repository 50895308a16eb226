// sched_plan.h: plans the rows of one step. Private to common/sched.
#ifndef FD_SCHED_SCHED_PLAN_H
#define FD_SCHED_SCHED_PLAN_H

#include <stdbool.h>
#include <stdint.h>

struct sched;

// Emits one step of a mini-batch. Returns false if there is nothing to do. idle: no step is in flight, and no mini-batch has one for the
// class that leads: then class batch may have one, wherever the others run.
// Plans a step of prompts that goes aside, if there are prompts beside decode rows, and no more than `ahead` such steps are in flight.
void sched_plan_aside(struct sched *s, uint32_t ahead);
bool sched_plan_step(struct sched *s, uint32_t mini_batch, bool idle);

#endif
