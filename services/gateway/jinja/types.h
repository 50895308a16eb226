// types.h: the values of expressions, the characters of their strings, and the limits of templates.
//
// Values are immutable (the sandbox of the reference renderer forbids mutation too); only a namespace's attributes, the variables of a
// scope and a loop's position change. They lie in the arena of the template or of the run.
#ifndef FD_GATEWAY_JINJA_TYPES_H
#define FD_GATEWAY_JINJA_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/alloc.h"
#include "common/base/status.h"

enum {
    JINJA_MAX_NESTING = 64,     // brackets and blocks, one inside another
    JINJA_MAX_NODE_DEPTH = 192, // height of the tree: also long chains a + b + c
    JINJA_MAX_RUN_DEPTH = 500,  // nodes being evaluated, macros included
    JINJA_MAX_VALUE_DEPTH = 64, // lists in lists that are printed or compared
    JINJA_MAX_OUTPUT_BYTES = 64 << 20,
    JINJA_MAX_WORK = 20000000, // nodes evaluated + items visited + bytes handled / 64, a run
    JINJA_ARENA_BYTES = 96 << 20,
};

// Zeroed memory, aligned for any type; NULL at the limit.
void *jinja_alloc(struct arena *arena, size_t bytes);
void *jinja_alloc_array(struct arena *arena, size_t count, size_t element_bytes);

// Writes "chat template line N: ..." as INVALID_ARGUMENT; returns false, so that callers can return it.
bool jinja_fail_at(struct error *error, uint32_t line, const char *format, ...) PRINTF_LIKE(3, 4);

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
    const char *const *names; // the items' names, which are attributes then; NULL: they have none
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
        struct jinja_loop *loop;           // keeps what changed() saw
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
    const struct jinja_node *node; // run again by a call of the loop; NULL: it is not recursive
    struct jinja_scope *outer;     // the scope around it
};

struct jinja_function {
    const struct jinja_builtin *builtin;
    struct jinja_value self; // a method's
};

struct jinja_macro {
    const struct jinja_node *node;
    struct jinja_scope *scope; // the scope of its definition
};

static inline struct jinja_value jinja_undefined(void) { return (struct jinja_value){.kind = KIND_UNDEFINED}; }
static inline struct jinja_value jinja_bool(bool b) { return (struct jinja_value){.kind = KIND_BOOL, .boolean = b}; }
static inline struct jinja_value jinja_integer(int64_t i) { return (struct jinja_value){.kind = KIND_INTEGER, .integer = i}; }
static inline struct jinja_value jinja_float(double d) { return (struct jinja_value){.kind = KIND_FLOAT, .number = d}; }
static inline struct jinja_value jinja_listed(uint8_t kind, const struct jinja_list *list)
{
    return (struct jinja_value){.kind = kind, .list = list};
}

// A character is a code point, or a byte that is not UTF-8.
size_t jinja_char_bytes(const char *bytes, size_t left);
int32_t jinja_char_code(const char *bytes, size_t left);
size_t jinja_char_count(const struct jinja_string *string);
size_t jinja_char_offset(const struct jinja_string *string, size_t index); // byte offset of character `index`
bool jinja_is_space(int32_t code);
bool jinja_is_letter(int32_t code);
bool jinja_is_word(int32_t code); // a letter, a digit or _
// Returns the offset of needle at or after `from`, or SIZE_MAX.
size_t jinja_find(const struct jinja_string *string, const struct jinja_string *needle, size_t from);
bool jinja_string_is(const struct jinja_string *string, const char *text);

#endif
