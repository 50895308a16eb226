// clean_text.h: turns bytes into valid UTF-8.
#ifndef FD_TOKENIZER_CLEAN_TEXT_H
#define FD_TOKENIZER_CLEAN_TEXT_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stddef.h>

// Returns the length, 1 to 4, of the character that bytes begin with. If there is none, returns 0, and *broken is the length (1 to 3) of the
// sequence that one U+FFFD replaces. *open: the sequence is only cut off. length > 0.
size_t clean_text_utf8_length(const char *bytes, size_t length, size_t *broken, bool *open);
// Gives the text as valid UTF-8, in NFC if nfc is set. *clean is `text` itself, or *owned, which the caller frees.
MUST_CHECK enum status clean_text(const char *text, size_t length, bool nfc, const char **clean, size_t *clean_length, char **owned,
                                  struct error *error);

#endif
