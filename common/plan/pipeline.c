// pipeline.c: see pipeline.h.
#include "common/plan/pipeline.h"

#include <math.h>

#include "common/base/checked.h"

#define GIGA 1e9
#define US 1e6 // in a second

uint32_t plan_mini_batches(uint32_t stages, uint32_t workers) { return MAX(stages, 1u) * (workers ? 2 : 1); }

struct plan_rows plan_step_rows(const struct plan_request *r, uint32_t batch, uint32_t workers)
{
    double decode = ceil((double)batch / plan_mini_batches(r->stages, workers));
    return (struct plan_rows){decode, decode * r->prompt_tokens / r->generated_tokens};
}

double plan_hop_us(const struct plan_request *r, double rows)
{
    double bytes_per_us = r->link->link_gb_per_second * GIGA / US;
    return r->link->link_round_trip_us / 2 + 4.0 * rows * r->shape->hidden / bytes_per_us;
}

enum status plan_stages(const struct plan_request *r, struct plan_rows rows, struct cost_s_part *out, struct plan_range *ranges,
                        struct error *error)
{
    double layer_us[PLAN_SPLIT_LAYERS_MAX], slowest_us;
    uint64_t layer_bytes[PLAN_SPLIT_LAYERS_MAX], memory[PLAN_STAGES_MAX];
    struct cost_s_part all;

    plan_s_part(r, &all);
    if (all.layers > PLAN_SPLIT_LAYERS_MAX || r->stages > PLAN_STAGES_MAX)
        return error_set(error, STATUS_INVALID_ARGUMENT, "%u layers over %u s-parts: %d layers over %d are the most", all.layers,
                         r->stages, PLAN_SPLIT_LAYERS_MAX, PLAN_STAGES_MAX);
    struct plan_split split = {.layer_us = layer_us,
                               .layer_bytes = layer_bytes,
                               .layer_count = all.layers,
                               .embed_us = all.step_us,
                               .head_us = cost_curve_at(&all.head, rows.decode),
                               .stages = MAX(r->stages, 1u),
                               .memory_bytes = memory};
    for (uint32_t l = 0; l < all.layers; l++) {
        layer_us[l] = cost_curve_at(&all.layer, rows.decode + rows.prefill);
        layer_bytes[l] = r->shape->layer_bytes;
    }
    split.embed_bytes = r->shape->embedding_bytes;
    split.head_bytes = r->shape->head_bytes;
    for (uint32_t i = 0; i < split.stages; i++)
        memory[i] = r->ignore_capacity ? 0 : r->s_part->memory_bytes;
    enum status status = plan_split_layers(&split, ranges, &slowest_us, error);
    for (uint32_t i = 0; !status && i < split.stages; i++) {
        out[i] = all;
        out[i].layers = ranges[i].end - ranges[i].first;
        out[i].step_us = i == 0 ? all.step_us : 0;
        out[i].head = i + 1 == split.stages ? all.head : (struct cost_curve){0};
    }
    return status;
}
