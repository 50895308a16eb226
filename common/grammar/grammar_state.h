// grammar_state.h: a compiled grammar as it is followed.
#ifndef FD_GRAMMAR_GRAMMAR_STATE_H
#define FD_GRAMMAR_GRAMMAR_STATE_H

#include "common/grammar/grammar.h"
#include "common/grammar/grammar_fsa.h"

// Of a state.
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
    struct grammar_fsa fsa; // of all rules; arcs lead to states of the same rule
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

#endif
