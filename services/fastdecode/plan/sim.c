// sim.c: `fastdecode sim`: what a mesh would do with a workload: the real scheduling core on a virtual clock.
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/options.h"
#include "common/kv/kv_ledger.h"
#include "common/kv/kv_shape.h"
#include "common/plan/plan.h"
#include "common/sim/figures.h"
#include "common/sim/sim.h"
#include "common/sim/workload.h"
#include "services/fastdecode/capacity/report.h"
#include "services/fastdecode/capacity/search.h"
#include "services/fastdecode/plan/commands.h"

#define GIB (1024.0 * 1024.0 * 1024.0)

enum { REPLY_US = 100, QUEUE_MAX = 1 << 20, PREFILL_ROWS = 512 };

struct sim_settings {
    struct described described;
    const char *admission, *placement, *micro_batch, *workload_path, *plot_path, *worker_memory, *split;
    enum sched_admission chosen_admission;
    struct plan_request request;
    uint32_t workers, batch, mini_batches, chunk, max_tokens, stages;
    uint64_t requests, seed, local_pool;
    double rate, noise, batch_share;
    bool backlog, find_capacity;
    struct capacity_settings capacity;
};

#define SIM_DEFAULTS                                                                                                          \
    {                                                                                                                         \
        .described = DESCRIBED_DEFAULTS, .admission = "auto", .placement = "auto", .micro_batch = "auto", .stages = 1,        \
        .split = "auto", .batch = 128, .workers = 1, .requests = 1000, .seed = 1, .capacity = CAPACITY_DEFAULTS, .request = { \
            .prompt_tokens = 16,                                                                                              \
            .generated_tokens = 1024                                                                                          \
        }                                                                                                                     \
    }

// --- settings ---------------------------------------------------------------------------------------------------------

// Returns the memory of a worker: --worker-memory names one after the other, and the last one is that of all that follow. 0: a bad size.
static uint64_t worker_bytes(const struct sim_settings *s, uint32_t worker)
{
    const char *at = s->worker_memory;
    char one[32];
    uint64_t bytes = 0;

    if (!at)
        return s->described.workers[0].memory_bytes;
    for (; worker > 0 && strchr(at, ','); worker--)
        at = strchr(at, ',') + 1;
    snprintf(one, sizeof one, "%.*s", (int)MIN(strcspn(at, ","), sizeof one - 1), at);
    return options_parse_size(one, &bytes) ? 0 : bytes;
}

static enum status check_worker_memory(const struct sim_settings *s, struct error *error)
{
    for (uint32_t i = 0; i < s->workers; i++)
        if (s->worker_memory && !worker_bytes(s, i))
            return error_set(error, STATUS_INVALID_ARGUMENT,
                             "--worker-memory '%s': want sizes with commas between, such as 64M,64M,1G", s->worker_memory);
    return STATUS_OK;
}

static enum status resolve(struct sim_settings *s, struct error *error)
{
    struct plan_request *r = &s->request;
    const enum sched_placement placement = sched_placement_named(s->placement);
    enum status status = sched_admission_choose(s->admission, r->spacing, &s->chosen_admission, error);

    if (status)
        return status;
    if (s->chosen_admission == SCHED_SLS)
        s->admission = "sls"; // auto with --spacing is, too
    if ((placement == SCHED_PLACE_WORKERS && s->workers == 0) ||
        (placement == SCHED_PLACE_LOCAL && s->workers > 0 && s->local_pool == 0))
        return error_set(error, STATUS_INVALID_ARGUMENT, "--placement %s with %s leaves no place for KV", s->placement,
                         s->workers ? "--local-pool 0" : "--workers 0");
    if (s->workload_path && (s->backlog || s->rate > 0))
        return error_set(error, STATUS_INVALID_ARGUMENT, "--workload brings its own arrivals: use it without --rate and --backlog");
    if (s->find_capacity && (s->workload_path || s->backlog || s->rate > 0 || s->plot_path))
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "--capacity makes its own arrivals: use it without --workload, --rate, --backlog and --plot");
    if (!s->find_capacity && !s->workload_path && s->backlog == (s->rate > 0))
        return error_set(
            error, STATUS_INVALID_ARGUMENT,
            "give --workload FILE, --rate R (arrivals per second), --backlog (all requests wait from the start) or --capacity");
    if ((status = check_worker_memory(s, error)) || (status = described_read(&s->described, r, error)))
        return status;
    if (s->described.s_part_count > 1 || s->described.worker_count > 1)
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "a simulation takes one kind of --gpu and one kind of --worker, not a mix");
    r->batch = s->batch;
    r->workers = s->workers;
    return STATUS_OK;
}

// --- the mesh ---------------------------------------------------------------------------------------------------------

// Returns how many pages fit into `bytes`.
static uint32_t pages_of(const struct sim_settings *s, double bytes)
{
    double page_bytes = s->described.shape.layers * shape_kv_bytes(&s->described.shape, s->request.kv_type) * PLAN_PAGE_TOKENS;
    return (uint32_t)MIN(MAX(bytes, 0) / page_bytes, UINT32_MAX / 2);
}

// Returns how many tokens one sequence can have: in the pages of the places that it may use, the largest ones.
static uint64_t sequence_room(const struct sim_place *places, uint32_t count, uint32_t ring_pages)
{
    uint64_t most[SCHED_EXTENTS_MAX + 1] = {0}, sum = 0;
    _Static_assert(PLAN_EXTENT_PLACES_MAX == ARRAY_COUNT(most), "as many places as a sequence may use");

    for (uint32_t i = 0; i < count; i++)
        sched_put_largest(most, ARRAY_COUNT(most), places[i].pages_total);
    if (ring_pages && most[0] >= ring_pages) // it never needs more
        return UINT32_MAX;
    for (uint32_t k = 0; k < ARRAY_COUNT(most); k++)
        sum += most[k];
    return sum * PLAN_PAGE_TOKENS;
}

static uint32_t local_places(const struct sim_settings *s) { return s->workers == 0 || s->local_pool > 0; }

// Cuts the layers for as many rows as a step is expected to have, and checks that each stage holds its part.
static enum status cut_layers(const struct sim_settings *s, struct cost_s_part *stages, struct plan_range *ranges,
                              struct error *error)
{
    const struct hardware *s_part = &s->described.s_parts[0];
    struct plan_request r = s->request;

    r.stages = s->stages;
    r.chunk_tokens = s->chunk;
    r.ignore_capacity |= s->stages == 1 || strcmp(s->split, "auto"); // checked below
    enum status status = plan_stages(&r, s->batch, s->workers, stages, ranges, error);
    if (!status && strcmp(s->split, "auto"))
        status = plan_split_read(s->split, r.shape->layers, &r.stages, ranges, error);
    for (uint32_t i = 0; !status && i < s->stages; i++) {
        const double bytes = plan_stage_bytes(&r, s->batch, i, ranges[i]), has = (double)hardware_usable_bytes(s_part);
        stages[i].layers = ranges[i].end - ranges[i].first;
        if (bytes > has && !s->request.ignore_capacity)
            status = error_set(error, STATUS_RESOURCE_EXHAUSTED,
                               "%s takes %.1f GiB for weights and activations of layers %u to %u at batch %u, and %s has %.1f GiB: "
                               "--weights with fewer bits, more --s-parts, or --ignore-capacity to simulate all the same",
                               r.shape->name, bytes / GIB, ranges[i].first, ranges[i].end, s->batch, s_part->name, has / GIB);
    }
    return status;
}

// Returns the pages that the S-part's memory has room for beside the weights. Each stage keeps its own layers' part of each page.
static uint32_t local_pages(const struct sim_settings *s, const struct plan_range *ranges)
{
    struct plan_request r = s->request;
    uint32_t pages = UINT32_MAX;

    r.stages = s->stages;
    for (uint32_t i = 0; i < s->stages; i++) {
        double left = (double)hardware_usable_bytes(&s->described.s_parts[0]) - plan_stage_bytes(&r, s->batch, i, ranges[i]);
        pages = MIN(pages, pages_of(s, left * r.shape->layers / (ranges[i].end - ranges[i].first)));
    }
    return pages;
}

// The S-part's pool, if there is one, then each worker. places: [local_places + workers].
static enum status make_places(const struct sim_settings *s, const struct plan_range *ranges, struct sim_place *places,
                               uint32_t longest, struct error *error)
{
    const struct hardware *host = s->workers ? &s->described.workers[0] : &s->described.s_parts[0];
    uint32_t locals = local_places(s), most = 0;

    for (uint32_t i = 0; i < locals + s->workers; i++) {
        bool set = i < locals && s->local_pool > 0; // the user gave the size, so it is no guess
        uint32_t pages = i >= locals ? pages_of(s, (double)worker_bytes(s, i - locals))
                         : set       ? pages_of(s, (double)s->local_pool)
                                     : local_pages(s, ranges);
        places[i] = (struct sim_place){.pages_total = pages, .local = i < locals};
        if (s->request.ignore_capacity && !set)
            places[i].pages_total = UINT32_MAX / 2 / (locals + s->workers);
        plan_r_part(&s->request, i >= locals, &places[i].cost);
        most = MAX(most, pages);
    }
    uint64_t room = sequence_room(places, locals + s->workers, shape_ring_pages(&s->described.shape, PLAN_PAGE_TOKENS, longest));
    if (room < longest)
        return error_set(
            error, STATUS_RESOURCE_EXHAUSTED,
            "%s has room for %llu tokens of KV; the places that one sequence may use hold %llu, less than the longest sequence's "
            "%u (--ignore-capacity simulates it anyway)",
            host->name, (unsigned long long)most * PLAN_PAGE_TOKENS, (unsigned long long)room, longest);
    return STATUS_OK;
}

static enum status simulate(const struct sim_settings *s, const struct workload *work, struct sim_config *config,
                            struct sim_result *result, struct error *error)
{
    uint32_t place_count = local_places(s) + s->workers;
    bool whole = sched_micro_batch_named(s->micro_batch) == SCHED_MICRO_BATCH_WHOLE;
    const double hop_us = plan_hop_us(&s->request, 0);
    struct cost_s_part stages[PLAN_STAGES_MAX];
    struct plan_range ranges[PLAN_STAGES_MAX];
    struct sim_place *places = calloc(place_count, sizeof *places);
    enum status status = places ? STATUS_OK : error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot allocate %u workers", s->workers);

    config->sched = (struct sched_config){
        .max_sequences = (uint32_t)MIN(work->count, QUEUE_MAX) + 2 * s->batch + 16,
        .max_running = s->batch,
        .max_waiting = (uint32_t)MIN(work->count, QUEUE_MAX),
        .max_waiting_batch = (uint32_t)MIN(work->count, QUEUE_MAX),
        .max_batch_rows = s->batch + MAX(MAX(s->chunk, PREFILL_ROWS), whole ? work->context_tokens : 0),
        .mini_batches = s->mini_batches
                            ? s->mini_batches
                            : sched_mini_batches_most(s->stages, s->workers > 0 && !s->described.workers[0].shares_cores),
        .aside = !hardware_is_gpu(&s->described.s_parts[0]), // as an s-part on a CPU takes them
        .stages = s->stages,
        .micro_batch = sched_micro_batch_named(s->micro_batch),
        .mini_batch_auto = s->mini_batches == 0,
        .chunk_tokens = s->chunk,
        .admission = s->chosen_admission,
        .spacing_steps = s->request.spacing,
        .balance = true,
        .page_tokens = PLAN_PAGE_TOKENS,
        .ring_pages = shape_ring_pages(&s->described.shape, PLAN_PAGE_TOKENS, work->context_tokens),
        .ring_rows = kv_ring_step_rows(s->described.shape.window),
        .extent_tokens = s->described.shape.window ? 0 : KV_EXTENT_TOKENS,
        .span_ranges = KV_SPAN_RANGES,
        .context_tokens = work->context_tokens,
        .max_places = place_count,
        .layers = s->described.shape.layers,
        .kv_bytes_per_token = (uint64_t)(s->described.shape.layers * shape_kv_bytes(&s->described.shape, s->request.kv_type)),
    };
    config->sched.placement = sched_placement_named(s->placement);
    config->places = places;
    config->place_count = place_count;
    config->requests = work->requests;
    config->request_count = work->count;
    config->backlog = true; // clients wait, as they do at a gateway with a long queue
    config->noise_sigma = s->noise;
    config->reply_us = REPLY_US;
    config->move_bytes_per_us = s->request.link->link_gb_per_second * 1e3; // each worker has a link of its own
    config->seed = s->seed;
    config->calibrated = true; // as an s-part measures itself at its start
    if (!status)
        status = cut_layers(s, stages, ranges, error);
    if (!status)
        status = make_places(s, ranges, places, work->context_tokens, error);
    if (!status) {
        if (s->stages > 1) {
            config->stages = stages;
            config->hop_us = hop_us;
            config->hop_row_us = plan_hop_us(&s->request, 1) - hop_us;
        }
        plan_s_part(&s->request, &config->s_part);
        config->link_row_us = places[place_count - 1].cost.link_row_us;
        for (uint32_t i = 0; i < config->place_count; i++)
            places[i].cost.link_row_us = 0; // all rows cross the S-part's link
        status = sim_run(config, result, error);
    }
    free(places);
    return status;
}

enum status sim_plan(const struct described *described, const struct plan_request *request, const struct plan *plan,
                     double requests_per_second, struct sim_result *out, struct error *error)
{
    enum { REQUESTS_LEAST = 20, REQUESTS_USUAL = 300, TOKENS_MOST = 1000000, WORKERS_MOST = 256 };
    struct sim_settings s = SIM_DEFAULTS;
    struct sim_config config = {0};
    struct workload work = {0};
    const double tokens = (double)request->prompt_tokens + request->generated_tokens;

    s.described = *described;
    s.request = *request;
    s.request.prompt_tokens = MAX(request->prompt_tokens, 1u);
    s.workers = plan->workers;
    s.batch = plan->batch;
    s.stages = plan->stages;
    s.mini_batches = request->mini_batches * plan->stages;
    s.chunk = request->chunk_tokens;
    s.local_pool = plan->workers ? (uint64_t)plan->pool_bytes : request->pool_bytes == PLAN_POOL_CHOOSE ? 0 : request->pool_bytes;
    s.request.pool_bytes = s.local_pool;
    s.requests = (uint64_t)MAX(MIN(MAX(REQUESTS_USUAL, 3.0 * plan->batch), TOKENS_MOST / tokens), REQUESTS_LEAST);
    if (plan->workers > WORKERS_MOST)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "more than %d workers take long: `fastdecode sim` does it",
                         WORKERS_MOST);
    enum status status = sched_admission_choose(s.admission, s.request.spacing, &s.chosen_admission, error);
    if (!status)
        status = workload_make(s.requests, requests_per_second, s.request.prompt_tokens, s.request.generated_tokens, 0, s.seed,
                               &work, error);
    if (!status)
        status = simulate(&s, &work, &config, out, error);
    workload_free(&work);
    return status;
}

// --- `fastdecode sim --capacity` -------------------------------------------------------------------------------------
//
// The search of `fastdecode capacity`, with simulations in the place of a server.

// Simulates requests. ttft_s: [count], filled in.
static enum status simulate_rate(const struct sim_settings *s, const struct load_request *requests, uint32_t count, double *ttft_s,
                                 struct sim_result *result, struct error *error)
{
    struct workload work = {.requests = calloc(count, sizeof *work.requests), .count = count};
    struct sim_config config = {.ttft_s = ttft_s};
    enum status status;

    if (!work.requests)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for %u requests", count);
    for (uint32_t i = 0; i < count; i++) {
        const struct length_pair *length = &requests[i].length;
        work.requests[i] = (struct sim_request){.arrival_us = requests[i].due_us,
                                                .prompt_tokens = length->prompt_tokens,
                                                .generated_tokens = length->answer_tokens,
                                                .max_new_tokens = length->answer_tokens};
        work.context_tokens = MAX(work.context_tokens, length->prompt_tokens + length->answer_tokens);
    }
    status = simulate(s, &work, &config, result, error);
    workload_free(&work);
    return status;
}

// One request after the other, each in a simulation of its own.
static enum status measure_alone(const struct sim_settings *s, const struct length_trace *trace, struct capacity_undisturbed *out,
                                 struct error *error)
{
    static const double shares[] = {0.1, 0.5, 0.9};
    uint32_t answer = MAX(length_trace_answer_at(trace, 0.5), 2);
    enum status status = STATUS_OK;

    for (size_t i = 0; i < ARRAY_COUNT(shares) && !status; i++) {
        struct load_request lone = {.length = {length_trace_prompt_at(trace, shares[i]), answer}};
        struct sim_result result;
        status = simulate_rate(s, &lone, 1, &out->ttft_s[i], &result, error);
        if (status)
            break;
        out->prompt_tokens[i] = lone.length.prompt_tokens;
        out->count++;
        if (i == 1)
            out->step_s = result.tbt.p50_s;
    }
    return status;
}

// A capacity_probe_fn.
static enum status probe(void *arg, const struct load_request *requests, uint32_t count, double seconds,
                         const struct capacity_result *so_far, struct capacity_probe *out, struct error *error)
{
    double *values = calloc(2 * (size_t)count, sizeof *values);
    struct sim_result result;
    uint32_t begun = 0;
    enum status status;
    (void)seconds;

    if (!values)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for %u requests", count);
    status = simulate_rate(arg, requests, count, values, &result, error);
    for (uint32_t i = 0; i < count && !status; i++) {
        double ttft_s = values[i];
        out->prompt_tokens += requests[i].length.prompt_tokens;
        if (ttft_s == 0) // it was refused
            continue;
        values[begun] = ttft_s;
        values[count + begun++] = capacity_delay_s(&so_far->undisturbed, requests[i].length.prompt_tokens, ttft_s);
    }
    if (!status) {
        out->seconds = result.seconds;
        out->finished = (uint32_t)result.finished;
        out->refused = (uint32_t)result.rejected;
        out->failed = (uint32_t)result.lost;
        out->answer_tokens = result.tokens;
        out->ttft = capacity_times_of(values, begun);
        out->delay = capacity_times_of(values + count, begun);
        out->tbt = result.tbt;
        out->bound = capacity_judge(&so_far->targets, out);
    }
    free(values);
    return status;
}

// Searches and prints the report.
static enum status find_capacity(struct sim_settings *s, struct error *error)
{
    struct capacity_result *result = calloc(1, sizeof *result);
    struct length_trace trace = {0};
    enum status status = result ? STATUS_OK : error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");

    s->capacity.seed = s->seed;
    if (!status)
        status = capacity_settings_resolve(&s->capacity, &trace, error);
    if (!status)
        status = measure_alone(s, &trace, &result->undisturbed, error);
    if (!status)
        status = capacity_search_run(&s->capacity, &trace, probe, s, result, error);
    if (!status && s->described.json)
        capacity_report_json(
            &s->capacity, result,
            json_pack("{s:s,s:i,s:i}", "model", s->described.shape.name, "workers", (int)s->workers, "batch", (int)s->batch));
    else if (!status)
        capacity_report_text(&s->capacity, result);
    length_trace_free(&trace);
    free(result);
    return status;
}

static const char *const class_names[SCHED_CLASSES] = {"interactive", "batch"};

// --- output -----------------------------------------------------------------------------------------------------------

// Figures of each class, if there are both.
static json_t *classes_json(const struct sim_settings *s, const struct sim_result *r)
{
    json_t *classes = json_object();

    for (enum sched_class class = 0; class < SCHED_CLASSES && s->batch_share > 0; class ++) {
        const struct sim_class *of = &r->of[class];
        json_object_set_new(classes, class_names[class],
                            json_pack("{s:I,s:o,s:o}", "tokens", (json_int_t)of->tokens, "ttft_s", report_times_json(&of->ttft),
                                      "tbt_s", report_times_json(&of->tbt)));
    }
    return classes;
}

static json_t *bubbles_json(const struct sim_result *r)
{
    json_t *bubbles = json_object();

    for (enum sched_bubble kind = 0; kind < SCHED_BUBBLES; kind++)
        json_object_set_new(bubbles, sched_bubble_name(kind), json_real(r->bubble_s[kind]));
    return bubbles;
}

static void print_json(const struct sim_settings *s, const struct sim_result *r)
{
    json_t *object = described_json(&s->described),
           *more = json_pack(
               "{s:i,s:i,s:i,s:s,s:f,s:f,s:I,s:f,s:f,s:f,s:o,s:o,s:f,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:o,s:i,s:f,s:o}",
               "workers", (int)s->workers, "batch", (int)s->batch, "mini_batches", (int)r->mini_batches, "admission", s->admission,
               "seconds", r->seconds, "tokens_per_second", r->tokens_per_second, "peak_load", (json_int_t)r->peak_load,
               "mean_batch", r->mean_batch, "s_part_busy", r->s_part_busy, "r_part_busy", r->r_part_busy, "ttft_s",
               report_times_json(&r->ttft), "tbt_s", report_times_json(&r->tbt), "step_s_max", r->step.max_s, "steps",
               (json_int_t)r->steps, "decode_rows", (json_int_t)r->decode_rows, "prefill_rows", (json_int_t)r->prefill_rows,
               "finished", (json_int_t)r->finished, "rejected", (json_int_t)r->rejected, "lost", (json_int_t)r->lost, "preempted",
               (json_int_t)r->preempted, "moved", (json_int_t)r->moved, "relabelled", (json_int_t)r->relabelled, "classes",
               classes_json(s, r), "s_parts", (int)s->stages, "idle_s", r->idle_s, "bubble_s", bubbles_json(r));
    json_object_update(object, more);
    json_decref(more);
    json_object_set_new(object, "split_parts", json_integer((json_int_t)r->frozen));
    report_json_print(object);
}

static void print_times(const char *name, const struct sim_times *t)
{
    printf("  %-22s %10.3f %10.3f %10.3f %10.3f\n", name, t->mean_s, t->p50_s, t->p99_s, t->max_s);
}

static void print_table(const struct sim_settings *s, const struct sim_result *r)
{
    printf("model       %s; %s, %u worker%s%s%s\n", s->described.shape.name, s->described.s_parts[0].name, s->workers,
           s->workers == 1 ? "" : "s", s->workers ? " " : "", s->workers ? s->described.workers[0].name : "");
    printf("schedule    %s, at most %u sequences in %u mini-batch%s\n\n", s->admission, s->batch, r->mini_batches,
           r->mini_batches > 1 ? "es" : "");
    printf("  tokens a second        %10.1f    %llu in %.1f s\n", r->tokens_per_second, (unsigned long long)r->tokens, r->seconds);
    printf("  sequences that decode  %10.1f    mean over time\n", r->mean_batch);
    printf("  peak load              %10llu    context tokens that all mini-batches read in a step\n",
           (unsigned long long)r->peak_load);
    printf("  busy                   %9.0f %%    S-part; workers %.0f %%\n", 100 * r->s_part_busy, 100 * r->r_part_busy);
    if (s->stages > 1)
        printf("  bubbles                %10.1f    seconds of %u stages: PB1 %.1f, PB2 %.1f, PB3 %.1f, R %.1f; idle %.1f in all\n",
               r->bubble_s[0] + r->bubble_s[1] + r->bubble_s[2] + r->bubble_s[3], s->stages, r->bubble_s[SCHED_BUBBLE_PB1],
               r->bubble_s[SCHED_BUBBLE_PB2], r->bubble_s[SCHED_BUBBLE_PB3], r->bubble_s[SCHED_BUBBLE_R], r->idle_s);
    printf("  sequences              %10llu    finished; %llu lost, %llu paused because pages ran out\n",
           (unsigned long long)r->finished, (unsigned long long)(r->lost + r->rejected), (unsigned long long)r->preempted);
    if (r->frozen)
        printf("  split                  %10llu    parts of sequences that no place can hold whole\n",
               (unsigned long long)r->frozen);
    printf("  balanced               %10llu    moved to another worker, %llu to another mini-batch\n", (unsigned long long)r->moved,
           (unsigned long long)r->relabelled);
    printf("\n  seconds                      mean        p50        p99        max\n");
    print_times("to the first token", &r->ttft);
    print_times("between tokens", &r->tbt);
    print_times("a mini-batch's step", &r->step);
    for (enum sched_class class = 0; class < SCHED_CLASSES && s->batch_share > 0; class ++) {
        printf("  %s: %llu tokens\n", class_names[class], (unsigned long long)r->of[class].tokens);
        print_times("to the first token", &r->of[class].ttft);
        print_times("between tokens", &r->of[class].tbt);
    }
}

static void on_step(void *user, const struct sim_step *step) { load_plot_add(user, step); }

static enum status write_plot(const struct sim_settings *s, const struct load_plot *plot, struct error *error)
{
    FILE *file = fopen(s->plot_path, "w");
    char title[256];

    snprintf(title, sizeof title, "%s, %u workers, batch %u: %s admission", s->described.shape.name, s->workers, s->batch,
             s->admission);
    int failed = !file || load_plot_write(plot, title, file);
    if (file)
        failed |= fclose(file);
    return failed ? error_set(error, STATUS_UNAVAILABLE, "--plot %s: %s", s->plot_path, strerror(errno)) : STATUS_OK;
}

// Does what run() does before its first step.
static enum status check(struct sim_settings *s, struct error *error)
{
    struct cost_s_part stages[PLAN_STAGES_MAX];
    struct plan_range ranges[PLAN_STAGES_MAX];
    enum status status = resolve(s, error);

    return status ? status : cut_layers(s, stages, ranges, error);
}

static enum status run(struct sim_settings *s, struct error *error)
{
    struct workload work = {0};
    struct sim_result result;
    struct sim_config config = {0};
    struct load_plot *plot = s->plot_path ? calloc(1, sizeof *plot) : NULL;
    enum status status = resolve(s, error);

    if (!status && s->find_capacity)
        return find_capacity(s, error);
    if (!status && s->plot_path && !plot)
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot allocate the plot");
    if (!status)
        status = s->workload_path ? workload_read(s->workload_path, &work, error)
                                  : workload_make(s->requests, s->rate, s->request.prompt_tokens, s->request.generated_tokens,
                                                  s->max_tokens, s->seed, &work, error);
    if (!status)
        status = described_check_context(&s->described, work.context_tokens, error);
    if (!status) {
        workload_set_batch(&work, s->batch_share, s->seed);
        if (plot) {
            load_plot_init(plot);
            config.on_step = on_step;
            config.user = plot;
        }
        status = simulate(s, &work, &config, &result, error);
    }
    if (!status && plot)
        status = write_plot(s, plot, error);
    if (!status && s->described.json)
        print_json(s, &result);
    else if (!status)
        print_table(s, &result);
    workload_free(&work);
    free(plot);
    return status;
}

int sim_main(int argc, char **argv)
{
    struct sim_settings s = SIM_DEFAULTS;
    const struct option options[] = {
        DESCRIBED_OPTIONS(&s.described),
        {"workers", OPTION_U32, &s.workers, "N", "KV workers; 0: everything in the S-part's memory", 0, PLAN_WORKERS_MAX},
        {"batch", OPTION_U32, &s.batch, "B", SCHED_RUNNING_HELP, 1, PLAN_BATCH_MAX},
        {"mini-batches", OPTION_U32, &s.mini_batches, "M",
         "mini-batches in flight; 0: as many as are fastest, up to three, or two for each of several stages", 0,
         SCHED_MINI_BATCHES_MAX},
        {"s-parts", OPTION_U32, &s.stages, "P", "S-parts in a pipeline, each with a range of the layers", 1, PLAN_STAGES_MAX},
        {"split", OPTION_STRING, &s.split, "auto|LAYERS,LAYERS", PLAN_SPLIT_HELP "; auto: as evenly as time goes", 0, 0},
        {"micro-batch", OPTION_CHOICE, &s.micro_batch, SCHED_MICRO_BATCH_NAMES, SCHED_MICRO_BATCH_HELP, 0, 0},
        {"chunk", OPTION_U32, &s.chunk, "TOKENS|auto", SCHED_CHUNK_HELP, 0, 65536},
        {"admission", OPTION_CHOICE, &s.admission, SCHED_ADMISSION_NAMES, SCHED_ADMISSION_HELP, 0, 0},
        {"spacing", OPTION_U32, &s.request.spacing, "F", SCHED_SPACING_HELP, 0, 65536},
        {"placement", OPTION_CHOICE, &s.placement, SCHED_PLACEMENT_NAMES, SCHED_PLACEMENT_HELP, 0, 0},
        {"local-pool", OPTION_SIZE, &s.local_pool, "SIZE",
         "memory for KV in the S-part; 0: none with workers, and all that the weights leave without", 0, 0},
        {"worker-memory", OPTION_STRING, &s.worker_memory, "SIZE,SIZE,...",
         "memory for KV of each worker, instead of the file's; the last size applies to all further workers", 0, 0},
        {"workload", OPTION_STRING, &s.workload_path, "FILE", "CSV: arrival_s,prompt_tokens,generated_tokens[,max_tokens]", 0, 0},
        {"requests", OPTION_U64, &s.requests, "N", "number of requests with --rate or --backlog", 1, WORKLOAD_REQUESTS_MAX},
        {"rate", OPTION_F64, &s.rate, "R", "random arrivals per second", 0, 1e9},
        {"backlog", OPTION_BOOL, &s.backlog, NULL, "all requests wait from the start", 0, 0},
        {"prompt", OPTION_U32, &s.request.prompt_tokens, "P", "length of each prompt in tokens", 1, WORKLOAD_TOKENS_MAX},
        {"gen", OPTION_U32, &s.request.generated_tokens, "S", "tokens generated for each prompt", 1, WORKLOAD_TOKENS_MAX},
        {"max-tokens", OPTION_U32, &s.max_tokens, "N",
         "max_tokens of each request, all that the scheduler knows at first; 0: --gen", 0, WORKLOAD_TOKENS_MAX},
        {"batch-share", OPTION_F64, &s.batch_share, "SHARE", "share of batch-class requests, 0 to 1", 0, 1},
        {"noise", OPTION_F64, &s.noise, "SIGMA", "standard deviation of the logarithm of each worker's time in each step", 0, 2},
        {"seed", OPTION_U64, &s.seed, "N", "seed of arrivals and noise", 0, 0},
        {"ignore-capacity", OPTION_BOOL, &s.request.ignore_capacity, NULL, "simulate even what would not fit into memory", 0, 0},
        {"capacity", OPTION_BOOL, &s.find_capacity, NULL,
         "search for the highest rate of arrivals that meets the targets below (docs/capacity.md)", 0, 0},
        CAPACITY_OPTIONS(&s.capacity),
        {"plot", OPTION_STRING, &s.plot_path, "FILE.svg", "draw the load over time", 0, 0},
    };
    struct program program = {
        .name = "fastdecode sim",
        .purpose = "simulates what a mesh would do with a workload: the real scheduling core on a virtual clock",
        .options = options,
        .option_count = ARRAY_COUNT(options)};
    struct error error;
    enum status status = options_parse(&program, argc, argv, &error);

    if (!status)
        status = program.check_only ? check(&s, &error) : run(&s, &error);
    return status ? described_fail(&s.described, program.name, &error) : 0;
}
