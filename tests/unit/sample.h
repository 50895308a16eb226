// sample.h: which cases of a table a run looks at, where all of them would take long: one in so many, and each commit others, so that all
// have their turn. FD_SEED says which; tests/run.py sets it to the number of commits. FD_ALL=1 runs all (`make check-full`); FD_EMULATED=1:
// under an emulator (tests/arm/check_arm.sh).
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

// Whether the program runs under an emulator, which takes some fifty times as long: tests then make their sequences shorter, too.
static inline bool is_emulated(void)
{
    const char *emulated = getenv("FD_EMULATED");
    return emulated && *emulated == '1';
}

// Whether case `index` is one of this run's: one in `parts`, or one in `sanitized_parts` under a sanitizer or an emulator. Neither shares a
// factor with the periods of what makes up the cases: else some combinations would never be in one sample.
static inline bool in_sample(uint32_t index, uint32_t parts, uint32_t sanitized_parts)
{
    const uint32_t of = SANITIZED || is_emulated() ? sanitized_parts : parts;
    const char *all = getenv("FD_ALL");
    return (all && *all == '1') || (index % of + sample_seed() % of) % of == 0;
}

#endif
