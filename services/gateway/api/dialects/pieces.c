// pieces.c: see pieces.h.
#include "services/gateway/api/dialects/pieces.h"

#include <string.h>

#include "common/json/json_text.h"
#include "services/gateway/api/schema/value.h"

// clang-format off
const char *const dialect_sampling_fields[] = {
    "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias",
    "ignore_eos", "cache_salt", "priority", "min_tokens", "stop_token_ids", "bad_words", "allowed_token_ids",
    "typical_p", "xtc_probability", "xtc_threshold", "dry_multiplier", "dry_base", "dry_allowed_length",
    "dry_penalty_last_n", "dry_sequence_breakers", "structured_outputs", "chat_template",
    "chat_template_kwargs", "truncate_prompt_tokens", "include_stop_str_in_output", NULL,
};
// clang-format on

bool dialect_unsupported(struct api_error *error, const char *name, const char *why)
{
    return api_fail(error, 400, "unsupported_parameter", name, "'%s'%s is not supported", name, why);
}

const json_t *dialect_member(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_null(value) ? NULL : value;
}

bool dialect_set(json_t *object, const char *key, const json_t *value)
{
    return !value || json_object_set(object, key, (json_t *)(uintptr_t)value) == 0; // a reference more, and no other change
}

bool dialect_set_new(json_t *object, const char *key, json_t *value) { return json_object_set_new(object, key, value) == 0; }
bool dialect_add_new(json_t *array, json_t *value) { return json_array_append_new(array, value) == 0; }

bool dialect_copy(json_t *to, const json_t *from, const char *const *names)
{
    for (; *names; names++)
        if (!dialect_set(to, *names, json_object_get(from, *names)))
            return false;
    return true;
}

static bool is_among(const char *name, const char *const *names)
{
    for (; names && *names; names++)
        if (strcmp(name, *names) == 0)
            return true;
    return false;
}

void dialect_note_ignored(struct api_ignored *out, const json_t *body, const char *const *known, const char *const *more,
                          const char *const *others)
{
    void *at;

    for (at = json_object_iter((json_t *)(uintptr_t)body); at; at = json_object_iter_next((json_t *)(uintptr_t)body, at)) {
        const char *name = json_object_iter_key(at);
        if (!json_is_null(json_object_iter_value(at)) && !is_among(name, known) && !is_among(name, more) && !is_among(name, others))
            api_ignored_add(out, name);
    }
}

bool dialect_add_message(json_t *messages, const char *role, json_t *content, json_t **message)
{
    *message = json_pack("{s:s, s:o}", "role", role, "content", content); // releases content if it fails
    return dialect_add_new(messages, *message);
}

bool dialect_append_call(json_t *messages, json_t *call, json_t **message)
{
    json_t *last = json_array_get(messages, json_array_size(messages) - 1), *calls;
    bool ok = call != NULL;

    if (!schema_is_string(json_object_get(last, "role"), "assistant"))
        ok = ok && dialect_add_message(messages, "assistant", json_null(), &last);
    calls = ok ? json_object_get(last, "tool_calls") : NULL;
    if (ok && !calls) {
        ok = dialect_set_new(last, "tool_calls", json_array());
        calls = json_object_get(last, "tool_calls");
    }
    ok = ok && json_array_append(calls, call) == 0;
    json_decref(call);
    *message = last;
    return ok;
}

bool dialect_add_call(json_t *messages, const json_t *id, const json_t *name, const json_t *arguments, json_t **message)
{
    json_t *function = json_object(), *call = json_object();
    bool ok = function && call && dialect_set(function, "name", name) && dialect_set(function, "arguments", arguments) &&
              dialect_set(call, "id", id) && dialect_set_new(call, "type", json_string("function")) &&
              dialect_set(call, "function", function);

    json_decref(function);
    if (ok)
        return dialect_append_call(messages, call, message);
    json_decref(call);
    return false;
}

json_t *dialect_function(const json_t *tool, const char *parameters_key)
{
    json_t *function = json_object(), *out = json_object();
    bool ok = function && out && dialect_set(function, "name", dialect_member(tool, "name")) &&
              dialect_set(function, "description", dialect_member(tool, "description")) &&
              dialect_set(function, "parameters", dialect_member(tool, parameters_key)) &&
              dialect_set(function, "strict", dialect_member(tool, "strict")) &&
              dialect_set_new(out, "type", json_string("function")) && dialect_set(out, "function", function);

    json_decref(function);
    if (ok)
        return out;
    json_decref(out);
    return NULL;
}

json_t *dialect_text_part(const json_t *text) { return json_pack("{s:s, s:O}", "type", "text", "text", (json_t *)(uintptr_t)text); }

void dialect_append_arguments(const char *data, size_t bytes, struct text *out)
{
    size_t at;
    const bool fits = bytes > 0 && json_check_limits(data, bytes, API_MAX_DEPTH, API_MAX_VALUES, &at) == JSON_WITHIN;
    json_t *arguments = fits ? json_text_read(data, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL) : NULL;

    if (bytes == 0) {
        text_string(out, "{}");
    } else if (json_text_is_object(arguments)) {
        text_append(out, data, bytes);
    } else {
        text_json_bytes_after(out, "{\"arguments\":", data, bytes);
        text_append(out, "}", 1);
    }
    json_decref(arguments);
}
