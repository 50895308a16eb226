/* sched_move.c: the terms on which a sequence is handed over, whoever wants it to go: sched_balance.c, sched_migrate.c, sched_admit.c.
 *
 * Against ping-pong: whoever went stays for a while, longer each time it fails; pages that move must be paid for by what the steps
 * to come gain, and may take a worker an eighth of its time.
 */
#include "common/sched/sched_state.h"

bool seq_may_go(const struct sched *s, uint32_t slot)
{
    const struct seq *q = &s->seqs[slot];
    return q->state == SEQ_DECODE && !q->fenced && q->pins == 0 && !q->sharing && s->cold[slot].stays_until <= s->stats.steps;
}

void seq_stay(struct sched *s, uint32_t slot) { s->cold[slot].stays_until = s->stats.steps + TUNE_MOVE_STAY_STEPS; }

void seq_move_ended(struct sched *s, uint32_t slot, bool ok)
{
    struct seq_cold *c = &s->cold[slot];
    c->moves_failed = ok ? 0 : MIN(c->moves_failed + 1u, 16u);
    if (!ok)
        c->stays_until = s->stats.steps + ((uint64_t)TUNE_MOVE_STAY_STEPS << c->moves_failed);
}

double seq_steps_left(const struct sched *s, uint32_t slot)
{
    const struct seq *q = &s->seqs[slot];
    double lives = s->lengths.count > 0 ? s->lengths.tokens : TUNE_MOVE_LIFE_STEPS;
    return MIN((double)(q->limit - MIN(q->known, q->limit)), lives);
}

double seq_move_us(const struct sched *s, uint32_t slot)
{
    return TUNE_MOVE_PASSES * place_token_us(s, &s->places[s->seqs[slot].place]) * s->seqs[slot].load;
}

bool move_pays(const struct sched *s, uint32_t slot, double gain_us)
{
    return gain_us * seq_steps_left(s, slot) >= TUNE_MOVE_PAYS * seq_move_us(s, slot);
}

bool place_rests(const struct sched *s, uint32_t place) { return s->now_us < s->places[place].moves_from_us; }

void hand_over(struct sched *s, uint32_t slot, uint32_t to, uint32_t pages, uint32_t mini_batch, double hurry)
{
    uint64_t rested_us = s->now_us + (uint64_t)(TUNE_MOVE_TIME_PART * seq_move_us(s, slot) * hurry);
    seq_stay(s, slot);
    for (uint32_t i = 0; i < 2; i++) {
        struct place *p = &s->places[i ? to : s->seqs[slot].place];
        p->moves_from_us = MAX(p->moves_from_us, rested_us);
    }
    move_start(s, slot, to, pages, mini_batch);
}
