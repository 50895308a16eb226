// sim_of.h: runs a simulation that must get to its end.
#ifndef FD_TESTS_UNIT_SIM_OF_H
#define FD_TESTS_UNIT_SIM_OF_H

#include "common/sim/sim.h"
#include "tests/cmocka.h"
#include "tests/unit/sample.h"

// For tests that would take minutes with ThreadSanitizer, which has nothing to find: a simulation has one thread.
static inline void takes_long(void)
{
#ifdef __SANITIZE_THREAD__
    skip();
#endif
}

// For tests that compare figures of runs whose code smaller simulations go through too: a sanitizer has nothing to find there.
static inline void is_a_figure(void)
{
    if (SANITIZED)
        skip();
}

// Every request has all its tokens, and no page is left: the test fails else.
static inline struct sim_result sim_of(const struct sim_config *config)
{
    struct sim_result r;
    struct error error;

    if (sim_run(config, &r, &error))
        fail_msg("%s", error.text);
    if (r.finished != config->request_count || r.lost || r.rejected || r.pages_leaked)
        fail_msg("finished %llu of %llu, lost %llu, rejected %llu, pages left %llu", (unsigned long long)r.finished,
                 (unsigned long long)config->request_count, (unsigned long long)r.lost, (unsigned long long)r.rejected,
                 (unsigned long long)r.pages_leaked);
    return r;
}

#endif
