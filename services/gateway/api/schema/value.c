// value.c: single values of a body: their types and ranges.
#include <float.h>
#include <math.h>
#include <string.h>

#include "common/json/json_text.h"
#include "services/gateway/api/schema/schema_internal.h"

const char *schema_type_name(const json_t *value)
{
    if (!value) // a member that is not there
        return "nothing";
    if (json_text_kept(value))
        return "a number";
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number";
    case JSON_NULL: return "null";
    default: return "a boolean";
    }
}

bool schema_is_string(const json_t *value, const char *wanted)
{
    const char *text = json_string_value(value);

    return text && json_string_length(value) == strlen(wanted) && strcmp(text, wanted) == 0;
}

bool schema_has_zero(const json_t *value)
{
    const char *text = json_string_value(value);

    return text && strlen(text) < json_string_length(value);
}

bool schema_wrong_type(struct api_error *error, const char *name, const char *wanted, const json_t *value)
{
    return api_fail(error, 400, "invalid_type", name, "'%s' must be %s, not %s", name, wanted, schema_type_name(value));
}

bool schema_read_integer(struct schema_run *run, const char *name, const json_t *value, double min, double max, int64_t *out)
{
    const double number = json_text_number(value);

    if (!json_text_is_number(value) || number != floor(number)) // 16.0 is an integer
        return schema_wrong_type(run->error, name, "an integer", value);
    if (!(number >= min && number <= max))
        return api_fail(run->error, 400, "invalid_value", name, "'%s' must be an integer from %.0f to %.0f, not %.15g", name, min,
                        max, number);
    *out = (int64_t)number;
    return true;
}

bool schema_read_number(struct schema_run *run, const char *name, const json_t *value, double min, double max, bool above_min,
                        float *out)
{
    double number;

    if (!json_text_is_number(value))
        return schema_wrong_type(run->error, name, "a number", value);
    number = json_text_number(value);
    if (!(number >= min && number <= max) || (above_min && number <= min))
        return api_fail(run->error, 400, "invalid_value", name, "'%s' must be a number %s %g and at most %g, not %g", name,
                        above_min ? "above" : "at least", min, max, number);
    *out = (float)number;
    if (above_min && *out <= (float)min)
        *out = (float)min + FLT_MIN; // the number is above, but too close for a float
    return true;
}

bool schema_read_string(struct schema_run *run, const char *name, const json_t *value, size_t max_bytes, const char **out)
{
    if (!json_is_string(value))
        return schema_wrong_type(run->error, name, "a string", value);
    if (max_bytes > 0 && json_string_length(value) > max_bytes)
        return api_fail(run->error, 400, "invalid_value", name, "'%s' has %zu bytes, the most is %zu", name,
                        json_string_length(value), max_bytes);
    if (schema_has_zero(value)) // two would look the same
        return api_fail(run->error, 400, "invalid_value", name, "'%s' has a zero byte", name);
    *out = json_string_value(value);
    return true;
}

bool schema_read_bool(struct schema_run *run, const char *name, const json_t *value, bool *out)
{
    if (!json_is_boolean(value))
        return schema_wrong_type(run->error, name, "a boolean", value);
    *out = json_is_true(value);
    return true;
}

bool schema_read_stop_string(struct schema_run *run, const char *name, const json_t *value, const char *list,
                             struct stop_string *out)
{
    if (!json_is_string(value))
        return schema_wrong_type(run->error, name, list, value);
    if (json_string_length(value) == 0 || json_string_length(value) > API_MAX_STOP_BYTES)
        return api_fail(run->error, 400, "invalid_value", name, "'%s' strings must have 1 to %d bytes", name, API_MAX_STOP_BYTES);
    *out = (struct stop_string){json_string_value(value), json_string_length(value)};
    return true;
}

// --- a body as a JSON object, within limits --------------------------------------------------------------------------

static bool check_size(const char *body, size_t bytes, struct api_error *error)
{
    size_t at;

    switch (json_check_limits(body, bytes, API_MAX_DEPTH, API_MAX_VALUES, &at)) {
    case JSON_TOO_DEEP:
        return api_fail(error, 400, "invalid_json", NULL, "the body is nested deeper than %d at byte %zu", API_MAX_DEPTH, at);
    case JSON_TOO_MANY: return api_fail(error, 400, "invalid_json", NULL, "the body has more than %d values", API_MAX_VALUES);
    default: return true;
    }
}

json_t *schema_parse_json(const char *body, size_t bytes, struct api_error *error)
{
    json_error_t reason;
    json_t *root;

    if (bytes == 0) {
        api_fail(error, 400, "invalid_json", NULL, "the body is empty: a JSON object is required");
        return NULL;
    }
    if (!check_size(body, bytes, error))
        return NULL;
    root = json_text_read(body, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &reason);
    if (!root) {
        // the library quotes the body in some messages: replace what is not plain text
        char *at;
        for (at = reason.text; *at; at++)
            if ((unsigned char)*at < 0x20 || (unsigned char)*at >= 0x7F)
                *at = '?';
        api_fail(error, 400, "invalid_json", NULL, "the body is not valid JSON: %s (line %d, byte %d)", reason.text, reason.line,
                 reason.position);
        return NULL;
    }
    if (json_text_is_object(root))
        return root;
    api_fail(error, 400, "invalid_json", NULL, "the body must be a JSON object, not %s", schema_type_name(root));
    json_decref(root);
    return NULL;
}
