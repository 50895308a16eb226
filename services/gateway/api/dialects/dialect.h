// dialect.h: other forms of the API. A request in one of them is translated to a chat request, which goes the way of all others, and its
// answer is told in the form's own words.
//
//   body ──translate()──▶ chat request ──▶ … ──▶ pieces of the answer ──dialect_push()──▶ items ──begin, item_*, delta, end──▶ events
//                                                                                          └─────whole─────▶ one JSON object
//
// A piece is some text, some reasoning, or a part of a call of a tool. Neighbours of one kind make an item; the run keeps the items, since
// most forms repeat them whole at the end. Example, two pieces "It" and "'s 4." in the form of OpenAI's responses: response.created,
// output_item.added, content_part.added, output_text.delta twice, output_text.done with "It's 4.", …, response.completed.
//
// Neither HTTP nor the mesh is known here. A run belongs to one request and is used by one thread at a time.
#ifndef FD_GATEWAY_API_DIALECTS_DIALECT_H
#define FD_GATEWAY_API_DIALECTS_DIALECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "services/gateway/http/api_error.h"
#include "services/gateway/api/schema/schema.h"

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

struct dialect_end {
    const char *finish_reason; // "stop", "length", "tool_calls", or "load": nothing was to be generated
    const char *stop_string;   // the one that ended the text; NULL: none did
    size_t stop_bytes;
    uint64_t prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens;
    uint64_t total_us, prompt_us; // since the request came: until now, and until the first token
};

// A request as it came, and what it is translated to.
struct dialect_ask {
    const struct json_t *body;
    const char *tenant, *request_id;
    struct response_store *store; // NULL: answers are not kept
    struct json_t *chat;          // out: the request's object; a reference of the caller's
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
    // Fills `chat`, and `own` if there is anything to keep. Returns false with *error set; `chat` and `own` are then NULL.
    bool (*translate)(struct dialect_ask *ask, struct api_error *error);
    // Each appends what the client is sent, maybe nothing. NULL: nothing is sent.
    void (*begin)(struct dialect_run *run, struct text *out);
    void (*item_begin)(struct dialect_run *run, const struct dialect_item *item, struct text *out);
    void (*delta)(struct dialect_run *run, const struct dialect_item *item, const char *data, size_t bytes, struct text *out);
    void (*item_end)(struct dialect_run *run, const struct dialect_item *item, struct text *out);
    void (*end)(struct dialect_run *run, const struct dialect_end *end, struct text *out);
    void (*error)(struct dialect_run *run, const struct api_error *error, struct text *out); // the last event of a stream
    void (*whole)(struct dialect_run *run, const struct dialect_end *end, struct text *out); // an answer without a stream
    // An answer of vectors, each JSON, with commas between them.
    void (*vectors)(struct dialect_run *run, const struct dialect_end *end, const struct text *vectors, struct text *out);
    void (*refuse)(const struct api_error *error, struct text *out); // an error as a whole answer
    void (*tokens)(uint32_t count, struct text *out);                // instead of an answer: how long the prompt is
    void (*free_own)(void *own);
};

struct dialect_run {
    const struct dialect *dialect;
    char id[DIALECT_ID_BYTES];
    const char *model; // borrowed
    uint64_t created_s, prompt_tokens;
    void *own;
    const struct dialect_end *end; // borrowed, while the answer ends: its last item knows how; NULL before
    struct text logprobs;          // of tokens whose text is still to come: a delta says them, and then the item has them
    struct dialect_item *items;
    uint32_t item_count, item_capacity;
    uint64_t event_count; // that were numbered
    bool begun, item_open, failed, only_loads, only_warms;
};

// Translates the request. On failure *error is in the dialect's own words. Takes no reference of the body.
bool dialect_translate(const struct dialect *dialect, struct dialect_ask *ask, struct api_error *error);
// Puts the dialect's name of a field in place of the chat's.
void dialect_rename_field(const struct dialect *dialect, struct api_error *error);
// Appends an error as a whole answer. dialect: NULL: in OpenAI's form.
void dialect_append_error(const struct dialect *dialect, const struct api_error *error, struct text *out);
// Frees what the translation left; NULL is allowed.
void dialect_free_own(const struct dialect *dialect, void *own);

// Opens a run, which takes over ask->own. Returns NULL when out of memory; `own` then stays the caller's.
struct dialect_run *dialect_run_open(const struct dialect *dialect, struct dialect_ask *ask);
void dialect_run_close(struct dialect_run *run); // NULL is allowed

// Takes a piece of the answer. out: the stream; NULL: the answer is told at the end. Lack of memory sets run->failed.
void dialect_push(struct dialect_run *run, const struct dialect_piece *piece, struct text *out);
// Returns whether the last piece belongs to a call, which more pieces may continue as long as no other item begins.
bool dialect_is_in_call(const struct dialect_run *run, uint32_t *call);
// Ends the answer: its stream, or all of it.
void dialect_end_stream(struct dialect_run *run, const struct dialect_end *end, struct text *out);
void dialect_end_whole(struct dialect_run *run, const struct dialect_end *end, struct text *out);
void dialect_fail_stream(struct dialect_run *run, const struct api_error *error, struct text *out);

// Finishes an item's or an answer's list: appends a comma before all but the first.
static inline void dialect_comma(struct text *out, bool first)
{
    if (!first)
        text_append(out, ",", 1);
}

#endif
