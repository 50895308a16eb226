// extents.c: see extents.h.
#include "common/plan/extents.h"

#include "common/base/checked.h"
#include "common/kv/kv_ledger.h"
#include "common/kv/kv_partials.h"

static double sequence_bytes(const struct plan_request *r)
{
    return ((double)r->prompt_tokens + r->generated_tokens) * r->shape->layers * shape_kv_bytes(r->shape, r->kv_type);
}

bool plan_extents_needed(const struct plan_request *r)
{
    return !r->ignore_capacity && sequence_bytes(r) > (double)r->worker->memory_bytes;
}

// Returns where an extent begins, of `places` of as many units each.
static uint32_t begin_of(uint32_t units, uint32_t place, uint32_t places)
{
    return (uint32_t)((uint64_t)units * place / places) * KV_EXTENT_TOKENS;
}

bool plan_extents(const struct plan_request *r, uint32_t workers, struct plan_extents *out)
{
    const struct plan_shape *shape = r->shape;
    uint32_t places = MIN(workers, (uint32_t)PLAN_EXTENT_PLACES_MAX), tokens = r->prompt_tokens + r->generated_tokens;
    uint32_t units = (tokens + KV_EXTENT_TOKENS - 1) / KV_EXTENT_TOKENS;

    if (!plan_extents_needed(r) || sequence_bytes(r) > (double)r->worker->memory_bytes * places)
        return false;
    places = MIN(places, units);
    *out = (struct plan_extents){.tokens = tokens, .workers = places, .spans = (tokens + ATTEND_SPAN - 1) / ATTEND_SPAN};
    for (uint32_t i = 0; i < places; i++)
        out->partials += kv_partial_count(begin_of(units, i, places), begin_of(units, i + 1, places));
    double q = 4.0 * shape->heads * shape->head_dim, partial = 4.0 * (double)kv_partial_floats(shape->heads, shape->head_dim);
    out->whole_bytes = shape_link_bytes(shape);
    out->layer_bytes = out->whole_bytes - q + (places - 1) * q + out->partials * partial;
    return true;
}
