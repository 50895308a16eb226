// respond.c: see respond.h.
//
// A token with a log-probability may be part of a character. Chat answers carry its bytes beside a text with U+FFFD;
// completions have no such field and write them as "bytes:\xe2\x82", as the service whose API this is does.
#include "services/gateway/api/dialects/respond.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "services/gateway/api/dialects/dialect.h"

// Messages of chats: what is thought, what is said, which functions are called.
// Reasoning has two names, as two generations of servers and clients call it: reasoning_content and reasoning.

enum { FIRST_CALLS = 4 };

void shown_answer_free(struct shown_answer *answer)
{
    for (uint32_t i = 0; i < answer->call_count; i++) {
        text_free(&answer->calls[i].name);
        text_free(&answer->calls[i].arguments);
    }
    free(answer->calls);
    text_free(&answer->reasoning);
    *answer = (struct shown_answer){0};
}

struct shown_call *shown_answer_add_call(struct shown_answer *answer)
{
    if (answer->call_count == answer->call_capacity) {
        uint32_t capacity = MAX(answer->call_capacity * 2, (uint32_t)FIRST_CALLS);
        struct shown_call *grown = realloc(answer->calls, capacity * sizeof *grown);
        if (!grown)
            return NULL;
        answer->calls = grown;
        answer->call_capacity = capacity;
    }
    answer->calls[answer->call_count] = (struct shown_call){0};
    return &answer->calls[answer->call_count++];
}

void respond_reasoning(struct text *out, const char *reasoning, size_t bytes)
{
    text_string(out, "\"reasoning_content\":");
    text_json(out, reasoning, bytes);
    text_string(out, ",\"reasoning\":");
    text_json(out, reasoning, bytes);
}

bool shown_call_has_news(const struct shown_call *call)
{
    return (!call->head_shown || call->arguments.bytes > 0) && (!call->is_custom || call->is_whole);
}

static void call_head(struct text *out, const struct shown_call *call)
{
    text_string(out, "\"id\":");
    text_json_string(out, call->id);
    text_string(out,
                call->is_custom ? ",\"type\":\"custom\",\"custom\":{\"name\":" : ",\"type\":\"function\",\"function\":{\"name\":");
    text_json(out, call->name.data, call->name.bytes);
    text_string(out, call->is_custom ? ",\"input\":" : ",\"arguments\":");
    text_json(out, call->arguments.data, call->arguments.bytes);
    text_append(out, "}", 1);
}

void respond_call_delta(struct text *out, const struct shown_call *call, uint32_t index)
{
    text_format(out, "\"tool_calls\":[{\"index\":%u,", index);
    if (call->head_shown) {
        text_string(out, "\"function\":{\"arguments\":");
        text_json(out, call->arguments.data, call->arguments.bytes);
        text_append(out, "}", 1);
    } else {
        call_head(out, call);
    }
    text_string(out, "}]");
}

// Appends "message":{...}: role, content, reasoning, calls. answer: NULL: content only.
static void respond_message(struct text *out, const char *content, size_t bytes, const struct shown_answer *answer)
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
        respond_reasoning(out, answer->reasoning.data, answer->reasoning.bytes);
    }
    for (uint32_t i = 0; calls && i < answer->call_count; i++) {
        text_string(out, i == 0 ? ",\"tool_calls\":[{" : ",{");
        call_head(out, &answer->calls[i]);
        text_append(out, "}", 1);
    }
    text_string(out, calls ? "]}" : "}");
}

// --- tokens with scores -------------------------------------------------------------------------------------------
void shown_tokens_free(struct shown_tokens *tokens)
{
    text_free(&tokens->bytes);
    free(tokens->tokens);
    free(tokens->tops);
    *tokens = (struct shown_tokens){0};
}

void shown_tokens_clear(struct shown_tokens *tokens)
{
    text_clear(&tokens->bytes);
    tokens->count = 0;
    tokens->top_count = 0;
}

static bool grow(void **items, uint32_t count, uint32_t *capacity, size_t item_bytes)
{
    uint32_t wanted = *capacity ? *capacity * 2 : 8;
    void *grown;

    if (count < *capacity)
        return true;
    grown = realloc(*items, wanted * item_bytes);
    if (!grown)
        return false;
    *items = grown;
    *capacity = wanted;
    return true;
}

void shown_tokens_add(struct shown_tokens *tokens, const char *data, size_t bytes, const float *logprob, uint32_t text_offset)
{
    if (!grow((void **)&tokens->tokens, tokens->count, &tokens->capacity, sizeof *tokens->tokens)) {
        tokens->failed = true;
        return;
    }
    tokens->tokens[tokens->count++] = (struct shown_token){
        .offset = (uint32_t)tokens->bytes.bytes,
        .bytes = (uint32_t)bytes,
        .logprob = logprob ? *logprob : 0,
        .has_logprob = logprob != NULL,
        .text_offset = text_offset,
        .top_first = tokens->top_count,
    };
    text_append(&tokens->bytes, data, bytes);
}

void shown_tokens_add_top(struct shown_tokens *tokens, const char *data, size_t bytes, float logprob)
{
    if (tokens->count == 0 || !grow((void **)&tokens->tops, tokens->top_count, &tokens->top_capacity, sizeof *tokens->tops)) {
        tokens->failed = true;
        return;
    }
    tokens->tops[tokens->top_count++] =
        (struct shown_top){.offset = (uint32_t)tokens->bytes.bytes, .bytes = (uint32_t)bytes, .logprob = logprob};
    tokens->tokens[tokens->count - 1].top_count++;
    text_append(&tokens->bytes, data, bytes);
}

// --- log-probabilities --------------------------------------------------------------------------------------------
static void chat_token(struct text *out, const char *data, size_t bytes, float logprob)
{
    size_t i;

    text_string(out, "{\"token\":");
    text_json(out, data, bytes);
    text_string(out, ",\"logprob\":");
    text_json_float(out, logprob);
    text_string(out, ",\"bytes\":[");
    for (i = 0; i < bytes; i++)
        text_format(out, i ? ",%u" : "%u", (unsigned char)data[i]);
    text_append(out, "]", 1);
}

static void chat_entry(struct text *out, const struct shown_tokens *tokens, const struct shown_token *token)
{
    chat_token(out, tokens->bytes.data + token->offset, token->bytes, token->logprob);
    text_string(out, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < token->top_count; i++) {
        const struct shown_top *top = &tokens->tops[token->top_first + i];
        dialect_comma(out, i == 0);
        chat_token(out, tokens->bytes.data + top->offset, top->bytes, top->logprob);
        text_append(out, "}", 1);
    }
    text_append(out, "]}", 2);
}

static void chat_logprobs(struct text *out, const struct shown_tokens *tokens, uint32_t count)
{
    text_string(out, "{\"content\":[");
    for (uint32_t i = 0; i < count; i++) {
        dialect_comma(out, i == 0);
        chat_entry(out, tokens, &tokens->tokens[i]);
    }
    text_string(out, "],\"refusal\":null}");
}

void respond_content_tokens(struct text *out, struct shown_tokens *tokens)
{
    if (tokens->count == 0 || tokens->tokens[tokens->count - 1].part == TOKEN_UNDECIDED)
        return;
    for (uint32_t i = 0; i < tokens->count; i++)
        if (tokens->tokens[i].part == TOKEN_CONTENT) {
            dialect_comma(out, out->bytes == 0);
            chat_entry(out, tokens, &tokens->tokens[i]);
        }
    out->failed |= tokens->failed;
    shown_tokens_clear(tokens);
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
static void head(struct text *out, const struct respond_head *about, const char *object)
{
    text_string(out, "{\"id\":");
    text_json_string(out, about->id);
    text_format(out, ",\"object\":\"%s\",\"created\":%llu,\"model\":", object, (unsigned long long)about->created_s);
    text_json_string(out, about->model);
    if (about->service_tier)
        text_format(out, ",\"service_tier\":\"%s\"", about->service_tier);
    text_string(out, ",\"system_fingerprint\":null,\"choices\":[");
}

static void append_extra(struct text *out, const struct text *extra)
{
    if (extra)
        text_append(out, extra->data, extra->bytes);
}

static void ending(struct text *out, const struct respond_head *about, const struct respond_choice *choice)
{
    text_string(out, ",\"logprobs\":");
    if (!choice->logprobs || (choice->logprob_count == 0 && !choice->finish_reason))
        text_string(out, "null");
    else if (about->kind == API_CHAT)
        chat_logprobs(out, choice->logprobs, choice->logprob_count);
    else
        completion_logprobs(out, choice->logprobs, choice->logprob_count);
    text_string(out, ",\"finish_reason\":");
    if (choice->finish_reason)
        text_json_string(out, choice->finish_reason);
    else
        text_string(out, "null");
    text_string(out, ",\"stop_reason\":");
    if (choice->stop_reason)
        text_json(out, choice->stop_reason, choice->stop_reason_bytes);
    else if (choice->is_stop_token)
        text_format(out, "%u", choice->stop_token);
    else
        text_string(out, "null");
    append_extra(out, choice->extra);
    text_append(out, "}", 1);
}

static void usage_text(struct text *out, const struct respond_usage *usage)
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

void respond_chunk(struct text *out, const struct respond_head *about, const struct respond_choice *choice)
{
    text_string(out, "data: ");
    head(out, about, about->kind == API_CHAT ? "chat.completion.chunk" : "text_completion");
    text_format(out, "{\"index\":%u,", choice->index);
    if (about->kind == API_CHAT) {
        text_string(out, "\"delta\":{");
        if (choice->first)
            text_string(out, "\"role\":\"assistant\",\"content\":\"\"");
        else if (choice->delta)
            text_append(out, choice->delta->data, choice->delta->bytes);
        else if (choice->bytes > 0 || !choice->finish_reason) {
            text_string(out, "\"content\":");
            text_json(out, choice->text, choice->bytes);
        }
        text_append(out, "}", 1);
    } else {
        text_string(out, "\"text\":");
        text_json(out, choice->text, choice->bytes);
    }
    ending(out, about, choice);
    text_append(out, "]", 1);
    append_extra(out, choice->head_extra);
    if (choice->usage) {
        text_string(out, ",\"usage\":");
        usage_text(out, choice->usage);
    } else if (about->include_usage) {
        text_string(out, ",\"usage\":null");
    }
    text_string(out, "}\n\n");
}

void respond_usage_chunk(struct text *out, const struct respond_head *about, const struct respond_usage *usage)
{
    text_string(out, "data: ");
    head(out, about, about->kind == API_CHAT ? "chat.completion.chunk" : "text_completion");
    text_string(out, "],\"usage\":");
    usage_text(out, usage);
    text_string(out, "}\n\n");
}

void respond_whole_begin(struct text *out, const struct respond_head *about)
{
    head(out, about, about->kind == API_CHAT ? "chat.completion" : "text_completion");
}

void respond_whole_choice(struct text *out, const struct respond_head *about, const struct respond_choice *choice, bool first)
{
    text_format(out, first ? "{\"index\":%u," : ",{\"index\":%u,", choice->index);
    if (about->kind == API_CHAT) {
        respond_message(out, choice->text, choice->bytes, choice->answer);
    } else {
        text_string(out, "\"text\":");
        text_json(out, choice->text, choice->bytes);
    }
    ending(out, about, choice);
}

void respond_whole_end(struct text *out, const struct text *extra, const struct respond_usage *usage)
{
    text_append(out, "]", 1);
    append_extra(out, extra);
    text_string(out, ",\"usage\":");
    usage_text(out, usage);
    text_string(out, "}\n");
}
