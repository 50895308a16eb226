// jinja_types.h: the values of expressions.
//
// Values are immutable (the sandbox of the reference renderer forbids mutation too); only a namespace's attributes, the variables of a
// scope and a loop's position change. They lie in the arena of the template or of the run.
#ifndef FD_JINJA_TYPES_H
#define FD_JINJA_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum jinja_kind {
    KIND_ABSENT, // an argument not given; never the value of an expression
    KIND_UNDEFINED,
    KIND_NONE,
    KIND_BOOL,
    KIND_INTEGER,
    KIND_FLOAT,
    KIND_WRITTEN, // a number that fits neither, by its text: counts as a float, and is printed as it is written
    KIND_STRING,
    KIND_LIST,
    KIND_TUPLE,
    KIND_LAZY, // a list that is a generator in the reference: true even if empty, not printable
    KIND_VIEW, // range(), keys(), items(): a list that cannot be printed
    KIND_DICT,
    KIND_NAMESPACE,
    KIND_LOOP,
    KIND_MACRO,
    KIND_FUNCTION, // a function, or a method with what it belongs to
};

// An operator of one or two characters, of tokens and of nodes.
#define OP2(a, b) ((uint16_t)((a) | (b) << 8))

// Bytes [begin, end).
struct jinja_span {
    size_t begin, end;
};

struct jinja_string {
    const char *bytes; // not terminated
    size_t length;
    const struct jinja_span *spans; // sorted, disjoint: the bytes that came from content
    size_t span_count;
};

struct jinja_list {
    size_t count;
    struct jinja_value *items;
    const char *const *names; // of the items, which are attributes then; NULL: they have none
};

struct jinja_value {
    uint8_t kind;
    union {
        bool boolean;
        int64_t integer;
        double number;
        const struct jinja_string *string; // STRING, WRITTEN
        const struct jinja_list *list;     // LIST, TUPLE, LAZY, VIEW
        struct jinja_dict *dict;           // DICT, NAMESPACE (the only one that changes)
        struct jinja_loop *loop;           // what changed() saw is kept there
        const struct jinja_macro *macro;
        const struct jinja_function *function;
    };
};

struct jinja_dict {
    size_t count, capacity;
    struct jinja_value *keys, *values;
};

struct jinja_loop {
    const struct jinja_list *list;
    size_t index, depth;           // depth: of a recursive loop, 1 otherwise
    const struct jinja_list *seen; // by changed(); NULL: nothing yet
    const struct jinja_node *node; // what a call of the loop runs again; NULL: it is not recursive
    struct jinja_scope *outer;     // where it stands
};

struct jinja_function {
    const struct jinja_builtin *builtin;
    struct jinja_value self; // of a method
};

struct jinja_macro {
    const struct jinja_node *node;
    struct jinja_scope *scope; // where it was defined
};

static inline struct jinja_value jinja_undefined(void) { return (struct jinja_value){.kind = KIND_UNDEFINED}; }
static inline struct jinja_value jinja_bool(bool b) { return (struct jinja_value){.kind = KIND_BOOL, .boolean = b}; }
static inline struct jinja_value jinja_integer(int64_t i) { return (struct jinja_value){.kind = KIND_INTEGER, .integer = i}; }
static inline struct jinja_value jinja_float(double d) { return (struct jinja_value){.kind = KIND_FLOAT, .number = d}; }
static inline struct jinja_value jinja_listed(uint8_t kind, const struct jinja_list *list)
{
    return (struct jinja_value){.kind = kind, .list = list};
}

#endif
