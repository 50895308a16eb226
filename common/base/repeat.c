// repeat.c: see repeat.h.
#include "common/base/repeat.h"

static uint32_t hash_of(const char *text)
{
    uint32_t hash = 2166136261u; // FNV-1a
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 16777619u;
    return hash;
}

bool repeat_is_due(struct repeat *repeat, uint64_t now_us, const char *reason)
{
    const uint32_t hash = hash_of(reason);
    const uint64_t wait_us = hash == repeat->reason ? REPEAT_EVERY_US : REPEAT_OTHER_US;

    repeat->unlogged++;
    if (repeat->logged_us && now_us - repeat->logged_us < wait_us)
        return false;
    repeat->logged_us = now_us;
    repeat->reason = hash;
    repeat->count = repeat->unlogged;
    repeat->unlogged = 0;
    return true;
}
