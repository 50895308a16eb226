// named.c: calls whose function is named in plain text, before arguments in JSON.
//
//   mistral    [TOOL_CALLS]f{"a":1}   [TOOL_CALLS]f[ARGS]{"a":1}   or, as older models write it, [TOOL_CALLS][{"name":"f",...}]
//   deepseek   <｜tool▁call▁begin｜>function<｜tool▁sep｜>f \n```json\n{"a":1}\n```<｜tool▁call▁end｜>   newer ones: ...begin｜>f<｜tool▁sep｜>{"a":1}
//   kimi       <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a":1}<|tool_call_end|>
#include <string.h>

#include "services/gateway/answer/internal.h"

enum { FENCE_BYTES_MAX = 32 }; // between the name and the arguments: white space and ```json

enum style { MISTRAL, DEEPSEEK, KIMI };
enum state {
    IN_HEAD,      // up to the separator
    IN_LINE,      // deepseek: the name, to the end of the line
    AT_ARGUMENTS, // up to {
    IN_ARGUMENTS,
    AFTER, // up to the closing marker
};

static void named_begin(struct answer_parser *parser, uint32_t marker)
{
    (void)marker;
    parser->named = (struct named_body){.state = IN_HEAD, .style = parser->family->body->style};
    text_clear(&parser->name);
}

static void named_trim(struct text *name)
{
    while (name->bytes > 0 && answer_is_space(name->data[name->bytes - 1]))
        name->bytes--;
    while (name->bytes > 0 && answer_is_space(name->data[0]))
        text_consume(name, 1);
}

// functions.f:0 -> f
static void named_trim_kimi(struct text *name)
{
    static const char prefix[] = "functions.";
    size_t digits = name->bytes;

    if (name->bytes > strlen(prefix) && !memcmp(name->data, prefix, strlen(prefix)))
        text_consume(name, strlen(prefix));
    digits = name->bytes;
    while (digits > 0 && name->data[digits - 1] >= '0' && name->data[digits - 1] <= '9')
        digits--;
    if (digits > 1 && digits < name->bytes && name->data[digits - 1] == ':')
        name->bytes = digits - 1;
}

// Ends the name.
static enum verdict named_end_name(struct answer_parser *parser)
{
    named_trim(&parser->name);
    if (parser->named.style == KIMI)
        named_trim_kimi(&parser->name);
    parser->named.state = AT_ARGUMENTS;
    return answer_is_name(parser->name.data, parser->name.bytes) ? BODY_MORE : BODY_FAILED;
}

static enum verdict named_begin_arguments(struct answer_parser *parser, char byte)
{
    parser->named.state = IN_ARGUMENTS;
    if (!answer_begin_call(parser, parser->name.data, parser->name.bytes))
        return BODY_FAILED;
    parser->raw = true;
    (void)scan_take(&parser->named.scan, byte);
    answer_emit(parser, ANSWER_ARGUMENTS, &byte, 1);
    return BODY_MORE;
}

static enum verdict named_take_head(struct answer_parser *parser, char byte)
{
    struct named_body *body = &parser->named;

    if (body->style == MISTRAL && parser->name.bytes == 0 && (byte == '[' || byte == '{')) {
        body->is_json = true;
        parser->raw = true; // strings may hold a marker's text
        json_body_begin(parser, false);
        return answer_json.take(parser, byte);
    }
    if (byte == '{') // a separator that was left out
        return body->style != MISTRAL || named_end_name(parser) != BODY_MORE ? BODY_FAILED : named_begin_arguments(parser, byte);
    if (parser->name.bytes == 0 && answer_is_space(byte))
        return BODY_MORE;
    text_append(&parser->name, &byte, 1);
    return parser->name.bytes > ANSWER_MAX_NAME_BYTES ? BODY_FAILED : BODY_MORE;
}

static enum verdict named_take(struct answer_parser *parser, char byte)
{
    struct named_body *body = &parser->named;

    if (body->is_json)
        return answer_json.take(parser, byte);
    switch (body->state) {
    case IN_HEAD: return named_take_head(parser, byte);
    case IN_LINE:
        if (byte == '{')
            return named_end_name(parser) != BODY_MORE ? BODY_FAILED : named_begin_arguments(parser, byte);
        if (byte == '\n')
            return named_end_name(parser);
        text_append(&parser->name, &byte, 1);
        return parser->name.bytes > ANSWER_MAX_NAME_BYTES ? BODY_FAILED : BODY_MORE;
    case AT_ARGUMENTS:
        if (byte == '{')
            return named_begin_arguments(parser, byte);
        return ++body->skipped > FENCE_BYTES_MAX ? BODY_FAILED : BODY_MORE;
    case IN_ARGUMENTS:
        answer_emit(parser, ANSWER_ARGUMENTS, &byte, 1);
        if (scan_take(&body->scan, byte) != SCAN_END)
            return BODY_MORE;
        body->state = AFTER;
        parser->raw = false;
        answer_end_call(parser);
        return body->style == MISTRAL ? BODY_DONE : BODY_MORE;
    default: return answer_is_space(byte) || byte == '`' ? BODY_MORE : BODY_DONE_BEFORE;
    }
}

static bool named_is_separator(const char *marker)
{
    return !strcmp(marker, "<｜tool▁sep｜>") || !strcmp(marker, "<|tool_call_argument_begin|>") || !strcmp(marker, "[ARGS]");
}

static enum verdict named_unit(struct answer_parser *parser, uint32_t marker)
{
    struct named_body *body = &parser->named;
    const struct marker *found = marker < ANSWER_MAX_MARKERS ? &parser->family->markers[marker] : NULL;

    if (!found)
        return BODY_MORE;
    if (body->is_json)
        return answer_json.unit(parser, marker);
    if (found->role == MARKER_PART && body->state == IN_HEAD) {
        if (named_is_separator(found->text) && body->style == DEEPSEEK && parser->name.bytes == 8 &&
            !memcmp(parser->name.data, "function", 8)) {
            text_clear(&parser->name);
            body->state = IN_LINE;
            return BODY_MORE;
        }
        return named_end_name(parser); // before [CALL_ID], too: the id is skipped
    }
    if (found->role == MARKER_PART)
        return BODY_MORE;
    if (body->state == IN_ARGUMENTS || body->state == AFTER)
        return found->role == MARKER_CLOSE ? BODY_DONE : BODY_DONE_BEFORE;
    return BODY_FAILED;
}

#define NAMED .begin = named_begin, .take = named_take, .unit = named_unit, .markers_in_body = true
const struct body answer_mistral = {NAMED, .style = MISTRAL};
const struct body answer_deepseek = {NAMED, .style = DEEPSEEK};
const struct body answer_kimi = {NAMED, .style = KIMI};
