// grammar_vocab_state.h: the tables of a vocabulary.
//
// A plain character is one that may stand anywhere inside a JSON string as it is: no '"', '\' or control character (nor DEL, U+2028 and U+2029, which
// other grammars like to leave out). Most tokens are plain through and through, and most of a text is inside strings: a configuration
// for which all plain characters are the same (grammar_mask.c finds out) needs not look at those tokens one by one. Of any other token only what
// follows its plain characters matters to it, and there are few such ends.
#ifndef FD_GRAMMAR_GRAMMAR_VOCAB_STATE_H
#define FD_GRAMMAR_GRAMMAR_VOCAB_STATE_H

#include "common/grammar/grammar_trie.h"
#include "common/grammar/grammar_utf8.h"
#include "common/grammar/grammar_vocab.h"

struct grammar_vocab {
    uint32_t token_count;
    uint32_t *starts; // [token_count + 1] where each token's bytes begin
    char *bytes;
    struct grammar_trie all;
    uint32_t *plain_words;    // [(token_count + 31) / 32] the tokens that are plain
    uint32_t *plain_tokens;   // those, by the number of their characters
    uint32_t *plain_starts;   // [most_chars + 2] where those of so many characters begin
    uint32_t most_chars;      // of a plain token, and of the plain start of any other
    struct grammar_trie ends; // of the other tokens: what follows their plain characters, of which entries say the number
};

static inline bool grammar_char_is_plain(uint32_t code)
{
    return code >= 0x20 && code != '"' && code != '\\' && code != 0x7f && code != 0x2028 && code != 0x2029 &&
           code <= GRAMMAR_CHAR_MAX;
}

#endif
