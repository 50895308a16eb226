// place.h: where KV lives: the places, their page ledger, their load, and what is reserved for sequences on their way. Private to common/sched.
//
// Ledger: pages_used = pages of the sequences in the place's list + pages_incoming, never above pages_total; pages_releasing of
// them belong to sequences that are leaving. Load is counted by place and mini-batch, because a mini-batch waits for its slowest
// place only.
#ifndef FD_SCHED_PLACE_H
#define FD_SCHED_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/checked.h"
#include "common/sched/sched.h"
#include "common/sched/slots.h"
#include "common/sched/step_time.h"

// Slots, linked by their struct sched_place_link: a slot is in at most one list.
struct sched_list {
    uint32_t head, tail;
};

// A sequence's part.
struct sched_place_link {
    uint32_t prev, next; // neighbours in the place's list `holders` or `kept`
    uint32_t written;    // pages that its place may have written for planned rows that did not count
    uint32_t leaving;    // how many of its pages are counted in pages_releasing
};

struct sched_place {
    uint64_t suspect_until_us; // no rows
    uint64_t avoid_until_us;   // no new sequences
    uint64_t moves_from_us;    // nothing is handed over from it or to it before this time, unless necessary
    struct sched_place_load {
        uint64_t load, incoming; // incoming: of sequences that are being handed over to it
        uint32_t readers;        // number of sequences that make up `load`
    } loads[SCHED_CLASSES][SCHED_MINI_BATCHES_MAX];
    struct sched_speed speed;
    enum sched_place_kind kind;
    bool up, draining, drained, accepts_moves;
    bool takes_extents; // it can hold a part of a sequence
    bool beside_s_part; // it computes on the cores of the s-part's machine
    bool shares_cores;  // beside_s_part, and the s-part that is up computes on those cores
    uint32_t pages_total;
    uint32_t pages_used;       // pages that are not free: held, releasing and incoming
    uint32_t pages_releasing;  // pages of sequences that are leaving
    uint32_t pages_incoming;   // reserved for sequences that are being handed over to it
    uint32_t pages_idle;       // pages that only kept sequences have
    uint32_t starved;          // number of sequences that wait for a page
    struct sched_list holders; // sequences with pages here, without kept ones; oldest first
    struct sched_list kept;    // least recently used first
    uint32_t count;            // of holders
    uint32_t losses;           // how often rows were lost there and it was avoided, since a row there last counted
    uint64_t down_since_us;
    double pending_us; // noted by the choice of a place, for that choice
};

struct sched_places {
    struct sched_place *of;                                     // [max_places]
    uint64_t batch_load[SCHED_CLASSES][SCHED_MINI_BATCHES_MAX]; // sums over places
    uint32_t draining, starved, losing;                         // places
    uint64_t grace_until_us; // places that were never up are expected until then; 0: no place was up yet
    uint64_t grace_wake_us;  // when the head of the queue is judged again, or SCHED_NEVER
    uint32_t local_pool;     // index of the local pool if it is up, or NONE
    double sharing_us;       // time per context token, fastest worker on the s-part's cores; 0: not measured
};

void sched_place_attach(struct sched *s, uint32_t slot, uint32_t place, uint32_t pages); // counts its pages as used
void sched_place_detach(struct sched *s, uint32_t slot);                                 // frees them in the ledger
void sched_place_leaving(struct sched *s, uint32_t slot, uint32_t pages);                // counts some as soon free ...
void sched_place_left(struct sched *s, uint32_t slot);                                   // ... until they are, or it stays
void sched_place_pass_on(struct sched *s, uint32_t slot, uint32_t to);                   // its place and pages become that slot's
bool sched_place_grow(struct sched *s, struct sched_seq *seq);                           // adds a page; false: none is free
void sched_place_starve(struct sched *s, struct sched_seq *seq, bool starved);           // notes whether it waits for a page
void sched_place_set_load(struct sched *s, struct sched_seq *seq, uint32_t load);
void sched_place_list(struct sched *s, struct sched_place *place, uint32_t slot); // adds it to `holders`
void sched_place_unlist(struct sched *s, struct sched_place *place, uint32_t slot);
void sched_place_avoid(struct sched *s, struct sched_place *place);                              // call when rows were lost there
void sched_place_forgive(struct sched *s, struct sched_place *place);                            // call when a row there counts
void sched_list_insert(struct sched *s, struct sched_list *list, uint32_t after, uint32_t slot); // after NONE: as the first
void sched_list_remove(struct sched *s, struct sched_list *list, uint32_t slot);

// Returns a place's load for a mini-batch as a class sees it: of its own sequences, and of classes that go before it.
static inline struct sched_place_load sched_place_load(const struct sched_place *place, enum sched_class class, uint32_t mini_batch)
{
    struct sched_place_load sum = place->loads[SCHED_CLASS_INTERACTIVE][mini_batch],
                            more = place->loads[SCHED_CLASS_BATCH][mini_batch];
    if (class == SCHED_CLASS_INTERACTIVE)
        return sum;
    return (struct sched_place_load){
        .load = sum.load + more.load, .incoming = sum.incoming + more.incoming, .readers = sum.readers + more.readers};
}

// Returns how many free pages a new sequence must leave for others to grow.
static inline uint32_t sched_place_spared(const struct sched_place *place)
{
    return place->count == 0 ? 0 : MIN(1 + place->count / 8, place->pages_total / 16);
}

// Returns whether the place has `pages` pages for a new sequence; evicting: kept sequences may be evicted.
static inline bool sched_place_fits(const struct sched_place *place, uint32_t pages, bool evicting)
{
    uint32_t spare = place->pages_total - place->pages_used + (evicting ? place->pages_idle : 0);
    // Other sequences get a little room to grow, a page for every eight, or the new one would soon be preempted.
    return spare >= pages && spare - pages >= sched_place_spared(place);
}

// Returns whether the place attends on the s-part's cores: the local pool, and workers that share them.
static inline bool sched_place_is_here(const struct sched_place *place)
{
    return place->kind == SCHED_LOCAL_POOL || place->shares_cores;
}

// --- sequences on their way to another place or mini-batch ----------------------------------------------------------
// A sequence's part.
struct sched_move_link {
    uint64_t id;          // id of the MOVE that is emitted and not answered; 0: none
    uint32_t to;          // the place it moves to, or NONE
    uint32_t part;        // the slot that moves there: its own, or one of its extents
    uint32_t pages;       // pages reserved there
    uint32_t load;        // context that it will read there
    uint64_t stays_until; // it is not handed over again before this number of steps has been emitted
    uint8_t batch;        // it will be in that mini-batch
    uint8_t failures;     // consecutive failed moves; after each it stays for longer
    bool relabels;        // it only changes its mini-batch: `to` is its own place, and no pages are reserved
    bool failed;          // the last move failed
    bool taker_lost;      // the place it moves to went down: the answer says whether the pages are still where they were
};

struct sched_moves {
    uint32_t *slots;             // [max_moves + TUNE_MOVE_RELABELS_MAX] in any order
    uint32_t count, relabelling; // relabelling: how many of them only change their mini-batch
    uint64_t next_id;
};

void sched_move_taker_lost(struct sched *s, uint32_t slot);
bool sched_move_is_free(const struct sched *s); // returns whether one more may be handed over
void sched_move_begin(struct sched *s, uint32_t slot, uint32_t part, uint32_t to, uint32_t pages, uint32_t mini_batch);
void sched_move_forget(struct sched *s, uint32_t slot); // gives up what is reserved for it

#endif
