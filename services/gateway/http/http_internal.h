// http_internal.h: what server.c (the server and its connections) and exchange.c (one request and its answer) share.
#ifndef FD_GATEWAY_HTTP_HTTP_INTERNAL_H
#define FD_GATEWAY_HTTP_HTTP_INTERNAL_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "services/gateway/http/http.h"

enum { EXCHANGE_HEADERS_MAX = 16, EXCHANGE_ID_BYTES = 128 };

// Shared by all exchanges of a server: byte counts, and limits for answers that clients have not read yet.
struct http_totals {
    _Atomic uint64_t body_bytes;   // bytes of request bodies in memory; relaxed; written by any thread
    _Atomic uint64_t unsent_bytes; // bytes of answers that libmicrohttpd has not taken yet; relaxed
    uint64_t max_unsent_bytes;
    uint64_t min_read_rate; // bytes a second; 0: no limit
    uint64_t read_grace_us; // time before the rate counts
};

enum exchange_answer_kind { ANSWER_NONE, ANSWER_WHOLE, ANSWER_STREAM, ANSWER_FILE, ANSWER_STATIC };

// The request, written by the polling thread before handle is called.
struct exchange_asked {
    char method[8];
    char *path;
    char *host;      // of the request's target, where it is a whole URL; NULL: it is a path
    bool bad_target; // it is neither
    char request_id[EXCHANGE_ID_BYTES];
    uint64_t start_us;
    struct text body;
    uint64_t body_seen;            // bytes, kept or dropped
    struct http_sink sink;         // take NULL: the body is kept
    const struct dialect *dialect; // NULL: OpenAI's form
    http_error_fn *refuse;         // NULL: OpenAI's form
    struct root_span *span;        // owned; NULL: none
    bool handled;                  // the body is complete and `handle` was called, unless the request was already answered
};

struct exchange_answer {
    enum exchange_answer_kind kind;
    int status;
    const char *content_type;
    uint32_t header_count;
    struct {
        const char *name;
        char value[96];
    } headers[EXCHANGE_HEADERS_MAX];
    const struct http_header *fixed_headers; // up to one without a name; NULL: none
    const void *fixed;                       // with ANSWER_STATIC
    size_t fixed_bytes;
    struct text out; // bytes not taken yet begin at out_taken
    size_t out_taken;
    int file; // with ANSWER_FILE; -1: none
    uint64_t file_bytes;
    bool ended, broken;
};

struct exchange {
    atomic_uint references;
    struct http_totals *totals; // the server's
    uint64_t watch_id;
    http_ended_fn *ended_local; // NULL: there is a connection
    void *ended_arg;
    struct exchange_asked asked;
    _Atomic(void *) user;
    atomic_bool gone;                     // stored with release, loaded with acquire
    _Atomic uint64_t read_deadline_us;    // the client must have read its unread bytes by then; 0: there are none; relaxed
    _Atomic uint64_t crowded_deadline_us; // a stricter deadline, for when all clients together leave much unread; relaxed

    pthread_mutex_t mutex;             // guards the fields below
    struct MHD_Connection *connection; // NULL once libmicrohttpd has completed the request
    bool suspended;
    struct exchange_note note;
    struct exchange_answer answer;
};

struct http_server {
    struct http_config config;
    struct MHD_Daemon *daemon;
    struct watch *watch;
    uint32_t port;
    atomic_uint active; // relaxed: only a number to report
    struct http_totals totals;
    struct addresses *addresses; // polling thread
    atomic_bool quiescing;       // relaxed: nothing else depends on it
    atomic_bool stopping;        // relaxed: the watcher's mutex makes it visible to a watch_guard() that comes after
                                 // watch_shut_all()
};

// Returns a new exchange with one reference, or NULL when out of memory.
struct exchange *exchange_new(struct MHD_Connection *connection, const char *method, const char *target);
// Offers bytes of the body to the exchange's sink. *left: how many it did not take, for which the connection is suspended. Returns false if
// the client has left. Polling thread.
bool exchange_pour(struct exchange *exchange, const char *data, size_t bytes, size_t *left);
// Gives the answer to libmicrohttpd if there is one; otherwise suspends the connection. Polling thread.
enum MHD_Result exchange_advance(struct exchange *exchange, bool close_after, const char *cors_origin);
// Marks the exchange gone and wakes it. Returns true if its answer was incomplete and it was not gone already.
bool exchange_mark_gone(struct exchange *exchange);
// Returns whether the client reads its answer too slowly. Any thread; never blocks.
bool exchange_is_late(const struct exchange *exchange, uint64_t now_us);
// Detaches the exchange from its connection, which is completed and not touched again. Returns the status of its answer, which another
// thread may begin even now; 0: it has none yet.
int exchange_detach(struct exchange *exchange);

#endif
