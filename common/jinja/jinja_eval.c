// jinja_eval.c: evaluates expressions. One function an operator; recursion is bounded by run->depth.
#include "common/jinja/jinja_char.h"
#include "common/jinja/jinja_run.h"

#include <math.h>
#include <string.h>

#include "common/base/checked.h"

// --- names, attributes, items -------------------------------------------------------------------------------------------

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

// One end of a slice as Python clips it.
static bool slice_bound(struct jinja_run *run, const struct jinja_node *node, int64_t count, int64_t step, int64_t none,
                        int64_t *out)
{
    struct jinja_value value = {.kind = KIND_NONE};
    if (node && !jinja_eval(run, node, &value))
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
    if (!jinja_eval(run, node->a, &object) || (node->items[2] && !jinja_eval(run, node->items[2], &step_value)))
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
    if (!jinja_eval(run, node->a, &x))
        return false;
    if (node->op == '&' || node->op == '|') {
        if (jinja_truth(&x) == (node->op == '&'))
            return jinja_eval(run, node->b, out);
        *out = x;
        return true;
    }
    if (!jinja_eval(run, node->b, &y))
        return false;
    run->line = node->line;
    return jinja_operate(run, node->op, &x, &y, out);
}

static bool eval_unary(struct jinja_run *run, const struct jinja_node *node, struct jinja_value *out)
{
    struct jinja_value x;
    if (!jinja_eval(run, node->a, &x))
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
    if (!jinja_eval(run, node->items[0], &left))
        return false;
    for (uint32_t i = 1; holds && i < node->count; i++, left = right) {
        const uint16_t op = node->ops[i - 1];
        int order = 0;
        if (!jinja_eval(run, node->items[i], &right))
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

enum { FEW_ARGUMENTS = 6 }; // of a call that allocates nothing

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
            if (!jinja_eval(run, has_name || unpacks ? item->a : item, &value))
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
    return jinja_bind(run, builtin, what, arguments, bound) && builtin->call(run, self, bound, out);
}

static bool call_value(struct jinja_run *run, const struct jinja_node *callee, const struct jinja_value *value,
                       const struct jinja_arguments *arguments, struct jinja_value *out)
{
    if (value->kind == KIND_MACRO || value->kind == KIND_LOOP)
        return run->call_statements(run, value, arguments, out);
    if (value->kind == KIND_FUNCTION)
        return call_builtin(run, value->function->builtin, "function", &value->function->self, arguments, out);
    if (callee->kind == NODE_NAME && value->kind == KIND_UNDEFINED)
        return jinja_fail_unknown(run, "function", callee->name->bytes, callee->name->length);
    if (callee->kind == NODE_NAME)
        return jinja_fail(run, "'%.*s' is %s here and cannot be called", (int)MIN(callee->name->length, 40u), callee->name->bytes,
                          jinja_kind_name(value));
    return jinja_fail(run, "%s cannot be called", jinja_kind_name(value));
}

bool jinja_eval_call(struct jinja_run *run, const struct jinja_node *node, const struct jinja_value *caller,
                     struct jinja_value *out)
{
    struct jinja_argument few[FEW_ARGUMENTS];
    struct jinja_arguments arguments = {.items = few};
    const struct jinja_node *callee = node->a;
    struct jinja_value self, value;
    if (callee->kind != NODE_ATTRIBUTE)
        return jinja_eval(run, callee, &value) && eval_arguments(run, node, caller, &arguments) &&
               call_value(run, callee, &value, &arguments, out);
    const struct jinja_string *name = callee->name;
    if (!jinja_eval(run, callee->a, &self))
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
    if (!jinja_eval(run, node->a, &self) || !eval_arguments(run, node, NULL, &arguments))
        return false;
    if (!node->builtin)
        return jinja_fail_unknown(run, what, node->name->bytes, node->name->length);
    return call_builtin(run, node->builtin, what, &self, &arguments, out);
}

static bool eval_items(struct jinja_run *run, const struct jinja_node *node, struct jinja_value *out)
{
    struct jinja_list *list = jinja_list_new(run, node->count);
    for (uint32_t i = 0; list && i < node->count; i++)
        if (!jinja_eval(run, node->items[i], &list->items[i]))
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
    case NODE_ATTRIBUTE: return jinja_eval(run, node->a, &x) && jinja_get_attribute(run, &x, node->name, false, out);
    case NODE_ITEM: return jinja_eval(run, node->a, &x) && jinja_eval(run, node->b, &y) && jinja_get_item(run, &x, &y, out);
    case NODE_SLICE: return eval_slice(run, node, out);
    case NODE_UNARY: return eval_unary(run, node, out);
    case NODE_BINARY: return eval_binary(run, node, out);
    case NODE_COMPARE: return eval_compare(run, node, out);
    case NODE_IF_EXPRESSION:
        if (!jinja_eval(run, node->b, &x))
            return false;
        if (jinja_truth(&x))
            return jinja_eval(run, node->a, out);
        *out = jinja_undefined();
        return !node->c || jinja_eval(run, node->c, out);
    case NODE_FILTER:
    case NODE_TEST: return eval_named(run, node, out);
    case NODE_CAPTURED: *out = run->captured; return true;
    default: return jinja_eval_call(run, node, NULL, out); // NODE_CALL
    }
}

bool jinja_eval(struct jinja_run *run, const struct jinja_node *node, struct jinja_value *out)
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
