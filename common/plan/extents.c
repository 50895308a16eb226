// extents.c: see extents.h.
#include "common/plan/extents.h"

#include "common/base/checked.h"

static double sequence_bytes(const struct plan_request *r)
{
    return ((double)r->prompt_tokens + r->generated_tokens) * r->shape->layers * shape_kv_bytes(r->shape, r->kv_type);
}

bool plan_extents_needed(const struct plan_request *r)
{
    return !r->ignore_capacity && sequence_bytes(r) > (double)r->worker->memory_bytes;
}

// Returns the partial results of positions [first, end), in ranges.
static uint32_t partials_of(uint32_t first, uint32_t end)
{
    uint32_t span = PLAN_SPAN_TOKENS / PLAN_EXTENT_TOKENS, single = MIN(end - first, (span - first % span) % span);
    return single + (end - first - single + span - 1) / span;
}

bool plan_extents(const struct plan_request *r, uint32_t workers, struct plan_extents *out)
{
    const struct plan_shape *shape = r->shape;
    uint32_t places = MIN(workers, (uint32_t)PLAN_EXTENT_PLACES_MAX), tokens = r->prompt_tokens + r->generated_tokens;
    uint32_t ranges = (tokens + PLAN_EXTENT_TOKENS - 1) / PLAN_EXTENT_TOKENS;

    if (!plan_extents_needed(r) || sequence_bytes(r) > (double)r->worker->memory_bytes * places)
        return false;
    places = MIN(places, ranges);
    *out = (struct plan_extents){.tokens = tokens, .workers = places, .spans = (tokens + PLAN_SPAN_TOKENS - 1) / PLAN_SPAN_TOKENS};
    for (uint32_t i = 0; i < places; i++)
        out->partials += partials_of((uint32_t)((uint64_t)ranges * i / places), (uint32_t)((uint64_t)ranges * (i + 1) / places));
    double q = 4.0 * shape->heads * shape->head_dim, partial = 4.0 * shape->heads * (shape->head_dim + 2.0);
    out->whole_bytes = shape_link_bytes(shape);
    out->layer_bytes = out->whole_bytes - q + (places - 1) * q + out->partials * partial;
    return true;
}
