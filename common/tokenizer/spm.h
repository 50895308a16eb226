// spm.h: the "llama" kind of tokenizer: merges whole texts by score.
#ifndef FD_TOKENIZER_SPM_H
#define FD_TOKENIZER_SPM_H

#include "common/tokenizer/encoder.h"

// Appends a symbol for each character that occurs in pieces but is no piece itself. Checks that pieces are UTF-8.
MUST_CHECK enum status spm_add_characters(struct tokenizer *tokenizer, struct error *error);
// Fills merges from pieces and scores.
MUST_CHECK enum status spm_open(struct tokenizer *tokenizer, const struct tokenizer_spec *spec, struct error *error);
// Encodes valid UTF-8 between special tokens; space_first: put a space before it.
MUST_CHECK enum status spm_encode(struct encoder *encoder, const char *text, size_t length, bool space_first);
// "<0x0A>" → 10; -1: not of that form.
int spm_byte_of(struct text_span text);

#endif
