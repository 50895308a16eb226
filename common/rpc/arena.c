// arena.c: see arena.h.
#include "common/rpc/arena.h"

#include <stdlib.h>

#include "common/base/checked.h"

enum { CHUNK_BYTES = 4096, CHUNK_KEPT_BYTES = 1 << 18 };

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
        size_t bytes = MAX(size, chunk ? chunk->size * 2 : (size_t)CHUNK_BYTES);
        struct arena_chunk *fresh = malloc(sizeof *fresh + bytes);
        if (!fresh)
            return NULL;
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
}

void arena_free(struct arena *arena)
{
    for (struct arena_chunk *chunk = arena->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    arena->chunks = NULL;
}
