/* sched_place.c: where KV lives: the page ledger and the load.
 *
 * Ledger: pages_used = pages of the sequences in the place's list + pages_incoming, never above pages_total; of them
 * pages_releasing belong to sequences that are leaving. Load is counted per place and mini-batch, because a mini-batch
 * waits for its slowest place only.
 */
#include "common/sched/sched_state.h"

void list_insert(struct sched *s, struct slot_list *list, uint32_t after, uint32_t slot)
{
    uint32_t before = after == NONE ? list->head : s->cold[after].place_next;
    s->cold[slot].place_prev = after;
    s->cold[slot].place_next = before;
    *(after == NONE ? &list->head : &s->cold[after].place_next) = slot;
    *(before == NONE ? &list->tail : &s->cold[before].place_prev) = slot;
}

void list_remove(struct sched *s, struct slot_list *list, uint32_t slot)
{
    uint32_t after = s->cold[slot].place_prev, before = s->cold[slot].place_next;
    *(after == NONE ? &list->head : &s->cold[after].place_next) = before;
    *(before == NONE ? &list->tail : &s->cold[before].place_prev) = after;
}

/* Oldest first, so that the youngest is at the tail; newcomers are nearly always youngest, so the walk is short. */
void place_list(struct sched *s, struct place *p, uint32_t slot)
{
    uint32_t after = p->holders.tail;
    while (after != NONE && s->cold[after].arrival > s->cold[slot].arrival)
        after = s->cold[after].place_prev;
    list_insert(s, &p->holders, after, slot);
    p->count++;
}

void place_unlist(struct sched *s, struct place *p, uint32_t slot)
{
    list_remove(s, &p->holders, slot);
    p->count--;
}

void place_attach(struct sched *s, uint32_t slot, uint32_t place, uint32_t pages)
{
    struct place *p = &s->places[place];
    assert_always(s->seqs[slot].place == SEQ_NO_PLACE && pages <= p->pages_total - p->pages_used);
    s->seqs[slot].place = (uint16_t)place;
    s->seqs[slot].pages = pages;
    p->pages_used += pages;
    place_list(s, p, slot);
}

void place_detach(struct sched *s, uint32_t slot)
{
    struct seq *q = &s->seqs[slot];
    struct place *p = seq_place(s, q);
    if (p == NULL)
        return;
    assert_always(q->pages <= p->pages_used && q->load == 0 && s->cold[slot].leaving == 0);
    place_unlist(s, p, slot);
    p->pages_used -= q->pages;
    q->pages = s->cold[slot].written = 0;
    q->place = SEQ_NO_PLACE;
}

void leaving_begin(struct sched *s, uint32_t slot, uint32_t pages)
{
    s->cold[slot].leaving = pages;
    seq_place(s, &s->seqs[slot])->pages_releasing += pages;
}

void leaving_end(struct sched *s, uint32_t slot)
{
    seq_place(s, &s->seqs[slot])->pages_releasing -= s->cold[slot].leaving;
    s->cold[slot].leaving = 0;
}

bool place_grow(struct sched *s, struct seq *q)
{
    struct place *p = seq_place(s, q);
    if (p->pages_used >= p->pages_total)
        return false;
    p->pages_used++;
    q->pages++;
    return true;
}

void place_starve(struct sched *s, struct seq *q, bool starved)
{
    if (q->starved == starved)
        return;
    struct place *p = seq_place(s, q);
    q->starved = starved;
    if (starved) {
        if (p->starved++ == 0)
            s->starved_places++;
    } else if (--p->starved == 0) {
        s->starved_places--;
    }
}

void place_reserve(struct sched *s, uint32_t place, uint32_t pages)
{
    struct place *p = &s->places[place];
    assert_always(pages <= p->pages_total - p->pages_used);
    p->pages_used += pages;
    p->pages_incoming += pages;
}

void place_unreserve(struct sched *s, uint32_t place, uint32_t pages)
{
    struct place *p = &s->places[place];
    assert_always(pages <= p->pages_incoming);
    p->pages_used -= pages;
    p->pages_incoming -= pages;
}

void seq_set_load(struct sched *s, struct seq *q, uint32_t load)
{
    uint64_t *place_load = &s->places[q->place].load[q->mini_batch];
    uint64_t *batch_load = &s->mini_batches[q->mini_batch].load;
    s->places[q->place].readers[q->mini_batch] += (load > 0) - (q->load > 0);
    *place_load = *place_load - q->load + load;
    *batch_load = *batch_load - q->load + load;
    q->load = load;
}

bool place_takes(const struct sched *s, const struct place *p)
{
    return p->up && !p->draining && p->starved == 0 && MAX(p->suspect_until_us, p->avoid_until_us) <= s->now_us;
}

bool place_permitted(const struct sched *s, const struct place *p)
{
    return s->config.placement == SCHED_PLACE_AUTO || p->local == (s->config.placement == SCHED_PLACE_LOCAL);
}

uint32_t place_spared(const struct place *p) { return p->count == 0 ? 0 : MIN(1 + p->count / 8, p->pages_total / 16); }

bool place_fits(const struct place *p, uint32_t pages, bool evicting)
{
    uint32_t spare = p->pages_total - p->pages_used + (evicting ? p->pages_idle : 0);
    // Beside others, leave them a little to grow: a page for every eight, or the newcomer is soon the victim.
    return spare >= pages && spare - pages >= place_spared(p);
}
