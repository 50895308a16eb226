// grammar.h: a compiled grammar: a byte-level pushdown automaton. Made by grammar_build.h, from text by grammar_text.h, from a JSON Schema by
// grammar_schema.h; followed token by token by grammar_cursor.h.
//
// A grammar is immutable and its packed form is portable: the gateway compiles, the s-part follows.
// Safe from any thread. Nothing blocks.
#ifndef FD_GRAMMAR_GRAMMAR_H
#define FD_GRAMMAR_GRAMMAR_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum {
    GRAMMAR_MAX_BYTES = 1 << 20,  // packed
    GRAMMAR_MAX_STATES = 1 << 16, // of the automaton
    GRAMMAR_MAX_EDGES = 1 << 18,
    GRAMMAR_MAX_RULES = 1 << 14,
    GRAMMAR_MAX_NODES = 1 << 18,         // of a builder
    GRAMMAR_MAX_REGULAR_STATES = 1 << 14 // of an operation on regular languages
};

struct grammar;

// Reads a packed grammar, which may come from anywhere: everything in it is checked. The bytes are copied. The caller frees *out.
enum status grammar_unpack(const void *bytes, size_t count, struct grammar **out, struct error *error) MUST_CHECK;
// Returns the packed form, as long as the grammar lives. Equal languages built in the same way have equal bytes.
const void *grammar_packed(const struct grammar *grammar, size_t *count);
void grammar_free(struct grammar *grammar); // NULL is allowed

// Returns a hash of the packed form: the name of a grammar in caches, which compare the bytes too.
uint64_t grammar_hash(const struct grammar *grammar);
uint64_t grammar_packed_hash(const void *packed, size_t count); // the same, of bytes that need not be a grammar

#endif
