// json_write.h: appends JSON to a text (common/base/text.h), and counts UTF-8 characters.
#ifndef FD_GATEWAY_HTTP_JSON_WRITE_H
#define FD_GATEWAY_HTTP_JSON_WRITE_H

#include "common/base/text.h"

// Appends a JSON string with its quotes. Each byte that is not part of UTF-8 becomes U+FFFD.
void text_json(struct text *text, const char *data, size_t bytes);
void text_json_string(struct text *text, const char *string);
// Append what is before the string, such as its name in an object. A string that is NULL is null.
void text_json_after(struct text *text, const char *before, const char *string);
void text_json_bytes_after(struct text *text, const char *before, const char *data, size_t bytes);

// Appends a JSON number. Minus infinity and NaN become -9999, as in other servers' log-probabilities.
void text_json_float(struct text *text, float value);

// Returns the length of the UTF-8 character at data (1 to 4), or 0 if it is malformed, overlong, a surrogate or cut off.
size_t text_utf8_length(const char *data, size_t bytes);

#endif
