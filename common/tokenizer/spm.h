// spm.h: the "llama" kind of tokenizer: merges whole texts by score.
#ifndef FD_TOKENIZER_SPM_H
#define FD_TOKENIZER_SPM_H

#include "common/tokenizer/encoder.h"

#define SPM_MARK "\xe2\x96\x81" // U+2581

// Appends a symbol for each character that occurs in pieces but is no piece itself. Checks that pieces are UTF-8.
MUST_CHECK enum status spm_add_characters(struct tokenizer *tokenizer, struct error *error);
// Fills merges from pieces and scores.
MUST_CHECK enum status spm_open(struct tokenizer *tokenizer, const struct tokenizer_spec *spec, struct error *error);
// Writes a text in which a space stands for U+2581, at most as long. Returns its length.
size_t spm_mark_spaces(const char *text, size_t length, char *out);
// Encodes such a text, valid UTF-8.
MUST_CHECK enum status spm_encode(struct encoder *encoder, const char *text, size_t length);
// "<0x0A>" → 10; -1: not of that form.
int spm_byte_of(struct text_span text);

#endif
