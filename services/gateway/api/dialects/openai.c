// openai.c: OpenAI's completions, chats and embeddings, and /v1/rerank, which no other form has to be translated to.
//
// A token with a log-probability may be part of a character. Chat answers carry its bytes beside a text with U+FFFD; completions have no such
// field and write them as "bytes:\\xe2\\x82", as the service whose API this is does. Reasoning has two names, as two generations of servers
// and clients call it: reasoning_content and reasoning.
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "services/gateway/api/dialects/dialect.h"
#include "services/gateway/http/http.h"

static bool translate(struct dialect_ask *ask, struct api_error *error)
{
    (void)error;
    ask->chat = json_incref(ask->body);
    snprintf(ask->id, sizeof ask->id, "%s-%s",
             ask->kind == API_CHAT     ? "chatcmpl"
             : ask->kind == API_EMBED  ? "embd"
             : ask->kind == API_RERANK ? "rerank"
                                       : "cmpl",
             ask->request_id);
    return true;
}

// --- messages: reasoning and calls ------------------------------------------------------------------------------------
static void append_reasoning(struct text *out, const char *reasoning, size_t bytes)
{
    text_json_bytes_after(out, "\"reasoning_content\":", reasoning, bytes);
    text_json_bytes_after(out, ",\"reasoning\":", reasoning, bytes);
}

static void call_head(struct text *out, const struct shown_call *call)
{
    text_json_after(out, "\"id\":", call->id);
    text_string(out,
                call->is_custom ? ",\"type\":\"custom\",\"custom\":{\"name\":" : ",\"type\":\"function\",\"function\":{\"name\":");
    text_json(out, call->name.data, call->name.bytes);
    text_json_bytes_after(out, call->is_custom ? ",\"input\":" : ",\"arguments\":", call->arguments.data, call->arguments.bytes);
    text_append(out, "}", 1);
}

static void call_delta(struct text *out, const struct shown_call *call, uint32_t index)
{
    text_format(out, "\"tool_calls\":[{\"index\":%u,", index);
    if (call->head_shown) {
        text_json_bytes_after(out, "\"function\":{\"arguments\":", call->arguments.data, call->arguments.bytes);
        text_append(out, "}", 1);
    } else {
        call_head(out, call);
    }
    text_string(out, "}]");
}

// Appends "message":{...}: role, content, reasoning, calls. answer: NULL: content only.
static void append_message(struct text *out, const char *content, size_t bytes, const struct shown_answer *answer)
{
    const bool calls = answer && answer->call_count > 0, thinks = answer && answer->reasoning.bytes > 0;

    text_string(out, "\"message\":{\"role\":\"assistant\",\"content\":");
    if (bytes == 0 && calls)
        text_string(out, "null");
    else
        text_json(out, content, bytes);
    text_string(out, ",\"refusal\":null");
    if (thinks) {
        text_append(out, ",", 1);
        append_reasoning(out, answer->reasoning.data, answer->reasoning.bytes);
    }
    for (uint32_t i = 0; calls && i < answer->call_count; i++) {
        text_string(out, i == 0 ? ",\"tool_calls\":[{" : ",{");
        call_head(out, &answer->calls[i]);
        text_append(out, "}", 1);
    }
    text_string(out, calls ? "]}" : "}");
}

// --- log-probabilities --------------------------------------------------------------------------------------------
static void chat_logprobs(struct text *out, const struct shown_tokens *tokens, uint32_t count)
{
    text_string(out, "{\"content\":[");
    for (uint32_t i = 0; i < count; i++) {
        shown_comma(out, i == 0);
        shown_tokens_append(out, tokens, &tokens->tokens[i]);
    }
    text_string(out, "],\"refusal\":null}");
}

// A token's text as a JSON string, unambiguous even where it is part of a character.
static void completion_token(struct text *out, const char *data, size_t bytes)
{
    size_t i = 0, length;

    while (i < bytes && (length = text_utf8_length(data + i, bytes - i)) > 0)
        i += length;
    if (i == bytes) {
        text_json(out, data, bytes);
        return;
    }
    text_string(out, "\"bytes:");
    for (i = 0; i < bytes; i++)
        text_format(out, "\\\\x%02x", (unsigned char)data[i]);
    text_append(out, "\"", 1);
}

// Two tokens may have one text, and an object has a name once: the better one's.
static bool is_named_before(const struct shown_tokens *tokens, const struct shown_token *token, uint32_t j)
{
    const struct shown_top *tops = &tokens->tops[token->top_first];
    uint32_t i;

    for (i = 0; i < j; i++)
        if (tops[i].bytes == tops[j].bytes &&
            memcmp(tokens->bytes.data + tops[i].offset, tokens->bytes.data + tops[j].offset, tops[j].bytes) == 0)
            return true;
    return false;
}

static void completion_tops(struct text *out, const struct shown_tokens *tokens, const struct shown_token *token)
{
    uint32_t j;

    if (!token->has_logprob) {
        text_string(out, "null");
        return;
    }
    text_append(out, "{", 1);
    for (j = 0; j < token->top_count; j++) {
        const struct shown_top *top = &tokens->tops[token->top_first + j];
        if (is_named_before(tokens, token, j))
            continue;
        if (j)
            text_append(out, ",", 1);
        completion_token(out, tokens->bytes.data + top->offset, top->bytes);
        text_append(out, ":", 1);
        text_json_float(out, top->logprob);
    }
    text_append(out, "}", 1);
}

static void completion_logprobs(struct text *out, const struct shown_tokens *tokens, uint32_t count)
{
    bool tops = false;
    uint32_t i;

    for (i = 0; i < count; i++)
        tops |= tokens->tokens[i].top_count > 0;
    text_string(out, "{\"tokens\":[");
    for (i = 0; i < count; i++) {
        if (i)
            text_append(out, ",", 1);
        completion_token(out, tokens->bytes.data + tokens->tokens[i].offset, tokens->tokens[i].bytes);
    }
    text_string(out, "],\"token_logprobs\":[");
    for (i = 0; i < count; i++) {
        if (i)
            text_append(out, ",", 1);
        if (tokens->tokens[i].has_logprob)
            text_json_float(out, tokens->tokens[i].logprob);
        else
            text_string(out, "null");
    }
    text_string(out, "],\"top_logprobs\":");
    if (tops) {
        for (i = 0; i < count; i++) {
            text_append(out, i ? "," : "[", 1);
            completion_tops(out, tokens, &tokens->tokens[i]);
        }
        text_append(out, "]", 1);
    } else {
        text_string(out, "null");
    }
    text_string(out, ",\"text_offset\":[");
    for (i = 0; i < count; i++)
        text_format(out, i ? ",%u" : "%u", tokens->tokens[i].text_offset);
    text_string(out, "]}");
}

// --- answers ------------------------------------------------------------------------------------------------------
static void append_head(struct text *out, const struct dialect_run *run, const char *object)
{
    text_json_after(out, "{\"id\":", run->id);
    text_format(out, ",\"object\":\"%s\",\"created\":%llu,\"model\":", object, (unsigned long long)run->created_s);
    text_json_string(out, run->model);
    if (run->service_tier)
        text_format(out, ",\"service_tier\":\"%s\"", run->service_tier);
    text_string(out, ",\"system_fingerprint\":null,\"choices\":[");
}

static void append_extra(struct text *out, const struct text *extra)
{
    if (extra)
        text_append(out, extra->data, extra->bytes);
}

static void append_usage(struct text *out, const struct dialect_usage *usage)
{
    text_format(out,
                "{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":%llu,"
                "\"prompt_tokens_details\":{\"cached_tokens\":%llu}",
                (unsigned long long)usage->prompt_tokens, (unsigned long long)usage->completion_tokens,
                (unsigned long long)(usage->prompt_tokens + usage->completion_tokens), (unsigned long long)usage->cached_tokens);
    if (usage->has_reasoning)
        text_format(out, ",\"completion_tokens_details\":{\"reasoning_tokens\":%llu}", (unsigned long long)usage->reasoning_tokens);
    text_append(out, "}", 1);
}

// Ends a choice. scores: NULL: none are shown. ends: it is over, and its reasons are told.
static void append_ending(const struct dialect_run *run, const struct dialect_news *news, const struct shown_tokens *scores,
                          bool ends, const struct text *extra, struct text *out)
{
    const char *finish_reason = ends ? news->finish_reason : NULL;

    text_string(out, ",\"logprobs\":");
    if (!scores || (scores->count == 0 && !finish_reason))
        text_string(out, "null");
    else if (run->kind == API_CHAT)
        chat_logprobs(out, scores, scores->count);
    else
        completion_logprobs(out, scores, scores->count);
    text_json_after(out, ",\"finish_reason\":", finish_reason);
    text_string(out, ",\"stop_reason\":");
    if (ends && news->stop_reason)
        text_json(out, news->stop_reason, news->stop_reason_bytes);
    else if (finish_reason && news->is_stop_token)
        text_format(out, "%u", news->stop_token);
    else
        text_string(out, "null");
    append_extra(out, extra);
    text_append(out, "}", 1);
}

// --- streams ------------------------------------------------------------------------------------------------------
static void begin_chunk(const struct dialect_run *run, uint32_t index, struct text *out)
{
    text_string(out, "data: ");
    append_head(out, run, run->kind == API_CHAT ? "chat.completion.chunk" : "text_completion");
    text_format(out, run->kind == API_CHAT ? "{\"index\":%u,\"delta\":{" : "{\"index\":%u,\"text\":", index);
}

static void end_chunk(const struct dialect_run *run, const struct dialect_news *news, const struct shown_tokens *scores, bool ends,
                      const struct text *extra, const struct text *head_extra, struct text *out)
{
    if (run->kind == API_CHAT)
        text_append(out, "}", 1);
    append_ending(run, news, scores, ends, extra, out);
    text_append(out, "]", 1);
    append_extra(out, head_extra);
    if (news->usage) {
        text_string(out, ",\"usage\":");
        append_usage(out, news->usage);
    } else if (run->include_usage) {
        text_string(out, ",\"usage\":null");
    }
    text_string(out, "}\n\n");
}

static void append_content(const struct text *text, struct text *out)
{
    text_json_bytes_after(out, "\"content\":", text->data, text->bytes);
}

// Shows what is thought, before the content.
static void show_reasoning(const struct dialect_run *run, const struct dialect_news *news, struct text *out)
{
    struct text *reasoning = &news->answer->reasoning;

    if (reasoning->bytes == 0)
        return;
    begin_chunk(run, news->index, out);
    append_reasoning(out, reasoning->data, reasoning->bytes);
    end_chunk(run, news, NULL, false, NULL, NULL, out);
    text_clear(reasoning);
}

static void show_calls(const struct dialect_run *run, const struct dialect_news *news, struct text *out)
{
    for (uint32_t i = 0; i < news->answer->call_count; i++) {
        struct shown_call *call = &news->answer->calls[i];
        if (!shown_call_has_news(call))
            continue;
        begin_chunk(run, news->index, out);
        call_delta(out, call, i);
        end_chunk(run, news, NULL, false, NULL, NULL, out);
        call->head_shown = true;
        text_clear(&call->arguments);
    }
}

// Chats name the role first, and their end comes in a chunk of its own.
static void show_chunks(const struct dialect_run *run, const struct dialect_news *news, struct text *out)
{
    const bool is_chat = run->kind == API_CHAT;
    const struct shown_tokens *scores = news->scored ? news->tokens : NULL;
    const struct text *extra = news->extra;

    if (is_chat && news->is_first) {
        begin_chunk(run, news->index, out);
        text_string(out, "\"role\":\"assistant\",\"content\":\"\"");
        end_chunk(run, news, NULL, false, NULL, news->head_extra, out);
    }
    if (news->answer)
        show_reasoning(run, news, out);
    if (is_chat && (news->text->bytes > 0 || news->tokens->count > 0 || (news->answer && news->has_ids)) &&
        (news->finish_reason || news->answer)) {
        begin_chunk(run, news->index, out);
        append_content(news->text, out);
        end_chunk(run, news, scores, false, extra, NULL, out);
        text_clear(news->text);
        scores = NULL;
        extra = NULL;
    }
    if (news->answer)
        show_calls(run, news, out);
    if (news->answer && !news->finish_reason)
        return; // all there is has been shown
    begin_chunk(run, news->index, out);
    if (!is_chat)
        text_json(out, news->text->data, news->text->bytes);
    else if (news->text->bytes > 0 || !news->finish_reason)
        append_content(news->text, out);
    end_chunk(run, news, scores, true, extra, NULL, out);
}

static void end_stream(struct dialect_run *run, const struct dialect_end *end, struct text *out)
{
    if (run->include_usage) {
        text_string(out, "data: ");
        append_head(out, run, run->kind == API_CHAT ? "chat.completion.chunk" : "text_completion");
        text_string(out, "],\"usage\":");
        append_usage(out, &end->usage);
        text_string(out, "}\n\n");
    }
    text_string(out, "data: [DONE]\n\n");
}

static void fail_stream(struct dialect_run *run, const struct api_error *error, struct text *out)
{
    (void)run;
    text_string(out, "data: ");
    api_error_append(error, out);
    text_string(out, "\n\ndata: [DONE]\n\n");
}

// --- whole answers ------------------------------------------------------------------------------------------------
static void add_choice(struct dialect_run *run, const struct dialect_news *news)
{
    struct text *out = &run->whole;

    if (out->bytes == 0)
        append_head(out, run, run->kind == API_CHAT ? "chat.completion" : "text_completion");
    else
        text_append(out, ",", 1);
    text_format(out, "{\"index\":%u,", news->index);
    if (run->kind == API_CHAT) {
        append_message(out, news->text->data, news->text->bytes, news->answer);
    } else {
        text_json_bytes_after(out, "\"text\":", news->text->data, news->text->bytes);
    }
    append_ending(run, news, news->scored ? news->tokens : NULL, true, news->extra, out);
    out->failed |= news->extra && news->extra->failed; // a stream's chunk goes without: it must end
}

// The answer may be large: it is moved.
static void whole(struct dialect_run *run, const struct dialect_end *end, struct text *out)
{
    text_append(&run->whole, "]", 1);
    append_extra(&run->whole, end->extra);
    run->whole.failed |= end->extra && end->extra->failed;
    text_string(&run->whole, ",\"usage\":");
    append_usage(&run->whole, &end->usage);
    text_string(&run->whole, "}\n");
    text_free(out);
    *out = run->whole;
    run->whole = (struct text){0};
}

static void show(struct dialect_run *run, const struct dialect_news *news, struct text *out)
{
    if (out)
        show_chunks(run, news, out);
    else
        add_choice(run, news);
    text_clear(news->text);
    shown_tokens_clear(news->tokens);
}

// --- vectors and ranks --------------------------------------------------------------------------------------------
static void append_pool_usage(struct text *out, const struct dialect_usage *usage)
{
    text_format(out, "\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu,\"prompt_tokens_details\":{\"cached_tokens\":%llu}}",
                (unsigned long long)usage->prompt_tokens, (unsigned long long)usage->prompt_tokens,
                (unsigned long long)usage->cached_tokens);
}

static void vectors(struct dialect_run *run, const struct dialect_end *end, const struct dialect_vector *items, uint32_t count,
                    struct text *out)
{
    text_string(out, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < count; i++) {
        text_format(out, "%s{\"object\":\"embedding\",\"index\":%u,\"embedding\":", i ? "," : "", i);
        text_append(out, items[i].json, items[i].bytes);
        text_append(out, "}", 1);
    }
    text_json_after(out, "],\"model\":", run->model);
    text_append(out, ",", 1);
    append_pool_usage(out, &end->usage);
    text_string(out, "}\n");
}

static void ranks(struct dialect_run *run, const struct dialect_end *end, const struct dialect_rank *items, uint32_t count,
                  struct text *out)
{
    text_json_after(out, "{\"id\":", run->id);
    text_json_after(out, ",\"object\":\"list\",\"model\":", run->model);
    text_string(out, ",\"results\":[");
    for (uint32_t i = 0; i < count; i++) {
        text_format(out, "%s{\"index\":%u,\"relevance_score\":%.9g", i ? "," : "", items[i].index, items[i].score);
        if (items[i].document) {
            text_json_bytes_after(out, ",\"document\":{\"text\":", items[i].document->data ? items[i].document->data : "",
                                  items[i].document->bytes);
            text_append(out, "}", 1);
        }
        text_append(out, "}", 1);
    }
    text_string(out, "],");
    append_pool_usage(out, &end->usage);
    text_string(out, "}\n");
}

const struct dialect dialect_openai = {.stream_type = HTTP_EVENTS,
                                       .keep_alive = ": keep-alive\n\n",
                                       .translate = translate,
                                       .show = show,
                                       .end = end_stream,
                                       .error = fail_stream,
                                       .whole = whole,
                                       .vectors = vectors,
                                       .ranks = ranks,
                                       .refuse = api_error_append};
