// jinja_char.h: characters of UTF-8 text, and plain searches in it.
#ifndef FD_JINJA_CHAR_H
#define FD_JINJA_CHAR_H

#include <stdint.h>

#include "common/jinja/jinja_types.h"

// A character is a code point, or a byte that is not UTF-8.
size_t jinja_char_bytes(const char *bytes, size_t left);
int32_t jinja_char_code(const char *bytes, size_t left);
size_t jinja_char_count(const struct jinja_string *string);
size_t jinja_char_offset(const struct jinja_string *string, size_t index); // byte offset of character `index`
bool jinja_is_space(int32_t code);
bool jinja_is_letter(int32_t code);
bool jinja_is_word(int32_t code); // a letter, a digit or _
// Offset of needle at or after `from`, or SIZE_MAX.
size_t jinja_find(const struct jinja_string *string, const struct jinja_string *needle, size_t from);
bool jinja_string_is(const struct jinja_string *string, const char *text);

#endif
