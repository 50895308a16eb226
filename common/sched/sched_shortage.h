// sched_shortage.h: resolves shortages of pages, and empties draining places. Private to common/sched.
#ifndef FD_SCHED_SCHED_SHORTAGE_H
#define FD_SCHED_SCHED_SHORTAGE_H

#include <stdbool.h>

struct sched;

bool sched_shortage_resolve(struct sched *s); // returns true if it has begun to free pages
void sched_shortage_drain(struct sched *s);   // hands over the sequences of draining places

#endif
