// wanted.h: what an answer has to look like: its form (JSON, a schema, a regular expression, ...), calls of functions, and what the model may think
// before either of them.
#ifndef FD_GATEWAY_API_SCHEMA_WANTED_H
#define FD_GATEWAY_API_SCHEMA_WANTED_H

#include "services/gateway/answer/grammar.h"
#include "services/gateway/api/schema/schema.h"

struct wanted {
    const struct api_form *form;          // of the content; kind API_FORM_NONE: the answer has no content
    struct answer_grammar_options answer; // the model's notation; tools: NULL: none may be called
};

// Appends what makes up the grammar, as text: equal texts, equal grammars.
void wanted_key(const struct wanted *wanted, struct text *key);

// Compiles it. The caller frees *out. The errors are those of common/grammar.
enum status wanted_compile(const struct wanted *wanted, struct grammar **out, struct error *error) MUST_CHECK;

#endif
