// arena.h: a bump arena with a cap, whose memory is freed as a whole.
#ifndef FD_BASE_ARENA_H
#define FD_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct arena_chunk;

// An arena of zeros with `cap` set is ready for use. For use by one thread.
struct arena {
    struct arena_chunk *chunks; // newest first
    size_t taken, cap;
    bool out_of_memory; // malloc failed; the cap was not reached
};

// Returns memory aligned for any type, not zeroed. NULL: the cap is reached, or there is no memory.
void *arena_take(struct arena *arena, size_t size);
// Frees all but the newest chunk, which is kept unless it is huge, so that the next message needs no malloc.
void arena_reset(struct arena *arena);
void arena_free(struct arena *arena);

#endif
