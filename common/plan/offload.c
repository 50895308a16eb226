// offload.c: see offload.h: the linear program of one block is written, solved, and the best of all blocks is kept.
#include "common/plan/offload.h"

#include <coin/Clp_C_Interface.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/plan/offload_internal.h"
#include "common/plan/plan.h"

// --- one block's lanes and peak memory ------------------------------------------------------------------------------

// Letters are those of the paper: s, n, bls (here rows), gbs.

#define GIGA 1e9
#define US 1e6
#define WEIGHT_READ_SHARE 0.95 // FlexGen: of the disk's rate, for weights beside a decode step
#define FULL_BATCH 64          // FlexGen: a smaller batch slows the host's attention down

// Sizes of one layer, in bytes unless the name says otherwise.
struct sizes {
    double s, n, rows, gpu_batch, gpu_batches;
    double weights, weight_values, kv_token, hidden_row, context; // context: mean tokens that a decode row reads
};

static double or_else(double value, double otherwise) { return value != 0 ? value : otherwise; }

static double kv_token_bytes(const struct offload_request *r)
{
    if (r->compress)
        return 2.0 * r->shape->kv_heads * r->shape->head_dim * OFFLOAD_COMPRESSED_BITS / 8;
    return shape_kv_bytes(r->shape, r->kv_type);
}

static double weight_bytes(const struct offload_request *r)
{
    if (r->compress)
        return (double)r->shape->layer_values * OFFLOAD_COMPRESSED_BITS / 8;
    return (double)plan_weights_of(r->shape, r->device)->layer_bytes;
}

static struct sizes sizes_of(const struct offload_request *r, uint32_t gpu_batch, uint32_t gpu_batches)
{
    return (struct sizes){.s = r->prompt_tokens,
                          .n = r->generated_tokens,
                          .rows = (double)gpu_batch * gpu_batches,
                          .gpu_batch = gpu_batch,
                          .gpu_batches = gpu_batches,
                          .weights = weight_bytes(r),
                          .weight_values = (double)r->shape->layer_values,
                          .kv_token = kv_token_bytes(r),
                          .hidden_row = 2.0 * r->shape->hidden,
                          .context = r->prompt_tokens + r->generated_tokens / 2.0};
}

static void add_terms(struct offload_linear *to, int first, int last, double value)
{
    for (int i = first; i <= last; i++)
        to->by[i] += value;
}

double offload_linear_at(const struct offload_linear *linear, const double *x)
{
    double sum = linear->constant;
    for (int i = 0; i < OFFLOAD_SPLITS; i++)
        sum += linear->by[i] * x[i];
    return sum;
}

// --- time -------------------------------------------------------------------------------------------------------------

static double operations(const struct offload_request *r)
{
    return plan_products_per_us(r->device, r->compress || r->shape->quantized) * US;
}

// Returns the seconds of the products of `batches` batches of `rows` rows each.
static double products_s(const struct offload_request *r, const struct sizes *z, double batches, double rows, double per_second)
{
    const struct hardware *h = r->device;
    double read_s = z->weights / (h->memory_gb_per_second * h->weights_share * GIGA);

    if (h->model.name && !r->compress)
        return batches * cost_curve_at(&h->model.layer, rows) / US;
    return batches * (MAX(read_s, 2 * z->weight_values * rows / per_second) + h->layer_us / US);
}

// KV that is not on the device: the host attends to it, or it is copied in for the device to attend.
static void away_attention(const struct offload_request *r, const struct sizes *z, double kv, double device_rate,
                           struct offload_model *m)
{
    const struct hardware_offload *o = &r->device->offload;
    double halvings = MAX(0, log2(FULL_BATCH / z->gpu_batch)), share = MAX(0.1, 1 - o->host_attention_loss * halvings);
    bool host_attends = o->host_attention_gb_per_second != 0;

    add_terms(&m->lanes[OFFLOAD_DECODE][OFFLOAD_COMPUTE], OFFLOAD_CC, OFFLOAD_CD,
              kv / (host_attends ? o->host_attention_gb_per_second * GIGA * share : device_rate));
    if (!host_attends && m->tiers[OFFLOAD_HOST])
        add_terms(&m->lanes[OFFLOAD_DECODE][OFFLOAD_COPY_IN], OFFLOAD_CC, OFFLOAD_CD, kv / (o->copy_in_gb_per_second * GIGA));
}

// Rows go out and come back over the S-part's link while the workers read KV: R + X of plan.h, for a layer of a block.
static double delegated_s(const struct offload_request *r, const struct sizes *z)
{
    const struct hardware *w = r->worker;
    double link = r->link->link_gb_per_second * GIGA, rate = w->memory_gb_per_second * w->attention_share * GIGA;
    double rows_each = w->shares_cores ? z->rows : ceil(z->rows / r->workers);
    double read_s = rows_each * z->context * z->kv_token / rate;

    if (w->model.attention.token_us > 0 && r->kv_type == KV_F16 && !r->compress)
        read_s = (z->gpu_batches * w->model.attention.call_us +
                  rows_each * (w->model.attention.row_us + z->context * w->model.attention.token_us)) /
                 US;
    return read_s + z->gpu_batches * r->link->link_round_trip_us / US + z->rows * shape_link_bytes(r->shape) / link;
}

// Prompts' rows go out and come back, too, and the workers attend for them: each row to half of its prompt.
static double delegated_prompts_s(const struct offload_request *r, const struct sizes *z)
{
    const double link = r->link->link_gb_per_second * GIGA, workers = r->worker->shares_cores ? 1 : r->workers;
    const double pairs = z->rows * z->s * (z->s + 1) / 2;
    return pairs / workers * shape_pair_operations(r->shape) / (plan_attention_per_us(r->worker) * US) +
           z->gpu_batches * r->link->link_round_trip_us / US + z->rows * z->s * shape_link_bytes(r->shape) / link;
}

static void compute_lane(const struct offload_request *r, const struct sizes *z, struct offload_model *m)
{
    const struct hardware *h = r->device;
    double prompt_rate = operations(r), decode_rate = h->offload.decode_tflops != 0 ? h->offload.decode_tflops * 1e12 : prompt_rate;
    double pairs = z->rows * z->s * z->s * 4 * r->shape->heads * r->shape->head_dim;
    double attention_rate = h->prompt_attention_tflops != 0 ? h->prompt_attention_tflops * 1e12 : prompt_rate;
    double kv = z->rows * z->context * z->kv_token;
    struct offload_linear *prompts = &m->lanes[OFFLOAD_PROMPTS][OFFLOAD_COMPUTE],
                          *decode = &m->lanes[OFFLOAD_DECODE][OFFLOAD_COMPUTE];

    m->products[OFFLOAD_PROMPTS] = products_s(r, z, z->gpu_batches, z->gpu_batch * z->s, prompt_rate);
    m->products[OFFLOAD_DECODE] = products_s(r, z, z->gpu_batches, z->gpu_batch, decode_rate);
    prompts->constant = m->products[OFFLOAD_PROMPTS] + pairs / attention_rate;
    decode->constant = m->products[OFFLOAD_DECODE];
    if (m->delegated) {
        double away = delegated_s(r, z), prompts_away = delegated_prompts_s(r, z), products = m->products[OFFLOAD_PROMPTS];
        bool beside = z->gpu_batches > 1 && !r->worker->shares_cores;
        decode->constant = beside ? MAX(decode->constant, away) : decode->constant + away;
        prompts->constant = beside ? MAX(products, prompts_away) : products + prompts_away;
        return;
    }
    double device_rate = h->memory_gb_per_second * h->attention_share * GIGA;
    add_terms(decode, OFFLOAD_CG, OFFLOAD_CG, kv / device_rate);
    away_attention(r, z, kv, device_rate, m);
}

static void copy_lanes(const struct offload_request *r, const struct sizes *z, struct offload_model *m)
{
    const struct hardware_offload *o = &r->device->offload;
    double in = o->copy_in_gb_per_second * GIGA, out = or_else(o->copy_out_gb_per_second, o->copy_in_gb_per_second) * GIGA;
    double out_kv = or_else(o->copy_out_kv_gb_per_second * GIGA, out);

    if (!m->tiers[OFFLOAD_HOST])
        return;
    for (int phase = 0; phase < OFFLOAD_PHASES; phase++) {
        double hidden = z->rows * z->hidden_row * (phase == OFFLOAD_PROMPTS ? z->s : 1);
        add_terms(&m->lanes[phase][OFFLOAD_COPY_IN], OFFLOAD_WC, OFFLOAD_WD, z->weights / in);
        add_terms(&m->lanes[phase][OFFLOAD_COPY_IN], OFFLOAD_HC, OFFLOAD_HD, hidden / in);
        add_terms(&m->lanes[phase][OFFLOAD_COPY_OUT], OFFLOAD_HC, OFFLOAD_HD, hidden / out);
    }
    add_terms(&m->lanes[OFFLOAD_PROMPTS][OFFLOAD_COPY_OUT], OFFLOAD_CC, OFFLOAD_CD, z->rows * (z->s + 1) * z->kv_token / out_kv);
}

static void disk_lanes(const struct offload_request *r, const struct sizes *z, struct offload_model *m)
{
    const struct hardware_offload *o = &r->device->offload;
    double read = or_else(r->disk_read_mb_per_second * 1e6, o->disk_read_gb_per_second * GIGA);
    double write = or_else(o->disk_write_gb_per_second * GIGA, read),
           write_kv = or_else(o->disk_write_kv_gb_per_second * GIGA, write);

    if (!m->tiers[OFFLOAD_DISK])
        return;
    for (int phase = 0; phase < OFFLOAD_PHASES; phase++) {
        double hidden = z->rows * z->hidden_row * (phase == OFFLOAD_PROMPTS ? z->s : 1);
        double share = phase == OFFLOAD_PROMPTS ? 1 : WEIGHT_READ_SHARE;
        add_terms(&m->lanes[phase][OFFLOAD_DISK_READ], OFFLOAD_WD, OFFLOAD_WD, z->weights / (read * share));
        add_terms(&m->lanes[phase][OFFLOAD_DISK_READ], OFFLOAD_HD, OFFLOAD_HD, hidden / read);
        add_terms(&m->lanes[phase][OFFLOAD_DISK_WRITE], OFFLOAD_HD, OFFLOAD_HD, hidden / write);
    }
    add_terms(&m->lanes[OFFLOAD_DECODE][OFFLOAD_DISK_READ], OFFLOAD_CD, OFFLOAD_CD, z->rows * z->context * z->kv_token / read);
    add_terms(&m->lanes[OFFLOAD_DECODE][OFFLOAD_DISK_WRITE], OFFLOAD_CD, OFFLOAD_CD, z->rows * z->kv_token / write);
    add_terms(&m->lanes[OFFLOAD_PROMPTS][OFFLOAD_DISK_WRITE], OFFLOAD_CD, OFFLOAD_CD,
              z->rows * (z->s + 1) * z->kv_token / write_kv);
}

// --- memory -----------------------------------------------------------------------------------------------------------

// Returns the bytes of activations that a batch of `rows` rows has while it is computed: its input, and q, k and v or what the
// MLP makes of it.
static double working_bytes(const struct plan_shape *s, double rows)
{
    double attention = 2.0 * s->hidden * s->heads * s->head_dim + 2.0 * s->hidden * s->kv_heads * s->head_dim;
    double matrices = round(((double)s->layer_values - attention) / ((double)s->hidden * s->ffn)); // 2, or 3 with a gate
    double qkv = s->hidden + (s->heads + 2.0 * s->kv_heads) * s->head_dim;
    return 2 * rows * MAX(qkv, s->hidden + (matrices - 1) * s->ffn);
}

static void memory_rows(const struct offload_request *r, const struct sizes *z, struct offload_model *m)
{
    double layers = r->shape->layers, slots = m->copies_wait ? 1 : 2;
    double kv = z->rows * (z->s + z->n) * layers * z->kv_token;
    static const int first[OFFLOAD_TIERS] = {OFFLOAD_WG, OFFLOAD_WC, OFFLOAD_WD};

    for (int phase = 0; phase < OFFLOAD_PHASES; phase++) {
        double tokens = phase == OFFLOAD_PROMPTS ? z->s : 1;
        double hidden = z->rows * z->hidden_row * tokens, hidden_batch = z->gpu_batch * z->hidden_row * tokens;
        for (int tier = 0; tier < OFFLOAD_TIERS; tier++) {
            struct offload_linear *row = &m->memory[tier][phase];
            row->by[first[tier]] += layers * z->weights;
            row->by[first[tier] + OFFLOAD_HG] += hidden;
            row->by[first[tier] + OFFLOAD_CG] += m->delegated ? 0 : kv;
        }
        struct offload_linear *device = &m->memory[OFFLOAD_DEVICE][phase], *host = &m->memory[OFFLOAD_HOST][phase];
        device->constant = working_bytes(r->shape, z->gpu_batch * tokens);
        add_terms(device, OFFLOAD_WC, OFFLOAD_WD, slots * z->weights);
        add_terms(device, OFFLOAD_HC, OFFLOAD_HD, hidden_batch);
        if (m->tiers[OFFLOAD_HOST]) { // what passes through
            add_terms(host, OFFLOAD_WC, OFFLOAD_WD, phase == OFFLOAD_PROMPTS ? z->weights : 0);
            add_terms(host, OFFLOAD_WD, OFFLOAD_WD, phase == OFFLOAD_PROMPTS ? 0 : z->weights);
            add_terms(host, OFFLOAD_HC, OFFLOAD_HD, hidden_batch);
            add_terms(host, OFFLOAD_CD, OFFLOAD_CD, m->delegated ? 0 : 2 * z->gpu_batch * (z->s + z->n) * z->kv_token);
        }
    }
    m->worker_bytes = m->delegated ? ceil(z->rows / r->workers) * (z->s + z->n + PLAN_PAGE_TOKENS / 2.0) * layers * z->kv_token : 0;
    m->worker_limit = m->delegated ? (double)r->worker->memory_bytes : 0;
}

void offload_model_make(const struct offload_request *r, uint32_t gpu_batch, uint32_t gpu_batches, struct offload_model *out)
{
    struct sizes z = sizes_of(r, gpu_batch, gpu_batches);
    bool is_host = r->device->offload.copy_in_gb_per_second == 0;

    *out = (struct offload_model){.gpu_batch = gpu_batch,
                                  .gpu_batches = gpu_batches,
                                  .layers = r->shape->layers,
                                  .decode_steps = z.n - 1,
                                  .delegated = r->workers > 0,
                                  .copies_wait = r->device->offload.copies_wait,
                                  .weights_only = !r->paper};
    out->tiers[OFFLOAD_DEVICE] = true;
    out->tiers[OFFLOAD_HOST] = !is_host && r->host_bytes;
    out->tiers[OFFLOAD_DISK] = r->disk_bytes > 0;
    out->limits[OFFLOAD_DEVICE] = (double)(is_host && r->host_bytes ? r->host_bytes : r->device->memory_bytes) *
                                  r->device->offload.usable_share;
    out->limits[OFFLOAD_HOST] = out->tiers[OFFLOAD_HOST] ? (double)r->host_bytes * OFFLOAD_HOST_SHARE : 0;
    out->limits[OFFLOAD_DISK] = (double)r->disk_bytes;
    compute_lane(r, &z, out);
    copy_lanes(r, &z, out);
    disk_lanes(r, &z, out);
    memory_rows(r, &z, out);
}

// --- one block's linear program, solved by COIN-OR's CLP ------------------------------------------------------------

//     columns   nine fractions, T_pre, T_gen
//     rows      w, h and c each add up to 1; T_pre and T_gen are no shorter than any lane, or sum of lanes with copies_wait;
//               peaks keep to the limits
//
// Times are multiples of the compute lane's fixed part, peaks shares of their limits, so that all coefficients are near 1 and the
// solver's tolerances mean the same for any model. Activations are never on disk: nothing that runs puts them there.
//
// A second run with T as a limit finds, among all optima, the one with the least on disk and then on the host.

enum { T_PRE = OFFLOAD_SPLITS, T_GEN, COLUMNS, ROWS_MAX = 24 };

#define UNUSED_COST 1e-9 // of T_GEN where nothing is decoded, so that it is still the shortest possible
#define TOLERANCE 1e-9
#define SLACK 1e-8     // of T in the second run
#define HOST_COST 1e-3 // of a byte on the host where one on disk costs 1
#define NEARLY 1e-4    // a fraction this near to 0 or 1 is meant to be that: a slack of T buys a little

struct program {
    int rows;
    double unit[OFFLOAD_PHASES]; // seconds that a time of 1 is
    double coefficients[ROWS_MAX][COLUMNS], lower[ROWS_MAX], upper[ROWS_MAX];
};

// Adds lower <= coefficients of x <= upper and returns the coefficients.
static double *add_row(struct program *p, double lower, double upper)
{
    assert_always(p->rows < ROWS_MAX);
    p->lower[p->rows] = lower;
    p->upper[p->rows] = upper;
    return memset(p->coefficients[p->rows++], 0, sizeof p->coefficients[0]);
}

// a + b <= T of the phase; b may be NULL.
static void add_time(struct program *p, int phase, const struct offload_linear *a, const struct offload_linear *b)
{
    double *row = add_row(p, -DBL_MAX, -(a->constant + (b ? b->constant : 0)) / p->unit[phase]);
    for (int i = 0; i < OFFLOAD_SPLITS; i++)
        row[i] = (a->by[i] + (b ? b->by[i] : 0)) / p->unit[phase];
    row[phase == OFFLOAD_PROMPTS ? T_PRE : T_GEN] = -1;
}

static void add_times(struct program *p, const struct offload_model *m)
{
    for (int phase = 0; phase < OFFLOAD_PHASES; phase++) {
        const struct offload_linear *l = m->lanes[phase];
        if (!m->copies_wait) {
            for (int lane = 0; lane < OFFLOAD_LANES; lane++)
                add_time(p, phase, &l[lane], NULL);
        } else if (phase == OFFLOAD_PROMPTS) {
            add_time(p, phase, &l[OFFLOAD_COMPUTE], NULL);
            add_time(p, phase, &l[OFFLOAD_COPY_IN], &l[OFFLOAD_DISK_READ]);
            add_time(p, phase, &l[OFFLOAD_COPY_OUT], &l[OFFLOAD_DISK_WRITE]);
        } else {
            for (int lane = 0; lane < OFFLOAD_LANES; lane++)
                if (lane != OFFLOAD_COPY_IN)
                    add_time(p, phase, &l[lane], &l[OFFLOAD_COPY_IN]);
        }
    }
}

static void add_memory(struct program *p, const struct offload_model *m, enum offload_tier last)
{
    for (int tier = 0; tier <= (int)last; tier++)
        for (int phase = 0; phase < OFFLOAD_PHASES && m->limits[tier] > 0; phase++) {
            const struct offload_linear *peak = &m->memory[tier][phase];
            double *row = add_row(p, -DBL_MAX, 1 - peak->constant / m->limits[tier]);
            for (int i = 0; i < OFFLOAD_SPLITS; i++)
                row[i] = peak->by[i] / m->limits[tier];
        }
}

static void make_program(struct program *p, const struct offload_model *m, enum offload_tier last)
{
    p->rows = 0;
    for (int phase = 0; phase < OFFLOAD_PHASES; phase++)
        p->unit[phase] = m->lanes[phase][OFFLOAD_COMPUTE].constant;
    for (int tensor = OFFLOAD_WG; tensor < OFFLOAD_SPLITS; tensor += OFFLOAD_TIERS) {
        double sum = tensor == OFFLOAD_CG && m->delegated ? 0 : 1, *row = add_row(p, sum, sum);
        row[tensor] = row[tensor + 1] = row[tensor + 2] = 1;
    }
    add_times(p, m);
    add_memory(p, m, last);
}

static Clp_Simplex *load(const struct program *p, const struct offload_model *m, enum offload_tier last, const double *objective)
{
    CoinBigIndex starts[COLUMNS + 1];
    int rows[COLUMNS * ROWS_MAX], count = 0;
    double values[COLUMNS * ROWS_MAX], lower[COLUMNS] = {0}, upper[COLUMNS];
    Clp_Simplex *clp = Clp_newModel();

    for (int column = 0; column < COLUMNS; column++) {
        int tier = column % OFFLOAD_TIERS;
        starts[column] = count;
        const bool stays = tier > 0 && (column == OFFLOAD_HD || (m->weights_only && column >= OFFLOAD_HG));
        upper[column] = column >= OFFLOAD_SPLITS ? DBL_MAX : tier <= (int)last && m->tiers[tier] && !stays ? 1 : 0;
        for (int row = 0; row < p->rows; row++)
            if (p->coefficients[row][column] != 0) {
                rows[count] = row;
                values[count++] = p->coefficients[row][column];
            }
    }
    starts[COLUMNS] = count;
    Clp_setLogLevel(clp, 0);
    Clp_setPrimalTolerance(clp, TOLERANCE);
    Clp_setDualTolerance(clp, TOLERANCE);
    Clp_loadProblem(clp, COLUMNS, p->rows, starts, rows, values, lower, upper, objective, p->lower, p->upper);
    return clp;
}

// The time of a block, as a multiple of what computing the prompts takes.
static void block_time(const struct program *p, const struct offload_model *m, double *objective)
{
    memset(objective, 0, COLUMNS * sizeof *objective);
    objective[T_PRE] = 1;
    objective[T_GEN] = MAX(m->decode_steps * p->unit[OFFLOAD_DECODE] / p->unit[OFFLOAD_PROMPTS], UNUSED_COST);
}

static double dot(const double *a, const double *b)
{
    double sum = 0;
    for (int i = 0; i < COLUMNS; i++)
        sum += a[i] * b[i];
    return sum;
}

// Solves a program for its objective. false: infeasible.
static bool run_program(const struct program *p, const struct offload_model *m, enum offload_tier last, const double *objective,
                        double *x)
{
    Clp_Simplex *clp = load(p, m, last, objective);
    bool found = Clp_dual(clp, 0) == 0 && Clp_isProvenOptimal(clp);

    if (found)
        memcpy(x, Clp_getColSolution(clp), COLUMNS * sizeof *x);
    Clp_deleteModel(clp);
    return found;
}

// x: an optimum; replaced by the one with least on disk.
static void least_disk(struct program *p, const struct offload_model *m, enum offload_tier last, double *x)
{
    double time[COLUMNS], bytes[COLUMNS] = {0}, better[COLUMNS];
    double total = m->limits[OFFLOAD_DEVICE] + m->limits[OFFLOAD_HOST] + m->limits[OFFLOAD_DISK];

    block_time(p, m, time);
    double *row = add_row(p, -DBL_MAX, 1 + SLACK), limit = dot(time, x);
    for (int i = 0; i < COLUMNS; i++)
        row[i] = time[i] / limit;
    for (int i = 0; i < OFFLOAD_SPLITS; i++)
        bytes[i] = (m->memory[OFFLOAD_DISK][OFFLOAD_PROMPTS].by[i] + HOST_COST * m->memory[OFFLOAD_HOST][OFFLOAD_PROMPTS].by[i]) /
                   total;
    if (run_program(p, m, last, bytes, better))
        memcpy(x, better, sizeof better);
}

// --- the answer -------------------------------------------------------------------------------------------------------

static struct offload_phase phase_of(const struct offload_model *m, int phase, double seconds, const double *x)
{
    struct offload_phase out = {.seconds = seconds};

    for (int lane = 0; lane < OFFLOAD_LANES; lane++) {
        out.lanes[lane] = offload_linear_at(&m->lanes[phase][lane], x);
        if (out.lanes[lane] > out.lanes[out.bound_by])
            out.bound_by = (enum offload_lane)lane;
    }
    out.attention = out.lanes[OFFLOAD_COMPUTE] > 2 * m->products[phase];
    return out;
}

static double peak(const struct offload_model *m, enum offload_tier tier, const double *x)
{
    return MAX(offload_linear_at(&m->memory[tier][OFFLOAD_PROMPTS], x), offload_linear_at(&m->memory[tier][OFFLOAD_DECODE], x));
}

static struct offload_split split_of(double *x)
{
    for (int i = 0; i < OFFLOAD_TIERS; i++)
        x[i] = x[i] < NEARLY ? 0 : x[i] > 1 - NEARLY ? 1 : x[i];
    return (struct offload_split){.device = x[0], .host = x[1], .disk = x[2]};
}

bool offload_solve(const struct offload_model *m, enum offload_tier last, bool thrifty, struct offload_plan *out)
{
    struct program program;
    double objective[COLUMNS], x[COLUMNS];

    if (m->worker_bytes > m->worker_limit)
        return false;
    make_program(&program, m, last);
    block_time(&program, m, objective);
    if (!run_program(&program, m, last, objective, x))
        return false;
    if (thrifty)
        least_disk(&program, m, last, x);
    x[T_PRE] *= program.unit[OFFLOAD_PROMPTS];
    x[T_GEN] *= program.unit[OFFLOAD_DECODE];
    *out = (struct offload_plan){.gpu_batch = m->gpu_batch,
                                 .gpu_batches = m->gpu_batches,
                                 .weights = split_of(x + OFFLOAD_WG),
                                 .activations = split_of(x + OFFLOAD_HG),
                                 .kv = split_of(x + OFFLOAD_CG),
                                 .block_seconds = m->layers * (x[T_PRE] + m->decode_steps * x[T_GEN]),
                                 .prompts = phase_of(m, OFFLOAD_PROMPTS, x[T_PRE], x),
                                 .decode = phase_of(m, OFFLOAD_DECODE, x[T_GEN], x),
                                 .decode_bound = m->decode_steps * x[T_GEN] > x[T_PRE],
                                 .device_bytes = peak(m, OFFLOAD_DEVICE, x),
                                 .host_bytes = m->tiers[OFFLOAD_HOST] ? peak(m, OFFLOAD_HOST, x) : 0,
                                 .disk_bytes = m->tiers[OFFLOAD_DISK] ? peak(m, OFFLOAD_DISK, x) : 0,
                                 .device_limit = m->limits[OFFLOAD_DEVICE],
                                 .host_limit = m->limits[OFFLOAD_HOST],
                                 .disk_limit = m->limits[OFFLOAD_DISK],
                                 .worker_bytes = m->worker_bytes};
    out->tokens_per_second = m->gpu_batch * (double)m->gpu_batches * (m->decode_steps + 1) / out->block_seconds;
    return true;
}

// --- blocks and tiers: the best is kept -----------------------------------------------------------------------------

#define GIB (1024.0 * 1024.0 * 1024.0)
#define TIE 1e-4 // blocks whose rates differ by less are equal, and the smaller is taken

enum { SMALL_BATCH = 8, BATCH_STEP = 16 }; // batches tried: 1 to 8, then multiples of 16

const char *offload_phase_bound_name(const struct offload_phase *phase)
{
    static const char *const names[OFFLOAD_LANES] = {"compute", "copy in", "copy out", "disk read", "disk write"};
    return phase->bound_by == OFFLOAD_COMPUTE && phase->attention ? "attention" : names[phase->bound_by];
}

const char *offload_bound_name(const struct offload_plan *plan)
{
    return offload_phase_bound_name(plan->decode_bound ? &plan->decode : &plan->prompts);
}

// --- the search -------------------------------------------------------------------------------------------------------

static uint32_t next_batch(uint32_t batch)
{
    return batch < SMALL_BATCH ? batch + 1 : batch / BATCH_STEP * BATCH_STEP + BATCH_STEP;
}

static bool is_better(const struct offload_plan *plan, const struct offload_plan *best)
{
    return best->gpu_batch == 0 || plan->tokens_per_second > best->tokens_per_second * (1 + TIE);
}

// Tries all batches per block of one batch size, with nothing on tiers beyond `last`.
static void try_batch(const struct offload_request *r, uint32_t batch, enum offload_tier last, struct offload_plan *best)
{
    uint32_t from = r->gpu_batches ? r->gpu_batches : 1, to = r->gpu_batches ? r->gpu_batches : OFFLOAD_BATCHES;
    bool fixed = r->gpu_batch && r->gpu_batches;

    for (uint32_t batches = from; batches <= to; batches++) {
        struct offload_model model;
        struct offload_plan plan;
        if (!fixed && (uint64_t)batch * batches * r->prompt_tokens > r->block_tokens && batch * batches > 1)
            break;
        offload_model_make(r, batch, batches, &model);
        if (!offload_solve(&model, last, false, &plan))
            break; // a larger block does not fit either
        if (is_better(&plan, best))
            *best = plan;
    }
}

// Finds the best block with nothing on tiers beyond `last`; gpu_batch 0 if none fits.
static struct offload_plan best_within(const struct offload_request *r, enum offload_tier last)
{
    struct offload_plan best = {.gpu_batch = 0};

    if (r->gpu_batch)
        try_batch(r, r->gpu_batch, last, &best);
    for (uint32_t batch = 1; !r->gpu_batch && batch <= OFFLOAD_BATCH_MAX; batch = next_batch(batch))
        try_batch(r, batch, last, &best);
    return best;
}

// --- what is wrong ----------------------------------------------------------------------------------------------------

static enum status check_request(const struct offload_request *r, struct error *error)
{
    const struct hardware *h = r->device;

    if (r->prompt_tokens == 0 || r->generated_tokens == 0)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--prompt and --gen must be at least 1 for --offload");
    if (r->disk_bytes && h->offload.disk_read_gb_per_second == 0 && r->disk_read_mb_per_second == 0)
        return error_set(
            error, STATUS_INVALID_ARGUMENT,
            "%s: its file says no disk_read_gb_per_second: give --disk-read-mbs (fio or `dd iflag=direct` measures it)", h->name);
    if (r->disk_bytes && !r->host_bytes && h->offload.copy_in_gb_per_second != 0)
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "--disk-memory without --host-memory: what is read passes through the host");
    if (r->workers && r->link->link_gb_per_second == 0)
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s is no link: its file says no link_gb_per_second", r->link->name);
    return STATUS_OK;
}

static enum status refuse_request(const struct offload_request *r, struct error *error)
{
    struct offload_model m;
    uint32_t batch = r->gpu_batch ? r->gpu_batch : 1, batches = r->gpu_batches ? r->gpu_batches : 1;

    offload_model_make(r, batch, batches, &m);
    double weights = m.memory[OFFLOAD_DISK][OFFLOAD_DECODE].by[OFFLOAD_WD];
    double kv = m.memory[OFFLOAD_DISK][OFFLOAD_DECODE].by[OFFLOAD_CD];
    if (m.worker_bytes > m.worker_limit)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED,
                         "KV of a block of %u x %u takes %.1f GiB of a worker, which has %.1f: more --workers", batch, batches,
                         m.worker_bytes / GIB, m.worker_limit / GIB);
    return error_set(
        error, STATUS_RESOURCE_EXHAUSTED,
        "%s: weights take %.1f GiB and KV of a block of %u x %u %.1f GiB; usable are %.1f GiB of the device, %.1f of the host and "
        "%.1f of disk: more --host-memory or --disk-memory, or --compress",
        r->shape->name, weights / GIB, batch, batches, kv / GIB, m.limits[OFFLOAD_DEVICE] / GIB, m.limits[OFFLOAD_HOST] / GIB,
        m.limits[OFFLOAD_DISK] / GIB);
}

enum status offload_plan_make(const struct offload_request *r, struct offload_plan *out, struct error *error)
{
    struct offload_plan best = {.gpu_batch = 0};
    struct offload_model model;
    enum offload_tier last = OFFLOAD_DEVICE;
    enum status status = check_request(r, error);

    if (status)
        return status;
    for (int tier = OFFLOAD_DEVICE; tier < OFFLOAD_TIERS; tier++) {
        struct offload_plan plan = best_within(r, (enum offload_tier)tier);
        if (plan.gpu_batch && (!best.gpu_batch || plan.tokens_per_second > OFFLOAD_GAIN * best.tokens_per_second)) {
            best = plan;
            last = (enum offload_tier)tier;
        }
    }
    if (!best.gpu_batch)
        return refuse_request(r, error);
    offload_model_make(r, best.gpu_batch, best.gpu_batches, &model);
    *out = best;
    if (!offload_solve(&model, last, true, out))
        return error_set(error, STATUS_INTERNAL, "the linear program of %u x %u was solved once and not again", best.gpu_batch,
                         best.gpu_batches);
    return STATUS_OK;
}
