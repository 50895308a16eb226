// run.h: renders a tree with variables. A function that fails has already written the reason.
#ifndef FD_GATEWAY_JINJA_RUN_H
#define FD_GATEWAY_JINJA_RUN_H

#include "services/gateway/jinja/tree.h"

struct jinja_scope {
    struct jinja_scope *parent;
    uint32_t count, capacity;
    struct jinja_variable {
        uint32_t id;
        struct jinja_value value;
    } * variables;
};

// Bytes under construction, in the run's arena.
struct jinja_builder {
    char *bytes;
    size_t length, capacity;
    struct jinja_span *spans;
    size_t span_count, span_capacity;
};

// The arguments of a call: positional ones first.
struct jinja_arguments {
    size_t count;
    struct jinja_argument {
        const struct jinja_string *name; // NULL: positional
        struct jinja_value value;
    } * items;
};

struct jinja_run {
    struct arena arena;
    const struct jinja_template *source;
    struct jinja_scope *scope;
    struct jinja_builder *output;
    struct error *error;
    int64_t unix_seconds;
    uint64_t work;
    uint32_t line; // the statement's or call's being run, for errors
    uint32_t depth;
    struct jinja_value captured; // the value of NODE_CAPTURED
};

// Begins the function of a builtin, which need not use all that a jinja_builtin_fn is given.
#define JINJA_BUILTIN(name)                                                                                                 \
    static bool name(__attribute__((unused)) struct jinja_run *run, __attribute__((unused)) const struct jinja_value *self, \
                     __attribute__((unused)) const struct jinja_value *arguments, __attribute__((unused)) int how,          \
                     __attribute__((unused)) struct jinja_value *out)

#define jinja_fail(run, ...) jinja_fail_at((run)->error, (run)->line, __VA_ARGS__)

// --- string.c: memory and limits ----------------------------------------------------------------------------------
bool jinja_work(struct jinja_run *run, size_t units); // false: too much work
void *jinja_run_alloc(struct jinja_run *run, size_t count, size_t element_bytes);
struct jinja_list *jinja_list_new(struct jinja_run *run, size_t count);

// --- eval.c -------------------------------------------------------------------------------------------------------
// Runs the template's root, whose scope must hold its variables.
bool jinja_execute(struct jinja_run *run);
bool jinja_set_variable(struct jinja_run *run, uint32_t id, const struct jinja_value *value);
bool jinja_get_attribute(struct jinja_run *run, const struct jinja_value *object, const struct jinja_string *name, bool item_only,
                         struct jinja_value *out);
// Follows a path such as "a.b.0", as attribute= arguments have it.
bool jinja_get_path(struct jinja_run *run, const struct jinja_value *object, const struct jinja_value *path,
                    struct jinja_value *out);

// --- builtin.c ----------------------------------------------------------------------------------------------------
// Puts arguments where the parameters of a builtin are. what: "filter" and the like, for the message.
bool jinja_bind(struct jinja_run *run, const struct jinja_builtin *builtin, const char *what,
                const struct jinja_arguments *arguments, struct jinja_value out[JINJA_PARAMS]);
// Makes a value of a function or, with a self, of a method.
bool jinja_function_value(struct jinja_run *run, const struct jinja_builtin *builtin, const struct jinja_value *self,
                          struct jinja_value *out);
// Fails: there is no such filter, test or function.
bool jinja_fail_unknown(struct jinja_run *run, const char *what, const char *name, size_t length);

// --- operator.c ---------------------------------------------------------------------------------------------------
// x op y of two values, for the operators of NODE_BINARY but `and` and `or`.
bool jinja_operate(struct jinja_run *run, uint16_t op, const struct jinja_value *x, const struct jinja_value *y,
                   struct jinja_value *out);
bool jinja_concat(struct jinja_run *run, const struct jinja_value *values, size_t count, struct jinja_value *out);
// '%s %d' % values, and '{} {name}'.format(...).
bool jinja_format_percent(struct jinja_run *run, const struct jinja_string *format, const struct jinja_value *values,
                          struct jinja_value *out);
bool jinja_format_braces(struct jinja_run *run, const struct jinja_string *format, const struct jinja_list *values,
                         const struct jinja_dict *named, struct jinja_value *out);
// --- value.c ------------------------------------------------------------------------------------------------------
const char *jinja_kind_name(const struct jinja_value *value);
bool jinja_truth(const struct jinja_value *value);
bool jinja_is_sequence(const struct jinja_value *value); // LIST, TUPLE, LAZY, VIEW
bool jinja_is_number(const struct jinja_value *value);   // BOOL, INTEGER, FLOAT, WRITTEN
bool jinja_is_float(const struct jinja_value *value);    // FLOAT, WRITTEN
double jinja_as_double(const struct jinja_value *value);
int64_t jinja_as_integer(const struct jinja_value *value); // BOOL, INTEGER
bool jinja_equal(struct jinja_run *run, const struct jinja_value *x, const struct jinja_value *y, bool *equal);
// Order of numbers, strings, lists; fails for the rest.
bool jinja_order(struct jinja_run *run, const struct jinja_value *x, const struct jinja_value *y, int *order);
// Prints as `str()` does; undefined is empty.
bool jinja_to_string(struct jinja_run *run, const struct jinja_value *value, const struct jinja_string **out);
bool jinja_append_value(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_value *value);
// The options of json.dumps().
struct jinja_json_format {
    int indent;                                     // < 0: on one line
    bool ascii, sort;                               // ascii: other characters are escaped
    const struct jinja_string *between, *after_key; // NULL: ", " (without the space if indented) and ": "
};
bool jinja_append_json(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_value *value,
                       const struct jinja_json_format *format);
// Lists the items of anything that `for` takes: lists, dicts (keys), strings (characters), undefined (none).
bool jinja_iterate(struct jinja_run *run, const struct jinja_value *value, const struct jinja_list **out);
bool jinja_contains(struct jinja_run *run, const struct jinja_value *container, const struct jinja_value *item, bool *found);

struct jinja_dict *jinja_dict_new(struct jinja_run *run, size_t capacity);
bool jinja_dict_set(struct jinja_run *run, struct jinja_dict *dict, const struct jinja_value *key, const struct jinja_value *value);
bool jinja_dict_get(struct jinja_run *run, const struct jinja_dict *dict, const struct jinja_value *key, struct jinja_value *out,
                    bool *found);
// Lists the pairs of a dict, as tuples.
bool jinja_dict_items(struct jinja_run *run, const struct jinja_dict *dict, struct jinja_list **out);

// --- string.c: strings with their spans --------------------------------------------------------------------------
bool jinja_append(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_string *string);
bool jinja_append_bytes(struct jinja_run *run, struct jinja_builder *builder, const char *bytes, size_t length, bool content);
bool jinja_append_text(struct jinja_run *run, struct jinja_builder *builder, const char *text); // the template's own
bool jinja_build(struct jinja_run *run, const struct jinja_builder *builder, struct jinja_value *out);
// Makes a string over bytes that outlive the run.
bool jinja_string_value(struct jinja_run *run, const char *bytes, size_t length, bool content, struct jinja_value *out);
// Takes bytes [begin, end) of a string, without copying them.
bool jinja_substring(struct jinja_run *run, const struct jinja_string *string, size_t begin, size_t end, struct jinja_value *out);
// Strips as Python's strip(). sides: bit 0 left, bit 1 right. NULL chars: white space.
bool jinja_strip(struct jinja_run *run, const struct jinja_string *string, const struct jinja_string *chars, int sides,
                 struct jinja_value *out);
bool jinja_replace(struct jinja_run *run, const struct jinja_string *string, const struct jinja_string *old,
                   const struct jinja_string *with, int64_t limit, struct jinja_value *out);
// separator NULL: runs of white space; limit < 0: none.
bool jinja_split(struct jinja_run *run, const struct jinja_string *string, const struct jinja_string *separator, int64_t limit,
                 bool from_right, struct jinja_value *out);
enum jinja_case { CASE_UPPER, CASE_LOWER, CASE_CAPITAL, CASE_TITLE_METHOD, CASE_TITLE_FILTER };
bool jinja_change_case(struct jinja_run *run, const struct jinja_string *string, enum jinja_case to, struct jinja_value *out);
// Fills a string up to `width` characters with `fill` (NULL: a space).
enum jinja_pad_side { PAD_LEFT, PAD_RIGHT, PAD_BOTH };
bool jinja_pad(struct jinja_run *run, const struct jinja_string *string, int64_t width, const struct jinja_string *fill,
               enum jinja_pad_side side, struct jinja_value *out);
// Finds out whether a string has letters with a case, and all have this one: CASE_UPPER or CASE_LOWER.
bool jinja_has_case(struct jinja_run *run, const struct jinja_string *string, enum jinja_case is, struct jinja_value *out);
bool jinja_repeat(struct jinja_run *run, const struct jinja_string *string, int64_t times, struct jinja_value *out);

#endif
