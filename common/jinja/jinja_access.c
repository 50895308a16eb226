// jinja_access.c: attributes and items of values: x.name, x['name'], x[0], and the path "a.b.0".
#include <string.h>

#include "common/base/checked.h"
#include "common/jinja/jinja_char.h"
#include "common/jinja/jinja_run.h"

static struct jinja_value constant_string(const struct jinja_string *string)
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
    const struct jinja_value key = constant_string(name);
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

bool jinja_get_item(struct jinja_run *run, const struct jinja_value *object, const struct jinja_value *key, struct jinja_value *out)
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
        return jinja_get_item(run, &at, path, out);
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
        if (!jinja_get_item(run, &at, &key, &next))
            return false;
        at = next;
        if (!dot)
            break;
        from = dot + 1;
    }
    *out = at;
    return true;
}
