// balance.h: which running sequences change their place or mini-batch: between the mini-batches when their number changes, between workers
// that drift apart, between the local pool and the workers. Private to common/sched.
#ifndef FD_SCHED_BALANCE_H
#define FD_SCHED_BALANCE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/sched/sched.h"

struct sched_balance {
    uint64_t looked; // number of steps emitted when it last looked for moves
};

struct sched_migrate {
    uint64_t looked; // number of steps emitted when it last looked for a move
};

bool sched_handover_allowed(const struct sched *s, uint32_t slot);  // whether it may go now
void sched_handover_ended(struct sched *s, uint32_t slot, bool ok); // after a failed move it stays for longer

// Starts a move. Both places then have no moves for `rest` (0 to 1) times the usual time.
void sched_handover_start(struct sched *s, uint32_t slot, uint32_t to, uint32_t pages, uint32_t mini_batch, double rest);

// Chooses the number of mini-batches in use. Returns false if no step may be planned until those in flight are answered.
bool sched_batch_count_settled(struct sched *s);

// Moves the sequences of a class that does not lead out of a mini-batch that has none of the leading class. Only mini-batches with those have
// steps, so the sequences join one of them.
void sched_batch_count_follow(struct sched *s, uint32_t mini_batch, enum sched_class class);

void sched_balance(struct sched *s); // starts moves that are worth it between workers, ...
void sched_migrate(struct sched *s); // ... and a move between the local pool and the workers

#endif
