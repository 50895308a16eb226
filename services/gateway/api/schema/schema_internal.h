// schema_internal.h: what the files of the schema share: the rows of the tables, and readers of single fields.
#ifndef FD_GATEWAY_API_SCHEMA_SCHEMA_INTERNAL_H
#define FD_GATEWAY_API_SCHEMA_SCHEMA_INTERNAL_H

#include <jansson.h>

#include "services/gateway/api/schema/schema.h"
#include "services/gateway/api/schema/value.h"

#define SCHEMA_ANSWERS (API_COMPLETION | API_CHAT)

// One parse.
struct schema_run {
    struct api_request *out;
    struct api_error *error;
    uint32_t vocab;
    size_t argument_values; // of all calls so far
};

typedef bool schema_read_fn(struct schema_run *run, const char *name, const json_t *value);

// prompt.c: reads fields that are more than a number.
bool schema_read_prompt(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_tokens(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_stop(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_bias(struct schema_run *run, const char *name, const json_t *value);
// Reads [1, 2, 3].
bool schema_read_ids(struct schema_run *run, const char *name, const json_t *value, struct api_ids *out);

// sampling.c: fields of the sampler that are lists, and how those and its numbers go together.
bool schema_read_stop_tokens(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_allowed_tokens(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_bad_words(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_dry_breakers(struct schema_run *run, const char *name, const json_t *value);
void schema_sampling_defaults(struct api_request *out);
bool schema_check_sampling(struct schema_run *run);
void schema_free_sampling(struct api_request *request);

// prompt.c: fields of /v1/embeddings and /v1/rerank.
bool schema_read_encoding(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_query(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_ranked(struct schema_run *run, const char *name, const json_t *value);
bool schema_check_pool(struct schema_run *run);

// message.c
bool schema_read_messages(struct schema_run *run, const char *name, const json_t *value);

// tools.c
bool schema_read_tools(struct schema_run *run, const char *name, const json_t *value);
// Makes a call of a custom tool one of the function that stands for it. Does nothing with others.
bool schema_unfold_custom_call(struct schema_run *run, const char *where, json_t *call);
bool schema_read_tool_choice(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_functions(struct schema_run *run, const char *name, const json_t *value); // and function_call
bool schema_read_template_variables(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_chat_template(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_reasoning_effort(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_documents(struct schema_run *run, const char *name, const json_t *value);
bool schema_check_function_name(struct schema_run *run, const char *where, const json_t *name);
// Once all fields are read: rules between them; and what an effort does to the template's variables.
bool schema_check_tools(struct schema_run *run);
bool schema_apply_effort(struct schema_run *run);
void schema_free_chat(struct api_request *request);

// value.c. A string with a zero byte is refused: what compares it would see only what comes before. max_bytes 0: no limit.
bool schema_read_integer(struct schema_run *run, const char *name, const json_t *value, double min, double max, int64_t *out);
bool schema_read_number(struct schema_run *run, const char *name, const json_t *value, double min, double max, bool above_min,
                        float *out);
bool schema_read_string(struct schema_run *run, const char *name, const json_t *value, size_t max_bytes, const char **out);
// Reads true or false.
bool schema_read_bool(struct schema_run *run, const char *name, const json_t *value, bool *out);
// Reads a string that may end an answer, or be none of it: of 1 to API_MAX_STOP_BYTES. list: what the field must be.
bool schema_read_stop_string(struct schema_run *run, const char *name, const json_t *value, const char *list,
                             struct stop_string *out);

// form.c: fields that say which form an answer has.
bool schema_read_response_format(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_structured_outputs(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_form_schema(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_form_regex(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_form_choice(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_form_grammar(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_form_object(struct schema_run *run, const char *name, const json_t *value);
bool schema_read_form_space(struct schema_run *run, const char *name, const json_t *value);

#endif
