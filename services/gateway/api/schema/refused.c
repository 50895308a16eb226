// refused.c: refuses fields that would change the answer and are not supported.
#include <stdio.h>
#include <string.h>

#include "services/gateway/api/schema/schema_internal.h"

static bool is_neutral(const json_t *value, const char *neutral)
{
    char number[32];

    switch (json_typeof(value)) {
    case JSON_NULL:
    case JSON_FALSE: return true;
    case JSON_OBJECT: return json_object_size(value) == 0;
    case JSON_ARRAY: return json_array_size(value) == 0;
    case JSON_STRING: return json_string_length(value) == 0 || (neutral && schema_is_string(value, neutral));
    case JSON_INTEGER:
    case JSON_REAL:
        snprintf(number, sizeof number, "%g", json_number_value(value));
        return json_number_value(value) == 0 || (neutral && strcmp(number, neutral) == 0);
    default: return false;
    }
}

// The fields whose harmless value is not simply "empty".
static bool check_special(struct schema_run *run, const char *name, const json_t *value, bool *known)
{
    *known = true;
    if (strcmp(name, "modalities") == 0) {
        const json_t *first = json_array_get(value, 0);
        if (json_is_null(value) || (json_array_size(value) == 1 && schema_is_string(first, "text")))
            return true;
        return api_fail(run->error, 400, "unsupported_parameter", name, "'modalities' other than [\"text\"] are not supported");
    }
    if (strcmp(name, "tool_choice") == 0) { // of a completion
        if (json_is_null(value) || schema_is_string(value, "none") || schema_is_string(value, "auto"))
            return true;
        return api_fail(run->error, 400, "unsupported_parameter", name, "'tool_choice' is not supported");
    }
    if (strcmp(name, "skip_special_tokens") == 0 || strcmp(name, "spaces_between_special_tokens") == 0) {
        if (!json_is_false(value))
            return true;
        return api_fail(run->error, 400, "unsupported_parameter", name, "'%s' of false is not supported", name);
    }
    *known = false;
    return true;
}

bool schema_check_refused(struct schema_run *run, const struct schema_refused *refused, size_t count, const char *name,
                          const json_t *value, bool *known)
{
    size_t i;

    if ((run->out->kind & SCHEMA_ANSWERS) && (!check_special(run, name, value, known) || *known))
        return run->error->status == 0;
    *known = true;
    for (i = 0; i < count; i++) {
        if (!(refused[i].endpoints & run->out->kind) || strcmp(refused[i].name, name) != 0)
            continue;
        if (is_neutral(value, refused[i].neutral))
            return true;
        return api_fail(run->error, 400, "unsupported_parameter", name, "'%s' is not supported", name);
    }
    *known = false;
    return true;
}
