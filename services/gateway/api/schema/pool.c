// pool.c: fields of /v1/embeddings and /v1/rerank that are more than a number, and the rules between them.
#include <stdio.h>
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/json/json_text.h"
#include "services/gateway/api/schema/schema_internal.h"

bool schema_read_encoding(struct schema_run *run, const char *name, const json_t *value)
{
    run->out->pool.base64 = schema_is_string(value, "base64");
    if (!json_is_string(value))
        return schema_wrong_type(run, name, "'float' or 'base64'", value);
    return run->out->pool.base64 || schema_is_string(value, "float") ||
           api_fail(run->error, 400, "invalid_value", name, "'%s' must be 'float' or 'base64'", name);
}

bool schema_read_query(struct schema_run *run, const char *name, const json_t *value)
{
    if (!json_is_string(value))
        return schema_wrong_type(run, name, "a string", value);
    run->out->pool.query = json_string_value(value);
    run->out->pool.query_bytes = json_string_length(value);
    return true;
}

// A string, or {"text": a string}.
static bool read_document(struct schema_run *run, const char *where, const json_t *value, struct api_prompt *out)
{
    const json_t *text = json_text_is_object(value) ? json_object_get(value, "text") : value;

    if (!json_is_string(text))
        return schema_wrong_type(run, where, "a string or an object with a string 'text'", value);
    out->text = json_string_value(text);
    out->bytes = json_string_length(text);
    return true;
}

bool schema_read_ranked(struct schema_run *run, const char *name, const json_t *value)
{
    const size_t count = json_array_size(value);
    struct api_request *out = run->out;
    char where[96];

    if (!json_is_array(value))
        return schema_wrong_type(run, name, "an array of strings or of objects with a 'text'", value);
    if (count == 0)
        return api_fail(run->error, 400, "invalid_value", name, "'%s' must not be empty", name);
    if (count > API_MAX_PROMPTS)
        return api_fail(run->error, 400, "invalid_value", name, "'%s' has %zu documents, at most %d are allowed", name, count,
                        API_MAX_PROMPTS);
    out->prompts = calloc(count, sizeof *out->prompts);
    if (!out->prompts)
        return api_no_memory(run->error);
    out->prompt_count = (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        snprintf(where, sizeof where, "%s[%zu]", name, i);
        if (!read_document(run, where, json_array_get(value, i), &out->prompts[i]))
            return false;
    }
    return true;
}

bool schema_check_pool(struct schema_run *run)
{
    const struct api_request *out = run->out;

    if (out->kind == API_EMBED && !out->prompts)
        return api_fail(run->error, 400, "missing_required_parameter", "input", "'input' is required");
    if (out->kind == API_RERANK && !out->pool.query)
        return api_fail(run->error, 400, "missing_required_parameter", "query", "'query' is required");
    if (out->kind == API_RERANK && !out->prompts)
        return api_fail(run->error, 400, "missing_required_parameter", "documents", "'documents' is required");
    return true;
}
