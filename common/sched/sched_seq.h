// sched_seq.h: what the core remembers of a sequence in the first place: how far it is. Private to common/sched.
//
//                ┌────────────── rebuilt: lost, preempted ◀──────────────┐
//                ▼                                                       │
//   ARRIVE ─▶ WAITING ─▶ PREFILL ─▶ DECODE ──▶ DRAINING ─▶ RELEASING ────┴──▶ FREE
//                            │  ▲      │ ▲      no step in   RELEASE said,
//                            └──┴MOVING┴─┘      flight left  pages not yet free
//                                                    │  ▲
//                                                    └─▶KEPT: over, its pages are there for others
//
// Positions of a sequence: 0 <= held <= next_pos <= known + samples <= limit, where `held` are complete in its place,
// [held, next_pos) are in flight, `known` tokens (prompt + confirmed) exist and `samples` more are being sampled.
// A decode row may have rows of guessed tokens behind it (drafts). The sequence has no other row in flight then: samples counts the
// drafts too, and next_pos goes back to the first that was wrong.
// In DECODE with prompt 10, two steps in flight and three tokens confirmed: known 13, held 12, next_pos 14, samples 2.
#ifndef FD_SCHED_SCHED_SEQ_H
#define FD_SCHED_SCHED_SEQ_H

#include <stdbool.h>
#include <stdint.h>

enum sched_seq_state {
    SCHED_SEQ_FREE = 0,
    SCHED_SEQ_WAITING,   // in the queue; may hold pages (a resubmission that its worker still has)
    SCHED_SEQ_PREFILL,   // in a mini-batch; rows below `target` are left to plan
    SCHED_SEQ_DECODE,    // in a mini-batch; one row a step
    SCHED_SEQ_MOVING,    // being handed over: no rows are planned
    SCHED_SEQ_DRAINING,  // left its mini-batch; waits for the steps in flight, then for the outbox to say RELEASE
    SCHED_SEQ_RELEASING, // RELEASE said; waits for RELEASED
    SCHED_SEQ_KEPT,      // its last RELEASE said, without its pages
};

#define SCHED_SEQ_NO_PLACE UINT16_MAX

// What planning and answers touch, one cache line a sequence. The rest is struct sched_seq_cold (sched_state.h).
struct sched_seq {
    uint64_t id;
    uint32_t epoch;     // grows whenever rows in flight become void
    uint32_t next_pos;  // first position not yet planned
    uint32_t held;      // positions complete in its place
    uint32_t known;     // prompt + confirmed generated tokens
    uint32_t limit;     // prompt + max_new
    uint32_t target;    // rows below it are prefill
    uint32_t pages;     // it has in its place
    uint32_t shared;    // the first of them: named, and counted once for all that have them (sched_prefix.h)
    uint32_t load;      // what it adds to the load of place and mini-batch
    uint32_t member;    // index in its mini-batch's decode array
    uint32_t passes_at; // known tokens at which it comes to the next bucket of lengths
    uint16_t in_flight; // steps that carry rows of it, void ones too
    uint16_t pins;      // sequences that will begin with its pages, and steps in flight that give them: it stays where it is
    uint16_t samples;   // tokens being sampled by valid rows
    uint16_t place;
    uint8_t mini_batch;
    uint8_t state;      // enum sched_seq_state
    bool fenced : 1;    // void rows are still in flight: nothing is planned until they are back
    bool starved : 1;   // needs a page that its place does not have
    bool open : 1;      // its next run carries `open`
    bool scoring : 1;   // prompt rows are scored
    bool gathering : 1; // has no rows yet: more pages may be found
    bool sharing : 1;   // has not got its first pages yet: its first run says from whom
} __attribute__((aligned(64)));
_Static_assert(sizeof(struct sched_seq) == 64, "one cache line");

static inline bool sched_seq_runs(const struct sched_seq *seq)
{
    return seq->state == SCHED_SEQ_PREFILL || seq->state == SCHED_SEQ_DECODE;
}

#endif
