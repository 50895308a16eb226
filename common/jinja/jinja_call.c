// jinja_call.c: parses the parts of an expression that take arguments: x | filter(...), x is test(...), f(...) and x.method(...).
//
// Names of filters, tests, methods and functions are resolved here, and arguments are assigned to parameters, so that a template with
// anything unsupported fails when it is loaded.
#include "common/jinja/jinja_char.h"
#include "common/jinja/jinja_parser.h"

#include <string.h>

// --- arguments ----------------------------------------------------------------------------------------------------------

// After "(": expressions, then name=expression, up to ")". NODE_KEYWORDs come last in list->items.
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
            if (!item || !(item->a = parser->parse_expression(parser)))
                return false;
            item->kind = NODE_KEYWORD;
            keywords = true;
        } else {
            if (keywords)
                return jinja_parse_fail(parser, parser->token->line, "a positional argument follows a named one");
            item = parser->parse_expression(parser);
        }
        if (!item || !jinja_node_push(parser, list, item))
            return false;
    }
    return true;
}

// Puts the arguments list->items[from..] into node->items by parameter; NULL if not given.
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
            return jinja_parse_fail(parser, item->line, "%s '%s' is given '%s' twice", what, builtin->name, builtin->params[slot]);
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

// select('test', ...), selectattr('attribute', 'test', ...), map('filter', ...): the inner name must be written out, so
// that it can be checked.
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

struct jinja_node *jinja_parse_filter(struct jinja_parser *parser, struct jinja_node *operand)
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

struct jinja_node *jinja_parse_test(struct jinja_parser *parser, struct jinja_node *operand)
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
        struct jinja_node *item = parser->parse_operand(parser);
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

// After "(" that follows an expression: only a name or an attribute can be called.
struct jinja_node *jinja_parse_call(struct jinja_parser *parser, struct jinja_node *callee)
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
