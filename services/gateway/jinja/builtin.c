// builtin.c: looks up filters, tests, methods and functions by name, and gives them their arguments.
//
// That happens when they are run, as in the reference renderer: what a template names but does not reach does no harm.
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "services/gateway/jinja/run.h"

const struct jinja_builtin *jinja_find_builtin(const struct jinja_builtin *table, const char *name, size_t length)
{
    for (; table->name; table++)
        if (strlen(table->name) == length && !memcmp(table->name, name, length))
            return table;
    return NULL;
}

const struct jinja_builtin *jinja_find_filter(const struct jinja_builtins *all, const char *name, size_t length)
{
    const struct jinja_builtin *found = jinja_find_builtin(all->filters, name, length);
    return found ? found : jinja_find_builtin(all->list_filters, name, length);
}

const struct jinja_builtin *jinja_find_method(const struct jinja_builtins *all, uint8_t kind, const char *name, size_t length)
{
    for (const struct jinja_builtin *method = all->methods; method->name; method++)
        if (method->self_kind == kind && strlen(method->name) == length && !memcmp(method->name, name, length))
            return method;
    return NULL;
}

bool jinja_function_value(struct jinja_run *run, const struct jinja_builtin *builtin, const struct jinja_value *self,
                          struct jinja_value *out)
{
    struct jinja_function *function = jinja_run_alloc(run, 1, sizeof *function);
    if (!function)
        return false;
    *function = (struct jinja_function){builtin, *self};
    *out = (struct jinja_value){.kind = KIND_FUNCTION, .function = function};
    return true;
}

static size_t append_names(const struct jinja_builtin *table, char *out, size_t out_bytes, size_t length)
{
    for (; table->name && length < out_bytes; table++)
        length += (size_t)snprintf(out + length, out_bytes - length, "%s%s", length ? ", " : "", table->name);
    return length;
}

bool jinja_fail_unknown(struct jinja_run *run, const char *what, const char *name, size_t length)
{
    const struct jinja_builtins *all = run->source->builtins;
    const bool filter = !strcmp(what, "filter");
    char names[320];
    size_t used = append_names(filter ? all->filters : !strcmp(what, "test") ? all->tests : all->functions, names, sizeof names, 0);
    if (filter)
        used = append_names(all->list_filters, names, sizeof names, used);
    return jinja_fail(run, "unknown %s '%.*s' (supported: %s%s)", what, (int)MIN(length, 40u), name, names,
                      used >= sizeof names ? "..." : "");
}

static bool bind_variadic(struct jinja_run *run, const struct jinja_builtin *builtin, const char *what,
                          const struct jinja_arguments *arguments, struct jinja_value out[JINJA_PARAMS])
{
    size_t positional = 0;
    while (positional < arguments->count && !arguments->items[positional].name)
        positional++;
    struct jinja_list *list = jinja_list_new(run, positional);
    struct jinja_dict *dict = list ? jinja_dict_new(run, arguments->count - positional) : NULL;
    if (!dict)
        return false;
    for (size_t i = 0; i < positional; i++)
        list->items[i] = arguments->items[i].value;
    for (size_t i = positional; i < arguments->count; i++) {
        const struct jinja_value name = {.kind = KIND_STRING, .string = arguments->items[i].name};
        const size_t before = dict->count;
        if (!jinja_dict_set(run, dict, &name, &arguments->items[i].value))
            return false;
        if (dict->count == before)
            return jinja_fail(run, "%s '%s' is given '%.*s' twice", what, builtin->name, (int)MIN(name.string->length, 40u),
                              name.string->bytes);
    }
    out[0] = jinja_listed(KIND_LIST, list);
    out[1] = (struct jinja_value){.kind = KIND_DICT, .dict = dict};
    return true;
}

bool jinja_bind(struct jinja_run *run, const struct jinja_builtin *builtin, const char *what,
                const struct jinja_arguments *arguments, struct jinja_value out[JINJA_PARAMS])
{
    memset(out, 0, JINJA_PARAMS * sizeof *out);
    if (builtin->variadic)
        return bind_variadic(run, builtin, what, arguments, out);
    for (size_t i = 0; i < arguments->count; i++) {
        const struct jinja_string *name = arguments->items[i].name;
        size_t slot = i;
        if (name)
            for (slot = 0; slot < JINJA_PARAMS && builtin->params[slot] && !jinja_string_is(name, builtin->params[slot]);)
                slot++;
        if (slot >= JINJA_PARAMS || !builtin->params[slot]) {
            if (name)
                return jinja_fail(run, "%s '%s' has no argument '%.*s'", what, builtin->name, (int)MIN(name->length, 40u),
                                  name->bytes);
            return jinja_fail(run, "too many arguments for %s '%s'", what, builtin->name);
        }
        if (out[slot].kind != KIND_ABSENT)
            return jinja_fail(run, "%s '%s' is given '%s' twice", what, builtin->name, builtin->params[slot]);
        out[slot] = arguments->items[i].value;
    }
    for (size_t i = 0; i < builtin->required; i++)
        if (out[i].kind == KIND_ABSENT)
            return jinja_fail(run, "%s '%s' needs '%s'", what, builtin->name, builtin->params[i]);
    return true;
}
