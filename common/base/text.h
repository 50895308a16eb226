// text.h: a growing buffer of bytes, for bodies, events and metrics.
//
// After a failed allocation `failed` is set and appends do nothing, so that a writer checks only once, at its end. A struct of
// zeros is an empty text. It has no lock of its own.
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

void text_free(struct text *text);  // leaves an empty text
void text_clear(struct text *text); // keeps the memory

// Makes room for `bytes` more. Returns false, with `failed` set, when out of memory.
bool text_reserve(struct text *text, size_t bytes);
void text_append(struct text *text, const void *data, size_t bytes);
void text_string(struct text *text, const char *string);
void text_format(struct text *text, const char *format, ...) PRINTF_LIKE(2, 3); // appends at most 1 KB per call

// Gives back the memory that is left, of a text that will not grow.
void text_trim(struct text *text);
// Drops the first `bytes`.
void text_consume(struct text *text, size_t bytes);

// Returns how many bytes a character of UTF-8 has that begins with this one; 1 of a byte that begins none.
static inline size_t text_character_bytes(char first)
{
    const unsigned char byte = (unsigned char)first;

    return byte < 0xc0 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

#endif
