// jinja_parse.c: the statement half of the parser.
#include "common/jinja/jinja_parser.h"

#include <string.h>

#include "common/base/checked.h"

static struct jinja_node *parse_body(struct jinja_parser *parser, const char *const *ends, const char *what);

// --- statements ---------------------------------------------------------------------------------------------------------

static bool expect_block_end(struct jinja_parser *parser)
{
    if (parser->token->kind != TOKEN_BLOCK_END)
        return jinja_unexpected(parser, "%}");
    parser->token++;
    return true;
}

// One name of a target, a namespace's member, or a target in brackets.
static struct jinja_node *parse_one_target(struct jinja_parser *parser);

// Parses the target of `for`, `set` or `with`: a name, or some separated by commas.
static struct jinja_node *parse_target(struct jinja_parser *parser)
{
    struct jinja_node *first = parse_one_target(parser);
    if (!first || !jinja_is_op(parser, ','))
        return first;
    struct jinja_node *target = jinja_node_new(parser, NODE_TUPLE, first->line);
    if (!target || !jinja_node_push(parser, target, first))
        return NULL;
    while (jinja_skip_op(parser, ',')) {
        if (jinja_is_op(parser, ')') || parser->token->kind == TOKEN_BLOCK_END)
            break;
        struct jinja_node *item = parse_one_target(parser);
        if (!item || !jinja_node_push(parser, target, item))
            return NULL;
    }
    return jinja_node_done(parser, target);
}

static struct jinja_node *parse_one_target(struct jinja_parser *parser)
{
    if (jinja_skip_op(parser, '(')) {
        if (++parser->nesting > JINJA_MAX_NESTING) {
            (void)jinja_parse_fail(parser, parser->token->line, "brackets nest deeper than %d", JINJA_MAX_NESTING);
            return NULL;
        }
        struct jinja_node *inner = parse_target(parser);
        parser->nesting--;
        return inner && jinja_expect_op(parser, ')') ? inner : NULL;
    }
    struct jinja_node *name = jinja_parse_name(parser);
    if (!name || !jinja_skip_op(parser, '.'))
        return name;
    struct jinja_node *member = jinja_parse_name(parser);
    if (!member)
        return NULL;
    member->kind = NODE_MEMBER;
    member->id = name->id;
    return member;
}

static struct jinja_node *parse_if(struct jinja_parser *parser, uint32_t line)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const end[] = {"endif", NULL};
    struct jinja_node *node = jinja_node_new(parser, NODE_IF, line);
    if (!node)
        return NULL;
    for (;;) {
        struct jinja_node *condition = jinja_parse_tuple(parser, false);
        struct jinja_node *body = condition && expect_block_end(parser) ? parse_body(parser, ends, "if") : NULL;
        if (!body || !jinja_node_push(parser, node, condition) || !jinja_node_push(parser, node, body))
            return NULL;
        if (jinja_skip_name(parser, "elif"))
            continue;
        if (jinja_skip_name(parser, "else")) {
            body = expect_block_end(parser) ? parse_body(parser, end, "if") : NULL;
            if (!body || !jinja_node_push(parser, node, body))
                return NULL;
        }
        parser->token++; // endif
        return jinja_node_done(parser, node);
    }
}

static struct jinja_node *parse_for(struct jinja_parser *parser, uint32_t line)
{
    static const char *const ends[] = {"else", "endfor", NULL}, *const end[] = {"endfor", NULL};
    struct jinja_node *node = jinja_node_new(parser, NODE_FOR, line);
    if (!node || !(node->a = parse_target(parser)))
        return NULL;
    if (!jinja_skip_name(parser, "in")) {
        (void)jinja_unexpected(parser, "'in'");
        return NULL;
    }
    if (!(node->b = jinja_parse_tuple(parser, false)))
        return NULL;
    if (jinja_skip_name(parser, "if") && !(node->c = jinja_parse_expression(parser)))
        return NULL;
    if (jinja_skip_name(parser, "recursive"))
        node->op = 'r';
    parser->loops++;
    struct jinja_node *body = expect_block_end(parser) ? parse_body(parser, ends, "for") : NULL;
    parser->loops--;
    if (!body || !jinja_node_push(parser, node, body))
        return NULL;
    if (jinja_skip_name(parser, "else")) {
        body = expect_block_end(parser) ? parse_body(parser, end, "for") : NULL;
        if (!body || !jinja_node_push(parser, node, body))
            return NULL;
    }
    parser->token++; // endfor
    return jinja_node_done(parser, node);
}

// The body of a block that loops outside of it cannot be left from: it is run as a function.
static struct jinja_node *parse_function_body(struct jinja_parser *parser, const char *const *end, const char *what)
{
    const uint32_t loops = parser->loops;
    parser->loops = 0;
    struct jinja_node *body = expect_block_end(parser) ? parse_body(parser, end, what) : NULL;
    parser->loops = loops;
    parser->token += body != NULL; // the name of the end
    return body;
}

// A chain of filters over what a block writes: the first is the next token.
static struct jinja_node *parse_block_filters(struct jinja_parser *parser)
{
    struct jinja_node *node = jinja_node_new(parser, NODE_CAPTURED, parser->token->line);
    do
        node = node ? jinja_parse_filter(parser, node) : NULL;
    while (node && jinja_skip_op(parser, '|'));
    return node;
}

static struct jinja_node *parse_set(struct jinja_parser *parser, uint32_t line)
{
    static const char *const end[] = {"endset", NULL};
    struct jinja_node *node = jinja_node_new(parser, NODE_SET, line);
    if (!node || !(node->a = parse_target(parser)))
        return NULL;
    if (jinja_skip_op(parser, '=')) {
        node->b = jinja_parse_tuple(parser, true);
    } else if (node->a->kind != NODE_TUPLE && (parser->token->kind == TOKEN_BLOCK_END || jinja_is_op(parser, '|'))) {
        node->kind = NODE_SET_BLOCK;
        if (jinja_skip_op(parser, '|') && !(node->c = parse_block_filters(parser)))
            return NULL;
        node->b = expect_block_end(parser) ? parse_body(parser, end, "set") : NULL;
        parser->token += node->b != NULL;
    } else {
        (void)jinja_unexpected(parser, "'='");
    }
    return node->b ? jinja_node_done(parser, node) : NULL;
}

// After "(": parameters up to ")", into node->items.
static bool parse_parameters(struct jinja_parser *parser, struct jinja_node *node)
{
    bool defaults = false;
    while (!jinja_skip_op(parser, ')')) {
        if (node->count && !jinja_expect_op(parser, ','))
            return false;
        struct jinja_node *parameter = jinja_parse_name(parser);
        if (!parameter || !jinja_node_push(parser, node, parameter))
            return false;
        if (jinja_skip_op(parser, '=')) {
            if (!(parameter->a = jinja_parse_expression(parser)))
                return false;
            defaults = true;
        } else if (defaults) {
            return jinja_parse_fail(parser, node->line, "a parameter without a default follows one that has it");
        }
    }
    return true;
}

// From behind the name of a macro, or `call`, to the end of its body.
static struct jinja_node *parse_macro_rest(struct jinja_parser *parser, struct jinja_node *node, const char *const *end,
                                           const char *what)
{
    const uint16_t outer = parser->taken;
    parser->taken = 0;
    node->b = parse_function_body(parser, end, what);
    node->op = parser->taken;
    parser->taken |= outer;
    return node->b ? jinja_node_done(parser, node) : NULL;
}

static struct jinja_node *parse_macro(struct jinja_parser *parser, uint32_t line)
{
    static const char *const end[] = {"endmacro", NULL};
    struct jinja_node *node = jinja_parse_name(parser);
    if (!node || !jinja_expect_op(parser, '('))
        return NULL;
    node->kind = NODE_MACRO;
    node->line = line;
    return parse_parameters(parser, node) ? parse_macro_rest(parser, node, end, "macro") : NULL;
}

// {% call(parameters) f(arguments) %}
static struct jinja_node *parse_call_block(struct jinja_parser *parser, uint32_t line)
{
    static const char *const end[] = {"endcall", NULL};
    static const struct jinja_string name = {.bytes = "caller", .length = 6};
    struct jinja_node *node = jinja_node_new(parser, NODE_CALL_BLOCK, line);
    struct jinja_node *caller = node ? jinja_node_new(parser, NODE_MACRO, line) : NULL;
    if (!caller)
        return NULL;
    caller->name = &name;
    if (jinja_skip_op(parser, '(') && !parse_parameters(parser, caller))
        return NULL;
    if (!(node->a = jinja_parse_expression(parser)))
        return NULL;
    if (node->a->kind != NODE_CALL) {
        (void)jinja_parse_fail(parser, line, "the tag 'call' needs a call");
        return NULL;
    }
    node->b = parse_macro_rest(parser, caller, end, "call");
    return node->b ? jinja_node_done(parser, node) : NULL;
}

static struct jinja_node *parse_with(struct jinja_parser *parser, uint32_t line)
{
    static const char *const end[] = {"endwith", NULL};
    struct jinja_node *node = jinja_node_new(parser, NODE_WITH, line);
    while (node && parser->token->kind != TOKEN_BLOCK_END) {
        if (node->count && !jinja_expect_op(parser, ','))
            return NULL;
        struct jinja_node *target = parse_target(parser);
        if (!target || !jinja_expect_op(parser, '=') || !jinja_node_push(parser, node, target))
            return NULL;
        struct jinja_node *value = jinja_parse_expression(parser);
        if (!value || !jinja_node_push(parser, node, value))
            return NULL;
    }
    if (!node || !expect_block_end(parser) || !(node->b = parse_body(parser, end, "with")))
        return NULL;
    parser->token++;
    return jinja_node_done(parser, node);
}

static struct jinja_node *parse_filter_block(struct jinja_parser *parser, uint32_t line)
{
    static const char *const end[] = {"endfilter", NULL};
    struct jinja_node *node = jinja_node_new(parser, NODE_FILTER_BLOCK, line);
    if (!node || !(node->a = parse_block_filters(parser)) || !expect_block_end(parser) ||
        !(node->b = parse_body(parser, end, "filter")))
        return NULL;
    parser->token++;
    return jinja_node_done(parser, node);
}

static struct jinja_node *parse_generation(struct jinja_parser *parser, uint32_t line)
{
    static const char *const end[] = {"endgeneration", NULL};
    struct jinja_node *node = jinja_node_new(parser, NODE_SCOPE, line);
    if (!node || !(node->a = parse_function_body(parser, end, "generation")))
        return NULL;
    return jinja_node_done(parser, node);
}

// Without inheritance a block is what it contains: {% block name [scoped] [required] %}...{% endblock [name] %}
static struct jinja_node *parse_block(struct jinja_parser *parser, uint32_t line)
{
    static const char *const end[] = {"endblock", NULL};
    struct jinja_node *node = jinja_node_new(parser, NODE_SCOPE, line), *name = node ? jinja_parse_name(parser) : NULL;
    if (!name)
        return NULL;
    node->op = jinja_skip_name(parser, "scoped") ? 0 : 'b';
    (void)jinja_skip_name(parser, "required");
    if (!(node->a = parse_function_body(parser, end, "block")))
        return NULL;
    if (parser->token->kind == TOKEN_NAME && parser->token->length == name->name->length &&
        !memcmp(parser->token->bytes, name->name->bytes, name->name->length))
        parser->token++;
    return jinja_node_done(parser, node);
}

// {% print a, b %}
static struct jinja_node *parse_print(struct jinja_parser *parser, uint32_t line)
{
    struct jinja_node *body = jinja_node_new(parser, NODE_BODY, line);
    while (body && (!body->count || jinja_skip_op(parser, ','))) {
        struct jinja_node *item = jinja_node_new(parser, NODE_PRINT, line);
        if (!item || !(item->a = jinja_parse_expression(parser)) || !jinja_node_done(parser, item) ||
            !jinja_node_push(parser, body, item))
            return NULL;
    }
    return body ? jinja_node_done(parser, body) : NULL;
}

// {% autoescape false %}: a scope, as nothing is escaped anyway.
static struct jinja_node *parse_autoescape(struct jinja_parser *parser, uint32_t line)
{
    static const char *const end[] = {"endautoescape", NULL};
    struct jinja_node *node = jinja_node_new(parser, NODE_SCOPE, line);
    if (!node || !(node->b = jinja_parse_expression(parser)) || !expect_block_end(parser) ||
        !(node->a = parse_body(parser, end, "autoescape")))
        return NULL;
    parser->token++;
    return jinja_node_done(parser, node);
}

static struct jinja_node *parse_leave(struct jinja_parser *parser, uint32_t line)
{
    const bool is_break = jinja_token_is(parser->token - 1, "break");
    if (parser->loops)
        return jinja_node_new(parser, is_break ? NODE_BREAK : NODE_CONTINUE, line);
    (void)jinja_parse_fail(parser, line, "'%s' outside of a loop", is_break ? "break" : "continue");
    return NULL;
}

// Tags that need a second template fail where they are run, as in the reference renderer.
static struct jinja_node *parse_absent(struct jinja_parser *parser, uint32_t line)
{
    struct jinja_node *node = jinja_node_new(parser, NODE_ABSENT_TAG, line);
    if (!node || !(node->name = jinja_source_text(parser, parser->token - 1, parser->token - 1)))
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
    if (name->kind != TOKEN_NAME) {
        (void)jinja_unexpected(parser, "the name of a tag");
        return NULL;
    }
    parser->token++;
    for (size_t i = 0; i < ARRAY_COUNT(tags); i++)
        if (jinja_token_is(name, tags[i].name)) {
            struct jinja_node *node = tags[i].parse(parser, name->line);
            return node && expect_block_end(parser) ? node : NULL;
        }
    (void)jinja_parse_fail(
        parser, name->line,
        "unknown tag '%.*s' (supported: for, if, set, macro, call, filter, with, raw, block, generation, break, continue)",
        (int)MIN(name->length, 40u), name->bytes);
    return NULL;
}

static bool is_end(const struct jinja_parser *parser, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (jinja_token_is(parser->token + 1, *ends))
            return true;
    return false;
}

// Parses statements up to a tag named in ends, whose name is then the next token; ends NULL: up to the end of the template.
static struct jinja_node *parse_body(struct jinja_parser *parser, const char *const *ends, const char *what)
{
    const uint32_t line = ends ? parser->token[-1].line : 1; // of the tag before
    struct jinja_node *body = jinja_node_new(parser, NODE_BODY, line);
    if (body && ++parser->nesting > JINJA_MAX_NESTING) {
        (void)jinja_parse_fail(parser, line, "blocks nest deeper than %d", JINJA_MAX_NESTING);
        return NULL;
    }
    while (body) {
        const struct jinja_token *token = parser->token;
        struct jinja_node *item = NULL;
        if (token->kind == TOKEN_END && !ends)
            break;
        if (token->kind == TOKEN_END) {
            (void)jinja_parse_fail(parser, token->line, "the '%s' of line %u is not closed", what, line);
        } else if (token->kind == TOKEN_BLOCK_BEGIN) {
            if (is_end(parser, ends)) {
                parser->token++;
                break;
            }
            parser->token++;
            item = parse_statement(parser);
        } else if (token->kind == TOKEN_PRINT_BEGIN) {
            parser->token++;
            item = jinja_node_new(parser, NODE_PRINT, token->line);
            if (item && !(item->a = jinja_parse_tuple(parser, true)))
                return NULL;
            if (item && parser->token->kind != TOKEN_PRINT_END)
                item = jinja_unexpected(parser, "}}") ? item : NULL;
            parser->token += item != NULL;
            item = item ? jinja_node_done(parser, item) : NULL;
        } else { // text
            item = jinja_node_new(parser, NODE_TEXT, token->line);
            if (!item)
                return NULL;
            item->constant = (struct jinja_value){.kind = KIND_STRING, .string = jinja_source_text(parser, token, token)};
            if (!item->constant.string)
                return NULL;
            parser->token++;
        }
        if (!item || !jinja_node_push(parser, body, item))
            return NULL;
    }
    parser->nesting--;
    return body ? jinja_node_done(parser, body) : NULL;
}

bool jinja_parse(struct jinja_template *target, const struct jinja_token *tokens, struct error *error)
{
    struct jinja_parser parser = {.target = target,
                                  .arena = &target->arena,
                                  .token = tokens,
                                  .error = error,
                                  .parse_expression = jinja_parse_expression,
                                  .parse_operand = jinja_parse_operand};
    target->root = parse_body(&parser, NULL, "template");
    return target->root != NULL;
}
