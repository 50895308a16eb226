// sched_place.c: see sched_place.h.
#include "common/sched/sched_state.h"

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
void sched_place_list(struct sched *s, struct sched_place *p, uint32_t slot)
{
    uint32_t after = p->holders.tail;
    while (after != NONE && s->cold[after].arrival > s->cold[slot].arrival)
        after = s->cold[after].place.prev;
    sched_list_insert(s, &p->holders, after, slot);
    p->count++;
}

void sched_place_unlist(struct sched *s, struct sched_place *p, uint32_t slot)
{
    sched_list_remove(s, &p->holders, slot);
    p->count--;
}

void sched_place_attach(struct sched *s, uint32_t slot, uint32_t place, uint32_t pages)
{
    struct sched_place *p = &s->places.of[place];
    assert_always(s->seqs[slot].place == SCHED_SEQ_NO_PLACE && pages <= p->pages_total - p->pages_used);
    s->seqs[slot].place = (uint16_t)place;
    s->seqs[slot].pages = pages;
    p->pages_used += pages;
    sched_place_list(s, p, slot);
}

void sched_place_detach(struct sched *s, uint32_t slot)
{
    struct sched_seq *q = &s->seqs[slot];
    struct sched_place *p = sched_place_of(s, q);
    if (p == NULL)
        return;
    assert_always(q->pages <= p->pages_used && q->load == 0 && s->cold[slot].place.leaving == 0);
    sched_place_unlist(s, p, slot);
    p->pages_used -= q->pages;
    q->pages = s->cold[slot].place.written = 0;
    q->place = SCHED_SEQ_NO_PLACE;
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

bool sched_place_grow(struct sched *s, struct sched_seq *q)
{
    struct sched_place *p = sched_place_of(s, q);
    if (p->pages_used >= p->pages_total)
        return false;
    p->pages_used++;
    q->pages++;
    return true;
}

void sched_place_starve(struct sched *s, struct sched_seq *q, bool starved)
{
    if (q->starved == starved)
        return;
    struct sched_place *p = sched_place_of(s, q);
    q->starved = starved;
    if (starved) {
        if (p->starved++ == 0)
            s->places.starved++;
    } else if (--p->starved == 0) {
        s->places.starved--;
    }
}

void sched_place_reserve(struct sched *s, uint32_t place, uint32_t pages)
{
    struct sched_place *p = &s->places.of[place];
    assert_always(pages <= p->pages_total - p->pages_used);
    p->pages_used += pages;
    p->pages_incoming += pages;
}

void sched_place_unreserve(struct sched *s, uint32_t place, uint32_t pages)
{
    struct sched_place *p = &s->places.of[place];
    assert_always(pages <= p->pages_incoming);
    p->pages_used -= pages;
    p->pages_incoming -= pages;
}

void sched_place_set_load(struct sched *s, struct sched_seq *q, uint32_t load)
{
    uint64_t *place_load = &s->places.of[q->place].load[q->mini_batch];
    uint64_t *batch_load = &s->places.batch_load[q->mini_batch];
    s->places.of[q->place].readers[q->mini_batch] += (load > 0) - (q->load > 0);
    *place_load = *place_load - q->load + load;
    *batch_load = *batch_load - q->load + load;
    q->load = load;
}
