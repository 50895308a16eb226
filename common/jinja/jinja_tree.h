// jinja_tree.h: a template as a tree, and the table of what it may call.
#ifndef FD_JINJA_TREE_H
#define FD_JINJA_TREE_H

#include "common/jinja/jinja_arena.h"
#include "common/jinja/jinja_types.h"

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
    NODE_FILTER,        // a | builtin(items)
    NODE_TEST,          // a is builtin(items)
    NODE_METHOD,        // a . builtin(items)
    NODE_FUNCTION,      // builtin(items)
    NODE_MACRO_CALL,    // id, items: arguments, NODE_KEYWORD last
    NODE_KEYWORD,       // name = a
    NODE_SELECT,        // op s(elect) r(eject): a, attribute b or NULL, test builtin(items)
    NODE_MAP_ATTRIBUTE, // a, attribute b, default c or NULL
    NODE_MAP_FILTER,    // a, filter builtin(items)
    NODE_TEXT,          // constant, tree's statements from here
    NODE_PRINT,         // a
    NODE_BODY,          // items
    NODE_IF,            // items: condition, body, condition, body, ..., body of else
    NODE_FOR,           // targets a, iterable b, condition c or NULL, items: body, body of else or NULL
    NODE_SET,           // target a, value b
    NODE_SET_BLOCK,     // target a, body b
    NODE_SET_ATTRIBUTE, // namespace id, name; value b
    NODE_MACRO,         // id, items: parameters (NODE_NAME, a = default or NULL), body b
    NODE_SCOPE,         // body a in a scope of its own
    NODE_BREAK,
    NODE_CONTINUE,
};

struct jinja_node {
    uint8_t kind;
    uint16_t op;
    uint16_t depth; // height of the tree below
    uint32_t line;
    uint32_t id; // of a name: index in the template's table of names
    uint32_t count;
    struct jinja_node *a, *b, *c, **items;
    uint16_t *ops;
    const struct jinja_string *name;
    const struct jinja_builtin *builtin;
    struct jinja_value constant;
};

enum { JINJA_PARAMS = 4 }; // the most parameters that a filter, test, method or function has

struct jinja_run;
// self: the value that is filtered, tested or called on (unused by functions). arguments: JINJA_PARAMS values, KIND_ABSENT if not given;
// for a variadic builtin, arguments[0] is a list of the positional and arguments[1] a dict of the keyword ones.
typedef bool jinja_builtin_fn(struct jinja_run *run, const struct jinja_value *self, const struct jinja_value *arguments,
                              struct jinja_value *out);

struct jinja_builtin {
    const char *name;
    const char *params[JINJA_PARAMS];
    uint8_t required;
    bool variadic;
    uint8_t self_kind; // methods: the kind that has it
    jinja_builtin_fn *call;
};

extern const struct jinja_builtin jinja_filters[], jinja_tests[], jinja_methods[], jinja_functions[]; // NULL name last

// jinja_builtin.c: an entry, or NULL.
const struct jinja_builtin *jinja_find_builtin(const struct jinja_builtin *table, const char *name, size_t length);
// Writes "a, b, c" of a table into out, and returns it.
const char *jinja_builtin_names(const struct jinja_builtin *table, char *out, size_t out_bytes);

struct jinja_template {
    struct arena arena;
    struct jinja_node *root;
    uint32_t name_count;
    const struct jinja_string **names;
    const char *bos_token, *eos_token;
};

#endif
