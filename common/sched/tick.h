// tick.h: what a tick of the core does, beside moves (balance.h): it takes the events, resolves shortages of pages, empties places that drain,
// lets waiting sequences in, and plans steps. Private to common/sched.
#ifndef FD_SCHED_TICK_H
#define FD_SCHED_TICK_H

#include "common/sched/sched.h"

void sched_event_apply(struct sched *s, const struct sched_event *event);
bool sched_shortage_resolve(struct sched *s); // returns true if it has begun to free pages
void sched_shortage_drain(struct sched *s);   // hands over the sequences of draining places
void sched_admit(struct sched *s);            // from the queue into mini-batches
void sched_plan(struct sched *s);             // emits as many steps of each mini-batch as may be in flight

#endif
