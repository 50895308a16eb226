// sched_handover.h: the terms on which a sequence is handed over, for whatever reason. Private to common/sched.
#ifndef FD_SCHED_SCHED_HANDOVER_H
#define FD_SCHED_SCHED_HANDOVER_H

#include <stdbool.h>
#include <stdint.h>

struct sched;

bool sched_handover_allowed(const struct sched *s, uint32_t slot);
void sched_handover_stay(struct sched *s, uint32_t slot); // for a while it does not go again
void sched_handover_ended(struct sched *s, uint32_t slot, bool ok);
double sched_handover_steps_left(const struct sched *s, uint32_t slot);         // that it is expected to run yet
bool sched_handover_pays(const struct sched *s, uint32_t slot, double gain_us); // gain: of each step to come
bool sched_handover_place_rests(const struct sched *s, uint32_t place);         // has handed over enough for now

// Starts it. Both places rest afterwards, for `rest` (0 to 1) times as long as usual.
void sched_handover_start(struct sched *s, uint32_t slot, uint32_t to, uint32_t pages, uint32_t mini_batch, double rest);

#endif
