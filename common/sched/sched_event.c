/* sched_event.c: what each event changes. Nothing is planned here. */
#include <string.h>

#include "common/sched/sched_state.h"

/* --- sequences ------------------------------------------------------------------------------------------------------ */

static void reject(struct sched *s, uint64_t sequence)
{
    s->stats.rejected++;
    assert_always(s->action_count < s->action_capacity);
    s->actions[s->action_count++] = (struct sched_action){
        .kind = SCHED_REJECT,
        .reject = {.sequence = sequence, .retry_after_us = sched_predicted_wait_us(s)},
    };
}

static uint32_t slot_take(struct sched *s, const struct sched_arrive *a)
{
    uint32_t slot = s->free_slots[--s->free_count];
    struct seq *q = &s->seqs[slot];
    struct seq_cold *c = &s->cold[slot];
    uint32_t epoch = q->epoch + 1;
    uint64_t known = (uint64_t)a->prompt_tokens + a->generated_tokens;
    uint64_t limit = (uint64_t)a->prompt_tokens + a->max_new_tokens;
    memset(q, 0, sizeof(*q));
    memset(c, 0, sizeof(*c));
    q->id = a->sequence;
    q->epoch = epoch;
    q->known = (uint32_t)MIN(known, UINT32_MAX / 2);
    q->limit = (uint32_t)MIN(limit, s->config.context_tokens);
    q->passes_at = a->prompt_tokens + survival_next(a->generated_tokens);
    q->place = SEQ_NO_PLACE;
    q->open = true;
    q->scoring = a->score_prompt;
    c->arrival = s->arrivals++;
    c->deadline_us = a->deadline_us != 0 ? a->deadline_us : SCHED_NEVER;
    c->prompt = a->prompt_tokens;
    c->move_to = c->named = c->source = NONE;
    // A resubmission has waited already, in the scheduler that was before this one.
    c->rebuild = a->generated_tokens > 0 || a->held_place != SCHED_NO_PLACE;
    q->state = SEQ_WAITING;
    map_insert(s, a->sequence, slot);
    if (c->deadline_us != SCHED_NEVER)
        heap_push(&s->deadlines, slot, c->deadline_us);
    return slot;
}

/* Counts the pages that its worker still holds. Where more are held than counted pages allow (several have the same ones) they are
 * of no use, but must be released: it is there with none. */
static void hold(struct sched *s, uint32_t slot, const struct sched_arrive *a)
{
    struct seq *q = &s->seqs[slot];
    assert_always(a->held_place < s->config.max_places);
    struct place *p = &s->places[a->held_place];
    uint32_t pages = pages_for(s, a->held_positions);
    if (!p->up)
        return; // gone again: then there is nothing to reuse
    bool room = pages <= p->pages_total - p->pages_used;
    place_attach(s, slot, a->held_place, room ? pages : 0);
    if (!room)
        return;
    q->held = q->next_pos = MIN(a->held_positions, q->known - 1);
}

static void arrive(struct sched *s, const struct sched_arrive *a)
{
    if (map_find(s, a->sequence) != NONE || a->prompt_tokens == 0) {
        s->stats.ignored_events++;
        return;
    }
    s->stats.arrived++;
    uint32_t known = s->config.max_sequences + s->config.max_kept - s->free_count - s->prefix.slots; // without the cache's
    if (s->free_count == 0 || known >= s->config.max_sequences) {
        reject(s, a->sequence);
        return;
    }
    uint32_t slot = slot_take(s, a);
    struct seq *q = &s->seqs[slot];
    bool held = a->held_place != SCHED_NO_PLACE && a->held_positions > 0;
    if (held)
        hold(s, slot, a);
    bool room = a->max_new_tokens == 0 ? a->prompt_tokens <= s->config.context_tokens : a->prompt_tokens < s->config.context_tokens;
    if (!room) {
        seq_finish(s, slot, SCHED_TOO_LONG);
    } else if (q->known > q->limit || (q->known == q->limit && !(a->score_prompt && a->generated_tokens == 0))) {
        seq_finish(s, slot, SCHED_LENGTH);
    } else if (held && q->place == SEQ_NO_PLACE) {
        seq_wait(s, slot);
    } else if (held &&
               (a->score_prompt || q->held == 0 || s->places[q->place].draining || !place_permitted(s, &s->places[q->place]))) {
        seq_requeue(s, slot);
    } else {
        seq_wait(s, slot);
    }
    if (s->fresh_waiting <= s->config.max_waiting || s->cold[slot].rebuild)
        return;
    admit(s); // the queue is for those that cannot start at once
    if (s->fresh_waiting > s->config.max_waiting && q->state == SEQ_WAITING) {
        heap_remove(&s->waiting, slot);
        heap_remove(&s->deadlines, slot);
        s->fresh_waiting--;
        seq_free(s, slot);
        reject(s, a->sequence);
    }
}

/* --- steps ---------------------------------------------------------------------------------------------------------- */

/* Takes a step out of its mini-batch's flight; NULL: unknown, or void already. */
static struct step *step_find(struct sched *s, uint64_t id)
{
    for (uint32_t m = 0; m < s->config.mini_batches; m++) {
        struct mini_batch *b = &s->mini_batches[m];
        for (uint32_t k = 0; k < b->in_flight_count; k++) {
            if (b->in_flight[k]->id == id)
                return b->in_flight[k];
        }
    }
    s->stats.ignored_events++;
    return NULL;
}

static void step_retire(struct sched *s, struct step *step)
{
    struct mini_batch *b = &s->mini_batches[step->mini_batch];
    uint32_t k = 0;
    while (b->in_flight[k] != step)
        k++;
    for (; k + 1 < b->in_flight_count; k++)
        b->in_flight[k] = b->in_flight[k + 1];
    b->in_flight_count--;
    b->spare[b->spare_count++] = step;
}

/* Whoever gave the first pages is let go, or stays pinned because they are to be given again. */
static void source_back(struct sched *s, const struct step_ref *ref, bool valid)
{
    struct seq *q = &s->seqs[ref->slot];
    if (ref->source == NONE)
        return;
    if (valid && q->sharing && (seq_runs(q) || s->cold[ref->slot].relabels))
        s->cold[ref->slot].source = ref->source;
    else
        seq_unpin(s, ref->source);
}

/* Nothing of it counts; what it carried is planned again. */
static void step_void(struct sched *s, struct step *step)
{
    s->stats.steps_failed++;
    s->stats.wasted_rows += step->row_count;
    step_retire(s, step);
    for (uint32_t i = 0; i < step->run_count; i++) {
        uint32_t slot = step->refs[i].slot;
        bool valid = s->seqs[slot].epoch == step->refs[i].epoch;
        if (valid)
            seq_rewind(s, slot);
        source_back(s, &step->refs[i], valid);
        seq_row_back(s, slot);
    }
}

static void run_done(struct sched *s, uint32_t slot, const struct sched_run *run, struct sched_result *result)
{
    struct seq *q = &s->seqs[slot];
    assert_always(run->position == q->held); // valid rows are answered in order, each once
    if (run->sample && (result->sampled == 0 || result->sampled > 1u + run->drafts)) {
        seq_rewind(s, slot); // an answer without its tokens: as if it had not come
        return;
    }
    result->taken = true;
    q->sharing = false;
    uint32_t wrong = run->drafts > 0 ? run->count - result->sampled : 0;
    q->held += run->count - wrong;
    if (run->score)
        s->cold[slot].scored = q->held;
    if (run->drafts > 0) { // no other row of it is in flight
        s->cold[slot].written = MAX(s->cold[slot].written, pages_for(s, q->next_pos));
        q->next_pos = q->held;
        if (seq_runs(q))
            seq_set_load(s, q, q->next_pos);
        s->stats.drafts_right += run->drafts - wrong;
    }
    if (run->sample)
        q->samples -= 1u + run->drafts;
    if (run->sample && result->sampled > 1 && seq_runs(q))
        load_leapt(s, slot, result->sampled - 1);
    for (uint32_t i = 0; run->sample && i < result->sampled; i++) {
        q->known++;
        if (q->known >= q->passes_at)
            load_grew(s, slot);
    }
    if (run->sample && result->ended)
        seq_finish(s, slot, SCHED_EOS);
    else if (q->known == q->limit && (run->sample || q->held == q->known))
        seq_finish(s, slot, SCHED_LENGTH);
}

static void run_lost(struct sched *s, uint32_t slot)
{
    struct seq *q = &s->seqs[slot];
    s->cold[slot].alone = s->cold[slot].alone || q->sharing; // it may be the sharing that cannot be done
    // If its place is dying, the others must not be rebuilt there; if there is no other, there is no choice.
    bool others = false;
    for (uint32_t i = 0; i < s->config.max_places; i++)
        others = others || (s->places[i].up && i != q->place);
    if (others)
        seq_place(s, q)->avoid_until_us = s->now_us + TUNE_PLACE_LOST_AVOID_US;
    s->stats.rebuilt++;
    s->stats.rebuilt_tokens += q->known;
    seq_requeue(s, slot);
}

/* What the model says of a step, with what its places read, before it learns from it. 0: nothing is known yet. */
static double step_predict_us(const struct sched *s, const struct step *step, const struct sched_step_done *done, uint32_t sampled)
{
    struct sched_round round = {.s_part_us = model_s_part_us(s, step->row_count, sampled)};
    if (s->s_model.rows_seen == 0)
        return 0;
    for (uint32_t i = 0; i < done->place_count; i++) {
        if (done->places[i].place >= s->config.max_places)
            continue;
        const struct place *p = &s->places[done->places[i].place];
        sched_round_add(&round, p->local || p->shares_cores, place_attend_us(p, done->places[i].tokens_read), p->link_step_us);
    }
    return sched_round_us(&round, s->batches);
}

/* Attention of a step on the s-part's cores: what its workers say, and of the local pool what it takes alone. It attends while they do,
 * with what they leave of the cores, so what it measures then is mostly their doing. */
static double attended_here_us(const struct sched *s, const struct sched_step_done *done, bool *workers)
{
    double us = 0;
    *workers = false;
    for (uint32_t i = 0; i < done->place_count; i++) {
        const struct sched_place_time *time = &done->places[i];
        if (time->place >= s->config.max_places)
            continue;
        const struct place *p = &s->places[time->place];
        if (p->local || p->shares_cores)
            us += !p->local && time->attend_us > 0 ? time->attend_us : place_attend_us(p, time->tokens_read);
        *workers = *workers || (p->shares_cores && !p->local && time->tokens_read > 0);
    }
    return us;
}

/* What a step says of the model, and the model of it. */
static void step_learn(struct sched *s, const struct step *step, const struct sched_step_done *done)
{
    uint32_t sampled = 0;
    for (uint32_t i = 0; i < done->place_count; i++) {
        if (done->places[i].place < s->config.max_places)
            s->places[done->places[i].place].step_pairs = 0;
    }
    for (uint32_t i = 0; i < step->run_count; i++) {
        const struct sched_run *run = &step->runs[i];
        sampled += run->sample ? 1u + run->drafts : 0;
        if (run->count > 1)
            s->places[run->place].step_pairs += (uint64_t)run->count * run->position + (uint64_t)run->count * (run->count + 1) / 2;
    }
    // Attention of a row and of its drafts reads the same context: what it takes is neither as of rows nor as of a prompt.
    bool drafted = step->draft_rows > 0;
    double predicted_us = drafted ? 0 : step_predict_us(s, step, done, sampled);
    if (predicted_us > 0 && done->total_us > 0)
        model_judge(&s->error, predicted_us, done->total_us);
    if (done->total_us > 0 && !drafted)
        chunk_learn(s, step, done->total_us);
    if (done->total_us > 0)
        model_learn(&s->model, step->row_count, done->total_us);
    if (done->s_part_us > 0) {
        double head_us = model_s_part_us(s, step->row_count, sampled) - model_us(&s->s_model, step->row_count);
        model_learn(&s->s_model, step->row_count, MAX(done->s_part_us - head_us, done->s_part_us / 8.0));
    }
    draft_learn(s, step, done);
    if (drafted)
        return;
    bool workers_here;
    double here_us = attended_here_us(s, done, &workers_here);
    for (uint32_t i = 0; i < done->place_count; i++) {
        uint32_t place = done->places[i].place;
        if (place >= s->config.max_places)
            continue;
        const struct place *p = &s->places[place];
        // Beside workers on its cores the local pool may take longer than it does alone, never less.
        if (p->local && workers_here && done->places[i].attend_us >= place_attend_us(p, done->places[i].tokens_read))
            continue;
        // Beside prefill elsewhere on the same cores decode rows' attention says nothing.
        if (step->prefill_rows == 0 || p->step_pairs > 0 || !(p->local || p->shares_cores))
            place_measure(s, &done->places[i], here_us);
    }
}

static void step_done(struct sched *s, const struct sched_step_done *done)
{
    for (uint32_t i = 0; i < done->result_count; i++)
        done->results[i].taken = false;
    struct step *step = step_find(s, done->step);
    if (step == NULL)
        return;
    struct mini_batch *b = &s->mini_batches[step->mini_batch];
    while (b->in_flight[0] != step) // answered in order: those before it were lost on the way
        step_void(s, b->in_flight[0]);
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
                run_done(s, slot, run, result);
            else if (result->outcome == SCHED_LOST)
                run_lost(s, slot);
            else
                seq_rewind(s, slot);
        }
        if (!result->taken)
            s->stats.wasted_rows += run->count;
        source_back(s, &step->refs[i], valid);
        seq_row_back(s, slot);
    }
    step_learn(s, step, done);
    step_retire(s, step);
}

/* --- places --------------------------------------------------------------------------------------------------------- */

static void evict_all(struct sched *s, struct place *p)
{
    while (p->kept.head != NONE)
        prefix_evict(s, p->kept.head);
}

static void place_down(struct sched *s, uint32_t index)
{
    struct place *p = &s->places[index];
    if (!p->up)
        return;
    // Those on their way here stay where they are; should the hand-over have been done, their next row says LOST.
    for (uint32_t i = s->moving_count; i > 0; i--) {
        uint32_t slot = s->moving[i - 1];
        struct seq *q = &s->seqs[slot];
        if (s->cold[slot].move_to != index)
            continue;
        move_forget(s, slot);
        if (s->cold[slot].over) {
            seq_requeue(s, slot);
            s->coming_back--;
        } else {
            leaving_end(s, slot);
            prefix_resume(s, slot);
            mini_batch_join(s, slot, q->mini_batch);
        }
    }
    evict_all(s, p);
    while (p->holders.head != NONE) {
        uint32_t slot = p->holders.head;
        if (s->cold[slot].move_id) { // what has arrived at the other end is no use alone: release it there
            move_landed(s, slot);
            s->stats.rebuilt++;
            s->stats.rebuilt_tokens += s->seqs[slot].known;
            seq_requeue(s, slot);
            s->coming_back -= s->cold[slot].over;
        } else {
            seq_lost(s, slot);
        }
    }
    assert_always(p->pages_used == 0 && p->pages_releasing == 0 && p->starved == 0 && p->pages_idle == 0);
    s->draining_places -= p->draining;
    p->up = p->draining = p->drained = false;
    p->down_since_us = s->now_us;
}

static void place_up(struct sched *s, const struct sched_place_up *up)
{
    struct place *p = &s->places[up->place];
    place_down(s, up->place);
    p->up = true;
    p->local = up->local;
    if (s->grace_until_us == 0 && place_permitted(s, p)) // where all is local, there is no other
        s->grace_until_us = s->now_us + (s->config.placement == SCHED_PLACE_LOCAL ? 0 : TUNE_PLACE_START_US);
    p->beside_s_part = up->shares_cores;
    p->shares_cores = p->beside_s_part && !s->s_part_on_device;
    p->accepts_moves = up->accepts_moves;
    p->pages_total = up->pages_total;
    p->suspect_until_us = p->avoid_until_us = p->moves_from_us = 0;
    double bytes_per_us = up->bytes_per_second > 0 ? (double)up->bytes_per_second / 1e6 : 1e4;
    uint64_t bytes = s->config.kv_bytes_per_token > 0 ? s->config.kv_bytes_per_token : 1;
    p->attends_measured = p->slow = false;
    p->token_noise = p->token_last_us = p->off = 0;
    p->token_us = (double)bytes / bytes_per_us;
    p->pair_us = up->prefill_pair_us;
    p->step_pairs = 0;
    p->link_step_us = (double)up->link_us * s->config.layers;
}

static void place_drain(struct sched *s, uint32_t index)
{
    struct place *p = &s->places[index];
    if (!p->up || p->draining)
        return;
    p->draining = true;
    s->draining_places++;
    evict_all(s, p);
    uint32_t next;
    for (uint32_t slot = p->holders.head; slot != NONE; slot = next) {
        next = s->cold[slot].place_next;
        if (s->seqs[slot].state == SEQ_WAITING) // it holds pages, but no step would ever use them here
            seq_requeue(s, slot);
    }
}

static void moved(struct sched *s, const struct sched_moved *m)
{
    uint32_t slot = map_find(s, m->sequence);
    if (slot == NONE || s->cold[slot].move_id == 0 || s->cold[slot].move_id != m->id) {
        s->stats.ignored_events++;
        return;
    }
    struct seq *q = &s->seqs[slot];
    bool over = s->cold[slot].over;
    bool again = !seq_place(s, q)->draining || !s->cold[slot].move_failed; // who was to take it may be dead, and another take it
    s->cold[slot].move_failed = !m->ok && again;
    seq_move_ended(s, slot, m->ok);
    if (!m->ok && !over && again) { // it goes on where it is
        move_forget(s, slot);
        leaving_end(s, slot);
        prefix_resume(s, slot);
        mini_batch_join(s, slot, q->mini_batch);
        return;
    }
    if (!m->ok) {
        move_forget(s, slot);
    } else {
        move_landed(s, slot);
        s->stats.moved++;
    }
    if (over || !m->ok) {
        s->stats.rebuilt += !over;
        s->stats.rebuilt_tokens += over ? 0 : q->known;
        seq_requeue(s, slot);
        s->coming_back -= over;
        return;
    }
    leaving_end(s, slot);
    q->held = q->next_pos = MIN(m->positions, q->held);
    mini_batch_join(s, slot, s->cold[slot].move_batch);
}

/* --- the s-part ----------------------------------------------------------------------------------------------------- */

static void s_part_down(struct sched *s)
{
    s->s_part_up = false;
    for (uint32_t m = 0; m < s->config.mini_batches; m++) {
        struct mini_batch *b = &s->mini_batches[m];
        while (b->in_flight_count > 0)
            step_void(s, b->in_flight[0]);
    }
    for (uint32_t p = 0; p < s->config.max_places; p++) {
        if (s->places[p].up && s->places[p].local)
            place_down(s, p);
    }
}

static void s_part_calibrate(struct sched *s, const struct sched_s_part_up *up)
{
    model_calibrate(&s->s_model, up->layers, up->layer_count);
    model_calibrate(&s->heads, up->heads, up->head_count);
    for (uint32_t i = 0; i < up->layer_count; i++) { // as if all its rows were sampled, as those of decode steps are
        struct sched_time whole = up->layers[i];
        whole.us = model_s_part_us(s, whole.rows, whole.rows);
        model_calibrate(&s->model, &whole, 1);
    }
}

/* CPU and device: what the steps of the one took says nothing of the other's. */
static void forget_s_part(struct sched *s)
{
    s->s_model = s->heads = (struct step_model){0};
    s->model = (struct step_model){.whole = true};
    chunk_init(s);
    for (uint32_t m = 0; m < s->config.mini_batches; m++)
        draft_forget(&s->mini_batches[m]);
}

static void s_part_up(struct sched *s, const struct sched_s_part_up *up)
{
    if (s->s_part_up)
        s_part_down(s); // a new one without word of the old one's end
    if (up->on_device != s->s_part_on_device)
        forget_s_part(s);
    s->s_part_up = true;
    s->s_part_on_device = up->on_device;
    s->rows_alike = up->rows_alike;
    for (uint32_t p = 0; p < s->config.max_places; p++)
        s->places[p].shares_cores = s->places[p].beside_s_part && !up->on_device;
    s->rows_max = up->max_rows == 0 ? s->config.max_batch_rows : MIN(up->max_rows, s->config.max_batch_rows);
    s_part_calibrate(s, up);
    for (uint32_t slot = 0; slot < s->config.max_sequences + s->config.max_kept; slot++)
        s->seqs[slot].open = true;
}

static void released(struct sched *s, uint64_t sequence, uint32_t place)
{
    uint32_t slot = map_find(s, sequence);
    if (slot != NONE && s->seqs[slot].state == SEQ_RELEASING && s->seqs[slot].place == place)
        seq_released(s, slot);
    else
        s->stats.ignored_events++;
}

void event_apply(struct sched *s, const struct sched_event *e)
{
    uint32_t slot;
    switch (e->kind) {
    case SCHED_EVENT_NONE: break;
    case SCHED_ARRIVE: arrive(s, &e->arrive); break;
    case SCHED_CANCEL:
        slot = map_find(s, e->sequence);
        if (slot != NONE)
            seq_finish(s, slot, SCHED_CANCELLED);
        else
            s->stats.ignored_events++;
        break;
    case SCHED_STEP_DONE: step_done(s, &e->step_done); break;
    case SCHED_STEP_FAILED: {
        struct step *step = step_find(s, e->step);
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
        s->places[e->suspect.place].suspect_until_us = e->suspect.until_us;
        break;
    case SCHED_PLACE_DRAIN:
        assert_always(e->place < s->config.max_places);
        place_drain(s, e->place);
        break;
    case SCHED_MOVED: moved(s, &e->moved); break;
    case SCHED_RELEASED: released(s, e->released.sequence, e->released.place); break;
    case SCHED_S_PART_UP: s_part_up(s, &e->s_part_up); break;
    case SCHED_S_PART_DOWN: s_part_down(s); break;
    }
}
