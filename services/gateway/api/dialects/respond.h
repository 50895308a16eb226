// respond.h: renders the API's answers (errors, completions, chat messages, chunks of streams) in the form that the official
// clients expect.
#ifndef FD_GATEWAY_API_DIALECTS_RESPOND_H
#define FD_GATEWAY_API_DIALECTS_RESPOND_H

#include <stdint.h>

#include "services/gateway/api/schema/schema.h"
#include "services/gateway/http/http.h"
#include "services/gateway/http/json_write.h"

// What an answer of a chat has beside its content, and how messages and deltas show it.

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
// Appends the delta of a call: its head, if that was not shown, and its arguments so far.
void respond_call_delta(struct text *out, const struct shown_call *call, uint32_t index);

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

struct respond_usage {
    uint64_t prompt_tokens, completion_tokens;
    uint64_t cached_tokens; // tokens of the prompts whose KV was cached
    uint64_t reasoning_tokens;
    bool has_reasoning; // reasoning_tokens counts
};

// A choice, or a chunk of one.
struct respond_choice {
    uint32_t index;
    const char *text;
    size_t bytes;
    const struct shown_tokens *logprobs; // NULL: not asked for
    uint32_t logprob_count;              // how many of the first tokens in logprobs to render
    const char *finish_reason;           // NULL: not finished
    const char *stop_reason;             // NULL: rendered as null
    size_t stop_reason_bytes;
    bool is_stop_token; // without text, stop_token is the reason
    uint32_t stop_token;
    bool first; // this is the first chunk of a chat stream, which names the role
    // Of chats: a whole answer's reasoning and calls; NULL: none.
    const struct shown_answer *answer;
    // Of chunks of chats: what stands for the delta's content; NULL: `text` does.
    const struct text *delta;
    // Further fields, each with a comma before it; NULL: none.
    const struct text *extra;          // of the choice
    const struct text *head_extra;     // of the chunk
    const struct respond_usage *usage; // so far, in the chunk; NULL: not asked for
};

// The fields that all answers of one request begin with.
struct respond_head {
    enum api_kind kind;
    const char *id; // "cmpl-..."
    const char *model;
    uint64_t created_s;
    const char *service_tier; // NULL: not in the answer
    bool include_usage;       // a stream whose chunks have "usage": null
};

// data: {...}\n\n
void respond_chunk(struct text *out, const struct respond_head *head, const struct respond_choice *choice);
// Appends those tokens that are content, as a chat's answer lists them, {...},{...}, behind a comma if out has any already; and clears them all.
// Does nothing as long as it is not known what the last one is.
void respond_content_tokens(struct text *out, struct shown_tokens *tokens);
void respond_usage_chunk(struct text *out, const struct respond_head *head, const struct respond_usage *usage);

// Render a whole answer: begin it, add its choices in order, and end it.
void respond_whole_begin(struct text *out, const struct respond_head *head);
void respond_whole_choice(struct text *out, const struct respond_head *head, const struct respond_choice *choice, bool first);
// extra: further fields, each with a comma before it; NULL: none.
void respond_whole_end(struct text *out, const struct text *extra, const struct respond_usage *usage);

#endif
