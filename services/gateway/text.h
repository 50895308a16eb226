// text.h: what the gateway appends to a text (common/base/text.h): JSON; and characters of UTF-8.
#ifndef FD_GATEWAY_TEXT_H
#define FD_GATEWAY_TEXT_H

#include "common/base/text.h"

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
