// filter_list.c: filters of lists and mappings, one function each, and their table. arguments[i] is KIND_ABSENT if not given.
#include <string.h>

#include "common/base/checked.h"
#include "services/gateway/jinja/run.h"

JINJA_BUILTIN(filter_length)
{
    if (self->kind == KIND_STRING)
        *out = jinja_integer((int64_t)jinja_char_count(self->string));
    else if (self->kind == KIND_DICT)
        *out = jinja_integer((int64_t)self->dict->count);
    else if (jinja_is_sequence(self))
        *out = jinja_integer((int64_t)self->list->count);
    else if (self->kind == KIND_UNDEFINED)
        *out = jinja_integer(0);
    else
        return jinja_fail(run, "%s has no length", jinja_kind_name(self));
    return jinja_work(run, self->kind == KIND_STRING ? self->string->length / 16 : 0);
}

// how: FIRST or LAST.
enum { FIRST, LAST };

JINJA_BUILTIN(filter_outermost)
{
    const struct jinja_list *list;
    if (!jinja_iterate(run, self, &list))
        return false;
    *out = list->count ? list->items[how == LAST ? list->count - 1 : 0] : jinja_undefined();
    return true;
}

// Reads what an item is compared by: its attribute unless that is absent, in lower case unless case_sensitive.
static bool sort_key(struct jinja_run *run, const struct jinja_value *item, const struct jinja_value *attribute,
                     bool case_sensitive, struct jinja_value *key)
{
    *key = *item;
    return (attribute->kind <= KIND_NONE || jinja_get_path(run, item, attribute, key)) &&
           (key->kind != KIND_STRING || case_sensitive || jinja_change_case(run, key->string, CASE_LOWER, key));
}

// Finds the least item (how -1) or the greatest one (1); undefined if there is none.
JINJA_BUILTIN(filter_extreme)
{
    const struct jinja_list *list;
    struct jinja_value key, best = jinja_undefined();
    if (!jinja_iterate(run, self, &list))
        return false;
    *out = jinja_undefined();
    for (size_t i = 0; i < list->count; i++) {
        int order = how;
        if (!sort_key(run, &list->items[i], &arguments[1], jinja_truth(&arguments[0]), &key) ||
            (i && !jinja_order(run, &key, &best, &order)))
            return false;
        if (order * how > 0) {
            best = key;
            *out = list->items[i];
        }
    }
    return true;
}

JINJA_BUILTIN(filter_list)
{
    const struct jinja_list *list;
    if (!jinja_iterate(run, self, &list))
        return false;
    *out = jinja_listed(KIND_LIST, list);
    return true;
}

JINJA_BUILTIN(filter_reverse)
{
    const struct jinja_list *list;
    struct jinja_builder builder = {0};
    struct jinja_list *reversed = jinja_iterate(run, self, &list) ? jinja_list_new(run, list->count) : NULL;
    if (!reversed)
        return false;
    for (size_t i = 0; i < list->count; i++) {
        reversed->items[i] = list->items[list->count - 1 - i];
        if (self->kind == KIND_STRING && !jinja_append(run, &builder, reversed->items[i].string))
            return false;
    }
    if (self->kind == KIND_STRING)
        return jinja_build(run, &builder, out);
    *out = jinja_listed(KIND_LAZY, reversed);
    return true;
}

// A stable merge sort over (key, item) pairs: qsort() could not report an error.
struct pair {
    struct jinja_value key, item;
};

static bool merge_sort(struct jinja_run *run, struct pair *pairs, struct pair *spare, size_t count, bool reverse)
{
    if (count < 2)
        return true;
    const size_t half = count / 2;
    if (!merge_sort(run, pairs, spare, half, reverse) || !merge_sort(run, pairs + half, spare, count - half, reverse))
        return false;
    memcpy(spare, pairs, half * sizeof *pairs);
    for (size_t i = 0, j = half, to = 0; i < half; to++) {
        int order = 0;
        if (j < count && !jinja_order(run, &spare[i].key, &pairs[j].key, &order))
            return false;
        pairs[to] = j < count && (reverse ? order < 0 : order > 0) ? pairs[j++] : spare[i++];
    }
    return true;
}

// Sorts the items of a list by their keys.
static bool sorted(struct jinja_run *run, const struct jinja_list *list, const struct jinja_value *attribute, bool case_sensitive,
                   bool reverse, struct pair **out)
{
    struct pair *pairs = jinja_run_alloc(run, list->count, sizeof *pairs);
    struct pair *spare = pairs ? jinja_run_alloc(run, list->count, sizeof *spare) : NULL;
    if (!spare)
        return false;
    for (size_t i = 0; i < list->count; i++) {
        pairs[i].item = list->items[i];
        if (!sort_key(run, &list->items[i], attribute, case_sensitive, &pairs[i].key))
            return false;
    }
    *out = pairs;
    return merge_sort(run, pairs, spare, list->count, reverse);
}

JINJA_BUILTIN(filter_sort)
{
    const struct jinja_list *list;
    struct pair *pairs;
    if (!jinja_iterate(run, self, &list) ||
        !sorted(run, list, &arguments[2], jinja_truth(&arguments[1]), jinja_truth(&arguments[0]), &pairs))
        return false;
    struct jinja_list *result = jinja_list_new(run, list->count);
    for (size_t i = 0; result && i < list->count; i++)
        result->items[i] = pairs[i].item;
    *out = jinja_listed(KIND_LIST, result);
    return result != NULL;
}

JINJA_BUILTIN(filter_unique)
{
    const struct jinja_list *list;
    struct jinja_list *result = jinja_iterate(run, self, &list) ? jinja_list_new(run, list->count) : NULL;
    struct jinja_list *keys = result ? jinja_list_new(run, list->count) : NULL;
    if (!keys)
        return false;
    keys->count = result->count = 0;
    const struct jinja_value seen = jinja_listed(KIND_LIST, keys);
    for (size_t i = 0; i < list->count; i++) {
        struct jinja_value key;
        bool found;
        if (!sort_key(run, &list->items[i], &arguments[1], jinja_truth(&arguments[0]), &key) ||
            !jinja_contains(run, &seen, &key, &found))
            return false;
        if (found)
            continue;
        keys->items[keys->count++] = key;
        result->items[result->count++] = list->items[i];
    }
    *out = jinja_listed(KIND_LAZY, result);
    return true;
}

JINJA_BUILTIN(filter_items)
{
    static const struct jinja_dict empty;
    struct jinja_list *list;
    if (self->kind != KIND_DICT && self->kind != KIND_UNDEFINED)
        return jinja_fail(run, "'items' needs a mapping, not %s", jinja_kind_name(self));
    if (!jinja_dict_items(run, self->kind == KIND_DICT ? self->dict : &empty, &list))
        return false;
    *out = jinja_listed(KIND_LAZY, list);
    return true;
}

JINJA_BUILTIN(filter_dictsort)
{
    struct jinja_list *list;
    struct pair *pairs;
    if (self->kind != KIND_DICT)
        return jinja_fail(run, "'dictsort' needs a mapping, not %s", jinja_kind_name(self));
    const bool by_value = arguments[1].kind == KIND_STRING && jinja_string_is(arguments[1].string, "value");
    const struct jinja_value position = jinja_integer(by_value);
    if (!jinja_dict_items(run, self->dict, &list) ||
        !sorted(run, list, &position, jinja_truth(&arguments[0]), jinja_truth(&arguments[2]), &pairs))
        return false;
    for (size_t i = 0; i < list->count; i++)
        list->items[i] = pairs[i].item;
    *out = jinja_listed(KIND_LIST, list);
    return true;
}

// Splits the items into rows of `width`. The last row is filled up unless `fill` is absent or none.
static bool rows_of(struct jinja_run *run, const struct jinja_list *list, const size_t *widths, size_t count,
                    const struct jinja_value *fill, size_t full, struct jinja_value *out)
{
    struct jinja_list *rows = jinja_list_new(run, count);
    for (size_t i = 0, at = 0; rows && i < count; at += widths[i++]) {
        const bool fills = fill->kind > KIND_NONE && widths[i] < full;
        struct jinja_list *row = jinja_list_new(run, fills ? full : widths[i]);
        if (!row)
            return false;
        for (size_t j = 0; j < row->count; j++)
            row->items[j] = j < widths[i] ? list->items[at + j] : *fill;
        rows->items[i] = jinja_listed(KIND_LIST, row);
    }
    *out = jinja_listed(KIND_LAZY, rows);
    return rows != NULL;
}

// Reads the number that `batch` and `slice` are given.
static bool row_number(struct jinja_run *run, const struct jinja_value *value, size_t *out)
{
    if (value->kind != KIND_INTEGER || value->integer < 1 || value->integer > 100000)
        return jinja_fail(run, "a number of rows or columns must be an integer from 1 to 100000");
    *out = (size_t)value->integer;
    return true;
}

JINJA_BUILTIN(filter_batch)
{
    const struct jinja_list *list;
    size_t width = 1;
    if (!row_number(run, &arguments[0], &width) || !jinja_iterate(run, self, &list))
        return false;
    const size_t count = list->count / width + (list->count % width != 0);
    size_t *widths = jinja_work(run, count + width) ? jinja_run_alloc(run, count, sizeof *widths) : NULL;
    for (size_t i = 0; widths && i < count; i++)
        widths[i] = MIN(width, list->count - i * width);
    return widths && rows_of(run, list, widths, count, &arguments[1], width, out);
}

JINJA_BUILTIN(filter_slice)
{
    const struct jinja_list *list;
    size_t count = 1;
    if (!row_number(run, &arguments[0], &count) || !jinja_iterate(run, self, &list))
        return false;
    size_t *widths = jinja_work(run, count) ? jinja_run_alloc(run, count, sizeof *widths) : NULL;
    for (size_t i = 0; widths && i < count; i++) // the first ones may have one more
        widths[i] = list->count / count + (i < list->count % count);
    // As in the reference, rows are filled up to one more than the quotient, even if none has that many items.
    return widths && rows_of(run, list, widths, count, &arguments[1], list->count / count + 1, out);
}

JINJA_BUILTIN(filter_sum)
{
    const struct jinja_list *list;
    if (!jinja_iterate(run, self, &list))
        return false;
    *out = arguments[1].kind == KIND_ABSENT ? jinja_integer(0) : arguments[1];
    for (size_t i = 0; i < list->count; i++) {
        struct jinja_value item = list->items[i], total = *out;
        if (arguments[0].kind > KIND_NONE && !jinja_get_path(run, &item, &arguments[0], &item))
            return false;
        if (total.kind == KIND_STRING)
            return jinja_fail(run, "'sum' cannot add strings");
        if (!jinja_operate(run, '+', &total, &item, out))
            return false;
    }
    return true;
}

JINJA_BUILTIN(filter_groupby)
{
    static const char *const names[] = {"grouper", "list"};
    const struct jinja_list *list;
    struct jinja_list *keyed, *groups;
    struct pair *pairs;
    if (!jinja_iterate(run, self, &list) || !(keyed = jinja_list_new(run, list->count)) ||
        !(groups = jinja_list_new(run, list->count)))
        return false;
    for (size_t i = 0; i < list->count; i++) { // (key, item), so that a default is sorted too
        struct jinja_list *pair = jinja_list_new(run, 2);
        if (!pair || !jinja_get_path(run, &list->items[i], &arguments[0], &pair->items[0]))
            return false;
        if (pair->items[0].kind == KIND_UNDEFINED && arguments[1].kind > KIND_NONE)
            pair->items[0] = arguments[1];
        pair->items[1] = list->items[i];
        keyed->items[i] = jinja_listed(KIND_TUPLE, pair);
    }
    const struct jinja_value first = jinja_integer(0);
    if (!sorted(run, keyed, &first, jinja_truth(&arguments[2]), false, &pairs))
        return false;
    groups->count = 0;
    for (size_t i = 0, end; i < list->count; i = end) {
        bool equal = true;
        for (end = i + 1; end < list->count; end++)
            if (!jinja_equal(run, &pairs[i].key, &pairs[end].key, &equal))
                return false;
            else if (!equal)
                break;
        struct jinja_list *group = jinja_list_new(run, 2), *members = group ? jinja_list_new(run, end - i) : NULL;
        if (!members)
            return false;
        for (size_t j = i; j < end; j++)
            members->items[j - i] = pairs[j].item.list->items[1];
        group->names = names;
        group->items[0] = pairs[i].item.list->items[0];
        group->items[1] = jinja_listed(KIND_LIST, members);
        groups->items[groups->count++] = jinja_listed(KIND_TUPLE, group);
    }
    *out = jinja_listed(KIND_LIST, groups);
    return true;
}

// --- filters that are given a test or a filter --------------------------------------------------------------------------

// Looks up the test or filter named by list[at], and binds the values behind it to its parameters. *builtin is NULL if there is none.
static bool bind_inner(struct jinja_run *run, const struct jinja_value *arguments, size_t at, bool is_filter,
                       const struct jinja_builtin **builtin, struct jinja_value bound[JINJA_PARAMS])
{
    const struct jinja_list *list = arguments[0].list;
    const struct jinja_dict *named = arguments[1].dict;
    const char *what = is_filter ? "filter" : "test";
    *builtin = NULL;
    if (at == list->count && !is_filter)
        return true;
    if (at >= list->count || list->items[at].kind != KIND_STRING)
        return jinja_fail(run, "the name of a %s is needed", what);
    const struct jinja_string *name = list->items[at++].string;
    *builtin = is_filter ? jinja_find_filter(run->source->builtins, name->bytes, name->length)
                         : jinja_find_builtin(run->source->builtins->tests, name->bytes, name->length);
    if (!*builtin)
        return jinja_fail_unknown(run, what, name->bytes, name->length);
    struct jinja_arguments inner = {.count = list->count - at + named->count};
    if (!(inner.items = jinja_run_alloc(run, inner.count, sizeof *inner.items)))
        return false;
    for (size_t i = at; i < list->count; i++)
        inner.items[i - at].value = list->items[i];
    for (size_t i = 0; i < named->count; i++)
        inner.items[list->count - at + i] = (struct jinja_argument){named->keys[i].string, named->values[i]};
    return jinja_bind(run, *builtin, what, &inner, bound);
}

// how: these bits.
enum { CHOOSE_BY_ATTRIBUTE = 1, CHOOSE_WHAT_HOLDS = 2 };

JINJA_BUILTIN(filter_choose)
{
    const bool by_attribute = how & CHOOSE_BY_ATTRIBUTE, keep = how & CHOOSE_WHAT_HOLDS;
    struct jinja_value bound[JINJA_PARAMS];
    const struct jinja_builtin *test;
    const struct jinja_list *list;
    const struct jinja_value none = jinja_undefined(); // has no items, as none and the like have none here
    if (by_attribute && !arguments[0].list->count)
        return jinja_fail(run, "the name of an attribute is needed");
    if (!bind_inner(run, arguments, by_attribute, false, &test, bound) ||
        !jinja_iterate(run, jinja_truth(self) ? self : &none, &list))
        return false;
    struct jinja_list *kept = jinja_list_new(run, list->count);
    if (!kept)
        return false;
    kept->count = 0;
    for (size_t i = 0; i < list->count; i++) {
        struct jinja_value item = list->items[i], holds;
        if (!jinja_work(run, 1) || (by_attribute && !jinja_get_path(run, &item, &arguments[0].list->items[0], &item)))
            return false;
        holds = item;
        if (test && !test->call(run, &item, bound, test->how, &holds))
            return false;
        if (jinja_truth(&holds) == keep)
            kept->items[kept->count++] = list->items[i];
    }
    *out = jinja_listed(KIND_LAZY, kept);
    return true;
}

// Reads the attribute and the default of map(attribute='a', default=b).
static bool map_attribute(struct jinja_run *run, const struct jinja_dict *named, struct jinja_value *path,
                          struct jinja_value *fallback)
{
    *fallback = *path = (struct jinja_value){.kind = KIND_ABSENT};
    for (size_t i = 0; i < named->count; i++) {
        const struct jinja_string *name = named->keys[i].string;
        if (jinja_string_is(name, "attribute"))
            *path = named->values[i];
        else if (jinja_string_is(name, "default"))
            *fallback = named->values[i];
        else
            return jinja_fail(run, "filter 'map' has no argument '%.*s'", (int)MIN(name->length, 40u), name->bytes);
    }
    return path->kind != KIND_ABSENT || jinja_fail(run, "filter 'map' needs a filter, or 'attribute'");
}

JINJA_BUILTIN(filter_map)
{
    struct jinja_value bound[JINJA_PARAMS], path, fallback;
    const struct jinja_builtin *filter = NULL;
    const struct jinja_list *list;
    const struct jinja_value none = jinja_undefined();
    if (!(arguments[0].list->count ? bind_inner(run, arguments, 0, true, &filter, bound)
                                   : map_attribute(run, arguments[1].dict, &path, &fallback)) ||
        !jinja_iterate(run, jinja_truth(self) ? self : &none, &list))
        return false;
    struct jinja_list *mapped = jinja_list_new(run, list->count);
    if (!mapped)
        return false;
    if (++run->depth > JINJA_MAX_RUN_DEPTH) // map('map', 'map', ...)
        return jinja_fail(run, "rendering nests deeper than %d", JINJA_MAX_RUN_DEPTH);
    for (size_t i = 0; i < list->count; i++) {
        struct jinja_value *item = &mapped->items[i];
        if (!jinja_work(run, 1) || !(filter ? filter->call(run, &list->items[i], bound, filter->how, item)
                                            : jinja_get_path(run, &list->items[i], &path, item)))
            return false;
        if (!filter && item->kind == KIND_UNDEFINED && fallback.kind > KIND_NONE)
            *item = fallback;
    }
    run->depth--;
    *out = jinja_listed(KIND_LAZY, mapped);
    return true;
}

const struct jinja_builtin jinja_list_filters[] = {
    {.name = "batch", .params = {"linecount", "fill_with"}, .required = 1, .call = filter_batch},
    {.name = "count", .call = filter_length},
    {.name = "dictsort", .params = {"case_sensitive", "by", "reverse"}, .call = filter_dictsort},
    {.name = "first", .how = FIRST, .call = filter_outermost},
    {.name = "groupby", .params = {"attribute", "default", "case_sensitive"}, .required = 1, .call = filter_groupby},
    {.name = "items", .call = filter_items},
    {.name = "last", .how = LAST, .call = filter_outermost},
    {.name = "length", .call = filter_length},
    {.name = "list", .call = filter_list},
    {.name = "map", .variadic = true, .call = filter_map},
    {.name = "max", .params = {"case_sensitive", "attribute"}, .how = 1, .call = filter_extreme},
    {.name = "min", .params = {"case_sensitive", "attribute"}, .how = -1, .call = filter_extreme},
    {.name = "reject", .variadic = true, .call = filter_choose},
    {.name = "rejectattr", .variadic = true, .how = CHOOSE_BY_ATTRIBUTE, .call = filter_choose},
    {.name = "reverse", .call = filter_reverse},
    {.name = "select", .variadic = true, .how = CHOOSE_WHAT_HOLDS, .call = filter_choose},
    {.name = "selectattr", .variadic = true, .how = CHOOSE_BY_ATTRIBUTE | CHOOSE_WHAT_HOLDS, .call = filter_choose},
    {.name = "slice", .params = {"slices", "fill_with"}, .required = 1, .call = filter_slice},
    {.name = "sort", .params = {"reverse", "case_sensitive", "attribute"}, .call = filter_sort},
    {.name = "sum", .params = {"attribute", "start"}, .call = filter_sum},
    {.name = "unique", .params = {"case_sensitive", "attribute"}, .call = filter_unique},
    {.name = NULL},
};
