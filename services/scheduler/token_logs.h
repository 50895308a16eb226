// token_logs.h: the token log of every sequence that the scheduler knows: its prompt, its generated tokens, the names of its full pages,
// and the call that receives its tokens.
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

// The names of a log's full pages (page_names_extend()).
struct token_log_names {
    struct sched_page_name *of;  // [capacity], owned
    struct sched_page_name root; // the name that stands before the first of them
    uint32_t count, capacity;
};

// Its request, as far as it is needed once the call is gone.
struct token_log_asked {
    uint32_t features;           // of sampling, that it needs (common/mesh/messages.h)
    Fastdecode__Pooling pooling; // what its prompt is pooled to; unspecified: tokens are generated
    bool ignore_eos;
    bool no_drafts; // a token's draw depends on all before it (penalties), so what follows a wrong guess could never be used
};

// Why nothing can be generated for it, from the s-part.
struct token_log_fault {
    char *text;      // owned; NULL: nothing is wrong
    bool of_request; // the request's fields are why
};

struct token_log {
    uint64_t id;                                // 0: empty slot
    struct rpc_call *call;                      // NULL: the client is gone
    const Fastdecode__GenerateRequest *request; // in the call's memory: valid while `call` is
    uint32_t *tokens;                           // [capacity] prompt, then generated; owned
    uint32_t prompt_count, token_count, capacity;
    uint32_t scored; // prompt tokens whose scores have been passed on
    struct token_log_names names;
    struct token_log_asked asked;
    struct token_log_fault fault;
    struct draft draft; // the guess at its next tokens
    uint64_t arrived_us, first_token_us;
    struct sequence_spans *spans; // its entry of token_logs_spans(), on record once it is over; NULL: it is not traced
    bool opened;                  // the s-part has been sent the sequence
    bool over;                    // its stream has ended
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

// --- names of the full pages of a sequence's tokens: sequences with the same beginning have the same names there
//
// A page's name is a keyed hash (SipHash-2-4, 128 bits; libsodium) of the previous page's name and its own tokens. The first page's
// predecessor is a name made of the request's tenant and salt. The key is random and drawn at start, so that nobody outside can
// produce a collision, and no tenant can detect what another has computed.

struct page_names {
    unsigned char key[16];
    uint32_t page_tokens;
    // Only pages of the prompt have names, because generated tokens have attended to a part of their context: their K and V are not
    // those of the same tokens in a prompt.
    bool prompt_only;
};

// Draws the key. UNAVAILABLE: the system provides no random bytes.
enum status page_names_open(struct page_names *names, uint32_t page_tokens, bool prompt_only, struct error *error) MUST_CHECK;

// Returns the name that stands before a log's first page.
struct sched_page_name page_names_root(const struct page_names *names, const char *tenant, const char *salt);

// Names the log's full pages that have no name yet, as far as the log has room for names. Returns how many pages have a name.
uint32_t page_names_extend(const struct page_names *names, struct token_log *log);

#endif
