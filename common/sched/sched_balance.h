// sched_balance.h: who goes elsewhere among the workers and their mini-batches (sched_balance.c), and between them and the local pool
// (sched_migrate.c). Private to common/sched.
#ifndef FD_SCHED_SCHED_BALANCE_H
#define FD_SCHED_SCHED_BALANCE_H

#include <stdint.h>

struct sched;

struct sched_balance {
    uint64_t balanced, migrated; // steps emitted when each last looked
};

void sched_balance_workers(struct sched *s);
void sched_balance_local_pool(struct sched *s);

#endif
