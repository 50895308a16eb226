// plan_predict.c: one setting: the faster number of mini-batches, of one s-part or of a pipeline, then memory and price. See plan.h.
#include <math.h>

#include "common/base/checked.h"
#include "common/plan/extents.h"
#include "common/plan/pipeline.h"
#include "common/plan/plan_internal.h"
#include "common/sched/sched_settings.h"

// --- memory and price -------------------------------------------------------------------------------------------------

static double s_part_bytes(const struct plan_request *r, uint32_t batch)
{
    const struct plan_shape *s = r->shape;

    return s->layers * (double)s->layer_bytes + (double)s->head_bytes + (double)s->embedding_bytes +
           plan_activation_bytes(r, batch);
}

// Returns the sequences of the fullest worker, or of the pool. Those that no worker can hold lie at all of them.
static double workers_share(const struct plan_request *r, const struct plan *plan)
{
    if (plan->workers && plan_extents_needed(r))
        return (double)(plan->batch - plan->pool_sequences) / plan->workers;
    return plan->workers ? ceil((double)(plan->batch - plan->pool_sequences) / plan->workers) : plan->batch;
}

// See plan.h. Workers on the S-part's cores have one memory between them.
static void add_hybrid_bound(const struct plan_request *r, double left_bytes, struct plan *out)
{
    double gpu = r->s_part->memory_gb_per_second * GIGA, m = r->pool_bytes ? (double)r->pool_bytes : left_bytes;
    double workers = 0;
    struct cost_s_part s;

    if (m <= 0)
        return;
    if (out->workers)
        workers = r->worker->memory_gb_per_second * GIGA * (r->worker->shares_cores ? 1 : out->workers);
    plan_s_part(r, &s);
    double weights_s = (s.layers * cost_curve_at(&s.layer, 1) + cost_curve_at(&s.head, 1)) / US;
    out->hybrid_pool_bytes = m;
    out->hybrid_gain_bound = 1 + workers * (weights_s + m / gpu) / m;
}

static void add_memory_and_price(const struct plan_request *r, struct plan *out)
{
    double each = workers_share(r, out), own_bytes = s_part_bytes(r, out->batch);

    out->kv_tokens = out->batch * plan_mean_context(r);
    out->kv_bytes_per_worker = each * plan_sequence_kv_bytes(r);
    if (out->stages > 1) { // the fullest one's
        for (uint32_t i = 0; i < out->stages; i++)
            out->s_part_bytes = MAX(out->s_part_bytes, out->stage[i].bytes);
    } else {
        out->s_part_bytes = own_bytes + out->pool_sequences * plan_sequence_kv_bytes(r);
        add_hybrid_bound(r, (double)r->s_part->memory_bytes - own_bytes, out);
    }
    if (r->s_part->price_per_hour != 0 && (out->workers == 0 || r->worker->price_per_hour != 0)) {
        out->price_per_hour = out->stages * r->s_part->price_per_hour + out->workers * r->worker->price_per_hour;
        out->cost_per_million = out->price_per_hour / 3600 / out->tokens_per_second * 1e6;
    }
}

void plan_predict(const struct plan_request *r, uint32_t batch, uint32_t workers, uint32_t mini_batches, struct plan *out)
{
    void (*const predict)(const struct plan_request *, uint32_t, uint32_t, uint32_t, struct plan *) =
        r->stages > 1 ? plan_predict_pipeline : plan_predict_one;
    const uint32_t stages = MAX(r->stages, 1u);
    const bool waits = workers && !r->worker->shares_cores; // for workers with cores of their own
    struct plan more;

    mini_batches = mini_batches ? mini_batches : r->mini_batches;
    predict(r, batch, workers, MAX(mini_batches, 1u), out);
    for (uint32_t m = 2; mini_batches == 0 && m <= MIN(sched_mini_batches_most(stages, waits) / stages, batch); m++) {
        predict(r, batch, workers, m, &more);
        if (more.step_ms < out->step_ms)
            *out = more;
    }
    add_memory_and_price(r, out);
}
