// gateway.c: see gateway.h: the parts, and how they begin and end.
#include "services/gateway/serve/gateway.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/options.h"
#include "common/rpc/security.h"
#include "services/gateway/serve/gateway_internal.h"
#include "services/gateway/serve/openapi.h"

enum {
    DRAIN_POLL_MS = 10,
    CUT_OFF_MS = 1000, // for clients to read why their answers end
    RPC_CALLS = 16384,
    LOOK_EVERY_TICKS = 10,
    ADMIN_CONNECTIONS = 64,
    ADMIN_BODY_BYTES = 4096,
    METRICS_KEPT_US = 1000000,
    VIEW_KEPT_US = 500000,
};

void gateway_defaults(struct gateway_config *config)
{
    *config = (struct gateway_config){
        .host = "127.0.0.1",
        .port = 8080,
        .pooling = "auto",
        .max_connections = 8192,
        .max_queue = 4096,
        .key_share = 0.5,
        .threads = 2,
        .max_body_bytes = 8 << 20,
        .max_request_tokens = 1 << 20,
        .max_unsent_bytes = 256 << 20,
        .min_read_rate = 16 << 10,
        .header_timeout_s = 10,
        .body_timeout_s = 60,
        .idle_timeout_s = 75,
        .ready_grace_s = 10,
        .resume_limit_s = 300,
        .keep_alive_s = 10,
        .batch_max_file_bytes = 512 << 20,
        .batch_max_disk_bytes = 10ull << 30,
        .batch_max_lines = 100000,
        .batch_concurrency = 256,
        .responses_bytes = 64 << 20,
        .responses_count = 1000,
        .responses_keep_s = 3600,
        .mesh_metrics = true,
        .trace_sample = 1,
    };
}

// --- callbacks of the HTTP server ---------------------------------------------------------------------------------
static void on_gone(void *arg, struct exchange *exchange) { work_cancel(arg, exchange); }

static void tick_on_loop(void *arg)
{
    struct gateway *gateway = arg;

    atomic_store_explicit(&gateway->tick_pending, false, memory_order_relaxed);
    requests_tick(gateway->requests);
}

// Files are looked at once a second.
static void look_at_files(struct gateway *gateway)
{
    bool asked = atomic_exchange_explicit(&gateway->reload_asked, false, memory_order_relaxed);

    if (!asked && ++gateway->ticks % LOOK_EVERY_TICKS != 0)
        return;
    if (gateway->keys)
        (void)keys_reload(gateway->keys, asked);
    if (gateway->admin_keys)
        (void)keys_reload(gateway->admin_keys, asked);
    if (gateway->tls)
        http_tls_reload(gateway->tls, asked);
    if (gateway->audit && asked)
        audit_reopen(gateway->audit);
}

void gateway_reload(struct gateway *gateway)
{
    atomic_store_explicit(&gateway->reload_asked, true, memory_order_relaxed);
    mesh_reload(gateway->mesh);
}

static void on_tick(void *arg)
{
    struct gateway *gateway = arg;

    look_at_files(gateway);
    if (!atomic_exchange_explicit(&gateway->tick_pending, true, memory_order_relaxed))
        mesh_post(gateway->mesh, tick_on_loop, gateway);
}

static void on_done(void *arg, struct exchange *exchange, int status)
{
    struct gateway *gateway = arg;
    struct exchange_note note;

    exchange_note(exchange, &note);
    if (strcmp(exchange_path(exchange), "/ready") != 0) // who asks whether it is ready has lost nothing while it is not
        metrics_answer(gateway->metrics, status, note.refused);
    root_span_end(gateway->otlp, exchange, status, language_name(gateway->language));
    if (gateway->audit)
        audit_add(gateway->audit, exchange, status, language_name(gateway->language));
    log_debug("HTTP-DONE", "request=%s method=%s status=%d", exchange_request_id(exchange), exchange_method(exchange), status);
}

static void on_mesh_changed(void *arg)
{
    struct gateway *gateway = arg;

    requests_tick(gateway->requests);
}

// --- lifecycle ----------------------------------------------------------------------------------------------------
static enum status open_language(const struct gateway_config *config, struct language **out, struct error *error)
{
    struct language_config language = {.model_path = config->model,
                                       .chat_template_path = config->chat_template,
                                       .pooling = config->pooling,
                                       .tool_parser = config->tool_parser,
                                       .reasoning_parser = config->reasoning_parser,
                                       .sampling = config->sampling,
                                       .served_name = config->served_model_name,
                                       .context_tokens = config->context};

    if (!config->model)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--model is required");
    return language_open(&language, out, error);
}

static enum status open_keys(const struct gateway_config *config, struct keys **keys, struct keys **admin_keys, struct error *error)
{
    const char *admin = config->admin_key_file;

    if (config->api_key_file && keys_open(config->api_key_file, keys, error))
        return error_prefix(error, "--api-key-file");
    if (admin && strcmp(admin, "open") && keys_open(admin, admin_keys, error))
        return error_prefix(error, "--admin-key-file");
    return STATUS_OK;
}

// *out NULL: plain HTTP.
static enum status open_tls(const struct gateway_config *config, struct http_tls **out, struct error *error)
{
    *out = NULL;
    if (!config->tls_cert != !config->tls_key)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--tls-cert and --tls-key go together");
    return config->tls_cert ? http_tls_open(config->tls_cert, config->tls_key, out, error) : STATUS_OK;
}

enum status gateway_check(const struct gateway_config *config, struct error *error)
{
    struct language *language = NULL;
    struct keys *keys = NULL, *admin_keys = NULL;
    struct http_tls *tls = NULL;
    const struct rpc_security_addresses addresses = {.listens = {config->listen}, .dials = config->scheduler};
    enum status status = config->scheduler ? open_language(config, &language, error)
                                           : error_set(error, STATUS_INVALID_ARGUMENT, "--scheduler is required");

    if (status == STATUS_OK)
        status = open_keys(config, &keys, &admin_keys, error);
    if (status == STATUS_OK)
        status = rpc_security_check(&config->security, "gateway", &addresses, error);
    if (status == STATUS_OK)
        status = open_tls(config, &tls, error);
    if (status == STATUS_OK)
        status = http_server_check_host(config->host, error);
    if (status == STATUS_OK && config->admin_host)
        status = http_server_check_host(config->admin_host, error);
    http_tls_close(tls);
    keys_close(admin_keys);
    keys_close(keys);
    language_close(language);
    return status;
}

static enum status open_mesh(struct gateway *gateway, struct error *error)
{
    const struct gateway_config *config = &gateway->config;
    struct mesh_config mesh = {.scheduler = config->scheduler,
                               .listen = config->listen,
                               .security = config->security,
                               .max_calls = RPC_CALLS,
                               .fingerprint = language_fingerprint(gateway->language),
                               .changed = on_mesh_changed,
                               .arg = gateway};
    struct requests_config requests = {.language = gateway->language,
                                       .metrics = gateway->metrics,
                                       .max_request_tokens = config->max_request_tokens,
                                       .request_timeout_s = config->request_timeout_s,
                                       .ready_grace_s = config->ready_grace_s,
                                       .resume_limit_s = config->resume_limit_s,
                                       .keep_alive_s = config->keep_alive_s};
    enum status status;

    if (!config->scheduler)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--scheduler is required");
    status = mesh_open(&mesh, &gateway->mesh, error);
    if (status != STATUS_OK)
        return status;
    requests.mesh = gateway->mesh;
    gateway->scrape = scrape_open(gateway->mesh, mesh_metrics, METRICS_KEPT_US);
    gateway->view = scrape_open(gateway->mesh, mesh_view, VIEW_KEPT_US);
    if (!gateway->scrape || !gateway->view || requests_open(&requests, &gateway->requests) != STATUS_OK)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    return mesh_start(gateway->mesh, error);
}

static void ask_for_batch(void *arg, struct exchange *exchange, enum api_kind kind, struct key *key)
{
    work_ask(arg, exchange, kind, key);
}

static void cancel_for_batch(void *arg, struct exchange *exchange) { work_cancel(arg, exchange); }

static bool is_ready_for_batch(void *arg)
{
    struct gateway *gateway = arg;
    struct mesh_state state;

    mesh_state(gateway->mesh, &state);
    return state.ready && !atomic_load_explicit(&gateway->leaving, memory_order_relaxed);
}

static enum status open_batches(struct gateway *gateway, struct error *error)
{
    const struct gateway_config *config = &gateway->config;
    struct batch_api_config batches = {
        .dir = config->batch_dir,
        .max_file_bytes = config->batch_max_file_bytes,
        .max_bytes = config->batch_max_disk_bytes,
        .max_lines = config->batch_max_lines,
        .share = gateway->keys && keys_count(gateway->keys) > 1 ? config->key_share : 1,
        .capacity = config->max_queue,
        .runner = {.concurrency = config->batch_concurrency,
                   .max_line_bytes = config->max_body_bytes,
                   .ask = ask_for_batch,
                   .cancel = cancel_for_batch,
                   .is_ready = is_ready_for_batch,
                   .arg = gateway},
    };

    return config->batch_dir ? batch_api_open(&batches, &gateway->batches, error) : STATUS_OK;
}

static enum status open_responses(struct gateway *gateway, struct error *error)
{
    const struct gateway_config *config = &gateway->config;
    const struct response_store_config responses = {
        .max_bytes = config->responses_bytes,
        .share = gateway->keys && keys_count(gateway->keys) > 1 ? config->key_share : 1,
        .max_count = config->responses_count,
        .keep_s = config->responses_keep_s,
    };

    if (config->responses_bytes > 0 && response_store_open(&responses, &gateway->responses) != STATUS_OK)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    return STATUS_OK;
}

// Shared by the public server and the one of --admin-listen.
static struct http_config http_of(struct gateway *gateway)
{
    const struct gateway_config *config = &gateway->config;

    return (struct http_config){
        .max_unsent_bytes = config->max_unsent_bytes,
        .min_read_rate = config->min_read_rate,
        .header_timeout_s = config->header_timeout_s,
        .body_timeout_s = config->body_timeout_s,
        .idle_timeout_s = config->idle_timeout_s,
        .arg = gateway,
    };
}

static enum status open_http(struct gateway *gateway, struct error *error)
{
    const struct gateway_config *config = &gateway->config;
    struct http_config http = http_of(gateway);

    http.host = config->host;
    http.port = config->port;
    http.max_connections = config->max_connections;
    http.max_connections_per_address = config->max_connections_per_address;
    http.max_body_bytes = config->max_body_bytes;
    http.cors_origin = config->cors_origin;
    http.tls = gateway->tls;
    http.check = routes_check;
    http.handle = routes_handle;
    http.gone = on_gone;
    http.tick = on_tick;
    http.done = on_done;
    return http_server_start(&http, &gateway->http, error);
}

static enum status open_admin(struct gateway *gateway, struct error *error)
{
    struct http_config http = http_of(gateway);
    struct error reason;

    http.host = gateway->config.admin_host;
    http.port = gateway->config.admin_port;
    http.max_connections = ADMIN_CONNECTIONS;
    http.max_body_bytes = ADMIN_BODY_BYTES;
    http.check = routes_check_admin;
    http.handle = routes_handle_admin;
    if (!http.host || !http_server_start(&http, &gateway->admin, &reason))
        return STATUS_OK;
    if (gateway->config.admin_takes_any_port) {
        log_warn("ADMIN-PORT-TAKEN", "port=%u why=\"%s\" next=\"another is taken; set --admin-listen\"", http.port, reason.text);
        http.port = 0;
        if (!http_server_start(&http, &gateway->admin, &reason))
            return STATUS_OK;
    }
    return error_set(error, reason.status, "--admin-listen: %s; several gateways on a host need a port each, or none", reason.text);
}

static enum status open_front(struct gateway *gateway, struct error *error)
{
    const struct gateway_config *config = &gateway->config;
    enum status status = open_tls(config, &gateway->tls, error);

    if (!status && config->audit_file)
        status = audit_open(config->audit_file, &gateway->audit, error);
    if (!status)
        status = open_admin(gateway, error);
    return status ? status : open_http(gateway, error);
}

enum status gateway_open(const struct gateway_config *config, struct gateway **out, struct error *error)
{
    struct gateway *gateway = calloc(1, sizeof *gateway);
    enum status status;

    *out = NULL;
    if (!gateway)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    pthread_mutex_init(&gateway->ignored_lock, NULL);
    gateway->config = *config;
    const struct otlp_config traces = {.endpoint = config->otlp_endpoint, .service = "fastdecode-gateway"};
    gateway->created_s = clock_wall_us() / 1000000;
    status = open_language(config, &gateway->language, error);
    if (status == STATUS_OK)
        status = otlp_open(&traces, &gateway->otlp, error);
    if (status == STATUS_OK)
        status = open_keys(config, &gateway->keys, &gateway->admin_keys, error);
    if (status == STATUS_OK && metrics_open(&gateway->metrics) != STATUS_OK)
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    if (status == STATUS_OK)
        status = open_responses(gateway, error);
    if (status == STATUS_OK)
        status = open_mesh(gateway, error);
    if (status == STATUS_OK &&
        (work_pool_start(1, config->max_queue, false, work_run, gateway, &gateway->quick) != STATUS_OK ||
         work_pool_start(config->threads, config->max_queue, true, work_run, gateway, &gateway->pool) != STATUS_OK))
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot start %u threads", config->threads);
    if (status == STATUS_OK)
        status = open_batches(gateway, error); // whose lines are asked from here on
    openapi_render(FASTDECODE_VERSION, gateway->language ? language_name(gateway->language) : "", &gateway->openapi);
    if (status == STATUS_OK && gateway->openapi.failed)
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    if (status == STATUS_OK)
        status = open_front(gateway, error);
    if (status != STATUS_OK) {
        gateway_close(gateway);
        return status;
    }
    *out = gateway;
    return STATUS_OK;
}

uint32_t gateway_port(const struct gateway *gateway) { return http_server_port(gateway->http); }
uint32_t gateway_admin_port(const struct gateway *gateway) { return gateway->admin ? http_server_port(gateway->admin) : 0; }

bool gateway_drain(struct gateway *gateway, double notice_s, double limit_s)
{
    uint64_t now_us = clock_now_us(), limit_us = now_us + (uint64_t)(limit_s * 1e6);
    uint64_t notice_us = now_us + (uint64_t)(MIN(notice_s, limit_s) * 1e6);
    struct timespec pause = {.tv_nsec = DRAIN_POLL_MS * 1000000l};

    atomic_store_explicit(&gateway->leaving, true, memory_order_relaxed);
    while (clock_now_us() < notice_us)
        nanosleep(&pause, NULL);
    atomic_store_explicit(&gateway->draining, true, memory_order_relaxed);
    http_server_quiesce(gateway->http);
    while (http_server_active(gateway->http) > 0 && clock_now_us() < limit_us)
        nanosleep(&pause, NULL);
    return http_server_active(gateway->http) == 0;
}

static void end_on_loop(void *arg) { requests_end(((struct gateway *)arg)->requests); }

// Tells clients whose requests are in flight that they end here.
static void cut_off(struct gateway *gateway)
{
    const uint64_t limit_us = clock_now_us() + CUT_OFF_MS * 1000;
    const struct timespec pause = {.tv_nsec = DRAIN_POLL_MS * 1000000l};

    http_server_quiesce(gateway->http);
    mesh_post(gateway->mesh, end_on_loop, gateway);
    while (http_server_active(gateway->http) > 0 && clock_now_us() < limit_us)
        nanosleep(&pause, NULL);
}

// Front to back: once the HTTP server is down nothing is posted any more but by the pool, and then by nobody.
void gateway_close(struct gateway *gateway)
{
    if (!gateway)
        return;
    atomic_store_explicit(&gateway->draining, true, memory_order_relaxed);
    if (gateway->http)
        cut_off(gateway);
    http_server_stop(gateway->http);
    http_server_stop(gateway->admin);
    batch_api_stop(gateway->batches);
    work_pool_stop(gateway->quick);
    work_pool_stop(gateway->pool);
    mesh_close(gateway->mesh);
    scrape_close(gateway->scrape);
    scrape_close(gateway->view);
    requests_close(gateway->requests); // its exchanges refer to the server, and to batches
    batch_api_close(gateway->batches);
    response_store_close(gateway->responses);
    http_server_free(gateway->http);
    http_server_free(gateway->admin);
    http_tls_close(gateway->tls);
    audit_close(gateway->audit);
    otlp_close(gateway->otlp);
    metrics_close(gateway->metrics);
    keys_close(gateway->keys);
    keys_close(gateway->admin_keys);
    language_close(gateway->language);
    text_free(&gateway->openapi);
    pthread_mutex_destroy(&gateway->ignored_lock);
    free(gateway);
}
