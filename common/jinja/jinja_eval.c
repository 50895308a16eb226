// jinja_eval.c: evaluates expressions. One function an operator; recursion is bounded by run->depth.
#include "common/jinja/jinja_char.h"
#include "common/jinja/jinja_run.h"

#include <math.h>
#include <string.h>

#include "common/base/checked.h"

static struct jinja_value constant_string(const struct jinja_string *string)
{
    return (struct jinja_value){.kind = KIND_STRING, .string = string};
}

// --- names, attributes, items -------------------------------------------------------------------------------------------

static void get_variable(const struct jinja_run *run, const struct jinja_node *node, struct jinja_value *out)
{
    for (const struct jinja_scope *scope = run->scope; scope; scope = scope->parent)
        for (uint32_t i = 0; i < scope->count; i++)
            if (scope->variables[i].id == node->id) {
                *out = scope->variables[i].value;
                return;
            }
    out->kind = jinja_find_builtin(jinja_functions, node->name->bytes, node->name->length) ? KIND_FUNCTION : KIND_UNDEFINED;
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

// --- arithmetic ---------------------------------------------------------------------------------------------------------

static bool arithmetic(struct jinja_run *run, uint16_t op, const struct jinja_value *x, const struct jinja_value *y,
                       struct jinja_value *out)
{
    if (jinja_is_float(x) || jinja_is_float(y) || op == '/') {
        const double a = jinja_as_double(x), b = jinja_as_double(y);
        if ((op == '/' || op == '%' || op == OP2('/', '/')) && b == 0)
            return jinja_fail(run, "division by zero");
        double r = fmod(a, op == '%' ? b : 1);
        if (op == '%' && r != 0 && (r < 0) != (b < 0)) // the sign of the divisor
            r += b;
        *out = jinja_float(op == '+'   ? a + b
                           : op == '-' ? a - b
                           : op == '*' ? a * b
                           : op == '/' ? a / b
                           : op == '%' ? r
                                       : floor(a / b));
        return true;
    }
    const int64_t a = jinja_as_integer(x), b = jinja_as_integer(y);
    int64_t r = 0;
    bool overflow = false;
    if (op == '+') {
        overflow = __builtin_add_overflow(a, b, &r);
    } else if (op == '-') {
        overflow = __builtin_sub_overflow(a, b, &r);
    } else if (op == '*') {
        overflow = __builtin_mul_overflow(a, b, &r);
    } else if (b == 0) {
        return jinja_fail(run, "division by zero");
    } else if (b == -1) { // also keeps INT64_MIN / -1 away
        overflow = op != '%' && __builtin_sub_overflow((int64_t)0, a, &r);
    } else {
        const int64_t rest = a % b, wrong = rest != 0 && (rest < 0) != (b < 0);
        r = op == '%' ? rest + (wrong ? b : 0) : a / b - wrong;
    }
    *out = jinja_integer(r);
    return !overflow || jinja_fail(run, "integer overflow");
}

static bool add_lists(struct jinja_run *run, const struct jinja_value *x, const struct jinja_value *y, struct jinja_value *out)
{
    struct jinja_list *list =
        jinja_work(run, x->list->count + y->list->count) ? jinja_list_new(run, x->list->count + y->list->count) : NULL;
    if (!list)
        return false;
    if (x->list->count)
        memcpy(list->items, x->list->items, x->list->count * sizeof *list->items);
    if (y->list->count)
        memcpy(list->items + x->list->count, y->list->items, y->list->count * sizeof *list->items);
    *out = jinja_listed(x->kind, list);
    return true;
}

static bool concat(struct jinja_run *run, const struct jinja_value *values, size_t count, struct jinja_value *out)
{
    struct jinja_builder builder = {0};
    for (size_t i = 0; i < count; i++)
        if (!jinja_append_value(run, &builder, &values[i]))
            return false;
    return jinja_build(run, &builder, out);
}

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
    if (jinja_is_number(&x) && jinja_is_number(&y))
        return arithmetic(run, node->op, &x, &y, out);
    if (node->op == '+' && x.kind == KIND_STRING && y.kind == KIND_STRING)
        return concat(run, (struct jinja_value[]){x, y}, 2, out);
    if (node->op == '+' && x.kind == y.kind && (x.kind == KIND_LIST || x.kind == KIND_TUPLE))
        return add_lists(run, &x, &y, out);
    if (node->op == '*' && x.kind == KIND_STRING && y.kind == KIND_INTEGER)
        return jinja_repeat(run, x.string, y.integer, out);
    if (node->op == '*' && y.kind == KIND_STRING && x.kind == KIND_INTEGER)
        return jinja_repeat(run, y.string, x.integer, out);
    return jinja_fail(run, "cannot apply '%c%s' to %s and %s", node->op & 255, node->op > 255 ? "/" : "", jinja_kind_name(&x),
                      jinja_kind_name(&y));
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
    return arithmetic(run, node->op, &zero, &x, out);
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

static bool eval_arguments(struct jinja_run *run, const struct jinja_node *node, struct jinja_value out[JINJA_PARAMS])
{
    memset(out, 0, JINJA_PARAMS * sizeof *out);
    if (!node->builtin->variadic) {
        for (uint32_t i = 0; i < node->count; i++)
            if (node->items[i] && !jinja_eval(run, node->items[i], &out[i]))
                return false;
        return true;
    }
    uint32_t positional = 0;
    while (positional < node->count && node->items[positional]->kind != NODE_KEYWORD)
        positional++;
    struct jinja_list *list = jinja_list_new(run, positional);
    struct jinja_dict *dict = jinja_dict_new(run, node->count - positional);
    if (!list || !dict)
        return false;
    for (uint32_t i = 0; i < node->count; i++) {
        struct jinja_value value;
        const struct jinja_value name = constant_string(node->items[i]->name);
        if (!jinja_eval(run, i < positional ? node->items[i] : node->items[i]->a, &value))
            return false;
        if (i < positional)
            list->items[i] = value;
        else if (!jinja_dict_set(run, dict, &name, &value))
            return false;
    }
    out[0] = jinja_listed(KIND_LIST, list);
    out[1] = (struct jinja_value){.kind = KIND_DICT, .dict = dict};
    return true;
}

static bool eval_builtin(struct jinja_run *run, const struct jinja_node *node, struct jinja_value *out)
{
    struct jinja_value self = jinja_undefined(), arguments[JINJA_PARAMS];
    if ((node->a && !jinja_eval(run, node->a, &self)) || !eval_arguments(run, node, arguments))
        return false;
    run->line = node->line;
    if (node->kind == NODE_METHOD && self.kind != node->builtin->self_kind)
        return jinja_fail(run, "%s has no method '%s'", jinja_kind_name(&self), node->builtin->name);
    return node->builtin->call(run, &self, arguments, out);
}

// select, reject, selectattr, rejectattr, map.
static bool eval_each(struct jinja_run *run, const struct jinja_node *node, struct jinja_value *out)
{
    struct jinja_value operand, path, fallback = jinja_undefined(), arguments[JINJA_PARAMS] = {{0}};
    const struct jinja_list *list;
    if (!jinja_eval(run, node->a, &operand) || (node->b && !jinja_eval(run, node->b, &path)) ||
        (node->c && !jinja_eval(run, node->c, &fallback)) || (node->builtin && !eval_arguments(run, node, arguments)))
        return false;
    if (!jinja_truth(&operand))
        operand = jinja_undefined(); // none and the like have no items here
    if (!jinja_iterate(run, &operand, &list))
        return false;
    struct jinja_list *result = jinja_list_new(run, list->count);
    if (!result)
        return false;
    result->count = 0;
    run->line = node->line;
    for (size_t i = 0; i < list->count; i++) {
        struct jinja_value item = list->items[i];
        if (!jinja_work(run, 1) || (node->b && !jinja_get_path(run, &item, &path, &item)))
            return false;
        if (node->kind == NODE_SELECT) {
            struct jinja_value holds = item;
            if (node->builtin && !node->builtin->call(run, &item, arguments, &holds))
                return false;
            if (jinja_truth(&holds) == (node->op == 's'))
                result->items[result->count++] = list->items[i];
            continue;
        }
        if (node->kind == NODE_MAP_FILTER && !node->builtin->call(run, &list->items[i], arguments, &item))
            return false;
        result->items[result->count++] = item.kind == KIND_UNDEFINED ? fallback : item;
    }
    *out = jinja_listed(KIND_LAZY, result);
    return true;
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
        return concat(run, list->items, list->count, out);
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
    case NODE_NAME: get_variable(run, node, out); return true;
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
    case NODE_TEST:
    case NODE_METHOD:
    case NODE_FUNCTION: return eval_builtin(run, node, out);
    case NODE_MACRO_CALL: return run->call_macro(run, node, out);
    default: return eval_each(run, node, out); // NODE_SELECT, NODE_MAP_*
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
