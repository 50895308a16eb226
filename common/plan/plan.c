// plan.c: what one setting of a mesh reaches. See plan.h.
#include "common/plan/plan.h"

#include <math.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/kv/kv_ledger.h"
#include "common/kv/kv_shape.h"
#include "common/sched/settings.h"
#include "common/sched/step_time.h"

#define GIGA 1e9
#define US 1e6 // in a second

enum { CHUNK_ROWS = 512, TILE_ROWS = 8, STEP_TARGET_US = 16000, STRETCH = 2 }; // the scheduling core's defaults

const char *plan_bound_name(enum plan_bound bound)
{
    static const char *const names[] = {"S-part", "R-part", "network", "capacity"};
    return names[bound];
}

// --- the model --------------------------------------------------------------------------------------------------------

static double start_spacing(const struct plan_request *r) { return r->spacing ? r->spacing : MAX(1u, r->generated_tokens / 32); }

double plan_mean_context(const struct plan_request *r) { return r->prompt_tokens + (r->generated_tokens + start_spacing(r)) / 2; }

double plan_mean_read(const struct plan_request *r)
{
    double context = plan_mean_context(r), windowed = (double)r->shape->windowed_layers / MAX(r->shape->layers, 1u);
    return context - windowed * MAX(context - r->shape->window, 0);
}

// Returns what a row of a prompt reads of its context in a layer, in the mean over its rows.
static double prompt_mean_read(const struct plan_request *r)
{
    const double p = r->prompt_tokens, w = MIN((double)r->shape->window, p);
    const double windowed = (double)r->shape->windowed_layers / MAX(r->shape->layers, 1u), whole = (p + 1) / 2;
    return whole - (windowed > 0 && p > 0 ? windowed * (whole - (w * (w + 1) / 2 + (p - w) * w) / p) : 0);
}

const struct plan_weights *plan_weights_of(const struct plan_shape *shape, const struct hardware *s_part)
{
    return &shape->in[hardware_is_gpu(s_part) ? SHAPE_GPU : SHAPE_HOST];
}

static double floats_per_us(const struct hardware *h) { return (h->f16_tflops != 0 ? h->f16_tflops : h->f32_tflops) * 1e12 / US; }

double plan_products_per_us(const struct hardware *h, bool quantized)
{
    const bool in_8_bits = quantized && h->int8_tops != 0 && (!hardware_is_gpu(h) || floats_per_us(h) <= 0);
    return MAX(in_8_bits ? h->int8_tops * 1e12 / US : floats_per_us(h), 1) * h->products_share;
}

double plan_attention_per_us(const struct hardware *h)
{
    return MAX(h->prompt_attention_tflops != 0 ? h->prompt_attention_tflops * 1e12 / US : floats_per_us(h) * h->products_share, 1);
}

// Flat while the weights are read, then a line: three points describe it exactly.
static void roofline(const struct plan_request *r, uint64_t values, uint64_t bytes, double fixed_us, struct cost_curve *out)
{
    const struct hardware *h = r->s_part;
    double read_us = (double)bytes / (h->memory_gb_per_second * h->weights_share * GIGA) * US;
    double row_us = 2.0 * (double)values / plan_products_per_us(h, r->shape->quantized);
    double knee = MAX(1, read_us / row_us);

    out->count = 0;
    cost_curve_add(out, 1, fixed_us + MAX(read_us, row_us));
    cost_curve_add(out, knee, fixed_us + knee * row_us);
    cost_curve_add(out, 2 * knee, fixed_us + 2 * knee * row_us);
}

// With experts the bytes grow with the rows until each has some: of E experts, rows that use k each leave out a share of (1 - k / E) ^ rows.
static void roofline_of_experts(const struct plan_request *r, struct cost_curve *out)
{
    enum { ROWS_MOST = 256 };
    const struct plan_shape *s = r->shape;
    const struct plan_weights *w = plan_weights_of(r->shape, r->s_part);
    const double used = (double)s->experts_used / s->experts;
    const uint64_t values = s->layer_values - s->expert_values, active = values + (uint64_t)(used * (double)s->expert_values);
    struct cost_curve whole = {0};

    out->count = 0;
    for (uint32_t rows = 1; rows <= ROWS_MOST; rows *= 2) {
        double touched = 1 - pow(1 - used, rows);
        struct cost_curve part = {0};
        roofline(r, active, w->layer_bytes - (uint64_t)((1 - touched) * (double)w->expert_bytes), r->s_part->layer_us, &part);
        cost_curve_add(out, rows, cost_curve_at(&part, rows));
    }
    roofline(r, active, w->layer_bytes, r->s_part->layer_us, &whole);
    for (uint32_t i = 1; i < whole.count; i++)
        if (whole.rows[i] > ROWS_MOST)
            cost_curve_add(out, whole.rows[i], whole.us[i]);
}

void plan_s_part(const struct plan_request *r, struct cost_s_part *out)
{
    const struct plan_shape *s = r->shape;
    double first = ((double)s->heads + 2.0 * s->kv_heads) * s->head_dim * s->hidden;

    *out = (struct cost_s_part){.layers = s->layers, .first_share = first / (double)s->layer_values, .step_us = r->s_part->step_us};
    if (s->experts)
        roofline_of_experts(r, &out->layer);
    else
        roofline(r, s->layer_values, plan_weights_of(r->shape, r->s_part)->layer_bytes, r->s_part->layer_us, &out->layer);
    roofline(r, s->head_values, plan_weights_of(r->shape, r->s_part)->head_bytes, 0, &out->head);
    if (r->s_part->model.rest.count)
        out->step_us = cost_curve_at(&r->s_part->model.rest, 1);
    if (r->s_part->model.name) {
        out->layer = r->s_part->model.layer;
        out->head = r->s_part->model.head;
    }
}

void plan_r_part(const struct plan_request *r, uint32_t workers, struct cost_r_part *out)
{
    const struct hardware *h = workers ? r->worker : r->s_part;
    double bytes_per_us = h->memory_gb_per_second * h->attention_share * GIGA / US;

    *out = (struct cost_r_part){.token_us = shape_kv_bytes(r->shape, r->kv_type) / bytes_per_us,
                                .prefill_us = shape_pair_operations(r->shape) / plan_attention_per_us(h)};
    if (h->model.attention.token_us > 0 && r->kv_type == KV_F16) {
        out->prefill_us = h->model.attention.pair_us;
        out->token_us = h->model.attention.token_us;
        out->row_us = h->model.attention.row_us;
        out->call_us = h->model.attention.call_us;
    }
    if (workers) {
        out->link_us = r->link->link_round_trip_us;
        out->call_us += r->link->link_exchange_us;
        out->link_row_us = workers * shape_link_bytes(r->shape) / (r->link->link_gb_per_second * GIGA / US);
    }
}

// Returns what a mini-batch's step takes besides layers, attention and head.
static double step_rest_us(const struct plan_request *r, double rows)
{
    const struct cost_curve *rest = &r->s_part->model.rest;
    return rest->count ? cost_curve_at(rest, rows) : r->s_part->step_us;
}

// Returns what a row of a prompt takes in all, if steps were measured: its share of a step with prefill. Beside running sequences such a
// step is STEP_TARGET_US long, or STRETCH times a step without prefill; otherwise it has CHUNK_ROWS. Its decode rows count as if they had
// a step of their own, which ignores rows that fit beside few others for nothing. Attention is at one place, where the sequence is.
// attend_us: the decode rows', of a layer.
static double prefill_row_us(const struct plan_request *r, const struct cost_s_part *s, double rows, uint32_t workers,
                             double attend_us)
{
    const struct kv_costs *kv = workers ? &r->worker->model.attention : &r->s_part->model.attention;
    double context = (r->prompt_tokens + 1.0) / 2, chunk = CHUNK_ROWS;
    double link_us = workers ? shape_link_bytes(r->shape) / (r->link->link_gb_per_second * GIGA / US) : 0;
    double row_us = s->layers *
                    (cost_curve_at(&s->layer, CHUNK_ROWS) / CHUNK_ROWS + kv->prefill_row_us + context * kv->pair_us + link_us);

    double decode_us = s->layers * (cost_curve_at(&s->layer, rows) + attend_us) + cost_curve_at(&s->head, rows) +
                       step_rest_us(r, rows);
    if (r->chunk_tokens)
        chunk = r->chunk_tokens;
    else if (rows > 1)
        chunk = MIN(MAX((MAX(STEP_TARGET_US, STRETCH * decode_us) - decode_us) / row_us, TILE_ROWS), CHUNK_ROWS);
    double step_us = s->layers * (cost_curve_at(&s->layer, chunk) + kv->call_us) + step_rest_us(r, 1) +
                     cost_curve_at(&s->head, 1) * MIN(chunk / MAX(r->prompt_tokens, 1u), 1);
    return step_us / chunk + s->layers * (kv->prefill_row_us + context * kv->pair_us + link_us);
}

// Predicts a layer of a mini-batch of `rows` decode rows, `local` of them in the S-part's memory beside workers, on average over its steps.
// prompts: the prefill rows that each of them brings along in the same step; they attend where its sequence is.
static void predict_layer(const struct plan_request *r, double rows, double local, uint32_t workers, double prompts,
                          struct plan *out)
{
    const double away = rows - local, pair_context = prompt_mean_read(r);
    bool add_up = workers && r->worker->shares_cores;
    double shared = workers && !add_up ? ceil(away / workers) : away; // rows of the fullest worker, or of all in turn
    double prompts_us = workers && !add_up ? away / workers : away;   // prompts are spread over steps
    struct cost_s_part s;
    struct cost_r_part place;

    plan_s_part(r, &s);
    plan_r_part(r, workers, &place);
    prompts_us *= prompts * (place.row_us + pair_context * place.prefill_us);
    out->s_part_layer_us = cost_curve_at(&s.layer, rows * (1 + prompts));
    out->r_part_layer_us = away > 0 ? place.call_us * (add_up ? MIN(workers, away) : 1) +
                                          shared * (place.row_us + plan_mean_read(r) * place.token_us) + prompts_us
                                    : 0;
    if (local > 0) {
        struct cost_r_part pool;
        plan_r_part(r, 0, &pool);
        out->pool_layer_us = pool.call_us + local * (pool.row_us + plan_mean_read(r) * pool.token_us) +
                             local * prompts * (pool.row_us + pair_context * pool.prefill_us);
    }
    out->head_us = cost_curve_at(&s.head, rows);
    out->link_layer_us = 0;
    if (workers && away > 0)
        out->link_layer_us = place.link_us + away * (1 + prompts) / workers * place.link_row_us;
}

static double prefill_rows_each(const struct plan_request *r) { return (double)r->prompt_tokens / r->generated_tokens; }

// Prompts of a model that was measured take steps of their own, and their time is the S-part's.
static void predict_s_part_layer(const struct plan_request *r, double rows, double local, uint32_t workers, struct plan *out)
{
    struct cost_s_part s;

    predict_layer(r, rows, local, workers, r->s_part->model.name ? 0 : prefill_rows_each(r), out);
    if (!r->s_part->model.name)
        return;
    plan_s_part(r, &s);
    out->s_part_layer_us += rows * prefill_rows_each(r) * prefill_row_us(r, &s, rows, workers, out->r_part_layer_us) / s.layers;
}

// Returns what crosses the S-part's link in a step of step_us, both ways.
static double network_gbit(const struct plan_request *r, double sequences, double step_us)
{
    const double row_bytes = r->shape->layers * shape_link_bytes(r->shape);
    return sequences * (1 + prefill_rows_each(r)) * row_bytes * 8 / GIGA / (step_us / US);
}

// Returns the tokens that a running sequence has pages for, in the mean of its life: its context, whose beginning is given back if no layer
// reads it.
static double mean_held(const struct plan_request *r)
{
    double first = r->prompt_tokens, last = 2 * plan_mean_context(r) - first;
    double ring = (double)shape_ring_pages(r->shape, PLAN_PAGE_TOKENS, (uint32_t)last) * PLAN_PAGE_TOKENS;
    if (ring == 0 || ring >= last)
        return (first + last) / 2;
    return ring <= first ? ring : ((ring * ring - first * first) / 2 + ring * (last - ring)) / (last - first);
}

double plan_sequence_kv_bytes(const struct plan_request *r)
{
    return (mean_held(r) + PLAN_PAGE_TOKENS / 2.0) * r->shape->layers * shape_kv_bytes(r->shape, r->kv_type);
}

// Returns how many sequences of a batch live in the S-part's memory.
static uint32_t pool_sequences_of(const struct plan_request *r, uint32_t batch, uint32_t workers)
{
    return workers == 0 ? batch : (uint32_t)MIN((double)batch, floor((double)r->pool_bytes / plan_sequence_kv_bytes(r)));
}

// Predicts a step of one s-part with M mini-batches, without memory and price.
static void predict_one(const struct plan_request *r, uint32_t batch, uint32_t workers, uint32_t m, struct plan *out)
{
    double layers = r->shape->layers, step_us, wait_us, bytes_us, tail_us, work_us;

    *out = (struct plan){
        .batch = batch, .workers = workers, .mini_batches = m, .stages = 1, .pool_sequences = pool_sequences_of(r, batch, workers)};
    predict_s_part_layer(r, ceil((double)batch / m), workers ? (double)out->pool_sequences / m : 0, workers, out);
    wait_us = out->r_part_layer_us + out->link_layer_us;
    bytes_us = workers ? MAX(out->link_layer_us - r->link->link_round_trip_us, 0) : 0;
    work_us = out->s_part_layer_us + out->pool_layer_us;
    tail_us = out->head_us + step_rest_us(r, ceil((double)batch / m));
    const struct sched_round round = {.s_part_us = layers * out->s_part_layer_us + tail_us,
                                      .here_us = layers * out->pool_layer_us,
                                      .away_us = layers * MAX(out->r_part_layer_us, bytes_us),
                                      .away_answer_us = layers * wait_us};
    step_us = sched_round_us(&round, m);
    out->step_ms = step_us / 1e3;
    out->tokens_per_second = batch / (step_us / US);
    out->s_part_busy = m * (layers * work_us + tail_us) / step_us;
    out->r_part_busy = m * layers * out->r_part_layer_us / step_us;
    out->network_gbit_per_second = workers ? network_gbit(r, batch - out->pool_sequences, step_us) : 0;
    const double others_us = m == 1 ? MAX(out->r_part_layer_us, out->link_layer_us)
                                    : MAX(wait_us / (m - 1), MAX(out->r_part_layer_us, bytes_us));
    out->bound_by = work_us >= others_us ? PLAN_S_PART : out->r_part_layer_us >= out->link_layer_us ? PLAN_R_PART : PLAN_NETWORK;
}

// Activations of each mini-batch and its logits, in f32: x twice, q, k, v, o, gate, up.
static double activation_bytes(const struct plan_request *r, uint32_t batch)
{
    const struct plan_shape *s = r->shape;
    double rows = batch * (1 + prefill_rows_each(r));
    double row = 2.0 * s->hidden + (2.0 * s->heads + 2.0 * s->kv_heads) * s->head_dim + 2.0 * s->ffn;

    return 4 * (rows * row + batch * (double)s->vocab);
}

// --- sequences that lie at several workers --------------------------------------------------------------------------

static double sequence_bytes(const struct plan_request *r)
{
    return ((double)r->prompt_tokens + r->generated_tokens) * r->shape->layers * shape_kv_bytes(r->shape, r->kv_type);
}

// Returns whether no worker can hold a sequence of all its tokens.
static bool extents_needed(const struct plan_request *r)
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

    if (!extents_needed(r) || sequence_bytes(r) > (double)r->worker->memory_bytes * places)
        return false;
    places = MIN(places, units);
    *out = (struct plan_extents){.tokens = tokens, .workers = places, .spans = (tokens + KV_SPAN - 1) / KV_SPAN};
    for (uint32_t i = 0; i < places; i++)
        out->partials += kv_partial_count(begin_of(units, i, places), begin_of(units, i + 1, places));
    double q = 4.0 * shape->heads * shape->head_dim, partial = 4.0 * (double)kv_partial_floats(shape->heads, shape->head_dim);
    out->whole_bytes = shape_link_bytes(shape);
    out->layer_bytes = out->whole_bytes - q + (places - 1) * q + out->partials * partial;
    return true;
}

// --- several S-parts in a pipeline ----------------------------------------------------------------------------------

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
    return (struct rows){decode, decode * prefill_rows_each(r)};
}

// The stages to be split, with their arrays.
struct stages {
    struct plan_split split;
    struct cost_s_part all;
    double layer_us[PLAN_SPLIT_LAYERS_MAX];
    uint64_t layer_bytes[PLAN_SPLIT_LAYERS_MAX], memory[PLAN_STAGES_MAX];
};

// Describes the stages; attend_us is what each of their layers takes for attention of its own.
static void describe_stages(const struct plan_request *r, struct rows rows, double attend_us, uint32_t pool_sequences,
                            uint32_t batch, struct stages *out)
{
    const struct plan_weights *weights = plan_weights_of(r->shape, r->s_part);
    double kv_bytes = pool_sequences * plan_sequence_kv_bytes(r) / r->shape->layers;

    plan_s_part(r, &out->all);
    out->split = (struct plan_split){.layer_us = out->layer_us,
                                     .layer_bytes = out->layer_bytes,
                                     .layer_count = MIN(out->all.layers, (uint32_t)PLAN_SPLIT_LAYERS_MAX),
                                     .embed_us = step_rest_us(r, rows.decode),
                                     .head_us = cost_curve_at(&out->all.head, rows.decode),
                                     .embed_bytes = weights->embedding_bytes,
                                     .head_bytes = weights->head_bytes,
                                     .stage_bytes = (uint64_t)(activation_bytes(r, batch) / r->stages),
                                     .stages = r->stages,
                                     .memory_bytes = out->memory};
    for (uint32_t l = 0; l < out->split.layer_count; l++) {
        out->layer_us[l] = cost_curve_at(&out->all.layer, rows.decode + rows.prefill) + attend_us;
        out->layer_bytes[l] = weights->layer_bytes + (uint64_t)kv_bytes;
    }
    for (uint32_t i = 0; i < r->stages; i++)
        out->memory[i] = r->ignore_capacity ? 0 : hardware_usable_bytes(r->s_part);
}

enum status plan_stages(const struct plan_request *r, uint32_t batch, uint32_t workers, struct cost_s_part *out,
                        struct plan_range *ranges, struct error *error)
{
    struct stages stages;
    double slowest_us;

    describe_stages(r, rows_of(r, batch, sched_mini_batches_most(r->stages, workers > 0)), 0, pool_sequences_of(r, batch, workers),
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

static void cut_stages(const struct plan_request *r, struct rows rows, double attend_us, struct plan *out)
{
    struct plan_range ranges[PLAN_STAGES_MAX] = {{0, 0}};
    struct stages stages;
    struct error error;
    double slowest_us;

    describe_stages(r, rows, attend_us, out->pool_sequences, out->batch, &stages);
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
                         .pool_sequences = pool_sequences_of(r, batch, workers)};
    struct rows rows = rows_of(r, batch, out->mini_batches);
    predict_layer(r, rows.decode, workers ? (double)out->pool_sequences / out->mini_batches : 0, workers, prefill_rows_each(r),
                  out);
    double own_us = workers ? out->pool_layer_us : out->r_part_layer_us, wait_us = out->r_part_layer_us + out->link_layer_us;
    cut_stages(r, rows, own_us, out);
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
    out->network_gbit_per_second = workers ? network_gbit(r, batch - out->pool_sequences, step_us) : 0;
    out->bound_by = m * slowest_us >= step_us                              ? PLAN_S_PART
                    : m * read_us >= step_us                               ? PLAN_R_PART
                    : workers && out->link_layer_us > out->r_part_layer_us ? PLAN_NETWORK
                    : workers                                              ? PLAN_R_PART
                                                                           : PLAN_S_PART;
}

// One setting: the faster number of mini-batches, of one s-part or of a pipeline, then memory and price. See plan.h.

// --- memory and price -------------------------------------------------------------------------------------------------

double plan_stage_bytes(const struct plan_request *r, uint32_t batch, uint32_t stage, struct plan_range range)
{
    const struct plan_weights *w = plan_weights_of(r->shape, r->s_part);
    const uint32_t stages = MAX(r->stages, 1u);
    return (range.end - range.first) * (double)w->layer_bytes + (stage == 0 ? (double)w->embedding_bytes : 0) +
           (stage + 1 == stages ? (double)w->head_bytes : 0) + activation_bytes(r, batch) / stages;
}

// Returns the sequences of the fullest worker, or of the pool. Those that no worker can hold lie at all of them.
static double workers_share(const struct plan_request *r, const struct plan *plan)
{
    if (plan->workers && extents_needed(r))
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
    double each = workers_share(r, out),
           own_bytes = plan_stage_bytes(r, out->batch, 0, (struct plan_range){.end = r->shape->layers});

    out->kv_tokens = out->batch * plan_mean_context(r);
    out->kv_bytes_per_worker = each * plan_sequence_kv_bytes(r);
    if (out->stages > 1) { // the fullest one's
        for (uint32_t i = 0; i < out->stages; i++)
            out->s_part_bytes = MAX(out->s_part_bytes, out->stage[i].bytes);
    } else {
        out->s_part_bytes = own_bytes + out->pool_sequences * plan_sequence_kv_bytes(r);
        add_hybrid_bound(r, (double)hardware_usable_bytes(r->s_part) - own_bytes, out);
    }
    if (r->s_part->price_per_hour != 0 && (out->workers == 0 || r->worker->price_per_hour != 0)) {
        out->price_per_hour = out->stages * r->s_part->price_per_hour + out->workers * r->worker->price_per_hour;
        out->cost_per_million = out->price_per_hour / 3600 / out->tokens_per_second * 1e6;
    }
}

void plan_predict(const struct plan_request *r, uint32_t batch, uint32_t workers, uint32_t mini_batches, struct plan *out)
{
    void (*const predict)(const struct plan_request *, uint32_t, uint32_t, uint32_t, struct plan *) =
        r->stages > 1 ? plan_predict_pipeline : predict_one;
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
