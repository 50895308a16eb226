// place.c: see place.h.
#include "common/sched/state.h"

void sched_list_insert(struct sched *s, struct sched_list *list, uint32_t after, uint32_t slot)
{
    uint32_t before = after == NONE ? list->head : s->cold[after].place.next;
    s->cold[slot].place.prev = after;
    s->cold[slot].place.next = before;
    *(after == NONE ? &list->head : &s->cold[after].place.next) = slot;
    *(before == NONE ? &list->tail : &s->cold[before].place.prev) = slot;
}

void sched_list_remove(struct sched *s, struct sched_list *list, uint32_t slot)
{
    uint32_t after = s->cold[slot].place.prev, before = s->cold[slot].place.next;
    *(after == NONE ? &list->head : &s->cold[after].place.next) = before;
    *(before == NONE ? &list->tail : &s->cold[before].place.prev) = after;
}

// Oldest first, so that the youngest is at the tail. New holders are nearly always the youngest, so the walk is short.
void sched_place_list(struct sched *s, struct sched_place *place, uint32_t slot)
{
    uint32_t after = place->holders.tail;
    while (after != NONE && s->cold[after].arrival > s->cold[slot].arrival)
        after = s->cold[after].place.prev;
    sched_list_insert(s, &place->holders, after, slot);
    place->count++;
}

void sched_place_unlist(struct sched *s, struct sched_place *place, uint32_t slot)
{
    sched_list_remove(s, &place->holders, slot);
    place->count--;
}

void sched_place_attach(struct sched *s, uint32_t slot, uint32_t index, uint32_t pages)
{
    struct sched_place *place = &s->places.of[index];
    assert_always(s->seqs[slot].place == SCHED_SEQ_NO_PLACE && pages <= place->pages_total - place->pages_used);
    s->seqs[slot].place = (uint16_t)index;
    s->seqs[slot].pages = pages;
    place->pages_used += pages;
    sched_place_list(s, place, slot);
}

void sched_place_detach(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    struct sched_place *place = sched_place_of(s, seq);
    if (place == NULL)
        return;
    assert_always(seq->pages <= place->pages_used && seq->load == 0 && s->cold[slot].place.leaving == 0);
    sched_place_unlist(s, place, slot);
    place->pages_used -= seq->pages;
    seq->pages = s->cold[slot].place.written = 0;
    seq->place = SCHED_SEQ_NO_PLACE;
}

void sched_place_pass_on(struct sched *s, uint32_t slot, uint32_t to)
{
    struct sched_seq *seq = &s->seqs[slot];
    struct sched_place *place = sched_place_of(s, seq);
    assert_always(seq->load == 0 && s->cold[slot].place.leaving == 0 && s->seqs[to].place == SCHED_SEQ_NO_PLACE);
    sched_place_unlist(s, place, slot);
    s->seqs[to].place = seq->place;
    s->seqs[to].pages = seq->pages;
    sched_place_list(s, place, to);
    seq->pages = s->cold[slot].place.written = 0;
    seq->place = SCHED_SEQ_NO_PLACE;
}

void sched_place_leaving(struct sched *s, uint32_t slot, uint32_t pages)
{
    s->cold[slot].place.leaving = pages;
    sched_place_of(s, &s->seqs[slot])->pages_releasing += pages;
}

void sched_place_left(struct sched *s, uint32_t slot)
{
    sched_place_of(s, &s->seqs[slot])->pages_releasing -= s->cold[slot].place.leaving;
    s->cold[slot].place.leaving = 0;
}

bool sched_place_grow(struct sched *s, struct sched_seq *seq)
{
    struct sched_place *place = sched_place_of(s, seq);
    if (place->pages_used >= place->pages_total)
        return false;
    place->pages_used++;
    seq->pages++;
    return true;
}

void sched_place_starve(struct sched *s, struct sched_seq *seq, bool starved)
{
    if (seq->starved == starved)
        return;
    struct sched_place *place = sched_place_of(s, seq);
    seq->starved = starved;
    if (starved) {
        if (place->starved++ == 0)
            s->places.starved++;
    } else if (--place->starved == 0) {
        s->places.starved--;
    }
}

static void reserve_pages(struct sched *s, uint32_t index, uint32_t pages)
{
    struct sched_place *place = &s->places.of[index];
    assert_always(pages <= place->pages_total - place->pages_used);
    place->pages_used += pages;
    place->pages_incoming += pages;
}

static void unreserve_pages(struct sched *s, uint32_t index, uint32_t pages)
{
    struct sched_place *place = &s->places.of[index];
    assert_always(pages <= place->pages_incoming);
    place->pages_used -= pages;
    place->pages_incoming -= pages;
}

void sched_place_set_load(struct sched *s, struct sched_seq *seq, uint32_t load)
{
    struct sched_place_load *at = &s->places.of[seq->place].loads[seq->class][seq->mini_batch];
    uint64_t *batch_load = &s->places.batch_load[seq->class][seq->mini_batch];
    if (seq->state != SCHED_SEQ_EXTENT) // readers are those that will grow
        at->readers += (load > 0) - (seq->load > 0);
    at->load = at->load - seq->load + load;
    *batch_load = *batch_load - seq->load + load;
    seq->load = load;
}

// Places nothing new there for a while: once for all rows that it loses at the same time, and twice as long each time until a row there
// counts.
void sched_place_avoid(struct sched *s, struct sched_place *place)
{
    if (place->avoid_until_us > s->now_us)
        return;
    place->avoid_until_us = s->now_us + ((uint64_t)TUNE_PLACE_LOST_AVOID_US << place->losses);
    s->places.losing += place->losses == 0;
    place->losses = MIN(place->losses + 1, TUNE_PLACE_LOST_DOUBLINGS);
}

void sched_place_forgive(struct sched *s, struct sched_place *place)
{
    s->places.losing -= place->losses > 0;
    place->losses = 0;
}

// --- sequences on their way -----------------------------------------------------------------------------------------

bool sched_move_is_free(const struct sched *s) { return s->moves.count - s->moves.relabelling < s->config.max_moves; }

void sched_move_begin(struct sched *s, uint32_t slot, uint32_t part, uint32_t to, uint32_t pages, uint32_t mini_batch)
{
    const struct sched_seq *seq = &s->seqs[slot];
    struct sched_move_link *m = &s->cold[slot].move;
    reserve_pages(s, to, pages);
    m->to = to;
    m->part = part;
    m->pages = pages;
    m->load = s->seqs[part].load;
    m->batch = (uint8_t)mini_batch;
    m->id = 0;
    m->taker_lost = false;
    m->relabels = to == seq->place;
    s->places.of[to].loads[seq->class][mini_batch].incoming += m->load;
    s->moves.relabelling += m->relabels;
    s->moves.slots[s->moves.count++] = slot;
}

static void leave_taker(struct sched *s, uint32_t slot)
{
    struct sched_move_link *m = &s->cold[slot].move;
    unreserve_pages(s, m->to, m->pages);
    s->places.of[m->to].loads[s->seqs[slot].class][m->batch].incoming -= m->load;
    m->pages = m->load = 0;
}

void sched_move_taker_lost(struct sched *s, uint32_t slot)
{
    leave_taker(s, slot);
    s->cold[slot].move.taker_lost = true;
}

void sched_move_forget(struct sched *s, uint32_t slot)
{
    struct sched_seq_cold *cold = &s->cold[slot];
    if (cold->move.to == NONE)
        return;
    leave_taker(s, slot);
    s->moves.relabelling -= cold->move.relabels;
    cold->move.to = NONE;
    cold->move.id = 0;
    cold->out.move = cold->move.relabels = false;
    for (uint32_t i = 0; i < s->moves.count; i++) {
        if (s->moves.slots[i] == slot) {
            s->moves.slots[i] = s->moves.slots[--s->moves.count];
            break;
        }
    }
}
