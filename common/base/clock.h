// clock.h: time. Monotonic microseconds for everything that is measured; wall time only for names and logs.
#ifndef FD_BASE_CLOCK_H
#define FD_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline uint64_t clock_now_us(void) { return clock_now_ns() / 1000; }

// Returns how long this process did not run (because it was throttled or stopped, or its machine was moved). The caller calls this
// at least every every_us, and the result is how much more time has passed since the last call; 0 if less than twice every_us has
// passed. *looked_us: time of the last call; 0: there was none.
static inline uint64_t clock_stall_us(uint64_t *looked_us, uint64_t now_us, uint64_t every_us)
{
    uint64_t gap_us = *looked_us ? now_us - *looked_us : 0;
    *looked_us = now_us;
    return gap_us > 2 * every_us ? gap_us - every_us : 0;
}

// Returns the CPU time of the calling thread alone.
static inline uint64_t clock_thread_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

// Returns microseconds since 1970. Use it only for `created` fields and incarnations.
static inline uint64_t clock_wall_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000;
}

#endif
