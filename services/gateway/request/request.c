// request.c: the life of the requests in flight, on the loop thread: submitting, resubmitting, answering, ending.
//
//   WAITING ──submit()──▶ RUNNING ──finish, stop string, deadline──▶ DONE
//      ▲                     │
//      └── the mesh is gone ─┘   with a pause of 50 ms, doubled each time up to 2 s
//
// The Watch stream tells whether the mesh accepts submissions; nothing polls. A request that was never accepted is refused after
// ready_grace_s. One that was, which the first event of its stream says, waits resume_limit_s: its place in the queue is its own, or its
// client has half an answer already.
#include "services/gateway/request/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/mesh/messages.h"
#include "services/gateway/http/root_span.h"
#include "services/gateway/request/request_internal.h"
#include "services/gateway/text/grammars.h"

// --- what the client of a request is sent, and the end of a request --------------------------------------------------

enum { KEEP_CHUNK_BYTES = 64 << 10 };

// The jitter spans at least three seconds whatever is predicted. The most is 38 * 1.5 + 1 + 2, about a minute.
uint32_t request_retry_after_s(uint32_t predicted_wait_ms)
{
    double jitter = (double)(clock_now_ns() / 1000 % 997) / 997;
    double seconds = MIN(predicted_wait_ms / 1000.0, 38.0) * (1 + jitter / 2);

    return (uint32_t)(seconds + 1 + 3 * jitter);
}

// Counts a time, unless the request is of the latency class batch: those say how long the others let them wait.
static void request_observe(const struct request *request, enum metrics_histogram which, double seconds)
{
    if (!request_is_batch(request))
        metrics_observe(request->owner->config.metrics, which, seconds);
}

static void write_stream(struct request *request, const struct text *chunk)
{
    uint64_t began_ns = trace_clock(request->owner->track);

    exchange_begin(request->client.exchange, request->run->dialect->stream_type);
    exchange_write(request->client.exchange, chunk->data, chunk->bytes);
    trace_span(request->owner->track, "write", began_ns, {"request", request->times.trace_id}, {"bytes", chunk->bytes});
    request->times.last_write_us = clock_now_us();
}

static void answer_whole(struct request *request)
{
    struct text body = {0};

    request_answer(request, &body);
    exchange_respond(request->client.exchange, 200, HTTP_JSON, &body);
}

static void end_stream(struct request *request)
{
    struct text chunk = {0};

    request_answer_end(request, &chunk);
    write_stream(request, &chunk);
    exchange_end(request->client.exchange, chunk.failed);
    text_free(&chunk);
}

// Takes the request out of the list and frees it; open calls are cancelled.
static void request_drop(struct request *request)
{
    struct requests *requests = request->owner;
    uint32_t i;

    for (i = 0; i < request->choice_count; i++)
        if (request->choices[i].call.open)
            mesh_cancel(request->choices[i].call.open);
    if (requests->refill == request)
        requests->refill = NULL;
    if (request->previous)
        request->previous->next = request->next;
    else
        requests->first = request->next;
    if (request->next)
        request->next->previous = request->previous;
    trace_overlapping(requests->track_requests, "request", request->times.trace_id, request->times.start_us * 1000,
                      {"choices", request->choice_count});
    atomic_fetch_sub_explicit(&(request->times.first_token_seen ? requests->running : requests->waiting)[request_is_batch(request)],
                              1, memory_order_relaxed);
    exchange_set_user(request->client.exchange, NULL);
    request_discard(request);
}

static void complete(struct request *request)
{
    struct metrics *metrics = request->owner->config.metrics;
    struct dialect_usage usage = request_usage(request);

    request_settle(request);
    for (uint32_t i = 0; i < request->choice_count && exchange_span(request->client.exchange); i++)
        exchange_note_finish(request->client.exchange, request->choices[i].end.finish_reason);
    if (request->shown.stream)
        end_stream(request);
    else
        answer_whole(request);
    metrics_count(metrics, METRICS_PROMPT_TOKENS, usage.prompt_tokens);
    request_observe(request, METRICS_REQUEST, (double)(clock_now_us() - request->times.start_us) / 1e6);
    log_info("API-DONE", "request=%s prompt_tokens=%llu completion_tokens=%llu ms=%llu",
             exchange_request_id(request->client.exchange), (unsigned long long)usage.prompt_tokens,
             (unsigned long long)usage.completion_tokens, (unsigned long long)((clock_now_us() - request->times.start_us) / 1000));
    request_drop(request);
}

// Fails the whole request: with an answer of its own, or with the last event of a stream that has begun.
static void request_fail(struct request *request, const struct api_error *error)
{
    struct text chunk = {0};
    char why[300];

    request_settle(request);
    log_warn("API-FAILED", "request=%s status=%d why=%s", exchange_request_id(request->client.exchange), error->status,
             log_quote(why, sizeof why, error->message));
    if (!exchange_is_answered(request->client.exchange)) {
        exchange_refuse(request->client.exchange, error);
    } else {
        dialect_fail_stream(request->run, error, &chunk);
        write_stream(request, &chunk);
        exchange_end(request->client.exchange, false);
        text_free(&chunk);
    }
    request_drop(request);
}

// A prompt was not pooled in time, or the mesh has ended it without a result.
static void fail_unpooled(struct request *request, const char *stop_reason)
{
    struct api_error error;

    if (stop_reason)
        api_fail(&error, 504, "timeout", NULL, "the request was not computed within its time (--request-timeout)");
    else
        api_fail(&error, 500, NULL, NULL, "the mesh sent no result");
    request_fail(request, &error);
}

// A part of its text is lost, so it can be neither answered nor submitted again.
static void fail_for_memory(struct request *request)
{
    struct api_error error;

    api_no_memory(&error);
    request_fail(request, &error);
}

// Ends a choice: sends its last chunk. After the last choice, completes and frees the request.
static void request_finish_choice(struct choice *choice, const char *reason, const char *stop_reason)
{
    struct request *request = choice->request;
    struct text chunk = {0};

    if (choice_lacks_pooled(choice)) {
        fail_unpooled(request, stop_reason);
        return;
    }
    choice_finish(choice, reason, stop_reason, stop_reason ? strlen(stop_reason) : 0);
    if (choice->call.open)
        mesh_cancel(choice->call.open);
    choice->call.open = NULL;
    request->done_count++;
    bool failed = choice_lacks_memory(choice);
    if (request->shown.stream && !failed) {
        request_show(choice, &chunk);
        if (!chunk.failed)
            write_stream(request, &chunk);
        failed |= chunk.failed;
        text_free(&chunk);
    }
    if (failed)
        fail_for_memory(request);
    else if (request->done_count == request->choice_count)
        complete(request);
    else
        request->owner->refill = request;
}

// Sends new text of a stream, unless its client is behind. False: no memory, and the request is gone.
static bool request_show_news(struct choice *choice)
{
    struct request *request = choice->request;
    struct text *chunk = &request->owner->chunk;

    if (!request->shown.stream || choice->state == CHOICE_DONE || !choice_has_news(choice) ||
        exchange_is_behind(request->client.exchange))
        return true;
    text_clear(chunk);
    request_show(choice, chunk);
    const bool failed = chunk->failed;
    if (!failed)
        write_stream(request, chunk);
    if (chunk->capacity > KEEP_CHUNK_BYTES || failed)
        text_free(chunk); // a long echo, most likely
    if (failed)
        fail_for_memory(request);
    return !failed;
}

// --- what the mesh says of a choice: tokens, its end, or that it is lost ---------------------------------------------

enum {
    RETRY_FIRST_US = 50000,
    RETRY_MOST_US = 2000000,
    ACCEPTANCES_MAX = 8, // in a row without a token, after which a request no longer waits for a lost mesh anew
    FAILURES_MAX = 8,    // in a row without a token, of kinds that waiting does not cure
};

static void measure(struct choice *choice, uint32_t new_tokens)
{
    struct request *request = choice->request;
    struct requests *requests = request->owner;
    uint64_t now_us = clock_now_us();

    if (new_tokens == 0)
        return;
    metrics_count(requests->config.metrics, METRICS_GENERATED_TOKENS, new_tokens);
    if (!request->times.first_token_seen) {
        request->times.first_token_seen = true;
        request->times.first_token_us = now_us;
        request_stop_waiting(request);
        trace_overlapping(requests->track_requests, "first token", request->times.trace_id, request->times.start_us * 1000,
                          {"prompt_tokens", choice->prompt->count});
        request_observe(request, METRICS_FIRST_TOKEN, (double)(now_us - request->times.start_us) / 1e6);
        atomic_fetch_sub_explicit(&requests->waiting[request_is_batch(request)], 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&requests->running[request_is_batch(request)], 1, memory_order_relaxed);
    }
    for (uint32_t i = 0; choice->log.last_token_us && i < new_tokens; i++)
        request_observe(request, METRICS_BETWEEN_TOKENS, (double)(now_us - choice->log.last_token_us) / new_tokens / 1e6);
    choice->log.last_token_us = now_us;
}

// Back to waiting.
static void request_postpone(struct choice *choice)
{
    uint64_t now_us = clock_now_us(), pause_us = (uint64_t)RETRY_FIRST_US << MIN(choice->call.failures, 6u);

    if (choice->call.open)
        mesh_cancel(choice->call.open);
    choice->call.open = NULL;
    choice->state = CHOICE_WAITING;
    choice->call.failures++;
    if (choice->call.waiting_since_us == 0)
        choice->call.waiting_since_us = now_us;
    choice->call.retry_us = now_us + MIN(pause_us, (uint64_t)RETRY_MOST_US);
}

static void take_event(struct choice *choice, const Fastdecode__GenerateEvent *event)
{
    struct request *request = choice->request;
    struct api_error error;
    uint32_t before = choice->log.generated_count;
    const char *text = event->error && event->error[0] ? event->error : "the mesh could not complete the request";

    choice->call.sequence = event->sequence ? event->sequence : choice->call.sequence;
    const enum status taken = choice_take(choice, event, request->owner->config.language);
    if (taken == STATUS_RESOURCE_EXHAUSTED) {
        fail_for_memory(request);
        return;
    }
    if (taken) {
        log_error("API-LOG-GAP", "request=%s index=%u known=%u tokens=%zu", exchange_request_id(request->client.exchange),
                  event->index, choice->log.generated_count, event->n_tokens);
        if (choice->call.failures < FAILURES_MAX) {
            request_postpone(choice);
            return;
        }
        api_fail(&error, 500, NULL, NULL, "the mesh sent tokens out of order");
        request_fail(request, &error);
        return;
    }
    if (event->n_tokens || event->n_prompt || event->pooled.len || event->finish != FASTDECODE__FINISH__FINISH_UNSPECIFIED)
        choice->call.failures = choice->call.acceptances = 0;
    else // it was accepted, and no more: one that ends each scheduler does not begin to wait anew for ever
        choice->call.acceptances++;
    if (choice->call.acceptances <= ACCEPTANCES_MAX)
        choice->call.waiting_since_us = 0;
    measure(choice, choice->log.generated_count - before);
    if (choice_is_cut(choice)) {
        request_finish_choice(choice, "stop", NULL);
        return;
    }
    switch (event->finish) {
    case FASTDECODE__FINISH__FINISH_UNSPECIFIED: (void)request_show_news(choice); break;
    case FASTDECODE__FINISH__FINISH_EOS: request_finish_choice(choice, "stop", NULL); break;
    case FASTDECODE__FINISH__FINISH_DEADLINE: request_finish_choice(choice, "length", "deadline"); break;
    case FASTDECODE__FINISH__FINISH_ERROR:
        api_fail(&error, event->request_fault ? 400 : 500, event->request_fault ? "invalid_value" : NULL, NULL, "%s", text);
        request_fail(request, &error);
        break;
    default: request_finish_choice(choice, "length", NULL); break;
    }
}

// Takes what the mesh says; arg is the choice. May end and free the request.
static void request_on_event(void *arg, const Fastdecode__GenerateEvent *event)
{
    struct choice *choice = arg;
    struct trace_track *track = choice->request->owner->track;
    uint64_t began_ns = trace_clock(track), request_id = choice->request->times.trace_id; // the request may end

    take_event(choice, event);
    trace_span(track, "tokens", began_ns, {"request", request_id}, {"tokens", event->n_tokens});
}

static void refuse_full(struct request *request)
{
    struct api_error error;

    api_limit(&error, "queue_full", "the queue is full, try again later");
    error.retry_after_s = request_retry_after_s(request->owner->state.predicted_wait_ms);
    request_fail(request, &error);
}

// The call has ended without what it was to bring; arg is the choice. May end and free the request.
static void request_on_end(void *arg, enum status status, const char *text)
{
    struct choice *choice = arg;
    struct request *request = choice->request;
    struct api_error error;

    choice->call.open = NULL;
    switch (status) {
    case STATUS_DEADLINE_EXCEEDED: request_finish_choice(choice, "length", "deadline"); return;
    case STATUS_RESOURCE_EXHAUSTED:
        if (!choice->call.sequence && !request->done_count && !exchange_is_answered(request->client.exchange)) {
            refuse_full(request);
            return;
        }
        break;
    case STATUS_INVALID_ARGUMENT:
    case STATUS_OUT_OF_RANGE:
    case STATUS_UNIMPLEMENTED:
        api_fail(&error, 400, "invalid_value", NULL, "%s", text ? text : "the mesh refused the request");
        request_fail(request, &error);
        return;
    case STATUS_OK:
    case STATUS_UNAVAILABLE:
    case STATUS_ABORTED:
    case STATUS_CANCELLED: break;
    default:
        if (choice->call.failures < FAILURES_MAX)
            break;
        api_fail(&error, 500, NULL, NULL, "%s: %s", status_name(status), text ? text : "the mesh failed");
        request_fail(request, &error);
        return;
    }
    log_info("API-SEQUENCE-LOST", "request=%s choice=%u tokens=%u status=%s", exchange_request_id(request->client.exchange),
             choice->index, choice->log.generated_count, status_name(status));
    request_postpone(choice);
}

// --- all requests ----------------------------------------------------------------------------------------------------
enum status requests_open(const struct requests_config *config, struct requests **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return STATUS_RESOURCE_EXHAUSTED;
    (*out)->grammars = grammars_open();
    if (!(*out)->grammars) {
        free(*out);
        return STATUS_RESOURCE_EXHAUSTED;
    }
    (*out)->config = *config;
    (*out)->track = trace_track_open("answers");
    (*out)->track_requests = trace_track_open("requests");
    return STATUS_OK;
}

void requests_close(struct requests *requests)
{
    if (!requests)
        return;
    while (requests->first) {
        struct request *request = requests->first;
        requests->first = request->next;
        request_discard(request);
    }
    text_free(&requests->piece);
    text_free(&requests->extra);
    text_free(&requests->head_extra);
    text_free(&requests->chunk);
    grammars_close(requests->grammars);
    free(requests);
}

void requests_counts(const struct requests *requests, bool batch, uint32_t *running, uint32_t *waiting)
{
    *running = atomic_load_explicit(&requests->running[batch], memory_order_relaxed);
    *waiting = atomic_load_explicit(&requests->waiting[batch], memory_order_relaxed);
}

// --- submitting ---------------------------------------------------------------------------------------------------
static void fill_request(const struct choice *choice, uint64_t left_us, Fastdecode__GenerateRequest *out,
                         Fastdecode__Sampling *sampling)
{
    struct request *request = choice->request;

    fastdecode__generate_request__init(out);
    *sampling = request->draw.sampling;
    sampling->choice = choice->number;
    if (choice->prompt->scores && choice->prompt->scored_count >= choice->prompt->count)
        sampling->prompt_logprobs = false;
    out->request_id = (char *)(uintptr_t)exchange_request_id(request->client.exchange);
    out->n_prompt = choice->prompt->count;
    out->prompt = choice->prompt->ids;
    out->sampling = sampling;
    out->max_tokens = request->draw.max_tokens;
    out->ignore_eos = request->draw.ignore_eos;
    out->timeout_ms = (left_us + 999) / 1000;
    out->n_generated = choice->log.generated_count;
    out->generated = choice->log.generated;
    out->sequence = choice->call.sequence;
    out->latency_class = request->latency_class;
    if (request->client.key)
        out->tenant = request->client.key->tenant;
    if (request->client.cache_salt)
        out->cache_salt = request->client.cache_salt;
    uint32_t end_count;
    out->end_token = language_end_tokens(request->owner->config.language, &end_count);
    out->n_end_token = end_count;
}

// Only a sampled request's trace goes on: other services have nothing to do for it.
static struct mesh_trace trace_of(const struct request *request)
{
    const struct root_span *span = exchange_span(request->client.exchange);

    if (!span || !span->context.sampled)
        return (struct mesh_trace){0};
    return (struct mesh_trace){.parent = span->text, .state = span->state[0] ? span->state : NULL};
}

static bool advance(struct requests *requests, struct choice *choice, uint64_t now_us);

// After an event: submits the choice that may follow the one that it has ended. May end and free the request.
static void refill(struct requests *requests)
{
    struct request *request = requests->refill;

    requests->refill = NULL;
    if (!request)
        return;
    struct choice *last = &request->choices[request_begun_count(request) - 1];
    if (last->state == CHOICE_WAITING)
        (void)advance(requests, last, clock_now_us());
}

static void on_event(void *arg, const Fastdecode__GenerateEvent *event)
{
    struct requests *requests = ((struct choice *)arg)->request->owner;

    request_on_event(arg, event);
    refill(requests);
}

static void on_end(void *arg, enum status status, const char *text)
{
    struct requests *requests = ((struct choice *)arg)->request->owner;

    request_on_end(arg, status, text);
    refill(requests);
}

static void submit(struct requests *requests, struct choice *choice)
{
    struct request *request = choice->request;
    struct mesh_listener listener = {.event = on_event, .end = on_end, .arg = choice};
    Fastdecode__GenerateRequest message;
    Fastdecode__Sampling sampling;
    uint64_t now_us = clock_now_us(), left_us = 0; // 0: no limit

    if (request->times.deadline_us) // it may have passed since advance() looked: then at once, not never
        left_us = request->times.deadline_us > now_us ? request->times.deadline_us - now_us : 1;
    fill_request(choice, left_us, &message, &sampling);
    const struct mesh_trace trace = trace_of(request);
    if (mesh_generate(requests->config.mesh, &message, left_us, &trace, &listener, &choice->call.open) != STATUS_OK) {
        choice->call.open = NULL;
        request_postpone(choice);
        return;
    }
    choice->state = CHOICE_RUNNING;
    if (choice->call.sequence)
        metrics_count(requests->config.metrics, METRICS_RESUBMITTED, 1);
    if (!request->times.submitted) {
        request->times.submitted = true;
        request_observe(request, METRICS_QUEUE, (double)(now_us - request->times.start_us) / 1e6);
    }
}

// A waiting choice: submit it, or give up. May free the request (the caller goes on with the one it saved); returns
// false then.
static bool advance(struct requests *requests, struct choice *choice, uint64_t now_us)
{
    struct request *request = choice->request;
    bool begun = choice->call.sequence || exchange_is_answered(request->client.exchange);
    double limit_s = begun ? requests->config.resume_limit_s : requests->config.ready_grace_s;
    bool last = request->done_count + 1 == request->choice_count || choice_lacks_pooled(choice); // then it fails
    struct api_error error;

    if (request->times.deadline_us && now_us >= request->times.deadline_us) {
        request_finish_choice(choice, "length", "deadline");
        return !last;
    }
    if (choice_is_over(choice, requests->config.language)) { // only its last event was lost
        request_finish_choice(choice, "stop", NULL);
        return !last;
    }
    if (choice->log.generated_count >= request->draw.max_tokens &&
        (request->pool.pooling          ? choice->pooled != NULL
         : request->draw.max_tokens > 0 ? true
                                        : choice->prompt->scored_count >= choice->prompt->count)) {
        request_finish_choice(choice, "length", NULL); // it was complete, and only its last event was lost
        return !last;
    }
    if (requests->state.ready && request->draw.features & ~requests->state.features) {
        api_fail(&error, 503, "not_ready", NULL, "the mesh's s-part or scheduler is too old for %s: upgrade it",
                 features_name(request->draw.features & ~requests->state.features));
        request_fail(request, &error);
        return false;
    }
    if (requests->state.ready && now_us >= choice->call.retry_us) {
        submit(requests, choice);
        return true;
    }
    if (choice->call.waiting_since_us == 0)
        choice->call.waiting_since_us = now_us;
    if ((double)(now_us - choice->call.waiting_since_us) < limit_s * 1e6)
        return true;
    api_fail(&error, 503, "not_ready", NULL, "the mesh is not ready: %s", requests->state.reason);
    error.retry_after_s = request_retry_after_s(4000);
    request_fail(request, &error);
    return false;
}

// Sends a comment on a silent stream: proxies close silent connections.
static void keep_alive(struct request *request, uint64_t now_us)
{
    const char *comment = request->run->dialect->keep_alive;

    if (!request->shown.stream || !comment ||
        (double)(now_us - request->times.last_write_us) < request->owner->config.keep_alive_s * 1e6)
        return;
    request->times.last_write_us = now_us;
    exchange_begin(request->client.exchange, request->run->dialect->stream_type);
    if (exchange_backlog(request->client.exchange) == 0)
        exchange_write(request->client.exchange, comment, strlen(comment));
}

// False: the request is gone.
static bool advance_request(struct requests *requests, struct request *request, uint64_t now_us)
{
    uint32_t i;

    for (i = 0; i < request_begun_count(request); i++) {
        struct choice *choice = &request->choices[i];
        if (choice->state == CHOICE_WAITING && !advance(requests, choice, now_us))
            return false;
        if (choice->state == CHOICE_RUNNING && !request_show_news(choice))
            return false;
    }
    return true;
}

void requests_tick(struct requests *requests)
{
    struct request *request, *next;
    uint64_t now_us = clock_now_us();

    mesh_state(requests->config.mesh, &requests->state);
    for (request = requests->first; request; request = next) {
        next = request->next;
        if (advance_request(requests, request, now_us))
            keep_alive(request, now_us);
    }
}

// Lines of batches are asked again once the gateway is back.
static void end_request(struct request *request)
{
    struct api_error error;

    if (exchange_is_local(request->client.exchange))
        return;
    api_fail(&error, 503, "shutting_down", NULL,
             "this gateway shuts down, and could not wait for the end of the answer (--drain-timeout)");
    error.retry_after_s = 1;
    request_fail(request, &error);
}

void requests_end(struct requests *requests)
{
    struct request *request, *next;

    requests->ended = true;
    for (request = requests->first; request; request = next) {
        next = request->next;
        end_request(request);
    }
}

void requests_start(struct requests *requests, struct request *request)
{
    uint32_t i;

    if (exchange_is_gone(request->client.exchange)) {
        request_discard(request);
        return;
    }
    request->times.last_write_us = clock_now_us();
    request->times.trace_id = ++requests->trace_ids;
    request->next = requests->first;
    if (request->next)
        request->next->previous = request;
    requests->first = request;
    atomic_fetch_add_explicit(&requests->waiting[request_is_batch(request)], 1, memory_order_relaxed);
    exchange_set_user(request->client.exchange, request);
    if (requests->ended && !exchange_is_local(request->client.exchange)) {
        end_request(request);
        return;
    }
    mesh_state(requests->config.mesh, &requests->state);
    if (request->draw.max_tokens == 0 && !request->draw.sampling.prompt_logprobs && !request->pool.pooling) {
        // echo alone: there is nothing to compute
        Fastdecode__GenerateEvent end = FASTDECODE__GENERATE_EVENT__INIT;
        uint32_t count = request->choice_count;
        end.finish = FASTDECODE__FINISH__FINISH_LENGTH;
        for (i = 0; i < count; i++)
            request_on_event(&request->choices[i], &end);
        return;
    }
    advance_request(requests, request, clock_now_us());
}

void requests_cancel(struct requests *requests, struct exchange *exchange)
{
    struct request *request = exchange_user(exchange);

    if (!request)
        return; // answered meanwhile, or not here yet: requests_start() looks
    metrics_count(requests->config.metrics, METRICS_CLIENT_LEFT, 1);
    log_info("API-CLIENT-LEFT", "request=%s", exchange_request_id(exchange));
    request_drop(request);
}
