/* sim.c: see sim.h. */
#include "common/sim/sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/sim/histogram.h"

enum { EVENTS_MAX = 4096, FLIGHTS_MAX = SCHED_MINI_BATCHES_MAX * SCHED_PLAN_AHEAD_MAX };

/* A step, from its action to its answer. */
struct flight {
    struct sched_step_action action;
    struct cost_work *work; // [place_count]
    double *stretch;        // [place_count], of the places that have rows: noise and speed
    uint32_t sampled;
    double here_us;          // a layer's attention on the S-part's cores
    bool away;               // it has rows at workers elsewhere
    double away_us, link_us; // a layer's at the workers: the slowest's work; the longest round trip
    double away_sum_us;      // of all workers
    double answer_us;        // when the core hears of it
    struct sim_step report;
    bool used;
};

enum batch_state { BATCH_IDLE, BATCH_READY, BATCH_SERVED, BATCH_AWAY };

struct batch {
    struct flight *queue[SCHED_PLAN_AHEAD_MAX]; // oldest first; the first one runs
    uint32_t queue_count, segment;
    enum batch_state state;
    double since_us; // READY: from then on. AWAY: until then
    uint32_t decode_rows;
    uint64_t load;
};

struct life {
    double arrival_us, last_token_us;
};

struct sim {
    const struct sim_config *config;
    struct sched *core;
    struct sim_result *out;
    double now_us;
    uint64_t rng;
    struct batch batches[SCHED_MINI_BATCHES_MAX];
    struct flight flights[FLIGHTS_MAX];
    struct flight *answers[FLIGHTS_MAX]; // oldest first
    uint32_t answer_count;
    struct batch *served; // by the S-part; NULL: it waits
    double served_until_us;
    bool served_attends; // it does the local pool's attention of this layer
    double workers_free_us;
    uint32_t workers;
    uint32_t next_speed; // of config.speeds
    double *speeds;      // [place_count], now

    uint64_t next_request;
    struct life *lives;         // [request_count]
    struct histogram *times;    // ttft, tbt, step
    struct sched_event *events; // [EVENTS_MAX + FLIGHTS_MAX]
    struct sched_action *actions;
    struct sched_result *results;                       // [FLIGHTS_MAX][max_batch_rows]
    struct sched_place_time *place_times;               // [FLIGHTS_MAX][place_count]
    double batch_time, s_part_us, workers_us, noted_us; // sums over time, up to noted_us
};

enum { TTFT, TBT, STEP, TIMES };

/* --- chance ----------------------------------------------------------------------------------------------------------- */

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

/* --- a step ----------------------------------------------------------------------------------------------------------- */

static void note_time(struct sim *sim)
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

/* What each place has to do for it, and how long a layer of that takes. */
static void weigh(struct sim *sim, struct flight *f)
{
    const struct sim_config *config = sim->config;
    uint64_t away_rows = 0;

    for (; sim->next_speed < config->speed_count && config->speeds[sim->next_speed].at_us <= sim->now_us; sim->next_speed++)
        sim->speeds[config->speeds[sim->next_speed].place] = config->speeds[sim->next_speed].speed;
    memset(f->work, 0, config->place_count * sizeof *f->work);
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
        f->report.largest_load = MAX(f->report.largest_load, f->work[p].load);
        if (place->local || place->shares_cores) {
            f->here_us += work_us + place->cost.link_us;
        } else {
            f->away = true;
            away_rows += f->work[p].rows;
            f->away_us = MAX(f->away_us, work_us);
            f->link_us = MAX(f->link_us, place->cost.link_us);
            f->away_sum_us += work_us;
        }
    }
    f->link_us += (double)away_rows * config->link_row_us;
}

static void take_step(struct sim *sim, const struct sched_step_action *action)
{
    struct batch *batch = &sim->batches[action->mini_batch];
    struct flight *f = sim->flights;

    while (f->used)
        f++;
    *f = (struct flight){.action = *action, .work = f->work, .stretch = f->stretch, .used = true};
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

    note_time(sim);
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
        f->report.load_limit = sched_load_limit(sim->core, f->report.mini_batch);
        sim->config->on_step(sim->config->user, &f->report);
    }
    f->answer_us = sim->now_us + sim->config->reply_us;
    sim->answers[sim->answer_count++] = f;
    batch->state = batch->queue_count ? BATCH_READY : BATCH_IDLE;
    batch->since_us = sim->now_us;
    batch->segment = 0;
}

/* --- the S-part and the workers -------------------------------------------------------------------------------------- */

static void serve_next(struct sim *sim)
{
    const struct cost_s_part *cost = &sim->config->s_part;
    struct batch *best = NULL;

    for (uint32_t m = 0; m < sim->config->sched.mini_batches; m++) {
        struct batch *batch = &sim->batches[m];
        if (batch->state == BATCH_READY && (!best || batch->since_us < best->since_us))
            best = batch;
    }
    if (!best)
        return;
    struct flight *f = best->queue[0];
    if (best->segment == 0)
        weigh(sim, f);
    double us = cost_segment_us(cost, best->segment, f->action.row_count);
    if (best->segment == 0) {
        note_time(sim);
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

/* The S-part has done what it was at. */
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
            double begin_us = MAX(sim->now_us + f->link_us / 2, sim->workers_free_us);
            sim->workers_free_us = begin_us + f->away_us;
            batch->since_us = sim->workers_free_us + f->link_us / 2;
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

/* --- the core --------------------------------------------------------------------------------------------------------- */

/* Fills the results of a step that ended, and the event that says so. Which of the tokens count, the core says afterwards. */
static void answer(struct sim *sim, struct flight *f, struct sched_event *event)
{
    const struct sim_config *config = sim->config;
    uint64_t index = (uint64_t)(f - sim->flights);
    struct sched_result *results = sim->results + index * config->sched.max_batch_rows;
    struct sched_place_time *times = sim->place_times + index * config->place_count;
    uint32_t time_count = 0;

    for (uint32_t i = 0; i < f->action.run_count; i++) {
        const struct sched_run *run = &f->action.runs[i];
        const struct sim_request *request = &config->requests[run->sequence - 1];
        uint32_t generated = run->position + run->count - MIN(request->prompt_tokens, run->position + run->count) + 1;
        results[i] = (struct sched_result){.sampled = run->sample, .ended = run->sample && generated >= request->generated_tokens};
    }
    for (uint32_t p = 0; p < config->place_count; p++) {
        if (f->work[p].rows == 0)
            continue;
        const struct cost_r_part *cost = &config->places[p].cost;
        double us = (cost_attend_us(cost, &f->work[p]) - cost->link_us) * f->stretch[p] + cost->link_us;
        times[time_count++] = (struct sched_place_time){.place = p,
                                                        .r_part_us = (uint32_t)(us * config->s_part.layers),
                                                        .tokens_read = f->work[p].load + f->work[p].prefill_pairs};
    }
    *event = (struct sched_event){
        .kind = SCHED_STEP_DONE,
        .step_done = {.step = f->action.step,
                      .results = results,
                      .result_count = f->action.run_count,
                      .total_us = (uint32_t)(f->report.end_us - f->report.begin_us),
                      .s_part_us = (uint32_t)cost_s_part_step_us(&config->s_part, f->action.row_count, f->sampled),
                      .places = times,
                      .place_count = time_count},
    };
}

/* The core has taken an answer: its tokens are out. The action's runs are no longer valid; what is needed was kept in them. */
static void count_tokens(struct sim *sim, const struct flight *f, const uint64_t *sequences, const struct sched_result *results)
{
    for (uint32_t i = 0; i < f->action.run_count; i++) {
        if (!results[i].taken || !results[i].sampled)
            continue;
        struct life *life = &sim->lives[sequences[i] - 1];
        bool first = life->last_token_us == 0;
        histogram_add(&sim->times[first ? TTFT : TBT], f->report.end_us - (first ? life->arrival_us : life->last_token_us));
        life->last_token_us = f->report.end_us;
        sim->out->tokens++;
    }
}

/* Of the requests whose time has come: with a backlog, those beyond what the core's queue has room for wait outside. */
static uint64_t queue_room(const struct sim *sim)
{
    struct sched_stats stats;

    if (!sim->config->backlog)
        return UINT64_MAX;
    sched_get_stats(sim->core, &stats);
    return sim->config->sched.max_waiting - MIN(stats.waiting, sim->config->sched.max_waiting);
}

/* When the next request comes to the core; INFINITY: none does until something else happens. */
static double next_arrival_us(const struct sim *sim)
{
    if (sim->next_request == sim->config->request_count || queue_room(sim) == 0)
        return INFINITY;
    return (double)sim->config->requests[sim->next_request].arrival_us;
}

static uint32_t gather_arrivals(struct sim *sim, uint32_t count)
{
    for (uint64_t room = queue_room(sim); room > 0 && count < EVENTS_MAX; room--) {
        const struct sim_request *request = &sim->config->requests[sim->next_request];
        if (sim->next_request == sim->config->request_count || (double)request->arrival_us > sim->now_us)
            break;
        sim->lives[sim->next_request].arrival_us = (double)request->arrival_us;
        sim->events[count++] = (struct sched_event){
            .kind = SCHED_ARRIVE,
            .arrive = {.sequence = ++sim->next_request,
                       .prompt_tokens = request->prompt_tokens,
                       .max_new_tokens = request->max_new_tokens,
                       .held_place = SCHED_NO_PLACE},
        };
    }
    return count;
}

static void act(struct sim *sim, const struct sched_action *action)
{
    switch (action->kind) {
    case SCHED_STEP: take_step(sim, &action->step); break;
    case SCHED_FINISHED: {
        const struct sim_request *request = &sim->config->requests[action->finished.sequence - 1];
        if (action->finished.generated_tokens == request->generated_tokens)
            sim->out->finished++;
        else
            sim->out->lost++;
        break;
    }
    case SCHED_REJECT: sim->out->rejected++; break;
    case SCHED_RELEASE:
    case SCHED_MOVE:
    case SCHED_DRAINED: // nothing drains here, and pages are free at once
        break;
    }
}

/* Everything that is due, in one call of the core. */
static void tick(struct sim *sim, uint64_t *sequences)
{
    const uint32_t rows_max = sim->config->sched.max_batch_rows;
    uint32_t due = 0, event_count;

    while (due < sim->answer_count && sim->answers[due]->answer_us <= sim->now_us) {
        struct flight *f = sim->answers[due];
        for (uint32_t i = 0; i < f->action.run_count; i++)
            sequences[(uint64_t)due * rows_max + i] = f->action.runs[i].sequence;
        answer(sim, f, &sim->events[due++]);
    }
    event_count = gather_arrivals(sim, due);
    size_t action_count = sched_step(sim->core, (uint64_t)sim->now_us, sim->events, event_count, sim->actions,
                                     EVENTS_MAX + FLIGHTS_MAX + SCHED_ACTIONS_SPARE);
    for (uint32_t i = 0; i < due; i++) {
        struct flight *f = sim->answers[i];
        count_tokens(sim, f, sequences + (uint64_t)i * rows_max, sim->events[i].step_done.results);
        f->used = false;
    }
    sim->answer_count -= due;
    memmove(sim->answers, sim->answers + due, sim->answer_count * sizeof sim->answers[0]);
    for (size_t i = 0; i < action_count; i++)
        act(sim, &sim->actions[i]);
}

/* When something happens next; INFINITY: never. */
static double next_us(const struct sim *sim)
{
    double us = INFINITY;
    uint64_t wake_us = sched_next_wake_us(sim->core);

    if (sim->served)
        us = MIN(us, sim->served_until_us);
    for (uint32_t m = 0; m < sim->config->sched.mini_batches; m++)
        if (sim->batches[m].state == BATCH_AWAY)
            us = MIN(us, sim->batches[m].since_us);
    if (sim->answer_count)
        us = MIN(us, sim->answers[0]->answer_us);
    us = MIN(us, next_arrival_us(sim));
    if (wake_us != SCHED_NEVER)
        us = MIN(us, (double)wake_us);
    return MAX(us, sim->now_us);
}

static bool tick_due(const struct sim *sim)
{
    uint64_t wake_us = sched_next_wake_us(sim->core);

    return (sim->answer_count && sim->answers[0]->answer_us <= sim->now_us) || next_arrival_us(sim) <= sim->now_us ||
           (wake_us != SCHED_NEVER && (double)wake_us <= sim->now_us);
}

static void run(struct sim *sim, uint64_t *sequences)
{
    while (!sim->config->steps_max || sim->out->steps < sim->config->steps_max) {
        double us = next_us(sim);
        if (isinf(us))
            break;
        sim->now_us = us;
        if (sim->served && sim->served_until_us <= us)
            served(sim);
        for (uint32_t m = 0; m < sim->config->sched.mini_batches; m++)
            if (sim->batches[m].state == BATCH_AWAY && sim->batches[m].since_us <= us)
                sim->batches[m].state = BATCH_READY;
        if (tick_due(sim))
            tick(sim, sequences);
        if (!sim->served)
            serve_next(sim);
    }
}

/* --- from begin to end ------------------------------------------------------------------------------------------------ */

static enum status check(const struct sim_config *config, struct error *error)
{
    if (config->place_count == 0 || config->place_count > config->sched.max_places)
        return error_set(error, STATUS_INVALID_ARGUMENT, "simulation: %u places, 1 to %u are possible", config->place_count,
                         config->sched.max_places);
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

static void places_up(struct sim *sim)
{
    const struct sim_config *config = sim->config;

    sim->events[0] = (struct sched_event){.kind = SCHED_S_PART_UP};
    size_t count = sched_step(sim->core, 0, sim->events, 1, sim->actions, 1 + SCHED_ACTIONS_SPARE);
    for (uint32_t p = 0; p < config->place_count; p++) {
        const struct sim_place *place = &config->places[p];
        double token_us = place->cost.token_us * config->s_part.layers;
        sim->workers += !place->local && !place->shares_cores;
        sim->events[0] = (struct sched_event){
            .kind = SCHED_PLACE_UP,
            .place_up = {.place = p,
                         .pages_total = place->pages_total,
                         .bytes_per_second = (uint64_t)(config->sched.kv_bytes_per_token / MAX(token_us, 1e-6) * 1e6),
                         .link_us = (uint32_t)place->cost.link_us,
                         .local = place->local,
                         .shares_cores = place->shares_cores},
        };
        count += sched_step(sim->core, 0, sim->events, 1, sim->actions, 1 + SCHED_ACTIONS_SPARE);
    }
    assert_always(count == 0);
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
    out->s_part_busy = sim->s_part_us / us;
    out->r_part_busy = sim->workers ? sim->workers_us / us / sim->workers : 0;
    out->decode_rows = stats.decode_rows;
    out->prefill_rows = stats.prefill_rows;
    out->wasted_rows = stats.wasted_rows;
    out->preempted = stats.preempted;
    if (!sim->config->steps_max)
        out->lost = sim->config->request_count - out->finished - out->rejected;
    for (uint32_t p = 0; p < sim->config->place_count; p++) {
        sched_get_place(sim->core, p, &place);
        out->pages_leaked += sim->config->steps_max ? 0 : place.pages_used;
    }
    out->ttft = summary(&sim->times[TTFT]);
    out->tbt = summary(&sim->times[TBT]);
    out->step = summary(&sim->times[STEP]);
}

enum status sim_run(const struct sim_config *config, struct sim_result *out, struct error *error)
{
    struct sim *sim = calloc(1, sizeof *sim);
    uint64_t rows = config->sched.max_batch_rows, places = config->place_count;
    uint64_t *sequences = calloc(FLIGHTS_MAX * rows, sizeof *sequences);
    struct cost_work *work = calloc(FLIGHTS_MAX * places, sizeof *work);
    double *stretch = calloc(FLIGHTS_MAX * places, sizeof *stretch);
    enum status status = check(config, error);

    *out = (struct sim_result){0};
    if (!sim || !sequences || !work || !stretch)
        status = status ? status : error_set(error, STATUS_RESOURCE_EXHAUSTED, "simulation: no memory");
    if (status)
        goto out;
    sim->config = config;
    sim->out = out;
    sim->rng = config->seed;
    sim->lives = calloc(config->request_count + 1, sizeof *sim->lives);
    sim->times = calloc(TIMES, sizeof *sim->times);
    sim->events = calloc(EVENTS_MAX + FLIGHTS_MAX, sizeof *sim->events);
    sim->actions = calloc(EVENTS_MAX + FLIGHTS_MAX + SCHED_ACTIONS_SPARE, sizeof *sim->actions);
    sim->results = calloc(FLIGHTS_MAX * rows, sizeof *sim->results);
    sim->place_times = calloc(FLIGHTS_MAX * places, sizeof *sim->place_times);
    sim->speeds = calloc(places, sizeof *sim->speeds);
    if (!sim->lives || !sim->times || !sim->events || !sim->actions || !sim->results || !sim->place_times || !sim->speeds) {
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "simulation: no memory for %llu requests",
                           (unsigned long long)config->request_count);
        goto out;
    }
    for (uint32_t i = 0; i < places; i++)
        sim->speeds[i] = 1;
    for (uint32_t i = 0; i < FLIGHTS_MAX; i++) {
        sim->flights[i].work = work + i * places;
        sim->flights[i].stretch = stretch + i * places;
    }
    status = sched_init(&config->sched, &sim->core, error);
    if (status)
        goto out;
    places_up(sim);
    run(sim, sequences);
    conclude(sim);
out:
    if (sim) {
        sched_fini(sim->core);
        free(sim->lives);
        free(sim->times);
        free(sim->events);
        free(sim->actions);
        free(sim->results);
        free(sim->place_times);
        free(sim->speeds);
    }
    free(sim);
    free(sequences);
    free(work);
    free(stretch);
    return status;
}
