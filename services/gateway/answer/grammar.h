// grammar.h: the answers that call functions, as a grammar: what an answer is held to where a call is required.
//
//   [ what the model thinks ]  call { call }
//
// Each call is in the family's notation, names one of the functions, and has arguments that its schema allows. What the parser (answer.h) makes
// of such an answer is at least one call and no content.
#ifndef FD_GATEWAY_ANSWER_GRAMMAR_H
#define FD_GATEWAY_ANSWER_GRAMMAR_H

#include <jansson.h>

#include "common/grammar/build.h"
#include "services/gateway/answer/answer.h"

struct answer_grammar_options {
    const struct answer_family *family;       // NULL: plain text
    uint32_t unit_markers;                    // the family's, as in answer.h: those come as control tokens alone, others as text
    const struct answer_reasoning *reasoning; // NULL: none comes first
    bool reasoning_is_open;
    const json_t *tools; // an array, as in requests: {"type": "function", "function": {"name", "parameters", "strict"}}
    const char *only;    // the function that must be called; NULL: any of them
    bool one_call;
    bool in_any_order; // keys of small objects in arguments
    bool open_objects; // objects in arguments take properties that their schema does not name, unless it closes them
};

// Returns whether values of a schema may be text, and so are written as they are where a notation is no JSON.
bool answer_is_text(const json_t *schema);

// Adds what the model may think first, closed. Returns its node, as the others do.
uint32_t answer_add_reasoning(struct grammar_builder *builder, const struct answer_grammar_options *options);
// Adds what is said, in the notation; content is a node.
uint32_t answer_add_content(struct grammar_builder *builder, const struct answer_grammar_options *options, uint32_t content);
// Adds one call or, unless one_call, several. Schemas that are not supported make the builder fail, as common/schema/schema.h says.
uint32_t answer_add_calls(struct grammar_builder *builder, const struct answer_grammar_options *options);

#endif
