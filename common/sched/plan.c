// plan.c: the rows of one step.
//
// First comes one row for every sequence of the mini-batch that decodes, with its drafts (draft.c); then prefill, in as many rows
// as chunk.c allows: the oldest prompt first, several prompts if they fit. These are rows of interactive sequences if any run,
// otherwise of class batch. If the s-part takes them, prompts beside decode rows have steps of their own instead, that go aside: in a
// mini-batch that has no sequences, and in the time that the steps with decode rows leave. While such a step has rows of a sequence no other
// has. Behind interactive rows, class batch has those that hardly lengthen the step.

#include <string.h>

#include "common/sched/balance.h"
#include "common/sched/chunk.h"
#include "common/sched/sequence.h"
#include "common/sched/split.h"
#include "common/sched/state.h"

static struct sched_run *add_run(const struct sched *s, struct sched_flight *step, const struct sched_seq *seq, uint32_t slot,
                                 uint32_t count)
{
    struct sched_run *run = &step->runs[step->run_count];
    step->refs[step->run_count++] = (struct sched_flight_run){.slot = slot, .epoch = seq->epoch, .source = NONE};
    step->row_count += count;
    *run = (struct sched_run){
        .sequence = seq->id,
        .position = seq->next_pos,
        .count = count,
        .place = seq->place,
        .open = seq->open,
    };
    if (seq->split) {
        sched_extent_describe(s, slot, &step->extents[step->extent_count], run);
        step->extent_count += run->extent_count;
    }
    return run;
}

// Returns how many of the sequence's next `count` rows the step has room for, by their partial results: always one if it has none yet.
static uint32_t rows_with_partials(const struct sched *s, struct sched_flight *step, const struct sched_seq *seq, uint32_t count)
{
    if (!seq->split || s->config.max_partials == 0)
        return count;
    struct sched_extent extents[SCHED_EXTENTS_MAX];
    struct sched_run run = {.position = seq->next_pos, .count = count};
    sched_extent_describe(s, (uint32_t)(seq - s->seqs), extents, &run);
    uint64_t each = MAX(sched_extent_partials(s, &run), 1u),
             left = s->config.max_partials - MIN(step->partials, s->config.max_partials);
    uint32_t rows = (uint32_t)MIN(count, left / each);
    rows = step->partials == 0 ? MAX(rows, 1u) : rows;
    step->partials += rows * each;
    return rows;
}

static bool may_decode(const struct sched *s, const struct sched_seq *seq)
{
    return seq->known + seq->samples < seq->limit && !seq->aside && !sched_place_blocks(s, seq);
}

// Adds the next row of a sequence and `guessed` drafts at most. False: it lacks a page, or the step has no room for its partial results.
static bool plan_decode(struct sched *s, struct sched_flight *step, uint32_t slot, uint32_t guessed)
{
    struct sched_seq *seq = &s->seqs[slot];
    if (seq->next_pos >= sched_seq_room_end(s, seq)) {
        bool grown = sched_split_grow(s, slot);
        sched_place_starve(s, seq, !grown);
        if (!grown)
            return false;
    }
    if (guessed > 0)
        guessed = sched_draft_fit(s, seq, guessed);
    uint32_t rows = rows_with_partials(s, step, seq, 1u + guessed);
    if (rows == 0)
        return false;
    guessed = rows - 1;
    struct sched_run *run = add_run(s, step, seq, slot, 1u + guessed);
    run->sample = true;
    run->drafts = (uint8_t)guessed;
    step->draft_rows += guessed;
    run->use_last_sampled = seq->samples > 0;
    seq->open = false;
    seq->next_pos += 1u + guessed;
    seq->samples += (uint16_t)(1u + guessed);
    seq->in_flight++;
    sched_place_set_load(s, seq, seq->next_pos - MIN(seq->next_pos, sched_seq_first(s, seq)));
    return true;
}

// The first that the step has no room for is the next step's first.
static void plan_decodes(struct sched *s, struct sched_group *group, struct sched_flight *step, const uint8_t *drafts)
{
    uint32_t count = group->member_count, refused = NONE;
    uint32_t at = count > 0 ? group->cursor % count : 0;
    for (uint32_t i = 0; i < count && step->row_count < s->s_part.rows_max; i++, at = at + 1 == count ? 0 : at + 1) {
        if (at + 8 < count)
            __builtin_prefetch(&s->seqs[group->members[at + 8]], 1);
        const struct sched_seq *seq = &s->seqs[group->members[at]];
        if (may_decode(s, seq) && !plan_decode(s, step, group->members[at], at < TUNE_DRAFT_SEQUENCES_MAX ? drafts[at] : 0) &&
            !seq->starved && refused == NONE)
            refused = at;
    }
    group->cursor = refused != NONE ? refused : at;
    step->decode_rows = step->row_count;
    step->decode_runs = step->run_count;
}

// Returns whether it has all the shared pages that it will find, so that the rest is its to compute.
static bool has_gathered(struct sched *s, uint32_t slot)
{
    uint32_t unpin = NONE;
    bool gathered = !s->seqs[slot].gathering || sched_prefix_gather(s, slot, &unpin);
    if (unpin != NONE)
        sched_sequence_unpin(s, unpin);
    return gathered;
}

static void plan_prefill(struct sched *s, struct sched_flight *step, uint32_t slot, uint32_t room)
{
    struct sched_seq *seq = &s->seqs[slot];
    const struct sched_seq_cold *cold = &s->cold[slot];
    uint32_t count = MIN(seq->target - seq->next_pos, room);
    bool score = seq->scoring && seq->next_pos >= cold->scored && seq->next_pos < cold->prompt;
    if (score) // all rows of a run are scored, or none
        count = MIN(count, cold->prompt - seq->next_pos);
    else if (seq->scoring && seq->next_pos < cold->scored)
        count = MIN(count, cold->scored - seq->next_pos);
    if (s->config.ring_pages != 0)
        count = MIN(count, s->config.ring_rows);
    if (seq->split) // all rows of a run are written at one place
        count = (uint32_t)MIN(count, sched_seq_room_end(s, seq) - seq->next_pos);
    count = rows_with_partials(s, step, seq, count);
    if (count == 0)
        return;
    struct sched_run *run = add_run(s, step, seq, slot, count);
    run->score = score;
    if (seq->sharing && s->cold[slot].prefix.source != NONE) {
        uint32_t source = sched_prefix_take_source(s, slot);
        step->refs[step->run_count - 1].source = source;
        run->share_from = s->seqs[source].id;
    }
    run->sample = seq->next_pos + count == seq->target && seq->known < seq->limit;
    seq->open = false;
    seq->next_pos += count;
    seq->samples += run->sample;
    seq->in_flight++;
    sched_group_of(s, seq)->prefill_rows -= count;
    step->prefill_rows += count;
    if (seq->next_pos == seq->target)
        sched_batch_prefill_done(s, slot);
}

// Adds prefill rows, oldest first.
static void plan_prompts(struct sched *s, struct sched_group *group, struct sched_flight *step, uint32_t room)
{
    uint32_t next;
    for (uint32_t slot = group->prefill_head; slot != NONE && step->prefill_rows < room; slot = next) {
        struct sched_seq *seq = &s->seqs[slot];
        next = s->cold[slot].batch.next;
        if (sched_place_blocks(s, seq) || (seq->in_flight > 0 && seq->aside != step->aside) || !has_gathered(s, slot))
            continue;
        if (!sched_micro_batch_takes(s, step, seq, room - step->prefill_rows))
            break; // in order
        uint32_t before = step->run_count;
        plan_prefill(s, step, slot, room - step->prefill_rows);
        seq->aside = step->run_count > before ? step->aside : seq->aside;
    }
}

// Plans the rows of the class whose step it is.
static void plan_own(struct sched *s, struct sched_group *group, struct sched_flight *step, enum sched_class class,
                     const uint8_t *drafts)
{
    step->class = class;
    plan_decodes(s, group, step, drafts);
    bool aside = class == sched_leading_class(s) && sched_chunk_goes_aside(s, class); // as plan_aside() will
    uint32_t room = group->prefill_count > 0 && !aside ? sched_micro_batch_prefill(s, class, group, step->row_count) : 0;
    plan_prompts(s, group, step, room);
    step->late_run = step->run_count;
    s->stats.rows_of[class] += step->row_count;
}

// The time that rows of a class behind the step's may take.
struct late_time {
    double left_us; // the next row
    double most_us; // the first, if it takes longer: with what steps before have saved
};

// Returns whether there is time for more of these rows. The first may take what steps before have saved, or all that it needs if there was
// none for long: nobody waits for ever, and none keeps pages that another is to have.
static bool has_time(const struct sched *s, const struct sched_batch *batch, const struct sched_flight *step, double us,
                     const struct late_time *time)
{
    return us <= time->left_us || (step->run_count == step->late_run &&
                                   (us <= time->most_us || batch->late_steps >= TUNE_LATE_LEAST_STEPS * s->batches.in_use));
}

// Adds decode rows of a class behind the step's, in turn: the first that there was no time for is the next step's first. False: there was no
// time for all.
static bool plan_late_decodes(struct sched *s, const struct sched_batch *batch, struct sched_group *group,
                              struct sched_flight *step, struct late_time *time)
{
    uint32_t count = group->member_count, at = group->cursor < count ? group->cursor : 0;
    uint32_t refused = 0, most = sched_micro_batch_most(s, step);
    for (uint32_t i = 0; i < count; i++, at = at + 1 == count ? 0 : at + 1) {
        struct sched_seq *seq = &s->seqs[group->members[at]];
        if (!may_decode(s, seq))
            continue;
        bool full = refused >= TUNE_LATE_REFUSED || step->row_count >= most;
        double us = full ? 0 : sched_chunk_late_us(s, step, seq, 1);
        if (full || !has_time(s, batch, step, us, time)) {
            sched_place_starve(s, seq, false); // what it lacks is time
            group->cursor = refused++ == 0 ? at : group->cursor;
        } else if (plan_decode(s, step, group->members[at], 0)) {
            time->left_us -= us;
        }
    }
    return refused == 0;
}

// The same with prefill, oldest first, until there is no time for a prompt's next row.
static void plan_late_prefill(struct sched *s, const struct sched_batch *batch, struct sched_group *group,
                              struct sched_flight *step, struct late_time *time)
{
    uint32_t next, rows_most = sched_micro_batch_most(s, step);
    for (uint32_t slot = group->prefill_head; slot != NONE; slot = next) {
        const struct sched_seq *seq = &s->seqs[slot];
        next = s->cold[slot].batch.next;
        if (sched_place_blocks(s, seq) || seq->aside || !has_gathered(s, slot))
            continue;
        uint32_t cap = sched_chunk_max(s), most = MIN(rows_most - step->row_count, cap - MIN(step->prefill_rows, cap));
        uint32_t rows = sched_chunk_late_rows(s, step, seq, most, time->left_us);
        double us = sched_chunk_late_us(s, step, seq, MAX(rows, 1));
        if (most == 0 || (rows == 0 && !has_time(s, batch, step, us, time)))
            return;
        time->left_us -= us;
        plan_prefill(s, step, slot, MAX(rows, 1));
    }
}

// Adds rows of a class behind the step's as far as they hardly lengthen it.
static void plan_late(struct sched *s, struct sched_batch *batch, struct sched_flight *step, enum sched_class class)
{
    struct sched_group *group = &batch->of[class];
    uint32_t own_rows = step->row_count;
    double free_us, spare_us = sched_chunk_spare_us(s, step, &free_us);
    if (sched_chunk_probes(s, step))
        return;
    batch->late_steps++;
    batch->late_saved_us = MIN(batch->late_saved_us + spare_us, TUNE_LATE_SAVED * spare_us);
    struct late_time time = {.left_us = spare_us + free_us, .most_us = batch->late_saved_us + free_us};
    if (plan_late_decodes(s, batch, group, step, &time))
        plan_late_prefill(s, batch, group, step, &time);
    batch->late_saved_us = MAX(batch->late_saved_us - MAX(spare_us - time.left_us, 0), 0);
    if (step->row_count > own_rows)
        batch->late_steps = 0;
    s->stats.rows_of[class] += step->row_count - own_rows;
}

static void emit_step(struct sched *s, struct sched_batch *batch, struct sched_flight *step)
{
    batch->spare_count--;
    step->queued = batch->in_flight_count > 0;
    step->emitted_us = s->now_us;
    batch->in_flight[batch->in_flight_count++] = step;
    step->id = s->batches.next_step++;
    s->stats.steps++;
    if (!step->aside)
        sched_load_stepped(s, step->mini_batch, step->class);
    s->stats.prefill_rows += step->prefill_rows;
    s->stats.decode_rows += step->row_count - step->prefill_rows;
    s->stats.drafted += step->draft_rows;
    s->outbox.actions[s->outbox.count++] = (struct sched_action){
        .kind = SCHED_STEP,
        .step =
            {
                .step = step->id,
                .mini_batch = step->mini_batch,
                .row_count = step->row_count,
                .run_count = step->run_count,
                .aside = step->aside,
                .aside_us = step->aside || !s->s_part.takes_aside ? 0 : sched_chunk_aside_us(s, step),
                .runs = step->runs,
            },
    };
}

// Returns whether sequences of a class run in another mini-batch.
static bool runs_elsewhere(const struct sched *s, uint32_t mini_batch, enum sched_class class)
{
    for (uint32_t m = 0; m < s->config.mini_batches; m++) {
        if (m != mini_batch && sched_batch_size(&s->batches.of[m], class) > 0)
            return true;
    }
    return false;
}

static void begin_step(struct sched_flight *step, uint32_t mini_batch, bool aside)
{
    step->mini_batch = mini_batch;
    step->aside = aside;
    step->run_count = step->row_count = step->prefill_rows = step->draft_rows = step->extent_count = 0;
    step->decode_rows = step->decode_runs = 0;
    step->partials = 0;
}

// Plans a step of prompts that goes aside, if there are prompts beside decode rows, and no more than `ahead` such steps are in flight.
static void plan_aside(struct sched *s, uint32_t ahead)
{
    struct sched_batch *batch = &s->batches.of[s->config.mini_batches];
    enum sched_class class = sched_leading_class(s);
    struct sched_group *group = &s->batches.of[0].of[class];
    if (!s->s_part.takes_aside || batch->in_flight_count > ahead || batch->spare_count == 0 ||
        s->outbox.count == s->outbox.capacity || group->prefill_count == 0 || !sched_chunk_goes_aside(s, class))
        return;
    struct sched_flight *step = batch->spare[batch->spare_count - 1];
    begin_step(step, s->config.mini_batches, true);
    step->class = class;
    plan_prompts(s, group, step, sched_chunk_aside_rows(s, class, group));
    step->late_run = step->run_count;
    s->stats.rows_of[class] += step->row_count;
    if (step->row_count > 0)
        emit_step(s, batch, step);
}

// Emits one step of a mini-batch. Returns false if there is nothing to do. idle: no step is in flight, and no mini-batch has one for the
// class that leads: then class batch may have one, wherever the others run.
static bool plan_step(struct sched *s, uint32_t mini_batch, bool idle)
{
    struct sched_batch *batch = &s->batches.of[mini_batch];
    enum sched_class class = sched_leading_class(s);
    bool others = class == SCHED_CLASS_INTERACTIVE && sched_batch_size(batch, SCHED_CLASS_BATCH) > 0;
    // Class batch has a step of its own only if that delays no interactive row.
    bool may_lead = others && (idle || !runs_elsewhere(s, mini_batch, class));
    if (batch->spare_count == 0 || s->outbox.count == s->outbox.capacity)
        return false;
    if (sched_batch_size(batch, class) == 0 && may_lead)
        class = SCHED_CLASS_BATCH;
    if (sched_batch_size(batch, class) == 0) {
        if (others)
            sched_batch_count_follow(s, mini_batch, SCHED_CLASS_BATCH);
        return false;
    }
    uint8_t drafts[TUNE_DRAFT_SEQUENCES_MAX];
    if (!sched_draft_plan(s, mini_batch, class, drafts))
        return false;
    struct sched_flight *step = batch->spare[batch->spare_count - 1];
    begin_step(step, mini_batch, false);
    plan_own(s, &batch->of[class], step, class, drafts);
    if (class == SCHED_CLASS_INTERACTIVE && step->row_count == 0 && may_lead) {
        memset(drafts, 0, sizeof(drafts));
        plan_own(s, &batch->of[SCHED_CLASS_BATCH], step, SCHED_CLASS_BATCH, drafts);
    } else if (others && class == SCHED_CLASS_INTERACTIVE && step->row_count > 0) {
        plan_late(s, batch, step, SCHED_CLASS_BATCH);
    }
    if (step->row_count == 0)
        return false;
    emit_step(s, batch, step);
    return true;
}

// --- all steps of a tick --------------------------------------------------------------------------------------------

// Returns whether sequences lack pages because another is about to begin with these: pages of a sequence that has ended, or those that a
// sequence whose first pages are given back cannot write again. All interactive sequences may wait for those, in several mini-batches,
// while the other one is of class batch: then it has to go on.
static bool pages_are_pinned(const struct sched *s)
{
    bool lacking = false;
    for (uint32_t i = 0; i < s->config.max_places; i++)
        lacking = lacking || s->places.of[i].starved > 0;
    for (uint32_t slot = 0; lacking && slot < s->config.max_sequences + s->config.max_kept; slot++) {
        const struct sched_seq *seq = &s->seqs[slot];
        if (seq->pins > 0 && (seq->starved || seq->state == SCHED_SEQ_DRAINING))
            return true;
    }
    return false;
}

void sched_plan(struct sched *s)
{
    if (!s->s_part.up || !sched_batch_count_settled(s))
        return;
    uint32_t count = s->batches.in_use, in_flight = 0;
    // One step each in turn, so that none fills the s-part's queue before the others.
    for (uint32_t ahead = 0; ahead < s->config.plan_ahead; ahead++) {
        for (uint32_t i = 0; i < count; i++) {
            uint32_t m = (s->batches.turn + i) % count;
            if (s->batches.of[m].in_flight_count <= ahead)
                plan_step(s, m, false);
        }
        plan_aside(s, ahead);
    }
    for (uint32_t m = 0; m < sched_batch_count_all(s); m++)
        in_flight += s->batches.of[m].in_flight_count;
    for (uint32_t m = 0; m < count && in_flight == 0 && pages_are_pinned(s); m++)
        in_flight += plan_step(s, m, true);
    s->batches.turn = (s->batches.turn + 1) % count;
}
