// sched_aside.h: when a segment of a step that goes aside begins (services/s-part/engine_aside.c). The s-part asks it of its clock, the
// simulator of its own. Pure; any thread.
#ifndef FD_SCHED_SCHED_ASIDE_H
#define FD_SCHED_SCHED_ASIDE_H

#include <stdbool.h>

#include "common/base/checked.h"

// Returns whether of most_us, the time between two steps of the others, enough is left: half of what the latest segment took. used_us: what
// steps that go aside have had of it. However long the latest segment was, one fits into the time that nobody has used: only a segment can
// show that they are short again.
static inline bool sched_aside_has_time(double used_us, double latest_us, double most_us)
{
    return used_us + MIN(latest_us, most_us) / 2 < most_us;
}

#endif
