// pretokenize.h: cuts a text into words.
#ifndef FD_TOKENIZER_PRETOKENIZE_H
#define FD_TOKENIZER_PRETOKENIZE_H

#include "common/tokenizer/encoder.h"

// name NULL is "default". *normalize: the text must be NFC first. *ignore_merges: a word that is a token is not merged.
MUST_CHECK enum status pretokenizer_open(const char *name, struct pretokenizer **out, bool *normalize, bool *ignore_merges,
                                         struct error *error);
void pretokenizer_close(struct pretokenizer *pre);
// Cuts valid UTF-8 into words and encodes each.
MUST_CHECK enum status pretokenizer_encode(const struct pretokenizer *pre, struct encoder *encoder, const char *text,
                                           size_t length);

#endif
