// refusals.c: see refusals.h.
#include "common/rpc/refusals.h"

#include <stdbool.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"

static const uint64_t LINE_US = 1000000; // one line a second, after a burst

static uint64_t fnv1a(uint64_t hash, const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
    return hash;
}

// The peer's port differs each time; its host counts.
static uint64_t key_of(const char *peer, const char *why)
{
    const char *colon = strrchr(peer, ':');
    const uint64_t hash = fnv1a(14695981039346656037u, peer, colon ? (size_t)(colon - peer) : strlen(peer));
    return fnv1a(hash, why, strlen(why));
}

static bool is_repeated(struct refusals *refusals, uint64_t key, uint64_t now_us)
{
    for (uint32_t i = 0; i < REFUSALS_KEPT; i++)
        if (refusals->kept[i].key == key && now_us < refusals->kept[i].until_us)
            return true;
    return false;
}

void refusals_log(struct refusals *refusals, const char *at, const char *peer, const char *why)
{
    const uint64_t now_us = clock_now_us(), burst_us = REFUSALS_BURST * LINE_US, key = key_of(peer, why);
    char quoted_at[300], quoted_peer[300], quoted_why[300];

    refusals->paid_us = MAX(refusals->paid_us, now_us > burst_us ? now_us - burst_us : 0);
    if (is_repeated(refusals, key, now_us) || refusals->paid_us + LINE_US > now_us) {
        refusals->suppressed++;
        return;
    }
    refusals->paid_us += LINE_US;
    refusals->kept[refusals->next].key = key;
    refusals->kept[refusals->next].until_us = now_us + REFUSALS_REPEAT_S * 1000000ull;
    refusals->next = (refusals->next + 1) % REFUSALS_KEPT;
    log_warn("TLS-REFUSED", "at=%s peer=%s why=%s suppressed=%llu", log_quote(quoted_at, sizeof quoted_at, at),
             log_quote(quoted_peer, sizeof quoted_peer, peer), log_quote(quoted_why, sizeof quoted_why, why),
             (unsigned long long)refusals->suppressed);
    refusals->suppressed = 0;
}
