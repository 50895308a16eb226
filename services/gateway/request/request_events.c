// request_events.c: what the mesh says of a choice: tokens, its end, or that it is lost.
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "services/gateway/request/request_internal.h"

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
    if (!request->first_token_seen) {
        request->first_token_seen = true;
        request->first_token_us = now_us;
        request_stop_waiting(request);
        trace_overlapping(requests->track_requests, "first token", request->trace_id, request->start_us * 1000,
                          {"prompt_tokens", choice->prompt->count});
        request_observe(request, METRICS_FIRST_TOKEN, (double)(now_us - request->start_us) / 1e6);
        atomic_fetch_sub_explicit(&requests->waiting[request_is_batch(request)], 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&requests->running[request_is_batch(request)], 1, memory_order_relaxed);
    }
    for (uint32_t i = 0; choice->last_token_us && i < new_tokens; i++)
        request_observe(request, METRICS_BETWEEN_TOKENS, (double)(now_us - choice->last_token_us) / new_tokens / 1e6);
    choice->last_token_us = now_us;
}

// Back to waiting.
void request_postpone(struct choice *choice)
{
    uint64_t now_us = clock_now_us(), pause_us = (uint64_t)RETRY_FIRST_US << MIN(choice->failures, 6u);

    if (choice->call)
        mesh_cancel(choice->call);
    choice->call = NULL;
    choice->state = CHOICE_WAITING;
    choice->failures++;
    if (choice->waiting_since_us == 0)
        choice->waiting_since_us = now_us;
    choice->retry_us = now_us + MIN(pause_us, (uint64_t)RETRY_MOST_US);
}

static void take_event(struct choice *choice, const Fastdecode__GenerateEvent *event)
{
    struct request *request = choice->request;
    struct api_error error;
    uint32_t before = choice->generated_count;
    const char *text = event->error && event->error[0] ? event->error : "the mesh could not complete the request";

    choice->sequence = event->sequence ? event->sequence : choice->sequence;
    if (!choice_take(choice, event, request->owner->config.language)) {
        log_error("API-LOG-GAP", "request=%s index=%u known=%u tokens=%zu", exchange_request_id(request->exchange), event->index,
                  choice->generated_count, event->n_tokens);
        if (choice->failures < FAILURES_MAX) {
            request_postpone(choice);
            return;
        }
        api_fail(&error, 500, NULL, NULL, "the mesh sent tokens out of order");
        request_fail(request, &error);
        return;
    }
    if (event->n_tokens || event->n_prompt || event->pooled.len || event->finish != FASTDECODE__FINISH__FINISH_UNSPECIFIED)
        choice->failures = choice->acceptances = 0;
    else // it was accepted, and no more: one that ends each scheduler does not begin to wait anew for ever
        choice->acceptances++;
    if (choice->acceptances <= ACCEPTANCES_MAX)
        choice->waiting_since_us = 0;
    measure(choice, choice->generated_count - before);
    if (choice_is_cut(choice)) {
        request_finish_choice(choice, "stop", NULL);
        return;
    }
    switch (event->finish) {
    case FASTDECODE__FINISH__FINISH_UNSPECIFIED: request_show_news(choice); break;
    case FASTDECODE__FINISH__FINISH_EOS: request_finish_choice(choice, "stop", NULL); break;
    case FASTDECODE__FINISH__FINISH_DEADLINE: request_finish_choice(choice, "length", "deadline"); break;
    case FASTDECODE__FINISH__FINISH_ERROR:
        api_fail(&error, event->request_fault ? 400 : 500, event->request_fault ? "invalid_value" : NULL, NULL, "%s", text);
        request_fail(request, &error);
        break;
    default: request_finish_choice(choice, "length", NULL); break;
    }
}

void request_on_event(void *arg, const Fastdecode__GenerateEvent *event)
{
    struct choice *choice = arg;
    struct trace_track *track = choice->request->owner->track;
    uint64_t began_ns = trace_clock(track), request_id = choice->request->trace_id; // the request may end

    take_event(choice, event);
    trace_span(track, "tokens", began_ns, {"request", request_id}, {"tokens", event->n_tokens});
}

static void refuse_full(struct request *request)
{
    struct api_error error;

    api_fail(&error, 429, "rate_limit_exceeded", NULL, "the queue is full, try again later");
    error.retry_after_s = request_retry_after_s(request->owner->state.predicted_wait_ms);
    request_fail(request, &error);
}

void request_on_end(void *arg, enum status status, const char *text)
{
    struct choice *choice = arg;
    struct request *request = choice->request;
    struct api_error error;

    choice->call = NULL;
    switch (status) {
    case STATUS_DEADLINE_EXCEEDED: request_finish_choice(choice, "length", "deadline"); return;
    case STATUS_RESOURCE_EXHAUSTED:
        if (!choice->sequence && !request->done_count && !exchange_is_answered(request->exchange)) {
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
        if (choice->failures < FAILURES_MAX)
            break;
        api_fail(&error, 500, NULL, NULL, "%s: %s", status_name(status), text ? text : "the mesh failed");
        request_fail(request, &error);
        return;
    }
    log_info("API-SEQUENCE-LOST", "request=%s choice=%u tokens=%u status=%s", exchange_request_id(request->exchange), choice->index,
             choice->generated_count, status_name(status));
    request_postpone(choice);
}
