/* jinja_expr.c: the expression half of the parser, by recursive descent, in jinja2's order of precedence:
 *
 *     x if c else y  <  or  <  and  <  not  <  == < in ...  <  + -  <  ~  <  * / // %  <  unary  <  x.y x[y] x() | is
 *
 * Names of filters, tests, methods and functions are resolved here and their arguments sorted into the parameters, so
 * that whatever is not supported fails when the template is loaded.
 */
#include "common/tokenizer/jinja.h"

#include <string.h>

static struct jinja_node *parse_unary(struct jinja_parser *parser, bool with_filter);
static struct jinja_node *parse_postfix(struct jinja_parser *parser, struct jinja_node *node);

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

// --- arguments ----------------------------------------------------------------------------------------------------------

/* After "(": expressions, then name=expression, up to ")". NODE_KEYWORDs come last in list->items. */
static bool parse_arguments(struct jinja_parser *parser, struct jinja_node *list)
{
    bool keywords = false;
    while (!jinja_skip_op(parser, ')')) {
        if (list->count && !jinja_expect_op(parser, ','))
            return false;
        if (jinja_skip_op(parser, ')'))
            break;
        if (jinja_is_op(parser, '*') || jinja_is_op(parser, OP2('*', '*')))
            return jinja_parse_fail(parser, parser->token->line, "* and ** arguments are not supported");
        struct jinja_node *item;
        const struct jinja_token *next = parser->token + 1;
        if (parser->token->kind == TOKEN_NAME && next->kind == TOKEN_OPERATOR && next->op == '=') {
            item = jinja_parse_name(parser);
            parser->token++;
            if (!item || !(item->a = jinja_parse_expression(parser)))
                return false;
            item->kind = NODE_KEYWORD;
            keywords = true;
        } else {
            if (keywords)
                return jinja_parse_fail(parser, parser->token->line, "a positional argument follows a named one");
            item = jinja_parse_expression(parser);
        }
        if (!item || !jinja_node_push(parser, list, item))
            return false;
    }
    return true;
}

/* Puts the arguments list->items[from..] into node->items by parameter, NULL where not given. */
static bool sort_arguments(struct jinja_parser *parser, struct jinja_node *node, const struct jinja_node *list, uint32_t from,
                           const char *what)
{
    const struct jinja_builtin *builtin = node->builtin;
    if (builtin->variadic) {
        node->items = list->items; // from is 0: only filters and tests have an inner name before
        node->count = list->count - from;
        return true;
    }
    node->items = jinja_alloc_array(parser->arena, JINJA_PARAMS, sizeof *node->items);
    node->count = JINJA_PARAMS;
    if (!node->items)
        return jinja_parse_fail(parser, node->line, "too long a template");
    for (uint32_t i = from; i < list->count; i++) {
        struct jinja_node *item = list->items[i];
        uint32_t slot = i - from;
        if (item->kind == NODE_KEYWORD)
            for (slot = 0; slot < JINJA_PARAMS && builtin->params[slot]; slot++)
                if (jinja_string_is(item->name, builtin->params[slot]))
                    break;
        if (slot >= JINJA_PARAMS || !builtin->params[slot]) {
            if (item->kind == NODE_KEYWORD)
                return jinja_parse_fail(parser, item->line, "%s '%s' has no argument '%.*s'", what, builtin->name,
                                        (int)item->name->length, item->name->bytes);
            return jinja_parse_fail(parser, node->line, "too many arguments for %s '%s'", what, builtin->name);
        }
        if (node->items[slot])
            return jinja_parse_fail(parser, item->line, "%s '%s' is given '%s' twice", what, builtin->name,
                                    builtin->params[slot]);
        node->items[slot] = item->kind == NODE_KEYWORD ? item->a : item;
    }
    for (uint32_t i = 0; i < builtin->required; i++)
        if (!node->items[i])
            return jinja_parse_fail(parser, node->line, "%s '%s' needs '%s'", what, builtin->name, builtin->params[i]);
    return true;
}

static const struct jinja_builtin *resolve(struct jinja_parser *parser, const struct jinja_builtin *table, const char *what,
                                           const char *name, size_t length, uint32_t line)
{
    char names[360];
    const struct jinja_builtin *builtin = jinja_find_builtin(table, name, length);
    if (!builtin)
        (void)jinja_parse_fail(parser, line, "unknown %s '%.*s' (supported: %s)", what, (int)(length < 40 ? length : 40), name,
                               jinja_builtin_names(table, names, sizeof names));
    return builtin;
}

/* select('test', ...), selectattr('attribute', 'test', ...), map('filter', ...): the inner name must be written out, so
 * that it can be checked. */
static bool parse_inner(struct jinja_parser *parser, struct jinja_node *node, const struct jinja_node *list, bool attribute)
{
    const bool is_map = node->kind == NODE_MAP_FILTER;
    const char *what = is_map ? "filter" : "test";
    uint32_t at = 0;
    if (attribute) {
        if (!list->count || list->items[0]->kind == NODE_KEYWORD)
            return jinja_parse_fail(parser, node->line, "the name of an attribute is needed");
        node->b = list->items[at++];
    }
    if (at == list->count && !is_map) { // no test: truth
        node->builtin = NULL;
        return true;
    }
    const struct jinja_node *name = at < list->count ? list->items[at++] : NULL;
    if (!name || name->kind != NODE_CONSTANT || name->constant.kind != KIND_STRING)
        return jinja_parse_fail(parser, node->line, "the name of a %s must be a literal string here", what);
    node->builtin = resolve(parser, is_map ? jinja_filters : jinja_tests, what, name->constant.string->bytes,
                            name->constant.string->length, node->line);
    if (node->builtin && !node->builtin->call)
        return jinja_parse_fail(parser, node->line, "filter '%s' cannot be used inside of map()", node->builtin->name);
    return node->builtin && sort_arguments(parser, node, list, at, what);
}

static bool parse_map(struct jinja_parser *parser, struct jinja_node *node, const struct jinja_node *list)
{
    if (!list->count || list->items[0]->kind != NODE_KEYWORD) {
        node->kind = NODE_MAP_FILTER;
        return parse_inner(parser, node, list, false);
    }
    node->kind = NODE_MAP_ATTRIBUTE;
    for (uint32_t i = 0; i < list->count; i++) {
        struct jinja_node *item = list->items[i];
        if (jinja_string_is(item->name, "attribute"))
            node->b = item->a;
        else if (jinja_string_is(item->name, "default"))
            node->c = item->a;
        else
            return jinja_parse_fail(parser, item->line, "filter 'map' has no argument '%.*s'", (int)item->name->length,
                                    item->name->bytes);
    }
    return node->b || jinja_parse_fail(parser, node->line, "filter 'map' needs 'attribute'");
}

static struct jinja_node *parse_filter(struct jinja_parser *parser, struct jinja_node *operand)
{
    const struct jinja_token *name = parser->token;
    if (name->kind != TOKEN_NAME) {
        (void)jinja_unexpected(parser, "the name of a filter");
        return NULL;
    }
    parser->token++;
    struct jinja_node *node = jinja_node_new(parser, NODE_FILTER, name->line);
    struct jinja_node *list = jinja_node_new(parser, NODE_LIST, name->line);
    if (!node || !list || (jinja_skip_op(parser, '(') && !parse_arguments(parser, list)))
        return NULL;
    node->a = operand;
    const bool reject = jinja_token_is(name, "reject") || jinja_token_is(name, "rejectattr");
    const bool attribute = jinja_token_is(name, "selectattr") || jinja_token_is(name, "rejectattr");
    bool good;
    if (reject || attribute || jinja_token_is(name, "select")) {
        node->kind = NODE_SELECT;
        node->op = reject ? 'r' : 's';
        good = parse_inner(parser, node, list, attribute);
    } else if (jinja_token_is(name, "map")) {
        good = parse_map(parser, node, list);
    } else {
        node->builtin = resolve(parser, jinja_filters, "filter", name->bytes, name->length, name->line);
        good = node->builtin && sort_arguments(parser, node, list, 0, "filter");
    }
    return good ? jinja_node_done(parser, node) : NULL;
}

static bool starts_operand(const struct jinja_token *token)
{
    return (token->kind >= TOKEN_NAME && token->kind <= TOKEN_FLOAT) ||
           (token->kind == TOKEN_OPERATOR && (token->op == '(' || token->op == '[' || token->op == '{'));
}

static struct jinja_node *parse_primary(struct jinja_parser *parser);

static struct jinja_node *parse_test(struct jinja_parser *parser, struct jinja_node *operand)
{
    const bool negated = jinja_skip_name(parser, "not");
    const struct jinja_token *name = parser->token;
    if (name->kind != TOKEN_NAME) {
        (void)jinja_unexpected(parser, "the name of a test");
        return NULL;
    }
    parser->token++;
    struct jinja_node *node = jinja_node_new(parser, NODE_TEST, name->line);
    struct jinja_node *list = jinja_node_new(parser, NODE_LIST, name->line);
    if (!node || !list)
        return NULL;
    node->a = operand;
    node->builtin = resolve(parser, jinja_tests, "test", name->bytes, name->length, name->line);
    if (!node->builtin)
        return NULL;
    if (jinja_skip_op(parser, '(')) {
        if (!parse_arguments(parser, list))
            return NULL;
    } else if (node->builtin->required && starts_operand(parser->token)) { // x is divisibleby 3
        struct jinja_node *item = parse_postfix(parser, parse_primary(parser));
        if (!item || !jinja_node_push(parser, list, item))
            return NULL;
    }
    if (!sort_arguments(parser, node, list, 0, "test") || !jinja_node_done(parser, node))
        return NULL;
    if (!negated)
        return node;
    struct jinja_node *not_node = jinja_node_new(parser, NODE_UNARY, name->line);
    if (!not_node)
        return NULL;
    not_node->op = 'n';
    not_node->a = node;
    return jinja_node_done(parser, not_node);
}

/* After "(" that follows an expression: only a name or an attribute can be called. */
static struct jinja_node *parse_call(struct jinja_parser *parser, struct jinja_node *callee)
{
    struct jinja_node *list = jinja_node_new(parser, NODE_LIST, callee->line);
    if (!list || !parse_arguments(parser, list))
        return NULL;
    if (callee->kind == NODE_ATTRIBUTE) {
        callee->kind = NODE_METHOD;
        callee->builtin = resolve(parser, jinja_methods, "method", callee->name->bytes, callee->name->length, callee->line);
        if (!callee->builtin || !sort_arguments(parser, callee, list, 0, "method"))
            return NULL;
        return jinja_node_done(parser, callee);
    }
    if (callee->kind != NODE_NAME) {
        (void)jinja_parse_fail(parser, callee->line, "only functions, macros and methods can be called");
        return NULL;
    }
    callee->builtin = jinja_find_builtin(jinja_functions, callee->name->bytes, callee->name->length);
    callee->kind = callee->builtin ? NODE_FUNCTION : NODE_MACRO_CALL;
    if (callee->builtin) {
        if (!sort_arguments(parser, callee, list, 0, "function"))
            return NULL;
    } else { // a macro, which may be defined further down: checked at the end
        callee->items = list->items;
        callee->count = list->count;
        callee->c = parser->calls;
        parser->calls = callee;
    }
    return jinja_node_done(parser, callee);
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
    } words[] = {{"true", {KIND_BOOL, {.boolean = true}}}, {"True", {KIND_BOOL, {.boolean = true}}},
                 {"false", {KIND_BOOL, {0}}}, {"False", {KIND_BOOL, {0}}}, {"none", {KIND_NONE, {0}}}, {"None", {KIND_NONE, {0}}}};
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

/* After "[". */
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
            node = parse_call(parser, node);
        } else {
            break;
        }
    }
    return node;
}

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
            node = parse_filter(parser, node);
        else if (jinja_skip_name(parser, "is"))
            node = parse_test(parser, node);
        else
            break;
    }
    return node;
}

static struct jinja_node *parse_product(struct jinja_parser *parser)
{
    struct jinja_node *node = parse_unary(parser, true);
    while (node && (jinja_is_op(parser, '*') || jinja_is_op(parser, '/') || jinja_is_op(parser, '%') ||
                    jinja_is_op(parser, OP2('/', '/')))) {
        const uint16_t op = parser->token++->op;
        node = binary(parser, NODE_BINARY, op, node, parse_unary(parser, true));
    }
    if (node && jinja_is_op(parser, OP2('*', '*'))) {
        (void)jinja_parse_fail(parser, node->line, "operator '**' is not supported");
        return NULL;
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

/* The comparison at the next token, consumed: its op ('i' in, 'n' not in), 0: none. */
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
