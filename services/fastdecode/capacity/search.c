// search.c: see search.h.
#include "services/fastdecode/capacity/search.h"

#include <math.h>
#include <stdlib.h>

#include "common/base/checked.h"

// The search goes so far from the rate at which requests come one by one: below, they hardly ever meet.
static const double SPAN_BELOW = 64, SPAN_ABOVE = 65536;

enum status capacity_settings_resolve(const struct capacity_settings *s, struct length_trace *trace, struct error *error)
{
    enum status status;

    if (s->tbt_slo && s->tbt_p99_s > 0)
        return error_set(error, STATUS_INVALID_ARGUMENT, "give --tbt-slo or --tbt-p99, not both");
    if ((status = length_trace_read(s->trace_name, trace, error)))
        return error_prefix(error, "--trace");
    trace->scale = s->scale;
    trace->context_tokens = s->context_tokens;
    return STATUS_OK;
}

// Draws the requests of a rate and tries them.
static enum status try_rate(const struct capacity_settings *s, const struct length_trace *trace, double rate,
                            capacity_probe_fn *probe, void *arg, struct capacity_result *result, struct error *error)
{
    uint32_t count = (uint32_t)MIN(MAX(round(rate * s->seconds_per_rate), s->requests_per_rate), TRACE_REQUESTS_MAX), limited;
    struct capacity_probe *out = &result->probes[result->probe_count];
    struct load_request *requests;
    enum status status;

    if ((status = length_trace_draw(trace, count, count / rate, s->seed + result->probe_count, &requests, &limited, error)))
        return status;
    *out = (struct capacity_probe){.requests_per_second = rate, .requests = count, .shortened = limited};
    status = probe(arg, requests, count, count / rate, result, out, error);
    free(requests);
    if (!status)
        result->probe_count++;
    return status;
}

enum status capacity_search_run(const struct capacity_settings *s, const struct length_trace *trace, capacity_probe_fn *probe,
                                void *arg, struct capacity_result *result, struct error *error)
{
    const struct capacity_undisturbed *u = &result->undisturbed;
    double prompt = length_trace_prompt_at(trace, 0.5), answer = length_trace_answer_at(trace, 0.5), rate;
    double one_by_one = 1 / MAX(capacity_lone_ttft_s(u, prompt) + answer * u->step_s, 1e-6);

    result->targets = capacity_targets_of(s->tbt_slo, s->tbt_p99_s, s->ttft_p99_s, s->delay_p50_s, s->error_share, u->step_s,
                                          s->seconds_per_rate);
    rate_search_begin(&result->search, s->guess > 0 ? s->guess : one_by_one, one_by_one / SPAN_BELOW, one_by_one * SPAN_ABOVE,
                      s->precision, s->confirm);
    while ((rate = rate_search_next(&result->search)) > 0) {
        enum status status = try_rate(s, trace, rate, probe, arg, result, error);
        if (status)
            return status;
        rate_search_take(&result->search, result->probes[result->probe_count - 1].bound == CAPACITY_MET);
    }
    result->complete = true;
    return STATUS_OK;
}

const struct capacity_probe *capacity_result_best(const struct capacity_result *r)
{
    for (uint32_t i = r->probe_count; i > 0; i--)
        if (r->probes[i - 1].bound == CAPACITY_MET && r->probes[i - 1].requests_per_second == rate_search_found(&r->search))
            return &r->probes[i - 1];
    return NULL;
}

enum capacity_bound capacity_result_bound(const struct capacity_result *r)
{
    for (uint32_t i = r->probe_count; i > 0; i--)
        if (r->probes[i - 1].bound != CAPACITY_MET && r->probes[i - 1].requests_per_second == r->search.missed)
            return r->probes[i - 1].bound;
    return CAPACITY_MET;
}
