// jinja_expr.c: the expression half of the parser, by recursive descent, in jinja2's order of precedence:
//
//     x if c else y  <  or  <  and  <  not  <  == < in ...  <  + -  <  ~  <  * / // %  <  **  <  unary  <  x.y x[y] x() | is
#include "common/jinja/jinja_parser.h"

#include <string.h>

static struct jinja_node *parse_unary(struct jinja_parser *parser, bool with_filter);

static struct jinja_node *binary(struct jinja_parser *parser, int kind, uint16_t op, struct jinja_node *a, struct jinja_node *b)
{
    struct jinja_node *node = a && b ? jinja_node_new(parser, kind, a->line) : NULL;
    if (!node)
        return NULL;
    node->op = op;
    node->a = a;
    node->b = b;
    return jinja_node_done(parser, node);
}

// --- operands -----------------------------------------------------------------------------------------------------------

static struct jinja_node *parse_sequence(struct jinja_parser *parser, int kind, uint16_t close, struct jinja_node *first)
{
    struct jinja_node *node = jinja_node_new(parser, kind, parser->token->line);
    if (!node || (first && !jinja_node_push(parser, node, first)))
        return NULL;
    while (!jinja_skip_op(parser, close)) {
        if (node->count && !jinja_expect_op(parser, ','))
            return NULL;
        if (jinja_skip_op(parser, close))
            break;
        struct jinja_node *item = jinja_parse_expression(parser);
        if (!item || !jinja_node_push(parser, node, item))
            return NULL;
    }
    return jinja_node_done(parser, node);
}

static struct jinja_node *parse_constant(struct jinja_parser *parser)
{
    const struct jinja_token *token = parser->token;
    struct jinja_node *node = jinja_node_new(parser, NODE_CONSTANT, token->line);
    if (!node)
        return NULL;
    if (token->kind == TOKEN_INTEGER) {
        node->constant = jinja_integer(token->integer);
    } else if (token->kind == TOKEN_FLOAT) {
        node->constant = jinja_float(token->number);
    } else { // neighbours are joined: "a" "b"
        size_t length = 0;
        const struct jinja_token *end = token;
        for (; end->kind == TOKEN_STRING; end++)
            length += end->length;
        char *bytes = jinja_alloc(parser->arena, length);
        struct jinja_string *string = jinja_alloc(parser->arena, sizeof *string);
        if (!bytes || !string) {
            (void)jinja_parse_fail(parser, token->line, "too long a template");
            return NULL;
        }
        *string = (struct jinja_string){.bytes = bytes, .length = length};
        for (; parser->token < end; parser->token++) {
            memcpy(bytes, parser->token->bytes, parser->token->length);
            bytes += parser->token->length;
        }
        node->constant = (struct jinja_value){.kind = KIND_STRING, .string = string};
        return node;
    }
    parser->token++;
    return node;
}

static struct jinja_node *parse_primary(struct jinja_parser *parser)
{
    static const struct {
        const char *name;
        struct jinja_value value;
    } words[] = {{"true", {KIND_BOOL, {.boolean = true}}},
                 {"True", {KIND_BOOL, {.boolean = true}}},
                 {"false", {KIND_BOOL, {0}}},
                 {"False", {KIND_BOOL, {0}}},
                 {"none", {KIND_NONE, {0}}},
                 {"None", {KIND_NONE, {0}}}};
    static const char *const reserved[] = {"if", "else", "elif", "and", "or", "not", "in", "is", "for", "endfor", "endif"};
    const struct jinja_token *token = parser->token;
    if (token->kind == TOKEN_NAME) {
        for (size_t i = 0; i < sizeof reserved / sizeof reserved[0]; i++)
            if (jinja_token_is(token, reserved[i])) {
                (void)jinja_unexpected(parser, "an expression");
                return NULL;
            }
        struct jinja_node *node = jinja_parse_name(parser);
        for (size_t i = 0; node && i < sizeof words / sizeof words[0]; i++)
            if (jinja_token_is(token, words[i].name)) {
                node->kind = NODE_CONSTANT;
                node->constant = words[i].value;
            }
        return node;
    }
    if (token->kind == TOKEN_STRING || token->kind == TOKEN_INTEGER || token->kind == TOKEN_FLOAT)
        return parse_constant(parser);
    if (jinja_skip_op(parser, '(')) {
        if (jinja_skip_op(parser, ')')) {
            struct jinja_node *empty = jinja_node_new(parser, NODE_TUPLE, token->line);
            return empty ? jinja_node_done(parser, empty) : NULL;
        }
        struct jinja_node *inner = jinja_parse_expression(parser);
        if (inner && jinja_is_op(parser, ','))
            return parse_sequence(parser, NODE_TUPLE, ')', inner);
        return inner && jinja_expect_op(parser, ')') ? inner : NULL;
    }
    if (jinja_skip_op(parser, '['))
        return parse_sequence(parser, NODE_LIST, ']', NULL);
    if (jinja_is_op(parser, '{')) {
        struct jinja_node *node = jinja_node_new(parser, NODE_DICT, token->line);
        parser->token++;
        while (node && !jinja_skip_op(parser, '}')) {
            if (node->count && !jinja_expect_op(parser, ','))
                return NULL;
            if (jinja_skip_op(parser, '}'))
                break;
            for (int i = 0; i < 2; i++) {
                struct jinja_node *item = i && !jinja_expect_op(parser, ':') ? NULL : jinja_parse_expression(parser);
                if (!item || !jinja_node_push(parser, node, item))
                    return NULL;
            }
        }
        return node ? jinja_node_done(parser, node) : NULL;
    }
    (void)jinja_unexpected(parser, "an expression");
    return NULL;
}

// After "[".
static struct jinja_node *parse_subscript(struct jinja_parser *parser, struct jinja_node *object)
{
    struct jinja_node *node = jinja_node_new(parser, NODE_ITEM, object->line);
    struct jinja_node **parts = jinja_alloc_array(parser->arena, 3, sizeof *parts);
    if (!node || !parts)
        return NULL;
    node->a = object;
    for (uint32_t i = 0; i < 3; i++) {
        if (!jinja_is_op(parser, ':') && !jinja_is_op(parser, ']') && !(parts[i] = jinja_parse_expression(parser)))
            return NULL;
        if (!jinja_skip_op(parser, ':'))
            break;
        node->kind = NODE_SLICE;
    }
    if (node->kind == NODE_SLICE) {
        node->items = parts;
        node->count = 3;
    } else if (!(node->b = parts[0])) {
        (void)jinja_unexpected(parser, "an index");
        return NULL;
    }
    return jinja_expect_op(parser, ']') ? jinja_node_done(parser, node) : NULL;
}

static struct jinja_node *parse_postfix(struct jinja_parser *parser, struct jinja_node *node)
{
    while (node) {
        if (jinja_skip_op(parser, '.')) {
            const struct jinja_token *name = parser->token;
            struct jinja_node *attribute;
            if (name->kind == TOKEN_INTEGER) {
                attribute = binary(parser, NODE_ITEM, 0, node, parse_constant(parser));
            } else {
                attribute = jinja_parse_name(parser);
                if (attribute) {
                    attribute->kind = NODE_ATTRIBUTE;
                    attribute->a = node;
                    attribute = jinja_node_done(parser, attribute);
                }
            }
            node = attribute;
        } else if (jinja_skip_op(parser, '[')) {
            node = parse_subscript(parser, node);
        } else if (jinja_skip_op(parser, '(')) {
            node = jinja_parse_call(parser, node);
        } else {
            break;
        }
    }
    return node;
}

struct jinja_node *jinja_parse_operand(struct jinja_parser *parser) { return parse_postfix(parser, parse_primary(parser)); }

// --- operators ----------------------------------------------------------------------------------------------------------

static struct jinja_node *parse_unary(struct jinja_parser *parser, bool with_filter)
{
    const uint32_t line = parser->token->line;
    struct jinja_node *node;
    if (jinja_is_op(parser, '-') || jinja_is_op(parser, '+')) {
        node = jinja_node_new(parser, NODE_UNARY, line);
        if (!node)
            return NULL;
        node->op = parser->token++->op;
        if (++parser->nesting > JINJA_MAX_NESTING) {
            (void)jinja_parse_fail(parser, line, "expressions nest deeper than %d", JINJA_MAX_NESTING);
            return NULL;
        }
        node->a = parse_unary(parser, false);
        parser->nesting--;
        node = node->a ? jinja_node_done(parser, node) : NULL;
    } else {
        node = parse_primary(parser);
    }
    node = parse_postfix(parser, node);
    while (node && with_filter) {
        if (jinja_skip_op(parser, '|'))
            node = jinja_parse_filter(parser, node);
        else if (jinja_skip_name(parser, "is"))
            node = jinja_parse_test(parser, node);
        else
            break;
    }
    return node;
}

static struct jinja_node *parse_power(struct jinja_parser *parser)
{
    struct jinja_node *node = parse_unary(parser, true);
    while (node && jinja_skip_op(parser, OP2('*', '*')))
        node = binary(parser, NODE_BINARY, OP2('*', '*'), node, parse_unary(parser, true));
    return node;
}

static struct jinja_node *parse_product(struct jinja_parser *parser)
{
    struct jinja_node *node = parse_power(parser);
    while (node && (jinja_is_op(parser, '*') || jinja_is_op(parser, '/') || jinja_is_op(parser, '%') ||
                    jinja_is_op(parser, OP2('/', '/')))) {
        const uint16_t op = parser->token++->op;
        node = binary(parser, NODE_BINARY, op, node, parse_power(parser));
    }
    return node;
}

static struct jinja_node *parse_concat(struct jinja_parser *parser)
{
    struct jinja_node *first = parse_product(parser);
    if (!first || !jinja_is_op(parser, '~'))
        return first;
    struct jinja_node *node = jinja_node_new(parser, NODE_CONCAT, first->line);
    if (!node || !jinja_node_push(parser, node, first))
        return NULL;
    while (jinja_skip_op(parser, '~')) {
        struct jinja_node *item = parse_product(parser);
        if (!item || !jinja_node_push(parser, node, item))
            return NULL;
    }
    return jinja_node_done(parser, node);
}

static struct jinja_node *parse_sum(struct jinja_parser *parser)
{
    struct jinja_node *node = parse_concat(parser);
    while (node && (jinja_is_op(parser, '+') || jinja_is_op(parser, '-'))) {
        const uint16_t op = parser->token++->op;
        node = binary(parser, NODE_BINARY, op, node, parse_concat(parser));
    }
    return node;
}

// Consumes the comparison at the next token and returns its op ('i' in, 'n' not in); 0: there is none.
static uint16_t take_comparison(struct jinja_parser *parser)
{
    static const uint16_t ops[] = {OP2('=', '='), OP2('!', '='), OP2('<', '='), OP2('>', '='), '<', '>'};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (jinja_skip_op(parser, ops[i]))
            return ops[i];
    if (jinja_skip_name(parser, "in"))
        return 'i';
    if (jinja_is_name(parser, "not") && jinja_token_is(parser->token + 1, "in")) {
        parser->token += 2;
        return 'n';
    }
    return 0;
}

static struct jinja_node *parse_compare(struct jinja_parser *parser)
{
    struct jinja_node *first = parse_sum(parser), *node = NULL;
    uint16_t ops[16];
    uint32_t count = 0;
    while (first && (ops[count] = take_comparison(parser)) != 0) {
        if (!node && (!(node = jinja_node_new(parser, NODE_COMPARE, first->line)) || !jinja_node_push(parser, node, first)))
            return NULL;
        struct jinja_node *right = parse_sum(parser);
        if (!right || !jinja_node_push(parser, node, right))
            return NULL;
        if (++count == sizeof ops / sizeof ops[0]) {
            (void)jinja_parse_fail(parser, first->line, "a comparison of more than 15 links");
            return NULL;
        }
    }
    if (!node)
        return first;
    node->ops = jinja_alloc_array(parser->arena, count, sizeof *ops);
    if (!node->ops)
        return NULL;
    memcpy(node->ops, ops, count * sizeof *ops);
    return jinja_node_done(parser, node);
}

static struct jinja_node *parse_not(struct jinja_parser *parser)
{
    if (!jinja_is_name(parser, "not"))
        return parse_compare(parser);
    struct jinja_node *node = jinja_node_new(parser, NODE_UNARY, parser->token->line);
    parser->token++;
    if (node && ++parser->nesting > JINJA_MAX_NESTING) {
        (void)jinja_parse_fail(parser, node->line, "expressions nest deeper than %d", JINJA_MAX_NESTING);
        return NULL;
    }
    if (!node || !(node->a = parse_not(parser)))
        return NULL;
    parser->nesting--;
    node->op = 'n';
    return jinja_node_done(parser, node);
}

static struct jinja_node *parse_and(struct jinja_parser *parser)
{
    struct jinja_node *node = parse_not(parser);
    while (node && jinja_skip_name(parser, "and"))
        node = binary(parser, NODE_BINARY, '&', node, parse_not(parser));
    return node;
}

struct jinja_node *jinja_parse_or(struct jinja_parser *parser)
{
    struct jinja_node *node = parse_and(parser);
    while (node && jinja_skip_name(parser, "or"))
        node = binary(parser, NODE_BINARY, '|', node, parse_and(parser));
    return node;
}

struct jinja_node *jinja_parse_expression(struct jinja_parser *parser)
{
    if (++parser->nesting > JINJA_MAX_NESTING) {
        (void)jinja_parse_fail(parser, parser->token->line, "expressions nest deeper than %d", JINJA_MAX_NESTING);
        return NULL;
    }
    struct jinja_node *node = jinja_parse_or(parser);
    while (node && jinja_skip_name(parser, "if")) {
        node = binary(parser, NODE_IF_EXPRESSION, 0, node, jinja_parse_or(parser));
        if (node && jinja_skip_name(parser, "else")) {
            node->c = jinja_parse_expression(parser);
            node = node->c ? jinja_node_done(parser, node) : NULL;
        }
    }
    parser->nesting--;
    return node;
}

struct jinja_node *jinja_parse_tuple(struct jinja_parser *parser, bool allow_condition)
{
    struct jinja_node *first = allow_condition ? jinja_parse_expression(parser) : jinja_parse_or(parser);
    if (!first || !jinja_is_op(parser, ','))
        return first;
    struct jinja_node *node = jinja_node_new(parser, NODE_TUPLE, first->line);
    if (!node || !jinja_node_push(parser, node, first))
        return NULL;
    while (jinja_skip_op(parser, ',')) {
        if (parser->token->kind == TOKEN_BLOCK_END || parser->token->kind == TOKEN_PRINT_END)
            break;
        struct jinja_node *item = allow_condition ? jinja_parse_expression(parser) : jinja_parse_or(parser);
        if (!item || !jinja_node_push(parser, node, item))
            return NULL;
    }
    return jinja_node_done(parser, node);
}
