// request_internal.h: what the files of a request share: prepare.c (from a parsed body to ids), pooled.c (vectors and ranks), request.c (life
// cycle), choice.c (tokens to text), answer.c (what the dialect is given to tell).
#ifndef FD_GATEWAY_REQUEST_REQUEST_INTERNAL_H
#define FD_GATEWAY_REQUEST_REQUEST_INTERNAL_H

#include <stdatomic.h>

#include "common/trace/trace.h"
#include "services/gateway/api/dialects/dialect.h"
#include "services/gateway/request/request.h"

enum {
    POOLED_AT_ONCE = 32, // prompts of a request to be pooled that the mesh has at a time: other requests' come between
};

struct prompt_top {
    uint32_t token;
    float logprob;
};

// A prompt and, for echo, its text and scores. Its n choices share it; the scores may arrive with any of them and are the same.
struct request_prompt {
    uint32_t *ids;
    uint32_t count;
    struct text echo; // the prompt's text, shown before the choice's own
    // with echo and logprobs, or prompt_logprobs
    float *scores;           // [count], index 0 unused; NULL: not asked for
    uint8_t *top_counts;     // [count]; NULL: not asked for
    struct prompt_top *tops; // [count][the request's prompt_tops]
    uint32_t scored_count;   // number of positions known, including position 0
};

enum choice_state {
    CHOICE_WAITING, // to be submitted, or submitted again, when the mesh is ready and retry_us has passed
    CHOICE_RUNNING, // call is open
    CHOICE_DONE,
};

// The call of the mesh that a choice waits for.
struct choice_call {
    struct mesh_call *open; // NULL: none is
    uint64_t sequence;      // the scheduler's id; 0: it has not accepted it yet
    uint64_t waiting_since_us, retry_us;
    uint32_t failures;    // consecutive failed submissions
    uint32_t acceptances; // since anything came but that it is accepted
};

// Its tokens: enough to submit it again.
struct choice_log {
    uint32_t *generated;
    uint32_t generated_count; // at most max_tokens, for which memory was allocated at start
    uint32_t cached_tokens;   // tokens of the prompt whose KV was cached; known at the end
    uint32_t reasoning_tokens;
    double logprob_sum; // of the generated tokens, if they are asked for
    uint64_t last_token_us;
};

// The text of its tokens, and how much of it has been shown.
struct choice_text {
    struct language_stream *stream;
    struct stop_match stop;
    struct text visible;        // stream: text not sent yet; otherwise all text so far
    struct shown_tokens scores; // like visible
    uint32_t chars;             // characters of the tokens so far, which is the next token's text_offset
    bool echoed;                // the prompt is in visible
    bool role_sent, prompt_ids_shown;
    uint32_t ids_shown; // of the generated ones
};

struct choice_end {
    const char *finish_reason; // static; not NULL once the state is CHOICE_DONE
    const char *stop_reason;   // points into the stop strings, or to static text
    size_t stop_reason_bytes;
    int64_t stop_token; // one of stop_token_ids that has ended it; -1: none
};

struct choice {
    struct request *request;
    struct request_prompt *prompt;
    uint32_t index;  // in the answer's list of choices
    uint32_t number; // among the n choices of its prompt
    enum choice_state state;
    struct choice_call call;
    struct choice_log log;
    struct choice_text text;
    struct choice_answer *answer; // splits the text into what is thought, said and called; NULL: all of it is content
    struct choice_end end;
    float *pooled; // [hidden], or the outputs of the head: what its prompt was pooled to; NULL: nothing yet
};

// How much the client is shown, and of which choices (answer.c).
struct request_shown {
    bool stream, echo, logprobs;
    uint32_t top_logprobs;
    bool include_stop;    // the stop string that ended the text is part of it
    bool token_ids;       // of prompts and choices
    bool tokens_as_ids;   // tokens with log-probabilities have the names "token_id:N"
    bool usage_in_chunks; // of a stream
    bool prompt_logprobs; // of all of the prompt, in a list of its own
    uint32_t prompt_tops; // alternatives of each of its tokens
    uint32_t best_of, n;  // choices that are made of a prompt, and how many of those are shown
};

// Whom it is for, and what that counts.
struct request_client {
    struct exchange *exchange; // held
    struct key *key;           // NULL: none was needed
    uint32_t key_waiting;      // how many of this request's sequences key->waiting counts
    struct key_grant grant;    // until it is settled
    bool settled;
    char *cache_salt; // owned; NULL: no salt
};

// How its tokens are drawn, and where that ends.
struct request_draw {
    Fastdecode__Sampling sampling;  // owns its lists, but for end_token; its bias entries point into bias_items
    struct packed_grammar *grammar; // of sampling; NULL: none
    Fastdecode__TokenBias *bias_items, **bias;
    uint32_t features; // of the mesh that it needs (common/mesh/messages.h)
    uint32_t max_tokens;
    bool ignore_eos;
    struct stop_string stops[API_MAX_STOPS];
    char *stop_bytes; // what stops point into
    uint32_t stop_count;
};

// How its answers are read: reasoning and calls.
struct request_reading {
    struct language_notation notation;
    bool reasoning_is_open, include_reasoning, one_call, must_call;
    struct json_t *tools;        // owned; NULL: none may be called
    struct json_t *custom_tools; // owned: of api_chat; NULL: there are none
};

// With `pooling` its prompts are pooled, and nothing is generated.
struct request_pool {
    const struct language_pooling *pooling; // NULL: its prompts are answered
    bool base64, return_documents, scales;  // scales: vectors have length 1 whatever the model says
    bool is_cut;                            // vectors have fewer values than the model's
    uint32_t dimensions, top_n;             // top_n 0: all
};

struct request_times {
    uint64_t start_us, deadline_us;         // 0: none
    uint64_t last_write_us, first_token_us; // 0: none yet
    bool submitted, first_token_seen;
    uint64_t trace_id; // unique number of this request in the trace
};

struct request {
    struct requests *owner;
    struct request *previous, *next; // in the owner's list
    enum api_kind kind;
    Fastdecode__LatencyClass latency_class;
    struct request_client client;
    struct request_draw draw;
    struct request_reading reading;
    struct request_shown shown;
    struct request_pool pool;
    struct request_times times;
    struct dialect_run *run; // owned: tells the answer
    struct request_prompt *prompts;
    uint32_t prompt_count;
    uint32_t prompt_tops;   // alternatives that are kept of each token of the prompts
    struct choice *choices; // [choice_count] the n choices of each prompt in turn
    uint32_t choice_count, done_count;
};

struct requests {
    struct requests_config config;
    struct request *first;                      // loop thread
    struct trace_track *track, *track_requests; // track: of this thread; track_requests: of requests, which overlap
    uint64_t trace_ids;
    struct grammars *grammars;     // any thread
    struct mesh_state state;       // loop thread: as of the last tick
    struct text extra, head_extra; // loop thread: fields of a choice and beside it, until they are shown
    struct text piece, chunk;      // loop thread: scratch for one token and one event; kept, so that a token allocates nothing
    // relaxed: counters. [1]: of latency class batch
    atomic_uint running[2], waiting[2];
    bool ended;             // loop thread: see requests_end()
    struct request *refill; // loop thread: a choice of it has ended, and the next may be submitted; NULL: none
};

static inline bool request_is_batch(const struct request *request)
{
    return request->latency_class == FASTDECODE__LATENCY_CLASS__LATENCY_CLASS_BATCH;
}

// Returns how many choices may have been submitted by now: all, or those of prompts that are pooled and POOLED_AT_ONCE more.
static inline uint32_t request_begun_count(const struct request *request)
{
    return request->pool.pooling && request->choice_count - request->done_count > POOLED_AT_ONCE
               ? request->done_count + POOLED_AT_ONCE
               : request->choice_count;
}

// pooled.c. Makes the prompts of /v1/embeddings and /v1/rerank, and fills in what the answer needs. limit: max_request_tokens.
bool request_prepare_pool(struct api_request *api, const struct language *language, uint32_t context, uint32_t limit,
                          struct request *request, struct api_error *error);

// Copies what the mesh sends. False: it is none, or no memory.
bool choice_take_pooled(struct choice *choice, const ProtobufCBinaryData *pooled);
// Renders the whole answer; all choices have theirs.
void request_answer_pool(const struct request *request, const struct dialect_end *end, struct text *out);

// Whether the choice is over without what its prompt is to be pooled to, so that there is nothing to answer with.
static inline bool choice_lacks_pooled(const struct choice *choice) { return choice->request->pool.pooling && !choice->pooled; }

// answer.c. Counts what the request has had so far.
struct dialect_usage request_usage(const struct request *request);
// Appends what is new of a choice to a stream, the end of a stream, or the whole answer.
void request_show(struct choice *choice, struct text *out);
void request_answer_end(const struct request *request, struct text *out);
void request_answer(struct request *request, struct text *out);

// prepare.c. Says what the request has had, and gives back what its key's limits lent it beyond that: before its answer ends, because
// the next request may come with it. Does nothing the second time.
void request_settle(struct request *request);

// prepare.c. Stops counting the request's sequences as waiting in its key's share.
void request_stop_waiting(struct request *request);

// choice.c. Sets how answers to the request are read, and keeps what that needs of its tools.
void request_set_notation(const struct api_request *api, const struct language *language, struct request *request);
void request_free_notation(struct request *request);
// Returns what the answer has beside its content, and how much of it is shown: who shows more says so there. NULL: nothing.
struct shown_answer *choice_answer_shown(const struct choice *choice);

// choice.c
// Returns whether its text has ended: by a stop string, or by the one call that was allowed.
bool choice_is_cut(const struct choice *choice);
// Returns whether its last token has ended it, so that there is nothing more to come.
bool choice_is_over(const struct choice *choice, const struct language *language);
bool choice_open(struct choice *choice, const struct language *language);
void choice_close(struct choice *choice);
// Appends the tokens of an event to the log. OUT_OF_RANGE: they leave a gap after the log, or cannot be; it may be submitted again.
// RESOURCE_EXHAUSTED: no memory; a part of its text is lost.
enum status choice_take(struct choice *choice, const Fastdecode__GenerateEvent *event, const struct language *language);
// Returns whether a part of its text is lost for lack of memory: it cannot be answered any more.
bool choice_lacks_memory(const struct choice *choice);
// Ends the text; text that was held back becomes visible.
void choice_finish(struct choice *choice, const char *finish_reason, const char *stop_reason, size_t stop_reason_bytes);
// Returns whether there is something to show.
bool choice_has_news(const struct choice *choice);

#endif
