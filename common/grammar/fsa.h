// fsa.h: a finite automaton whose arcs read a byte, call a rule, or read nothing: what the parts of a grammar are made into.
//
// A symbol is a byte (0 to 255), the call of a rule (GRAMMAR_CALL + rule), or GRAMMAR_JUMP, which reads nothing. An arc has a range of
// symbols; only those of bytes are wider than one. States are numbers from 0. grammar_fsa_seal() sorts the arcs by their states, and what
// reads an automaton wants it sealed.
//
// The first failure sticks, and later additions do nothing. A struct of zeros with its limits set is an empty automaton. One thread at a time.
#ifndef FD_GRAMMAR_FSA_H
#define FD_GRAMMAR_FSA_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

enum { GRAMMAR_CALL = 256, GRAMMAR_JUMP = UINT32_MAX, GRAMMAR_NO_STATE = UINT32_MAX };

struct grammar_arc {
    uint32_t from, first, last, to; // symbols first to last
};

enum grammar_fsa_failure { GRAMMAR_FSA_FINE, GRAMMAR_FSA_TOO_LARGE, GRAMMAR_FSA_NO_MEMORY };

struct grammar_fsa {
    uint32_t max_states, max_arcs;
    uint32_t start, state_count, arc_count;
    bool *accepts;            // [state_count]
    struct grammar_arc *arcs; // [arc_count]
    uint32_t *index;          // [state_count + 1] the first arc of each state, once sealed
    uint32_t state_capacity, arc_capacity;
    enum grammar_fsa_failure failure;
};

void grammar_fsa_free(struct grammar_fsa *fsa); // leaves an empty one with the same limits

// Returns the new state, 0 after a failure.
uint32_t grammar_fsa_add_state(struct grammar_fsa *fsa, bool accepts);
void grammar_fsa_add_arc(struct grammar_fsa *fsa, uint32_t from, uint32_t first, uint32_t last, uint32_t to);
// Adds copies of `part`'s states and arcs. Returns the number of its first state in fsa.
uint32_t grammar_fsa_append(struct grammar_fsa *fsa, const struct grammar_fsa *part);

// Sorts the arcs of a state, which are few most often. From GRAMMAR_LARGE_SORT on by qsort(3).
enum { GRAMMAR_LARGE_SORT = 32 };
void grammar_sort_arcs(struct grammar_arc *arcs, uint32_t count, int (*compare)(const void *left, const void *right));
// Sorts the arcs by state, symbol and target, drops those that are there twice, and makes the index. Returns false after a failure.
bool grammar_fsa_seal(struct grammar_fsa *fsa) MUST_CHECK;

// Removes, from a sealed automaton, the states that the start does not reach or that reach no accepting one, but for the start itself. Calls
// count as something that can be read. The result is sealed.
void grammar_fsa_trim(struct grammar_fsa *fsa);
// Removes all states but those to keep, which stay in their order, and the arcs to removed ones. keep[start] is set.
void grammar_fsa_keep(struct grammar_fsa *fsa, const bool *keep);

// Turns a failure into an error. `what` is what would be made: "the grammar". STATUS_OK if there is none.
enum status grammar_fsa_status(const struct grammar_fsa *fsa, const char *what, struct error *error);

// --- reduce.c: calls of rules are symbols like bytes ------------------------------------------------------------

// Makes a sealed deterministic automaton without jumps of a sealed one, by the subset construction. Start is state 0. More than max_states
// states, or more than *work arcs looked at: the failure is GRAMMAR_FSA_TOO_LARGE. *work goes down by what was looked at.
void grammar_determinize(const struct grammar_fsa *fsa, uint32_t max_states, uint64_t *work, struct grammar_fsa *out);

// Merges states of a sealed automaton that go on alike, so a trimmed deterministic one becomes the least. Start stays state 0 if it was. One
// that is not deterministic gets smaller, but not always the least, or stays as it is where that would take long.
void grammar_minimize(struct grammar_fsa *fsa);

#endif
