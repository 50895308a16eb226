// bpe.h: merging of words by rank.
#ifndef FD_TOKENIZER_BPE_H
#define FD_TOKENIZER_BPE_H

#include "common/tokenizer/encoder.h"

// Makes room for a word of count symbols in encoder->symbols. `covered` of them will each be part of some token's text; the others may yield
// nothing. OUT_OF_RANGE if the covered ones alone make more than max_tokens.
MUST_CHECK enum status bpe_reserve(struct encoder *encoder, size_t count, size_t covered);
// Merges encoder->symbols[0 .. count) in place; returns how many are left, or writes a status.
MUST_CHECK enum status bpe_merge(struct encoder *encoder, size_t count, size_t *left);
// Encodes one word of the pre-tokenizer.
MUST_CHECK enum status bpe_encode_word(struct encoder *encoder, const char *bytes, size_t length);
// Decodes the byte-level text of a token ("Ġa") to bytes (" a"), which are no longer. False: a character stands for no byte.
MUST_CHECK bool bpe_decode_text(struct text_span text, char *out, size_t *length);
// Fills merges, byte_ids and whole.
MUST_CHECK enum status bpe_open(struct tokenizer *tokenizer, const struct tokenizer_spec *spec, struct error *error);

#endif
