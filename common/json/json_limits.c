// json_limits.c: see json_limits.h.
#include "common/json/json_limits.h"

#include <stdbool.h>

enum json_excess json_check_limits(const char *text, size_t bytes, uint32_t depth_max, size_t values_max, size_t *at)
{
    size_t values = 0;

    return json_count_limits(text, bytes, depth_max, values_max, &values, at);
}

enum json_excess json_count_limits(const char *text, size_t bytes, uint32_t depth_max, size_t values_max, size_t *values,
                                   size_t *at)
{
    size_t i;
    uint32_t depth = 0;
    bool in_string = false;

    for (i = 0; i < bytes; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
            continue;
        }
        in_string = c == '"';
        *values += c == ',' || c == '[' || c == '{';
        if (c == '[' || c == '{')
            depth++;
        else if ((c == ']' || c == '}') && depth > 0)
            depth--;
        *at = i;
        if (depth > depth_max)
            return JSON_TOO_DEEP;
        if (*values > values_max)
            return JSON_TOO_MANY;
    }
    return JSON_WITHIN;
}
