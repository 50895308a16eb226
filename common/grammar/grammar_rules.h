// grammar_rules.h: what holds of rules that call each other. All three take time proportional to the automaton.
#ifndef FD_GRAMMAR_GRAMMAR_RULES_H
#define FD_GRAMMAR_GRAMMAR_RULES_H

#include "common/grammar/grammar_fsa.h"

// A sealed automaton of several rules; arcs lead to states of the same rule.
struct grammar_rule_set {
    const struct grammar_fsa *fsa;
    const uint32_t *starts; // [count + 1] where each rule's states begin; the first is where the rule starts
    uint32_t count;
};

// Marks the states from which the rule's end can be reached by some text. Returns false without memory.
bool grammar_rules_productive(const struct grammar_rule_set *set, bool *productive) MUST_CHECK;

// Marks the rules that match the empty string, and the states in which one may be before any byte is read. Returns false without memory.
bool grammar_rules_nullable(const struct grammar_rule_set *set, bool *nullable, bool *early) MUST_CHECK;

// Sorts the rules such that one comes before those that it may call before any byte is read. Returns a rule that so calls itself, through
// others or not, in *looping; GRAMMAR_NO_STATE: there is none. Returns false without memory.
bool grammar_rules_rank(const struct grammar_rule_set *set, const bool *early, uint32_t *ranked, uint32_t *looping) MUST_CHECK;

#endif
