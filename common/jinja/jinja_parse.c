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

// Parses the target of `for` or `set`: a name, or names separated by commas, perhaps in brackets.
static struct jinja_node *parse_target(struct jinja_parser *parser)
{
    const bool bracket = jinja_skip_op(parser, '(');
    struct jinja_node *first = jinja_parse_name(parser);
    if (!first)
        return NULL;
    struct jinja_node *target = first;
    if (jinja_is_op(parser, ',')) {
        target = jinja_node_new(parser, NODE_TUPLE, first->line);
        if (!target || !jinja_node_push(parser, target, first))
            return NULL;
        while (jinja_skip_op(parser, ',')) {
            struct jinja_node *name = jinja_parse_name(parser);
            if (!name || !jinja_node_push(parser, target, name))
                return NULL;
        }
    }
    return !bracket || jinja_expect_op(parser, ')') ? target : NULL;
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
    if (jinja_is_name(parser, "recursive")) {
        (void)jinja_parse_fail(parser, line, "recursive loops are not supported");
        return NULL;
    }
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

static struct jinja_node *parse_set(struct jinja_parser *parser, uint32_t line)
{
    static const char *const end[] = {"endset", NULL};
    struct jinja_node *node = jinja_node_new(parser, NODE_SET, line);
    if (!node || !(node->a = parse_target(parser)))
        return NULL;
    if (node->a->kind == NODE_NAME && jinja_skip_op(parser, '.')) {
        struct jinja_node *attribute = jinja_parse_name(parser);
        if (!attribute)
            return NULL;
        node->kind = NODE_SET_ATTRIBUTE;
        node->id = node->a->id;
        node->name = attribute->name;
    }
    if (jinja_skip_op(parser, '=')) {
        node->b = jinja_parse_tuple(parser, true);
    } else if (node->kind == NODE_SET && node->a->kind == NODE_NAME && parser->token->kind == TOKEN_BLOCK_END) {
        parser->token++;
        node->kind = NODE_SET_BLOCK;
        const uint32_t loops = parser->loops;
        parser->loops = 0;
        node->b = parse_body(parser, end, "set");
        parser->loops = loops;
        parser->token += node->b != NULL;
    } else {
        (void)jinja_unexpected(parser, "'='");
    }
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
    bool defaults = false;
    while (!jinja_skip_op(parser, ')')) {
        if (node->count && !jinja_expect_op(parser, ','))
            return NULL;
        struct jinja_node *parameter = jinja_parse_name(parser);
        if (!parameter || !jinja_node_push(parser, node, parameter))
            return NULL;
        if (jinja_skip_op(parser, '=')) {
            if (!(parameter->a = jinja_parse_expression(parser)))
                return NULL;
            defaults = true;
        } else if (defaults) {
            (void)jinja_parse_fail(parser, line, "a parameter without a default follows one that has it");
            return NULL;
        }
    }
    const uint32_t loops = parser->loops;
    parser->loops = 0; // a break does not leave its macro
    node->b = expect_block_end(parser) ? parse_body(parser, end, "macro") : NULL;
    parser->loops = loops;
    if (!node->b || !jinja_node_done(parser, node))
        return NULL;
    parser->token++; // endmacro
    node->c = parser->macros;
    parser->macros = node;
    return node;
}

static struct jinja_node *parse_statement(struct jinja_parser *parser)
{
    static const char *const end_generation[] = {"endgeneration", NULL};
    const struct jinja_token *name = parser->token;
    if (name->kind != TOKEN_NAME) {
        (void)jinja_unexpected(parser, "the name of a tag");
        return NULL;
    }
    parser->token++;
    struct jinja_node *node = NULL;
    if (jinja_token_is(name, "if"))
        node = parse_if(parser, name->line);
    else if (jinja_token_is(name, "for"))
        node = parse_for(parser, name->line);
    else if (jinja_token_is(name, "set"))
        return (node = parse_set(parser, name->line)) && expect_block_end(parser) ? node : NULL;
    else if (jinja_token_is(name, "macro"))
        node = parse_macro(parser, name->line);
    else if (jinja_token_is(name, "generation")) {
        if ((node = jinja_node_new(parser, NODE_SCOPE, name->line))) {
            const uint32_t loops = parser->loops;
            parser->loops = 0;
            node->a = expect_block_end(parser) ? parse_body(parser, end_generation, "generation") : NULL;
            parser->loops = loops;
            parser->token += node->a != NULL;
            node = node->a ? jinja_node_done(parser, node) : NULL;
        }
    } else if (jinja_token_is(name, "break") || jinja_token_is(name, "continue")) {
        if (parser->loops)
            node = jinja_node_new(parser, jinja_token_is(name, "break") ? NODE_BREAK : NODE_CONTINUE, name->line);
        else
            (void)jinja_parse_fail(parser, name->line, "'%.*s' outside of a loop", (int)name->length, name->bytes);
    } else {
        (void)jinja_parse_fail(parser, name->line,
                               "unknown tag '%.*s' (supported: for, if, set, macro, generation, break, continue)",
                               (int)MIN(name->length, 40u), name->bytes);
    }
    return node && expect_block_end(parser) ? node : NULL;
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
            struct jinja_string *text = jinja_alloc(parser->arena, sizeof *text);
            if (!text)
                (void)jinja_parse_fail(parser, token->line, "too long a template");
            if (!item || !text)
                return NULL;
            *text = (struct jinja_string){.bytes = token->bytes, .length = token->length};
            item->constant = (struct jinja_value){.kind = KIND_STRING, .string = text};
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
    if (!target->root)
        return false;
    for (const struct jinja_node *call = parser.calls; call; call = call->c) {
        const struct jinja_node *macro = parser.macros;
        while (macro && macro->id != call->id)
            macro = macro->c;
        char names[200];
        if (!macro)
            return jinja_fail_at(error, call->line, "unknown function '%.*s' (supported: %s and the template's macros)",
                                 (int)MIN(call->name->length, 40u), call->name->bytes,
                                 jinja_builtin_names(jinja_functions, names, sizeof names));
    }
    return true;
}
