// refusals.h: one log line for each peer that is refused, and few for a flood of them. Not included from outside the RPC runtime.
#ifndef FD_RPC_REFUSALS_H
#define FD_RPC_REFUSALS_H

#include <stdint.h>

enum { REFUSALS_KEPT = 32, REFUSALS_BURST = 20, REFUSALS_REPEAT_S = 10 };

// One thread at a time. Zeroed, it is ready.
struct refusals {
    struct {
        uint64_t key, until_us; // of a peer and a reason
    } kept[REFUSALS_KEPT];
    uint32_t next;
    uint64_t paid_us; // lines are paid for up to this time, one a second
    uint64_t suppressed;
};

// Logs "TLS-REFUSED at=... peer=... why=...", unless this host was refused for the same reason in the last REFUSALS_REPEAT_S, or
// REFUSALS_BURST lines have come faster than one a second. The next line says how many were left out. peer: "host:port"; any text. at:
// our address.
void refusals_log(struct refusals *refusals, const char *at, const char *peer, const char *why);

#endif
