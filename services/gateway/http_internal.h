// http_internal.h: what http_server.c (the server), http_requests.c (its requests) and exchange.c (one request and its answer) share.
#ifndef FD_GATEWAY_HTTP_INTERNAL_H
#define FD_GATEWAY_HTTP_INTERNAL_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "services/gateway/http.h"

enum { EXCHANGE_HEADERS_MAX = 6, EXCHANGE_ID_BYTES = 128 };

// Shared by all exchanges of a server: sums, and limits for answers that wait to be read by clients.
struct http_totals {
    _Atomic uint64_t body_bytes;   // relaxed: bodies that are kept; written by any thread
    _Atomic uint64_t unsent_bytes; // relaxed: bytes of answers that libmicrohttpd has not taken yet
    uint64_t max_unsent_bytes;
    uint64_t min_read_rate; // bytes a second; 0: no limit
    uint64_t read_grace_us; // time before the rate counts
};

enum exchange_answer { ANSWER_NONE, ANSWER_WHOLE, ANSWER_STREAM };

struct exchange {
    atomic_uint references;
    // the request: written by the polling thread before handle is called
    char method[8];
    char *path;
    char request_id[EXCHANGE_ID_BYTES];
    uint64_t start_us;
    uint64_t watch_id;
    struct text body;
    struct http_totals *totals; // the server's
    uint64_t body_seen;         // bytes, kept or dropped
    bool handled;               // the body is complete and handle was called, or need not be
    _Atomic(void *) user;
    atomic_bool gone;                     // stored with release, loaded with acquire
    _Atomic uint64_t read_deadline_us;    // relaxed: the client must have read what waits by then; 0: nothing waits
    _Atomic uint64_t crowded_deadline_us; // relaxed: the same while much waits in all

    pthread_mutex_t mutex;             // for all below
    struct MHD_Connection *connection; // NULL once it is completed
    bool suspended;
    enum exchange_answer answer;
    int status;
    const char *content_type;
    uint32_t header_count;
    struct {
        const char *name;
        char value[96];
    } headers[EXCHANGE_HEADERS_MAX];
    struct text out; // bytes not taken yet begin at out_taken
    size_t out_taken;
    bool ended, broken;
};

// http_server.c and http_requests.c.
struct http_server {
    struct http_config config;
    struct MHD_Daemon *daemon;
    struct watch *watch;
    uint32_t port;
    atomic_uint active; // relaxed: a count to look at
    struct http_totals totals;
    struct addresses *addresses; // polling thread
    atomic_bool quiescing;       // relaxed: nothing else depends on it
    atomic_bool stopping;        // seen by whoever guards after watch_shut_all() looked: the watcher's mutex orders them
};

// http_requests.c: libmicrohttpd's callbacks, on the polling thread. arg: the server.
enum MHD_Result http_on_accept(void *arg, const struct sockaddr *address, socklen_t address_bytes);
void http_on_connection(void *arg, struct MHD_Connection *connection, void **context, enum MHD_ConnectionNotificationCode code);
enum MHD_Result http_on_access(void *arg, struct MHD_Connection *connection, const char *url, const char *method,
                               const char *version, const char *data, size_t *data_bytes, void **context);
void http_on_completed(void *arg, struct MHD_Connection *connection, void **context, enum MHD_RequestTerminationCode code);

// A new exchange with one reference; NULL when out of memory.
struct exchange *exchange_new(struct MHD_Connection *connection, const char *method, const char *path);
// Polling thread, nothing else to do: gives the answer to libmicrohttpd if there is one, or suspends.
enum MHD_Result exchange_advance(struct exchange *exchange, bool close_after, const char *cors_origin);
// Marks it gone and wakes it; true if its answer was not complete (and it was not gone already).
bool exchange_mark_gone(struct exchange *exchange);
// Whether the client takes its answer too slowly. Any thread; never blocks.
bool exchange_is_late(const struct exchange *exchange, uint64_t now_us);
// The connection is completed: it is never touched again.
void exchange_detach(struct exchange *exchange);

#endif
