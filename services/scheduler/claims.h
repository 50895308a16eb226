// claims.h: pages that members held before they registered. See claims.c.
#ifndef FD_SERVICES_SCHEDULER_CLAIMS_H
#define FD_SERVICES_SCHEDULER_CLAIMS_H

#include "cluster.pb-c.h"
#include "services/scheduler/token_logs.h"

struct scheduler;

enum {
    HELD_OF_MEMBER_MAX = 1 << 16,
    HELD_MAX = 1 << 20,  // of all members
    SETTLE_US = 2000000, // resubmitted sequences wait at most this long for the members that hold their pages: from claims.from_us
    CLAIM_US = 15000000, // pages that nobody has claimed are freed this long after claims.from_us
};

// A sequence that a member reported to hold and that nobody has claimed yet.
struct held {
    uint64_t sequence;
    uint32_t place, first, positions, certain, pages; // first: of an extent; certain, pages: as in HeldSequence
    bool stale;                                       // it is being freed there
    bool is_copy; // its sequence has come and does not use it: it is freed once the sequence cannot be placed there
};

struct claims {
    uint64_t from_us;  // when the s-part was up for the first time: sequences come again from then on; 0: it has not been
    struct held *held; // [held_count] in no order
    uint32_t held_count, held_capacity, copy_count; // copy_count: of them
    // [settling_count] ids of resubmitted sequences that wait for the members that hold their pages; the core does not know them yet
    uint64_t *settling;
    uint32_t settling_count, settling_capacity; // full: another one starts at once
};

// Returns whether sequences may still come that claim what members hold.
bool claims_may_come(const struct claims *claims, uint64_t now_us);
// Takes over the registration's list of held sequences. RESOURCE_EXHAUSTED: the list is too long; nothing is taken from it.
enum status claims_take(struct claims *claims, uint32_t place, const Fastdecode__RegisterRequest *request,
                        struct error *error) MUST_CHECK;
// Marks the sequences held at the place that nobody may claim. Their ids go to *ids, which the caller frees. RESOURCE_EXHAUSTED:
// nothing is marked.
enum status claims_mark_stale(struct scheduler *scheduler, uint32_t place, uint64_t **ids, uint32_t *count) MUST_CHECK;
// Ends the marking: with `freed`, the marked sequences are gone; without, they are still there.
void claims_end_stale(struct claims *claims, uint32_t place, bool freed);
// Gives sequences that wait to be rebuilt what the place holds of them. Call it when the place comes up, after the core's PLACE_UP
// event is queued.
void claims_reclaim(struct scheduler *scheduler, uint32_t place);
// Frees what nobody has claimed at the place, to make room.
void claims_drop(struct scheduler *scheduler, uint32_t place);
// Starts a new sequence at once, or, if it was resubmitted, when a place that holds its pages is up.
void claims_arrive(struct scheduler *scheduler, const struct token_log *log);
// Starts resubmitted sequences whose place is up, or that have waited long enough, and has copies freed. Call it in each turn while there are any.
void claims_settle(struct scheduler *scheduler);

#endif
