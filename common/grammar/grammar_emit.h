// grammar_emit.h: nodes of a builder as finite automata.
#ifndef FD_GRAMMAR_GRAMMAR_EMIT_H
#define FD_GRAMMAR_GRAMMAR_EMIT_H

#include "common/grammar/grammar_builder_state.h"

// How the rules that a node uses are dealt with.
enum grammar_rule_use {
    GRAMMAR_RULE_UNUSED,
    GRAMMAR_RULE_INLINED, // copied to where it is called
    GRAMMAR_RULE_KEPT,    // an automaton of its own
    GRAMMAR_RULE_LOOPS,   // calls itself, directly or through others: kept
};

// Finds out which rules a node uses, and how: uses[rule], of enum grammar_rule_use. Small ones are inlined, or, if `inline_all`, all that do not
// loop. Returns false, and the builder fails, if a rule has no node, or without memory.
bool grammar_survey(struct grammar_builder *builder, uint32_t node, bool inline_all, uint8_t *uses) MUST_CHECK;

// Makes a sealed automaton that accepts what the node matches. Calls of rules that are not inlined are arcs. Start is state 0.
// The failure is in *out.
void grammar_emit(struct grammar_builder *builder, uint32_t node, const uint8_t *uses, struct grammar_fsa *out);

#endif
