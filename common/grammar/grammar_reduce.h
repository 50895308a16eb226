// grammar_reduce.h: automata made deterministic, and as small as they can be. Calls of rules are symbols like bytes.
#ifndef FD_GRAMMAR_GRAMMAR_REDUCE_H
#define FD_GRAMMAR_GRAMMAR_REDUCE_H

#include "common/grammar/grammar_fsa.h"

// Makes a sealed deterministic automaton without jumps of a sealed one, by the subset construction. Start is state 0. More than max_states states, or more than
// *work arcs looked at: the failure is GRAMMAR_FSA_TOO_LARGE. *work goes down by what was looked at.
void grammar_determinize(const struct grammar_fsa *fsa, uint32_t max_states, uint64_t *work, struct grammar_fsa *out);

// Merges states of a sealed automaton that go on alike, so a trimmed deterministic one becomes the least. Start stays state 0 if it was. One that is not
// deterministic gets smaller, but not always the least, or stays as it is where that would take long.
void grammar_minimize(struct grammar_fsa *fsa);

#endif
