// sched_overlap.h: which places take part: the local pool alone, the workers alone, or both. Private to common/sched.
#ifndef FD_SCHED_SCHED_OVERLAP_H
#define FD_SCHED_SCHED_OVERLAP_H

#include <stdbool.h>
#include <stdint.h>

struct sched;

enum sched_overlap_choice {
    SCHED_OVERLAP_UNKNOWN = 0,
    SCHED_OVERLAP_BOTH,
    SCHED_OVERLAP_LOCAL,
    SCHED_OVERLAP_WORKERS,
    SCHED_OVERLAP_CHOICES
};

struct sched_overlap {
    enum sched_overlap_choice choice; // where new sequences go
    uint64_t judged;                  // steps emitted by then + 1; 0: never
    double count;                     // sequences it was judged for
    double local_share;               // with BOTH: of the load
};

// The sequences that run, as the rule sees them.
struct sched_running_load {
    double count, context, deviation, end; // tokens that each reads on average, by how much they differ; tokens at its end
    double local;                          // sequences in the local pool: by what they read
    double local_end;                      // tokens that those there will have
};

struct sched_rebalance_target {
    double local;    // as many sequences should be in the local pool
    double saved_us; // that a round of all then takes less
    bool pool_full;  // the local pool will not hold those that are there to their end
};

// Decides for those that wait.
void sched_overlap_judge(struct sched *s);

// Decides for those that run. False: they are best where they are.
bool sched_overlap_rebalance(const struct sched *s, const struct sched_running_load *load, struct sched_rebalance_target *out);

// Returns the place for a new sequence; NONE: it waits.
uint32_t sched_overlap_place(const struct sched *s, uint32_t mini_batch, uint32_t tokens, uint32_t pages);

// Returns the kinds of places that a running sequence may be handed to (sched_choice.h).
uint32_t sched_overlap_kinds(const struct sched *s);

#endif
