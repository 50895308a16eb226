// split.c: see split.h.
#include "common/plan/split.h"

#include <math.h>
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/model/model.h"

#define GIB (1024.0 * 1024.0 * 1024.0)

double plan_split_us(const struct plan_split *s, uint32_t stage, struct plan_range range)
{
    double us = (stage == 0 ? s->embed_us : 0) + (stage + 1 == s->stages ? s->head_us : 0);

    for (uint32_t l = range.first; l < range.end; l++)
        us += s->layer_us[l];
    return us;
}

uint64_t plan_split_bytes(const struct plan_split *s, uint32_t stage, struct plan_range range)
{
    uint64_t bytes = s->stage_bytes + (stage == 0 ? s->embed_bytes : 0) + (stage + 1 == s->stages ? s->head_bytes : 0);

    for (uint32_t l = range.first; s->layer_bytes && l < range.end; l++)
        bytes += s->layer_bytes[l];
    return bytes;
}

static uint64_t memory_of(const struct plan_split *s, uint32_t stage)
{
    uint64_t bytes = s->memory_bytes ? s->memory_bytes[stage] : 0;
    return bytes ? bytes : UINT64_MAX;
}

// The measure by which cuts are chosen: the slowest stage, or the sum of the squares where none may take longer than most_us.
struct goal {
    bool slowest;
    double most_us;
};

// Finds the best cuts stage by stage: cost[l] is the best that the stages so far reach with the first l layers, and from[stage][l] the
// first layer of the last of them. Returns the best for all; INFINITY: nothing fits.
static double cut_layers(const struct plan_split *s, struct goal goal, struct plan_range *ranges)
{
    static const double none = INFINITY;
    uint16_t from[PLAN_STAGES_MAX][PLAN_SPLIT_LAYERS_MAX + 1];
    double cost[PLAN_SPLIT_LAYERS_MAX + 1];

    for (uint32_t l = 0; l <= s->layer_count; l++)
        cost[l] = l == 0 ? 0 : none;
    for (uint32_t stage = 0; stage < s->stages; stage++) {
        for (uint32_t end = s->layer_count + 1; end-- > 0;) { // downwards: cost[first] is still the stage before's
            double best = none, us = plan_split_us(s, stage, (struct plan_range){end, end});
            uint64_t bytes = plan_split_bytes(s, stage, (struct plan_range){end, end});
            from[stage][end] = 0;
            for (uint32_t first = end; first-- > 0;) {
                us += s->layer_us[first];
                bytes += s->layer_bytes ? s->layer_bytes[first] : 0;
                if (bytes > memory_of(s, stage) || us > goal.most_us)
                    break;
                double all = goal.slowest ? MAX(cost[first], us) : cost[first] + us * us;
                if (all < best) {
                    best = all;
                    from[stage][end] = (uint16_t)first;
                }
            }
            cost[end] = best;
        }
    }
    for (uint32_t stage = s->stages, end = s->layer_count; stage-- > 0; end = from[stage][end])
        ranges[stage] = (struct plan_range){from[stage][end], end};
    return cost[s->layer_count];
}

// Returns a time that the best cut does not exceed, if memory allows: that of stages with equal numbers of layers. It makes the search short.
static double even_us(const struct plan_split *s)
{
    uint32_t each = (s->layer_count + s->stages - 1) / s->stages;
    double longest_us = 0;

    for (uint32_t l = 0; l < s->layer_count; l++)
        longest_us = MAX(longest_us, s->layer_us[l]);
    return (each * longest_us + s->embed_us + s->head_us) * (1 + 1e-9);
}

static enum status refuse_split(const struct plan_split *s, struct error *error)
{
    double needed = (double)plan_split_bytes(s, 0, (struct plan_range){0, s->layer_count}), has = 0;

    needed += (double)(s->stages > 1 ? s->head_bytes : 0) + (double)(s->stages - 1) * (double)s->stage_bytes;
    for (uint32_t stage = 0; stage < s->stages; stage++)
        has += (double)memory_of(s, stage);
    return error_set(error, STATUS_RESOURCE_EXHAUSTED,
                     "%u s-part%s with %.2f GiB in all cannot hold %u layers, which take %.2f GiB with embedding and head: more "
                     "s-parts, or more memory for them",
                     s->stages, s->stages > 1 ? "s" : "", has / GIB, s->layer_count, needed / GIB);
}

enum status plan_split_layers(const struct plan_split *s, struct plan_range *ranges, double *slowest_us, struct error *error)
{
    if (s->stages == 0 || s->stages > PLAN_STAGES_MAX || s->layer_count < s->stages || s->layer_count > PLAN_SPLIT_LAYERS_MAX)
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "%u layers over %u s-parts: each needs a layer, and %d layers over %d s-parts are the most",
                         s->layer_count, s->stages, PLAN_SPLIT_LAYERS_MAX, PLAN_STAGES_MAX);
    *slowest_us = cut_layers(s, (struct goal){.slowest = true, .most_us = even_us(s)}, ranges);
    if (isinf(*slowest_us)) // memory does not allow it
        *slowest_us = cut_layers(s, (struct goal){.slowest = true, .most_us = INFINITY}, ranges);
    if (isinf(*slowest_us))
        return refuse_split(s, error);
    // Sums of times taken in another order differ in their last bits.
    (void)cut_layers(s, (struct goal){.slowest = false, .most_us = *slowest_us * (1 + 1e-9)}, ranges);
    return STATUS_OK;
}

enum status plan_split_read(const char *text, uint32_t layers, uint32_t *stages, struct plan_range *ranges, struct error *error)
{
    enum { LAYERS_MOST = 1 << 20 };
    const char *at = text;
    uint32_t first = 0, count = 0;

    for (bool more = true; more; at++) {
        char *end = NULL;
        unsigned long own = *at >= '0' && *at <= '9' ? strtoul(at, &end, 10) : 0;
        if (own == 0 || own > LAYERS_MOST || (*end != ',' && *end != '\0'))
            return error_set(error, STATUS_INVALID_ARGUMENT, "--split is '%.64s', want the layers of each stage, such as 19,11",
                             text);
        if (count == PLAN_STAGES_MAX)
            return error_set(error, STATUS_INVALID_ARGUMENT, "--split %.64s has more than %d stages", text, PLAN_STAGES_MAX);
        ranges[count++] = (struct plan_range){first, first + (uint32_t)own};
        first += (uint32_t)own;
        at = end;
        more = *end == ',';
    }
    if (*stages && count != *stages)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--split %.64s has %u stage%s, %u %s wanted", text, count,
                         count == 1 ? "" : "s", *stages, *stages == 1 ? "is" : "are");
    if (first != layers)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--split %.64s has %u layer%s in all, the model has %u", text, first,
                         first == 1 ? "" : "s", layers);
    *stages = count;
    return STATUS_OK;
}

// --- a model's layers -----------------------------------------------------------------------------------------------

static uint64_t layer_bytes(const struct model_layer *layer)
{
    return layer->q.bytes + layer->k.bytes + layer->v.bytes + layer->o.bytes + layer->gate.bytes + layer->up.bytes +
           layer->down.bytes;
}

enum status plan_split_model(const struct model *model, uint32_t stages, struct plan_range *ranges, struct error *error)
{
    double slowest, *layers = calloc(model->shape.layers, sizeof *layers);

    assert_always(layers); // a few kilobytes
    for (uint32_t i = 0; i < model->shape.layers; i++)
        layers[i] = (double)layer_bytes(&model->layers[i]);
    const struct plan_split split = {
        .layer_us = layers, .layer_count = model->shape.layers, .head_us = (double)model->output.bytes, .stages = stages};
    enum status status = plan_split_layers(&split, ranges, &slowest, error);
    free(layers);
    return status;
}
