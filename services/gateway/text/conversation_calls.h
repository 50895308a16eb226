// conversation_calls.h: which result of a conversation belongs to which call, and the ids that tell so. Pure but for memory.
#ifndef FD_GATEWAY_TEXT_CONVERSATION_CALLS_H
#define FD_GATEWAY_TEXT_CONVERSATION_CALLS_H

#include <stdbool.h>

#include <jansson.h>

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

#endif
