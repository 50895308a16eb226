// special.h: finds special tokens in a text.
#ifndef FD_TOKENIZER_SPECIAL_H
#define FD_TOKENIZER_SPECIAL_H

#include "common/tokenizer/tokenizer.h"

// Special tokens in the order of their bytes.
struct special_index {
    uint32_t *ids; // [count]
    uint32_t count;
    uint32_t first[257]; // those that begin with byte b are ids[first[b] .. first[b + 1])
};

MUST_CHECK bool special_init(struct special_index *index, const struct tokenizer *tokenizer);
void special_free(struct special_index *index);
// Finds the leftmost special token of text[from .. length), the longest that begins there. False: there is none.
MUST_CHECK bool special_find(const struct tokenizer *tokenizer, const char *text, size_t from, size_t length, size_t *at,
                             uint32_t *id);

#endif
