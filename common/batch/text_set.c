// text_set.c: see text_set.h.
#include "common/batch/text_set.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/base/clock.h"

enum { FIRST_CAPACITY = 1024 };

void text_set_open(struct text_set *out)
{
    *out = (struct text_set){0};
    if (getrandom(out->secret, sizeof out->secret, GRND_NONBLOCK) != (ssize_t)sizeof out->secret) {
        out->secret[0] = clock_now_ns();
        out->secret[1] = clock_wall_us() * 0x9E3779B97F4A7C15u;
    }
}

void text_set_close(struct text_set *set)
{
    free(set->slots);
    set->slots = NULL;
}

static uint64_t mix(uint64_t value)
{
    value = (value ^ (value >> 32)) * 0xD6E8FEB86659FD93u;
    value = (value ^ (value >> 29)) * 0xC2B2AE3D27D4EB4Fu;
    return value ^ (value >> 32);
}

// Words of eight bytes and the length, folded twice with different secrets.
static void hash_text(const struct text_set *set, const char *text, uint64_t out[2])
{
    size_t bytes = strlen(text), at;
    int i;

    for (i = 0; i < 2; i++) {
        uint64_t sum = set->secret[i] ^ mix(bytes + (uint64_t)i);
        for (at = 0; at < bytes; at += 8) {
            uint64_t word = 0;
            memcpy(&word, text + at, bytes - at < 8 ? bytes - at : 8);
            sum = mix(sum ^ word) + set->secret[i] + word;
        }
        out[i] = mix(sum);
    }
    out[0] += out[0] == 0 && out[1] == 0;
}

// The slot of this hash, or the free one where it belongs.
static uint64_t *find_slot(const struct text_set *set, const uint64_t hash[2])
{
    size_t at = hash[0] & (set->capacity - 1);

    while ((set->slots[at][0] || set->slots[at][1]) && memcmp(set->slots[at], hash, sizeof set->slots[at]) != 0)
        at = (at + 1) & (set->capacity - 1);
    return set->slots[at];
}

static bool grow(struct text_set *set)
{
    struct text_set larger = *set;
    size_t i;

    larger.capacity = set->capacity ? set->capacity * 2 : FIRST_CAPACITY;
    larger.slots = calloc(larger.capacity, sizeof *larger.slots);
    if (!larger.slots)
        return false;
    for (i = 0; i < set->capacity; i++)
        if (set->slots[i][0] || set->slots[i][1])
            memcpy(find_slot(&larger, set->slots[i]), set->slots[i], sizeof set->slots[i]);
    free(set->slots);
    *set = larger;
    return true;
}

enum status text_set_add(struct text_set *set, const char *text)
{
    uint64_t hash[2], *slot;

    if (set->count * 4 >= set->capacity * 3 && !grow(set))
        return STATUS_RESOURCE_EXHAUSTED;
    hash_text(set, text, hash);
    slot = find_slot(set, hash);
    if (slot[0] || slot[1])
        return STATUS_ALREADY_EXISTS;
    memcpy(slot, hash, sizeof hash);
    set->count++;
    return STATUS_OK;
}

bool text_set_has(const struct text_set *set, const char *text)
{
    uint64_t hash[2];
    const uint64_t *slot;

    if (set->count == 0)
        return false;
    hash_text(set, text, hash);
    slot = find_slot(set, hash);
    return slot[0] || slot[1];
}
