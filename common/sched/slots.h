// slots.h: the sequences' slots: state and positions of each, which id is in which, and the lists that slots are in: the queue of those that
// wait, their deadlines, the outbox. Private to common/sched.
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
#ifndef FD_SCHED_SLOTS_H
#define FD_SCHED_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/sched/sched.h"

enum sched_seq_state {
    SCHED_SEQ_FREE = 0,
    SCHED_SEQ_WAITING,   // in the queue; may hold pages (a resubmission whose KV a worker still has)
    SCHED_SEQ_PREFILL,   // in a mini-batch; rows below `target` are left to plan
    SCHED_SEQ_DECODE,    // in a mini-batch; one row a step
    SCHED_SEQ_MOVING,    // being handed over: no rows are planned
    SCHED_SEQ_DRAINING,  // left its mini-batch; waits for the steps in flight, then for RELEASE to be emitted
    SCHED_SEQ_RELEASING, // RELEASE is emitted; waits for RELEASED
    SCHED_SEQ_KEPT,      // its last RELEASE is emitted, but its pages are kept
    SCHED_SEQ_EXTENT,    // no sequence, but an extent of one that is split (extent.h)
};

#define SCHED_SEQ_NO_PLACE UINT16_MAX

// The fields that planning and answers use, one cache line per sequence. The rest is in struct sched_seq_cold (state.h).
struct sched_seq {
    uint64_t id;
    uint32_t epoch;     // grows whenever rows in flight become void
    uint32_t next_pos;  // first position not yet planned
    uint32_t held;      // positions complete in its place
    uint32_t known;     // prompt + confirmed generated tokens
    uint32_t limit;     // prompt + max_new
    uint32_t target;    // rows below it are prefill
    uint32_t pages;     // pages that it has in its place
    uint32_t shared;    // how many of them, the first ones, are named and counted once for all their holders (prefix.h)
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

// --- ids ------------------------------------------------------------------------------------------------------------

#define NONE UINT32_MAX // no slot, no place, no node: the same for all 32-bit indices in the core

struct sched_ids {
    uint32_t *free_slots; // stack
    uint32_t free_count;
    uint32_t *map; // [map_mask + 1] slots by id; NONE: empty
    uint32_t map_mask;
};

// Returns the slot of an id; NONE: it is unknown.
uint32_t sched_ids_find(const struct sched *s, uint64_t id);
uint32_t sched_ids_take(struct sched *s, uint64_t id);    // gives the id a free slot; there must be one
void sched_ids_give_back(struct sched *s, uint32_t slot); // frees the slot and forgets its id
// The same for slots that no id is looked up for.
uint32_t sched_ids_take_nameless(struct sched *s);
void sched_ids_give_back_nameless(struct sched *s, uint32_t slot);

// --- queue and deadlines --------------------------------------------------------------------------------------------

// A binary min-heap of slots by a 64-bit key, from which any slot can be taken out.
#define SCHED_HEAP_ABSENT UINT32_MAX

struct sched_heap_entry {
    uint64_t key;
    uint32_t slot;
};

struct sched_heap {
    struct sched_heap_entry *entries; // [count of capacity]
    uint32_t *where;                  // [capacity]: index of a slot's entry, or SCHED_HEAP_ABSENT
    uint32_t count, capacity;
};

void sched_heap_push(struct sched_heap *heap, uint32_t slot, uint64_t key); // the slot must be absent
void sched_heap_remove(struct sched_heap *heap, uint32_t slot);             // absent: nothing

static inline bool sched_heap_has(const struct sched_heap *heap, uint32_t slot) { return heap->where[slot] != SCHED_HEAP_ABSENT; }

struct sched_queue {
    struct sched_heap waiting; // interactive sequences first; of a class, those to be rebuilt first, then by arrival
    struct sched_heap deadlines;
    uint32_t count[SCHED_CLASSES]; // how many are in `waiting`
    uint32_t fresh[SCHED_CLASSES]; // how many of these were never placed
    uint64_t known[SCHED_CLASSES]; // tokens of theirs that exist, which are prefilled once they are placed
    uint64_t arrivals;
    double lifetime_us[SCHED_CLASSES]; // mean time from placement to end, smoothed
};

void sched_queue_add(struct sched *s, uint32_t slot);
void sched_queue_remove(struct sched *s, uint32_t slot); // does nothing if it is not in the queue

// --- outbox ---------------------------------------------------------------------------------------------------------

// The outbox is a queue of sequences, not of messages: each has flags for the actions still to be emitted. So its size is bounded
// by max_sequences, and actions that do not fit into this call simply stay queued. sched.c empties it.
//
// A sequence's part:
struct sched_outbox_link {
    uint32_t next;
    bool queued, finished, release, kept, move; // actions to be emitted
    bool last_said;                             // its last RELEASE was emitted
};

struct sched_outbox {
    uint32_t head, tail;
    struct sched_action *actions; // actions of the call in progress
    size_t count, capacity;
};

// Adds an action to this call's. NULL: there is no room.
struct sched_action *sched_outbox_action(struct sched *s, enum sched_action_kind kind);
void sched_outbox_add(struct sched *s, uint32_t slot);     // queues a sequence that has an action to be emitted
void sched_outbox_release(struct sched *s, uint32_t slot); // queues its RELEASE
void sched_outbox_remove(struct sched *s, uint32_t slot);  // takes it out of the queue, with its flags as they are; O(outbox)

#endif
