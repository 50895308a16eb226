// tree.h: a template as tokens and as a tree, and the table of what it may call.
#ifndef FD_GATEWAY_JINJA_TREE_H
#define FD_GATEWAY_JINJA_TREE_H

#include "services/gateway/jinja/types.h"

enum jinja_token_kind {
    TOKEN_END,
    TOKEN_TEXT,
    TOKEN_PRINT_BEGIN, // {{
    TOKEN_PRINT_END,
    TOKEN_BLOCK_BEGIN, // {%
    TOKEN_BLOCK_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INTEGER,
    TOKEN_FLOAT,
    TOKEN_OPERATOR, // op: one or two characters, the second << 8
};

struct jinja_token {
    uint8_t kind;
    uint16_t op;
    uint32_t line;
    const char *bytes; // text, name, decoded string; not terminated
    size_t length;
    union {
        int64_t integer;
        double number;
    };
};

// Splits a source into tokens, the last being TOKEN_END. They point into source, or into the arena.
bool jinja_lex(struct arena *arena, const char *source, size_t length, struct jinja_token **tokens, struct error *error);

enum jinja_node_kind {
    NODE_CONSTANT, // constant
    NODE_NAME,     // id, name
    NODE_LIST,     // items
    NODE_TUPLE,
    NODE_DICT,          // items: key, value, key, value
    NODE_ATTRIBUTE,     // a . name
    NODE_ITEM,          // a [ b ]
    NODE_SLICE,         // a [ items[0] : items[1] : items[2] ], each may be NULL
    NODE_UNARY,         // op - + n(ot), a
    NODE_BINARY,        // a op b; also = and '&' for and, '|' for or
    NODE_COMPARE,       // items[0] ops[0] items[1] ops[1] ...
    NODE_CONCAT,        // items
    NODE_IF_EXPRESSION, // a if b else c (c may be NULL)
    NODE_FILTER,        // a | name(items): builtin, or NULL if there is none of that name
    NODE_TEST,          // a is name(items): likewise
    NODE_CALL,          // a (items): arguments in the order of the text
    NODE_KEYWORD,       // an argument: name = a
    NODE_STAR,          // an argument: *a
    NODE_STAR_STAR,     // an argument: **a
    NODE_CAPTURED,      // the text that a block has just written, for the filters behind it
    NODE_TEXT,          // constant, tree's statements from here
    NODE_PRINT,         // a
    NODE_BODY,          // items
    NODE_IF,            // items: condition, body, condition, body, ..., body of else
    NODE_FOR,           // targets a, iterable b, condition c or NULL, items: body, body of else or NULL; op 'r': recursive
    NODE_SET,           // target a, value b
    NODE_SET_BLOCK,     // target a, body b, filters c or NULL
    NODE_MEMBER,        // a target: the member `name` of the namespace in variable id
    NODE_MACRO,      // id, items: parameters (NODE_NAME, a = default or NULL), body b, op: what it takes besides (JINJA_TAKES_...)
    NODE_CALL_BLOCK, // the call a, given b (a NODE_MACRO) as `caller`
    NODE_FILTER_BLOCK, // filters a over body b
    NODE_WITH,         // items: target, value, target, value, ...; body b
    NODE_SCOPE,        // body a in a scope of its own; op 'b': a block, which sees the variables of the top level alone;
                       // b: whether it escapes, or NULL
    NODE_ABSENT_TAG,   // a tag that cannot be run, such as include: name
    NODE_BREAK,
    NODE_CONTINUE,
};

struct jinja_node {
    uint8_t kind;
    uint16_t op;
    uint16_t depth; // height of the tree below
    uint32_t line;
    uint32_t id; // a name's index in the template's table of names
    uint32_t count;
    struct jinja_node *a, *b, *c, **items;
    uint16_t *ops;
    const struct jinja_string *name;
    const struct jinja_builtin *builtin;
    struct jinja_value constant;
};

// Names that a macro's body uses without being its parameters: then it takes a caller, and arguments that no parameter has.
enum { JINJA_TAKES_CALLER = 1, JINJA_TAKES_VARARGS = 2, JINJA_TAKES_KWARGS = 4 };

enum { JINJA_PARAMS = 5 }; // the most parameters that a filter, test, method or function has

struct jinja_run;
// self: the value that is filtered, tested or called on (unused by functions). arguments: JINJA_PARAMS values, KIND_ABSENT if not given;
// for a variadic builtin, arguments[0] is a list of the positional and arguments[1] a dict of the keyword ones. how: the builtin's.
typedef bool jinja_builtin_fn(struct jinja_run *run, const struct jinja_value *self, const struct jinja_value *arguments, int how,
                              struct jinja_value *out);

struct jinja_builtin {
    const char *name;
    const char *params[JINJA_PARAMS];
    uint8_t required;
    bool variadic;
    uint8_t self_kind; // methods: the kind that has it
    int how;           // for a function that several builtins call: which of them it is, as the function says
    jinja_builtin_fn *call;
};

// All that a template can name. Each table ends with a NULL name.
struct jinja_builtins {
    const struct jinja_builtin *filters, *list_filters, *tests, *methods, *functions;
};
extern const struct jinja_builtin jinja_filters[], jinja_list_filters[], jinja_tests[], jinja_methods[], jinja_functions[];

// builtin.c: an entry, or NULL.
const struct jinja_builtin *jinja_find_builtin(const struct jinja_builtin *table, const char *name, size_t length);
const struct jinja_builtin *jinja_find_filter(const struct jinja_builtins *all, const char *name, size_t length);
const struct jinja_builtin *jinja_find_method(const struct jinja_builtins *all, uint8_t kind, const char *name, size_t length);

struct jinja_template {
    struct arena arena;
    const struct jinja_builtins *builtins; // all that it may call
    struct jinja_node *root;
    uint32_t name_count;
    const struct jinja_string **names;
    const char *bos_token, *eos_token;
};

// Parses tokens into target->root and target->names. False: the reason is written.
bool jinja_parse(struct jinja_template *target, const struct jinja_token *tokens, struct error *error);

#endif
