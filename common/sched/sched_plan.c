// sched_plan.c: the rows of one step.
//
// First comes one row for every sequence of the mini-batch that decodes, with its drafts (sched_draft.c); then prefill, in as many rows
// as sched_chunk.c allows: the oldest prompt first, several prompts if they fit.
#include "common/sched/sched_plan.h"
#include "common/sched/sched_sequence.h"
#include "common/sched/sched_state.h"

static struct sched_run *add_run(struct sched_flight *step, const struct sched_seq *seq, uint32_t slot, uint32_t count)
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
    return run;
}

static void plan_decodes(struct sched *s, struct sched_batch *batch, struct sched_flight *step, const uint8_t *drafts)
{
    uint32_t count = batch->member_count;
    uint32_t at = count > s->s_part.rows_max ? batch->cursor % count : 0;
    for (uint32_t i = 0; i < count && step->row_count < s->s_part.rows_max; i++, at = at + 1 == count ? 0 : at + 1) {
        uint32_t slot = batch->members[at];
        struct sched_seq *seq = &s->seqs[slot];
        if (at + 8 < count)
            __builtin_prefetch(&s->seqs[batch->members[at + 8]], 1);
        if (seq->known + seq->samples >= seq->limit || sched_place_blocks(s, seq))
            continue;
        if (seq->next_pos >= (uint64_t)seq->pages * s->config.page_tokens) {
            bool grown = sched_prefix_grow(s, seq);
            sched_place_starve(s, seq, !grown);
            if (!grown)
                continue;
        }
        uint32_t guessed = at < TUNE_DRAFT_SEQUENCES_MAX ? sched_draft_fit(s, seq, drafts[at]) : 0;
        struct sched_run *run = add_run(step, seq, slot, 1u + guessed);
        run->sample = true;
        run->drafts = (uint8_t)guessed;
        step->draft_rows += guessed;
        run->use_last_sampled = seq->samples > 0;
        seq->open = false;
        seq->next_pos += 1u + guessed;
        seq->samples += (uint16_t)(1u + guessed);
        seq->in_flight++;
        sched_place_set_load(s, seq, seq->next_pos);
    }
    batch->cursor = at;
}

// Whether it has all the shared pages that it will find, so that the rest is its to compute.
static bool has_gathered(struct sched *s, uint32_t slot)
{
    uint32_t unpin = NONE;
    bool gathered = !s->seqs[slot].gathering || sched_prefix_gather(s, slot, &unpin);
    if (unpin != NONE)
        sched_sequence_unpin(s, unpin);
    return gathered;
}

static void plan_prefill(struct sched *s, struct sched_batch *batch, struct sched_flight *step, uint32_t slot, uint32_t room)
{
    struct sched_seq *seq = &s->seqs[slot];
    const struct sched_seq_cold *cold = &s->cold[slot];
    uint32_t count = MIN(seq->target - seq->next_pos, room);
    bool score = seq->scoring && seq->next_pos >= cold->scored && seq->next_pos < cold->prompt;
    if (score) // all rows of a run are scored, or none
        count = MIN(count, cold->prompt - seq->next_pos);
    else if (seq->scoring && seq->next_pos < cold->scored)
        count = MIN(count, cold->scored - seq->next_pos);
    struct sched_run *run = add_run(step, seq, slot, count);
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
    batch->prefill_rows -= count;
    step->prefill_rows += count;
    if (seq->next_pos == seq->target)
        sched_batch_prefill_done(s, slot);
}

static void emit(struct sched *s, struct sched_batch *batch, struct sched_flight *step)
{
    batch->spare_count--;
    step->queued = batch->in_flight_count > 0;
    step->emitted_us = s->now_us;
    batch->in_flight[batch->in_flight_count++] = step;
    step->id = s->batches.next_step++;
    s->stats.steps++;
    sched_load_stepped(s, step->mini_batch);
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
                .runs = step->runs,
            },
    };
}

bool sched_plan_step(struct sched *s, uint32_t mini_batch)
{
    struct sched_batch *batch = &s->batches.of[mini_batch];
    if (batch->spare_count == 0 || s->outbox.count == s->outbox.capacity || sched_batch_size(batch) == 0)
        return false;
    uint8_t drafts[TUNE_DRAFT_SEQUENCES_MAX];
    if (!sched_draft_plan(s, mini_batch, drafts))
        return false;
    struct sched_flight *step = batch->spare[batch->spare_count - 1];
    step->mini_batch = mini_batch;
    step->run_count = step->row_count = step->prefill_rows = step->draft_rows = 0;
    plan_decodes(s, batch, step, drafts);
    uint32_t room = batch->prefill_count > 0 ? sched_chunk_rows(s, batch, step->row_count) : 0;
    uint32_t next;
    for (uint32_t slot = batch->prefill_head; slot != NONE && step->prefill_rows < room; slot = next) {
        next = s->cold[slot].batch.next;
        if (!sched_place_blocks(s, &s->seqs[slot]) && has_gathered(s, slot))
            plan_prefill(s, batch, step, slot, room - step->prefill_rows);
    }
    if (step->row_count == 0)
        return false;
    emit(s, batch, step);
    return true;
}
