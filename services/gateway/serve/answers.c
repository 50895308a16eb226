// answers.c: answers that are given at once: health, readiness, models, metrics.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/options.h"
#include "services/gateway/serve/gateway_internal.h"

#define METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"

void answer_health(struct gateway *gateway, struct exchange *exchange, enum api_kind kind)
{
    struct text body = {0};

    (void)gateway, (void)kind;
    text_string(&body, "{\"status\":\"ok\"}\n");
    exchange_respond(exchange, 200, HTTP_JSON, &body);
}

void answer_ready(struct gateway *gateway, struct exchange *exchange, enum api_kind kind)
{
    bool leaving = atomic_load_explicit(&gateway->leaving, memory_order_relaxed);
    struct mesh_state state;
    struct text body = {0};
    bool ready;

    (void)kind;
    mesh_state(gateway->mesh, &state);
    ready = state.ready && !leaving;
    text_string(&body, ready ? "{\"ready\":true" : "{\"ready\":false,\"reason\":");
    if (!ready)
        text_json_string(&body, leaving ? "shutting down" : state.up ? state.reason : "the scheduler does not answer");
    text_string(&body, "}\n");
    exchange_respond(exchange, ready ? 200 : 503, HTTP_JSON, &body);
}

void answer_version(struct gateway *gateway, struct exchange *exchange, enum api_kind kind)
{
    struct text body = {0};

    (void)gateway, (void)kind;
    text_string(&body, "{\"version\":\"" FASTDECODE_VERSION "\"}\n");
    exchange_respond(exchange, 200, HTTP_JSON, &body);
}

void answer_openapi(struct gateway *gateway, struct exchange *exchange, enum api_kind kind)
{
    (void)kind;
    exchange_respond_static(exchange, 200, HTTP_JSON, gateway->openapi.data, gateway->openapi.bytes);
}

uint32_t answer_context(struct gateway *gateway)
{
    struct mesh_state state;
    uint32_t context = language_context(gateway->language);

    mesh_state(gateway->mesh, &state);
    return state.context_tokens ? MIN(context, state.context_tokens) : context;
}

static void append_model(struct gateway *gateway, const char *id, struct text *out)
{
    text_string(out, "{\"id\":");
    text_json_string(out, id);
    text_format(out, ",\"object\":\"model\",\"created\":%llu,\"owned_by\":\"fastdecode\",\"max_model_len\":%u}",
                (unsigned long long)gateway->created_s, answer_context(gateway));
}

void answer_models(struct gateway *gateway, struct exchange *exchange, enum api_kind kind)
{
    struct text body = {0};

    (void)kind;
    text_string(&body, "{\"object\":\"list\",\"data\":[");
    append_model(gateway, language_name(gateway->language), &body);
    text_string(&body, "]}\n");
    exchange_respond(exchange, 200, HTTP_JSON, &body);
}

bool answer_check_model(struct gateway *gateway, const char *model, struct api_error *error)
{
    char cut[128];
    size_t bytes = 0, length = strlen(model);

    if (language_is_named(gateway->language, model))
        return true;
    while (bytes < length && bytes < sizeof cut - 5) { // whole characters only
        size_t one = text_utf8_length(model + bytes, length - bytes);
        bytes += one ? one : 1;
    }
    snprintf(cut, sizeof cut, "%.*s", (int)bytes, model);
    (void)api_fail(error, 404, "model_not_found", "model", "The model '%s' does not exist", cut);
    snprintf(error->model, sizeof error->model, "%s", cut);
    return false;
}

void answer_model(struct gateway *gateway, struct exchange *exchange, enum api_kind kind)
{
    const char *id = exchange_path(exchange) + strlen("/v1/models/");
    struct api_error error;
    struct text body = {0};

    (void)kind;
    if (!answer_check_model(gateway, id, &error)) {
        exchange_refuse(exchange, &error);
        return;
    }
    append_model(gateway, id, &body);
    text_append(&body, "\n", 1);
    exchange_respond(exchange, 200, HTTP_JSON, &body);
}

// --- limits of a key ----------------------------------------------------------------------------------------------
static void add_limit(struct exchange *exchange, const char *const names[3], uint64_t limit, uint64_t left, uint32_t reset_s)
{
    char value[32];

    snprintf(value, sizeof value, "%llu", (unsigned long long)limit);
    exchange_add_header(exchange, names[0], value);
    snprintf(value, sizeof value, "%llu", (unsigned long long)left);
    exchange_add_header(exchange, names[1], value);
    snprintf(value, sizeof value, "%us", reset_s);
    exchange_add_header(exchange, names[2], value);
}

void answer_limits(struct exchange *exchange, struct key *key)
{
    static const char *const requests[] = {"x-ratelimit-limit-requests", "x-ratelimit-remaining-requests",
                                           "x-ratelimit-reset-requests"};
    static const char *const tokens[] = {"x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"};
    struct key_state state;

    if (!key)
        return;
    key_state(key, &state);
    if (state.requests_limit)
        add_limit(exchange, requests, state.requests_limit, state.requests_left, state.requests_reset_s);
    if (state.tokens_limit)
        add_limit(exchange, tokens, state.tokens_limit, state.tokens_left, state.tokens_reset_s);
}

// --- metrics: the scheduler's are asked for, on the loop thread ---------------------------------------------------
struct metrics_ask {
    struct gateway *gateway;
    struct exchange *exchange; // held
};

static void finish_metrics(void *arg, const char *mesh_text)
{
    struct metrics_ask *ask = arg;
    struct gateway *gateway = ask->gateway;
    struct metrics_gauges gauges = {.model_name = language_name(gateway->language)};
    struct mesh_state state;
    struct text body = {0};

    mesh_state(gateway->mesh, &state);
    requests_counts(gateway->requests, false, &gauges.requests_running, &gauges.requests_waiting);
    requests_counts(gateway->requests, true, &gauges.batch_class_running, &gauges.batch_class_waiting);
    gauges.connections_active = http_server_active(gateway->http);
    gauges.mesh_up = state.up;
    gauges.mesh_ready = state.ready;
    gauges.kv_pages_used = state.kv_pages_used;
    gauges.kv_pages_total = state.kv_pages_total;
    if (gateway->batches) {
        struct batch_runner_stats stats;
        batch_api_stats(gateway->batches, &stats);
        gauges.has_batches = true;
        gauges.batches_running = stats.jobs;
        gauges.batch_requests = stats.in_flight;
        gauges.batch_completed = stats.completed;
        gauges.batch_failed = stats.failed;
    }
    const struct otlp_counts spans = otlp_counts(gateway->otlp);
    gauges.has_traces = gateway->otlp != NULL;
    gauges.spans_exported = spans.exported;
    gauges.spans_dropped = spans.dropped;
    const struct rpc_tls_expiry expiry = mesh_expiry(gateway->mesh);
    gauges.mesh_expires_s = expiry.certificate_s;
    gauges.ca_expires_s = expiry.ca_s;
    gauges.https_expires_s = gateway->tls ? http_tls_expires_s(gateway->tls) : 0;
    metrics_render(gateway->metrics, &gauges, mesh_text, &body);
    exchange_respond(ask->exchange, 200, METRICS_TYPE, &body);
    exchange_release(ask->exchange);
    free(ask);
}

static void ask_for_metrics(void *arg)
{
    struct metrics_ask *ask = arg;

    if (!scrape_get(ask->gateway->scrape, finish_metrics, ask))
        finish_metrics(ask, NULL);
}

void answer_metrics(struct gateway *gateway, struct exchange *exchange, enum api_kind kind)
{
    struct metrics_ask *ask = malloc(sizeof *ask);
    struct api_error error;

    (void)kind;
    if (ask) {
        *ask = (struct metrics_ask){gateway, exchange_hold(exchange)};
        if (gateway->config.mesh_metrics)
            mesh_post(gateway->mesh, ask_for_metrics, ask);
        else
            finish_metrics(ask, NULL);
        return;
    }
    api_no_memory(&error);
    exchange_refuse(exchange, &error);
}
