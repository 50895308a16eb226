// responses.c: OpenAI's responses: the answer as a list of items, whole and as events.
//
// Each event has a number and says to which item and part it belongs. Items of one answer are numbered in its id's own space:
// resp_7f…, and in it rs_7f…_0 (reasoning), msg_7f…_1 (text), fc_7f…_2 (a call).
#include "services/gateway/api/dialects/responses_ask.h"

#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "services/gateway/api/dialects/pieces.h"
#include "services/gateway/api/dialects/response_store.h"

static const struct dialect_rename renamed[] = {{"max_completion_tokens", "max_output_tokens"},
                                                {"max_tokens", "max_output_tokens"},
                                                {"response_format.json_schema.schema", "text.format.schema"},
                                                {"response_format", "text.format"},
                                                {"reasoning_effort", "reasoning.effort"},
                                                {"truncate_prompt_tokens", "truncation"},
                                                {"messages", "input"},
                                                {NULL, NULL}};

static const char *item_prefix(const struct dialect_item *item)
{
    return item->part == DIALECT_TEXT ? "msg" : item->part == DIALECT_REASONING ? "rs" : item->custom ? "ctc" : "fc";
}

static uint32_t index_of(const struct dialect_run *run, const struct dialect_item *item) { return (uint32_t)(item - run->items); }

static void item_id(const struct dialect_run *run, const struct dialect_item *item, struct text *out)
{
    text_format(out, "\"%s_%s_%u\"", item_prefix(item), run->id + strlen("resp_"), index_of(run, item));
}

static void part_json(const struct dialect_item *item, bool whole, struct text *out)
{
    if (item->part == DIALECT_TEXT) {
        text_string(out, "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[");
        text_append(out, item->logprobs.data, whole ? item->logprobs.bytes : 0);
        text_string(out, "],\"text\":");
    } else {
        text_string(out, "{\"type\":\"reasoning_text\",\"text\":");
    }
    text_json(out, item->data.data, whole ? item->data.bytes : 0);
    text_append(out, "}", 1);
}

// whole: as it is at the end; otherwise as it begins.
static void item_json(const struct dialect_run *run, const struct dialect_item *item, const char *status, bool whole,
                      struct text *out)
{
    text_string(out, "{\"id\":");
    item_id(run, item, out);
    switch (item->part) {
    case DIALECT_TEXT: text_string(out, ",\"type\":\"message\",\"role\":\"assistant\",\"content\":["); break;
    case DIALECT_REASONING: text_string(out, ",\"type\":\"reasoning\",\"summary\":[],\"content\":["); break;
    case DIALECT_CALL:
        text_string(out, item->custom ? ",\"type\":\"custom_tool_call\",\"call_id\":" : ",\"type\":\"function_call\",\"call_id\":");
        text_json(out, item->id.data, item->id.bytes);
        text_string(out, ",\"name\":");
        text_json(out, item->name.data, item->name.bytes);
        text_string(out, item->custom ? ",\"input\":" : ",\"arguments\":");
        text_json(out, item->data.data, whole ? item->data.bytes : 0);
        break;
    }
    if (item->part != DIALECT_CALL && whole)
        part_json(item, true, out);
    text_format(out, "%s,\"status\":\"%s\"}", item->part == DIALECT_CALL ? "" : "]", status);
}

// --- the answer as one object -------------------------------------------------------------------------------------
static bool is_cut_off(const struct dialect_end *end) { return end && strcmp(end->finish_reason, "length") == 0; }

static void usage_json(const struct dialect_end *end, struct text *out)
{
    text_format(out,
                "{\"input_tokens\":%llu,\"input_tokens_details\":{\"cached_tokens\":%llu},\"output_tokens\":%llu,"
                "\"output_tokens_details\":{\"reasoning_tokens\":%llu},\"total_tokens\":%llu}",
                (unsigned long long)end->prompt_tokens, (unsigned long long)end->cached_tokens,
                (unsigned long long)end->completion_tokens, (unsigned long long)end->reasoning_tokens,
                (unsigned long long)(end->prompt_tokens + end->completion_tokens));
}

// end: NULL before it; error: NULL: none.
static void response_json(const struct dialect_run *run, const struct dialect_end *end, const struct api_error *error,
                          struct text *out)
{
    const struct dialect_responses_own *own = run->own;
    const bool cut_off = is_cut_off(end);
    const char *status = error ? "failed" : !end ? "in_progress" : cut_off ? "incomplete" : "completed";

    text_string(out, "{\"id\":");
    text_json_string(out, run->id);
    text_format(out,
                ",\"object\":\"response\",\"created_at\":%llu,\"status\":\"%s\",\"error\":", (unsigned long long)run->created_s,
                status);
    if (error) {
        text_string(out, "{\"code\":\"server_error\",\"message\":");
        text_json_string(out, error->message);
        text_append(out, "}", 1);
    } else {
        text_string(out, "null");
    }
    text_string(out, cut_off ? ",\"incomplete_details\":{\"reason\":\"max_output_tokens\"},\"model\":"
                             : ",\"incomplete_details\":null,\"model\":");
    text_json_string(out, run->model);
    text_string(out, ",\"output\":[");
    for (uint32_t i = 0; end && i < run->item_count; i++) {
        dialect_comma(out, i == 0);
        item_json(run, &run->items[i], cut_off && i + 1 == run->item_count ? "incomplete" : "completed", true, out);
    }
    text_append(out, "]", 1);
    text_append(out, own->echo.data, own->echo.bytes);
    text_string(out, ",\"usage\":");
    if (end)
        usage_json(end, out);
    else
        text_string(out, "null");
    text_append(out, "}", 1);
}

// A call as a chat request has it.
static void call_json(const struct dialect_item *item, struct text *out)
{
    struct text arguments = {0};

    text_string(out, item->custom ? "{\"type\":\"custom\",\"id\":" : "{\"type\":\"function\",\"id\":");
    text_json(out, item->id.data, item->id.bytes);
    text_string(out, item->custom ? ",\"custom\":{\"name\":" : ",\"function\":{\"name\":");
    text_json(out, item->name.data, item->name.bytes);
    if (item->custom) {
        text_string(out, ",\"input\":");
        text_json(out, item->data.data, item->data.bytes);
    } else {
        text_string(out, ",\"arguments\":");
        dialect_append_arguments(item->data.data, item->data.bytes, &arguments);
        text_json(out, arguments.data, arguments.bytes);
    }
    text_string(out, "}}");
    out->failed |= arguments.failed;
    text_free(&arguments);
}

// The answer as a message of the conversation: [calls, text, reasoning].
static void message_json(const struct dialect_run *run, struct text *out)
{
    struct text parts[3] = {{0}};
    uint32_t calls = 0;

    for (uint32_t i = 0; i < run->item_count; i++) {
        const struct dialect_item *item = &run->items[i];
        struct text *part = &parts[item->part];
        if (item->part != DIALECT_CALL) {
            text_append(part, item->data.data, item->data.bytes);
            continue;
        }
        dialect_comma(part, calls++ == 0);
        call_json(item, part);
    }
    text_string(out, "{\"role\":\"assistant\",\"content\":");
    text_json(out, parts[DIALECT_TEXT].data, parts[DIALECT_TEXT].bytes);
    if (parts[DIALECT_REASONING].bytes) {
        text_string(out, ",\"reasoning_content\":");
        text_json(out, parts[DIALECT_REASONING].data, parts[DIALECT_REASONING].bytes);
    }
    if (calls) {
        text_string(out, ",\"tool_calls\":[");
        text_append(out, parts[DIALECT_CALL].data, parts[DIALECT_CALL].bytes);
        text_append(out, "]", 1);
    }
    text_append(out, "}", 1);
    for (size_t i = 0; i < ARRAY_COUNT(parts); i++) {
        out->failed |= parts[i].failed;
        text_free(&parts[i]);
    }
}

static void keep(struct dialect_run *run, const struct text *answer)
{
    struct dialect_responses_own *own = run->own;
    struct text message = {0};

    if (!own->kept)
        return;
    message_json(run, &message);
    response_store_end(own->store, own->tenant, own->id, &message, answer, clock_now_us());
    own->kept = false;
    text_free(&message);
}

// --- events -------------------------------------------------------------------------------------------------------
static void event(struct dialect_run *run, const char *type, struct text *out)
{
    text_format(out, "event: response.%s\ndata: {\"type\":\"response.%s\",\"sequence_number\":%llu", type, type,
                (unsigned long long)run->event_count++);
}

static void event_end(struct text *out) { text_string(out, "}\n\n"); }

static void response_event(struct dialect_run *run, const char *type, const struct dialect_end *end, const struct api_error *error,
                           struct text *out)
{
    event(run, type, out);
    text_string(out, ",\"response\":");
    response_json(run, end, error, out);
    event_end(out);
}

static void begin(struct dialect_run *run, struct text *out)
{
    response_event(run, "created", NULL, NULL, out);
    response_event(run, "in_progress", NULL, NULL, out);
}

// Begins an event of a part of an item.
static void part_event(struct dialect_run *run, const struct dialect_item *item, const char *type, struct text *out)
{
    event(run, type, out);
    text_string(out, ",\"item_id\":");
    item_id(run, item, out);
    text_format(out, ",\"output_index\":%u", index_of(run, item));
    if (item->part != DIALECT_CALL)
        text_string(out, ",\"content_index\":0");
}

static void item_event(struct dialect_run *run, const struct dialect_item *item, const char *type, const char *status, bool whole,
                       struct text *out)
{
    event(run, type, out);
    text_format(out, ",\"output_index\":%u,\"item\":", index_of(run, item));
    item_json(run, item, status, whole, out);
    event_end(out);
}

static void item_begin(struct dialect_run *run, const struct dialect_item *item, struct text *out)
{
    item_event(run, item, "output_item.added", "in_progress", false, out);
    if (item->part == DIALECT_CALL)
        return;
    part_event(run, item, "content_part.added", out);
    text_string(out, ",\"part\":");
    part_json(item, false, out);
    event_end(out);
}

static void logprobs_json(const struct text *logprobs, struct text *out)
{
    text_string(out, ",\"logprobs\":[");
    text_append(out, logprobs->data, logprobs->bytes);
    text_append(out, "]", 1);
}

static void delta(struct dialect_run *run, const struct dialect_item *item, const char *data, size_t bytes, struct text *out)
{
    static const char *const types[] = {[DIALECT_TEXT] = "output_text.delta",
                                        [DIALECT_REASONING] = "reasoning_text.delta",
                                        [DIALECT_CALL] = "function_call_arguments.delta"};

    part_event(run, item, item->custom ? "custom_tool_call_input.delta" : types[item->part], out);
    text_string(out, ",\"delta\":");
    text_json(out, data, bytes);
    if (item->part == DIALECT_TEXT)
        logprobs_json(&run->logprobs, out);
    event_end(out);
}

static void item_end(struct dialect_run *run, const struct dialect_item *item, struct text *out)
{
    static const char *const types[] = {[DIALECT_TEXT] = "output_text.done",
                                        [DIALECT_REASONING] = "reasoning_text.done",
                                        [DIALECT_CALL] = "function_call_arguments.done"};

    part_event(run, item, item->custom ? "custom_tool_call_input.done" : types[item->part], out);
    text_string(out, item->custom ? ",\"input\":" : item->part == DIALECT_CALL ? ",\"arguments\":" : ",\"text\":");
    text_json(out, item->data.data, item->data.bytes);
    if (item->part == DIALECT_TEXT)
        logprobs_json(&item->logprobs, out);
    if (item->part == DIALECT_CALL) {
        text_string(out, ",\"name\":");
        text_json(out, item->name.data, item->name.bytes);
    }
    event_end(out);
    if (item->part != DIALECT_CALL) {
        part_event(run, item, "content_part.done", out);
        text_string(out, ",\"part\":");
        part_json(item, true, out);
        event_end(out);
    }
    item_event(run, item, "output_item.done", is_cut_off(run->end) ? "incomplete" : "completed", true, out);
}

static void whole(struct dialect_run *run, const struct dialect_end *end, struct text *out)
{
    response_json(run, end, NULL, out);
    keep(run, out);
    text_append(out, "\n", 1);
}

static void end_stream(struct dialect_run *run, const struct dialect_end *end, struct text *out)
{
    struct text answer = {0};

    response_json(run, end, NULL, &answer);
    keep(run, &answer);
    event(run, is_cut_off(end) ? "incomplete" : "completed", out);
    text_string(out, ",\"response\":");
    text_append(out, answer.data, answer.bytes);
    event_end(out);
    out->failed |= answer.failed;
    text_free(&answer);
}

static void fail_stream(struct dialect_run *run, const struct api_error *error, struct text *out)
{
    response_event(run, "failed", NULL, error, out);
}

static void refuse(const struct api_error *error, struct text *out) { api_error_append(out, error); }

const struct dialect dialect_responses = {.id_prefix = "resp_",
                                          .stream_type = "text/event-stream; charset=utf-8",
                                          .keep_alive = ": keep-alive\n\n",
                                          .renamed = renamed,
                                          .translate = dialect_responses_translate,
                                          .begin = begin,
                                          .item_begin = item_begin,
                                          .delta = delta,
                                          .item_end = item_end,
                                          .end = end_stream,
                                          .error = fail_stream,
                                          .whole = whole,
                                          .refuse = refuse,
                                          .free_own = dialect_responses_free_own};

static void tokens(uint32_t count, struct text *out)
{
    text_format(out, "{\"object\":\"response.input_tokens\",\"input_tokens\":%u}\n", count);
}

const struct dialect dialect_count_responses = {
    .id_prefix = "", .renamed = renamed, .translate = dialect_responses_translate, .refuse = refuse, .tokens = tokens};
