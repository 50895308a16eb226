// mesh.c: steps on their way through the S-part and the workers, and how long they take (the picture in sim.h).
#include <math.h>
#include <string.h>

#include "common/base/random.h"
#include "common/sched/stage.h"
#include "common/sim/state.h"

// --- chance -----------------------------------------------------------------------------------------------------------

static double uniform(struct sim *sim) // in (0, 1]
{
    return (double)(random_next(&sim->rng) >> 11) * 0x1p-53 + 0x1p-54;
}

static double lognormal(struct sim *sim, double sigma) // of mean 1
{
    if (sigma == 0)
        return 1;
    double normal = sqrt(-2 * log(uniform(sim))) * cos(6.283185307179586 * uniform(sim));
    return exp(sigma * normal - sigma * sigma / 2);
}

// --- a step -----------------------------------------------------------------------------------------------------------

// Adds what runs to the sums over time, up to now; call it before that changes.
static void note_time(struct sim *sim)
{
    uint64_t rows = 0, load = 0;

    for (uint32_t m = 0; m < sim->config->sched.mini_batches + sim->config->sched.aside; m++) {
        rows += sim->batches[m].decode_rows;
        load += sim->batches[m].load;
    }
    sim->batch_time += (double)rows * (sim->now_us - sim->noted_us);
    sim->noted_us = sim->now_us;
    sim->out->peak_load = MAX(sim->out->peak_load, load);
}

// context: tokens that the rows read there, each row's counted.
static void add_work(struct cost_work *work, uint32_t rows, bool decodes, uint64_t context)
{
    work->rows += rows;
    *(decodes ? &work->load : &work->prefill_pairs) += context;
}

// Computes each place's work for the step, and how long a layer of it takes.
static void weigh_runs(struct sim *sim, struct flight *f)
{
    const struct sim_config *config = sim->config;
    uint64_t away_rows = 0;

    for (; sim->next_speed < config->speed_count && config->speeds[sim->next_speed].at_us <= sim->now_us; sim->next_speed++)
        sim->speeds[config->speeds[sim->next_speed].place] = config->speeds[sim->next_speed].speed;
    memset(f->work, 0, config->place_count * sizeof *f->work);
    memset(f->away_us, 0, config->place_count * sizeof *f->away_us);
    memset(f->r_part_us, 0, config->place_count * sizeof *f->r_part_us);
    for (uint32_t i = 0; i < f->action.run_count; i++) {
        const struct sched_run *run = &f->action.runs[i];
        bool decodes = run->position >= config->requests[run->sequence - 1].prompt_tokens && run->count == 1;
        uint64_t first = run->position - run->first, last = first + run->count;
        f->sampled += run->sample;
        add_work(&f->work[run->place], run->count, decodes, decodes ? last : (first + 1 + last) * run->count / 2);
        for (uint32_t k = 0; k < run->extent_count; k++) {
            uint32_t end = k + 1 < run->extent_count ? run->extents[k + 1].first : run->first;
            add_work(&f->work[run->extents[k].place], run->count, decodes, (uint64_t)run->count * (end - run->extents[k].first));
        }
        f->report.load += decodes ? run->position + 1 : 0;
        f->report.decode_rows += decodes;
    }
    for (uint32_t p = 0; p < config->place_count; p++) {
        const struct sim_place *place = &config->places[p];
        if (f->work[p].rows == 0)
            continue;
        double us = cost_attend_us(&place->cost, &f->work[p]);
        f->stretch[p] = lognormal(sim, config->noise_sigma) / sim->speeds[p];
        double work_us = (us - place->cost.link_us) * f->stretch[p];
        f->r_part_us[p] = work_us * sim->layers;
        f->report.largest_load = MAX(f->report.largest_load, f->work[p].load);
        if (place->local || place->shares_cores) {
            f->here_us += work_us;
            f->here_link_us = MAX(f->here_link_us, place->cost.link_us);
        } else {
            f->away = true;
            away_rows += f->work[p].rows;
            f->away_us[p] = work_us;
            f->link_us = MAX(f->link_us, place->cost.link_us);
            f->away_sum_us += work_us;
        }
    }
    f->here_us += f->here_link_us; // calls are out together: their work adds up, the longest link counts once
    f->link_bytes_us = (double)away_rows * config->link_row_us;
    f->link_us += f->link_bytes_us;
}

void sim_mesh_take_step(struct sim *sim, const struct sched_step_action *action)
{
    struct batch *batch = &sim->batches[action->mini_batch];
    struct flight *f = sim->flights;

    while (f->used)
        f++;
    *f = (struct flight){
        .action = *action, .work = f->work, .stretch = f->stretch, .away_us = f->away_us, .r_part_us = f->r_part_us, .used = true};
    f->report = (struct sim_step){.step = action->step, .mini_batch = action->mini_batch, .rows = action->row_count};
    batch->queue[batch->queue_count++] = f;
    if (batch->state == BATCH_IDLE) {
        batch->state = BATCH_READY;
        batch->since_us = batch->came_us = sim->now_us;
    }
}

static void end_step(struct sim *sim, struct batch *batch)
{
    struct flight *f = batch->queue[0];
    struct sched_stats stats;

    note_time(sim);
    memmove(batch->queue, batch->queue + 1, --batch->queue_count * sizeof batch->queue[0]);
    f->report.end_us = sim->now_us;
    batch->decode_rows = batch->queue_count ? f->report.decode_rows : 0;
    batch->load = batch->queue_count ? f->report.load : 0;
    histogram_add(&sim->times[STEP], f->report.end_us - f->report.begin_us);
    sim->workers_us += f->away_sum_us * sim->layers;
    sim->out->steps++;
    sched_get_stats(sim->core, &stats);
    sim->out->mini_batches = MAX(sim->out->mini_batches, stats.mini_batches);
    if (sim->config->on_step) {
        f->report.r_part_us = f->r_part_us;
        f->report.work = f->work;
        f->report.load_limit = f->action.aside ? UINT64_MAX : sched_load_limit(sim->core, f->report.mini_batch);
        sim->config->on_step(sim->config->user, &f->report);
    }
    if (!f->action.aside)
        sim->aside_used_us = 0;
    f->answer_us = sim->now_us + sim->config->reply_us;
    sim->answers[sim->answer_count++] = f;
    batch->state = batch->queue_count ? BATCH_READY : BATCH_IDLE;
    batch->since_us = batch->came_us = sim->now_us;
    batch->stage = batch->segment = 0;
    batch->waited = false;
    sim->in_pipeline--;
    sim->left_us = sim->now_us;
}

// --- the stages of the S-part, and the workers -----------------------------------------------------------------------

void sim_mesh_init(struct sim *sim)
{
    const struct sim_config *config = sim->config;

    sim->stage_count = MAX(config->sched.stages, 1u);
    for (uint32_t i = 0; i < sim->stage_count; i++) {
        sim->stages[i].cost = sim->stage_count > 1 ? &config->stages[i] : &config->s_part;
        sim->layers += sim->stages[i].cost->layers;
    }
}

uint32_t sim_mesh_stage_times(const struct sim *sim, struct flight *f)
{
    double us = 0;

    for (uint32_t i = 0; i < sim->stage_count; i++) {
        bool last = i + 1 == sim->stage_count;
        double own_us = cost_s_part_step_us(sim->stages[i].cost, f->action.row_count, last ? f->sampled : 0);
        f->stage_us[i] = (uint32_t)own_us;
        us += own_us;
    }
    return (uint32_t)us;
}

// Counts the time that a stage was idle before this micro-batch.
static void count_gap(struct sim *sim, struct stage *stage, const struct batch *batch, bool prefill)
{
    uint64_t us;

    if (stage->began) { // times are rounded, not durations: so sums are exact
        const struct sched_gap gap = {.begin_us = (uint64_t)stage->since_us,
                                      .end_us = (uint64_t)sim->now_us,
                                      .entered_us = (uint64_t)batch->entered_us,
                                      .left_us = sim->in_pipeline > 1 ? UINT64_MAX : (uint64_t)sim->left_us,
                                      .prefill_before = stage->prefill,
                                      .prefill_after = prefill,
                                      .waited = batch->waited};
        enum sched_bubble kind = sched_bubble_of(&gap, &us);
        sim->out->bubble_s[kind] += (double)us / 1e6;
        sim->out->idle_s += (sim->now_us - stage->since_us) / 1e6;
    }
    stage->began = true;
    stage->prefill = prefill;
}

static void batch_enter(struct sim *sim, struct batch *batch)
{
    struct flight *f = batch->queue[0];

    weigh_runs(sim, f);
    note_time(sim);
    batch->decode_rows = f->report.decode_rows;
    batch->load = f->report.load;
    f->report.begin_us = sim->now_us;
    batch->entered_us = batch->since_us;
    sim->in_pipeline++;
}

// One s-part serves who has been ready longest, a stage of a pipeline who came first (engine_make_ready()).
static double order_of(const struct sim *sim, const struct batch *batch)
{
    return sim->stage_count > 1 ? batch->came_us : batch->since_us;
}

// Returns whether steps that go aside have time left, by the clock alone (services/s-part/engine/aside.c).
static bool aside_has_time(const struct sim *sim)
{
    const struct batch *others = &sim->batches[0];
    return others->queue_count == 0 ||
           sched_aside_has_time(sim->aside_used_us, sim->aside_turn_us, others->queue[0]->action.aside_us);
}

// Returns whether a mini-batch that is READY has to wait, because others have the time.
static bool waits_aside(const struct sim *sim, const struct batch *batch)
{
    const struct batch *aside = &sim->batches[sim->config->sched.mini_batches];
    if (!sim->config->sched.aside)
        return false;
    if (batch == aside)
        return !aside_has_time(sim);
    return batch->segment == 0 && aside->state == BATCH_READY && aside_has_time(sim);
}

// A segment of a step that goes aside, or its attention, has taken that long.
static void note_aside(struct sim *sim, struct flight *f, double us, bool attends)
{
    f->own_us += us;
    if (!f->action.aside)
        return;
    sim->aside_used_us += us;
    sim->aside_turn_us = attends ? sim->aside_turn_us + us : us;
}

static void serve_stage(struct sim *sim, uint32_t index)
{
    struct stage *stage = &sim->stages[index];
    const struct cost_s_part *cost = stage->cost;
    struct batch *best = NULL;

    if (stage->served != NULL)
        return;
    for (uint32_t m = 0; m < sim->config->sched.mini_batches + sim->config->sched.aside; m++) {
        struct batch *batch = &sim->batches[m];
        if (batch->state == BATCH_READY && batch->stage == index && !waits_aside(sim, batch) &&
            (best == NULL || order_of(sim, batch) < order_of(sim, best)))
            best = batch;
    }
    if (best == NULL)
        return;
    struct flight *f = best->queue[0];
    if (index == 0 && best->segment == 0)
        batch_enter(sim, best);
    double us = cost_segment_us(cost, best->segment, f->action.row_count);
    if (best->segment == 0)
        us += cost->step_us;
    if (best->segment == cost->layers && index + 1 == sim->stage_count && f->sampled)
        us += cost_curve_at(&cost->head, f->sampled);
    count_gap(sim, stage, best, f->report.decode_rows < f->action.row_count);
    best->state = BATCH_SERVED;
    stage->served = best;
    stage->attends = false;
    stage->served_until_us = sim->now_us + us;
    sim->s_part_us += us;
    note_aside(sim, f, us, false);
}

void sim_mesh_serve(struct sim *sim)
{
    for (uint32_t i = 0; i < sim->stage_count; i++)
        serve_stage(sim, i);
}

// Rows reach the workers at come_us, and each takes them up when it has done what came before. Returns when the last one is done.
static double attended_us(struct sim *sim, const struct flight *f, double come_us)
{
    double last_us = come_us;

    for (uint32_t p = 0; p < sim->config->place_count; p++) {
        if (f->away_us[p] == 0)
            continue;
        sim->free_us[p] = MAX(sim->free_us[p], come_us) + f->away_us[p];
        last_us = MAX(last_us, sim->free_us[p]);
    }
    return last_us;
}

// Sends a micro-batch that a stage is done with on to the next one. False: it was the last one.
static bool batch_forward(struct sim *sim, struct batch *batch)
{
    if (batch->stage + 1 == sim->stage_count)
        return false;
    batch->stage++;
    batch->segment = 0;
    batch->waited = false;
    batch->since_us = sim->now_us + sim->config->hop_us + batch->queue[0]->action.row_count * sim->config->hop_row_us;
    batch->came_us = batch->since_us;
    return true;
}

// Ends what a stage has just done, a segment or attention.
static void stage_served(struct sim *sim, struct stage *stage)
{
    struct batch *batch = stage->served;
    struct flight *f = batch->queue[0];

    stage->served = NULL;
    stage->since_us = sim->now_us;
    if (!stage->attends && batch->segment == stage->cost->layers) {
        if (!batch_forward(sim, batch)) {
            end_step(sim, batch);
            return;
        }
    } else if (!stage->attends) {
        batch->segment++;
        batch->since_us = sim->now_us;
        batch->waited = f->away;
        if (f->away) { // half of the link's time each way
            const double begin_us = MAX(sim->now_us, stage->link_free_us);
            stage->link_free_us = begin_us + f->link_bytes_us;
            f->link_waits_us += begin_us - sim->now_us;
            batch->since_us = attended_us(sim, f, begin_us + f->link_us / 2) + f->link_us / 2;
        }
        if (f->here_us > 0) {
            stage->served = batch;
            stage->attends = true;
            stage->served_until_us = sim->now_us + f->here_us;
            note_aside(sim, f, f->here_us, true);
            return;
        }
    }
    batch->state = batch->since_us > sim->now_us ? BATCH_AWAY : BATCH_READY;
    batch->since_us = MAX(batch->since_us, sim->now_us);
}

double sim_mesh_next_us(const struct sim *sim)
{
    double us = INFINITY;

    for (uint32_t i = 0; i < sim->stage_count; i++)
        us = sim->stages[i].served ? MIN(us, sim->stages[i].served_until_us) : us;
    for (uint32_t m = 0; m < sim->config->sched.mini_batches + sim->config->sched.aside; m++)
        if (sim->batches[m].state == BATCH_AWAY)
            us = MIN(us, sim->batches[m].since_us);
    return us;
}

void sim_mesh_advance(struct sim *sim)
{
    for (uint32_t i = 0; i < sim->stage_count; i++)
        if (sim->stages[i].served && sim->stages[i].served_until_us <= sim->now_us)
            stage_served(sim, &sim->stages[i]);
    for (uint32_t m = 0; m < sim->config->sched.mini_batches + sim->config->sched.aside; m++)
        if (sim->batches[m].state == BATCH_AWAY && sim->batches[m].since_us <= sim->now_us)
            sim->batches[m].state = BATCH_READY;
}
