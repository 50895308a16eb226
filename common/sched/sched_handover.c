// sched_handover.c: the terms on which a sequence is handed over, for sched_balance.c, sched_migrate.c and sched_shortage.c.
//
// Against ping-pong, a sequence that went stays for a while, longer each time a move fails. The steps to come must gain more than
// moving its pages costs, and moving may take an eighth of a worker's time.
#include "common/sched/sched_handover.h"
#include "common/sched/sched_sequence.h"
#include "common/sched/sched_state.h"

bool sched_handover_allowed(const struct sched *s, uint32_t slot)
{
    const struct sched_seq *seq = &s->seqs[slot];
    return seq->state == SCHED_SEQ_DECODE && !seq->fenced && seq->pins == 0 && !seq->sharing && !seq->split &&
           s->cold[slot].move.stays_until <= s->stats.steps;
}

void sched_handover_stay(struct sched *s, uint32_t slot) { s->cold[slot].move.stays_until = s->stats.steps + TUNE_MOVE_STAY_STEPS; }

void sched_handover_ended(struct sched *s, uint32_t slot, bool ok)
{
    struct sched_seq_cold *cold = &s->cold[slot];
    cold->move.failures = ok ? 0 : MIN(cold->move.failures + 1u, 16u);
    if (!ok)
        cold->move.stays_until = s->stats.steps + ((uint64_t)TUNE_MOVE_STAY_STEPS << cold->move.failures);
}

double sched_handover_steps_left(const struct sched *s, uint32_t slot)
{
    const struct sched_seq *seq = &s->seqs[slot];
    const struct sched_lengths *l = &s->load.of[seq->class].lengths;
    double lives = l->count > 0 ? l->tokens : TUNE_MOVE_LIFE_STEPS;
    return MIN((double)(seq->limit - MIN(seq->known, seq->limit)), lives);
}

static double handover_cost_us(const struct sched *s, uint32_t slot)
{
    return TUNE_MOVE_PASSES * sched_speed_token_us(s, &s->places.of[s->seqs[slot].place]) * s->seqs[slot].load;
}

bool sched_handover_pays(const struct sched *s, uint32_t slot, double gain_us)
{
    return gain_us * sched_handover_steps_left(s, slot) >= TUNE_MOVE_PAYS * handover_cost_us(s, slot);
}

bool sched_handover_place_rests(const struct sched *s, uint32_t index) { return s->now_us < s->places.of[index].moves_from_us; }

void sched_handover_start(struct sched *s, uint32_t slot, uint32_t to, uint32_t pages, uint32_t mini_batch, double rest)
{
    uint64_t rested_us = s->now_us + (uint64_t)(TUNE_MOVE_TIME_PART * handover_cost_us(s, slot) * rest);
    sched_handover_stay(s, slot);
    for (uint32_t i = 0; i < 2; i++) {
        struct sched_place *place = &s->places.of[i ? to : s->seqs[slot].place];
        place->moves_from_us = MAX(place->moves_from_us, rested_us);
    }
    sched_sequence_move(s, slot, to, pages, mini_batch);
}
