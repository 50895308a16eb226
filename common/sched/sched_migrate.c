// sched_migrate.c: NEO's rule (sched_overlap.c) for sequences that run: they go from the workers to the local pool, or back, when that
// is predicted to be faster by more than noise.
//
// While requests wait, admission places new sequences as the rule says. When the queue is empty the rule has nothing to place: the last
// few sequences of a burst that needed the workers may be left there, and every layer of theirs pays for the links though the pool could
// now hold them all. The opposite happens when contexts have grown. Example: 24 short and 8 long sequences, half of each at workers. The
// short ones end, and four long ones wait for the links in each of 30 layers: with a round trip of 100 us that is 3 ms of a step that
// computes for 4. One after the other they go to the pool.
//
// A pool that will soon be too small for what it has hands sequences over in time, unless the workers are so slow that pausing is better.
//
// A move must pay by what the sequence's steps to come gain (sched_handover.c).
#include <math.h>

#include "common/sched/sched_choice.h"
#include "common/sched/sched_handover.h"
#include "common/sched/sched_state.h"

// Sums up the sequences that decode. False: there are none, or prompts are about to join them.
static bool running_load(const struct sched *s, struct sched_running_load *out)
{
    double tokens = 0, squares = 0, ends = 0, local = 0, here = 0;
    *out = (struct sched_running_load){.count = 0};
    for (uint32_t m = 0; m < s->batches.in_use; m++) {
        const struct sched_group *group = &s->batches.of[m].of[sched_leading_class(s)];
        if (group->prefill_count > 0)
            return false;
        for (uint32_t i = 0; i < group->member_count; i++) {
            const struct sched_seq *seq = &s->seqs[group->members[i]];
            tokens += seq->known;
            squares += (double)seq->known * seq->known;
            double end = seq->known + MIN((double)(seq->limit - MIN(seq->known, seq->limit)),
                                          MAX(sched_handover_steps_left(s, group->members[i]), TUNE_MIGRATE_ROOM_TOKENS));
            ends += end;
            if (s->places.of[seq->place].kind == SCHED_KV_WORKER)
                continue;
            local += seq->known;
            here += end + s->config.page_tokens;
        }
        out->count += group->member_count;
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

// Hands one sequence of a place to another kind of places. False: none may go, or none would pay.
static bool send_one(struct sched *s, uint32_t from, uint32_t kinds, double gain_us, uint32_t *looked)
{
    for (uint32_t slot = s->places.of[from].holders.tail; slot != NONE && *looked < TUNE_MIGRATE_LISTED;
         slot = s->cold[slot].place.prev) {
        const struct sched_seq *seq = &s->seqs[slot];
        if (seq->class != sched_leading_class(s) || seq->starved || !sched_handover_allowed(s, slot) ||
            !sched_handover_pays(s, slot, gain_us))
            continue;
        ++*looked;
        uint32_t pages = sched_choice_pages(s, slot),
                 to = sched_choice_place(s, seq->class, seq->mini_batch, seq->known, pages, from, kinds);
        if (to == NONE || sched_handover_place_rests(s, to))
            continue;
        sched_handover_start(s, slot, to, pages, seq->mini_batch, 1);
        return true;
    }
    return false;
}

void sched_migrate(struct sched *s)
{
    struct sched_running_load running;
    struct sched_rebalance_target target;
    enum sched_class class = sched_leading_class(s);
    uint32_t local = s->places.local_pool, looked = 0;

    if (!s->config.balance || s->config.placement != SCHED_PLACE_AUTO || sched_class_sum(s->queue.count, class) > 0 ||
        s->moves.count > s->moves.relabelling ||
        s->stats.steps < s->migrate.looked + TUNE_MIGRATE_STEPS + s->running[class] / TUNE_MIGRATE_SEQUENCES_A_STEP)
        return;
    s->migrate.looked = s->stats.steps;
    if (local == NONE || !s->places.of[local].accepts_moves || !running_load(s, &running) ||
        !sched_overlap_rebalance(s, &running, &target))
        return;
    double count = fabs(target.local - running.local);
    if (count < 0.5)
        return;
    if (target.local < running.local) {
        if (!sched_handover_place_rests(s, local))
            send_one(s, local, SCHED_CHOICE_WORKERS, target.pool_full ? INFINITY : target.saved_us / count, &looked);
        return;
    }
    if (!sched_place_takes(s, &s->places.of[local]))
        return;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *place = &s->places.of[i];
        if (place->up && place->kind == SCHED_KV_WORKER && !place->draining && place->count > 0 &&
            !sched_handover_place_rests(s, i) && send_one(s, i, SCHED_CHOICE_LOCAL, target.saved_us / count, &looked))
            return;
    }
}
