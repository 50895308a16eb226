// json_limits.h: checks how deep and how large a JSON text is before a parser allocates anything for it.
#ifndef FD_JSON_JSON_LIMITS_H
#define FD_JSON_JSON_LIMITS_H

#include <stddef.h>
#include <stdint.h>

enum json_excess { JSON_WITHIN, JSON_TOO_DEEP, JSON_TOO_MANY };

// Counts values and nesting of a text that need not be valid JSON. *at: offset of the byte where a limit was exceeded.
enum json_excess json_check_limits(const char *text, size_t bytes, uint32_t depth_max, size_t values_max, size_t *at);
// The same of several texts together: *values has those of the texts before, and counts on.
enum json_excess json_count_limits(const char *text, size_t bytes, uint32_t depth_max, size_t values_max, size_t *values,
                                   size_t *at);

#endif
