// dialect.h: the forms of the API. A request in one of them is translated to OpenAI's, which goes the way of all, and its answer is told in
// the form's own words.
//
//   body ──translate()──▶ request ──▶ … ──▶ news of a choice ──dialect_show()─┬─▶ OpenAI's `show` ──▶ chunks, or a choice of the whole
//                                                                             └─▶ pieces ──▶ items ──begin, item_*, delta, end──▶ events
//                                                                                              └─────────whole───▶ one JSON object
//
// The other forms tell one choice, as items of pieces. A piece is some text, some reasoning, or a part of a call of a tool. Neighbours of one
// kind make an item; the run keeps the items, since most forms repeat them whole at the end. Example, two pieces "It" and "'s 4." in the form
// of OpenAI's responses: response.created, output_item.added, content_part.added, output_text.delta twice, output_text.done with "It's 4.", …,
// response.completed.
//
// Neither HTTP nor the mesh is known here. A run belongs to one request and is used by one thread at a time.
#ifndef FD_GATEWAY_API_DIALECTS_DIALECT_H
#define FD_GATEWAY_API_DIALECTS_DIALECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "services/gateway/api/dialects/shown.h"
#include "services/gateway/api/schema/schema.h"
#include "services/gateway/http/api_error.h"

struct json_t;
struct response_store;
struct dialect_run;

enum { DIALECT_ID_BYTES = 176 };

enum dialect_part { DIALECT_TEXT, DIALECT_REASONING, DIALECT_CALL };

struct dialect_piece {
    enum dialect_part part;
    uint32_t call;         // CALL: the number of the call; another number begins another call
    const char *id, *name; // CALL: of its first piece; the id is terminated
    bool custom;           // CALL: of a custom tool: `data` is its input, a text, and whole
    size_t name_bytes;
    const char *data; // text, reasoning, or a part of the arguments, which are JSON
    size_t bytes;
};

struct dialect_item {
    enum dialect_part part;
    uint32_t call;
    struct text id, name; // CALL
    bool custom;
    struct text data;     // all pieces
    struct text logprobs; // TEXT: of its tokens, as a chat's answer lists them, with commas between; empty: not asked for
};

struct dialect_usage {
    uint64_t prompt_tokens, completion_tokens;
    uint64_t cached_tokens; // tokens of the prompts whose KV was cached
    uint64_t reasoning_tokens;
    bool has_reasoning; // reasoning_tokens counts
};

// The part of a choice that its client has not been shown: all of it, if the answer is no stream.
struct dialect_news {
    uint32_t index;
    uint64_t prompt_tokens;
    struct text *text;           // content; taken, which clears it
    struct shown_answer *answer; // reasoning and calls; NULL: there are none. A stream takes what it shows
    struct shown_tokens *tokens; // likewise taken
    bool scored;                 // log-probabilities were asked for
    bool is_first;               // nothing of the choice has been shown
    bool has_ids;                // `extra` has ids of new tokens
    const char *finish_reason;   // NULL: not finished
    const char *stop_reason;     // NULL: rendered as null
    size_t stop_reason_bytes;
    bool is_stop_token; // without text, stop_token is the reason
    uint32_t stop_token;
    // Further fields of OpenAI's form, each with a comma before it: of the choice, and beside it.
    const struct text *extra, *head_extra;
    const struct dialect_usage *usage; // so far; NULL: not asked for
};

struct dialect_end {
    const char *finish_reason; // "stop", "length", "tool_calls", or "load": nothing was to be generated
    const char *stop_string;   // the one that ended the text; NULL: none did
    size_t stop_bytes;
    struct dialect_usage usage;
    uint64_t total_us, prompt_us; // since the request came: until now, and until the first token
    const struct text *extra;     // further fields of a whole answer in OpenAI's form; NULL: none
};

struct dialect_vector {
    const char *json; // an array, or base64 as a string
    size_t bytes;
};

struct dialect_rank {
    uint32_t index; // of the document in the request
    double score;
    const struct text *document; // NULL: it is not returned
};

// A request as it came, and what it is translated to.
struct dialect_ask {
    struct json_t *body;
    const char *tenant, *request_id;
    struct response_store *store; // NULL: answers are not kept
    struct json_t *chat;          // out: the request's object in OpenAI's form; a reference of the caller's
    enum api_kind kind;           // in: of the route; out: of `chat`
    bool only_loads;              // out: nothing is to be generated: the client wants the model to be there
    bool only_warms;              // out: the prompt is to be cached, and its answer, of one token, is not shown
    bool truncates, scales;       // out: of struct api_pool
    void *own;                    // out: what the dialect keeps for the answer
    char id[DIALECT_ID_BYTES];    // out: of the answer; "": the prefix and the request's id
    struct api_ignored ignored;   // out: fields of the body that are not known
    bool caps;                    // out: of struct api_request
    float temperature;            // out: in place of the chat's, where it is above what a chat takes; 0: it is not
};

struct dialect_rename {
    const char *chat, *own; // names of one field
};

struct dialect {
    const char *id_prefix;                // of answers
    const char *stream_type;              // content type of a stream
    const char *keep_alive;               // what a silent stream is sent; NULL: nothing
    const char *id_header;                // of the answer, with the request's id; NULL: none beside the usual one
    const struct dialect_rename *renamed; // up to one without names; NULL: none
    // Fills `chat`, and `own` if there is anything to keep. Returns false with *error set, or its status 0: out of memory.
    bool (*translate)(struct dialect_ask *ask, struct api_error *error);
    // Appends what is new of a choice; out NULL: adds a choice to the whole answer. NULL: it is told as items.
    void (*show)(struct dialect_run *run, const struct dialect_news *news, struct text *out);
    // Each appends what the client is sent, maybe nothing. NULL: nothing is sent.
    void (*begin)(struct dialect_run *run, struct text *out);
    void (*item_begin)(struct dialect_run *run, const struct dialect_item *item, struct text *out);
    void (*delta)(struct dialect_run *run, const struct dialect_item *item, const char *data, size_t bytes, struct text *out);
    void (*item_end)(struct dialect_run *run, const struct dialect_item *item, struct text *out);
    void (*end)(struct dialect_run *run, const struct dialect_end *end, struct text *out);
    void (*error)(struct dialect_run *run, const struct api_error *error, struct text *out); // the last event of a stream
    void (*whole)(struct dialect_run *run, const struct dialect_end *end, struct text *out); // an answer without a stream
    // Answers of /v1/embeddings and /v1/rerank; ranks are sorted.
    void (*vectors)(struct dialect_run *run, const struct dialect_end *end, const struct dialect_vector *vectors, uint32_t count,
                    struct text *out);
    void (*ranks)(struct dialect_run *run, const struct dialect_end *end, const struct dialect_rank *ranks, uint32_t count,
                  struct text *out);
    void (*refuse)(const struct api_error *error, struct text *out); // an error as a whole answer
    // Instead of an answer: how long the prompt is. NULL: the answer of /tokenize.
    void (*tokens)(uint32_t count, struct text *out);
    void (*free_own)(void *own);
};

// Which path has which: the table of routes (serve/routes.c).
extern const struct dialect dialect_openai, dialect_responses, dialect_count_responses, dialect_messages, dialect_count_tokens,
    dialect_ollama_chat, dialect_ollama_generate, dialect_ollama_embed, dialect_ollama_embeddings, dialect_ollama_other;

struct dialect_run {
    const struct dialect *dialect;
    enum api_kind kind;
    char id[DIALECT_ID_BYTES];
    const char *model;        // borrowed
    const char *service_tier; // static; NULL: not in the answer
    bool include_usage;       // a stream ends with its usage
    struct text whole;        // of OpenAI's form, without a stream: the choices so far
    uint64_t created_s, prompt_tokens;
    void *own;
    const struct dialect_end *end; // borrowed, while the answer ends: its last item knows how; NULL before
    struct text logprobs;          // of tokens whose text is still to come: a delta says them, and then the item has them
    struct dialect_item *items;
    uint32_t item_count, item_capacity;
    uint64_t event_count; // that were numbered
    bool begun, item_open, failed, only_loads, only_warms;
};

// Translates the request. On failure *error is in the dialect's own words, and `chat` and `own` are NULL. Takes no reference of the body.
bool dialect_translate(const struct dialect *dialect, struct dialect_ask *ask, struct api_error *error);
// Puts the dialect's name of a field in place of the chat's.
void dialect_rename_field(const struct dialect *dialect, struct api_error *error);
// Frees what the translation left; NULL is allowed.
void dialect_free_own(const struct dialect *dialect, void *own);

// Opens a run of a translated request, which takes over ask->own. Returns NULL when out of memory; `own` then stays the caller's.
struct dialect_run *dialect_run_open(const struct dialect *dialect, struct dialect_ask *ask);
void dialect_run_close(struct dialect_run *run); // NULL is allowed

// Tells what is new of a choice. out: the stream; NULL: the answer is told at the end. Lack of memory sets run->failed.
void dialect_show(struct dialect_run *run, const struct dialect_news *news, struct text *out);
// Takes a piece of the answer. out: the stream; NULL: the answer is told at the end. Lack of memory sets run->failed.
void dialect_push(struct dialect_run *run, const struct dialect_piece *piece, struct text *out);
// Ends the answer: its stream, or all of it.
void dialect_end_stream(struct dialect_run *run, const struct dialect_end *end, struct text *out);
void dialect_end_whole(struct dialect_run *run, const struct dialect_end *end, struct text *out);
void dialect_fail_stream(struct dialect_run *run, const struct api_error *error, struct text *out);

#endif
