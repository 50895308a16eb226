// answer.c: how a request's choices become its answer: what its dialect is given to tell.
//
// Beside the text, a client may ask for token ids, for log-probabilities of the prompt, and for the best of several choices.
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "services/gateway/request/request_internal.h"

struct dialect_usage request_usage(const struct request *request)
{
    struct dialect_usage usage = {0};
    uint32_t i;

    for (i = 0; i < request->prompt_count; i++)
        usage.prompt_tokens += request->prompts[i].count;
    usage.has_reasoning = request->reading.notation.reasoning || answer_has_channels(request->reading.notation.family);
    for (i = 0; i < request->choice_count; i++) {
        usage.completion_tokens += request->choices[i].log.generated_count;
        usage.reasoning_tokens += request->choices[i].log.reasoning_tokens;
    }
    for (i = 0; i < request->choice_count; i++) // a prompt counts once, however many choices it has
        usage.cached_tokens += request->choices[i].number == 0 ? request->choices[i].log.cached_tokens : 0;
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
    text_json_bytes_after(out, ",\"decoded_token\":", data, bytes);
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

    if (shown->token_ids && !choice->text.prompt_ids_shown)
        append_ids(out, "prompt_token_ids", choice->prompt->ids, choice->prompt->count);
    choice->text.prompt_ids_shown = true;
    if (whole && shown->prompt_logprobs)
        append_prompt_logprobs(choice, out);
}

// Each appends ",\"name\":value" or nothing. whole: all of the choice, not its next chunk.
static void append_choice_extra(struct choice *choice, bool whole, struct text *out)
{
    if (choice->request->kind == API_COMPLETION)
        append_prompt(choice, whole, out);
    if (!choice->request->shown.token_ids)
        return;
    append_ids(out, "token_ids", choice->log.generated + choice->text.ids_shown,
               choice->log.generated_count - choice->text.ids_shown);
    choice->text.ids_shown = choice->log.generated_count;
}

// Those beside the list of choices. Chats have one prompt, and its fields there.
static void append_head_extra(struct choice *first, bool whole, struct text *out)
{
    if (first->request->kind == API_CHAT)
        append_prompt(first, whole, out);
}

// Writes the choices of a prompt that are shown, best first, to out[n]. first: the prompt's first choice.
static void choose_best(const struct choice *first, const struct request_shown *shown, const struct choice **out)
{
    bool taken[API_MAX_CHOICES] = {false};

    for (uint32_t i = 0; i < shown->n; i++) {
        uint32_t best = i;
        if (shown->best_of > shown->n) {
            best = shown->best_of;
            for (uint32_t j = 0; j < shown->best_of; j++)
                if (!taken[j] && (best == shown->best_of || first[j].log.logprob_sum > first[best].log.logprob_sum))
                    best = j;
        }
        taken[best] = true;
        out[i] = &first[best];
    }
}

// --- to the dialect ---------------------------------------------------------------------------------------------------
static struct dialect_news news_of(const struct choice *from, bool whole)
{
    struct choice *choice = (struct choice *)(uintptr_t)from;
    const struct request *request = choice->request;
    struct requests *owner = request->owner;
    struct dialect_news news = {.index = choice->index,
                                .prompt_tokens = choice->prompt->count,
                                .text = &choice->text.visible,
                                .answer = choice_answer_shown(choice),
                                .tokens = &choice->text.scores,
                                .scored = request->shown.logprobs,
                                .is_first = !choice->text.role_sent,
                                .has_ids = request->shown.token_ids && choice->text.ids_shown < choice->log.generated_count,
                                .finish_reason = choice->end.finish_reason,
                                .stop_reason = choice->end.stop_reason,
                                .stop_reason_bytes = choice->end.stop_reason_bytes,
                                .is_stop_token = choice->end.stop_token >= 0,
                                .stop_token = (uint32_t)choice->end.stop_token,
                                .extra = &owner->extra,
                                .head_extra = &owner->head_extra};

    text_clear(&owner->extra);
    text_clear(&owner->head_extra);
    if (!whole && !choice->text.role_sent)
        append_head_extra(choice, false, &owner->head_extra);
    append_choice_extra(choice, whole, &owner->extra);
    choice->text.role_sent = true;
    return news;
}

void request_show(struct choice *choice, struct text *out)
{
    const struct request *request = choice->request;
    struct dialect_usage usage = {0};
    struct dialect_news news = news_of(choice, false);

    if (request->shown.usage_in_chunks) {
        usage = request_usage(request);
        news.usage = &usage;
    }
    dialect_show(request->run, &news, out);
    out->failed |= news.extra->failed || news.head_extra->failed;
}

static struct dialect_end end_of(const struct request *request)
{
    const struct choice *choice = &request->choices[0];
    struct dialect_usage usage = request_usage(request);
    const uint64_t now_us = clock_now_us(), first_us = request->times.first_token_us ? request->times.first_token_us : now_us;
    const bool stopped = choice->text.stop.matched >= 0;

    if (request->run->only_warms)
        usage.completion_tokens = 0;
    return (struct dialect_end){.finish_reason = request->run->only_warms ? "length" : choice->end.finish_reason,
                                .stop_string = stopped ? choice->end.stop_reason : NULL,
                                .stop_bytes = choice->end.stop_reason_bytes,
                                .usage = usage,
                                .total_us = now_us - request->times.start_us,
                                .prompt_us = first_us - request->times.start_us};
}

// Adds the choices of a prompt that are shown. number: of the first of them.
static void tell_choices(const struct request *request, uint32_t number)
{
    const struct choice *best[API_MAX_CHOICES];

    choose_best(&request->choices[number], &request->shown, best);
    for (uint32_t i = 0; i < request->shown.n; i++) {
        struct dialect_news news = news_of(best[i], true);
        news.index = number / request->shown.best_of * request->shown.n + i;
        dialect_show(request->run, &news, NULL);
    }
}

void request_answer(struct request *request, struct text *out)
{
    struct dialect_end end = end_of(request);
    struct text extra = {0};

    if (request->pool.pooling) {
        request_answer_pool(request, &end, out);
        return;
    }
    for (uint32_t i = 0; i < request->choice_count; i += request->shown.best_of)
        tell_choices(request, i);
    append_head_extra(request->choices, true, &extra);
    end.extra = &extra;
    dialect_end_whole(request->run, &end, out);
    text_free(&extra);
}

void request_answer_end(const struct request *request, struct text *out)
{
    const struct dialect_end end = end_of(request);

    dialect_end_stream(request->run, &end, out);
}
