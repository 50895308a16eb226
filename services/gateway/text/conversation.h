// conversation.h: what a chat template is given of a request, in the form that this template takes.
//
// Templates differ in more than their notation: some want a content as a list of parts, others as text; some want the arguments of a call as an
// object, others as text; some cannot join a content that is null; some want turns, ids of a certain form, one call a message; some know no system
// message, or no tools at all. conversation_probe() finds that out once, by rendering small conversations. Nothing is left out for it: what
// a template does not take as it is becomes something that it takes. A system message goes to the next message of the user. For a template without
// tools the functions are described in the system message, and calls and their results become plain messages.
//
// Pure but for memory. A form does not change once it is probed.
#ifndef FD_GATEWAY_TEXT_CONVERSATION_H
#define FD_GATEWAY_TEXT_CONVERSATION_H

#include <jansson.h>
#include <stdbool.h>

#include "services/gateway/jinja/chat_template.h"

// Which result of a conversation belongs to which call, and the ids that tell so. Pure but for memory.

// A template's demands on calls.
struct call_form {
    bool short_ids;     // it refuses ids that are not nine letters or digits
    bool needs_ids;     // it refuses calls without an id
    bool one_call;      // it refuses, or does not show, several calls of one message
    bool content_apart; // it does not show a content beside calls
    bool no_strays;     // it refuses, or does not show, results of no call: they become the user's words
};

struct text;

// Changes messages in place: fills in the ids and names that are missing and, where the form needs it, replaces ids, tells results of no
// call as words, and splits messages with several calls. Returns false if memory is short; some messages are changed then.
bool conversation_match_calls(const struct call_form *form, json_t *messages);

enum conversation_role { CONVERSATION_SYSTEM, CONVERSATION_USER, CONVERSATION_ASSISTANT, CONVERSATION_TOOL, CONVERSATION_ROLES };

struct conversation_form {
    const char *tools_name;    // the template's variable; NULL: it knows no tools
    bool has_calls;            // it renders calls of functions, and their results
    bool has_system;           // it takes a system message
    bool has_late_system;      // it takes one that is not the first, too
    bool needs_user;           // it does not take system messages alone
    bool no_early_system;      // it takes one only where the last message is the user's
    bool no_empty;             // it refuses an answer without text
    bool fills_start;          // it refuses an answer at the start: an empty message of the user is put before it
    bool fills_gap;            // it refuses a user right behind a result: an empty answer is put between
    bool tools_list;           // without tools it is given an empty list of them
    bool content_empty;        // a content that is null becomes "" beside calls, too
    bool arguments_text;       // the arguments of calls are JSON in a string
    bool takes_broken;         // it also renders arguments that are no JSON, as text
    struct call_form calls;    // with has_calls
    const char *reasoning_key; // what it calls the reasoning of a message
    // bit i: of role i
    unsigned typed;  // a content is a list of parts: [{"type": "text", "text": ...}]
    unsigned joined; // messages in a row become one
    unsigned lost;   // it shows nothing of their content, in no form
};

// source: the template's text.
void conversation_probe(const struct chat_template *chat, const char *source, size_t length, struct conversation_form *out);

// Puts a conversation into the form: changes the messages in place, and adds to *variables, which may be NULL (it is the caller's). tools: NULL:
// none. *given: what the template's `tools` shall be, borrowed. Returns false if memory is short.
bool conversation_shape(const struct conversation_form *form, json_t *messages, json_t *tools, json_t **variables, json_t **given);

// Returns the role of a message of which the template would show nothing; NULL: there is none. After conversation_shape().
const char *conversation_find_lost(const struct conversation_form *form, const json_t *messages);

#endif
