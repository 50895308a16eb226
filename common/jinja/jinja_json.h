// jinja_json.h: JSON as a value of a template.
#ifndef FD_JINJA_JSON_H
#define FD_JINJA_JSON_H

#include <jansson.h>

#include "common/jinja/jinja_run.h"

// Converts a JSON value. Its strings, names of members included, are content: they came from a client. `none` is null. The bytes are borrowed
// for the run.
bool jinja_from_json(struct jinja_run *run, const json_t *json, struct jinja_value *out);

// The same of the messages of a conversation: the value of "role" is the template's own text if it is one of the known roles.
bool jinja_from_messages(struct jinja_run *run, const json_t *messages, struct jinja_value *out);

// Adds up the bytes of all strings, at most `most` of them, and counts values. Returns false if the values nest deeper than a template may
// look, or their strings hold more than `most` bytes.
bool jinja_measure_json(const json_t *json, size_t most, size_t *bytes, size_t *values);

#endif
