// request_dialect.c: the answer of a request whose form is a dialect's: what a choice shows becomes pieces. Such a request has one choice, or vectors.
#include "common/base/clock.h"
#include "services/gateway/request/request_internal.h"

// out: NULL: the answer is told at the end.
static void push(struct dialect_run *run, const struct dialect_piece *piece, struct text *from, struct text *out)
{
    if (from->bytes > 0)
        dialect_push(run, piece, out);
    text_clear(from);
}

// A call begins with its first piece, which may have no arguments yet.
static void push_call(struct dialect_run *run, uint32_t number, struct shown_call *call, struct text *out)
{
    const struct dialect_piece piece = {.part = DIALECT_CALL,
                                        .call = number,
                                        .id = call->id,
                                        .custom = call->is_custom,
                                        .data = call->arguments.data,
                                        .bytes = call->arguments.bytes,
                                        .name = call->name.data,
                                        .name_bytes = call->name.bytes};

    if (!shown_call_has_news(call))
        return;
    dialect_push(run, &piece, out);
    call->head_shown = true;
    text_clear(&call->arguments);
}

// In the order in which models write: what is thought, what is said, what is called. A call that has begun goes on first.
static void push_news(struct choice *choice, struct text *out)
{
    struct dialect_piece piece = {.part = DIALECT_TEXT, .data = choice->visible.data, .bytes = choice->visible.bytes};
    struct shown_answer *news = choice_answer_shown(choice);
    struct dialect_run *run = choice->request->run;
    uint32_t call;

    run->prompt_tokens = choice->prompt->count;
    respond_content_tokens(&run->logprobs, &choice->logprobs);
    if (news && dialect_is_in_call(run, &call) && call < news->call_count)
        push_call(run, call, &news->calls[call], out);
    if (news) {
        const struct dialect_piece thought = {
            .part = DIALECT_REASONING, .data = news->reasoning.data, .bytes = news->reasoning.bytes};
        push(run, &thought, &news->reasoning, out);
    }
    push(run, &piece, &choice->visible, out);
    for (uint32_t i = 0; news && i < news->call_count; i++)
        push_call(run, i, &news->calls[i], out);
}

static struct dialect_end end_of(const struct request *request)
{
    const struct choice *choice = &request->choices[0];
    const struct respond_usage usage = request_usage(request);
    const uint64_t now_us = clock_now_us(), first_us = request->first_token_us ? request->first_token_us : now_us;
    const bool stopped = choice->stop.matched >= 0;

    return (struct dialect_end){.finish_reason = request->run->only_warms ? "length" : choice->finish_reason,
                                .stop_string = stopped ? choice->stop_reason : NULL,
                                .stop_bytes = choice->stop_reason_bytes,
                                .prompt_tokens = usage.prompt_tokens,
                                .completion_tokens = request->run->only_warms ? 0 : usage.completion_tokens,
                                .cached_tokens = usage.cached_tokens,
                                .reasoning_tokens = usage.reasoning_tokens,
                                .total_us = now_us - request->start_us,
                                .prompt_us = first_us - request->start_us};
}

static void answer_vectors(struct request *request, const struct dialect_end *end, struct text *out)
{
    struct text vectors = {0};

    for (uint32_t i = 0; i < request->choice_count; i++) {
        dialect_comma(&vectors, i == 0);
        text_append(&vectors, request->choices[i].visible.data, request->choices[i].visible.bytes);
    }
    request->run->dialect->vectors(request->run, end, &vectors, out);
    out->failed |= vectors.failed;
    text_free(&vectors);
}

static void answer(struct request *request, struct text *out)
{
    const struct dialect_end end = end_of(request);

    if (request->pooling) {
        answer_vectors(request, &end, out);
        return;
    }
    push_news(&request->choices[0], NULL);
    dialect_end_whole(request->run, &end, out);
}

static void end_stream(struct request *request, struct text *out)
{
    const struct dialect_end end = end_of(request);

    dialect_end_stream(request->run, &end, out);
}

static void fail_stream(struct request *request, const struct api_error *error, struct text *out)
{
    dialect_fail_stream(request->run, error, out);
}

const struct request_form request_form_dialect = {.show = push_news, .answer = answer, .end = end_stream, .fail = fail_stream};
