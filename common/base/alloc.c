// alloc.c: three ways to hand out parts of one piece of memory.
#include "common/base/alloc.h"

#include <stdlib.h>

#include "common/base/checked.h"

enum { CHUNK_BYTES = 4096, CHUNK_BYTES_MOST = 1 << 20, CHUNK_KEPT_BYTES = 1 << 18 };

struct arena_chunk {
    struct arena_chunk *next;
    size_t size, used;
    _Alignas(16) unsigned char bytes[];
};

void *arena_take(struct arena *arena, size_t size)
{
    struct arena_chunk *chunk = arena->chunks;

    if (size > arena->cap - MIN(arena->taken, arena->cap))
        return NULL;
    size = (size + 15) & ~(size_t)15;
    if (!chunk || size > chunk->size - chunk->used) {
        size_t bytes = MAX(size, MIN(chunk ? chunk->size * 2 : (size_t)CHUNK_BYTES, (size_t)CHUNK_BYTES_MOST));
        struct arena_chunk *fresh = malloc(sizeof *fresh + bytes);
        if (!fresh) {
            arena->out_of_memory = true;
            return NULL;
        }
        *fresh = (struct arena_chunk){.next = chunk, .size = bytes};
        arena->chunks = chunk = fresh;
    }
    void *taken = chunk->bytes + chunk->used;
    chunk->used += size;
    arena->taken += size;
    return taken;
}

void arena_reset(struct arena *arena)
{
    struct arena_chunk *keep = arena->chunks;

    if (keep && keep->size > CHUNK_KEPT_BYTES)
        keep = NULL;
    for (struct arena_chunk *chunk = arena->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        if (chunk != keep)
            free(chunk);
    }
    if (keep) {
        keep->next = NULL;
        keep->used = 0;
    }
    arena->chunks = keep;
    arena->taken = 0;
    arena->out_of_memory = false;
}

void arena_free(struct arena *arena)
{
    for (struct arena_chunk *chunk = arena->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    arena->chunks = NULL;
}

// --- slices ---

uint64_t slices_bytes(const struct slice *slices, uint32_t count, uint32_t align)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += (slices[i].bytes + align - 1) / align * align;
    return bytes;
}

void slices_place(const struct slice *slices, uint32_t count, uint32_t align, void *memory)
{
    for (uint32_t i = 0; i < count; i++)
        *slices[i].out = (unsigned char *)memory + slices_bytes(slices, i, align);
}

// --- buddy blocks ---
//
// Free blocks of each order form a doubly linked list: one is found at once, and a buddy can leave from the middle.

enum { ORDERS = BUDDY_ORDER_MOST - BUDDY_ORDER_LEAST + 1, NO_UNIT = UINT32_MAX };
enum unit_state { UNIT_INSIDE, UNIT_FREE, UNIT_TAKEN }; // inside: part of a block that begins before it

// 4 KiB of the memory. Order (counted from BUDDY_ORDER_LEAST) and neighbours belong to the block that begins here.
struct unit {
    uint32_t next, previous; // in the list of free blocks of its order
    uint8_t state, order;
};

struct buddy {
    uint64_t free_bytes;
    uint32_t unit_count, free[ORDERS];
    struct unit units[];
};

static void put(struct buddy *buddy, uint32_t at, uint32_t order)
{
    struct unit *unit = &buddy->units[at];
    *unit = (struct unit){.next = buddy->free[order], .previous = NO_UNIT, .state = UNIT_FREE, .order = (uint8_t)order};
    if (unit->next != NO_UNIT)
        buddy->units[unit->next].previous = at;
    buddy->free[order] = at;
}

static void take_out(struct buddy *buddy, uint32_t at, enum unit_state state)
{
    struct unit *unit = &buddy->units[at];
    if (unit->next != NO_UNIT)
        buddy->units[unit->next].previous = unit->previous;
    if (unit->previous != NO_UNIT)
        buddy->units[unit->previous].next = unit->next;
    else
        buddy->free[unit->order] = unit->next;
    unit->state = (uint8_t)state;
}

enum status buddy_open(uint64_t bytes, struct buddy **out)
{
    uint64_t units = bytes >> BUDDY_ORDER_LEAST;
    if (units >= NO_UNIT)
        return STATUS_RESOURCE_EXHAUSTED;
    struct buddy *buddy = calloc(1, sizeof *buddy + units * sizeof *buddy->units);

    if (!buddy)
        return STATUS_RESOURCE_EXHAUSTED;
    buddy->unit_count = (uint32_t)units;
    buddy->free_bytes = units << BUDDY_ORDER_LEAST;
    for (uint32_t order = 0; order < ORDERS; order++)
        buddy->free[order] = NO_UNIT;
    for (uint64_t at = 0, size; at < units; at += size) { // the largest whole block that may begin here
        uint32_t order = 0;
        for (size = 1; order + 1 < ORDERS && at % (2 * size) == 0 && at + 2 * size <= units; size *= 2)
            order++;
        put(buddy, (uint32_t)at, order);
    }
    *out = buddy;
    return STATUS_OK;
}

void buddy_close(struct buddy *buddy) { free(buddy); }

uint64_t buddy_take(struct buddy *buddy, uint32_t order)
{
    const uint32_t wanted = MAX(order, (uint32_t)BUDDY_ORDER_LEAST) - BUDDY_ORDER_LEAST;
    uint32_t has = wanted;

    while (has < ORDERS && buddy->free[has] == NO_UNIT)
        has++;
    if (has >= ORDERS)
        return BUDDY_NONE;
    const uint32_t at = buddy->free[has];
    take_out(buddy, at, UNIT_TAKEN);
    while (has > wanted) {
        has--;
        put(buddy, at + (1u << has), has);
    }
    buddy->units[at].order = (uint8_t)wanted;
    buddy->free_bytes -= (uint64_t)1 << (wanted + BUDDY_ORDER_LEAST);
    return (uint64_t)at << BUDDY_ORDER_LEAST;
}

void buddy_give(struct buddy *buddy, uint64_t offset)
{
    uint64_t at = offset >> BUDDY_ORDER_LEAST;
    assert_always(at < buddy->unit_count && offset == at << BUDDY_ORDER_LEAST && buddy->units[at].state == UNIT_TAKEN);
    uint32_t order = buddy->units[at].order;

    buddy->free_bytes += (uint64_t)1 << (order + BUDDY_ORDER_LEAST);
    for (; order + 1 < ORDERS; order++) {
        const uint64_t other = at ^ (uint64_t)1 << order;
        if (other >= buddy->unit_count || buddy->units[other].state != UNIT_FREE || buddy->units[other].order != order)
            break;
        take_out(buddy, (uint32_t)other, UNIT_INSIDE);
        buddy->units[MAX(at, other)].state = UNIT_INSIDE;
        at = MIN(at, other);
    }
    put(buddy, (uint32_t)at, order);
}

uint64_t buddy_free_bytes(const struct buddy *buddy) { return buddy->free_bytes; }
