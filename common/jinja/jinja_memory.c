// jinja_memory.c: zeroed memory of an arena, and the limits of memory and work of a run. Reaching a limit is an error of the template.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/jinja/jinja_run.h"

void *jinja_alloc(struct arena *arena, size_t bytes)
{
    void *memory = arena_take(arena, MAX(bytes, (size_t)1));
    return memory ? memset(memory, 0, bytes) : NULL;
}

void *jinja_alloc_array(struct arena *arena, size_t count, size_t element_bytes)
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
        return jinja_fail(run, "rendering needs more than %zu bytes", run->arena.cap);
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
