// respond_answer.h: what an answer of a chat has beside its content, and how messages and deltas show it.
#ifndef FD_GATEWAY_API_DIALECTS_RESPOND_ANSWER_H
#define FD_GATEWAY_API_DIALECTS_RESPOND_ANSWER_H

#include <stdint.h>

#include "services/gateway/http/json_write.h"

// A call of a function. In a stream it is shown in pieces: its head once, then what there is of its arguments. One of a custom tool is shown as a
// whole: its arguments become its input, a text, when they are complete.
struct shown_call {
    char id[40];
    struct text name, arguments;
    bool head_shown, is_custom, is_whole;
};

struct shown_answer {
    struct text reasoning; // of a stream: not shown yet
    struct shown_call *calls;
    uint32_t call_count, call_capacity;
};

// Returns whether there is something of it to show.
bool shown_call_has_news(const struct shown_call *call);
void shown_answer_free(struct shown_answer *answer);
// Adds a call; NULL: no memory.
struct shown_call *shown_answer_add_call(struct shown_answer *answer);

// Appends "reasoning" in both of its names.
void respond_reasoning(struct text *out, const char *reasoning, size_t bytes);
// Appends "message":{...}: role, content, reasoning, calls. answer: NULL: content only.
void respond_message(struct text *out, const char *content, size_t bytes, const struct shown_answer *answer);
// Appends the delta of a call: its head, if that was not shown, and its arguments so far.
void respond_call_delta(struct text *out, const struct shown_call *call, uint32_t index);

#endif
