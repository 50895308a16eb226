// json_text.h: JSON texts: checked before a parser allocates anything for them, read to jansson's values and written again, with numbers of
// any size.
//
// jansson knows integers of 64 bits and doubles. RFC 8259 has no such limits, and clients send larger integers: `uint64` maxima in schemas,
// ids and hashes in the arguments of calls. A number that fits neither is kept as its text, in a json_t of a kind that no text can
// spell, so that it is written again byte for byte. Doubles are written with the fewest digits that read back, as Python writes them.
#ifndef FD_JSON_JSON_TEXT_H
#define FD_JSON_JSON_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

struct text; // common/base/text.h

enum { JSON_REAL_BYTES = 32 }; // a double's text, the zero included

enum json_excess { JSON_WITHIN, JSON_TOO_DEEP, JSON_TOO_MANY };

// Counts values and nesting of a text that need not be valid JSON. *at: offset of the byte where a limit was exceeded.
enum json_excess json_check_limits(const char *text, size_t bytes, uint32_t depth_max, size_t values_max, size_t *at);
// Counts for several texts together: *values has those of the texts before, and counts on.
enum json_excess json_count_limits(const char *text, size_t bytes, uint32_t depth_max, size_t values_max, size_t *values,
                                   size_t *at);

// Reads a text as json_loadb() does, for the caller to release. NULL: no JSON, or no memory; *error says what and where.
json_t *json_text_read(const char *text, size_t bytes, size_t flags, json_error_t *error);

// Returns the text of a number that is kept as such, terminated; NULL: the value is something else. The value owns the text.
const char *json_text_kept(const json_t *value);
// Returns whether it is an object that a text had. jansson's own json_is_object() is also true of a number kept as text.
bool json_text_is_object(const json_t *value);
// Returns whether it is a number of any size, and its value as a double: infinite beyond a double's range; 0: no number.
bool json_text_is_number(const json_t *value);
double json_text_number(const json_t *value);

// Appends the value on one line; spaced: ", " and ": " as Python's json.dumps() writes, otherwise without a space. Strings must be UTF-8,
// which all are that were read. Values nest at most as deep as json_text_read() allows.
void json_text_append(struct text *out, const json_t *value, bool spaced);
// Returns the text as a string for free(); NULL: no memory.
char *json_text_write(const json_t *value, bool spaced);
// Returns the text as a value, a string. NULL: no memory.
json_t *json_text_string(const json_t *value, bool spaced);

// Writes the fewest digits that read back as this number, laid out as Python's repr() does; not for infinities and NaN.
void json_text_real(double number, char out[JSON_REAL_BYTES]);

#endif
