// text.h: bytes under construction: bodies, events, metrics.
//
// A failed allocation is remembered (`failed`) and later appends do nothing, so that a writer checks once, at its end.
// A struct of zeros is an empty text. Not shared between threads by itself.
#ifndef FD_BASE_TEXT_H
#define FD_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

struct text {
    char *data; // not terminated
    size_t bytes, capacity;
    bool failed;
};

void text_free(struct text *text);  // and makes it empty
void text_clear(struct text *text); // keeps the memory

// Makes room for `bytes` more; false and failed when there is none.
bool text_reserve(struct text *text, size_t bytes);
void text_append(struct text *text, const void *data, size_t bytes);
void text_string(struct text *text, const char *string);
void text_format(struct text *text, const char *format, ...) PRINTF_LIKE(2, 3); // at most 1 KB a call

// Drops the first `bytes`.
void text_consume(struct text *text, size_t bytes);

#endif
