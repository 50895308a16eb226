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
#include "common/messages/features.h"
#include "services/gateway/text/grammars.h"
#include "services/gateway/request/request_internal.h"
#include "services/gateway/http/root_span.h"

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
    *sampling = request->sampling;
    sampling->choice = choice->number;
    if (choice->prompt->scores && choice->prompt->scored_count >= choice->prompt->count)
        sampling->prompt_logprobs = false;
    out->request_id = (char *)(uintptr_t)exchange_request_id(request->exchange);
    out->n_prompt = choice->prompt->count;
    out->prompt = choice->prompt->ids;
    out->sampling = sampling;
    out->max_tokens = request->max_tokens;
    out->ignore_eos = request->ignore_eos;
    out->timeout_ms = (left_us + 999) / 1000;
    out->n_generated = choice->generated_count;
    out->generated = choice->generated;
    out->sequence = choice->sequence;
    out->latency_class = request->latency_class;
    if (request->key)
        out->tenant = request->key->tenant;
    if (request->cache_salt)
        out->cache_salt = request->cache_salt;
    uint32_t end_count;
    out->end_token = language_end_tokens(request->owner->config.language, &end_count);
    out->n_end_token = end_count;
}

// Only a sampled request's trace goes on: other services have nothing to do for it.
static struct mesh_trace trace_of(const struct request *request)
{
    const struct root_span *span = exchange_span(request->exchange);

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

    if (request->deadline_us) // it may have passed since advance() looked: then at once, not never
        left_us = request->deadline_us > now_us ? request->deadline_us - now_us : 1;
    fill_request(choice, left_us, &message, &sampling);
    const struct mesh_trace trace = trace_of(request);
    if (mesh_generate(requests->config.mesh, &message, left_us, &trace, &listener, &choice->call) != STATUS_OK) {
        choice->call = NULL;
        request_postpone(choice);
        return;
    }
    choice->state = CHOICE_RUNNING;
    if (choice->sequence)
        metrics_count(requests->config.metrics, METRICS_RESUBMITTED, 1);
    if (!request->submitted) {
        request->submitted = true;
        request_observe(request, METRICS_QUEUE, (double)(now_us - request->start_us) / 1e6);
    }
}

// A waiting choice: submit it, or give up. May free the request (the caller goes on with the one it saved); returns
// false then.
static bool advance(struct requests *requests, struct choice *choice, uint64_t now_us)
{
    struct request *request = choice->request;
    bool begun = choice->sequence || exchange_is_answered(request->exchange);
    double limit_s = begun ? requests->config.resume_limit_s : requests->config.ready_grace_s;
    bool last = request->done_count + 1 == request->choice_count || choice_lacks_pooled(choice); // then it fails
    struct api_error error;

    if (request->deadline_us && now_us >= request->deadline_us) {
        request_finish_choice(choice, "length", "deadline");
        return !last;
    }
    if (choice_is_over(choice, requests->config.language)) { // only its last event was lost
        request_finish_choice(choice, "stop", NULL);
        return !last;
    }
    if (choice->generated_count >= request->max_tokens &&
        (request->pooling          ? choice->pooled != NULL
         : request->max_tokens > 0 ? true
                                   : choice->prompt->scored_count >= choice->prompt->count)) {
        request_finish_choice(choice, "length", NULL); // it was complete, and only its last event was lost
        return !last;
    }
    if (requests->state.ready && request->features & ~requests->state.features) {
        api_fail(&error, 503, "not_ready", NULL, "the mesh's s-part or scheduler is too old for %s: upgrade it",
                 features_name(request->features & ~requests->state.features));
        request_fail(request, &error);
        return false;
    }
    if (requests->state.ready && now_us >= choice->retry_us) {
        submit(requests, choice);
        return true;
    }
    if (choice->waiting_since_us == 0)
        choice->waiting_since_us = now_us;
    if ((double)(now_us - choice->waiting_since_us) < limit_s * 1e6)
        return true;
    api_fail(&error, 503, "not_ready", NULL, "the mesh is not ready: %s",
             requests->state.up ? requests->state.reason : "the scheduler does not answer");
    error.retry_after_s = request_retry_after_s(4000);
    request_fail(request, &error);
    return false;
}

// Sends a comment on a silent stream: proxies close silent connections.
static void keep_alive(struct request *request, uint64_t now_us)
{
    if (!request->stream || !request->keep_alive ||
        (double)(now_us - request->last_write_us) < request->owner->config.keep_alive_s * 1e6)
        return;
    request->last_write_us = now_us;
    exchange_begin(request->exchange, request->stream_type);
    if (exchange_backlog(request->exchange) == 0)
        exchange_write(request->exchange, request->keep_alive, strlen(request->keep_alive));
}

// False: the request is gone.
static bool advance_request(struct requests *requests, struct request *request, uint64_t now_us)
{
    uint32_t i;

    for (i = 0; i < request_begun_count(request); i++) {
        struct choice *choice = &request->choices[i];
        if (choice->state == CHOICE_WAITING && !advance(requests, choice, now_us))
            return false;
        if (choice->state == CHOICE_RUNNING)
            request_show_news(choice);
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

void requests_start(struct requests *requests, struct request *request)
{
    uint32_t i;

    if (exchange_is_gone(request->exchange)) {
        request_discard(request);
        return;
    }
    request->form = request->run ? &request_form_dialect : &request_form_openai;
    request->last_write_us = clock_now_us();
    request->trace_id = ++requests->trace_ids;
    request->next = requests->first;
    if (request->next)
        request->next->previous = request;
    requests->first = request;
    atomic_fetch_add_explicit(&requests->waiting[request_is_batch(request)], 1, memory_order_relaxed);
    exchange_set_user(request->exchange, request);
    mesh_state(requests->config.mesh, &requests->state);
    if (request->max_tokens == 0 && !request->sampling.prompt_logprobs && !request->pooling) {
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
