// plan.c: `fastdecode plan`: what hardware a load needs, and what to expect of it; common/plan has the arithmetic.
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/options.h"
#include "common/kv/kv_shape.h"
#include "common/model/compute.h"
#include "common/plan/plan.h"
#include "services/fastdecode/capacity/report.h"
#include "services/fastdecode/plan/commands.h"

enum { SWEEP_MAX = 24, READING_MS = 200 }; // READING_MS: between two tokens, for people who read along

struct plan_settings {
    struct described described;
    const char *add_to, *workers, *s_parts, *device, *local_pool, *policy;
    uint64_t requests;
    struct plan_request request;
    struct offload_request offload;
    uint32_t threads;
    bool sweep, measure, offloads, simulates;
};

#define PLAN_DEFAULTS                                                                                               \
    {                                                                                                               \
        .described = DESCRIBED_DEFAULTS, .workers = "auto", .s_parts = "1", .local_pool = "auto", .policy = "mesh", \
        .simulates = true, .device = "auto", .offload = {.block_tokens = OFFLOAD_BLOCK_TOKENS}, .request = {        \
            .prompt_tokens = 16,                                                                                    \
            .generated_tokens = 1024,                                                                               \
            .workers = PLAN_CHOOSE                                                                                  \
        }                                                                                                           \
    }

#define GIB (1024.0 * 1024.0 * 1024.0)

// --- what it prints ---------------------------------------------------------------------------------------------------

static bool is_mix(const struct plan_settings *s) { return s->described.s_part_count > 1 || s->described.worker_count > 1; }

static json_t *describe(const struct plan_settings *s)
{
    json_t *object = described_json(&s->described);

    for (size_t i = 0; is_mix(s) && i < 3; i++) // each mesh of a mix says its own
        json_object_del(object, (const char *[]){"gpu", "worker", "worker_nodes"}[i]);
    json_object_set_new(object, "prompt_tokens", json_integer(s->request.prompt_tokens));
    json_object_set_new(object, "generated_tokens", json_integer(s->request.generated_tokens));
    return object;
}

static void set_integer(json_t *object, const char *name, double value)
{
    json_object_set_new(object, name, json_integer((json_int_t)ceil(value)));
}

static void set_known(json_t *object, const char *name, double value)
{
    json_object_set_new(object, name, value != 0 ? json_real(value) : json_null());
}

static void add_stages(json_t *object, const struct plan *plan)
{
    json_t *stages = json_array();

    for (uint32_t i = 0; i < plan->stages; i++) {
        const struct plan_stage *stage = &plan->stage[i];
        json_array_append_new(stages, json_pack("{s:i,s:i,s:f,s:I}", "first_layer", (int)stage->layers.first, "end_layer",
                                                (int)stage->layers.end, "turn_us", stage->turn_us, "bytes",
                                                (json_int_t)ceil(stage->bytes)));
    }
    json_object_set_new(object, "stages", stages);
    json_object_set_new(object, "hop_us", json_real(plan->hop_us));
}

static void add_plan(json_t *object, const struct plan *plan)
{
    set_integer(object, "batch", plan->batch);
    set_integer(object, "mini_batches", plan->mini_batches);
    set_integer(object, "workers", plan->workers);
    set_integer(object, "s_parts", plan->stages);
    if (plan->stages > 1)
        add_stages(object, plan);
    json_object_set_new(object, "bound_by", json_string(plan_bound_name(plan->bound_by)));
    json_object_set_new(object, "tokens_per_second", json_real(plan->tokens_per_second));
    json_object_set_new(object, "step_ms", json_real(plan->step_ms));
    json_object_set_new(object, "s_part_layer_us", json_real(plan->s_part_layer_us));
    json_object_set_new(object, "r_part_layer_us", json_real(plan->r_part_layer_us));
    json_object_set_new(object, "link_layer_us", json_real(plan->link_layer_us));
    json_object_set_new(object, "pool_layer_us", json_real(plan->pool_layer_us));
    json_object_set_new(object, "head_us", json_real(plan->head_us));
    json_object_set_new(object, "s_part_busy", json_real(plan->s_part_busy));
    json_object_set_new(object, "r_part_busy", json_real(plan->r_part_busy));
    json_object_set_new(object, "network_gbit_per_second", json_real(plan->network_gbit_per_second));
    set_integer(object, "kv_tokens", plan->kv_tokens);
    set_integer(object, "kv_bytes_per_worker", plan->kv_bytes_per_worker);
    set_integer(object, "s_part_bytes", plan->s_part_bytes);
    set_integer(object, "pool_sequences", plan->pool_sequences);
    set_integer(object, "pool_bytes", plan->workers ? plan->pool_bytes : plan->kv_bytes_per_worker);
    json_object_set_new(object, "hybrid_gain_bound",
                        plan->hybrid_gain_bound != 0 ? json_real(plan->hybrid_gain_bound) : json_null());
    set_integer(object, "hybrid_pool_bytes", plan->hybrid_pool_bytes);
    set_known(object, "price_per_hour", plan->price_per_hour);
    set_known(object, "cost_per_million_tokens", plan->cost_per_million);
}

// The cost of a sequence that lies at several workers; null: there is none.
static json_t *extents_json(const struct plan_request *r, uint32_t workers)
{
    struct plan_extents e;

    if (!plan_extents(r, workers, &e))
        return json_null();
    return json_pack("{s:i,s:i,s:i,s:i,s:f,s:f}", "tokens", (int)e.tokens, "workers", (int)e.workers, "spans", (int)e.spans,
                     "partials", (int)e.partials, "bytes_per_row_and_layer", e.layer_bytes, "bytes_per_row_and_layer_whole",
                     e.whole_bytes);
}

static void print_extents(const struct plan_request *r, uint32_t workers)
{
    struct plan_extents e;

    if (!plan_extents(r, workers, &e))
        return;
    printf("  a sequence             %10u tokens, more than a worker holds: it lies at %u, in %u spans of %u tokens\n", e.tokens,
           e.workers, e.spans, KV_SPAN);
    printf(
        "                                    %u times (2 + %u) floats a head come back for each row and layer: %.1f KiB there and "
        "back, %.1f if it were whole\n",
        e.partials, r->shape->head_dim, e.layer_bytes / 1024, e.whole_bytes / 1024);
}

static void print_head(const struct plan_settings *s)
{
    printf("model       %s: %u layers of %.1f M weights, KV %s: %.0f KiB a token\n", s->described.shape.name,
           s->described.shape.layers, (double)s->described.shape.layer_values / 1e6, s->described.kv_type_name,
           s->described.shape.layers * shape_kv_bytes(&s->described.shape, s->request.kv_type) / 1024);
    printf("load        prompt %u, %u generated, starts every %u steps\n", s->request.prompt_tokens, s->request.generated_tokens,
           s->request.spacing ? s->request.spacing : MAX(1u, s->request.generated_tokens / 32));
    if (!is_mix(s))
        printf("hardware    %s; workers: %s; link: %s\n", s->described.s_parts[0].name, s->described.workers[0].name,
               s->described.link_hardware.name);
    if (!is_mix(s) && s->described.worker_nodes[0] > 1)
        printf("            a worker on each of the %u NUMA nodes of a host, which reads its own memory at %.4g GB/s\n",
               s->described.worker_nodes[0], s->described.workers[0].memory_gb_per_second);
}

static void print_stages(const struct plan_settings *s, const struct plan *plan)
{
    printf("\n  stage   --layers   a mini-batch's turn       memory of %.1f GiB\n",
           (double)hardware_usable_bytes(&s->described.s_parts[0]) / GIB);
    for (uint32_t i = 0; i < plan->stages; i++)
        printf("  %5u   %4u:%-4u %14.2f ms %17.1f GiB\n", i, plan->stage[i].layers.first, plan->stage[i].layers.end,
               plan->stage[i].turn_us / 1e3, plan->stage[i].bytes / GIB);
    printf("  activations take %.2f ms from one to the next\n", plan->hop_us / 1e3);
}

static void print_gain(const char *what, double rate, const struct plan *plan)
{
    if (rate > 0)
        printf("    %-22s %10.0f    %+.0f %%\n", what, rate, 100 * (rate / plan->tokens_per_second - 1));
}

static void print_more(const struct plan_settings *s, const struct plan *plan)
{
    struct plan_more more;

    plan_one_more(&s->request, plan, &more);
    printf("\n  tokens a second with more\n");
    print_gain("one more worker", more.worker, plan);
    print_gain("one more S-part", more.s_part, plan);
    print_gain("a link twice as fast", more.link, plan);
    print_gain("twice the batch", more.batch, plan);
}

static json_t *more_json(const struct plan_request *r, const struct plan *plan)
{
    json_t *object = json_object();
    struct plan_more more;

    plan_one_more(r, plan, &more);
    set_known(object, "worker", more.worker);
    set_known(object, "s_part", more.s_part);
    set_known(object, "link_twice_as_fast", more.link);
    set_known(object, "batch_twice", more.batch);
    return object;
}

// --- what a plan costs, and how its times spread --------------------------------------------------------------------

// A million tokens of prompts and of answers, and what they take of electricity.
struct bill {
    double in, out, kwh; // 0: not known
};

static struct bill bill_of(const struct plan_request *r, const struct plan *plan)
{
    const double share = plan_answers_share(r, plan), hours = 1e6 / plan->tokens_per_second / 3600;

    return (struct bill){.in = r->prompt_tokens ? plan->cost_per_million * (1 - share) * r->generated_tokens / r->prompt_tokens : 0,
                         .out = plan->cost_per_million * share,
                         .kwh = plan->watts / 1e3 * hours};
}

static void add_bill(json_t *object, const struct plan_request *r, const struct plan *plan)
{
    const struct bill bill = bill_of(r, plan);

    set_known(object, "cost_per_million_prompt_tokens", bill.in);
    set_known(object, "cost_per_million_answer_tokens", bill.out);
    set_known(object, "watts", plan->watts);
    set_known(object, "kwh_per_million_tokens", bill.kwh);
}

// Requests that arrive at random at LOAD of the rate, or at the rate that was asked for, in the scheduler's own code.
#define LOAD 0.8

static enum status spread_of(const struct plan_settings *s, const struct plan *plan, double *load, struct sim_result *out,
                             struct error *error)
{
    *load = s->request.tokens_per_second != 0 ? MIN(s->request.tokens_per_second / plan->tokens_per_second, 1) : LOAD;
    return sim_plan(&s->described, &s->request, plan, *load * plan->tokens_per_second / s->request.generated_tokens, out, error);
}

static json_t *spread_json(const struct plan_settings *s, const struct plan *plan)
{
    struct sim_result result;
    struct error error;
    double load;

    if (spread_of(s, plan, &load, &result, &error))
        return json_pack("{s:s}", "refused", error.text);
    return json_pack("{s:f,s:f,s:o,s:o}", "load", load, "tokens_per_second", result.tokens_per_second, "ttft_s",
                     report_times_json(&result.ttft), "tbt_s", report_times_json(&result.tbt));
}

static void print_spread(const struct plan_settings *s, const struct plan *plan)
{
    struct sim_result result;
    struct error error;
    double load;

    if (spread_of(s, plan, &load, &result, &error)) {
        printf("\n  not simulated: %s\n", error.text);
        return;
    }
    printf("\n  at %2.0f %% of that rate             p50        p99\n", 100 * load);
    printf("    to the first token   %10.2f %10.2f s\n", result.ttft.p50_s, result.ttft.p99_s);
    printf("    between tokens       %10.1f %10.1f ms\n", 1e3 * result.tbt.p50_s, 1e3 * result.tbt.p99_s);
}

// Says what the figures rest on.
static const char *basis_of(const struct plan_settings *s, const struct plan *plan)
{
    const struct hardware *gpu = &s->described.s_parts[0], *worker = &s->described.workers[0];

    if (gpu->model.name)
        return "measured with this model";
    return gpu->weights_share < 1 || (plan->workers && worker->attention_share < 1) ? "data sheets and estimated shares"
                                                                                    : "data sheets: an upper bound";
}

static void print_plan(const struct plan_settings *s, const struct plan *plan)
{
    print_head(s);
    printf("\n  batch                  %10u    in %u mini-batch%s\n", plan->batch, plan->mini_batches,
           plan->mini_batches > 1 ? "es" : "");
    printf("  workers                %10u%s\n", plan->workers, plan->workers ? "" : "    all KV in the S-part's memory");
    if (plan->stages > 1)
        printf("  s-parts                %10u    in a pipeline, with equal rows in all steps\n", plan->stages);
    printf("  bound by               %10s\n", plan_bound_name(plan->bound_by));
    printf("  tokens a second        %10.0f\n", plan->tokens_per_second);
    printf("  step                   %10.1f ms between two tokens of a sequence\n", plan->step_ms);
    printf("  a request              %10.1f s for its prompt and its %u tokens\n",
           plan->batch / plan->tokens_per_second * s->request.generated_tokens, s->request.generated_tokens);
    if (s->requests)
        printf("  in all                 %10.1f hours for %llu requests\n",
               plan_hours(&s->request, s->requests, plan->tokens_per_second), (unsigned long long)s->requests);
    printf("\n  a layer, one mini-batch: S-part %.0f us, R-part %.0f us, link %.0f us; head %.0f us a step\n",
           plan->s_part_layer_us, plan->r_part_layer_us, plan->link_layer_us, plan->head_us);
    printf("  busy: S-part %.0f %%, R-part %.0f %%; network %.1f Gbit/s at the S-part\n", 100 * plan->s_part_busy,
           100 * plan->r_part_busy, plan->network_gbit_per_second);
    if (plan->stages > 1)
        print_stages(s, plan);
    printf("\n  memory of the S-part   %10.1f GiB of %.1f\n", plan->s_part_bytes / GIB,
           (double)hardware_usable_bytes(&s->described.s_parts[0]) / GIB);
    if (plan->workers)
        printf("  KV of each worker      %10.1f GiB of %.1f\n", plan->kv_bytes_per_worker / GIB,
               (double)s->described.workers[0].memory_bytes / GIB);
    print_extents(&s->request, plan->workers);
    if (plan->workers && plan->pool_sequences)
        printf("  in its own memory      %10.1f GiB of KV: %u of the sequences; attention there %.0f us a layer\n",
               plan->pool_bytes / GIB, plan->pool_sequences, plan->pool_layer_us);
    print_more(s, plan);
    if (plan->hybrid_gain_bound != 0)
        printf("\n  hybrid_gain_bound      %10.2f    times what %.1f GiB of KV in the S-part's memory give without workers\n",
               plan->hybrid_gain_bound, plan->hybrid_pool_bytes / GIB);
    if (s->simulates)
        print_spread(s, plan);
    const struct bill bill = bill_of(&s->request, plan);
    printf("\n");
    if (plan->price_per_hour != 0)
        printf("  price                  %10.2f an hour; a million tokens: %.3f of prompts, %.3f of answers\n",
               plan->price_per_hour, bill.in, bill.out);
    else
        printf("  price                  %10s    (price_per_hour is not in every file)\n", "-");
    if (plan->watts != 0)
        printf("  power                  %10.0f W without the GPU's host; %.2f kWh a million tokens of answers\n", plan->watts,
               bill.kwh);
    printf("  from                   %s\n", basis_of(s, plan));
}

static void print_mix(const struct plan_settings *s, const struct plan_mix *mix)
{
    if (s->described.json) {
        json_t *object = describe(s), *meshes = json_array();
        for (uint32_t i = 0; i < mix->part_count; i++) {
            json_t *mesh = json_object();
            set_integer(mesh, "count", mix->parts[i].count);
            json_object_set_new(mesh, "gpu", json_string(mix->parts[i].s_part->name));
            json_object_set_new(mesh, "worker", json_string(mix->parts[i].worker->name));
            add_plan(mesh, &mix->parts[i].plan);
            json_array_append_new(meshes, mesh);
        }
        json_object_set_new(object, "meshes", meshes);
        json_object_set_new(object, "tokens_per_second", json_real(mix->tokens_per_second));
        json_object_set_new(object, "price_per_hour", json_real(mix->price_per_hour));
        json_object_set_new(object, "cost_per_million_tokens", json_real(mix->cost_per_million));
        report_json_print(object);
        return;
    }
    print_head(s);
    printf("\nthe cheapest mix for %.0f tokens a second%s:\n\n", s->request.tokens_per_second,
           s->request.latency_ms != 0 ? " in the time between tokens" : "");
    for (uint32_t i = 0; i < mix->part_count; i++) {
        const struct plan_mix_part *part = &mix->parts[i];
        printf("  %u x  %s with %u of %s: batch %u, %.0f tokens/s, %.1f ms a step, bound by %s, %.2f an hour\n", part->count,
               part->s_part->name, part->plan.workers, part->worker->name, part->plan.batch, part->plan.tokens_per_second,
               part->plan.step_ms, plan_bound_name(part->plan.bound_by), part->plan.price_per_hour);
    }
    printf("\n  in all                 %10.0f tokens a second\n  price                  %10.2f an hour, %.3f a million tokens\n",
           mix->tokens_per_second, mix->price_per_hour, mix->cost_per_million);
}

static void print_sweep(const struct plan_settings *s)
{
    struct plan_need needs[SWEEP_MAX];
    uint32_t count = plan_sweep(&s->request, needs, SWEEP_MAX);

    if (s->described.json) {
        json_t *object = describe(s), *rows = json_array();
        for (uint32_t i = 0; i < count; i++) {
            json_t *row = json_object();
            set_integer(row, "batch", needs[i].batch);
            json_object_set_new(row, "tokens_per_second", json_real(needs[i].tokens_per_second));
            json_object_set_new(row, "worker_gb_per_second", json_real(needs[i].worker_gb_per_second));
            json_object_set_new(row, "network_gbit_per_second", json_real(needs[i].network_gbit_per_second));
            set_integer(row, "kv_bytes", needs[i].kv_bytes);
            json_object_set_new(row, "knee", json_boolean(needs[i].knee));
            json_array_append_new(rows, row);
            if (needs[i].knee)
                set_integer(object, "knee", needs[i].batch);
        }
        json_object_set_new(object, "sweep", rows);
        report_json_print(object);
        return;
    }
    print_head(s);
    printf("\nwhat there must be at least for the S-part never to wait:\n\n"
           "     batch   tokens/s   workers' bandwidth   network        workers' memory\n");
    for (uint32_t i = 0; i < count; i++)
        printf("  %8u %10.0f %12.0f GB/s %9.1f Gbit/s %12.1f GiB%s\n", needs[i].batch, needs[i].tokens_per_second,
               needs[i].worker_gb_per_second, needs[i].network_gbit_per_second, needs[i].kv_bytes / GIB,
               needs[i].knee ? "   knee: more batch hardly helps beyond" : "");
}

// --- more for a mesh that is there ------------------------------------------------------------------------------------

static void print_addition(const char *what, const struct plan_addition *a)
{
    printf("  %-10s %u S-part%s and %u worker%s: %.0f tokens/s, batch %u, %.1f ms a step, bound by %s", what, a->s_parts,
           a->s_parts == 1 ? "" : "s", a->workers, a->workers == 1 ? "" : "s", a->plan.tokens_per_second, a->plan.batch,
           a->plan.step_ms, plan_bound_name(a->plan.bound_by));
    if (a->plan.price_per_hour != 0)
        printf("; %.2f an hour in all", a->plan.price_per_hour);
    printf("\n");
}

static void print_additions(const struct plan_settings *s, const struct plan *now, const struct plan_addition *additions,
                            uint32_t count)
{
    print_head(s);
    printf("\n  there is   %u S-part%s and %u worker%s: ", now->stages, now->stages == 1 ? "" : "s", now->workers,
           now->workers == 1 ? "" : "s");
    if (now->batch)
        printf("%.0f tokens/s, batch %u, %.1f ms a step, bound by %s\n", now->tokens_per_second, now->batch, now->step_ms,
               plan_bound_name(now->bound_by));
    else
        printf("too little for the model\n");
    printf("  wanted     %.0f tokens/s\n", s->request.tokens_per_second);
    if (additions[0].s_parts + additions[0].workers == 0) {
        printf("  add        nothing: batch %u gives %.0f\n", additions[0].plan.batch, additions[0].plan.tokens_per_second);
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        print_addition(i ? "or" : "add", &additions[i]);
}

static enum status add_to_run(struct plan_settings *s, bool check_only, struct error *error)
{
    struct plan_addition additions[PLAN_STAGES_MAX];
    uint32_t count;
    struct plan now;

    if (s->request.workers == PLAN_CHOOSE || s->request.stages == PLAN_CHOOSE)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--add-to %s: want `workers = N`, and `s-parts = P` if there are several",
                         s->add_to);
    enum status status = plan_add(&s->request, &now, additions, &count, error);
    if (status || check_only)
        return status;
    if (!s->described.json) {
        print_additions(s, &now, additions, count);
        return STATUS_OK;
    }
    json_t *object = describe(s), *today = json_object(), *list = json_array();
    add_plan(today, &now);
    json_object_set_new(object, "now", now.batch ? today : json_null());
    if (!now.batch)
        json_decref(today);
    for (uint32_t i = 0; i < count; i++) {
        json_t *one = json_object(), *plan = json_object();
        set_integer(one, "s_parts", additions[i].s_parts);
        set_integer(one, "workers", additions[i].workers);
        add_plan(plan, &additions[i].plan);
        json_object_set_new(one, "plan", plan);
        json_array_append_new(list, one);
    }
    json_object_set_new(object, "add", list);
    report_json_print(object);
    return STATUS_OK;
}

// Reads what there is: hardware and counts of a mesh, which the command line is not asked for again.
static enum status read_mesh(struct plan_settings *s, struct error *error)
{
    const struct option options[] = {
        {"gpu", OPTION_STRING, &s->described.gpu, "NAME|FILE", "", 0, 0},
        {"worker", OPTION_STRING, &s->described.worker, "NAME|FILE", "", 0, 0},
        {"link", OPTION_STRING, &s->described.link, "NAME|FILE", "", 0, 0},
        {"workers", OPTION_STRING, &s->workers, "N", "", 0, 0},
        {"s-parts", OPTION_STRING, &s->s_parts, "P", "", 0, 0},
        {"local-pool", OPTION_STRING, &s->local_pool, "SIZE|auto|none", "", 0, 0},
    };
    return s->add_to ? options_read_file(options, ARRAY_COUNT(options), "add-to", s->add_to, true, error) : STATUS_OK;
}

// --- what it is told --------------------------------------------------------------------------------------------------

// Reads a number, or auto.
static enum status read_count(const char *option, const char *text, uint32_t least, uint32_t most, uint32_t *out,
                              struct error *error)
{
    char *end;
    unsigned long value;

    *out = PLAN_CHOOSE;
    if (!strcmp(text, "auto"))
        return STATUS_OK;
    errno = 0;
    value = strtoul(text, &end, 10);
    if (end == text || *end || errno || *text == '-' || value < least || value > most)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--%s is '%s', want auto or a number from %u to %u", option, text, least,
                         most);
    *out = (uint32_t)value;
    return STATUS_OK;
}

static enum status read_pool(const char *text, uint64_t *out, struct error *error)
{
    *out = strcmp(text, "none") ? PLAN_POOL_CHOOSE : 0;
    if (!strcmp(text, "auto") || !*out)
        return STATUS_OK;
    if (options_parse_size(text, out) || *out == 0 || *out == PLAN_POOL_CHOOSE)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--local-pool is '%s', want auto, none or a size such as 8G", text);
    return STATUS_OK;
}

static enum status describe_load(struct plan_settings *s, struct error *error)
{
    enum status status = read_mesh(s, error);

    if (!status)
        status = described_read(&s->described, &s->request, error);
    if (!status)
        status = described_check_context(&s->described, (uint64_t)s->request.prompt_tokens + s->request.generated_tokens, error);
    if (!status)
        status = read_count("workers", s->workers, 0, PLAN_WORKERS_MAX, &s->request.workers, error);
    if (s->request.batch == 0 && s->request.latency_ms == 0 && !s->offloads && !s->sweep)
        s->request.latency_ms = READING_MS;
    if (!status)
        status = read_pool(s->local_pool, &s->request.pool_bytes, error);
    return status ? status : read_count("s-parts", s->s_parts, 1, PLAN_STAGES_MAX, &s->request.stages, error);
}

// Options of one kind of plan are not taken for the other.
static enum status check_kind(const struct plan_settings *s, struct error *error)
{
    const struct plan_request *r = &s->request;
    const struct offload_request *o = &s->offload;

    if (!strcmp(s->policy, "paper") && !s->offloads)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--policy is for --offload");
    if (s->add_to && (s->offloads || s->sweep || is_mix(s) || r->batch))
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "--add-to is for one kind of --gpu and --worker, without --offload, --batch-sweep and --batch");
    if (r->stages != 1 && (s->offloads || s->sweep || is_mix(s)))
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "--s-parts: a pipeline is planned for one kind of --gpu, without --offload and --batch-sweep");
    if (s->offloads && (s->sweep || r->batch || r->mini_batches || r->tokens_per_second != 0 || r->latency_ms != 0))
        return error_set(
            error, STATUS_INVALID_ARGUMENT,
            "--offload plans for the most tokens/s, without --batch, --batch-sweep, --mini-batches, --tokens-per-second and "
            "--latency-ms (--gpu-batch and --gpu-batches give its block)");
    if (!s->offloads &&
        (o->host_bytes || o->disk_bytes || o->disk_read_mb_per_second != 0 || o->compress || o->gpu_batch || o->gpu_batches))
        return error_set(
            error, STATUS_INVALID_ARGUMENT,
            "--host-memory, --disk-memory, --disk-read-mbs, --compress, --gpu-batch and --gpu-batches are for --offload");
    return STATUS_OK;
}

static enum status run(struct plan_settings *s, bool check_only, struct error *error)
{
    struct plan plan;
    struct plan_mix mix;
    enum status status = describe_load(s, error);

    if (!status)
        status = check_kind(s, error);
    if (status)
        return status;
    s->offload.paper = !strcmp(s->policy, "paper");
    if (s->add_to)
        return add_to_run(s, check_only, error);
    if (s->offloads && !check_only)
        return plan_offload(&s->described, &s->request, &s->offload, s->requests, error);
    if (is_mix(s)) {
        status = s->sweep || s->request.batch || strcmp(s->workers, "auto")
                     ? error_set(error, STATUS_INVALID_ARGUMENT,
                                 "several of --gpu or --worker: the mix is chosen, without --batch, --workers and --batch-sweep")
                     : plan_cheapest(&s->request, s->described.s_parts, s->described.s_part_count, s->described.workers,
                                     s->described.worker_count, &mix, error);
        if (!status && !check_only)
            print_mix(s, &mix);
        return status;
    }
    if (s->sweep && !check_only)
        print_sweep(s);
    if (s->sweep || s->offloads)
        return STATUS_OK;
    if ((status = plan_make(&s->request, &plan, error)) || check_only)
        return status;
    if (s->described.json) {
        json_t *object = describe(s);
        add_plan(object, &plan);
        add_bill(object, &s->request, &plan);
        if (s->requests)
            json_object_set_new(object, "hours", json_real(plan_hours(&s->request, s->requests, plan.tokens_per_second)));
        json_object_set_new(object, "basis", json_string(basis_of(s, &plan)));
        json_object_set_new(object, "simulated", s->simulates ? spread_json(s, &plan) : json_null());
        json_object_set_new(object, "tokens_per_second_with_one_more", more_json(&s->request, &plan));
        json_object_set_new(object, "split_sequence", extents_json(&s->request, plan.workers));
        report_json_print(object);
    } else {
        print_plan(s, &plan);
    }
    return STATUS_OK;
}

int plan_main(int argc, char **argv)
{
    struct plan_settings s = PLAN_DEFAULTS;
    struct plan_request *r = &s.request;
    struct offload_request *o = &s.offload;
    const struct option options[] = {
        DESCRIBED_OPTIONS(&s.described),
        {"batch", OPTION_U32, &r->batch, "B", "sequences at once; 0: the fewest that reach --tokens-per-second, else the knee", 0,
         PLAN_BATCH_MAX},
        {"workers", OPTION_STRING, &s.workers, "N", "KV workers; auto: as many as the load needs", 0, 0},
        {"s-parts", OPTION_STRING, &s.s_parts, "P",
         "S-parts in a pipeline, each with a range of the layers; auto: as many as hold the model and reach the targets", 0, 0},
        {"mini-batches", OPTION_U32, &r->mini_batches, "M",
         "mini-batches in flight for each S-part; 0: as many as are fastest, up to three, or two for each of several", 0, 3},
        {"chunk", OPTION_U32, &r->chunk_tokens, "TOKENS|auto",
         "prefill rows of a step, with a measured model; auto: what the step's time target allows", 0, 65536},
        {"tokens-per-second", OPTION_F64, &r->tokens_per_second, "X", "rate that the mesh must reach", 0, 1e9},
        {"latency-ms", OPTION_F64, &r->latency_ms, "L",
         "longest time between two tokens of a sequence; 0: 200 where the batch is chosen, any where it is given", 0, 1e9},
        {"prompt", OPTION_U32, &r->prompt_tokens, "P", "tokens of a prompt", 0, 1 << 24},
        {"gen", OPTION_U32, &r->generated_tokens, "S", "tokens generated for it", 1, 1 << 24},
        {"spacing", OPTION_U32, &r->spacing, "F", "steps between groups of starts; 0: a 32nd of --gen", 0, 1 << 24},
        {"local-pool", OPTION_STRING, &s.local_pool, "SIZE|auto|none",
         "KV in the S-part's memory; auto: what is left there, if that is faster than none", 0, 0},
        {"simulate", OPTION_BOOL, &s.simulates, NULL, "run the scheduler on the answer, for percentiles of times (a second)", 0, 0},
        {"ignore-capacity", OPTION_BOOL, &r->ignore_capacity, NULL, "predict also what memory could not hold", 0, 0},
        {"add-to", OPTION_READ_PATH, &s.add_to, "FILE",
         "say what a mesh must get to reach --tokens-per-second; FILE says what is there: gpu, worker, link, workers, s-parts", 0,
         0},
        {"batch-sweep", OPTION_BOOL, &s.sweep, NULL, "print what each batch needs at least, and the knee", 0, 0},
        {"offload", OPTION_BOOL, &s.offloads, NULL, "plan for weights and KV that do not fit the device (a linear program)", 0, 0},
        {"host-memory", OPTION_SIZE, &o->host_bytes, "SIZE",
         "with --offload: of the device's host, three quarters of which are used; 0: none", 0, 0},
        {"disk-memory", OPTION_SIZE, &o->disk_bytes, "SIZE", "with --offload: free space on disk; 0: none", 0, 0},
        {"disk-read-mbs", OPTION_F64, &o->disk_read_mb_per_second, "N",
         "with --offload: what the disk reads, 1e6 bytes a second; 0: as the GPU's file says", 0, 1e6},
        {"policy", OPTION_CHOICE, &s.policy, "mesh|paper",
         "with --offload: mesh: weights alone may leave the device; paper: activations and KV, too, as in FlexGen", 0, 0},
        {"requests", OPTION_U64, &s.requests, "N", "say how many hours so many requests take; 0: do not", 0, 0},
        {"compress", OPTION_BOOL, &o->compress, NULL, "with --offload: weights and KV in 4 bits and a half", 0, 0},
        {"gpu-batch", OPTION_U32, &o->gpu_batch, "N", "with --offload: sequences computed at once; 0: chosen", 0, 4096},
        {"gpu-batches", OPTION_U32, &o->gpu_batches, "N",
         "with --offload: such batches that share each load of a layer's weights; 0: up to 8, chosen", 0, OFFLOAD_BATCHES_MAX},
        {"block-tokens", OPTION_U32, &o->block_tokens, "N", "with --offload: prompt tokens of all batches at most", 1, 1 << 30},
        {"measure", OPTION_BOOL, &s.measure, NULL, "describe this machine in FILE or on stdout; with --model as it runs that model",
         0, 0},
        {"device", OPTION_STRING, &s.device, "DEVICE", "device to measure: " DEVICE_HELP, 0, 0},
        {"threads", OPTION_U32, &s.threads, "N", "threads to measure with; 0: all CPUs", 0, 1024},
    };
    struct program program = {.name = "fastdecode plan",
                              .purpose = "computes how many workers and what batch a load needs, and what to expect",
                              .options = options,
                              .option_count = ARRAY_COUNT(options),
                              .operand_name = "[--measure [FILE]]"};
    struct error error;
    enum status status = options_parse(&program, argc, argv, &error);
    const struct measure_request measured = {.device = s.device,
                                             .model_path = s.described.model,
                                             .path = program.operand_count ? program.operands[0] : NULL,
                                             .threads = s.threads};

    if (!status && program.operand_count > (s.measure ? 1 : 0))
        status = error_set(&error, STATUS_INVALID_ARGUMENT, "unexpected argument '%s' (see --help)",
                           program.operands[program.operand_count - 1]);
    if (!status && !(s.measure && program.check_only))
        status = s.measure ? measure_machine(&measured, &error) : run(&s, program.check_only, &error);
    return status ? described_fail(&s.described, program.name, &error) : 0;
}
