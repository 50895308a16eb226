// places.h: the places with KV, and what the core asks of them. See places.c.
//
// A *place* holds KV: the s-part's local pool, or the pages of a KV worker. The life of a page, with the functions that allocate and free
// it, is in docs/life-of-a-page.md.
#ifndef FD_SERVICES_SCHEDULER_PLACES_H
#define FD_SERVICES_SCHEDULER_PLACES_H

#include "common/base/log.h"
#include "common/kv/kv_shape.h"
#include "common/sched/sched.h"
#include "services/scheduler/member.h"

struct sequence_spans;

enum {
    MOVES_MAX = 64,             // the most hand-overs under way, including those that the core has given up
    UNCLAIMED_FREES_MAX = 4096, // the most unclaimed sequences whose pages are being freed
};

// A list of entries of frees.entries, linked by index; 0 ends it.
struct pending_list {
    uint32_t head, tail;
};

// The worker leaves (members.c, places.c).
struct place_drain {
    struct rpc_call *call; // its Drain call, not answered yet; NULL: none
    bool done;             // nothing is left there, so its worker may stop
};

// Steps that lost all their rows there (members.c).
struct place_losses {
    uint32_t count;           // in a row, at least LOSS_EVERY_US apart
    uint64_t last_us;         // when that last happened
    uint64_t barred_until_us; // it lost rows too often and does not come up before then
};

// Whether the s-part reaches the worker's tensors (members.c).
struct place_reach {
    bool known;             // the s-part has said that it does, and no step has lost all rows there since
    uint32_t asked_id;      // the member's clean_id when the s-part was last asked: it may have registered anew since
    uint64_t again_us;      // the s-part is not asked before then
    uint64_t wait_us;       // between the latest two questions; 0 unless it has said that it does not
    struct repeat failures; // since it last said that it does
};

// Pages that the place is to free.
struct place_frees {
    struct pending_list to_free; // it has yet to be asked
    struct pending_list freeing; // those in the call under way
    bool asked;                  // `call` is under way
    struct rpc_handle call;
    uint64_t again_us; // it could not be asked, or refused: it is not asked before then
    struct repeat failures;
};

// Sums over answered steps (view.c).
struct place_reads {
    uint64_t us, tokens; // time in attention; context tokens that it read
};

struct place {
    enum sched_place_kind kind;
    uint32_t index;        // the core's number for it
    struct member *member; // the member that holds its pages: `worker`, or that of the s-part
    struct member worker;  // if kind is SCHED_KV_WORKER
    // From its latest registration; of a pipeline's pool, from all stages together.
    uint64_t pages_total;
    double bytes_per_second;
    struct kv_costs costs; // what it measured at its start, if has_costs
    bool has_costs;
    double pair_us;    // time of prefill attention per row and context token, all layers; 0: not known
    bool shares_cores; // with the s-part, if that computes on CPUs
    bool hands_over;   // pages can be handed over from and to it

    struct place_drain drain;
    struct place_losses losses;
    struct place_reach reach;
    struct place_frees frees;
    struct place_reads reads;
    struct repeat failed_cleans;
};

struct places {
    struct place of[SCHED_PLACES_MAX]; // by the core's index; 0: the local pool
    uint32_t count;                    // never shrinks: a place that is gone is given to another worker
};

// A hand-over that was asked for.
struct pending_move {
    struct scheduler *scheduler;
    struct sched_move move;
    struct rpc_handle call; // to the taker
    uint64_t began_us;
    uint32_t from_stay, to_stay; // the members' `stay` when it began
    bool used, ok;               // ok: the pages have arrived and are being freed at the old place
};

struct moves {
    struct pending_move of[MOVES_MAX];
    struct repeat failures;
};

// Pages that a place is to free.
struct pending_free {
    uint64_t sequence;
    uint32_t next;
    bool keep_sampler;         // only pages are freed, because the sequence goes on elsewhere
    bool report;               // the core waits for RELEASED
    struct pending_move *move; // the hand-over that waits for it; NULL: none
};

// The entries of all places. One is in one place's list, or unused.
struct frees {
    struct pending_free *entries; // entry 0 is none
    uint64_t *ids;                // scratch: the ids of one call
    uint32_t unused;              // head of the list of unused entries
    uint32_t waiting;             // number of entries in the places' to_free lists
    uint32_t unclaimed;           // how many of the entries the core does not know of, at most UNCLAIMED_FREES_MAX
};

enum status places_open(struct scheduler *scheduler, uint32_t sequences) MUST_CHECK;
void places_close(struct scheduler *scheduler);
// Carries out the core's RELEASE. forget: the sequence is over, so the s-part may forget its sampler state.
void places_release(struct scheduler *scheduler, uint64_t sequence, uint32_t place, bool forget);
// Frees pages that the core does not know of. Returns false if too many are being freed; try again.
bool places_free_unclaimed(struct scheduler *scheduler, uint32_t place, uint64_t sequence, bool keep_sampler);
// Asks a place to free sequences at once, beside its lists. keep_sampler: only their pages, since more is known of them. on_reply: of a worker,
// gets its FreeReply; may be NULL. False: it cannot be asked.
bool places_ask_free(struct place *place, const uint64_t *sequences, size_t count, bool keep_sampler,
                     void (*on_reply)(void *user, struct rpc_message *message),
                     void (*on_end)(void *user, enum status status, const char *text), void *user, struct rpc_handle *call);
// Tells the workers that had rows of a traced sequence, which is over, except the one at `freed`, which is asked to free its pages.
void places_end_spans(struct scheduler *scheduler, const struct sequence_spans *spans, uint64_t sequence, uint32_t freed);
void places_move(struct scheduler *scheduler, const struct sched_move *move);
void places_drained(struct scheduler *scheduler, uint32_t place);
// Sends the requests gathered since the last time to the places.
void places_send(struct scheduler *scheduler);
// Counts the pages that the place had to free as free, because it is down.
void places_down(struct place *place);
// Tells the s-part that a worker is dead, whatever its connection looks like.
void places_exclude(struct scheduler *scheduler, const struct place *place);

#endif
