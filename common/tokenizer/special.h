// special.h: finds the tokens that are looked for in a text as a whole, before it is cut into words and merged.
//
// They are control tokens and the unknown one, which match only where the caller allows, and user-defined ones, which are ordinary text and
// match everywhere. There are two passes, as in Hugging Face's `tokenizers` (added_vocabulary.rs): most are looked for in the text as it
// came, those with TOKEN_FLAG_NORMALIZED in what normalizing made of the text between them.
#ifndef FD_TOKENIZER_SPECIAL_H
#define FD_TOKENIZER_SPECIAL_H

#include "common/tokenizer/tokenizer.h"

// A token that is looked for. Its text differs from the token's bytes where normalizing changes it.
struct special_pattern {
    const char *bytes; // in special_index.bytes
    uint32_t length, id;
    bool is_control; // it matches only where the caller allows
};

// Patterns in the order of their bytes.
struct special_index {
    struct special_pattern *patterns; // [count]
    char *bytes;
    uint32_t count;
    uint32_t first[257]; // those that begin with byte b are patterns[first[b] .. first[b + 1])
    bool has_control;
};

// A stretch of a text, up to `end`, in which control tokens match or do not. A match lies in one zone.
struct special_zone {
    size_t end;
    bool parse_special;
};

// One pass over a text.
struct special_scan {
    const struct tokenizer *tokenizer;
    const struct special_index *index;
    const char *text;
    size_t length;
    const struct special_zone *zones; // ascending; without a last one, the rest has no control tokens
    uint32_t zone_count;
    bool marks_spaces;    // a space in the text stands for U+2581, which is no white space
    size_t search, plain; // the search goes on at the first; at the second the text begins that no token has covered
    size_t stripped;      // the end of the white space that the last token with TOKEN_FLAG_RSTRIP took
};

// Makes the index of one pass: those of the tokens with TOKEN_FLAG_NORMALIZED, or the others. Frees nothing on failure: special_free() does.
MUST_CHECK enum status special_init(struct special_index *index, const struct tokenizer *tokenizer,
                                    const struct tokenizer_spec *spec, bool normalized, struct error *error);
void special_free(struct special_index *index);
// Finds the next token: the leftmost, the longest of those that begin there. *from .. *to: the text before it. *id is TOKEN_NONE at the end,
// where that is the rest of the text.
void special_next(struct special_scan *scan, size_t *from, size_t *to, uint32_t *id);

#endif
