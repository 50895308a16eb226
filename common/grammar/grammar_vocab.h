// grammar_vocab.h: a vocabulary as a trie of bytes, so that all tokens that begin alike are judged together.
//
// Made once for a model. Immutable afterwards; safe from any thread.
#ifndef FD_GRAMMAR_GRAMMAR_VOCAB_H
#define FD_GRAMMAR_GRAMMAR_VOCAB_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct grammar_vocab;

// What a token stands for. length 0: no grammar ever allows it (unused tokens). A control token is the byte 0xFF and its name; `scratch` (of
// GRAMMAR_TOKEN_BYTES) may be used to put that together. The bytes need only live until the next call.
enum { GRAMMAR_TOKEN_BYTES = 4096 + 1 };
typedef size_t grammar_token_fn(void *arg, uint32_t token, char *scratch, const char **bytes);

// Builds the trie. The caller closes *out, after all cursors. RESOURCE_EXHAUSTED: no memory.
enum status grammar_vocab_open(uint32_t token_count, grammar_token_fn *bytes_of, void *arg, struct grammar_vocab **out,
                               struct error *error) MUST_CHECK;
void grammar_vocab_close(struct grammar_vocab *vocab);
uint32_t grammar_vocab_tokens(const struct grammar_vocab *vocab);

#endif
