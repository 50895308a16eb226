// routes.c: which request is answered where: paths, methods, keys.
//
// routes_check() sees the headers, routes_handle() the whole request, both on the polling thread and so without any work that takes
// long: answers.c answers at once, work.c hands bodies to the work pools.
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/base/checked.h"
#include "services/gateway/serve/gateway_internal.h"

// The addresses at which a path is answered: the public one, and --admin-listen. Without the latter all are at the public one.
enum { PUBLIC = 1, ADMIN = 2, BOTH = PUBLIC | ADMIN };

struct route {
    uint32_t at;
    const char *path;
    const char *suffix; // NULL: path is all of it; else an id follows the path, and then this
    const char *method;
    enum { NO_KEY, API_KEY, ADMIN_KEY } key;
    enum api_kind kind;            // of the body that becomes work; 0: none
    enum batch_call_kind batch;    // or a call for batches
    route_handler_fn *handle;      // or this
    const struct dialect *dialect; // of the request, its answer and its errors; NULL: its family's
};

// A body that becomes work: for the model, or its tokenizer.
#define ASK(where, what, form)                                                                                  \
    {                                                                                                           \
        .at = PUBLIC, .path = where, .method = "POST", .key = API_KEY, .kind = what, .dialect = &dialect_##form \
    }

// The first that fits counts.
static const struct route routes[] = {
    ASK("/v1/chat/completions", API_CHAT, openai),
    ASK("/v1/completions", API_COMPLETION, openai),
    ASK("/v1/responses", API_CHAT, responses),
    ASK("/v1/responses/input_tokens", API_TOKENIZE, count_responses),
    {.at = PUBLIC,
     .path = "/v1/responses/",
     .suffix = "/input_items",
     .method = "GET",
     .key = API_KEY,
     .handle = answer_response_items},
    {.at = PUBLIC,
     .path = "/v1/responses/",
     .suffix = "/cancel",
     .method = "POST",
     .key = API_KEY,
     .handle = answer_response_cancel},
    {.at = PUBLIC, .path = "/v1/responses/", .suffix = "", .method = "GET", .key = API_KEY, .handle = answer_response},
    {.at = PUBLIC, .path = "/v1/responses/", .suffix = "", .method = "DELETE", .key = API_KEY, .handle = answer_response_delete},
    ASK("/v1/messages", API_CHAT, messages),
    ASK("/v1/messages/count_tokens", API_TOKENIZE, count_tokens),
    ASK("/api/chat", API_CHAT, ollama_chat),
    ASK("/api/generate", API_CHAT, ollama_generate),
    {.at = PUBLIC, .path = "/api/tags", .method = "GET", .key = API_KEY, .handle = answer_ollama_tags},
    {.at = PUBLIC, .path = "/api/ps", .method = "GET", .key = API_KEY, .handle = answer_ollama_ps},
    {.at = PUBLIC, .path = "/api/show", .method = "POST", .key = API_KEY, .handle = answer_ollama_show},
    {.at = PUBLIC, .path = "/api/version", .method = "GET", .handle = answer_ollama_version},
    ASK("/api/embed", API_EMBED, ollama_embed),
    ASK("/api/embeddings", API_EMBED, ollama_embeddings),
    ASK("/v1/embeddings", API_EMBED, openai),
    ASK("/v1/rerank", API_RERANK, openai),
    ASK("/v2/rerank", API_RERANK, openai),
    ASK("/rerank", API_RERANK, openai),
    ASK("/tokenize", API_TOKENIZE, openai),
    ASK("/detokenize", API_DETOKENIZE, openai),
    {.at = PUBLIC, .path = "/v1/models", .method = "GET", .key = API_KEY, .handle = answer_models},
    {.at = PUBLIC, .path = "/v1/models/", .suffix = "", .method = "GET", .key = API_KEY, .handle = answer_model},
    {.at = PUBLIC, .path = "/v1/files", .method = "POST", .key = API_KEY, .batch = BATCH_FILE_CREATE},
    {.at = PUBLIC, .path = "/v1/files", .method = "GET", .key = API_KEY, .batch = BATCH_FILE_LIST},
    {.at = PUBLIC, .path = "/v1/files/", .suffix = "/content", .method = "GET", .key = API_KEY, .batch = BATCH_FILE_CONTENT},
    {.at = PUBLIC, .path = "/v1/files/", .suffix = "", .method = "GET", .key = API_KEY, .batch = BATCH_FILE_GET},
    {.at = PUBLIC, .path = "/v1/files/", .suffix = "", .method = "DELETE", .key = API_KEY, .batch = BATCH_FILE_DELETE},
    {.at = PUBLIC, .path = "/v1/batches", .method = "POST", .key = API_KEY, .batch = BATCH_CREATE},
    {.at = PUBLIC, .path = "/v1/batches", .method = "GET", .key = API_KEY, .batch = BATCH_LIST},
    {.at = PUBLIC, .path = "/v1/batches/", .suffix = "/cancel", .method = "POST", .key = API_KEY, .batch = BATCH_CANCEL},
    {.at = PUBLIC, .path = "/v1/batches/", .suffix = "", .method = "GET", .key = API_KEY, .batch = BATCH_GET},
    {.at = BOTH, .path = "/health", .method = "GET", .handle = answer_health},
    {.at = BOTH, .path = "/ready", .method = "GET", .handle = answer_ready},
    {.at = ADMIN, .path = "/metrics", .method = "GET", .key = ADMIN_KEY, .handle = answer_metrics},
    {.at = PUBLIC, .path = "/openapi.json", .method = "GET", .handle = answer_openapi},
    {.at = BOTH, .path = "/version", .method = "GET", .handle = answer_version},
    {.at = PUBLIC, .path = "/", .method = "GET", .handle = answer_page},
    {.at = ADMIN, .path = "/mesh", .method = "GET", .handle = answer_page},
    {.at = ADMIN, .path = "/mesh/state", .method = "GET", .key = ADMIN_KEY, .handle = answer_mesh_state},
    {.at = BOTH, .path = "/pages/", .suffix = "", .method = "GET", .handle = answer_page_file}, // what both pages load
};

// Forms of the other paths below one: of errors.
static const struct {
    const char *path;
    const struct dialect *dialect;
} families[] = {
    {.path = "/v1/messages/", .dialect = &dialect_messages},
    {.path = "/api/", .dialect = &dialect_ollama_other},
};

static bool method_fits(const struct route *route, const char *method)
{
    return strcmp(route->method, method) == 0 || (strcmp(route->method, "GET") == 0 && strcmp(method, "HEAD") == 0);
}

static bool is_same_path(const struct route *a, const struct route *b)
{
    return strcmp(a->path, b->path) == 0 && !a->suffix == !b->suffix && (!a->suffix || strcmp(a->suffix, b->suffix) == 0);
}

static bool path_fits(const struct route *route, const char *path)
{
    size_t length = strlen(route->path), suffix = route->suffix ? strlen(route->suffix) : 0, whole = strlen(path);

    if (!route->suffix)
        return strcmp(path, route->path) == 0;
    return strncmp(path, route->path, length) == 0 && whole > length + suffix && strcmp(path + whole - suffix, route->suffix) == 0;
}

// The route of a request; with another method one of the same path; NULL: none.
static const struct route *find_route(uint32_t at, const char *path, const char *method)
{
    const struct route *near = NULL;
    size_t i;

    for (i = 0; i < ARRAY_COUNT(routes); i++) {
        if (!(routes[i].at & at) || !path_fits(&routes[i], path) || (near && !is_same_path(near, &routes[i])))
            continue;
        if (method_fits(&routes[i], method))
            return &routes[i];
        if (!near)
            near = &routes[i];
    }
    return near;
}

const struct dialect *routes_dialect(const char *path, const char *method)
{
    const struct route *route = find_route(BOTH, path, method);

    if (route && route->dialect)
        return route->dialect;
    for (size_t i = 0; i < ARRAY_COUNT(families); i++)
        if (strncmp(path, families[i].path, strlen(families[i].path)) == 0)
            return families[i].dialect;
    return NULL;
}

// --- checks at the end of the headers -----------------------------------------------------------------------------
// What the official clients send from web pages, too: a browser asks about each header before it sends one.
static const struct http_header preflight_headers[] = {
    {"Access-Control-Allow-Methods", "GET, POST, DELETE"},
    {"Access-Control-Allow-Headers",
     "Authorization, Content-Type, X-Request-Id, traceparent, tracestate, User-Agent, Idempotency-Key, OpenAI-Organization, "
     "OpenAI-Project, OpenAI-Beta, x-api-key, anthropic-version, anthropic-beta, anthropic-dangerous-direct-browser-access, "
     "X-Stainless-Lang, X-Stainless-Package-Version, X-Stainless-OS, X-Stainless-Arch, X-Stainless-Runtime, "
     "X-Stainless-Runtime-Version, X-Stainless-Async, X-Stainless-Retry-Count, X-Stainless-Read-Timeout, X-Stainless-Timeout, "
     "X-Stainless-Raw-Response, X-Stainless-Helper, X-Stainless-Helper-Method, X-Stainless-Stream-Helper, "
     "X-Stainless-Poll-Helper, X-Stainless-Custom-Poll-Interval"},
    {"Access-Control-Max-Age", "600"},
    {NULL, NULL}};

static void answer_preflight(struct exchange *exchange)
{
    struct text body = {0};

    exchange_set_fixed_headers(exchange, preflight_headers);
    exchange_respond(exchange, 204, NULL, &body);
}

// Answers OPTIONS of the server as a whole.
static void answer_options(struct exchange *exchange)
{
    struct text body = {0};

    exchange_add_header(exchange, "Allow", "GET, HEAD, POST, DELETE, OPTIONS");
    exchange_respond(exchange, 204, NULL, &body);
}

// The name that OpenTelemetry's conventions for generative AI give it; NULL: the model is not asked.
static const char *operation_of(enum api_kind kind)
{
    switch (kind) {
    case API_COMPLETION: return "text_completion";
    case API_CHAT: return "chat";
    case API_EMBED: return "embeddings";
    case API_RERANK: return "rerank";
    case API_TOKENIZE:
    case API_DETOKENIZE: break;
    }
    return NULL;
}

// Opens the span of a request for the API: probes, metrics and pages have none.
static void open_span(struct gateway *gateway, struct exchange *exchange, const struct route *route)
{
    char text[64];

    if (!gateway->otlp || route->key != API_KEY)
        return;
    snprintf(text, sizeof text, route->suffix ? "%s{id}%s" : "%s", route->path, route->suffix);
    root_span_open(gateway->otlp, gateway->config.trace_sample, exchange, text, operation_of(route->kind), gateway->tls != NULL);
}

// Clients of OpenAI's look for the first words of these messages: any other 401 is a bad request to them.
static bool check_key(struct gateway *gateway, struct exchange *exchange, struct api_error *error)
{
    const struct key *key = client_key(gateway, exchange);

    if (key)
        exchange_note_owner(exchange, key->name[0] ? key->name : key->tenant);
    if (!gateway->keys || key)
        return true;
    if (!client_gives_key(exchange))
        return api_fail(error, 401, "invalid_api_key", NULL, "Incorrect API key provided: none. Send Authorization: Bearer KEY");
    return api_fail(error, 401, "invalid_api_key", NULL, "Incorrect API key provided: this server does not know it");
}

static bool check_type(struct exchange *exchange, struct api_error *error)
{
    const char *type = exchange_header(exchange, "Content-Type"), *encoding = exchange_header(exchange, "Content-Encoding");

    if (strncasecmp(type, "multipart/", 10) == 0 || strncasecmp(type, "image/", 6) == 0 || strncasecmp(type, "audio/", 6) == 0)
        return api_fail(error, 415, "unsupported_media_type", NULL, "the body must be application/json");
    if (*encoding && strcasecmp(encoding, "identity") != 0)
        return api_fail(error, 415, "unsupported_media_type", NULL, "the body must not be compressed");
    return true;
}

// The methods of a path: "POST, GET".
static void list_methods(const struct route *route, char *out, size_t out_bytes)
{
    size_t i, length = 0;

    for (i = 0; i < ARRAY_COUNT(routes); i++)
        if (is_same_path(&routes[i], route))
            length += (size_t)snprintf(out + length, out_bytes - length, length ? ", %s" : "%s", routes[i].method);
}

static bool check_batch(struct gateway *gateway, struct exchange *exchange, const struct route *route, struct api_error *error)
{
    if (!gateway->batches)
        return api_fail(error, 404, "not_found", NULL, "files and batches are off: the gateway's --batch-dir turns them on");
    if (route->batch == BATCH_CREATE)
        return check_type(exchange, error);
    return route->batch != BATCH_FILE_CREATE ||
           batch_api_begin_upload(gateway->batches, exchange, client_tenant(gateway, exchange), error);
}

static bool check_route(struct gateway *gateway, struct exchange *exchange, const struct route *route, struct api_error *error)
{
    bool makes_work = route->kind || (route->batch && strcmp(route->method, "POST") == 0);

    if (route->key == API_KEY && !check_key(gateway, exchange, error))
        return false;
    if (route->key == ADMIN_KEY && !client_is_admin(gateway, exchange))
        return api_fail(
            error, 401, "invalid_admin_key", NULL,
            gateway->admin_keys
                ? "a key of --admin-key-file is required: Authorization: Bearer KEY"
                : "this is answered on the gateway's own machine alone, asked as localhost or by an address, or with a key of --admin-key-file");
    if (route->kind && !check_type(exchange, error))
        return false;
    if (makes_work && atomic_load_explicit(&gateway->draining, memory_order_relaxed)) {
        api_fail(error, 503, "shutting_down", NULL, "this gateway is shutting down");
        error->retry_after_s = 1;
        return false;
    }
    if (route->kind)
        mesh_expect(gateway->mesh); // while the body comes and is tokenized
    return !route->batch || check_batch(gateway, exchange, route, error);
}

static void check(struct gateway *gateway, uint32_t at, struct exchange *exchange)
{
    const char *method = exchange_method(exchange);
    const struct route *route = find_route(at, exchange_path(exchange), method);
    struct api_error error = {0};
    char methods[64];
    bool ok;

    const struct dialect *dialect = routes_dialect(exchange_path(exchange), method);
    exchange_set_dialect(exchange, dialect, dialect ? dialect->refuse : NULL);
    if (dialect && dialect->id_header)
        exchange_add_header(exchange, dialect->id_header, exchange_request_id(exchange));
    if (gateway->config.cors_origin && strcmp(method, "OPTIONS") == 0) {
        answer_preflight(exchange);
        return;
    }
    if (strcmp(method, "OPTIONS") == 0 && strcmp(exchange_path(exchange), "*") == 0) {
        answer_options(exchange);
        return;
    }
    if (!route) {
        ok = find_route(BOTH, exchange_path(exchange), method)
                 ? api_fail(&error, 404, "not_found", NULL,
                            at == PUBLIC ? "this path is at the address of --admin-listen"
                                         : "this path is at the address of --host and --port")
                 : api_fail(&error, 404, "not_found", NULL, "unknown path");
    } else if (!method_fits(route, method)) {
        list_methods(route, methods, sizeof methods);
        exchange_add_header(exchange, "Allow", methods);
        ok = api_fail(&error, 405, "method_not_allowed", NULL, "%s accepts only %s", route->path, methods);
    } else {
        open_span(gateway, exchange, route);
        ok = check_route(gateway, exchange, route, &error);
    }
    if (!ok)
        exchange_refuse(exchange, &error);
}

static uint32_t public_of(const struct gateway *gateway) { return gateway->config.admin_host ? PUBLIC : BOTH; }

void routes_check(void *arg, struct exchange *exchange) { check(arg, public_of(arg), exchange); }
void routes_check_admin(void *arg, struct exchange *exchange) { check(arg, ADMIN, exchange); }

static void handle(struct gateway *gateway, uint32_t at, struct exchange *exchange)
{
    const char *path = exchange_path(exchange);
    const struct route *route = find_route(at, path, exchange_method(exchange));
    const char *id;

    assert_always(route); // routes_check() has answered the others
    id = path + strlen(route->path);
    if (route->kind)
        work_queue(gateway, exchange, route->kind);
    else if (route->batch)
        batch_api_call(gateway->batches, exchange, route->batch, client_tenant(gateway, exchange), id,
                       route->suffix ? strlen(id) - strlen(route->suffix) : 0);
    else
        route->handle(gateway, exchange);
}

void routes_handle(void *arg, struct exchange *exchange) { handle(arg, public_of(arg), exchange); }
void routes_handle_admin(void *arg, struct exchange *exchange) { handle(arg, ADMIN, exchange); }
