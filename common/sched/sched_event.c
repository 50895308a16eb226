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
