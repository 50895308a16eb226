// chat_template.h: chat templates in Jinja, compiled once and rendered for each request.
//
// A published model carries its template as text. chat_template_open() parses it; text that is not Jinja is refused with its line number.
// chat_template_render() then writes the prompt of one conversation as jinja2 would write it (trim_blocks and
// lstrip_blocks on, an immutable sandbox, the environment that Hugging Face's renderer sets up). A filter, test, method or
// function that there is not, or that is given wrong arguments, fails there, and only where it is reached.
//
// The output lists the byte ranges that came from the client: content, tools, arguments, any other string (but known roles). Text outside of them
// was written by the template's author, and only there may the tokenizer recognize special tokens. A byte whose origin is unclear counts as
// content.
//
// Everything has a limit (template bytes, nesting, work, memory, output), so a hostile template or conversation ends in an error. Nothing
// here blocks or keeps state: an open template is immutable and shared by any number of threads.
#ifndef FD_GATEWAY_JINJA_CHAT_TEMPLATE_H
#define FD_GATEWAY_JINJA_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "common/base/status.h"

#define CHAT_TEMPLATE_MAX_BYTES (256u << 10) // a template's source

struct chat_template;

// Bytes [begin, end) of the output came from the client.
struct chat_span {
    size_t begin, end;
};

// The input of a rendering, borrowed for the call. Strings may hold any byte. Members of objects keep their order.
struct chat_input {
    const json_t *messages;  // an array of objects
    const json_t *tools;     // an array; NULL: `none`, or with tools_list an empty one
    const json_t *documents; // an array; NULL: `none`
    const json_t *variables; // an object: further variables by name, which may not be one of chat_template_owns(); NULL: none
    bool add_generation_prompt, tools_list;
};

// The prompt. text is terminated (length does not count that); spans are sorted, disjoint and not adjacent.
struct chat_output {
    char *text;
    size_t length;
    struct chat_span *spans;
    uint32_t span_count;
};

// Compiles a template. bos_token and eos_token are the variables of these names (NULL: undefined) and are copied, as is
// the source. The caller closes *out. Fails with INVALID_ARGUMENT and "chat template line N: what", e.g. "chat template
// line 12: the 'if' of line 3 is not closed"; *out is NULL then.
MUST_CHECK enum status chat_template_open(const char *source, size_t length, const char *bos_token, const char *eos_token,
                                          struct chat_template **out, struct error *error);

// Frees it; NULL is allowed. No render may be running.
void chat_template_close(struct chat_template *chat_template);

// Renders a conversation; the caller frees *out with chat_output_free(). On failure *out is empty. INVALID_ARGUMENT: with exactly the text of
// the template's own raise_exception("text"), or with "chat template line N: what" for a mistake or a limit. RESOURCE_EXHAUSTED: no memory.
// strftime_now() gives UTC.
MUST_CHECK enum status chat_template_render(const struct chat_template *chat_template, const struct chat_input *input,
                                            struct chat_output *out, struct error *error);

// The same, with the time for strftime_now() in seconds since 1970.
MUST_CHECK enum status chat_template_render_at(const struct chat_template *chat_template, int64_t unix_seconds,
                                               const struct chat_input *input, struct chat_output *out, struct error *error);

// Returns whether the template names a variable, e.g. "tools": one that it does not name changes nothing.
bool chat_template_names(const struct chat_template *chat_template, const char *variable);

// Returns whether a variable is set by rendering itself: messages, bos_token and the like.
bool chat_template_owns(const char *variable);

// Frees what render gave and empties *out.
void chat_output_free(struct chat_output *out);

#endif
