/* http_internal.h: what http.c (the server) and exchange.c (one request and its answer) share. */
#ifndef FD_GATEWAY_HTTP_INTERNAL_H
#define FD_GATEWAY_HTTP_INTERNAL_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "services/gateway/http.h"

enum { EXCHANGE_HEADERS_MAX = 6, EXCHANGE_ID_BYTES = 128 };

enum exchange_answer { ANSWER_NONE, ANSWER_WHOLE, ANSWER_STREAM };

struct exchange {
    atomic_uint references;
    /* the request: written by the polling thread before handle is called */
    char method[8];
    char *path;
    char request_id[EXCHANGE_ID_BYTES];
    uint64_t start_us;
    uint64_t watch_id;
    struct text body;
    _Atomic uint64_t *bodies; /* the server's sum, of which body.bytes are this one's */
    uint64_t body_seen;       /* bytes, kept or dropped */
    bool handled;             /* the body is complete and handle was called, or need not be */
    _Atomic(void *) user;
    atomic_bool gone; /* release by who finds out, acquire by who asks */

    pthread_mutex_t mutex;             /* for all below */
    struct MHD_Connection *connection; /* NULL once it is completed */
    bool suspended;
    enum exchange_answer answer;
    int status;
    const char *content_type;
    uint32_t header_count;
    struct {
        const char *name;
        char value[96];
    } headers[EXCHANGE_HEADERS_MAX];
    struct text out; /* bytes not taken yet begin at out_taken */
    size_t out_taken;
    bool ended, broken;
};

/* A new exchange with one reference; NULL when out of memory. */
struct exchange *exchange_new(struct MHD_Connection *connection, const char *method, const char *path);
/* Polling thread, nothing else to do: gives the answer to libmicrohttpd if there is one, or suspends. */
enum MHD_Result exchange_advance(struct exchange *exchange, bool close_after, const char *cors_origin);
/* Marks it gone and wakes it; true if its answer was not complete (and it was not gone already). */
bool exchange_mark_gone(struct exchange *exchange);
/* The connection is completed: it is never touched again. */
void exchange_detach(struct exchange *exchange);

#endif
