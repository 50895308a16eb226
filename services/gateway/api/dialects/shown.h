// shown.h: what a client is shown of a choice beside its text: reasoning and calls, and tokens with their log-probabilities.
#ifndef FD_GATEWAY_API_DIALECTS_SHOWN_H
#define FD_GATEWAY_API_DIALECTS_SHOWN_H

#include <stdbool.h>
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

// A token with its scores, as the client sees it. The bytes of all tokens are stored one after another in a struct text.
struct shown_top {
    uint32_t offset, bytes; // where the token's text lies
    float logprob;
};

struct shown_token {
    uint32_t offset, bytes;
    float logprob;
    bool has_logprob;                                          // false: null (the first token of an echoed prompt)
    enum { TOKEN_UNDECIDED, TOKEN_CONTENT, TOKEN_OTHER } part; // OTHER: of what is thought or called
    uint32_t text_offset;                                      // number of characters before the token in the choice's text
    uint32_t top_first, top_count;                             // the token's alternatives in tops
};

struct shown_tokens {
    struct text bytes;
    struct shown_token *tokens;
    uint32_t count, capacity;
    struct shown_top *tops;
    uint32_t top_count, top_capacity;
    bool failed;
};

void shown_tokens_free(struct shown_tokens *tokens);
void shown_tokens_clear(struct shown_tokens *tokens);
void shown_tokens_add(struct shown_tokens *tokens, const char *data, size_t bytes, const float *logprob, uint32_t text_offset);
// Adds an alternative to the token added last.
void shown_tokens_add_top(struct shown_tokens *tokens, const char *data, size_t bytes, float logprob);

// Appends the token as a chat's answer lists it, with its bytes and its alternatives.
void shown_tokens_append(struct text *out, const struct shown_tokens *tokens, const struct shown_token *token);
// Appends those tokens that are content, {...},{...}, behind a comma if out has any already; and clears them all. Does nothing as long as it
// is not known what the last one is.
void shown_tokens_move_content(struct shown_tokens *tokens, struct text *out);

// Appends a comma before all but the first of a list.
static inline void shown_comma(struct text *out, bool first)
{
    if (!first)
        text_append(out, ",", 1);
}

#endif
