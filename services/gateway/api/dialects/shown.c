// shown.c: see shown.h.
#include "services/gateway/api/dialects/shown.h"

#include <stdlib.h>

#include "common/base/checked.h"

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

bool shown_call_has_news(const struct shown_call *call)
{
    return (!call->head_shown || call->arguments.bytes > 0) && (!call->is_custom || call->is_whole);
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

static bool grow_tokens(void **items, uint32_t count, uint32_t *capacity, size_t item_bytes)
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
    if (!grow_tokens((void **)&tokens->tokens, tokens->count, &tokens->capacity, sizeof *tokens->tokens)) {
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
    tokens->failed |= tokens->bytes.failed;
}

void shown_tokens_add_top(struct shown_tokens *tokens, const char *data, size_t bytes, float logprob)
{
    if (tokens->count == 0 ||
        !grow_tokens((void **)&tokens->tops, tokens->top_count, &tokens->top_capacity, sizeof *tokens->tops)) {
        tokens->failed = true;
        return;
    }
    tokens->tops[tokens->top_count++] =
        (struct shown_top){.offset = (uint32_t)tokens->bytes.bytes, .bytes = (uint32_t)bytes, .logprob = logprob};
    tokens->tokens[tokens->count - 1].top_count++;
    text_append(&tokens->bytes, data, bytes);
    tokens->failed |= tokens->bytes.failed;
}

// --- log-probabilities --------------------------------------------------------------------------------------------
static void append_token(struct text *out, const char *data, size_t bytes, float logprob)
{
    size_t i;

    text_json_bytes_after(out, "{\"token\":", data, bytes);
    text_string(out, ",\"logprob\":");
    text_json_float(out, logprob);
    text_string(out, ",\"bytes\":[");
    for (i = 0; i < bytes; i++)
        text_format(out, i ? ",%u" : "%u", (unsigned char)data[i]);
    text_append(out, "]", 1);
}

void shown_tokens_append(struct text *out, const struct shown_tokens *tokens, const struct shown_token *token)
{
    append_token(out, tokens->bytes.data + token->offset, token->bytes, token->logprob);
    text_string(out, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < token->top_count; i++) {
        const struct shown_top *top = &tokens->tops[token->top_first + i];
        shown_comma(out, i == 0);
        append_token(out, tokens->bytes.data + top->offset, top->bytes, top->logprob);
        text_append(out, "}", 1);
    }
    text_append(out, "]}", 2);
}

void shown_tokens_move_content(struct shown_tokens *tokens, struct text *out)
{
    if (tokens->count == 0 || tokens->tokens[tokens->count - 1].part == TOKEN_UNDECIDED)
        return;
    for (uint32_t i = 0; i < tokens->count; i++)
        if (tokens->tokens[i].part == TOKEN_CONTENT) {
            shown_comma(out, out->bytes == 0);
            shown_tokens_append(out, tokens, &tokens->tokens[i]);
        }
    out->failed |= tokens->failed;
    shown_tokens_clear(tokens);
}
