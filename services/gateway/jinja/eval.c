// eval.c: runs a template: evaluates expressions, one function an operator, and runs statements.
//
// Statements contain expressions, and an expression may call a macro or the loop around it, which contain statements. run->depth bounds the
// recursion of both.
//
// The bodies of loops, macros and block `set`s have a scope each. What they set is gone afterwards, which is why templates use namespaces. `if`
// has no scope. Every round of a loop starts with an empty one.
#include <math.h>
#include <string.h>

#include "common/base/checked.h"
#include "services/gateway/jinja/run.h"

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE, FLOW_FAILED };

static bool eval(struct jinja_run *run, const struct jinja_node *node, struct jinja_value *out);
static bool call_macro(struct jinja_run *run, const struct jinja_macro *macro, const struct jinja_arguments *arguments,
                       struct jinja_value *out);
static bool call_loop(struct jinja_run *run, const struct jinja_loop *loop, const struct jinja_arguments *arguments,
                      struct jinja_value *out);
static enum flow execute(struct jinja_run *run, const struct jinja_node *node);

// --- attributes and items of values: x.name, x['name'], x[0], and the path "a.b.0" --------------------------------------

static struct jinja_value key_of_name(const struct jinja_string *string)
{
    return (struct jinja_value){.kind = KIND_STRING, .string = string};
}

static bool loop_attribute(struct jinja_run *run, const struct jinja_value *object, const struct jinja_string *name,
                           struct jinja_value *out)
{
    const struct jinja_loop *loop = object->loop;
    const int64_t index = (int64_t)loop->index, count = (int64_t)loop->list->count;
    const struct {
        const char *name;
        struct jinja_value value;
    } attributes[] = {
        {"index", jinja_integer(index + 1)},
        {"index0", jinja_integer(index)},
        {"revindex", jinja_integer(count - index)},
        {"revindex0", jinja_integer(count - index - 1)},
        {"first", jinja_bool(index == 0)},
        {"last", jinja_bool(index == count - 1)},
        {"length", jinja_integer(count)},
        {"depth", jinja_integer((int64_t)loop->depth)},
        {"depth0", jinja_integer((int64_t)loop->depth - 1)},
        {"previtem", index ? loop->list->items[index - 1] : jinja_undefined()},
        {"nextitem", index < count - 1 ? loop->list->items[index + 1] : jinja_undefined()},
    };
    *out = jinja_undefined();
    for (size_t i = 0; i < ARRAY_COUNT(attributes); i++)
        if (jinja_string_is(name, attributes[i].name)) {
            *out = attributes[i].value;
            return true;
        }
    const struct jinja_builtin *method = jinja_find_method(run->source->builtins, KIND_LOOP, name->bytes, name->length);
    return !method || jinja_function_value(run, method, object, out);
}

bool jinja_get_attribute(struct jinja_run *run, const struct jinja_value *object, const struct jinja_string *name, bool item_only,
                         struct jinja_value *out)
{
    const struct jinja_value key = key_of_name(name);
    bool found;
    *out = jinja_undefined();
    if (object->kind == KIND_UNDEFINED)
        return jinja_fail(run, "an undefined value has no attribute '%.*s'", (int)MIN(name->length, 60u), name->bytes);
    if (object->kind == KIND_LOOP)
        return loop_attribute(run, object, name, out);
    // As in Python, x.items of a mapping is its method before it is an item, and x['items'] is the item.
    const struct jinja_builtin *method = jinja_find_method(run->source->builtins, object->kind, name->bytes, name->length);
    if ((object->kind == KIND_DICT && (item_only || !method)) || object->kind == KIND_NAMESPACE) {
        if (!jinja_dict_get(run, object->dict, &key, out, &found))
            return false;
        if (found)
            return true;
    }
    for (size_t i = 0; object->kind == KIND_TUPLE && object->list->names && i < object->list->count; i++)
        if (jinja_string_is(name, object->list->names[i])) {
            *out = object->list->items[i];
            return true;
        }
    return !method || jinja_function_value(run, method, object, out);
}

static bool get_item(struct jinja_run *run, const struct jinja_value *object, const struct jinja_value *key,
                     struct jinja_value *out)
{
    bool found;
    if (key->kind == KIND_STRING)
        return jinja_get_attribute(run, object, key->string, true, out);
    *out = jinja_undefined();
    if (object->kind == KIND_UNDEFINED)
        return jinja_fail(run, "an undefined value has no items");
    if (object->kind == KIND_DICT)
        return jinja_dict_get(run, object->dict, key, out, &found);
    if ((key->kind != KIND_INTEGER && key->kind != KIND_BOOL) || (!jinja_is_sequence(object) && object->kind != KIND_STRING))
        return true;
    const bool string = object->kind == KIND_STRING;
    const int64_t count = (int64_t)(string ? jinja_char_count(object->string) : object->list->count);
    int64_t index = jinja_as_integer(key);
    if (!jinja_work(run, string ? (size_t)count / 16 : 0))
        return false;
    index += index < 0 ? count : 0;
    if (index < 0 || index >= count)
        return true;
    if (!string) {
        *out = object->list->items[index];
        return true;
    }
    const size_t at = jinja_char_offset(object->string, (size_t)index);
    return jinja_substring(run, object->string, at, at + jinja_char_bytes(object->string->bytes + at, object->string->length - at),
                           out);
}

bool jinja_get_path(struct jinja_run *run, const struct jinja_value *object, const struct jinja_value *path,
                    struct jinja_value *out)
{
    struct jinja_value at = *object;
    if (path->kind != KIND_STRING)
        return get_item(run, &at, path, out);
    const char *from = path->string->bytes, *const end = from + path->string->length;
    for (;;) {
        const char *dot = memchr(from, '.', (size_t)(end - from)), *to = dot ? dot : end;
        const struct jinja_string part = {.bytes = from, .length = (size_t)(to - from)};
        struct jinja_value key = {.kind = KIND_STRING, .string = &part}, next;
        int64_t number = 0;
        size_t digits = 0;
        while (digits < part.length && digits < 9 && from[digits] >= '0' && from[digits] <= '9')
            number = number * 10 + (from[digits++] - '0');
        if (digits && digits == part.length)
            key = jinja_integer(number);
        if (!get_item(run, &at, &key, &next))
            return false;
        at = next;
        if (!dot)
            break;
        from = dot + 1;
    }
    *out = at;
    return true;
}

// --- variables and slices -------------------------------------------------------------------------------------------

static bool get_variable(struct jinja_run *run, const struct jinja_node *node, struct jinja_value *out)
{
    for (const struct jinja_scope *scope = run->scope; scope; scope = scope->parent)
        for (uint32_t i = 0; i < scope->count; i++)
            if (scope->variables[i].id == node->id) {
                *out = scope->variables[i].value;
                return true;
            }
    const struct jinja_builtin *builtin =
        jinja_find_builtin(run->source->builtins->functions, node->name->bytes, node->name->length);
    *out = jinja_undefined();
    return !builtin || jinja_function_value(run, builtin, out, out);
}

// Evaluates one end of a slice and clips it as Python does.
static bool slice_bound(struct jinja_run *run, const struct jinja_node *node, int64_t count, int64_t step, int64_t none,
                        int64_t *out)
{
    struct jinja_value value = {.kind = KIND_NONE};
    if (node && !eval(run, node, &value))
        return false;
    *out = none;
    if (value.kind == KIND_NONE)
        return true;
    if (value.kind != KIND_INTEGER && value.kind != KIND_BOOL)
        return jinja_fail(run, "a slice needs integers, not %s", jinja_kind_name(&value));
    int64_t index = jinja_as_integer(&value);
    if (index < 0)
        index = MAX(index + count, step < 0 ? -1 : 0);
    *out = MIN(index, step < 0 ? count - 1 : count);
    return true;
}

static bool eval_slice(struct jinja_run *run, const struct jinja_node *node, struct jinja_value *out)
{
    struct jinja_value object, step_value = jinja_integer(1);
    if (!eval(run, node->a, &object) || (node->items[2] && !eval(run, node->items[2], &step_value)))
        return false;
    if (step_value.kind == KIND_NONE)
        step_value = jinja_integer(1);
    if (object.kind == KIND_UNDEFINED)
        return jinja_fail(run, "an undefined value has no items");
    if (object.kind != KIND_STRING && !jinja_is_sequence(&object)) { // like the reference: no error and no items
        *out = jinja_undefined();
        return true;
    }
    if (step_value.kind != KIND_INTEGER || step_value.integer == 0 || step_value.integer > 1 << 30 ||
        step_value.integer < -(1 << 30))
        return jinja_fail(run, "bad step of a slice");
    const struct jinja_list *list;
    const int64_t step = step_value.integer;
    const bool string = object.kind == KIND_STRING;
    const int64_t count = (int64_t)(string ? jinja_char_count(object.string) : object.list->count);
    int64_t from, to;
    if (!slice_bound(run, node->items[0], count, step, step < 0 ? count - 1 : 0, &from) ||
        !slice_bound(run, node->items[1], count, step, step < 0 ? -1 : count, &to) || !jinja_work(run, (size_t)count / 16))
        return false;
    if (string && step == 1) {
        const size_t begin = jinja_char_offset(object.string, (size_t)from);
        const size_t end = to > from ? jinja_char_offset(object.string, (size_t)to) : begin;
        return jinja_substring(run, object.string, begin, end, out);
    }
    if (!jinja_iterate(run, &object, &list))
        return false;
    size_t kept = 0;
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step)
        kept++;
    struct jinja_list *part = jinja_list_new(run, kept);
    struct jinja_builder builder = {0};
    if (!part || !jinja_work(run, kept))
        return false;
    kept = 0;
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step) {
        if (string && !jinja_append(run, &builder, list->items[i].string))
            return false;
        part->items[kept++] = list->items[i];
    }
    if (string)
        return jinja_build(run, &builder, out);
    *out = jinja_listed(object.kind == KIND_TUPLE ? KIND_TUPLE : KIND_LIST, part);
    return true;
}

// --- operators ----------------------------------------------------------------------------------------------------------

static bool eval_binary(struct jinja_run *run, const struct jinja_node *node, struct jinja_value *out)
{
    struct jinja_value x, y;
    if (!eval(run, node->a, &x))
        return false;
    if (node->op == '&' || node->op == '|') {
        if (jinja_truth(&x) == (node->op == '&'))
            return eval(run, node->b, out);
        *out = x;
        return true;
    }
    if (!eval(run, node->b, &y))
        return false;
    run->line = node->line;
    return jinja_operate(run, node->op, &x, &y, out);
}

static bool eval_unary(struct jinja_run *run, const struct jinja_node *node, struct jinja_value *out)
{
    struct jinja_value x;
    if (!eval(run, node->a, &x))
        return false;
    if (node->op == 'n') {
        *out = jinja_bool(!jinja_truth(&x));
        return true;
    }
    if (!jinja_is_number(&x))
        return jinja_fail(run, "cannot apply '%c' to %s", node->op, jinja_kind_name(&x));
    if (jinja_is_float(&x)) {
        *out = jinja_float(node->op == '-' ? -jinja_as_double(&x) : jinja_as_double(&x));
        return true;
    }
    const struct jinja_value zero = jinja_integer(0);
    return jinja_operate(run, node->op, &zero, &x, out);
}

static bool eval_compare(struct jinja_run *run, const struct jinja_node *node, struct jinja_value *out)
{
    struct jinja_value left, right;
    bool holds = true;
    if (!eval(run, node->items[0], &left))
        return false;
    for (uint32_t i = 1; holds && i < node->count; i++, left = right) {
        const uint16_t op = node->ops[i - 1];
        int order = 0;
        if (!eval(run, node->items[i], &right))
            return false;
        if (op == 'i' || op == 'n') {
            if (!jinja_contains(run, &right, &left, &holds))
                return false;
            holds = holds == (op == 'i');
        } else if (op == OP2('=', '=') || op == OP2('!', '=')) {
            if (!jinja_equal(run, &left, &right, &holds))
                return false;
            holds = holds == (op == OP2('=', '='));
        } else {
            if (!jinja_order(run, &left, &right, &order))
                return false;
            holds = op == '<' ? order < 0 : op == '>' ? order > 0 : op == OP2('<', '=') ? order <= 0 : order >= 0;
        }
    }
    *out = jinja_bool(holds);
    return true;
}

// --- calls --------------------------------------------------------------------------------------------------------------

enum { FEW_ARGUMENTS = 6 }; // arguments of a call that allocates nothing

static bool push_argument(struct jinja_run *run, struct jinja_arguments *arguments, size_t *capacity,
                          const struct jinja_string *name, const struct jinja_value *value)
{
    if (arguments->count == *capacity) {
        *capacity *= 2;
        struct jinja_argument *grown = jinja_run_alloc(run, *capacity, sizeof *grown);
        if (!grown)
            return false;
        memcpy(grown, arguments->items, arguments->count * sizeof *grown);
        arguments->items = grown;
    }
    arguments->items[arguments->count++] = (struct jinja_argument){name, *value};
    return true;
}

// *values, or **mapping.
static bool push_unpacked(struct jinja_run *run, struct jinja_arguments *arguments, size_t *capacity, bool is_mapping,
                          const struct jinja_value *value)
{
    const struct jinja_list *list;
    if (is_mapping && value->kind != KIND_DICT)
        return jinja_fail(run, "** needs a mapping, not %s", jinja_kind_name(value));
    if (!jinja_iterate(run, value, &list))
        return false;
    for (size_t i = 0; i < list->count; i++) {
        const struct jinja_value *key = is_mapping ? &list->items[i] : NULL;
        if (key && key->kind != KIND_STRING)
            return jinja_fail(run, "the name of an argument must be a string, not %s", jinja_kind_name(key));
        if (!push_argument(run, arguments, capacity, key ? key->string : NULL, key ? &value->dict->values[i] : &list->items[i]))
            return false;
    }
    return true;
}

// Evaluates the arguments of a node into *out, which has room for FEW_ARGUMENTS: positional ones, then named ones.
static bool eval_arguments(struct jinja_run *run, const struct jinja_node *node, const struct jinja_value *caller,
                           struct jinja_arguments *out)
{
    static const struct jinja_string caller_name = {.bytes = "caller", .length = 6};
    size_t capacity = FEW_ARGUMENTS;
    for (int named = 0; named < 2; named++)
        for (uint32_t i = 0; i < node->count; i++) {
            const struct jinja_node *item = node->items[i];
            const bool has_name = item->kind == NODE_KEYWORD || item->kind == NODE_STAR_STAR;
            const bool unpacks = item->kind == NODE_STAR || item->kind == NODE_STAR_STAR;
            struct jinja_value value;
            if (has_name != named)
                continue;
            if (!eval(run, has_name || unpacks ? item->a : item, &value))
                return false;
            if (unpacks ? !push_unpacked(run, out, &capacity, has_name, &value)
                        : !push_argument(run, out, &capacity, has_name ? item->name : NULL, &value))
                return false;
        }
    run->line = node->line;
    return !caller || push_argument(run, out, &capacity, &caller_name, caller);
}

static bool call_builtin(struct jinja_run *run, const struct jinja_builtin *builtin, const char *what,
                         const struct jinja_value *self, const struct jinja_arguments *arguments, struct jinja_value *out)
{
    struct jinja_value bound[JINJA_PARAMS];
    return jinja_bind(run, builtin, what, arguments, bound) && builtin->call(run, self, bound, builtin->how, out);
}

static bool call_value(struct jinja_run *run, const struct jinja_node *callee, const struct jinja_value *value,
                       const struct jinja_arguments *arguments, struct jinja_value *out)
{
    if (value->kind == KIND_MACRO)
        return call_macro(run, value->macro, arguments, out);
    if (value->kind == KIND_LOOP)
        return call_loop(run, value->loop, arguments, out);
    if (value->kind == KIND_FUNCTION)
        return call_builtin(run, value->function->builtin, "function", &value->function->self, arguments, out);
    if (callee->kind == NODE_NAME && value->kind == KIND_UNDEFINED)
        return jinja_fail_unknown(run, "function", callee->name->bytes, callee->name->length);
    if (callee->kind == NODE_NAME)
        return jinja_fail(run, "'%.*s' is %s here and cannot be called", (int)MIN(callee->name->length, 40u), callee->name->bytes,
                          jinja_kind_name(value));
    return jinja_fail(run, "%s cannot be called", jinja_kind_name(value));
}

// Evaluates a call, with `caller` as one more argument unless it is NULL.
static bool eval_call(struct jinja_run *run, const struct jinja_node *node, const struct jinja_value *caller,
                      struct jinja_value *out)
{
    struct jinja_argument few[FEW_ARGUMENTS];
    struct jinja_arguments arguments = {.items = few};
    const struct jinja_node *callee = node->a;
    struct jinja_value self, value;
    if (callee->kind != NODE_ATTRIBUTE)
        return eval(run, callee, &value) && eval_arguments(run, node, caller, &arguments) &&
               call_value(run, callee, &value, &arguments, out);
    const struct jinja_string *name = callee->name;
    if (!eval(run, callee->a, &self))
        return false;
    const struct jinja_builtin *method = jinja_find_method(run->source->builtins, self.kind, name->bytes, name->length);
    if (!method && !jinja_get_attribute(run, &self, name, false, &value))
        return false;
    if (!method && value.kind == KIND_UNDEFINED)
        return jinja_fail(run, "%s has no method '%.*s'", jinja_kind_name(&self), (int)MIN(name->length, 40u), name->bytes);
    if (!eval_arguments(run, node, caller, &arguments))
        return false;
    return method ? call_builtin(run, method, "method", &self, &arguments, out) : call_value(run, callee, &value, &arguments, out);
}

// x | filter(...), x is test(...)
static bool eval_named(struct jinja_run *run, const struct jinja_node *node, struct jinja_value *out)
{
    struct jinja_argument few[FEW_ARGUMENTS];
    struct jinja_arguments arguments = {.items = few};
    const char *what = node->kind == NODE_FILTER ? "filter" : "test";
    struct jinja_value self;
    if (!eval(run, node->a, &self) || !eval_arguments(run, node, NULL, &arguments))
        return false;
    if (!node->builtin)
        return jinja_fail_unknown(run, what, node->name->bytes, node->name->length);
    return call_builtin(run, node->builtin, what, &self, &arguments, out);
}

static bool eval_items(struct jinja_run *run, const struct jinja_node *node, struct jinja_value *out)
{
    struct jinja_list *list = jinja_list_new(run, node->count);
    for (uint32_t i = 0; list && i < node->count; i++)
        if (!eval(run, node->items[i], &list->items[i]))
            return false;
    if (!list)
        return false;
    if (node->kind == NODE_CONCAT)
        return jinja_concat(run, list->items, list->count, out);
    if (node->kind != NODE_DICT) {
        *out = jinja_listed(node->kind == NODE_LIST ? KIND_LIST : KIND_TUPLE, list);
        return true;
    }
    struct jinja_dict *dict = jinja_dict_new(run, node->count / 2);
    if (!dict)
        return false;
    for (uint32_t i = 0; i < node->count; i += 2)
        if (!jinja_dict_set(run, dict, &list->items[i], &list->items[i + 1]))
            return false;
    *out = (struct jinja_value){.kind = KIND_DICT, .dict = dict};
    return true;
}

static bool eval_node(struct jinja_run *run, const struct jinja_node *node, struct jinja_value *out)
{
    struct jinja_value x, y;
    switch (node->kind) {
    case NODE_CONSTANT: *out = node->constant; return true;
    case NODE_NAME: return get_variable(run, node, out);
    case NODE_LIST:
    case NODE_TUPLE:
    case NODE_DICT:
    case NODE_CONCAT: return eval_items(run, node, out);
    case NODE_ATTRIBUTE: return eval(run, node->a, &x) && jinja_get_attribute(run, &x, node->name, false, out);
    case NODE_ITEM: return eval(run, node->a, &x) && eval(run, node->b, &y) && get_item(run, &x, &y, out);
    case NODE_SLICE: return eval_slice(run, node, out);
    case NODE_UNARY: return eval_unary(run, node, out);
    case NODE_BINARY: return eval_binary(run, node, out);
    case NODE_COMPARE: return eval_compare(run, node, out);
    case NODE_IF_EXPRESSION:
        if (!eval(run, node->b, &x))
            return false;
        if (jinja_truth(&x))
            return eval(run, node->a, out);
        *out = jinja_undefined();
        return !node->c || eval(run, node->c, out);
    case NODE_FILTER:
    case NODE_TEST: return eval_named(run, node, out);
    case NODE_CAPTURED: *out = run->captured; return true;
    default: return eval_call(run, node, NULL, out); // NODE_CALL
    }
}

static bool eval(struct jinja_run *run, const struct jinja_node *node, struct jinja_value *out)
{
    run->line = node->line;
    if (!jinja_work(run, 1))
        return false;
    if (++run->depth > JINJA_MAX_RUN_DEPTH)
        return jinja_fail(run, "rendering nests deeper than %d (a macro that calls itself?)", JINJA_MAX_RUN_DEPTH);
    const bool good = eval_node(run, node, out);
    run->depth--;
    return good;
}

static enum flow flow_of(bool good) { return good ? FLOW_NEXT : FLOW_FAILED; }

// --- scopes and assignments ----------------------------------------------------------------------------------------------------------

bool jinja_set_variable(struct jinja_run *run, uint32_t id, const struct jinja_value *value)
{
    struct jinja_scope *scope = run->scope;
    for (uint32_t i = 0; i < scope->count; i++)
        if (scope->variables[i].id == id) {
            scope->variables[i].value = *value;
            return true;
        }
    if (scope->count == scope->capacity) {
        const uint32_t capacity = scope->capacity * 2 + 4;
        struct jinja_variable *grown = jinja_run_alloc(run, capacity, sizeof *grown);
        if (!grown)
            return false;
        if (scope->count)
            memcpy(grown, scope->variables, scope->count * sizeof *grown);
        scope->variables = grown;
        scope->capacity = capacity;
    }
    scope->variables[scope->count++] = (struct jinja_variable){id, *value};
    return true;
}

static struct jinja_scope *scope_new(struct jinja_run *run, struct jinja_scope *parent)
{
    struct jinja_scope *scope = jinja_run_alloc(run, 1, sizeof *scope);
    if (scope)
        scope->parent = parent;
    return scope;
}

// Sets a member of the namespace that a variable is.
static bool set_member(struct jinja_run *run, const struct jinja_node *target, const struct jinja_value *value)
{
    const struct jinja_value key = {.kind = KIND_STRING, .string = target->name};
    for (struct jinja_scope *scope = run->scope; scope; scope = scope->parent)
        for (uint32_t i = 0; i < scope->count; i++)
            if (scope->variables[i].id == target->id) {
                if (scope->variables[i].value.kind != KIND_NAMESPACE)
                    return jinja_fail(run, "only a namespace's attributes can be set, not those of %s",
                                      jinja_kind_name(&scope->variables[i].value));
                return jinja_dict_set(run, scope->variables[i].value.dict, &key, value);
            }
    return jinja_fail(run, "only a namespace's attributes can be set");
}

// Assigns to a name, or one by one to a tuple of names.
static bool assign_target(struct jinja_run *run, const struct jinja_node *target, const struct jinja_value *value)
{
    const struct jinja_list *list;
    if (target->kind == NODE_NAME)
        return jinja_set_variable(run, target->id, value);
    run->line = target->line;
    if (target->kind == NODE_MEMBER)
        return set_member(run, target, value);
    if (!jinja_iterate(run, value, &list))
        return false;
    if (list->count != target->count)
        return jinja_fail(run, "%zu values for %u names", list->count, target->count);
    for (uint32_t i = 0; i < target->count; i++)
        if (!assign_target(run, target->items[i], &list->items[i]))
            return false;
    return true;
}

// Runs a body in a scope. NULL: there is no memory for it.
static enum flow execute_in(struct jinja_run *run, const struct jinja_node *body, struct jinja_scope *scope)
{
    struct jinja_scope *const outer = run->scope;
    if (!scope)
        return FLOW_FAILED;
    run->scope = scope;
    const enum flow flow = execute(run, body);
    run->scope = outer;
    return flow;
}

// Runs a body in a scope, its output going into *text, which is not set if the body is left by break or continue.
static enum flow capture(struct jinja_run *run, const struct jinja_node *body, struct jinja_scope *scope, struct jinja_value *text)
{
    struct jinja_builder builder = {0}, *const output = run->output;
    run->output = &builder;
    enum flow flow = execute_in(run, body, scope);
    if (flow == FLOW_NEXT && !jinja_build(run, &builder, text))
        flow = FLOW_FAILED;
    run->output = output;
    return flow;
}

// Captures a block whose text goes through filters, which may be NULL.
static enum flow capture_filtered(struct jinja_run *run, const struct jinja_node *body, const struct jinja_node *filters,
                                  struct jinja_value *text)
{
    const enum flow flow = capture(run, body, scope_new(run, run->scope), text);
    if (flow != FLOW_NEXT || !filters)
        return flow;
    run->captured = *text;
    return flow_of(eval(run, filters, text));
}

// --- macros -------------------------------------------------------------------------------------------------------------

// Sets a variable that a macro's body may use without its being a parameter.
static bool set_named(struct jinja_run *run, const char *name, const struct jinja_value *value)
{
    for (uint32_t id = 0; id < run->source->name_count; id++)
        if (jinja_string_is(run->source->names[id], name))
            return jinja_set_variable(run, id, value);
    return true;
}

// Sets the variables caller, varargs and kwargs of the macro's own scope from the arguments that no parameter took (not `used`).
static bool set_rest(struct jinja_run *run, const struct jinja_node *macro, const struct jinja_arguments *arguments,
                     const bool *used)
{
    struct jinja_list *varargs = jinja_list_new(run, arguments->count);
    struct jinja_dict *kwargs = varargs ? jinja_dict_new(run, 0) : NULL;
    struct jinja_value caller = jinja_undefined();
    if (!kwargs)
        return false;
    varargs->count = 0;
    for (size_t i = 0; i < arguments->count; i++) {
        const struct jinja_argument *argument = &arguments->items[i];
        const struct jinja_value name = {.kind = KIND_STRING, .string = argument->name};
        if (used[i])
            continue;
        if (argument->name && jinja_string_is(argument->name, "caller") && (macro->op & JINJA_TAKES_CALLER))
            caller = argument->value;
        else if (!argument->name && (macro->op & JINJA_TAKES_VARARGS))
            varargs->items[varargs->count++] = argument->value;
        else if (!argument->name || !(macro->op & JINJA_TAKES_KWARGS))
            return jinja_fail(run, "macro '%.*s' does not take these arguments", (int)macro->name->length, macro->name->bytes);
        else if (!jinja_dict_set(run, kwargs, &name, &argument->value))
            return false;
    }
    const struct jinja_value list = jinja_listed(KIND_TUPLE, varargs), dict = {.kind = KIND_DICT, .dict = kwargs};
    return (!(macro->op & JINJA_TAKES_CALLER) || set_named(run, "caller", &caller)) &&
           (!(macro->op & JINJA_TAKES_VARARGS) || set_named(run, "varargs", &list)) &&
           (!(macro->op & JINJA_TAKES_KWARGS) || set_named(run, "kwargs", &dict));
}

// Sets the parameters in the scope that is the run's: a default sees those before it.
static bool set_parameters(struct jinja_run *run, const struct jinja_node *macro, const struct jinja_arguments *arguments)
{
    const uint32_t line = run->line;
    bool *used = jinja_run_alloc(run, arguments->count, sizeof *used), is_parameter[3] = {false};
    static const char *const names[] = {"caller", "varargs", "kwargs"};
    if (!used)
        return false;
    for (uint32_t p = 0; p < macro->count; p++) {
        const struct jinja_node *parameter = macro->items[p];
        struct jinja_value value = jinja_undefined();
        bool given = false;
        for (size_t i = 0; i < arguments->count && !given; i++) {
            const struct jinja_string *name = arguments->items[i].name;
            given = name ? name->length == parameter->name->length && !memcmp(name->bytes, parameter->name->bytes, name->length)
                         : i == p;
            if (given) {
                used[i] = true;
                value = arguments->items[i].value;
            }
        }
        if ((!given && parameter->a && !eval(run, parameter->a, &value)) || !jinja_set_variable(run, parameter->id, &value))
            return false;
        for (size_t i = 0; i < 3; i++)
            is_parameter[i] |= jinja_string_is(parameter->name, names[i]);
    }
    struct jinja_node rest = *macro; // a parameter of such a name is nothing but a parameter
    for (size_t i = 0; i < 3; i++)
        if (is_parameter[i])
            rest.op &= (uint16_t) ~(1u << i);
    run->line = line;
    return set_rest(run, &rest, arguments, used);
}

static bool call_macro(struct jinja_run *run, const struct jinja_macro *callee, const struct jinja_arguments *arguments,
                       struct jinja_value *out)
{
    struct jinja_scope *scope = scope_new(run, callee->scope), *const outer = run->scope;
    if (!scope)
        return false;
    run->scope = scope;
    const bool good = set_parameters(run, callee->node, arguments);
    run->scope = outer;
    return good && capture(run, callee->node->b, scope, out) == FLOW_NEXT;
}

static bool macro_value(struct jinja_run *run, const struct jinja_node *node, struct jinja_value *out)
{
    struct jinja_macro *macro = jinja_run_alloc(run, 1, sizeof *macro);
    if (!macro)
        return false;
    *macro = (struct jinja_macro){node, run->scope};
    *out = (struct jinja_value){.kind = KIND_MACRO, .macro = macro};
    return true;
}

static bool execute_call_block(struct jinja_run *run, const struct jinja_node *node)
{
    struct jinja_value caller, text;
    return macro_value(run, node->b, &caller) && eval_call(run, node->a, &caller, &text) &&
           jinja_append_value(run, run->output, &text);
}

// --- loops --------------------------------------------------------------------------------------------------------------

// Keeps the items that satisfy the loop's condition.
static bool filter_items(struct jinja_run *run, const struct jinja_node *node, const struct jinja_list **list)
{
    struct jinja_list *kept = jinja_list_new(run, (*list)->count);
    struct jinja_scope *const outer = run->scope, *scope = kept ? scope_new(run, outer) : NULL;
    if (!scope)
        return false;
    kept->count = 0;
    run->scope = scope;
    for (size_t i = 0; i < (*list)->count; i++) {
        struct jinja_value holds;
        if (!assign_target(run, node->a, &(*list)->items[i]) || !eval(run, node->c, &holds))
            return false;
        if (jinja_truth(&holds))
            kept->items[kept->count++] = (*list)->items[i];
    }
    run->scope = outer;
    *list = kept;
    return true;
}

// Returns the id of the variable `loop`, or UINT32_MAX if the template never names it.
static uint32_t loop_id(const struct jinja_run *run)
{
    for (uint32_t i = 0; i < run->source->name_count; i++)
        if (jinja_string_is(run->source->names[i], "loop"))
            return i;
    return UINT32_MAX;
}

static enum flow run_loop(struct jinja_run *run, const struct jinja_node *node, struct jinja_loop *loop, struct jinja_scope *scope)
{
    const struct jinja_value loop_value = {.kind = KIND_LOOP, .loop = loop};
    const uint32_t id = loop_id(run);
    struct jinja_scope *const outer = run->scope;
    enum flow flow = FLOW_NEXT;
    run->scope = scope;
    for (; loop->index < loop->list->count && flow != FLOW_FAILED && flow != FLOW_BREAK; loop->index++) {
        scope->count = 0;
        if (!jinja_work(run, 1) || (id != UINT32_MAX && !jinja_set_variable(run, id, &loop_value)) ||
            !assign_target(run, node->a, &loop->list->items[loop->index]))
            flow = FLOW_FAILED;
        else
            flow = execute(run, node->items[0]);
    }
    run->scope = outer;
    return flow == FLOW_FAILED ? FLOW_FAILED : FLOW_NEXT;
}

// Runs a loop over a value in the run's scope.
static enum flow loop_over(struct jinja_run *run, const struct jinja_node *node, const struct jinja_value *iterable, size_t depth)
{
    const struct jinja_list *list;
    if (!jinja_iterate(run, iterable, &list) || (node->c && !filter_items(run, node, &list)))
        return FLOW_FAILED;
    if (!list->count)
        return node->count > 1 ? execute_in(run, node->items[1], scope_new(run, run->scope)) : FLOW_NEXT;
    struct jinja_scope *scope = scope_new(run, run->scope);
    struct jinja_loop *loop = scope ? jinja_run_alloc(run, 1, sizeof *loop) : NULL;
    if (!loop)
        return FLOW_FAILED;
    *loop = (struct jinja_loop){.list = list, .depth = depth, .node = node->op == 'r' ? node : NULL, .outer = run->scope};
    return run_loop(run, node, loop, scope);
}

static enum flow execute_for(struct jinja_run *run, const struct jinja_node *node)
{
    struct jinja_value iterable;
    return eval(run, node->b, &iterable) ? loop_over(run, node, &iterable, 1) : FLOW_FAILED;
}

// loop(items) inside of a recursive loop: the same loop over other items, as text.
static bool call_loop(struct jinja_run *run, const struct jinja_loop *loop, const struct jinja_arguments *arguments,
                      struct jinja_value *out)
{
    struct jinja_builder builder = {0}, *const output = run->output;
    struct jinja_scope *const scope = run->scope;
    if (!loop->node)
        return jinja_fail(run, "only a loop that is marked 'recursive' can be called");
    if (arguments->count != 1 || arguments->items[0].name)
        return jinja_fail(run, "a call of 'loop' takes one argument");
    run->output = &builder;
    run->scope = loop->outer;
    const bool good = loop_over(run, loop->node, &arguments->items[0].value, loop->depth + 1) != FLOW_FAILED;
    run->output = output;
    run->scope = scope;
    return good && jinja_build(run, &builder, out);
}

// --- statements ---------------------------------------------------------------------------------------------------------

static enum flow execute_if(struct jinja_run *run, const struct jinja_node *node)
{
    uint32_t i = 0;
    for (; i + 1 < node->count; i += 2) {
        struct jinja_value condition;
        if (!eval(run, node->items[i], &condition))
            return FLOW_FAILED;
        if (jinja_truth(&condition))
            return execute(run, node->items[i + 1]);
    }
    return i < node->count ? execute(run, node->items[i]) : FLOW_NEXT;
}

static enum flow execute_scope(struct jinja_run *run, const struct jinja_node *node)
{
    struct jinja_scope *parent = run->scope;
    struct jinja_value escapes;
    if (node->b && !eval(run, node->b, &escapes))
        return FLOW_FAILED;
    if (node->b && jinja_truth(&escapes))
        return flow_of(jinja_fail(run, "'autoescape' is not supported: text is not escaped for HTML"));
    while (node->op == 'b' && parent->parent)
        parent = parent->parent;
    return execute_in(run, node->a, scope_new(run, parent));
}

static enum flow execute_with(struct jinja_run *run, const struct jinja_node *node)
{
    struct jinja_scope *const outer = run->scope, *scope = scope_new(run, outer);
    struct jinja_list *values = scope ? jinja_list_new(run, node->count / 2) : NULL;
    if (!values)
        return FLOW_FAILED;
    for (uint32_t i = 0; i < node->count; i += 2) // none of them sees another
        if (!eval(run, node->items[i + 1], &values->items[i / 2]))
            return FLOW_FAILED;
    run->scope = scope;
    enum flow flow = FLOW_NEXT;
    for (uint32_t i = 0; i < node->count && flow == FLOW_NEXT; i += 2)
        flow = flow_of(assign_target(run, node->items[i], &values->items[i / 2]));
    if (flow == FLOW_NEXT)
        flow = execute(run, node->b);
    run->scope = outer;
    return flow;
}

// Runs a block whose text is filtered, and then written or assigned.
static enum flow execute_captured(struct jinja_run *run, const struct jinja_node *node)
{
    const bool sets = node->kind == NODE_SET_BLOCK;
    struct jinja_value text;
    const enum flow flow = capture_filtered(run, node->b, sets ? node->c : node->a, &text);
    if (flow != FLOW_NEXT)
        return flow;
    return flow_of(sets ? assign_target(run, node->a, &text) : jinja_append_value(run, run->output, &text));
}

static enum flow execute_node(struct jinja_run *run, const struct jinja_node *node)
{
    struct jinja_value value;
    switch (node->kind) {
    case NODE_BODY:
        for (uint32_t i = 0; i < node->count; i++) {
            const enum flow flow = execute(run, node->items[i]);
            if (flow != FLOW_NEXT)
                return flow;
        }
        return FLOW_NEXT;
    case NODE_TEXT: return flow_of(jinja_append(run, run->output, node->constant.string));
    case NODE_PRINT: return flow_of(eval(run, node->a, &value) && jinja_append_value(run, run->output, &value));
    case NODE_IF: return execute_if(run, node);
    case NODE_FOR: return execute_for(run, node);
    case NODE_SET: return flow_of(eval(run, node->b, &value) && assign_target(run, node->a, &value));
    case NODE_SET_BLOCK:
    case NODE_FILTER_BLOCK: return execute_captured(run, node);
    case NODE_MACRO: return flow_of(macro_value(run, node, &value) && jinja_set_variable(run, node->id, &value));
    case NODE_CALL_BLOCK: return flow_of(execute_call_block(run, node));
    case NODE_WITH: return execute_with(run, node);
    case NODE_SCOPE: return execute_scope(run, node);
    case NODE_ABSENT_TAG:
        return flow_of(jinja_fail(run, "the tag '%.*s' needs other templates, which do not exist", (int)node->name->length,
                                  node->name->bytes));
    default: return node->kind == NODE_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
    }
}

static enum flow execute(struct jinja_run *run, const struct jinja_node *node)
{
    run->line = node->line;
    if (!jinja_work(run, 1))
        return FLOW_FAILED;
    if (++run->depth > JINJA_MAX_RUN_DEPTH) {
        (void)jinja_fail(run, "rendering nests deeper than %d (a macro that calls itself?)", JINJA_MAX_RUN_DEPTH);
        return FLOW_FAILED;
    }
    const enum flow flow = execute_node(run, node);
    run->depth--;
    return flow;
}

bool jinja_execute(struct jinja_run *run) { return execute(run, run->source->root) != FLOW_FAILED; }
