// timers.c: see timers.h.
#include "common/rpc/timers.h"

#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/status.h"

enum { SLOTS_MIN = 64 };

struct timer {
    uint64_t at_us;
    uint32_t generation; // 0: free
    uint32_t place;      // in the heap; of a free slot: the next free slot
    bool reserved;
    void (*fn)(void *arg);
    void *arg;
};

static void place_timer(struct timers *timers, uint32_t at, uint32_t slot)
{
    timers->heap[at] = slot;
    timers->slots[slot].place = at;
}

static uint64_t at_us(const struct timers *timers, uint32_t at) { return timers->slots[timers->heap[at]].at_us; }

static void sift_up(struct timers *timers, uint32_t at)
{
    uint32_t slot = timers->heap[at];
    for (; at && timers->slots[slot].at_us < at_us(timers, (at - 1) / 2); at = (at - 1) / 2)
        place_timer(timers, at, timers->heap[(at - 1) / 2]);
    place_timer(timers, at, slot);
}

static void sift_down(struct timers *timers, uint32_t at)
{
    uint32_t slot = timers->heap[at];
    for (uint32_t child; (child = at * 2 + 1) < timers->count; at = child) {
        if (child + 1 < timers->count && at_us(timers, child + 1) < at_us(timers, child))
            child++;
        if (timers->slots[slot].at_us <= at_us(timers, child))
            break;
        place_timer(timers, at, timers->heap[child]);
    }
    place_timer(timers, at, slot);
}

// False: no memory; nothing has changed.
static bool make_room(struct timers *timers, uint64_t wanted)
{
    uint64_t capacity = MAX((uint64_t)SLOTS_MIN, timers->capacity);

    if (wanted <= timers->capacity)
        return true;
    while (capacity < wanted)
        capacity *= 2;
    if (capacity > UINT32_MAX / 2)
        return false;
    uint32_t *heap = realloc(timers->heap, capacity * sizeof *heap);
    if (!heap)
        return false;
    timers->heap = heap;
    struct timer *slots = realloc(timers->slots, capacity * sizeof *slots);
    if (!slots)
        return false;
    timers->slots = slots;
    if (!timers->capacity)
        timers->first_free = UINT32_MAX;
    for (uint32_t i = (uint32_t)capacity; i-- > timers->capacity; timers->first_free = i)
        slots[i] = (struct timer){.place = timers->first_free};
    timers->capacity = (uint32_t)capacity;
    return true;
}

bool timers_open(struct timers *timers) { return make_room(timers, SLOTS_MIN); }

bool timers_reserve(struct timers *timers, uint32_t count)
{
    if (!make_room(timers, (uint64_t)timers->reserved + count + timers->unreserved_count))
        return false;
    timers->reserved += count;
    return true;
}

void timers_release(struct timers *timers, uint32_t count)
{
    assert_always(count <= timers->reserved);
    timers->reserved -= count;
}

uint64_t timers_add(struct timers *timers, uint64_t at, bool reserved, void (*fn)(void *arg), void *arg)
{
    uint32_t slot;

    if (!reserved && !make_room(timers, (uint64_t)timers->reserved + timers->unreserved_count + 1))
        return 0;
    assert_always(timers->count < timers->capacity); // no more than were reserved
    slot = timers->first_free;
    timers->first_free = timers->slots[slot].place;
    if (++timers->generation == 0)
        timers->generation = 1;
    timers->slots[slot] = (struct timer){.at_us = at, .generation = timers->generation, .reserved = reserved, .fn = fn, .arg = arg};
    timers->unreserved_count += !reserved;
    timers->heap[timers->count] = slot;
    sift_up(timers, timers->count++);
    return (uint64_t)timers->slots[slot].generation << 32 | slot;
}

static void remove_timer(struct timers *timers, uint32_t slot)
{
    uint32_t at = timers->slots[slot].place, last = timers->heap[--timers->count];

    if (last != slot) {
        place_timer(timers, at, last);
        sift_up(timers, at);
        sift_down(timers, timers->slots[last].place);
    }
    timers->unreserved_count -= !timers->slots[slot].reserved;
    timers->slots[slot] = (struct timer){.place = timers->first_free};
    timers->first_free = slot;
}

void timers_cancel(struct timers *timers, uint64_t timer)
{
    uint32_t slot = (uint32_t)timer, generation = (uint32_t)(timer >> 32);

    if (generation && slot < timers->capacity && timers->slots[slot].generation == generation)
        remove_timer(timers, slot);
}

uint64_t timers_next_us(const struct timers *timers) { return timers->count ? at_us(timers, 0) : UINT64_MAX; }

bool timers_take(struct timers *timers, uint64_t now_us, void (**fn)(void *arg), void **arg)
{
    if (!timers->count || at_us(timers, 0) > now_us)
        return false;
    const struct timer *due = &timers->slots[timers->heap[0]];
    *fn = due->fn;
    *arg = due->arg;
    remove_timer(timers, timers->heap[0]);
    return true;
}

void timers_close(struct timers *timers)
{
    free(timers->slots);
    free(timers->heap);
    *timers = (struct timers){0};
}
