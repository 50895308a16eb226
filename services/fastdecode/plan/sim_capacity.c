// sim_capacity.c: see sim_capacity.h.
#include "services/fastdecode/plan/sim_capacity.h"

#include <stdlib.h>

#include "common/base/checked.h"
#include "services/fastdecode/load/capacity_report.h"

struct simulated {
    sim_capacity_run_fn *run;
    void *arg;
};

static struct capacity_times times_of(const struct sim_times *t)
{
    return (struct capacity_times){.count = t->count, .mean_s = t->mean_s, .p50_s = t->p50_s, .p99_s = t->p99_s, .max_s = t->max_s};
}

// Simulates requests. ttft_s: [count], filled in.
static enum status simulate(const struct simulated *simulated, const struct load_request *requests, uint32_t count, double *ttft_s,
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
    status = simulated->run(simulated->arg, &work, &config, result, error);
    workload_free(&work);
    return status;
}

// One request after the other, each in a simulation of its own.
static enum status measure_alone(const struct simulated *simulated, const struct length_trace *trace,
                                 struct capacity_undisturbed *out, struct error *error)
{
    static const double shares[] = {0.1, 0.5, 0.9};
    uint32_t answer = MAX(length_trace_answer_at(trace, 0.5), 2);
    enum status status = STATUS_OK;

    for (size_t i = 0; i < ARRAY_COUNT(shares) && !status; i++) {
        struct load_request lone = {.length = {length_trace_prompt_at(trace, shares[i]), answer}};
        struct sim_result result;
        status = simulate(simulated, &lone, 1, &out->ttft_s[i], &result, error);
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
    status = simulate(arg, requests, count, values, &result, error);
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
        out->tbt = times_of(&result.tbt);
        out->bound = capacity_judge(&so_far->targets, out);
    }
    free(values);
    return status;
}

enum status sim_capacity(const struct capacity_settings *settings, sim_capacity_run_fn *run, void *arg, json_t *about,
                         struct error *error)
{
    struct simulated simulated = {run, arg};
    struct capacity_result *result = calloc(1, sizeof *result);
    struct length_trace trace = {0};
    enum status status = result ? STATUS_OK : error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");

    if (!status)
        status = capacity_settings_resolve(settings, &trace, error);
    if (!status)
        status = measure_alone(&simulated, &trace, &result->undisturbed, error);
    if (!status)
        status = capacity_search_run(settings, &trace, probe, &simulated, result, error);
    if (!status && about)
        capacity_report_json(settings, result, about);
    else if (!status)
        capacity_report_text(settings, result);
    if (status)
        json_decref(about);
    length_trace_free(&trace);
    free(result);
    return status;
}
