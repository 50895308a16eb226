// builder_state.h: what a builder has inside, for the files that make something of its nodes.
#ifndef FD_GRAMMAR_BUILDER_STATE_H
#define FD_GRAMMAR_BUILDER_STATE_H

#include "common/grammar/build.h"
#include "common/grammar/fsa.h"
#include "common/grammar/utf8.h"

enum grammar_node_kind {
    NODE_NOTHING,
    NODE_EMPTY,
    NODE_BYTES,    // count bytes, from bytes[at] on
    NODE_CHARS,    // count spellings, from spellings[at] on
    NODE_SEQUENCE, // count nodes, from children[at] on
    NODE_EITHER,   // the same
    NODE_REPEAT,   // node `at`, min to max times
    NODE_CALL,     // calls rule `at`
    NODE_REGULAR,  // the automaton regulars[at]
    NODE_ANCHOR,   // in a regular expression; at: GRAMMAR_AT_START or one of the symbols behind it
};

enum {
    GRAMMAR_NO_NODE = UINT32_MAX,
    // Symbols of anchors, which are above those of all rules. They are gone before anything is compiled.
    GRAMMAR_AT_START = 1 << 20,
    GRAMMAR_AT_END,
    GRAMMAR_BEHIND_WORD,  // behind a character of \w
    GRAMMAR_BEHIND_OTHER, // behind none
    GRAMMAR_LOOK, // + i: what comes is in children[i] at the start, [i + 1] behind another character, [i + 2] behind one of \w
    // While parts are put together, an automaton may be larger than what is left in the end.
    GRAMMAR_DRAFT_STATES = 2 * GRAMMAR_MAX_STATES,
    GRAMMAR_DRAFT_ARCS = 2 * GRAMMAR_MAX_EDGES,
    GRAMMAR_MAX_BUILDER_BYTES = 1 << 24, // nodes, text and automata together
    GRAMMAR_MAX_WORK = 1 << 24,          // arcs looked at by operations on regular languages, of one builder
};

struct grammar_node {
    enum grammar_node_kind kind;
    uint32_t at, count, min, max;
};

struct grammar_build_rule {
    uint32_t node; // GRAMMAR_NO_NODE: not set yet
    char *name;
    bool is_kept; // never copied to where it is called, however small
};

// An array that grows.
struct grammar_list {
    void *data;
    uint32_t count, capacity, size;
};

struct grammar_builder {
    struct error failure; // status 0: none
    size_t bytes;         // taken by all lists and automata
    uint64_t work;        // at most GRAMMAR_MAX_WORK
    struct grammar_list nodes, children, text, spellings, rules, regulars;
};

static inline struct grammar_node *grammar_node_of(const struct grammar_builder *builder, uint32_t node)
{
    return (struct grammar_node *)builder->nodes.data + node;
}
static inline const uint32_t *grammar_children_of(const struct grammar_builder *builder, const struct grammar_node *node)
{
    return (const uint32_t *)builder->children.data + node->at;
}
static inline const char *grammar_text_of(const struct grammar_builder *builder, const struct grammar_node *node)
{
    return (const char *)builder->text.data + node->at;
}
static inline const struct grammar_spelling *grammar_spellings_of(const struct grammar_builder *builder,
                                                                  const struct grammar_node *node)
{
    return (const struct grammar_spelling *)builder->spellings.data + node->at;
}
static inline struct grammar_build_rule *grammar_rule_of(const struct grammar_builder *builder, uint32_t rule)
{
    return (struct grammar_build_rule *)builder->rules.data + rule;
}
static inline struct grammar_fsa *grammar_regular_of(const struct grammar_builder *builder, uint32_t regular)
{
    return (struct grammar_fsa *)builder->regulars.data + regular;
}

// Adds an anchor, of which grammar_settle_anchors() makes something that can be compiled.
uint32_t grammar_add_anchor(struct grammar_builder *builder, uint32_t symbol);
uint32_t grammar_add_look_anchor(struct grammar_builder *builder, const uint32_t nodes[3]);

// --- compile.c: nodes as finite automata ------------------------------------------------------------------------

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

// --- regular.c: nodes that call no rule which calls itself, as automata without calls ---------------------------

// Makes a trimmed automaton of a regular node, which the caller frees. It may have jumps. Returns false when the builder has failed: the
// node is not regular, or a limit. There is nothing to free then.
bool grammar_regular_fsa(struct grammar_builder *builder, uint32_t node, struct grammar_fsa *out) MUST_CHECK;

// Makes the builder fail, and frees the automaton, if that has failed. Returns whether it is fine.
bool grammar_check_fsa(struct grammar_builder *builder, struct grammar_fsa *fsa);

// --- look.c -----------------------------------------------------------------------------------------------------
// Adds (?=...) of a node, or (?!...). The node may have anchors and others of these.
uint32_t grammar_add_look(struct grammar_builder *builder, uint32_t node, bool is_negative);
// Returns the node without its anchors and what they look at: ^ and $ hold where nothing is read before and after them.
uint32_t grammar_settle_anchors(struct grammar_builder *builder, uint32_t node);

#endif
