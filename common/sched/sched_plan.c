// sched_plan.c: the rows of one step.
//
// First comes one row for every sequence of the mini-batch that decodes, with its drafts (sched_draft.c); then prefill, in as many rows
// as sched_chunk.c allows: the oldest prompt first, several prompts if they fit.
#include "common/sched/sched_plan.h"
#include "common/sched/sched_sequence.h"
#include "common/sched/sched_state.h"

static struct sched_run *add_run(struct sched_flight *step, const struct sched_seq *q, uint32_t slot, uint32_t count)
{
    struct sched_run *run = &step->runs[step->run_count];
    step->refs[step->run_count++] = (struct sched_flight_run){.slot = slot, .epoch = q->epoch, .source = NONE};
    step->row_count += count;
    *run = (struct sched_run){
        .sequence = q->id,
        .position = q->next_pos,
        .count = count,
        .place = q->place,
        .open = q->open,
    };
    return run;
}

static void plan_decodes(struct sched *s, struct sched_batch *b, struct sched_flight *step, const uint8_t *drafts)
{
    uint32_t count = b->member_count;
    uint32_t at = count > s->s_part.rows_max ? b->cursor % count : 0;
    for (uint32_t i = 0; i < count && step->row_count < s->s_part.rows_max; i++, at = at + 1 == count ? 0 : at + 1) {
        uint32_t slot = b->members[at];
        struct sched_seq *q = &s->seqs[slot];
        if (at + 8 < count)
            __builtin_prefetch(&s->seqs[b->members[at + 8]], 1);
        if (q->known + q->samples >= q->limit || sched_place_blocks(s, q))
            continue;
        if (q->next_pos >= (uint64_t)q->pages * s->config.page_tokens) {
            bool grown = sched_prefix_grow(s, q);
            sched_place_starve(s, q, !grown);
            if (!grown)
                continue;
        }
        uint32_t guessed = at < TUNE_DRAFT_SEQUENCES_MAX ? sched_draft_fit(s, q, drafts[at]) : 0;
        struct sched_run *run = add_run(step, q, slot, 1u + guessed);
        run->sample = true;
        run->drafts = (uint8_t)guessed;
        step->draft_rows += guessed;
        run->use_last_sampled = q->samples > 0;
        q->open = false;
        q->next_pos += 1u + guessed;
        q->samples += (uint16_t)(1u + guessed);
        q->in_flight++;
        sched_place_set_load(s, q, q->next_pos);
    }
    b->cursor = at;
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

static void plan_prefill(struct sched *s, struct sched_batch *b, struct sched_flight *step, uint32_t slot, uint32_t room)
{
    struct sched_seq *q = &s->seqs[slot];
    const struct sched_seq_cold *c = &s->cold[slot];
    uint32_t count = MIN(q->target - q->next_pos, room);
    bool score = q->scoring && q->next_pos >= c->scored && q->next_pos < c->prompt;
    if (score) // all rows of a run are scored, or none
        count = MIN(count, c->prompt - q->next_pos);
    else if (q->scoring && q->next_pos < c->scored)
        count = MIN(count, c->scored - q->next_pos);
    struct sched_run *run = add_run(step, q, slot, count);
    run->score = score;
    if (q->sharing && s->cold[slot].prefix.source != NONE) {
        uint32_t source = sched_prefix_take_source(s, slot);
        step->refs[step->run_count - 1].source = source;
        run->share_from = s->seqs[source].id;
    }
    run->sample = q->next_pos + count == q->target && q->known < q->limit;
    q->open = false;
    q->next_pos += count;
    q->samples += run->sample;
    q->in_flight++;
    b->prefill_rows -= count;
    step->prefill_rows += count;
    if (q->next_pos == q->target)
        sched_batch_prefill_done(s, slot);
}

static void emit(struct sched *s, struct sched_batch *b, struct sched_flight *step)
{
    b->spare_count--;
    step->queued = b->in_flight_count > 0;
    step->emitted_us = s->now_us;
    b->in_flight[b->in_flight_count++] = step;
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
    struct sched_batch *b = &s->batches.of[mini_batch];
    if (b->spare_count == 0 || s->outbox.count == s->outbox.capacity || b->member_count + b->prefill_count == 0)
        return false;
    uint8_t drafts[TUNE_DRAFT_SEQUENCES_MAX];
    if (!sched_draft_plan(s, mini_batch, drafts))
        return false;
    struct sched_flight *step = b->spare[b->spare_count - 1];
    step->mini_batch = mini_batch;
    step->run_count = step->row_count = step->prefill_rows = step->draft_rows = 0;
    plan_decodes(s, b, step, drafts);
    uint32_t room = b->prefill_count > 0 ? sched_chunk_rows(s, b, step->row_count) : 0;
    uint32_t next;
    for (uint32_t slot = b->prefill_head; slot != NONE && step->prefill_rows < room; slot = next) {
        next = s->cold[slot].batch.next;
        if (!sched_place_blocks(s, &s->seqs[slot]) && has_gathered(s, slot))
            plan_prefill(s, b, step, slot, room - step->prefill_rows);
    }
    if (step->row_count == 0)
        return false;
    emit(s, b, step);
    return true;
}
