// arena.h: the memory of an unpacked message: a bump arena with a cap. Not included from outside the RPC runtime.
#ifndef FD_RPC_ARENA_H
#define FD_RPC_ARENA_H

#include <stddef.h>

struct arena_chunk;

// Zeroed, with a cap, it is ready. One thread.
struct arena {
    struct arena_chunk *chunks; // newest first
    size_t taken, cap;
};

// NULL: over the cap, or no memory.
void *arena_take(struct arena *arena, size_t size);
// Keeps the newest chunk, which is the largest, unless it is huge: the next message needs no malloc.
void arena_reset(struct arena *arena);
void arena_free(struct arena *arena);

#endif
