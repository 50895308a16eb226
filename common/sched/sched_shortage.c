// sched_shortage.c: what to do when pages run out, and how a place that drains is emptied.
//
// When a place has no page left, its youngest sequence gives way, never its oldest: so the oldest always ends, and with it the
// shortage. Those of class batch count as younger than all interactive ones. While a sequence lacks a page in a place, no new one gets in.
#include "common/sched/sched_choice.h"
#include "common/sched/sched_handover.h"
#include "common/sched/sched_sequence.h"
#include "common/sched/sched_shortage.h"
#include "common/sched/sched_split.h"
#include "common/sched/sched_state.h"

// --- out of pages ---------------------------------------------------------------------------------------------------

static bool yields(const struct sched *s, uint32_t slot)
{
    const struct sched_seq *seq = &s->seqs[s->seqs[slot].state == SCHED_SEQ_EXTENT ? s->cold[slot].extent.owner : slot];
    return sched_seq_runs(seq) || seq->state == SCHED_SEQ_WAITING;
}

// Hands it to another place that the rule of sched_overlap.c uses and that has room, so that nothing is computed anew.
static bool hand_elsewhere(struct sched *s, uint32_t slot)
{
    const struct sched_seq *seq = &s->seqs[slot];
    if (!sched_move_is_free(s) || !s->places.of[seq->place].accepts_moves || !sched_handover_allowed(s, slot))
        return false;
    uint32_t pages = sched_choice_pages(s, slot), to = sched_choice_place(s, seq->class, seq->mini_batch, seq->known, pages,
                                                                          seq->place, sched_overlap_kinds(s, seq->class));
    if (to == NONE)
        return false;
    sched_handover_start(s, slot, to, pages, seq->mini_batch, 0);
    return true;
}

// Takes pages from the youngest sequences of a place until all that starve there will get one.
static bool shortage_in(struct sched *s, struct sched_place *place)
{
    bool changed = false;
    while (place->starved > 0 && place->pages_total - place->pages_used + place->pages_releasing < place->starved) {
        if (place->kept.head != NONE) {
            sched_prefix_evict(s, place->kept.head);
            changed = true;
            continue;
        }
        uint32_t victim = place->holders.tail;
        while (victim != NONE && !yields(s, victim))
            victim = s->cold[victim].place.prev;
        if (victim == NONE)
            break;
        struct sched_seq *seq = &s->seqs[victim];
        if (place->count == 1 && seq->starved) {
            // It has the whole place. Its rows in flight must count, or it would come back with fewer tokens, for ever.
            if (place->pages_incoming > 0 || seq->in_flight > 0)
                break;
            if (sched_split_go_on(s, victim)) {
                changed = true;
                continue;
            }
            if (!seq->split && sched_choice_none_can_hold(s, sched_place_pages(s, seq->known))) {
                sched_sequence_finish(s, victim, SCHED_NO_SPACE);
                return true;
            }
        }
        changed = true;
        if (hand_elsewhere(s, victim))
            continue;
        s->stats.preempted += seq->state != SCHED_SEQ_WAITING;
        s->stats.gave_way += seq->state != SCHED_SEQ_WAITING && seq->class == SCHED_CLASS_BATCH;
        sched_sequence_give_up(s, victim);
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
        const struct sched_place *place = &s->places.of[i];
        if (i != not_this && place->accepts_moves && sched_place_takes(s, place) && place->pages_idle > 0 &&
            sched_place_fits(place, pages, true)) {
            sched_prefix_make_room(s, i, pages + sched_place_spared(place));
            return;
        }
    }
}

// Hands over a part of a sequence that is split, or gives it up where no place takes what is handed over.
static void drain_part(struct sched *s, uint32_t holder, bool any_accepts)
{
    uint32_t owner = sched_extent_is(s, holder) ? s->cold[holder].extent.owner : holder, to;
    if (s->seqs[owner].state == SCHED_SEQ_WAITING) {
        sched_sequence_give_up(s, holder);
    } else if (!sched_seq_runs(&s->seqs[owner])) {
        return;
    } else if (!any_accepts) {
        if (sched_split_room(s, holder, true, false) != NONE)
            sched_sequence_give_up(s, holder);
    } else if ((to = sched_split_room(s, holder, false, true)) != NONE) {
        if (sched_move_is_free(s))
            sched_sequence_move_part(s, holder, to, s->seqs[holder].pages);
    } else if ((to = sched_split_room(s, holder, true, true)) != NONE) {
        sched_prefix_make_room(s, to, s->seqs[holder].pages + sched_place_spared(&s->places.of[to]));
    }
}

static void drain_place(struct sched *s, uint32_t index, bool any_accepts, bool any_other)
{
    struct sched_place *place = &s->places.of[index];
    uint32_t next;
    for (uint32_t slot = place->holders.head; slot != NONE; slot = next) {
        struct sched_seq *seq = &s->seqs[slot];
        next = s->cold[slot].place.next;
        if (seq->split || sched_extent_is(s, slot)) {
            drain_part(s, slot, any_accepts);
            continue;
        }
        if (!sched_seq_runs(seq))
            continue;
        if (!any_accepts) {
            if (!any_other)
                return; // there is no other place: they end here
            sched_sequence_rebuild(s, slot);
            continue;
        }
        if (!sched_move_is_free(s))
            return;
        uint32_t pages = sched_choice_pages(s, slot);
        if (seq->sharing) { // it has no pages with contents yet
            sched_sequence_requeue(s, slot);
            continue;
        }
        uint32_t to =
            sched_choice_place(s, seq->class, seq->mini_batch, MAX(seq->known, seq->next_pos), pages, index, SCHED_CHOICE_ANY);
        if (to == NONE) {
            make_room(s, index, pages);
            return; // the others are full for now; it decodes on here
        }
        sched_sequence_move(s, slot, to, pages, seq->mini_batch);
    }
}

void sched_shortage_drain(struct sched *s)
{
    if (s->places.draining == 0)
        return;
    bool any_accepts = false, any_other = false;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *place = &s->places.of[i];
        any_other = any_other || (place->up && !place->draining);
        any_accepts = any_accepts || (place->up && !place->draining && place->accepts_moves);
    }
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        struct sched_place *place = &s->places.of[i];
        if (place->draining && !place->drained)
            drain_place(s, i, any_accepts, any_other);
    }
}
