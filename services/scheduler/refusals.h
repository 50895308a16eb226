// refusals.h: the members that were refused, and why: for the log, for those who ask why the mesh is not ready, and for the view. See refusals.c.
#ifndef FD_SERVICES_SCHEDULER_REFUSALS_H
#define FD_SERVICES_SCHEDULER_REFUSALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/log.h"
#include "common/rpc/rpc.h"
#include "services/scheduler/member.h"

enum {
    REFUSALS_MAX = 8,         // that are kept; the one that was refused longest ago makes room
    REFUSALS_NOW_US = 5000000 // a refused member asks again within two seconds: one that has not for this long is gone
};

// Reasons as the metric says them; the first ones are of the handshake.
enum refusal_reason {
    REFUSED_VERSION = RPC_REFUSED_VERSION,
    REFUSED_CERTIFICATE = RPC_REFUSED_CERTIFICATE,
    REFUSED_SECRET = RPC_REFUSED_SECRET,
    REFUSED_MODEL = RPC_REFUSED_MODEL, // or layers, or settings that go with it
    REFUSED_REQUEST = RPC_REFUSALS,    // what it says of itself, its addresses included
    REFUSED_OLDER,                     // one of its name or layers that started later is there
    REFUSED_FULL,                      // there is no room or no memory for it
    REFUSAL_REASONS
};

enum refused_kind { REFUSED_S_PART, REFUSED_KV_WORKER, REFUSED_GATEWAY, REFUSED_OTHER, REFUSED_KINDS };

struct refusal {
    char name[NAME_BYTES], why[256]; // of the latest one; as they may be shown
    bool s_part;
    uint64_t refused_us;   // 0: the entry is unused
    struct repeat repeats; // of its line in the log
};

struct refusals {
    struct refusal of[REFUSALS_MAX];
    uint64_t counts[REFUSED_KINDS][REFUSAL_REASONS];
};

const char *refused_kind_name(enum refused_kind kind);
const char *refusal_reason_name(enum refusal_reason reason);
// Counts only. service: as the peer calls itself.
void refusals_count(struct refusals *refusals, const char *service, enum refusal_reason reason);
// Notes, counts and logs that a member is refused. Its name and the reason may hold any bytes. Returns the entry if the reason is another than before, else NULL.
const struct refusal *refusals_note(struct refusals *refusals, const char *name, bool s_part, enum refusal_reason reason,
                                    const char *why);
// Forgets that it was refused, since it is not any more.
void refusals_forget(struct refusals *refusals, const char *name, bool s_part);
// Appends ": NAME is refused: WHY" for the member of this kind that was refused last, if that was just now. It may be shown to anybody.
void refusals_explain(const struct refusals *refusals, bool s_part, uint64_t now_us, char *text, size_t text_bytes);

#endif
