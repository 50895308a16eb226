/* sched.c: the tick, the outbox, and the queries.
 *
 * A tick takes the events, then goes round: who lacks pages, who is to be handed over, what there is to say, who may
 * start, which steps to emit. It goes round again only while a shortage of pages was resolved in between.
 *
 * The outbox is a queue of sequences, not of messages: each has flags for what is still to be said about it, so its
 * size is bounded by max_sequences, and what does not fit this call's actions simply stays queued.
 */
#include <string.h>

#include "common/sched/sched_state.h"

static struct sched_action *next_action(struct sched *s, enum sched_action_kind kind)
{
    if (s->action_count == s->action_capacity)
        return NULL;
    struct sched_action *a = &s->actions[s->action_count++];
    *a = (struct sched_action){.kind = kind};
    return a;
}

/* Says all that there is to say about one sequence; false: no room. */
static bool say(struct sched *s, uint32_t slot)
{
    struct seq *q = &s->seqs[slot];
    struct seq_cold *c = &s->cold[slot];
    struct sched_action *a;
    if (c->out_finished) {
        if ((a = next_action(s, SCHED_FINISHED)) == NULL)
            return false;
        a->finished.sequence = q->id;
        a->finished.reason = c->reason;
        a->finished.generated_tokens = q->known - c->prompt;
        a->finished.cached_tokens = MIN(c->cached, c->prompt);
        c->out_finished = false;
    }
    if (c->out_move) {
        if ((a = next_action(s, SCHED_MOVE)) == NULL)
            return false;
        c->move_id = s->next_move++;
        a->move = (struct sched_move){q->id, c->move_id, q->place, c->move_to, q->held};
        c->out_move = false;
    }
    if (c->out_kept) {
        if ((a = next_action(s, SCHED_RELEASE)) == NULL)
            return false;
        a->release.sequence = q->id;
        a->release.place = SCHED_NO_PLACE;
        a->release.last = c->last_said = true;
        c->out_kept = false;
        q->state = SEQ_KEPT;
        s->retiring--;
    }
    if (c->out_release && c->last_said && q->place == SEQ_NO_PLACE) {
        c->out_release = false; // it was kept, and its place is gone: nobody has to be told
    } else if (c->out_release) {
        if ((a = next_action(s, SCHED_RELEASE)) == NULL)
            return false;
        a->release.sequence = q->id;
        a->release.place = q->place == SEQ_NO_PLACE ? SCHED_NO_PLACE : q->place;
        a->release.last = c->over && !c->last_said;
        c->out_release = false;
        c->last_said = c->over;
    } else {
        return true;
    }
    q->state = SEQ_RELEASING;
    return true;
}

/* Returns true if a sequence that will be rebuilt is back in the queue, its pages free, or pages are free for which one that was
 * kept has been let go. */
static bool flush(struct sched *s)
{
    bool back = false;
    while (s->out_head != NONE) {
        uint32_t slot = s->out_head;
        struct seq *q = &s->seqs[slot];
        bool release = s->cold[slot].out_release, was_kept = s->cold[slot].last_said;
        if (!say(s, slot))
            return back;
        s->out_head = s->cold[slot].out_next;
        if (s->out_head == NONE)
            s->out_tail = NONE;
        s->cold[slot].out_queued = false;
        if (release && (!s->config.release_ack || q->place == SEQ_NO_PLACE)) {
            back = back || !s->cold[slot].over || was_kept;
            seq_released(s, slot);
        }
    }
    for (uint32_t i = 0; i < s->config.max_places && s->draining_places > 0; i++) {
        struct place *p = &s->places[i];
        if (!p->draining || p->drained || p->pages_used > 0 || p->count > 0)
            continue;
        struct sched_action *a = next_action(s, SCHED_DRAINED);
        if (a == NULL)
            return back;
        a->place = i;
        p->drained = true;
    }
    return back;
}

static void plan_all(struct sched *s)
{
    if (!s->s_part_up || !batches_settled(s))
        return;
    uint32_t count = s->batches;
    // One step each in turn, so that none fills the s-part's queue before the others.
    for (uint32_t ahead = 0; ahead < s->config.plan_ahead; ahead++) {
        for (uint32_t i = 0; i < count; i++) {
            uint32_t m = (s->turn + i) % count;
            if (s->mini_batches[m].in_flight_count <= ahead)
                plan_step(s, m);
        }
    }
    s->turn = (s->turn + 1) % count;
}

size_t sched_step(struct sched *s, uint64_t now_us, const struct sched_event *events, size_t event_count,
                  struct sched_action *actions, size_t action_capacity)
{
    assert_always(action_capacity >= event_count + SCHED_ACTIONS_SPARE);
    s->now_us = MAX(s->now_us, now_us);
    s->actions = actions;
    s->action_count = 0;
    s->action_capacity = action_capacity;
    for (size_t i = 0; i < event_count; i++)
        event_apply(s, &events[i]);
    while (s->deadlines.count > 0 && s->deadlines.entries[0].key <= s->now_us)
        seq_finish(s, s->deadlines.entries[0].slot, SCHED_DEADLINE);
    s->unsettled = true;
    for (int round = 0; round < TUNE_TICK_ROUNDS_MAX && s->unsettled && s->action_count < s->action_capacity; round++) {
        shortage_resolve(s);
        drain_advance(s);
        balance(s);
        migrate(s);
        flush(s);
        admit(s);
        s->unsettled = flush(s);
        plan_all(s);
        s->unsettled = shortage_resolve(s) || s->unsettled;
    }
    s->unsettled = s->unsettled || s->action_count == s->action_capacity;
    s->actions = NULL;
    return s->action_count;
}

uint64_t sched_next_wake_us(const struct sched *s)
{
    if (s->out_head != NONE || s->unsettled)
        return s->now_us;
    uint64_t wake_us = s->grace_wake_us;
    if (s->deadlines.count > 0)
        wake_us = MIN(wake_us, s->deadlines.entries[0].key);
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct place *p = &s->places[i];
        if (p->up && p->suspect_until_us > s->now_us)
            wake_us = MIN(wake_us, p->suspect_until_us);
        if (p->up && p->avoid_until_us > s->now_us)
            wake_us = MIN(wake_us, p->avoid_until_us);
    }
    return wake_us;
}

bool sched_knows(const struct sched *s, uint64_t sequence) { return map_find(s, sequence) != NONE; }

void sched_get_stats(const struct sched *s, struct sched_stats *out)
{
    *out = s->stats;
    out->running = s->running;
    out->waiting = s->waiting.count + s->coming_back;
    out->retiring = s->retiring - s->coming_back;
    for (uint32_t m = 0; m < s->config.mini_batches; m++)
        out->steps_in_flight += s->mini_batches[m].in_flight_count;
    out->step_base_us = s->model.base_us;
    out->row_us = s->model.row_us;
    out->predicted_steps = s->error.steps;
    out->prediction_error_ratio = s->error.ratio;
    out->predicted_us = s->error.predicted_us;
    out->measured_us = s->error.measured_us;
    out->mini_batches = s->batches;
    out->kept = s->prefix.kept;
}

void sched_get_place(const struct sched *s, uint32_t place, struct sched_place_info *out)
{
    assert_always(place < s->config.max_places);
    const struct place *p = &s->places[place];
    *out = (struct sched_place_info){
        .up = p->up,
        .draining = p->draining,
        .suspect = p->suspect_until_us > s->now_us,
        .shares_cores = p->shares_cores,
        .pages_used = p->pages_used,
        .pages_total = p->pages_total,
        .pages_idle = p->pages_idle,
        .sequences = p->count,
        .token_us = p->token_us,
    };
    memcpy(out->load, p->load, sizeof(out->load));
}
