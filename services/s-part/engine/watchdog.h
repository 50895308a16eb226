// watchdog.h: notices when the engine no longer computes. A device that hangs reports nothing, and neither does a disk, or a thread that
// waits inside the device's library or for a thread of the pool, so another thread checks. An engine without work, or not started yet, is
// never suspected.
#ifndef FD_SERVICES_S_PART_WATCHDOG_H
#define FD_SERVICES_S_PART_WATCHDOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { WATCHDOG_LOOK_US = 1000000 }; // the most time between two calls of watchdog_bites()

struct watchdog {
    // Number of segments, heads and waits for weights that were begun and are not done. Stored with release after went_on_us, so that a thread that
    // sees the work also sees its time.
    atomic_uint under_way;
    // Both are moved forward when this process was stopped.
    atomic_ullong went_on_us; // when one was last begun or done, or weights came
    atomic_ullong turn_us;    // when the engine's thread last passed through its loop, which never waits for long; 0: not yet;
                              // relaxed
    uint64_t looked_us, suspected_us; // used only by watchdog_bites()
};

// Call these on the engine's thread when a segment, a head or a wait for weights is begun or done, and when something of it has come.
void watchdog_begun(struct watchdog *watchdog, uint64_t now_us);
void watchdog_done(struct watchdog *watchdog, uint64_t now_us);
void watchdog_goes_on(struct watchdog *watchdog, uint64_t now_us);
// Call it on the engine's thread at each turn of its loop.
void watchdog_turn(struct watchdog *watchdog);

// Returns true if for *stuck_us, more than limit_us, work was under way and none was done, or the engine's thread did not pass
// through its loop. Time in which this process did not run does not count. A stop shorter than two of these calls is not noticed,
// so the finding must be made twice, half a second apart. Call it on one other thread, at least every WATCHDOG_LOOK_US.
bool watchdog_bites(struct watchdog *watchdog, uint64_t now_us, uint64_t limit_us, uint64_t *stuck_us);

#endif
