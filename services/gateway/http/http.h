// http.h: HTTP/1.1 over libmicrohttpd, without knowledge of the API.
//
// One polling thread (epoll) reads requests. When a body is complete the handler is called there with an exchange: one
// request and its answer. The handler must not block; it answers now or later, from any thread:
//
//     whole:   exchange_respond(), exchange_respond_file()
//     stream:  exchange_begin(), exchange_write()..., exchange_end()
//
// Until then the connection is suspended, which costs no thread. exchange_write() copies into a buffer that the polling thread drains, so
// no writer waits for a slow client.
//
// A suspended connection is not polled, so a second thread (the watcher) checks whether its client has left, and closes connections
// that take too long to send their headers or body, or that read their answer too slowly. libmicrohttpd closes a connection whose
// client reads none of its answer for idle_timeout_s.
#ifndef FD_GATEWAY_HTTP_HTTP_H
#define FD_GATEWAY_HTTP_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "services/gateway/http/api_error.h"
#include "services/gateway/http/json_write.h"

#define HTTP_JSON "application/json"
#define HTTP_EVENTS "text/event-stream; charset=utf-8"

struct dialect;
struct http_server;
struct http_tls;
struct root_span;
struct exchange;

// Called once the headers are complete (polling thread). It may respond at once, e.g. 404, 401; the body is then read and dropped.
typedef void http_check_fn(void *arg, struct exchange *exchange);
// Called when the request is complete (polling thread), unless it has been answered already.
typedef void http_handle_fn(void *arg, struct exchange *exchange);
// Called when the client has left before its answer was complete (watcher or polling thread). The exchange is valid for the call.
typedef void http_gone_fn(void *arg, struct exchange *exchange);
// Called ten times a second (watcher).
typedef void http_tick_fn(void *arg);
// Called when a request is over, answered or abandoned (polling thread); status is for counting.
typedef void http_done_fn(void *arg, struct exchange *exchange, int status);

struct http_config {
    const char *host;
    uint32_t port; // 0: a free one
    uint32_t max_connections;
    uint32_t max_connections_per_address; // 0: half of max_connections; loopback addresses are limited by max_connections only
    uint64_t max_body_bytes;
    uint64_t max_unsent_bytes; // the most bytes of unread answers, all clients together
    uint64_t min_read_rate;    // bytes a second that a client must read of its answer, after a grace of idle_timeout_s; 0: no limit
    double header_timeout_s, body_timeout_s, idle_timeout_s;
    const char *cors_origin; // NULL: none
    struct http_tls *tls;    // NULL: plain HTTP; borrowed
    http_check_fn *check;
    http_handle_fn *handle;
    http_gone_fn *gone; // these three may be NULL
    http_tick_fn *tick;
    http_done_fn *done;
    void *arg;
};

// Looks a host's name up, as http_server_start() does. INVALID_ARGUMENT: there is none. UNAVAILABLE: nobody answers now. May block.
enum status http_server_check_host(const char *host, struct error *error) MUST_CHECK;

// Listens and starts the threads. config is copied, its strings are borrowed. The caller stops *out.
enum status http_server_start(const struct http_config *config, struct http_server **out, struct error *error) MUST_CHECK;
uint32_t http_server_port(const struct http_server *server);
// Accepts no new connections; kept-alive ones close after the answer in progress. Never blocks.
void http_server_quiesce(struct http_server *server);
// Returns the number of requests whose answer is not sent yet.
uint32_t http_server_active(const struct http_server *server);
// Closes all connections, calls `gone` for each open exchange, and ends the threads. Blocks. NULL is allowed. Exchanges that are
// still held stay valid until released.
void http_server_stop(struct http_server *server);
// Call it after http_server_stop(). NULL is allowed.
void http_server_free(struct http_server *server);

// A body that is handed on as it arrives instead of being kept, for bodies that memory should not hold.
struct http_sink {
    uint64_t max_bytes; // a larger body gets status 413
    // Polling thread, under the exchange's lock: may not call the exchange. Returns how many of the bytes it took. If there were more, the
    // connection waits for exchange_go_on(), and they are offered again.
    size_t (*take)(void *arg, const char *data, size_t bytes);
    void (*ended)(void *arg); // any thread: the exchange is freed
    void *arg;
};

// Called when an exchange without a connection is freed. status 0: there was no answer; else body is its text, valid for the call.
typedef void http_ended_fn(void *arg, int status, const char *body, size_t bytes);
// An exchange that has no connection behind it: a request of the gateway itself. It has one reference. body is moved from. NULL: no memory.
struct exchange *exchange_open_local(const char *request_id, struct text *body, http_ended_fn *ended, void *arg);
bool exchange_is_local(const struct exchange *exchange);
// The asker of a local exchange wants no answer any more.
void exchange_leave(struct exchange *exchange);

// An exchange is shared between threads by reference.
struct exchange *exchange_hold(struct exchange *exchange);
void exchange_release(struct exchange *exchange);
// For who is told by http_ended_fn that the exchange ends, and keeps that from returning meanwhile. False: it is ending.
bool exchange_hold_if_alive(struct exchange *exchange);

// The request does not change once `handle` is called. Texts are terminated and never NULL ("" for a header that was not sent).
const char *exchange_method(const struct exchange *exchange);
const char *exchange_path(const struct exchange *exchange);               // without query
const char *exchange_header(struct exchange *exchange, const char *name); // only inside the check and handle callbacks
// Likewise. Returns whether it was asked on this machine, by an address or as localhost, and not passed on by a proxy for somebody else.
bool exchange_is_from_this_host(struct exchange *exchange);
const char *exchange_query(struct exchange *exchange, const char *name); // of the URL; as above
// Joins the values of all headers of the name by commas. Returns their length; 0, and "": there is none, or they do not fit. As above.
size_t exchange_header_list(struct exchange *exchange, const char *name, char *out, size_t out_bytes);
const char *exchange_body(const struct exchange *exchange, size_t *bytes);
void exchange_drop_body(struct exchange *exchange); // frees it early
const char *exchange_request_id(const struct exchange *exchange);
uint64_t exchange_start_us(const struct exchange *exchange);
bool exchange_is_gone(const struct exchange *exchange);
bool exchange_is_answered(const struct exchange *exchange); // a status is decided

// Appends an error in a form of the API.
typedef void http_error_fn(const struct api_error *error, struct text *out);
// In check only: the form of the API that the request and its answer have; `refuse` renders its errors. Without one, OpenAI's.
void exchange_set_dialect(struct exchange *exchange, const struct dialect *dialect, http_error_fn *refuse);
const struct dialect *exchange_dialect(const struct exchange *exchange); // NULL: OpenAI's

// In check only: the body goes there.
void exchange_set_sink(struct exchange *exchange, const struct http_sink *sink);
const struct http_sink *exchange_sink(const struct exchange *exchange); // NULL: none
// The sink takes bytes again. Any thread.
void exchange_go_on(struct exchange *exchange);

enum { EXCHANGE_FINISHES_MAX = 8 };

// A request that is over, for the record of who asked for what.
struct exchange_note {
    char owner[64];  // of the key; "": none was needed, or it was not known
    char client[64]; // address
    bool client_is_loopback;
    bool uses_model, left_early; // left_early: the client was gone before its answer had been made
    uint64_t prompt_tokens, completion_tokens;
    const char *finishes[EXCHANGE_FINISHES_MAX]; // [finish_count] why its choices ended; static
    uint32_t finish_count;
    const char *refused; // why, for metrics; static; NULL: it was not refused
};
void exchange_note_owner(struct exchange *exchange, const char *owner);
void exchange_note_usage(struct exchange *exchange, uint64_t prompt_tokens, uint64_t completion_tokens); // it uses the model, too
void exchange_note_finish(struct exchange *exchange, const char *reason); // of one more choice; static
void exchange_note(struct exchange *exchange, struct exchange_note *out);

// The span of the request, set once in check, which the exchange frees; NULL: it has none.
void exchange_set_span(struct exchange *exchange, struct root_span *span);
const struct root_span *exchange_span(const struct exchange *exchange);

// A pointer that the user of the exchange may keep with it.
void exchange_set_user(struct exchange *exchange, void *user);
void *exchange_user(const struct exchange *exchange);

// Adds a header; call it before the answer begins. name is static; value is copied.
void exchange_add_header(struct exchange *exchange, const char *name, const char *value);
struct http_header {
    const char *name, *value;
};
// Adds headers that are the same each time, up to one without a name. They are static. A second call replaces the first.
void exchange_set_fixed_headers(struct exchange *exchange, const struct http_header *headers);
// Sends an answer whose body is static, such as a part of the program. Nothing is copied, and it does not count as unread.
void exchange_respond_static(struct exchange *exchange, int status, const char *content_type, const void *data, size_t bytes);
// Sends the whole answer. content_type is static; the body's memory is taken over, which leaves it empty. A second answer is
// ignored. If clients have left too many bytes of answers unread, this client gets status 429 instead.
void exchange_respond(struct exchange *exchange, int status, const char *content_type, struct text *body);
// Sends the error as the whole answer, in the exchange's form, with the headers Retry-After or WWW-Authenticate if it needs them.
void exchange_refuse(struct exchange *exchange, const struct api_error *error);
// Sends a file from its beginning, with status 200. fd is taken over. Bytes are read as the client takes them.
void exchange_respond_file(struct exchange *exchange, const char *content_type, int fd, uint64_t bytes);
// Begins a streamed answer, with status 200 and the headers.
void exchange_begin(struct exchange *exchange, const char *content_type);
void exchange_write(struct exchange *exchange, const char *data, size_t bytes);
// Returns the bytes written that the connection has not taken yet.
size_t exchange_backlog(struct exchange *exchange);
// Returns whether a writer should wait if it can, because this client, or all clients together, leave too much unread.
bool exchange_is_behind(struct exchange *exchange);
// Ends the stream. broken: cuts it off, so that the client sees that it is incomplete.
void exchange_end(struct exchange *exchange, bool broken);

#endif
