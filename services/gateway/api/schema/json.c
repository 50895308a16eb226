// json.c: a body as a JSON object, within limits.
#include "common/json/json_limits.h"
#include "common/json/json_text.h"
#include "services/gateway/api/schema/schema_internal.h"

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
