// grammars.h: what requests want of the form of their answers, compiled to grammars for the s-part, and
// the latest of them kept: clients send the same schema again and again.
//
// Any thread. Compiling takes milliseconds, for large schemas more: not for the loop thread.
#ifndef FD_GATEWAY_TEXT_GRAMMARS_H
#define FD_GATEWAY_TEXT_GRAMMARS_H

#include <stddef.h>
#include <stdint.h>

#include "services/gateway/answer/grammar.h"
#include "services/gateway/api/schema/schema.h"

// The shape that an answer has to have: its form (JSON, a schema, a regular expression, ...), calls of functions, and what the model may think
// before either of them.
struct wanted {
    const struct api_form *form;          // of the content; kind API_FORM_NONE: the answer has no content
    struct answer_grammar_options answer; // the model's notation; tools: NULL: none may be called
};

struct grammars;

// A compiled grammar in its packed form. Counted: it lives until all that hold it have let it go.
struct packed_grammar;

struct grammars *grammars_open(void); // NULL: no memory
// Grammars that are held may outlive it. NULL is allowed.
void grammars_close(struct grammars *grammars);

// Compiles what a request wants, or finds it; the caller lets *out go. INVALID_ARGUMENT, UNIMPLEMENTED: the error says what is wrong with it, and where.
// RESOURCE_EXHAUSTED: it is too large. UNAVAILABLE: no memory.
enum status grammars_get(struct grammars *grammars, const struct wanted *wanted, struct packed_grammar **out,
                         struct error *error) MUST_CHECK;

const void *packed_grammar_bytes(const struct packed_grammar *grammar, size_t *count);
void packed_grammar_let_go(struct packed_grammar *grammar); // NULL is allowed

#endif
