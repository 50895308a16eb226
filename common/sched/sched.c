// sched.c: the tick, the outbox, and the queries.
//
// A tick takes the events, then goes through these in turn: shortages of pages, moves, the outbox, admission, planning. It goes
// through them again only if a shortage of pages was resolved in between.
#include <string.h>

#include "common/sched/balance.h"
#include "common/sched/sequence.h"
#include "common/sched/state.h"

// Emits all actions that are due about one sequence. False: no room is left.
static bool say(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    struct sched_seq_cold *cold = &s->cold[slot];
    struct sched_action *a;
    if (cold->out.finished) {
        if ((a = sched_outbox_action(s, SCHED_FINISHED)) == NULL)
            return false;
        a->finished.sequence = seq->id;
        a->finished.reason = cold->reason;
        a->finished.generated_tokens = seq->known - cold->prompt;
        a->finished.cached_tokens = MIN(cold->prefix.cached, cold->prompt);
        cold->out.finished = false;
    }
    if (cold->out.move) {
        if ((a = sched_outbox_action(s, SCHED_MOVE)) == NULL)
            return false;
        cold->move.id = s->moves.next_id++;
        const uint32_t part = cold->move.part, end = part == slot ? seq->held : s->cold[part].extent.end;
        a->move = (struct sched_move){.sequence = seq->id,
                                      .id = cold->move.id,
                                      .from = s->seqs[part].place,
                                      .to = cold->move.to,
                                      .first = s->cold[part].extent.first,
                                      .positions = MIN(seq->held, end)};
        cold->out.move = false;
    }
    if (cold->out.kept) {
        if ((a = sched_outbox_action(s, SCHED_RELEASE)) == NULL)
            return false;
        a->release.sequence = seq->id;
        a->release.place = SCHED_NO_PLACE;
        a->release.last = cold->out.last_said = true;
        cold->out.kept = false;
        seq->state = SCHED_SEQ_KEPT;
        s->retiring--;
    }
    if (cold->out.release && cold->out.last_said && seq->place == SCHED_SEQ_NO_PLACE) {
        cold->out.release = false; // it was kept and its place is gone: the caller has nothing to free
    } else if (cold->out.release) {
        if ((a = sched_outbox_action(s, SCHED_RELEASE)) == NULL)
            return false;
        a->release.sequence = seq->id;
        a->release.place = seq->place == SCHED_SEQ_NO_PLACE ? SCHED_NO_PLACE : seq->place;
        a->release.last = cold->over && !cold->out.last_said;
        cold->out.release = false;
        cold->out.last_said = cold->over;
    } else {
        return true;
    }
    seq->state = SCHED_SEQ_RELEASING;
    return true;
}

// Empties the outbox as far as there is room. Returns true if pages are free that were not: those of a sequence that is back in the
// queue to be rebuilt, or of a kept one that was evicted.
static bool flush(struct sched *s)
{
    bool back = false;
    while (s->outbox.head != NONE) {
        uint32_t slot = s->outbox.head;
        struct sched_seq *seq = &s->seqs[slot];
        bool release = s->cold[slot].out.release, was_kept = s->cold[slot].out.last_said;
        if (!say(s, slot))
            return back;
        s->outbox.head = s->cold[slot].out.next;
        if (s->outbox.head == NONE)
            s->outbox.tail = NONE;
        s->cold[slot].out.queued = false;
        if (release && (!s->config.release_ack || seq->place == SCHED_SEQ_NO_PLACE)) {
            back = back || !s->cold[slot].over || was_kept;
            sched_sequence_released(s, slot);
        }
    }
    for (uint32_t i = 0; i < s->config.max_places && s->places.draining > 0; i++) {
        struct sched_place *place = &s->places.of[i];
        if (!place->draining || place->drained || place->pages_used > 0 || place->count > 0)
            continue;
        struct sched_action *a = sched_outbox_action(s, SCHED_DRAINED);
        if (a == NULL)
            return back;
        a->place = i;
        place->drained = true;
    }
    return back;
}

size_t sched_step(struct sched *s, uint64_t now_us, const struct sched_event *events, size_t event_count,
                  struct sched_action *actions, size_t action_capacity)
{
    assert_always(action_capacity >= event_count + SCHED_ACTIONS_SPARE);
    s->now_us = MAX(s->now_us, now_us);
    s->outbox.actions = actions;
    s->outbox.count = 0;
    s->outbox.capacity = action_capacity;
    for (size_t i = 0; i < event_count; i++)
        sched_event_apply(s, &events[i]);
    while (s->queue.deadlines.count > 0 && s->queue.deadlines.entries[0].key <= s->now_us)
        sched_sequence_finish(s, s->queue.deadlines.entries[0].slot, SCHED_DEADLINE);
    s->unsettled = true;
    for (int round = 0; round < TUNE_TICK_ROUNDS_MAX && s->unsettled && s->outbox.count < s->outbox.capacity; round++) {
        sched_shortage_resolve(s);
        sched_shortage_drain(s);
        sched_balance(s);
        sched_migrate(s);
        flush(s);
        sched_admit(s);
        s->unsettled = flush(s);
        sched_plan(s);
        s->unsettled = sched_shortage_resolve(s) || s->unsettled;
    }
    s->unsettled = s->unsettled || s->outbox.count == s->outbox.capacity;
    s->outbox.actions = NULL;
    return s->outbox.count;
}

uint64_t sched_next_wake_us(const struct sched *s)
{
    if (s->outbox.head != NONE || s->unsettled)
        return s->now_us;
    uint64_t wake_us = s->places.grace_wake_us;
    if (s->queue.deadlines.count > 0)
        wake_us = MIN(wake_us, s->queue.deadlines.entries[0].key);
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *place = &s->places.of[i];
        if (place->up && place->suspect_until_us > s->now_us)
            wake_us = MIN(wake_us, place->suspect_until_us);
        if (place->up && place->avoid_until_us > s->now_us)
            wake_us = MIN(wake_us, place->avoid_until_us);
    }
    return wake_us;
}

bool sched_knows(const struct sched *s, uint64_t sequence) { return sched_ids_find(s, sequence) != NONE; }

enum sched_where sched_where(const struct sched *s, uint64_t sequence, uint32_t place)
{
    const uint32_t slot = sched_ids_find(s, sequence);

    if (slot == NONE)
        return SCHED_NOWHERE;
    if (sched_extent_uses(s, slot, place, SCHED_EXTENTS_MAX) || (s->cold[slot].move.to == place && !s->cold[slot].move.taker_lost))
        return SCHED_THERE;
    return s->seqs[slot].place == SCHED_SEQ_NO_PLACE ? SCHED_WAITS : SCHED_ELSEWHERE;
}

void sched_get_stats(const struct sched *s, struct sched_stats *out)
{
    *out = s->stats;
    out->running = out->waiting = 0;
    out->retiring = s->retiring;
    for (enum sched_class class = 0; class < SCHED_CLASSES; class ++) {
        out->running_of[class] = s->running[class];
        out->waiting_of[class] = s->queue.count[class] + s->coming_back[class];
        out->waiting_tokens[class] = s->queue.known[class];
        out->running += out->running_of[class];
        out->waiting += out->waiting_of[class];
        out->retiring -= s->coming_back[class];
    }
    for (uint32_t m = 0; m < sched_batch_count_all(s); m++)
        out->steps_in_flight += s->batches.of[m].in_flight_count;
    out->step_base_us = s->time.whole.base_us;
    out->row_us = s->time.whole.row_us;
    out->predicted_steps = s->time.error.steps;
    out->prediction_error_ratio = s->time.error.ratio;
    out->predicted_us = s->time.error.predicted_us;
    out->measured_us = s->time.error.measured_us;
    out->mini_batches = s->batches.in_use;
    out->kept = s->prefix.kept;
    out->split = s->extents.owners;
    out->extents = s->extents.count;
}

void sched_get_place(const struct sched *s, uint32_t index, struct sched_place_info *out)
{
    assert_always(index < s->config.max_places);
    const struct sched_place *place = &s->places.of[index];
    *out = (struct sched_place_info){
        .kind = place->kind,
        .up = place->up,
        .draining = place->draining,
        .suspect = place->suspect_until_us > s->now_us,
        .shares_cores = place->shares_cores,
        .takes_extents = place->takes_extents,
        .pages_used = place->pages_used,
        .pages_total = place->pages_total,
        .pages_idle = place->pages_idle,
        .sequences = place->count,
        .token_us = place->speed.token_us,
    };
    for (uint32_t m = 0; m < SCHED_MINI_BATCHES_MAX; m++)
        out->load[m] = sched_place_load(place, SCHED_CLASS_BATCH, m).load;
}
