// sample.h: which cases of a table a run looks at, where all of them would take long: one in so many, and each commit others, so that all
// have their turn. FD_SEED says which; tests/run.py sets it to the number of commits. FD_ALL=1 runs all (`make check-full`).
#ifndef FD_TESTS_UNIT_SAMPLE_H
#define FD_TESTS_UNIT_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

static inline uint32_t sample_seed(void)
{
    const char *seed = getenv("FD_SEED");
    return seed ? (uint32_t)strtoull(seed, NULL, 10) : 0;
}

// Whether case `index` is one of this run's: one in `parts`, one in `sanitized_parts` under a sanitizer or, by FD_EMULATED, an emulator. Neither shares a factor with the
// periods of what makes up the cases: else some combinations would never be in one sample.
static inline bool in_sample(uint32_t index, uint32_t parts, uint32_t sanitized_parts)
{
    const uint32_t of = SANITIZED || getenv("FD_EMULATED") ? sanitized_parts : parts;
    const char *all = getenv("FD_ALL");
    return (all && *all == '1') || (index % of + sample_seed() % of) % of == 0;
}

#endif
