// value.h: single values of a body: what they are, and a body as a JSON object within limits.
#ifndef FD_GATEWAY_API_SCHEMA_VALUE_H
#define FD_GATEWAY_API_SCHEMA_VALUE_H

#include <jansson.h>

#include "services/gateway/http/api_error.h"

// Whether the value is that string, to its last byte. NULL is allowed.
bool schema_is_string(const json_t *value, const char *wanted);
// Whether the value is a string with a zero byte in it.
bool schema_has_zero(const json_t *value);
// Returns "an integer", "a string" and so on, for messages.
const char *schema_type_name(const json_t *value);

// Sets status 400 and the message "'name' must be X, not Y"; returns false.
bool schema_wrong_type(struct api_error *error, const char *name, const char *wanted, const json_t *value);

// Returns the body's object, which the caller releases, or NULL with *error set.
json_t *schema_parse_json(const char *body, size_t bytes, struct api_error *error);

#endif
