// jinja_parser.h: parses tokens into a tree. A function that fails has already written the reason.
#ifndef FD_JINJA_PARSER_H
#define FD_JINJA_PARSER_H

#include "common/jinja/jinja_lex.h"
#include "common/jinja/jinja_tree.h"

struct jinja_parser {
    struct jinja_template *target;
    struct arena *arena;
    const struct jinja_token *token; // the next one
    struct error *error;
    uint32_t nesting, loops, name_capacity;
    // from jinja_expr.c, for arguments in jinja_call.c: expressions contain calls, and calls contain expressions
    struct jinja_node *(*parse_expression)(struct jinja_parser *parser);
    struct jinja_node *(*parse_operand)(struct jinja_parser *parser);
    uint16_t taken; // JINJA_TAKES_...: of those names, which the text has used so far
};

// Parses tokens into target->root and target->names.
bool jinja_parse(struct jinja_template *target, const struct jinja_token *tokens, struct error *error);

// jinja_expr.c: an expression; with or without `x if y else z`; with or without commas making a tuple. NULL: failed.
struct jinja_node *jinja_parse_expression(struct jinja_parser *parser);
struct jinja_node *jinja_parse_tuple(struct jinja_parser *parser, bool allow_condition);
struct jinja_node *jinja_parse_or(struct jinja_parser *parser);
struct jinja_node *jinja_parse_operand(struct jinja_parser *parser); // with what follows it: .x [y] (...)

// jinja_call.c: after "|", after "is", after "(" that follows an expression.
struct jinja_node *jinja_parse_filter(struct jinja_parser *parser, struct jinja_node *operand);
struct jinja_node *jinja_parse_test(struct jinja_parser *parser, struct jinja_node *operand);
struct jinja_node *jinja_parse_call(struct jinja_parser *parser, struct jinja_node *callee);

// jinja_node.c. The node makers take NULL children; NULL comes back when out of memory.
struct jinja_node *jinja_node_new(struct jinja_parser *parser, int kind, uint32_t line);
bool jinja_node_push(struct jinja_parser *parser, struct jinja_node *node, struct jinja_node *item);
struct jinja_node *jinja_node_done(struct jinja_parser *parser, struct jinja_node *node); // checks the tree's height
// The text of the source from one token to another; NULL when out of memory.
const struct jinja_string *jinja_source_text(struct jinja_parser *parser, const struct jinja_token *first,
                                             const struct jinja_token *last);
struct jinja_node *jinja_parse_name(struct jinja_parser *parser); // NODE_NAME
bool jinja_is_op(const struct jinja_parser *parser, uint16_t op);
bool jinja_is_name(const struct jinja_parser *parser, const char *name);
bool jinja_skip_op(struct jinja_parser *parser, uint16_t op);
bool jinja_skip_name(struct jinja_parser *parser, const char *name);
bool jinja_expect_op(struct jinja_parser *parser, uint16_t op);
bool jinja_unexpected(struct jinja_parser *parser, const char *wanted); // fails with "expected X, found Y"; false
#define jinja_parse_fail(parser, line, ...) jinja_fail_at((parser)->error, (line), __VA_ARGS__)
bool jinja_token_is(const struct jinja_token *token, const char *name);

#endif
