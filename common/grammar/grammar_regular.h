// grammar_regular.h: nodes that call no rule which calls itself, as automata without calls.
#ifndef FD_GRAMMAR_GRAMMAR_REGULAR_H
#define FD_GRAMMAR_GRAMMAR_REGULAR_H

#include "common/grammar/grammar_builder_state.h"

// Makes a trimmed automaton of a regular node, which the caller frees. It may have jumps. Returns false when the builder has failed: the node is not
// regular, or a limit. There is nothing to free then.
bool grammar_regular_fsa(struct grammar_builder *builder, uint32_t node, struct grammar_fsa *out) MUST_CHECK;

// Makes the builder fail, and frees the automaton, if that has failed. Returns whether it is fine.
bool grammar_check_fsa(struct grammar_builder *builder, struct grammar_fsa *fsa);

// --- grammar_look.c
// Adds (?=...) of a node, or (?!...). The node may have anchors and others of these.
uint32_t grammar_add_look(struct grammar_builder *builder, uint32_t node, bool is_negative);
// Returns the node without its anchors and what they look at: ^ and $ hold where nothing is read before and after them.
uint32_t grammar_settle_anchors(struct grammar_builder *builder, uint32_t node);

#endif
