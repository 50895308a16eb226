// jinja_node.c: helpers of the whole parser: looking at tokens, and making nodes.
//
// A node knows its height, so that a tree that is too deep to be walked safely is refused while it is built.
#include <string.h>

#include "common/base/checked.h"
#include "common/jinja/jinja_parser.h"

bool jinja_token_is(const struct jinja_token *token, const char *name)
{
    return token->kind == TOKEN_NAME && token->length == strlen(name) && !memcmp(token->bytes, name, token->length);
}

bool jinja_is_op(const struct jinja_parser *parser, uint16_t op)
{
    return parser->token->kind == TOKEN_OPERATOR && parser->token->op == op;
}

bool jinja_is_name(const struct jinja_parser *parser, const char *name) { return jinja_token_is(parser->token, name); }

bool jinja_skip_op(struct jinja_parser *parser, uint16_t op)
{
    const bool is = jinja_is_op(parser, op);
    parser->token += is;
    return is;
}

bool jinja_skip_name(struct jinja_parser *parser, const char *name)
{
    const bool is = jinja_is_name(parser, name);
    parser->token += is;
    return is;
}

bool jinja_unexpected(struct jinja_parser *parser, const char *wanted)
{
    const struct jinja_token *token = parser->token;
    switch (token->kind) {
    case TOKEN_END: return jinja_parse_fail(parser, token->line, "expected %s, found the end of the template", wanted);
    case TOKEN_OPERATOR:
        return jinja_parse_fail(parser, token->line, "expected %s, found '%c%s'", wanted, token->op & 255,
                                token->op > 255 ? (char[]){(char)(token->op >> 8), 0} : "");
    case TOKEN_NAME:
        return jinja_parse_fail(parser, token->line, "expected %s, found '%.*s'", wanted, (int)MIN(token->length, 40u),
                                token->bytes);
    default: {
        static const char *const names[] = {"", "text", "{{", "}}", "{%", "%}", "", "a string", "an integer", "a float"};
        return jinja_parse_fail(parser, token->line, "expected %s, found %s", wanted, names[token->kind]);
    }
    }
}

bool jinja_expect_op(struct jinja_parser *parser, uint16_t op)
{
    const char wanted[] = {'\'', (char)op, '\'', 0};
    return jinja_skip_op(parser, op) || jinja_unexpected(parser, wanted);
}

struct jinja_node *jinja_node_new(struct jinja_parser *parser, int kind, uint32_t line)
{
    struct jinja_node *node = jinja_alloc(parser->arena, sizeof *node);
    if (!node)
        (void)jinja_parse_fail(parser, line, "too long a template");
    else
        *node = (struct jinja_node){.kind = (uint8_t)kind, .line = line};
    return node;
}

bool jinja_node_push(struct jinja_parser *parser, struct jinja_node *node, struct jinja_node *item)
{
    if (!(node->count & (node->count - 1))) { // full at powers of two
        struct jinja_node **grown = jinja_alloc_array(parser->arena, node->count ? node->count * 2 : 1, sizeof *grown);
        if (!grown)
            return jinja_parse_fail(parser, node->line, "too long a template");
        if (node->count)
            memcpy(grown, node->items, node->count * sizeof *grown);
        node->items = grown;
    }
    node->items[node->count++] = item;
    return true;
}

struct jinja_node *jinja_node_done(struct jinja_parser *parser, struct jinja_node *node)
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
    (void)jinja_parse_fail(parser, node->line, "an expression or block is more than %d levels deep", JINJA_MAX_NODE_DEPTH);
    return NULL;
}

const struct jinja_string *jinja_source_text(struct jinja_parser *parser, const struct jinja_token *first,
                                             const struct jinja_token *last)
{
    struct jinja_string *text = jinja_alloc(parser->arena, sizeof *text);
    if (!text)
        (void)jinja_parse_fail(parser, first->line, "too long a template");
    else
        *text = (struct jinja_string){.bytes = first->bytes, .length = (size_t)(last->bytes + last->length - first->bytes)};
    return text;
}

static bool intern(struct jinja_parser *parser, const struct jinja_token *token, struct jinja_node *node)
{
    struct jinja_template *target = parser->target;
    for (node->id = 0; node->id < target->name_count; node->id++) {
        node->name = target->names[node->id];
        if (node->name->length == token->length && !memcmp(node->name->bytes, token->bytes, token->length))
            return true;
    }
    if (node->id >= 4096)
        return jinja_parse_fail(parser, token->line, "more than 4096 different names");
    if (node->id == parser->name_capacity) {
        parser->name_capacity = parser->name_capacity * 2 + 32;
        const struct jinja_string **grown = jinja_alloc_array(parser->arena, parser->name_capacity, sizeof *grown);
        if (!grown)
            return jinja_parse_fail(parser, token->line, "too long a template");
        if (node->id)
            memcpy(grown, target->names, node->id * sizeof *grown);
        target->names = grown;
    }
    node->name = jinja_source_text(parser, token, token);
    target->names[target->name_count++] = node->name;
    return node->name != NULL;
}

struct jinja_node *jinja_parse_name(struct jinja_parser *parser)
{
    static const char *const taken[] = {"caller", "varargs", "kwargs"}; // in the order of JINJA_TAKES_...
    if (parser->token->kind != TOKEN_NAME) {
        (void)jinja_unexpected(parser, "a name");
        return NULL;
    }
    for (size_t i = 0; i < ARRAY_COUNT(taken); i++)
        if (jinja_is_name(parser, taken[i]))
            parser->taken |= (uint16_t)(1u << i);
    struct jinja_node *node = jinja_node_new(parser, NODE_NAME, parser->token->line);
    if (!node || !intern(parser, parser->token, node))
        return NULL;
    parser->token++;
    return node;
}
