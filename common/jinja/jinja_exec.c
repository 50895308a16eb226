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
static bool assign(struct jinja_run *run, const struct jinja_node *target, const struct jinja_value *value)
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
        if (!assign(run, target->items[i], &list->items[i]))
            return false;
    return true;
}

// Runs a body in a scope, its output going into *text, which is not set if the body is left by break or continue.
static enum flow capture(struct jinja_run *run, const struct jinja_node *body, struct jinja_scope *scope, struct jinja_value *text)
{
    struct jinja_builder builder = {0}, *const output = run->output;
    struct jinja_scope *const outer = run->scope;
    if (!scope)
        return FLOW_FAILED;
    run->output = &builder;
    run->scope = scope;
    enum flow flow = execute(run, body);
    if (flow == FLOW_NEXT && !jinja_build(run, &builder, text))
        flow = FLOW_FAILED;
    run->output = output;
    run->scope = outer;
    return flow;
}

// The same for a block whose text goes through filters, which may be NULL.
static enum flow capture_filtered(struct jinja_run *run, const struct jinja_node *body, const struct jinja_node *filters,
                                  struct jinja_value *text)
{
    const enum flow flow = capture(run, body, scope_new(run, run->scope), text);
    if (flow != FLOW_NEXT || !filters)
        return flow;
    run->captured = *text;
    return flow_of(jinja_eval(run, filters, text));
}

// --- macros -------------------------------------------------------------------------------------------------------------

// Sets a variable that a macro's body may use without its being a parameter.
static bool set_taken(struct jinja_run *run, const char *name, const struct jinja_value *value)
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
    return (!(macro->op & JINJA_TAKES_CALLER) || set_taken(run, "caller", &caller)) &&
           (!(macro->op & JINJA_TAKES_VARARGS) || set_taken(run, "varargs", &list)) &&
           (!(macro->op & JINJA_TAKES_KWARGS) || set_taken(run, "kwargs", &dict));
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
        if ((!given && parameter->a && !jinja_eval(run, parameter->a, &value)) || !jinja_set_variable(run, parameter->id, &value))
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
    return macro_value(run, node->b, &caller) && jinja_eval_call(run, node->a, &caller, &text) &&
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
            !assign(run, node->a, &loop->list->items[loop->index]))
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
    if (!list->count) {
        struct jinja_scope *const outer = run->scope, *scope = node->count > 1 ? scope_new(run, outer) : NULL;
        if (!scope)
            return node->count > 1 ? FLOW_FAILED : FLOW_NEXT;
        run->scope = scope;
        const enum flow flow = execute(run, node->items[1]);
        run->scope = outer;
        return flow;
    }
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
    return jinja_eval(run, node->b, &iterable) ? loop_over(run, node, &iterable, 1) : FLOW_FAILED;
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

static bool call_statements(struct jinja_run *run, const struct jinja_value *callee, const struct jinja_arguments *arguments,
                            struct jinja_value *out)
{
    return callee->kind == KIND_MACRO ? call_macro(run, callee->macro, arguments, out)
                                      : call_loop(run, callee->loop, arguments, out);
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
    struct jinja_scope *const outer = run->scope, *parent = outer;
    struct jinja_value escapes;
    if (node->b && !jinja_eval(run, node->b, &escapes))
        return FLOW_FAILED;
    if (node->b && jinja_truth(&escapes))
        return flow_of(jinja_fail(run, "'autoescape' is not supported: text is not escaped for HTML"));
    while (node->op == 'b' && parent->parent)
        parent = parent->parent;
    struct jinja_scope *scope = scope_new(run, parent);
    if (!scope)
        return FLOW_FAILED;
    run->scope = scope;
    const enum flow flow = execute(run, node->a);
    run->scope = outer;
    return flow;
}

static enum flow execute_with(struct jinja_run *run, const struct jinja_node *node)
{
    struct jinja_scope *const outer = run->scope, *scope = scope_new(run, outer);
    struct jinja_list *values = scope ? jinja_list_new(run, node->count / 2) : NULL;
    if (!values)
        return FLOW_FAILED;
    for (uint32_t i = 0; i < node->count; i += 2) // none of them sees another
        if (!jinja_eval(run, node->items[i + 1], &values->items[i / 2]))
            return FLOW_FAILED;
    run->scope = scope;
    enum flow flow = FLOW_NEXT;
    for (uint32_t i = 0; i < node->count && flow == FLOW_NEXT; i += 2)
        flow = flow_of(assign(run, node->items[i], &values->items[i / 2]));
    if (flow == FLOW_NEXT)
        flow = execute(run, node->b);
    run->scope = outer;
    return flow;
}

// A block whose text is filtered, and then written or assigned.
static enum flow execute_captured(struct jinja_run *run, const struct jinja_node *node)
{
    const bool sets = node->kind == NODE_SET_BLOCK;
    struct jinja_value text;
    const enum flow flow = capture_filtered(run, node->b, sets ? node->c : node->a, &text);
    if (flow != FLOW_NEXT)
        return flow;
    return flow_of(sets ? assign(run, node->a, &text) : jinja_append_value(run, run->output, &text));
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

bool jinja_execute(struct jinja_run *run)
{
    run->call_statements = call_statements;
    return execute(run, run->source->root) != FLOW_FAILED;
}
