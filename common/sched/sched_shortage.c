/* sched_shortage.c: what to do when pages run out, and how a place that drains is emptied.
 *
 * When a place has no page left, its youngest sequence gives way, never its oldest: so the oldest always ends, and with it the
 * shortage. While anybody lacks a page in a place, nobody new gets in.
 */
#include "common/sched/sched_state.h"

/* --- out of pages --------------------------------------------------------------------------------------------------- */

static bool yields(const struct seq *q) { return seq_runs(q) || q->state == SEQ_WAITING; }

/* To another place that the rule would use and that has room: nothing is computed anew. */
static bool hand_elsewhere(struct sched *s, uint32_t slot)
{
    const struct seq *q = &s->seqs[slot];
    uint32_t kinds = s->overlap == OVERLAP_LOCAL     ? KIND_LOCAL
                     : s->overlap == OVERLAP_WORKERS ? KIND_WORKERS
                                                     : KIND_LOCAL | KIND_WORKERS;
    if (s->moving_count - s->relabelling >= s->config.max_moves || !s->places[q->place].accepts_moves || !seq_may_go(s, slot))
        return false;
    uint32_t pages = pages_wanted(s, slot), to = place_choose(s, q->mini_batch, q->known, pages, q->place, kinds);
    if (to == NONE)
        return false;
    hand_over(s, slot, to, pages, q->mini_batch, 0);
    return true;
}

/* Takes pages from the youngest in a place until all that starve there will get one. */
static bool shortage_in(struct sched *s, struct place *p)
{
    bool changed = false;
    while (p->starved > 0 && p->pages_total - p->pages_used + p->pages_releasing < p->starved) {
        if (p->kept.head != NONE) {
            prefix_evict(s, p->kept.head);
            changed = true;
            continue;
        }
        uint32_t victim = p->holders.tail;
        while (victim != NONE && !yields(&s->seqs[victim]))
            victim = s->cold[victim].place_prev;
        if (victim == NONE)
            break;
        struct seq *q = &s->seqs[victim];
        if (p->count == 1 && q->starved) {
            // It has the whole place. Wait for its rows, so that what they give counts: it must not come back smaller.
            if (p->pages_incoming > 0 || q->in_flight > 0)
                break;
            if (place_none_can_hold(s, pages_for(s, q->known))) {
                seq_finish(s, victim, SCHED_NO_SPACE);
                return true;
            }
        }
        changed = true;
        if (hand_elsewhere(s, victim))
            continue;
        s->stats.preempted += q->state != SEQ_WAITING;
        seq_requeue(s, victim);
    }
    return changed;
}

bool shortage_resolve(struct sched *s)
{
    bool changed = false;
    for (uint32_t i = 0; i < s->config.max_places && s->starved_places > 0; i++) {
        if (s->places[i].starved > 0)
            changed = shortage_in(s, &s->places[i]) || changed;
    }
    return changed;
}

/* --- drains --------------------------------------------------------------------------------------------------------- */

/* What is kept at the others makes way for what runs. */
static void make_room(struct sched *s, uint32_t not_this, uint32_t pages)
{
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct place *p = &s->places[i];
        if (i != not_this && p->accepts_moves && place_takes(s, p) && p->pages_idle > 0 && place_fits(p, pages, true)) {
            prefix_make_room(s, i, pages + place_spared(p));
            return;
        }
    }
}

static void drain_place(struct sched *s, uint32_t index, bool any_accepts, bool any_other)
{
    struct place *p = &s->places[index];
    uint32_t next;
    for (uint32_t slot = p->holders.head; slot != NONE; slot = next) {
        struct seq *q = &s->seqs[slot];
        next = s->cold[slot].place_next;
        if (!seq_runs(q))
            continue;
        if (!any_accepts) {
            if (!any_other)
                return; // nowhere to go: they end here
            s->stats.rebuilt++;
            s->stats.rebuilt_tokens += q->known;
            seq_requeue(s, slot);
            continue;
        }
        if (s->moving_count - s->relabelling >= s->config.max_moves)
            return;
        uint32_t pages = pages_wanted(s, slot);
        if (q->sharing) { // nothing of it is here yet
            seq_requeue(s, slot);
            continue;
        }
        uint32_t to = place_choose(s, q->mini_batch, MAX(q->known, q->next_pos), pages, index, KIND_LOCAL | KIND_WORKERS);
        if (to == NONE) {
            make_room(s, index, pages);
            return; // full for now; they decode on here
        }
        move_start(s, slot, to, pages, q->mini_batch);
    }
}

void drain_advance(struct sched *s)
{
    if (s->draining_places == 0)
        return;
    bool any_accepts = false, any_other = false;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct place *p = &s->places[i];
        any_other = any_other || (p->up && !p->draining);
        any_accepts = any_accepts || (p->up && !p->draining && p->accepts_moves);
    }
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        struct place *p = &s->places[i];
        if (p->draining && !p->drained)
            drain_place(s, i, any_accepts, any_other);
    }
}
