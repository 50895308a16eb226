// sim_mesh.c: steps on their way through the S-part and the workers, and how long they take (the picture in sim.h).
#include <math.h>
#include <string.h>

#include "common/sim/sim_state.h"

// --- chance -----------------------------------------------------------------------------------------------------------

static double uniform(struct sim *sim) // in (0, 1]
{
    uint64_t z = sim->rng += 0x9e3779b97f4a7c15u; // splitmix64
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53 + 0x1p-54;
}

static double lognormal(struct sim *sim, double sigma) // of mean 1
{
    if (sigma == 0)
        return 1;
    double normal = sqrt(-2 * log(uniform(sim))) * cos(6.283185307179586 * uniform(sim));
    return exp(sigma * normal - sigma * sigma / 2);
}

// --- a step -----------------------------------------------------------------------------------------------------------

void sim_mesh_note_time(struct sim *sim)
{
    uint64_t rows = 0, load = 0;

    for (uint32_t m = 0; m < sim->config->sched.mini_batches; m++) {
        rows += sim->batches[m].decode_rows;
        load += sim->batches[m].load;
    }
    sim->batch_time += (double)rows * (sim->now_us - sim->noted_us);
    sim->noted_us = sim->now_us;
    sim->out->peak_load = MAX(sim->out->peak_load, load);
}

// Computes each place's work for the step, and how long a layer of it takes.
static void weigh(struct sim *sim, struct flight *f)
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
        struct cost_work *work = &f->work[run->place];
        uint64_t last = run->position + run->count;
        work->rows += run->count;
        f->sampled += run->sample;
        if (run->position >= config->requests[run->sequence - 1].prompt_tokens && run->count == 1) {
            work->load += last;
            f->report.load += last;
            f->report.decode_rows++;
        } else {
            work->prefill_pairs += (run->position + 1 + last) * run->count / 2;
        }
    }
    for (uint32_t p = 0; p < config->place_count; p++) {
        const struct sim_place *place = &config->places[p];
        if (f->work[p].rows == 0)
            continue;
        double us = cost_attend_us(&place->cost, &f->work[p]);
        f->stretch[p] = lognormal(sim, config->noise_sigma) / sim->speeds[p];
        double work_us = (us - place->cost.link_us) * f->stretch[p];
        f->r_part_us[p] = work_us * config->s_part.layers;
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
    f->link_us += (double)away_rows * config->link_row_us;
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
        batch->since_us = sim->now_us;
        batch->segment = 0;
    }
}

static void end_step(struct sim *sim, struct batch *batch)
{
    struct flight *f = batch->queue[0];
    struct sched_stats stats;

    sim_mesh_note_time(sim);
    memmove(batch->queue, batch->queue + 1, --batch->queue_count * sizeof batch->queue[0]);
    f->report.end_us = sim->now_us;
    batch->decode_rows = batch->queue_count ? f->report.decode_rows : 0;
    batch->load = batch->queue_count ? f->report.load : 0;
    histogram_add(&sim->times[STEP], f->report.end_us - f->report.begin_us);
    sim->workers_us += f->away_sum_us * sim->config->s_part.layers;
    sim->out->steps++;
    sched_get_stats(sim->core, &stats);
    sim->out->mini_batches = MAX(sim->out->mini_batches, stats.mini_batches);
    if (sim->config->on_step) {
        f->report.r_part_us = f->r_part_us;
        f->report.work = f->work;
        f->report.load_limit = sched_load_limit(sim->core, f->report.mini_batch);
        sim->config->on_step(sim->config->user, &f->report);
    }
    f->answer_us = sim->now_us + sim->config->reply_us;
    sim->answers[sim->answer_count++] = f;
    batch->state = batch->queue_count ? BATCH_READY : BATCH_IDLE;
    batch->since_us = sim->now_us;
    batch->segment = 0;
}

// --- the S-part and the workers --------------------------------------------------------------------------------------

void sim_mesh_serve(struct sim *sim)
{
    const struct cost_s_part *cost = &sim->config->s_part;
    struct batch *best = NULL;

    if (sim->served != NULL)
        return;
    for (uint32_t m = 0; m < sim->config->sched.mini_batches; m++) {
        struct batch *batch = &sim->batches[m];
        if (batch->state == BATCH_READY && (best == NULL || batch->since_us < best->since_us))
            best = batch;
    }
    if (best == NULL)
        return;
    struct flight *f = best->queue[0];
    if (best->segment == 0)
        weigh(sim, f);
    double us = cost_segment_us(cost, best->segment, f->action.row_count);
    if (best->segment == 0) {
        sim_mesh_note_time(sim);
        best->decode_rows = f->report.decode_rows;
        best->load = f->report.load;
        f->report.begin_us = sim->now_us;
        us += cost->step_us;
    }
    if (best->segment == cost->layers && f->sampled)
        us += cost_curve_at(&cost->head, f->sampled);
    best->state = BATCH_SERVED;
    sim->served = best;
    sim->served_attends = false;
    sim->served_until_us = sim->now_us + us;
    sim->s_part_us += us;
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

// Ends what the S-part has just done, a segment or attention.
static void served(struct sim *sim)
{
    struct batch *batch = sim->served;
    struct flight *f = batch->queue[0];

    sim->served = NULL;
    if (!sim->served_attends) {
        if (batch->segment == sim->config->s_part.layers) {
            end_step(sim, batch);
            return;
        }
        batch->segment++;
        batch->since_us = sim->now_us;
        if (f->away) { // half of the link's time each way
            batch->since_us = attended_us(sim, f, sim->now_us + f->link_us / 2) + f->link_us / 2;
        }
        if (f->here_us > 0) {
            sim->served = batch;
            sim->served_attends = true;
            sim->served_until_us = sim->now_us + f->here_us;
            return;
        }
    }
    batch->state = batch->since_us > sim->now_us ? BATCH_AWAY : BATCH_READY;
    batch->since_us = MAX(batch->since_us, sim->now_us);
}

double sim_mesh_next_us(const struct sim *sim)
{
    double us = sim->served ? sim->served_until_us : INFINITY;

    for (uint32_t m = 0; m < sim->config->sched.mini_batches; m++)
        if (sim->batches[m].state == BATCH_AWAY)
            us = MIN(us, sim->batches[m].since_us);
    return us;
}

void sim_mesh_advance(struct sim *sim)
{
    if (sim->served && sim->served_until_us <= sim->now_us)
        served(sim);
    for (uint32_t m = 0; m < sim->config->sched.mini_batches; m++)
        if (sim->batches[m].state == BATCH_AWAY && sim->batches[m].since_us <= sim->now_us)
            sim->batches[m].state = BATCH_READY;
}
