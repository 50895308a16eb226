// sched_shortage.c: what to do when pages run out, and how a place that drains is emptied.
//
// When a place has no page left, its youngest sequence gives way, never its oldest: so the oldest always ends, and with it the
// shortage. While a sequence lacks a page in a place, no new one gets in.
#include "common/sched/sched_choice.h"
#include "common/sched/sched_handover.h"
#include "common/sched/sched_sequence.h"
#include "common/sched/sched_shortage.h"
#include "common/sched/sched_state.h"

// --- out of pages ---------------------------------------------------------------------------------------------------

static bool yields(const struct sched_seq *q) { return sched_seq_runs(q) || q->state == SCHED_SEQ_WAITING; }

// Hands it to another place that the rule of sched_overlap.c uses and that has room, so that nothing is computed anew.
static bool hand_elsewhere(struct sched *s, uint32_t slot)
{
    const struct sched_seq *q = &s->seqs[slot];
    if (!sched_move_is_free(s) || !s->places.of[q->place].accepts_moves || !sched_handover_allowed(s, slot))
        return false;
    uint32_t pages = sched_choice_pages(s, slot),
             to = sched_choice_place(s, q->mini_batch, q->known, pages, q->place, sched_overlap_kinds(s));
    if (to == NONE)
        return false;
    sched_handover_start(s, slot, to, pages, q->mini_batch, 0);
    return true;
}

// Takes pages from the youngest sequences of a place until all that starve there will get one.
static bool shortage_in(struct sched *s, struct sched_place *p)
{
    bool changed = false;
    while (p->starved > 0 && p->pages_total - p->pages_used + p->pages_releasing < p->starved) {
        if (p->kept.head != NONE) {
            sched_prefix_evict(s, p->kept.head);
            changed = true;
            continue;
        }
        uint32_t victim = p->holders.tail;
        while (victim != NONE && !yields(&s->seqs[victim]))
            victim = s->cold[victim].place.prev;
        if (victim == NONE)
            break;
        struct sched_seq *q = &s->seqs[victim];
        if (p->count == 1 && q->starved) {
            // It has the whole place. Its rows in flight must count, or it would come back with fewer tokens, for ever.
            if (p->pages_incoming > 0 || q->in_flight > 0)
                break;
            if (sched_choice_none_can_hold(s, sched_place_pages(s, q->known))) {
                sched_sequence_finish(s, victim, SCHED_NO_SPACE);
                return true;
            }
        }
        changed = true;
        if (hand_elsewhere(s, victim))
            continue;
        s->stats.preempted += q->state != SCHED_SEQ_WAITING;
        sched_sequence_requeue(s, victim);
    }
    return changed;
}

bool sched_shortage_resolve(struct sched *s)
{
    bool changed = false;
    for (uint32_t i = 0; i < s->config.max_places && s->places.starved > 0; i++) {
        if (s->places.of[i].starved > 0)
            changed = shortage_in(s, &s->places.of[i]) || changed;
    }
    return changed;
}

// --- drains ---------------------------------------------------------------------------------------------------------

// Makes room at another place at the expense of its kept sequences.
static void make_room(struct sched *s, uint32_t not_this, uint32_t pages)
{
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *p = &s->places.of[i];
        if (i != not_this && p->accepts_moves && sched_place_takes(s, p) && p->pages_idle > 0 && sched_place_fits(p, pages, true)) {
            sched_prefix_make_room(s, i, pages + sched_place_spared(p));
            return;
        }
    }
}

static void drain_place(struct sched *s, uint32_t index, bool any_accepts, bool any_other)
{
    struct sched_place *p = &s->places.of[index];
    uint32_t next;
    for (uint32_t slot = p->holders.head; slot != NONE; slot = next) {
        struct sched_seq *q = &s->seqs[slot];
        next = s->cold[slot].place.next;
        if (!sched_seq_runs(q))
            continue;
        if (!any_accepts) {
            if (!any_other)
                return; // there is no other place: they end here
            s->stats.rebuilt++;
            s->stats.rebuilt_tokens += q->known;
            sched_sequence_requeue(s, slot);
            continue;
        }
        if (!sched_move_is_free(s))
            return;
        uint32_t pages = sched_choice_pages(s, slot);
        if (q->sharing) { // it has no pages with contents yet
            sched_sequence_requeue(s, slot);
            continue;
        }
        uint32_t to = sched_choice_place(s, q->mini_batch, MAX(q->known, q->next_pos), pages, index, SCHED_CHOICE_ANY);
        if (to == NONE) {
            make_room(s, index, pages);
            return; // the others are full for now; it decodes on here
        }
        sched_sequence_move(s, slot, to, pages, q->mini_batch);
    }
}

void sched_shortage_drain(struct sched *s)
{
    if (s->places.draining == 0)
        return;
    bool any_accepts = false, any_other = false;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *p = &s->places.of[i];
        any_other = any_other || (p->up && !p->draining);
        any_accepts = any_accepts || (p->up && !p->draining && p->accepts_moves);
    }
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        struct sched_place *p = &s->places.of[i];
        if (p->draining && !p->drained)
            drain_place(s, i, any_accepts, any_other);
    }
}
