// text.h: bytes under construction: bodies, events, metrics.
//
// A failed allocation is remembered (`failed`) and later appends do nothing, so that a writer checks once, at its end.
// A struct of zeros is an empty text. Not shared between threads by itself.
#ifndef FD_GATEWAY_TEXT_H
#define FD_GATEWAY_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

// Appends a JSON string with its quotes. Each byte that is not part of UTF-8 becomes U+FFFD.
void text_json(struct text *text, const char *data, size_t bytes);
void text_json_string(struct text *text, const char *string);

// A number as JSON allows it: minus infinity and NaN become -9999 (as log-probabilities are given elsewhere).
void text_json_float(struct text *text, float value);

// Length of the UTF-8 character at data (1 to 4), or 0 if there is none (wrong, overlong, surrogate, cut off).
size_t text_utf8_length(const char *data, size_t bytes);

// Characters in data; a wrong byte counts as one.
size_t text_utf8_count(const char *data, size_t bytes);

#endif
