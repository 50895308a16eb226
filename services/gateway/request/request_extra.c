// request_extra.c: what a request has used, and what only those who ask for it are shown: token ids, log-probabilities of the prompt, and the best of several choices.
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "services/gateway/request/request_internal.h"

struct respond_usage request_usage(const struct request *request)
{
    struct respond_usage usage = {0};
    uint32_t i;

    for (i = 0; i < request->prompt_count; i++)
        usage.prompt_tokens += request->prompts[i].count;
    usage.has_reasoning = request->notation.reasoning || answer_has_channels(request->notation.family);
    for (i = 0; i < request->choice_count; i++) {
        usage.completion_tokens += request->choices[i].generated_count;
        usage.reasoning_tokens += request->choices[i].reasoning_tokens;
    }
    for (i = 0; i < request->choice_count; i++) // a prompt counts once, however many choices it has
        usage.cached_tokens += request->choices[i].number == 0 ? request->choices[i].cached_tokens : 0;
    return usage;
}

static void append_ids(struct text *out, const char *name, const uint32_t *ids, uint32_t count)
{
    text_format(out, ",\"%s\":[", name);
    for (uint32_t i = 0; i < count; i++)
        text_format(out, i ? ",%u" : "%u", ids[i]);
    text_append(out, "]", 1);
}

// rank 0: not known.
static void append_score(struct text *out, const struct language *language, uint32_t id, float logprob, uint32_t rank)
{
    size_t bytes;
    const char *data = language_token(language, id, &bytes);

    text_format(out, "\"%u\":{\"logprob\":", id);
    text_json_float(out, logprob);
    text_string(out, ",\"rank\":");
    if (rank)
        text_format(out, "%u", rank);
    else
        text_string(out, "null");
    text_string(out, ",\"decoded_token\":");
    text_json(out, data, bytes);
    text_append(out, "}", 1);
}

// A token of the prompt: itself, and its alternatives. Its rank is known if it is one of those that were kept.
static void append_position(const struct choice *choice, uint32_t at, struct text *out)
{
    const struct request *request = choice->request;
    const struct language *language = request->owner->config.language;
    const struct request_prompt *prompt = choice->prompt;
    const struct prompt_top *tops = prompt->tops ? &prompt->tops[(size_t)at * request->prompt_tops] : NULL;
    uint32_t count = tops ? prompt->top_counts[at] : 0, rank = 0, j;

    for (j = 0; j < count && !rank; j++)
        rank = tops[j].token == prompt->ids[at] ? j + 1 : 0;
    text_append(out, "{", 1);
    append_score(out, language, prompt->ids[at], prompt->scores[at], rank);
    for (j = 0; j < MIN(count, request->shown.prompt_tops); j++) {
        if (tops[j].token == prompt->ids[at])
            continue;
        text_append(out, ",", 1);
        append_score(out, language, tops[j].token, tops[j].logprob, j + 1);
    }
    text_append(out, "}", 1);
}

// Nothing comes before the first token, so it has no score.
static void append_prompt_logprobs(const struct choice *choice, struct text *out)
{
    const struct request_prompt *prompt = choice->prompt;

    text_string(out, ",\"prompt_logprobs\":[null");
    for (uint32_t i = 1; i < prompt->count; i++) {
        text_append(out, ",", 1);
        if (i < prompt->scored_count)
            append_position(choice, i, out);
        else
            text_string(out, "null");
    }
    text_append(out, "]", 1);
}

static void append_prompt(struct choice *choice, bool whole, struct text *out)
{
    const struct request_shown *shown = &choice->request->shown;

    if (shown->token_ids && !choice->prompt_ids_shown)
        append_ids(out, "prompt_token_ids", choice->prompt->ids, choice->prompt->count);
    choice->prompt_ids_shown = true;
    if (whole && shown->prompt_logprobs)
        append_prompt_logprobs(choice, out);
}

void request_extra_choice(struct choice *choice, bool whole, struct text *out)
{
    if (choice->request->kind == API_COMPLETION)
        append_prompt(choice, whole, out);
    if (!choice->request->shown.token_ids)
        return;
    append_ids(out, "token_ids", choice->generated + choice->ids_shown, choice->generated_count - choice->ids_shown);
    choice->ids_shown = choice->generated_count;
}

void request_extra_head(struct choice *first, bool whole, struct text *out)
{
    if (first->request->kind == API_CHAT)
        append_prompt(first, whole, out);
}

void request_best(const struct choice *first, const struct request_shown *shown, const struct choice **out)
{
    bool taken[API_MAX_CHOICES] = {false};

    for (uint32_t i = 0; i < shown->n; i++) {
        uint32_t best = i;
        if (shown->best_of > shown->n) {
            best = shown->best_of;
            for (uint32_t j = 0; j < shown->best_of; j++)
                if (!taken[j] && (best == shown->best_of || first[j].logprob_sum > first[best].logprob_sum))
                    best = j;
        }
        taken[best] = true;
        out[i] = &first[best];
    }
}

// The answer of a request whose form is a dialect's: what a choice shows becomes pieces. Such a request has one choice, or vectors.

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
