// mix.c: see mix.h.
#include "common/plan/mix.h"

#include <math.h>

#include "common/base/checked.h"

enum { CANDIDATES = 256 };

// The meshes worth considering: none costs more and reaches less than another.
struct candidates {
    struct plan_mix_part list[CANDIDATES];
    uint32_t count;
};

static void offer(struct candidates *c, const struct plan_mix_part *part)
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

static void choose(const struct candidates *c, double wanted, struct plan_mix *out)
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
                    offer(&candidates, &part);
            }
    if (candidates.count == 0)
        return error_set(error, STATUS_FAILED_PRECONDITION,
                         "no S-part of these holds %s and gives a token in time, with or without workers", r.shape->name);
    choose(&candidates, r.tokens_per_second, out);
    if (isinf(out->price_per_hour))
        return error_set(error, STATUS_FAILED_PRECONDITION, "--tokens-per-second %g: more than %d meshes are needed",
                         r.tokens_per_second, PLAN_MIX_COUNT);
    return STATUS_OK;
}
