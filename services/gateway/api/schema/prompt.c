// prompt.c: fields of a request that are lists or objects: prompts, stop strings, biases. Messages are read in message.c.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/json/json_text.h"
#include "services/gateway/api/schema/schema_internal.h"

bool schema_read_ids(struct schema_run *run, const char *name, const json_t *list, struct api_ids *out)
{
    size_t i, count = json_array_size(list);
    char where[96];

    out->ids = malloc(MAX(count, 1) * sizeof *out->ids);
    if (!out->ids)
        return api_no_memory(run->error);
    out->count = (uint32_t)count; // the body's values are limited
    for (i = 0; i < count; i++) {
        const json_t *value = json_array_get(list, i);
        snprintf(where, sizeof where, "%s[%zu]", name, i);
        if (!json_is_integer(value))
            return schema_wrong_type(run->error, where, "a token id", value);
        if (json_integer_value(value) < 0 || json_integer_value(value) >= (run->vocab ? (json_int_t)run->vocab : UINT32_MAX))
            return api_fail(run->error, 400, "invalid_value", where, "'%s' is %lld, which is no token of this model", where,
                            (long long)json_integer_value(value));
        out->ids[i] = (uint32_t)json_integer_value(value);
    }
    return true;
}

static bool read_prompt_ids(struct schema_run *run, const char *name, const json_t *list, struct api_prompt *out)
{
    struct api_ids ids = {0};
    const bool good = schema_read_ids(run, name, list, &ids);

    out->ids = ids.ids; // freed with the request, good or not
    out->id_count = ids.count;
    return good;
}

static bool read_one_prompt(struct schema_run *run, const char *name, const json_t *value, struct api_prompt *out)
{
    if (json_is_string(value)) {
        out->text = json_string_value(value);
        out->bytes = json_string_length(value);
        return true;
    }
    if (json_is_array(value))
        return read_prompt_ids(run, name, value, out);
    return schema_wrong_type(run->error, name, "a string or an array of token ids", value);
}

static bool add_prompts(struct schema_run *run, size_t count)
{
    struct api_request *out = run->out;

    out->prompts = calloc(count, sizeof *out->prompts);
    out->prompt_count = out->prompts ? (uint32_t)count : 0;
    return out->prompts || api_no_memory(run->error);
}

bool schema_read_prompt(struct schema_run *run, const char *name, const json_t *value)
{
    struct api_request *out = run->out;
    const json_t *first = json_array_get(value, 0);
    bool is_list = json_is_string(first) || json_is_array(first);
    size_t i, count = is_list ? json_array_size(value) : 1;
    char where[96];

    if (out->kind == API_TOKENIZE && !json_is_string(value))
        return schema_wrong_type(run->error, name, "a string", value);
    if (!json_is_string(value) && !json_is_array(value))
        return schema_wrong_type(run->error, name, "a string, an array of strings, of token ids, or of arrays of token ids", value);
    if (json_is_array(value) && json_array_size(value) == 0)
        return api_fail(run->error, 400, "invalid_value", name, "'%s' must not be empty", name);
    if (count > API_MAX_PROMPTS)
        return api_fail(run->error, 400, "invalid_value", name, "'%s' has %zu texts, at most %d are allowed", name, count,
                        API_MAX_PROMPTS);
    if (!add_prompts(run, count))
        return false;
    if (!is_list)
        return read_one_prompt(run, name, value, &out->prompts[0]);
    for (i = 0; i < count; i++) {
        const json_t *item = json_array_get(value, i);
        snprintf(where, sizeof where, "%s[%zu]", name, i);
        if (json_typeof(item) != json_typeof(first))
            return schema_wrong_type(run->error, where, schema_type_name(first), item);
        if (!read_one_prompt(run, where, item, &out->prompts[i]))
            return false;
    }
    return true;
}

bool schema_read_tokens(struct schema_run *run, const char *name, const json_t *value)
{
    if (!json_is_array(value))
        return schema_wrong_type(run->error, name, "an array of token ids", value);
    return add_prompts(run, 1) && read_prompt_ids(run, name, value, &run->out->prompts[0]);
}

bool schema_read_stop(struct schema_run *run, const char *name, const json_t *value)
{
    size_t i, count = json_is_string(value) ? 1 : json_array_size(value);
    struct api_request *out = run->out;

    if (!json_is_string(value) && !json_is_array(value))
        return schema_wrong_type(run->error, name, "a string or an array of strings", value);
    if (count > API_MAX_STOPS)
        return api_fail(run->error, 400, "invalid_value", name, "'%s' has %zu strings, at most %d are allowed", name, count,
                        API_MAX_STOPS);
    for (i = 0; i < count; i++) {
        const json_t *item = json_is_string(value) ? value : json_array_get(value, i);
        if (!schema_read_stop_string(run, name, item, "a string or an array of strings", &out->draw.stops[i]))
            return false;
    }
    out->draw.stop_count = (uint32_t)count;
    return true;
}

static bool read_bias_key(struct schema_run *run, const char *name, const char *key, uint32_t *token)
{
    char *end;
    unsigned long long id;

    if (key[0] < '0' || key[0] > '9' || strlen(key) > 10)
        return api_fail(run->error, 400, "invalid_value", name, "'%s' has a key that is no token id", name);
    id = strtoull(key, &end, 10);
    if (*end)
        return api_fail(run->error, 400, "invalid_value", name, "'%s' has a key that is no token id", name);
    if (id >= (run->vocab ? run->vocab : UINT32_MAX))
        return api_fail(run->error, 400, "invalid_value", name, "'%s' has the key %llu, which is no token of this model", name, id);
    *token = (uint32_t)id;
    return true;
}

bool schema_read_bias(struct schema_run *run, const char *name, const json_t *value)
{
    struct api_request *out = run->out;
    const char *key;
    const json_t *item;
    void *at;

    if (!json_text_is_object(value))
        return schema_wrong_type(run->error, name, "an object of token ids to numbers", value);
    if (json_object_size(value) > API_MAX_BIAS)
        return api_fail(run->error, 400, "invalid_value", name, "'%s' has %zu entries, at most %d are allowed", name,
                        json_object_size(value), API_MAX_BIAS);
    if (json_object_size(value) == 0)
        return true;
    out->draw.bias = calloc(json_object_size(value), sizeof *out->draw.bias);
    if (!out->draw.bias)
        return api_no_memory(run->error);
    for (at = json_object_iter((json_t *)(uintptr_t)value); at; at = json_object_iter_next((json_t *)(uintptr_t)value, at)) {
        key = json_object_iter_key(at);
        item = json_object_iter_value(at);
        if (!read_bias_key(run, name, key, &out->draw.bias[out->draw.bias_count].token))
            return false;
        if (!json_is_number(item))
            return schema_wrong_type(run->error, name, "an object of token ids to numbers", item);
        if (!(json_number_value(item) >= -100 && json_number_value(item) <= 100))
            return api_fail(run->error, 400, "invalid_value", name, "'%s' values must be numbers from -100 to 100, not %g", name,
                            json_number_value(item));
        out->draw.bias[out->draw.bias_count++].bias = (float)json_number_value(item);
    }
    return true;
}

// --- fields of /v1/embeddings and /v1/rerank that are more than a number, and the rules between them -----------------

bool schema_read_encoding(struct schema_run *run, const char *name, const json_t *value)
{
    run->out->pool.base64 = schema_is_string(value, "base64");
    if (!json_is_string(value))
        return schema_wrong_type(run->error, name, "'float' or 'base64'", value);
    return run->out->pool.base64 || schema_is_string(value, "float") ||
           api_fail(run->error, 400, "invalid_value", name, "'%s' must be 'float' or 'base64'", name);
}

bool schema_read_query(struct schema_run *run, const char *name, const json_t *value)
{
    if (!json_is_string(value))
        return schema_wrong_type(run->error, name, "a string", value);
    run->out->pool.query = json_string_value(value);
    run->out->pool.query_bytes = json_string_length(value);
    return true;
}

// A string, or {"text": a string}.
static bool read_document(struct schema_run *run, const char *where, const json_t *value, struct api_prompt *out)
{
    const json_t *text = json_text_is_object(value) ? json_object_get(value, "text") : value;

    if (!json_is_string(text))
        return schema_wrong_type(run->error, where, "a string or an object with a string 'text'", value);
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
        return schema_wrong_type(run->error, name, "an array of strings or of objects with a 'text'", value);
    if (count == 0)
        return api_fail(run->error, 400, "invalid_value", name, "'%s' must not be empty", name);
    if (count > API_MAX_PROMPTS)
        return api_fail(run->error, 400, "invalid_value", name, "'%s' has %zu documents, at most %d are allowed", name, count,
                        API_MAX_PROMPTS);
    if (!add_prompts(run, count))
        return false;
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
        return api_missing(run->error, "input");
    if (out->kind == API_RERANK && !out->pool.query)
        return api_missing(run->error, "query");
    if (out->kind == API_RERANK && !out->prompts)
        return api_missing(run->error, "documents");
    return true;
}
