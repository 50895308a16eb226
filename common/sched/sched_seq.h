// sched_seq.h: a sequence's state and positions. Private to common/sched.
//
//                ┌────────────── rebuilt: lost, preempted ◀──────────────┐
//                ▼                                                       │
//   ARRIVE ─▶ WAITING ─▶ PREFILL ─▶ DECODE ──▶ DRAINING ─▶ RELEASING ────┴──▶ FREE
//                            │  ▲      │ ▲      no step in   RELEASE said,
//                            └──┴MOVING┴─┘      flight left  pages not yet free
//                                                    │  ▲
//                                                    └─▶KEPT: over, its pages are there for others
//
// Positions of a sequence: 0 <= held <= next_pos <= known + samples <= limit. The first `held` are complete in its place, [held,
// next_pos) are in flight, `known` tokens (prompt + confirmed) exist, and `samples` more are being sampled. A decode row may have
// rows of guessed tokens behind it (drafts). The sequence then has no other row in flight, samples counts the drafts too, and
// next_pos goes back to the first wrong draft.
// In DECODE with prompt 10, two steps in flight and three tokens confirmed: known 13, held 12, next_pos 14, samples 2.
#ifndef FD_SCHED_SCHED_SEQ_H
#define FD_SCHED_SCHED_SEQ_H

#include <stdbool.h>
#include <stdint.h>

enum sched_seq_state {
    SCHED_SEQ_FREE = 0,
    SCHED_SEQ_WAITING,   // in the queue; may hold pages (a resubmission whose KV a worker still has)
    SCHED_SEQ_PREFILL,   // in a mini-batch; rows below `target` are left to plan
    SCHED_SEQ_DECODE,    // in a mini-batch; one row a step
    SCHED_SEQ_MOVING,    // being handed over: no rows are planned
    SCHED_SEQ_DRAINING,  // left its mini-batch; waits for the steps in flight, then for RELEASE to be emitted
    SCHED_SEQ_RELEASING, // RELEASE is emitted; waits for RELEASED
    SCHED_SEQ_KEPT,      // its last RELEASE is emitted, but its pages are kept
    SCHED_SEQ_EXTENT,    // no sequence, but an extent of one that is split (sched_extent.h)
};

#define SCHED_SEQ_NO_PLACE UINT16_MAX

// The fields that planning and answers use, one cache line per sequence. The rest is in struct sched_seq_cold (sched_state.h).
struct sched_seq {
    uint64_t id;
    uint32_t epoch;     // grows whenever rows in flight become void
    uint32_t next_pos;  // first position not yet planned
    uint32_t held;      // positions complete in its place
    uint32_t known;     // prompt + confirmed generated tokens
    uint32_t limit;     // prompt + max_new
    uint32_t target;    // rows below it are prefill
    uint32_t pages;     // pages that it has in its place
    uint32_t shared;    // how many of them, the first ones, are named and counted once for all their holders (sched_prefix.h)
    uint32_t load;      // what it adds to the load of place and mini-batch
    uint32_t member;    // index in its mini-batch's decode array
    uint32_t passes_at; // value of `known` at which it reaches the next bucket of lengths
    uint16_t in_flight; // number of steps in flight with rows of it, including void rows
    uint16_t pins;      // number of sequences about to begin with its pages, and of steps that give them: if not 0, it may not move
    uint16_t samples;   // number of tokens being sampled by valid rows
    uint16_t place;
    uint8_t mini_batch;
    uint8_t state;      // enum sched_seq_state
    uint8_t class;      // enum sched_class
    bool fenced : 1;    // void rows are still in flight: nothing is planned until they are answered
    bool starved : 1;   // it needs a page that its place does not have
    bool open : 1;      // its next run carries `open`
    bool scoring : 1;   // prompt rows are scored
    bool gathering : 1; // it has no rows yet and may find more pages
    bool split : 1;     // it has extents: `pages` and `load` are its tail's
    bool aside : 1;     // its rows in flight are in steps that go aside: no other step has any until those are back
    bool sharing : 1;   // it does not have its first pages yet; its first run names their source
} __attribute__((aligned(64)));
_Static_assert(sizeof(struct sched_seq) == 64, "one cache line");

static inline bool sched_seq_runs(const struct sched_seq *seq)
{
    return seq->state == SCHED_SEQ_PREFILL || seq->state == SCHED_SEQ_DECODE;
}

#endif
