// sched_shortage.h: what to do when pages run out, and how a place that drains is emptied. Private to common/sched.
#ifndef FD_SCHED_SCHED_SHORTAGE_H
#define FD_SCHED_SCHED_SHORTAGE_H

#include <stdbool.h>

struct sched;

bool sched_shortage_resolve(struct sched *s); // true: pages are on their way that were not before
void sched_shortage_drain(struct sched *s);   // places that drain hand over what they hold

#endif
