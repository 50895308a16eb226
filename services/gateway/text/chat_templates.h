// chat_templates.h: the chat templates of a model: one, or several by name, of which a request uses one.
//
// The one without a name is "default". "tool_use" is used where a request has tools, as transformers does; others where a request names them
// (github.com/huggingface/transformers, get_chat_template() of tokenization_utils_base.py). Templates of prompts to rank are none of them.
//
// Open templates do not change; all threads share them.
#ifndef FD_GATEWAY_TEXT_CHAT_TEMPLATES_H
#define FD_GATEWAY_TEXT_CHAT_TEMPLATES_H

#include "common/model/model.h"
#include "common/tokenizer/tokenizer.h"
#include "services/gateway/answer/answer.h"
#include "services/gateway/text/conversation.h"

enum { CHAT_TEMPLATES_MAX = 16, CHAT_TEMPLATE_NAME_BYTES = 64 };

// How the model writes calls and what it thinks.
struct language_notation {
    const struct answer_family *family;       // NULL: calls are not looked for
    const struct answer_reasoning *reasoning; // NULL: none is split off
    uint32_t unit_markers;                    // bit i: marker i of the family is a control token
};

struct named_template {
    char name[CHAT_TEMPLATE_NAME_BYTES];
    struct chat_template *chat;
    struct conversation_form form;
    struct language_notation notation;
    bool describes_tools; // what the template does not do
};

struct chat_templates {
    struct named_template all[CHAT_TEMPLATES_MAX]; // the default first, if there is one
    uint32_t count;
};

struct chat_templates_config {
    const char *model_path, *chat_template_path; // chat_template_path: one instead of all of the model's; NULL: the model's
    const char *tool_parser, *reasoning_parser;  // as in language_config
};

// Reads and probes the templates. A named one that is broken is left out with a warning. The caller closes *out, also on failure.
enum status chat_templates_open(const struct chat_templates_config *config, const struct model *model,
                                const struct tokenizer *tokenizer, struct chat_templates *out, struct error *error) MUST_CHECK;
void chat_templates_close(struct chat_templates *templates);

// Returns the template of that name, or, if it is NULL, that of requests with or without tools. NULL: there is none.
const struct named_template *chat_templates_choose(const struct chat_templates *templates, const char *name, bool with_tools);

// Writes "a, b, c" into out, and returns it.
const char *chat_templates_names(const struct chat_templates *templates, char *out, size_t out_bytes);

#endif
