/* watchdog.h: whether a device still computes. One that hangs says nothing, and the engine's thread may wait inside of its library, so
 * another thread looks. Armed only for a backend that computes on its own; without it, and as long as it has no work, none of this says
 * a thing.
 */
#ifndef FD_SPART_WATCHDOG_H
#define FD_SPART_WATCHDOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct watchdog {
    bool armed; /* set before the engine's thread starts */
    /* under_way: segments and heads that the device has and has not done; released behind went_on_us, when it was last given one or
     * had done one, so that who sees work sees no older time. turn_us: when the engine's thread was last in its loop, in which it
     * never waits for long; relaxed, it stands alone. 0: it is not yet. */
    atomic_uint under_way;
    atomic_ullong went_on_us, turn_us;
    uint64_t suspected_us; /* watchdog_bites()'s own */
};

/* The engine's thread. The device was given one more, or has done one. */
void watchdog_begun(struct watchdog *watchdog, uint64_t now_us);
void watchdog_done(struct watchdog *watchdog, uint64_t now_us);
/* Each turn of its loop. */
void watchdog_turn(struct watchdog *watchdog);

/* One other thread, at least every second: whether the device has had work and done none of it, or has not let go of the engine's
 * thread, for more than limit_us; then stuck_us says for how long. Asked twice, half a second apart, before it says so: it may have been
 * this process that was stopped. */
bool watchdog_bites(struct watchdog *watchdog, uint64_t now_us, uint64_t limit_us, uint64_t *stuck_us);

#endif
