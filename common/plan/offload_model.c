// offload_model.c: the lanes and the peak memory of one block, as offload.h describes them. Letters are those of the paper: s, n,
// bls (here rows), gbs.
#include "common/plan/offload_internal.h"

#include <math.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/plan/plan.h"

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
    return (double)r->shape->layer_bytes;
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

static void add(struct offload_linear *to, int first, int last, double value)
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
    const struct hardware *h = r->device;
    bool quantized = r->compress || r->shape->quantized;
    double tera = quantized && h->int8_tops != 0 ? h->int8_tops : or_else(h->f16_tflops, h->f32_tflops);
    return MAX(tera, 1e-6) * h->products_share * 1e12;
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

    add(&m->lanes[OFFLOAD_DECODE][OFFLOAD_COMPUTE], OFFLOAD_CC, OFFLOAD_CD,
        kv / (host_attends ? o->host_attention_gb_per_second * GIGA * share : device_rate));
    if (!host_attends && m->tiers[OFFLOAD_HOST])
        add(&m->lanes[OFFLOAD_DECODE][OFFLOAD_COPY_IN], OFFLOAD_CC, OFFLOAD_CD, kv / (o->copy_in_gb_per_second * GIGA));
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

static void compute_lane(const struct offload_request *r, const struct sizes *z, struct offload_model *m)
{
    const struct hardware *h = r->device;
    double prompt_rate = operations(r), decode_rate = h->offload.decode_tflops != 0 ? h->offload.decode_tflops * 1e12 : prompt_rate;
    double pairs = z->rows * z->s * z->s * 4 * r->shape->heads * r->shape->head_dim;
    double attention_rate = h->offload.prompt_attention_tflops != 0 ? h->offload.prompt_attention_tflops * 1e12 : prompt_rate;
    double kv = z->rows * z->context * z->kv_token;
    struct offload_linear *prompts = &m->lanes[OFFLOAD_PROMPTS][OFFLOAD_COMPUTE],
                          *decode = &m->lanes[OFFLOAD_DECODE][OFFLOAD_COMPUTE];

    m->products[OFFLOAD_PROMPTS] = products_s(r, z, z->gpu_batches, z->gpu_batch * z->s, prompt_rate);
    m->products[OFFLOAD_DECODE] = products_s(r, z, z->gpu_batches, z->gpu_batch, decode_rate);
    prompts->constant = m->products[OFFLOAD_PROMPTS] + pairs / attention_rate;
    decode->constant = m->products[OFFLOAD_DECODE];
    if (m->delegated) {
        double away = delegated_s(r, z);
        bool beside = z->gpu_batches > 1 && !r->worker->shares_cores;
        decode->constant = beside ? MAX(decode->constant, away) : decode->constant + away;
        return;
    }
    double device_rate = h->memory_gb_per_second * h->attention_share * GIGA;
    add(decode, OFFLOAD_CG, OFFLOAD_CG, kv / device_rate);
    away_attention(r, z, kv, device_rate, m);
}

static void copy_lanes(const struct offload_request *r, const struct sizes *z, struct offload_model *m)
{
    const struct hardware_offload *o = &r->device->offload;
    double in = o->copy_in_gb_per_second * GIGA, out = or_else(o->copy_out_gb_per_second, o->copy_in_gb_per_second) * GIGA;
    double out_kv = or_else(o->copy_out_kv_gb_per_second * GIGA, out);

    if (m->delegated) // the prompts' KV goes to its workers
        m->lanes[OFFLOAD_PROMPTS][OFFLOAD_COPY_OUT].constant = z->rows * z->s * z->kv_token / (r->link->link_gb_per_second * GIGA);
    if (!m->tiers[OFFLOAD_HOST])
        return;
    for (int phase = 0; phase < OFFLOAD_PHASES; phase++) {
        double hidden = z->rows * z->hidden_row * (phase == OFFLOAD_PROMPTS ? z->s : 1);
        add(&m->lanes[phase][OFFLOAD_COPY_IN], OFFLOAD_WC, OFFLOAD_WD, z->weights / in);
        add(&m->lanes[phase][OFFLOAD_COPY_IN], OFFLOAD_HC, OFFLOAD_HD, hidden / in);
        add(&m->lanes[phase][OFFLOAD_COPY_OUT], OFFLOAD_HC, OFFLOAD_HD, hidden / out);
    }
    add(&m->lanes[OFFLOAD_PROMPTS][OFFLOAD_COPY_OUT], OFFLOAD_CC, OFFLOAD_CD, z->rows * (z->s + 1) * z->kv_token / out_kv);
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
        add(&m->lanes[phase][OFFLOAD_DISK_READ], OFFLOAD_WD, OFFLOAD_WD, z->weights / (read * share));
        add(&m->lanes[phase][OFFLOAD_DISK_READ], OFFLOAD_HD, OFFLOAD_HD, hidden / read);
        add(&m->lanes[phase][OFFLOAD_DISK_WRITE], OFFLOAD_HD, OFFLOAD_HD, hidden / write);
    }
    add(&m->lanes[OFFLOAD_DECODE][OFFLOAD_DISK_READ], OFFLOAD_CD, OFFLOAD_CD, z->rows * z->context * z->kv_token / read);
    add(&m->lanes[OFFLOAD_DECODE][OFFLOAD_DISK_WRITE], OFFLOAD_CD, OFFLOAD_CD, z->rows * z->kv_token / write);
    add(&m->lanes[OFFLOAD_PROMPTS][OFFLOAD_DISK_WRITE], OFFLOAD_CD, OFFLOAD_CD, z->rows * (z->s + 1) * z->kv_token / write_kv);
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
        add(device, OFFLOAD_WC, OFFLOAD_WD, slots * z->weights);
        add(device, OFFLOAD_HC, OFFLOAD_HD, hidden_batch);
        if (m->tiers[OFFLOAD_HOST]) { // what passes through
            add(host, OFFLOAD_WC, OFFLOAD_WD, phase == OFFLOAD_PROMPTS ? z->weights : 0);
            add(host, OFFLOAD_WD, OFFLOAD_WD, phase == OFFLOAD_PROMPTS ? 0 : z->weights);
            add(host, OFFLOAD_HC, OFFLOAD_HD, hidden_batch);
            add(host, OFFLOAD_CD, OFFLOAD_CD, m->delegated ? 0 : 2 * z->gpu_batch * (z->s + z->n) * z->kv_token);
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
                                  .copies_wait = r->device->offload.copies_wait};
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
