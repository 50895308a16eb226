// choice.h: which kinds of places take part, the local pool, the workers or both, and the choice of a place for a sequence. Private to
// common/sched.
#ifndef FD_SCHED_CHOICE_H
#define FD_SCHED_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/sched/sched.h"

// Sets of kinds of places.
#define SCHED_CHOICE_OF(kind) (1u << (kind))
enum {
    SCHED_CHOICE_LOCAL = 1 << SCHED_LOCAL_POOL,
    SCHED_CHOICE_WORKERS = 1 << SCHED_KV_WORKER,
    SCHED_CHOICE_ANY = SCHED_CHOICE_LOCAL | SCHED_CHOICE_WORKERS
};

// Returns the pages that a sequence needs to be placed: those of its known tokens, and a margin.
uint32_t sched_choice_pages(const struct sched *s, uint32_t slot);

// Returns the place among `kinds` at which a sequence of `tokens` tokens delays its mini-batch least, as its class sees it; NONE: none has
// room. leaving: the place that the sequence is to leave, or NONE. If it leaves one, only places that accept moves are considered.
uint32_t sched_choice_place(const struct sched *s, enum sched_class class, uint32_t mini_batch, uint32_t tokens, uint32_t pages,
                            uint32_t leaving, uint32_t kinds);

// Returns whether no place can hold so many pages, now or within the time of grace. May set places.grace_wake_us.
bool sched_choice_none_can_hold(struct sched *s, uint32_t pages);

// --- local pool, workers, or both -----------------------------------------------------------------------------------
enum sched_overlap_choice {
    SCHED_OVERLAP_UNKNOWN = 0,
    SCHED_OVERLAP_BOTH,
    SCHED_OVERLAP_LOCAL,
    SCHED_OVERLAP_WORKERS,
    SCHED_OVERLAP_CHOICES
};

// For the sequences of a class.
struct sched_overlap {
    enum sched_overlap_choice choice; // where new sequences go
    uint64_t judged;                  // number of steps emitted when it was last judged, plus 1; 0: never
    double count;                     // number of sequences it was judged for
    double local_share;               // with BOTH: the local pool's share of the load
};

// The running sequences, as the rule uses them.
struct sched_running_load {
    double count, context, deviation, end; // number; mean and deviation of the tokens that each reads; mean tokens at its end
    double local;                          // sequences in the local pool, weighted by what they read
    double local_end;                      // tokens that the sequences there will have at their end
};

struct sched_rebalance_target {
    double local;    // number of sequences that should be in the local pool
    double saved_us; // time that a round of all sequences saves then
    bool pool_full;  // the local pool has too few pages for its sequences to reach their end there
};

// Returns by how many times prompts that come as fast as answers go lower the tokens a second that a class's running sequences give where they are,
// in so many mini-batches; 1: too little is known yet.
double sched_prompts_times(const struct sched *s, enum sched_class class, uint32_t mini_batches);

// Decides for waiting sequences, those of the class at the head of the queue.
void sched_overlap_judge(struct sched *s);

// Decides for running sequences. Returns false if they are best where they are.
bool sched_overlap_rebalance(const struct sched *s, const struct sched_running_load *load, struct sched_rebalance_target *out);

// Returns the place for a new sequence; NONE: it waits.
uint32_t sched_overlap_place(const struct sched *s, enum sched_class class, uint32_t mini_batch, uint32_t tokens, uint32_t pages);

// Returns the kinds of places that a running sequence of a class may be handed to (SCHED_CHOICE_OF).
uint32_t sched_overlap_kinds(const struct sched *s, enum sched_class class);

// Returns the kinds of places that may take a new sequence of a class. If none of the chosen kind could hold its pages, all kinds may.
uint32_t sched_overlap_kinds_new(const struct sched *s, enum sched_class class, uint32_t pages);

#endif
