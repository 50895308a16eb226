// parse.c: parses the tokens of a template into its tree, by recursive descent. A function that fails has already written the reason.
//
// Expressions have jinja2's order of precedence, loosest first:
//
//     x if c else y  <  or  <  and  <  not  <  == < in ...  <  + -  <  ~  <  * / // %  <  **  <  unary  <  x.y x[y] x() | is
//
// A node knows its height, so that a tree that is too deep to be walked safely is refused while it is built.
#include <string.h>

#include "common/base/checked.h"
#include "services/gateway/jinja/tree.h"

struct jinja_parser {
    struct jinja_template *target;
    struct arena *arena;
    const struct jinja_token *token; // the next one
    struct error *error;
    uint32_t nesting, loops, name_capacity;
    uint16_t taken; // JINJA_TAKES_...: of those names, which the text has used so far
};

#define parse_fail(parser, line, ...) jinja_fail_at((parser)->error, (line), __VA_ARGS__)

// For a function that returns what it parsed: return nothing(parse_fail(...)).
static void *nothing(bool failed)
{
    (void)failed;
    return NULL;
}

// --- tokens and nodes ---------------------------------------------------------------------------------------------------

static bool token_is(const struct jinja_token *token, const char *name)
{
    return token->kind == TOKEN_NAME && token->length == strlen(name) && !memcmp(token->bytes, name, token->length);
}

static bool next_is_op(const struct jinja_parser *parser, uint16_t op)
{
    return parser->token->kind == TOKEN_OPERATOR && parser->token->op == op;
}

static bool next_is_name(const struct jinja_parser *parser, const char *name) { return token_is(parser->token, name); }

static bool skip_op(struct jinja_parser *parser, uint16_t op)
{
    const bool is = next_is_op(parser, op);
    parser->token += is;
    return is;
}

static bool skip_name(struct jinja_parser *parser, const char *name)
{
    const bool is = next_is_name(parser, name);
    parser->token += is;
    return is;
}

static bool fail_unexpected(struct jinja_parser *parser, const char *wanted)
{
    const struct jinja_token *token = parser->token;
    switch (token->kind) {
    case TOKEN_END: return parse_fail(parser, token->line, "expected %s, found the end of the template", wanted);
    case TOKEN_OPERATOR:
        return parse_fail(parser, token->line, "expected %s, found '%c%s'", wanted, token->op & 255,
                          token->op > 255 ? (char[]){(char)(token->op >> 8), 0} : "");
    case TOKEN_NAME:
        return parse_fail(parser, token->line, "expected %s, found '%.*s'", wanted, (int)MIN(token->length, 40u), token->bytes);
    default: {
        static const char *const names[] = {"", "text", "{{", "}}", "{%", "%}", "", "a string", "an integer", "a float"};
        return parse_fail(parser, token->line, "expected %s, found %s", wanted, names[token->kind]);
    }
    }
}

static bool expect_op(struct jinja_parser *parser, uint16_t op)
{
    const char wanted[] = {'\'', (char)op, '\'', 0};
    return skip_op(parser, op) || fail_unexpected(parser, wanted);
}

// Returns NULL, with the reason written, when out of memory.
static struct jinja_node *node_new(struct jinja_parser *parser, int kind, uint32_t line)
{
    struct jinja_node *node = jinja_alloc(parser->arena, sizeof *node);
    if (!node)
        (void)parse_fail(parser, line, "too long a template");
    else
        *node = (struct jinja_node){.kind = (uint8_t)kind, .line = line};
    return node;
}

static bool node_push(struct jinja_parser *parser, struct jinja_node *node, struct jinja_node *item)
{
    if (!(node->count & (node->count - 1))) { // full at powers of two
        struct jinja_node **grown = jinja_alloc_array(parser->arena, node->count ? node->count * 2 : 1, sizeof *grown);
        if (!grown)
            return parse_fail(parser, node->line, "too long a template");
        if (node->count)
            memcpy(grown, node->items, node->count * sizeof *grown);
        node->items = grown;
    }
    node->items[node->count++] = item;
    return true;
}

static struct jinja_node *node_done(struct jinja_parser *parser, struct jinja_node *node)
{
    struct jinja_node *const children[] = {node->a, node->b, node->c};
    uint16_t depth = 0;
    for (size_t i = 0; i < ARRAY_COUNT(children); i++)
        if (children[i])
            depth = MAX(depth, children[i]->depth);
    for (uint32_t i = 0; i < node->count; i++) {
        const struct jinja_node *item = node->items[i];
        if (item)
            depth = MAX(depth, item->depth);
        if (item && (item->kind == NODE_NAME || (item->kind >= NODE_KEYWORD && item->kind <= NODE_STAR_STAR)) && item->a)
            depth = MAX(depth, item->a->depth);
    }
    node->depth = (uint16_t)(depth + 1);
    if (node->depth <= JINJA_MAX_NODE_DEPTH)
        return node;
    return nothing(parse_fail(parser, node->line, "an expression or block is more than %d levels deep", JINJA_MAX_NODE_DEPTH));
}

// Returns the text of the source from one token to another; NULL when out of memory.
static const struct jinja_string *source_text(struct jinja_parser *parser, const struct jinja_token *first,
                                              const struct jinja_token *last)
{
    struct jinja_string *text = jinja_alloc(parser->arena, sizeof *text);
    if (!text)
        (void)parse_fail(parser, first->line, "too long a template");
    else
        *text = (struct jinja_string){.bytes = first->bytes, .length = (size_t)(last->bytes + last->length - first->bytes)};
    return text;
}

static bool intern_name(struct jinja_parser *parser, const struct jinja_token *token, struct jinja_node *node)
{
    struct jinja_template *target = parser->target;
    for (node->id = 0; node->id < target->name_count; node->id++) {
        node->name = target->names[node->id];
        if (node->name->length == token->length && !memcmp(node->name->bytes, token->bytes, token->length))
            return true;
    }
    if (node->id >= 4096)
        return parse_fail(parser, token->line, "more than 4096 different names");
    if (node->id == parser->name_capacity) {
        parser->name_capacity = parser->name_capacity * 2 + 32;
        const struct jinja_string **grown = jinja_alloc_array(parser->arena, parser->name_capacity, sizeof *grown);
        if (!grown)
            return parse_fail(parser, token->line, "too long a template");
        if (node->id)
            memcpy(grown, target->names, node->id * sizeof *grown);
        target->names = grown;
    }
    node->name = source_text(parser, token, token);
    target->names[target->name_count++] = node->name;
    return node->name != NULL;
}

static struct jinja_node *parse_name(struct jinja_parser *parser)
{
    static const char *const taken[] = {"caller", "varargs", "kwargs"}; // in the order of JINJA_TAKES_...
    if (parser->token->kind != TOKEN_NAME)
        return nothing(fail_unexpected(parser, "a name"));
    for (size_t i = 0; i < ARRAY_COUNT(taken); i++)
        if (next_is_name(parser, taken[i]))
            parser->taken |= (uint16_t)(1u << i);
    struct jinja_node *node = node_new(parser, NODE_NAME, parser->token->line);
    if (!node || !intern_name(parser, parser->token, node))
        return NULL;
    parser->token++;
    return node;
}

// --- arguments, filters, tests and calls --------------------------------------------------------------------------------

static struct jinja_node *parse_expression(struct jinja_parser *parser);
static struct jinja_node *parse_operand(struct jinja_parser *parser);

// Parses an argument: an expression, name=expression, *expression or **expression.
static struct jinja_node *parse_argument(struct jinja_parser *parser)
{
    const struct jinja_token *token = parser->token, *next = token + 1;
    struct jinja_node *item;
    if (token->kind == TOKEN_NAME && next->kind == TOKEN_OPERATOR && next->op == '=') {
        item = parse_name(parser);
        if (!item)
            return NULL;
        item->kind = NODE_KEYWORD;
        parser->token++;
    } else if (next_is_op(parser, '*') || next_is_op(parser, OP2('*', '*'))) {
        item = node_new(parser, next_is_op(parser, '*') ? NODE_STAR : NODE_STAR_STAR, token->line);
        if (!item)
            return NULL;
        parser->token++;
    } else {
        return parse_expression(parser);
    }
    item->a = parse_expression(parser);
    return item->a ? item : NULL;
}

// Parses arguments from behind "(" up to ")" into node->items.
static bool parse_arguments(struct jinja_parser *parser, struct jinja_node *node)
{
    int most = 0; // the order that arguments have: positional, NODE_KEYWORD or NODE_STAR, NODE_STAR_STAR
    while (!skip_op(parser, ')')) {
        if (node->count && !expect_op(parser, ','))
            return false;
        if (skip_op(parser, ')'))
            break;
        const uint32_t line = parser->token->line;
        struct jinja_node *item = parse_argument(parser);
        if (!item)
            return false;
        const int order = item->kind == NODE_STAR_STAR ? 2 : item->kind == NODE_KEYWORD || item->kind == NODE_STAR;
        if (order < most)
            return parse_fail(parser, line, "a positional argument follows a named one, or one follows **");
        most = order;
        if (!node_push(parser, node, item))
            return false;
    }
    return true;
}

// Parses the name of a filter or test, which may have dots.
static bool parse_dotted_name(struct jinja_parser *parser, struct jinja_node *node, const char *wanted)
{
    const struct jinja_token *first = parser->token;
    if (first->kind != TOKEN_NAME)
        return fail_unexpected(parser, wanted);
    parser->token++;
    while (next_is_op(parser, '.') && parser->token[1].kind == TOKEN_NAME)
        parser->token += 2;
    node->name = source_text(parser, first, parser->token - 1);
    return node->name != NULL;
}

static struct jinja_node *parse_filter(struct jinja_parser *parser, struct jinja_node *operand)
{
    struct jinja_node *node = node_new(parser, NODE_FILTER, parser->token->line);
    if (!node || !parse_dotted_name(parser, node, "the name of a filter") ||
        (skip_op(parser, '(') && !parse_arguments(parser, node)))
        return NULL;
    node->a = operand;
    node->builtin = jinja_find_filter(parser->target->builtins, node->name->bytes, node->name->length);
    return node_done(parser, node);
}

// Returns whether a token starts the operand of a test without brackets: x is divisibleby 3.
static bool token_starts_operand(const struct jinja_token *token)
{
    static const char *const others[] = {"and", "or", "not", "if", "else", "is", "in", "recursive"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (token_is(token, others[i]))
            return false;
    return (token->kind >= TOKEN_NAME && token->kind <= TOKEN_FLOAT) ||
           (token->kind == TOKEN_OPERATOR && (token->op == '[' || token->op == '{'));
}

static struct jinja_node *parse_test(struct jinja_parser *parser, struct jinja_node *operand)
{
    const uint32_t line = parser->token->line;
    const bool negated = skip_name(parser, "not");
    struct jinja_node *node = node_new(parser, NODE_TEST, line);
    if (!node || !parse_dotted_name(parser, node, "the name of a test"))
        return NULL;
    node->a = operand;
    node->builtin = jinja_find_builtin(parser->target->builtins->tests, node->name->bytes, node->name->length);
    if (skip_op(parser, '(')) {
        if (!parse_arguments(parser, node))
            return NULL;
    } else if ((!node->builtin || node->builtin->required) && token_starts_operand(parser->token)) {
        struct jinja_node *item = parse_operand(parser);
        if (!item || !node_push(parser, node, item))
            return NULL;
    }
    if (!node_done(parser, node))
        return NULL;
    if (!negated)
        return node;
    struct jinja_node *not_node = node_new(parser, NODE_UNARY, line);
    if (!not_node)
        return NULL;
    not_node->op = 'n';
    not_node->a = node;
    return node_done(parser, not_node);
}

static struct jinja_node *parse_call(struct jinja_parser *parser, struct jinja_node *callee)
{
    struct jinja_node *node = node_new(parser, NODE_CALL, callee->line);
    if (!node || !parse_arguments(parser, node))
        return NULL;
    node->a = callee;
    return node_done(parser, node);
}

static struct jinja_node *node_binary(struct jinja_parser *parser, int kind, uint16_t op, struct jinja_node *a,
                                      struct jinja_node *b)
{
    struct jinja_node *node = a && b ? node_new(parser, kind, a->line) : NULL;
    if (!node)
        return NULL;
    node->op = op;
    node->a = a;
    node->b = b;
    return node_done(parser, node);
}

// --- operands -----------------------------------------------------------------------------------------------------------

static struct jinja_node *parse_sequence(struct jinja_parser *parser, int kind, uint16_t close, struct jinja_node *first)
{
    struct jinja_node *node = node_new(parser, kind, parser->token->line);
    if (!node || (first && !node_push(parser, node, first)))
        return NULL;
    while (!skip_op(parser, close)) {
        if (node->count && !expect_op(parser, ','))
            return NULL;
        if (skip_op(parser, close))
            break;
        struct jinja_node *item = parse_expression(parser);
        if (!item || !node_push(parser, node, item))
            return NULL;
    }
    return node_done(parser, node);
}

static struct jinja_node *parse_constant(struct jinja_parser *parser)
{
    const struct jinja_token *token = parser->token;
    struct jinja_node *node = node_new(parser, NODE_CONSTANT, token->line);
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
        if (!bytes || !string)
            return nothing(parse_fail(parser, token->line, "too long a template"));
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
            if (token_is(token, reserved[i]))
                return nothing(fail_unexpected(parser, "an expression"));
        struct jinja_node *node = parse_name(parser);
        for (size_t i = 0; node && i < sizeof words / sizeof words[0]; i++)
            if (token_is(token, words[i].name)) {
                node->kind = NODE_CONSTANT;
                node->constant = words[i].value;
            }
        return node;
    }
    if (token->kind == TOKEN_STRING || token->kind == TOKEN_INTEGER || token->kind == TOKEN_FLOAT)
        return parse_constant(parser);
    if (skip_op(parser, '(')) {
        if (skip_op(parser, ')')) {
            struct jinja_node *empty = node_new(parser, NODE_TUPLE, token->line);
            return empty ? node_done(parser, empty) : NULL;
        }
        struct jinja_node *inner = parse_expression(parser);
        if (inner && next_is_op(parser, ','))
            return parse_sequence(parser, NODE_TUPLE, ')', inner);
        return inner && expect_op(parser, ')') ? inner : NULL;
    }
    if (skip_op(parser, '['))
        return parse_sequence(parser, NODE_LIST, ']', NULL);
    if (next_is_op(parser, '{')) {
        struct jinja_node *node = node_new(parser, NODE_DICT, token->line);
        parser->token++;
        while (node && !skip_op(parser, '}')) {
            if (node->count && !expect_op(parser, ','))
                return NULL;
            if (skip_op(parser, '}'))
                break;
            for (int i = 0; i < 2; i++) {
                struct jinja_node *item = i && !expect_op(parser, ':') ? NULL : parse_expression(parser);
                if (!item || !node_push(parser, node, item))
                    return NULL;
            }
        }
        return node ? node_done(parser, node) : NULL;
    }
    return nothing(fail_unexpected(parser, "an expression"));
}

// Parses behind "[": an index or a slice.
static struct jinja_node *parse_subscript(struct jinja_parser *parser, struct jinja_node *object)
{
    struct jinja_node *node = node_new(parser, NODE_ITEM, object->line);
    struct jinja_node **parts = jinja_alloc_array(parser->arena, 3, sizeof *parts);
    if (!node || !parts)
        return NULL;
    node->a = object;
    for (uint32_t i = 0; i < 3; i++) {
        if (!next_is_op(parser, ':') && !next_is_op(parser, ']') && !(parts[i] = parse_expression(parser)))
            return NULL;
        if (!skip_op(parser, ':'))
            break;
        node->kind = NODE_SLICE;
    }
    if (node->kind == NODE_SLICE) {
        node->items = parts;
        node->count = 3;
    } else if (!(node->b = parts[0]))
        return nothing(fail_unexpected(parser, "an index"));
    return expect_op(parser, ']') ? node_done(parser, node) : NULL;
}

static struct jinja_node *parse_postfix(struct jinja_parser *parser, struct jinja_node *node)
{
    while (node) {
        if (skip_op(parser, '.')) {
            const struct jinja_token *name = parser->token;
            struct jinja_node *attribute;
            if (name->kind == TOKEN_INTEGER) {
                attribute = node_binary(parser, NODE_ITEM, 0, node, parse_constant(parser));
            } else {
                attribute = parse_name(parser);
                if (attribute) {
                    attribute->kind = NODE_ATTRIBUTE;
                    attribute->a = node;
                    attribute = node_done(parser, attribute);
                }
            }
            node = attribute;
        } else if (skip_op(parser, '[')) {
            node = parse_subscript(parser, node);
        } else if (skip_op(parser, '(')) {
            node = parse_call(parser, node);
        } else {
            break;
        }
    }
    return node;
}

static struct jinja_node *parse_operand(struct jinja_parser *parser) { return parse_postfix(parser, parse_primary(parser)); }

// --- operators ----------------------------------------------------------------------------------------------------------

static struct jinja_node *parse_unary(struct jinja_parser *parser, bool with_filter)
{
    const uint32_t line = parser->token->line;
    struct jinja_node *node;
    if (next_is_op(parser, '-') || next_is_op(parser, '+')) {
        node = node_new(parser, NODE_UNARY, line);
        if (!node)
            return NULL;
        node->op = parser->token++->op;
        if (++parser->nesting > JINJA_MAX_NESTING)
            return nothing(parse_fail(parser, line, "expressions nest deeper than %d", JINJA_MAX_NESTING));
        node->a = parse_unary(parser, false);
        parser->nesting--;
        node = node->a ? node_done(parser, node) : NULL;
    } else {
        node = parse_primary(parser);
    }
    node = parse_postfix(parser, node);
    while (node && with_filter) {
        if (skip_op(parser, '|'))
            node = parse_filter(parser, node);
        else if (skip_name(parser, "is"))
            node = parse_test(parser, node);
        else
            break;
    }
    return node;
}

static struct jinja_node *parse_power(struct jinja_parser *parser)
{
    struct jinja_node *node = parse_unary(parser, true);
    while (node && skip_op(parser, OP2('*', '*')))
        node = node_binary(parser, NODE_BINARY, OP2('*', '*'), node, parse_unary(parser, true));
    return node;
}

static struct jinja_node *parse_product(struct jinja_parser *parser)
{
    struct jinja_node *node = parse_power(parser);
    while (node &&
           (next_is_op(parser, '*') || next_is_op(parser, '/') || next_is_op(parser, '%') || next_is_op(parser, OP2('/', '/')))) {
        const uint16_t op = parser->token++->op;
        node = node_binary(parser, NODE_BINARY, op, node, parse_power(parser));
    }
    return node;
}

// Parses items with an operator between them, which are one node, or what stands alone. There may be a comma behind the last.
static struct jinja_node *parse_joined(struct jinja_parser *parser, int kind, uint16_t op,
                                       struct jinja_node *(*parse_item)(struct jinja_parser *parser))
{
    struct jinja_node *first = parse_item(parser);
    if (!first || !next_is_op(parser, op))
        return first;
    struct jinja_node *node = node_new(parser, kind, first->line);
    if (!node || !node_push(parser, node, first))
        return NULL;
    while (skip_op(parser, op)) {
        if (op == ',' &&
            (next_is_op(parser, ')') || parser->token->kind == TOKEN_BLOCK_END || parser->token->kind == TOKEN_PRINT_END))
            break;
        struct jinja_node *item = parse_item(parser);
        if (!item || !node_push(parser, node, item))
            return NULL;
    }
    return node_done(parser, node);
}

static struct jinja_node *parse_concat(struct jinja_parser *parser)
{
    return parse_joined(parser, NODE_CONCAT, '~', parse_product);
}

static struct jinja_node *parse_sum(struct jinja_parser *parser)
{
    struct jinja_node *node = parse_concat(parser);
    while (node && (next_is_op(parser, '+') || next_is_op(parser, '-'))) {
        const uint16_t op = parser->token++->op;
        node = node_binary(parser, NODE_BINARY, op, node, parse_concat(parser));
    }
    return node;
}

// Consumes the comparison at the next token and returns its op ('i' in, 'n' not in); 0: there is none.
static uint16_t take_comparison(struct jinja_parser *parser)
{
    static const uint16_t ops[] = {OP2('=', '='), OP2('!', '='), OP2('<', '='), OP2('>', '='), '<', '>'};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (skip_op(parser, ops[i]))
            return ops[i];
    if (skip_name(parser, "in"))
        return 'i';
    if (next_is_name(parser, "not") && token_is(parser->token + 1, "in")) {
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
        if (!node && (!(node = node_new(parser, NODE_COMPARE, first->line)) || !node_push(parser, node, first)))
            return NULL;
        struct jinja_node *right = parse_sum(parser);
        if (!right || !node_push(parser, node, right))
            return NULL;
        if (++count == sizeof ops / sizeof ops[0])
            return nothing(parse_fail(parser, first->line, "a comparison of more than 15 links"));
    }
    if (!node)
        return first;
    node->ops = jinja_alloc_array(parser->arena, count, sizeof *ops);
    if (!node->ops)
        return NULL;
    memcpy(node->ops, ops, count * sizeof *ops);
    return node_done(parser, node);
}

static struct jinja_node *parse_not(struct jinja_parser *parser)
{
    if (!next_is_name(parser, "not"))
        return parse_compare(parser);
    struct jinja_node *node = node_new(parser, NODE_UNARY, parser->token->line);
    parser->token++;
    if (node && ++parser->nesting > JINJA_MAX_NESTING)
        return nothing(parse_fail(parser, node->line, "expressions nest deeper than %d", JINJA_MAX_NESTING));
    if (!node || !(node->a = parse_not(parser)))
        return NULL;
    parser->nesting--;
    node->op = 'n';
    return node_done(parser, node);
}

static struct jinja_node *parse_and(struct jinja_parser *parser)
{
    struct jinja_node *node = parse_not(parser);
    while (node && skip_name(parser, "and"))
        node = node_binary(parser, NODE_BINARY, '&', node, parse_not(parser));
    return node;
}

static struct jinja_node *parse_or(struct jinja_parser *parser)
{
    struct jinja_node *node = parse_and(parser);
    while (node && skip_name(parser, "or"))
        node = node_binary(parser, NODE_BINARY, '|', node, parse_and(parser));
    return node;
}

static struct jinja_node *parse_expression(struct jinja_parser *parser)
{
    if (++parser->nesting > JINJA_MAX_NESTING)
        return nothing(parse_fail(parser, parser->token->line, "expressions nest deeper than %d", JINJA_MAX_NESTING));
    struct jinja_node *node = parse_or(parser);
    while (node && skip_name(parser, "if")) {
        node = node_binary(parser, NODE_IF_EXPRESSION, 0, node, parse_or(parser));
        if (node && skip_name(parser, "else")) {
            node->c = parse_expression(parser);
            node = node->c ? node_done(parser, node) : NULL;
        }
    }
    parser->nesting--;
    return node;
}

static struct jinja_node *parse_tuple(struct jinja_parser *parser, bool allow_condition)
{
    return parse_joined(parser, NODE_TUPLE, ',', allow_condition ? parse_expression : parse_or);
}

// --- statements ---------------------------------------------------------------------------------------------------------

static struct jinja_node *parse_body(struct jinja_parser *parser, const char *const *ends, const char *what);

static bool expect_block_end(struct jinja_parser *parser)
{
    if (parser->token->kind != TOKEN_BLOCK_END)
        return fail_unexpected(parser, "%}");
    parser->token++;
    return true;
}

// Parses from the end of a tag, or of its `else`, to behind the name of the tag that ends it: "endif".
static struct jinja_node *parse_closed(struct jinja_parser *parser, const char *end)
{
    const char *const ends[] = {end, NULL};
    struct jinja_node *body = expect_block_end(parser) ? parse_body(parser, ends, end + strlen("end")) : NULL;
    parser->token += body != NULL;
    return body;
}

// Parses one name of a target, a namespace's member, or a target in brackets.
static struct jinja_node *parse_one_target(struct jinja_parser *parser);

// Parses the target of `for`, `set` or `with`: a name, or some separated by commas.
static struct jinja_node *parse_target(struct jinja_parser *parser)
{
    return parse_joined(parser, NODE_TUPLE, ',', parse_one_target);
}

static struct jinja_node *parse_one_target(struct jinja_parser *parser)
{
    if (skip_op(parser, '(')) {
        if (++parser->nesting > JINJA_MAX_NESTING)
            return nothing(parse_fail(parser, parser->token->line, "brackets nest deeper than %d", JINJA_MAX_NESTING));
        struct jinja_node *inner = parse_target(parser);
        parser->nesting--;
        return inner && expect_op(parser, ')') ? inner : NULL;
    }
    struct jinja_node *name = parse_name(parser);
    if (!name || !skip_op(parser, '.'))
        return name;
    struct jinja_node *member = parse_name(parser);
    if (!member)
        return NULL;
    member->kind = NODE_MEMBER;
    member->id = name->id;
    return member;
}

static struct jinja_node *parse_if(struct jinja_parser *parser, uint32_t line)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct jinja_node *node = node_new(parser, NODE_IF, line);
    if (!node)
        return NULL;
    for (;;) {
        struct jinja_node *condition = parse_tuple(parser, false);
        struct jinja_node *body = condition && expect_block_end(parser) ? parse_body(parser, ends, "if") : NULL;
        if (!body || !node_push(parser, node, condition) || !node_push(parser, node, body))
            return NULL;
        if (skip_name(parser, "elif"))
            continue;
        if (skip_name(parser, "else")) {
            body = parse_closed(parser, "endif");
            if (!body || !node_push(parser, node, body))
                return NULL;
        } else {
            parser->token++; // endif
        }
        return node_done(parser, node);
    }
}

static struct jinja_node *parse_for(struct jinja_parser *parser, uint32_t line)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    struct jinja_node *node = node_new(parser, NODE_FOR, line);
    if (!node || !(node->a = parse_target(parser)))
        return NULL;
    if (!skip_name(parser, "in"))
        return nothing(fail_unexpected(parser, "'in'"));
    if (!(node->b = parse_tuple(parser, false)))
        return NULL;
    if (skip_name(parser, "if") && !(node->c = parse_expression(parser)))
        return NULL;
    if (skip_name(parser, "recursive"))
        node->op = 'r';
    parser->loops++;
    struct jinja_node *body = expect_block_end(parser) ? parse_body(parser, ends, "for") : NULL;
    parser->loops--;
    if (!body || !node_push(parser, node, body))
        return NULL;
    if (skip_name(parser, "else")) {
        body = parse_closed(parser, "endfor");
        if (!body || !node_push(parser, node, body))
            return NULL;
    } else {
        parser->token++; // endfor
    }
    return node_done(parser, node);
}

// Parses a body that runs as a function: `break` and `continue` in it do not reach the loops around it.
static struct jinja_node *parse_function_body(struct jinja_parser *parser, const char *end)
{
    const uint32_t loops = parser->loops;
    parser->loops = 0;
    struct jinja_node *body = parse_closed(parser, end);
    parser->loops = loops;
    return body;
}

// Parses a chain of filters over the text of a block. The first filter is the next token.
static struct jinja_node *parse_block_filters(struct jinja_parser *parser)
{
    struct jinja_node *node = node_new(parser, NODE_CAPTURED, parser->token->line);
    do
        node = node ? parse_filter(parser, node) : NULL;
    while (node && skip_op(parser, '|'));
    return node;
}

static struct jinja_node *parse_set(struct jinja_parser *parser, uint32_t line)
{
    struct jinja_node *node = node_new(parser, NODE_SET, line);
    if (!node || !(node->a = parse_target(parser)))
        return NULL;
    if (skip_op(parser, '=')) {
        node->b = parse_tuple(parser, true);
    } else if (node->a->kind != NODE_TUPLE && (parser->token->kind == TOKEN_BLOCK_END || next_is_op(parser, '|'))) {
        node->kind = NODE_SET_BLOCK;
        if (skip_op(parser, '|') && !(node->c = parse_block_filters(parser)))
            return NULL;
        node->b = parse_closed(parser, "endset");
    } else {
        (void)fail_unexpected(parser, "'='");
    }
    return node->b ? node_done(parser, node) : NULL;
}

// Parses parameters from behind "(" up to ")" into node->items.
static bool parse_parameters(struct jinja_parser *parser, struct jinja_node *node)
{
    bool defaults = false;
    while (!skip_op(parser, ')')) {
        if (node->count && !expect_op(parser, ','))
            return false;
        struct jinja_node *parameter = parse_name(parser);
        if (!parameter || !node_push(parser, node, parameter))
            return false;
        if (skip_op(parser, '=')) {
            if (!(parameter->a = parse_expression(parser)))
                return false;
            defaults = true;
        } else if (defaults) {
            return parse_fail(parser, node->line, "a parameter without a default follows one that has it");
        }
    }
    return true;
}

// Parses from behind the name of a macro, or `call`, to the end of its body.
static struct jinja_node *parse_macro_rest(struct jinja_parser *parser, struct jinja_node *node, const char *end)
{
    const uint16_t outer = parser->taken;
    parser->taken = 0;
    node->b = parse_function_body(parser, end);
    node->op = parser->taken;
    parser->taken |= outer;
    return node->b ? node_done(parser, node) : NULL;
}

static struct jinja_node *parse_macro(struct jinja_parser *parser, uint32_t line)
{
    struct jinja_node *node = parse_name(parser);
    if (!node || !expect_op(parser, '('))
        return NULL;
    node->kind = NODE_MACRO;
    node->line = line;
    return parse_parameters(parser, node) ? parse_macro_rest(parser, node, "endmacro") : NULL;
}

// {% call(parameters) f(arguments) %}
static struct jinja_node *parse_call_block(struct jinja_parser *parser, uint32_t line)
{
    static const struct jinja_string name = {.bytes = "caller", .length = 6};
    struct jinja_node *node = node_new(parser, NODE_CALL_BLOCK, line);
    struct jinja_node *caller = node ? node_new(parser, NODE_MACRO, line) : NULL;
    if (!caller)
        return NULL;
    caller->name = &name;
    if (skip_op(parser, '(') && !parse_parameters(parser, caller))
        return NULL;
    if (!(node->a = parse_expression(parser)))
        return NULL;
    if (node->a->kind != NODE_CALL)
        return nothing(parse_fail(parser, line, "the tag 'call' needs a call"));
    node->b = parse_macro_rest(parser, caller, "endcall");
    return node->b ? node_done(parser, node) : NULL;
}

static struct jinja_node *parse_with(struct jinja_parser *parser, uint32_t line)
{
    struct jinja_node *node = node_new(parser, NODE_WITH, line);
    while (node && parser->token->kind != TOKEN_BLOCK_END) {
        if (node->count && !expect_op(parser, ','))
            return NULL;
        struct jinja_node *target = parse_target(parser);
        if (!target || !expect_op(parser, '=') || !node_push(parser, node, target))
            return NULL;
        struct jinja_node *value = parse_expression(parser);
        if (!value || !node_push(parser, node, value))
            return NULL;
    }
    if (!node || !(node->b = parse_closed(parser, "endwith")))
        return NULL;
    return node_done(parser, node);
}

static struct jinja_node *parse_filter_block(struct jinja_parser *parser, uint32_t line)
{
    struct jinja_node *node = node_new(parser, NODE_FILTER_BLOCK, line);
    if (!node || !(node->a = parse_block_filters(parser)) || !(node->b = parse_closed(parser, "endfilter")))
        return NULL;
    return node_done(parser, node);
}

static struct jinja_node *parse_generation(struct jinja_parser *parser, uint32_t line)
{
    struct jinja_node *node = node_new(parser, NODE_SCOPE, line);
    if (!node || !(node->a = parse_function_body(parser, "endgeneration")))
        return NULL;
    return node_done(parser, node);
}

// Without inheritance a block is what it contains: {% block name [scoped] [required] %}...{% endblock [name] %}
static struct jinja_node *parse_block(struct jinja_parser *parser, uint32_t line)
{
    struct jinja_node *node = node_new(parser, NODE_SCOPE, line), *name = node ? parse_name(parser) : NULL;
    if (!name)
        return NULL;
    node->op = skip_name(parser, "scoped") ? 0 : 'b';
    (void)skip_name(parser, "required");
    if (!(node->a = parse_function_body(parser, "endblock")))
        return NULL;
    if (parser->token->kind == TOKEN_NAME && parser->token->length == name->name->length &&
        !memcmp(parser->token->bytes, name->name->bytes, name->name->length))
        parser->token++;
    return node_done(parser, node);
}

// {% print a, b %}
static struct jinja_node *parse_print(struct jinja_parser *parser, uint32_t line)
{
    struct jinja_node *body = node_new(parser, NODE_BODY, line);
    while (body && (!body->count || skip_op(parser, ','))) {
        struct jinja_node *item = node_new(parser, NODE_PRINT, line);
        if (!item || !(item->a = parse_expression(parser)) || !node_done(parser, item) || !node_push(parser, body, item))
            return NULL;
    }
    return body ? node_done(parser, body) : NULL;
}

// {% autoescape false %}: a scope, as nothing is escaped anyway.
static struct jinja_node *parse_autoescape(struct jinja_parser *parser, uint32_t line)
{
    struct jinja_node *node = node_new(parser, NODE_SCOPE, line);
    if (!node || !(node->b = parse_expression(parser)) || !(node->a = parse_closed(parser, "endautoescape")))
        return NULL;
    return node_done(parser, node);
}

static struct jinja_node *parse_leave(struct jinja_parser *parser, uint32_t line)
{
    const bool is_break = token_is(parser->token - 1, "break");
    if (parser->loops)
        return node_new(parser, is_break ? NODE_BREAK : NODE_CONTINUE, line);
    return nothing(parse_fail(parser, line, "'%s' outside of a loop", is_break ? "break" : "continue"));
}

// Tags that need a second template fail where they are run, as in the reference renderer.
static struct jinja_node *parse_absent(struct jinja_parser *parser, uint32_t line)
{
    struct jinja_node *node = node_new(parser, NODE_ABSENT_TAG, line);
    if (!node || !(node->name = source_text(parser, parser->token - 1, parser->token - 1)))
        return NULL;
    while (parser->token->kind >= TOKEN_NAME)
        parser->token++;
    return node;
}

static struct jinja_node *parse_statement(struct jinja_parser *parser)
{
    static const struct {
        const char *name;
        struct jinja_node *(*parse)(struct jinja_parser *parser, uint32_t line);
    } tags[] = {
        {"if", parse_if},
        {"for", parse_for},
        {"set", parse_set},
        {"macro", parse_macro},
        {"call", parse_call_block},
        {"filter", parse_filter_block},
        {"with", parse_with},
        {"generation", parse_generation},
        {"block", parse_block},
        {"break", parse_leave},
        {"continue", parse_leave},
        {"print", parse_print},
        {"autoescape", parse_autoescape},
        {"include", parse_absent},
        {"import", parse_absent},
        {"from", parse_absent},
        {"extends", parse_absent},
    };
    const struct jinja_token *name = parser->token;
    if (name->kind != TOKEN_NAME)
        return nothing(fail_unexpected(parser, "the name of a tag"));
    parser->token++;
    for (size_t i = 0; i < ARRAY_COUNT(tags); i++)
        if (token_is(name, tags[i].name)) {
            struct jinja_node *node = tags[i].parse(parser, name->line);
            return node && expect_block_end(parser) ? node : NULL;
        }
    return nothing(parse_fail(
        parser, name->line,
        "unknown tag '%.*s' (supported: for, if, set, macro, call, filter, with, raw, block, generation, break, continue)",
        (int)MIN(name->length, 40u), name->bytes));
}

static bool ends_body(const struct jinja_parser *parser, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (token_is(parser->token + 1, *ends))
            return true;
    return false;
}

// Parses statements up to a tag named in ends, whose name is then the next token; ends NULL: up to the end of the template.
static struct jinja_node *parse_body(struct jinja_parser *parser, const char *const *ends, const char *what)
{
    const uint32_t line = ends ? parser->token[-1].line : 1; // the tag's before
    struct jinja_node *body = node_new(parser, NODE_BODY, line);
    if (body && ++parser->nesting > JINJA_MAX_NESTING)
        return nothing(parse_fail(parser, line, "blocks nest deeper than %d", JINJA_MAX_NESTING));
    while (body) {
        const struct jinja_token *token = parser->token;
        struct jinja_node *item = NULL;
        if (token->kind == TOKEN_END && !ends)
            break;
        if (token->kind == TOKEN_END) {
            (void)parse_fail(parser, token->line, "the '%s' of line %u is not closed", what, line);
        } else if (token->kind == TOKEN_BLOCK_BEGIN) {
            if (ends_body(parser, ends)) {
                parser->token++;
                break;
            }
            parser->token++;
            item = parse_statement(parser);
        } else if (token->kind == TOKEN_PRINT_BEGIN) {
            parser->token++;
            item = node_new(parser, NODE_PRINT, token->line);
            if (item && !(item->a = parse_tuple(parser, true)))
                return NULL;
            if (item && parser->token->kind != TOKEN_PRINT_END)
                item = fail_unexpected(parser, "}}") ? item : NULL;
            parser->token += item != NULL;
            item = item ? node_done(parser, item) : NULL;
        } else { // text
            item = node_new(parser, NODE_TEXT, token->line);
            if (!item)
                return NULL;
            item->constant = (struct jinja_value){.kind = KIND_STRING, .string = source_text(parser, token, token)};
            if (!item->constant.string)
                return NULL;
            parser->token++;
        }
        if (!item || !node_push(parser, body, item))
            return NULL;
    }
    parser->nesting--;
    return body ? node_done(parser, body) : NULL;
}

bool jinja_parse(struct jinja_template *target, const struct jinja_token *tokens, struct error *error)
{
    struct jinja_parser parser = {.target = target, .arena = &target->arena, .token = tokens, .error = error};
    target->root = parse_body(&parser, NULL, "template");
    return target->root != NULL;
}
