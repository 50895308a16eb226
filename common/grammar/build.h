// build.h: builds a grammar, a language of byte strings, out of parts or from text, and compiles it.
//
// A node is an expression (text, characters, a sequence, alternatives, a repetition, a call of a rule); a rule has a name and one node, and may
// call itself. Nodes are numbers, given out by the functions below, and may be used in any number of places. Characters are code
// points; they are matched as UTF-8, so a grammar never accepts broken text.
//
// A control token of the vocabulary is not text. grammar_special() matches it as the one unit that it is, by its name, and
// nothing else does: a vocabulary spells such a token as the byte 0xFF, which no UTF-8 has, followed by its name.
//
// Errors in text name the place: "regex: byte 12: ...", "grammar: line 3: ...". Text may be hostile: time and memory are bounded by the limits of
// grammar.h whatever it says.
//
// The first failure sticks: all later calls return node 0 and do nothing, and grammar_compile() returns it. So callers need not look at each
// call. One thread at a time.
#ifndef FD_GRAMMAR_BUILD_H
#define FD_GRAMMAR_BUILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/grammar/grammar.h"

enum { GRAMMAR_NO_LIMIT = UINT32_MAX };
enum { GRAMMAR_NODE_NOTHING = 0, GRAMMAR_NODE_EMPTY = 1 }; // nodes that are always there

// Code points first to last, both included.
struct grammar_range {
    uint32_t first, last;
};

struct grammar_builder;
struct grammar_fsa;

// Opens a builder; NULL if there is no memory. The caller closes it, whether it has compiled or not.
struct grammar_builder *grammar_builder_open(void);
void grammar_builder_close(struct grammar_builder *builder);

// Makes the builder fail, unless it has failed before. Returns 0.
uint32_t grammar_builder_fail(struct grammar_builder *builder, enum status status, const char *format, ...) PRINTF_LIKE(3, 4);
// Puts a context before the text of its failure, if it has failed. Each call puts one.
void grammar_builder_blame(struct grammar_builder *builder, const char *format, ...) PRINTF_LIKE(2, 3);
// Returns the builder's own failure, before whose text a context may be put; status 0 if there is none.
struct error *grammar_builder_failure(struct grammar_builder *builder);
// Returns whether the builder has failed, for loops that would otherwise go on for long.
bool grammar_builder_failed(const struct grammar_builder *builder);

uint32_t grammar_empty(struct grammar_builder *builder);   // the empty string
uint32_t grammar_nothing(struct grammar_builder *builder); // no string at all
uint32_t grammar_bytes(struct grammar_builder *builder, const char *bytes, size_t length);
uint32_t grammar_text(struct grammar_builder *builder, const char *text); // terminated
// Matches one character of the ranges; negated: one of all others (surrogates are none).
uint32_t grammar_chars(struct grammar_builder *builder, const struct grammar_range *ranges, uint32_t count, bool negated);
uint32_t grammar_sequence(struct grammar_builder *builder, const uint32_t *nodes, uint32_t count);
uint32_t grammar_either(struct grammar_builder *builder, const uint32_t *nodes, uint32_t count);
// Repeats a node min to max times; max GRAMMAR_NO_LIMIT: without an end. Counting costs states: x{0,1000} of a long x may exceed the limits.
uint32_t grammar_repeat(struct grammar_builder *builder, uint32_t node, uint32_t min, uint32_t max);
// Matches the control token of this name. A vocabulary without it has no way through.
uint32_t grammar_control(struct grammar_builder *builder, const char *name);
// Matches the control token of this name, or its plain text, for a grammar that does not know the vocabulary.
uint32_t grammar_special(struct grammar_builder *builder, const char *name);

// Makes a rule, which gets its node later, by grammar_rule_set(). name is copied and used in errors; it need not be unique.
uint32_t grammar_rule(struct grammar_builder *builder, const char *name);
void grammar_rule_set(struct grammar_builder *builder, uint32_t rule, uint32_t node);
// Keeps a small rule from being copied to where it is called: for those called in many places.
void grammar_rule_keep(struct grammar_builder *builder, uint32_t rule);
// Returns a node that matches what the rule does.
uint32_t grammar_call(struct grammar_builder *builder, uint32_t rule);

// Operations on regular languages: the nodes must call no rule that calls itself (INVALID_ARGUMENT otherwise). The result is
// deterministic, and states that go on alike are merged as far as that is found in a limited time: usually all, so that it is minimal.
// RESOURCE_EXHAUSTED: more than GRAMMAR_MAX_REGULAR_STATES states on the way.
uint32_t grammar_both(struct grammar_builder *builder, uint32_t a, uint32_t b);    // strings of a that are in b, too
uint32_t grammar_without(struct grammar_builder *builder, uint32_t a, uint32_t b); // strings of a that are not in b
bool grammar_is_empty(struct grammar_builder *builder, uint32_t node);             // the regular node matches no string
// Adds the texts of a regular node as JSON writes them between quotes: '"', '\' and control characters escaped (\n and its kin, \u00xx for the
// rest), all else as it is. A failure as for grammar_both().
uint32_t grammar_json_escaped(struct grammar_builder *builder, uint32_t node);
// Adds a node that matches what a sealed, trimmed automaton without calls accepts, and takes it over, whatever happens: it is empty afterwards.
uint32_t grammar_add_regular(struct grammar_builder *builder, struct grammar_fsa *fsa);
// Returns the automaton of a node that has one, as the results of the operations have; NULL otherwise. It is the builder's.
const struct grammar_fsa *grammar_node_fsa(const struct grammar_builder *builder, uint32_t node);
// Returns what all operations have cost so far, in arcs that were looked at.
uint64_t grammar_builder_work(const struct grammar_builder *builder);
// Matches all text in which `marker` does not occur: what may come before it. Regular.
uint32_t grammar_text_before(struct grammar_builder *builder, const char *marker);

// Compiles what `root` matches. The caller frees *out. INVALID_ARGUMENT: a rule without a node, or one that calls itself before any byte is read
// (left recursion; the error names it), or nothing at all matches. RESOURCE_EXHAUSTED: a limit of grammar.h. UNAVAILABLE: no memory.
enum status grammar_compile(struct grammar_builder *builder, uint32_t root, struct grammar **out, struct error *error) MUST_CHECK;

// --- grammars from text -------------------------------------------------------------------------------------------------

// Adds what the regular expression matches: ECMA-262's syntax without what is not regular (back references) and
// without look-behind.
// anchored: the whole text must match, as vLLM's structured_outputs.regex wants; otherwise anywhere in it, as JSON Schema's
// `pattern` wants, with ^ and $ where they stand.
uint32_t grammar_add_regex(struct grammar_builder *builder, const char *regex, size_t length, bool anchored);
// Adds the root rule of a grammar in GBNF (llama.cpp's grammars/README.md describes it).
uint32_t grammar_add_gbnf(struct grammar_builder *builder, const char *text, size_t length);

#endif
