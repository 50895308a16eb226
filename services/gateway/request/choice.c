// choice.c: one choice of a request: from the mesh's events to the text and scores that a client is shown.
//
//   token ─▶ token log ─▶ detokenizer (whole characters) ─▶ stop strings (holds back) ─▶ visible ─▶ chunk
//                                                       └─▶ of chats with calls or reasoning: choice_answer.c, which passes the content on
//
// Worked example, stop "\n\n", tokens "Hi" "\n" "\n": visible "Hi"; then "\n" is held; then it matches: the choice ends
// with "Hi", reason "stop", and the tokens counted are three.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "services/gateway/request/request_internal.h"

enum { NAME_BYTES = 24 }; // "token_id:" and ten digits

// Takes content: up to a stop string it becomes visible.
static void take_content(struct choice *choice, const char *text, size_t bytes)
{
    const struct request *request = choice->request;

    if (choice->generated_count <= request->sampling.min_tokens)
        text_append(&choice->visible, text, bytes); // stop strings begin behind it
    else if (stop_match_push(&choice->stop, text, bytes, &choice->visible) && request->shown.include_stop)
        text_append(&choice->visible, request->stops[choice->stop.matched].data, request->stops[choice->stop.matched].bytes);
}

bool choice_open(struct choice *choice, const struct language *language)
{
    const struct request *request = choice->request;

    stop_match_init(&choice->stop, request->stops, request->stop_count);
    choice->text_stream = language_stream_open(language);
    choice->generated = malloc((request->max_tokens + 1u) * sizeof *choice->generated);
    choice->echoed = !request->echo;
    choice->stop_token = -1;
    return choice->text_stream && choice->generated && choice_answer_open(choice, take_content);
}

void choice_close(struct choice *choice)
{
    language_stream_close(choice->text_stream);
    stop_match_fini(&choice->stop);
    text_free(&choice->visible);
    shown_tokens_free(&choice->logprobs);
    choice_answer_close(choice);
    free(choice->generated);
    free(choice->pooled);
}

// Counts characters by their first bytes, so that the counts of a character's parts add up to one.
static uint32_t count_chars(const char *data, size_t bytes)
{
    uint32_t count = 0;
    size_t i;

    for (i = 0; i < bytes; i++)
        count += (data[i] & 0xC0) != 0x80;
    return count;
}

// How a token is named beside its log-probability: by its text, or by its id. name has NAME_BYTES.
static const char *name_token(const struct choice *choice, uint32_t id, const char *data, size_t *bytes, char *name)
{
    if (!choice->request->shown.tokens_as_ids)
        return data;
    *bytes = (size_t)snprintf(name, NAME_BYTES, "token_id:%u", id);
    return name;
}

// in_text: whether the token's characters are part of the choice's text. Those of a special token usually are not.
static void show_token(struct choice *choice, const struct language *language, uint32_t id, const float *logprob, bool in_text)
{
    size_t bytes;
    const char *data = language_token(language, id, &bytes);
    const uint32_t chars = in_text ? count_chars(data, bytes) : 0;
    char name[NAME_BYTES];

    data = name_token(choice, id, data, &bytes, name);
    shown_tokens_add(&choice->logprobs, data, bytes, logprob, choice->text_chars);
    choice->text_chars += chars;
}

static void show_top(struct choice *choice, const struct language *language, uint32_t id, float logprob)
{
    size_t bytes;
    const char *data = language_token(language, id, &bytes);
    char name[NAME_BYTES];

    data = name_token(choice, id, data, &bytes, name);
    shown_tokens_add_top(&choice->logprobs, data, bytes, logprob);
}

// A completion's alternatives include the token itself, however unlikely it is.
static void show_itself(struct choice *choice, const struct language *language, uint32_t id, float logprob, bool among_tops)
{
    if (choice->request->kind == API_COMPLETION && choice->request->top_logprobs > 0 && !among_tops)
        show_top(choice, language, id, logprob);
}

// False for a begin-of-text token that the tokenizer added: it is not part of the echoed text.
static bool is_in_echo(const struct choice *choice, const struct language *language, uint32_t i)
{
    const struct text *echo = &choice->prompt->echo;
    size_t bytes;
    const char *data = language_token(language, choice->prompt->ids[i], &bytes);

    return i > 0 || !language_is_special(language, choice->prompt->ids[i]) ||
           (echo->bytes >= bytes && memcmp(echo->data, data, bytes) == 0);
}

// Takes scores of the prompt. They arrive in pieces, and again from other choices and after a resubmission.
static bool take_prompt_scores(const struct choice *choice, const Fastdecode__GenerateEvent *event)
{
    struct request_prompt *prompt = choice->prompt;
    uint32_t most = choice->request->prompt_tops;
    size_t i, j;

    if (!prompt->scores || event->n_prompt == 0)
        return true;
    if (event->prompt_index > prompt->scored_count || event->n_prompt > prompt->count ||
        event->prompt_index + event->n_prompt > prompt->count)
        return false;
    for (i = 0; i < event->n_prompt; i++) {
        const Fastdecode__Token *token = event->prompt[i];
        size_t at = event->prompt_index + i;

        if (at == 0)
            continue; // nothing comes before it, so it has no score
        prompt->scores[at] = token->logprob;
        if (!prompt->tops)
            continue;
        prompt->top_counts[at] = (uint8_t)MIN(token->n_top, most);
        for (j = 0; j < prompt->top_counts[at]; j++)
            prompt->tops[at * most + j] = (struct prompt_top){token->top[j]->token, token->top[j]->logprob};
    }
    prompt->scored_count = MAX(prompt->scored_count, event->prompt_index + (uint32_t)event->n_prompt);
    return true;
}

// Adds the prompt to the answer, once, before the first token.
static void echo_prompt(struct choice *choice, const struct language *language)
{
    const struct request_prompt *prompt = choice->prompt;
    uint32_t i, j;

    if (choice->echoed)
        return;
    choice->echoed = true;
    text_append(&choice->visible, prompt->echo.data, prompt->echo.bytes);
    if (!prompt->scores || !choice->request->logprobs)
        return;
    for (i = 0; i < prompt->count; i++) {
        bool known = i > 0 && i < prompt->scored_count, among = false;
        uint32_t id = prompt->ids[i];
        show_token(choice, language, id, known ? &prompt->scores[i] : NULL, is_in_echo(choice, language, i));
        for (j = 0; known && prompt->tops && j < MIN(prompt->top_counts[i], choice->request->top_logprobs); j++) {
            const struct prompt_top *top = &prompt->tops[(size_t)i * choice->request->prompt_tops + j];
            among |= top->token == id;
            show_top(choice, language, top->token, top->logprob);
        }
        show_itself(choice, language, id, prompt->scores[i], among || !known);
    }
}

// Says what the last tokens with log-probabilities are: content if some has come with the last one, or nothing yet while what is held back may
// become content.
static void decide_parts(struct choice *choice, bool has_come, bool may_come)
{
    for (uint32_t i = choice->logprobs.count;
         i-- > 0 && choice->logprobs.tokens[i].part == TOKEN_UNDECIDED && (has_come || !may_come);)
        choice->logprobs.tokens[i].part = has_come ? TOKEN_CONTENT : TOKEN_OTHER;
}

// Takes a token's text, or its name if it is a control token. False: no memory.
static bool take_text(struct choice *choice, const struct text *piece, uint32_t token, const struct language *language)
{
    const bool was_reasoning = choice->answer && choice_answer_is_reasoning(choice);
    const uint64_t content_bytes = choice->answer ? choice_answer_content_bytes(choice) : 0;
    size_t bytes;
    bool ok;

    if (!choice->answer) {
        take_content(choice, piece->data, piece->bytes);
        decide_parts(choice, true, false);
        return true;
    }
    ok = choice_answer_push(choice, piece->data, piece->bytes);
    if (ok && language_is_special(language, token)) {
        const char *name = language_token(language, token, &bytes);
        ok = choice_answer_push_unit(choice, name, bytes);
    }
    choice->reasoning_tokens += was_reasoning || choice_answer_is_reasoning(choice);
    decide_parts(choice, choice_answer_content_bytes(choice) > content_bytes,
                 !was_reasoning && choice_answer_may_be_content(choice));
    return ok;
}

// Whether it is one of the tokens that the client named; those that end an answer anyway are not said to be the reason.
static bool is_stop_token(const struct choice *choice, const struct language *language, uint32_t token)
{
    const Fastdecode__Sampling *sampling = &choice->request->sampling;

    for (size_t i = 0; i < sampling->n_stop_token; i++)
        if (sampling->stop_token[i] == token)
            return choice->request->ignore_eos || !language_is_end(language, token);
    return false;
}

bool choice_is_over(const struct choice *choice, const struct language *language)
{
    return choice->stop_token >= 0 || (choice->generated_count && !choice->request->ignore_eos &&
                                       language_is_end(language, choice->generated[choice->generated_count - 1]));
}

static bool take_token(struct choice *choice, const Fastdecode__Token *token, bool is_end, const struct language *language)
{
    struct text *piece = &choice->request->owner->piece;
    size_t j;

    if (token->token >= language_vocab(language))
        return false;
    choice->generated[choice->generated_count++] = token->token;
    choice->logprob_sum += (double)token->logprob;
    if (is_end)
        return true; // the end token is counted and not shown
    text_clear(piece);
    if (is_stop_token(choice, language, token->token))
        choice->stop_token = token->token; // it is counted, and its text is not shown
    else
        language_stream_push(choice->text_stream, token->token, piece);
    if (choice->request->logprobs) {
        bool among = false;
        show_token(choice, language, token->token, &token->logprob,
                   piece->bytes > 0 || !language_is_special(language, token->token));
        for (j = 0; j < MIN(token->n_top, choice->request->top_logprobs); j++) {
            among |= token->top[j]->token == token->token;
            show_top(choice, language, token->top[j]->token, token->top[j]->logprob);
        }
        show_itself(choice, language, token->token, token->logprob, among);
    }
    if (!take_text(choice, piece, token->token, language))
        return false;
    return !piece->failed && !choice->visible.failed && !choice->stop.held.failed && !choice->logprobs.failed;
}

bool choice_is_cut(const struct choice *choice) { return choice->stop.matched >= 0 || choice_answer_is_done(choice); }

bool choice_take(struct choice *choice, const Fastdecode__GenerateEvent *event, const struct language *language)
{
    size_t i;

    if (!take_prompt_scores(choice, event))
        return false;
    if (event->pooled.len && choice->request->pooling && !choice_take_pooled(choice, &event->pooled))
        return false;
    if (event->n_tokens > 0 || event->finish != FASTDECODE__FINISH__FINISH_UNSPECIFIED)
        echo_prompt(choice, language);
    choice->cached_tokens = MAX(choice->cached_tokens, event->cached_tokens);
    if (event->n_tokens > 0 && event->index > choice->generated_count)
        return false;
    for (i = 0; i < event->n_tokens && !choice_is_cut(choice) && choice->stop_token < 0; i++) {
        bool is_end = event->finish == FASTDECODE__FINISH__FINISH_EOS && i + 1 == event->n_tokens &&
                      language_is_special(language, event->tokens[i]->token);

        if (event->index + i < choice->generated_count)
            continue; // known already
        if (choice->generated_count >= choice->request->max_tokens)
            return false;
        if (!take_token(choice, event->tokens[i], is_end, language))
            return false;
    }
    return true;
}

void choice_finish(struct choice *choice, const char *finish_reason, const char *stop_reason, size_t stop_reason_bytes)
{
    struct text tail = {0};

    echo_prompt(choice, choice->request->owner->config.language); // if no token ever came
    if (choice->stop.matched < 0) {
        language_stream_finish(choice->text_stream, &tail);
        if (choice->answer) {
            const uint64_t content_bytes = choice_answer_content_bytes(choice);
            (void)choice_answer_push(choice, tail.data, tail.bytes);
            choice_answer_finish(choice, strcmp(finish_reason, "length") == 0);
            decide_parts(choice, choice_answer_content_bytes(choice) > content_bytes, false);
        } else {
            take_content(choice, tail.data, tail.bytes);
        }
        if (choice->stop.matched < 0)
            stop_match_finish(&choice->stop, &choice->visible);
        text_free(&tail);
    }
    if (choice->answer)
        choice_answer_end_calls(choice);
    if (choice->stop_token >= 0)
        finish_reason = "stop", stop_reason = NULL;
    if (choice_answer_has_calls(choice) && strcmp(finish_reason, "stop") == 0)
        finish_reason = "tool_calls";
    if (choice->stop.matched >= 0) {
        const struct stop_string *string = &choice->request->stops[choice->stop.matched];
        finish_reason = "stop";
        stop_reason = string->data;
        stop_reason_bytes = string->bytes;
    }
    choice->finish_reason = finish_reason;
    choice->stop_reason = stop_reason;
    choice->stop_reason_bytes = stop_reason_bytes;
    choice->state = CHOICE_DONE;
}

bool choice_has_news(const struct choice *choice)
{
    return choice->visible.bytes > 0 || choice->logprobs.count > 0 || choice->finish_reason || choice_answer_has_news(choice) ||
           (choice->request->shown.token_ids && choice->ids_shown < choice->generated_count);
}

void choice_show(struct choice *choice, struct text *out)
{
    const struct request *request = choice->request;
    struct respond_usage usage = request->shown.usage_in_chunks ? request_usage(request) : (struct respond_usage){0};
    struct respond_choice shown = {.index = choice->index, .usage = request->shown.usage_in_chunks ? &usage : NULL};
    const bool has_ids = request->shown.token_ids && choice->ids_shown < choice->generated_count;
    struct text *extra = &request->owner->extra;

    text_clear(extra);
    if (request->kind == API_CHAT && !choice->role_sent) {
        request_extra_head(choice, false, extra);
        shown.first = true;
        shown.head_extra = extra;
        respond_chunk(out, &request->head, &shown);
        shown.first = false;
        shown.head_extra = NULL;
        text_clear(extra);
        choice->role_sent = true;
    }
    choice_answer_show_before(choice, shown.usage, out);
    shown.text = choice->visible.data;
    shown.bytes = choice->visible.bytes;
    shown.logprobs = request->logprobs ? &choice->logprobs : NULL;
    shown.logprob_count = choice->logprobs.count;
    request_extra_choice(choice, false, extra);
    shown.extra = extra;
    if (request->kind == API_CHAT && (shown.bytes > 0 || shown.logprob_count > 0 || (choice->answer && has_ids)) &&
        (choice->finish_reason || choice->answer)) {
        respond_chunk(out, &request->head, &shown); // the end comes in a chunk of its own
        shown.bytes = 0;
        shown.logprobs = NULL;
        shown.extra = NULL;
    }
    choice_answer_show_after(choice, shown.usage, out);
    shown.finish_reason = choice->finish_reason;
    shown.stop_reason = choice->stop_reason;
    shown.stop_reason_bytes = choice->stop_reason_bytes;
    shown.is_stop_token = choice->finish_reason && choice->stop_token >= 0;
    shown.stop_token = (uint32_t)choice->stop_token;
    if (!choice->answer || choice->finish_reason) // otherwise all there is has been shown
        respond_chunk(out, &request->head, &shown);
    text_clear(&choice->visible);
    shown_tokens_clear(&choice->logprobs);
}
