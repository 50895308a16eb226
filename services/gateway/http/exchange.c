// exchange.c: one HTTP request and its answer, between the polling thread and whoever answers.
//
//                    handle()                 exchange_begin/write/end (any thread)
//   polling thread ──────────▶ suspended ────────────────┐
//        ▲                                                ▼
//        └── resume ◀────────────────────────────── out: bytes to send
//
// Whether the connection is suspended is decided under the exchange's mutex, together with "there is nothing to send",
// so that a wake-up is never lost: a writer either sees it suspended and resumes it, or the reader sees the bytes.
//
// An idle stream costs about 600 bytes for this struct, KEEP_OUT_BYTES, and libmicrohttpd's memory pool.
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "services/gateway/http/framing.h"
#include "services/gateway/http/http_internal.h"

enum {
    BLOCK_BYTES = 2048,
    KEEP_OUT_BYTES = 8192,
    ALWAYS_SENT_BYTES = 4096, // errors and the like go out however much waits
    BEHIND_BYTES = 64 << 10,  // a client that reads slower gets larger chunks later
    CROWDED_RATE = 64,        // times the minimum rate, once half of what may wait does: a few slow readers keep out nobody
    CROWDED_GRACE = 8,        // and that part of the grace time
};

// Shared by exchanges without a connection: nobody reads their answers slowly.
static struct http_totals local_totals = {.max_unsent_bytes = UINT64_MAX};

struct exchange *exchange_new(struct MHD_Connection *connection, const char *method, const char *target)
{
    struct exchange *exchange = calloc(1, sizeof *exchange);
    struct http_target parts;

    if (!exchange)
        return NULL;
    exchange->asked.bad_target = !http_framing_split_target(method, target, &parts);
    exchange->asked.path = strdup(parts.path);
    exchange->asked.host = parts.host ? strndup(parts.host, parts.host_bytes) : NULL;
    if (!exchange->asked.path || !exchange->asked.host != !parts.host) {
        free(exchange->asked.path);
        free(exchange->asked.host);
        free(exchange);
        return NULL;
    }
    atomic_init(&exchange->references, 1);
    exchange->connection = connection;
    exchange->answer.file = -1;
    exchange->asked.start_us = clock_now_us();
    snprintf(exchange->asked.method, sizeof exchange->asked.method, "%s", method);
    pthread_mutex_init(&exchange->mutex, NULL);
    return exchange;
}

struct exchange *exchange_open_local(const char *request_id, struct text *body, http_ended_fn *ended, void *arg)
{
    struct exchange *exchange = exchange_new(NULL, "POST", "");

    if (!exchange) {
        text_free(body);
        return NULL;
    }
    snprintf(exchange->asked.request_id, sizeof exchange->asked.request_id, "%s", request_id);
    exchange->totals = &local_totals;
    atomic_fetch_add_explicit(&local_totals.body_bytes, body->bytes, memory_order_relaxed); // released as any body's
    exchange->asked.body = *body;
    *body = (struct text){0};
    exchange->ended_local = ended;
    exchange->ended_arg = arg;
    return exchange;
}

bool exchange_is_local(const struct exchange *exchange) { return exchange->ended_local != NULL; }
void exchange_leave(struct exchange *exchange) { exchange_mark_gone(exchange); }

// Frees what is left to send: it was sent, or its client is gone.
static void drop_out(struct exchange *exchange)
{
    if (exchange->totals)
        atomic_fetch_sub_explicit(&exchange->totals->unsent_bytes, exchange->answer.out.bytes - exchange->answer.out_taken,
                                  memory_order_relaxed);
    exchange->answer.out_taken = 0;
    text_free(&exchange->answer.out);
}

struct exchange *exchange_hold(struct exchange *exchange)
{
    // relaxed: the caller has a reference already
    atomic_fetch_add_explicit(&exchange->references, 1, memory_order_relaxed);
    return exchange;
}

bool exchange_hold_if_alive(struct exchange *exchange)
{
    unsigned count = atomic_load_explicit(&exchange->references, memory_order_relaxed);

    while (count > 0) // relaxed: the caller's lock keeps the exchange there, and whoever frees it sees the count
        if (atomic_compare_exchange_weak_explicit(&exchange->references, &count, count + 1, memory_order_relaxed,
                                                  memory_order_relaxed))
            return true;
    return false;
}

void exchange_release(struct exchange *exchange)
{
    // acquire and release: the thread that frees sees what all others wrote
    if (!exchange || atomic_fetch_sub_explicit(&exchange->references, 1, memory_order_acq_rel) != 1)
        return;
    exchange_drop_body(exchange);
    if (exchange->asked.sink.take)
        exchange->asked.sink.ended(exchange->asked.sink.arg);
    if (exchange->ended_local)
        exchange->ended_local(exchange->ended_arg, exchange->answer.kind == ANSWER_NONE ? 0 : exchange->answer.status,
                              exchange->answer.out.data, exchange->answer.out.bytes);
    if (exchange->answer.file >= 0)
        close(exchange->answer.file);
    drop_out(exchange);
    pthread_mutex_destroy(&exchange->mutex);
    free(exchange->asked.span);
    free(exchange->asked.path);
    free(exchange->asked.host);
    free(exchange);
}

const char *exchange_method(const struct exchange *exchange) { return exchange->asked.method; }
const char *exchange_path(const struct exchange *exchange) { return exchange->asked.path; }
const char *exchange_request_id(const struct exchange *exchange) { return exchange->asked.request_id; }
uint64_t exchange_start_us(const struct exchange *exchange) { return exchange->asked.start_us; }

static const char *connection_value(struct exchange *exchange, enum MHD_ValueKind kind, const char *name)
{
    const char *value = NULL;

    pthread_mutex_lock(&exchange->mutex);
    if (exchange->connection)
        value = MHD_lookup_connection_value(exchange->connection, kind, name);
    pthread_mutex_unlock(&exchange->mutex);
    return value ? value : "";
}

const char *exchange_header(struct exchange *exchange, const char *name)
{
    return connection_value(exchange, MHD_HEADER_KIND, name);
}

// Whether a Host header has an address, or localhost. Any other name may be one of a web site that had its name lead a browser on this machine
// here (DNS rebinding).
static bool is_local_host(const char *host)
{
    static const char local[] = "localhost";
    const size_t local_length = sizeof local - 1;
    const bool has_brackets = *host == '[';
    const char *name = host + has_brackets;
    const size_t length = strcspn(name, has_brackets ? "]" : ":");
    char address[INET6_ADDRSTRLEN] = "";
    struct in6_addr parsed;

    if (length < sizeof address)
        memcpy(address, name, length);
    if (inet_pton(has_brackets ? AF_INET6 : AF_INET, address, &parsed) == 1)
        return true;
    return !has_brackets && length >= local_length && strncasecmp(name + length - local_length, local, local_length) == 0 &&
           (length == local_length || name[length - local_length - 1] == '.');
}

bool exchange_is_from_this_host(struct exchange *exchange)
{
    static const char *const of_proxies[] = {"Forwarded", "X-Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto",
                                             "X-Real-IP", "X-Client-IP", "True-Client-IP",  "CF-Connecting-IP", "Via"};
    bool is_passed_on = false;
    const char *host = NULL;

    pthread_mutex_lock(&exchange->mutex);
    for (uint32_t i = 0; exchange->connection && i < ARRAY_COUNT(of_proxies);
         i++) // an empty one counts: a proxy adds its own behind it
        is_passed_on = is_passed_on || MHD_lookup_connection_value(exchange->connection, MHD_HEADER_KIND, of_proxies[i]);
    if (exchange->connection)
        host = MHD_lookup_connection_value(exchange->connection, MHD_HEADER_KIND, "Host");
    is_passed_on = is_passed_on || (host && !is_local_host(host)) || (exchange->asked.host && !is_local_host(exchange->asked.host));
    pthread_mutex_unlock(&exchange->mutex);
    return exchange->note.client_is_loopback && !is_passed_on;
}

const char *exchange_query(struct exchange *exchange, const char *name)
{
    return connection_value(exchange, MHD_GET_ARGUMENT_KIND, name);
}

const char *exchange_body(const struct exchange *exchange, size_t *bytes)
{
    *bytes = exchange->asked.body.bytes;
    return exchange->asked.body.data;
}

void exchange_drop_body(struct exchange *exchange)
{
    if (exchange->asked.body.bytes > 0) // relaxed: a sum to compare with
        atomic_fetch_sub_explicit(&exchange->totals->body_bytes, exchange->asked.body.bytes, memory_order_relaxed);
    text_free(&exchange->asked.body);
}

bool exchange_is_gone(const struct exchange *exchange) { return atomic_load_explicit(&exchange->gone, memory_order_acquire); }

bool exchange_is_answered(const struct exchange *exchange)
{
    struct exchange *mine = (struct exchange *)(uintptr_t)exchange; // the mutex is not part of its value
    bool answered;

    pthread_mutex_lock(&mine->mutex);
    answered = mine->answer.kind != ANSWER_NONE;
    pthread_mutex_unlock(&mine->mutex);
    return answered;
}

void exchange_set_user(struct exchange *exchange, void *user)
{
    // release: a thread that reads the pointer sees what it points to
    atomic_store_explicit(&exchange->user, user, memory_order_release);
}

void *exchange_user(const struct exchange *exchange) { return atomic_load_explicit(&exchange->user, memory_order_acquire); }

// With the mutex held.
static void wake(struct exchange *exchange)
{
    if (!exchange->suspended || !exchange->connection)
        return;
    exchange->suspended = false;
    MHD_resume_connection(exchange->connection);
}

void exchange_set_sink(struct exchange *exchange, const struct http_sink *sink) { exchange->asked.sink = *sink; }

const struct http_sink *exchange_sink(const struct exchange *exchange)
{
    return exchange->asked.sink.take ? &exchange->asked.sink : NULL;
}

void exchange_go_on(struct exchange *exchange)
{
    pthread_mutex_lock(&exchange->mutex);
    wake(exchange);
    pthread_mutex_unlock(&exchange->mutex);
}

// Under the mutex, so that a sink that has room again finds the connection suspended.
bool exchange_pour(struct exchange *exchange, const char *data, size_t bytes, size_t *left)
{
    size_t taken = 0;
    bool gone;

    pthread_mutex_lock(&exchange->mutex);
    gone = exchange_is_gone(exchange);
    if (!gone)
        taken = exchange->asked.sink.take(exchange->asked.sink.arg, data, bytes);
    if (!gone && taken < bytes) {
        exchange->suspended = true;
        MHD_suspend_connection(exchange->connection);
    }
    pthread_mutex_unlock(&exchange->mutex);
    *left = bytes - taken;
    return !gone;
}

void exchange_set_fixed_headers(struct exchange *exchange, const struct http_header *headers)
{
    pthread_mutex_lock(&exchange->mutex);
    exchange->answer.fixed_headers = headers;
    pthread_mutex_unlock(&exchange->mutex);
}

// With the mutex held.
static void add_header(struct exchange *exchange, const char *name, const char *value)
{
    if (exchange->answer.header_count == EXCHANGE_HEADERS_MAX)
        return;
    exchange->answer.headers[exchange->answer.header_count].name = name;
    snprintf(exchange->answer.headers[exchange->answer.header_count].value, sizeof exchange->answer.headers[0].value, "%s", value);
    exchange->answer.header_count++;
}

void exchange_note_owner(struct exchange *exchange, const char *owner)
{
    pthread_mutex_lock(&exchange->mutex);
    snprintf(exchange->note.owner, sizeof exchange->note.owner, "%s", owner);
    pthread_mutex_unlock(&exchange->mutex);
}

void exchange_note_usage(struct exchange *exchange, uint64_t prompt_tokens, uint64_t completion_tokens)
{
    pthread_mutex_lock(&exchange->mutex);
    exchange->note.uses_model = true;
    exchange->note.prompt_tokens = prompt_tokens;
    exchange->note.completion_tokens = completion_tokens;
    pthread_mutex_unlock(&exchange->mutex);
}

void exchange_note_finish(struct exchange *exchange, const char *reason)
{
    pthread_mutex_lock(&exchange->mutex);
    if (exchange->note.finish_count < EXCHANGE_FINISHES_MAX)
        exchange->note.finishes[exchange->note.finish_count++] = reason;
    pthread_mutex_unlock(&exchange->mutex);
}

void exchange_set_dialect(struct exchange *exchange, const struct dialect *dialect, http_error_fn *refuse)
{
    exchange->asked.dialect = dialect;
    exchange->asked.refuse = refuse;
}
const struct dialect *exchange_dialect(const struct exchange *exchange) { return exchange->asked.dialect; }
void exchange_set_span(struct exchange *exchange, struct root_span *span) { exchange->asked.span = span; }
const struct root_span *exchange_span(const struct exchange *exchange) { return exchange->asked.span; }

void exchange_note(struct exchange *exchange, struct exchange_note *out)
{
    pthread_mutex_lock(&exchange->mutex);
    *out = exchange->note;
    pthread_mutex_unlock(&exchange->mutex);
}

void exchange_add_header(struct exchange *exchange, const char *name, const char *value)
{
    pthread_mutex_lock(&exchange->mutex);
    add_header(exchange, name, value);
    pthread_mutex_unlock(&exchange->mutex);
}

// With the mutex held. Moves a deadline by the time that the bytes take at the rate.
static void move_deadline(_Atomic uint64_t *deadline, bool waited_before, uint64_t grace_us, size_t bytes, uint64_t rate)
{
    uint64_t from_us = waited_before ? atomic_load_explicit(deadline, memory_order_relaxed) : clock_now_us() + grace_us;

    atomic_store_explicit(deadline, from_us + bytes * 1000000ull / rate, memory_order_relaxed);
}

// With the mutex held. Counts bytes that wait to be read, and moves the client's deadlines.
static void add_unsent(struct exchange *exchange, size_t bytes, bool waited_before)
{
    const struct http_totals *totals = exchange->totals;

    atomic_fetch_add_explicit(&exchange->totals->unsent_bytes, bytes, memory_order_relaxed);
    if (totals->min_read_rate == 0)
        return;
    move_deadline(&exchange->read_deadline_us, waited_before, totals->read_grace_us, bytes, totals->min_read_rate);
    move_deadline(&exchange->crowded_deadline_us, waited_before, totals->read_grace_us / CROWDED_GRACE, bytes,
                  totals->min_read_rate * CROWDED_RATE);
}

bool exchange_is_late(const struct exchange *exchange, uint64_t now_us)
{
    const struct http_totals *totals = exchange->totals;
    bool crowded = atomic_load_explicit(&totals->unsent_bytes, memory_order_relaxed) > totals->max_unsent_bytes / 2;
    uint64_t deadline_us = atomic_load_explicit(&exchange->read_deadline_us, memory_order_relaxed);

    if (deadline_us == 0)
        return false;
    return now_us > deadline_us || (crowded && now_us > atomic_load_explicit(&exchange->crowded_deadline_us, memory_order_relaxed));
}

static void append_error(const struct exchange *exchange, const struct api_error *error, struct text *body)
{
    if (exchange->asked.refuse)
        exchange->asked.refuse(error, body);
    else
        api_error_append(error, body);
    text_append(body, "\n", 1);
}

// With the mutex held. Returns whether this is the exchange's answer, whose content may then be set: there was none yet.
static bool decide(struct exchange *exchange, enum exchange_answer_kind kind, int status, const char *content_type)
{
    if (exchange->answer.kind != ANSWER_NONE)
        return false;
    exchange->answer.kind = kind;
    exchange->answer.status = status;
    exchange->answer.content_type = content_type;
    exchange->answer.ended = kind != ANSWER_STREAM;
    wake(exchange);
    return true;
}

// Replaces an answer for which there is no room. With the mutex held.
static void refuse_answer(struct exchange *exchange, struct text *body)
{
    struct api_error error;

    text_free(body);
    api_limit(&error, "unread_answers", "too many answers wait to be read, try again later");
    append_error(exchange, &error, body);
    exchange->note.refused = error.reason;
    add_header(exchange, "Retry-After", "1");
}

void exchange_respond(struct exchange *exchange, int status, const char *content_type, struct text *body)
{
    static const char no_memory[] =
        "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\",\"param\":null,\"code\":null}}\n";

    pthread_mutex_lock(&exchange->mutex);
    if (body->failed) { // a part of it would look like an answer
        if (decide(exchange, ANSWER_STATIC, 500, "application/json")) {
            exchange->answer.fixed = no_memory;
            exchange->answer.fixed_bytes = sizeof no_memory - 1;
        }
    } else if (exchange->answer.kind == ANSWER_NONE) {
        uint64_t unsent = atomic_load_explicit(&exchange->totals->unsent_bytes, memory_order_relaxed);
        if (body->bytes > ALWAYS_SENT_BYTES && unsent + body->bytes > exchange->totals->max_unsent_bytes) {
            refuse_answer(exchange, body);
            status = 429;
            content_type = "application/json";
        }
        decide(exchange, ANSWER_WHOLE, status, content_type);
        exchange->answer.out = *body;
        *body = (struct text){0};
        add_unsent(exchange, exchange->answer.out.bytes, false);
    }
    pthread_mutex_unlock(&exchange->mutex);
    text_free(body);
}

void exchange_refuse(struct exchange *exchange, const struct api_error *error)
{
    struct text body = {0};
    char number[16];

    append_error(exchange, error, &body);
    pthread_mutex_lock(&exchange->mutex);
    if (exchange->answer.kind == ANSWER_NONE)
        exchange->note.refused = error->reason ? error->reason : error->code;
    pthread_mutex_unlock(&exchange->mutex);
    if (error->retry_after_s) {
        snprintf(number, sizeof number, "%u", error->retry_after_s);
        exchange_add_header(exchange, "Retry-After", number);
    }
    if (error->status == 401)
        exchange_add_header(exchange, "WWW-Authenticate", "Bearer");
    exchange_respond(exchange, error->status, HTTP_JSON, &body);
}

void exchange_respond_file(struct exchange *exchange, const char *content_type, int fd, uint64_t bytes)
{
    pthread_mutex_lock(&exchange->mutex);
    if (decide(exchange, ANSWER_FILE, 200, content_type)) {
        exchange->answer.file = fd;
        exchange->answer.file_bytes = bytes;
        fd = -1;
    }
    pthread_mutex_unlock(&exchange->mutex);
    if (fd >= 0)
        close(fd);
}

void exchange_respond_static(struct exchange *exchange, int status, const char *content_type, const void *data, size_t bytes)
{
    pthread_mutex_lock(&exchange->mutex);
    if (decide(exchange, ANSWER_STATIC, status, content_type)) {
        exchange->answer.fixed = data;
        exchange->answer.fixed_bytes = bytes;
    }
    pthread_mutex_unlock(&exchange->mutex);
}

void exchange_begin(struct exchange *exchange, const char *content_type)
{
    pthread_mutex_lock(&exchange->mutex);
    if (decide(exchange, ANSWER_STREAM, 200, content_type))
        (void)text_reserve(&exchange->answer.out, KEEP_OUT_BYTES); // a token, or a few that wait, then allocates nothing
    pthread_mutex_unlock(&exchange->mutex);
}

void exchange_write(struct exchange *exchange, const char *data, size_t bytes)
{
    pthread_mutex_lock(&exchange->mutex);
    assert_always(exchange->answer.kind == ANSWER_STREAM);
    if (!exchange->answer.ended && exchange->connection && !exchange_is_gone(exchange)) {
        size_t before = exchange->answer.out.bytes - exchange->answer.out_taken;
        if (exchange->answer.out_taken > 0 && exchange->answer.out_taken >= exchange->answer.out.bytes / 2) {
            text_consume(&exchange->answer.out, exchange->answer.out_taken);
            exchange->answer.out_taken = 0;
        }
        text_append(&exchange->answer.out, data, bytes);
        if (exchange->answer.out.failed)
            exchange->answer.ended = exchange->answer.broken = true;
        else
            add_unsent(exchange, bytes, before > 0);
        wake(exchange);
    }
    pthread_mutex_unlock(&exchange->mutex);
}

size_t exchange_backlog(struct exchange *exchange)
{
    size_t bytes;

    pthread_mutex_lock(&exchange->mutex);
    bytes = exchange->answer.out.bytes - exchange->answer.out_taken;
    pthread_mutex_unlock(&exchange->mutex);
    return bytes;
}

bool exchange_is_behind(struct exchange *exchange)
{
    size_t bytes = exchange_backlog(exchange);

    return bytes > BEHIND_BYTES || (bytes > 0 && atomic_load_explicit(&exchange->totals->unsent_bytes, memory_order_relaxed) >
                                                     exchange->totals->max_unsent_bytes);
}

void exchange_end(struct exchange *exchange, bool broken)
{
    pthread_mutex_lock(&exchange->mutex);
    if (!exchange->answer.ended) {
        exchange->answer.ended = true;
        exchange->answer.broken = broken;
        wake(exchange);
    }
    pthread_mutex_unlock(&exchange->mutex);
}

bool exchange_mark_gone(struct exchange *exchange)
{
    bool first, open;

    pthread_mutex_lock(&exchange->mutex);
    first = !atomic_exchange_explicit(&exchange->gone, true, memory_order_acq_rel);
    open = !exchange->answer.ended;
    exchange->note.left_early |= first && open;
    wake(exchange);
    pthread_mutex_unlock(&exchange->mutex);
    return first && open;
}

int exchange_detach(struct exchange *exchange)
{
    int status;

    pthread_mutex_lock(&exchange->mutex);
    status = exchange->answer.status;
    exchange->connection = NULL;
    exchange->suspended = false;
    pthread_mutex_unlock(&exchange->mutex);
    return status;
}

// Called by libmicrohttpd for the next bytes of a stream, on the polling thread.
static ssize_t read_stream(void *arg, uint64_t position, char *buffer, size_t max)
{
    struct exchange *exchange = arg;
    ssize_t result = 0;

    (void)position;
    pthread_mutex_lock(&exchange->mutex);
    if (exchange_is_gone(exchange)) {
        result = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (exchange->answer.out_taken < exchange->answer.out.bytes) {
        result = (ssize_t)MIN(max, exchange->answer.out.bytes - exchange->answer.out_taken);
        memcpy(buffer, exchange->answer.out.data + exchange->answer.out_taken, (size_t)result);
        exchange->answer.out_taken += (size_t)result;
        atomic_fetch_sub_explicit(&exchange->totals->unsent_bytes, (uint64_t)result, memory_order_relaxed);
        if (exchange->answer.out_taken == exchange->answer.out.bytes) {
            atomic_store_explicit(&exchange->read_deadline_us, 0, memory_order_relaxed);
            exchange->answer.out_taken = 0;
            exchange->answer.out.bytes = 0;
            if (exchange->answer.out.capacity > KEEP_OUT_BYTES)
                text_free(&exchange->answer.out);
        }
    } else if (exchange->answer.ended) {
        result = exchange->answer.broken ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        exchange->suspended = true;
        MHD_suspend_connection(exchange->connection);
    }
    pthread_mutex_unlock(&exchange->mutex);
    return result;
}

static void free_stream(void *arg) { exchange_release(arg); }

static void free_whole(void *arg)
{
    drop_out(arg); // nobody else touches it once the answer is decided
    exchange_release(arg);
}

static struct MHD_Response *make_response(struct exchange *exchange)
{
    struct MHD_Response *response;

    if (exchange->answer.kind == ANSWER_STREAM) {
        response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_stream, exchange, free_stream);
        if (response)
            exchange_hold(exchange);
        return response;
    }
    if (exchange->answer.kind == ANSWER_FILE) {
        response = MHD_create_response_from_fd64(exchange->answer.file_bytes, exchange->answer.file);
        if (response)
            exchange->answer.file = -1; // closed with the response
        return response;
    }
    if (exchange->answer.kind == ANSWER_STATIC)
        return MHD_create_response_from_buffer(exchange->answer.fixed_bytes, (void *)(uintptr_t)exchange->answer.fixed,
                                               MHD_RESPMEM_PERSISTENT);
    if (exchange->answer.out.failed || exchange->answer.out.bytes == 0)
        return MHD_create_response_from_buffer(0, (void *)(uintptr_t) "", MHD_RESPMEM_PERSISTENT);
    response = MHD_create_response_from_buffer_with_free_callback_cls(exchange->answer.out.bytes, exchange->answer.out.data,
                                                                      free_whole, exchange);
    if (response)
        exchange_hold(exchange);
    return response;
}

// Without the mutex, which libmicrohttpd's reader takes under its own: an answer that is decided does not change.
static enum MHD_Result queue_answer(struct exchange *exchange, bool close_after, const char *cors_origin)
{
    struct MHD_Response *response = make_response(exchange);
    enum MHD_Result result;
    uint32_t i;

    if (!response)
        return MHD_NO;
    if (exchange->answer.content_type)
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, exchange->answer.content_type);
    MHD_add_response_header(response, "X-Request-Id", exchange->asked.request_id);
    if (exchange->answer.kind == ANSWER_STREAM) {
        MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
        MHD_add_response_header(response, "X-Accel-Buffering", "no");
    }
    if (cors_origin)
        MHD_add_response_header(response, "Access-Control-Allow-Origin", cors_origin);
    if (close_after)
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    for (i = 0; i < exchange->answer.header_count; i++)
        MHD_add_response_header(response, exchange->answer.headers[i].name, exchange->answer.headers[i].value);
    for (const struct http_header *fixed = exchange->answer.fixed_headers; fixed && fixed->name; fixed++)
        MHD_add_response_header(response, fixed->name, fixed->value);
    result = MHD_queue_response(exchange->connection, (unsigned)exchange->answer.status, response);
    MHD_destroy_response(response);
    return result;
}

enum MHD_Result exchange_advance(struct exchange *exchange, bool close_after, const char *cors_origin)
{
    bool gone, answered;

    pthread_mutex_lock(&exchange->mutex);
    gone = exchange_is_gone(exchange);
    answered = exchange->answer.kind != ANSWER_NONE;
    if (!gone && !answered) {
        exchange->suspended = true;
        MHD_suspend_connection(exchange->connection);
    }
    pthread_mutex_unlock(&exchange->mutex);
    if (gone)
        return MHD_NO;
    return answered ? queue_answer(exchange, close_after, cors_origin) : MHD_YES;
}
