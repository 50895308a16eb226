/* sched_answer.c: steps that are answered, or void. */
#include "common/sched/sched_state.h"

/* Takes a step out of its mini-batch's flight; NULL: unknown, or void already. */
struct step *step_find(struct sched *s, uint64_t id)
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
void step_void(struct sched *s, struct step *step)
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

void step_done(struct sched *s, const struct sched_step_done *done)
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
