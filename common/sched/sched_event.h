// sched_event.h: applies events to the state. Private to common/sched.
#ifndef FD_SCHED_SCHED_EVENT_H
#define FD_SCHED_SCHED_EVENT_H

#include "common/sched/sched.h"

void sched_event_apply(struct sched *s, const struct sched_event *event);

#endif
