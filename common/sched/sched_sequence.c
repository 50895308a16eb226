/* sched_sequence.c: how a sequence moves between its states (the picture is in sched_state.h).
 *
 * Two rules carry the rest. Rows in flight that no longer count are recognized by their epoch, and nothing of the
 * sequence is planned again until all of them are back (`fenced`, DRAINING): so no void row ever runs beside a valid
 * one. Pages leave the ledger only in place_detach(): once per stay in a place.
 */
#include "common/sched/sched_state.h"

static void leave_place(struct sched *s, uint32_t slot)
{
    if (s->seqs[slot].place == SEQ_NO_PLACE)
        return;
    prefix_leave(s, slot);
    place_detach(s, slot);
}

/* --- mini-batch membership ---------------------------------------------------------------------------------------- */

void mini_batch_join(struct sched *s, uint32_t slot, uint32_t mini_batch)
{
    mini_batch = MIN(mini_batch, s->batches - 1); // it may have been on its way while that one went out of use
    struct seq *q = &s->seqs[slot];
    struct mini_batch *b = &s->mini_batches[mini_batch];
    q->mini_batch = (uint8_t)mini_batch;
    // One token that was generated is an ordinary decode row; anything else below `known` is prefill.
    uint32_t tokens = q->known + q->samples;
    bool decode = q->next_pos == tokens || (q->next_pos + 1 == tokens && tokens > s->cold[slot].prompt);
    q->target = decode ? q->next_pos : q->known;
    q->state = decode ? SEQ_DECODE : SEQ_PREFILL;
    seq_set_load(s, q, MAX(q->target, q->next_pos));
    load_join(s, slot);
    if (decode) {
        member_add(s, slot);
    } else {
        b->prefill_rows += q->target - q->next_pos;
        prefill_link(s, b, slot);
    }
}

void mini_batch_leave(struct sched *s, uint32_t slot)
{
    struct seq *q = &s->seqs[slot];
    struct mini_batch *b = &s->mini_batches[q->mini_batch];
    place_starve(s, q, false);
    if (q->state == SEQ_PREFILL) {
        b->prefill_rows -= q->target - q->next_pos;
        prefill_unlink(s, slot);
    } else {
        uint32_t moved = b->members[--b->member_count];
        b->members[q->member] = moved;
        s->seqs[moved].member = q->member;
    }
    seq_set_load(s, q, 0);
    load_leave(s, slot);
}

/* --- rows in flight ------------------------------------------------------------------------------------------------- */

void seq_void(struct sched *s, uint32_t slot)
{
    struct seq *q = &s->seqs[slot];
    q->epoch++;
    q->samples = 0;
    q->fenced = q->in_flight > 0;
}

void seq_rewind(struct sched *s, uint32_t slot)
{
    struct seq *q = &s->seqs[slot];
    bool runs = seq_runs(q);
    if (runs)
        mini_batch_leave(s, slot);
    seq_void(s, slot);
    s->cold[slot].written = MAX(s->cold[slot].written, pages_for(s, q->next_pos));
    q->next_pos = q->held;
    q->open = true;
    if (runs)
        mini_batch_join(s, slot, q->mini_batch);
}

/* It was only to change its mini-batch. */
static void relabelled(struct sched *s, uint32_t slot)
{
    uint32_t mini_batch = s->cold[slot].move_batch;
    move_forget(s, slot);
    leaving_end(s, slot);
    s->stats.relabelled++;
    mini_batch_join(s, slot, mini_batch);
}

/* The steps in flight are all back: say what was waiting for that. */
static void settle(struct sched *s, uint32_t slot)
{
    struct seq *q = &s->seqs[slot];
    struct seq_cold *c = &s->cold[slot];
    q->fenced = false;
    if (q->state == SEQ_MOVING && c->relabels) {
        relabelled(s, slot);
        return;
    }
    if (q->pins > 0)
        return;
    if (q->state == SEQ_MOVING && !c->move_id && (q->held == 0 || q->sharing)) {
        seq_requeue(s, slot); // nothing to hand over
    } else if (q->state == SEQ_MOVING && !c->move_id) {
        c->out_move = true;
        out_queue(s, slot);
    } else if (q->state == SEQ_DRAINING) {
        if (c->keep) {
            c->out_kept = true;
            out_queue(s, slot);
        } else if (q->place == SEQ_NO_PLACE && !c->over) {
            seq_released(s, slot);
        } else {
            c->out_release = true;
            out_queue(s, slot);
        }
    }
}

void seq_row_back(struct sched *s, uint32_t slot)
{
    struct seq *q = &s->seqs[slot];
    assert_always(q->in_flight > 0);
    if (--q->in_flight == 0)
        settle(s, slot);
}

void seq_unpin(struct sched *s, uint32_t slot)
{
    struct seq *q = &s->seqs[slot];
    assert_always(q->pins > 0);
    if (--q->pins == 0 && q->in_flight == 0)
        settle(s, slot);
}

// It is about to leave its place: whoever was to give it its first pages is let go.
static void stop_sharing(struct sched *s, uint32_t slot)
{
    uint32_t source = prefix_stop(s, slot);
    if (source != NONE)
        seq_unpin(s, source);
}

/* --- leaving -------------------------------------------------------------------------------------------------------- */

/* Out of whatever it is in, into DRAINING; pages, if it has any, are on their way to be released. */
static void drain(struct sched *s, uint32_t slot)
{
    struct seq *q = &s->seqs[slot];
    struct place *p = seq_place(s, q);
    if (seq_runs(q)) {
        mini_batch_leave(s, slot);
        s->running--;
    } else if (q->state == SEQ_MOVING) {
        move_forget(s, slot);
        leaving_end(s, slot); // counted while moving too
        s->running--;
    } else if (q->state == SEQ_WAITING && heap_has(&s->waiting, slot)) {
        heap_remove(&s->waiting, slot);
        s->fresh_waiting -= !s->cold[slot].rebuild;
    }
    seq_void(s, slot);
    q->state = SEQ_DRAINING;
    s->retiring++;
    stop_sharing(s, slot);
    if (p != NULL && !s->cold[slot].keep)
        leaving_begin(s, slot, prefix_own_pages(s, slot));
}

void seq_requeue(struct sched *s, uint32_t slot)
{
    drain(s, slot);
    s->cold[slot].rebuild = true;
    s->coming_back++;
    if (s->seqs[slot].in_flight == 0)
        settle(s, slot);
}

void seq_lost(struct sched *s, uint32_t slot)
{
    struct seq *q = &s->seqs[slot];
    struct seq_cold *c = &s->cold[slot];
    if (q->state == SEQ_WAITING) { // waited with pages held; keeps its turn
        leave_place(s, slot);
        q->held = q->next_pos = 0;
        return;
    }
    bool leaving = q->state == SEQ_DRAINING || q->state == SEQ_RELEASING;
    if (!leaving) {
        s->stats.rebuilt++;
        s->stats.rebuilt_tokens += q->known;
        c->rebuild = true;
        drain(s, slot);
        s->coming_back++;
    }
    leaving_end(s, slot);
    leave_place(s, slot);
    if (q->state == SEQ_RELEASING) {
        seq_released(s, slot);
    } else if (q->in_flight == 0) {
        c->out_release = c->out_kept = false;
        settle(s, slot);
    }
}

void seq_finish(struct sched *s, uint32_t slot, enum sched_reason reason)
{
    struct seq *q = &s->seqs[slot];
    struct seq_cold *c = &s->cold[slot];
    if (c->over)
        return;
    c->over = true;
    c->reason = (uint8_t)reason;
    c->out_finished = true;
    s->stats.finished++;
    heap_remove(&s->deadlines, slot);
    out_queue(s, slot);
    if (q->state == SEQ_DRAINING || q->state == SEQ_RELEASING) {
        s->coming_back--;
        return;
    }
    if (q->known > c->prompt)
        survival_end(&s->survival, q->known - c->prompt, reason != SCHED_LENGTH);
    if (q->state != SEQ_WAITING && reason <= SCHED_EOS) {
        double us = (double)(s->now_us - c->admitted_us);
        s->lifetime_us += s->lifetime_us == 0 ? us : 0.1 * (us - s->lifetime_us);
    }
    if (q->state == SEQ_MOVING && c->move_id)
        return; // its pages are between two places: the answer says where they are to be released
    prefix_keep(s, slot);
    drain(s, slot);
    if (q->in_flight == 0)
        settle(s, slot);
}

void seq_released(struct sched *s, uint32_t slot)
{
    struct seq *q = &s->seqs[slot];
    struct seq_cold *c = &s->cold[slot];
    struct place *p = seq_place(s, q);
    if (p != NULL) {
        leaving_end(s, slot);
        leave_place(s, slot);
    }
    q->held = q->next_pos = 0;
    if (c->over && c->last_said) {
        s->retiring--;
        seq_free(s, slot);
    } else if (c->over) { // it ended while its pages were being released for another reason
        q->state = SEQ_DRAINING;
        c->out_release = true;
        out_queue(s, slot);
    } else {
        s->retiring--;
        s->coming_back--;
        seq_wait(s, slot);
    }
}

void seq_wait(struct sched *s, uint32_t slot)
{
    struct seq_cold *c = &s->cold[slot];
    s->seqs[slot].state = SEQ_WAITING;
    heap_push(&s->waiting, slot, c->arrival | (c->rebuild ? 0 : FRESH_KEY));
    s->fresh_waiting += !c->rebuild;
}

void seq_free(struct sched *s, uint32_t slot)
{
    struct seq *q = &s->seqs[slot];
    assert_always(q->in_flight == 0 && q->pins == 0 && q->place == SEQ_NO_PLACE && !s->cold[slot].out_queued);
    assert_always(q->shared == 0 && !s->cold[slot].keep && s->cold[slot].source == NONE);
    s->prefix.slots -= s->cold[slot].was_kept;
    map_erase(s, q->id);
    q->state = SEQ_FREE;
    s->free_slots[s->free_count++] = slot;
}

/* --- being handed over ---------------------------------------------------------------------------------------------- */

void move_start(struct sched *s, uint32_t slot, uint32_t to, uint32_t pages, uint32_t mini_batch)
{
    struct seq *q = &s->seqs[slot];
    struct seq_cold *c = &s->cold[slot];
    place_reserve(s, to, pages);
    c->move_load = q->load;
    c->move_batch = (uint8_t)mini_batch;
    s->places[to].incoming[mini_batch] += c->move_load;
    c->relabels = to == q->place;
    s->relabelling += c->relabels;
    mini_batch_leave(s, slot);
    q->state = SEQ_MOVING;
    if (!c->relabels)
        stop_sharing(s, slot);
    leaving_begin(s, slot, prefix_own_pages(s, slot));
    c->move_to = to;
    c->move_pages = pages;
    c->move_id = 0;
    s->moving[s->moving_count++] = slot;
    if (q->in_flight == 0)
        settle(s, slot);
}

void relabel_start(struct sched *s, uint32_t slot, uint32_t mini_batch) { move_start(s, slot, s->seqs[slot].place, 0, mini_batch); }

void move_forget(struct sched *s, uint32_t slot)
{
    struct seq_cold *c = &s->cold[slot];
    if (c->move_to == NONE)
        return;
    place_unreserve(s, c->move_to, c->move_pages);
    s->places[c->move_to].incoming[c->move_batch] -= c->move_load;
    s->relabelling -= c->relabels;
    c->move_to = NONE;
    c->move_id = 0;
    c->out_move = c->relabels = false;
    for (uint32_t i = 0; i < s->moving_count; i++) {
        if (s->moving[i] == slot) {
            s->moving[i] = s->moving[--s->moving_count];
            break;
        }
    }
}

void move_landed(struct sched *s, uint32_t slot)
{
    uint32_t to = s->cold[slot].move_to, pages = s->cold[slot].move_pages;
    leaving_end(s, slot);
    leave_place(s, slot);
    move_forget(s, slot);
    place_attach(s, slot, to, pages);
    leaving_begin(s, slot, prefix_own_pages(s, slot)); // as all that is MOVING
}
