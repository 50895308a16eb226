// jinja_call.c: parses the parts of an expression that take arguments: x | filter(...), x is test(...) and x(...).
#include "common/jinja/jinja_char.h"
#include "common/jinja/jinja_parser.h"

#include <string.h>

// One argument: an expression, name=expression, *expression or **expression.
static struct jinja_node *parse_argument(struct jinja_parser *parser)
{
    const struct jinja_token *token = parser->token, *next = token + 1;
    struct jinja_node *item;
    if (token->kind == TOKEN_NAME && next->kind == TOKEN_OPERATOR && next->op == '=') {
        item = jinja_parse_name(parser);
        if (!item)
            return NULL;
        item->kind = NODE_KEYWORD;
        parser->token++;
    } else if (jinja_is_op(parser, '*') || jinja_is_op(parser, OP2('*', '*'))) {
        item = jinja_node_new(parser, jinja_is_op(parser, '*') ? NODE_STAR : NODE_STAR_STAR, token->line);
        if (!item)
            return NULL;
        parser->token++;
    } else {
        return parser->parse_expression(parser);
    }
    item->a = parser->parse_expression(parser);
    return item->a ? item : NULL;
}

// After "(": arguments up to ")", into node->items.
static bool parse_arguments(struct jinja_parser *parser, struct jinja_node *node)
{
    int most = 0; // what may not be followed by what: positional, NODE_KEYWORD or NODE_STAR, NODE_STAR_STAR
    while (!jinja_skip_op(parser, ')')) {
        if (node->count && !jinja_expect_op(parser, ','))
            return false;
        if (jinja_skip_op(parser, ')'))
            break;
        const uint32_t line = parser->token->line;
        struct jinja_node *item = parse_argument(parser);
        if (!item)
            return false;
        const int order = item->kind == NODE_STAR_STAR ? 2 : item->kind == NODE_KEYWORD || item->kind == NODE_STAR;
        if (order < most)
            return jinja_parse_fail(parser, line, "a positional argument follows a named one, or one follows **");
        most = order;
        if (!jinja_node_push(parser, node, item))
            return false;
    }
    return true;
}

// The name of a filter or test, which may have dots.
static bool take_name(struct jinja_parser *parser, struct jinja_node *node, const char *wanted)
{
    const struct jinja_token *first = parser->token;
    if (first->kind != TOKEN_NAME)
        return jinja_unexpected(parser, wanted);
    parser->token++;
    while (jinja_is_op(parser, '.') && parser->token[1].kind == TOKEN_NAME)
        parser->token += 2;
    node->name = jinja_source_text(parser, first, parser->token - 1);
    return node->name != NULL;
}

struct jinja_node *jinja_parse_filter(struct jinja_parser *parser, struct jinja_node *operand)
{
    struct jinja_node *node = jinja_node_new(parser, NODE_FILTER, parser->token->line);
    if (!node || !take_name(parser, node, "the name of a filter") || (jinja_skip_op(parser, '(') && !parse_arguments(parser, node)))
        return NULL;
    node->a = operand;
    node->builtin = jinja_find_filter(parser->target->builtins, node->name->bytes, node->name->length);
    return jinja_node_done(parser, node);
}

// Whether a token starts what a test without brackets is given: x is divisibleby 3.
static bool starts_operand(const struct jinja_token *token)
{
    static const char *const others[] = {"and", "or", "not", "if", "else", "is", "in", "recursive"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (jinja_token_is(token, others[i]))
            return false;
    return (token->kind >= TOKEN_NAME && token->kind <= TOKEN_FLOAT) ||
           (token->kind == TOKEN_OPERATOR && (token->op == '[' || token->op == '{'));
}

struct jinja_node *jinja_parse_test(struct jinja_parser *parser, struct jinja_node *operand)
{
    const uint32_t line = parser->token->line;
    const bool negated = jinja_skip_name(parser, "not");
    struct jinja_node *node = jinja_node_new(parser, NODE_TEST, line);
    if (!node || !take_name(parser, node, "the name of a test"))
        return NULL;
    node->a = operand;
    node->builtin = jinja_find_builtin(parser->target->builtins->tests, node->name->bytes, node->name->length);
    if (jinja_skip_op(parser, '(')) {
        if (!parse_arguments(parser, node))
            return NULL;
    } else if ((!node->builtin || node->builtin->required) && starts_operand(parser->token)) {
        struct jinja_node *item = parser->parse_operand(parser);
        if (!item || !jinja_node_push(parser, node, item))
            return NULL;
    }
    if (!jinja_node_done(parser, node))
        return NULL;
    if (!negated)
        return node;
    struct jinja_node *not_node = jinja_node_new(parser, NODE_UNARY, line);
    if (!not_node)
        return NULL;
    not_node->op = 'n';
    not_node->a = node;
    return jinja_node_done(parser, not_node);
}

struct jinja_node *jinja_parse_call(struct jinja_parser *parser, struct jinja_node *callee)
{
    struct jinja_node *node = jinja_node_new(parser, NODE_CALL, callee->line);
    if (!node || !parse_arguments(parser, node))
        return NULL;
    node->a = callee;
    return jinja_node_done(parser, node);
}
