// messages.c: Anthropic's messages: the answer as a list of blocks, whole and as events.
//
// The prompt's tokens are counted in two parts, those whose KV was there before and the others; which it is is known at the end, so a stream
// says it again in its last event but one.
#include "services/gateway/api/dialects/messages_ask.h"

#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "services/gateway/api/dialects/pieces.h"

static const struct dialect_rename renamed[] = {{"stop", "stop_sequences"},
                                                {"chat_template_kwargs", "thinking"},
                                                {"response_format.json_schema.schema", "output_config.format.schema"},
                                                {"response_format", "output_config.format"},
                                                {"reasoning_effort", "output_config.effort"},
                                                {NULL, NULL}};

static uint32_t index_of(const struct dialect_run *run, const struct dialect_item *item) { return (uint32_t)(item - run->items); }

// --- parts of an answer -------------------------------------------------------------------------------------------
// whole: as it is at the end; otherwise as it begins.
static void block_json(const struct dialect_item *item, bool whole, struct text *out)
{
    const size_t bytes = whole ? item->data.bytes : 0;

    switch (item->part) {
    case DIALECT_TEXT:
        text_string(out, "{\"type\":\"text\",\"text\":");
        text_json(out, item->data.data, bytes);
        break;
    case DIALECT_REASONING:
        text_string(out, "{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":");
        text_json(out, item->data.data, bytes);
        break;
    case DIALECT_CALL:
        text_string(out, "{\"type\":\"tool_use\",\"id\":");
        text_json(out, item->id.data, item->id.bytes);
        text_string(out, ",\"name\":");
        text_json(out, item->name.data, item->name.bytes);
        text_string(out, ",\"input\":");
        if (whole)
            dialect_append_arguments(item->data.data, bytes, out);
        else
            text_string(out, "{}");
        break;
    }
    text_append(out, "}", 1);
}

static void head(const struct dialect_run *run, struct text *out)
{
    text_string(out, "{\"id\":");
    text_json_string(out, run->id);
    text_string(out, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    text_json_string(out, run->model);
    text_string(out, ",\"content\":[");
}

static void stop_json(const struct dialect_end *end, struct text *out)
{
    const char *reason = end->stop_string                                ? "stop_sequence"
                         : strcmp(end->finish_reason, "length") == 0     ? "max_tokens"
                         : strcmp(end->finish_reason, "tool_calls") == 0 ? "tool_use"
                                                                         : "end_turn";

    text_format(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
    if (end->stop_string)
        text_json(out, end->stop_string, end->stop_bytes);
    else
        text_string(out, "null");
}

static void usage_json(uint64_t prompt, uint64_t cached, uint64_t completion, struct text *out)
{
    text_format(out,
                "{\"input_tokens\":%llu,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%llu,\"output_tokens\":%llu}",
                (unsigned long long)(prompt - MIN(cached, prompt)), (unsigned long long)cached, (unsigned long long)completion);
}

// --- events -------------------------------------------------------------------------------------------------------
static void event(const char *type, struct text *out) { text_format(out, "event: %s\ndata: {\"type\":\"%s\"", type, type); }
static void event_end(struct text *out) { text_string(out, "}\n\n"); }

static void begin(struct dialect_run *run, struct text *out)
{
    event("message_start", out);
    text_string(out, ",\"message\":");
    head(run, out);
    text_string(out, "],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
    usage_json(run->prompt_tokens, 0, 0, out);
    text_append(out, "}", 1);
    event_end(out);
}

static void item_begin(struct dialect_run *run, const struct dialect_item *item, struct text *out)
{
    event("content_block_start", out);
    text_format(out, ",\"index\":%u,\"content_block\":", index_of(run, item));
    block_json(item, false, out);
    event_end(out);
}

static void delta(struct dialect_run *run, const struct dialect_item *item, const char *data, size_t bytes, struct text *out)
{
    static const char *const kinds[] = {[DIALECT_TEXT] = "\"text_delta\",\"text\":",
                                        [DIALECT_REASONING] = "\"thinking_delta\",\"thinking\":",
                                        [DIALECT_CALL] = "\"input_json_delta\",\"partial_json\":"};

    event("content_block_delta", out);
    text_format(out, ",\"index\":%u,\"delta\":{\"type\":%s", index_of(run, item), kinds[item->part]);
    text_json(out, data, bytes);
    text_append(out, "}", 1);
    event_end(out);
}

static void item_end(struct dialect_run *run, const struct dialect_item *item, struct text *out)
{
    event("content_block_stop", out);
    text_format(out, ",\"index\":%u", index_of(run, item));
    event_end(out);
}

static void end_stream(struct dialect_run *run, const struct dialect_end *end, struct text *out)
{
    (void)run;
    event("message_delta", out);
    text_string(out, ",\"delta\":{");
    stop_json(end, out);
    text_string(out, "},\"usage\":");
    usage_json(end->prompt_tokens, end->cached_tokens, end->completion_tokens, out);
    event_end(out);
    event("message_stop", out);
    event_end(out);
}

static void whole(struct dialect_run *run, const struct dialect_end *end, struct text *out)
{
    head(run, out);
    for (uint32_t i = 0; i < run->item_count; i++) {
        dialect_comma(out, i == 0);
        block_json(&run->items[i], true, out);
    }
    text_string(out, "],");
    stop_json(end, out);
    text_string(out, ",\"usage\":");
    usage_json(end->prompt_tokens, end->cached_tokens, end->completion_tokens, out);
    text_string(out, "}\n");
}

// --- errors -------------------------------------------------------------------------------------------------------
static const char *type_of_status(int status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

// Clients look for these words of Anthropic's: some cut their conversation, or ask for fewer tokens, when they read them.
static void message_json(const struct api_error *error, struct text *out)
{
    const struct api_length *length = &error->length;
    char own[sizeof error->message];

    if (error->code && strcmp(error->code, "invalid_api_key") == 0)
        snprintf(own, sizeof own, "invalid x-api-key");
    else if (error->model[0])
        snprintf(own, sizeof own, "model: %s", error->model);
    else if (length->context && length->answer)
        snprintf(
            own, sizeof own,
            "input length and `max_tokens` exceed context limit: %u + %u > %u, decrease input length or `max_tokens` and try again",
            length->prompt, length->answer, length->context);
    else if (length->context)
        snprintf(own, sizeof own, "prompt is too long: %u tokens > %u maximum", length->prompt, length->context);
    else
        snprintf(own, sizeof own, "%s", error->message);
    text_json_string(out, own);
}

static void refuse(const struct api_error *error, struct text *out)
{
    text_format(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type_of_status(error->status));
    message_json(error, out);
    text_string(out, "}}");
}

static void fail_stream(struct dialect_run *run, const struct api_error *error, struct text *out)
{
    (void)run;
    text_string(out, "event: error\ndata: ");
    refuse(error, out);
    text_string(out, "\n\n");
}

static void tokens(uint32_t count, struct text *out) { text_format(out, "{\"input_tokens\":%u}\n", count); }

const struct dialect dialect_messages = {.id_prefix = "msg_",
                                         .stream_type = "text/event-stream; charset=utf-8",
                                         .keep_alive = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
                                         .id_header = "request-id",
                                         .renamed = renamed,
                                         .translate = dialect_messages_translate,
                                         .begin = begin,
                                         .item_begin = item_begin,
                                         .delta = delta,
                                         .item_end = item_end,
                                         .end = end_stream,
                                         .error = fail_stream,
                                         .whole = whole,
                                         .refuse = refuse};

const struct dialect dialect_count_tokens = {.id_prefix = "",
                                             .id_header = "request-id",
                                             .renamed = renamed,
                                             .translate = dialect_messages_translate,
                                             .refuse = refuse,
                                             .tokens = tokens};
