// shrink.h: the smallest schedule that fails in the same way.
#ifndef FD_TESTS_SIM_SHRINK_H
#define FD_TESTS_SIM_SHRINK_H

#include "tests/sim/schedule.h"

// Runs a schedule. Returns what was wrong, valid until the next call; NULL: nothing. A crash is an answer too, so it runs in a process of its own.
typedef const char *shrink_run_fn(const struct schedule *schedule, void *arg);

// Makes *schedule, which failed with that text, as small as it can while it fails alike: the text is the same up to the first colon, numbers aside, and a
// wrong answer has the same status.
// Ends after some thousand runs or five minutes. Returns the number of runs.
uint32_t shrink(struct schedule *schedule, const char *failure, shrink_run_fn *run, void *arg);

#endif
