// choose.c: what a request leaves open: workers by balance and memory, the batch by a target or the knee; and the cheapest mix of several
// meshes. See plan.h.
#include <math.h>

#include "common/base/checked.h"
#include "common/plan/plan.h"

#define GIB (1024.0 * 1024.0 * 1024.0)

// --- memory -----------------------------------------------------------------------------------------------------------

static bool plan_fits(const struct plan_request *r, const struct plan *plan)
{
    double pool = r->pool_bytes && r->pool_bytes != PLAN_POOL_CHOOSE ? (double)r->pool_bytes : INFINITY;

    return r->ignore_capacity || (plan->s_part_bytes <= (double)hardware_usable_bytes(r->s_part) &&
                                  plan->kv_bytes_per_worker <= (plan->workers == 0 ? pool : (double)r->worker->memory_bytes));
}

static enum status refuse_memory(const struct plan_request *r, const struct plan *plan, struct error *error)
{
    double has = (double)hardware_usable_bytes(r->s_part), kv = plan->kv_bytes_per_worker;

    if (plan->workers && plan->s_part_bytes <= has)
        return error_set(
            error, STATUS_RESOURCE_EXHAUSTED,
            "a batch of %u with %.0f tokens of context takes %.1f GiB of KV on each of %u workers, and %s has %.1f GiB: "
            "more --workers, a smaller --batch, or --ignore-capacity to predict all the same",
            plan->batch, plan->kv_tokens / plan->batch, kv / GIB, plan->workers, r->worker->name,
            (double)r->worker->memory_bytes / GIB);
    if (plan->workers == 0 && plan->s_part_bytes <= has)
        return error_set(
            error, STATUS_RESOURCE_EXHAUSTED,
            "without workers a batch of %u takes %.1f GiB of KV, and --local-pool is %.1f GiB: a larger one, --workers, a "
            "smaller --batch, or --ignore-capacity to predict all the same",
            plan->batch, kv / GIB, (double)r->pool_bytes / GIB);
    if (plan->workers == 0 && plan->stages == 1 && plan->s_part_bytes - kv <= has)
        return error_set(
            error, STATUS_RESOURCE_EXHAUSTED,
            "without workers a batch of %u takes %.1f GiB of weights and %.1f GiB of KV, and %s has %.1f GiB: --workers, a "
            "smaller --batch, or --ignore-capacity to predict all the same",
            plan->batch, (plan->s_part_bytes - kv) / GIB, kv / GIB, r->s_part->name, has / GIB);
    return error_set(
        error, STATUS_RESOURCE_EXHAUSTED,
        "%s takes %.1f GiB%s for weights and activations of batch %u, and %s has %.1f GiB: smaller --weights, a larger --gpu, "
        "more --s-parts, or --ignore-capacity to predict all the same",
        r->shape->name, (plan->s_part_bytes - (plan->workers || plan->stages > 1 ? 0 : kv)) / GIB,
        plan->stages > 1 ? " in the fullest stage" : "", plan->batch, r->s_part->name, has / GIB);
}

// --- workers ----------------------------------------------------------------------------------------------------------

static bool in_time(const struct plan_request *r, const struct plan *plan)
{
    return r->latency_ms == 0 || plan->step_ms <= r->latency_ms;
}

// Returns the most workers that have something to do: one for each sequence, or as many as a sequence lies at that none can hold whole.
static uint32_t most_workers(const struct plan_request *r, uint32_t batch)
{
    struct plan_extents e;
    const uint32_t each = plan_extents(r, PLAN_EXTENT_PLACES_MAX, &e) ? PLAN_EXTENT_PLACES_MAX : 1;
    return MIN(each * batch, (uint32_t)PLAN_WORKERS_MAX);
}

// Returns the fewest of [low, high] workers that hold the KV, reach a rate and, if `timely`, are in time, as `high` do: more of them hold
// less each and are never slower.
static uint32_t least_workers(const struct plan_request *r, uint32_t batch, double rate, bool timely, uint32_t low, uint32_t high)
{
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        struct plan plan;
        plan_predict(r, batch, middle, 0, &plan);
        if (plan_fits(r, &plan) && plan.tokens_per_second >= rate && (!timely || in_time(r, &plan)))
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

// Returns how many of [low, high] workers are worth their cost: those that give most for the price or, where prices are not known, the fewest
// of which twice as many give less than PLAN_WORTH more.
static uint32_t workers_worth(const struct plan_request *r, uint32_t batch, uint32_t low, uint32_t high)
{
    double most = 0;
    uint32_t chosen = high;

    for (uint32_t n = low; n <= high; n += 1 + n / 8) {
        struct plan plan, twice;
        plan_predict(r, batch, n, 0, &plan);
        if (plan.price_per_hour != 0) {
            chosen = plan.tokens_per_second / plan.price_per_hour > most ? n : chosen;
            most = MAX(most, plan.tokens_per_second / plan.price_per_hour);
            continue;
        }
        plan_predict(r, batch, MIN(2 * n, high), 0, &twice);
        if (twice.tokens_per_second < PLAN_WORTH * plan.tokens_per_second)
            return n;
    }
    return chosen;
}

// Finds the plan of the fewest workers at a batch that reaches `wanted` in time; where none is wanted, or it cannot be reached, that of as
// many as are worth their cost. false: it does not fit in any memory; *out then says what the nearest would take.
static bool at_batch(const struct plan_request *r, uint32_t batch, double wanted, struct plan *out)
{
    const uint32_t high = most_workers(r, batch);
    struct plan local, most;

    if (r->workers != PLAN_CHOOSE) {
        plan_predict(r, batch, r->workers, 0, out);
        return plan_fits(r, out);
    }
    plan_predict(r, batch, 0, 0, &local);
    plan_predict(r, batch, high, 0, &most);
    const bool local_fits = plan_fits(r, &local) && plan_pool_computes(r), most_fits = plan_fits(r, &most);
    const double best = MAX(local_fits ? local.tokens_per_second : 0, most_fits ? most.tokens_per_second : 0);
    const bool reached = wanted > 0 && wanted <= best, timely = most_fits && in_time(r, &most);
    *out = most_fits ? most : local;
    if (!most_fits)
        return local_fits;
    const uint32_t holding = least_workers(r, batch, 0, false, 1, high);
    const uint32_t worth = reached ? holding : workers_worth(r, batch, holding, high);
    plan_predict(r, batch, least_workers(r, batch, reached ? wanted : 0, timely, worth, high), 0, out);
    const double enough = reached ? wanted : out->tokens_per_second / PLAN_WORTH; // none cost less
    if (local_fits && local.tokens_per_second >= enough && (in_time(r, &local) || !timely)) {
        *out = local;
        return true;
    }
    if (out->workers == holding && holding > 1)
        out->bound_by = PLAN_CAPACITY;
    return true;
}

// --- the batch --------------------------------------------------------------------------------------------------------

static bool has_prices(const struct plan_request *r) { return r->s_part->price_per_hour != 0 && r->worker->price_per_hour != 0; }

// Returns what a plan costs: its price or, where prices are not known, its workers.
static double cost_of(const struct plan_request *r, const struct plan *plan)
{
    return has_prices(r) ? plan->price_per_hour : plan->workers;
}

// Returns the next batch that is tried: a pipeline's layers are cut anew for each, so fewer of them.
static uint32_t next_batch(const struct plan_request *r, uint32_t batch) { return batch + 1 + batch / (r->stages > 1 ? 16 : 128); }

// Finds the plan of the least cost that reaches `wanted` within time and memory, of several the one of the smallest batch; *best is the
// fastest of all that were looked at. false: there is none.
static bool least_reaching(const struct plan_request *r, double wanted, struct plan *out, struct plan *best)
{
    bool found = false;

    *best = (struct plan){0};
    for (uint32_t batch = 1; batch <= PLAN_BATCH_MAX; batch = next_batch(r, batch)) {
        struct plan plan;
        if (!at_batch(r, batch, wanted, &plan) || !in_time(r, &plan))
            continue;
        if (plan.tokens_per_second > best->tokens_per_second)
            *best = plan;
        if (plan.tokens_per_second < wanted || (found && cost_of(r, &plan) >= cost_of(r, out)))
            continue;
        *out = plan;
        found = true;
        if (r->workers != PLAN_CHOOSE || plan.workers == 0) // nothing costs less
            break;
    }
    return found;
}

bool plan_fastest(const struct plan_request *r, struct plan *out)
{
    struct plan none;

    (void)least_reaching(r, INFINITY, &none, out);
    return out->batch > 0;
}

// Finds the plan of the least cost that comes near the most that is reached.
static bool near_most(const struct plan_request *r, struct plan *out)
{
    struct plan best;
    return plan_fastest(r, &best) && least_reaching(r, PLAN_KNEE_SHARE * best.tokens_per_second, out, &best);
}

static enum status make_for_batch(const struct plan_request *r, struct plan *out, struct error *error)
{
    if (!at_batch(r, r->batch, r->tokens_per_second, out))
        return refuse_memory(r, out, error);
    if (!in_time(r, out))
        return error_set(error, STATUS_FAILED_PRECONDITION,
                         "--latency-ms %g: a step of batch %u takes %.1f ms on %u workers (%s binds): a smaller --batch, or other "
                         "hardware",
                         r->latency_ms, out->batch, out->step_ms, out->workers, plan_bound_name(out->bound_by));
    if (out->tokens_per_second < r->tokens_per_second)
        return error_set(
            error, STATUS_FAILED_PRECONDITION,
            "--tokens-per-second %g: batch %u reaches %.0f on %u workers (%s binds): leave out --batch, or other hardware",
            r->tokens_per_second, out->batch, out->tokens_per_second, out->workers, plan_bound_name(out->bound_by));
    return STATUS_OK;
}

// Takes the number of stages of the least cost that holds the model and reaches what is asked for, the fewest where prices are not known;
// without such a number the error is that of the most.
static enum status choose_stages(const struct plan_request *request, struct plan *out, struct error *error)
{
    struct plan_request r = *request;
    enum status found = STATUS_RESOURCE_EXHAUSTED, status;
    struct plan plan;

    for (r.stages = 1; r.stages <= MIN((uint32_t)PLAN_STAGES_MAX, r.shape->layers); r.stages++) {
        status = plan_make(&r, &plan, found ? error : NULL);
        if (!status && (found || (has_prices(&r) && plan.price_per_hour < out->price_per_hour)))
            *out = plan;
        found = status && found ? status : STATUS_OK;
        if (!found && !has_prices(&r))
            break;
    }
    return found;
}

enum status plan_make(const struct plan_request *r, struct plan *out, struct error *error)
{
    if (r->stages == PLAN_CHOOSE)
        return choose_stages(r, out, error);
    if (r->stages > r->shape->layers)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--s-parts %u: %s has only %u layers", r->stages, r->shape->name,
                         r->shape->layers);

    struct plan best, least;

    if (r->workers == 0 && !plan_pool_computes(r))
        return error_set(error, STATUS_INVALID_ARGUMENT, "--workers 0: a GPU's own pool has KV in f16: --kv-type f16, or workers");
    if (r->batch)
        return make_for_batch(r, out, error);
    if (r->tokens_per_second != 0 ? least_reaching(r, r->tokens_per_second, out, &best) : near_most(r, out))
        return STATUS_OK;
    if (!at_batch(r, 1, 0, &least))
        return refuse_memory(r, &least, error);
    if (!in_time(r, &least))
        return error_set(error, STATUS_FAILED_PRECONDITION,
                         "--latency-ms %g: even a single sequence takes %.1f ms a token (%s binds)", r->latency_ms, least.step_ms,
                         plan_bound_name(least.bound_by));
    return error_set(
        error, STATUS_FAILED_PRECONDITION,
        "--tokens-per-second %g: one mesh reaches at most %.0f (batch %u, %u workers, %.0f ms a step, %s binds): %.0f such "
        "meshes, or other hardware",
        r->tokens_per_second, best.tokens_per_second, best.batch, best.workers, best.step_ms, plan_bound_name(best.bound_by),
        ceil(r->tokens_per_second / best.tokens_per_second));
}

// Returns the rate of a mesh of so many workers and stages, at a batch or, where none was asked for, at one that suits it; 0: it does not fit.
static double rate_with(const struct plan_request *request, uint32_t batch, uint32_t workers, uint32_t stages)
{
    struct plan_request r = *request;
    struct plan plan, anew;

    r.workers = workers;
    r.stages = stages;
    plan_predict(&r, batch, workers, 0, &plan);
    const double rate = plan_fits(&r, &plan) ? plan.tokens_per_second : 0;
    const bool chosen = r.batch == 0 && r.tokens_per_second == 0;
    return chosen && near_most(&r, &anew) ? MAX(rate, anew.tokens_per_second) : rate;
}

void plan_one_more(const struct plan_request *request, const struct plan *plan, struct plan_more *out)
{
    struct plan_request r = *request;
    struct hardware link = *r.link;
    struct plan more;

    *out = (struct plan_more){0};
    if (plan->workers)
        out->worker = rate_with(&r, plan->batch, plan->workers + 1, plan->stages);
    if (plan->workers || plan->stages > 1) {
        r.link = &link;
        link.link_gb_per_second *= 2;
        out->link = rate_with(&r, plan->batch, plan->workers, plan->stages);
        r.link = request->link;
    }
    if (plan->stages < MIN((uint32_t)PLAN_STAGES_MAX, r.shape->layers))
        out->s_part = rate_with(&r, plan->batch, plan->workers, plan->stages + 1);
    r.stages = plan->stages;
    plan_predict(&r, 2 * plan->batch, plan->workers, 0, &more);
    out->batch = plan_fits(&r, &more) ? more.tokens_per_second : 0;
}

uint32_t plan_sweep(const struct plan_request *request, struct plan_need *needs, uint32_t capacity)
{
    struct plan_request away = *request, *r = &away;
    double most = 0;
    uint32_t count = 0;

    away.pool_bytes = 0; // what all workers need together, with none of it elsewhere
    for (uint32_t batch = 2; batch <= PLAN_BATCH_MAX && count < capacity; batch *= 2) {
        struct plan plan;
        plan_predict(r, batch, 1, 2, &plan);
        double layer_s = plan.s_part_layer_us / 1e6;
        double s_part_s = 2 * (r->shape->layers * layer_s + (plan.head_us + r->s_part->step_us) / 1e6);
        needs[count] = (struct plan_need){
            .batch = batch,
            .tokens_per_second = batch / s_part_s,
            .worker_gb_per_second = batch / 2.0 * plan_mean_read(r) * shape_kv_bytes(r->shape, r->kv_type) / layer_s / 1e9,
            .network_gbit_per_second = batch / 2.0 * (1 + (double)r->prompt_tokens / r->generated_tokens) *
                                       shape_link_bytes(r->shape) * 8 / layer_s / 1e9,
            .kv_bytes = plan.kv_bytes_per_worker,
        };
        most = MAX(most, needs[count].tokens_per_second);
        count++;
    }
    for (uint32_t i = 0; i < count; i++)
        if (needs[i].tokens_per_second >= PLAN_KNEE_SHARE * most) {
            needs[i].knee = true;
            break;
        }
    return count;
}

// --- more for a mesh that is there -----------------------------------------------------------------------------------

// Finds the fewest workers, at least request->workers, with which a batch reaches the rate. false: none do.
static bool fewest_workers(const struct plan_request *request, struct plan *out)
{
    struct plan_request r = *request;
    uint32_t low = r.workers, high = low;
    struct plan plan, best;

    for (bool reached = false; !reached; high = high ? 2 * high : 1) {
        r.workers = high;
        reached = least_reaching(&r, r.tokens_per_second, out, &best);
        if (reached)
            break;
        if (high >= PLAN_WORKERS_MAX)
            return false;
        low = high + 1;
    }
    while (low < high) {
        r.workers = low + (high - low) / 2;
        if (least_reaching(&r, r.tokens_per_second, &plan, &best)) {
            high = r.workers;
            *out = plan;
        } else {
            low = r.workers + 1;
        }
    }
    return true;
}

static double added_cost(const struct plan_request *r, const struct plan_addition *a)
{
    if (has_prices(r))
        return a->s_parts * r->s_part->price_per_hour + a->workers * r->worker->price_per_hour;
    return (double)a->s_parts + a->workers;
}

enum status plan_add(const struct plan_request *request, struct plan *now, struct plan_addition *additions, uint32_t *count,
                     struct error *error)
{
    struct plan_request r = *request;
    struct plan best = {0};

    *count = 0;
    if (r.tokens_per_second <= 0)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--tokens-per-second is missing: the rate that the mesh is to reach");
    if (!plan_fastest(&r, now)) // it does not hold the model
        *now = (struct plan){.workers = r.workers, .stages = MAX(r.stages, 1u)};
    for (r.stages = now->stages; r.stages <= MIN((uint32_t)PLAN_STAGES_MAX, r.shape->layers); r.stages++) {
        struct plan_addition a = {.s_parts = r.stages - now->stages};
        if (!fewest_workers(&r, &a.plan)) {
            struct plan_request most = r;
            most.workers = PLAN_WORKERS_MAX;
            if (plan_fastest(&most, &a.plan) && a.plan.tokens_per_second > best.tokens_per_second)
                best = a.plan;
            continue;
        }
        a.workers = a.plan.workers - r.workers;
        uint32_t at = (*count)++;
        for (; at > 0 && added_cost(&r, &a) < added_cost(&r, &additions[at - 1]); at--)
            additions[at] = additions[at - 1];
        additions[at] = a;
        if (a.workers == 0) // more S-parts only cost more
            break;
    }
    if (*count)
        return STATUS_OK;
    return error_set(
        error, STATUS_FAILED_PRECONDITION,
        "--tokens-per-second %g: with up to %d S-parts and any number of workers such a mesh reaches %.0f (%s binds): a "
        "second mesh beside it, a faster link, or other machines",
        r.tokens_per_second, PLAN_STAGES_MAX, best.tokens_per_second, plan_bound_name(best.bound_by));
}

// --- the cheapest mix of meshes -------------------------------------------------------------------------------------

enum { CANDIDATES = 256 };

// The meshes worth considering: none costs more and reaches less than another.
struct candidates {
    struct plan_mix_part list[CANDIDATES];
    uint32_t count;
};

static void offer_mesh(struct candidates *c, const struct plan_mix_part *part)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < c->count; i++) {
        const struct plan *other = &c->list[i].plan;
        if (other->price_per_hour <= part->plan.price_per_hour && other->tokens_per_second >= part->plan.tokens_per_second)
            return;
    }
    for (uint32_t i = 0; i < c->count; i++)
        if (c->list[i].plan.price_per_hour < part->plan.price_per_hour ||
            c->list[i].plan.tokens_per_second > part->plan.tokens_per_second)
            c->list[kept++] = c->list[i];
    c->count = kept;
    if (c->count < CANDIDATES)
        c->list[c->count++] = *part;
}

static enum status check_prices(const struct hardware *list, uint32_t count, struct error *error)
{
    for (uint32_t i = 0; i < count; i++)
        if (list[i].price_per_hour == 0)
            return error_set(error, STATUS_INVALID_ARGUMENT, "%s has no price_per_hour: the cheapest mix needs one of each",
                             list[i].name);
    return STATUS_OK;
}

static void choose_mix(const struct candidates *c, double wanted, struct plan_mix *out)
{
    out->price_per_hour = INFINITY;
    for (uint32_t i = 0; i < c->count; i++)
        for (uint32_t j = 0; j < c->count; j++) {
            const struct plan *first = &c->list[i].plan, *second = &c->list[j].plan;
            double most = MIN(ceil(wanted / first->tokens_per_second), (double)PLAN_MIX_COUNT);
            for (double n = j == i ? most : 1; n <= most; n++) {
                double rest = ceil(MAX(0, wanted - n * first->tokens_per_second) / second->tokens_per_second);
                double price = n * first->price_per_hour + rest * second->price_per_hour;
                if (rest > PLAN_MIX_COUNT || price >= out->price_per_hour * (1 - 1e-12))
                    continue;
                out->price_per_hour = price;
                out->parts[0] = c->list[i];
                out->parts[0].count = (uint32_t)n;
                out->parts[1] = c->list[j];
                out->parts[1].count = (uint32_t)rest;
                out->part_count = rest > 0 ? 2 : 1;
                out->tokens_per_second = n * first->tokens_per_second + rest * second->tokens_per_second;
            }
        }
    out->cost_per_million = out->price_per_hour / 3600 / out->tokens_per_second * 1e6;
}

enum status plan_cheapest(const struct plan_request *request, const struct hardware *s_parts, uint32_t s_part_count,
                          const struct hardware *workers, uint32_t worker_count, struct plan_mix *out, struct error *error)
{
    struct plan_request r = *request;
    struct candidates candidates = {.count = 0};
    enum status status = check_prices(s_parts, s_part_count, error);

    if (!status)
        status = check_prices(workers, worker_count, error);
    if (status)
        return status;
    if (r.tokens_per_second == 0)
        return error_set(error, STATUS_INVALID_ARGUMENT, "the cheapest mix of what? --tokens-per-second is missing");
    for (uint32_t i = 0; i < s_part_count; i++)
        for (uint32_t j = 0; j < worker_count; j++)
            for (r.workers = 0; r.workers <= PLAN_MIX_WORKERS; r.workers++) {
                struct plan_mix_part part = {.s_part = r.s_part = &s_parts[i], .worker = r.worker = &workers[j]};
                if (plan_fastest(&r, &part.plan))
                    offer_mesh(&candidates, &part);
            }
    if (candidates.count == 0)
        return error_set(error, STATUS_FAILED_PRECONDITION,
                         "no S-part of these holds %s and gives a token in time, with or without workers", r.shape->name);
    choose_mix(&candidates, r.tokens_per_second, out);
    if (isinf(out->price_per_hour))
        return error_set(error, STATUS_FAILED_PRECONDITION, "--tokens-per-second %g: more than %d meshes are needed",
                         r.tokens_per_second, PLAN_MIX_COUNT);
    return STATUS_OK;
}
