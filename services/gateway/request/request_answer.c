// request_answer.c: what the client of a request is sent, and the end of a request.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "services/gateway/request/request_internal.h"

enum { KEEP_CHUNK_BYTES = 64 << 10 };

// The jitter spans at least three seconds whatever is predicted. The most is 38 * 1.5 + 1 + 2, about a minute.
uint32_t request_retry_after_s(uint32_t predicted_wait_ms)
{
    double jitter = (double)(clock_now_ns() / 1000 % 997) / 997;
    double seconds = MIN(predicted_wait_ms / 1000.0, 38.0) * (1 + jitter / 2);

    return (uint32_t)(seconds + 1 + 3 * jitter);
}

void request_observe(const struct request *request, enum metrics_histogram which, double seconds)
{
    if (!request_is_batch(request))
        metrics_observe(request->owner->config.metrics, which, seconds);
}

static void write_stream(struct request *request, const struct text *chunk)
{
    uint64_t began_ns = trace_clock(request->owner->track);

    exchange_begin(request->exchange, request->stream_type);
    exchange_write(request->exchange, chunk->data, chunk->bytes);
    trace_span(request->owner->track, "write", began_ns, {"request", request->trace_id}, {"bytes", chunk->bytes});
    request->last_write_us = clock_now_us();
}

// Adds the choices of a prompt that are shown. number: of the first of them.
static void answer_choices(struct request *request, uint32_t number, struct text *body)
{
    const struct choice *best[API_MAX_CHOICES];
    struct text *extra = &request->owner->extra;

    request_best(&request->choices[number], &request->shown, best);
    for (uint32_t i = 0; i < request->shown.n; i++) {
        const struct choice *choice = best[i];
        struct respond_choice shown = {
            .index = number / request->shown.best_of * request->shown.n + i,
            .text = choice->visible.data,
            .bytes = choice->visible.bytes,
            .logprobs = request->logprobs ? &choice->logprobs : NULL,
            .logprob_count = choice->logprobs.count,
            .finish_reason = choice->finish_reason,
            .stop_reason = choice->stop_reason,
            .stop_reason_bytes = choice->stop_reason_bytes,
            .answer = choice_answer_shown(choice),
            .is_stop_token = choice->stop_token >= 0,
            .stop_token = (uint32_t)choice->stop_token,
            .extra = extra,
        };
        text_clear(extra);
        request_extra_choice(&request->choices[choice->index], true, extra);
        body->failed |= extra->failed;
        respond_whole_choice(body, &request->head, &shown, shown.index == 0);
    }
}

static void openai_answer(struct request *request, struct text *out)
{
    struct respond_usage usage = request_usage(request);
    struct text extra = {0};
    uint32_t i;

    if (request->pooling) {
        request_answer_pool(request, &usage, out);
        return;
    }
    respond_whole_begin(out, &request->head);
    for (i = 0; i < request->choice_count; i += request->shown.best_of)
        answer_choices(request, i, out);
    request_extra_head(request->choices, true, &extra);
    out->failed |= extra.failed;
    respond_whole_end(out, &extra, &usage);
    text_free(&extra);
}

static void openai_end(struct request *request, struct text *out)
{
    struct respond_usage usage = request_usage(request);

    if (request->include_usage)
        respond_usage_chunk(out, &request->head, &usage);
    text_string(out, "data: [DONE]\n\n");
}

static void openai_fail(struct request *request, const struct api_error *error, struct text *out)
{
    (void)request;
    text_string(out, "data: ");
    api_error_append(out, error);
    text_string(out, "\n\ndata: [DONE]\n\n");
}

const struct request_form request_form_openai = {
    .show = choice_show, .answer = openai_answer, .end = openai_end, .fail = openai_fail};

static void answer_whole(struct request *request)
{
    struct text body = {0};

    request->form->answer(request, &body);
    exchange_respond(request->exchange, 200, HTTP_JSON, &body);
}

static void end_stream(struct request *request)
{
    struct text chunk = {0};

    request->form->end(request, &chunk);
    write_stream(request, &chunk);
    exchange_end(request->exchange, chunk.failed);
    text_free(&chunk);
}

// Takes the request out of the list and frees it; open calls are cancelled.
void request_drop(struct request *request)
{
    struct requests *requests = request->owner;
    uint32_t i;

    for (i = 0; i < request->choice_count; i++)
        if (request->choices[i].call)
            mesh_cancel(request->choices[i].call);
    if (requests->refill == request)
        requests->refill = NULL;
    if (request->previous)
        request->previous->next = request->next;
    else
        requests->first = request->next;
    if (request->next)
        request->next->previous = request->previous;
    trace_overlapping(requests->track_requests, "request", request->trace_id, request->start_us * 1000,
                      {"choices", request->choice_count});
    atomic_fetch_sub_explicit(&(request->first_token_seen ? requests->running : requests->waiting)[request_is_batch(request)], 1,
                              memory_order_relaxed);
    exchange_set_user(request->exchange, NULL);
    request_discard(request);
}

static void complete(struct request *request)
{
    struct metrics *metrics = request->owner->config.metrics;
    struct respond_usage usage = request_usage(request);

    request_settle(request);
    for (uint32_t i = 0; i < request->choice_count && exchange_span(request->exchange); i++)
        exchange_note_finish(request->exchange, request->choices[i].finish_reason);
    if (request->stream)
        end_stream(request);
    else
        answer_whole(request);
    metrics_count(metrics, METRICS_PROMPT_TOKENS, usage.prompt_tokens);
    request_observe(request, METRICS_REQUEST, (double)(clock_now_us() - request->start_us) / 1e6);
    log_info("API-DONE", "request=%s prompt_tokens=%llu completion_tokens=%llu ms=%llu", exchange_request_id(request->exchange),
             (unsigned long long)usage.prompt_tokens, (unsigned long long)usage.completion_tokens,
             (unsigned long long)((clock_now_us() - request->start_us) / 1000));
    request_drop(request);
}

// Fails the whole request: with an answer of its own, or with the last event of a stream that has begun.
void request_fail(struct request *request, const struct api_error *error)
{
    struct text chunk = {0};

    request_settle(request);
    log_warn("API-FAILED", "request=%s status=%d", exchange_request_id(request->exchange), error->status);
    if (!exchange_is_answered(request->exchange)) {
        exchange_refuse(request->exchange, error);
    } else {
        request->form->fail(request, error, &chunk);
        write_stream(request, &chunk);
        exchange_end(request->exchange, false);
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

// Ends a choice: sends its last chunk. After the last choice, completes and frees the request.
void request_finish_choice(struct choice *choice, const char *reason, const char *stop_reason)
{
    struct request *request = choice->request;
    struct text chunk = {0};

    if (choice_lacks_pooled(choice)) {
        fail_unpooled(request, stop_reason);
        return;
    }
    choice_finish(choice, reason, stop_reason, stop_reason ? strlen(stop_reason) : 0);
    if (choice->call)
        mesh_cancel(choice->call);
    choice->call = NULL;
    request->done_count++;
    if (request->stream) {
        request->form->show(choice, &chunk);
        write_stream(request, &chunk);
        text_free(&chunk);
    }
    if (request->done_count == request->choice_count)
        complete(request);
    else
        request->owner->refill = request;
}

void request_show_news(struct choice *choice)
{
    struct request *request = choice->request;
    struct text *chunk = &request->owner->chunk;

    if (!request->stream || choice->state == CHOICE_DONE || !choice_has_news(choice) || exchange_is_behind(request->exchange))
        return;
    text_clear(chunk);
    request->form->show(choice, chunk);
    write_stream(request, chunk);
    if (chunk->capacity > KEEP_CHUNK_BYTES)
        text_free(chunk); // a long echo, most likely
}
