// jinja_memory.c: arenas, and the limits of memory and work of a run. Reaching a limit is an error of the template.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/jinja/jinja_run.h"

struct jinja_chunk {
    struct jinja_chunk *next;
    size_t bytes;
    _Alignas(max_align_t) char data[];
};

void jinja_arena_init(struct jinja_arena *arena, size_t limit) { *arena = (struct jinja_arena){.limit = limit}; }

void jinja_arena_fini(struct jinja_arena *arena)
{
    while (arena->chunks) {
        struct jinja_chunk *next = arena->chunks->next;
        free(arena->chunks);
        arena->chunks = next;
    }
}

void *jinja_alloc(struct jinja_arena *arena, size_t bytes)
{
    if (bytes > arena->limit)
        return NULL;
    bytes = (MAX(bytes, (size_t)1) + 15) & ~(size_t)15;
    if (arena->left < bytes) {
        const size_t chunk_bytes = MAX(bytes, MIN(MAX(arena->used, (size_t)4096), (size_t)1 << 20));
        if (chunk_bytes > arena->limit - arena->used)
            return NULL;
        struct jinja_chunk *chunk = calloc(1, sizeof *chunk + chunk_bytes);
        if (!chunk) {
            arena->out_of_memory = true;
            return NULL;
        }
        *chunk = (struct jinja_chunk){.next = arena->chunks, .bytes = chunk_bytes};
        arena->chunks = chunk;
        arena->used += chunk_bytes;
        arena->left = chunk_bytes;
    }
    char *out = arena->chunks->data + (arena->chunks->bytes - arena->left);
    arena->left -= bytes;
    return out;
}

void *jinja_alloc_array(struct jinja_arena *arena, size_t count, size_t element_bytes)
{
    size_t bytes;
    return checked_mul_size(count, element_bytes, &bytes) ? jinja_alloc(arena, bytes) : NULL;
}

bool jinja_fail_at(struct error *error, uint32_t line, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)error_set(error, STATUS_INVALID_ARGUMENT, "chat template line %u: %s", line, text);
    return false;
}

// --- of a run ----------------------------------------------------------------------------------------------------------

bool jinja_no_memory(struct jinja_run *run)
{
    if (!run->arena.out_of_memory)
        return jinja_fail(run, "rendering needs more than %zu bytes", run->arena.limit);
    (void)error_set(run->error, STATUS_RESOURCE_EXHAUSTED, "no memory to render the chat template");
    return false;
}

void *jinja_run_alloc(struct jinja_run *run, size_t count, size_t element_bytes)
{
    void *memory = jinja_alloc_array(&run->arena, count, element_bytes);
    if (!memory)
        (void)jinja_no_memory(run);
    return memory;
}

bool jinja_work(struct jinja_run *run, size_t units)
{
    run->work += units;
    return run->work <= JINJA_MAX_WORK || jinja_fail(run, "rendering takes more than %u units of work", JINJA_MAX_WORK);
}

struct jinja_list *jinja_list_new(struct jinja_run *run, size_t count)
{
    struct jinja_list *list = jinja_run_alloc(run, 1, sizeof *list);
    if (list && count && !(list->items = jinja_run_alloc(run, count, sizeof *list->items)))
        return NULL;
    if (list)
        list->count = count;
    return list;
}
