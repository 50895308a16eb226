// settings.h: settings of the scheduler that other programs have too: their values and their --help texts. This is a separate
// header because a program that only passes them on need not see the core's names, some of which libc's <sched.h> has too.
#ifndef FD_SCHED_SETTINGS_H
#define FD_SCHED_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "common/base/status.h"

// The most places of a mesh, and of one step: the local pool and the KV workers. Every table of places has this size.
enum { SCHED_WORKERS_MAX = 256, SCHED_PLACES_MAX = 1 + SCHED_WORKERS_MAX };

// --mini-batches
enum { SCHED_MINI_BATCHES_MAX = 16 };

// --s-parts: stages of a pipeline. With workers two mini-batches are in flight for each.
enum { SCHED_STAGES_MAX = 8 };

// Returns the most mini-batches that are in flight where their number is chosen (--mini-batches 0): the mesh, the simulator and the planner
// have the same. Two keep both sides busy, a third one the link as well; each stage of a pipeline has others beside its own anyway. Without
// workers that have cores of their own there is nothing to wait for.
static inline uint32_t sched_mini_batches_most(uint32_t stages, bool workers)
{
    const uint32_t parts = stages > 1 ? stages : 1, most = workers ? parts * (parts > 1 ? 2 : 3) : parts;
    return most < SCHED_MINI_BATCHES_MAX ? most : SCHED_MINI_BATCHES_MAX;
}

// Frozen extents of a sequence, so that it is at one place more at most.
enum { SCHED_EXTENTS_MAX = 8 };

// Puts a value in its place among the `count` largest, largest first. The places with most pages are what one sequence may have.
static inline void sched_put_largest(uint64_t *largest, uint32_t count, uint64_t value)
{
    for (uint32_t i = 0; i < count; i++)
        if (value > largest[i]) {
            const uint64_t less = largest[i];
            largest[i] = value;
            value = less;
        }
}

// --micro-batch: the prefill rows of a step.
enum sched_micro_batch {
    SCHED_MICRO_BATCH_AUTO = 0, // with several stages uniform; with one as many as the step's time target allows
    SCHED_MICRO_BATCH_WHOLE,    // whole prompts
    SCHED_MICRO_BATCH_UNIFORM,  // as many as make the rows of all steps equal
};
#define SCHED_MICRO_BATCH_NAMES "auto|whole|uniform"
#define SCHED_MICRO_BATCH_HELP                                                                                                  \
    "how much prefill a step has; whole: whole prompts; uniform: so many rows that all steps take equally long; auto: uniform " \
    "with several s-parts, else what the step's time target allows"

// name: one of SCHED_MICRO_BATCH_NAMES.
static inline enum sched_micro_batch sched_micro_batch_named(const char *name)
{
    return !strcmp(name, "whole")     ? SCHED_MICRO_BATCH_WHOLE
           : !strcmp(name, "uniform") ? SCHED_MICRO_BATCH_UNIFORM
                                      : SCHED_MICRO_BATCH_AUTO;
}

// Limits of --max-batch: a step with all running sequences still has 512 rows for prompts.
enum { SCHED_STEP_ROWS_MAX = 8192, SCHED_RUNNING_MAX = SCHED_STEP_ROWS_MAX - 512 };
#define SCHED_RUNNING_HELP "sequences that run at once"

// --placement: where new sequences may go.
enum sched_placement {
    SCHED_PLACE_AUTO = 0, // wherever is predicted to be fastest
    SCHED_PLACE_LOCAL,    // only the s-part's own pool; sequences that do not fit wait
    SCHED_PLACE_WORKERS,  // only KV workers
};
#define SCHED_PLACEMENT_NAMES "auto|local|workers"
#define SCHED_PLACEMENT_HELP \
    "where KV lives; auto: wherever it is predicted to be fastest; local: only in the s-part's pool; workers: only in workers"

// name: one of SCHED_PLACEMENT_NAMES.
static inline enum sched_placement sched_placement_named(const char *name)
{
    return !strcmp(name, "local") ? SCHED_PLACE_LOCAL : !strcmp(name, "workers") ? SCHED_PLACE_WORKERS : SCHED_PLACE_AUTO;
}

// --admission: which waiting sequences may start while KV workers take part.
enum sched_admission {
    SCHED_AUTO = 0, // whichever of the two is predicted to be faster, judged again and again (load.h)
    SCHED_SLS,      // the load-stabilizing schedule (load.h): starts are spaced so that the load stays even
    SCHED_GREEDY,   // a sequence starts as soon as a slot and enough pages are free
};
#define SCHED_ADMISSION_NAMES "auto|sls|greedy"
#define SCHED_ADMISSION_HELP \
    "sls: space starts so that the workers' load stays even; greedy: start as soon as there is room; auto: whichever is predicted to be faster"
#define SCHED_SPACING_HELP \
    "with --admission auto or sls: steps between groups of starts, and auto then means sls; 0: sls spreads starts evenly"

// name: one of SCHED_ADMISSION_NAMES.
static inline enum status sched_admission_choose(const char *name, uint32_t spacing, enum sched_admission *out, struct error *error)
{
    *out = !strcmp(name, "greedy") ? SCHED_GREEDY : !strcmp(name, "sls") || spacing > 0 ? SCHED_SLS : SCHED_AUTO;
    return *out != SCHED_GREEDY || spacing == 0
               ? STATUS_OK
               : error_set(error, STATUS_INVALID_ARGUMENT, "--spacing %u with --admission greedy, which spaces nothing: want sls",
                           spacing);
}

#define SCHED_CHUNK_HELP "most prefill rows of a step; auto: chosen for each step"
// --draft-tokens
enum { SCHED_DRAFT_TOKENS_MAX = 64 };
#define SCHED_DRAFT_TOKENS 8
#define SCHED_DRAFT_TOKENS_HELP \
    "most tokens that a step guesses ahead from earlier text, when that pays; answers keep the same bytes; 0: none"

#define SCHED_STEP_TARGET_HELP \
    "longest step that prefill and workers' load may cause while sequences decode; auto: prefill may make a step 2.2 times as long, or longer while many requests wait; load is not limited"
#define SCHED_PREFIX_CACHE_HELP \
    "prompts with the same beginning share KV pages; pages of ended sequences are kept until the memory is needed"

#endif
