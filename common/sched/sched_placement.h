/* sched_placement.h: where new sequences may go: its own header, because a program that only passes the word on need not see the core's
 * names (some of them are names of libc's <sched.h> too). */
#ifndef FD_SCHED_SCHED_PLACEMENT_H
#define FD_SCHED_SCHED_PLACEMENT_H

#include <stdbool.h>
#include <string.h>

enum sched_placement {
    SCHED_PLACE_AUTO = 0, // as is predicted to be fastest
    SCHED_PLACE_LOCAL,    // the s-part's own pool only; what does not fit waits
    SCHED_PLACE_WORKERS,  // anywhere but there
};
/* Of --prefix-cache, in both programs that have it. */
#define PREFIX_CACHE_HELP "prompts that begin alike share KV pages, and those of ended sequences stay until they are needed"

#define SCHED_PLACEMENT_HELP \
    "where KV goes: auto (as is predicted to be fastest), local (the s-part's pool only), workers (never there)"

/* By its name in SCHED_PLACEMENT_HELP; false: there is none of that name. */
static inline bool sched_placement_named(const char *name, enum sched_placement *out)
{
    static const char *const names[] = {"auto", "local", "workers"};

    for (int i = 0; i < 3; i++) {
        if (strcmp(name, names[i]))
            continue;
        *out = (enum sched_placement)i;
        return true;
    }
    return false;
}

#endif
