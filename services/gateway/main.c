// main.c: the gateway's program: settings, start, drain.
//
// SIGTERM or SIGINT: not ready; after --drain-notice no new connections; requests in flight have --drain-timeout to end, exit 0. A second
// signal ends it at once.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/model/pooling.h"
#include "common/rpc/address.h"
#include "common/rpc/rpc.h"
#include "common/rpc/security.h"
#include "common/service/service.h"
#include "common/trace/otlp.h"
#include "common/trace/trace.h"
#include "services/gateway/serve/gateway.h"

#define ADMIN_PORT "9464" // where OpenTelemetry's exporters for Prometheus listen, too

struct gateway_program {
    struct gateway_config config;
    const char *port_file, *admin_port_file;
    const char *admin_listen;
    char admin_host[256];
    double drain_timeout_s, drain_notice_s;
    struct gateway *gateway;
};

// "127.0.0.1:9464", "[::1]:9464", "none" or "auto": loopback, where the HTTP server is open to others.
static enum status split_admin(struct gateway_program *s, struct error *error)
{
    const bool is_auto = !strcmp(s->admin_listen, "auto");
    const char *listen = !is_auto ? s->admin_listen : rpc_host_is_loopback(s->config.host) ? "none" : "127.0.0.1:" ADMIN_PORT;
    const char *colon = strrchr(listen, ':');
    size_t length = colon ? (size_t)(colon - listen) : 0;
    char *end = NULL;
    unsigned long port = colon && colon[1] >= '0' && colon[1] <= '9' ? strtoul(colon + 1, &end, 10) : 65536;

    s->config.admin_host = NULL;
    s->config.admin_takes_any_port = is_auto;
    if (!strcmp(listen, "none"))
        return STATUS_OK;
    if (length == 0 || length >= sizeof s->admin_host || port > 65535 || *end)
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "--admin-listen is \"%s\", want ADDRESS:PORT, such as 127.0.0.1:" ADMIN_PORT ", auto or none", listen);
    const bool brackets = listen[0] == '[' && listen[length - 1] == ']' && length > 2;
    snprintf(s->admin_host, sizeof s->admin_host, "%.*s", (int)(length - 2 * brackets), listen + brackets);
    s->config.admin_host = s->admin_host;
    s->config.admin_port = (uint32_t)port;
    return STATUS_OK;
}

enum { OPTIONS_MAX = 64 };

// Options of where it listens, and what it serves to whom. Returns how many options there are.
static uint32_t list_addresses(struct gateway_program *s, struct option *out)
{
    struct gateway_config *g = &s->config;
    const struct option options[] = {
        {"host", OPTION_STRING, &g->host, "ADDRESS", "address on which the HTTP server listens", 0, 0},
        {"port", OPTION_U32, &g->port, "N", "port of the HTTP server; 0 picks a free one", 0, 65535},
        {"port-file", OPTION_WRITTEN_PATH, &s->port_file, "FILE", "write the port to this file once it listens", 0, 0},
        {"tls-cert", OPTION_READ_PATH, &g->tls_cert, "FILE", "certificate chain (PEM) for HTTPS; read again when it changes", 0, 0},
        {"tls-key", OPTION_READ_PATH, &g->tls_key, "FILE", "its private key (PEM)", 0, 0},
        {"admin-listen", OPTION_STRING, &s->admin_listen, "ADDRESS:PORT|auto|none",
         "separate address, in plain HTTP, for /metrics, /mesh, /health and /ready; port 0 picks a free one; none: they are at --port; auto: none if --host is "
         "loopback, else 127.0.0.1:" ADMIN_PORT,
         0, 0},
        {"admin-key-file", OPTION_READ_PATH, &g->admin_key_file, "FILE|none|open",
         "keys for /metrics and /mesh, in a file as that of --api-key-file; none: clients on this machine need no key, and there is none for others; open: nobody needs "
         "one",
         0, 0},
        {"admin-port-file", OPTION_WRITTEN_PATH, &s->admin_port_file, "FILE", "write the admin port to this file once it listens",
         0, 0},
        {"audit", OPTION_WRITTEN_PATH, &g->audit_file, "FILE|none",
         "append a line of JSON a request: who, what, how much; no keys, no texts", 0, 0},
        {"scheduler", OPTION_STRING, &g->scheduler, "ADDRESS", "address of the scheduler (required)", 0, 0},
        {"listen", OPTION_STRING, &g->listen, "ADDRESS", "address of this gateway's health service", 0, 0},
        RPC_SECURITY_OPTIONS(g->security),
        {"model", OPTION_READ_PATH, &g->model, "FILE", "GGUF file or directory with the tokenizer and chat template (required)", 0,
         0},
        {"served-model-name", OPTION_STRING, &g->served_model_name, "NAME",
         "name of the model in the API; default: the file name without .gguf", 0, 0},
        {"chat-template", OPTION_READ_PATH, &g->chat_template, "FILE", "Jinja template instead of the model's own", 0, 0},
        {"pooling", OPTION_CHOICE, &g->pooling, POOLING_NAMES, POOLING_HELP, 0, 0},
        {"tool-parser", OPTION_STRING, &g->tool_parser, "auto|none|NAME",
         "format in which the model writes tool calls; auto: the one that the chat template shows (docs/tools.md lists the names)",
         0, 0},
        {"reasoning-parser", OPTION_STRING, &g->reasoning_parser, "auto|none|NAME",
         "format in which the model marks its reasoning; auto: the one that the chat template shows", 0, 0},
        {"sampling", OPTION_STRING, &g->sampling, "NAME=VALUE,...",
         "sampling defaults for requests that do not set them: temperature=0.7,top_p=0.9 and other numbers of docs/api.md; default: what the model's file recommends",
         0, 0},
        {"context", OPTION_U32, &g->context, "TOKENS", "longest prompt and answer together; 0: the model's", 0, 1 << 24},
        {"api-key-file", OPTION_READ_PATH, &g->api_key_file, "FILE|none",
         "file of accepted API keys and their limits, one a line, which each gateway counts for itself; read again when it changes; none: no "
         "key is needed",
         0, 0},
        {"cors-origin", OPTION_STRING, &g->cors_origin, "ORIGIN", "allow web pages of this origin to call the API; *: of any", 0,
         0},
    };

    return options_append(out, 0, OPTIONS_MAX, options, ARRAY_COUNT(options));
}

// Limits, and how it goes about its work.
static uint32_t list_limits(struct gateway_program *s, struct option *out, uint32_t before)
{
    struct gateway_config *g = &s->config;
    const struct option options[] = {
        {"max-connections", OPTION_U32, &g->max_connections, "N", "most open connections", 1, 1 << 20},
        {"max-connections-per-address", OPTION_U32, &g->max_connections_per_address, "N",
         "most open connections of one client address; 0: half of --max-connections, and no limit for loopback addresses", 0,
         1 << 20},
        {"key-share", OPTION_F64, &g->key_share, "F",
         "with several API keys: share of the queue that one key may fill, and of the disk and the uploads of --batch-dir", 0.001,
         1},
        {"max-queue", OPTION_U32, &g->max_queue, "N", "most requests that wait to be tokenized", 1, 1 << 20},
        {"max-body", OPTION_SIZE, &g->max_body_bytes, "SIZE", "largest request body", 1024, 1 << 30},
        {"max-request-tokens", OPTION_U32, &g->max_request_tokens, "N",
         "most tokens in the answer of one request, all choices together, each counted with its alternatives", 1024, 1 << 30},
        {"max-unsent", OPTION_SIZE, &g->max_unsent_bytes, "SIZE",
         "most bytes of answers that clients have not read yet; beyond it requests get status 429", 1 << 20, 1e12},
        {"min-read-rate", OPTION_SIZE, &g->min_read_rate, "SIZE",
         "slowest rate in bytes a second at which a client may read an answer, 64 times as high once half of --max-unsent is in use; 0: no limit",
         0, 1 << 30},
        {"threads", OPTION_U32, &g->threads, "N", "threads that parse and tokenize long bodies", 1, 64},
        {"request-timeout", OPTION_F64, &g->request_timeout_s, "S", "time limit of a request; 0: none", 0, 1e7},
        {"header-timeout", OPTION_F64, &g->header_timeout_s, "S", "time a client has to send the headers", 0.1, 3600},
        {"body-timeout", OPTION_F64, &g->body_timeout_s, "S", "time a client has to send the body", 0.1, 3600},
        {"idle-timeout", OPTION_F64, &g->idle_timeout_s, "S", "close a connection after this long without traffic", 0.1, 86400},
        {"ready-grace", OPTION_F64, &g->ready_grace_s, "S", "how long a new request waits for a mesh that is not ready", 0, 3600},
        {"resume-limit", OPTION_F64, &g->resume_limit_s, "S", "how long an accepted request waits for a lost mesh", 0, 86400},
        {"keep-alive", OPTION_F64, &g->keep_alive_s, "S", "send a comment on a stream that has been silent this long", 0.01, 3600},
        {"batch-dir", OPTION_WRITTEN_PATH, &g->batch_dir, "DIR|none",
         "folder for files and batches, of this gateway alone; none: no /v1/files and /v1/batches", 0, 0},
        {"batch-max-file", OPTION_SIZE, &g->batch_max_file_bytes, "SIZE", "largest file that may be uploaded", 1024, 1e12},
        {"batch-max-disk", OPTION_SIZE, &g->batch_max_disk_bytes, "SIZE",
         "most bytes in --batch-dir; with several API keys --key-share is the part that one may fill", 1 << 20, 1e15},
        {"batch-max-lines", OPTION_U32, &g->batch_max_lines, "N", "most lines of a batch", 1, 100000000},
        {"batch-concurrency", OPTION_U32, &g->batch_concurrency, "N", "most requests of batches at a time", 1, 8192},
        {"responses-memory", OPTION_SIZE, &g->responses_bytes, "SIZE",
         "most bytes of /v1/responses answers that this gateway keeps for follow-up requests; with several API keys one may use --key-share of it; 0: keep none",
         0, 1e12},
        {"responses-per-key", OPTION_U32, &g->responses_count, "N", "most such answers of one API key", 1, 1 << 20},
        {"responses-keep", OPTION_F64, &g->responses_keep_s, "S", "how long such an answer is kept", 1, 1e7},
        {"trace", OPTION_WRITTEN_PATH, &g->trace, "FILE", TRACE_HELP, 0, 0},
        {"trace-append", OPTION_BOOL, &g->trace_append, NULL, TRACE_APPEND_HELP, 0, 0},
        {OTLP_OPTION, OPTION_STRING, &g->otlp_endpoint, "URL|none", OTLP_HELP, 0, 0},
        {OTLP_RATIO_OPTION, OPTION_F64, &g->trace_sample, "RATIO", OTLP_RATIO_HELP, 0, 1},
        {"mesh-metrics", OPTION_BOOL, &g->mesh_metrics, NULL, "append the scheduler's metrics to /metrics", 0, 0},
        {"drain-timeout", OPTION_F64, &s->drain_timeout_s, "S", "how long requests may take after SIGTERM", 0, 86400},
        {"drain-notice", OPTION_F64, &s->drain_notice_s, "S",
         "part of --drain-timeout in which /ready fails but new requests are accepted, so that load balancers notice", 0, 86400},
    };

    return options_append(out, before, OPTIONS_MAX, options, ARRAY_COUNT(options));
}

// "none" is no file.
static const char *file_or_null(const char *path) { return path && strcmp(path, "none") ? path : NULL; }

static enum status configure(struct service *service, void *state, struct error *error)
{
    struct gateway_program *s = state;
    struct gateway_config *g = &s->config;
    struct option options[OPTIONS_MAX];
    enum status status = service_options(service, options, list_limits(s, options, list_addresses(s, options)), error);

    g->api_key_file = file_or_null(g->api_key_file);
    g->admin_key_file = file_or_null(g->admin_key_file);
    g->batch_dir = file_or_null(g->batch_dir);
    g->audit_file = file_or_null(g->audit_file);
    if (!status)
        status = otlp_check_endpoint(g->otlp_endpoint, error);
    return status ? status : split_admin(s, error);
}

// Renamed into place, so a reader never sees half of it.
static enum status write_port(const char *option, const char *path, uint32_t port, struct error *error)
{
    char temporary[4096];
    FILE *file;
    bool ok;

    if ((size_t)snprintf(temporary, sizeof temporary, "%s.new", path) >= sizeof temporary)
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: the name is too long", option);
    file = fopen(temporary, "we");
    ok = file && fprintf(file, "%u\n", port) > 0;
    if (file)
        ok = fclose(file) == 0 && ok;
    if (!ok || rename(temporary, path) != 0)
        return error_set(error, status_of_path(errno), "%s %s: %s", option, path, strerror(errno));
    return STATUS_OK;
}

static enum status start(void *state, struct error *error)
{
    struct gateway_program *g = state;
    const struct trace_config trace = {.path = g->config.trace, .append = g->config.trace_append, .process = "gateway", .order = 1};
    enum status status = trace_open(&trace, error);

    if (!status)
        status = gateway_open(&g->config, &g->gateway, error);
    if (status)
        return status;
    log_info("GATEWAY-LISTENS", "host=%s port=%u admin_port=%u api_key=%s tls=%s", g->config.host, gateway_port(g->gateway),
             gateway_admin_port(g->gateway), g->config.api_key_file ? "needed" : "none", g->config.tls_cert ? "on" : "off");
    printf("listening on http%s://%s:%u\n", g->config.tls_cert ? "s" : "", g->config.host, gateway_port(g->gateway));
    fflush(stdout);
    if (g->admin_port_file)
        status = write_port("--admin-port-file", g->admin_port_file, gateway_admin_port(g->gateway), error);
    if (!status && g->port_file)
        status = write_port("--port-file", g->port_file, gateway_port(g->gateway), error);
    return status;
}

static enum status serve(struct service *service, void *state, struct error *error)
{
    struct gateway_program *g = state;

    (void)error;
    service_wait_stop(service);
    log_info("GATEWAY-ENDS", "drain_timeout_s=%g", g->drain_timeout_s);
    if (!gateway_drain(g->gateway, g->drain_notice_s, g->drain_timeout_s))
        log_warn("GATEWAY-CUT-OFF", "limit_s=%g", g->drain_timeout_s);
    return STATUS_OK;
}

static void finish(void *state)
{
    struct gateway_program *g = state;

    gateway_close(g->gateway);
    trace_close();
}

static void reload(void *state) { gateway_reload(((struct gateway_program *)state)->gateway); }

static enum status probe(void *state, bool alive, struct error *error)
{
    const struct gateway_config *g = &((struct gateway_program *)state)->config;
    return rpc_probe_self(g->listen, &g->security, alive, error);
}

static enum status check(void *state, struct error *error)
{
    return gateway_check(&((struct gateway_program *)state)->config, error);
}

int main(int argc, char **argv)
{
    static const struct service_program program = {
        .name = "gateway",
        .purpose = "serves the APIs of OpenAI, Anthropic and Ollama over HTTP and asks the scheduler",
        .configure = configure,
        .probe = probe,
        .check = check,
        .start = start,
        .serve = serve,
        .reload = reload,
        .close = finish};
    struct gateway_program gateway = {.drain_timeout_s = 30, .drain_notice_s = 5, .admin_listen = "auto"};

    gateway_defaults(&gateway.config);
    gateway.config.api_key_file = "none";
    gateway.config.admin_key_file = "none";
    gateway.config.tool_parser = "auto";
    gateway.config.reasoning_parser = "auto";
    gateway.config.batch_dir = "none";
    gateway.config.audit_file = "none";
    gateway.config.otlp_endpoint = "none";
    return service_run(&program, &gateway, argc, argv);
}
