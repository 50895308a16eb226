// arena.c: see arena.h.
#include "common/base/arena.h"

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
