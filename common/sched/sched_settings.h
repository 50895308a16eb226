// sched_settings.h: settings of the scheduler that other programs have, too: what they may be, and what --help says of them. Its own
// header, because a program that only passes them on need not see the core's names (some are names of libc's <sched.h> too).
#ifndef FD_SCHED_SCHED_SETTINGS_H
#define FD_SCHED_SCHED_SETTINGS_H

#include <string.h>

// Places of a mesh, and of one step: the local pool and so many KV workers. Every table of places has this size.
enum { SCHED_WORKERS_MAX = 256, SCHED_PLACES_MAX = 1 + SCHED_WORKERS_MAX };

// --max-batch: a step of all that run has 512 rows for prompts, too.
enum { SCHED_STEP_ROWS_MAX = 8192, SCHED_RUNNING_MAX = SCHED_STEP_ROWS_MAX - 512 };
#define SCHED_RUNNING_HELP "sequences that run at once"

// --placement: where new sequences may go.
enum sched_placement {
    SCHED_PLACE_AUTO = 0, // as is predicted to be fastest
    SCHED_PLACE_LOCAL,    // the s-part's own pool only; what does not fit waits
    SCHED_PLACE_WORKERS,  // anywhere but there
};
#define SCHED_PLACEMENT_NAMES "auto|local|workers"
#define SCHED_PLACEMENT_HELP "where KV lives: wherever is predicted to be fastest, only in the s-part's pool, or only in workers"

// name: one of SCHED_PLACEMENT_NAMES.
static inline enum sched_placement sched_placement_named(const char *name)
{
    return !strcmp(name, "local") ? SCHED_PLACE_LOCAL : !strcmp(name, "workers") ? SCHED_PLACE_WORKERS : SCHED_PLACE_AUTO;
}

// --admission, and --spacing, which is of its first word
#define SCHED_ADMISSION_NAMES "sls|greedy"
#define SCHED_ADMISSION_HELP "sls: space starts so that the workers' load stays even; greedy: start as soon as there is room"
#define SCHED_SPACING_HELP "with --admission sls: steps between admission groups; 0 chooses automatically"

#define SCHED_CHUNK_HELP "prefill rows of a step, at most; auto chooses for each step"
// --draft-tokens
enum { SCHED_DRAFT_TOKENS_MAX = 64 };
#define SCHED_DRAFT_TOKENS 8
#define SCHED_DRAFT_TOKENS_HELP \
    "tokens that a step may guess ahead from what followed before, where that pays; answers keep the same bytes; 0: none"

#define SCHED_STEP_TARGET_HELP \
    "how long prefill and workers' load may make a step beside running sequences; auto: 16 for prefill, more while many wait; any load"
#define SCHED_PREFIX_CACHE_HELP "prompts that begin alike share KV pages; pages of ended sequences are kept until they are needed"

#endif
