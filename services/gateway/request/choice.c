// choice.c: one choice of a request: from the mesh's events to the text and scores that a client is shown.
//
//   token ─▶ token log ─▶ detokenizer (whole characters) ─▶ stop strings (holds back) ─▶ visible ─▶ chunk
//                                                       └─▶ of chats with calls or reasoning: choice_answer, which passes the content on
//
// Worked example, stop "\n\n", tokens "Hi" "\n" "\n": visible "Hi"; then "\n" is held; then it matches: the choice ends
// with "Hi", reason "stop", and the tokens counted are three.
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/schema/schema.h"
#include "services/gateway/answer/grammar.h"
#include "services/gateway/request/request_internal.h"

// Takes content: up to a stop string it becomes visible.
static void take_content(struct choice *choice, const char *text, size_t bytes)
{
    const struct request *request = choice->request;

    if (choice->log.generated_count <= request->draw.sampling.min_tokens)
        text_append(&choice->text.visible, text, bytes); // stop strings begin behind it
    else if (stop_match_push(&choice->text.stop, text, bytes, &choice->text.visible) && request->shown.include_stop)
        text_append(&choice->text.visible, request->draw.stops[choice->text.stop.matched].data,
                    request->draw.stops[choice->text.stop.matched].bytes);
}

// --- a choice of a chat whose text is more than content --------------------------------------------------------------
//
// It has what the model thinks, and which functions it calls.
//
//   text, control tokens ─▶ parser (services/gateway/answer) ─┬─ content ─▶ stop strings ─▶ visible
//                                                             ├─ reasoning ─▶ shown.reasoning
//                                                             └─ calls ─▶ shown.calls
//
// Stop strings are looked for in the content alone: JSON and thoughts may hold them.

enum { SHORT_ID_LETTERS = 9, ID_LETTERS = 24, ALTERNATIVES_MAX = 64 };

struct choice_answer {
    struct answer_parser *parser;
    struct shown_answer shown;
    uint64_t content_bytes;
    bool failed;
    bool drops_content; // what comes is the beginning of a call that is cut off
};

// --- of a request ---------------------------------------------------------------------------------------------------------
void request_set_notation(const struct api_request *api, const struct language *language, struct request *request)
{
    const bool calls = api->chat.tools && api->chat.tool_choice != API_TOOLS_NONE;

    if (api->kind != API_CHAT)
        return;
    request->reading.notation = language_notation(language, api->chat.chat_template, calls);
    request->reading.include_reasoning = api->chat.include_reasoning;
    request->reading.one_call = !api->chat.parallel_tool_calls || api->chat.tool_choice == API_TOOLS_NAMED;
    request->reading.must_call = calls && (api->chat.tool_choice == API_TOOLS_REQUIRED || api->chat.tool_choice == API_TOOLS_NAMED);
    request->reading.tools = calls ? json_incref(api->chat.tools) : NULL;
    request->reading.custom_tools = calls && api->chat.custom_tools ? json_incref(api->chat.custom_tools) : NULL;
}

void request_free_notation(struct request *request)
{
    json_decref(request->reading.tools);
    json_decref(request->reading.custom_tools);
    request->reading.tools = request->reading.custom_tools = NULL;
}

// --- what the parser asks -------------------------------------------------------------------------------------------------
static const json_t *find_tool(const struct request *request, const char *name, size_t bytes)
{
    for (size_t i = 0; i < json_array_size(request->reading.tools); i++) {
        const json_t *function = json_object_get(json_array_get(request->reading.tools, i), "function");
        const json_t *own = json_object_get(function, "name");
        if (json_string_length(own) == bytes && memcmp(json_string_value(own), name, bytes) == 0)
            return function;
    }
    return NULL;
}

static bool knows(void *arg, const char *name, size_t bytes)
{
    return find_tool(((const struct choice *)arg)->request, name, bytes) != NULL;
}

// Returns the type of a value: no text where no alternative is one. A schema that says "string" itself is for text that is written as it is;
// others may have it as JSON, and nothing is known of them.
static enum answer_type type_in(const json_t *parameters, const json_t *schema, int *left)
{
    const json_t *any = json_object_get(schema, "anyOf");
    const char *reference = json_string_value(json_object_get(schema, "$ref"));

    if (json_object_get(schema, "type"))
        return answer_is_text(schema) ? ANSWER_STRING : ANSWER_OTHER;
    if (--*left <= 0) // of a schema that refers to itself
        return ANSWER_UNKNOWN;
    if (reference)
        return type_in(parameters, grammar_schema_at(parameters, reference), left) == ANSWER_OTHER ? ANSWER_OTHER : ANSWER_UNKNOWN;
    any = any ? any : json_object_get(schema, "oneOf");
    for (size_t i = 0; i < json_array_size(any); i++)
        if (type_in(parameters, json_array_get(any, i), left) != ANSWER_OTHER)
            return ANSWER_UNKNOWN;
    return json_array_size(any) > 0 ? ANSWER_OTHER : ANSWER_UNKNOWN;
}

static enum answer_type type_of(void *arg, const char *name, size_t name_bytes, const char *parameter, size_t parameter_bytes)
{
    const json_t *function = find_tool(((const struct choice *)arg)->request, name, name_bytes);
    const json_t *parameters = json_object_get(function, "parameters");
    char key[API_MAX_FUNCTION_NAME * 4];

    if (parameter_bytes >= sizeof key || memchr(parameter, 0, parameter_bytes))
        return ANSWER_UNKNOWN;
    memcpy(key, parameter, parameter_bytes);
    key[parameter_bytes] = 0;
    int left = ALTERNATIVES_MAX;
    return type_in(parameters, json_object_get(json_object_get(parameters, "properties"), key), &left);
}

// --- what the parser says -------------------------------------------------------------------------------------------------
// An id that no other call of the conversation has. The request's id is not enough for that: clients may give several requests the same.
static void make_id(const struct choice *choice, char *id, size_t id_bytes)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    const bool is_short = answer_has_short_ids(choice->request->reading.notation.family);
    const size_t count = is_short ? SHORT_ID_LETTERS : ID_LETTERS;
    size_t length = is_short ? 0 : (size_t)snprintf(id, id_bytes, "call_");
    uint64_t state;

    if (getrandom(&state, sizeof state, GRND_NONBLOCK) != (ssize_t)sizeof state)
        state = clock_now_ns();
    for (size_t i = 0; i < count && length + 1 < id_bytes; i++)
        id[length++] = letters[random_next(&state) % (sizeof letters - 1)];
    id[length] = 0;
}

// The text in {"input": text}; of one that is cut off, perhaps within an escape, what there is of the text. Another object stays as it is.
static void unfold_input(struct text *arguments)
{
    enum { ESCAPE_BYTES = 12 }; // two units of UTF-16
    struct text closed = {0};
    json_t *object = json_loadb(arguments->data ? arguments->data : "", arguments->bytes, JSON_ALLOW_NUL, NULL);

    for (size_t less = 0; !object && less < ESCAPE_BYTES && less < arguments->bytes; less++) {
        text_clear(&closed);
        text_append(&closed, arguments->data, arguments->bytes - less);
        text_string(&closed, "\"}");
        object = closed.failed ? NULL : json_loadb(closed.data, closed.bytes, JSON_ALLOW_NUL, NULL);
    }
    text_free(&closed);
    const json_t *input = json_object_get(object, "input");
    if (!object || json_is_string(input)) {
        text_clear(arguments);
        text_append(arguments, json_string_value(input), json_string_length(input));
    }
    json_decref(object);
}

// All calls are complete.
static void choice_answer_end_calls(struct choice *choice)
{
    struct shown_answer *shown = &choice->answer->shown;

    for (uint32_t i = 0; i < shown->call_count; i++) {
        struct shown_call *call = &shown->calls[i];
        if (call->is_custom && !call->is_whole)
            unfold_input(&call->arguments);
        call->is_whole = true;
    }
}

static void begin_call(struct choice *choice, const struct answer_event *event)
{
    struct choice_answer *answer = choice->answer;
    const json_t *function = find_tool(choice->request, event->bytes, event->count);

    choice_answer_end_calls(choice);
    struct shown_call *call = shown_answer_add_call(&answer->shown);
    if (!call) {
        answer->failed = true;
        return;
    }
    call->is_custom = function &&
                      json_object_get(choice->request->reading.custom_tools, json_string_value(json_object_get(function, "name")));
    make_id(choice, call->id, sizeof call->id);
    text_append(&call->name, event->bytes, event->count);
}

static void take(void *arg, const struct answer_event *event)
{
    struct choice *choice = arg;
    struct shown_answer *shown = &choice->answer->shown;

    switch (event->kind) {
    case ANSWER_CONTENT:
        if (choice->text.stop.matched < 0 && !choice->answer->drops_content) {
            choice->answer->content_bytes += event->count;
            take_content(choice, event->bytes, event->count);
        }
        break;
    case ANSWER_REASONING:
        if (choice->request->reading.include_reasoning)
            text_append(&shown->reasoning, event->bytes, event->count);
        break;
    case ANSWER_CALL: begin_call(choice, event); break;
    default:
        if (event->call < shown->call_count)
            text_append(&shown->calls[event->call].arguments, event->bytes, event->count);
    }
}

// --- of a choice ----------------------------------------------------------------------------------------------------------
static bool choice_answer_open(struct choice *choice)
{
    const struct request *request = choice->request;
    const struct answer_options options = {.family = request->reading.notation.family,
                                           .reasoning = request->reading.notation.reasoning,
                                           .reasoning_is_open = request->reading.reasoning_is_open,
                                           .one_call = request->reading.one_call,
                                           .unit_markers = request->reading.notation.unit_markers,
                                           .take = take,
                                           .knows = knows,
                                           .type_of = type_of,
                                           .arg = choice};

    if (!options.family && !options.reasoning)
        return true;
    choice->answer = calloc(1, sizeof *choice->answer);
    if (!choice->answer)
        return false;
    choice->answer->parser = answer_open(&options);
    return choice->answer->parser != NULL;
}

static void choice_answer_close(struct choice *choice)
{
    if (!choice->answer)
        return;
    answer_close(choice->answer->parser);
    shown_answer_free(&choice->answer->shown);
    free(choice->answer);
    choice->answer = NULL;
}

static bool is_good(const struct choice_answer *answer)
{
    bool failed = answer->failed || answer_failed(answer->parser) || answer->shown.reasoning.failed;

    for (uint32_t i = 0; i < answer->shown.call_count; i++)
        failed |= answer->shown.calls[i].name.failed || answer->shown.calls[i].arguments.failed;
    return !failed;
}

// cut_off: its length ended it, perhaps within a call whose name is not known yet: where calls were made, or had to be, that is no content.
static void choice_answer_finish(struct choice *choice, bool cut_off)
{
    const struct request *request = choice->request;
    const bool called = choice->answer->shown.call_count > 0 && !answer_has_channels(request->reading.notation.family);

    choice->answer->drops_content = cut_off && (request->reading.must_call || called);
    answer_finish(choice->answer->parser);
}

struct shown_answer *choice_answer_shown(const struct choice *choice) { return choice->answer ? &choice->answer->shown : NULL; }

// --- what is not shown yet --------------------------------------------------------------------------------------------------
static bool choice_answer_has_news(const struct choice *choice)
{
    const struct choice_answer *answer = choice->answer;
    bool news = answer && answer->shown.reasoning.bytes > 0;

    for (uint32_t i = 0; answer && i < answer->shown.call_count && !news; i++)
        news = shown_call_has_news(&answer->shown.calls[i]);
    return news;
}

enum { NAME_BYTES = 24 }; // "token_id:" and ten digits

// --- the choice: tokens and text -------------------------------------------------------------------------------------
bool choice_open(struct choice *choice, const struct language *language)
{
    const struct request *request = choice->request;

    stop_match_init(&choice->text.stop, request->draw.stops, request->draw.stop_count);
    choice->text.stream = language_stream_open(language);
    choice->log.generated = malloc((request->draw.max_tokens + 1u) * sizeof *choice->log.generated);
    choice->text.echoed = !request->shown.echo;
    choice->end.stop_token = -1;
    return choice->text.stream && choice->log.generated && choice_answer_open(choice);
}

void choice_close(struct choice *choice)
{
    language_stream_close(choice->text.stream);
    stop_match_fini(&choice->text.stop);
    text_free(&choice->text.visible);
    shown_tokens_free(&choice->text.scores);
    choice_answer_close(choice);
    free(choice->log.generated);
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
    shown_tokens_add(&choice->text.scores, data, bytes, logprob, choice->text.chars);
    choice->text.chars += chars;
}

static void show_top(struct choice *choice, const struct language *language, uint32_t id, float logprob)
{
    size_t bytes;
    const char *data = language_token(language, id, &bytes);
    char name[NAME_BYTES];

    data = name_token(choice, id, data, &bytes, name);
    shown_tokens_add_top(&choice->text.scores, data, bytes, logprob);
}

// A completion's alternatives include the token itself, however unlikely it is.
static void show_itself(struct choice *choice, const struct language *language, uint32_t id, float logprob, bool among_tops)
{
    if (choice->request->kind == API_COMPLETION && choice->request->shown.top_logprobs > 0 && !among_tops)
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

    if (choice->text.echoed)
        return;
    choice->text.echoed = true;
    text_append(&choice->text.visible, prompt->echo.data, prompt->echo.bytes);
    if (!prompt->scores || !choice->request->shown.logprobs)
        return;
    for (i = 0; i < prompt->count; i++) {
        bool known = i > 0 && i < prompt->scored_count, among = false;
        uint32_t id = prompt->ids[i];
        show_token(choice, language, id, known ? &prompt->scores[i] : NULL, is_in_echo(choice, language, i));
        for (j = 0; known && prompt->tops && j < MIN(prompt->top_counts[i], choice->request->shown.top_logprobs); j++) {
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
    for (uint32_t i = choice->text.scores.count;
         i-- > 0 && choice->text.scores.tokens[i].part == TOKEN_UNDECIDED && (has_come || !may_come);)
        choice->text.scores.tokens[i].part = has_come ? TOKEN_CONTENT : TOKEN_OTHER;
}

// Takes a token's text, or its name if it is a control token. False: no memory.
static bool take_text(struct choice *choice, const struct text *piece, uint32_t token, const struct language *language)
{
    struct choice_answer *answer = choice->answer;
    const bool was_reasoning = answer && answer_is_reasoning(answer->parser);
    const uint64_t content_bytes = answer ? answer->content_bytes : 0;
    size_t bytes;

    if (!answer) {
        take_content(choice, piece->data, piece->bytes);
        decide_parts(choice, true, false);
        return true;
    }
    answer_push(answer->parser, piece->data, piece->bytes);
    if (is_good(answer) && language_is_special(language, token)) {
        const char *name = language_token(language, token, &bytes);
        answer_push_unit(answer->parser, name, bytes);
    }
    choice->log.reasoning_tokens += was_reasoning || answer_is_reasoning(answer->parser);
    decide_parts(choice, answer->content_bytes > content_bytes, !was_reasoning && answer_may_be_content(answer->parser));
    return is_good(answer);
}

// Whether it is one of the tokens that the client named; those that end an answer anyway are not said to be the reason.
static bool is_stop_token(const struct choice *choice, const struct language *language, uint32_t token)
{
    const Fastdecode__Sampling *sampling = &choice->request->draw.sampling;

    for (size_t i = 0; i < sampling->n_stop_token; i++)
        if (sampling->stop_token[i] == token)
            return choice->request->draw.ignore_eos || !language_is_end(language, token);
    return false;
}

bool choice_is_over(const struct choice *choice, const struct language *language)
{
    return choice->end.stop_token >= 0 || (choice->log.generated_count && !choice->request->draw.ignore_eos &&
                                           language_is_end(language, choice->log.generated[choice->log.generated_count - 1]));
}

bool choice_lacks_memory(const struct choice *choice)
{
    return choice->text.visible.failed || choice->text.stop.held.failed || choice->text.scores.failed ||
           (choice->answer && !is_good(choice->answer));
}

// RESOURCE_EXHAUSTED: the token is in the log, and its text is lost.
static enum status take_token(struct choice *choice, const Fastdecode__Token *token, bool is_end, const struct language *language)
{
    struct text *piece = &choice->request->owner->piece;
    size_t j;

    if (token->token >= language_vocab(language))
        return STATUS_OUT_OF_RANGE;
    choice->log.generated[choice->log.generated_count++] = token->token;
    choice->log.logprob_sum += (double)token->logprob;
    if (is_end)
        return STATUS_OK; // the end token is counted and not shown
    text_clear(piece);
    if (is_stop_token(choice, language, token->token))
        choice->end.stop_token = token->token; // it is counted, and its text is not shown
    else
        language_stream_push(choice->text.stream, token->token, piece);
    if (choice->request->shown.logprobs) {
        bool among = false;
        show_token(choice, language, token->token, &token->logprob,
                   piece->bytes > 0 || !language_is_special(language, token->token));
        for (j = 0; j < MIN(token->n_top, choice->request->shown.top_logprobs); j++) {
            among |= token->top[j]->token == token->token;
            show_top(choice, language, token->top[j]->token, token->top[j]->logprob);
        }
        show_itself(choice, language, token->token, token->logprob, among);
    }
    const bool taken = take_text(choice, piece, token->token, language) && !piece->failed;
    return taken && !choice_lacks_memory(choice) ? STATUS_OK : STATUS_RESOURCE_EXHAUSTED;
}

bool choice_is_cut(const struct choice *choice)
{
    return choice->text.stop.matched >= 0 || (choice->answer && answer_is_done(choice->answer->parser));
}

enum status choice_take(struct choice *choice, const Fastdecode__GenerateEvent *event, const struct language *language)
{
    size_t i;

    if (!take_prompt_scores(choice, event))
        return STATUS_OUT_OF_RANGE;
    if (event->pooled.len && choice->request->pool.pooling && !choice_take_pooled(choice, &event->pooled))
        return STATUS_OUT_OF_RANGE;
    if (event->n_tokens > 0 || event->finish != FASTDECODE__FINISH__FINISH_UNSPECIFIED)
        echo_prompt(choice, language);
    choice->log.cached_tokens = MAX(choice->log.cached_tokens, event->cached_tokens);
    if (event->n_tokens > 0 && event->index > choice->log.generated_count)
        return STATUS_OUT_OF_RANGE;
    for (i = 0; i < event->n_tokens && !choice_is_cut(choice) && choice->end.stop_token < 0; i++) {
        bool is_end = event->finish == FASTDECODE__FINISH__FINISH_EOS && i + 1 == event->n_tokens &&
                      language_is_special(language, event->tokens[i]->token);

        if (event->index + i < choice->log.generated_count)
            continue; // known already
        if (choice->log.generated_count >= choice->request->draw.max_tokens)
            return STATUS_OUT_OF_RANGE;
        const enum status status = take_token(choice, event->tokens[i], is_end, language);
        if (status)
            return status;
    }
    return choice_lacks_memory(choice) ? STATUS_RESOURCE_EXHAUSTED : STATUS_OK;
}

void choice_finish(struct choice *choice, const char *finish_reason, const char *stop_reason, size_t stop_reason_bytes)
{
    struct text tail = {0};

    echo_prompt(choice, choice->request->owner->config.language); // if no token ever came
    if (choice->text.stop.matched < 0) {
        language_stream_finish(choice->text.stream, &tail);
        if (choice->answer) {
            const uint64_t content_bytes = choice->answer->content_bytes;
            answer_push(choice->answer->parser, tail.data, tail.bytes);
            choice_answer_finish(choice, strcmp(finish_reason, "length") == 0);
            decide_parts(choice, choice->answer->content_bytes > content_bytes, false);
        } else {
            take_content(choice, tail.data, tail.bytes);
        }
        if (choice->text.stop.matched < 0)
            stop_match_finish(&choice->text.stop, &choice->text.visible);
        text_free(&tail);
    }
    if (choice->answer)
        choice_answer_end_calls(choice);
    if (choice->end.stop_token >= 0)
        finish_reason = "stop", stop_reason = NULL;
    if (choice->answer && choice->answer->shown.call_count > 0 && strcmp(finish_reason, "stop") == 0)
        finish_reason = "tool_calls";
    if (choice->text.stop.matched >= 0) {
        const struct stop_string *string = &choice->request->draw.stops[choice->text.stop.matched];
        finish_reason = "stop";
        stop_reason = string->data;
        stop_reason_bytes = string->bytes;
    }
    choice->end.finish_reason = finish_reason;
    choice->end.stop_reason = stop_reason;
    choice->end.stop_reason_bytes = stop_reason_bytes;
    choice->state = CHOICE_DONE;
}

bool choice_has_news(const struct choice *choice)
{
    return choice->text.visible.bytes > 0 || choice->text.scores.count > 0 || choice->end.finish_reason ||
           choice_answer_has_news(choice) ||
           (choice->request->shown.token_ids && choice->text.ids_shown < choice->log.generated_count);
}
