// sched_learn.c: what the answer to a step teaches the models, and how well they had predicted it.
#include "common/sched/sched_learn.h"
#include "common/sched/sched_state.h"

// Predicts a step from what its places read, before the models learn from it. 0: nothing is known yet.
static double step_predict_us(const struct sched *s, const struct sched_flight *step, const struct sched_step_done *done,
                              uint32_t sampled)
{
    struct sched_round round = sched_time_round(s, step->row_count, sampled);
    if (s->time.layers.rows_seen == 0)
        return 0;
    for (uint32_t i = 0; i < done->place_count; i++) {
        if (done->places[i].place >= s->config.max_places)
            continue;
        const struct sched_place *place = &s->places.of[done->places[i].place];
        sched_round_add(&round, sched_place_is_here(place), sched_speed_attend_us(place, done->places[i].tokens_read),
                        place->speed.link_step_us);
    }
    return sched_round_us(&round, s->batches.in_use);
}

// Returns the time of a step's attention on the s-part's cores: what its workers measured, and what the local pool would take alone. The
// pool attends while the workers do, with what they leave of the cores, so what it measures then is mostly their work.
static double attended_here_us(const struct sched *s, const struct sched_step_done *done, bool *workers)
{
    double us = 0;
    *workers = false;
    for (uint32_t i = 0; i < done->place_count; i++) {
        const struct sched_place_time *time = &done->places[i];
        if (time->place >= s->config.max_places)
            continue;
        const struct sched_place *place = &s->places.of[time->place];
        if (sched_place_is_here(place))
            us += place->kind == SCHED_KV_WORKER && time->attend_us > 0 ? time->attend_us
                                                                        : sched_speed_attend_us(place, time->tokens_read);
        *workers = *workers || (place->shares_cores && place->kind == SCHED_KV_WORKER && time->tokens_read > 0);
    }
    return us;
}

// Learns the round trips of a step to workers that say how long they attended. A long prompt's K and V also cross the link, which rows of
// other steps do not.
static void learn_links(struct sched *s, const struct sched_flight *step, const struct sched_step_done *done)
{
    double links_us = 0;
    for (uint32_t i = 0; i < done->place_count; i++) {
        const struct sched_place_time *time = &done->places[i];
        if (time->place < s->config.max_places && !sched_place_is_here(&s->places.of[time->place]) && time->attend_us > 0)
            links_us = MAX(links_us, (double)time->r_part_us - time->attend_us);
    }
    if (links_us > 0 && step->prefill_rows * TUNE_MODEL_FEW_PARTS <= step->row_count)
        sched_curve_learn(&s->time.links, step->row_count, links_us);
}

void sched_learn_step(struct sched *s, const struct sched_flight *step, const struct sched_step_done *done)
{
    uint32_t sampled = 0;
    for (uint32_t i = 0; i < done->place_count; i++) {
        if (done->places[i].place < s->config.max_places)
            s->places.of[done->places[i].place].speed.step_pairs = 0;
    }
    for (uint32_t i = 0; i < step->run_count; i++) {
        const struct sched_run *run = &step->runs[i];
        sampled += run->sample ? 1u + run->drafts : 0;
        if (run->count > 1)
            s->places.of[run->place].speed.step_pairs += (uint64_t)run->count * (run->position - run->first) +
                                                         (uint64_t)run->count * (run->count + 1) / 2;
        for (uint32_t k = 0; run->count > 1 && k < run->extent_count; k++)
            s->places.of[run->extents[k].place].speed.step_pairs += (uint64_t)run->count * sched_speed_extent_tokens(run, k);
    }
    // A row and its drafts attend to the same context: their time is neither that of decode rows nor that of a prompt.
    bool drafted = step->draft_rows > 0;
    double predicted_us = drafted ? 0 : step_predict_us(s, step, done, sampled);
    if (predicted_us > 0 && done->total_us > 0)
        sched_time_judge(&s->time.error, predicted_us, done->total_us);
    if (done->total_us > 0 && !drafted)
        sched_chunk_learn(s, step, done->total_us);
    if (done->total_us > 0)
        sched_curve_learn(&s->time.whole, step->row_count, done->total_us);
    if (done->s_part_us > 0) {
        double head_us = sched_time_s_part_us(s, step->row_count, sampled) - sched_curve_us(&s->time.layers, step->row_count);
        sched_curve_learn(&s->time.layers, step->row_count, MAX(done->s_part_us - head_us, done->s_part_us / 8.0));
    }
    sched_time_learn_stages(s, done, step->row_count, sampled);
    s->time.stream_us = done->stream_us;
    if (!step->aside)
        sched_draft_learn(s, step, done);
    if (drafted)
        return;
    learn_links(s, step, done);
    bool workers_here;
    double here_us = attended_here_us(s, done, &workers_here);
    for (uint32_t i = 0; i < done->place_count; i++) {
        uint32_t index = done->places[i].place;
        if (index >= s->config.max_places)
            continue;
        const struct sched_place *place = &s->places.of[index];
        // Beside workers on its cores the local pool may be slower than alone, never faster.
        if (place->kind == SCHED_LOCAL_POOL && workers_here &&
            done->places[i].attend_us >= sched_speed_attend_us(place, done->places[i].tokens_read))
            continue;
        // While prefill runs elsewhere on the same cores, the time of decode rows says nothing.
        if (step->prefill_rows == 0 || place->speed.step_pairs > 0 || !(sched_place_is_here(place)))
            sched_speed_learn(s, &done->places[i], here_us);
    }
}
