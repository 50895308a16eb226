// jinja_exec.c: runs statements: output, variables and their scopes, loops, macros.
//
// The bodies of loops, macros and block `set`s have a scope each. What they set is gone afterwards, which is why templates use namespaces. `if`
// has no scope. Every round of a loop starts with an empty one.
#include "common/jinja/jinja_char.h"
#include "common/jinja/jinja_run.h"

#include <string.h>

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE, FLOW_FAILED };

static enum flow execute(struct jinja_run *run, const struct jinja_node *node);

static enum flow flow_of(bool good) { return good ? FLOW_NEXT : FLOW_FAILED; }

// --- variables ----------------------------------------------------------------------------------------------------------

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

// Assigns to a name, or one by one to a tuple of names.
static bool assign(struct jinja_run *run, const struct jinja_node *target, const struct jinja_value *value)
{
    const struct jinja_list *list;
    if (target->kind == NODE_NAME)
        return jinja_set_variable(run, target->id, value);
    if (!jinja_iterate(run, value, &list))
        return false;
    if (list->count != target->count)
        return jinja_fail(run, "%zu values for %u names", list->count, target->count);
    for (uint32_t i = 0; i < target->count; i++)
        if (!jinja_set_variable(run, target->items[i]->id, &list->items[i]))
            return false;
    return true;
}

static bool set_attribute(struct jinja_run *run, const struct jinja_node *node)
{
    struct jinja_value value;
    const struct jinja_value key = {.kind = KIND_STRING, .string = node->name};
    if (!jinja_eval(run, node->b, &value))
        return false;
    run->line = node->line;
    for (struct jinja_scope *scope = run->scope; scope; scope = scope->parent)
        for (uint32_t i = 0; i < scope->count; i++)
            if (scope->variables[i].id == node->id) {
                if (scope->variables[i].value.kind != KIND_NAMESPACE)
                    return jinja_fail(run, "only a namespace's attributes can be set, not those of %s",
                                      jinja_kind_name(&scope->variables[i].value));
                return jinja_dict_set(run, scope->variables[i].value.dict, &key, &value);
            }
    return jinja_fail(run, "only a namespace's attributes can be set");
}

// Runs a body in a scope of its own, its output going into *text.
static bool capture(struct jinja_run *run, const struct jinja_node *body, struct jinja_scope *scope, struct jinja_value *text)
{
    struct jinja_builder builder = {0}, *const output = run->output;
    struct jinja_scope *const outer = run->scope;
    if (!scope)
        return false;
    run->output = &builder;
    run->scope = scope;
    const bool good = execute(run, body) != FLOW_FAILED && jinja_build(run, &builder, text);
    run->output = output;
    run->scope = outer;
    return good;
}

// --- macros -------------------------------------------------------------------------------------------------------------

// Gets the argument for parameter `index`, positional or named. If there is none, *out does not change.
static bool macro_argument(struct jinja_run *run, const struct jinja_node *call, const struct jinja_node *parameter, uint32_t index,
                           struct jinja_value *out, uint32_t *used)
{
    for (uint32_t i = 0; i < call->count; i++) {
        const struct jinja_node *item = call->items[i];
        if (item->kind == NODE_KEYWORD ? item->id != parameter->id : i != index)
            continue;
        ++*used;
        return jinja_eval(run, item->kind == NODE_KEYWORD ? item->a : item, out);
    }
    return true;
}

static bool call_macro(struct jinja_run *run, const struct jinja_node *call, struct jinja_value *out)
{
    const struct jinja_node name = {.kind = NODE_NAME, .line = call->line, .id = call->id, .name = call->name};
    struct jinja_value callee;
    uint32_t used = 0;
    if (!jinja_eval(run, &name, &callee))
        return false;
    if (callee.kind != KIND_MACRO)
        return jinja_fail(run, "'%.*s' is %s here and cannot be called", (int)call->name->length, call->name->bytes,
                          jinja_kind_name(&callee));
    const struct jinja_node *macro = callee.macro->node;
    struct jinja_scope *scope = scope_new(run, callee.macro->scope), *const outer = run->scope;
    for (uint32_t i = 0; scope && i < macro->count; i++) {
        struct jinja_value value = {.kind = KIND_ABSENT};
        if (!macro_argument(run, call, macro->items[i], i, &value, &used))
            return false;
        run->scope = scope; // a default sees the parameters before it
        const bool absent = value.kind == KIND_ABSENT;
        if (absent)
            value = jinja_undefined();
        const bool good = (!absent || !macro->items[i]->a || jinja_eval(run, macro->items[i]->a, &value)) &&
                          jinja_set_variable(run, macro->items[i]->id, &value);
        run->scope = outer;
        if (!good)
            return false;
    }
    run->line = call->line;
    if (used != call->count)
        return jinja_fail(run, "macro '%.*s' does not take these arguments", (int)call->name->length, call->name->bytes);
    return capture(run, macro->b, scope, out);
}

static bool define_macro(struct jinja_run *run, const struct jinja_node *node)
{
    struct jinja_macro *macro = jinja_run_alloc(run, 1, sizeof *macro);
    if (!macro)
        return false;
    *macro = (struct jinja_macro){node, run->scope};
    const struct jinja_value value = {.kind = KIND_MACRO, .macro = macro};
    return jinja_set_variable(run, node->id, &value);
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
        if (!assign(run, node->a, &(*list)->items[i]) || !jinja_eval(run, node->c, &holds))
            return false;
        if (jinja_truth(&holds))
            kept->items[kept->count++] = (*list)->items[i];
    }
    run->scope = outer;
    *list = kept;
    return true;
}

// The id of the variable `loop`, or UINT32_MAX if the template never names it.
static uint32_t loop_id(const struct jinja_run *run)
{
    for (uint32_t i = 0; i < run->source->name_count; i++)
        if (jinja_string_is(run->source->names[i], "loop"))
            return i;
    return UINT32_MAX;
}

static enum flow execute_for(struct jinja_run *run, const struct jinja_node *node)
{
    struct jinja_value iterable;
    const struct jinja_list *list;
    if (!jinja_eval(run, node->b, &iterable) || !jinja_iterate(run, &iterable, &list) ||
        (node->c && !filter_items(run, node, &list)))
        return FLOW_FAILED;
    if (!list->count)
        return node->count > 1 ? execute(run, node->items[1]) : FLOW_NEXT;
    struct jinja_scope *const outer = run->scope, *scope = scope_new(run, outer);
    struct jinja_loop *loop = scope ? jinja_run_alloc(run, 1, sizeof *loop) : NULL;
    if (!loop)
        return FLOW_FAILED;
    *loop = (struct jinja_loop){.list = list, .depth = ++run->loop_depth};
    const struct jinja_value loop_value = {.kind = KIND_LOOP, .loop = loop};
    const uint32_t id = loop_id(run);
    enum flow flow = FLOW_NEXT;
    run->scope = scope;
    for (; loop->index < list->count && flow != FLOW_FAILED && flow != FLOW_BREAK; loop->index++) {
        scope->count = 0;
        if (!jinja_work(run, 1) || (id != UINT32_MAX && !jinja_set_variable(run, id, &loop_value)) ||
            !assign(run, node->a, &list->items[loop->index]))
            flow = FLOW_FAILED;
        else
            flow = execute(run, node->items[0]);
    }
    run->loop_depth--;
    run->scope = outer;
    return flow == FLOW_FAILED ? FLOW_FAILED : FLOW_NEXT;
}

// --- statements ---------------------------------------------------------------------------------------------------------

static enum flow execute_if(struct jinja_run *run, const struct jinja_node *node)
{
    uint32_t i = 0;
    for (; i + 1 < node->count; i += 2) {
        struct jinja_value condition;
        if (!jinja_eval(run, node->items[i], &condition))
            return FLOW_FAILED;
        if (jinja_truth(&condition))
            return execute(run, node->items[i + 1]);
    }
    return i < node->count ? execute(run, node->items[i]) : FLOW_NEXT;
}

static enum flow execute_scope(struct jinja_run *run, const struct jinja_node *node)
{
    struct jinja_scope *const outer = run->scope, *scope = scope_new(run, outer);
    if (!scope)
        return FLOW_FAILED;
    run->scope = scope;
    const enum flow flow = execute(run, node->a);
    run->scope = outer;
    return flow;
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
    case NODE_PRINT: return flow_of(jinja_eval(run, node->a, &value) && jinja_append_value(run, run->output, &value));
    case NODE_IF: return execute_if(run, node);
    case NODE_FOR: return execute_for(run, node);
    case NODE_SET: return flow_of(jinja_eval(run, node->b, &value) && assign(run, node->a, &value));
    case NODE_SET_BLOCK: return flow_of(capture(run, node->b, scope_new(run, run->scope), &value) && assign(run, node->a, &value));
    case NODE_SET_ATTRIBUTE: return flow_of(set_attribute(run, node));
    case NODE_MACRO: return flow_of(define_macro(run, node));
    case NODE_SCOPE: return execute_scope(run, node);
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

bool jinja_execute(struct jinja_run *run)
{
    run->call_macro = call_macro;
    return execute(run, run->source->root) != FLOW_FAILED;
}
