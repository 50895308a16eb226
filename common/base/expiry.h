// expiry.h: the time by which something is deleted for good. The wall clock may be days ahead for a while, after a start too, and what was deleted
// then does not come back when it is put right. So a time that has come by a leap of the wall clock counts only once it has stood for
// EXPIRY_BELIEVED_US of the monotonic clock, and so does the time at the start, but for what was made since. A step back counts at once.
#ifndef FD_BASE_EXPIRY_H
#define FD_BASE_EXPIRY_H

#include <stdint.h>

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
