// sequence.c: how a sequence moves between its states (the picture is in slots.h).
//
// Two rules carry the rest. Rows in flight that no longer count are recognized by their epoch, and nothing of the
// sequence is planned again until all of them are back (`fenced`, DRAINING), so no void row ever runs beside a valid
// one. Pages leave the ledger only in sched_place_detach(), once per stay in a place.
#include "common/sched/sequence.h"
#include "common/sched/state.h"

// --- beginning and end ------------------------------------------------------------------------------------------------

uint32_t sched_sequence_new(struct sched *s, const struct sched_arrive *a)
{
    uint32_t slot = sched_ids_take(s, a->sequence);
    struct sched_seq *seq = &s->seqs[slot];
    struct sched_seq_cold *cold = &s->cold[slot];
    uint32_t epoch = seq->epoch + 1;
    uint64_t known = (uint64_t)a->prompt_tokens + a->generated_tokens;
    uint64_t limit = (uint64_t)a->prompt_tokens + a->max_new_tokens;
    memset(seq, 0, sizeof(*seq));
    memset(cold, 0, sizeof(*cold));
    seq->id = a->sequence;
    seq->epoch = epoch;
    seq->known = (uint32_t)MIN(known, UINT32_MAX / 2);
    seq->limit = (uint32_t)MIN(limit, s->config.context_tokens);
    seq->passes_at = a->prompt_tokens + sched_survival_next(a->generated_tokens);
    seq->place = SCHED_SEQ_NO_PLACE;
    seq->open = true;
    seq->scoring = a->score_prompt && !a->last_row_only;
    seq->class = a->class;
    cold->arrival = s->queue.arrivals++ | (uint64_t)a->class << 63;
    cold->prompt = a->prompt_tokens;
    cold->move.to = cold->prefix.node = cold->prefix.source = NONE;
    cold->extent.owner = cold->extent.next = cold->extent.leaving = NONE;
    // A resubmission has waited already, in the scheduler before this one.
    cold->rebuild = a->generated_tokens > 0 || a->held_place != SCHED_NO_PLACE;
    seq->state = SCHED_SEQ_WAITING;
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
    struct sched_seq *seq = &s->seqs[slot];
    seq->mini_batch = (uint8_t)mini_batch;
    // A single generated token is an ordinary decode row; anything else below `known` is prefill.
    uint32_t tokens = seq->known + seq->samples;
    bool decode = seq->next_pos == tokens || (seq->next_pos + 1 == tokens && tokens > s->cold[slot].prompt);
    seq->target = decode ? seq->next_pos : seq->known;
    seq->state = decode ? SCHED_SEQ_DECODE : SCHED_SEQ_PREFILL;
    sched_extent_set_load(s, slot, MAX(seq->target, seq->next_pos));
    sched_load_join(s, slot);
    if (decode) {
        sched_batch_add_member(s, slot);
    } else {
        sched_group_of(s, seq)->prefill_rows += seq->target - seq->next_pos;
        sched_batch_add_prefill(s, slot);
    }
}

void sched_sequence_leave(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    sched_place_starve(s, seq, false);
    if (seq->state == SCHED_SEQ_PREFILL) {
        sched_group_of(s, seq)->prefill_rows -= seq->target - seq->next_pos;
        sched_batch_remove_prefill(s, slot);
    } else {
        sched_batch_remove_member(s, slot);
    }
    sched_extent_set_load(s, slot, 0);
    sched_load_leave(s, slot);
}

// --- rows in flight -------------------------------------------------------------------------------------------------

static void seq_void(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    seq->epoch++;
    seq->samples = 0;
    seq->fenced = seq->in_flight > 0;
}

void sched_sequence_rewind(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    bool runs = sched_seq_runs(seq);
    if (runs)
        sched_sequence_leave(s, slot);
    seq_void(s, slot);
    s->cold[slot].place.written = MAX(s->cold[slot].place.written, sched_place_pages(s, seq->next_pos));
    seq->next_pos = seq->held;
    seq->open = true;
    if (runs)
        sched_sequence_join(s, slot, seq->mini_batch);
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

// Says RELEASE of the extents that were given up, before that of the sequence itself.
static void release_extents(struct sched *s, uint32_t slot)
{
    bool queued = s->cold[slot].out.queued;
    sched_extent_settle(s, slot);
    if (queued)
        sched_outbox_add(s, slot);
}

// Goes on with what waited for the last step in flight to come back.
static void rows_settled(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    struct sched_seq_cold *cold = &s->cold[slot];
    seq->fenced = false;
    if (sched_seq_runs(seq)) // extents that it gave up were free before it ran again
        return;
    if (seq->state == SCHED_SEQ_MOVING && cold->move.relabels) {
        relabelled(s, slot);
        return;
    }
    bool moves = seq->state == SCHED_SEQ_MOVING;
    if (seq->pins > 0 || sched_extent_pinned(s, slot) || (moves && s->seqs[cold->move.part].pins > 0))
        return;
    release_extents(s, slot);
    if (moves && !cold->move.id && (seq->held <= s->cold[cold->move.part].extent.first || seq->sharing)) {
        sched_sequence_give_up(s, cold->move.part); // nothing to hand over
    } else if (seq->state == SCHED_SEQ_MOVING && !cold->move.id) {
        cold->out.move = true;
        sched_outbox_add(s, slot);
    } else if (seq->state == SCHED_SEQ_DRAINING) {
        if (cold->prefix.keep) {
            cold->out.kept = true;
            sched_outbox_add(s, slot);
        } else if (seq->place == SCHED_SEQ_NO_PLACE && !cold->over) {
            sched_sequence_released(s, slot);
        } else {
            cold->out.release = true;
            sched_outbox_add(s, slot);
        }
    }
}

void sched_sequence_row_back(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    assert_always(seq->in_flight > 0);
    if (--seq->in_flight > 0)
        return;
    seq->aside = false;
    rows_settled(s, slot);
}

// Frees an extent whose place has freed its pages.
static void extent_gone(struct sched *s, uint32_t extent)
{
    uint32_t slot = s->cold[extent].extent.owner;
    struct sched_extent_link *owner = &s->cold[slot].extent;
    sched_extent_free(s, extent);
    if (owner->leaving_count > 0 || !owner->waits)
        return;
    owner->waits = false;
    sched_sequence_released(s, slot);
}

void sched_sequence_unpin(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    assert_always(seq->pins > 0);
    if (--seq->pins > 0)
        return;
    uint32_t owner = s->cold[slot].extent.owner;
    if (owner != NONE && seq->state == SCHED_SEQ_DRAINING && seq->place == SCHED_SEQ_NO_PLACE)
        extent_gone(s, slot);
    slot = owner != NONE ? owner : slot;
    if (s->seqs[slot].in_flight == 0)
        rows_settled(s, slot);
}

// Lets the source of its first pages go, because it is about to leave its place.
static void stop_sharing(struct sched *s, uint32_t slot)
{
    uint32_t source = sched_prefix_stop(s, slot);
    if (source != NONE)
        sched_sequence_unpin(s, source);
}

// --- leaving --------------------------------------------------------------------------------------------------------

// Notes that what was to move does not leave its place for that, unless it is an extent that was given up meanwhile.
static void part_stays(struct sched *s, uint32_t slot)
{
    uint32_t part = s->cold[slot].move.part;
    if (part != slot && s->seqs[part].state != SCHED_SEQ_EXTENT)
        return;
    if (s->seqs[part].place != SCHED_SEQ_NO_PLACE)
        sched_place_left(s, part);
    if (part != slot)
        sched_prefix_resume(s, part);
}

// Takes it out of whatever it is in, into DRAINING. Its pages, if it has any, are to be released.
static void sequence_drain(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    struct sched_place *place = sched_place_of(s, seq);
    if (sched_seq_runs(seq)) {
        sched_sequence_leave(s, slot);
        s->running[seq->class]--;
    } else if (seq->state == SCHED_SEQ_MOVING) {
        sched_move_forget(s, slot);
        part_stays(s, slot); // a moving sequence counts as leaving already
        s->running[seq->class]--;
    } else if (seq->state == SCHED_SEQ_WAITING) {
        sched_queue_remove(s, slot);
    }
    seq_void(s, slot);
    seq->state = SCHED_SEQ_DRAINING;
    s->retiring++;
    if (place != NULL)
        stop_sharing(s, slot);
    if (place != NULL && !s->cold[slot].prefix.keep)
        sched_place_leaving(s, slot, sched_prefix_own_pages(s, slot));
    if (s->cold[slot].over)
        sched_extent_cut(s, slot, 0);
}

void sched_sequence_requeue(struct sched *s, uint32_t slot)
{
    sequence_drain(s, slot);
    s->cold[slot].rebuild = true;
    s->coming_back[s->seqs[slot].class]++;
    if (s->seqs[slot].in_flight == 0)
        rows_settled(s, slot);
}

void sched_sequence_requeue_from(struct sched *s, uint32_t slot, uint32_t from)
{
    sched_extent_cut(s, slot, from);
    sched_sequence_requeue(s, slot);
}

// Counts what is to be computed anew: all behind the extents that it keeps.
static void count_rebuilt(struct sched *s, uint32_t slot)
{
    uint32_t kept = MIN(s->cold[slot].extent.first, s->seqs[slot].held);
    s->stats.rebuilt++;
    s->stats.rebuilt_tokens += s->seqs[slot].known - kept;
}

void sched_sequence_rebuild(struct sched *s, uint32_t slot)
{
    count_rebuilt(s, slot);
    sched_sequence_requeue(s, slot);
}

void sched_sequence_rebuild_from(struct sched *s, uint32_t slot, uint32_t from)
{
    sched_extent_cut(s, slot, from);
    sched_sequence_rebuild(s, slot);
}

void sched_sequence_give_up(struct sched *s, uint32_t holder)
{
    if (sched_extent_is(s, holder))
        sched_sequence_requeue_from(s, s->cold[holder].extent.owner, sched_extent_index(s, holder));
    else
        sched_sequence_requeue(s, holder);
}

void sched_sequence_extent_lost(struct sched *s, uint32_t extent)
{
    uint32_t slot = s->cold[extent].extent.owner;
    const struct sched_seq *seq = &s->seqs[slot];
    bool gives_up = s->seqs[extent].state == SCHED_SEQ_EXTENT;
    bool leaves = seq->state == SCHED_SEQ_DRAINING || seq->state == SCHED_SEQ_RELEASING;
    bool on_its_way = s->cold[slot].move.id != 0; // another part is: its MOVE is answered first
    if (gives_up)
        sched_extent_cut(s, slot, sched_extent_index(s, extent));
    sched_extent_leave_place(s, extent);
    if (on_its_way)
        s->cold[slot].extent.lost = s->cold[slot].extent.lost || gives_up;
    else if (gives_up && !leaves)
        sched_sequence_rebuild(s, slot);
    else if (gives_up && seq->in_flight == 0 && !sched_extent_pinned(s, slot))
        release_extents(s, slot); // those behind it go, too
    if (s->seqs[extent].pins == 0)
        extent_gone(s, extent);
}

void sched_sequence_lost(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    struct sched_seq_cold *cold = &s->cold[slot];
    if (cold->move.id != 0) { // an extent of it is on its way: its MOVE is answered first
        leave_place(s, slot);
        cold->extent.lost = true;
        return;
    }
    if (seq->state == SCHED_SEQ_WAITING) { // waited with pages held; keeps its turn
        leave_place(s, slot);
        seq->held = seq->next_pos = MIN(seq->held, cold->extent.first);
        return;
    }
    bool leaving = seq->state == SCHED_SEQ_DRAINING || seq->state == SCHED_SEQ_RELEASING;
    if (!leaving) {
        count_rebuilt(s, slot);
        cold->rebuild = true;
        sequence_drain(s, slot);
        s->coming_back[seq->class]++;
    }
    sched_place_left(s, slot);
    leave_place(s, slot);
    if (seq->state == SCHED_SEQ_RELEASING) {
        sched_sequence_released(s, slot);
    } else if (seq->in_flight == 0) {
        cold->out.release = cold->out.kept = false;
        rows_settled(s, slot);
    }
}

// Returns whether it ran until nothing was left to generate, so that its time says how long others run.
static bool has_all_tokens(enum sched_reason reason) { return reason == SCHED_LENGTH || reason == SCHED_EOS; }

void sched_sequence_finish(struct sched *s, uint32_t slot, enum sched_reason reason)
{
    struct sched_seq *seq = &s->seqs[slot];
    struct sched_seq_cold *cold = &s->cold[slot];
    if (cold->over)
        return;
    cold->over = true;
    cold->reason = (uint8_t)reason;
    cold->out.finished = true;
    s->stats.finished++;
    sched_heap_remove(&s->queue.deadlines, slot);
    sched_outbox_add(s, slot);
    if (seq->state == SCHED_SEQ_DRAINING || seq->state == SCHED_SEQ_RELEASING) {
        s->coming_back[seq->class]--;
        sched_extent_cut(s, slot, 0);
        if (seq->in_flight == 0 && !sched_extent_pinned(s, slot))
            release_extents(s, slot);
        return;
    }
    if (seq->known > cold->prompt)
        sched_survival_end(&s->load.of[seq->class].survival, seq->known - cold->prompt, reason != SCHED_LENGTH);
    if (seq->state != SCHED_SEQ_WAITING && has_all_tokens(reason)) {
        double us = (double)(s->now_us - cold->admitted_us);
        double *life_us = &s->queue.lifetime_us[seq->class];
        *life_us += *life_us == 0 ? us : TUNE_QUEUE_LIFE_GAIN * (us - *life_us);
    }
    if (seq->state == SCHED_SEQ_MOVING && cold->move.id)
        return; // its pages are between two places: the answer to MOVE says where to release them
    sched_prefix_keep(s, slot);
    sequence_drain(s, slot);
    if (seq->in_flight == 0)
        rows_settled(s, slot);
}

void sched_sequence_released(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    struct sched_seq_cold *cold = &s->cold[slot];
    struct sched_place *place = sched_place_of(s, seq);
    if (cold->extent.owner != NONE) {
        sched_extent_leave_place(s, slot);
        extent_gone(s, slot);
        return;
    }
    if (place != NULL) {
        sched_place_left(s, slot);
        leave_place(s, slot);
    }
    seq->held = seq->next_pos = MIN(seq->held, cold->extent.first);
    cold->extent.waits = cold->extent.leaving_count > 0;
    if (cold->extent.waits)
        return;
    if (cold->over && cold->out.last_said) {
        s->retiring--;
        sched_sequence_free(s, slot);
    } else if (cold->over) { // it ended while its pages were being released for another reason
        seq->state = SCHED_SEQ_DRAINING;
        cold->out.release = true;
        sched_outbox_add(s, slot);
    } else {
        s->retiring--;
        s->coming_back[seq->class]--;
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
    struct sched_seq *seq = &s->seqs[slot];
    assert_always(seq->in_flight == 0 && seq->pins == 0 && seq->place == SCHED_SEQ_NO_PLACE && !s->cold[slot].out.queued);
    assert_always(seq->shared == 0 && !s->cold[slot].prefix.keep && s->cold[slot].prefix.source == NONE);
    assert_always(s->cold[slot].extent.count == 0 && s->cold[slot].extent.leaving_count == 0);
    s->prefix.slots -= s->cold[slot].prefix.was_kept;
    seq->state = SCHED_SEQ_FREE;
    sched_ids_give_back(s, slot);
}

// --- being handed over ----------------------------------------------------------------------------------------------

static void begin_move(struct sched *s, uint32_t slot, uint32_t part, uint32_t to, uint32_t pages, uint32_t mini_batch)
{
    struct sched_seq *seq = &s->seqs[slot];
    sched_move_begin(s, slot, part, to, pages, mini_batch);
    sched_sequence_leave(s, slot);
    seq->state = SCHED_SEQ_MOVING;
    if (!s->cold[slot].move.relabels)
        stop_sharing(s, part);
    sched_place_leaving(s, part, sched_prefix_own_pages(s, part));
    if (seq->in_flight == 0)
        rows_settled(s, slot);
}

void sched_sequence_move(struct sched *s, uint32_t slot, uint32_t to, uint32_t pages, uint32_t mini_batch)
{
    begin_move(s, slot, slot, to, pages, mini_batch);
}

void sched_sequence_move_part(struct sched *s, uint32_t holder, uint32_t to, uint32_t pages)
{
    uint32_t slot = sched_extent_is(s, holder) ? s->cold[holder].extent.owner : holder;
    begin_move(s, slot, holder, to, pages, s->seqs[slot].mini_batch);
}

void sched_sequence_relabel(struct sched *s, uint32_t slot, uint32_t mini_batch)
{
    sched_sequence_move(s, slot, s->seqs[slot].place, 0, mini_batch);
}

void sched_sequence_move_off(struct sched *s, uint32_t slot)
{
    sched_move_forget(s, slot);
    part_stays(s, slot);
    if (s->cold[slot].move.part == slot)
        sched_prefix_resume(s, slot);
    sched_sequence_join(s, slot, s->seqs[slot].mini_batch);
}

void sched_sequence_move_landed(struct sched *s, uint32_t slot)
{
    uint32_t to = s->cold[slot].move.to, pages = s->cold[slot].move.pages, part = s->cold[slot].move.part;
    sched_place_left(s, part);
    leave_place(s, part);
    sched_move_forget(s, slot);
    sched_place_attach(s, part, to, pages);
    sched_place_leaving(s, part, sched_prefix_own_pages(s, part)); // as for every sequence that is MOVING
}
