// event.c: what each event changes: the answer to a step and what it teaches the models, arrivals and ends, places, the s-part. Nothing is
// planned here.

#include <string.h>

#include "common/sched/balance.h"
#include "common/sched/sequence.h"
#include "common/sched/state.h"

// --- what a step teaches the models, and how well they had predicted it ---------------------------------------------

// Predicts a step from what its places read, before the models learn from it. 0: nothing is known yet.
static double step_predict_us(const struct sched *s, const struct sched_flight *step, const struct sched_step_done *done,
                              uint32_t sampled)
{
    struct sched_round round = sched_time_round(s, step->row_count, sampled);
    if (s->time.layers.rows_seen == 0)
        return 0;
    for (uint32_t i = 0; i < done->place_count; i++) {
        if (done->places[i].place >= s->config.max_places)
            continue;
        const struct sched_place *place = &s->places.of[done->places[i].place];
        sched_round_add(&round, sched_place_is_here(place), sched_speed_attend_us(place, done->places[i].tokens_read),
                        place->speed.link_step_us);
    }
    return sched_round_us(&round, s->batches.in_use);
}

// Returns the time of a step's attention on the s-part's cores: what its workers measured, and what the local pool would take alone. The
// pool attends while the workers do, with what they leave of the cores, so what it measures then is mostly their work.
static double attended_here_us(const struct sched *s, const struct sched_step_done *done, bool *workers)
{
    double us = 0;
    *workers = false;
    for (uint32_t i = 0; i < done->place_count; i++) {
        const struct sched_place_time *time = &done->places[i];
        if (time->place >= s->config.max_places)
            continue;
        const struct sched_place *place = &s->places.of[time->place];
        if (sched_place_is_here(place))
            us += place->kind == SCHED_KV_WORKER && time->attend_us > 0 ? time->attend_us
                                                                        : sched_speed_attend_us(place, time->tokens_read);
        *workers = *workers || (place->shares_cores && place->kind == SCHED_KV_WORKER && time->tokens_read > 0);
    }
    return us;
}

// Returns the share that a step's rows have of those of all mini-batches' steps under way.
static double share_of_rows(const struct sched *s, const struct sched_flight *step)
{
    double all = step->row_count;
    for (uint32_t m = 0; m < s->config.mini_batches; m++)
        if (m != step->mini_batch && s->batches.of[m].in_flight_count > 0)
            all += s->batches.of[m].in_flight[0]->row_count;
    return step->row_count / all;
}

// Learns the round trips of a step to workers that say how long they attended, by the rows that go to any. A link that is always busy carries
// each step's bytes in its rows' share of a round; what is beyond that is waiting for the others'.
static void learn_links(struct sched *s, const struct sched_flight *step, const struct sched_step_done *done)
{
    double links_us = 0, rows = 0;
    for (uint32_t i = 0; i < done->place_count; i++) {
        const struct sched_place_time *time = &done->places[i];
        if (time->place < s->config.max_places && !sched_place_is_here(&s->places.of[time->place]) && time->attend_us > 0)
            links_us = MAX(links_us, (double)time->r_part_us - time->attend_us);
    }
    for (uint32_t i = 0; i < step->run_count; i++)
        rows += sched_place_is_here(&s->places.of[step->runs[i].place]) ? 0 : step->runs[i].count;
    if (links_us <= 0 || rows == 0 || done->total_us == 0)
        return;
    double most_us = sched_curve_us(&s->time.links, 1) + done->total_us * s->config.stages * share_of_rows(s, step);
    sched_curve_learn(&s->time.links, rows, MIN(links_us, most_us));
}

static void learn_step(struct sched *s, const struct sched_flight *step, const struct sched_step_done *done)
{
    uint32_t sampled = 0;
    for (uint32_t i = 0; i < done->place_count; i++) {
        if (done->places[i].place < s->config.max_places)
            s->places.of[done->places[i].place].speed.step_pairs = 0;
    }
    for (uint32_t i = 0; i < step->run_count; i++) {
        const struct sched_run *run = &step->runs[i];
        sampled += run->sample ? 1u + run->drafts : 0;
        if (run->count > 1)
            s->places.of[run->place].speed.step_pairs += (uint64_t)run->count * (run->position - run->first) +
                                                         (uint64_t)run->count * (run->count + 1) / 2;
        for (uint32_t k = 0; run->count > 1 && k < run->extent_count; k++)
            s->places.of[run->extents[k].place].speed.step_pairs += (uint64_t)run->count * sched_speed_extent_tokens(run, k);
    }
    // A row and its drafts attend to the same context: their time is neither that of decode rows nor that of a prompt.
    bool drafted = step->draft_rows > 0;
    double predicted_us = drafted ? 0 : step_predict_us(s, step, done, sampled);
    if (predicted_us > 0 && done->total_us > 0)
        sched_time_judge(&s->time.error, predicted_us, done->total_us);
    if (done->total_us > 0 && !drafted)
        sched_chunk_learn(s, step, done->total_us);
    if (done->total_us > 0)
        sched_curve_learn(&s->time.whole, step->row_count, done->total_us);
    if (done->s_part_us > 0) {
        double head_us = sched_time_s_part_us(s, step->row_count, sampled) - sched_curve_us(&s->time.layers, step->row_count);
        sched_curve_learn(&s->time.layers, step->row_count, MAX(done->s_part_us - head_us, done->s_part_us / 8.0));
    }
    sched_time_learn_stages(s, done, step->row_count, sampled);
    s->time.stream_us = done->stream_us;
    if (!step->aside)
        sched_draft_learn(s, step, done);
    if (drafted)
        return;
    learn_links(s, step, done);
    bool workers_here;
    double here_us = attended_here_us(s, done, &workers_here);
    for (uint32_t i = 0; i < done->place_count; i++) {
        uint32_t index = done->places[i].place;
        if (index >= s->config.max_places)
            continue;
        const struct sched_place *place = &s->places.of[index];
        // Beside workers on its cores the local pool may be slower than alone, never faster.
        if (place->kind == SCHED_LOCAL_POOL && workers_here &&
            done->places[i].attend_us >= sched_speed_attend_us(place, done->places[i].tokens_read))
            continue;
        // While prefill runs elsewhere on the same cores, the time of decode rows says nothing.
        if (step->prefill_rows == 0 || place->speed.step_pairs > 0 || !(sched_place_is_here(place)))
            sched_speed_learn(s, &done->places[i], here_us);
    }
}

// --- steps that are answered, or void -------------------------------------------------------------------------------

// Unpins the source of a run's first pages, unless they must be given again.
static void source_back(struct sched *s, const struct sched_flight_run *ref, bool valid)
{
    struct sched_seq *seq = &s->seqs[ref->slot];
    if (ref->source == NONE)
        return;
    if (valid && seq->sharing && (sched_seq_runs(seq) || s->cold[ref->slot].move.relabels))
        s->cold[ref->slot].prefix.source = ref->source;
    else
        sched_sequence_unpin(s, ref->source);
}

static void step_void(struct sched *s, struct sched_flight *step)
{
    s->stats.steps_failed++;
    s->stats.wasted_rows += step->row_count;
    sched_batch_retire_flight(s, step);
    for (uint32_t i = 0; i < step->run_count; i++) {
        uint32_t slot = step->refs[i].slot;
        bool valid = s->seqs[slot].epoch == step->refs[i].epoch;
        if (valid)
            sched_sequence_rewind(s, slot);
        source_back(s, &step->refs[i], valid);
        sched_sequence_row_back(s, slot);
    }
}

static void run_done(struct sched *s, uint32_t slot, const struct sched_run *run, bool late, struct sched_result *result)
{
    struct sched_seq *seq = &s->seqs[slot];
    assert_always(run->position == seq->held); // valid rows are answered in order, each once
    if (run->sample && (result->sampled == 0 || result->sampled > 1u + run->drafts)) {
        sched_sequence_rewind(s, slot); // an answer without its tokens counts as none
        return;
    }
    result->taken = true;
    if (s->places.losing > 0) // seldom: asked for every row
        sched_place_forgive(s, &s->places.of[run->place]);
    seq->sharing = false;
    uint32_t wrong = run->drafts > 0 ? run->count - result->sampled : 0;
    seq->held += run->count - wrong;
    if (run->score)
        s->cold[slot].scored = seq->held;
    if (run->drafts > 0) { // the sequence has no other row in flight
        s->cold[slot].place.written = MAX(s->cold[slot].place.written, sched_place_pages(s, seq->next_pos));
        seq->next_pos = seq->held;
        if (sched_seq_runs(seq))
            sched_place_set_load(s, seq, seq->next_pos - MIN(seq->next_pos, sched_seq_first(s, seq)));
        s->stats.drafts_right += run->drafts - wrong;
    }
    if (run->sample)
        seq->samples -= 1u + run->drafts;
    uint32_t stepped = late ? 0 : 1; // steps that are another class's do not count for its own
    if (run->sample && result->sampled > stepped && sched_seq_runs(seq))
        sched_load_leapt(s, slot, result->sampled - stepped);
    for (uint32_t i = 0; run->sample && i < result->sampled; i++) {
        seq->known++;
        if (seq->known >= seq->passes_at)
            sched_load_grew(s, slot);
    }
    if (run->sample && result->ended)
        sched_sequence_finish(s, slot, SCHED_EOS);
    else if (seq->known == seq->limit && (run->sample || seq->held == seq->known))
        sched_sequence_finish(s, slot, SCHED_LENGTH);
}

static void run_lost(struct sched *s, uint32_t slot, const struct sched_run *run, const struct sched_result *result)
{
    struct sched_seq *seq = &s->seqs[slot];
    uint32_t part = result->lost_part > 0 && result->lost_part <= run->extent_count ? result->lost_part - 1u : run->extent_count;
    uint32_t index = part < run->extent_count ? run->extents[part].place : run->place;
    s->cold[slot].prefix.alone = s->cold[slot].prefix.alone || seq->sharing; // perhaps the shared pages were what was missing
    // Its place may be dying: nothing is rebuilt there for a while, unless there is no other place.
    bool others = false;
    for (uint32_t i = 0; i < s->config.max_places; i++)
        others = others || (s->places.of[i].up && i != index);
    if (others)
        sched_place_avoid(s, &s->places.of[index]);
    sched_sequence_rebuild_from(s, slot, part);
}

static void answer_step(struct sched *s, const struct sched_step_done *done)
{
    for (uint32_t i = 0; i < done->result_count; i++)
        done->results[i].taken = false;
    struct sched_flight *step = sched_batch_find_flight(s, done->step);
    if (step == NULL)
        return;
    struct sched_batch *batch = &s->batches.of[step->mini_batch];
    while (batch->in_flight[0] != step) // steps are answered in order: answers to those before it were lost
        step_void(s, batch->in_flight[0]);
    if (done->result_count != step->run_count) {
        step_void(s, step);
        return;
    }
    for (uint32_t i = 0; i < step->run_count; i++) {
        uint32_t slot = step->refs[i].slot;
        const struct sched_run *run = &step->runs[i];
        struct sched_result *result = &done->results[i];
        if (i + 8 < step->run_count)
            __builtin_prefetch(&s->seqs[step->refs[i + 8].slot], 1);
        bool valid = s->seqs[slot].epoch == step->refs[i].epoch;
        if (valid) {
            if (result->outcome == SCHED_DONE)
                run_done(s, slot, run, i >= step->late_run, result);
            else if (result->outcome == SCHED_LOST)
                run_lost(s, slot, run, result);
            else
                sched_sequence_rewind(s, slot);
        }
        if (!result->taken)
            s->stats.wasted_rows += run->count;
        source_back(s, &step->refs[i], valid);
        sched_sequence_row_back(s, slot);
    }
    learn_step(s, step, done);
    sched_batch_retire_flight(s, step);
}

// --- sequences ------------------------------------------------------------------------------------------------------

static void reject_arrival(struct sched *s, uint64_t sequence, enum sched_class class)
{
    s->stats.rejected++;
    assert_always(s->outbox.count < s->outbox.capacity);
    s->outbox.actions[s->outbox.count++] = (struct sched_action){
        .kind = SCHED_REJECT,
        .reject = {.sequence = sequence, .retry_after_us = sched_predicted_wait_us(s, class)},
    };
}

static uint32_t held_pages(const struct sched *s, const struct sched_held *held)
{
    return held->positions > held->first ? MAX(held->pages, sched_place_pages(s, held->positions - held->first)) : 0;
}

// Counts the pages that its worker still holds. If the ledger has no room for them (several sequences report the same pages) they are of
// no use but must be released: the sequence is attached with none.
static void hold_part(struct sched *s, uint32_t slot, const struct sched_held *held)
{
    struct sched_seq *seq = &s->seqs[slot];
    assert_always(held->place < s->config.max_places);
    struct sched_place *place = &s->places.of[held->place];
    uint32_t pages = held_pages(s, held);
    if (!place->up)
        return; // the place is gone again: there is nothing to reuse
    bool room = pages <= place->pages_total - place->pages_used && held->first == s->cold[slot].extent.first;
    sched_place_attach(s, slot, held->place, room ? pages : 0);
    if (!room)
        return;
    s->cold[slot].place.written = pages; // the last of its tokens may be there, too, which is computed again
    seq->held = seq->next_pos = MIN(held->positions, seq->known - 1);
}

// Makes an extent of the whole ranges that a sequence holds in its place.
static void freeze_held(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    uint32_t end = seq->held / s->config.extent_tokens * s->config.extent_tokens;
    if (seq->place == SCHED_SEQ_NO_PLACE || end <= s->cold[slot].extent.first || !sched_extent_may_add(s, slot))
        return;
    sched_extent_freeze(s, slot, end);
    seq->held = seq->next_pos = end;
}

// Returns whether a part that a place holds goes on where the sequence's parts before it end.
static bool part_follows(const struct sched *s, uint32_t slot, const struct sched_held *held)
{
    const struct sched_place *place = &s->places.of[held->place];
    return held->first % s->config.extent_tokens == 0 && held->first > s->cold[slot].extent.first &&
           held->first <= s->seqs[slot].held && held->positions > held->first &&
           held_pages(s, held) <= place->pages_total - place->pages_used;
}

// Adds what other places hold behind what its place holds. Returns false if some of that is of no use: it is to be released then.
static bool hold_more(struct sched *s, uint32_t slot, const struct sched_arrive *a)
{
    struct sched_seq *seq = &s->seqs[slot];
    bool good = seq->place != SCHED_SEQ_NO_PLACE && seq->held > 0;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < MIN(a->more_count, (uint32_t)SCHED_EXTENTS_MAX) && sched_extent_may_add(s, slot); i++) {
        const struct sched_held *held = &a->more[i];
        if (!s->places.of[held->place].up)
            continue;
        if (good && part_follows(s, slot, held)) {
            sched_extent_freeze(s, slot, held->first);
            hold_part(s, slot, held);
            continue;
        }
        if (good) {
            freeze_held(s, slot);
            kept = s->cold[slot].extent.count;
        }
        good = false;
        if (sched_extent_may_add(s, slot)) // an extent without pages, to be given up
            sched_extent_add(s, slot, held->place,
                             (s->cold[slot].extent.first / s->config.extent_tokens + 1) * s->config.extent_tokens, 0);
    }
    if (!good)
        sched_extent_cut(s, slot, kept);
    return good;
}

// Returns whether it cannot go on with what is held of it.
static bool must_rebuild(const struct sched *s, const struct sched_seq *seq)
{
    const struct sched_place *place = &s->places.of[seq->place];
    return seq->scoring || seq->held == 0 || seq->pages == 0 || place->draining || !sched_place_permitted(s, place);
}

static void sequence_arrived(struct sched *s, const struct sched_arrive *a)
{
    if (sched_ids_find(s, a->sequence) != NONE || a->prompt_tokens == 0) {
        s->stats.ignored_events++;
        return;
    }
    s->stats.arrived++;
    // Without those that are only kept.
    uint32_t known = s->config.max_sequences + s->config.max_kept + s->config.max_extents - s->ids.free_count - s->prefix.slots -
                     s->extents.count;
    if (s->ids.free_count == 0 || known >= s->config.max_sequences) {
        reject_arrival(s, a->sequence, a->class);
        return;
    }
    uint32_t slot = sched_sequence_new(s, a);
    struct sched_seq *seq = &s->seqs[slot];
    bool held = a->held_place != SCHED_NO_PLACE && a->held_positions > 0, all = true;
    if (held) {
        hold_part(s, slot, &(struct sched_held){.place = a->held_place, .positions = a->held_positions, .pages = a->held_pages});
        all = a->more_count == 0 || hold_more(s, slot, a);
    }
    bool room = a->max_new_tokens == 0 ? a->prompt_tokens <= s->config.context_tokens : a->prompt_tokens < s->config.context_tokens;
    if (!room) {
        sched_sequence_finish(s, slot, SCHED_TOO_LONG);
    } else if (seq->known > seq->limit || (seq->known == seq->limit && !(a->score_prompt && a->generated_tokens == 0))) {
        sched_sequence_finish(s, slot, SCHED_LENGTH);
    } else if (!all || (seq->scoring && seq->split)) {
        sched_sequence_requeue_from(s, slot, seq->scoring ? 0 : SCHED_EXTENTS_MAX);
    } else if (held && seq->place == SCHED_SEQ_NO_PLACE) {
        sched_sequence_wait(s, slot);
    } else if (held && must_rebuild(s, seq)) {
        sched_sequence_requeue(s, slot);
    } else {
        sched_sequence_wait(s, slot);
    }
    const uint32_t most = a->class == SCHED_CLASS_BATCH ? s->config.max_waiting_batch : s->config.max_waiting;
    if (s->queue.fresh[a->class] <= most || s->cold[slot].rebuild || a->resubmitted)
        return;
    sched_admit(s); // what can start at once does not count for the queue
    if (s->queue.fresh[a->class] > most && seq->state == SCHED_SEQ_WAITING) {
        sched_queue_remove(s, slot);
        sched_heap_remove(&s->queue.deadlines, slot);
        sched_sequence_free(s, slot);
        reject_arrival(s, a->sequence, a->class);
    }
}

// --- places ---------------------------------------------------------------------------------------------------------

static void evict_all(struct sched *s, struct sched_place *place)
{
    while (place->kept.head != NONE)
        sched_prefix_evict(s, place->kept.head);
}

static void find_local_pool(struct sched *s)
{
    s->places.local_pool = NONE;
    for (uint32_t i = 0; i < s->config.max_places && s->places.local_pool == NONE; i++) {
        if (s->places.of[i].up && s->places.of[i].kind == SCHED_LOCAL_POOL)
            s->places.local_pool = i;
    }
}

// Rebuilds a sequence that has lost a part while another was on its way.
static void rebuild_lost(struct sched *s, uint32_t slot)
{
    s->cold[slot].extent.lost = false;
    sched_sequence_rebuild(s, slot);
}

// Neither end of a hand-over has the part's pages any more.
static void lost_at_both_ends(struct sched *s, uint32_t slot, uint32_t part)
{
    bool given_up = part != slot && s->seqs[part].state != SCHED_SEQ_EXTENT; // another part was lost
    s->cold[slot].extent.lost = false;
    sched_move_forget(s, slot);
    if (part == slot)
        sched_sequence_lost(s, slot);
    else
        sched_sequence_extent_lost(s, part);
    if (given_up)
        sched_sequence_rebuild(s, slot);
    s->coming_back[s->seqs[slot].class] -= s->cold[slot].over;
}

// The pages that have arrived at the other end are of no use: they are released there.
static void lost_on_its_way(struct sched *s, uint32_t slot, uint32_t part)
{
    if (s->cold[slot].move.taker_lost) {
        lost_at_both_ends(s, slot, part);
        return;
    }
    sched_sequence_move_landed(s, slot);
    if (s->seqs[part].state == SCHED_SEQ_EXTENT)
        sched_extent_cut(s, slot, sched_extent_index(s, part));
    rebuild_lost(s, slot);
    s->coming_back[s->seqs[slot].class] -= s->cold[slot].over;
}

static void place_down(struct sched *s, uint32_t index)
{
    struct sched_place *place = &s->places.of[index];
    if (!place->up)
        return;
    // Sequences that were to come here stay where they are. For those on their way, the answer to MOVE says where their pages are.
    for (uint32_t i = s->moves.count; i > 0; i--) {
        uint32_t slot = s->moves.slots[i - 1];
        if (s->cold[slot].move.to == index && s->cold[slot].move.id != 0)
            sched_move_taker_lost(s, slot);
        else if (s->cold[slot].move.to == index)
            sched_sequence_move_off(s, slot);
    }
    evict_all(s, place);
    while (place->holders.head != NONE) {
        uint32_t slot = place->holders.head;
        uint32_t owner = sched_extent_is(s, slot) ? s->cold[slot].extent.owner : slot;
        if (s->cold[owner].move.id && s->cold[owner].move.part == slot)
            lost_on_its_way(s, owner, slot);
        else if (owner != slot)
            sched_sequence_extent_lost(s, slot);
        else
            sched_sequence_lost(s, slot);
    }
    assert_always(place->pages_used == 0 && place->pages_releasing == 0 && place->starved == 0 && place->pages_idle == 0);
    s->places.draining -= place->draining;
    place->up = place->draining = place->drained = false;
    place->down_since_us = s->now_us;
    find_local_pool(s);
}

// Whether the s-part's steps may name parts of sequences there.
static bool takes_extents(const struct sched *s, enum sched_place_kind kind)
{
    return kind == SCHED_LOCAL_POOL ? s->s_part.pool_takes_extents : s->s_part.takes_extents;
}

static void place_up(struct sched *s, const struct sched_place_up *up)
{
    struct sched_place *place = &s->places.of[up->place];
    place_down(s, up->place);
    place->up = true;
    place->kind = up->kind;
    find_local_pool(s);
    if (s->places.grace_until_us == 0 && sched_place_permitted(s, place)) // placement local: no other is expected
        s->places.grace_until_us = s->now_us + (s->config.placement == SCHED_PLACE_LOCAL ? 0 : TUNE_PLACE_START_US);
    place->beside_s_part = up->shares_cores;
    place->shares_cores = place->beside_s_part && !s->s_part.on_device;
    place->accepts_moves = up->accepts_moves;
    place->takes_extents = takes_extents(s, up->kind);
    place->pages_total = up->pages_total;
    place->suspect_until_us = place->avoid_until_us = place->moves_from_us = 0;
    sched_place_forgive(s, place);
    sched_speed_guess(s, place, up);
}

static void place_drain(struct sched *s, uint32_t index)
{
    struct sched_place *place = &s->places.of[index];
    if (!place->up || place->draining)
        return;
    place->draining = true;
    s->places.draining++;
    evict_all(s, place);
    uint32_t next;
    for (uint32_t slot = place->holders.head; slot != NONE; slot = next) {
        next = s->cold[slot].place.next;
        if (sched_extent_is(s, slot) ? s->seqs[s->cold[slot].extent.owner].state == SCHED_SEQ_WAITING
                                     : s->seqs[slot].state == SCHED_SEQ_WAITING) // it holds pages that no step would ever use here
            sched_sequence_give_up(s, slot);
    }
}

bool sched_awaits_rebuild(const struct sched *s, uint64_t sequence)
{
    uint32_t slot = sched_ids_find(s, sequence);
    return slot != NONE && s->seqs[slot].state == SCHED_SEQ_WAITING && s->seqs[slot].place == SCHED_SEQ_NO_PLACE &&
           s->cold[slot].rebuild;
}

uint32_t sched_rebuilds_from(const struct sched *s, uint64_t sequence)
{
    uint32_t slot = sched_ids_find(s, sequence);
    return slot == NONE ? 0 : s->cold[slot].extent.first;
}

static void pages_reclaimed(struct sched *s, uint64_t sequence, const struct sched_held *held)
{
    if (!sched_awaits_rebuild(s, sequence)) {
        s->stats.ignored_events++;
        return;
    }
    uint32_t slot = sched_ids_find(s, sequence);
    hold_part(s, slot, held);
    if (s->seqs[slot].place == SCHED_SEQ_NO_PLACE)
        return;
    if (must_rebuild(s, &s->seqs[slot]))
        sched_sequence_requeue(s, slot);
    else
        s->stats.reclaimed++;
}

static void move_answered(struct sched *s, const struct sched_moved *m)
{
    uint32_t slot = sched_ids_find(s, m->sequence);
    if (slot == NONE || s->cold[slot].move.id == 0 || s->cold[slot].move.id != m->id) {
        s->stats.ignored_events++;
        return;
    }
    struct sched_seq *seq = &s->seqs[slot];
    uint32_t part = s->cold[slot].move.part, end = part == slot ? UINT32_MAX : s->cold[part].extent.end;
    bool over = s->cold[slot].over, lost = s->cold[slot].extent.lost;
    bool again = !sched_place_of(s, &s->seqs[part])->draining ||
                 !s->cold[slot].move.failed; // the one that was to take it may be dead: another may
    bool taker_lost = s->cold[slot].move.taker_lost;
    s->cold[slot].move.failed = !m->ok && again;
    sched_handover_ended(s, slot, m->ok && !taker_lost);
    if (m->ok && taker_lost) {
        lost_at_both_ends(s, slot, part);
        return;
    }
    if (!m->ok && !over && !lost && again) {
        sched_sequence_move_off(s, slot);
        return;
    }
    if (!m->ok) {
        sched_move_forget(s, slot);
    } else {
        sched_sequence_move_landed(s, slot);
        s->stats.moved++;
    }
    if (over) { // it ended meanwhile: its pages are released where they are
        s->cold[slot].extent.lost = false;
        sched_sequence_requeue(s, slot);
        s->coming_back[seq->class]--;
        return;
    }
    if (!m->ok || lost) {
        if (!m->ok && s->seqs[part].state == SCHED_SEQ_EXTENT)
            sched_extent_cut(s, slot, sched_extent_index(s, part));
        rebuild_lost(s, slot);
        return;
    }
    sched_place_left(s, part);
    if (m->positions < MIN(seq->held, end))
        seq->held = m->positions;
    seq->next_pos = seq->held;
    sched_sequence_join(s, slot, s->cold[slot].move.batch);
}

// --- the s-part -----------------------------------------------------------------------------------------------------

static void s_part_down(struct sched *s)
{
    s->s_part.up = false;
    for (uint32_t m = 0; m < sched_batch_count_all(s); m++) {
        struct sched_batch *batch = &s->batches.of[m];
        while (batch->in_flight_count > 0)
            step_void(s, batch->in_flight[0]);
    }
    for (uint32_t p = 0; p < s->config.max_places; p++) {
        if (s->places.of[p].up && s->places.of[p].kind == SCHED_LOCAL_POOL)
            place_down(s, p);
    }
}

// Between CPU and device: the step times of one say nothing about the other.
static void forget_s_part(struct sched *s)
{
    sched_time_init(s);
    sched_chunk_init(s);
    sched_draft_init(s);
}

static void s_part_up(struct sched *s, const struct sched_s_part_up *up)
{
    if (s->s_part.up)
        s_part_down(s); // a new s-part came before the end of the old one was reported
    if (up->on_device != s->s_part.on_device)
        forget_s_part(s);
    s->s_part.up = true;
    s->s_part.on_device = up->on_device;
    s->s_part.rows_alike = up->rows_alike;
    s->s_part.takes_aside = s->config.aside && up->takes_aside;
    s->s_part.takes_extents = up->takes_extents;
    s->s_part.pool_takes_extents = up->pool_takes_extents;
    for (uint32_t p = 0; p < s->config.max_places; p++) { // they may have come up before it
        s->places.of[p].shares_cores = s->places.of[p].beside_s_part && !up->on_device;
        s->places.of[p].takes_extents = takes_extents(s, s->places.of[p].kind);
    }
    s->s_part.rows_max = up->max_rows == 0 ? s->config.max_batch_rows : MIN(up->max_rows, s->config.max_batch_rows);
    sched_time_calibrate(s, up);
    for (uint32_t slot = 0; slot < s->config.max_sequences + s->config.max_kept + s->config.max_extents; slot++)
        s->seqs[slot].open = true;
}

static void pages_released(struct sched *s, uint64_t sequence, uint32_t place)
{
    uint32_t slot = sched_ids_find(s, sequence);
    if (slot != NONE && s->seqs[slot].place != place && sched_extent_releasing(s, slot, place) != NONE)
        slot = sched_extent_releasing(s, slot, place);
    if (slot != NONE && s->seqs[slot].state == SCHED_SEQ_RELEASING && s->seqs[slot].place == place)
        sched_sequence_released(s, slot);
    else
        s->stats.ignored_events++;
}

void sched_event_apply(struct sched *s, const struct sched_event *e)
{
    uint32_t slot;
    switch (e->kind) {
    case SCHED_EVENT_NONE: break;
    case SCHED_ARRIVE: sequence_arrived(s, &e->arrive); break;
    case SCHED_CANCEL:
        slot = sched_ids_find(s, e->sequence);
        if (slot != NONE)
            sched_sequence_finish(s, slot, SCHED_CANCELLED);
        else
            s->stats.ignored_events++;
        break;
    case SCHED_STEP_DONE: answer_step(s, &e->step_done); break;
    case SCHED_STEP_FAILED: {
        struct sched_flight *step = sched_batch_find_flight(s, e->step);
        if (step != NULL)
            step_void(s, step);
        break;
    }
    case SCHED_PLACE_UP:
        assert_always(e->place_up.place < s->config.max_places);
        place_up(s, &e->place_up);
        break;
    case SCHED_PLACE_DOWN:
        assert_always(e->place < s->config.max_places);
        place_down(s, e->place);
        break;
    case SCHED_PLACE_SUSPECT:
        assert_always(e->suspect.place < s->config.max_places);
        s->places.of[e->suspect.place].suspect_until_us = e->suspect.until_us;
        break;
    case SCHED_PLACE_DRAIN:
        assert_always(e->place < s->config.max_places);
        place_drain(s, e->place);
        break;
    case SCHED_RECLAIM: pages_reclaimed(s, e->reclaim.sequence, &e->reclaim.held); break;
    case SCHED_MOVED: move_answered(s, &e->moved); break;
    case SCHED_RELEASED: pages_released(s, e->released.sequence, e->released.place); break;
    case SCHED_S_PART_UP: s_part_up(s, &e->s_part_up); break;
    case SCHED_S_PART_DOWN: s_part_down(s); break;
    }
}
