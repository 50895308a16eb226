// jinja_arena.h: limits of templates, the memory of one template or one run, and errors.
#ifndef FD_JINJA_ARENA_H
#define FD_JINJA_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/status.h"

enum {
    JINJA_MAX_NESTING = 64,     // brackets and blocks, one inside another
    JINJA_MAX_NODE_DEPTH = 192, // height of the tree: also long chains a + b + c
    JINJA_MAX_RUN_DEPTH = 500,  // nodes being evaluated, macros included
    JINJA_MAX_VALUE_DEPTH = 64, // lists in lists that are printed or compared
    JINJA_MAX_OUTPUT_BYTES = 64 << 20,
    JINJA_MAX_WORK = 20000000, // nodes evaluated + items visited + bytes handled / 64, a run
    JINJA_ARENA_BYTES = 96 << 20,
};

// Zeroed memory, aligned for any type; NULL at the limit.
void *jinja_alloc(struct arena *arena, size_t bytes);
void *jinja_alloc_array(struct arena *arena, size_t count, size_t element_bytes);

// Writes "chat template line N: ..." as INVALID_ARGUMENT; returns false, so that callers can return it.
bool jinja_fail_at(struct error *error, uint32_t line, const char *format, ...) PRINTF_LIKE(3, 4);

#endif
