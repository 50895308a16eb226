// sched_state.h: the whole of the core's state, put together of its rooms' parts. Private to common/sched.
//
// The rooms, lowest first. A room may use those above it in this list, never one below (tests/lint/sched_rooms.sh):
//
//   sched_seq, sched_ids       a sequence's positions and state; slots and ids
//   sched_outbox               the sequences about which something is to be said
//   sched_queue                the sequences that wait, and deadlines (sched_heap)
//   sched_batch                mini-batches and their steps in flight
//   sched_place                places: page ledger and load
//   sched_move                 what is reserved for those on their way
//   sched_prefix               pages that sequences share, and those kept for others to come (sched_prefix_tree)
//   sched_time                 how long a step takes: the formula, and the s-part's part of it (sched_curve)
//   sched_speed                how fast places read
//   sched_load                 the load to come, and what may start (sched_lengths, sched_survival)
//   sched_choice               the choice of a place
//   sched_overlap              local pool, workers, or both
//   sched_sequence             a sequence's moves between states
//   sched_chunk, sched_draft   rows of a step that are prefill, or guessed
//   sched_batch_count          one mini-batch in use, or more
//   sched_handover             the terms on which sequences are handed over
//   sched_balance              moves between workers that drift apart
//   sched_migrate              moves between workers and local pool
//   sched_admit                waiting -> running
//   sched_shortage             what to do when pages run out; drains
//   sched_learn, sched_answer  what a step teaches; steps that are answered
//   sched_event                what each event changes
//   sched_plan                 the rows of one step
//   sched                      the tick, the queries; sched_init: memory
#ifndef FD_SCHED_SCHED_STATE_H
#define FD_SCHED_SCHED_STATE_H

#include "common/base/checked.h"
#include "common/sched/sched.h"
#include "common/sched/sched_balance.h"
#include "common/sched/sched_batch.h"
#include "common/sched/sched_chunk.h"
#include "common/sched/sched_draft.h"
#include "common/sched/sched_ids.h"
#include "common/sched/sched_load.h"
#include "common/sched/sched_migrate.h"
#include "common/sched/sched_move.h"
#include "common/sched/sched_outbox.h"
#include "common/sched/sched_overlap.h"
#include "common/sched/sched_place.h"
#include "common/sched/sched_prefix.h"
#include "common/sched/sched_queue.h"
#include "common/sched/sched_seq.h"
#include "common/sched/sched_speed.h"
#include "common/sched/sched_time.h"
#include "common/sched/sched_tuning.h"

// The rest of a sequence, by owner. What has no owner of its own is the sequence's.
struct sched_seq_cold {
    uint64_t arrival; // order of arrival
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
    struct sched_load_link load;
};

struct sched {
    struct sched_config config;
    uint64_t now_us;
    struct sched_stats stats;
    bool unsettled; // the last tick ended before all was done

    struct sched_s_part {
        bool up, on_device, rows_alike;
        uint32_t rows_max; // of a step, with the s-part that is up
    } s_part;

    struct sched_seq *seqs;      // [max_sequences + max_kept] by slot
    struct sched_seq_cold *cold; // likewise
    // Sequences: in a mini-batch or between two; on their way out, pages not free yet; of those, to be rebuilt.
    uint32_t running, retiring, coming_back;

    struct sched_ids ids;
    struct sched_outbox outbox;
    struct sched_queue queue;
    struct sched_batches batches;
    struct sched_places places;
    struct sched_moves moves;
    struct sched_prefix prefix;
    struct sched_times time;
    struct sched_load load;
    struct sched_overlap overlap;
    struct sched_chunk chunk;
    struct sched_draft drafts[SCHED_MINI_BATCHES_MAX];
    struct sched_balance balance;
    struct sched_migrate migrate;
};

// Inline, because planning and answers ask for every row; here, because they need all of struct sched.

// Pages that hold so many positions.
static inline uint32_t sched_place_pages(const struct sched *s, uint32_t positions)
{
    return positions / s->config.page_tokens + (positions % s->config.page_tokens != 0);
}

// NULL: it has no place.
static inline struct sched_place *sched_place_of(struct sched *s, const struct sched_seq *seq)
{
    return seq->place == SCHED_SEQ_NO_PLACE ? NULL : &s->places.of[seq->place];
}

// Whether no rows of it are planned at present.
static inline bool sched_place_blocks(const struct sched *s, const struct sched_seq *seq)
{
    return seq->fenced || s->places.of[seq->place].suspect_until_us > s->now_us;
}

// Whether new sequences may be placed there: it is up, neither draining nor suspect, and no sequence lacks a page there.
static inline bool sched_place_takes(const struct sched *s, const struct sched_place *place)
{
    return place->up && !place->draining && place->starved == 0 && MAX(place->suspect_until_us, place->avoid_until_us) <= s->now_us;
}

// Whether config.placement allows it.
static inline bool sched_place_permitted(const struct sched *s, const struct sched_place *place)
{
    return s->config.placement == SCHED_PLACE_AUTO ||
           (place->kind == SCHED_LOCAL_POOL) == (s->config.placement == SCHED_PLACE_LOCAL);
}

#endif
