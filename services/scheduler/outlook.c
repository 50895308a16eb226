// outlook.c: what common/plan predicts for the load of the moment, from what the members measured at their start.
//
// `fastdecode plan` makes the same prediction from a description of the hardware. Here T(b) is the s-part's calibration, and r the mean of
// the workers' own measurements. Of links nothing is measured, so they count as free: over a slow network the prediction is too good.
#include <string.h>

#include "common/base/checked.h"
#include "common/plan/plan.h"
#include "services/scheduler/scheduler.h"

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

    for (uint32_t i = 0; i < scheduler->place_count; i++) {
        const struct place *place = &scheduler->places[i];
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
        out->model.attention = (struct kv_costs){sum.call_us / count, sum.row_us / count, sum.token_us / count,
                                                 sum.prefill_row_us / count, sum.pair_us / count};
    return count;
}

static void fill_view(const struct plan_request *request, const struct plan *plan, Fastdecode__PlanView *out)
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

bool outlook_fill(const struct scheduler *scheduler, const struct sched_stats *stats, Fastdecode__PlanView *out)
{
    const struct place *pool = scheduler->s_part.member.place;
    const struct stage *stages[SCHED_STAGES_MAX];
    const uint32_t sequences = (uint32_t)MIN(scheduler->finished + stats->running, UINT32_MAX);
    struct hardware s_part = unrated(), worker = unrated(), link = unrated();
    struct plan_shape shape = {.layers = scheduler->kv.layers,
                               .heads = scheduler->kv.heads,
                               .kv_heads = scheduler->kv.kv_heads,
                               .head_dim = scheduler->kv.head_dim,
                               .layer_values = 1,
                               .layer_bytes = 1};
    // The times are of the mesh's own KV type; the plan takes measured ones for the type that files describe.
    struct plan_request request = {
        .shape = &shape, .s_part = &s_part, .worker = &worker, .link = &link, .kv_type = KV_F16, .ignore_capacity = true};
    struct sched_place_info info = {0};
    struct plan plan;

    if (!scheduler->s_part.member.up || !stats->running || !sequences || stages_list(&scheduler->s_part, stages) != 1 ||
        !stages[0]->times.layer_count || !stages[0]->times.head_count || !stages[0]->has_kv)
        return false;
    fill_curve(stages[0]->times.layers, stages[0]->times.layer_count, shape.layers, &s_part.model.layer);
    fill_curve(stages[0]->times.heads, stages[0]->times.head_count, 1, &s_part.model.head);
    s_part.model.name = "measured";
    s_part.model.attention = stages[0]->kv;
    request.workers = fill_workers(scheduler, &worker);
    request.prompt_tokens = (uint32_t)MIN(scheduler->prompt_tokens / sequences, (uint64_t)1 << 24);
    request.generated_tokens = (uint32_t)MIN(MAX(scheduler->generated_tokens / sequences, UINT64_C(1)), UINT64_C(1) << 24);
    sched_get_place(scheduler->core, pool->index, &info);
    if (info.sequences >= stats->running)
        request.workers = 0; // all KV is in the local pool
    else if (info.sequences)
        request.pool_bytes = (uint64_t)info.sequences * (request.prompt_tokens + request.generated_tokens) *
                             (scheduler->page_bytes / scheduler->kv.page_tokens);
    plan_predict(&request, MIN(stats->running, (uint32_t)PLAN_BATCH_MAX), request.workers,
                 request.workers ? MIN(MAX(stats->mini_batches, 1u), sched_mini_batches_most(1, true)) : 1, &plan);
    fill_view(&request, &plan, out);
    return true;
}
