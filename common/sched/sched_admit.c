/* sched_admit.c: from the queue into mini-batches.
 *
 * The queue is strictly in order (those to be rebuilt first, then by arrival): if its head fits nowhere yet, nothing
 * behind it is let past, so nobody starves. A sequence is placed with the pages of what is known of it and a margin,
 * and grows page by page afterwards (sched_shortage.c).
 */
#include "common/sched/sched_state.h"

/* Of the mini-batches that take the head of the queue now, the one that is expected to stay lightest; NONE: none does. */
static uint32_t mini_batch_choose(struct sched *s, uint32_t head)
{
    // One mini-batch while there are few: the S-part's time hardly depends on the rows then, so two take twice as long.
    uint32_t used = MIN(s->batches, s->running / s->config.mini_batch_fill + 1);
    uint64_t ahead = 2 * (uint64_t)chunk_cap(s); // prefill in a mini-batch before more is placed: pages are not idle
    double weight = load_weight(s);
    uint32_t best = NONE;
    double best_load = 0;
    for (uint32_t m = 0; m < used; m++) {
        const struct mini_batch *b = &s->mini_batches[m];
        uint32_t count = b->member_count + b->prefill_count;
        // What it reads now, and what so many will read: those that are young now grow.
        double load = (double)b->load + count * weight;
        if (count >= s->rows_max || b->prefill_rows >= ahead || (best != NONE && load >= best_load) || !load_lets_in(s, head, m))
            continue;
        best = m;
        best_load = load;
    }
    return best;
}

static void start(struct sched *s, uint32_t slot, uint32_t mini_batch)
{
    struct seq_cold *c = &s->cold[slot];
    heap_remove(&s->waiting, slot);
    s->fresh_waiting -= !c->rebuild;
    s->running++;
    c->admitted_us = s->now_us;
    s->seqs[slot].open = true;
    mini_batch_join(s, slot, mini_batch);
    load_started(s, slot, mini_batch);
}

/* A place that has more of its beginning than the chosen one, if the rows saved are worth more than what it reads longer there in
 * all the steps to come. */
static uint32_t prefer_prefix(struct sched *s, uint32_t slot, uint32_t mini_batch, uint32_t pages, uint32_t chosen)
{
    struct prefix_hit hits[PREFIX_HITS_MAX];
    const struct seq *q = &s->seqs[slot];
    uint32_t count = prefix_hits(s, slot, hits), best = chosen, there = 0;
    if (count == 0)
        return chosen;
    double most = q->limit - q->known, gain_us = 0;
    double steps = s->lengths.tokens > 0 ? MIN(s->lengths.tokens, most) : most;
    double page_us = s->config.page_tokens * (s->model.row_us > 0 ? s->model.row_us : 100);
    double chosen_us = chosen == NONE ? 0 : place_time_us(s, &s->places[chosen], mini_batch, q->known, 0);
    for (uint32_t i = 0; i < count; i++)
        there = hits[i].place == chosen ? hits[i].pages : there;
    for (uint32_t i = 0; i < count; i++) {
        const struct place *p = &s->places[hits[i].place];
        uint32_t ready = prefix_ready_pages(s, slot, hits[i].place);
        if (hits[i].place == chosen || !place_takes(s, p) || !place_permitted(s, p) ||
            !place_fits(p, pages - MIN(ready, pages), true))
            continue;
        double longer_us = chosen == NONE ? 0 : place_time_us(s, p, mini_batch, q->known, 0) - chosen_us;
        double us = ((double)hits[i].pages - there) * page_us - MAX(longer_us, 0) * steps;
        if (us > gain_us) {
            gain_us = us;
            best = hits[i].place;
        }
    }
    return best;
}

/* The head of the queue. Returns false if it has to wait (and everybody behind it). */
static bool admit_head(struct sched *s, uint32_t slot, uint32_t mini_batch)
{
    struct seq *q = &s->seqs[slot];
    uint32_t pages = pages_wanted(s, slot);
    struct place *p = seq_place(s, q);
    if (p != NULL) { // it holds pages already
        if (!place_takes(s, p))
            return false;
        uint32_t more = pages > q->pages ? pages - q->pages : 0;
        if (p->pages_total - p->pages_used < more && p->kept.head != NONE) {
            prefix_make_room(s, q->place, more);
            return false;
        }
        if (p->pages_total - p->pages_used < more) {
            seq_requeue(s, slot);
            return true;
        }
        p->pages_used += more;
        q->pages += more;
        start(s, slot, mini_batch);
        return true;
    }
    uint32_t place = overlap_choose(s, mini_batch, q->known, pages);
    place = prefer_prefix(s, slot, mini_batch, pages, place);
    if (place != NONE) {
        p = &s->places[place];
        uint32_t need = pages - prefix_ready_pages(s, slot, place);
        if (p->pages_total - p->pages_used < need) { // what is kept goes first; its pages are free in a moment
            prefix_make_room(s, place, need + place_spared(p));
            return false;
        }
        place_attach(s, slot, place, need);
        prefix_begin(s, slot);
        start(s, slot, mini_batch);
        return true;
    }
    if (!place_none_can_hold(s, pages_for(s, q->known)))
        return false;
    seq_finish(s, slot, SCHED_NO_SPACE);
    return true;
}

/* Nobody runs, and the head fits nowhere: then others that wait hold the pages. The youngest of them lets go. */
static bool holders_yield(struct sched *s, uint32_t head)
{
    uint32_t youngest = NONE;
    for (uint32_t i = 0; i < s->waiting.count; i++) {
        uint32_t slot = s->waiting.entries[i].slot;
        if (slot != head && s->seqs[slot].place != SEQ_NO_PLACE &&
            (youngest == NONE || s->cold[slot].arrival > s->cold[youngest].arrival))
            youngest = slot;
    }
    if (youngest == NONE)
        return false;
    seq_requeue(s, youngest);
    return true;
}

void admit(struct sched *s)
{
    s->grace_wake_us = SCHED_NEVER;
    overlap_judge(s);
    while (s->s_part_up && s->waiting.count > 0 && s->running < s->config.max_running) {
        uint32_t head = s->waiting.entries[0].slot;
        // Those whose KV was lost or taken are back in a moment: their pages and turns are not for newcomers.
        if (s->coming_back > 0 && !s->cold[head].rebuild)
            return;
        uint32_t mini_batch = mini_batch_choose(s, head);
        if (mini_batch == NONE)
            return;
        if (admit_head(s, head, mini_batch))
            continue;
        if (s->running == 0 && s->retiring == 0)
            holders_yield(s, head);
        return;
    }
}

uint64_t sched_predicted_wait_us(const struct sched *s)
{
    uint64_t rows = 0;
    for (uint32_t m = 0; m < s->config.mini_batches; m++)
        rows += s->mini_batches[m].prefill_rows;
    for (uint32_t i = 0; i < s->waiting.count && i < 64; i++)
        rows += s->seqs[s->waiting.entries[i].slot].known;
    if (s->waiting.count > 64)
        rows = rows / 64 * s->waiting.count;
    double row_us = s->model.row_us > 0 ? s->model.row_us : 100;
    double prefill_us = (double)rows * row_us;
    if (s->waiting.count == 0 && s->running < s->config.max_running)
        return (uint64_t)prefill_us;
    // Places become free one by one, as those that run come to their end.
    double lifetime_us = s->lifetime_us > 0 ? s->lifetime_us : 128.0 * s->config.step_target_us;
    double turn_us = lifetime_us * (s->waiting.count + 1) / MAX(s->running, 1);
    return (uint64_t)MAX(prefill_us, turn_us);
}
