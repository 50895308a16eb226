// jinja_json.c: what a client sent, as values: messages, tools, documents and further variables.
//
// Every string of it is content, so that nothing in it can become a special token: not in what a user says, not in the description of a tool
// or the name of an argument. Only a role that the template's author knows is not content.
#include "common/jinja/jinja_json.h"

#include <string.h>

#include "common/base/checked.h"
#include "common/json/json_text.h"

// Authors of templates expect the known roles; any other role is the client's text.
static bool is_known_role(const char *role)
{
    static const char *const known[] = {"system", "developer", "user", "assistant", "tool"};
    for (size_t i = 0; i < ARRAY_COUNT(known); i++)
        if (!strcmp(role, known[i]))
            return true;
    return false;
}

static bool convert(struct jinja_run *run, const json_t *json, int depth, bool is_message, struct jinja_value *out);

static bool convert_list(struct jinja_run *run, const json_t *json, int depth, bool are_messages, struct jinja_value *out)
{
    const size_t count = json_array_size(json);
    struct jinja_list *list = jinja_work(run, count) ? jinja_list_new(run, count) : NULL;
    if (!list)
        return false;
    for (size_t i = 0; i < count; i++)
        if (!convert(run, json_array_get(json, i), depth + 1, are_messages, &list->items[i]))
            return false;
    *out = jinja_listed(KIND_LIST, list);
    return true;
}

// JSON objects have no name twice, so nothing has to be looked up.
static bool convert_object(struct jinja_run *run, const json_t *json, int depth, bool is_message, struct jinja_value *out)
{
    const size_t count = json_object_size(json);
    struct jinja_dict *dict = jinja_work(run, count) ? jinja_dict_new(run, count) : NULL;
    json_t *owner = (json_t *)(uintptr_t)json;
    if (!dict)
        return false;
    for (void *at = json_object_iter(owner); at; at = json_object_iter_next(owner, at), dict->count++) {
        const char *key = json_object_iter_key(at);
        const json_t *item = json_object_iter_value(at);
        const bool own = is_message && !strcmp(key, "role") && json_is_string(item) && is_known_role(json_string_value(item));
        if (!jinja_string_value(run, key, strlen(key), true, &dict->keys[dict->count]))
            return false;
        if (own ? !jinja_string_value(run, json_string_value(item), json_string_length(item), false, &dict->values[dict->count])
                : !convert(run, item, depth + 1, false, &dict->values[dict->count]))
            return false;
    }
    *out = (struct jinja_value){.kind = KIND_DICT, .dict = dict};
    return true;
}

static bool convert(struct jinja_run *run, const json_t *json, int depth, bool is_message, struct jinja_value *out)
{
    if (!jinja_work(run, 1))
        return false;
    if (depth > JINJA_MAX_VALUE_DEPTH)
        return jinja_fail(run, "values nest deeper than %d", JINJA_MAX_VALUE_DEPTH);
    const char *written = json_text_kept(json);
    if (written) {
        const bool ok = jinja_string_value(run, written, strlen(written), true, out);
        out->kind = KIND_WRITTEN;
        return ok;
    }
    switch (json_typeof(json)) {
    case JSON_OBJECT: return convert_object(run, json, depth, is_message, out);
    case JSON_ARRAY: return convert_list(run, json, depth, false, out);
    case JSON_STRING: return jinja_string_value(run, json_string_value(json), json_string_length(json), true, out);
    case JSON_INTEGER: *out = jinja_integer(json_integer_value(json)); return true;
    case JSON_REAL: *out = jinja_float(json_real_value(json)); return true;
    case JSON_TRUE: *out = jinja_bool(true); return true;
    case JSON_FALSE: *out = jinja_bool(false); return true;
    default: *out = (struct jinja_value){.kind = KIND_NONE}; return true;
    }
}

bool jinja_from_json(struct jinja_run *run, const json_t *json, struct jinja_value *out)
{
    *out = (struct jinja_value){.kind = KIND_NONE};
    return !json || convert(run, json, 0, false, out);
}

bool jinja_from_messages(struct jinja_run *run, const json_t *messages, struct jinja_value *out)
{
    return convert_list(run, messages, 0, true, out);
}

static bool measure(const json_t *json, int depth, size_t most, size_t *bytes, size_t *values)
{
    json_t *owner = (json_t *)(uintptr_t)json;
    ++*values;
    if (!json)
        return true;
    if (depth > JINJA_MAX_VALUE_DEPTH)
        return false;
    *bytes += json_string_length(json);
    for (size_t i = 0; i < json_array_size(json); i++)
        if (!measure(json_array_get(json, i), depth + 1, most, bytes, values))
            return false;
    for (void *at = json_object_iter(owner); at; at = json_object_iter_next(owner, at)) {
        *bytes += strlen(json_object_iter_key(at));
        if (!measure(json_object_iter_value(at), depth + 1, most, bytes, values))
            return false;
    }
    return *bytes <= most;
}

bool jinja_measure_json(const json_t *json, size_t most, size_t *bytes, size_t *values)
{
    return measure(json, 0, most, bytes, values);
}
