// clean_text.h: bytes made valid UTF-8.
#ifndef FD_TOKENIZER_CLEAN_TEXT_H
#define FD_TOKENIZER_CLEAN_TEXT_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stddef.h>

// The length of the character that bytes begin with, 1 to 4; else *broken is the length (1 to 3) of the broken sequence that one
// U+FFFD stands for, and 0 is returned. *open: it is broken only because it ends too soon. length > 0.
size_t utf8_length(const char *bytes, size_t length, size_t *broken, bool *open);
// The same text in valid UTF-8, and in NFC if asked. *clean is `text` itself, or *owned, which the caller frees.
MUST_CHECK enum status text_clean(const char *text, size_t length, bool nfc, const char **clean, size_t *clean_length, char **owned,
                                  struct error *error);

#endif
