// state.h: the core's whole state, composed of the parts of its rooms. Private to common/sched.
//
// These are the rooms, lowest layer first. A room may use those that precede it in this list, never one that follows
// (tests/lint/sched_rooms.sh):
//
//   lengths         how long sequences live
//   slots           a sequence's positions and state; slots and ids; the queue, deadlines, the outbox
//   batch           mini-batches and their steps in flight
//   place           places: page ledger and load; what is reserved for sequences on their way
//   prefix          pages that sequences share, and pages kept for later ones
//   extent          sequences that are split over several places
//   step_time       how long a step takes: the formula, the s-part's part of it, and how fast places read
//   load            the load to come, and which sequences may start
//   choice          local pool, workers, or both; the choice of a place
//   sequence        a sequence's moves between states
//   split           where the parts of a split sequence go
//   chunk, draft    rows of a step that are prefill, or guessed
//   balance         how many mini-batches are in use; moves between them, between workers, to the local pool and back
//   admit           waiting -> running; what to do when pages run out; drains
//   event           what each event changes, and what is learned from a step
//   plan            the rows of one step
//   sched           the tick, the queries; init: memory
//
// Beside them stage is for s-parts and the simulator, too.
#ifndef FD_SCHED_STATE_H
#define FD_SCHED_STATE_H

#include "common/base/checked.h"
#include "common/sched/balance.h"
#include "common/sched/batch.h"
#include "common/sched/choice.h"
#include "common/sched/chunk.h"
#include "common/sched/draft.h"
#include "common/sched/extent.h"
#include "common/sched/load.h"
#include "common/sched/place.h"
#include "common/sched/prefix.h"
#include "common/sched/sched.h"
#include "common/sched/slots.h"
#include "common/sched/step_time.h"
#include "common/sched/tuning.h"

// The rest of a sequence, by room. Fields of no other room are sched_sequence's.
struct sched_seq_cold {
    uint64_t arrival; // order of arrival, all interactive ones first: the last is the first to give way
    uint64_t admitted_us;
    uint32_t prompt;
    uint32_t scored; // prompt positions whose scores came back
    uint8_t reason;  // enum sched_reason
    bool rebuild;    // goes to the front of the queue
    bool over;       // finished: leaves for good
    struct sched_outbox_link out;
    struct sched_batch_link batch;
    struct sched_place_link place;
    struct sched_move_link move;
    struct sched_prefix_link prefix;
    struct sched_extent_link extent;
    struct sched_load_link load;
};

struct sched {
    struct sched_config config;
    uint64_t now_us;
    struct sched_stats stats;
    bool unsettled; // the last tick ended before everything was done

    struct sched_s_part {
        bool up, on_device, rows_alike, takes_aside, takes_extents, pool_takes_extents;
        uint32_t rows_max; // the most rows of a step with the s-part that is up
    } s_part;

    struct sched_seq *seqs;      // [max_sequences + max_kept] by slot
    struct sched_seq_cold *cold; // likewise
    // Numbers of sequences: in a mini-batch or between two; leaving, with pages not free yet; those of the latter to be rebuilt.
    uint32_t running[SCHED_CLASSES], retiring, coming_back[SCHED_CLASSES];

    struct sched_ids ids;
    struct sched_outbox outbox;
    struct sched_queue queue;
    struct sched_batches batches;
    struct sched_places places;
    struct sched_moves moves;
    struct sched_prefix prefix;
    struct sched_extents extents;
    struct sched_times time;
    struct sched_load load;
    struct sched_overlap overlap[SCHED_CLASSES];
    struct sched_chunk chunk[SCHED_CLASSES];
    struct sched_micro_batches micro_batches[SCHED_CLASSES];
    struct sched_draft drafts[SCHED_MINI_BATCHES_MAX];
    struct sched_balance balance;
    struct sched_migrate migrate;
};

// Returns the class whose sequences all policies look at: interactive ones, unless only others run.
static inline enum sched_class sched_leading_class(const struct sched *s)
{
    return s->running[SCHED_CLASS_INTERACTIVE] == 0 && s->running[SCHED_CLASS_BATCH] > 0 ? SCHED_CLASS_BATCH
                                                                                         : SCHED_CLASS_INTERACTIVE;
}

// Returns whether sequences run that go before those of that class.
static inline bool sched_class_waits(const struct sched *s, enum sched_class class)
{
    return class == SCHED_CLASS_BATCH && s->running[SCHED_CLASS_INTERACTIVE] > 0;
}

// Counts what a class sees: its own sequences, and those of classes that go before it.
static inline uint32_t sched_class_sum(const uint32_t *of /* [SCHED_CLASSES] */, enum sched_class class)
{
    return of[SCHED_CLASS_INTERACTIVE] + (class == SCHED_CLASS_BATCH ? of[SCHED_CLASS_BATCH] : 0);
}

// Returns how many sequences wait for their first token, as a class sees it: in the queue, and in prefill.
static inline uint32_t sched_waiting(const struct sched *s, enum sched_class class)
{
    uint32_t waiting = sched_class_sum(s->queue.count, class);
    for (uint32_t m = 0; m < s->config.mini_batches; m++)
        waiting += s->batches.of[m].of[class].prefill_count;
    return waiting;
}

// Returns the sequences of its class in its mini-batch.
static inline struct sched_group *sched_group_of(struct sched *s, const struct sched_seq *seq)
{
    return &s->batches.of[seq->mini_batch].of[seq->class];
}

// These are inline because planning and answers call them for every row, and here because they need all of struct sched.

// Returns how many pages a sequence with `positions` positions has.
static inline uint32_t sched_place_pages(const struct sched *s, uint32_t positions)
{
    uint32_t pages = positions / s->config.page_tokens + (positions % s->config.page_tokens != 0);
    return s->config.ring_pages != 0 ? MIN(pages, s->config.ring_pages) : pages;
}

// Returns whether the sequence needs no further page: its next one is its oldest, which no other sequence has.
static inline bool sched_seq_rolls(const struct sched *s, const struct sched_seq *seq)
{
    return s->config.ring_pages != 0 && seq->pages >= s->config.ring_pages && seq->shared == 0;
}

// Returns the sequence's place; NULL: it has none.
static inline struct sched_place *sched_place_of(struct sched *s, const struct sched_seq *seq)
{
    return seq->place == SCHED_SEQ_NO_PLACE ? NULL : &s->places.of[seq->place];
}

// Returns the first position that the sequence's own place holds. Without extents the sequence's cold line stays unread, as below.
static inline uint32_t sched_seq_first(const struct sched *s, const struct sched_seq *seq)
{
    return seq->split ? s->cold[seq - s->seqs].extent.first : 0;
}

// Returns the first position behind those that there are pages for where its next row is written.
static inline uint64_t sched_seq_room_end(const struct sched *s, const struct sched_seq *seq)
{
    if (seq->split)
        return sched_extent_room_end(s, (uint32_t)(seq - s->seqs), seq->next_pos);
    return sched_seq_rolls(s, seq) ? UINT64_MAX : (uint64_t)seq->pages * s->config.page_tokens;
}

// Returns whether no rows of the sequence may be planned at present.
static inline bool sched_place_blocks(const struct sched *s, const struct sched_seq *seq)
{
    return seq->fenced || s->places.of[seq->place].suspect_until_us > s->now_us || (seq->split && sched_extent_blocks(s, seq));
}

// Returns whether new sequences may be placed there: the place is up, not draining, suspect or avoided, and no sequence there lacks
// a page.
static inline bool sched_place_takes(const struct sched *s, const struct sched_place *place)
{
    return place->up && !place->draining && place->starved == 0 && MAX(place->suspect_until_us, place->avoid_until_us) <= s->now_us;
}

// Returns whether config.placement allows the place.
static inline bool sched_place_permitted(const struct sched *s, const struct sched_place *place)
{
    return s->config.placement == SCHED_PLACE_AUTO ||
           (place->kind == SCHED_LOCAL_POOL) == (s->config.placement == SCHED_PLACE_LOCAL);
}

// The parts of a tick, beside moves (balance.h): taking events, resolving shortages of pages, emptying places that drain, letting waiting
// sequences in, and planning steps.
void sched_event_apply(struct sched *s, const struct sched_event *event);
bool sched_shortage_resolve(struct sched *s); // returns true if it has begun to free pages
void sched_shortage_drain(struct sched *s);   // hands over the sequences of draining places
void sched_admit(struct sched *s);            // from the queue into mini-batches
void sched_plan(struct sched *s);             // emits as many steps of each mini-batch as may be in flight

#endif
