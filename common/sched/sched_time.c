// sched_time.c: see sched_time.h.
#include "common/sched/sched_time.h"

#include "common/base/checked.h"

void sched_round_add(struct sched_round *round, bool here, double read_us, double link_us)
{
    if (here) {
        round->here_us += read_us;
        round->here_link_us = MAX(round->here_link_us, link_us);
    } else {
        round->away_us = MAX(round->away_us, read_us);
        round->away_answer_us = MAX(round->away_answer_us, read_us + link_us);
    }
}

double sched_round_us(const struct sched_round *round, uint32_t mini_batches)
{
    double turn_us = round->s_part_us + round->here_us + round->here_link_us;
    double busiest_us = MAX(turn_us, round->away_us);
    return MAX(mini_batches * busiest_us, round->s_part_us + round->away_answer_us);
}

double sched_round_attend_us(const struct sched_round *round)
{
    return MAX(round->here_us + round->here_link_us, round->away_answer_us);
}

double sched_round_away_most_us(double limit_us, double s_part_us, double link_us, uint32_t mini_batches)
{
    return MIN(limit_us / mini_batches, limit_us - s_part_us - link_us);
}
