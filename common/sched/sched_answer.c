// sched_answer.c: steps that are answered, or void.
#include "common/sched/sched_answer.h"
#include "common/sched/sched_learn.h"
#include "common/sched/sched_sequence.h"
#include "common/sched/sched_state.h"

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

void sched_answer_void(struct sched *s, struct sched_flight *step)
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

void sched_answer_done(struct sched *s, const struct sched_step_done *done)
{
    for (uint32_t i = 0; i < done->result_count; i++)
        done->results[i].taken = false;
    struct sched_flight *step = sched_batch_find_flight(s, done->step);
    if (step == NULL)
        return;
    struct sched_batch *batch = &s->batches.of[step->mini_batch];
    while (batch->in_flight[0] != step) // steps are answered in order: answers to those before it were lost
        sched_answer_void(s, batch->in_flight[0]);
    if (done->result_count != step->run_count) {
        sched_answer_void(s, step);
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
    sched_learn_step(s, step, done);
    sched_batch_retire_flight(s, step);
}
