// request_parse.h: a body of OpenAI's form as a request, as serve/work.c makes it.
#ifndef FD_TESTS_UNIT_REQUEST_PARSE_H
#define FD_TESTS_UNIT_REQUEST_PARSE_H

#include "services/gateway/api/schema/schema.h"
#include "services/gateway/api/schema/value.h"

static inline bool api_request_parse(enum api_kind kind, const char *body, size_t bytes, const struct api_model *model,
                                     struct api_request *out, struct api_error *error)
{
    json_t *root;

    *error = (struct api_error){0};
    *out = (struct api_request){0};
    root = schema_parse_json(body, bytes, error);
    return root && api_request_read(kind, root, model, out, error);
}

#endif
