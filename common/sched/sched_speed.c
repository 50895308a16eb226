/* sched_speed.c: how fast places read: what their steps took, and what steps will take there. */
#include <math.h>

#include "common/sched/sched_state.h"

/* Workers on the s-part's cores are in each other's way: what one measures is the others' doing as much as its own. So they count as
 * equally fast, but for one that is far slower than the fastest of them; and never as faster than the local pool, which reads with
 * the same cores: that would be noise, and a long way to go for it each layer. */
double place_token_us(const struct sched *s, const struct place *p)
{
    if (!p->shares_cores || p->local)
        return p->token_us;
    return MAX(!p->slow && s->sharing_us > 0 ? s->sharing_us : p->token_us, s->local_us);
}

/* What it reads now, what is on its way to it, and what so many will read. */
double place_time_us(const struct sched *s, const struct place *p, uint32_t mini_batch, uint32_t tokens, double weight)
{
    double load = (double)(p->load[mini_batch] + p->incoming[mini_batch]) + tokens;
    load += (p->readers[mini_batch] + (tokens > 0)) * weight;
    return load == 0 ? 0 : load * place_token_us(s, p) + p->link_step_us;
}

double place_predict_us(const struct place *p, uint64_t tokens_read)
{
    uint64_t pairs = MIN(p->step_pairs, tokens_read);
    return p->link_step_us + (double)(tokens_read - pairs) * p->token_us + (double)pairs * p->pair_us;
}

/* Of a step with prefill rows, what is left for those. */
static void measure_prefill(struct place *p, const struct sched_place_time *time)
{
    uint64_t pairs = MIN(p->step_pairs, time->tokens_read);
    double rest_us = time->r_part_us - p->link_step_us - (double)(time->tokens_read - pairs) * p->token_us;
    double us = MAX(rest_us, 0) / (double)pairs;
    p->pair_us += p->pair_us == 0 ? us : 0.1 * (MIN(us, 4 * p->pair_us) - p->pair_us);
}

#define SLOW 1.6  // times the fastest worker's time on the same cores: a worker is slow, until
#define SWIFT 1.3 // it is down to this

static void compare_sharing(struct sched *s, struct place *measured)
{
    double least_us = INFINITY;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct place *p = &s->places[i];
        if (p->up && p->shares_cores && !p->local && p->attends_measured)
            least_us = MIN(least_us, p->token_us);
    }
    s->sharing_us = least_us;
    measured->slow = measured->token_us > (measured->slow ? SWIFT : SLOW) * least_us;
}

void place_measure(struct sched *s, const struct sched_place_time *time)
{
    enum { TOKENS_MIN = 256 }; // below, the clock and the link say more than the memory
    struct place *p = &s->places[time->place];
    if (!p->up || time->tokens_read == 0)
        return;
    if (p->step_pairs > 0) {
        measure_prefill(p, time);
        return;
    }
    bool few = time->tokens_read < TOKENS_MIN;
    double read_us = few ? (double)time->tokens_read * p->token_us : 0;
    if (time->attend_us > 0)
        read_us = time->attend_us;                                       // it says itself what was not the link
    if (time->attend_us > 0 || few || time->r_part_us < p->link_step_us) // it was the guess about the link that was wrong
        p->link_step_us += 0.1 * (p->local ? 0 : MAX(time->r_part_us - read_us, 0) - p->link_step_us);
    if (few || (time->attend_us == 0 && time->r_part_us < p->link_step_us))
        return;
    double attend_us = time->attend_us > 0 ? time->attend_us : (double)time->r_part_us - p->link_step_us;
    double us = attend_us / (double)time->tokens_read;
    // One odd step (a page fault, a stolen core) must not turn placement over.
    us = MIN(MAX(us, p->token_us / 4), p->token_us * 4);
    // By how much one differs from the one before: of a speed that has changed, too, it says how sure it is.
    if (p->token_last_us > 0)
        p->token_noise += 0.05 * (fabs(us / p->token_last_us - 1) * M_SQRT1_2 - p->token_noise);
    p->token_last_us = us;
    p->token_us += 0.1 * (us - p->token_us);
    if (p->local)
        s->local_us = p->token_us;
    p->attends_measured = time->attend_us > 0;
    if (p->shares_cores && !p->local && p->attends_measured)
        compare_sharing(s, p);
}
