// hf_json.c: see hf_json.h.
#include "common/model/hf_json.h"

#include <stdio.h>
#include <string.h>

#include "common/json/json_limits.h"

static enum status parse(const char *label, const void *bytes, uint64_t byte_count, json_type type, json_t **out,
                         struct error *error)
{
    size_t at = 0;
    json_error_t wrong;
    char shown[160];

    if (byte_count > HF_JSON_MAX_BYTES)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: %llu bytes of JSON, supported: up to %d", label,
                         (unsigned long long)byte_count, HF_JSON_MAX_BYTES);
    switch (json_check_limits(bytes, (size_t)byte_count, HF_JSON_MAX_DEPTH, HF_JSON_MAX_VALUES, &at)) {
    case JSON_WITHIN: break;
    case JSON_TOO_DEEP:
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: JSON at byte %zu: nested more than %d deep", label, at,
                         HF_JSON_MAX_DEPTH);
    case JSON_TOO_MANY:
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: JSON of more than %d values", label, HF_JSON_MAX_VALUES);
    }
    *out = json_loadb(bytes, (size_t)byte_count, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, &wrong);
    if (!*out)
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: JSON at byte %d: %s", label, wrong.position,
                         gguf_printable(shown, sizeof shown, (struct gguf_string){wrong.text, strlen(wrong.text)}));
    if (json_typeof(*out) != type) {
        json_decref(*out);
        *out = NULL;
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: not a JSON %s", label, type == JSON_OBJECT ? "object" : "array");
    }
    return STATUS_OK;
}

enum status hf_json_parse(const char *label, const void *bytes, uint64_t byte_count, json_t **out, struct error *error)
{
    return parse(label, bytes, byte_count, JSON_OBJECT, out, error);
}

enum status hf_json_parse_list(const char *label, const void *bytes, uint64_t byte_count, json_t **out, struct error *error)
{
    return parse(label, bytes, byte_count, JSON_ARRAY, out, error);
}

const json_t *hf_json_get(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_null(value) ? NULL : value;
}

bool hf_json_whole(const json_t *value, uint64_t *out)
{
    double number = json_real_value(value);

    if (!json_is_real(value) || !(number >= 0 && number <= 0x1p53) || number != (double)(uint64_t)number)
        return false;
    *out = (uint64_t)number;
    return true;
}

const char *hf_json_shown(char *buffer, size_t bytes, const json_t *value)
{
    switch (value ? json_typeof(value) : JSON_NULL) {
    case JSON_OBJECT: snprintf(buffer, bytes, "an object"); break;
    case JSON_ARRAY: snprintf(buffer, bytes, "an array"); break;
    case JSON_REAL:
    case JSON_INTEGER: snprintf(buffer, bytes, "%.15g", json_number_value(value)); break;
    case JSON_TRUE: snprintf(buffer, bytes, "true"); break;
    case JSON_FALSE: snprintf(buffer, bytes, "false"); break;
    case JSON_NULL: snprintf(buffer, bytes, "null"); break;
    case JSON_STRING: {
        buffer[0] = '\'';
        gguf_printable(buffer + 1, bytes - 2, (struct gguf_string){json_string_value(value), json_string_length(value)});
        strcat(buffer, "'");
        break;
    }
    }
    return buffer;
}
