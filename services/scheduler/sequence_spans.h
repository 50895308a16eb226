// sequence_spans.h: what is put on record of a traced sequence (common/trace): its time in the queue, its prefill, its decoding.
//
//     arrives ──queue──▶ first step sent ──prefill──▶ first token ······▶ finished
//                                  first step for a second token sent ──decode──▶
//
// Steps are planned ahead, so decoding begins, for the s-part too, before the first token is here. The ids of the spans are made when the
// sequence arrives, because the s-part's spans are their children. Entries are allocated at start; only traced sequences touch theirs.
#ifndef FD_SERVICES_SCHEDULER_SEQUENCE_SPANS_H
#define FD_SERVICES_SCHEDULER_SEQUENCE_SPANS_H

#include "common/rpc/rpc.h"
#include "common/sched/sched.h"
#include "common/trace/otlp.h"
#include "common/trace/otlp_span.h"
#include "step.pb-c.h"

struct sequence_spans {
    struct otlp_context request;                                // the gateway's span
    unsigned char wire[OTLP_SEQUENCE_BYTES];                    // SequenceOpen.trace
    char state[OTLP_STATE_BYTES];                               // tracestate; "": none
    uint64_t arrived_ns, prefill_ns, first_token_ns, decode_ns; // 0: not yet
    uint32_t prefill_rows, prefill_steps, steps, drafted, drafts_right;
    uint32_t known;   // tokens when it arrived
    bool sample_sent; // a step that samples its first token has been sent
    bool opened;      // the s-part has been sent the token log
    bool paused;      // its pages were given up, and it has no rows since
    uint32_t event_count, events_dropped;
    struct otlp_event events[OTLP_EVENTS_MAX];
    uint64_t places[SCHED_PLACES_MAX / 64 + 1]; // a bit a place that had rows of it
};

// Begins the record of a sequence if its call is traced. False: it is not, and *spans is unchanged.
bool sequence_spans_begin(struct otlp *otlp, const struct rpc_call *call, uint32_t known_tokens, struct sequence_spans *spans);

// A step with rows of it is about to be sent.
void sequence_spans_sent(struct sequence_spans *spans, const struct sched_run *run);
// A step was answered with so many tokens of it; drafts_right: how many of them had been guessed.
void sequence_spans_answered(struct sequence_spans *spans, uint32_t drafts_right);
// Its pages are given up, and it goes on later; or they are handed over to another place.
void sequence_spans_paused(struct sequence_spans *spans);
void sequence_spans_moved(struct sequence_spans *spans, uint32_t to);

// The sequence is over: puts its spans on record. why: a static text. tokens: of its log.
void sequence_spans_end(struct otlp *otlp, struct sequence_spans *spans, uint64_t sequence, uint32_t tokens, uint32_t cached_tokens,
                        const char *why, bool failed);

static inline bool sequence_spans_has_place(const struct sequence_spans *spans, uint32_t place)
{
    return spans->places[place / 64] >> place % 64 & 1;
}

#endif
