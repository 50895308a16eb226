// harmony.c: messages with channels, as gpt-oss writes them.
//
//   <|channel|>analysis<|message|>what is thought<|end|>
//   <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":1}<|call|>
//   <|start|>assistant<|channel|>final<|message|>what is said<|return|>
//
// The prompt ends with <|start|>assistant, so an answer begins in the head of a message. The head is what lies before <|message|>: who is spoken
// to, and the channel. A text without any marker is content.
#include <string.h>

#include "services/gateway/answer/internal.h"

enum { HEAD_BYTES_MAX = 1024 };

static const char functions[] = "functions.";

static void harmony_begin(struct answer_parser *parser, uint32_t marker)
{
    (void)marker;
    parser->harmony = (struct harmony_body){0};
    text_clear(&parser->name);
}

// Finds what follows `key` in the head, up to a space or a marker.
static const char *harmony_word_after(const struct text *head, const char *key, size_t *count)
{
    const char *at = head->bytes ? memmem(head->data, head->bytes, key, strlen(key)) : NULL, *end;

    *count = 0;
    if (!at)
        return NULL;
    at += strlen(key);
    for (end = at; end < head->data + head->bytes && !answer_is_space(*end) && *end != '<'; end++)
        ++*count;
    return at;
}

static void harmony_begin_message(struct answer_parser *parser)
{
    struct harmony_body *body = &parser->harmony;
    size_t to_bytes, channel_bytes;
    const char *to = harmony_word_after(&parser->name, "to=", &to_bytes);
    const char *channel = harmony_word_after(&parser->name, "<|channel|>", &channel_bytes);
    const bool analysis = channel && channel_bytes == 8 && !memcmp(channel, "analysis", 8);

    body->in_message = true;
    body->any_argument = false;
    body->kind = analysis ? ANSWER_REASONING : ANSWER_CONTENT;
    if (to && to_bytes > strlen(functions) && !memcmp(to, functions, strlen(functions)) &&
        answer_is_name(to + strlen(functions), to_bytes - strlen(functions)) &&
        answer_begin_call(parser, to + strlen(functions), to_bytes - strlen(functions))) {
        body->kind = ANSWER_ARGUMENTS;
        body->scan = (struct scan){0};
        parser->raw = true;                                         // strings may hold a marker's text
    } else if (analysis ? body->any_reasoning : parser->any_text) { // another message of this kind
        answer_emit(parser, body->kind, "\n\n", 2);
    }
}

static void harmony_end_message(struct answer_parser *parser)
{
    struct harmony_body *body = &parser->harmony;

    if (body->in_message && parser->in_call) {
        if (!body->any_argument)
            answer_emit(parser, ANSWER_ARGUMENTS, "{}", 2);
        answer_end_call(parser);
    }
    body->in_message = false;
    parser->raw = false;
    text_clear(&parser->name);
}

static void harmony_emit(struct answer_parser *parser, const char *bytes, size_t count)
{
    struct harmony_body *body = &parser->harmony;

    if (count == 0)
        return;
    answer_emit(parser, body->kind, bytes, count);
    body->any_argument |= body->kind == ANSWER_ARGUMENTS;
    body->any_reasoning |= body->kind == ANSWER_REASONING;
    parser->any_text |= body->kind == ANSWER_CONTENT;
}

static enum verdict harmony_take(struct answer_parser *parser, char byte)
{
    struct harmony_body *body = &parser->harmony;

    if (body->in_message) {
        harmony_emit(parser, &byte, 1);
        if (parser->raw && (body->scan.started || !answer_is_space(byte)))
            parser->raw = scan_take(&body->scan, byte) == SCAN_MORE && !body->scan.scalar;
        return BODY_MORE;
    }
    text_append(&parser->name, &byte, 1);
    if (parser->name.bytes > HEAD_BYTES_MAX) { // no head: text
        body->in_message = true;
        body->kind = ANSWER_CONTENT;
        harmony_emit(parser, parser->name.data, parser->name.bytes);
        text_clear(&parser->name);
    }
    return BODY_MORE;
}

static enum verdict harmony_unit(struct answer_parser *parser, uint32_t marker)
{
    struct harmony_body *body = &parser->harmony;
    const char *text = marker < ANSWER_MAX_MARKERS ? parser->family->markers[marker].text : "";

    if (!*text)
        return BODY_MORE;
    body->any_marker = true;
    if (!strcmp(text, "<|message|>")) {
        harmony_begin_message(parser);
        return BODY_MORE;
    }
    const bool in_head = !strcmp(text, "<|channel|>") || !strcmp(text, "<|constrain|>");
    if (!in_head || body->in_message) // <|start|>, <|end|>, <|call|>, <|return|>, or a head without its start
        harmony_end_message(parser);
    if (in_head)
        text_string(&parser->name, text);
    return BODY_MORE;
}

static void harmony_end(struct answer_parser *parser)
{
    if (!parser->harmony.any_marker && !parser->harmony.in_message)
        answer_emit(parser, ANSWER_CONTENT, parser->name.data, parser->name.bytes);
    harmony_end_message(parser);
}

const struct body answer_harmony = {
    .begin = harmony_begin, .take = harmony_take, .unit = harmony_unit, .end = harmony_end, .markers_in_body = true};
