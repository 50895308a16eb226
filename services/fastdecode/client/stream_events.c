// stream_events.c: see stream_events.h.
#include "services/fastdecode/client/stream_events.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/json/json_text.h"

enum { DEPTH_MAX = 32, VALUES_MAX = 1 << 14 };

static uint32_t count_of(const json_t *object, const char *name)
{
    json_int_t value = json_integer_value(json_object_get(object, name));
    return (uint32_t)MIN(MAX(value, 0), UINT32_MAX);
}

// A token may have no text: half of a character, or a special one. What is thought, and calls of functions, are tokens, too.
static bool brings_token(const json_t *choice)
{
    const json_t *text = json_object_get(choice, "text"), *delta = json_object_get(choice, "delta");

    if (json_string_length(json_object_get(delta, "reasoning_content")) > 0 ||
        json_string_length(json_object_get(delta, "reasoning")) > 0 || json_array_size(json_object_get(delta, "tool_calls")) > 0)
        return true;
    if (!text)
        text = json_object_get(delta, "content");
    return json_string_length(text) > 0 || (json_is_string(text) && !json_is_string(json_object_get(choice, "finish_reason")));
}

// Errors are {"error": {"message": ...}}, {"error": "..."} or {"object": "error", "message": ...}.
static void take_error(const json_t *root, struct stream_event *out)
{
    const json_t *error = json_object_get(root, "error");
    const char *object = json_string_value(json_object_get(root, "object"));
    const char *message = json_string_value(json_is_object(error) ? json_object_get(error, "message") : error);

    if (!error && object && !strcmp(object, "error"))
        message = json_string_value(json_object_get(root, "message"));
    else if (!error || json_is_null(error))
        return;
    snprintf(out->error, sizeof out->error, "%s", message && *message ? message : "an error without a message");
}

bool stream_event_parse(const char *payload, size_t bytes, struct stream_event *out)
{
    const json_t *usage;
    json_t *root;
    size_t at;

    *out = (struct stream_event){0};
    if (bytes == 6 && !memcmp(payload, "[DONE]", 6)) {
        out->is_end = true;
        return true;
    }
    if (json_check_limits(payload, bytes, DEPTH_MAX, VALUES_MAX, &at) != JSON_WITHIN)
        return false;
    root = json_loadb(payload, bytes, JSON_ALLOW_NUL, NULL);
    if (!json_is_object(root)) {
        json_decref(root);
        return false;
    }
    out->has_token = brings_token(json_array_get(json_object_get(root, "choices"), 0));
    usage = json_object_get(root, "usage");
    if (json_is_object(usage)) {
        out->has_usage = true;
        out->prompt_tokens = count_of(usage, "prompt_tokens");
        out->answer_tokens = count_of(usage, "completion_tokens");
    }
    take_error(root, out);
    json_decref(root);
    return true;
}

// A line without its end. Lines that are not "data:" say nothing of the answer, but a bare object, which some servers send as an error.
static void take_line(const char *line, size_t bytes, void (*on_event)(void *, const struct stream_event *), void *arg)
{
    struct stream_event event;

    if (bytes > 0 && line[bytes - 1] == '\r')
        bytes--;
    if (bytes >= 5 && !memcmp(line, "data:", 5)) {
        for (line += 5, bytes -= 5; bytes > 0 && *line == ' '; bytes--)
            line++;
    } else if (bytes == 0 || *line != '{') {
        return;
    }
    if (stream_event_parse(line, bytes, &event))
        on_event(arg, &event);
}

void stream_reader_take(struct stream_reader *r, const char *data, size_t bytes,
                        void (*on_event)(void *arg, const struct stream_event *event), void *arg)
{
    const char *stop = data + bytes;

    while (data < stop && !r->failed) {
        const char *newline = memchr(data, '\n', (size_t)(stop - data));
        size_t part = (size_t)((newline ? newline : stop) - data);

        if (!newline || r->line.bytes > 0) {
            r->failed = r->line.bytes + part > STREAM_LINE_BYTES_MAX;
            if (!r->failed)
                text_append(&r->line, data, part);
            r->failed |= r->line.failed;
        }
        if (newline && !r->failed) {
            take_line(r->line.bytes > 0 ? r->line.data : data, r->line.bytes > 0 ? r->line.bytes : part, on_event, arg);
            text_clear(&r->line);
        }
        data += part + (newline != NULL);
    }
}

void stream_reader_clear(struct stream_reader *r)
{
    text_clear(&r->line);
    r->failed = false;
}

void stream_reader_free(struct stream_reader *r) { text_free(&r->line); }
