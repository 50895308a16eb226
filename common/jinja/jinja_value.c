// jinja_value.c: operations on values: truth, equality, order, iteration.
#include "common/jinja/jinja_types.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/jinja/jinja_char.h"
#include "common/jinja/jinja_run.h"
#include "common/json/json_text.h"

// --- kinds --------------------------------------------------------------------------------------------------------------

const char *jinja_kind_name(const struct jinja_value *value)
{
    static const char *const names[] = {"nothing",   "undefined",   "none",   "a boolean", "an integer",  "a float",
                                        "a number",  "a string",    "a list", "a tuple",   "a generator", "a view",
                                        "a mapping", "a namespace", "loop",   "a macro",   "a function"};
    return names[value->kind];
}

bool jinja_is_sequence(const struct jinja_value *value) { return value->kind >= KIND_LIST && value->kind <= KIND_VIEW; }
bool jinja_is_number(const struct jinja_value *value) { return value->kind >= KIND_BOOL && value->kind <= KIND_WRITTEN; }
bool jinja_is_float(const struct jinja_value *value) { return value->kind == KIND_FLOAT || value->kind == KIND_WRITTEN; }
int64_t jinja_as_integer(const struct jinja_value *value) { return value->kind == KIND_BOOL ? value->boolean : value->integer; }
double jinja_as_double(const struct jinja_value *value)
{
    char text[1024]; // of a longer number the beginning tells its size

    if (value->kind != KIND_WRITTEN)
        return value->kind == KIND_FLOAT ? value->number : (double)jinja_as_integer(value);
    snprintf(text, sizeof text, "%.*s", (int)value->string->length, value->string->bytes);
    return strtod(text, NULL);
}

bool jinja_truth(const struct jinja_value *value)
{
    switch (value->kind) {
    case KIND_ABSENT:
    case KIND_UNDEFINED:
    case KIND_NONE: return false;
    case KIND_BOOL: return value->boolean;
    case KIND_INTEGER: return value->integer != 0;
    case KIND_FLOAT: return value->number != 0;
    case KIND_WRITTEN: return true;
    case KIND_STRING: return value->string->length != 0;
    case KIND_LIST:
    case KIND_TUPLE:
    case KIND_VIEW: return value->list->count != 0;
    case KIND_DICT: return value->dict->count != 0;
    default: return true;
    }
}

struct jinja_dict *jinja_dict_new(struct jinja_run *run, size_t capacity)
{
    struct jinja_dict *dict = jinja_run_alloc(run, 1, sizeof *dict);
    if (!dict || !capacity)
        return dict;
    dict->keys = jinja_run_alloc(run, capacity, sizeof *dict->keys);
    dict->values = dict->keys ? jinja_run_alloc(run, capacity, sizeof *dict->values) : NULL;
    dict->capacity = capacity;
    return dict->values ? dict : NULL;
}

static bool dict_find(struct jinja_run *run, const struct jinja_dict *dict, const struct jinja_value *key, size_t *index)
{
    bool equal = false;
    if (!jinja_work(run, dict->count / 4))
        return false;
    for (*index = 0; *index < dict->count; ++*index) {
        const struct jinja_value *other = &dict->keys[*index];
        if (key->kind == KIND_STRING && other->kind == KIND_STRING && key->string->length != other->string->length)
            continue;
        if (!jinja_equal(run, other, key, &equal))
            return false;
        if (equal)
            break;
    }
    return true;
}

bool jinja_dict_get(struct jinja_run *run, const struct jinja_dict *dict, const struct jinja_value *key, struct jinja_value *out,
                    bool *found)
{
    size_t index;
    if (!dict_find(run, dict, key, &index))
        return false;
    *found = index < dict->count;
    *out = *found ? dict->values[index] : jinja_undefined();
    return true;
}

bool jinja_dict_set(struct jinja_run *run, struct jinja_dict *dict, const struct jinja_value *key, const struct jinja_value *value)
{
    size_t index;
    if (jinja_is_sequence(key) || key->kind >= KIND_DICT)
        return jinja_fail(run, "%s cannot be a key", jinja_kind_name(key));
    if (!dict_find(run, dict, key, &index))
        return false;
    if (index == dict->capacity) {
        struct jinja_dict *grown = jinja_dict_new(run, dict->capacity * 2 + 4);
        if (!grown)
            return false;
        if (dict->count) {
            memcpy(grown->keys, dict->keys, dict->count * sizeof *grown->keys);
            memcpy(grown->values, dict->values, dict->count * sizeof *grown->values);
        }
        grown->count = dict->count;
        *dict = *grown;
    }
    if (index == dict->count) {
        dict->count++;
        dict->keys[index] = *key;
    }
    dict->values[index] = *value;
    return true;
}

bool jinja_dict_items(struct jinja_run *run, const struct jinja_dict *dict, struct jinja_list **out)
{
    *out = jinja_work(run, dict->count) ? jinja_list_new(run, dict->count) : NULL;
    for (size_t i = 0; *out && i < dict->count; i++) {
        struct jinja_list *pair = jinja_list_new(run, 2);
        if (!pair)
            return false;
        pair->items[0] = dict->keys[i];
        pair->items[1] = dict->values[i];
        (*out)->items[i] = jinja_listed(KIND_TUPLE, pair);
    }
    return *out != NULL;
}

// --- comparing ----------------------------------------------------------------------------------------------------------

static bool equal_at(struct jinja_run *run, const struct jinja_value *x, const struct jinja_value *y, int depth, bool *equal)
{
    *equal = false;
    if (!jinja_work(run, 1))
        return false;
    if (depth > JINJA_MAX_VALUE_DEPTH)
        return jinja_fail(run, "values nest deeper than %d", JINJA_MAX_VALUE_DEPTH);
    if (jinja_is_number(x) && jinja_is_number(y)) {
        *equal = jinja_is_float(x) || jinja_is_float(y) ? jinja_as_double(x) == jinja_as_double(y)
                                                        : jinja_as_integer(x) == jinja_as_integer(y);
        return true;
    }
    if (x->kind != y->kind)
        return true;
    switch (x->kind) {
    case KIND_STRING:
        *equal = x->string->length == y->string->length && !memcmp(x->string->bytes, y->string->bytes, x->string->length);
        return jinja_work(run, *equal ? x->string->length / 64 : 0);
    case KIND_LIST:
    case KIND_TUPLE:
    case KIND_VIEW:
        *equal = x->list->count == y->list->count;
        for (size_t i = 0; *equal && i < x->list->count; i++)
            if (!equal_at(run, &x->list->items[i], &y->list->items[i], depth + 1, equal))
                return false;
        return true;
    case KIND_DICT:
        *equal = x->dict->count == y->dict->count;
        for (size_t i = 0; *equal && i < x->dict->count; i++) {
            size_t index;
            if (!dict_find(run, y->dict, &x->dict->keys[i], &index))
                return false;
            *equal = index < y->dict->count;
            if (*equal && !equal_at(run, &x->dict->values[i], &y->dict->values[index], depth + 1, equal))
                return false;
        }
        return true;
    case KIND_LAZY: *equal = x->list == y->list; return true;
    case KIND_NAMESPACE: *equal = x->dict == y->dict; return true;
    case KIND_LOOP: *equal = x->loop == y->loop; return true;
    case KIND_MACRO: *equal = x->macro == y->macro; return true;
    case KIND_FUNCTION: return true;
    default: *equal = true; return true; // undefined, none
    }
}

bool jinja_equal(struct jinja_run *run, const struct jinja_value *x, const struct jinja_value *y, bool *equal)
{
    return equal_at(run, x, y, 0, equal);
}

static bool order_at(struct jinja_run *run, const struct jinja_value *x, const struct jinja_value *y, int depth, int *order)
{
    *order = 0;
    if (!jinja_work(run, 1))
        return false;
    if (depth > JINJA_MAX_VALUE_DEPTH)
        return jinja_fail(run, "values nest deeper than %d", JINJA_MAX_VALUE_DEPTH);
    if (jinja_is_number(x) && jinja_is_number(y)) {
        if (jinja_is_float(x) || jinja_is_float(y)) {
            const double a = jinja_as_double(x), b = jinja_as_double(y);
            *order = (a > b) - (a < b);
        } else {
            *order = (jinja_as_integer(x) > jinja_as_integer(y)) - (jinja_as_integer(x) < jinja_as_integer(y));
        }
        return true;
    }
    if (x->kind == KIND_STRING && y->kind == KIND_STRING) { // UTF-8 sorts as its code points do
        const size_t common = MIN(x->string->length, y->string->length);
        *order = memcmp(x->string->bytes, y->string->bytes, common);
        if (!*order)
            *order = (x->string->length > y->string->length) - (x->string->length < y->string->length);
        return jinja_work(run, common / 64);
    }
    if (x->kind == y->kind && (x->kind == KIND_LIST || x->kind == KIND_TUPLE)) {
        for (size_t i = 0; !*order && i < x->list->count && i < y->list->count; i++)
            if (!order_at(run, &x->list->items[i], &y->list->items[i], depth + 1, order))
                return false;
        if (!*order)
            *order = (x->list->count > y->list->count) - (x->list->count < y->list->count);
        return true;
    }
    return jinja_fail(run, "%s and %s have no order", jinja_kind_name(x), jinja_kind_name(y));
}

bool jinja_order(struct jinja_run *run, const struct jinja_value *x, const struct jinja_value *y, int *order)
{
    return order_at(run, x, y, 0, order);
}

bool jinja_iterate(struct jinja_run *run, const struct jinja_value *value, const struct jinja_list **out)
{
    if (jinja_is_sequence(value)) {
        *out = value->list;
        return jinja_work(run, value->list->count);
    }
    if (value->kind != KIND_UNDEFINED && value->kind != KIND_STRING && value->kind != KIND_DICT)
        return jinja_fail(run, "%s cannot be iterated", jinja_kind_name(value));
    const size_t count = value->kind == KIND_STRING ? jinja_char_count(value->string)
                         : value->kind == KIND_DICT ? value->dict->count
                                                    : 0;
    struct jinja_list *list = jinja_work(run, count) ? jinja_list_new(run, count) : NULL;
    if (!list)
        return false;
    if (value->kind == KIND_DICT && count)
        memcpy(list->items, value->dict->keys, count * sizeof *list->items);
    for (size_t i = 0, at = 0, bytes; value->kind == KIND_STRING && i < count; i++, at += bytes) {
        bytes = jinja_char_bytes(value->string->bytes + at, value->string->length - at);
        if (!jinja_substring(run, value->string, at, at + bytes, &list->items[i]))
            return false;
    }
    *out = list;
    return true;
}

bool jinja_contains(struct jinja_run *run, const struct jinja_value *container, const struct jinja_value *item, bool *found)
{
    const struct jinja_list *list;
    *found = false;
    if (container->kind == KIND_STRING) {
        if (item->kind != KIND_STRING)
            return jinja_fail(run, "'in' a string needs a string, not %s", jinja_kind_name(item));
        *found = jinja_find(container->string, item->string, 0) != SIZE_MAX;
        return jinja_work(run, 1 + container->string->length / 64);
    }
    if (container->kind == KIND_DICT) {
        struct jinja_value ignored;
        return jinja_dict_get(run, container->dict, item, &ignored, found);
    }
    if (!jinja_iterate(run, container, &list))
        return false;
    for (size_t i = 0; !*found && i < list->count; i++)
        if (!jinja_equal(run, &list->items[i], item, found))
            return false;
    return true;
}
