// state.h: a compiled grammar as it is followed, and the bytes that it travels as.
//
// All numbers are varints (7 bits a byte, the lowest first), and what is relative is signed (zigzag):
//
//     "FDG1"  rules  { states of a rule  { state } × states } × rules
//     state:  (byte arcs × 2 + has calls) × 2 + accepts   { byte arc } × byte arcs   [ calls  { call } × calls ]
//     byte arc:  first byte  (target - state) × 2 + is range  [ last byte ]
//     call:  rule + 1, or 0 for a jump   (target - state)
//
// A rule starts at its first state. A chain of single bytes, which most of a JSON Schema's grammar is, takes three bytes a state.
#ifndef FD_GRAMMAR_STATE_H
#define FD_GRAMMAR_STATE_H

#include "common/grammar/fsa.h"
#include "common/grammar/grammar.h"

// Flags of a state.
enum {
    GRAMMAR_STATE_ACCEPTS = 1,
    GRAMMAR_STATE_EXITS = 2, // accepts, and there is no arc: whoever is there has returned
    GRAMMAR_STATE_READS = 4, // has an arc that reads a byte
    GRAMMAR_STATE_CALLS = 8, // has one that calls or jumps
};

struct grammar_rule {
    uint32_t start, end; // its states
    uint32_t rank;       // a rule that it may call before it has read a byte has a larger one
    bool is_nullable;    // matches the empty string
};

struct grammar {
    unsigned char *packed;
    size_t packed_bytes;
    uint64_t hash;
    struct grammar_fsa fsa; // all rules'; arcs lead to states of the same rule
    uint8_t *flags;         // [states]
    struct grammar_rule *rules;
    uint32_t rule_count;  // rule 0 is what the whole text matches
    uint32_t *rank_rules; // [rule_count] the rule of each rank
    uint8_t class_of[256];
    uint8_t class_byte[256]; // [class_count] a byte of each class
    uint32_t class_count;    // bytes of one class lead to the same states everywhere
};

// grammar_unpack() that says which rule calls itself before any byte is read: GRAMMAR_NO_STATE if that is not what is wrong.
enum status grammar_load(const void *bytes, size_t count, struct grammar **out, uint32_t *looping_rule,
                         struct error *error) MUST_CHECK;

// Packs a sealed automaton of several rules; the caller frees *out. rule_starts: [rule_count + 1] where the states of each rule begin.
// RESOURCE_EXHAUSTED: a limit of grammar.h. UNAVAILABLE: no memory.
enum status grammar_pack(const struct grammar_fsa *fsa, const uint32_t *rule_starts, uint32_t rule_count, unsigned char **out,
                         size_t *bytes, struct error *error) MUST_CHECK;

// A sealed automaton of several rules; arcs lead to states of the same rule.
struct grammar_rule_set {
    const struct grammar_fsa *fsa;
    const uint32_t *starts; // [count + 1] where each rule's states begin; the first is where the rule starts
    uint32_t count;
};

// Marks the states from which the rule's end can be reached by some text. Returns false without memory.
bool grammar_rules_productive(const struct grammar_rule_set *set, bool *productive) MUST_CHECK;

#endif
