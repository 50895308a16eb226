// sched_handover.h: the conditions under which sequences are handed over. Private to common/sched.
#ifndef FD_SCHED_SCHED_HANDOVER_H
#define FD_SCHED_SCHED_HANDOVER_H

#include <stdbool.h>
#include <stdint.h>

struct sched;

bool sched_handover_allowed(const struct sched *s, uint32_t slot);
void sched_handover_stay(struct sched *s, uint32_t slot); // it does not move again for a while
void sched_handover_ended(struct sched *s, uint32_t slot, bool ok);
double sched_handover_steps_left(const struct sched *s, uint32_t slot);         // returns how many more steps it is expected to run
bool sched_handover_pays(const struct sched *s, uint32_t slot, double gain_us); // gain_us: gain of each further step
bool sched_handover_place_rests(const struct sched *s, uint32_t place);         // returns whether it may have no moves for now

// Starts a move. Both places then have no moves for `rest` (0 to 1) times the usual time.
void sched_handover_start(struct sched *s, uint32_t slot, uint32_t to, uint32_t pages, uint32_t mini_batch, double rest);

#endif
