// choice_answer.c: a choice of a chat whose text is more than content: what the model thinks, which functions it calls.
//
//   text, control tokens ─▶ parser (common/answer) ─┬─ content ─▶ stop strings ─▶ visible
//                                                   ├─ reasoning ─▶ shown.reasoning
//                                                   └─ calls ─▶ shown.calls
//
// Stop strings are looked for in the content alone: JSON and thoughts may hold them.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include <jansson.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/grammar/grammar_schema.h"
#include "services/gateway/request/request_internal.h"

enum { SHORT_ID_LETTERS = 9, ID_LETTERS = 24, ALTERNATIVES_MAX = 64 };

struct choice_answer {
    struct answer_parser *parser;
    choice_content_fn *take_content;
    struct shown_answer shown;
    struct text delta; // scratch
    uint64_t content_bytes;
    bool failed;
    bool drops_content; // what comes is the beginning of a call that is cut off
};

// --- of a request ---------------------------------------------------------------------------------------------------------
void request_set_notation(const struct api_request *api, const struct language *language, struct request *request)
{
    const bool calls = api->tools && api->tool_choice != API_TOOLS_NONE;

    if (api->kind != API_CHAT)
        return;
    request->notation = language_notation(language, api->chat_template, calls);
    request->include_reasoning = api->include_reasoning;
    request->one_call = !api->parallel_tool_calls || api->tool_choice == API_TOOLS_NAMED;
    request->must_call = calls && (api->tool_choice == API_TOOLS_REQUIRED || api->tool_choice == API_TOOLS_NAMED);
    request->tools = calls ? json_incref(api->tools) : NULL;
    request->custom_tools = calls && api->custom_tools ? json_incref(api->custom_tools) : NULL;
}

void request_free_notation(struct request *request)
{
    if (request->tools)
        json_decref(request->tools);
    if (request->custom_tools)
        json_decref(request->custom_tools);
    request->tools = request->custom_tools = NULL;
}

// --- what the parser asks -------------------------------------------------------------------------------------------------
static const json_t *find_tool(const struct request *request, const char *name, size_t bytes)
{
    for (size_t i = 0; i < json_array_size(request->tools); i++) {
        const json_t *function = json_object_get(json_array_get(request->tools, i), "function");
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

// Whether a schema's "type" is, or includes, a type.
static bool names_type(const json_t *type, const char *wanted)
{
    if (json_is_string(type))
        return strcmp(json_string_value(type), wanted) == 0;
    for (size_t i = 0; i < json_array_size(type); i++)
        if (json_is_string(json_array_get(type, i)) && strcmp(json_string_value(json_array_get(type, i)), wanted) == 0)
            return true;
    return false;
}

// Returns the type of a value: no text where no alternative is one. A schema that says "string" itself is for text that is written as it is (answer_grammar.c asks the
// same); others may have it as JSON, and nothing is known of them.
static enum answer_type type_in(const json_t *parameters, const json_t *schema, int *left)
{
    const json_t *type = json_object_get(schema, "type"), *any = json_object_get(schema, "anyOf");
    const char *reference = json_string_value(json_object_get(schema, "$ref"));

    if (type)
        return names_type(type, "string") ? ANSWER_STRING : ANSWER_OTHER;
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
    const bool is_short = answer_has_short_ids(choice->request->notation.family);
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

void choice_answer_end_calls(struct choice *choice)
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
                      json_object_get(choice->request->custom_tools, json_string_value(json_object_get(function, "name")));
    make_id(choice, call->id, sizeof call->id);
    text_append(&call->name, event->bytes, event->count);
}

static void take(void *arg, const struct answer_event *event)
{
    struct choice *choice = arg;
    struct shown_answer *shown = &choice->answer->shown;

    switch (event->kind) {
    case ANSWER_CONTENT:
        if (choice->stop.matched < 0 && !choice->answer->drops_content) {
            choice->answer->content_bytes += event->count;
            choice->answer->take_content(choice, event->bytes, event->count);
        }
        break;
    case ANSWER_REASONING:
        if (choice->request->include_reasoning)
            text_append(&shown->reasoning, event->bytes, event->count);
        break;
    case ANSWER_CALL: begin_call(choice, event); break;
    default:
        if (event->call < shown->call_count)
            text_append(&shown->calls[event->call].arguments, event->bytes, event->count);
    }
}

// --- of a choice ----------------------------------------------------------------------------------------------------------
bool choice_answer_open(struct choice *choice, choice_content_fn *take_content)
{
    const struct request *request = choice->request;
    const struct answer_options options = {.family = request->notation.family,
                                           .reasoning = request->notation.reasoning,
                                           .reasoning_is_open = request->reasoning_is_open,
                                           .one_call = request->one_call,
                                           .unit_markers = request->notation.unit_markers,
                                           .take = take,
                                           .knows = knows,
                                           .type_of = type_of,
                                           .arg = choice};

    if (!options.family && !options.reasoning)
        return true;
    choice->answer = calloc(1, sizeof *choice->answer);
    if (!choice->answer)
        return false;
    choice->answer->take_content = take_content;
    choice->answer->parser = answer_open(&options);
    return choice->answer->parser != NULL;
}

void choice_answer_close(struct choice *choice)
{
    if (!choice->answer)
        return;
    answer_close(choice->answer->parser);
    shown_answer_free(&choice->answer->shown);
    text_free(&choice->answer->delta);
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

bool choice_answer_push(struct choice *choice, const char *text, size_t bytes)
{
    answer_push(choice->answer->parser, text, bytes);
    return is_good(choice->answer);
}

bool choice_answer_push_unit(struct choice *choice, const char *name, size_t bytes)
{
    answer_push_unit(choice->answer->parser, name, bytes);
    return is_good(choice->answer);
}

void choice_answer_finish(struct choice *choice, bool cut_off)
{
    const struct request *request = choice->request;
    const bool called = choice->answer->shown.call_count > 0 && !answer_has_channels(request->notation.family);

    choice->answer->drops_content = cut_off && (request->must_call || called);
    answer_finish(choice->answer->parser);
}

bool choice_answer_is_reasoning(const struct choice *choice) { return answer_is_reasoning(choice->answer->parser); }
bool choice_answer_may_be_content(const struct choice *choice) { return answer_may_be_content(choice->answer->parser); }
uint64_t choice_answer_content_bytes(const struct choice *choice) { return choice->answer->content_bytes; }
bool choice_answer_is_done(const struct choice *choice) { return choice->answer && answer_is_done(choice->answer->parser); }
bool choice_answer_has_calls(const struct choice *choice) { return choice->answer && choice->answer->shown.call_count > 0; }
struct shown_answer *choice_answer_shown(const struct choice *choice) { return choice->answer ? &choice->answer->shown : NULL; }

// --- what a stream shows --------------------------------------------------------------------------------------------------
bool choice_answer_has_news(const struct choice *choice)
{
    const struct choice_answer *answer = choice->answer;
    bool news = answer && answer->shown.reasoning.bytes > 0;

    for (uint32_t i = 0; answer && i < answer->shown.call_count && !news; i++)
        news = shown_call_has_news(&answer->shown.calls[i]);
    return news;
}

static void show_delta(const struct choice *choice, const struct respond_usage *usage, struct text *out)
{
    const struct respond_choice shown = {.index = choice->index, .delta = &choice->answer->delta, .usage = usage};

    respond_chunk(out, &choice->request->head, &shown);
    out->failed |= choice->answer->delta.failed;
}

void choice_answer_show_before(struct choice *choice, const struct respond_usage *usage, struct text *out)
{
    struct choice_answer *answer = choice->answer;

    if (!answer || answer->shown.reasoning.bytes == 0)
        return;
    text_clear(&answer->delta);
    respond_reasoning(&answer->delta, answer->shown.reasoning.data, answer->shown.reasoning.bytes);
    show_delta(choice, usage, out);
    text_clear(&answer->shown.reasoning);
}

void choice_answer_show_after(struct choice *choice, const struct respond_usage *usage, struct text *out)
{
    struct choice_answer *answer = choice->answer;

    for (uint32_t i = 0; answer && i < answer->shown.call_count; i++) {
        struct shown_call *call = &answer->shown.calls[i];
        if (!shown_call_has_news(call))
            continue;
        text_clear(&answer->delta);
        respond_call_delta(&answer->delta, call, i);
        show_delta(choice, usage, out);
        call->head_shown = true;
        text_clear(&call->arguments);
    }
}
