// sched_balance.h: moves sequences when some workers take longer than others. Private to common/sched.
#ifndef FD_SCHED_SCHED_BALANCE_H
#define FD_SCHED_SCHED_BALANCE_H

#include <stdint.h>

struct sched;

struct sched_balance {
    uint64_t looked; // number of steps emitted when it last looked for moves
};

void sched_balance(struct sched *s); // starts moves that are worth it

#endif
