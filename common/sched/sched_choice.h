// sched_choice.h: the choice of a place for a sequence. Private to common/sched.
#ifndef FD_SCHED_SCHED_CHOICE_H
#define FD_SCHED_SCHED_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/sched/sched.h"

struct sched;

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

#endif
