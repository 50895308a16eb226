// grammar_pack.h: the bytes that a compiled grammar travels as.
//
// All numbers are varints (7 bits a byte, the lowest first), and what is relative is signed (zigzag):
//
//     "FDG1"  rules  { states of a rule  { state } × states } × rules
//     state:  (byte arcs × 2 + has calls) × 2 + accepts   { byte arc } × byte arcs   [ calls  { call } × calls ]
//     byte arc:  first byte  (target - state) × 2 + is range  [ last byte ]
//     call:  rule + 1, or 0 for a jump   (target - state)
//
// A rule starts at its first state. A chain of single bytes, which most of a JSON Schema's grammar is, takes three bytes a state.
#ifndef FD_GRAMMAR_GRAMMAR_PACK_H
#define FD_GRAMMAR_GRAMMAR_PACK_H

#include <stddef.h>

#include "common/grammar/grammar_fsa.h"

// Packs a sealed automaton of several rules; the caller frees *out. rule_starts: [rule_count + 1] where the states of each rule begin. RESOURCE_EXHAUSTED:
// a limit of grammar.h, or no memory.
enum status grammar_pack(const struct grammar_fsa *fsa, const uint32_t *rule_starts, uint32_t rule_count, unsigned char **out,
                         size_t *bytes, struct error *error) MUST_CHECK;

// Reads it from untrusted bytes. *rule_starts is malloc'd: [*rule_count + 1]. On failure there is nothing to free.
enum status grammar_read_pack(const unsigned char *in, size_t bytes, struct grammar_fsa *fsa, uint32_t **rule_starts,
                              uint32_t *rule_count, struct error *error) MUST_CHECK;

#endif
