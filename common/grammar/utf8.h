// utf8.h: characters as the bytes that spell them.
#ifndef FD_GRAMMAR_UTF8_H
#define FD_GRAMMAR_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GRAMMAR_CHAR_MAX = 0x10ffff, GRAMMAR_CHAR_BYTES = 4, GRAMMAR_BROKEN_CHAR = UINT32_MAX };

// Returns the character at the start of the text and sets *bytes to its length; GRAMMAR_BROKEN_CHAR, and 1, if there is none.
uint32_t grammar_utf8_next(const char *text, size_t length, size_t *bytes);
bool grammar_utf8_is_valid(const char *text, size_t length);
// Writes the character's bytes and returns how many they are.
uint32_t grammar_utf8_write(uint32_t code, unsigned char out[GRAMMAR_CHAR_BYTES]);

// Characters whose spellings are all strings of one byte of each range in turn.
struct grammar_spelling {
    uint8_t count; // bytes
    uint8_t first[GRAMMAR_CHAR_BYTES], last[GRAMMAR_CHAR_BYTES];
};

// Finds the spelling with which a range of characters begins. Returns the first character after it; > last: it is all.
uint32_t grammar_utf8_spell(uint32_t first, uint32_t last, struct grammar_spelling *out);

#endif
