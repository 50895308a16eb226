// server.c: see http.h: the server's start and end, and the phases of its connections.
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "services/gateway/http/addresses.h"
#include "services/gateway/http/framing.h"
#include "services/gateway/http/http.h"
#include "services/gateway/http/http_internal.h"
#include "services/gateway/http/tls.h"
#include "services/gateway/http/watch.h"

// --- libmicrohttpd's callbacks ---------------------------------------------------------------------------------------
//
// The phases of a connection, and limits of bodies and addresses:
//
//   phase of a connection   deadline                      ends by
//   headers                 header_timeout_s, then 408    access handler, first call
//   body                    body_timeout_s, then 408      access handler, body complete
//   answer                  none until there is one; then idle_timeout_s without progress, and exchange_is_late(): completed
//   idle (keep-alive)       idle_timeout_s                access handler, first call
//
// A body over the limit is read and dropped, up to DRAIN_FACTOR times the limit, before status 413 is sent: a client that is still sending
// would otherwise see its connection reset instead of the answer. All bodies together may take BODIES_FACTOR times the limit, 256 MB by
// default; requests beyond that get status 429.

enum {
    DRAIN_FACTOR = 8,
    BODIES_FACTOR = 32,
    REFUSED_SHARE = 8, // an address may exceed its limit by an eighth, to receive status 429
};

// The watch id of a connection is kept in libmicrohttpd's socket context.
static uint64_t connection_id(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? (uint64_t)(uintptr_t)info->socket_context : 0;
}

static uint64_t deadline_after(double seconds) { return clock_now_us() + (uint64_t)(seconds * 1e6); }

// --- connections of an address: on the polling thread --------------------------------------------------------------------
static const struct sockaddr *address_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    return info ? info->client_addr : NULL;
}

static uint32_t address_limit(const struct http_server *server, const struct sockaddr *address)
{
    if (server->config.max_connections_per_address)
        return server->config.max_connections_per_address;
    return addresses_is_loopback(address) ? server->config.max_connections : MAX(server->config.max_connections / 2, 1u);
}

static bool is_crowded(const struct http_server *server, struct MHD_Connection *connection)
{
    const struct sockaddr *address = address_of(connection);

    return address && addresses_count(server->addresses, address) > address_limit(server, address);
}

// A few connections beyond an address's limit are accepted and get status 429; more are closed at once.
static enum MHD_Result http_on_accept(void *arg, const struct sockaddr *address, socklen_t address_bytes)
{
    const struct http_server *server = arg;
    uint32_t limit = address_limit(server, address);

    (void)address_bytes;
    return addresses_count(server->addresses, address) <= limit + limit / REFUSED_SHARE ? MHD_YES : MHD_NO;
}

static void http_on_connection(void *arg, struct MHD_Connection *connection, void **context,
                               enum MHD_ConnectionNotificationCode code)
{
    struct http_server *server = arg;
    uint64_t id;

    if (address_of(connection))
        (code == MHD_CONNECTION_NOTIFY_STARTED ? addresses_add : addresses_remove)(server->addresses, address_of(connection));
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        id = info ? watch_open(server->watch, info->connect_fd) : 0;
        watch_deadline(server->watch, id, deadline_after(server->config.header_timeout_s), true);
        *context = (void *)(uintptr_t)id;
    } else {
        watch_close(server->watch, (uint64_t)(uintptr_t)*context);
    }
}

static void make_request_id(char *out, size_t out_bytes)
{
    uint64_t random[2];

    if (getrandom(random, sizeof random, GRND_NONBLOCK) != (ssize_t)sizeof random)
        random[0] = clock_wall_us(), random[1] = clock_now_ns();
    snprintf(out, out_bytes, "%016llx%016llx", (unsigned long long)random[0], (unsigned long long)random[1]);
}

// The client's id if it is short and plain, else a new one.
static void set_request_id(struct exchange *exchange)
{
    const char *given = exchange_header(exchange, "X-Request-Id");
    size_t i, length = strlen(given);

    for (i = 0; i < length; i++)
        if (given[i] <= ' ' || given[i] >= 0x7F || given[i] == '"' || given[i] == '\\')
            break;
    if (length > 0 && length < sizeof exchange->asked.request_id && i == length)
        memcpy(exchange->asked.request_id, given, length + 1);
    else
        make_request_id(exchange->asked.request_id, sizeof exchange->asked.request_id);
}

// --- headers that are lists
struct header_list {
    const char *name;
    char *out;
    size_t out_bytes, length;
    bool too_long;
};

static enum MHD_Result add_to_list(void *arg, enum MHD_ValueKind kind, const char *name, const char *value)
{
    struct header_list *list = arg;
    const size_t bytes = value ? strlen(value) : 0, comma = list->length > 0;

    (void)kind;
    if (strcasecmp(name, list->name) != 0)
        return MHD_YES;
    list->too_long |= list->length + comma + bytes >= list->out_bytes;
    if (list->too_long)
        return MHD_NO;
    if (comma)
        list->out[list->length] = ',';
    memcpy(list->out + list->length + comma, value, bytes);
    list->length += comma + bytes;
    return MHD_YES;
}

size_t exchange_header_list(struct exchange *exchange, const char *name, char *out, size_t out_bytes)
{
    struct header_list list = {.name = name, .out = out, .out_bytes = out_bytes};

    pthread_mutex_lock(&exchange->mutex);
    if (exchange->connection)
        MHD_get_connection_values(exchange->connection, MHD_HEADER_KIND, add_to_list, &list);
    pthread_mutex_unlock(&exchange->mutex);
    if (list.too_long)
        list.length = 0;
    out[list.length] = '\0';
    return list.length;
}

static uint64_t body_limit(const struct http_server *server, const struct exchange *exchange)
{
    const struct http_sink *sink = exchange_sink(exchange);
    return sink ? sink->max_bytes : server->config.max_body_bytes;
}

// Returns how much of a body is read, the part that is dropped included.
static uint64_t drain_limit(const struct http_server *server, const struct exchange *exchange)
{
    const struct http_sink *sink = exchange_sink(exchange);
    return server->config.max_body_bytes * DRAIN_FACTOR + (sink ? sink->max_bytes : 0);
}

static void refuse_body(struct http_server *server, struct exchange *exchange)
{
    struct api_error error;

    api_fail(&error, 413, "request_too_large", NULL, "the body is larger than %llu bytes",
             (unsigned long long)body_limit(server, exchange));
    exchange_refuse(exchange, &error);
    exchange_drop_body(exchange);
}

// Returns whether this many more bytes of bodies may be kept; if not, the request is refused.
static bool has_room(struct http_server *server, struct exchange *exchange, size_t bytes)
{
    uint64_t kept = atomic_load_explicit(&server->totals.body_bytes, memory_order_relaxed);
    uint64_t unsent = atomic_load_explicit(&server->totals.unsent_bytes, memory_order_relaxed);
    struct api_error error;

    if (kept + bytes > server->config.max_body_bytes * BODIES_FACTOR)
        api_limit(&error, "request_bodies", "too many request bodies are being received, try again later");
    else if (unsent > server->config.max_unsent_bytes)
        api_limit(&error, "unread_answers", "too many answers wait to be read, try again later");
    else
        return true;
    error.retry_after_s = 1;
    exchange_refuse(exchange, &error);
    exchange_drop_body(exchange);
    return false;
}

// The headers are here.
static enum MHD_Result begin(struct http_server *server, struct exchange *exchange, struct MHD_Connection *connection,
                             const char *method, const char *version)
{
    const char *length_text, *expect;
    struct api_error error = {0};
    uint64_t length;

    if (!watch_deadline(server->watch, exchange->watch_id, deadline_after(server->config.body_timeout_s), true))
        return MHD_NO;
    set_request_id(exchange);
    if (!http_framing_is_certain(connection, method, version))
        api_fail(
            &error, 400, "bad_framing", NULL,
            "malformed headers: each is a line that ends with CRLF, its name is a token; there is one Host, and for a body one "
            "Content-Length, or Transfer-Encoding: chunked");
    else if (exchange->asked.bad_target)
        api_fail(&error, 400, "bad_framing", NULL,
                 "the request's target is a URL without a host, or with a user's name or a port that is none");
    else if (is_crowded(server, connection))
        api_limit(&error, "address_connections", "too many connections from this address");
    if (error.status) {
        error.retry_after_s = error.status == 429;
        exchange_refuse(exchange, &error);
        exchange->asked.handled = true;
        return exchange_advance(exchange, true, server->config.cors_origin);
    }
    server->config.check(server->config.arg, exchange);
    length_text = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    expect = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_EXPECT);
    length = length_text ? strtoull(length_text, NULL, 10) : 0;
    if (length > body_limit(server, exchange) && !exchange_is_answered(exchange))
        refuse_body(server, exchange);
    if (exchange_is_answered(exchange) && length > 0 && (expect || length > drain_limit(server, exchange))) {
        exchange->asked.handled = true;
        return exchange_advance(exchange, true, server->config.cors_origin);
    }
    return MHD_YES;
}

// Hands bytes to the sink. The time that a body may take grows with what has come of it. A client that leaves is noticed while the
// connection waits for the sink, too.
static enum MHD_Result pour_body(struct http_server *server, struct exchange *exchange, const char *data, size_t *bytes)
{
    uint64_t rate = server->config.min_read_rate, body_us = (uint64_t)(server->config.body_timeout_s * 1e6);
    uint64_t from_us = rate ? exchange->asked.start_us + exchange->asked.body_seen * 1000000ull / rate : clock_now_us();
    size_t left;

    if (!watch_deadline(server->watch, exchange->watch_id, from_us + body_us, true))
        return MHD_NO;
    watch_guard(server->watch, exchange->watch_id, exchange);
    if (atomic_load_explicit(&server->stopping, memory_order_relaxed) || !exchange_pour(exchange, data, *bytes, &left))
        return MHD_NO;
    exchange->asked.body_seen -= left; // offered again
    *bytes = left;
    return MHD_YES;
}

static enum MHD_Result take_body(struct http_server *server, struct exchange *exchange, const char *data, size_t *bytes)
{
    exchange->asked.body_seen += *bytes;
    if (exchange->asked.body_seen > drain_limit(server, exchange))
        return MHD_NO;
    if (exchange->asked.body_seen > body_limit(server, exchange) && !exchange_is_answered(exchange))
        refuse_body(server, exchange);
    if (exchange_sink(exchange) && !exchange_is_answered(exchange))
        return pour_body(server, exchange, data, bytes);
    if (!exchange_is_answered(exchange) && has_room(server, exchange, *bytes)) {
        text_append(&exchange->asked.body, data, *bytes);
        if (exchange->asked.body.failed)
            return MHD_NO;
        atomic_fetch_add_explicit(&server->totals.body_bytes, *bytes, memory_order_relaxed);
    }
    *bytes = 0;
    return MHD_YES;
}

static enum MHD_Result http_on_access(void *arg, struct MHD_Connection *connection, const char *url, const char *method,
                                      const char *version, const char *data, size_t *data_bytes, void **context)
{
    struct http_server *server = arg;
    struct exchange *exchange = *context;

    if (!exchange) {
        exchange = exchange_new(connection, method, url);
        if (!exchange)
            return MHD_NO;
        *context = exchange;
        exchange->watch_id = connection_id(connection);
        exchange->totals = &server->totals;
        const struct sockaddr *address = address_of(connection);
        if (address) {
            addresses_text(address, exchange->note.client, sizeof exchange->note.client);
            exchange->note.client_is_loopback = addresses_is_loopback(address);
        }
        atomic_fetch_add_explicit(&server->active, 1, memory_order_relaxed);
        return begin(server, exchange, connection, method, version);
    }
    if (*data_bytes > 0)
        return take_body(server, exchange, data, data_bytes);
    const bool trailers = http_framing_has_trailers(connection);
    if (!exchange->asked.handled) {
        exchange->asked.handled = true;
        if (!watch_deadline(server->watch, exchange->watch_id, 0, false))
            return MHD_NO;
        if (trailers && !exchange_is_answered(exchange)) {
            struct api_error error;
            api_fail(&error, 400, "bad_framing", NULL, "a body in chunks must not have headers behind it");
            exchange_refuse(exchange, &error);
        }
        if (!exchange_is_answered(exchange)) {
            watch_guard(server->watch, exchange->watch_id, exchange);
            server->config.handle(server->config.arg, exchange);
            if (atomic_load_explicit(&server->stopping, memory_order_relaxed))
                exchange_mark_gone(exchange);
        }
    }
    return exchange_advance(exchange, trailers || atomic_load_explicit(&server->quiescing, memory_order_relaxed),
                            server->config.cors_origin);
}

static void http_on_completed(void *arg, struct MHD_Connection *connection, void **context, enum MHD_RequestTerminationCode code)
{
    struct http_server *server = arg;
    struct exchange *exchange = *context;

    (void)connection;
    if (!exchange)
        return;
    *context = NULL;
    watch_unguard(server->watch, exchange->watch_id);
    watch_deadline(server->watch, exchange->watch_id, deadline_after(server->config.idle_timeout_s), false);
    const int status = exchange_detach(exchange);
    if (code != MHD_REQUEST_TERMINATED_COMPLETED_OK && exchange_mark_gone(exchange) && server->config.gone)
        server->config.gone(server->config.arg, exchange);
    if (server->config.done)
        server->config.done(server->config.arg, exchange, status);
    atomic_fetch_sub_explicit(&server->active, 1, memory_order_relaxed);
    exchange_release(exchange);
}

enum {
    CONNECTION_MEMORY_BYTES = 16 << 10, // headers of a request and a block of its answer
    TICK_MS = 100,
    FILES_BESIDE = 128, // descriptors that are no connection
};

// --- the watcher's callbacks --------------------------------------------------------------------------------------
static void watch_hold(void *user) { exchange_hold(user); }

static void watch_gone(void *arg, void *user)
{
    struct http_server *server = arg;
    struct exchange *exchange = user;

    if (exchange_mark_gone(exchange) && server->config.gone)
        server->config.gone(server->config.arg, exchange);
    exchange_release(exchange);
}

static bool watch_is_late(void *user, uint64_t now_us) { return exchange_is_late(user, now_us); }

static void watch_tick(void *arg)
{
    struct http_server *server = arg;
    if (server->config.tick)
        server->config.tick(server->config.arg);
}

// --- lifecycle ----------------------------------------------------------------------------------------------------
static void raise_file_limit(uint32_t connections)
{
    struct rlimit limit;
    rlim_t wanted = (rlim_t)connections + FILES_BESIDE;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted)
        return;
    limit.rlim_cur = MIN(wanted, limit.rlim_max);
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < wanted)
        log_warn("HTTP-FILE-LIMIT", "open_files=%llu wanted=%llu", (unsigned long long)limit.rlim_cur, (unsigned long long)wanted);
}

// *out is freed with freeaddrinfo().
static enum status resolve_host(const char *host, const char *service, struct addrinfo **out, struct error *error)
{
    const struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    const int code = getaddrinfo(host, service, &hints, out);

    return code == 0 ? STATUS_OK
                     : error_set(error, code == EAI_AGAIN ? STATUS_UNAVAILABLE : STATUS_INVALID_ARGUMENT, "--host %s: %s", host,
                                 gai_strerror(code));
}

enum status http_server_check_host(const char *host, struct error *error)
{
    struct addrinfo *list = NULL;
    const enum status status = resolve_host(host, "0", &list, error);

    if (!status)
        freeaddrinfo(list);
    return status;
}

// A listening socket, or -1 with *error. Not libmicrohttpd's, which cannot take a host's name or say why it failed.
static int open_listener(const struct http_config *config, uint32_t *port, struct error *error)
{
    struct addrinfo *list, *at;
    struct sockaddr_storage bound;
    socklen_t bound_bytes = sizeof bound;
    char service[16];
    int fd = -1, one = 1;

    snprintf(service, sizeof service, "%u", config->port);
    if (resolve_host(config->host, service, &list, error))
        return -1;
    for (at = list; at && fd < 0; at = at->ai_next) {
        fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(fd, at->ai_addr, at->ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0) {
            const bool is_taken = errno == EADDRINUSE;
            error_set(error, STATUS_UNAVAILABLE, "cannot listen on %s port %u: %m", config->host, config->port);
            close(fd);
            fd = -1;
            if (is_taken) // clients would find another server at the name's first address
                break;
        }
    }
    freeaddrinfo(list);
    if (fd < 0)
        return -1;
    if (getsockname(fd, (struct sockaddr *)&bound, &bound_bytes) != 0) {
        error_set(error, STATUS_INTERNAL, "getsockname: %m");
        close(fd);
        return -1;
    }
    *port =
        ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port : ((struct sockaddr_in *)&bound)->sin_port);
    return fd;
}

static void on_mhd_log(void *arg, const char *format, va_list args)
{
    char line[256], quoted[300];

    (void)arg;
    vsnprintf(line, sizeof line, format, args);
    log_debug("HTTP-LIBRARY", "text=%s", log_quote(quoted, sizeof quoted, line));
}

static struct MHD_Daemon *start_daemon(struct http_server *server, int listener)
{
    const struct http_config *config = &server->config;
    const unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC | MHD_USE_ERROR_LOG |
                           (config->tls ? MHD_USE_TLS : 0);
    struct MHD_OptionItem tls[] = {{.option = MHD_OPTION_HTTPS_PRIORITIES, .ptr_value = HTTP_TLS_PRIORITIES},
                                   {.option = MHD_OPTION_HTTPS_CERT_CALLBACK2, .ptr_value = http_tls_callback()},
                                   {.option = MHD_OPTION_END}};
    struct MHD_OptionItem none[] = {{.option = MHD_OPTION_END}};

    return MHD_start_daemon(flags, 0, http_on_accept, server, http_on_access, server, MHD_OPTION_EXTERNAL_LOGGER, on_mhd_log, NULL,
                            MHD_OPTION_LISTEN_SOCKET, listener, MHD_OPTION_CONNECTION_LIMIT, (unsigned)config->max_connections,
                            MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY_BYTES, MHD_OPTION_CONNECTION_TIMEOUT,
                            (unsigned)config->idle_timeout_s + 1, MHD_OPTION_NOTIFY_CONNECTION, http_on_connection, server,
                            MHD_OPTION_NOTIFY_COMPLETED, http_on_completed, server, MHD_OPTION_UNESCAPE_CALLBACK,
                            http_framing_unescape, NULL, MHD_OPTION_ARRAY, config->tls ? tls : none, MHD_OPTION_END);
}

enum status http_server_start(const struct http_config *config, struct http_server **out, struct error *error)
{
    struct http_server *server = calloc(1, sizeof *server);
    struct watch_config watch = {.capacity = config->max_connections + 64,
                                 .tick_ms = TICK_MS,
                                 .gone = watch_gone,
                                 .tick = watch_tick,
                                 .is_late = watch_is_late,
                                 .hold = watch_hold,
                                 .arg = server};
    enum status status;
    int listener;

    *out = NULL;
    if (!server)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    server->config = *config;
    server->totals.max_unsent_bytes = config->max_unsent_bytes;
    server->totals.min_read_rate = config->min_read_rate;
    server->totals.read_grace_us = (uint64_t)(config->idle_timeout_s * 1e6);
    server->addresses = addresses_open(config->max_connections + FILES_BESIDE);
    if (!server->addresses) {
        http_server_free(server);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    }
    raise_file_limit(config->max_connections);
    listener = open_listener(config, &server->port, error);
    if (listener < 0) {
        http_server_free(server);
        return error ? error->status : STATUS_UNAVAILABLE;
    }
    status = watch_start(&watch, &server->watch, error);
    if (status != STATUS_OK) {
        close(listener);
        http_server_free(server);
        return status;
    }
    *out = server; // first: a request may arrive before the call returns
    server->daemon = start_daemon(server, listener);
    if (!server->daemon) {
        watch_stop(server->watch);
        close(listener);
        http_server_free(server);
        *out = NULL;
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot start the threads of the HTTP server: %m");
    }
    return STATUS_OK;
}

uint32_t http_server_port(const struct http_server *server) { return server->port; }

uint32_t http_server_active(const struct http_server *server)
{
    return atomic_load_explicit(&server->active, memory_order_relaxed);
}

void http_server_quiesce(struct http_server *server)
{
    int listener;

    if (atomic_exchange_explicit(&server->quiescing, true, memory_order_relaxed))
        return;
    listener = MHD_quiesce_daemon(server->daemon);
    if (listener >= 0)
        close(listener);
}

void http_server_stop(struct http_server *server)
{
    if (!server)
        return;
    http_server_quiesce(server);
    atomic_store_explicit(&server->stopping, true, memory_order_relaxed);
    watch_shut_all(server->watch);
    MHD_stop_daemon(server->daemon);
    watch_stop(server->watch);
}

void http_server_free(struct http_server *server)
{
    if (!server)
        return;
    addresses_close(server->addresses);
    free(server);
}
