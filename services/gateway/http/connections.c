// connections.c: libmicrohttpd's callbacks: the phases of a connection, and limits of bodies and addresses.
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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "services/gateway/http/addresses.h"
#include "services/gateway/http/framing.h"
#include "services/gateway/http/http_internal.h"
#include "services/gateway/http/watch.h"

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
enum MHD_Result http_on_accept(void *arg, const struct sockaddr *address, socklen_t address_bytes)
{
    const struct http_server *server = arg;
    uint32_t limit = address_limit(server, address);

    (void)address_bytes;
    return addresses_count(server->addresses, address) <= limit + limit / REFUSED_SHARE ? MHD_YES : MHD_NO;
}

void http_on_connection(void *arg, struct MHD_Connection *connection, void **context, enum MHD_ConnectionNotificationCode code)
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
    if (length > 0 && length < sizeof exchange->request_id && i == length)
        memcpy(exchange->request_id, given, length + 1);
    else
        make_request_id(exchange->request_id, sizeof exchange->request_id);
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

// What is read of a body, the part that is dropped included.
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
        api_fail(&error, 429, "rate_limit_exceeded", NULL, "too many request bodies are being received, try again later");
    else if (unsent > server->config.max_unsent_bytes)
        api_fail(&error, 429, "rate_limit_exceeded", NULL, "too many answers wait to be read, try again later");
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
    struct api_error error;
    uint64_t length;

    if (!watch_deadline(server->watch, exchange->watch_id, deadline_after(server->config.body_timeout_s), true))
        return MHD_NO;
    set_request_id(exchange);
    if (!http_framing_is_certain(connection, method, version)) {
        api_fail(
            &error, 400, "bad_framing", NULL,
            "malformed headers: each is a line that ends with CRLF, its name is a token; there is one Host, and for a body one "
            "Content-Length, or Transfer-Encoding: chunked");
        exchange_refuse(exchange, &error);
        exchange->handled = true;
        return exchange_advance(exchange, true, server->config.cors_origin);
    }
    if (exchange->bad_target) {
        api_fail(&error, 400, "bad_framing", NULL,
                 "the request's target is a URL without a host, or with a user's name or a port that is none");
        exchange_refuse(exchange, &error);
        exchange->handled = true;
        return exchange_advance(exchange, true, server->config.cors_origin);
    }
    if (is_crowded(server, connection)) {
        api_fail(&error, 429, "rate_limit_exceeded", NULL, "too many connections from this address");
        error.retry_after_s = 1;
        exchange_refuse(exchange, &error);
        exchange->handled = true;
        return exchange_advance(exchange, true, server->config.cors_origin);
    }
    server->config.check(server->config.arg, exchange);
    length_text = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    expect = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_EXPECT);
    length = length_text ? strtoull(length_text, NULL, 10) : 0;
    if (length > body_limit(server, exchange) && !exchange_is_answered(exchange))
        refuse_body(server, exchange);
    if (exchange_is_answered(exchange) && length > 0 && (expect || length > drain_limit(server, exchange))) {
        exchange->handled = true;
        return exchange_advance(exchange, true, server->config.cors_origin);
    }
    return MHD_YES;
}

// Hands bytes to the sink. The time that a body may take grows with what has come of it. A client that leaves is noticed while the
// connection waits for the sink, too.
static enum MHD_Result pour_body(struct http_server *server, struct exchange *exchange, const char *data, size_t *bytes)
{
    uint64_t rate = server->config.min_read_rate, body_us = (uint64_t)(server->config.body_timeout_s * 1e6);
    uint64_t from_us = rate ? exchange->start_us + exchange->body_seen * 1000000ull / rate : clock_now_us();
    size_t left;

    if (!watch_deadline(server->watch, exchange->watch_id, from_us + body_us, true))
        return MHD_NO;
    watch_guard(server->watch, exchange->watch_id, exchange);
    if (atomic_load_explicit(&server->stopping, memory_order_relaxed) || !exchange_pour(exchange, data, *bytes, &left))
        return MHD_NO;
    exchange->body_seen -= left; // offered again
    *bytes = left;
    return MHD_YES;
}

static enum MHD_Result take_body(struct http_server *server, struct exchange *exchange, const char *data, size_t *bytes)
{
    exchange->body_seen += *bytes;
    if (exchange->body_seen > drain_limit(server, exchange))
        return MHD_NO;
    if (exchange->body_seen > body_limit(server, exchange) && !exchange_is_answered(exchange))
        refuse_body(server, exchange);
    if (exchange_sink(exchange) && !exchange_is_answered(exchange))
        return pour_body(server, exchange, data, bytes);
    if (!exchange_is_answered(exchange) && has_room(server, exchange, *bytes)) {
        text_append(&exchange->body, data, *bytes);
        if (exchange->body.failed)
            return MHD_NO;
        atomic_fetch_add_explicit(&server->totals.body_bytes, *bytes, memory_order_relaxed);
    }
    *bytes = 0;
    return MHD_YES;
}

enum MHD_Result http_on_access(void *arg, struct MHD_Connection *connection, const char *url, const char *method,
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
    if (!exchange->handled) {
        exchange->handled = true;
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

void http_on_completed(void *arg, struct MHD_Connection *connection, void **context, enum MHD_RequestTerminationCode code)
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
