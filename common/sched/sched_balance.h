// sched_balance.h: moves between workers that drift apart. Private to common/sched.
#ifndef FD_SCHED_SCHED_BALANCE_H
#define FD_SCHED_SCHED_BALANCE_H

#include <stdint.h>

struct sched;

struct sched_balance {
    uint64_t looked; // steps emitted when it last did
};

void sched_balance(struct sched *s); // starts moves that are worth it

#endif
