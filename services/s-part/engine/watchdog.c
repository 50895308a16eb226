// watchdog.c: see watchdog.h.
#include "services/s-part/engine/watchdog.h"

#include "common/base/checked.h"
#include "common/base/clock.h"

enum { BETWEEN_LOOKS_US = 500000 };

void watchdog_begun(struct watchdog *watchdog, uint64_t now_us)
{
    atomic_store_explicit(&watchdog->went_on_us, now_us, memory_order_relaxed);
    atomic_fetch_add_explicit(&watchdog->under_way, 1, memory_order_release);
}

void watchdog_done(struct watchdog *watchdog, uint64_t now_us)
{
    atomic_store_explicit(&watchdog->went_on_us, now_us, memory_order_relaxed);
    atomic_fetch_sub_explicit(&watchdog->under_way, 1, memory_order_release);
}

void watchdog_goes_on(struct watchdog *watchdog, uint64_t now_us)
{
    atomic_store_explicit(&watchdog->went_on_us, now_us, memory_order_relaxed);
}

void watchdog_turn(struct watchdog *watchdog) { atomic_store_explicit(&watchdog->turn_us, clock_now_us(), memory_order_relaxed); }

static uint64_t age_us(uint64_t since_us, uint64_t now_us) { return since_us && now_us > since_us ? now_us - since_us : 0; }

// Moves a time by a stall. If the engine's thread has set it anew meanwhile, that stands.
static void forgive(atomic_ullong *at_us, uint64_t stalled_us, uint64_t now_us)
{
    unsigned long long was_us = atomic_load_explicit(at_us, memory_order_relaxed);
    if (was_us)
        (void)atomic_compare_exchange_strong_explicit(at_us, &was_us, MIN(was_us + stalled_us, now_us), memory_order_relaxed,
                                                      memory_order_relaxed);
}

bool watchdog_bites(struct watchdog *watchdog, uint64_t now_us, uint64_t limit_us, uint64_t *stuck_us)
{
    const uint64_t stalled_us = clock_stall_us(&watchdog->looked_us, now_us, WATCHDOG_LOOK_US);
    if (stalled_us) {
        forgive(&watchdog->went_on_us, stalled_us, now_us);
        forgive(&watchdog->turn_us, stalled_us, now_us);
    }
    bool has_work = atomic_load_explicit(&watchdog->under_way, memory_order_acquire) > 0;
    uint64_t went_on_us = atomic_load_explicit(&watchdog->went_on_us, memory_order_relaxed);
    uint64_t turn_us = atomic_load_explicit(&watchdog->turn_us, memory_order_relaxed);

    *stuck_us = MAX(has_work ? age_us(went_on_us, now_us) : 0, age_us(turn_us, now_us));
    if (*stuck_us <= limit_us)
        watchdog->suspected_us = 0;
    else if (!watchdog->suspected_us)
        watchdog->suspected_us = now_us;
    return watchdog->suspected_us && now_us - watchdog->suspected_us >= BETWEEN_LOOKS_US;
}
