/* jinja.h: inside of the chat template module: tokens, syntax tree, values, and what the files share.
 *
 *     source ──jinja_lex──▶ tokens ──jinja_parse, jinja_expr──▶ tree     (once; lives in the template's arena)
 *     tree + messages ──jinja_exec, jinja_eval──▶ bytes + spans          (each render; lives in the run's arena)
 *
 * Values are immutable (the sandbox of the reference renderer forbids mutation too); only a namespace's attributes, the
 * variables of a scope and a loop's position change. Nothing is freed one by one: an arena goes as a whole.
 *
 * Functions that can fail return false and have written the reason already. Only chat_template.c is seen from outside.
 */
#ifndef FD_TOKENIZER_JINJA_H
#define FD_TOKENIZER_JINJA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/tokenizer/chat_template.h"

enum {
    JINJA_MAX_NESTING = 64,     // brackets and blocks, one inside another
    JINJA_MAX_NODE_DEPTH = 192, // height of the tree: also long chains a + b + c
    JINJA_MAX_RUN_DEPTH = 500,  // nodes being evaluated, macros included
    JINJA_MAX_VALUE_DEPTH = 64, // lists in lists, where they are printed or compared
    JINJA_PARAMS = 4,           // the most parameters that a filter, test, method or function has
    JINJA_ARENA_BYTES = 96 << 20,
};

// --- arena --------------------------------------------------------------------------------------------------------------
struct jinja_arena {
    struct jinja_chunk *chunks;
    size_t left; // bytes left in the newest chunk
    size_t used, limit;
    bool out_of_memory; // malloc failed, as opposed to the limit
};

void jinja_arena_init(struct jinja_arena *arena, size_t limit);
void jinja_arena_fini(struct jinja_arena *arena);
/* Zeroed memory, aligned for any type; NULL at the limit. */
void *jinja_alloc(struct jinja_arena *arena, size_t bytes);
void *jinja_alloc_array(struct jinja_arena *arena, size_t count, size_t element_bytes);

// --- tokens -------------------------------------------------------------------------------------------------------------
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

#define OP2(a, b) ((uint16_t)((a) | (b) << 8))

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

/* Splits a source into tokens, the last being TOKEN_END. They point into source, or into the arena. */
bool jinja_lex(struct jinja_arena *arena, const char *source, size_t length, struct jinja_token **tokens, struct error *error);

/* Writes "chat template line N: ..." as INVALID_ARGUMENT; returns false, so that callers can return it. */
bool jinja_fail_at(struct error *error, uint32_t line, const char *format, ...) PRINTF_LIKE(3, 4);

// --- values -------------------------------------------------------------------------------------------------------------
enum jinja_kind {
    KIND_ABSENT, // an argument not given; never the value of an expression
    KIND_UNDEFINED,
    KIND_NONE,
    KIND_BOOL,
    KIND_INTEGER,
    KIND_FLOAT,
    KIND_STRING,
    KIND_LIST,
    KIND_TUPLE,
    KIND_LAZY, // a list that the reference makes a generator of: true even if empty, not printable
    KIND_VIEW, // range(), keys(), items(): a list that cannot be printed
    KIND_DICT,
    KIND_NAMESPACE,
    KIND_LOOP,
    KIND_MACRO,
    KIND_FUNCTION, // a function or bound method by name: can only be tested
};

struct jinja_string {
    const char *bytes; // not terminated
    size_t length;
    const struct chat_span *spans; // sorted, disjoint: what came from content
    size_t span_count;
};

struct jinja_list {
    size_t count;
    struct jinja_value *items;
};

struct jinja_value {
    uint8_t kind;
    union {
        bool boolean;
        int64_t integer;
        double number;
        const struct jinja_string *string;
        const struct jinja_list *list; // LIST, TUPLE, LAZY, VIEW
        struct jinja_dict *dict;       // DICT, NAMESPACE (which alone is written to)
        const struct jinja_loop *loop;
        const struct jinja_macro *macro;
    };
};

struct jinja_dict {
    size_t count, capacity;
    struct jinja_value *keys, *values;
};

struct jinja_loop {
    const struct jinja_list *list;
    size_t index, depth;
};

struct jinja_macro {
    const struct jinja_node *node;
    struct jinja_scope *scope; // where it was defined
};

// --- tree ---------------------------------------------------------------------------------------------------------------
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

// --- built-in filters, tests, methods, functions -----------------------------------------------------------------------
struct jinja_run;
/* self: what is filtered, tested, called on (unused by functions). arguments: JINJA_PARAMS values, KIND_ABSENT where not
 * given; for a variadic one, arguments[0] is a list of the positional and arguments[1] a dict of the keyword ones. */
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
const struct jinja_builtin *jinja_find_builtin(const struct jinja_builtin *table, const char *name, size_t length);

// --- parsing ------------------------------------------------------------------------------------------------------------
struct jinja_template {
    struct jinja_arena arena;
    struct jinja_node *root;
    uint32_t name_count;
    const struct jinja_string **names;
    const char *bos_token, *eos_token;
};

struct jinja_parser {
    struct jinja_template *target;
    struct jinja_arena *arena;
    const struct jinja_token *token; // the next one
    struct error *error;
    uint32_t nesting, loops, name_capacity;
    struct jinja_node *macros, *calls; // lists through ->c: macros defined, calls by name to be checked at the end
};

/* Parses tokens into target->root and target->names. */
bool jinja_parse(struct jinja_template *target, const struct jinja_token *tokens, struct error *error);

/* jinja_expr.c: an expression; with or without `x if y else z`; with or without commas making a tuple. NULL: failed. */
struct jinja_node *jinja_parse_expression(struct jinja_parser *parser);
struct jinja_node *jinja_parse_tuple(struct jinja_parser *parser, bool allow_condition);
struct jinja_node *jinja_parse_or(struct jinja_parser *parser);
struct jinja_node *jinja_parse_operand(struct jinja_parser *parser); // with what follows it: .x [y] (...)

/* jinja_call.c: after "|", after "is", after "(" that follows an expression (a name or an attribute, or it fails). */
struct jinja_node *jinja_parse_filter(struct jinja_parser *parser, struct jinja_node *operand);
struct jinja_node *jinja_parse_test(struct jinja_parser *parser, struct jinja_node *operand);
struct jinja_node *jinja_parse_call(struct jinja_parser *parser, struct jinja_node *callee);

/* Shared by both halves of the parser. The node makers take NULL children; NULL comes back when out of memory. */
struct jinja_node *jinja_node_new(struct jinja_parser *parser, int kind, uint32_t line);
bool jinja_node_push(struct jinja_parser *parser, struct jinja_node *node, struct jinja_node *item);
struct jinja_node *jinja_node_done(struct jinja_parser *parser, struct jinja_node *node); // checks the tree's height
struct jinja_node *jinja_parse_name(struct jinja_parser *parser);                         // NODE_NAME
bool jinja_is_op(const struct jinja_parser *parser, uint16_t op);
bool jinja_is_name(const struct jinja_parser *parser, const char *name);
bool jinja_skip_op(struct jinja_parser *parser, uint16_t op);
bool jinja_skip_name(struct jinja_parser *parser, const char *name);
bool jinja_expect_op(struct jinja_parser *parser, uint16_t op);
bool jinja_unexpected(struct jinja_parser *parser, const char *wanted); // fails with "expected X, found Y"; false
bool jinja_parse_fail(struct jinja_parser *parser, uint32_t line, const char *format, ...) PRINTF_LIKE(3, 4);
bool jinja_token_is(const struct jinja_token *token, const char *name);
/* Writes "a, b, c" of a table into out. */
const char *jinja_builtin_names(const struct jinja_builtin *table, char *out, size_t out_bytes);

// --- running ------------------------------------------------------------------------------------------------------------
struct jinja_scope {
    struct jinja_scope *parent;
    uint32_t count, capacity;
    struct jinja_variable {
        uint32_t id;
        struct jinja_value value;
    } * variables;
};

/* Bytes under construction, in the run's arena. */
struct jinja_builder {
    char *bytes;
    size_t length, capacity;
    struct chat_span *spans;
    size_t span_count, span_capacity;
};

struct jinja_run {
    struct jinja_arena arena;
    const struct jinja_template *source;
    struct jinja_scope *scope;
    struct jinja_builder *output;
    struct error *error;
    int64_t unix_seconds;
    uint64_t work;
    uint32_t line; // of the statement or call being run, for errors
    uint32_t depth, loop_depth;
};

bool jinja_fail(struct jinja_run *run, const char *format, ...) PRINTF_LIKE(2, 3);
bool jinja_no_memory(struct jinja_run *run);          // tells the limit from the machine; false
bool jinja_work(struct jinja_run *run, size_t units); // false: too much work
void *jinja_run_alloc(struct jinja_run *run, size_t count, size_t element_bytes);

/* jinja_exec.c. The root's scope must hold the template's variables. */
bool jinja_execute(struct jinja_run *run);
bool jinja_call_macro(struct jinja_run *run, const struct jinja_node *call, struct jinja_value *out);
bool jinja_set_variable(struct jinja_run *run, uint32_t id, const struct jinja_value *value);
/* jinja_eval.c */
bool jinja_eval(struct jinja_run *run, const struct jinja_node *node, struct jinja_value *out);
bool jinja_get_attribute(struct jinja_run *run, const struct jinja_value *object, const struct jinja_string *name, bool item_only,
                         struct jinja_value *out);
bool jinja_get_item(struct jinja_run *run, const struct jinja_value *object, const struct jinja_value *key,
                    struct jinja_value *out);
/* jinja_method.c: the path "a.b.0" that attribute= arguments have. */
bool jinja_get_path(struct jinja_run *run, const struct jinja_value *object, const struct jinja_value *path,
                    struct jinja_value *out);

// --- jinja_value.c ------------------------------------------------------------------------------------------------------
const char *jinja_kind_name(const struct jinja_value *value);
bool jinja_truth(const struct jinja_value *value);
bool jinja_is_sequence(const struct jinja_value *value); // LIST, TUPLE, LAZY, VIEW
bool jinja_is_number(const struct jinja_value *value);   // BOOL, INTEGER, FLOAT
double jinja_as_double(const struct jinja_value *value);
int64_t jinja_as_integer(const struct jinja_value *value); // BOOL, INTEGER
bool jinja_equal(struct jinja_run *run, const struct jinja_value *x, const struct jinja_value *y, bool *equal);
/* Order of numbers, strings, lists; fails for the rest. */
bool jinja_order(struct jinja_run *run, const struct jinja_value *x, const struct jinja_value *y, int *order);
/* As `str()` prints it: undefined is empty. */
bool jinja_to_string(struct jinja_run *run, const struct jinja_value *value, const struct jinja_string **out);
bool jinja_append_value(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_value *value);
/* As JSON; indent < 0: on one line. */
bool jinja_append_json(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_value *value, int indent);
/* The items of anything that `for` takes: lists, dicts (keys), strings (characters), undefined (none). */
bool jinja_iterate(struct jinja_run *run, const struct jinja_value *value, const struct jinja_list **out);
bool jinja_contains(struct jinja_run *run, const struct jinja_value *container, const struct jinja_value *item, bool *found);

struct jinja_list *jinja_list_new(struct jinja_run *run, size_t count);
struct jinja_dict *jinja_dict_new(struct jinja_run *run, size_t capacity);
bool jinja_dict_set(struct jinja_run *run, struct jinja_dict *dict, const struct jinja_value *key, const struct jinja_value *value);
bool jinja_dict_get(struct jinja_run *run, const struct jinja_dict *dict, const struct jinja_value *key, struct jinja_value *out,
                    bool *found);
static inline struct jinja_value jinja_undefined(void) { return (struct jinja_value){.kind = KIND_UNDEFINED}; }
static inline struct jinja_value jinja_bool(bool b) { return (struct jinja_value){.kind = KIND_BOOL, .boolean = b}; }
static inline struct jinja_value jinja_integer(int64_t i) { return (struct jinja_value){.kind = KIND_INTEGER, .integer = i}; }
static inline struct jinja_value jinja_float(double d) { return (struct jinja_value){.kind = KIND_FLOAT, .number = d}; }
static inline struct jinja_value jinja_listed(uint8_t kind, const struct jinja_list *list)
{
    return (struct jinja_value){.kind = kind, .list = list};
}

// --- jinja_string.c: strings with their spans --------------------------------------------------------------------------
bool jinja_append(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_string *string);
bool jinja_append_bytes(struct jinja_run *run, struct jinja_builder *builder, const char *bytes, size_t length, bool content);
bool jinja_append_text(struct jinja_run *run, struct jinja_builder *builder, const char *text); // the template's own
bool jinja_build(struct jinja_run *run, const struct jinja_builder *builder, struct jinja_value *out);
/* A string value over bytes that outlive the run. */
bool jinja_string_value(struct jinja_run *run, const char *bytes, size_t length, bool content, struct jinja_value *out);
/* Bytes [begin, end) of a string, without copying them. */
bool jinja_substring(struct jinja_run *run, const struct jinja_string *string, size_t begin, size_t end, struct jinja_value *out);
/* As strip(): sides bit 0 left, bit 1 right; NULL chars: white space. */
bool jinja_strip(struct jinja_run *run, const struct jinja_string *string, const struct jinja_string *chars, int sides,
                 struct jinja_value *out);
bool jinja_replace(struct jinja_run *run, const struct jinja_string *string, const struct jinja_string *old,
                   const struct jinja_string *with, int64_t limit, struct jinja_value *out);
/* separator NULL: runs of white space; limit < 0: none. */
bool jinja_split(struct jinja_run *run, const struct jinja_string *string, const struct jinja_string *separator, int64_t limit,
                 bool from_right, struct jinja_value *out);
enum jinja_case { CASE_UPPER, CASE_LOWER, CASE_CAPITAL, CASE_TITLE_METHOD, CASE_TITLE_FILTER };
bool jinja_change_case(struct jinja_run *run, const struct jinja_string *string, enum jinja_case to, struct jinja_value *out);
bool jinja_repeat(struct jinja_run *run, const struct jinja_string *string, int64_t times, struct jinja_value *out);
/* Characters are code points; a byte that is not UTF-8 is one. */
size_t jinja_char_bytes(const char *bytes, size_t left);
int32_t jinja_char_code(const char *bytes, size_t left);
size_t jinja_char_count(const struct jinja_string *string);
size_t jinja_char_offset(const struct jinja_string *string, size_t index); // byte offset of character `index`
bool jinja_is_space(int32_t code);
/* Offset of needle at or after `from`, or SIZE_MAX. */
size_t jinja_find(const struct jinja_string *string, const struct jinja_string *needle, size_t from);
bool jinja_string_is(const struct jinja_string *string, const char *text);

#endif
