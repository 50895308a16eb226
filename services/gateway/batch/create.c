// create.c: the body of POST /v1/batches: types, limits, defaults.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json_text.h"
#include "services/gateway/batch/api_internal.h"
#include "services/gateway/api/schema/schema_internal.h"

enum { METADATA_MAX = 16, METADATA_KEY_BYTES = 64, METADATA_VALUE_BYTES = 512, WINDOW_MOST_S = 30 * 24 * 3600 };

uint64_t batch_window_s(const char *window)
{
    static const struct {
        char unit;
        uint32_t seconds;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 24 * 3600}};
    size_t digits = strspn(window, "0123456789"), i;
    uint64_t count = digits > 0 && digits < 8 ? strtoull(window, NULL, 10) : 0;

    for (i = 0; i < sizeof units / sizeof units[0]; i++)
        if (window[digits] == units[i].unit && window[digits + 1] == '\0' && count * units[i].seconds <= WINDOW_MOST_S)
            return count * units[i].seconds;
    return 0;
}

static const char *read_text(json_t *root, const char *name, struct api_error *error)
{
    const json_t *value = json_object_get(root, name);

    if (!value || json_is_null(value)) {
        api_fail(error, 400, "missing_required_parameter", name, "'%s' is required", name);
        return NULL;
    }
    if (!json_is_string(value)) {
        api_fail(error, 400, "invalid_type", name, "'%s' must be a string, not %s", name, schema_type_name(value));
        return NULL;
    }
    if (schema_has_zero(value)) {
        api_fail(error, 400, "invalid_value", name, "'%s' has a zero byte", name);
        return NULL;
    }
    return json_string_value(value);
}

static bool read_metadata(json_t *root, struct batch_record *out, struct api_error *error)
{
    json_t *metadata = json_object_get(root, "metadata"), *value;
    const char *name;

    if (!metadata || json_is_null(metadata))
        return true;
    if (!json_text_is_object(metadata))
        return api_fail(error, 400, "invalid_type", "metadata", "'metadata' must be an object, not %s", schema_type_name(metadata));
    if (json_object_size(metadata) > METADATA_MAX)
        return api_fail(error, 400, "invalid_value", "metadata", "'metadata' has %zu pairs, the most is %d",
                        json_object_size(metadata), METADATA_MAX);
    json_object_foreach (metadata, name, value) {
        if (!json_is_string(value))
            return api_fail(error, 400, "invalid_type", "metadata", "a value in 'metadata' must be a string, not %s",
                            schema_type_name(value));
        if (schema_has_zero(value))
            return api_fail(error, 400, "invalid_value", "metadata", "a value in 'metadata' has a zero byte");
        if (strlen(name) > METADATA_KEY_BYTES || json_string_length(value) > METADATA_VALUE_BYTES)
            return api_fail(error, 400, "invalid_value", "metadata", "a pair in 'metadata' is longer than %d and %d bytes",
                            METADATA_KEY_BYTES, METADATA_VALUE_BYTES);
    }
    out->metadata = json_text_write(metadata, false);
    return out->metadata || api_no_memory(error);
}

static bool read_expiry(json_t *root, struct batch_record *out, struct api_error *error)
{
    json_t *expiry = json_object_get(root, "output_expires_after"), *seconds = json_object_get(expiry, "seconds");

    out->output_kept_s = BATCH_KEPT_S;
    if (!expiry || json_is_null(expiry))
        return true;
    if (!schema_is_string(json_object_get(expiry, "anchor"), "created_at") || !json_is_integer(seconds) ||
        json_integer_value(seconds) < EXPIRY_LEAST_S || json_integer_value(seconds) > EXPIRY_MOST_S)
        return api_fail(error, 400, "invalid_value", "output_expires_after",
                        "'output_expires_after' must be {\"anchor\": \"created_at\", \"seconds\": N} with N from %d to %d",
                        EXPIRY_LEAST_S, EXPIRY_MOST_S);
    out->output_kept_s = (uint64_t)json_integer_value(seconds);
    return true;
}

static bool read_record(json_t *root, uint64_t now_s, struct batch_record *out, struct api_error *error)
{
    const char *input = read_text(root, "input_file_id", error);
    const char *endpoint = input ? read_text(root, "endpoint", error) : NULL;
    const char *window = endpoint ? read_text(root, "completion_window", error) : NULL;
    uint64_t window_s;

    if (!window)
        return false;
    if (strlen(input) >= sizeof out->input)
        return api_fail(error, 404, NULL, "input_file_id", "No such File object: %.64s", input);
    out->endpoint = batch_endpoint_named(endpoint);
    if (out->endpoint == BATCH_ENDPOINT_NONE)
        return api_fail(error, 400, "invalid_value", "endpoint",
                        "'endpoint' must be \"/v1/chat/completions\", \"/v1/completions\" or \"/v1/embeddings\"");
    window_s = batch_window_s(window);
    if (window_s == 0)
        return api_fail(error, 400, "invalid_value", "completion_window",
                        "'completion_window' must be \"24h\", or a number of s, m, h or d up to 30 days");
    snprintf(out->input, sizeof out->input, "%s", input);
    snprintf(out->window, sizeof out->window, "%s", window);
    out->at_s[BATCH_VALIDATING] = now_s;
    out->expires_s = now_s + window_s;
    return read_metadata(root, out, error) && read_expiry(root, out, error);
}

bool batch_create_parse(const char *body, size_t bytes, uint64_t now_s, struct batch_record *out, struct api_error *error)
{
    json_t *root = schema_parse_json(body, bytes, error);
    bool ok;

    *out = (struct batch_record){.status = BATCH_VALIDATING};
    ok = root && read_record(root, now_s, out, error);
    json_decref(root);
    return ok;
}
