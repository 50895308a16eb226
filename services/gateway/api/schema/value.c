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

bool schema_wrong_type(struct schema_run *run, const char *name, const char *wanted, const json_t *value)
{
    return api_fail(run->error, 400, "invalid_type", name, "'%s' must be %s, not %s", name, wanted, schema_type_name(value));
}

bool schema_read_integer(struct schema_run *run, const char *name, const json_t *value, double min, double max, int64_t *out)
{
    const double number = json_text_number(value);

    if (!json_text_is_number(value) || number != floor(number)) // 16.0 is an integer
        return schema_wrong_type(run, name, "an integer", value);
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
        return schema_wrong_type(run, name, "a number", value);
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
        return schema_wrong_type(run, name, "a string", value);
    if (max_bytes > 0 && json_string_length(value) > max_bytes)
        return api_fail(run->error, 400, "invalid_value", name, "'%s' has %zu bytes, the most is %zu", name,
                        json_string_length(value), max_bytes);
    if (schema_has_zero(value)) // two would look the same
        return api_fail(run->error, 400, "invalid_value", name, "'%s' has a zero byte", name);
    *out = json_string_value(value);
    return true;
}
