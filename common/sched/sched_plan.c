/* sched_plan.c: the rows of one step.
 *
 * First one row for every sequence of the mini-batch that decodes, then prefill into the rows that are left: oldest
 * prompt first, several prompts if they fit, so that decode rows + chunk is a multiple of the s-part's tile (SARATHI).
 * The chosen chunk keeps the step near its target: with base 8 ms, 50 us a row, 24 decode rows and a target of 20 ms
 * there is room for (20,000 - 8,000) / 50 - 24 = 216 prefill rows: 24 + 216 = 240 is a multiple of 16 already. Where the
 * decode rows alone fill the target, prefill takes as long again: prompts that wait for crumbs cost more than they save.
 */
#include "common/sched/sched_state.h"

enum { STRETCH = 2 }; // of the time of a step's decode rows alone, that a step may take whatever the target

uint32_t chunk_cap(const struct sched *s)
{
    uint32_t cap = s->config.chunk_tokens != 0 ? s->config.chunk_tokens : s->config.chunk_max_tokens;
    return MIN(cap, s->rows_max);
}

/* How many prefill rows this step may have. */
static uint32_t chunk_rows(const struct sched *s, uint32_t decode_rows)
{
    uint32_t cap = chunk_cap(s);
    uint32_t tile = s->config.tile_rows;
    uint32_t room = s->rows_max - decode_rows;
    uint32_t chunk = cap;
    if (s->config.chunk_tokens == 0) {
        uint32_t decoding = 0;
        for (uint32_t m = 0; m < s->config.mini_batches; m++)
            decoding += s->mini_batches[m].member_count;
        if (decoding > 0 && s->model.rows_seen > 0) {
            double decode_us = s->model.base_us + decode_rows * s->model.row_us;
            double target_us = MAX(s->config.step_target_us, STRETCH * decode_us);
            // Never more than twice what was tried: the line may be wrong out there, and the next step knows better.
            double rows = MIN((target_us - s->model.base_us) / s->model.row_us, 2 * s->model.rows_seen);
            chunk = (uint32_t)MAX(MIN(rows - decode_rows, cap), tile);
        } else if (decoding > 0) {
            chunk = MIN(cap, 4 * tile); // nothing measured yet
        }
    }
    chunk = MIN(chunk, room);
    uint32_t aligned = (decode_rows + chunk) / tile * tile;
    if (aligned > decode_rows)
        return aligned - decode_rows;
    return chunk; // less than what fills the tile, but never nothing: prefill must get on
}

static struct sched_run *add_run(struct step *step, const struct seq *q, uint32_t slot, uint32_t count)
{
    struct sched_run *run = &step->runs[step->run_count];
    step->refs[step->run_count++] = (struct step_ref){.slot = slot, .epoch = q->epoch};
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

static bool blocked(const struct sched *s, const struct seq *q)
{
    return q->fenced || s->places[q->place].suspect_until_us > s->now_us;
}

static void plan_decodes(struct sched *s, struct mini_batch *b, struct step *step)
{
    uint32_t count = b->member_count;
    uint32_t at = count > s->rows_max ? b->cursor % count : 0;
    for (uint32_t i = 0; i < count && step->row_count < s->rows_max; i++, at = at + 1 == count ? 0 : at + 1) {
        uint32_t slot = b->members[at];
        struct seq *q = &s->seqs[slot];
        if (at + 8 < count)
            __builtin_prefetch(&s->seqs[b->members[at + 8]], 1);
        if (q->known + q->samples >= q->limit || blocked(s, q))
            continue;
        if (q->next_pos >= (uint64_t)q->pages * s->config.page_tokens) {
            bool grown = place_grow(s, q);
            place_starve(s, q, !grown);
            if (!grown)
                continue;
        }
        struct sched_run *run = add_run(step, q, slot, 1);
        run->sample = true;
        run->use_last_sampled = q->samples > 0;
        q->open = false;
        q->next_pos++;
        q->samples++;
        q->in_flight++;
        seq_set_load(s, q, q->next_pos);
    }
    b->cursor = at;
}

static void plan_prefill(struct sched *s, struct mini_batch *b, struct step *step, uint32_t slot, uint32_t room)
{
    struct seq *q = &s->seqs[slot];
    const struct seq_cold *c = &s->cold[slot];
    uint32_t count = MIN(q->target - q->next_pos, room);
    bool score = q->scoring && q->next_pos >= c->scored && q->next_pos < c->prompt;
    if (score) // rows of a run are scored all or none
        count = MIN(count, c->prompt - q->next_pos);
    else if (q->scoring && q->next_pos < c->scored)
        count = MIN(count, c->scored - q->next_pos);
    struct sched_run *run = add_run(step, q, slot, count);
    run->score = score;
    run->sample = q->next_pos + count == q->target && q->known < q->limit;
    q->open = false;
    q->next_pos += count;
    q->samples += run->sample;
    q->in_flight++;
    b->prefill_rows -= count;
    step->prefill_rows += count;
    if (q->next_pos == q->target)
        prefill_done(s, slot);
}

static void emit(struct sched *s, struct mini_batch *b, struct step *step)
{
    b->spare_count--;
    b->in_flight[b->in_flight_count++] = step;
    step->id = s->next_step++;
    s->stats.steps++;
    load_stepped(s, step->mini_batch);
    s->stats.prefill_rows += step->prefill_rows;
    s->stats.decode_rows += step->row_count - step->prefill_rows;
    s->actions[s->action_count++] = (struct sched_action){
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

bool plan_step(struct sched *s, uint32_t mini_batch)
{
    struct mini_batch *b = &s->mini_batches[mini_batch];
    if (b->spare_count == 0 || s->action_count == s->action_capacity || b->member_count + b->prefill_count == 0)
        return false;
    struct step *step = b->spare[b->spare_count - 1];
    step->mini_batch = mini_batch;
    step->run_count = step->row_count = step->prefill_rows = 0;
    plan_decodes(s, b, step);
    uint32_t room = b->prefill_count > 0 ? chunk_rows(s, step->row_count) : 0;
    uint32_t next;
    for (uint32_t slot = b->prefill_head; slot != NONE && step->prefill_rows < room; slot = next) {
        next = s->cold[slot].prefill_next;
        if (!blocked(s, &s->seqs[slot]))
            plan_prefill(s, b, step, slot, room - step->prefill_rows);
    }
    if (step->row_count == 0)
        return false;
    emit(s, b, step);
    return true;
}
