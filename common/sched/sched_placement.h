/* sched_placement.h: where new sequences may go: its own header, because a program that only passes the word on need not see the core's
 * names (some of them are names of libc's <sched.h> too). */
#ifndef FD_SCHED_SCHED_PLACEMENT_H
#define FD_SCHED_SCHED_PLACEMENT_H

#include <string.h>

enum sched_placement {
    SCHED_PLACE_AUTO = 0, // as is predicted to be fastest
    SCHED_PLACE_LOCAL,    // the s-part's own pool only; what does not fit waits
    SCHED_PLACE_WORKERS,  // anywhere but there
};
/* Of settings that both the scheduler and `up` have. */
#define STEP_TARGET_HELP \
    "what prefill may make a step of running sequences take (or 2.4 times as long as without), and workers' load; 0: 16, longer while more wait than run, any load"
#define PREFIX_CACHE_HELP "prompts that begin alike share KV pages, and those of ended sequences stay until they are needed"

/* Of --placement. */
#define SCHED_PLACEMENT_NAMES "auto|local|workers"
#define SCHED_PLACEMENT_HELP "where KV goes: as is predicted to be fastest, to the s-part's pool only, or never there"

/* name: one of SCHED_PLACEMENT_NAMES. */
static inline enum sched_placement sched_placement_named(const char *name)
{
    return !strcmp(name, "local") ? SCHED_PLACE_LOCAL : !strcmp(name, "workers") ? SCHED_PLACE_WORKERS : SCHED_PLACE_AUTO;
}

#endif
