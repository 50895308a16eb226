/* sched_place.c: where KV lives: the page ledger, the load, and the choice of a place.
 *
 * Ledger: pages_used = pages of the sequences in the place's list + pages_incoming, never above pages_total; of them
 * pages_releasing belong to sequences that are leaving. Load is counted per place and mini-batch, because a mini-batch
 * waits for its slowest place only.
 *
 * The choice is the place after which the mini-batch waits least for attention, by the formula of sched_time.h; a place reads
 * load x token_us.
 *
 * Example: local pool at 0.02 us a token, one remote worker as fast with 30 layers x 60 us of link. A first sequence of
 * 1,000 tokens: local 20 us, remote 1,820 us: local. With 90,000 tokens in the local pool: local 1,820 us at the
 * next 1,000, remote max(1,800, 1,820): from here on both grow alike. Workers on the s-part's cores among themselves: the
 * one with the least load, so that each holds its share and the death of one loses no more than that.
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
    prefix_leave(s, slot);
    assert_always(q->pages <= p->pages_used && q->load == 0 && s->cold[slot].leaving == 0);
    place_unlist(s, p, slot);
    p->pages_used -= q->pages;
    q->pages = s->cold[slot].written = 0;
    q->place = SEQ_NO_PLACE;
}

void leaving_begin(struct sched *s, uint32_t slot)
{
    uint32_t pages = prefix_own_pages(s, slot);
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
    if (p->kept.head != NONE) // ahead of need: it takes a moment
        prefix_make_room(s, q->place, place_spared(p));
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

uint32_t pages_wanted(const struct sched *s, uint32_t slot)
{
    const struct seq *q = &s->seqs[slot];
    uint32_t known = MAX(q->known, q->next_pos + 1);
    uint32_t margin = MIN(q->limit > known ? q->limit - known : 0, TUNE_PLACE_MARGIN_PAGES * s->config.page_tokens);
    uint32_t wanted = pages_for(s, known + margin);
    // The margin is a wish: a place that the sequence fills alone must still take it.
    uint32_t largest = 0;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        if (s->places[i].up && !s->places[i].draining && place_permitted(s, &s->places[i]))
            largest = MAX(largest, s->places[i].pages_total);
    }
    return MAX(pages_for(s, known), MIN(wanted, largest));
}

uint32_t place_spared(const struct place *p) { return p->count == 0 ? 0 : MIN(1 + p->count / 8, p->pages_total / 16); }

bool place_fits(const struct place *p, uint32_t pages, bool evicting)
{
    uint32_t spare = p->pages_total - p->pages_used + (evicting ? p->pages_idle : 0);
    // Beside others, leave them a little to grow: a page for every eight, or the newcomer is soon the victim.
    return spare >= pages && spare - pages >= place_spared(p);
}

// Attention of a mini-batch at all places.
struct attention {
    double here_us, here_link_us; // on the s-part's cores, as in struct sched_round
    double first_us, second_us;   // until the two slowest elsewhere have answered
    uint32_t first;
};

static bool attends_here(const struct place *p) { return p->local || p->shares_cores; }

static struct attention attention_of(const struct sched *s, uint32_t mini_batch, double weight)
{
    struct attention a = {.first = NONE};
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct place *p = &s->places[i];
        double read_us = p->up ? place_read_us(s, p, mini_batch, 0, weight) : 0;
        if (read_us <= 0)
            continue;
        double answer_us = read_us + p->link_step_us;
        if (attends_here(p)) {
            a.here_us += read_us;
            a.here_link_us = MAX(a.here_link_us, p->link_step_us);
        } else if (answer_us > a.first_us) {
            a.second_us = a.first_us;
            a.first_us = answer_us;
            a.first = i;
        } else {
            a.second_us = MAX(a.second_us, answer_us);
        }
    }
    return a;
}

// The same, once that place reads so many tokens more.
static double attend_us_with(const struct sched *s, const struct attention *a, uint32_t place, uint32_t mini_batch, uint32_t tokens,
                             double weight)
{
    const struct place *p = &s->places[place];
    double here_us = a->here_us - (attends_here(p) ? place_read_us(s, p, mini_batch, 0, weight) : 0);
    struct sched_round round = {
        .here_us = here_us, .here_link_us = a->here_link_us, .away_answer_us = place == a->first ? a->second_us : a->first_us};
    sched_round_add(&round, attends_here(p), place_read_us(s, p, mini_batch, tokens, weight), p->link_step_us);
    return sched_round_attend_us(&round);
}

uint32_t place_choose(const struct sched *s, uint32_t mini_batch, uint32_t tokens, uint32_t pages, uint32_t not_this,
                      uint32_t kinds)
{
    // not_this: the place that is being left; then only places that take pages over count.
    double weight = load_weight(s);
    const struct attention now = attention_of(s, mini_batch, weight);
    uint32_t best = NONE, sharing = NONE;
    double best_us = 0, best_own_us = 0;
    double sharing_load = 0;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct place *p = &s->places[i];
        if (!(kinds & (p->local ? KIND_LOCAL : KIND_WORKERS)) || !place_takes(s, p) || !place_permitted(s, p) ||
            !place_fits(p, pages, not_this == NONE) || i == not_this || (not_this != NONE && !p->accepts_moves))
            continue;
        if (p->shares_cores && !p->local) {
            // Their times add up whichever takes it, so the sum says nothing: they share the context evenly, a slow one as
            // much less as it is slower.
            double load = (double)(p->load[mini_batch] + p->incoming[mini_batch] + tokens) *
                          (p->slow ? p->token_us / s->sharing_us : 1);
            if (sharing == NONE || load < sharing_load) {
                sharing = i;
                sharing_load = load;
            }
            continue;
        }
        double own_us = place_time_us(s, p, mini_batch, tokens, weight);
        double us = attend_us_with(s, &now, i, mini_batch, tokens, weight);
        if (best == NONE || us < best_us || (us == best_us && own_us < best_own_us)) {
            best = i;
            best_us = us;
            best_own_us = own_us;
        }
    }
    if (sharing != NONE) {
        double own_us = place_time_us(s, &s->places[sharing], mini_batch, tokens, weight);
        double us = attend_us_with(s, &now, sharing, mini_batch, tokens, weight);
        if (best == NONE || us < best_us || (us == best_us && own_us < best_own_us))
            best = sharing;
    }
    return best;
}

bool place_none_can_hold(struct sched *s, uint32_t pages)
{
    bool any_up = false;
    uint64_t wake_us = s->grace_until_us > s->now_us ? s->grace_until_us : SCHED_NEVER;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct place *p = &s->places[i];
        any_up = any_up || p->up;
        if (p->pages_total < pages || !place_permitted(s, p))
            continue;
        if (p->up)
            return false;
        uint64_t until_us = p->down_since_us + TUNE_PLACE_RETURN_US;
        if (until_us > s->now_us)
            wake_us = MIN(wake_us, until_us);
    }
    if (any_up && wake_us != SCHED_NEVER)
        s->grace_wake_us = MIN(s->grace_wake_us, wake_us);
    return any_up && wake_us == SCHED_NEVER;
}
