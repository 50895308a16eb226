/* pace.h: time limits that scale. FD_PACE says how many times slower than the machine on which limits were written this one is
 * (tests/e2e/pace.py measures it); a build with sanitizers is PACE_FACTOR_SANITIZED times slower. */
#ifndef FD_TESTS_PACE_H
#define FD_TESTS_PACE_H

#include <stdint.h>
#include <stdlib.h>

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { PACE_FACTOR_SANITIZED = 4 };
#else
enum { PACE_FACTOR_SANITIZED = 1 };
#endif

/* A time limit, scaled. */
static inline uint64_t pace_us(uint64_t limit_us)
{
    const char *text = getenv("FD_PACE");
    double factor = text ? strtod(text, NULL) : 1;
    return (uint64_t)((double)limit_us * PACE_FACTOR_SANITIZED * (factor > 1 ? factor : 1));
}

#endif
