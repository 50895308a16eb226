// hf_json.h: JSON files of a model's directory: limits before anything is parsed, and values with a message that names file and key.
// Private to common/model.
//
// Numbers are read as doubles: model_max_length is often 1e30 written as an integer. Whole ones are exact up to 2^53.
#ifndef FD_MODEL_HF_JSON_H
#define FD_MODEL_HF_JSON_H

#include <jansson.h>
#include <stdint.h>

#include "common/model/gguf_state.h"

enum {
    HF_JSON_MAX_BYTES = 256 << 20, // tokenizer.json of the largest vocabularies has 40 MB
    HF_JSON_MAX_DEPTH = 64,
    HF_JSON_MAX_VALUES = 16 << 20,
    HF_LABEL_BYTES = GGUF_LABEL_BYTES + 64,
};

// An object of a file and how messages call it.
struct hf_object {
    const json_t *json;         // NULL: there is none, and every lookup finds nothing
    char label[HF_LABEL_BYTES]; // "DIR/config.json"
};

// Parses a text that must be one object without duplicate keys; the caller frees *out by json_decref(). INVALID_ARGUMENT: it is not;
// RESOURCE_EXHAUSTED: too large.
MUST_CHECK enum status hf_json_parse(const char *label, const void *bytes, uint64_t byte_count, json_t **out, struct error *error);

// The same for a text that must be an array.
MUST_CHECK enum status hf_json_parse_list(const char *label, const void *bytes, uint64_t byte_count, json_t **out,
                                          struct error *error);

// The value of a key; NULL if it is missing or null.
const json_t *hf_json_get(const json_t *object, const char *key);

// A whole number from 0 to 2^53; false: it is none.
MUST_CHECK bool hf_json_whole(const json_t *value, uint64_t *out);

// Writes a value for a message, printable and cut to fit. Returns buffer.
const char *hf_json_shown(char *buffer, size_t bytes, const json_t *value);

#endif
