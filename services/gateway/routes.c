/* routes.c: what is answered where: paths, methods, keys, and the handlers that need no token of the mesh.
 *
 * routes_check() sees the headers, routes_handle() the whole request, both on the polling thread and so without any work
 * that takes long; routes_work() runs on the work pool. The limit of the queue is looked at before a body is parsed:
 * a mesh that is full is not made to tokenize what it will refuse.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/base/options.h"
#include "services/gateway/gateway_internal.h"
#include "services/gateway/respond.h"

/* QUICK_BYTES: bodies up to that are tokenized in less time than a step takes. */
enum { QUICK_BYTES = 4096 };

#define METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"

typedef void handler_fn(struct gateway *gateway, struct exchange *exchange);

static handler_fn answer_health, answer_ready, answer_version, answer_models, answer_model, answer_metrics, queue_work;

struct route {
    const char *path;
    const char *method;
    bool prefix; /* path is only how it begins */
    bool needs_key;
    enum api_kind kind; /* of a body; 0: none */
    handler_fn *handle;
};

static const struct route routes[] = {
    {"/v1/chat/completions", "POST", false, true, API_CHAT, queue_work},
    {"/v1/completions", "POST", false, true, API_COMPLETION, queue_work},
    {"/tokenize", "POST", false, true, API_TOKENIZE, queue_work},
    {"/detokenize", "POST", false, true, API_DETOKENIZE, queue_work},
    {"/v1/models", "GET", false, true, 0, answer_models},
    {"/v1/models/", "GET", true, true, 0, answer_model},
    {"/health", "GET", false, false, 0, answer_health},
    {"/ready", "GET", false, false, 0, answer_ready},
    {"/metrics", "GET", false, false, 0, answer_metrics},
    {"/version", "GET", false, false, 0, answer_version},
};

static const struct route *find_route(const char *path)
{
    size_t i;

    for (i = 0; i < ARRAY_COUNT(routes); i++) {
        size_t length = strlen(routes[i].path);
        if (routes[i].prefix ? strncmp(path, routes[i].path, length) == 0 && path[length] : strcmp(path, routes[i].path) == 0)
            return &routes[i];
    }
    return NULL;
}

static bool method_fits(const struct route *route, const char *method)
{
    return strcmp(route->method, method) == 0 || (strcmp(route->method, "GET") == 0 && strcmp(method, "HEAD") == 0);
}

/* --- checks at the end of the headers ----------------------------------------------------------------------------- */
static void answer_preflight(struct exchange *exchange)
{
    struct text body = {0};

    exchange_add_header(exchange, "Access-Control-Allow-Methods", "GET, POST");
    exchange_add_header(exchange, "Access-Control-Allow-Headers", "Authorization, Content-Type, X-Request-Id");
    exchange_add_header(exchange, "Access-Control-Max-Age", "600");
    exchange_respond(exchange, 204, NULL, &body);
}

static bool check_key(struct gateway *gateway, struct exchange *exchange, struct api_error *error)
{
    const char *given = exchange_header(exchange, "Authorization");

    if (!gateway->keys || keys_find(gateway->keys, given))
        return true;
    if (*given == '\0')
        return api_fail(error, 401, "invalid_api_key", NULL, "an API key is required: Authorization: Bearer KEY");
    return api_fail(error, 401, "invalid_api_key", NULL, "the API key is not valid");
}

static bool check_type(struct exchange *exchange, struct api_error *error)
{
    const char *type = exchange_header(exchange, "Content-Type"), *encoding = exchange_header(exchange, "Content-Encoding");

    if (strncasecmp(type, "multipart/", 10) == 0 || strncasecmp(type, "image/", 6) == 0 || strncasecmp(type, "audio/", 6) == 0)
        return api_fail(error, 415, "unsupported_media_type", NULL, "the body must be application/json");
    if (*encoding && strcasecmp(encoding, "identity") != 0)
        return api_fail(error, 415, "unsupported_media_type", NULL, "the body must not be encoded");
    return true;
}

void routes_check(void *arg, struct exchange *exchange)
{
    struct gateway *gateway = arg;
    const char *method = exchange_method(exchange);
    const struct route *route = find_route(exchange_path(exchange));
    struct api_error error = {0};
    bool ok;

    if (gateway->config.cors_origin && strcmp(method, "OPTIONS") == 0) {
        answer_preflight(exchange);
        return;
    }
    if (!route) {
        ok = api_fail(&error, 404, "not_found", NULL, "there is nothing at this path");
    } else if (!method_fits(route, method)) {
        exchange_add_header(exchange, "Allow", route->method);
        ok = api_fail(&error, 405, "method_not_allowed", NULL, "%s wants %s", route->path, route->method);
    } else {
        ok = (!route->needs_key || check_key(gateway, exchange, &error)) && (!route->kind || check_type(exchange, &error));
    }
    if (ok && route->kind && atomic_load_explicit(&gateway->draining, memory_order_relaxed)) {
        ok = api_fail(&error, 503, "shutting_down", NULL, "this gateway is shutting down");
        error.retry_after_s = 1;
    }
    if (!ok)
        respond_error(exchange, &error);
}

void routes_handle(void *arg, struct exchange *exchange)
{
    const struct route *route = find_route(exchange_path(exchange));

    assert_always(route); /* routes_check() has answered the others */
    route->handle(arg, exchange);
}

/* --- answers that need nothing ------------------------------------------------------------------------------------ */
static void answer_health(struct gateway *gateway, struct exchange *exchange)
{
    struct text body = {0};

    (void)gateway;
    text_string(&body, "{\"status\":\"ok\"}\n");
    exchange_respond(exchange, 200, RESPOND_JSON, &body);
}

static void answer_ready(struct gateway *gateway, struct exchange *exchange)
{
    bool leaving = atomic_load_explicit(&gateway->leaving, memory_order_relaxed);
    struct mesh_state state;
    struct text body = {0};
    bool ready;

    mesh_state(gateway->mesh, &state);
    ready = state.ready && !leaving;
    text_string(&body, ready ? "{\"ready\":true" : "{\"ready\":false,\"reason\":");
    if (!ready)
        text_json_string(&body, leaving ? "shutting down" : state.up ? state.reason : "the scheduler does not answer");
    text_string(&body, "}\n");
    exchange_respond(exchange, ready ? 200 : 503, RESPOND_JSON, &body);
}

static void answer_version(struct gateway *gateway, struct exchange *exchange)
{
    struct text body = {0};

    (void)gateway;
    text_string(&body, "{\"version\":\"" FASTDECODE_VERSION "\"}\n");
    exchange_respond(exchange, 200, RESPOND_JSON, &body);
}

static uint32_t context_of(struct gateway *gateway)
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
                (unsigned long long)gateway->created_s, context_of(gateway));
}

static void answer_models(struct gateway *gateway, struct exchange *exchange)
{
    struct text body = {0};

    text_string(&body, "{\"object\":\"list\",\"data\":[");
    append_model(gateway, language_name(gateway->language), &body);
    text_string(&body, "]}\n");
    exchange_respond(exchange, 200, RESPOND_JSON, &body);
}

static bool check_model(struct gateway *gateway, const char *model, struct api_error *error)
{
    char cut[128];
    size_t bytes = 0, length = strlen(model);

    if (language_is_named(gateway->language, model))
        return true;
    while (bytes < length && bytes < sizeof cut - 5) { /* whole characters only */
        size_t one = text_utf8_length(model + bytes, length - bytes);
        bytes += one ? one : 1;
    }
    snprintf(cut, sizeof cut, "%.*s", (int)bytes, model);
    return api_fail(error, 404, "model_not_found", "model", "The model '%s' does not exist", cut);
}

static void answer_model(struct gateway *gateway, struct exchange *exchange)
{
    const char *id = exchange_path(exchange) + strlen("/v1/models/");
    struct api_error error;
    struct text body = {0};

    if (!check_model(gateway, id, &error)) {
        respond_error(exchange, &error);
        return;
    }
    append_model(gateway, id, &body);
    text_append(&body, "\n", 1);
    exchange_respond(exchange, 200, RESPOND_JSON, &body);
}

/* --- metrics: the scheduler's are asked for, on the loop thread --------------------------------------------------- */
struct metrics_ask {
    struct gateway *gateway;
    struct exchange *exchange; /* held */
};

static void finish_metrics(void *arg, const char *mesh_text)
{
    struct metrics_ask *ask = arg;
    struct gateway *gateway = ask->gateway;
    struct metrics_gauges gauges = {.model_name = language_name(gateway->language)};
    struct mesh_state state;
    struct text body = {0};

    mesh_state(gateway->mesh, &state);
    requests_counts(gateway->requests, &gauges.requests_running, &gauges.requests_waiting);
    gauges.connections_active = http_server_active(gateway->http);
    gauges.mesh_up = state.up;
    gauges.mesh_ready = state.ready;
    gauges.kv_pages_used = state.kv_pages_used;
    gauges.kv_pages_total = state.kv_pages_total;
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

static void answer_metrics(struct gateway *gateway, struct exchange *exchange)
{
    struct metrics_ask *ask = malloc(sizeof *ask);
    struct api_error error;

    if (ask) {
        *ask = (struct metrics_ask){gateway, exchange_hold(exchange)};
        if (gateway->config.mesh_metrics)
            mesh_post(gateway->mesh, ask_for_metrics, ask);
        else
            finish_metrics(ask, NULL);
        return;
    }
    api_fail(&error, 500, NULL, NULL, "out of memory");
    respond_error(exchange, &error);
}

/* --- requests with a body ----------------------------------------------------------------------------------------- */
struct work {
    struct exchange *exchange; /* held */
    enum api_kind kind;
    struct key *key; // NULL: none is needed
};

// Sequences of one key that may wait at a time.
static uint32_t key_limit(const struct gateway *gateway, const struct mesh_state *state)
{
    uint32_t queue = state->max_queue ? state->max_queue : gateway->config.max_queue;

    return keys_count(gateway->keys) > 1 ? (uint32_t)MAX(queue * gateway->config.key_share, 1) : UINT32_MAX;
}

static void add_waiting(struct key *key, int32_t count)
{
    if (key)
        atomic_fetch_add_explicit(&key->waiting, (uint32_t)count, memory_order_relaxed);
}

static void free_work(struct work *work)
{
    add_waiting(work->key, -1);
    exchange_drop_body(work->exchange);
    exchange_release(work->exchange);
    free(work);
}

static void queue_work(struct gateway *gateway, struct exchange *exchange)
{
    enum api_kind kind = find_route(exchange_path(exchange))->kind;
    struct api_error error = {0};
    struct mesh_state state;
    struct work *work;
    struct key *key;
    size_t bytes;

    mesh_state(gateway->mesh, &state);
    if ((kind & (API_COMPLETION | API_CHAT)) && state.ready && state.max_queue && state.waiting >= state.max_queue) {
        api_fail(&error, 429, "rate_limit_exceeded", NULL, "the queue is full (%u requests wait), try again later", state.waiting);
        error.retry_after_s = retry_after_s(state.predicted_wait_ms);
        respond_error(exchange, &error);
        return;
    }
    key = gateway->keys ? keys_find(gateway->keys, exchange_header(exchange, "Authorization")) : NULL;
    if (key && atomic_load_explicit(&key->waiting, memory_order_relaxed) >= key_limit(gateway, &state)) {
        api_fail(&error, 429, "rate_limit_exceeded", NULL, "this API key has its share of the queue, try again later");
        error.retry_after_s = retry_after_s(state.predicted_wait_ms);
        respond_error(exchange, &error);
        return;
    }
    work = calloc(1, sizeof *work);
    if (!work) {
        api_fail(&error, 500, NULL, NULL, "out of memory");
        respond_error(exchange, &error);
        return;
    }
    work->exchange = exchange_hold(exchange);
    work->kind = kind;
    work->key = key;
    add_waiting(key, 1);
    exchange_body(exchange, &bytes);
    if (work_pool_push(bytes <= QUICK_BYTES ? gateway->quick : gateway->pool, work) == STATUS_OK)
        return;
    api_fail(&error, 429, "rate_limit_exceeded", NULL, "too many requests wait to be read, try again later");
    error.retry_after_s = retry_after_s(state.predicted_wait_ms);
    respond_error(exchange, &error);
    free_work(work);
}

static void answer_tokenize(struct gateway *gateway, struct exchange *exchange, const struct api_request *api)
{
    struct error reason = {0};
    struct api_error error;
    struct text body = {0};
    uint32_t *ids = NULL, count = 0, i;
    enum status status;

    if (api->messages)
        status = language_encode_chat(gateway->language, api->messages, api->message_count, api->add_generation_prompt, UINT32_MAX,
                                      &ids, &count, &reason);
    else
        status = language_encode(gateway->language, api->prompts[0].text, api->prompts[0].bytes, api->add_special_tokens,
                                 api->parse_special, UINT32_MAX, &ids, &count, &reason);
    if (status != STATUS_OK) {
        api_fail(&error, status == STATUS_RESOURCE_EXHAUSTED ? 500 : 400, "invalid_value", api->messages ? "messages" : "prompt",
                 "%s", reason.text);
        respond_error(exchange, &error);
        return;
    }
    if (count * (1 + (uint64_t)api->return_token_strs) > gateway->config.max_request_tokens) {
        free(ids);
        api_fail(&error, 400, "request_too_large", api->messages ? "messages" : "prompt",
                 "the text has %u tokens; with their strings counted, at most %u are given in one answer", count,
                 gateway->config.max_request_tokens);
        respond_error(exchange, &error);
        return;
    }
    text_format(&body, "{\"count\":%u,\"max_model_len\":%u,\"tokens\":[", count, context_of(gateway));
    for (i = 0; i < count; i++)
        text_format(&body, i ? ",%u" : "%u", ids[i]);
    text_string(&body, "],\"token_strs\":");
    for (i = 0; api->return_token_strs && i < count; i++) {
        size_t bytes;
        const char *token = language_token(gateway->language, ids[i], &bytes);
        text_append(&body, i ? "," : "[", 1);
        text_json(&body, token, bytes);
    }
    text_string(&body, !api->return_token_strs ? "null}\n" : count ? "]}\n" : "[]}\n");
    free(ids);
    exchange_respond(exchange, 200, RESPOND_JSON, &body);
}

static void answer_detokenize(struct gateway *gateway, struct exchange *exchange, const struct api_request *api)
{
    struct text prompt = {0}, body = {0};

    language_decode(gateway->language, api->prompts[0].ids, api->prompts[0].id_count, true, &prompt);
    text_string(&body, "{\"prompt\":");
    text_json(&body, prompt.data, prompt.bytes);
    text_string(&body, "}\n");
    body.failed |= prompt.failed;
    text_free(&prompt);
    exchange_respond(exchange, 200, RESPOND_JSON, &body);
}

struct start {
    struct gateway *gateway;
    struct request *request;
};

static void start_on_loop(void *arg)
{
    struct start *start = arg;

    requests_start(start->gateway->requests, start->request);
    free(start);
}

/* Takes api over. */
static void start_request(struct gateway *gateway, struct work *work, struct api_request *api)
{
    struct start *start = malloc(sizeof *start);
    struct request *request = NULL;
    struct api_error error = {0};

    if (!request_prepare(gateway->requests, work->exchange, api, work->key, &request, &error)) {
        respond_error(work->exchange, &error);
        free(start);
        return;
    }
    work->key = NULL; // counted by the request from here on
    if (start) {
        *start = (struct start){gateway, request};
        mesh_post(gateway->mesh, start_on_loop, start);
    } else {
        api_fail(&error, 500, NULL, NULL, "out of memory");
        respond_error(work->exchange, &error);
        request_discard(request);
    }
}

void routes_work(void *arg, void *item)
{
    struct gateway *gateway = arg;
    struct work *work = item;
    struct api_request api = {0};
    struct api_error error = {0};
    size_t bytes;
    const char *body = exchange_body(work->exchange, &bytes);

    if (exchange_is_gone(work->exchange)) {
        /* nobody is left to answer */
    } else if (!api_request_parse(work->kind, body, bytes, language_vocab(gateway->language), &api, &error) ||
               (api.model && !check_model(gateway, api.model, &error))) {
        log_info("API-REFUSED", "request=%s status=%d param=%s", exchange_request_id(work->exchange), error.status,
                 error.param[0] ? error.param : "-");
        respond_error(work->exchange, &error);
    } else {
        exchange_drop_body(work->exchange);
        if (work->kind == API_TOKENIZE)
            answer_tokenize(gateway, work->exchange, &api);
        else if (work->kind == API_DETOKENIZE)
            answer_detokenize(gateway, work->exchange, &api);
        else
            start_request(gateway, work, &api); /* and empties api */
    }
    api_request_free(&api);
    free_work(work);
}
