// grammar_parser.h: what parsers of regular expressions and of GBNF share: a text with a place in it, nodes that are still to be put together, ranges of
// a character class, numbers.
#ifndef FD_GRAMMAR_GRAMMAR_PARSER_H
#define FD_GRAMMAR_GRAMMAR_PARSER_H

#include "common/grammar/grammar_build.h"

enum {
    GRAMMAR_MAX_NESTING = 200, // of parentheses
    GRAMMAR_MAX_COUNT = 1 << 20,
    GRAMMAR_TEXT_END = UINT32_MAX - 1, // no character
};

// A struct of zeros with its first four fields set is ready.
struct grammar_parser {
    struct grammar_builder *builder;
    const char *text;
    size_t length;
    bool tells_lines; // in errors, and bytes otherwise
    size_t at;
    uint32_t nesting;
    uint32_t *nodes; // a stack
    uint32_t node_count, node_capacity;
    struct grammar_range *ranges; // of the class at hand
    uint32_t range_count, range_capacity;
};

void grammar_parser_close(struct grammar_parser *parser);

// Makes the builder fail: "regex: byte 12: ..." or "grammar: line 3: ..." of the place `at`. Returns 0.
uint32_t grammar_parser_fail(struct grammar_parser *parser, enum status status, size_t at, const char *format, ...)
    PRINTF_LIKE(4, 5);

// Return the character here, or that and go behind it; GRAMMAR_TEXT_END at the end. What is not UTF-8 makes the builder fail, and is the end.
uint32_t grammar_parser_peek(struct grammar_parser *parser);
uint32_t grammar_parser_next(struct grammar_parser *parser);
// Goes behind `token` if it is here, and returns whether it was.
bool grammar_parser_skip(struct grammar_parser *parser, const char *token);
// Reads `count` hexadecimal digits. Returns GRAMMAR_TEXT_END, and stays, if there are fewer.
uint32_t grammar_parser_hex(struct grammar_parser *parser, uint32_t count);
// Reads "{m}", "{m,}" or "{m,n}". Returns false, and stays, if it is none. A count above GRAMMAR_MAX_COUNT makes the builder fail.
bool grammar_parser_counts(struct grammar_parser *parser, uint32_t *min, uint32_t *max);
// Reads "*", "+", "?" or counts. Returns false, and stays, if there is none of them.
bool grammar_parser_quantifier(struct grammar_parser *parser, uint32_t *min, uint32_t *max);

void grammar_parser_push(struct grammar_parser *parser, uint32_t node);
// Take all nodes from `first` on off the stack and return them as one.
uint32_t grammar_parser_take_sequence(struct grammar_parser *parser, uint32_t first);
uint32_t grammar_parser_take_either(struct grammar_parser *parser, uint32_t first);

void grammar_parser_add_range(struct grammar_parser *parser, uint32_t first, uint32_t last);
// Takes all ranges and returns a node that matches one character of them, or of all others.
uint32_t grammar_parser_take_class(struct grammar_parser *parser, bool negated);

#endif
