/* sched_migrate.c: NEO's rule by migration (sched_overlap.c has the rule): sequences that run go from the workers to the local pool, or
 * from it to them, when that is predicted to be faster by more than noise.
 *
 * While requests wait, admission places newcomers as the rule says, and those that end make the rest even. When nobody waits any more
 * the rule has nobody to place: of a burst that needed the workers, the last few sequences may be left there, and every one of their
 * layers pays the links, though the pool could now hold them all; or the other way round, when contexts have grown. Example: 24 short
 * and 8 long sequences, half of each at workers; the short ones end, and four long ones wait for the links in each of 30 layers: with
 * a round trip of 100 us that is 3 ms of a step that computes for 4. One after the other they go to the pool.
 *
 * A pool that will not hold for long what it has hands over in time, unless the workers are so slow that pausing is better.
 *
 * Each must pay for its pages by what its steps to come gain, and stays for a while (sched_move.c: the terms of handing over).
 */
#include <math.h>

#include "common/sched/sched_state.h"

static uint32_t local_place(const struct sched *s)
{
    for (uint32_t i = 0; i < s->config.max_places; i++)
        if (s->places[i].up && s->places[i].local && s->places[i].accepts_moves)
            return i;
    return NONE;
}

/* Those that decode, as a crowd. False: there are none, or others are about to join or to leave them. */
static bool crowd_of(const struct sched *s, struct crowd *out)
{
    double tokens = 0, squares = 0, ends = 0, local = 0, here = 0;
    *out = (struct crowd){.count = 0};
    for (uint32_t m = 0; m < s->batches; m++) {
        const struct mini_batch *b = &s->mini_batches[m];
        if (b->prefill_count > 0)
            return false;
        for (uint32_t i = 0; i < b->member_count; i++) {
            const struct seq *q = &s->seqs[b->members[i]];
            tokens += q->known;
            squares += (double)q->known * q->known;
            double end = q->known + MIN((double)(q->limit - MIN(q->known, q->limit)),
                                        MAX(seq_steps_left(s, b->members[i]), TUNE_MIGRATE_ROOM_TOKENS));
            ends += end;
            if (!s->places[q->place].local)
                continue;
            local += q->known;
            here += end + s->config.page_tokens;
        }
        out->count += b->member_count;
    }
    if (out->count == 0)
        return false;
    out->context = tokens / out->count;
    out->deviation = sqrt(MAX(squares / out->count - out->context * out->context, 0));
    out->end = ends / out->count;
    out->local = out->count * local / tokens;
    out->local_end = here;
    return true;
}

/* One sequence from a place to another kind of places; false: none of it may go, or none would pay. */
static bool send_one(struct sched *s, uint32_t from, uint32_t kinds, double gain_us, uint32_t *looked)
{
    for (uint32_t slot = s->places[from].holders.tail; slot != NONE && *looked < TUNE_MIGRATE_LISTED;
         slot = s->cold[slot].place_prev) {
        const struct seq *q = &s->seqs[slot];
        if (q->starved || !seq_may_go(s, slot) || !move_pays(s, slot, gain_us))
            continue;
        ++*looked;
        uint32_t pages = pages_wanted(s, slot), to = place_choose(s, q->mini_batch, q->known, pages, from, kinds);
        if (to == NONE || place_rests(s, to))
            continue;
        hand_over(s, slot, to, pages, q->mini_batch, 1);
        return true;
    }
    return false;
}

void migrate(struct sched *s)
{
    struct crowd crowd;
    struct wish wish;
    uint32_t local, looked = 0;

    if (!s->config.balance || s->config.placement != SCHED_PLACE_AUTO || s->waiting.count > 0 || s->moving_count > s->relabelling ||
        s->stats.steps < s->migrated + TUNE_MIGRATE_STEPS + s->running / TUNE_MIGRATE_SEQUENCES_A_STEP)
        return;
    s->migrated = s->stats.steps;
    if ((local = local_place(s)) == NONE || !crowd_of(s, &crowd) || !overlap_wish(s, &crowd, &wish))
        return;
    double count = fabs(wish.local - crowd.local);
    if (count < 0.5)
        return;
    if (wish.local < crowd.local) {
        if (!place_rests(s, local))
            send_one(s, local, KIND_WORKERS, wish.crowded ? INFINITY : wish.step_us / count, &looked);
        return;
    }
    if (!place_takes(s, &s->places[local]))
        return;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct place *p = &s->places[i];
        if (p->up && !p->local && !p->draining && p->count > 0 && !place_rests(s, i) &&
            send_one(s, i, KIND_LOCAL, wish.step_us / count, &looked))
            return;
    }
}
