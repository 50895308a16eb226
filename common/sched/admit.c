// admit.c: which sequences run: from the queue into mini-batches, and back when pages run out or a place drains.
//
// The queue is strictly in order (interactive sequences first, of a class those to be rebuilt, then by arrival): while its head fits
// nowhere, nothing behind it passes, so no sequence starves, and class batch gets what interactive ones leave. A sequence is placed with the
// pages of its known tokens and a margin, and grows page by page afterwards.
#include "common/sched/balance.h"
#include "common/sched/choice.h"
#include "common/sched/sequence.h"
#include "common/sched/split.h"
#include "common/sched/state.h"

// Returns the mini-batch that is expected to stay lightest, of those that take the head of the queue now; NONE: none does.
static uint32_t mini_batch_choose(struct sched *s, uint32_t head)
{
    enum sched_class class = s->seqs[head].class;
    bool waits = sched_class_waits(s, class);
    // With few sequences one mini-batch a stage: a stage's time hardly depends on the rows then, so two would take twice as long.
    uint32_t wanted = MAX(s->running[class] / s->config.mini_batch_fill + 1, s->config.stages);
    uint32_t used = waits ? s->batches.in_use : MIN(s->batches.in_use, wanted);
    uint64_t ahead = 2 * (uint64_t)sched_chunk_max(s); // prefill rows beyond which no more is placed: pages would lie idle
    struct sched_weight weight = sched_load_weight(s, class);
    uint32_t best = NONE;
    double best_load = 0;
    for (uint32_t m = 0; m < used; m++) {
        const struct sched_batch *batch = &s->batches.of[m];
        uint32_t count = sched_batch_size(batch, class);
        // Beside what it reads now, what so many sequences will read: young ones grow.
        double load = (double)s->places.batch_load[class][m] * weight.context + count * weight.each;
        // One prompt at a time, which gets rows when there is time: what waits in the queue holds no pages.
        if (waits && (batch->of[class].prefill_count > 0 || sched_batch_size(batch, sched_leading_class(s)) == 0))
            continue;
        if (count >= s->s_part.rows_max || batch->of[class].prefill_rows >= ahead || (best != NONE && load >= best_load) ||
            !sched_load_lets_in(s, head, m))
            continue;
        best = m;
        best_load = load;
    }
    return best;
}

static void start_sequence(struct sched *s, uint32_t slot, uint32_t mini_batch)
{
    struct sched_seq_cold *cold = &s->cold[slot];
    sched_queue_remove(s, slot);
    s->running[s->seqs[slot].class]++;
    cold->admitted_us = s->now_us;
    s->seqs[slot].open = true;
    sched_sequence_join(s, slot, mini_batch);
    sched_load_started(s, slot, mini_batch);
}

// Returns a place that has more of the sequence's beginning than the chosen one, if the rows saved are worth more than the longer reading
// in all steps to come; otherwise the chosen one.
static uint32_t prefer_prefix(struct sched *s, uint32_t slot, uint32_t mini_batch, uint32_t pages, uint32_t chosen)
{
    struct sched_prefix_hit hits[SCHED_PREFIX_HITS_MAX];
    const struct sched_seq *seq = &s->seqs[slot];
    uint32_t count = sched_prefix_hits(s, slot, hits), best = chosen, there = 0;
    if (count == 0)
        return chosen;
    double most = seq->limit - seq->known, gain_us = 0;
    const struct sched_lengths *l = &s->load.of[seq->class].lengths;
    double steps = l->tokens > 0 ? MIN(l->tokens, most) : most;
    double page_us = s->config.page_tokens * (s->time.whole.row_us > 0 ? s->time.whole.row_us : TUNE_QUEUE_ROW_US);
    double chosen_us = chosen == NONE ? 0 : sched_speed_answer_us(s, &s->places.of[chosen], seq->class, mini_batch, seq->known);
    for (uint32_t i = 0; i < count; i++)
        there = hits[i].place == chosen ? hits[i].pages : there;
    for (uint32_t i = 0; i < count; i++) {
        const struct sched_place *place = &s->places.of[hits[i].place];
        uint32_t ready = sched_prefix_ready_pages(s, slot, hits[i].place);
        if (hits[i].place == chosen || !sched_place_takes(s, place) || !sched_place_permitted(s, place) ||
            !sched_place_fits(place, pages - MIN(ready, pages), true))
            continue;
        double longer_us = chosen == NONE ? 0 : sched_speed_answer_us(s, place, seq->class, mini_batch, seq->known) - chosen_us;
        double us = ((double)hits[i].pages - there) * page_us - MAX(longer_us, 0) * steps;
        if (us > gain_us) {
            gain_us = us;
            best = hits[i].place;
        }
    }
    return best;
}

// Returns the pages that would be free at a place if as many sequences that go behind a class gave way as it takes to have `pages` of them.
// *victims is how many.
static uint32_t pages_behind(const struct sched *s, const struct sched_place *place, enum sched_class class, uint32_t pages,
                             uint32_t *victims)
{
    uint32_t have = place->pages_total - place->pages_used + place->pages_releasing + place->pages_idle;
    *victims = 0;
    for (uint32_t slot = place->holders.tail; slot != NONE && s->seqs[slot].class > class && have < pages;
         slot = s->cold[slot].place.prev) {
        if (!sched_seq_runs(&s->seqs[slot]) && s->seqs[slot].state != SCHED_SEQ_WAITING)
            continue;
        have += sched_prefix_own_pages(s, slot);
        ++*victims;
    }
    return have;
}

// Lets sequences that go behind the head of the queue give way to it, the youngest first, at the place where fewest have to. True: the head
// will have its pages there.
static bool make_way(struct sched *s, uint32_t head, uint32_t pages)
{
    enum sched_class class = s->seqs[head].class;
    uint32_t kinds = sched_overlap_kinds_new(s, class, pages), best = NONE, fewest = 0, victims;
    if (s->running[SCHED_CLASS_BATCH] + s->queue.count[SCHED_CLASS_BATCH] + s->coming_back[SCHED_CLASS_BATCH] == 0)
        return false;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *place = &s->places.of[i];
        uint32_t need = pages + sched_place_spared(place);
        if (!sched_place_takes(s, place) || !sched_place_permitted(s, place) || !(kinds & SCHED_CHOICE_OF(place->kind)) ||
            pages_behind(s, place, class, need, &victims) < need || (best != NONE && victims >= fewest))
            continue;
        best = i;
        fewest = victims;
    }
    if (best == NONE)
        return false;
    sched_prefix_make_room(s, best, pages + sched_place_spared(&s->places.of[best]));
    for (uint32_t slot = s->places.of[best].holders.tail, before; fewest > 0; slot = before) {
        before = s->cold[slot].place.prev;
        if (!sched_seq_runs(&s->seqs[slot]) && s->seqs[slot].state != SCHED_SEQ_WAITING)
            continue;
        fewest--;
        s->stats.preempted += s->seqs[slot].state != SCHED_SEQ_WAITING;
        s->stats.gave_way += s->seqs[slot].state != SCHED_SEQ_WAITING;
        sched_sequence_give_up(s, slot);
    }
    return true;
}

// Places the head of the queue over several places. False: it has to wait.
static bool admit_split(struct sched *s, uint32_t slot, uint32_t mini_batch)
{
    uint32_t from = 0;
    switch (sched_split_place(s, slot, mini_batch, &from)) {
    case SCHED_SPLIT_PLACED: start_sequence(s, slot, mini_batch); return true;
    case SCHED_SPLIT_WAITS: return false;
    case SCHED_SPLIT_LESS: sched_sequence_requeue_from(s, slot, from); return true;
    case SCHED_SPLIT_NEVER: sched_sequence_finish(s, slot, SCHED_NO_SPACE); return true;
    }
    return false;
}

// Places the head of the queue. False: it has to wait, and with it all behind it.
static bool admit_head(struct sched *s, uint32_t slot, uint32_t mini_batch)
{
    struct sched_seq *seq = &s->seqs[slot];
    uint32_t pages = sched_choice_pages(s, slot);
    struct sched_place *place = sched_place_of(s, seq);
    if (place != NULL) { // it holds pages already
        if (!sched_place_takes(s, place))
            return false;
        if (seq->split)
            pages = sched_split_tail_pages(s, slot);
        uint32_t more = pages > seq->pages ? pages - seq->pages : 0;
        if (place->pages_total - place->pages_used < more && place->kept.head != NONE) {
            sched_prefix_make_room(s, seq->place, more);
            return false;
        }
        if (place->pages_total - place->pages_used < more) {
            if (!sched_split_keep(s, slot))
                sched_sequence_requeue(s, slot);
            return true;
        }
        place->pages_used += more;
        seq->pages += more;
        start_sequence(s, slot, mini_batch);
        return true;
    }
    if (seq->split)
        return admit_split(s, slot, mini_batch);
    uint32_t index = sched_overlap_place(s, seq->class, mini_batch, seq->known, pages);
    index = prefer_prefix(s, slot, mini_batch, pages, index);
    if (index != NONE) {
        place = &s->places.of[index];
        uint32_t need = pages - sched_prefix_ready_pages(s, slot, index);
        if (place->pages_total - place->pages_used < need) { // kept sequences go first; their pages are free in a moment
            sched_prefix_make_room(s, index, need + sched_place_spared(place));
            return false;
        }
        sched_place_attach(s, slot, index, need);
        sched_prefix_begin(s, slot);
        start_sequence(s, slot, mini_batch);
        return true;
    }
    if (make_way(s, slot, pages) || !sched_choice_none_can_hold(s, sched_place_pages(s, seq->known)))
        return false;
    return admit_split(s, slot, mini_batch);
}

// When nothing runs and the head fits nowhere, other waiting sequences hold the pages. The youngest of them gives its pages up.
static bool holders_yield(struct sched *s, uint32_t head)
{
    uint32_t youngest = NONE;
    for (uint32_t i = 0; i < s->queue.waiting.count; i++) {
        uint32_t slot = s->queue.waiting.entries[i].slot;
        if (slot != head && (s->seqs[slot].place != SCHED_SEQ_NO_PLACE || s->seqs[slot].split) &&
            (youngest == NONE || s->cold[slot].arrival > s->cold[youngest].arrival))
            youngest = slot;
    }
    if (youngest == NONE)
        return false;
    sched_sequence_requeue_from(s, youngest, 0);
    return true;
}

void sched_admit(struct sched *s)
{
    enum sched_class judged = s->queue.waiting.count > 0 ? s->seqs[s->queue.waiting.entries[0].slot].class : SCHED_CLASSES;
    s->places.grace_wake_us = SCHED_NEVER;
    sched_overlap_judge(s);
    while (s->s_part.up && s->queue.waiting.count > 0) {
        uint32_t head = s->queue.waiting.entries[0].slot;
        enum sched_class class = s->seqs[head].class;
        if (sched_class_sum(s->running, class) >= s->config.max_running)
            return;
        // Sequences whose KV was lost or taken are back in a moment: newcomers must not take their pages and turns.
        if (sched_class_sum(s->coming_back, class) > 0 && !s->cold[head].rebuild)
            return;
        if (class != judged)
            sched_overlap_judge(s);
        judged = class;
        uint32_t mini_batch = mini_batch_choose(s, head);
        if (mini_batch == NONE)
            return;
        if (admit_head(s, head, mini_batch))
            continue;
        if (sched_class_sum(s->running, SCHED_CLASS_BATCH) == 0 && s->retiring == 0)
            holders_yield(s, head);
        return;
    }
}

uint64_t sched_predicted_wait_us(const struct sched *s, enum sched_class class)
{
    const struct sched_heap *queue = &s->queue.waiting;
    uint32_t waiting = sched_class_sum(s->queue.count, class), running = sched_class_sum(s->running, class);
    uint64_t rows = 0;
    for (uint32_t m = 0; m < s->config.mini_batches; m++) {
        for (enum sched_class k = 0; k <= class; k++)
            rows += s->batches.of[m].of[k].prefill_rows;
    }
    for (uint32_t i = 0; i < queue->count && i < TUNE_QUEUE_LISTED; i++)
        rows += s->seqs[queue->entries[i].slot].class <= class ? s->seqs[queue->entries[i].slot].known : 0;
    if (waiting > TUNE_QUEUE_LISTED)
        rows = rows / TUNE_QUEUE_LISTED * waiting;
    double row_us = s->time.whole.row_us > 0 ? s->time.whole.row_us : TUNE_QUEUE_ROW_US;
    double prefill_us = (double)rows * row_us;
    if (waiting == 0 && running < s->config.max_running)
        return (uint64_t)prefill_us;
    // Turns become free one by one, as running sequences end.
    double lifetime_us = s->queue.lifetime_us[class] > 0 ? s->queue.lifetime_us[class]
                                                         : (double)TUNE_QUEUE_LIFE_STEPS * s->config.step_target_us;
    double turn_us = lifetime_us * (waiting + 1) / MAX(running, 1);
    return (uint64_t)MAX(prefill_us, turn_us);
}

// --- out of pages ---------------------------------------------------------------------------------------------------

// When a place has no page left, its youngest sequence gives way, never its oldest: so the oldest always ends, and with it the
// shortage. Those of class batch count as younger than all interactive ones. While a sequence lacks a page in a place, no new one gets in.

static bool may_yield(const struct sched *s, uint32_t slot)
{
    const struct sched_seq *seq = &s->seqs[s->seqs[slot].state == SCHED_SEQ_EXTENT ? s->cold[slot].extent.owner : slot];
    return sched_seq_runs(seq) || seq->state == SCHED_SEQ_WAITING;
}

// Hands it to another place that the rule of choice.c uses and that has room, so that nothing is computed anew.
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
        while (victim != NONE && !may_yield(s, victim))
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
