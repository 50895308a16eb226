// view.c: the mesh as people watch it: places, stages, the latest steps and events, and what was predicted beside what was measured.
//
// A gateway asks at most twice a second, however many people look at it. An answer has at most 256 places, 64 steps with 16 places each and
// 64 events; with four workers it is 25 KB of JSON.
#include <stdio.h>
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/plan/plan.h"
#include "services/scheduler/scheduler.h"

// --- what is kept

void view_note(struct view *view, Fastdecode__EventKind kind, const char *name, const char *why)
{
    struct view_event *event = &view->events[view->event_count++ % VIEW_EVENTS];

    fastdecode__event_view__init(&event->said);
    event->said.number = view->event_count;
    event->said.time_us = clock_wall_us();
    event->said.kind = kind;
    event->said.name = event->name;
    event->said.why = event->why;
    snprintf(event->name, sizeof event->name, "%s", name);
    snprintf(event->why, sizeof event->why, "%s", why ? why : "");
}

static void count_rows(const struct flight *flight, Fastdecode__StepView *out)
{
    for (uint32_t i = 0; i < flight->run_count; i++) {
        const struct sched_run *run = &flight->runs[i];
        if (run->sample && run->count - run->drafts == 1)
            out->decode_rows += run->count;
        else
            out->prompt_rows += run->count;
    }
}

// A place that measured its attention says what that took; of another one it is known how long the step waited for it.
static void count_place(struct scheduler *scheduler, const struct sched_place_time *time)
{
    struct place *place;

    if (time->place >= scheduler->places.count)
        return;
    place = &scheduler->places.of[time->place];
    place->reads.us += time->attend_us ? time->attend_us : time->r_part_us;
    place->reads.tokens += time->tokens_read;
}

static void set_place_time(const struct sched_place_time *time, Fastdecode__PlaceTime *out)
{
    fastdecode__place_time__init(out);
    out->worker = time->place;
    out->r_part_us = time->r_part_us;
    out->attend_us = time->attend_us;
    out->tokens_read = time->tokens_read;
}

void view_note_step(struct scheduler *scheduler, const struct flight *flight)
{
    struct view *view = &scheduler->view;
    struct view_step *step = &view->steps[view->step_count++ % VIEW_STEPS];
    Fastdecode__StepView *said = &step->said;

    fastdecode__step_view__init(said);
    said->step = flight->step;
    said->mini_batch = flight->mini_batch;
    said->sent_us = flight->sent_us;
    said->answered_us = clock_now_us();
    said->total_us = flight->reply->total_us;
    said->s_part_us = flight->reply->s_part_us;
    said->r_part_us = flight->reply->r_part_us;
    said->n_places = MIN(flight->place_count, (uint32_t)VIEW_STEP_PLACES);
    said->places = step->pointers;
    count_rows(flight, said);
    for (uint32_t i = 0; i < flight->place_count; i++) {
        count_place(scheduler, &flight->places[i]);
        if (i < said->n_places)
            set_place_time(&flight->places[i], step->pointers[i] = &step->places[i]);
    }
}

// --- the outlook: what common/plan predicts for the load of the moment, from what the members measured at their start
//
// `fastdecode plan` makes the same prediction from a description of the hardware. Here T(b) is the s-part's calibration, and r the mean of
// the workers' own measurements. Links are not measured, so they count as free: over a slow network the prediction is too good.

#define FREE_LINK_GB_PER_SECOND 1e9

// Gives rates to what measured curves replace, so that no quotient in the plan is infinite.
static struct hardware unrated(void)
{
    return (struct hardware){.name = "",
                             .memory_bytes = UINT64_MAX >> 8,
                             .memory_gb_per_second = 1,
                             .f32_tflops = 1,
                             .weights_share = 1,
                             .products_share = 1,
                             .attention_share = 1,
                             .link_gb_per_second = FREE_LINK_GB_PER_SECOND};
}

// Points of a sum over `layers` layers become those of one.
static void fill_curve(const struct sched_time *times, uint32_t count, double layers, struct cost_curve *out)
{
    for (uint32_t i = 0; i < count; i++)
        cost_curve_add(out, times[i].rows, times[i].us / layers);
}

// Takes the mean of the workers that are up. Returns their number; 0 as well if one has not measured itself.
static uint32_t fill_workers(const struct scheduler *scheduler, struct hardware *out)
{
    struct kv_costs sum = {0};
    uint32_t count = 0;

    for (uint32_t i = 0; i < scheduler->places.count; i++) {
        const struct place *place = &scheduler->places.of[i];
        if (place->kind != SCHED_KV_WORKER || !place->member->up)
            continue;
        if (!place->has_costs)
            return 0;
        sum.call_us += place->costs.call_us;
        sum.row_us += place->costs.row_us;
        sum.token_us += place->costs.token_us;
        sum.prefill_row_us += place->costs.prefill_row_us;
        sum.pair_us += place->costs.pair_us;
        out->shares_cores = out->shares_cores || place->shares_cores;
        count++;
    }
    if (count)
        out->model.attention = (struct kv_costs){.call_us = sum.call_us / count,
                                                 .row_us = sum.row_us / count,
                                                 .token_us = sum.token_us / count,
                                                 .prefill_row_us = sum.prefill_row_us / count,
                                                 .pair_us = sum.pair_us / count};
    return count;
}

static void fill_plan(const struct plan_request *request, const struct plan *plan, Fastdecode__PlanView *out)
{
    out->batch = plan->batch;
    out->workers = plan->workers;
    out->mini_batches = plan->mini_batches;
    out->prompt_tokens = request->prompt_tokens;
    out->generated_tokens = request->generated_tokens;
    out->tokens_per_second = plan->tokens_per_second;
    out->step_us = plan->step_ms * 1e3;
    out->s_part_busy = MIN(plan->s_part_busy, 1);
    out->r_part_busy = MIN(plan->r_part_busy, 1);
    out->s_part_layer_us = plan->s_part_layer_us;
    out->r_part_layer_us = plan->r_part_layer_us;
    out->bound_by = (char *)(uintptr_t)plan_bound_name(plan->bound_by);
}

static bool fill_outlook(const struct scheduler *scheduler, const struct sched_stats *stats, Fastdecode__PlanView *out)
{
    const struct place *pool = scheduler->s_part.member.place;
    const struct stage *stages[SCHED_STAGES_MAX];
    const uint32_t sequences = (uint32_t)MIN(scheduler->sequences.finished + stats->running, UINT32_MAX);
    struct hardware s_part = unrated(), worker = unrated(), link = unrated();
    struct plan_shape shape = {.layers = scheduler->model.kv.layers,
                               .heads = scheduler->model.kv.heads,
                               .kv_heads = scheduler->model.kv.kv_heads,
                               .head_dim = scheduler->model.kv.head_dim,
                               .layer_values = 1,
                               .in = {[SHAPE_HOST] = {.layer_bytes = 1}}};
    // The times are of the mesh's own KV type; the plan takes measured ones for the type that files describe.
    struct plan_request request = {
        .shape = &shape, .s_part = &s_part, .worker = &worker, .link = &link, .kv_type = KV_F16, .ignore_capacity = true};
    struct sched_place_info info = {0};
    struct plan plan;

    if (!scheduler->s_part.member.up || !stats->running || !sequences || stages_list(&scheduler->s_part, stages) != 1 ||
        !stages[0]->offer.times.layer_count || !stages[0]->offer.times.head_count || !stages[0]->offer.has_kv)
        return false;
    fill_curve(stages[0]->offer.times.layers, stages[0]->offer.times.layer_count, shape.layers, &s_part.model.layer);
    fill_curve(stages[0]->offer.times.heads, stages[0]->offer.times.head_count, 1, &s_part.model.head);
    s_part.model.name = "measured";
    s_part.model.attention = stages[0]->offer.kv;
    request.workers = fill_workers(scheduler, &worker);
    request.prompt_tokens = (uint32_t)MIN(scheduler->sequences.prompt_tokens / sequences, (uint64_t)1 << 24);
    request.generated_tokens =
        (uint32_t)MIN(MAX(scheduler->sequences.generated_tokens / sequences, UINT64_C(1)), UINT64_C(1) << 24);
    sched_get_place(scheduler->core.sched, pool->index, &info);
    if (info.sequences >= stats->running)
        request.workers = 0; // all KV is in the local pool
    else if (info.sequences)
        request.pool_bytes = (uint64_t)info.sequences * (request.prompt_tokens + request.generated_tokens) *
                             (scheduler->model.page_bytes / scheduler->model.kv.page_tokens);
    plan_predict(&request, MIN(stats->running, (uint32_t)PLAN_BATCH_MAX), request.workers,
                 request.workers ? MIN(MAX(stats->mini_batches, 1u), sched_mini_batches_most(1, true)) : 1, &plan);
    fill_plan(&request, &plan, out);
    return true;
}

// --- the answer. It borrows from the scheduler and lives for one call.

struct view_answer {
    Fastdecode__MeshView mesh;
    Fastdecode__PlanView plan;
    Fastdecode__PlaceView places[SCHED_PLACES_MAX], *place_pointers[SCHED_PLACES_MAX];
    uint64_t loads[SCHED_PLACES_MAX][SCHED_MINI_BATCHES_MAX], limits[SCHED_MINI_BATCHES_MAX];
    Fastdecode__StageView stages[SCHED_STAGES_MAX], *stage_pointers[SCHED_STAGES_MAX];
    Fastdecode__StepView *step_pointers[VIEW_STEPS];
    Fastdecode__EventView *event_pointers[VIEW_EVENTS];
};

static uint32_t silent_ms(const struct member *member, uint64_t now_us)
{
    return member->heard_us && now_us > member->heard_us ? (uint32_t)MIN((now_us - member->heard_us) / 1000, (uint64_t)UINT32_MAX)
                                                         : 0;
}

static void fill_place(const struct scheduler *scheduler, uint32_t index, struct view_answer *out)
{
    const struct place *place = &scheduler->places.of[index];
    Fastdecode__PlaceView *view = &out->places[out->mesh.n_places];
    struct sched_place_info info = {0};

    fastdecode__place_view__init(view);
    sched_get_place(scheduler->core.sched, index, &info);
    view->index = index;
    view->name = (char *)(uintptr_t)place->member->name;
    view->kind = place->kind == SCHED_LOCAL_POOL ? FASTDECODE__PLACE_KIND__PLACE_KIND_LOCAL_POOL
                                                 : FASTDECODE__PLACE_KIND__PLACE_KIND_KV_WORKER;
    view->up = info.up;
    view->draining = info.up && info.draining;
    view->shares_cores = info.up && info.shares_cores;
    view->pages_used = info.up ? info.pages_used - info.pages_idle : 0;
    view->pages_cached = info.up ? info.pages_idle : 0;
    view->pages_total = info.up ? info.pages_total : 0;
    view->sequences = info.sequences;
    view->load_tokens = out->loads[out->mesh.n_places];
    view->n_load_tokens = scheduler->core.config.mini_batches;
    for (uint32_t m = 0; m < scheduler->core.config.mini_batches; m++)
        view->load_tokens[m] = info.load[m];
    view->token_us = info.token_us;
    view->attend_us = place->reads.us;
    view->tokens_read = place->reads.tokens;
    view->times_lost = place->member->lost;
    view->silent_ms = silent_ms(place->member, clock_now_us());
    out->place_pointers[out->mesh.n_places++] = view;
}

static void fill_stages(const struct scheduler *scheduler, struct view_answer *out)
{
    const struct stage *stages[SCHED_STAGES_MAX];
    const uint32_t count = stages_list(&scheduler->s_part, stages);

    for (uint32_t i = 0; i < count; i++) {
        Fastdecode__StageView *view = &out->stages[i];
        fastdecode__stage_view__init(view);
        view->name = (char *)(uintptr_t)stages[i]->member->name;
        view->up = scheduler->s_part.member.up;
        view->first_layer = stages[i]->first_layer;
        view->layer_count = stages[i]->layer_count;
        view->numeric_level = (char *)(uintptr_t)stages[i]->offer.level;
        view->busy_us = count > 1 ? stages[i]->s_part_us : scheduler->flights.s_part_busy_us;
        view->waiting_us = count > 1 ? stages[i]->r_part_us : scheduler->flights.s_part_wait_us;
        view->silent_ms = silent_ms(stages[i]->member, clock_now_us());
        out->stage_pointers[i] = view;
    }
    out->mesh.n_stages = count;
}

static void fill_steps(struct view *view, struct view_answer *out)
{
    const uint64_t first = view->step_count - MIN(view->step_count, (uint64_t)VIEW_STEPS);

    for (uint64_t i = first; i < view->step_count; i++)
        out->step_pointers[out->mesh.n_recent_steps++] = &view->steps[i % VIEW_STEPS].said;
}

static void fill_events(struct view *view, struct view_answer *out)
{
    const uint64_t first = view->event_count - MIN(view->event_count, (uint64_t)VIEW_EVENTS);

    for (uint64_t i = first; i < view->event_count; i++)
        out->event_pointers[out->mesh.n_events++] = &view->events[i % VIEW_EVENTS].said;
}

static void fill_numbers(const struct scheduler *scheduler, const struct sched_stats *stats, Fastdecode__MeshView *out)
{
    out->mini_batches = stats->mini_batches;
    out->running = stats->running_of[SCHED_CLASS_INTERACTIVE];
    out->waiting = stats->waiting_of[SCHED_CLASS_INTERACTIVE];
    out->running_batch = stats->running_of[SCHED_CLASS_BATCH];
    out->waiting_batch = stats->waiting_of[SCHED_CLASS_BATCH];
    out->max_queue = scheduler->settings.max_queue;
    out->steps_in_flight = stats->steps_in_flight;
    out->steps = stats->steps;
    out->steps_failed = stats->steps_failed;
    out->generated_tokens = scheduler->sequences.generated_tokens;
    out->prompt_rows = stats->prefill_rows;
    out->decode_rows = stats->decode_rows;
    out->wasted_rows = stats->wasted_rows;
    out->sequences_finished = scheduler->sequences.finished;
    out->sequences_rebuilt = stats->rebuilt;
    out->sequences_moved = stats->moved;
    out->sequences_preempted = stats->preempted;
    out->predicted_us = (uint64_t)stats->predicted_us;
    out->measured_us = (uint64_t)stats->measured_us;
    out->prediction_error_ratio = stats->prediction_error_ratio;
}

// Fills in the rest of the answer, once the model is known.
static void fill_core(const struct scheduler *scheduler, struct view_answer *out)
{
    const uint32_t mini_batches = scheduler->core.config.mini_batches;
    struct sched_stats stats;

    sched_get_stats(scheduler->core.sched, &stats);
    fill_numbers(scheduler, &stats, &out->mesh);
    out->mesh.predicted_wait_ms =
        (uint32_t)MIN(sched_predicted_wait_us(scheduler->core.sched, SCHED_CLASS_INTERACTIVE) / 1000, 3600000u);
    out->mesh.model = (char *)(uintptr_t)scheduler->model.name;
    out->mesh.layers = scheduler->model.kv.layers;
    out->mesh.page_tokens = scheduler->model.kv.page_tokens;
    out->mesh.kv_type = scheduler->model.kv.type;
    out->mesh.load_limit_tokens = out->limits;
    out->mesh.n_load_limit_tokens = mini_batches;
    for (uint32_t m = 0; m < mini_batches; m++) {
        const uint64_t limit = sched_load_limit(scheduler->core.sched, m);
        out->limits[m] = limit == UINT64_MAX ? 0 : limit;
    }
    fastdecode__plan_view__init(&out->plan);
    if (fill_outlook(scheduler, &stats, &out->plan))
        out->mesh.plan = &out->plan;
    for (uint32_t i = 0; i < scheduler->places.count; i++)
        if (scheduler->places.of[i].member->name[0])
            fill_place(scheduler, i, out);
    fill_stages(scheduler, out);
}

void view_handler(struct rpc_call *call, void *user)
{
    struct scheduler *scheduler = user;
    struct view_answer *answer;
    const uint64_t now_us = clock_now_us();

    if (!rpc_call_unpack(call, &fastdecode__view_request__descriptor))
        return;
    answer = calloc(1, sizeof *answer);
    if (!answer) {
        rpc_call_fail(call, STATUS_RESOURCE_EXHAUSTED, "cannot allocate the view");
        return;
    }
    fastdecode__mesh_view__init(&answer->mesh);
    answer->mesh.scheduler_incarnation = scheduler->host.incarnation;
    answer->mesh.now_us = now_us;
    answer->mesh.wall_us = clock_wall_us();
    answer->mesh.up_us = now_us - scheduler->host.started_us;
    answer->mesh.places = answer->place_pointers;
    answer->mesh.stages = answer->stage_pointers;
    answer->mesh.recent_steps = answer->step_pointers;
    answer->mesh.events = answer->event_pointers;
    if (scheduler->core.sched)
        fill_core(scheduler, answer);
    fill_steps(&scheduler->view, answer);
    fill_events(&scheduler->view, answer);
    rpc_call_reply(call, &answer->mesh.base);
    free(answer);
}
