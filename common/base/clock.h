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

// --- the time by which something is deleted for good ---
//
// The wall clock may be days ahead for a while, after a start too, and what was deleted then does not come back when it is put right.
// Therefore a time that has come by a leap of the wall clock counts only once it has stood for EXPIRY_BELIEVED_US of the monotonic clock,
// and so does the time at the start, but for what was made since. A step back counts at once.

#define EXPIRY_BELIEVED_US UINT64_C(3600000000)

// A zeroed one is ready. One thread's.
struct expiry_clock {
    uint64_t began_us, looked_us; // monotonic time of the first and the latest look; began_us 0: there was none
    uint64_t began_s;             // wall time of the first one
    int64_t offset_us;            // from monotonic time to the time that is believed
    int64_t ahead_us;             // the least offset since leapt_us
    uint64_t leapt_us;            // since then the wall clock has been ahead of what is believed; 0: it is not
};

// Takes note of both clocks. Call it at least every minute or so: a leap between two looks that is undone before the second goes unseen.
void expiry_look(struct expiry_clock *clock, uint64_t monotonic_us, uint64_t wall_us);
// Returns the time of the latest look, in seconds since 1970, for what was made at made_s. 0: none is believed yet, so nothing has expired.
uint64_t expiry_time_s(const struct expiry_clock *clock, uint64_t made_s);

#endif
