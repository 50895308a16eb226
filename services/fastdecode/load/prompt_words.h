// prompt_words.h: prompts of about so many tokens, each unlike all others within its first few words, so that no prefix cache has any of it.
//
// Words are common English ones, of a token each in most vocabularies. How many tokens a word really takes is learned from what the server
// counts. Plain; one thread.
#ifndef FD_FASTDECODE_LOAD_PROMPT_WORDS_H
#define FD_FASTDECODE_LOAD_PROMPT_WORDS_H

#include <stdint.h>

#include "common/base/text.h"

// tokens = fixed + a_word * words. {0, 1} before anything is known.
struct prompt_fit {
    double fixed, a_word;
};

// The line through two prompts that the server has counted; counts that cannot be leave the fit as it is.
void prompt_fit_learn(struct prompt_fit *fit, uint32_t words, uint32_t tokens, uint32_t more_words, uint32_t more_tokens);
// Words for so many tokens; at least 1.
uint32_t prompt_fit_words(const struct prompt_fit *fit, uint32_t tokens);

// Appends `words` words with blanks between, drawn by `serial`. Letters only: it needs no escapes in JSON.
void prompt_words_append(struct text *out, uint32_t words, uint64_t serial);

#endif
