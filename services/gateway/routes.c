// routes.c: which request is answered where: paths, methods, keys.
//
// routes_check() sees the headers, routes_handle() the whole request, both on the polling thread and so without any work that takes
// long: answers.c answers at once, work.c hands bodies to the work pools.
#include <string.h>
#include <strings.h>

#include "common/base/checked.h"
#include "services/gateway/gateway_internal.h"
#include "services/gateway/respond.h"

struct route {
    const char *path;
    const char *method;
    bool prefix; // path is only the beginning
    bool needs_key;
    enum api_kind kind; // of the body; 0: none
    route_handler_fn *handle;
};

static const struct route routes[] = {
    {"/v1/chat/completions", "POST", false, true, API_CHAT, work_queue},
    {"/v1/completions", "POST", false, true, API_COMPLETION, work_queue},
    {"/tokenize", "POST", false, true, API_TOKENIZE, work_queue},
    {"/detokenize", "POST", false, true, API_DETOKENIZE, work_queue},
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

// --- checks at the end of the headers -----------------------------------------------------------------------------
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
        return api_fail(error, 415, "unsupported_media_type", NULL, "the body must not be compressed");
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
        ok = api_fail(&error, 404, "not_found", NULL, "unknown path");
    } else if (!method_fits(route, method)) {
        exchange_add_header(exchange, "Allow", route->method);
        ok = api_fail(&error, 405, "method_not_allowed", NULL, "%s accepts only %s", route->path, route->method);
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

    assert_always(route); // routes_check() has answered the others
    route->handle(arg, exchange, route->kind);
}
