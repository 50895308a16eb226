// sched_sequence.c: how a sequence moves between its states (the picture is in sched_seq.h).
//
// Two rules carry the rest. Rows in flight that no longer count are recognized by their epoch, and nothing of the
// sequence is planned again until all of them are back (`fenced`, DRAINING), so no void row ever runs beside a valid
// one. Pages leave the ledger only in sched_place_detach(), once per stay in a place.
#include "common/sched/sched_sequence.h"
#include "common/sched/sched_state.h"

// --- beginning and end ------------------------------------------------------------------------------------------------

uint32_t sched_sequence_new(struct sched *s, const struct sched_arrive *a)
{
    uint32_t slot = sched_ids_take(s, a->sequence);
    struct sched_seq *q = &s->seqs[slot];
    struct sched_seq_cold *c = &s->cold[slot];
    uint32_t epoch = q->epoch + 1;
    uint64_t known = (uint64_t)a->prompt_tokens + a->generated_tokens;
    uint64_t limit = (uint64_t)a->prompt_tokens + a->max_new_tokens;
    memset(q, 0, sizeof(*q));
    memset(c, 0, sizeof(*c));
    q->id = a->sequence;
    q->epoch = epoch;
    q->known = (uint32_t)MIN(known, UINT32_MAX / 2);
    q->limit = (uint32_t)MIN(limit, s->config.context_tokens);
    q->passes_at = a->prompt_tokens + sched_survival_next(a->generated_tokens);
    q->place = SCHED_SEQ_NO_PLACE;
    q->open = true;
    q->scoring = a->score_prompt;
    c->arrival = s->queue.arrivals++;
    c->prompt = a->prompt_tokens;
    c->move.to = c->prefix.node = c->prefix.source = NONE;
    // A resubmission has waited already, in the scheduler before this one.
    c->rebuild = a->generated_tokens > 0 || a->held_place != SCHED_NO_PLACE;
    q->state = SCHED_SEQ_WAITING;
    if (a->deadline_us != 0 && a->deadline_us != SCHED_NEVER)
        sched_heap_push(&s->queue.deadlines, slot, a->deadline_us);
    return slot;
}

static void leave_place(struct sched *s, uint32_t slot)
{
    if (s->seqs[slot].place == SCHED_SEQ_NO_PLACE)
        return;
    sched_prefix_leave(s, slot);
    sched_place_detach(s, slot);
}

// --- mini-batch membership ----------------------------------------------------------------------------------------

void sched_sequence_join(struct sched *s, uint32_t slot, uint32_t mini_batch)
{
    mini_batch = MIN(mini_batch, s->batches.in_use - 1); // the one that it was on its way to may be out of use
    struct sched_seq *q = &s->seqs[slot];
    struct sched_batch *b = &s->batches.of[mini_batch];
    q->mini_batch = (uint8_t)mini_batch;
    // A single generated token is an ordinary decode row; anything else below `known` is prefill.
    uint32_t tokens = q->known + q->samples;
    bool decode = q->next_pos == tokens || (q->next_pos + 1 == tokens && tokens > s->cold[slot].prompt);
    q->target = decode ? q->next_pos : q->known;
    q->state = decode ? SCHED_SEQ_DECODE : SCHED_SEQ_PREFILL;
    sched_place_set_load(s, q, MAX(q->target, q->next_pos));
    sched_load_join(s, slot);
    if (decode) {
        sched_batch_add_member(s, slot);
    } else {
        b->prefill_rows += q->target - q->next_pos;
        sched_batch_add_prefill(s, slot);
    }
}

void sched_sequence_leave(struct sched *s, uint32_t slot)
{
    struct sched_seq *q = &s->seqs[slot];
    struct sched_batch *b = &s->batches.of[q->mini_batch];
    sched_place_starve(s, q, false);
    if (q->state == SCHED_SEQ_PREFILL) {
        b->prefill_rows -= q->target - q->next_pos;
        sched_batch_remove_prefill(s, slot);
    } else {
        sched_batch_remove_member(s, slot);
    }
    sched_place_set_load(s, q, 0);
    sched_load_leave(s, slot);
}

// --- rows in flight -------------------------------------------------------------------------------------------------

static void seq_void(struct sched *s, uint32_t slot)
{
    struct sched_seq *q = &s->seqs[slot];
    q->epoch++;
    q->samples = 0;
    q->fenced = q->in_flight > 0;
}

void sched_sequence_rewind(struct sched *s, uint32_t slot)
{
    struct sched_seq *q = &s->seqs[slot];
    bool runs = sched_seq_runs(q);
    if (runs)
        sched_sequence_leave(s, slot);
    seq_void(s, slot);
    s->cold[slot].place.written = MAX(s->cold[slot].place.written, sched_place_pages(s, q->next_pos));
    q->next_pos = q->held;
    q->open = true;
    if (runs)
        sched_sequence_join(s, slot, q->mini_batch);
}

// Ends a change of mini-batch.
static void relabelled(struct sched *s, uint32_t slot)
{
    uint32_t mini_batch = s->cold[slot].move.batch;
    sched_move_forget(s, slot);
    sched_place_left(s, slot);
    s->stats.relabelled++;
    sched_sequence_join(s, slot, mini_batch);
}

// Goes on with what waited for the last step in flight to come back.
static void settle(struct sched *s, uint32_t slot)
{
    struct sched_seq *q = &s->seqs[slot];
    struct sched_seq_cold *c = &s->cold[slot];
    q->fenced = false;
    if (q->state == SCHED_SEQ_MOVING && c->move.relabels) {
        relabelled(s, slot);
        return;
    }
    if (q->pins > 0)
        return;
    if (q->state == SCHED_SEQ_MOVING && !c->move.id && (q->held == 0 || q->sharing)) {
        sched_sequence_requeue(s, slot); // nothing to hand over
    } else if (q->state == SCHED_SEQ_MOVING && !c->move.id) {
        c->out.move = true;
        sched_outbox_add(s, slot);
    } else if (q->state == SCHED_SEQ_DRAINING) {
        if (c->prefix.keep) {
            c->out.kept = true;
            sched_outbox_add(s, slot);
        } else if (q->place == SCHED_SEQ_NO_PLACE && !c->over) {
            sched_sequence_released(s, slot);
        } else {
            c->out.release = true;
            sched_outbox_add(s, slot);
        }
    }
}

void sched_sequence_row_back(struct sched *s, uint32_t slot)
{
    struct sched_seq *q = &s->seqs[slot];
    assert_always(q->in_flight > 0);
    if (--q->in_flight == 0)
        settle(s, slot);
}

void sched_sequence_unpin(struct sched *s, uint32_t slot)
{
    struct sched_seq *q = &s->seqs[slot];
    assert_always(q->pins > 0);
    if (--q->pins == 0 && q->in_flight == 0)
        settle(s, slot);
}

// Lets the source of its first pages go, because it is about to leave its place.
static void stop_sharing(struct sched *s, uint32_t slot)
{
    uint32_t source = sched_prefix_stop(s, slot);
    if (source != NONE)
        sched_sequence_unpin(s, source);
}

// --- leaving --------------------------------------------------------------------------------------------------------

// Takes it out of whatever it is in, into DRAINING. Its pages, if it has any, are to be released.
static void drain(struct sched *s, uint32_t slot)
{
    struct sched_seq *q = &s->seqs[slot];
    struct sched_place *p = sched_place_of(s, q);
    if (sched_seq_runs(q)) {
        sched_sequence_leave(s, slot);
        s->running--;
    } else if (q->state == SCHED_SEQ_MOVING) {
        sched_move_forget(s, slot);
        sched_place_left(s, slot); // a moving sequence counts as leaving already
        s->running--;
    } else if (q->state == SCHED_SEQ_WAITING) {
        sched_queue_remove(s, slot);
    }
    seq_void(s, slot);
    q->state = SCHED_SEQ_DRAINING;
    s->retiring++;
    stop_sharing(s, slot);
    if (p != NULL && !s->cold[slot].prefix.keep)
        sched_place_leaving(s, slot, sched_prefix_own_pages(s, slot));
}

void sched_sequence_requeue(struct sched *s, uint32_t slot)
{
    drain(s, slot);
    s->cold[slot].rebuild = true;
    s->coming_back++;
    if (s->seqs[slot].in_flight == 0)
        settle(s, slot);
}

void sched_sequence_lost(struct sched *s, uint32_t slot)
{
    struct sched_seq *q = &s->seqs[slot];
    struct sched_seq_cold *c = &s->cold[slot];
    if (q->state == SCHED_SEQ_WAITING) { // waited with pages held; keeps its turn
        leave_place(s, slot);
        q->held = q->next_pos = 0;
        return;
    }
    bool leaving = q->state == SCHED_SEQ_DRAINING || q->state == SCHED_SEQ_RELEASING;
    if (!leaving) {
        s->stats.rebuilt++;
        s->stats.rebuilt_tokens += q->known;
        c->rebuild = true;
        drain(s, slot);
        s->coming_back++;
    }
    sched_place_left(s, slot);
    leave_place(s, slot);
    if (q->state == SCHED_SEQ_RELEASING) {
        sched_sequence_released(s, slot);
    } else if (q->in_flight == 0) {
        c->out.release = c->out.kept = false;
        settle(s, slot);
    }
}

void sched_sequence_finish(struct sched *s, uint32_t slot, enum sched_reason reason)
{
    struct sched_seq *q = &s->seqs[slot];
    struct sched_seq_cold *c = &s->cold[slot];
    if (c->over)
        return;
    c->over = true;
    c->reason = (uint8_t)reason;
    c->out.finished = true;
    s->stats.finished++;
    sched_heap_remove(&s->queue.deadlines, slot);
    sched_outbox_add(s, slot);
    if (q->state == SCHED_SEQ_DRAINING || q->state == SCHED_SEQ_RELEASING) {
        s->coming_back--;
        return;
    }
    if (q->known > c->prompt)
        sched_survival_end(&s->load.survival, q->known - c->prompt, reason != SCHED_LENGTH);
    if (q->state != SCHED_SEQ_WAITING && reason <= SCHED_EOS) {
        double us = (double)(s->now_us - c->admitted_us);
        s->queue.lifetime_us += s->queue.lifetime_us == 0 ? us : 0.1 * (us - s->queue.lifetime_us);
    }
    if (q->state == SCHED_SEQ_MOVING && c->move.id)
        return; // its pages are between two places: the answer to MOVE says where to release them
    sched_prefix_keep(s, slot);
    drain(s, slot);
    if (q->in_flight == 0)
        settle(s, slot);
}

void sched_sequence_released(struct sched *s, uint32_t slot)
{
    struct sched_seq *q = &s->seqs[slot];
    struct sched_seq_cold *c = &s->cold[slot];
    struct sched_place *p = sched_place_of(s, q);
    if (p != NULL) {
        sched_place_left(s, slot);
        leave_place(s, slot);
    }
    q->held = q->next_pos = 0;
    if (c->over && c->out.last_said) {
        s->retiring--;
        sched_sequence_free(s, slot);
    } else if (c->over) { // it ended while its pages were being released for another reason
        q->state = SCHED_SEQ_DRAINING;
        c->out.release = true;
        sched_outbox_add(s, slot);
    } else {
        s->retiring--;
        s->coming_back--;
        sched_sequence_wait(s, slot);
    }
}

void sched_sequence_wait(struct sched *s, uint32_t slot)
{
    s->seqs[slot].state = SCHED_SEQ_WAITING;
    sched_queue_add(s, slot);
}

void sched_sequence_free(struct sched *s, uint32_t slot)
{
    struct sched_seq *q = &s->seqs[slot];
    assert_always(q->in_flight == 0 && q->pins == 0 && q->place == SCHED_SEQ_NO_PLACE && !s->cold[slot].out.queued);
    assert_always(q->shared == 0 && !s->cold[slot].prefix.keep && s->cold[slot].prefix.source == NONE);
    s->prefix.slots -= s->cold[slot].prefix.was_kept;
    q->state = SCHED_SEQ_FREE;
    sched_ids_give_back(s, slot);
}

// --- being handed over ----------------------------------------------------------------------------------------------

void sched_sequence_move(struct sched *s, uint32_t slot, uint32_t to, uint32_t pages, uint32_t mini_batch)
{
    struct sched_seq *q = &s->seqs[slot];
    struct sched_seq_cold *c = &s->cold[slot];
    sched_move_begin(s, slot, to, pages, mini_batch);
    sched_sequence_leave(s, slot);
    q->state = SCHED_SEQ_MOVING;
    if (!c->move.relabels)
        stop_sharing(s, slot);
    sched_place_leaving(s, slot, sched_prefix_own_pages(s, slot));
    if (q->in_flight == 0)
        settle(s, slot);
}

void sched_sequence_relabel(struct sched *s, uint32_t slot, uint32_t mini_batch)
{
    sched_sequence_move(s, slot, s->seqs[slot].place, 0, mini_batch);
}

void sched_sequence_move_landed(struct sched *s, uint32_t slot)
{
    uint32_t to = s->cold[slot].move.to, pages = s->cold[slot].move.pages;
    sched_place_left(s, slot);
    leave_place(s, slot);
    sched_move_forget(s, slot);
    sched_place_attach(s, slot, to, pages);
    sched_place_leaving(s, slot, sched_prefix_own_pages(s, slot)); // as for every sequence that is MOVING
}
