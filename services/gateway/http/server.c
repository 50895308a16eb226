// server.c: see http.h: the server's start and end.
#include "services/gateway/http/http.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "services/gateway/http/addresses.h"
#include "services/gateway/http/framing.h"
#include "services/gateway/http/http_internal.h"
#include "services/gateway/http/tls.h"
#include "services/gateway/http/watch.h"

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

// A listening socket, or -1 with *error. Not libmicrohttpd's, which cannot take a host's name or say why it failed.
static int open_listener(const struct http_config *config, uint32_t *port, struct error *error)
{
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM}, *list, *at;
    struct sockaddr_storage bound;
    socklen_t bound_bytes = sizeof bound;
    char service[16];
    int fd = -1, one = 1, code;

    snprintf(service, sizeof service, "%u", config->port);
    code = getaddrinfo(config->host, service, &hints, &list);
    if (code != 0) {
        error_set(error, STATUS_INVALID_ARGUMENT, "--host %s: %s", config->host, gai_strerror(code));
        return -1;
    }
    for (at = list; at && fd < 0; at = at->ai_next) {
        fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(fd, at->ai_addr, at->ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0) {
            error_set(error, STATUS_UNAVAILABLE, "cannot listen on %s port %u: %m", config->host, config->port);
            close(fd);
            fd = -1;
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
    struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_PRIORITIES, 0, HTTP_TLS_PRIORITIES},
                                   {MHD_OPTION_HTTPS_CERT_CALLBACK2, 0, http_tls_callback()},
                                   {MHD_OPTION_END, 0, NULL}};
    struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};

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
        return error_set(error, STATUS_INTERNAL, "cannot start the HTTP server: %m");
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
