// clock.c: the time by which something is deleted for good (clock.h).
#include "common/base/clock.h"

#include <stdbool.h>

#include "common/base/checked.h"

enum { SLEWED_US = 1000000 }; // clocks that are put right slowly gain less between two looks

void expiry_look(struct expiry_clock *clock, uint64_t monotonic_us, uint64_t wall_us)
{
    const int64_t offset_us = (int64_t)(wall_us - monotonic_us);
    const bool first = clock->began_us == 0;

    if (first) {
        clock->began_us = monotonic_us;
        clock->began_s = wall_us / 1000000;
    }
    clock->looked_us = monotonic_us;
    if (first || offset_us <= clock->offset_us + SLEWED_US) {
        clock->offset_us = offset_us;
        clock->leapt_us = 0;
        return;
    }
    clock->ahead_us = clock->leapt_us ? MIN(clock->ahead_us, offset_us) : offset_us;
    clock->leapt_us = clock->leapt_us ? clock->leapt_us : monotonic_us;
    if (monotonic_us - clock->leapt_us >= EXPIRY_BELIEVED_US) {
        clock->offset_us = clock->ahead_us;
        clock->leapt_us = 0;
    }
}

uint64_t expiry_time_s(const struct expiry_clock *clock, uint64_t made_s)
{
    if (clock->began_us == 0 || (clock->looked_us - clock->began_us < EXPIRY_BELIEVED_US && made_s < clock->began_s))
        return 0;
    return (uint64_t)((int64_t)clock->looked_us + clock->offset_us) / 1000000;
}
