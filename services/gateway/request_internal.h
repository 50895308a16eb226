// request_internal.h: what the files of a request share: request.c (life), choice.c (tokens to text), prepare.c (ids).
#ifndef FD_GATEWAY_REQUEST_INTERNAL_H
#define FD_GATEWAY_REQUEST_INTERNAL_H

#include <stdatomic.h>

#include "common/trace/trace.h"
#include "services/gateway/request.h"
#include "services/gateway/respond.h"

enum { ID_BYTES = 128 + 16 };

struct prompt_top {
    uint32_t token;
    float logprob;
};

// A prompt and, for echo, its text and scores. Its n choices share it: each may receive the scores, which are the same.
struct request_prompt {
    uint32_t *ids;
    uint32_t count;
    struct text echo; // the text to show before the choice's own
    // with echo and logprobs
    float *scores;           // [count], index 0 unused; NULL: none wanted
    uint8_t *top_counts;     // [count]; NULL: none wanted
    struct prompt_top *tops; // [count][top_logprobs]
    uint32_t scored_count;   // positions known, counting 0
};

enum choice_state {
    CHOICE_WAITING, // to be submitted (again) when the mesh is ready and retry_us has come
    CHOICE_RUNNING, // call is open
    CHOICE_DONE,
};

struct choice {
    struct request *request;
    struct request_prompt *prompt;
    uint32_t index;  // in the answer's list of choices
    uint32_t number; // among the n choices of its prompt
    enum choice_state state;
    struct mesh_call *call;
    uint64_t sequence; // the scheduler's id; 0: none yet
    uint64_t waiting_since_us, retry_us;
    uint32_t failures; // in a row
    // token log
    uint32_t *generated;
    uint32_t cached_tokens;   // tokens of the prompt whose KV was cached; known at the end
    uint32_t generated_count; // at most max_tokens, for which memory was allocated at start
    // text
    struct language_stream *text_stream;
    struct stop_match stop;
    struct text visible;          // not shown yet (stream), or all of it
    struct shown_tokens logprobs; // like visible
    uint32_t text_chars;          // characters of the tokens so far: the next one's text_offset
    bool echoed;                  // the prompt is in visible
    bool role_sent;
    uint64_t last_token_us;
    const char *finish_reason; // static; set: DONE
    const char *stop_reason;   // in the stop strings, or static
    size_t stop_reason_bytes;
};

struct request {
    struct requests *owner;
    struct request *previous, *next; // in the owner's list
    struct exchange *exchange;
    enum api_kind kind;
    char id[ID_BYTES];
    struct key *key;      // NULL: none was needed
    uint32_t key_waiting; // counted in key->waiting
    char *cache_salt;     // owned; NULL: none
    struct respond_head head;
    bool stream, echo, logprobs, ignore_eos, include_usage;
    Fastdecode__LatencyClass latency_class;
    uint32_t top_logprobs, max_tokens;
    Fastdecode__Sampling sampling; // bias points into bias_items
    Fastdecode__TokenBias *bias_items, **bias;
    struct stop_string stops[API_MAX_STOPS];
    char *stop_bytes; // what stops point into
    uint32_t stop_count;
    struct request_prompt *prompts;
    uint32_t prompt_count;
    struct choice *choices; // prompts x n, by prompt
    uint32_t choice_count, done_count;
    uint64_t start_us, deadline_us; // 0: none
    uint64_t last_write_us;
    bool submitted, first_token_seen;
    uint64_t trace_id; // a number of its own
};

struct requests {
    struct requests_config config;
    struct request *first;                      // loop thread
    struct trace_track *track, *track_requests; // of this thread; of requests, which overlap
    uint64_t trace_ids;
    struct mesh_state state;  // loop thread: as of the last tick
    struct text piece, chunk; // loop thread: scratch for one token and one event; kept, so that a token allocates nothing
    // relaxed: counters
    atomic_uint running, waiting;
};

// prepare.c. The sequences of the request no longer count as waiting in its key's share.
void request_stop_waiting(struct request *request);

// request_answer.c. Each may end and free the request: the caller must not look at it afterwards.
void request_fail(struct request *request, const struct api_error *error);
void request_finish_choice(struct choice *choice, const char *reason, const char *stop_reason); // static texts
// Sends new text of a stream, unless its client is behind. Frees nothing.
void request_show_news(struct choice *choice);
// Takes the request out of the list, cancels its calls and frees it.
void request_drop(struct request *request);

// request_events.c: for mesh_generate(); arg is the choice.
void request_on_event(void *arg, const Fastdecode__GenerateEvent *event);
void request_on_end(void *arg, enum status status, const char *text);
// The choice waits, to be submitted again after a pause.
void request_postpone(struct choice *choice);

// choice.c
bool choice_open(struct choice *choice, const struct language *language);
void choice_close(struct choice *choice);
// Takes the tokens of an event. False: there is a gap between them and the log, or no memory.
bool choice_take(struct choice *choice, const Fastdecode__GenerateEvent *event, const struct language *language);
// Ends the text: what was held back becomes visible.
void choice_finish(struct choice *choice, const char *finish_reason, const char *stop_reason, size_t stop_reason_bytes);
// Appends the chunk(s) of what is visible.
void choice_show(struct choice *choice, struct text *out);
// Whether there is something to show.
bool choice_has_news(const struct choice *choice);

#endif
