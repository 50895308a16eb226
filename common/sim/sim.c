// sim.c: the simulation: the scheduling core, into which arriving requests and ended steps go and whose actions come out, the clock, and the
// sums. See sim.h.
#include "common/sim/sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/sim/state.h"

// --- the scheduling core --------------------------------------------------------------------------------------------

// Fills in the results of a step that ended, and the event that reports it. The core says afterwards which tokens count.
static void fill_answer(struct sim *sim, struct flight *f, struct sched_event *event)
{
    const struct sim_config *config = sim->config;
    uint64_t index = (uint64_t)(f - sim->flights);
    struct sched_result *results = sim->results + index * config->sched.max_batch_rows;
    struct sched_place_time *times = sim->place_times + index * config->place_count;
    uint32_t time_count = 0, s_part_us = sim_mesh_stage_times(sim, f);

    for (uint32_t i = 0; i < f->action.run_count; i++) {
        const struct sched_run *run = &f->action.runs[i];
        const struct sim_request *request = &config->requests[run->sequence - 1];
        uint32_t generated = run->position + run->count - MIN(request->prompt_tokens, run->position + run->count) + 1;
        results[i] = (struct sched_result){.sampled = run->sample,
                                           .ended = run->sample && generated >= request->generated_tokens &&
                                                    generated < request->max_new_tokens};
    }
    for (uint32_t p = 0; p < config->place_count; p++) {
        if (f->work[p].rows == 0)
            continue;
        const struct cost_r_part *cost = &config->places[p].cost;
        // From the rows' leaving to the answer, as an s-part measures it: with the bytes of the others, which have the same link.
        double us = (cost_attend_us(cost, &f->work[p]) - cost->link_us) * f->stretch[p] + f->link_us;
        // On the s-part's cores all places end together, so the local pool measures that as its own time.
        bool local = config->places[p].local;
        double r_part_us = local || config->places[p].shares_cores ? f->here_us * sim->layers : us * sim->layers + f->link_waits_us;
        times[time_count++] = (struct sched_place_time){.place = p,
                                                        .r_part_us = (uint32_t)r_part_us,
                                                        .attend_us = (uint32_t)(local ? r_part_us : f->r_part_us[p]),
                                                        .tokens_read = f->work[p].load + f->work[p].prefill_pairs};
    }
    *event = (struct sched_event){
        .kind = SCHED_STEP_DONE,
        .step_done = {.step = f->action.step,
                      .results = results,
                      .result_count = f->action.run_count,
                      .total_us = (uint32_t)(f->action.aside ? f->own_us : f->report.end_us - f->report.begin_us),
                      .s_part_us = s_part_us,
                      .places = times,
                      .place_count = time_count,
                      .stage_us = f->stage_us,
                      .stage_count = sim->stage_count},
    };
}

// Counts the tokens of an answer that the core has taken. The action's runs are no longer valid; `sequences` was copied from them.
static void count_tokens(struct sim *sim, const struct flight *f, const uint64_t *sequences, const struct sched_result *results)
{
    for (uint32_t i = 0; i < f->action.run_count; i++) {
        if (!results[i].taken || !results[i].sampled)
            continue;
        struct life *life = &sim->lives[sequences[i] - 1];
        bool first = life->last_token_us == 0;
        double us = f->report.end_us - (first ? life->arrival_us : life->last_token_us);
        enum sched_class class = sim->config->requests[sequences[i] - 1].class;
        histogram_add(&sim->times[first ? TTFT : TBT], us);
        if (first && sim->config->ttft_s)
            sim->config->ttft_s[sequences[i] - 1] = us / 1e6;
        histogram_add(&sim->times[(first ? TTFT_OF : TBT_OF) + class], us);
        sim->out->of[class].tokens++;
        life->last_token_us = f->report.end_us;
        sim->out->tokens++;
    }
}

// Fills in how many requests of each class the core may be given now: with a backlog, those that its queue has no room for wait outside.
static void queue_room(const struct sim *sim, uint64_t *room /* [SCHED_CLASSES] */)
{
    const uint32_t most[SCHED_CLASSES] = {sim->config->sched.max_waiting, sim->config->sched.max_waiting_batch};
    struct sched_stats stats;

    sched_get_stats(sim->core, &stats);
    for (enum sched_class class = 0; class < SCHED_CLASSES; class ++)
        room[class] = sim->config->backlog ? most[class] - MIN(stats.waiting_of[class], most[class]) : UINT64_MAX;
}

// Returns when the next request comes to the core; INFINITY: not before something else happens.
static double next_arrival_us(const struct sim *sim)
{
    const struct sim_request *next = &sim->config->requests[sim->next_request];
    uint64_t room[SCHED_CLASSES];

    queue_room(sim, room);
    return sim->next_request == sim->config->request_count || room[next->class] == 0 ? INFINITY : (double)next->arrival_us;
}

static uint32_t gather_arrivals(struct sim *sim, uint32_t count)
{
    uint64_t room[SCHED_CLASSES];

    for (queue_room(sim, room); count < EVENTS_MAX;) {
        const struct sim_request *request = &sim->config->requests[sim->next_request];
        if (sim->next_request == sim->config->request_count || (double)request->arrival_us > sim->now_us ||
            room[request->class]-- == 0)
            break;
        sim->lives[sim->next_request].arrival_us = (double)request->arrival_us;
        sim->events[count++] = (struct sched_event){
            .kind = SCHED_ARRIVE,
            .arrive = {.sequence = ++sim->next_request,
                       .prompt_tokens = request->prompt_tokens,
                       .max_new_tokens = request->max_new_tokens,
                       .class = request->class,
                       .held_place = SCHED_NO_PLACE},
        };
    }
    return count;
}

static uint32_t gather_moves(struct sim *sim, uint32_t count)
{
    for (uint32_t i = sim->move_count; i > 0; i--) {
        struct move *move = &sim->moves[i - 1];
        if (move->done_us > sim->now_us)
            continue;
        sim->events[count++] = (struct sched_event){
            .kind = SCHED_MOVED,
            .moved = {.sequence = move->asked.sequence, .id = move->asked.id, .positions = move->asked.positions, .ok = true},
        };
        *move = sim->moves[--sim->move_count];
    }
    return count;
}

static void carry_out(struct sim *sim, const struct sched_action *action)
{
    switch (action->kind) {
    case SCHED_STEP: sim_mesh_take_step(sim, &action->step); break;
    case SCHED_FINISHED: {
        const struct sim_request *request = &sim->config->requests[action->finished.sequence - 1];
        if (action->finished.generated_tokens == request->generated_tokens)
            sim->out->finished++;
        else
            sim->out->lost++;
        break;
    }
    case SCHED_REJECT: sim->out->rejected++; break;
    case SCHED_MOVE: {
        double bytes = action->move.positions * (double)sim->config->sched.kv_bytes_per_token;
        assert_always(sim->move_count < MOVES_MAX);
        sim->moves[sim->move_count++] =
            (struct move){.done_us = sim->now_us + bytes / sim->config->move_bytes_per_us, .asked = action->move};
        break;
    }
    case SCHED_RELEASE:
    case SCHED_DRAINED: // nothing drains here, and pages are free at once
        break;
    }
}

static void core_tick(struct sim *sim)
{
    const uint32_t rows_max = sim->config->sched.max_batch_rows;
    uint32_t due = 0, event_count;

    while (due < sim->answer_count && sim->answers[due]->answer_us <= sim->now_us) {
        struct flight *f = sim->answers[due];
        for (uint32_t i = 0; i < f->action.run_count; i++)
            sim->sequences[(uint64_t)due * rows_max + i] = f->action.runs[i].sequence;
        fill_answer(sim, f, &sim->events[due++]);
    }
    event_count = gather_arrivals(sim, gather_moves(sim, due));
    size_t action_count = sched_step(sim->core, (uint64_t)sim->now_us, sim->events, event_count, sim->actions,
                                     EVENTS_MAX + FLIGHTS_MAX + MOVES_MAX + SCHED_ACTIONS_SPARE);
    for (uint32_t i = 0; i < due; i++) {
        struct flight *f = sim->answers[i];
        count_tokens(sim, f, sim->sequences + (uint64_t)i * rows_max, sim->events[i].step_done.results);
        f->used = false;
    }
    sim->answer_count -= due;
    memmove(sim->answers, sim->answers + due, sim->answer_count * sizeof sim->answers[0]);
    for (size_t i = 0; i < action_count; i++)
        carry_out(sim, &sim->actions[i]);
}

static double core_next_us(const struct sim *sim)
{
    double us = next_arrival_us(sim);
    uint64_t wake_us = sched_next_wake_us(sim->core);

    for (uint32_t i = 0; i < sim->move_count; i++)
        us = MIN(us, sim->moves[i].done_us);
    if (sim->answer_count)
        us = MIN(us, sim->answers[0]->answer_us);
    return wake_us == SCHED_NEVER ? us : MIN(us, (double)wake_us);
}

static void core_places_up(struct sim *sim)
{
    const struct sim_config *config = sim->config;

    struct sched_time layers[COST_POINTS_MAX], heads[COST_POINTS_MAX], of_stages[SCHED_STAGES_MAX][COST_POINTS_MAX];
    struct sched_stage_up stages[SCHED_STAGES_MAX];
    struct sched_s_part_up up = {
        .layers = layers, .heads = heads, .stages = stages, .takes_aside = true, .takes_extents = true, .pool_takes_extents = true};
    const struct cost_curve *points = &sim->stages[0].cost->layer, *head = &sim->stages[sim->stage_count - 1].cost->head;
    for (; config->calibrated && up.layer_count < points->count; up.layer_count++) {
        uint32_t rows = (uint32_t)points->rows[up.layer_count];
        layers[up.layer_count] = (struct sched_time){rows, 0};
        for (uint32_t i = 0; i < sim->stage_count; i++) {
            of_stages[i][up.layer_count] = (struct sched_time){rows, cost_s_part_step_us(sim->stages[i].cost, rows, 0)};
            layers[up.layer_count].us += of_stages[i][up.layer_count].us;
        }
    }
    for (; config->calibrated && up.stage_count < sim->stage_count; up.stage_count++)
        stages[up.stage_count] = (struct sched_stage_up){of_stages[up.stage_count], up.layer_count};
    for (; config->calibrated && up.head_count < head->count; up.head_count++)
        heads[up.head_count] = (struct sched_time){head->rows[up.head_count], head->us[up.head_count]};
    sim->events[0] = (struct sched_event){.kind = SCHED_S_PART_UP, .s_part_up = up};
    size_t count = sched_step(sim->core, 0, sim->events, 1, sim->actions, 1 + SCHED_ACTIONS_SPARE);
    for (uint32_t p = 0; p < config->place_count; p++) {
        const struct sim_place *place = &config->places[p];
        double token_us = place->cost.token_us * sim->layers;
        sim->workers += !place->local && !place->shares_cores;
        sim->events[0] = (struct sched_event){
            .kind = SCHED_PLACE_UP,
            .place_up = {.place = p,
                         .pages_total = place->pages_total,
                         .bytes_per_second = (uint64_t)(config->sched.kv_bytes_per_token / MAX(token_us, 1e-6) * 1e6),
                         .link_us = (uint32_t)place->cost.link_us,
                         .call_us = place->cost.call_us,
                         .prefill_pair_us = place->cost.prefill_us * sim->layers,
                         .kind = place->local ? SCHED_LOCAL_POOL : SCHED_KV_WORKER,
                         .shares_cores = place->shares_cores,
                         .accepts_moves = config->move_bytes_per_us > 0},
        };
        count += sched_step(sim->core, 0, sim->events, 1, sim->actions, 1 + SCHED_ACTIONS_SPARE);
    }
    assert_always(count == 0);
}

// --- the clock ------------------------------------------------------------------------------------------------------

// Advances from one event to the next until nothing is left to happen.
static void run_clock(struct sim *sim)
{
    while (!sim->config->steps_max || sim->out->steps < sim->config->steps_max) {
        double us = MIN(sim_mesh_next_us(sim), core_next_us(sim));
        if (isinf(us))
            break;
        sim->now_us = MAX(us, sim->now_us);
        sim_mesh_advance(sim);
        if (core_next_us(sim) <= sim->now_us)
            core_tick(sim);
        sim_mesh_serve(sim);
    }
}

static enum status check_config(const struct sim_config *config, struct error *error)
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
    out->ttft = histogram_times(&sim->times[TTFT]);
    out->tbt = histogram_times(&sim->times[TBT]);
    out->step = histogram_times(&sim->times[STEP]);
    for (enum sched_class class = 0; class < SCHED_CLASSES; class ++) {
        out->of[class].ttft = histogram_times(&sim->times[TTFT_OF + class]);
        out->of[class].tbt = histogram_times(&sim->times[TBT_OF + class]);
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
    enum status status = check_config(config, error);
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
        core_places_up(sim);
        run_clock(sim);
        conclude(sim);
    }
    give_memory_back(sim);
    return status;
}
