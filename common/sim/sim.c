// sim.c: see sim.h.
#include "common/sim/sim.h"

#include <math.h>
#include <stdlib.h>

#include "common/sim/sim_state.h"

// Advances from one event to the next until nothing is left to happen.
static void run(struct sim *sim)
{
    while (!sim->config->steps_max || sim->out->steps < sim->config->steps_max) {
        double us = MIN(sim_mesh_next_us(sim), sim_core_next_us(sim));
        if (isinf(us))
            break;
        sim->now_us = MAX(us, sim->now_us);
        sim_mesh_advance(sim);
        if (sim_core_next_us(sim) <= sim->now_us)
            sim_core_tick(sim);
        sim_mesh_serve(sim);
    }
}

static enum status check(const struct sim_config *config, struct error *error)
{
    if (config->place_count == 0 || config->place_count > config->sched.max_places)
        return error_set(error, STATUS_INVALID_ARGUMENT, "simulation: %u places, 1 to %u are possible", config->place_count,
                         config->sched.max_places);
    if (config->move_bytes_per_us > 0 && config->sched.max_moves > MOVES_MAX)
        return error_set(error, STATUS_INVALID_ARGUMENT, "simulation: %u moves at once, at most %d are possible",
                         config->sched.max_moves, MOVES_MAX);
    if (config->sched.stages > SCHED_STAGES_MAX || (config->sched.stages > 1 && config->stages == NULL))
        return error_set(error, STATUS_INVALID_ARGUMENT, "simulation: %u stages: at most %d are possible, each with its cost",
                         config->sched.stages, SCHED_STAGES_MAX);
    for (uint32_t i = 0; i < config->speed_count; i++) {
        const struct sim_speed *speed = &config->speeds[i];
        if (speed->place >= config->place_count || !(speed->speed > 0) || (i > 0 && speed->at_us < speed[-1].at_us))
            return error_set(error, STATUS_INVALID_ARGUMENT,
                             "simulation: speed %u: of place %u of %u, %g at %g us: want more than 0, by time", i, speed->place,
                             config->place_count, speed->speed, speed->at_us);
    }
    for (uint64_t i = 0; i < config->request_count; i++) {
        const struct sim_request *r = &config->requests[i];
        if (r->prompt_tokens == 0 || r->generated_tokens == 0 || r->generated_tokens > r->max_new_tokens ||
            (uint64_t)r->prompt_tokens + r->max_new_tokens > config->sched.context_tokens)
            return error_set(
                error, STATUS_INVALID_ARGUMENT, "simulation: request %llu: prompt %u, generated %u, at most %u, in a context of %u",
                (unsigned long long)i, r->prompt_tokens, r->generated_tokens, r->max_new_tokens, config->sched.context_tokens);
        if (i > 0 && r->arrival_us < config->requests[i - 1].arrival_us)
            return error_set(error, STATUS_INVALID_ARGUMENT, "simulation: request %llu arrives before the one before it",
                             (unsigned long long)i);
    }
    return STATUS_OK;
}

static struct sim_times summary(const struct histogram *h)
{
    return (struct sim_times){.count = h->count,
                              .mean_s = h->count ? h->sum_us / (double)h->count / 1e6 : 0,
                              .p50_s = histogram_percentile_us(h, 0.5) / 1e6,
                              .p99_s = histogram_percentile_us(h, 0.99) / 1e6,
                              .max_s = h->max_us / 1e6};
}

static void conclude(struct sim *sim)
{
    struct sim_result *out = sim->out;
    double begin_us = sim->config->request_count ? (double)sim->config->requests[0].arrival_us : 0;
    double us = MAX(sim->noted_us - begin_us, 1);
    struct sched_stats stats;
    struct sched_place_info place;

    sched_get_stats(sim->core, &stats);
    out->seconds = us / 1e6;
    out->tokens_per_second = (double)out->tokens / out->seconds;
    out->mean_batch = sim->batch_time / us;
    out->s_part_busy = sim->s_part_us / us / sim->stage_count;
    out->r_part_busy = sim->workers ? sim->workers_us / us / sim->workers : 0;
    out->decode_rows = stats.decode_rows;
    out->prefill_rows = stats.prefill_rows;
    out->wasted_rows = stats.wasted_rows;
    out->frozen = stats.frozen;
    out->preempted = stats.preempted;
    out->moved = stats.moved;
    out->relabelled = stats.relabelled;
    out->predicted = stats.measured_us > 0 ? stats.predicted_us / stats.measured_us : 0;
    if (!sim->config->steps_max)
        out->lost = sim->config->request_count - out->finished - out->rejected;
    for (uint32_t p = 0; p < sim->config->place_count; p++) {
        sched_get_place(sim->core, p, &place);
        out->pages_leaked += sim->config->steps_max ? 0 : place.pages_used;
    }
    out->ttft = summary(&sim->times[TTFT]);
    out->tbt = summary(&sim->times[TBT]);
    out->step = summary(&sim->times[STEP]);
    for (enum sched_class class = 0; class < SCHED_CLASSES; class ++) {
        out->of[class].ttft = summary(&sim->times[TTFT_OF + class]);
        out->of[class].tbt = summary(&sim->times[TBT_OF + class]);
    }
}

// --- from begin to end ------------------------------------------------------------------------------------------------

static enum status take_memory(struct sim *sim, struct error *error)
{
    const struct sim_config *config = sim->config;
    uint64_t rows = config->sched.max_batch_rows, places = config->place_count;

    sim->lives = calloc(config->request_count + 1, sizeof *sim->lives);
    sim->times = calloc(TIMES, sizeof *sim->times);
    sim->events = calloc(EVENTS_MAX + FLIGHTS_MAX + MOVES_MAX, sizeof *sim->events);
    sim->actions = calloc(EVENTS_MAX + FLIGHTS_MAX + MOVES_MAX + SCHED_ACTIONS_SPARE, sizeof *sim->actions);
    sim->sequences = calloc(FLIGHTS_MAX * rows, sizeof *sim->sequences);
    sim->results = calloc(FLIGHTS_MAX * rows, sizeof *sim->results);
    sim->place_times = calloc(FLIGHTS_MAX * places, sizeof *sim->place_times);
    sim->work = calloc(FLIGHTS_MAX * places, sizeof *sim->work);
    sim->stretch = calloc(FLIGHTS_MAX * places, sizeof *sim->stretch);
    sim->away_us = calloc(FLIGHTS_MAX * places, sizeof *sim->away_us);
    sim->free_us = calloc(places, sizeof *sim->free_us);
    sim->r_part_us = calloc(FLIGHTS_MAX * places, sizeof *sim->r_part_us);
    sim->speeds = calloc(places, sizeof *sim->speeds);
    if (sim->lives == NULL || sim->times == NULL || sim->events == NULL || sim->actions == NULL || sim->sequences == NULL ||
        sim->results == NULL || sim->place_times == NULL || sim->work == NULL || sim->stretch == NULL || sim->away_us == NULL ||
        sim->free_us == NULL || sim->r_part_us == NULL || sim->speeds == NULL)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "simulation: no memory for %llu requests",
                         (unsigned long long)config->request_count);
    for (uint32_t i = 0; i < FLIGHTS_MAX; i++) {
        sim->flights[i].work = sim->work + i * places;
        sim->flights[i].stretch = sim->stretch + i * places;
        sim->flights[i].away_us = sim->away_us + i * places;
        sim->flights[i].r_part_us = sim->r_part_us + i * places;
    }
    for (uint32_t i = 0; i < places; i++)
        sim->speeds[i] = 1;
    return STATUS_OK;
}

static void give_memory_back(struct sim *sim)
{
    sched_fini(sim->core);
    free(sim->lives);
    free(sim->times);
    free(sim->events);
    free(sim->actions);
    free(sim->sequences);
    free(sim->results);
    free(sim->place_times);
    free(sim->work);
    free(sim->stretch);
    free(sim->away_us);
    free(sim->free_us);
    free(sim->r_part_us);
    free(sim->speeds);
    free(sim);
}

enum status sim_run(const struct sim_config *config, struct sim_result *out, struct error *error)
{
    enum status status = check(config, error);
    struct sim *sim;

    *out = (struct sim_result){0};
    if (status)
        return status;
    sim = calloc(1, sizeof *sim);
    if (sim == NULL)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "simulation: no memory");
    sim->config = config;
    sim->out = out;
    sim->rng = config->seed;
    sim_mesh_init(sim);
    status = take_memory(sim, error);
    if (!status)
        status = sched_init(&config->sched, &sim->core, error);
    if (!status) {
        sim_core_places_up(sim);
        run(sim);
        conclude(sim);
    }
    give_memory_back(sim);
    return status;
}
