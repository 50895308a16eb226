/* schema_internal.h: what the files of the schema share: the table's row, and readers of single fields. */
#ifndef FD_GATEWAY_SCHEMA_INTERNAL_H
#define FD_GATEWAY_SCHEMA_INTERNAL_H

#include <jansson.h>

#include "services/gateway/schema.h"

/* One parse. */
struct schema_run {
    struct api_request *out;
    struct api_error *error;
    uint32_t vocab;
};

typedef bool schema_read_fn(struct schema_run *run, const char *name, const json_t *value);

/* schema_prompt.c: fields that are more than a number. */
bool schema_read_prompt(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_tokens(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_messages(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_stop(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_bias(struct schema_run *run, const char *name, const json_t *value);

/* "an integer", "a string", ... for messages. */
const char *schema_type_name(const json_t *value);
/* 400 with "'name' must be X, not Y". */
bool schema_wrong_type(struct schema_run *run, const char *name, const char *wanted, const json_t *value);

#endif
