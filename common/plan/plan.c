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

enum {
    CHUNK_ROWS = 512,
    TILE_ROWS = 8,
    STEP_TARGET_US = 16000,
    STRETCH = 2,
    WAITING_STRETCH = 4,
    MINI_BATCHES_MOST = 3
}; // the scheduling core's defaults
#define ASIDE_STRETCH 1.8
#define ASIDE_SEGMENT 0.25

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

static double prefill_rows_each(const struct plan_request *r)
{
    return r->without_prompts ? 0 : (double)r->prompt_tokens / r->generated_tokens;
}

const struct plan_weights *plan_weights_of(const struct plan_shape *shape, const struct hardware *s_part)
{
    return &shape->in[hardware_is_gpu(s_part) ? SHAPE_GPU : SHAPE_HOST];
}

static double floats_per_us(const struct hardware *h) { return (h->f16_tflops != 0 ? h->f16_tflops : h->f32_tflops) * 1e12 / US; }

double plan_products_per_us(const struct hardware *h, bool quantized)
{
    const bool in_8_bits = quantized && h->int8_tops != 0 && !hardware_is_gpu(h);
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

// A mini-batch's step: decode rows and rows of a prompt; of these, those whose KV is in the S-part's memory beside workers. A prompt's rows
// attend at one place.
struct step_rows {
    double decode, prefill;
    double decode_local, prefill_local;
    double aside; // rows of a step of its own that the prompt's rows go through the layers in; 0: together with decode rows
};

// The times of a layer of it; bytes_us is link_us without its round trip.
struct layer_times {
    double s_part_us, pool_us, r_part_us, link_us, bytes_us;
};

static double place_us(const struct plan_request *r, const struct cost_r_part *place, double calls, double decode, double prefill)
{
    return calls * place->call_us + decode * (place->row_us + plan_mean_read(r) * place->token_us) +
           prefill * (place->row_us + prompt_mean_read(r) * place->prefill_us);
}

static struct layer_times time_layer(const struct plan_request *r, const struct cost_s_part *s, uint32_t workers,
                                     const struct step_rows *rows)
{
    const double away = rows->decode - rows->decode_local, prefill_away = rows->prefill - rows->prefill_local;
    bool add_up = workers && r->worker->shares_cores;
    double shared = workers && !add_up ? ceil(away / workers) : away; // rows of the fullest worker, or of all in turn
    struct layer_times times = {0};
    struct cost_r_part place;

    plan_r_part(r, workers, &place);
    times.s_part_us = cost_curve_at(&s->layer, rows->decode + (rows->aside > 0 ? 0 : rows->prefill));
    if (rows->aside > 0)
        times.s_part_us += rows->prefill / rows->aside * cost_curve_at(&s->layer, rows->aside);
    if (away > 0 || prefill_away > 0)
        times.r_part_us = place_us(r, &place, add_up ? MIN(workers, MAX(away, 1)) : 1, shared, prefill_away);
    if (workers && (away > 0 || prefill_away > 0)) {
        times.bytes_us = (away + prefill_away) / workers * place.link_row_us;
        times.link_us = place.link_us + times.bytes_us;
    }
    if (rows->decode_local > 0 || rows->prefill_local > 0) {
        plan_r_part(r, 0, &place);
        times.pool_us = place_us(r, &place, 1, rows->decode_local, rows->prefill_local);
    }
    return times;
}

// Returns among how many workers chunks of prompts lie of which so many are in flight: the scheduling core puts them at different ones.
static double chunks_apart(const struct plan_request *r, uint32_t workers, double chunks)
{
    return r->worker->shares_cores ? 1 : MAX(MIN(chunks, workers), 1);
}

// A round of mini-batches of one s-part, a share of which has other, longer times than the others; apart: the workers among which what they
// attend for longer is dealt out; tail_us: what a step takes besides its layers.
static struct sched_round round_of(const struct plan_request *r, const struct layer_times *usual, const struct layer_times *longer,
                                   double share, double apart, double tail_us)
{
    const double layers = r->shape->layers, others = 1 - share, s_part_us = others * usual->s_part_us + share * longer->s_part_us;
    const double busiest_us = usual->r_part_us + share / apart * (longer->r_part_us - usual->r_part_us);

    return (struct sched_round){
        .s_part_us = layers * s_part_us + tail_us,
        .here_us = layers * (others * usual->pool_us + share * longer->pool_us),
        .away_us = layers * MAX(busiest_us, others * usual->bytes_us + share * longer->bytes_us),
        .away_answer_us = layers * (longer->s_part_us - s_part_us + MAX(longer->pool_us, longer->r_part_us + longer->link_us))};
}

// Steps of a mini-batch with prompts: those without a chunk of one, and those with, whose prompt has its KV at a worker or in the S-part's memory.
struct prompt_steps {
    struct step_rows usual, with[2];
    struct layer_times light; // of the usual steps
    double light_us;          // their round
    double tail_us;           // what each step takes besides its layers
    double decode;            // sequences of the mini-batch that decode, in the mean
    double per_row[2];        // steps with a chunk for each of their rows
};

static void set_decode(struct step_rows *rows, double decode)
{
    rows->decode_local *= decode / rows->decode;
    rows->decode = decode;
}

// Returns how long a round is in which one step has so many rows of a prompt.
static double round_with_us(const struct plan_request *r, const struct cost_s_part *s, uint32_t workers, uint32_t m,
                            const struct prompt_steps *p, int local, double prefill)
{
    struct step_rows rows = p->with[local];

    rows.prefill = prefill;
    rows.prefill_local = local * prefill;
    const struct layer_times heavy = time_layer(r, s, workers, &rows);
    const struct sched_round longer = round_of(r, &p->light, &heavy, 1.0 / m, 1, p->tail_us);
    return sched_round_us(&longer, m);
}

// Returns whether prompts beside decode rows have steps of their own, between the others: on a CPU with one mini-batch.
static bool go_aside(const struct plan_request *r, uint32_t workers, uint32_t m)
{
    return !hardware_is_gpu(r->s_part) && m == 1 && (workers == 0 || r->worker->shares_cores || r->mini_batches == 1) &&
           r->chunk_tokens == 0;
}

// Returns whether a step of the most rows may be longer than a target that so many rows keep to.
static bool pays(double rows, double over) { return CHUNK_ROWS >= rows * MAX(pow(over, 1.5), 2); }

// Returns the rows of such a step: a layer of it takes no longer than a part of what the decode rows take, unless more pays.
static double aside_rows(const struct plan_request *r, const struct cost_s_part *s, uint32_t workers, int local, double most_us,
                         bool crowded)
{
    double n = CHUNK_ROWS, all_us = 0;

    for (; n > TILE_ROWS; n *= 0.9) {
        const struct layer_times times = time_layer(r, s, workers, &(struct step_rows){.prefill = n, .prefill_local = local * n});
        const double us = times.s_part_us + times.pool_us + times.r_part_us;
        all_us = MAX(all_us, us);
        if (us <= most_us)
            break;
    }
    n = MAX(n, TILE_ROWS);
    return crowded && pays(n, all_us / most_us) ? CHUNK_ROWS : n;
}

// Returns the rows of a prompt with which a round keeps to a time; crowded: that is the most by which waiting prompts make it longer, and it may
// become longer still if that pays. With experts the first rows cost most, otherwise all cost alike.
static double timely_rows(const struct plan_request *r, const struct cost_s_part *s, uint32_t workers, uint32_t m,
                          const struct prompt_steps *p, int local, double target_us, bool crowded)
{
    enum { HALVINGS = 8 };
    const double all_us = round_with_us(r, s, workers, m, p, local, CHUNK_ROWS);
    const double line = CHUNK_ROWS * (target_us - p->light_us) / MAX(all_us - p->light_us, 1e-9);
    double low = TILE_ROWS, high = CHUNK_ROWS;

    if (p->with[local].aside > 0)
        return line;
    if (!r->shape->experts)
        return MIN(MAX(line, TILE_ROWS), CHUNK_ROWS);
    if (all_us <= target_us)
        return CHUNK_ROWS;
    for (int i = 0; i < HALVINGS; i++) {
        const double middle = (low + high) / 2;
        *(round_with_us(r, s, workers, m, p, local, middle) <= target_us ? &low : &high) = middle;
    }
    return crowded && pays(low, all_us / target_us) ? CHUNK_ROWS : low;
}

// Chooses the chunks of steps whose usual rows are known: as many rows as the scheduling core's target for a step's time allows, at most CHUNK_ROWS.
// The target is longer while more sequences are in prefill than decode. Returns how many steps with a chunk a decode row needs.
static double choose_chunks(const struct plan_request *r, const struct cost_s_part *s, uint32_t workers, uint32_t m,
                            double sequences, struct prompt_steps *p)
{
    const double decode = p->usual.decode, share_local = p->usual.decode_local / decode;
    const double waiting = MIN(MAX((sequences - decode) / decode, 1), WAITING_STRETCH);
    const bool aside = go_aside(r, workers, m) && sequences > 1, crowded = waiting >= WAITING_STRETCH;

    p->light = time_layer(r, s, workers, &p->usual);
    p->tail_us = cost_curve_at(&s->head, decode) + step_rest_us(r, decode);
    const struct sched_round round = round_of(r, &p->light, &p->light, 1, 1, p->tail_us);
    p->light_us = sched_round_us(&round, m);
    const double target_us = aside ? ASIDE_STRETCH * waiting * p->light_us : MAX(STEP_TARGET_US, STRETCH * waiting * p->light_us);
    for (int local = 0; local < 2; local++) {
        struct step_rows *rows = &p->with[local];
        *rows = p->usual;
        rows->aside = aside ? aside_rows(r, s, workers, local, ASIDE_SEGMENT * waiting * p->light_us, crowded) : 0;
        rows->prefill = r->chunk_tokens ? r->chunk_tokens : CHUNK_ROWS;
        if (!r->chunk_tokens && sequences > 1) // else nobody waits for a step
            rows->prefill = timely_rows(r, s, workers, m, p, local, target_us, crowded);
        rows->prefill_local = local * rows->prefill;
        p->per_row[local] = (local ? share_local : 1 - share_local) * prefill_rows_each(r) / rows->prefill;
    }
    return p->per_row[0] + p->per_row[1];
}

// Finds the steps of a mini-batch of so many sequences. One in prefill has no decode row, so as many decode, d, as have their prompts come as fast
// as their answers go. If each decode row needs x steps with a chunk,
//
//     d = b / (1 + x)  while not every step has a chunk, x·d <= 1;  else each has one, and d = 1 / x
//
// Fewer decode rows have shorter steps, and these other chunks: in the second case d is where the chunks beside d rows feed d, by halving.
static struct prompt_steps find_prompt_steps(const struct plan_request *r, const struct cost_s_part *s, uint32_t workers,
                                             uint32_t m, double sequences, const struct step_rows *usual)
{
    enum { HALVINGS = 16 };
    struct prompt_steps p = {.usual = *usual};
    double x = choose_chunks(r, s, workers, m, sequences, &p);

    p.decode = sequences / (1 + x);
    if (x * p.decode > 1) {
        double high = sequences, least = r->chunk_tokens ? r->chunk_tokens : p.with[0].aside > 0 ? 1.0 / TILE_ROWS : TILE_ROWS;
        p.decode = MIN(least / prefill_rows_each(r), high); // the smallest chunks feed as many
        for (int i = 0; i < HALVINGS; i++) {
            const double middle = sqrt(p.decode * high);
            set_decode(&p.usual, middle);
            x = choose_chunks(r, s, workers, m, sequences, &p);
            *(x * middle <= 1 ? &p.decode : &high) = middle;
        }
        set_decode(&p.usual, p.decode);
        (void)choose_chunks(r, s, workers, m, sequences, &p);
    }
    for (int local = 0; local < 2; local++)
        set_decode(&p.with[local], MIN(p.usual.decode, MAX(sequences - 1, 0)));
    return p;
}

// Rounds of which some steps have a chunk of a prompt.
struct prompt_rounds {
    struct layer_times mean; // over steps
    double tokens, us;       // of a round, in the mean
    double between_us;       // the rounds that a sequence that decodes sees, in the mean
    double tail_us;
};

// Adds prompts to rounds. A step with a chunk makes its round longer; if a round has several, they wait for their answers at the same time.
static struct prompt_rounds add_prompts(const struct plan_request *r, const struct cost_s_part *s, uint32_t batch, uint32_t workers,
                                        uint32_t m, const struct step_rows *usual)
{
    const struct prompt_steps p = find_prompt_steps(r, s, workers, m, (double)batch / m, usual);
    const struct layer_times *light = &p.light;
    struct prompt_rounds out = {.mean = p.light, .tokens = m * p.decode, .us = p.light_us, .tail_us = p.tail_us};
    double seen = m * p.usual.decode, seen_us = seen * p.light_us; // rows of a round, each with its round's time

    for (int local = 0; local < 2; local++) {
        const double steps = p.per_row[local] * p.decode, chunks = m * steps, at_once = MAX(chunks, 1); // in a step; in a round
        if (steps <= 0)
            continue;
        const struct layer_times heavy = time_layer(r, s, workers, &p.with[local]);
        const double apart = chunks_apart(r, workers, at_once), rounds = chunks / at_once,
                     missing = at_once * (p.usual.decode - p.with[local].decode);
        const struct sched_round longer = round_of(r, light, &heavy, at_once / m, apart, p.tail_us);
        const double longer_us = sched_round_us(&longer, m);
        out.us += rounds * (longer_us - p.light_us);
        seen_us += rounds * (m * p.usual.decode * (longer_us - p.light_us) - missing * longer_us);
        seen -= rounds * missing;
        out.mean.s_part_us += steps * (heavy.s_part_us - light->s_part_us);
        out.mean.pool_us += steps * (heavy.pool_us - light->pool_us);
        out.mean.r_part_us += steps / apart * (heavy.r_part_us - light->r_part_us);
        out.mean.link_us += steps * (heavy.link_us - light->link_us);
        out.mean.bytes_us += steps * (heavy.bytes_us - light->bytes_us);
    }
    const struct sched_round mean = round_of(r, &out.mean, &out.mean, 1, 1, p.tail_us);
    const double least_us = m * MAX(mean.s_part_us + mean.here_us, mean.away_us); // nobody does more than it can
    out.between_us = MAX(seen_us / seen, 0) * MAX(least_us / out.us, 1);
    out.us = MAX(out.us, least_us);
    return out;
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

// Names the longest term of a round or, where its only mini-batch waits for its own answers, of what that mini-batch does.
static enum plan_bound bound_of(const struct sched_round *round, uint32_t m, double r_part_us, double link_us)
{
    const double turn_us = round->s_part_us + round->here_us, step_us = sched_round_us(round, m);
    const enum plan_bound away = r_part_us >= link_us ? PLAN_R_PART : PLAN_NETWORK;

    if (m == 1 && round->here_us < round->away_answer_us)
        return round->s_part_us >= round->away_answer_us * MAX(r_part_us, link_us) / (r_part_us + link_us) ? PLAN_S_PART : away;
    return m * turn_us >= step_us || round->here_us >= round->away_answer_us ? PLAN_S_PART : away;
}

// Predicts a step of one s-part with M mini-batches, without memory and price.
static void predict_one(const struct plan_request *r, uint32_t batch, uint32_t workers, uint32_t m, struct plan *out)
{
    const double layers = r->shape->layers, decode = ceil((double)batch / m);
    const uint32_t here = pool_sequences_of(r, batch, workers);
    const struct step_rows rows = {.decode = decode, .decode_local = workers ? decode * here / batch : 0};
    struct cost_s_part s;
    double step_us, between_us, tokens = batch; // in a step

    plan_s_part(r, &s);
    struct layer_times times = time_layer(r, &s, workers, &rows);
    double tail_us = cost_curve_at(&s.head, decode) + step_rest_us(r, decode);
    if (r->s_part->model.name) // prompts take steps of their own, and their time is the S-part's
        times.s_part_us += decode * prefill_rows_each(r) * prefill_row_us(r, &s, decode, workers, times.r_part_us) / s.layers;
    struct sched_round round = round_of(r, &times, &times, 1, 1, tail_us);
    step_us = between_us = sched_round_us(&round, m);
    if (!r->s_part->model.name && prefill_rows_each(r) > 0) {
        const struct prompt_rounds rounds = add_prompts(r, &s, batch, workers, m, &rows);
        times = rounds.mean;
        step_us = rounds.us;
        between_us = rounds.between_us;
        tail_us = rounds.tail_us;
        tokens = rounds.tokens;
        round = round_of(r, &times, &times, 1, 1, tail_us);
    }
    *out = (struct plan){.batch = batch,
                         .workers = workers,
                         .mini_batches = m,
                         .stages = 1,
                         .pool_sequences = here,
                         .bound_by = bound_of(&round, m, times.r_part_us, times.link_us),
                         .tokens_per_second = tokens / (step_us / US),
                         .step_ms = between_us / 1e3,
                         .s_part_layer_us = times.s_part_us,
                         .r_part_layer_us = times.r_part_us,
                         .link_layer_us = times.link_us,
                         .pool_layer_us = times.pool_us,
                         .head_us = cost_curve_at(&s.head, tokens / m),
                         .s_part_busy = MIN(m * (layers * (times.s_part_us + times.pool_us) + tail_us) / step_us, 1),
                         .r_part_busy = MIN(m * layers * times.r_part_us / step_us, 1),
                         .network_gbit_per_second = workers ? network_gbit(r, tokens * (batch - here) / batch, step_us) : 0};
}

// Activations of each mini-batch and its logits, in f32: x twice, q, k, v, o, gate, up.
static double activation_bytes(const struct plan_request *r, uint32_t batch)
{
    const struct plan_shape *s = r->shape;
    double rows = batch + MIN(batch * prefill_rows_each(r), MINI_BATCHES_MOST * CHUNK_ROWS);
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

// Returns how many of a mini-batch's sequences are in prefill, at most one: each step has as many of its rows as let prompts end as fast as answers,
// at least a tile.
static double in_prefill(const struct plan_request *r, double sequences)
{
    const double each = prefill_rows_each(r), rows = MAX(each * (sequences - 1), TILE_ROWS);
    return each > 0 && sequences > 1 ? MIN(sequences / r->generated_tokens * ceil(r->prompt_tokens / rows), 1) : 0;
}

// Returns a mini-batch's uniform step, `local` of whose rows have their KV in the stages' memory beside workers.
static struct step_rows uniform_rows(const struct plan_request *r, uint32_t batch, uint32_t mini_batches, double local)
{
    const double sequences = ceil((double)batch / mini_batches), decode = sequences - in_prefill(r, sequences),
                 prefill = decode * prefill_rows_each(r);
    return (struct step_rows){
        .decode = decode, .prefill = prefill, .decode_local = local * decode, .prefill_local = local * prefill};
}

// The stages to be split, with their arrays.
struct stages {
    struct plan_split split;
    struct cost_s_part all;
    double layer_us[PLAN_SPLIT_LAYERS_MAX];
    uint64_t layer_bytes[PLAN_SPLIT_LAYERS_MAX], memory[PLAN_STAGES_MAX];
};

// Describes the stages; attend_us is what each of their layers takes for attention of its own.
static void describe_stages(const struct plan_request *r, const struct step_rows *rows, double attend_us, uint32_t pool_sequences,
                            uint32_t batch, struct stages *out)
{
    const struct plan_weights *weights = plan_weights_of(r->shape, r->s_part);
    double kv_bytes = pool_sequences * plan_sequence_kv_bytes(r) / r->shape->layers;

    plan_s_part(r, &out->all);
    out->split = (struct plan_split){.layer_us = out->layer_us,
                                     .layer_bytes = out->layer_bytes,
                                     .layer_count = MIN(out->all.layers, (uint32_t)PLAN_SPLIT_LAYERS_MAX),
                                     .embed_us = step_rest_us(r, rows->decode),
                                     .head_us = cost_curve_at(&out->all.head, rows->decode),
                                     .embed_bytes = weights->embedding_bytes,
                                     .head_bytes = weights->head_bytes,
                                     .stage_bytes = (uint64_t)(activation_bytes(r, batch) / r->stages),
                                     .stages = r->stages,
                                     .memory_bytes = out->memory};
    for (uint32_t l = 0; l < out->split.layer_count; l++) {
        out->layer_us[l] = cost_curve_at(&out->all.layer, rows->decode + rows->prefill) + attend_us;
        out->layer_bytes[l] = weights->layer_bytes + (uint64_t)kv_bytes;
    }
    for (uint32_t i = 0; i < r->stages; i++)
        out->memory[i] = r->ignore_capacity ? 0 : hardware_usable_bytes(r->s_part);
}

enum status plan_stages(const struct plan_request *r, uint32_t batch, uint32_t workers, struct cost_s_part *out,
                        struct plan_range *ranges, struct error *error)
{
    const struct step_rows rows = uniform_rows(r, batch, sched_mini_batches_most(r->stages, workers > 0), 0);
    struct stages stages;
    double slowest_us;

    describe_stages(r, &rows, 0, pool_sequences_of(r, batch, workers), batch, &stages);
    enum status status = plan_split_layers(&stages.split, ranges, &slowest_us, error);
    for (uint32_t i = 0; !status && i < r->stages; i++) {
        out[i] = stages.all;
        out[i].layers = ranges[i].end - ranges[i].first;
        out[i].step_us = i == 0 ? stages.all.step_us : 0;
        out[i].head = i + 1 == r->stages ? stages.all.head : (struct cost_curve){0};
    }
    return status;
}

static void cut_stages(const struct plan_request *r, const struct step_rows *rows, double attend_us, struct plan *out)
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
    const struct step_rows rows = uniform_rows(r, batch, out->mini_batches, workers ? (double)out->pool_sequences / batch : 0);
    struct cost_s_part s;
    plan_s_part(r, &s);
    const struct layer_times times = time_layer(r, &s, workers, &rows);
    out->s_part_layer_us = times.s_part_us;
    out->r_part_layer_us = times.r_part_us;
    out->link_layer_us = times.link_us;
    out->pool_layer_us = times.pool_us;
    out->head_us = cost_curve_at(&s.head, rows.decode);
    double own_us = workers ? times.pool_us : times.r_part_us, wait_us = times.r_part_us + times.link_us;
    cut_stages(r, &rows, own_us, out);
    for (uint32_t i = 0; i < r->stages; i++) {
        slowest_us = MAX(slowest_us, out->stage[i].turn_us);
        sum_us += out->stage[i].turn_us;
    }
    out->hop_us = plan_hop_us(r, rows.decode + rows.prefill);
    // Each stage has a link of its own, and so has each worker.
    double m = out->mini_batches, carried_us = layers * times.bytes_us * MAX(1.0 / r->stages, 1.0 / MAX(workers, 1u));
    const struct step_rows decodes = {.decode = rows.decode, .decode_local = rows.decode_local};
    const double decode_us = time_layer(r, &s, workers, &decodes).r_part_us;
    const double busiest_us = decode_us + (times.r_part_us - decode_us) / chunks_apart(r, workers, m);
    double read_us = workers ? MAX(layers * busiest_us, carried_us) : 0;
    double through_us = sum_us + (workers ? layers * wait_us : 0) + (r->stages - 1) * out->hop_us;
    double step_us = MAX(MAX(m * slowest_us, m * read_us), through_us);
    out->step_ms = step_us / 1e3;
    const double tokens = batch - m * in_prefill(r, batch / m);
    out->tokens_per_second = tokens / (step_us / US);
    double attend_us =
        m * layers *
        (workers ? busiest_us : out->r_part_layer_us); // without workers it is in the stages' turns, each one's at the same time
    out->s_part_busy = (m * sum_us - (workers ? 0 : attend_us)) / step_us / r->stages;
    out->r_part_busy = attend_us / step_us / (workers ? 1 : r->stages);
    out->network_gbit_per_second = workers ? network_gbit(r, tokens * (batch - out->pool_sequences) / batch, step_us) : 0;
    const double hops_us = (r->stages - 1) * out->hop_us;
    const double link_us = workers ? MAX(layers * out->link_layer_us, carried_us) : hops_us,
                 away_us = workers ? layers * out->r_part_layer_us : 0;
    out->bound_by = m * slowest_us >= step_us || (sum_us >= link_us && sum_us >= away_us && m * read_us < step_us) ? PLAN_S_PART
                    : link_us > away_us                                                                            ? PLAN_NETWORK
                                                                                                                   : PLAN_R_PART;
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

// Returns what the weights and activations of all stages take.
static double all_stages_bytes(const struct plan_request *r, uint32_t batch)
{
    const struct plan_weights *w = plan_weights_of(r->shape, r->s_part);
    return r->shape->layers * (double)w->layer_bytes + (double)(w->embedding_bytes + w->head_bytes) + activation_bytes(r, batch);
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
    out->pool_bytes = out->pool_sequences * plan_sequence_kv_bytes(r);
    const double each = workers_share(r, out);

    out->kv_tokens = out->batch * plan_mean_context(r);
    out->kv_bytes_per_worker = each * plan_sequence_kv_bytes(r);
    if (out->stages > 1) { // the fullest one's
        for (uint32_t i = 0; i < out->stages; i++)
            out->s_part_bytes = MAX(out->s_part_bytes, out->stage[i].bytes);
    } else {
        const double own_bytes = all_stages_bytes(r, out->batch);
        out->s_part_bytes = own_bytes + out->pool_bytes;
        add_hybrid_bound(r, (double)hardware_usable_bytes(r->s_part) - own_bytes, out);
    }
    if (r->s_part->price_per_hour != 0 && (out->workers == 0 || r->worker->price_per_hour != 0)) {
        out->price_per_hour = out->stages * r->s_part->price_per_hour + out->workers * r->worker->price_per_hour;
        out->cost_per_million = out->price_per_hour / 3600 / out->tokens_per_second * 1e6;
    }
    if (r->s_part->watts != 0 && (out->workers == 0 || r->worker->watts != 0))
        out->watts = out->stages * r->s_part->watts + out->workers * r->worker->watts;
}

double plan_answers_share(const struct plan_request *request, const struct plan *plan)
{
    struct plan_request r = *request;
    struct plan alone;

    r.without_prompts = true;
    r.stages = plan->stages;
    plan_predict(&r, plan->batch, plan->workers, plan->mini_batches / MAX(plan->stages, 1u), &alone);
    return MIN(plan->tokens_per_second / alone.tokens_per_second, 1);
}

// The pool that is fastest beside workers: none, or shares of what is left or needed.
static void choose_pool(const struct plan_request *request, uint32_t batch, uint32_t workers, uint32_t mini_batches,
                        struct plan *out)
{
    enum { SHARES = 5 };
    const double usable = MAX(request->stages, 1u) * (double)hardware_usable_bytes(request->s_part);
    const double left = MIN(usable - all_stages_bytes(request, batch), batch * plan_sequence_kv_bytes(request));
    const int shares = request->stages > 1 ? 1 : SHARES; // a pipeline's layers are cut anew for each
    struct plan_request r = *request;
    struct plan beside;

    r.pool_bytes = 0;
    plan_predict(&r, batch, workers, mini_batches, out);
    if (workers == 0 || r.ignore_capacity || !plan_pool_computes(&r) || left < plan_sequence_kv_bytes(&r))
        return;
    for (int i = 1; i <= shares; i++) {
        r.pool_bytes = (uint64_t)(left * i / shares);
        plan_predict(&r, batch, workers, mini_batches, &beside);
        if (beside.tokens_per_second > out->tokens_per_second && beside.s_part_bytes <= (double)hardware_usable_bytes(r.s_part))
            *out = beside;
    }
}

bool plan_pool_computes(const struct plan_request *r) { return !hardware_is_gpu(r->s_part) || r->kv_type == KV_F16; }

void plan_predict(const struct plan_request *r, uint32_t batch, uint32_t workers, uint32_t mini_batches, struct plan *out)
{
    void (*const predict)(const struct plan_request *, uint32_t, uint32_t, uint32_t, struct plan *) =
        r->stages > 1 ? plan_predict_pipeline : predict_one;
    const uint32_t stages = MAX(r->stages, 1u);
    const bool waits = workers && !r->worker->shares_cores; // for workers with cores of their own
    struct plan more;

    if (r->pool_bytes == PLAN_POOL_CHOOSE) {
        choose_pool(r, batch, workers, mini_batches, out);
        return;
    }
    mini_batches = mini_batches ? mini_batches : r->mini_batches;
    predict(r, batch, workers, MAX(mini_batches, 1u), out);
    for (uint32_t m = 2; mini_batches == 0 && m <= MIN(sched_mini_batches_most(stages, waits) / stages, batch); m++) {
        predict(r, batch, workers, m, &more);
        if (more.tokens_per_second > out->tokens_per_second)
            *out = more;
    }
    add_memory_and_price(r, out);
}
