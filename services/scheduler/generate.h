// generate.h: sequences from the gateways, and tokens back to them. See generate.c.
#ifndef FD_SERVICES_SCHEDULER_GENERATE_H
#define FD_SERVICES_SCHEDULER_GENERATE_H

#include "common/rpc/rpc.h"
#include "common/sched/sched.h"
#include "generate.pb-c.h"
#include "services/scheduler/drafts.h"
#include "services/scheduler/token_logs.h"

struct scheduler;

// All sequences that the scheduler knows, and what is counted of them.
struct sequences {
    struct token_logs *logs;
    uint64_t next_id;             // of a sequence that is not resubmitted; begins behind the incarnation
    size_t grammar_bytes;         // of the requests that the logs still have, at most GRAMMARS_BYTES_MAX
    struct page_names page_names; // with a key that is drawn when the core is opened
    struct draft_odds draft_odds; // of all sequences
    uint64_t expected_us;         // when the s-part's threads were last woken for a request that is yet to come
    uint64_t generated_tokens, prompt_tokens, finished, cancelled; // since the start
};

void generate_handler(struct rpc_call *call, void *user);
void expect_handler(struct rpc_call *call, void *user);
// Tells the sequence's client that it waits or runs, and under which id.
void generate_accepted(struct scheduler *scheduler, uint64_t sequence);
// Passes the last `count` tokens of the log on to its client.
void generate_tokens(struct scheduler *scheduler, struct token_log *log, Fastdecode__Token **tokens, uint32_t count);
void generate_scores(struct token_log *log, uint32_t index, Fastdecode__Token **scores, size_t count);
void generate_pooled(struct token_log *log, const ProtobufCBinaryData *pooled);
void generate_finish(struct scheduler *scheduler, struct token_log *log, enum sched_reason reason, uint32_t cached_tokens);
void generate_reject(struct scheduler *scheduler, struct token_log *log, uint64_t retry_after_us);

#endif
