// arena.h: a bump arena with a cap: memory that is freed as a whole.
#ifndef FD_BASE_ARENA_H
#define FD_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct arena_chunk;

// Zeroed, with a cap, it is ready. One thread.
struct arena {
    struct arena_chunk *chunks; // newest first
    size_t taken, cap;
    bool out_of_memory; // malloc failed; the cap was not reached
};

// Aligned for any type, not zeroed. NULL: over the cap, or no memory.
void *arena_take(struct arena *arena, size_t size);
// Keeps the newest chunk unless it is huge, so that the next message needs no malloc.
void arena_reset(struct arena *arena);
void arena_free(struct arena *arena);

#endif
