// grammar.h: a compiled grammar, which is a byte-level pushdown automaton, and a vocabulary as a trie of bytes, so that all tokens that
// begin alike are judged together. Grammars are made by build.h, from a JSON Schema by common/schema, and followed token by token by
// cursor.h.
//
// A grammar is immutable and its packed form is portable: the gateway compiles, the s-part follows. A vocabulary is made once for a model and
// is immutable afterwards. Safe from any thread. Nothing blocks.
#ifndef FD_GRAMMAR_GRAMMAR_H
#define FD_GRAMMAR_GRAMMAR_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum {
    GRAMMAR_MAX_BYTES = 1 << 20,  // packed
    GRAMMAR_MAX_STATES = 1 << 16, // in the automaton
    GRAMMAR_MAX_EDGES = 1 << 18,
    GRAMMAR_MAX_RULES = 1 << 14,
    GRAMMAR_MAX_NODES = 1 << 18,         // in a builder
    GRAMMAR_MAX_REGULAR_STATES = 1 << 14 // in an operation on regular languages
};

struct grammar;
struct grammar_vocab;

// Reads a packed grammar, which may come from anywhere: everything in it is checked. The bytes are copied. The caller frees *out.
enum status grammar_unpack(const void *bytes, size_t count, struct grammar **out, struct error *error) MUST_CHECK;
// Returns the packed form, as long as the grammar lives. Equal languages built in the same way have equal bytes.
const void *grammar_packed(const struct grammar *grammar, size_t *count);
void grammar_free(struct grammar *grammar); // NULL is allowed

// Returns a hash of the packed form: the name of a grammar in caches, which compare the bytes too.
uint64_t grammar_hash(const struct grammar *grammar);
uint64_t grammar_packed_hash(const void *packed, size_t count); // the same, of bytes that need not be a grammar

// --- vocabularies -------------------------------------------------------------------------------------------------------

// Returns the length of what a token stands for. 0: no grammar ever allows it (unused tokens). A control token is the byte 0xFF and its
// name; `scratch` (of GRAMMAR_TOKEN_BYTES) may be used to put that together. The bytes need only live until the next call.
enum { GRAMMAR_TOKEN_BYTES = 4096 + 1 };
typedef size_t grammar_token_fn(void *arg, uint32_t token, char *scratch, const char **bytes);

// Builds the trie. The caller closes *out, after all cursors. UNAVAILABLE: no memory.
enum status grammar_vocab_open(uint32_t token_count, grammar_token_fn *bytes_of, void *arg, struct grammar_vocab **out,
                               struct error *error) MUST_CHECK;
void grammar_vocab_close(struct grammar_vocab *vocab);

#endif
