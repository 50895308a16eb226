// refusals.h: the members that were refused, and why: for the log, for those who ask why the mesh is not ready, and for the view. See refusals.c.
#ifndef FD_SERVICES_SCHEDULER_REFUSALS_H
#define FD_SERVICES_SCHEDULER_REFUSALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/log.h"
#include "common/base/status.h"
#include "services/scheduler/member.h"

enum {
    REFUSALS_MAX = 8,         // that are kept; the one that was refused longest ago makes room
    REFUSALS_NOW_US = 5000000 // a refused member asks again within two seconds: one that has not for this long is gone
};

struct refusal {
    char name[NAME_BYTES], why[256]; // of the latest one; as they may be shown
    bool s_part;
    uint64_t refused_us;   // 0: the entry is unused
    struct repeat repeats; // of its line in the log
};

struct refusals {
    struct refusal of[REFUSALS_MAX];
};

// Notes and logs that a member is refused. Its name and the reason may hold any bytes. Returns the entry if the reason is another than before, else NULL.
const struct refusal *refusals_note(struct refusals *refusals, const char *name, bool s_part, enum status status, const char *why);
// Forgets that it was refused, since it is not any more.
void refusals_forget(struct refusals *refusals, const char *name, bool s_part);
// Appends ": NAME is refused: WHY" for the member of this kind that was refused last, if that was just now. It may be shown to anybody.
void refusals_explain(const struct refusals *refusals, bool s_part, uint64_t now_us, char *text, size_t text_bytes);

#endif
