// pretokenize.h: cutting a text into words.
#ifndef FD_TOKENIZER_PRETOKENIZE_H
#define FD_TOKENIZER_PRETOKENIZE_H

#include "common/tokenizer/encoder.h"

// NULL is "default". Says whether the rule wants NFC and words of the vocabulary taken without merging.
MUST_CHECK enum status pretokenizer_open(const char *name, struct pretokenizer **out, bool *normalize, bool *ignore_merges,
                                         struct error *error);
void pretokenizer_close(struct pretokenizer *pre);
// Cuts valid UTF-8 into words and encodes each.
MUST_CHECK enum status pretokenizer_encode(const struct pretokenizer *pre, struct encoder *encoder, const char *text,
                                           size_t length);

#endif
