// tracker_state.h: a tracker's memory, and what lies in it.
//
// A configuration is where a text may be in a grammar, with what will have to follow: a set of (state, stack), where a stack is a set of
// (state to return to, stack below). So one stack stands for all the ways in which a rule was called from there, and a configuration of an
// ambiguous grammar stays small. Both are stored once (hash-consed) in one array of words and named by where they begin. References point
// downwards only: what is referred to was there before.
#ifndef FD_GRAMMAR_TRACKER_STATE_H
#define FD_GRAMMAR_TRACKER_STATE_H

#include "common/grammar/cursor.h"
#include "common/grammar/state.h"

// Words of an object. All numbers are words.
enum {
    OBJECT_SIZE,    // × 4, | OBJECT_IS_MARKED | OBJECT_IS_CONFIGURATION
    OBJECT_HASH,    // its pairs' hash
    OBJECT_FORWARD, // its place after memory is tidied up; otherwise a stamp for walks
    STACK_WEIGHT,   // words that it and what it refers to take, at most
    STACK_PAIRS,    // (state, stack) ...
    CONFIGURATION_FLAGS = 3,
    CONFIGURATION_MASK,                           // the slot of its mask + 1, or 0
    CONFIGURATION_PLAIN,                          // a plain character leads here, see cursor.c
    CONFIGURATION_LOOPS,                          // two words: the groups of characters (vocab_state.h) that lead to itself
    CONFIGURATION_NEXT = CONFIGURATION_LOOPS + 2, // [byte classes] the configurations that follow, then pairs (state, stack) ...

    OBJECT_IS_CONFIGURATION = 1,
    OBJECT_IS_MARKED = 2,
    CONFIGURATION_MAY_END = 1,
};

enum {
    GRAMMAR_DEAD = 0,                                     // the configuration from which nothing can follow
    GRAMMAR_NO_STACK = 0,                                 // below the last one
    GRAMMAR_UNKNOWN = UINT32_MAX,                         // not found out yet
    GRAMMAR_TEXT_ENDS = UINT32_MAX,                       // the state to which rule 0 returns
    GRAMMAR_MAX_CLOSURE = 4096,                           // pairs of a closure
    GRAMMAR_MAX_CONFIGURATION = GRAMMAR_CURSOR_BYTES / 4, // words of one with all its stacks
    GRAMMAR_MAX_STEP = 1 << 15,                           // words that one step may make
    GRAMMAR_HELD = 2,
    GRAMMAR_MIN_MASKS = 8,
    GRAMMAR_MAX_MASK_WORK = 1 << 21, // a mask's `work`: 40 ms. Schemas in use take a thirtieth at most
};

struct grammar_pair {
    uint32_t state, stack;
};

// Room for a closure; see step.c.
struct grammar_closure {
    struct grammar_pair pairs[GRAMMAR_MAX_CLOSURE];
    uint32_t count;
    uint32_t slots[2 * GRAMMAR_MAX_CLOSURE]; // a hash set of pairs: index + 1
    struct {
        uint32_t rule, next; // next: contribution of the same rule + 1
        struct grammar_pair pair;
    } contributions[GRAMMAR_MAX_CLOSURE];
    uint32_t contribution_count;
    struct grammar_pair joined[GRAMMAR_MAX_CLOSURE];        // a set that is put together
    uint32_t open[GRAMMAR_MAX_CONFIGURATION / STACK_PAIRS]; // stacks that a walk has met and not looked into
    uint32_t words;                                         // that the step has asked for so far
    bool is_full;                                           // a limit was hit: nothing may follow
};

// The place of a walk through a trie at one depth.
struct grammar_level {
    uint32_t configuration;
    uint32_t tidied; // tracker->tidied when that was its name
    uint8_t byte;
};

struct grammar_cursor {
    struct grammar_tracker *tracker;
    struct grammar_cursor *next, *previous;
    uint32_t configuration;
};

struct grammar_tracker {
    struct grammar *grammar;
    const struct grammar_vocab *vocab;
    struct grammar_cursor *cursors;
    uint32_t cursor_count;

    uint32_t *words; // [word_capacity]
    uint32_t word_count, word_capacity;
    uint32_t *table; // [table_mask + 1] where objects are, by hash; 0: empty
    uint32_t table_mask, object_count;
    uint32_t tidied;             // how often memory was tidied up, which renames configurations
    uint32_t held[GRAMMAR_HELD]; // configurations that are kept beside the cursors': of a mask, and where its walk begins
    uint32_t stamp;              // the last walk over stacks

    // The cost so far of finding out where bytes lead: pairs and words that were looked at. A mask may cost mask_work.
    uint64_t work, work_end; // work_end: where the mask at hand is given up
    uint64_t mask_work;

    // Masks lie in slots, which configurations refer to.
    uint32_t *mask_words;  // [mask_count][mask_stride]
    uint32_t *mask_owners; // [mask_count] the configuration, or 0
    bool *mask_used;       // [mask_count] asked for since the hand last came by
    uint32_t mask_count, mask_stride, mask_hand;

    struct grammar_level *levels; // [GRAMMAR_TOKEN_BYTES + 1] of the walk at hand
    uint32_t *chain;              // [the vocabulary's most_chars + 2], see cursor.c

    struct grammar_closure *closure;
    uint64_t *pending;    // [(rules + 63) / 64] ranks of rules that are called
    uint32_t *rule_calls; // [rules] their last contribution + 1
};

// --- memory.c ---------------------------------------------------------------------------------------------------

// Allocates what a tracker of so many words needs; grammar_memory_grow() makes it large enough for so many cursors. Return false without memory.
bool grammar_memory_open(struct grammar_tracker *tracker, size_t words) MUST_CHECK;
bool grammar_memory_grow(struct grammar_tracker *tracker, uint32_t cursors) MUST_CHECK;
void grammar_memory_close(struct grammar_tracker *tracker);

// Tidies up if there is not room for a step, which renames all configurations: the cursors', those held, and *configuration.
void grammar_memory_prepare(struct grammar_tracker *tracker, uint32_t *configuration);

// Return the stack or configuration that is this set of pairs, which are sorted and each there once. 0, with closure->is_full: it is too large.
uint32_t grammar_stack_of(struct grammar_tracker *tracker, const struct grammar_pair *pairs, uint32_t count);
uint32_t grammar_configuration_of(struct grammar_tracker *tracker, const struct grammar_pair *pairs, uint32_t count, bool may_end);

// Returns the pairs of an object.
static inline const struct grammar_pair *grammar_pairs_of(const struct grammar_tracker *tracker, uint32_t object, uint32_t *count)
{
    const uint32_t *words = tracker->words + object;
    uint32_t first = words[OBJECT_SIZE] & OBJECT_IS_CONFIGURATION ? CONFIGURATION_NEXT + tracker->grammar->class_count
                                                                  : STACK_PAIRS;

    *count = ((words[OBJECT_SIZE] >> 2) - first) / 2;
    return (const struct grammar_pair *)(words + first);
}

// --- step.c -----------------------------------------------------------------------------------------------------

// Returns where the text is before its first byte.
uint32_t grammar_first_configuration(struct grammar_tracker *tracker);
// Finds out where a byte of a class leads, and remembers it. May tidy up.
uint32_t grammar_find_next(struct grammar_tracker *tracker, uint32_t *configuration, uint32_t byte_class);

// Returns where a byte leads, or GRAMMAR_DEAD. *configuration may be renamed, and with it all others (tracker->tidied tells).
static inline uint32_t grammar_step(struct grammar_tracker *tracker, uint32_t *configuration, uint8_t byte)
{
    uint32_t byte_class = tracker->grammar->class_of[byte];
    uint32_t next = *configuration ? tracker->words[*configuration + CONFIGURATION_NEXT + byte_class] : (uint32_t)GRAMMAR_DEAD;

    return next == GRAMMAR_UNKNOWN ? grammar_find_next(tracker, configuration, byte_class) : next;
}

#endif
