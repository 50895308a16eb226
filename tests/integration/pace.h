/* pace.h: time limits that scale, as tests/e2e/pace.py has them. FD_PACE says how many times slower than the machine on which limits were written
 * this one is; a build with sanitizers is PACE_FACTOR_SANITIZED times slower. Something else may run here since that was measured, so before a wait
 * fails it is measured again. Limits of the services under test go through pace_us(), and are tested with a wide margin. */
#ifndef FD_TESTS_PACE_H
#define FD_TESTS_PACE_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"

enum { PACE_WAIT_US = 30 * 1000 * 1000 }; // for what should come soon

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { PACE_FACTOR_SANITIZED = 4 };
#else
enum { PACE_FACTOR_SANITIZED = 1 };
#endif

static inline double pace_factor(void)
{
    const char *text = getenv("FD_PACE");
    double factor = text ? strtod(text, NULL) : 1;
    return factor > 1 ? factor : 1;
}

static inline uint64_t pace_scaled_us(uint64_t limit_us, double factor)
{
    return (uint64_t)((double)limit_us * PACE_FACTOR_SANITIZED * factor);
}

/* A time limit, scaled. */
static inline uint64_t pace_us(uint64_t limit_us) { return pace_scaled_us(limit_us, pace_factor()); }

/* A limit that has begun to run. */
struct pace_deadline {
    uint64_t began_us, limit_us;
    double factor;
};

static inline struct pace_deadline pace_deadline(uint64_t limit_us)
{
    return (struct pace_deadline){clock_now_us(), limit_us, pace_factor()};
}

/* The machine's factor as of now; 1 where it cannot be measured. Takes half a second. */
static inline double pace_measured(void)
{
    double factor = 1;
    FILE *output = popen("python3 tests/e2e/pace.py 2>&1", "r"); // tests run in the root of the tree

    if (output && fscanf(output, "%lf", &factor) != 1)
        factor = 1;
    if (output)
        pclose(output);
    return factor;
}

/* Returns the time left before the limit, at least one millisecond. */
static inline int pace_left_ms(const struct pace_deadline *deadline)
{
    uint64_t until_us = deadline->began_us + pace_scaled_us(deadline->limit_us, deadline->factor), now_us = clock_now_us();
    return until_us > now_us + 1000 ? (int)((until_us - now_us) / 1000) : 1;
}

/* Whether the wait has failed. */
static inline bool pace_passed(struct pace_deadline *deadline)
{
    while (clock_now_us() > deadline->began_us + pace_scaled_us(deadline->limit_us, deadline->factor)) {
        double factor = pace_measured();
        if (factor <= 1.2 * deadline->factor)
            return true;
        deadline->factor = factor;
    }
    return false;
}

/* poll() with a limit of PACE_WAIT_US. False: nothing came in time. */
static inline bool pace_poll(struct pollfd *sockets, nfds_t count)
{
    struct pace_deadline deadline = pace_deadline(PACE_WAIT_US);

    do {
        if (poll(sockets, count, pace_left_ms(&deadline)) > 0)
            return true;
    } while (!pace_passed(&deadline));
    return false;
}

#endif
