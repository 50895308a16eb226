// pipeline.c: see pipeline.h.
#include "common/plan/pipeline.h"

#include <math.h>

#include "common/base/checked.h"
#include "common/plan/plan_internal.h"
#include "common/sched/sched_settings.h"

double plan_hop_us(const struct plan_request *r, double rows)
{
    double bytes_per_us = r->link->link_gb_per_second * GIGA / US;
    return r->link->link_round_trip_us / 2 + 4.0 * rows * r->shape->hidden / bytes_per_us;
}

// A step of a mini-batch of so many sequences.
struct rows {
    double decode, prefill;
};

static struct rows rows_of(const struct plan_request *r, uint32_t batch, uint32_t mini_batches)
{
    double decode = ceil((double)batch / mini_batches);
    return (struct rows){decode, decode * r->prompt_tokens / r->generated_tokens};
}

// What is to be split, with its arrays.
struct stages {
    struct plan_split split;
    struct cost_s_part all;
    double layer_us[PLAN_SPLIT_LAYERS_MAX];
    uint64_t layer_bytes[PLAN_SPLIT_LAYERS_MAX], memory[PLAN_STAGES_MAX];
};

// Describes the stages; attend_us is what each of their layers takes for attention of its own.
static void describe(const struct plan_request *r, struct rows rows, double attend_us, uint32_t pool_sequences, uint32_t batch,
                     struct stages *out)
{
    const struct plan_shape *shape = r->shape;
    double kv_bytes = pool_sequences * plan_sequence_kv_bytes(r) / shape->layers;

    plan_s_part(r, &out->all);
    out->split = (struct plan_split){.layer_us = out->layer_us,
                                     .layer_bytes = out->layer_bytes,
                                     .layer_count = MIN(out->all.layers, (uint32_t)PLAN_SPLIT_LAYERS_MAX),
                                     .embed_us = plan_step_rest_us(r, rows.decode),
                                     .head_us = cost_curve_at(&out->all.head, rows.decode),
                                     .embed_bytes = shape->embedding_bytes,
                                     .head_bytes = shape->head_bytes,
                                     .stage_bytes = (uint64_t)(plan_activation_bytes(r, batch) / r->stages),
                                     .stages = r->stages,
                                     .memory_bytes = out->memory};
    for (uint32_t l = 0; l < out->split.layer_count; l++) {
        out->layer_us[l] = cost_curve_at(&out->all.layer, rows.decode + rows.prefill) + attend_us;
        out->layer_bytes[l] = shape->layer_bytes + (uint64_t)kv_bytes;
    }
    for (uint32_t i = 0; i < r->stages; i++)
        out->memory[i] = r->ignore_capacity ? 0 : r->s_part->memory_bytes;
}

enum status plan_stages(const struct plan_request *r, uint32_t batch, uint32_t workers, struct cost_s_part *out,
                        struct plan_range *ranges, struct error *error)
{
    struct stages stages;
    double slowest_us;

    describe(r, rows_of(r, batch, sched_mini_batches_most(r->stages, workers > 0)), 0, plan_pool_sequences(r, batch, workers),
             batch, &stages);
    enum status status = plan_split_layers(&stages.split, ranges, &slowest_us, error);
    for (uint32_t i = 0; !status && i < r->stages; i++) {
        out[i] = stages.all;
        out[i].layers = ranges[i].end - ranges[i].first;
        out[i].step_us = i == 0 ? stages.all.step_us : 0;
        out[i].head = i + 1 == r->stages ? stages.all.head : (struct cost_curve){0};
    }
    return status;
}

// Prompts are part of every step, so they cost what their rows add to it, with attention where the S-part is.
// Returns the time of their attention in a layer.
static double predict_layer(const struct plan_request *r, struct rows rows, double local, uint32_t workers, struct plan *out)
{
    struct cost_s_part s;
    struct cost_r_part place;

    plan_predict_layer(r, rows.decode, local, workers, out);
    plan_s_part(r, &s);
    plan_r_part(r, workers, &place);
    double pairs_us = rows.prefill * (r->prompt_tokens + 1.0) / 2 * place.prefill_us;
    out->s_part_layer_us = cost_curve_at(&s.layer, rows.decode + rows.prefill) + pairs_us;
    return pairs_us;
}

static void cut(const struct plan_request *r, struct rows rows, double attend_us, struct plan *out)
{
    struct plan_range ranges[PLAN_STAGES_MAX] = {{0, 0}};
    struct stages stages;
    struct error error;
    double slowest_us;

    describe(r, rows, attend_us, out->pool_sequences, out->batch, &stages);
    if (plan_split_layers(&stages.split, ranges, &slowest_us, &error)) {
        stages.split.memory_bytes = NULL;
        if (plan_split_layers(&stages.split, ranges, &slowest_us, &error)) // more stages than layers
            ranges[0].end = stages.split.layer_count;
    }
    for (uint32_t i = 0; i < r->stages; i++)
        out->stage[i] = (struct plan_stage){.layers = ranges[i],
                                            .turn_us = plan_split_us(&stages.split, i, ranges[i]),
                                            .bytes = (double)plan_split_bytes(&stages.split, i, ranges[i])};
}

void plan_predict_pipeline(const struct plan_request *r, uint32_t batch, uint32_t workers, uint32_t each, struct plan *out)
{
    double layers = r->shape->layers, slowest_us = 0, sum_us = 0;

    *out = (struct plan){.batch = batch,
                         .workers = workers,
                         .mini_batches = each * r->stages,
                         .stages = r->stages,
                         .pool_sequences = plan_pool_sequences(r, batch, workers)};
    struct rows rows = rows_of(r, batch, out->mini_batches);
    double pairs_us = predict_layer(r, rows, workers ? (double)out->pool_sequences / out->mini_batches : 0, workers, out);
    double own_us = workers ? out->pool_layer_us : out->r_part_layer_us, wait_us = out->r_part_layer_us + out->link_layer_us;
    cut(r, rows, own_us + pairs_us, out);
    for (uint32_t i = 0; i < r->stages; i++) {
        slowest_us = MAX(slowest_us, out->stage[i].turn_us);
        sum_us += out->stage[i].turn_us;
    }
    out->hop_us = plan_hop_us(r, rows.decode + rows.prefill);
    double m = out->mini_batches, read_us = workers ? layers * out->r_part_layer_us : 0;
    double through_us = sum_us + (workers ? layers * wait_us : 0) + (r->stages - 1) * out->hop_us;
    double step_us = MAX(MAX(m * slowest_us, m * read_us), through_us);
    out->step_ms = step_us / 1e3;
    out->tokens_per_second = batch / (step_us / US);
    double attend_us = m * layers * out->r_part_layer_us; // without workers it is in the stages' turns, each one's at the same time
    out->s_part_busy = (m * sum_us - (workers ? 0 : attend_us)) / step_us / r->stages;
    out->r_part_busy = attend_us / step_us / (workers ? 1 : r->stages);
    out->network_gbit_per_second =
        workers ? (batch - out->pool_sequences) * layers * shape_link_bytes(r->shape) * 8 / GIGA / (step_us / US) : 0;
    out->bound_by = m * slowest_us >= step_us                              ? PLAN_S_PART
                    : m * read_us >= step_us                               ? PLAN_R_PART
                    : workers && out->link_layer_us > out->r_part_layer_us ? PLAN_NETWORK
                    : workers                                              ? PLAN_R_PART
                                                                           : PLAN_S_PART;
}
