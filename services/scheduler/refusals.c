// refusals.c: a member that is refused asks again once a second, with the same outcome: the log says so at first and then twice a minute, the
// view at first and when the reason changes. A mesh that is not ready because of it says so for as long as it asks.
#include "services/scheduler/refusals.h"

#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"

// Copies text as far as it fits, with '?' for what is not printable ASCII: it goes to logs and to JSON.
static void copy_shown(char *out, size_t out_bytes, const char *text)
{
    snprintf(out, out_bytes, "%s", text);
    for (unsigned char *at = (unsigned char *)out; *at; at++)
        *at = *at < 0x20 || *at > 0x7e || *at == '"' ? '?' : *at;
}

static struct refusal *refusals_find(struct refusals *refusals, const char *name, bool s_part)
{
    for (uint32_t i = 0; i < REFUSALS_MAX; i++)
        if (refusals->of[i].refused_us && refusals->of[i].s_part == s_part && !strcmp(refusals->of[i].name, name))
            return &refusals->of[i];
    return NULL;
}

// Takes the entry refused longest ago. It keeps its count of lines, so that a flood of names is no flood of lines.
static struct refusal *refusals_add(struct refusals *refusals, const char *name, bool s_part)
{
    struct refusal *oldest = &refusals->of[0];

    for (uint32_t i = 1; i < REFUSALS_MAX; i++)
        oldest = refusals->of[i].refused_us < oldest->refused_us ? &refusals->of[i] : oldest;
    memcpy(oldest->name, name, NAME_BYTES);
    oldest->why[0] = '\0';
    oldest->s_part = s_part;
    return oldest;
}

const char *refused_kind_name(enum refused_kind kind)
{
    static const char *const names[REFUSED_KINDS] = {"s-part", "kv-worker", "gateway", "other"};
    return names[kind];
}

const char *refusal_reason_name(enum refusal_reason reason)
{
    static const char *const names[REFUSAL_REASONS] = {
        [REFUSED_VERSION] = "version", [REFUSED_CERTIFICATE] = "certificate", [REFUSED_SECRET] = "secret",
        [REFUSED_MODEL] = "model",     [REFUSED_REQUEST] = "request",         [REFUSED_OLDER] = "older",
        [REFUSED_FULL] = "full",
    };
    return names[reason];
}

void refusals_count(struct refusals *refusals, const char *service, enum refusal_reason reason)
{
    enum refused_kind kind = REFUSED_S_PART;

    while (kind < REFUSED_OTHER && strcmp(refused_kind_name(kind), service) != 0)
        kind++;
    refusals->counts[kind][reason]++;
}

const struct refusal *refusals_note(struct refusals *refusals, const char *name, bool s_part, enum refusal_reason reason,
                                    const char *why)
{
    const char *kind = refused_kind_name(s_part ? REFUSED_S_PART : REFUSED_KV_WORKER);
    char shown_name[NAME_BYTES] = "", shown_why[sizeof refusals->of[0].why];
    const uint64_t now_us = clock_now_us();

    refusals_count(refusals, kind, reason);
    copy_shown(shown_name, sizeof shown_name, name[0] ? name : "(no name)");
    copy_shown(shown_why, sizeof shown_why, why);
    struct refusal *refusal = refusals_find(refusals, shown_name, s_part);
    if (!refusal)
        refusal = refusals_add(refusals, shown_name, s_part);
    const bool is_new = strcmp(refusal->why, shown_why) != 0;
    memcpy(refusal->why, shown_why, sizeof shown_why);
    refusal->refused_us = now_us;
    if (repeat_is_due(&refusal->repeats, now_us, shown_why))
        log_warn("MEMBER-REFUSED", "name=%s kind=%s reason=%s why=\"%s\" times=%u", shown_name, kind, refusal_reason_name(reason),
                 shown_why, refusal->repeats.count);
    return is_new ? refusal : NULL;
}

void refusals_forget(struct refusals *refusals, const char *name, bool s_part)
{
    struct refusal *refusal = refusals_find(refusals, name, s_part);

    if (refusal)
        *refusal = (struct refusal){0};
}

void refusals_explain(const struct refusals *refusals, bool s_part, uint64_t now_us, char *text, size_t text_bytes)
{
    const size_t at = strlen(text);
    const struct refusal *latest = NULL;

    for (uint32_t i = 0; i < REFUSALS_MAX; i++) {
        const struct refusal *refusal = &refusals->of[i];
        if (refusal->refused_us && refusal->s_part == s_part && now_us - refusal->refused_us <= REFUSALS_NOW_US &&
            (!latest || refusal->refused_us > latest->refused_us))
            latest = refusal;
    }
    if (latest) // addresses are for those who may read the log
        snprintf(text + at, text_bytes - at, ": %s is refused: %s", latest->name,
                 strstr(latest->why, "://") ? "MEMBER-REFUSED in the scheduler's log says why" : latest->why);
}
