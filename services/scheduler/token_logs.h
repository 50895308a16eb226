// token_logs.h: the token log of every sequence that the scheduler knows: its prompt, its generated tokens, and the call that
// receives them.
//
// A log is enough to rebuild its sequence anywhere. Its memory, for the prompt and the most tokens it may generate, is allocated
// when the sequence arrives, so that a step allocates nothing. Owned by the scheduler's thread.
#ifndef FD_SERVICES_SCHEDULER_TOKEN_LOGS_H
#define FD_SERVICES_SCHEDULER_TOKEN_LOGS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/sched/sched.h"
#include "generate.pb-c.h"
#include "services/scheduler/drafts.h"

struct rpc_call;
struct sequence_spans;

struct token_log {
    uint64_t id;                                // 0: empty slot
    struct rpc_call *call;                      // NULL: the client is gone
    const Fastdecode__GenerateRequest *request; // in the call's memory: valid while `call` is
    uint32_t *tokens;                           // [capacity] prompt, then generated; owned
    uint32_t prompt_count, token_count, capacity;
    struct sched_page_name *names; // [name_capacity] names of its full pages (page_names.h); owned
    struct sched_page_name root;   // the name that stands before the first of them
    uint32_t name_count, name_capacity;
    struct draft draft; // the guess at its next tokens
    bool no_drafts;     // a token's draw depends on all before it (penalties), so what follows a wrong guess could never be used
    uint32_t scored;    // prompt tokens whose scores have been passed on
    uint64_t arrived_us, first_token_us;
    struct sequence_spans *spans; // its entry of token_logs_spans(), on record once it is over; NULL: it is not traced
    char *fault;                  // why nothing can be generated for it, from the s-part; owned; NULL: nothing is wrong
    bool request_fault;           // with `fault`: the request's fields are why
    uint32_t features;            // of sampling, that it needs (common/mesh/messages.h)
    Fastdecode__Pooling pooling;  // what its prompt is pooled to; unspecified: tokens are generated
    bool ignore_eos;
    bool opened; // the s-part has been sent the sequence
    bool over;   // its stream has ended
};

struct token_logs;

// traced: how many of the first logs may have spans.
enum status token_logs_open(uint32_t capacity, uint32_t traced, struct token_logs **out) MUST_CHECK;
void token_logs_close(struct token_logs *logs);

// Adds a log with room for `capacity` tokens and the names of `pages` pages. RESOURCE_EXHAUSTED: too many logs, or no memory.
// ALREADY_EXISTS: the id is in use. The pointer stays valid until token_logs_remove().
enum status token_logs_add(struct token_logs *logs, uint64_t id, uint32_t capacity, uint32_t pages,
                           struct token_log **out) MUST_CHECK;
struct token_log *token_logs_find(struct token_logs *logs, uint64_t id);
// Returns the entry for a traced sequence's spans; NULL: there is none. It is the log's as long as the log is there.
struct sequence_spans *token_logs_spans(struct token_logs *logs, const struct token_log *log);
void token_logs_remove(struct token_logs *logs, uint64_t id);
uint32_t token_logs_count(const struct token_logs *logs);
// Returns the features that sequences need whose clients still wait.
uint32_t token_logs_features(const struct token_logs *logs);

#endif
