// grammar_text.h: grammars from text: regular expressions, the GBNF dialect of EBNF, lists of choices.
//
// Errors name the place: "regex: byte 12: ...", "grammar: line 3: ...". Text may be hostile: time and memory are bounded by the limits of
// grammar.h whatever it says. Safe from any thread.
#ifndef FD_GRAMMAR_GRAMMAR_TEXT_H
#define FD_GRAMMAR_GRAMMAR_TEXT_H

#include "common/grammar/grammar_build.h"

// Adds what the regular expression matches: ECMA-262's syntax without what is not regular (back references) and
// without look-behind.
// anchored: the whole text must match, as vLLM's structured_outputs.regex wants; otherwise anywhere in it, as JSON Schema's
// `pattern` wants, with ^ and $ where they stand.
uint32_t grammar_add_regex(struct grammar_builder *builder, const char *regex, size_t length, bool anchored);
// Adds the root rule of a grammar in GBNF (llama.cpp's grammars/README.md describes it).
uint32_t grammar_add_gbnf(struct grammar_builder *builder, const char *text, size_t length);

// The three as whole grammars. The caller frees *out.
enum status grammar_from_regex(const char *regex, size_t length, struct grammar **out, struct error *error) MUST_CHECK;
enum status grammar_from_gbnf(const char *text, size_t length, struct grammar **out, struct error *error) MUST_CHECK;
enum status grammar_from_choices(const char *const *choices, uint32_t count, struct grammar **out, struct error *error) MUST_CHECK;

#endif
