// sched_migrate.h: moves running sequences between the local pool and the workers. Private to common/sched.
#ifndef FD_SCHED_SCHED_MIGRATE_H
#define FD_SCHED_SCHED_MIGRATE_H

#include <stdint.h>

struct sched;

struct sched_migrate {
    uint64_t looked; // number of steps emitted when it last looked for a move
};

void sched_migrate(struct sched *s); // starts a move that is worth it

#endif
