// schema_internal.h: what the files of the schema share: the rows of the tables, and readers of single fields.
#ifndef FD_GATEWAY_SCHEMA_INTERNAL_H
#define FD_GATEWAY_SCHEMA_INTERNAL_H

#include <jansson.h>

#include "services/gateway/schema.h"

#define SCHEMA_ANSWERS (API_COMPLETION | API_CHAT)

// One parse.
struct schema_run {
    struct api_request *out;
    struct api_error *error;
    uint32_t vocab;
};

typedef bool schema_read_fn(struct schema_run *run, const char *name, const json_t *value);

// schema_prompt.c: reads fields that are more than a number.
bool schema_read_prompt(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_tokens(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_messages(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_stop(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_bias(struct schema_run *run, const char *name, const json_t *value);

// schema_extensions.c: fields that other servers have beside OpenAI's.
bool schema_read_prompt_logprobs(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_truncation(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_generation_prompt(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_priority(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_stream_options(struct schema_run *run, const char *name, const json_t *value);
// Rules between these fields and others, once all are read.
bool schema_check_extensions(struct schema_run *run);

// schema_value.c. A string with a zero byte is refused: what compares it would see only what comes before. max_bytes 0: no limit.
bool schema_read_integer(struct schema_run *run, const char *name, const json_t *value, double min, double max, int64_t *out);
bool schema_read_number(struct schema_run *run, const char *name, const json_t *value, double min, double max, bool above_min,
                        float *out);
bool schema_read_string(struct schema_run *run, const char *name, const json_t *value, size_t max_bytes, const char **out);
// Whether the value is that string, to its last byte. NULL is allowed.
bool schema_is_string(const json_t *value, const char *wanted);
// Whether the value is a string with a zero byte in it.
bool schema_has_zero(const json_t *value);
// Returns "an integer", "a string" and so on, for messages.
const char *schema_type_name(const json_t *value);
// Sets status 400 and the message "'name' must be X, not Y"; returns false.
bool schema_wrong_type(struct schema_run *run, const char *name, const char *wanted, const json_t *value);

struct schema_refused {
    const char *name;
    unsigned endpoints;
    const char *neutral; // a string or number that means "off", or NULL
};
// schema_refused.c. Returns false if the field's value would change the answer. *known: the field is in the table or refused by a
// rule of its own.
bool schema_check_refused(struct schema_run *run, const struct schema_refused *refused, size_t count, const char *name,
                          const json_t *value, bool *known);

// schema_json.c. Returns the body's object, which the caller releases, or NULL with *error set.
json_t *schema_parse_json(const char *body, size_t bytes, struct api_error *error);

#endif
